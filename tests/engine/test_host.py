"""A worker's host: named objects, and a clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_envs.engine import HOST, Call, SharedBlock
from parallel_envs.engine.messages import Reply
from parallel_envs.engine.worker import BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE, METERS, Host
from tests.engine.hosted import TOLD, Closing, Echo, FailingAtClose, Raiser


def hosting(*objects: object) -> Host:
    host = Host(0)
    for key, thing in enumerate(objects, start=1):
        host.build(key, lambda thing=thing: thing)
    return host


def test_a_host_answers_for_itself_under_its_own_key() -> None:
    host = Host(0)
    assert host.execute(Call(HOST, "build", (5, Echo))) == Reply(host.index)
    assert host.ring(5, 7) == Reply(host.index, 7)
    assert host.execute(Call(HOST, "drop", (5,))) == Reply(host.index)
    assert 5 not in host.objects


def test_arguments_go_to_the_factory() -> None:
    host = Host(0)
    host.build(1, dict, [("a", 1)], b=2)
    assert host.objects[1] == {"a": 1, "b": 2}


def test_a_factory_that_raises_leaves_nothing_under_its_key() -> None:
    host = hosting(Echo())
    outcome = host.execute(Call(HOST, "build", (1, Raiser, "plain")))
    assert outcome.failure is not None
    assert (outcome.failure.type_name, outcome.failure.message) == TOLD["plain"]
    assert 1 not in host.objects


def test_dropping_what_is_not_there_does_nothing() -> None:
    Host(0).drop(3)


def test_an_attribute_named_close_need_not_be_a_method() -> None:
    thing = Echo()
    thing.close = "soon"  # type: ignore[attr-defined]
    hosting(thing).close()


def test_all_objects_are_closed_before_the_first_error_is_raised(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    host = hosting(FailingAtClose(notes, "first"), Closing(notes, "second"), FailingAtClose(notes, "third"))
    with pytest.raises(OSError, match="could not be closed"):
        host.close()
    assert notes.read_text().split() == ["first", "second", "third"]
    assert list(host.objects) == [HOST]
    host.close()


def test_a_bell_without_payload_has_no_reply() -> None:
    assert hosting(Echo()).ring(1, 0) is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The moments at which a clock is read, one after the other."""
    moments: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: moments.pop(0))
        yield moments


def test_meters_tell_bells_from_messages_and_since_when(clock: list[float]) -> None:
    clock += [100.0, 104.0, 110.0]  # made; then two ends of work
    block = SharedBlock.create(3 * METERS * 8)
    host = Host(0)
    host.meter(block, METERS)
    host.count(BELL_SECONDS, 103.0)
    host.count(MESSAGE_SECONDS, 106.0)
    columns = block.array("f8", (3, METERS))
    assert columns[1, [BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE]].tolist() == [1.0, 4.0, 100.0]
    assert not columns[[0, 2]].any()
    block.close()


def test_a_worker_in_the_place_of_another_counts_on(clock: list[float]) -> None:
    clock += [100.0, 104.0, 200.0, 203.0]
    block = SharedBlock.create(METERS * 8)
    for began in (103.0, 201.0):
        host = Host(0)
        host.meter(block, 0)
        host.count(BELL_SECONDS, began)
    columns = block.array("f8", (METERS,))
    assert columns[[BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE]].tolist() == [3.0, 0.0, 100.0]
    block.close()
