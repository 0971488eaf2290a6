"""What is closed at the end of a `with` block, whichever way it ends."""

from __future__ import annotations

import pytest

from parallel_envs.closing import ClosedAtExit


class Door(ClosedAtExit):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_it_is_closed_at_the_end() -> None:
    with Door() as door:
        assert door.closed == 0
    assert door.closed == 1


def test_an_error_closes_it_and_goes_on() -> None:
    door = Door()
    with pytest.raises(KeyError), door:
        raise KeyError
    assert door.closed == 1
