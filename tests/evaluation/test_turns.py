"""A turn of all agents, by a clock that stands still unless a policy moves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.evaluation import episode as turns_module
from parallel_envs.evaluation.config import EvaluationConfig
from parallel_envs.evaluation.episode import ActionSource, NoopActions, SequentialActions, WrapperActions
from parallel_envs.evaluation.failures import EpisodeAborted
from parallel_envs.wrappers import PolicyPool
from tests.evaluation.stages import AGENTS, Course, Failing
from tests.gates import Gate, wait_at

SEEN = {agent: np.zeros(3, np.float32) for agent in AGENTS}


class Clock:
    """The module `time` of those who look at it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns_module, "time", clock)
    return clock


class Slow:
    """Takes these times, one after another, then none."""

    def __init__(self, clock: Clock, *seconds: float) -> None:
        self.clock, self.seconds, self.asked = clock, list(seconds), 0

    def step(self, observation: Any) -> int:
        self.asked += 1
        self.clock.now += self.seconds.pop(0) if self.seconds else 0.0
        return 4


def one_by_one(policies: dict[Any, Any], **settings: Any) -> ActionSource:
    env = Course()
    return SequentialActions(
        policies.__getitem__, env, EvaluationConfig(**{"action_timeout": 0.25, **settings}), NoopActions(env, 0)
    )


def test_a_late_action_is_dropped_and_counted(clock: Clock) -> None:
    policies = {"red": Slow(clock, 0.0, 0.3, 0.2), "blue": Slow(clock), "green": Slow(clock)}
    turns = one_by_one(policies)
    everybody = dict.fromkeys(AGENTS, 4)
    assert [turns.act(SEEN, step) for step in range(3)] == [everybody, {**everybody, "red": 0}, everybody]
    assert turns.timeouts == {"red": 1}


def test_the_first_action_may_take_its_time(clock: Clock) -> None:
    turns = one_by_one({"red": Slow(clock, 1000.0)})
    assert turns.act({"red": SEEN["red"]}, 0) == {"red": 4}
    assert turns.timeouts == {}


def test_who_was_late_for_too_long_is_asked_no_more(clock: Clock) -> None:
    slow = Slow(clock, 0.0, *[1.25] * 10)
    turns = one_by_one({"red": slow}, lateness_budget=2.5)  # late by 1.0 each time: three times, and that is enough
    actions = [turns.act({"red": SEEN["red"]}, step)["red"] for step in range(8)]
    assert actions == [4, *[0] * 7]
    assert slow.asked == 4
    assert turns.timeouts == {"red": 7}


def test_without_limits_nobody_is_late(clock: Clock) -> None:
    assert (EvaluationConfig().action_timeout, EvaluationConfig().episode_timeout) == (None, None)
    turns = one_by_one({"red": Slow(clock, *[1e6] * 5)}, action_timeout=None)
    assert [turns.act({"red": SEEN["red"]}, step)["red"] for step in range(5)] == [4] * 5
    assert one_by_one({"red": Slow(clock, 0.0, 1e6)}, lateness_budget=None).timeouts == {}


def wrapped(policies: dict[Any, Any], strategy: Strategy, pool: PolicyPool, **settings: Any) -> ActionSource:
    env = Course()
    return WrapperActions(policies.__getitem__, env, EvaluationConfig(**settings), NoopActions(env, 0), strategy, pool)


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("strategy", ["sequential", "thread", "batch", "process"])
def test_strategies_do_the_same_as_one_by_one(strategy: Strategy, timeout: float | None) -> None:
    from tests.evaluation.stages import Counting

    alone = one_by_one({agent: Counting() for agent in AGENTS})
    with PolicyPool(2) as pool:
        turns = wrapped({agent: Counting() for agent in AGENTS}, strategy, pool, action_timeout=timeout)
        for step in range(5):
            here = [agent for place, agent in enumerate(AGENTS) if (step + place) % 3 or not step]
            seen = {agent: SEEN[agent] for agent in here}
            assert turns.act(seen, step) == alone.act(seen, step)
        assert turns.timeouts == alone.timeouts == {}
        turns.close()


def test_a_policy_that_hangs_in_a_thread_is_not_waited_for(tmp_path: Any) -> None:
    class Waiting:
        asked = 0

        def step(self, observation: Any) -> int:
            self.asked += 1
            if self.asked == 2:
                wait_at(tmp_path / "gate")
            return 4

    with Gate(tmp_path / "gate"), PolicyPool(1) as pool:
        turns = wrapped({"red": Waiting(), "blue": Failing(at=99)}, "thread", pool, action_timeout=0.5)
        seen = {agent: SEEN[agent] for agent in ("red", "blue")}
        assert [turns.act(seen, step) for step in range(3)] == [
            {"red": 4, "blue": 1},
            {"red": 0, "blue": 1},
            {"red": 0, "blue": 1},
        ]
        assert turns.timeouts == {"red": 2}
        turns.close()


@pytest.mark.parametrize("strategy", [None, "thread"])
@pytest.mark.parametrize(
    ("how", "at", "kind", "error"),
    [
        ("raise", 1, "policy", "ValueError"),
        ("raise", 3, "policy", "ValueError"),
        ("system_exit", 2, "policy", "SystemExit"),
        ("nonsense", 1, "nonsense", "ValueError"),
        ("nonsense", 2, "nonsense", "ValueError"),
    ],
)
def test_a_policys_fault_ends_the_episode(strategy: Strategy | None, how: str, at: int, kind: str, error: str) -> None:
    policies = {"red": Failing(at=99), "blue": Failing(how, at)}
    seen = {agent: SEEN[agent] for agent in policies}
    with PolicyPool(1) as pool:
        turns = wrapped(policies, strategy, pool) if strategy else one_by_one(policies)
        for step in range(at - 1):
            turns.act(seen, step)
        with pytest.raises(EpisodeAborted) as raised:
            turns.act(seen, at - 1)
        turns.close()
    failure = raised.value.failure
    assert (failure.kind, failure.error_type) == (kind, error)
    assert f"step {at - 1}" in failure.where
    assert "blue" in failure.where + failure.message
    assert kind == "nonsense" or "in fail" in failure.traceback


def test_a_policy_that_cannot_be_made_ends_the_episode() -> None:
    turns = one_by_one({})
    with pytest.raises(EpisodeAborted) as raised:
        turns.act({"red": SEEN["red"]}, 0)
    assert raised.value.failure.where == "making the policy of 'red'"
