"""The policy of a single agent, wrapped by itself: `PerAgentSubprocessWrapper(policy)` and the other strategies."""

from __future__ import annotations

import inspect
import os
import threading
from typing import Any

import numpy as np
import pytest

from parallel_envs import wrappers
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.policies import AgentPolicy, PolicySpec
from parallel_envs.wrappers import PerAgentBatchWrapper, PerAgentSubprocessWrapper, PolicyPool, Rules
from parallel_envs.wrappers import WrappedMultiAgentPolicy as Wrapped
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.pool import SharedPool

SEEN = np.ones(3, np.float32)


class Counting(AgentPolicy):
    """Tells its process, and how often it was asked since its episode began."""

    def __init__(self, start: int = 0) -> None:
        self.count = self.start = start

    def step(self, observation: Any) -> tuple[int, int]:
        if observation is None:
            raise ValueError("nothing was seen")
        self.count += 1
        return os.getpid(), self.count

    def reset(self) -> None:
        self.count = self.start


class Locked(Counting):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


wrapped: Any = PerAgentSubprocessWrapper


def test_its_step_is_computed_in_a_process_and_its_state_is_kept_from_step_to_step() -> None:
    policy = Counting()
    with wrapped(policy) as agent:
        assert issubclass(type(agent), AgentPolicy)
        found = [agent.step(SEEN) for _ in range(3)]
        assert [count for _, count in found] == [1, 2, 3]
        assert len({pid for pid, _ in found} - {os.getpid()}) == 1
        kept = agent.get_state()
        agent.reset()
        assert agent.step(SEEN)[1] == 1
        agent.set_state(kept)
        assert agent.step(SEEN)[1] == 4
    with pytest.raises(ClosedError):
        agent.step(SEEN)


def test_a_dict_of_policies_is_wrapped_as_before() -> None:
    with PerAgentSubprocessWrapper({"red": Counting(), "blue": Counting(5)}) as wrapper:
        assert isinstance(wrapper, PerAgentSubprocessWrapper)
        found = wrapper.step({"red": SEEN, "blue": SEEN})
        assert [count for _, count in found.values()] == [1, 6]


def test_agents_share_one_pool_and_live_in_different_workers_of_it() -> None:
    with wrapped(Counting(), pool=None) as red:
        with wrapped(Counting(10)) as blue:
            assert red.wrapper._policy_pool is blue.wrapper._policy_pool
            red.send(SEEN)
            blue.send(SEEN)
            (of_blue, ten), (of_red, one) = blue.recv(), red.recv()
            assert (one, ten) == (1, 11)
            if red.wrapper._policy_pool.num_workers > 1:
                assert of_blue != of_red
        assert red.step(SEEN)[1] == 2, "the pool is open as long as an agent is in it"
        pool = red.wrapper._policy_pool
    assert pool.closed
    assert SharedPool._current is None
    with wrapped(Counting()) as another:
        assert another.step(SEEN)[1] == 1


def test_a_pool_that_is_given_is_used_and_stays_open_and_one_that_has_left_makes_room() -> None:
    with PolicyPool(2) as pool:
        first = wrapped(Counting(), pool=pool)
        pid = first.step(SEEN)[0]
        with wrapped(Counting(), pool=pool) as second:
            assert second.step(SEEN)[0] != pid
            first.close()
            first.close()
            with wrapped(Counting(), pool=pool) as third:
                assert third.step(SEEN)[0] == pid
        assert not pool.closed
        assert +pool.num_policies == {}


def test_one_that_cannot_be_pickled_is_computed_here() -> None:
    with pytest.warns(RuntimeWarning, match="cannot be pickled, so it is computed in this process"):
        agent = wrapped(Locked())
    with agent:
        assert [agent.step(SEEN) for _ in range(2)] == [(os.getpid(), 1), (os.getpid(), 2)]
    assert SharedPool._current is None


def test_a_spec_is_made_in_the_worker_failures_are_told_and_rules_hold() -> None:
    with wrapped(PolicySpec("tests.wrappers.test_standalone:Counting", kwargs={"start": 3})) as agent:
        assert agent.step(SEEN)[1] == 4
    with wrapped(Counting()) as agent, pytest.raises(PolicyError, match="raised ValueError: nothing was seen"):
        agent.step(None)
    with wrapped(Counting(), rules=Rules(on_error="default", default_action=7)) as agent:
        assert agent.step(None) == 7
        assert agent.tally.defaults == 1


@pytest.mark.parametrize("strategy", ["Sequential", "Thread", "Process", "Auto", "Batch", "GPU"])
def test_every_strategy_wraps_a_single_policy(strategy: str) -> None:
    if strategy == "GPU":
        pytest.importorskip("torch")
    kind: Any = getattr(wrappers, f"PerAgent{strategy}Wrapper")
    with kind(Counting()) as agent, kind(policies=Counting(1)) as other:
        assert [agent.step(SEEN)[1] for _ in range(8)] == [*range(1, 9)]
        assert other.step(SEEN)[1] == 2


def test_it_is_a_policy_that_others_take() -> None:
    with wrapped(Counting()) as agent, Wrapped({"red": agent, "blue": Counting()}) as both:
        found = both.step({"red": SEEN, "blue": SEEN})
        assert found["red"][0] != found["blue"][0] == os.getpid()


def test_the_signature_is_that_of_the_wrapper() -> None:
    assert list(inspect.signature(PerAgentSubprocessWrapper).parameters) == ["policies", "rules", "pool"]


def test_a_strategy_of_ones_own_may_begin_with_another_argument() -> None:
    class Scaled(PerAgentBatchWrapper):
        def __init__(self, scale: Any, policies: Any) -> None:
            super().__init__(policies)
            self.scale = scale

    assert isinstance(Scaled(3, {"red": Counting()}), PerAgentWrapper)
