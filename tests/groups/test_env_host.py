"""Environments in their place: which are where their episodes stand, and which are done at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.env_host import EnvHost
from parallel_envs.groups.hosted_env import TagSpec
from parallel_envs.groups.transport import Job, Request, TimeLimits, WorkerClock
from tests.groups.walks import Walk, WalkConfig, inputs, kill_all, of_kind


class Forking(Walk):  # forks in a jump, and comes back twice. Notes which process steps it
    def step(self, action: int) -> Any:
        if action == 7 and (child := os.fork()):
            os.waitpid(child, 0)
        with Path(self.config.fuse).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return super().step(action)


def test_what_is_forked_from_a_worker_does_nothing_of_its_work(tmp_path: Path) -> None:
    with of_kind(Forking, tmp_path / "steps") as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({0: ["jump"], 1: ["left"]}))
        assert [len(entry["history"]) for entry in entries] == [2, 2]
    child, *others = (tmp_path / "steps").read_text(encoding="utf-8").split()
    assert (len(others), child in others) == (2, False)


class Locked(Walk):  # cannot be made while there is a lock
    def __init__(self, config: WalkConfig) -> None:
        if Path(config.fuse).exists():
            raise OSError("the data is locked")
        super().__init__(config)


@pytest.mark.parametrize("killed", [True, False])
def test_an_env_that_could_not_be_made_for_a_mere_question_is_made_and_replayed_for_the_next(
    killed: bool, tmp_path: Path
) -> None:
    lock, left = tmp_path / "lock", inputs({0: ["left"], 1: ["left"]})
    with of_kind(Locked, lock) as manager:
        manager.reset(seed=1)
        manager.step(left)
        if killed:
            kill_all(manager)
        else:
            manager.use_multiprocessing = False
        lock.touch()
        with pytest.raises(OSError, match="during its construction: the data is locked"):
            manager.render()
        lock.unlink()
        assert [len(entry["history"][-1]["state"].split()) for entry in manager.step(left)] == [3, 3]


class Reusing(Walk):  # writes each state into the same array
    def reset(self, seed: int, mode: str) -> Any:
        self.buffer = np.zeros(2)
        return self.buffer

    def step(self, action: int) -> Any:
        self.buffer += action
        return self.buffer, 0.0, False, False, {"seen": self.buffer}


@pytest.mark.parametrize("in_workers", [True, False])
def test_an_env_that_writes_into_its_states_can_be_replayed_and_its_history_stands(in_workers: bool) -> None:
    with of_kind(Reusing, use_multiprocessing=in_workers) as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({0: ["right"], 1: ["left"]}))
        for entry, step in zip(entries, (1.0, -1.0), strict=True):
            done, now = entry["history"]
            assert (done["state"][0], now["state"][0], done["info"]["seen"][0]) == (0.0, step, step)
            for written in (done["state"], now["state"], done["info"]["seen"]):  # nor does it matter what users write
                written[:] = 77.0
            done["actions"].clear()
        if in_workers:
            kill_all(manager)
        manager.use_multiprocessing = True
        entries = manager.step(inputs({0: ["right"], 1: ["left"]}))
        assert [entry["history"][-1]["state"].tolist() for entry in entries] == [[2.0, 2.0], [-2.0, -2.0]]


class Leaving:  # A state that ends the process that pickles or copies it
    def __reduce__(self) -> Any:
        raise SystemExit(3)


class Ending(Walk):  # jumps to such a state
    def step(self, action: int) -> Any:
        state, *rest = super().step(action)
        return (Leaving() if action == 7 else state, *rest)


class Stubborn(Walk):  # breaks in a jump, and ends the process that closes it
    def step(self, action: int) -> Any:
        return None if action == 7 else super().step(action)

    def close(self) -> None:
        raise SystemExit(3)


def test_an_exit_at_the_end_or_in_pickling_is_at_most_a_failure_of_that_env() -> None:
    for kind, in_workers, doing, text in (
        (Stubborn, True, "its turn", "returned a NoneType"),
        (Stubborn, False, "its turn", "returned a NoneType"),
        (Ending, True, "sending its answer", "SystemExit"),
    ):
        with of_kind(kind, use_multiprocessing=in_workers) as manager:
            manager.reset(seed=1)
            broken, well = manager.step(inputs({0: ["jump"], 1: ["left"]}))
            assert (broken["failure"].kind, broken["failure"].doing) == ("error", doing)
            assert text in str(broken["failure"])
            assert "failure" not in well


# ---- a host by itself -----------------------------------------------------------------------------------------------


@contextmanager
def host(tags: dict[int, str], recipes: dict[str, TagSpec]) -> Iterator[tuple[EnvHost, WorkerClock]]:
    block = WorkerClock.allocate(len(tags), 1)
    clock = WorkerClock(block, len(tags), 0)
    shelf = EnvHost(tags, recipes, TimeLimits(), clock, copies=False)
    yield shelf, clock
    shelf.close()
    block.close()


class Watched(Walk):  # notes how many have been begun, and are not done, while it is made
    clock: WorkerClock
    counts: list[int]

    def __init__(self, config: WalkConfig) -> None:
        super().__init__(config)
        self.note()

    def note(self) -> None:
        threading.Event().wait(0.01)  # whatever may work at the same time is there by then
        self.counts.append(len(self.clock.at_work(0, Job.PLAY)))


class WatchedDice(Watched):  # and while it is stepped
    uses_global_random = True

    def step(self, action: int) -> Any:
        self.note()
        return super().step(action)


@pytest.mark.parametrize("kind", [Watched, WatchedDice])
def test_no_time_runs_while_another_has_the_generators(kind: type[Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    tags = dict.fromkeys(range(8), "Walk")
    with host(tags, {"Walk": TagSpec("Walk", kind, WalkConfig(), threads=8)}) as (shelf, clock):
        monkeypatch.setattr(Watched, "clock", clock, raising=False)
        monkeypatch.setattr(Watched, "counts", [], raising=False)
        began = shelf.do(Request(Job.RESET, {env: (env, "train") for env in tags}))
        played = shelf.do(Request(Job.PLAY, {env: ["left"] for env in tags}))
        assert began.values.keys() == played.values.keys() == tags.keys()
        assert Watched.counts == [1] * (8 if kind is Watched else 16)


def test_of_those_that_may_be_done_at_once_the_one_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    tags = {0: "Bad", 1: "Good", 2: "Good"}
    config = WalkConfig(fuse=str(tmp_path))
    recipes = {tag: TagSpec(tag, kind, config, threads=2) for tag, kind in (("Bad", Locked), ("Good", Walk))}
    with host(tags, recipes) as (shelf, _):
        answers = shelf.do(Request(Job.RESET, {env: (env, "train") for env in tags}))
        assert answers.values.keys() == {1, 2}
        assert {env: broken.doing for env, broken in answers.errors.items()} == {0: "its construction"}


# ---- environments that wait: at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1])
def test_where_there_is_no_room_for_threads_all_is_done(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tags = {env: "friendly" if env < 4 else "strict" for env in range(6)}
    recipes = {
        tag: TagSpec(tag, Walk, WalkConfig(), threads=threads) for tag, threads in (("friendly", 4), ("strict", 1))
    }
    with host(tags, recipes) as (shelf, _):
        shelf.do(Request(Job.RESET, {env: (env, "train") for env in tags}))
        threads: Any = shelf._threads
        monkeypatch.setattr(threads, "_num_free", min(room, threads._num_free))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            answers = shelf.do(Request(Job.PLAY, {env: ["left"] for env in tags}))
        assert answers.values.keys() == tags.keys()
