"""What comes in the midst of a call: a Ctrl-C at every moment, a killed worker, a signal handler, another call.

A Ctrl-C comes before each function is entered and after each that is not Python's has returned, which is where the
interpreter lets signals in. What it cuts short did not happen, or happened to all.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from parallel_envs.errors import ParallelEnvsError
from parallel_envs.groups import BadTurn, EnvStateManager, register
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import TAGS, Walk, WalkConfig, configured, inputs, of_kind, workers
from tests.striking import strikes, strikes_after, struck


@pytest.fixture
def _no_collections() -> Iterator[None]:
    """A finalizer that is struck can tell nobody."""
    gc.disable()
    yield
    gc.enable()


uninterrupted_finalizers = pytest.mark.usefixtures("_no_collections")


def turns_of(manager: EnvStateManager) -> list[int]:
    return [len(status.rewards) for status in manager.statuses]


@uninterrupted_finalizers
@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(
    ("in_workers", "begins"),
    [
        (True, "where a strike left them"),
        (False, "where all stand"),
        (True, "where all stand"),
        (False, "where a strike left them"),
    ],
)
def test_a_turn_that_is_struck_did_not_happen_or_happened_to_all(in_workers: bool, begins: str) -> None:
    config = configured({"Walk": 1, "Dice": 1}, 1, max_workers=2, use_multiprocessing=in_workers)
    blocks = config["custom_envs"].items()
    config["custom_envs"] = {tag: {**block, "max_actions_per_traj": 10000} for tag, block in blocks}
    turn, last = inputs({0: ["right", "left"], 1: ["nothing"]}), inputs({0: ["left"], 1: ["throw"]})
    with EnvStateManager(config) as manager, EnvStateManager(config) as unstruck:
        manager.reset(seed=2)
        play = functools.partial(manager.step, turn)
        for moment in strikes(play) if begins == "where a strike left them" else strikes_after(play, play):
            here, beyond = turns_of(manager)
            assert here == beyond, f"struck at moment {moment}"
        unstruck.use_multiprocessing = False
        unstruck.reset(seed=2)
        for _ in range(turns_of(manager)[0]):
            unstruck.step(turn)
        assert_same_batch(manager.step(last), unstruck.step(last))


@uninterrupted_finalizers
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


@uninterrupted_finalizers
@pytest.mark.parametrize("num_moments", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_a_first_reset_that_is_struck_leaves_no_worker_behind(num_moments: int) -> None:
    def passed(moment: int) -> int:
        with EnvStateManager(configured({"Walk": 1, "Dice": 1}, 1, max_workers=2)) as manager:
            passed = struck(moment, functools.partial(manager.reset, 1))
            assert len(manager.reset(2)) == 2
        return passed  # the check around every test says whether a process is left

    whole = passed(sys.maxsize)
    for moment in range(1, whole, max(whole // num_moments, 1)):
        passed(moment)


@uninterrupted_finalizers
@pytest.mark.parametrize("num_moments", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_workers_that_are_killed_at_any_moment_cost_no_env_anything(num_moments: int) -> None:
    config = configured({"Walk": 2, "Dice": 1}, 1, max_workers=2)
    turns = [inputs({0: ["right"], 1: ["left", "jump"], 2: ["throw"]}), inputs({1: ["left"], 0: ["left"], 2: []})]
    told: list[Any] = []

    def play() -> None:
        told[1:] = map(manager.step, turns)

    def kill(worker: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers(manager).pool.pid(worker), signal.SIGKILL)

    with EnvStateManager(config) as manager, EnvStateManager(config) as reference:
        reference.use_multiprocessing = False
        expected = [reference.reset(seed=1), *map(reference.step, turns)]
        manager.reset(seed=1)
        whole = struck(sys.maxsize, play)
        for moment in range(1, whole, max(whole // num_moments, 1)):
            told[:] = [manager.reset(seed=1)]
            struck(moment, play, functools.partial(kill, moment % 2))
            assert_same_batch(told, expected)
        assert manager.stats().restarts > 0


class Halved(Walk):  # what a Ctrl-C left half done is never done again
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
    with of_kind(Halved, group_size=1, use_multiprocessing=False) as manager:
        manager.reset(seed=2)
        manager.step(inputs({0: ["left"]}))
        with pytest.raises(KeyboardInterrupt):
            manager.step(inputs({0: ["jump"]}))
        [entry] = manager.step(inputs({0: ["jump"]}))
        assert "failure" not in entry
        assert len(entry["history"][-1]["state"].split()) == 3


# ---- a manager that is asked for something while it is asked --------------------------------------------------------

TURN = inputs({env: ["left"] for env in range(3)})


class Nosy(Walk):  # looks at the others while it is stepped
    look: Callable[[], Any] = staticmethod(lambda: None)

    def step(self, action: int) -> Any:
        Nosy.look()
        return super().step(action)


class Slow(Walk):  # takes long enough for a look meanwhile
    def step(self, action: int) -> Any:
        threading.Event().wait(0.02)
        return super().step(action)


@pytest.fixture(autouse=True)
def _no_looks_are_left() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)
    Nosy.look = staticmethod(lambda: None)


def config_of(kind: type[Walk], where: str) -> dict[str, Any]:
    register("kind", kind, WalkConfig)
    config = configured({"Walk": 1, "Talk": 2}, 1, max_workers=1)
    config["custom_envs"] = {"Walk": {**TAGS["Walk"], "env_type": "kind", "where": where}, "Talk": TAGS["Walk"]}
    return config


def looks_at(manager: EnvStateManager) -> list[Any]:
    return [manager.render(env_ids=[1]), manager.metrics(), manager.render(env_ids=[2])]


def three_turns(manager: EnvStateManager) -> list[Any]:
    return [*(manager.step(TURN) for _ in range(3)), manager.get_rollout_states()]


def unseen(config: dict[str, Any]) -> list[Any]:
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        return three_turns(manager)


def test_a_look_from_an_environment_in_the_caller_disturbs_no_turn() -> None:
    config = config_of(Nosy, "caller")
    expected = unseen(config)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        Nosy.look = staticmethod(lambda: looks_at(manager))
        assert_same_batch(three_turns(manager), expected)


def test_a_look_from_a_signal_handler_disturbs_no_turn() -> None:
    """The handler runs at every moment of a turn.

    It gets its answer, or an error if it came between a request and its answers.
    """
    config, looks = config_of(Walk, "process"), list[Any]()

    def note() -> None:
        try:
            looks.append(looks_at(manager))
        except ParallelEnvsError as error:
            looks.append(str(error))

    with EnvStateManager(config) as manager, EnvStateManager(config) as undisturbed:
        manager.reset(seed=1)
        undisturbed.reset(seed=1)
        for moment in count(1):
            if moment % 2 == 0:  # the episodes are short
                manager.reset(seed=moment)
                undisturbed.reset(seed=moment)
            told = list[Any]()
            passed = struck(moment, lambda: told.append(manager.step(TURN)), note)  # noqa: B023
            assert_same_batch(told, [undisturbed.step(TURN)])
            if passed < moment:
                break
    refused = [one for one in looks if isinstance(one, str)]
    assert 0 < len(refused) < len(looks)
    assert all("A signal handler" in one for one in refused)


def test_a_handler_that_lets_its_refusal_through_ends_the_turn_and_no_env_has_played() -> None:
    config = config_of(Slow, "process")
    expected = unseen(config)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        signal.signal(signal.SIGALRM, lambda number, frame: manager.metrics())
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(ParallelEnvsError, match="Let the handler take a note, and use the workers when"):
            manager.step(TURN)
        assert_same_batch(three_turns(manager), expected)


def test_a_reset_from_within_a_turn_is_told_and_its_episodes_go_on() -> None:
    config = config_of(Nosy, "caller")
    with EnvStateManager(config) as manager:
        manager.reset(seed=2)
        Nosy.look = staticmethod(lambda: manager.reset(seed=1))
        with pytest.raises(BadTurn, match=r"reset\(\) was called in the midst of step\(\)"):
            manager.step(TURN)
        Nosy.look = staticmethod(lambda: None)
        found = three_turns(manager)
    assert_same_batch(found, unseen(config))
