"""Groups of objects in workers: built, asked, lost and replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.engine import Failure, WorkerPool
from parallel_envs.engine.worker_group import LostWorker, WorkerGroup
from tests.engine.conftest import Open

SECONDS = 60.0


class Adder:
    """Object that adds to its number; on request it hangs, raises or ends its process."""

    def __init__(self, number: int, cannot_be_built: Path | None = None) -> None:
        if cannot_be_built is not None and cannot_be_built.exists():
            raise ValueError(cannot_be_built.read_text())
        self.number = number

    def add(self, more: int) -> int:
        self.number += more
        return self.number

    def end(self, flag: Path | None = None) -> str:
        if flag is None or not flag.exists():
            if flag is not None:
                flag.touch()
            os._exit(3)
        return "answered"

    def hang(self) -> None:
        time.sleep(1000)


def group_of(pool: WorkerPool, **settings: Any) -> WorkerGroup:
    return WorkerGroup(pool, lambda worker: (Adder, 10 * worker), **settings)


def values(group: WorkerGroup, method: str, *arguments: Any) -> dict[int, Any]:
    workers = group.workers
    replies = group.ask(lambda worker: group.call(method, *arguments), workers, SECONDS)
    return {worker: reply.value for worker, reply in replies.items()}


def test_each_worker_builds_its_own_object_on_every_backend(open_any: Open) -> None:
    pool = open_any(2)
    group, other = group_of(pool), group_of(pool, workers=[1])
    assert group.unbuilt == {0, 1}
    assert (group.build(seconds=SECONDS), group.unbuilt) == ([], set())
    assert other.build(seconds=SECONDS) == []
    assert values(group, "add", 1) == {0: 1, 1: 11}
    assert values(other, "add", 2) == {1: 12}
    other.drop([1])
    assert values(group, "add", 1) == {0: 2, 1: 12}
    assert group.lost(0) is None


def test_a_dead_worker_is_lost_until_it_has_a_fresh_object(open_processes: Open) -> None:
    pool = open_processes(2)
    group = group_of(pool)
    group.build(seconds=SECONDS)
    request = pool.send({0: group.call("end")})
    assert group.replies(request, SECONDS)[0].death is not None
    loss = group.lost(0)
    assert loss is not None
    assert loss.text("Worker 0", "its sum", advice=" Try again.") == (
        "Worker 0 ended with exit code 3 during its sum. Its code, or a library, ended the process. Try again."
    )
    pool.restart(0)  # by another user of the pool, say
    replaced = group.lost(0)
    assert replaced is not None
    assert replaced.text("Worker 0") == "Worker 0 was replaced by a fresh worker, which holds nothing yet."
    assert group.replace(0, SECONDS) == []
    assert (group.lost(0), group.num_restarts) == (None, 1)
    assert values(group, "add", 1) == {0: 1, 1: 11}


def test_a_late_worker_is_ended_and_the_loss_says_where_it_was(open_forkserver: Open) -> None:
    pool = open_forkserver(2)
    group = group_of(pool)
    group.build(seconds=SECONDS)
    replies = group.replies(pool.send({0: group.call("hang"), 1: group.call("add", 5)}), 0.3)
    assert replies[0].death is not None
    assert replies[1].value == 15
    loss = group.lost(0)
    assert loss is not None
    text = loss.text("Worker 0", "its sum")
    assert text.startswith("Worker 0 was not done with its sum within 0.3 seconds and was ended.\nIt was here:\n")
    assert "in hang" in text
    assert "engine/worker.py" not in text
    group.replace(0, SECONDS)
    assert group.lost(0) is None


def test_an_object_that_cannot_be_built_is_a_loss_with_its_error(open_any: Open, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.write_text("no room")
    pool = open_any(2)
    group = WorkerGroup(pool, lambda worker: (Adder, worker, flag if worker else None))
    [loss] = group.build(seconds=SECONDS)
    assert (loss.worker, group.unbuilt) == (1, {1})
    assert loss.text("Worker 1") == "Worker 1 raised ValueError when it was built: no room"
    flag.unlink()
    assert group.build([1], SECONDS) == []
    group.give_up(0, Failure("ValueError", "of no use", ""))
    assert [worker for worker in (0, 1) if group.lost(worker) is not None] == [0]


@pytest.mark.parametrize("is_mended", [True, False])
def test_lost_workers_are_asked_once_more(open_forkserver: Open, tmp_path: Path, is_mended: bool) -> None:
    pool = open_forkserver(2)
    group = group_of(pool)
    group.build(seconds=SECONDS)
    attempts: list[tuple[list[int], bool]] = []

    def on_lost(losses: Sequence[LostWorker], is_last: bool) -> None:
        attempts.append(([loss.worker for loss in losses], is_last))
        for loss in losses:
            group.replace(loss.worker, SECONDS)

    arguments = (tmp_path / "flag",) if is_mended else ()
    replies = group.ask(
        lambda worker: group.call("add", 1) if worker else group.call("end", *arguments), (0, 1), SECONDS, on_lost
    )
    assert replies[1].value == 11  # it was asked only once
    if is_mended:
        assert (replies[0].value, attempts) == ("answered", [([0], False)])
    else:
        assert replies[0].death is not None
        assert attempts == [([0], False), ([0], True)]


def test_a_ctrl_c_between_restart_and_build_leaves_a_worker_that_counts_as_lost(
    open_forkserver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_forkserver(1)
    group = group_of(pool)
    group.build(seconds=SECONDS)
    os.kill(pool.pid(0), signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(group, "build", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.replace(0, SECONDS)
    assert group.unbuilt == {0}
    assert group.lost(0) is not None
    assert group.build([0], SECONDS) == []


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt
