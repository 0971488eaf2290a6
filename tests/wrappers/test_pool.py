"""Pools and their end; use that cannot be; forks; what is closed and left behind; policies of single agents."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import wrappers
from parallel_envs.choices import Strategy
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.policies import AgentPolicy, MultiAgentPolicy, PolicySpec
from parallel_envs.wrappers import (
    STRATEGIES,
    PerAgentBatchWrapper,
    PerAgentProcessWrapper,
    PerAgentSubprocessWrapper,
    PerAgentWrapper,
    PolicyPool,
    Rules,
    WrappedMultiAgentPolicy,
)
from parallel_envs.wrappers.pool import SharedPool
from tests.engine.asking import in_fork, refusal
from tests.test_imports import HEAVY, in_fresh_interpreter
from tests.wrappers.agents import Constant, Counting, Drawing, Loaded, Locked, Logging, OneByOne, raising
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
BOTH = {"a": SEEN, "b": SEEN}


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


def test_a_closed_pool_says_so_and_one_that_was_not_closed_ends_with_its_last_user(pool: PolicyPool) -> None:
    with PerAgentProcessWrapper({"a": Constant()}, pool=pool) as wrapper:
        pool.close(0.5)
        uses: list[Callable[[], object]] = [pool.threads, pool.processes, wrapper.reset, wrapper.revive]
        uses += [lambda: wrapper.step({"a": SEEN}), lambda: PerAgentProcessWrapper({"a": Constant()}, pool=pool)]
        for use in uses:
            with pytest.raises(ClosedError, match="pool was used after it had been closed"):
                use()
    other = PolicyPool(1)
    other.threads().submit(int).result(20.0)
    other.processes()
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


OTHERS: dict[str, tuple[Any, ...]] = {"reset": (), "get_state": (), "sync": (), "revive": ()}
OTHERS |= dict.fromkeys(("set_state", "load_state_dict"), ({"a": 0},))


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
        for ask, arguments in OTHERS.items() if one is policy else ():
            with pytest.raises(RuntimeError, match=r"between send and recv. Call recv first"):
                getattr(policy, ask)(*arguments)
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
    assert repr(wrap({"a": Constant()}, strategy)) == f"WrappedMultiAgentPolicy(1 agents, strategy={strategy!r})"
    wrapper = seat(strategy, policies)
    assert repr(wrapper) == f"PerAgent{strategy.capitalize()}Wrapper(2 agents)"
    wrapper.close()
    assert repr(wrapper) == f"PerAgent{strategy.capitalize()}Wrapper(2 agents, closed)"


def test_agents_may_come_at_any_time(wrap: Wrap, strategy: str) -> None:
    policy = wrap(OneByOne(Constant), strategy)
    for agents in ("a", "ab", "c", "abcd"):
        assert policy.step(dict.fromkeys(agents, SEEN)) == dict(zip(agents, agents, strict=True))
    assert set(policy.tallies) == set(policy.choices) == set("abcd")


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


def spec(log: Path, agent: str, **more: bool) -> PolicySpec:
    return PolicySpec("tests.wrappers.agents:Logging", kwargs={"log": log, "agent": agent, "opens": True, **more})


def told_in(log: Path) -> list[str]:
    return sorted(log.read_text().splitlines()) if log.exists() else []


def test_a_policy_that_was_made_from_a_spec_is_closed_once_also_where_another_raises(
    tmp_path: Path, strategy: Strategy
) -> None:
    log = tmp_path / "log"
    with WrappedMultiAgentPolicy({agent: spec(log, agent) for agent in "ab"}, strategy, workers=1) as policy:
        for count in range(1, 10):
            assert {a // 1000 for a in policy.step(BOTH).values()} == {count}
        assert told_in(log) == []
    policy.close()
    assert told_in(log) == ["a closed", "b closed"]
    log.unlink()
    policies = {"a": spec(log, "a"), "b": spec(log, "b", fails=True), "c": spec(log, "c")}
    with pytest.raises(ZeroDivisionError):
        WrappedMultiAgentPolicy(policies, "sequential").close()
    assert told_in(log) == ["a closed", "b closed", "c closed"]


def test_a_policy_that_was_given_is_closed_in_a_worker_that_it_leaves_and_not_here(
    wrap: Wrap, tmp_path: Path, strategy: str, pool: PolicyPool
) -> None:
    with wrap({"a": Logging(tmp_path / "log", "a")}, strategy) as policy:
        policy.step({"a": SEEN})
    if strategy == "process":
        workers = pool.processes()
        workers.wait(workers.call_all(0, "build", workers.new_key(), dict))
    assert told_in(tmp_path / "log") == (["a closed"] if strategy == "process" else [])


def test_a_spec_that_makes_no_policy_names_its_agent_and_the_others_are_closed(
    wrap: Wrap, tmp_path: Path, strategy: str
) -> None:
    log = tmp_path / "log"
    text = "policy of 'b' raised ImportError: The module of the policy 'no_such:Thing' cannot be imported"
    with pytest.raises(ImportError, match=text) as caught:
        wrap({"a": spec(log, "a"), "b": PolicySpec("no_such:Thing"), "c": spec(log, "c")}, strategy)
    assert isinstance(caught.value, PolicyError)
    assert caught.value.agents == ("b",)
    if strategy != "process":
        assert told_in(log) == ["a closed"]


class Team(MultiAgentPolicy):
    def __init__(self) -> None:
        self.resets: list[Any] = []
        self.policies = {agent: Drawing() for agent in "ab"}

    def agent_policy(self, agent: Any) -> Any:
        return self.policies[agent]

    def reset(self, rows: Any = None) -> None:
        self.resets.append(None if rows is None else rows.tolist())


class Whole(Team):
    def reset(self) -> None:  # type: ignore[override]  # that is the point
        self.resets.append("all")


def test_what_agents_have_in_common_is_reset_once_an_episode_and_the_agents_even_if_it_cannot_be(
    wrap: Wrap, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, whole = Team(), Whole()
    for common in (team, whole):
        policy = wrap(common, strategy)
        policy.reset()
        for _ in range(2):
            policy.step(BOTH)
        policy.reset()
        assert {said // 1000 for said in policy.step(BOTH).values()} == {1}
        policy.reset(rows=np.array([False, True]))
    assert team.resets == [None, None, [1]]
    assert whole.resets == ["all", "all"]
    monkeypatch.setattr(whole, "reset", raising)
    policy.step(BOTH)
    with pytest.raises(ZeroDivisionError):
        policy.reset()
    assert policy.step({"a": SEEN})["a"] // 1000 == 1


WARM_UP = 500
MOST_BYTES = 4 << 20


def held(pids: list[int]) -> tuple[int, int]:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids), threading.active_count()


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


many = pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])


@many
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_thousands_of_turns_leave_nothing_behind(seat: Seat, pool: PolicyPool, strategy: str, count: int) -> None:
    if strategy == "gpu":
        pytest.importorskip("torch")
    wrapper = seat(strategy, {"a": Constant(), "b": Constant()})
    pids = [os.getpid()]
    if strategy == "process":
        pids += [pool.processes().pid(worker) for worker in range(2)]
    seen: list[Any] = [{"a": np.zeros(3), "b": np.zeros(3)}, {"b": np.zeros(3)}, {"a": np.zeros(3), "b": 1}]
    for _ in range(WARM_UP):
        wrapper.step(seen[0])
        wrapper.step(seen[1])
    before, bytes_before = held(pids), [resident(pid) for pid in pids]
    for number in range(count):
        wrapper.step(seen[number % 2])
        if number % 1000 == 0:
            wrapper.step(seen[2])
            wrapper.reset()
            wrapper.get_state("a")
            one, other = wrapper.agent_policy("a"), wrapper.agent_policy("b")
            one.send(seen[0]["a"])
            assert (other.step(seen[0]["b"]), one.recv()) == (0, 0)
    assert held(pids) == before
    for pid, earlier in zip(pids, bytes_before, strict=True):
        assert resident(pid) - earlier < MOST_BYTES
    assert wrapper.tallies["b"].turns == 2 * WARM_UP + count + 2 * (count // 1000)


@many
def test_thousands_of_passes_leave_nothing_behind(seat: Seat, count: int) -> None:
    """Of networks that are trained, replaced and asked in ever other company."""
    torch = pytest.importorskip("torch")
    from tests.wrappers.networks import mlp, several

    policies = several("abcd")
    wrapper = seat("batch", policies)
    companies = [{agent: np.zeros(6, np.float32) for agent in agents} for agents in ("abcd", "ab", "bcd", "dcba", "ac")]

    def passes(count: int) -> None:
        for number in range(count):
            wrapper.step(companies[number % 5])
            if number % 50 == 0:
                with torch.no_grad():
                    policies["b"].module[0].weight += 0.001
            if number % 500 == 0:
                policies["c"].module = mlp(number)

    passes(WARM_UP)
    before, bytes_before = held([os.getpid()]), resident(os.getpid())
    passes(count)
    assert held([os.getpid()]) == before
    assert resident(os.getpid()) - bytes_before < MOST_BYTES


wrapped: Any = PerAgentSubprocessWrapper


def test_its_step_is_computed_in_a_process_and_its_state_is_kept_from_step_to_step() -> None:
    with wrapped(Counting()) as agent, WrappedMultiAgentPolicy({"red": agent, "blue": Counting()}) as both:
        assert issubclass(type(agent), AgentPolicy)
        found = [agent.step(SEEN) for _ in range(3)]
        assert [count for _, count in found] == [1, 2, 3]
        assert len({pid for pid, _ in found} - {os.getpid()}) == 1
        kept = agent.get_state()
        agent.reset()
        assert agent.step(SEEN)[1] == 1
        agent.set_state(kept)
        assert agent.step(SEEN)[1] == 4
        told = both.step({"red": SEEN, "blue": SEEN})  # it is a policy that others take
        assert told == {"red": (found[0][0], 5), "blue": (os.getpid(), 1)}
        with wrapped(PolicySpec("tests.wrappers.agents:Counting", kwargs={"start": 3})) as other:
            assert other.step(SEEN)[1] == 4
        with wrapped(Counting()) as other, pytest.raises(PolicyError, match="raised ValueError: nothing was seen"):
            other.step(None)
        with wrapped(Counting(), rules=Rules(on_error="default", default_action=7)) as other:
            assert (other.step(None), other.tally.defaults) == (7, 1)
        with pytest.warns(RuntimeWarning, match="cannot be pickled, so it is computed in this process"):
            here = wrapped(Locked())
        with here:
            assert [here.step(SEEN) for _ in range(2)] == [(os.getpid(), 1), (os.getpid(), 2)]
    with pytest.raises(ClosedError):
        agent.step(SEEN)
    assert SharedPool._current is None


def test_the_signature_is_that_of_the_wrapper_and_a_strategy_of_ones_own_may_have_another() -> None:
    class Scaled(PerAgentBatchWrapper):
        def __init__(self, scale: Any, policies: Any) -> None:
            super().__init__(policies)

    assert list(inspect.signature(PerAgentSubprocessWrapper).parameters) == ["policies", "rules", "pool"]
    assert isinstance(Scaled(3, {"red": Counting()}), PerAgentWrapper)


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


def test_a_pool_that_is_given_is_used_and_stays_open_and_one_that_has_left_makes_room(pool: PolicyPool) -> None:
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


@pytest.mark.parametrize("strategy", ["Sequential", "Thread", "Process", "Auto", "Batch", "GPU"])
def test_every_strategy_wraps_a_single_policy(strategy: str) -> None:
    if strategy == "GPU":
        pytest.importorskip("torch")
    kind: Any = getattr(wrappers, f"PerAgent{strategy}Wrapper")
    with kind(Counting()) as agent, kind(policies=Counting(1)) as other:
        assert [agent.step(SEEN)[1] for _ in range(8)] == [*range(1, 9)]
        assert other.step(SEEN)[1] == 2
