"""Environments in their place: which are where their episodes stand, and who writes there."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import EnvError
from parallel_envs.groups import EnvStateManager, env_host, register
from parallel_envs.groups.env_host import EnvHost
from parallel_envs.groups.hosted_env import TagSpec
from parallel_envs.groups.transport import Job, Request, SharedChannel, TimeLimits, WorkerClock
from tests.groups.walks import Walk, WalkConfig, configured, inputs


def manager_of(kind: type, fuse: Path | None = None, **said: Any) -> EnvStateManager:
    """Two environments of this kind, in a worker unless something else is said."""
    register("kind", kind, WalkConfig)
    config = configured({"Walk": 1}, **{"max_workers": 1, **said})
    config["custom_envs"]["Walk"] = {"env_type": "kind", "env_config": {"fuse": str(fuse or "")}}
    return EnvStateManager(config)


def kill_workers(manager: EnvStateManager) -> None:
    assert manager._placement is not None
    assert manager._placement.workers is not None
    pool = manager._placement.workers.pool
    for worker in pool.all_workers:
        os.kill(pool.pid(worker), signal.SIGKILL)


class Forking(Walk):
    """Forks in a jump, and comes back twice. Notes who steps it."""

    def step(self, action: int) -> Any:
        if action == 7 and (child := os.fork()):
            os.waitpid(child, 0)
        with Path(self.config.fuse).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return super().step(action)


def test_what_is_forked_from_a_worker_does_nothing_of_its_work(tmp_path: Path) -> None:
    with manager_of(Forking, tmp_path / "steps") as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({0: ["jump"], 1: ["left"]}))
        assert [len(entry["history"]) for entry in entries] == [2, 2]
    child, *others = (tmp_path / "steps").read_text(encoding="utf-8").split()
    assert len(others) == 2
    assert child not in others


class Unshowable(Walk):
    """Shows what cannot travel."""

    def render(self, mode: str = "text") -> Any:
        return threading.Lock()


def test_who_cannot_send_what_it_shows_goes_on_where_it_stood() -> None:
    with manager_of(Unshowable) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["left"], 1: ["left"]}))
        with pytest.raises(EnvError, match=r"during sending its answer: .*_thread.lock"):
            manager.render()
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


class Locked(Walk):
    """Cannot be made while there is a lock."""

    def __init__(self, config: WalkConfig) -> None:
        if Path(config.fuse).exists():
            raise OSError("the data is locked")
        super().__init__(config)


@pytest.mark.parametrize("killed", [True, False])
def test_who_could_not_be_made_for_a_mere_question_is_made_and_replayed_for_the_next(
    killed: bool, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    with manager_of(Locked, lock) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["left"], 1: ["left"]}))
        if killed:
            kill_workers(manager)
        else:
            manager.use_multiprocessing = False
        lock.touch()
        with pytest.raises(OSError, match="during its construction: the data is locked"):
            manager.render()
        lock.unlink()
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


class Watched(Walk):
    """Notes how many have been begun, and are not done, while it is made."""

    clock: WorkerClock
    counts: list[int]

    def __init__(self, config: WalkConfig) -> None:
        super().__init__(config)
        self.note()

    def note(self) -> None:
        threading.Event().wait(0.01)  # whoever may work at the same time is there by then
        self.counts.append(len(self.clock.at_work()))


class WatchedDice(Watched):
    """And while it is stepped."""

    uses_global_random = True

    def step(self, action: int) -> Any:
        self.note()
        return super().step(action)


@pytest.mark.parametrize("kind", [Watched, WatchedDice])
def test_no_time_runs_while_another_has_the_generators(kind: type[Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_host, "_PATIENCE_SECONDS", 0.0)
    clocks, box = WorkerClock.allocate(8, 1), SharedChannel.allocate()
    monkeypatch.setattr(Watched, "clock", WorkerClock(clocks, 8, 0), raising=False)
    monkeypatch.setattr(Watched, "counts", [], raising=False)
    tags, recipes = dict.fromkeys(range(8), "Walk"), {"Walk": TagSpec("Walk", kind, WalkConfig(), threads=8)}
    shelf = EnvHost.in_worker(tags, recipes, TimeLimits(), clocks, 8, 0, box, None)
    began = shelf.do(Request(Job.RESET, {env: (env, "train") for env in tags}))
    played = shelf.do(Request(Job.PLAY, {env: ["left"] for env in tags}))
    assert began.values.keys() == played.values.keys() == tags.keys()
    assert Watched.counts == [1] * (8 if kind is Watched else 16)
    shelf.close()
    for block in (clocks, box):
        block.close()


def test_of_those_that_may_be_done_at_once_who_cannot_be_made_is_told() -> None:
    bad, good = TagSpec("Bad", Unmakeable, None, threads=2), TagSpec("Good", Walk, WalkConfig(), threads=2)
    clocks, box = WorkerClock.allocate(4, 1), SharedChannel.allocate()
    tags, recipes = {0: "Bad", 1: "Good", 2: "Good"}, {"Bad": bad, "Good": good}
    shelf = EnvHost.in_worker(tags, recipes, TimeLimits(), clocks, 4, 0, box, None)
    answers = shelf.do(Request(Job.RESET, {env: (env, "train") for env in range(3)}))
    assert answers.values.keys() == {1, 2}
    assert {env: broken.doing for env, broken in answers.errors.items()} == {0: "its construction"}
    shelf.close()
    for block in (clocks, box):
        block.close()


class Unmakeable(Walk):
    """Is never there."""

    def __init__(self, config: Any) -> None:
        raise OSError("no data")


class Reusing(Walk):
    """Writes each state into the same array."""

    def reset(self, seed: int, mode: str) -> Any:
        self.buffer = np.zeros(2)
        return self.buffer

    def step(self, action: int) -> Any:
        self.buffer += action
        return self.buffer, 0.0, False, False, {"seen": self.buffer}


@pytest.mark.parametrize("in_workers", [True, False])
def test_who_writes_into_its_states_can_be_replayed(in_workers: bool) -> None:
    with manager_of(Reusing, use_multiprocessing=in_workers) as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({0: ["right"], 1: ["left"]}))
        for entry in entries:  # neither does it matter what the user writes into them
            for item in entry["history"]:
                item["state"][:] = 77.0
            entry["history"][0]["info"]["seen"][:] = 77.0
            entry["history"][0]["actions"].clear()
        if in_workers:
            kill_workers(manager)
        manager.use_multiprocessing = True
        entries = manager.step(inputs({0: ["right"], 1: ["left"]}))
        assert [entry["history"][-1]["state"].tolist() for entry in entries] == [[2.0, 2.0], [-2.0, -2.0]]


class Stubborn(Walk):
    """Ends whoever closes it."""

    def step(self, action: int) -> Any:
        return None if action == 7 else super().step(action)

    def close(self) -> None:
        raise SystemExit(3)


@pytest.mark.parametrize("in_workers", [True, False])
def test_what_an_environment_that_broke_does_at_its_end_is_of_no_interest(in_workers: bool) -> None:
    with manager_of(Stubborn, use_multiprocessing=in_workers) as manager:
        manager.reset(seed=1)
        broken, well = manager.step(inputs({0: ["jump"], 1: ["left"]}))
        assert "returned a NoneType" in str(broken["failure"])
        assert "failure" not in well


class Leaving:
    """A state that ends whoever pickles it."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)


class Ending(Walk):
    """Shows such a state, if it jumps."""

    def step(self, action: int) -> Any:
        state, *rest = super().step(action)
        return (Leaving() if action == 7 else state, *rest)


def test_a_state_that_ends_whoever_pickles_it_is_a_failure_of_its_own() -> None:
    with manager_of(Ending) as manager:
        manager.reset(seed=1)
        well, broken = manager.step(inputs({0: ["left"], 1: ["jump"]}))
        assert "failure" not in well
        assert (broken["failure"].kind, broken["failure"].doing) == ("error", "sending its answer")
