"""Answers that break while they are pickled, sent, freed or read, among those of many environments; long ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.groups import EnvStateManager, register, transport
from parallel_envs.groups.transport import SENDING
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import WAYS, Breaking, Heavy, TwoWords, WalkConfig, begun, configured, inputs

NUM_ENVS = 40
SOON = 2.0
LONG = 1 << 20
ODD = ("raise", "kill", "unreadable", "once", "sent dies", "sent hangs", "freed dies")


class Many(Breaking):  # A walk that can also break in what it answers
    action_lookup: Mapping[Any, str] | None = {1: "Right"} | {name: name for name in ODD}

    def step(self, action: Any) -> Any:
        state, *rest = super().step(action)
        match str(action).split():
            case ["unreadable"]:
                return TwoWords("not", "read"), *rest
            case ["once"]:
                return Once("x" * LONG), *rest
            case ["sent", how]:
                return Heavy(how), *rest
            case ["freed", how]:
                return state, 1.0, False, False, {"info": Harmful(how)}
        return state, *rest


class Harmful:  # breaks its worker once it is needed no more
    def __init__(self, how: str) -> None:
        self.how = how

    def __del__(self) -> None:
        WAYS[self.how]()

    def __reduce__(self) -> Any:
        return str, (self.how,)


class Once:  # makes bytes of itself once, and takes its time
    def __init__(self, text: str) -> None:
        self.texts = [text]

    def __reduce__(self) -> Any:
        threading.Event().wait(0.5)
        return str, (self.texts.pop(),)


def many(fuse: Path | str = "", **said: Any) -> EnvStateManager:
    """Groups of many in a worker."""
    register("many", Many, WalkConfig)
    block = {"env_type": "many", "max_actions_per_traj": 20, "env_config": {"goal": 100, "fuse": str(fuse)}}
    return EnvStateManager({**configured({"Walk": 4}, NUM_ENVS // 4, **said), "custom_envs": {"Walk": block}})


def played(manager: EnvStateManager, odd: str, which: set[int]) -> tuple[list[Any], list[Any]]:
    """What is said of a turn in which these do something odd, and of the next turn of the others."""
    with manager:
        manager.reset(seed=3)
        told = manager.step(inputs({env: [odd if env in which else "right"] for env in range(NUM_ENVS)}))
        well = [entry["env_id"] for entry in told if "failure" not in entry]
        return told, manager.step(inputs({env: ["right", "right"] for env in well}))


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("which", [{0}, {20, 21}, {3, 24, 31, 39}])
@pytest.mark.parametrize("odd", ["raise", "unreadable"])
def test_those_that_break_are_told_and_the_others_go_on(odd: str, which: set[int], num_workers: int) -> None:
    expected, after = played(many(use_multiprocessing=False), "raise", which)
    _, unbroken = played(many(use_multiprocessing=False), "right", which)
    told, then = played(many(max_workers=num_workers), odd, which)
    failures = {entry["env_id"]: entry["failure"] for entry in told if "failure" in entry}
    assert failures.keys() == which
    if odd == "unreadable":
        assert {(failure.kind, failure.doing) for failure in failures.values()} == {("error", SENDING)}
        assert "missing 1 required positional argument: 'other'" in str(failures[min(which)])
    well = [env for env in range(NUM_ENVS) if env not in which]
    assert_same_batch([told[env] for env in well], [expected[env] for env in well])
    assert_same_batch(then, after)
    assert_same_batch(then, [unbroken[env] for env in well])


@pytest.mark.parametrize(
    ("odd", "kind", "doing", "text"),
    [
        ("kill", "death", "its turn", "was killed by signal 9"),
        ("sent dies", "death", SENDING, "ended with exit code 5 during sending its answer (Walk)"),
        pytest.param(
            *("sent hangs", "timeout", SENDING, "did not answer within 2.0 seconds during sending"),
            marks=pytest.mark.slow,
        ),
        ("freed dies", "death", SENDING, "ended with exit code 5"),
    ],
)
def test_the_env_that_takes_its_worker_along_is_found(
    odd: str, kind: str, doing: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = 5
    monkeypatch.setattr(transport, "_SENDING_SECONDS", SOON)
    expected, after = played(many(use_multiprocessing=False), "raise", {env})
    told, then = played(many(max_workers=1, step_timeout=2.0), odd, {env})
    failure = told[env]["failure"]
    assert (failure.kind, failure.doing) == (kind, doing)
    assert text in str(failure)
    assert_same_batch(told[:env] + told[env + 1 :], expected[:env] + expected[env + 1 :])
    assert_same_batch(then, after)


def test_states_are_pickled_once_and_sending_may_take_longer_than_a_step() -> None:
    with many(max_workers=1, step_timeout=1.0) as manager:
        manager.reset(seed=3)
        told = manager.step(inputs({env: ["once"] for env in range(4)}))
        assert [len(entry["history"][-1]["state"]) for entry in told] == [LONG] * 4
        assert manager.stats().restarts == 0


def test_words_and_answers_may_be_long() -> None:
    said = []
    long, longer = "x" * (1 << 18), "y" * (1 << 22)
    for in_workers in ({}, {"max_workers": 1}):
        with begun({"Talk": 1}, **in_workers) as manager:
            said.append([manager.step(inputs({0: [word]})) for word in ("a", long, "c", longer, "d")])
            if in_workers:
                assert manager.stats().num_bytes > 2 * (len(long) + len(longer))
    assert_same_batch(said[1], said[0])
