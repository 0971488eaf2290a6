"""Answers of many environments come in parts, read while their worker is at the next: nothing depends on it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.groups import EnvStateManager, register, transport
from parallel_envs.groups.transport import SENDING, Answers, InFlightRequest, Job, Request, Transport
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import WAYS, Breaking, Heavy, TwoWords, WalkConfig, configured, inputs, workers

NUM_ENVS = 40
SOON = 3.0
ODD = ("raise", "kill", "unreadable", "long", "once", "wait", "sent dies", "sent hangs", "freed dies", "freed hangs")


def test_parts_are_the_whole_and_the_last_is_small() -> None:
    for num_envs in range(1, 200):
        request = Request(Job.RESET, {env: (env, "train") for env in range(num_envs)})
        parts = list(request.parts())
        assert [env for part in parts for env in part.arguments] == list(range(num_envs))
        assert len(parts[-1].arguments) <= 16
        assert len(parts) <= 1 + num_envs // 8


class Many(Breaking):  # A walk that can also break in what it answers, be long, and wait for the others
    action_lookup: Mapping[Any, str] | None = {1: "Right"} | {name: name for name in ODD}

    def step(self, action: Any) -> Any:
        state, *rest = super().step(action)
        match str(action).split():
            case ["unreadable"]:
                return TwoWords("not", "read"), *rest
            case ["long"]:
                return "x" * (transport._ANSWER_BYTES // 12), *rest
            case ["once"]:
                return Once("x" * (transport._ANSWER_BYTES // 3)), *rest
            case ["wait"]:
                while not Path(self.config.fuse).exists():
                    threading.Event().wait(0.01)
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


class Once:  # makes bytes of itself once
    def __init__(self, text: str) -> None:
        self.texts = [text]

    def __reduce__(self) -> Any:
        return str, (self.texts.pop(),)


def many(fuse: Path | str = "", **said: Any) -> EnvStateManager:
    """Groups of so many that their worker answers in parts."""
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
@pytest.mark.parametrize("which", [{0}, {20, 21}, {39}, {3, 24, 31, 37}])
@pytest.mark.parametrize("odd", ["raise", "unreadable"])
def test_those_that_break_in_any_part_are_told_and_the_others_go_on(
    odd: str, which: set[int], num_workers: int
) -> None:
    (expected, after), (_, unbroken) = (
        played(many(use_multiprocessing=False), word, which) for word in ("raise", "right")
    )
    told, then = played(many(max_workers=num_workers), odd, which)
    failures = {entry["env_id"]: entry["failure"] for entry in told if "failure" in entry}
    assert failures.keys() == which
    if odd == "unreadable":
        assert {(failure.kind, failure.doing) for failure in failures.values()} == {("error", SENDING)}
        assert "missing 1 required positional argument: 'other'" in str(failures[min(which)])
    assert_same_batch(*([entry for entry in one if entry["env_id"] not in which] for one in (told, expected)))
    assert_same_batch(then, after)
    assert_same_batch(then, [entry for entry in unbroken if entry["env_id"] not in which])


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("env", [5, 38])
@pytest.mark.parametrize(
    ("odd", "kind", "doing"),
    [
        ("kill", "death", "its turn"),
        ("sent dies", "death", SENDING),
        ("sent hangs", "timeout", SENDING),
        ("freed dies", "death", SENDING),
        ("freed hangs", "timeout", SENDING),
    ],
)
def test_the_env_that_takes_its_worker_along_in_any_part_is_found(
    odd: str, kind: str, doing: str, env: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_SENDING_SECONDS", SOON)
    expected, after = played(many(use_multiprocessing=False), "raise", {env})
    told, then = played(many(max_workers=1, step_timeout=SOON), odd, {env})
    failure = told[env]["failure"]
    assert (failure.kind, failure.doing) == (kind, doing)
    assert_same_batch(told[:env] + told[env + 1 :], expected[:env] + expected[env + 1 :])
    assert_same_batch(then, after)


def test_answers_beyond_the_mailbox_travel_as_a_message_and_are_made_into_bytes_once() -> None:
    whole = set(range(0, NUM_ENVS, 2))
    expected = played(many(use_multiprocessing=False), "long", whole)
    assert_same_batch(played(many(max_workers=1), "long", whole), expected)
    told, _ = played(many(max_workers=1), "once", set(range(4)))
    assert [len(entry["history"][-1]["state"]) for entry in told[:4]] == [transport._ANSWER_BYTES // 3] * 4
    assert not any("failure" in entry for entry in told)


def test_parts_are_read_while_the_worker_is_at_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last environment is done when what came of the first has been read."""
    fuse, early = tmp_path / "fuse", Transport.read_early

    def noted(post: Transport, worker: int, asked: InFlightRequest) -> Answers | None:
        part = early(post, worker, asked)
        if part is not None and 0 in part.values:
            fuse.touch()
        elif not fuse.exists():
            threading.Event().wait(0.01)
            return noted(post, worker, asked)
        return part

    with many(fuse, max_workers=1) as manager:
        manager.reset(seed=3)
        monkeypatch.setattr(Transport, "read_early", noted)
        manager.step(inputs({env: ["wait" if env == NUM_ENVS - 1 else "right"] for env in range(NUM_ENVS)}))


def test_parts_that_were_read_of_a_worker_that_died_then_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, early = inputs({env: ["right"] for env in range(NUM_ENVS)}), Transport.read_early
    expected = played(many(use_multiprocessing=False), "right", set())
    with many(max_workers=1) as manager:
        manager.reset(seed=3)
        pool = workers(manager).pool

        def struck(post: Transport, worker: int, asked: InFlightRequest) -> Answers | None:
            part = early(post, worker, asked)
            if part is not None:
                os.kill(pool.pid(worker), signal.SIGKILL)
                monkeypatch.undo()
            return part

        monkeypatch.setattr(Transport, "read_early", struck)
        entries = manager.step(turn)
        then = manager.step(inputs({env: ["right", "right"] for env in range(NUM_ENVS)}))
        assert_same_batch((entries, then), expected)
        assert manager.stats().restarts in (0, 1)  # 0: it was done before the signal came
