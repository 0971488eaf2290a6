"""Environments in their place: which are where their episodes stand, and which are done at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

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
    assert len(others) == 2
    assert child not in others


class Locked(Walk):  # cannot be made while there is a lock
    def __init__(self, config: WalkConfig) -> None:
        if Path(config.fuse).exists():
            raise OSError("the data is locked")
        super().__init__(config)


@pytest.mark.parametrize("killed", [True, False])
def test_an_env_that_could_not_be_made_for_a_mere_question_is_made_and_replayed_for_the_next(
    killed: bool, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    with of_kind(Locked, lock) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["left"], 1: ["left"]}))
        if killed:
            kill_all(manager)
        else:
            manager.use_multiprocessing = False
        lock.touch()
        with pytest.raises(OSError, match="during its construction: the data is locked"):
            manager.render()
        lock.unlink()
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


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
        assert [[item["state"][0] for item in entry["history"]] for entry in entries] == [[0.0, 1.0], [0.0, -1.0]]
        assert [entry["history"][0]["info"]["seen"][0] for entry in entries] == [1.0, -1.0]
        for entry in entries:  # neither does it matter what the user writes into them
            for item in entry["history"]:
                item["state"][:] = 77.0
            entry["history"][0]["info"]["seen"][:] = 77.0
            entry["history"][0]["actions"].clear()
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


@pytest.mark.parametrize(
    ("kind", "in_workers", "doing", "text"),
    [
        (Stubborn, True, "its turn", "returned a NoneType"),
        (Stubborn, False, "its turn", "returned a NoneType"),
        (Ending, True, "sending its answer", "SystemExit"),
    ],
)
def test_an_exit_at_the_end_or_in_pickling_is_at_most_a_failure_of_that_env(
    kind: type[Walk], in_workers: bool, doing: str, text: str
) -> None:
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


def no_data(config: Any) -> Any:
    raise OSError("no data")


def test_of_those_that_may_be_done_at_once_the_one_that_cannot_be_made_is_told() -> None:
    recipes = {"Bad": TagSpec("Bad", no_data, None, threads=2), "Good": TagSpec("Good", Walk, WalkConfig(), threads=2)}
    with host({0: "Bad", 1: "Good", 2: "Good"}, recipes) as (shelf, _):
        answers = shelf.do(Request(Job.RESET, {env: (env, "train") for env in range(3)}))
        assert answers.values.keys() == {1, 2}
        assert {env: broken.doing for env, broken in answers.errors.items()} == {0: "its construction"}


# ---- environments that wait: at once --------------------------------------------------------------------------------


class Meeting(Walk):  # notes its threads, and is not done before as many others have begun
    barrier: threading.Barrier | None = None
    threads: ClassVar[set[str]] = set()

    def step(self, action: int) -> Any:
        self.threads.add(threading.current_thread().name)
        if self.barrier is not None:
            self.barrier.wait(30.0)
        return super().step(action)


FRIENDLY, STRICT = TagSpec("friendly", Meeting, WalkConfig(), threads=4), TagSpec("strict", Walk, WalkConfig())


def done(meets: int, room: int | None, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The threads in which four friendly environments are stepped. `room`: for so many threads, or for any number."""
    monkeypatch.setattr(Meeting, "barrier", threading.Barrier(meets) if meets else None)
    monkeypatch.setattr(Meeting, "threads", set())
    tags = {env: "friendly" if env < 4 else "strict" for env in range(6)}
    with host(tags, {"friendly": FRIENDLY, "strict": STRICT}) as (shelf, _):
        shelf.do(Request(Job.RESET, {env: (env, "train") for env in tags}))
        Meeting.threads.clear()
        if room is not None:
            threads: Any = shelf._threads
            monkeypatch.setattr(threads, "_num_free", min(room, threads._num_free))
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                answers = shelf.do(Request(Job.PLAY, {env: ["left"] for env in tags}))
        else:
            answers = shelf.do(Request(Job.PLAY, {env: ["left"] for env in tags}))
        assert answers.values.keys() == tags.keys()
        return set(Meeting.threads)


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_friendly_ones_are_done_at_once_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(done(4, None, monkeypatch) - {threading.current_thread().name}) == 4


@pytest.mark.parametrize("room", [0, 1])
def test_where_there_is_no_room_for_threads_all_is_done_all_the_same(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert done(0, room, monkeypatch)
