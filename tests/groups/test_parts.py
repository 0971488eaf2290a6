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
from parallel_envs.groups.transport import Answers, InFlightRequest, Job, Request, Transport
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import Breaking, WalkConfig, configured, inputs, workers

NUM_ENVS = 40
SOON = 3.0


def test_parts_are_the_whole_and_the_last_is_small() -> None:
    for num_envs in range(1, 200):
        request = Request(Job.RESET, {env: (env, "train") for env in range(num_envs)})
        parts = list(request.parts())
        assert [env for part in parts for env in part.arguments] == list(range(num_envs))
        assert len(parts[-1].arguments) <= 16
        assert len(parts) <= 1 + num_envs // 8


class Unreadable(Exception):
    """Like many exceptions: pickled with one argument, and made with two."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class Heavy:
    """A state that breaks whoever sends it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        if self.how == "sending kills":
            os._exit(5)
        threading.Event().wait(60.0)
        return Heavy, (self.how,)


class Many(Breaking):
    """A walk that can also break in what it answers, be long, and wait for the others."""

    action_lookup: Mapping[Any, str] | None = {
        1: "Right",
        "raise": "raise",
        "kill": "kill",
        "unreadable": "unreadable",
        "long": "long",
        "wait": "wait",
        "sending kills": "sending kills",
        "sending hangs": "sending hangs",
        "freeing kills": "freeing kills",
        "freeing hangs": "freeing hangs",
        "once": "once",
    }

    def step(self, action: Any) -> Any:
        state, *rest = super().step(action if action in (1, "raise", "kill") else 1)
        match action:
            case "unreadable":
                return Unreadable("not", "read"), *rest
            case "long":
                return "x" * (transport._ANSWER_BYTES // 12), *rest
            case "wait":
                while not Path(self.config.fuse).exists():
                    threading.Event().wait(0.01)
            case "freeing kills" | "freeing hangs":
                return state, 1.0, False, False, {"info": Harmful(action)}
            case "once":
                return Once("x" * (transport._ANSWER_BYTES // 3)), *rest
            case "sending kills" | "sending hangs":
                return Heavy(action), *rest
        return state, *rest


class Harmful:
    """Ends the process, or hangs, once nobody needs it any more."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __del__(self) -> None:
        if self.how == "freeing kills":
            os._exit(5)
        threading.Event().wait(60.0)

    def __reduce__(self) -> Any:
        return str, (self.how,)


class Once:
    """Makes bytes of itself once."""

    def __init__(self, text: str) -> None:
        self.texts = [text]

    def __reduce__(self) -> Any:
        return str, (self.texts.pop(),)


def many(fuse: Path | None = None, **said: Any) -> EnvStateManager:
    register("many", Many, WalkConfig)
    config = configured({"Breaking": 4}, NUM_ENVS // 4, **said)
    config["custom_envs"]["Breaking"] = {"env_type": "many", "env_config": {"goal": 100, "fuse": str(fuse)}}
    return EnvStateManager(config)


def played(manager: EnvStateManager, odd: str, which: set[int]) -> tuple[list[Any], list[Any]]:
    """What is told of a turn in which these do something else, and of the next one, without those that broke by it."""
    with manager:
        manager.reset(seed=3)
        entries = manager.step(inputs({env: [odd if env in which else "right"] for env in range(NUM_ENVS)}))
        well = [entry["env_id"] for entry in entries if "failure" not in entry]
        return entries, manager.step(inputs({env: ["right", "right"] for env in well}))


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("which", [{0}, {20, 21}, {39}, {3, 24, 31, 37}])
@pytest.mark.parametrize("odd", ["raise", "unreadable"])
def test_who_breaks_in_any_part_is_told_and_the_others_go_on(odd: str, which: set[int], num_workers: int) -> None:
    (expected, after), (_, unbroken) = (
        played(many(use_multiprocessing=False), word, which) for word in ("raise", "right")
    )
    told, then = played(many(max_workers=num_workers), odd, which)
    assert {entry["env_id"] for entry in told if "failure" in entry} == which
    assert_same_batch(*([entry for entry in one if entry["env_id"] not in which] for one in (told, expected)))
    assert_same_batch(then, after)
    assert_same_batch(then, [entry for entry in unbroken if entry["env_id"] not in which])


@pytest.mark.parametrize(
    ("odd", "kind", "doing"),
    [
        ("kill", "death", "its turn"),
        ("sending kills", "death", "sending its answer"),
        ("sending hangs", "timeout", "sending its answer"),
        ("freeing kills", "death", "sending its answer"),
        ("freeing hangs", "timeout", "sending its answer"),
    ],
)
@pytest.mark.parametrize("who", [5, 38])
def test_who_takes_its_worker_along_in_any_part_is_found(
    odd: str, kind: str, doing: str, who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_SENDING_SECONDS", SOON)
    expected, after = played(many(use_multiprocessing=False), "raise", {who})
    told, then = played(many(max_workers=1, step_timeout=SOON), odd, {who})
    failure = told[who]["failure"]
    assert (failure.kind, failure.doing) == (kind, doing)
    assert_same_batch(told[:who] + told[who + 1 :], expected[:who] + expected[who + 1 :])
    assert_same_batch(then, after)


def test_what_does_not_fit_in_the_mailbox_any_more_travels_as_a_message() -> None:
    whole = set(range(0, NUM_ENVS, 2))
    expected = played(many(use_multiprocessing=False), "long", whole)
    assert_same_batch(played(many(max_workers=1), "long", whole), expected)


def test_what_does_not_fit_is_made_into_bytes_once() -> None:
    with many(max_workers=1) as manager:
        manager.reset(seed=3)
        entries = manager.step(inputs({env: ["once" if env < 4 else "right"] for env in range(NUM_ENVS)}))
        assert [len(entry["history"][-1]["state"]) for entry in entries[:4]] == [transport._ANSWER_BYTES // 3] * 4
        assert not any("failure" in entry for entry in entries)


def test_parts_are_read_while_the_worker_is_at_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last environment is done when somebody has read what came of the first."""
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


def test_what_was_read_of_a_worker_that_died_then_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
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
