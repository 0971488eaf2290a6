"""A pool is shared between wrappers and closed by its maker; what cannot be asked between `send` and `recv` or after
the end; forked processes; what is loaded."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import ClosedError
from parallel_envs.wrappers import (
    STRATEGIES,
    PerAgentProcessWrapper,
    PerAgentWrapper,
    PolicyPool,
    Rules,
    WrappedMultiAgentPolicy,
)
from parallel_envs.wrappers.pool import Threads
from tests.engine.asking import in_fork, refusal
from tests.test_imports import HEAVY, in_fresh_interpreter
from tests.wrappers.agents import Constant, Drawing, Loaded, OneByOne
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
BOTH = {"a": SEEN, "b": SEEN}


# ---- pools ---------------------------------------------------------------------------------------


def test_a_pool_is_closed_by_its_maker_only(pool: PolicyPool, strategy: Strategy) -> None:
    one = WrappedMultiAgentPolicy({"a": Drawing()}, strategy, budget=pool)
    with WrappedMultiAgentPolicy({"a": Drawing()}, strategy, budget=pool) as other:
        other.step({"a": SEEN})
    assert not pool.closed
    assert one.step({"a": SEEN})["a"] // 1000 == 1
    one.close()
    assert not pool.closed
    with WrappedMultiAgentPolicy({"a": Constant(), "b": Constant()}, strategy, workers=1) as policy:
        policy.step(BOTH)
    assert policy.closed
    policy.close()
    with STRATEGIES[strategy]({"a": Constant()}, None, None) as wrapper:
        wrapper.step({"a": SEEN})
    assert wrapper.closed


def test_a_pool_that_was_not_closed_ends_with_its_last_user() -> None:
    pool = PolicyPool(1)
    pool.threads().submit(int).result(20.0)
    pool.processes()
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None


def test_a_closed_pool_says_so(pool: PolicyPool) -> None:
    with PerAgentProcessWrapper({"a": Constant()}, pool=pool) as wrapper:
        pool.close(0.5)
        uses: list[Callable[[], object]] = [pool.threads, pool.processes, wrapper.reset, wrapper.revive]
        uses += [lambda: wrapper.step({"a": SEEN}), lambda: PerAgentProcessWrapper({"a": Constant()}, pool=pool)]
        for use in uses:
            with pytest.raises(ClosedError, match="pool was used after it had been closed"):
                use()


def test_threads_are_used_again_and_as_many_as_there_are_tasks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, barrier = Threads("test"), threading.Barrier(5)
    for _ in range(3):
        futures = [threads.submit(barrier.wait, 20.0) for _ in range(5)]
        assert sorted(future.result(20.0) for future in futures) == [0, 1, 2, 3, 4]
    names = {threads.submit(lambda: threading.current_thread().name).result(20.0) for _ in range(20)}
    assert names <= {f"test {number}" for number in range(5)}
    with monkeypatch.context() as patched:
        patched.setattr(threads, "_owner_pid", -1)
        with pytest.raises(ClosedError, match="forked"):
            threads.submit(int)
    threads.close()


# ---- use that cannot be --------------------------------------------------------------------------


def test_recv_follows_send_and_nothing_else_comes_between(wrap: Wrap, seat: Seat, strategy: str) -> None:
    policies = {"a": Loaded(), "b": Constant()}
    policy, wrapper = wrap(policies, strategy), seat(strategy, policies)
    for one in (policy, wrapper):
        with pytest.raises(RuntimeError, match=r"recv was called without send. Call send first"):
            one.recv()
        one.send({"a": SEEN})
        for agent in "ab":
            with pytest.raises(RuntimeError, match=r"send was called twice without recv in between. Call recv first"):
                one.send({agent: SEEN})
        if one is policy:
            for ask, told in (
                ("reset", ()),
                ("get_state", ()),
                ("set_state", ({"a": 0},)),
                ("load_state_dict", ({"a": 0},)),
                ("sync", ()),
                ("revive", ()),
            ):
                with pytest.raises(RuntimeError, match=r"between send and recv. Call recv first"):
                    getattr(policy, ask)(*told)
        assert one.recv() == {"a": 1.0}
        one.send({})
        assert one.recv() == {}


def test_after_the_end(wrap: Wrap, seat: Seat, strategy: str) -> None:
    rules = Rules(action_timeout=5.0, default_action=0)
    policies = {"a": Constant(), "b": Constant()}
    for one in (wrap(policies, strategy), seat(strategy, policies), wrap(policies, strategy, rules=rules)):
        one.step({"a": SEEN})
        agent: Any = one.agent_policy("b")
        one.send({"a": SEEN})
        agent.send(SEEN)
        one.close()
        one.close()
        asked = (lambda one=one: one.get_state("a")) if isinstance(one, PerAgentWrapper) else one.get_state
        for use in (one.recv, agent.recv, lambda one=one: one.send({"a": SEEN}), one.reset, asked):
            with pytest.raises(ClosedError, match="closed"):
                use()


def test_agents_may_come_at_any_time(wrap: Wrap, strategy: str) -> None:
    policy = wrap(OneByOne(Constant), strategy)
    for agents in ("a", "ab", "c", "abcd"):
        assert policy.step(dict.fromkeys(agents, SEEN)) == dict(zip(agents, agents, strict=True))
    assert set(policy.tallies) == set(policy.choices) == set("abcd")


def test_a_wrapper_shows_what_it_is(wrap: Wrap, seat: Seat) -> None:
    assert repr(wrap({"a": Constant()}, "thread")) == "WrappedMultiAgentPolicy(1 agents, strategy='thread')"
    wrapper = seat("thread", {"a": Constant(), "b": Constant()})
    assert repr(wrapper) == "PerAgentThreadWrapper(2 agents)"
    wrapper.close()
    assert repr(wrapper) == "PerAgentThreadWrapper(2 agents, closed)"


# ---- forked processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["thread", "process"])
def test_a_forked_process_is_refused_policies_in_workers(pool: PolicyPool, strategy: Strategy) -> None:
    policy = WrappedMultiAgentPolicy({"a": Drawing(), "b": Drawing()}, strategy, budget=pool)
    first = policy.step(BOTH)
    policy.send(BOTH)
    assert refusal(policy.recv).startswith("ClosedError")
    second = policy.recv()
    operations: list[Callable[[], object]] = [lambda: policy.step(BOTH), lambda: policy.send(BOTH)]
    if strategy == "process":
        operations += [policy.reset, policy.get_state, policy.revive, policy.sync]
    for operation in operations:
        assert refusal(operation).startswith("ClosedError")
    assert in_fork(policy.close) is None
    assert in_fork(pool.close) is None
    with WrappedMultiAgentPolicy({"a": Drawing(), "b": Drawing()}, "sequential") as reference:
        assert [reference.step(BOTH) for _ in range(3)] == [first, second, policy.step(BOTH)]
    policy.close()


def test_a_forked_process_has_policies_in_workers_of_its_own(wrap: Wrap) -> None:
    wrap({"a": Drawing()}, "process").step({"a": SEEN})

    def step_another() -> Any:
        with WrappedMultiAgentPolicy({"a": Drawing()}, "process", workers=1) as own:
            return own.step({"a": SEEN})

    assert in_fork(step_another) == {"a": Drawing().step(SEEN)}


# ---- what is loaded ------------------------------------------------------------------------------


def test_wrappers_load_no_heavy_library(wrap: Wrap) -> None:
    for program in ("import parallel_envs.wrappers", "import parallel_envs; parallel_envs.WrappedMultiAgentPolicy"):
        loaded = set(in_fresh_interpreter(f"import sys; {program}\nanswer = sorted(sys.modules)"))
        assert "parallel_envs.wrappers.multi" in loaded
        assert loaded & (HEAVY | {"pettingzoo"}) == set()
    loaded = wrap({"a": teller()}, "process").step({"a": 0})["a"]
    assert "parallel_envs.wrappers.process" in loaded
    assert loaded & (HEAVY | {"pettingzoo", "pytest"}) == set()


def teller() -> Any:
    # Made in a function, so that it travels by value: no worker need import this module, and pytest with it.
    class Teller:
        def step(self, observation: Any) -> Any:
            return set(sys.modules)

    return Teller()
