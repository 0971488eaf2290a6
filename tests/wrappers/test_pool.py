"""A pool is shared between wrappers and closed by whoever made it; and what is asked of wrappers that cannot be."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.wrappers import STRATEGIES, PerAgentProcessWrapper, PolicyPool, WrappedMultiAgentPolicy
from parallel_envs.wrappers.pool import Threads
from tests.engine.asking import in_fork, refusal
from tests.wrappers.agents import Constant, Doing, Drawing, Loaded, OneByOne, killed, pid
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)


# ---- pools ---------------------------------------------------------------------------------------


def test_two_wrappers_have_one_budget_of_workers(wrap: Wrap, pool: PolicyPool) -> None:
    pids = {
        one
        for _ in range(2)
        for one in wrap({agent: Doing(pid) for agent in "abc"}, "process").step(dict.fromkeys("abc", SEEN)).values()
    }
    assert pids == {pool.processes().pid(0), pool.processes().pid(1)}


@pytest.mark.parametrize("strategy", ["thread", "process", "auto"])
def test_a_pool_is_closed_by_its_maker_only(pool: PolicyPool, strategy: Strategy) -> None:
    one = WrappedMultiAgentPolicy({"a": Drawing()}, strategy, budget=pool)
    with WrappedMultiAgentPolicy({"a": Drawing()}, strategy, budget=pool) as other:
        other.step({"a": SEEN})
    assert not pool.closed
    assert one.step({"a": SEEN})["a"] // 1000 == 1
    one.close()
    assert not pool.closed


@pytest.mark.parametrize("strategy", ["sequential", "thread", "process", "batch", "auto"])
def test_a_wrapper_closes_the_pool_that_it_made(strategy: Strategy) -> None:
    with WrappedMultiAgentPolicy({"a": Constant(), "b": Constant()}, strategy, workers=1) as policy:
        policy.step({"a": SEEN, "b": SEEN})
    assert policy.closed
    policy.close()
    if strategy in ("thread", "process", "auto"):
        with STRATEGIES[strategy]({"a": Constant()}, None, None) as wrapper:
            wrapper.step({"a": SEEN})
        assert wrapper.closed


def test_a_pool_that_nobody_closed_ends_with_its_last_user() -> None:
    pool = PolicyPool(1)
    pool.threads().submit(int).result(20.0)
    pool.processes()
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None


def test_a_worker_that_one_wrapper_revives_is_lost_to_the_other_until_it_revives_too(pool: PolicyPool) -> None:
    with (
        PerAgentProcessWrapper({"a": Doing(killed), "b": Drawing()}, pool=pool) as one,
        PerAgentProcessWrapper({"c": Drawing(), "d": Drawing()}, pool=pool) as other,
    ):
        other.step({"c": SEEN, "d": SEEN})
        with pytest.raises(PolicyError, match="signal 9"):
            one.step({"a": SEEN})
        assert one.revive() == ["a"]
        for _ in range(2):
            with pytest.raises(PolicyError, match=r"'c' raised WorkerDied: .*replaced by another.*revive") as caught:
                other.step({"c": SEEN, "d": SEEN})
            assert caught.value.agents == ("c",)
        assert other.revive() == ["c"]
        assert {agent: said // 1000 for agent, said in other.step({"c": SEEN, "d": SEEN}).items()} == {"c": 1, "d": 4}


def test_a_new_wrapper_on_a_pool_with_a_dead_worker_gets_a_fresh_one(pool: PolicyPool) -> None:
    with PerAgentProcessWrapper({"a": Doing(killed)}, pool=pool) as one:
        with pytest.raises(PolicyError, match="signal 9"):
            one.step({"a": SEEN})
        with PerAgentProcessWrapper({"b": Constant(3)}, pool=pool) as other:
            assert other.step({"b": SEEN}) == {"b": 3}


def test_a_closed_pool_says_so(pool: PolicyPool) -> None:
    pool.close()
    for use in (pool.threads, pool.processes, lambda: PerAgentProcessWrapper({"a": Constant()}, pool=pool)):
        with pytest.raises(ClosedError, match="policy pool was used after it had been closed"):
            use()


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2"])
def test_a_number_of_workers_is_a_whole_number_from_1_up(workers: Any) -> None:
    with pytest.raises(ValueError, match="is not a number of workers"):
        PolicyPool(workers)


def test_a_budget_is_a_pool() -> None:
    with pytest.raises(TypeError, match="budget=2 is not a PolicyPool"):
        WrappedMultiAgentPolicy({"a": Constant()}, budget=2)  # type: ignore[arg-type]  # that is the point


def test_threads_are_used_again_and_as_many_as_there_are_tasks_at_a_time() -> None:
    threads, barrier = Threads("test"), threading.Barrier(5)
    for _ in range(3):
        futures = [threads.submit(barrier.wait, 20.0) for _ in range(5)]
        assert sorted(future.result(20.0) for future in futures) == [0, 1, 2, 3, 4]
    names = {threads.submit(lambda: threading.current_thread().name).result(20.0) for _ in range(20)}
    assert names <= {f"test {number}" for number in range(5)}
    threads.close()


# ---- use that cannot be --------------------------------------------------------------------------


def test_send_twice_and_recv_without_send(wrap: Wrap, seat: Seat, strategy: str) -> None:
    policies = {"a": Constant(), "b": Constant()}
    for policy in (wrap(policies, strategy), seat(strategy, policies)):
        with pytest.raises(RuntimeError, match=r"recv was called without send. Call send first"):
            policy.recv()
        policy.send({"a": SEEN})
        for agent in "ab":
            with pytest.raises(RuntimeError, match=r"send was called twice without recv in between. Call recv first"):
                policy.send({agent: SEEN})
        assert policy.recv() == {"a": 0}
        policy.send({})
        assert policy.recv() == {}


@pytest.mark.parametrize(
    ("ask", "told"), [("reset", ()), ("get_state", ()), ("set_state", ({"a": 0},)), ("load_state_dict", ({"a": 0},))]
)
def test_nothing_is_asked_between_send_and_recv(wrap: Wrap, strategy: str, ask: str, told: Any) -> None:
    policy = wrap({"a": Loaded()}, strategy)
    policy.send({"a": SEEN})
    with pytest.raises(RuntimeError, match=r"between send and recv. Call recv first"):
        getattr(policy, ask)(*told)
    assert policy.recv() == {"a": 1.0}


def test_an_unknown_agent_is_named_and_disturbs_nobody(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Constant(), "b": Constant()}, {"a": strategy, "b": "sequential"})
    for use in (
        lambda: policy.step({"a": SEEN, "x": SEEN}),
        lambda: policy.agent_policy("x"),
        lambda: policy.set_state({"x": 0}),
        lambda: policy.load_state_dict({"x": 0}),
    ):
        with pytest.raises(KeyError, match=r"There is no policy for 'x'. There are policies for \['a', 'b'\]"):
            use()
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 0, "b": 0}


def test_an_unknown_agent_of_a_strategy_is_named(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Constant()})
    uses: tuple[Any, ...] = (
        lambda: wrapper.step({"x": SEEN}),
        lambda: wrapper.reset(["x"]),
        lambda: wrapper.get_state("x"),
        lambda: wrapper.agent_policy("x"),
    )
    for use in uses:
        with pytest.raises(KeyError, match="There is no policy for 'x'"):
            use()


def test_an_agent_whose_rows_nobody_tells_of_is_named_and_disturbs_nobody(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Constant(), "b": Constant()}, {"a": "sequential", "b": strategy})
    batches = {"a": np.zeros((2, 2)), "b": np.zeros((2, 2))}
    with pytest.raises(KeyError, match="Nothing says which rows of 'b' are alive"):
        policy.step(batches, {"a": np.ones(2, bool)})
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 0, "b": 0}


def test_after_the_end(wrap: Wrap, seat: Seat, strategy: str) -> None:
    policy, wrapper = wrap({"a": Constant()}, strategy), seat(strategy, {"a": Constant()})
    for one in (policy, wrapper):
        one.step({"a": SEEN})
        one.send({"a": SEEN})
        one.close()
        one.close()
    uses: list[Any] = [
        *(lambda one=one: one.recv() for one in (policy, wrapper)),
        *(lambda one=one: one.send({"a": SEEN}) for one in (policy, wrapper)),
        *(lambda one=one: one.reset() for one in (policy, wrapper)),
        policy.get_state,
        lambda: wrapper.get_state("a"),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()


@pytest.mark.parametrize("unknown", ["processes", 3, None, ["thread"]])
def test_an_unknown_strategy_is_refused(unknown: Any) -> None:
    strategies: list[Any] = [unknown, {"a": unknown}]
    for strategy in strategies:
        with pytest.raises(ValueError, match=r"is unknown. Choose one of 'sequential', 'thread', 'process', 'batch', "):
            WrappedMultiAgentPolicy({"a": Constant()}, strategy)


def test_a_strategy_for_an_agent_who_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"strategy names 'x', for which there is no policy among \['a'\]"):
        WrappedMultiAgentPolicy({"a": Constant()}, {"x": "thread"})


@pytest.mark.parametrize("policy", [None, 3, [Constant()], Constant()])
def test_what_is_no_policy_of_many_agents_is_refused(policy: Any) -> None:
    with pytest.raises(TypeError, match="neither a dict of policies by agent nor a MultiAgentPolicy"):
        WrappedMultiAgentPolicy(policy)


def test_a_policy_without_step_is_refused(wrap: Wrap, strategy: str) -> None:
    with pytest.raises(TypeError, match=r"policy of 'b', 3, has no method step\(observation\)"):
        wrap({"a": Constant(), "b": 3}, strategy)
    with pytest.raises(TypeError, match=r"policy of 'b', .*Constant.*, is a class"):
        wrap({"a": Constant(), "b": Constant}, strategy)
    policy = wrap(OneByOne(lambda agent: None), strategy)
    with pytest.raises(TypeError, match="policy of 'b', None, has no method step"):
        policy.step({"b": SEEN})


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
    seen = {"a": SEEN, "b": SEEN}
    first = policy.step(seen)
    policy.send(seen)
    assert refusal(policy.recv).startswith("ClosedError")
    second = policy.recv()
    operations: list[Callable[[], object]] = [lambda: policy.step(seen), lambda: policy.send(seen)]
    if strategy == "process":
        operations += [policy.reset, policy.get_state, policy.revive, policy.sync]
    for operation in operations:
        assert refusal(operation).startswith("ClosedError")
    assert in_fork(policy.close) is None
    assert in_fork(pool.close) is None
    with WrappedMultiAgentPolicy({"a": Drawing(), "b": Drawing()}, "sequential") as reference:
        assert [reference.step(seen) for _ in range(3)] == [first, second, policy.step(seen)]
    policy.close()


def test_a_forked_process_has_policies_in_workers_of_its_own(pool: PolicyPool) -> None:
    with WrappedMultiAgentPolicy({"a": Drawing()}, "process", budget=pool) as policy:
        policy.step({"a": SEEN})

        def step_another() -> Any:
            with WrappedMultiAgentPolicy({"a": Drawing()}, "process", workers=1) as own:
                return own.step({"a": SEEN})

        with WrappedMultiAgentPolicy({"a": Drawing()}, "sequential") as reference:
            assert in_fork(step_another) == reference.step({"a": SEEN})
