"""A Ctrl-C at every moment: before each function is entered and after each that is not Python's has returned, which is
where the interpreter lets signals in. What it cuts short did not happen, or happened to all."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from parallel_envs.groups import EnvStateManager, register
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import Walk, WalkConfig, configured, inputs
from tests.striking import strikes, strikes_after, struck


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """A finalizer that is struck can tell nobody."""
    gc.disable()
    yield
    gc.enable()


def turns_of(manager: EnvStateManager) -> list[int]:
    return [len(status.rewards) for status in manager.statuses]


@pytest.mark.parametrize("begins", ["where all stand", "where a strike left them"])
@pytest.mark.parametrize("in_workers", [True, False])
def test_a_turn_that_is_struck_did_not_happen_or_happened_to_all(in_workers: bool, begins: str) -> None:
    config = configured({"Walk": 1, "Dice": 1}, 1, max_workers=2, use_multiprocessing=in_workers)
    blocks = config["custom_envs"].items()
    config["custom_envs"] = {tag: {**block, "max_actions_per_traj": 10000} for tag, block in blocks}
    turn, last = inputs({0: ["right", "left"], 1: ["nothing"]}), inputs({0: ["left"], 1: ["throw"]})
    with EnvStateManager(config) as manager:
        manager.reset(seed=2)
        play = functools.partial(manager.step, turn)
        for moment in strikes(play) if begins == "where a strike left them" else strikes_after(play, play):
            here, beyond = turns_of(manager)
            assert here == beyond, f"struck at moment {moment}"
        here, _ = turns_of(manager)
        entries = manager.step(last)
    with EnvStateManager(config) as manager:
        manager.use_multiprocessing = False
        manager.reset(seed=2)
        for _ in range(here):
            manager.step(turn)
        assert_same_batch(entries, manager.step(last))


@pytest.mark.parametrize("in_workers", [True, False])
def test_a_reset_that_is_struck_leaves_the_episodes_before_it_or_begins_all(in_workers: bool) -> None:
    with EnvStateManager(configured({"Walk": 1}, 2, max_workers=1, use_multiprocessing=in_workers)) as manager:
        manager.reset(seed=0)
        for _ in strikes(manager.reset):
            ones, others = manager.step(inputs({0: ["left"], 1: ["left"]}))
            *_, before, now = [item["state"] for item in ones["history"]]
            assert now.startswith(f"{before} ")
            assert [item["state"] for item in others["history"]] == [item["state"] for item in ones["history"]]
            assert len(set(turns_of(manager))) == 1
            manager.reset()


def test_a_first_reset_that_is_struck_leaves_no_worker_behind() -> None:
    config = configured({"Walk": 1, "Dice": 1}, 1, max_workers=2)

    def begun(moment: int) -> int:
        with EnvStateManager(config) as manager:
            passed = struck(moment, functools.partial(manager.reset, 1))
            assert len(manager.reset(2)) == 2
        return passed  # the check around every test says whether a process is left

    whole = begun(sys.maxsize)
    for moment in range(1, whole, max(whole // 12, 1)):
        begun(moment)


def test_workers_that_are_killed_at_any_moment_cost_nobody_anything() -> None:
    config = configured({"Walk": 2, "Dice": 1}, 1, max_workers=2)
    turns = [inputs({0: ["right"], 1: ["left", "jump"], 2: ["throw"]}), inputs({1: ["left"], 0: ["left"], 2: []})]
    told: list[Any] = []

    def play() -> None:
        told[1:] = map(manager.step, turns)

    with EnvStateManager(config) as manager, EnvStateManager(config) as reference:
        reference.use_multiprocessing = False
        expected = [reference.reset(seed=1), *map(reference.step, turns)]
        manager.reset(seed=1)
        whole = struck(sys.maxsize, play)
        for moment in range(1, whole, max(whole // 10, 1)):
            told[:] = [manager.reset(seed=1)]
            struck(moment, play, functools.partial(kill_worker, manager, moment % 2))
            assert_same_batch(told, expected)
        assert manager.stats().restarts > 0


def kill_worker(manager: EnvStateManager, worker: int) -> None:
    assert manager._placement is not None
    assert manager._placement.workers is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(manager._placement.workers.pool.pid(worker), signal.SIGKILL)


class Halved(Walk):
    """What a Ctrl-C left half done is never done again."""

    busy = False
    strikes = 0

    def step(self, action: int) -> Any:
        if self.busy:
            raise RuntimeError("it was left in the midst of a step")
        self.busy = True
        if action == 7 and not Halved.strikes:
            Halved.strikes += 1
            signal.raise_signal(signal.SIGINT)
        told = super().step(action)
        self.busy = False
        return told


def test_an_environment_that_was_struck_in_the_midst_of_its_code_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halved, "strikes", 0)
    register("halved", Halved, WalkConfig)
    config = configured({"Walk": 1}, 1, use_multiprocessing=False)
    config["custom_envs"]["Walk"] = {"env_type": "halved"}
    with EnvStateManager(config) as manager:
        manager.reset(seed=2)
        manager.step(inputs({0: ["left"]}))
        with pytest.raises(KeyboardInterrupt):
            manager.step(inputs({0: ["jump"]}))
        [entry] = manager.step(inputs({0: ["jump"]}))
        assert "failure" not in entry
        assert len(entry["history"][-1]["state"].split()) == 3
