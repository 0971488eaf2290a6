"""Answers that reach the manager, and cannot be made into what they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from parallel_envs.engine import Reply
from parallel_envs.engine.messages import Failure
from parallel_envs.errors import EnvError
from parallel_envs.groups import EnvStateManager, register
from parallel_envs.groups.transport import SENDING, raise_worker_failure
from parallel_envs.testing.conformance import assert_same_batch
from tests.engine.asking import in_fork, refusal
from tests.groups.walks import Walk, WalkConfig, configured, inputs


class TwoWords(Exception):
    """Like many exceptions: pickled with one argument, and made with two."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class Telling(Walk):
    """Tells of a jump, and shows, what nobody can read."""

    def step(self, action: int) -> Any:
        *told, info = super().step(action)
        return *told, {**info, "error": TwoWords("too", "high")} if action == 7 else info

    def render(self, mode: str = "text") -> Any:
        return TwoWords("not", "shown")


@pytest.fixture
def config() -> dict[str, Any]:
    register("telling", Telling, WalkConfig)
    config = configured({"Walk": 1}, 3, max_workers=1)
    config["custom_envs"]["Walk"] = {"env_type": "telling"}
    return config


def test_who_answers_what_cannot_be_read_has_failed_and_the_others_go_on(config: dict[str, Any]) -> None:
    with EnvStateManager(configured({"Walk": 1}, 3, use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        first, _, last = manager.step(inputs({0: ["left"], 1: ["left"], 2: ["right"]}))
        expected = [first, last]
    with EnvStateManager(config) as manager:
        before = manager.reset(seed=1)
        first, broken, last = manager.step(inputs({0: ["left"], 1: ["jump"], 2: ["right"]}))
        for entry, other in zip([first, last], expected, strict=True):
            assert [item["state"] for item in entry["history"]] == [item["state"] for item in other["history"]]
        assert (broken["failure"].kind, broken["failure"].doing) == ("error", SENDING)
        assert "missing 1 required positional argument: 'other'" in str(broken["failure"])
        assert_same_batch(manager.reset(seed=1), before)
        assert manager.stats().restarts == 0


def test_what_is_shown_and_cannot_be_read_costs_no_episode(config: dict[str, Any]) -> None:
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["left"], 1: ["left"], 2: ["left"]}))
        with pytest.raises(EnvError, match=f"during {SENDING}"):
            manager.render()
        entries = manager.step(inputs({0: ["left"], 1: ["left"], 2: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3, 3]


def test_what_concerns_no_environment_in_particular_is_raised() -> None:
    with pytest.raises(EnvError, match="A worker could not do its part: ValueError: no room"):
        raise_worker_failure(Reply(0, failure=Failure("ValueError", "no room", "")))


def test_in_a_forked_process_the_mailboxes_are_left_alone(config: dict[str, Any]) -> None:
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        assert manager._placement is not None
        assert manager._placement.workers is not None
        box = manager._placement.workers._transport._channels[0]
        before = bytes(box.read_request())
        operations: list[Callable[[], object]] = [
            lambda: manager.step(inputs({0: ["left"]})),
            lambda: manager.reset(seed=2),
            manager.render,
            manager.stats,
        ]
        for operation in operations:
            assert refusal(operation).startswith("ClosedError")
        assert in_fork(manager.close) is None
        assert bytes(box.read_request()) == before
        assert len(manager.step(inputs({0: ["left"]}))) == 1
        assert manager.stats().restarts == 0


def test_a_copy_in_a_forked_process_has_workers_of_its_own(config: dict[str, Any]) -> None:
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)

        def step_a_copy() -> str:
            with copy.deepcopy(manager) as own:
                return str(own.step(inputs({0: ["left"]}))[0]["history"][-1]["state"])

        told = in_fork(step_a_copy)
        assert told == str(manager.step(inputs({0: ["left"]}))[0]["history"][-1]["state"])
