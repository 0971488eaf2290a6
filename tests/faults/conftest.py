"""Managers that are closed when their test ends, quickly whatever became of their workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import ParallelEnvManager
from tests.faults.matrix import CLOSE_SECONDS, DEADLINES, Make
from tests.gates import Gate


@pytest.fixture
def make(caplog: pytest.LogCaptureFixture) -> Iterator[Make]:
    """`ParallelEnvManager` with short deadlines."""
    with ExitStack() as managers:
        # A record may hold an error, and that, through its traceback, all that the env ever held.
        managers.callback(lambda: caplog.get_records("call").clear())

        def make(*arguments: Any, **settings: Any) -> ParallelEnvManager:
            envs = ParallelEnvManager(*arguments, **{**DEADLINES, **settings})
            managers.callback(envs.close, timeout=CLOSE_SECONDS)
            return envs

        yield make


@pytest.fixture
def gate(tmp_path: Path, make: Make) -> Iterator[Gate]:
    """A closed gate that opens at the end of the test at the latest, before the managers close."""
    with Gate(tmp_path / "gate") as gate:
        yield gate
