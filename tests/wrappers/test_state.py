"""A policy's state lives where it runs: nothing but observations and actions travels, until it is asked for."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import PolicyError
from parallel_envs.wrappers import PolicyPool, WrappedMultiAgentPolicy
from tests.wrappers.agents import (
    Composed,
    Doing,
    Drawing,
    Exploring,
    Held,
    Loaded,
    OneByOne,
    PickleCounting,
    Sharing,
    Slotted,
    Spec,
    Telling,
    pid,
    told,
)
from tests.wrappers.conftest import Seat, Wrap
from tests.wrappers.test_parity import comparable, observed

SEEN = np.zeros(3, np.float32)


def turns(policy: Any, agents: str, count: int) -> list[Any]:
    return [policy.step({agent: observed(agent, turn, None) for agent in agents}) for turn in range(count)]


# ---- what travels --------------------------------------------------------------------------------


def test_a_policy_is_pickled_once_however_long_it_lives(wrap: Wrap) -> None:
    policies = {agent: PickleCounting() for agent in "abc"}
    policy = wrap(policies, "process")
    for _ in range(20):
        policy.step(dict.fromkeys("abc", SEEN))
    policy.reset()
    assert [one.pickles for one in policies.values()] == [1, 1, 1]


def test_a_turn_sends_observations_and_brings_actions_and_nothing_else(wrap: Wrap, pool: PolicyPool) -> None:
    policy = wrap({agent: Big() for agent in "ab"}, "process")
    policy.step(dict.fromkeys("ab", SEEN))
    workers = pool.processes()
    before = sum(workers.meters(worker).num_bytes for worker in range(2))
    for _ in range(100):
        policy.step(dict.fromkeys("ab", SEEN))
    a_turn_and_agent = (sum(workers.meters(worker).num_bytes for worker in range(2)) - before) / 200
    assert a_turn_and_agent < 500


class Big(Drawing):
    """Remembers a megabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = np.zeros(1 << 20, np.uint8)


def test_policies_of_a_process_wrapper_run_in_the_workers(wrap: Wrap, pool: PolicyPool) -> None:
    pids = wrap({agent: Doing(pid) for agent in "abcd"}, "process").step(dict.fromkeys("abcd", SEEN))
    assert sorted(pids.values()) == sorted(pool.processes().pid(worker) for worker in (0, 1, 0, 1))


def test_policies_of_other_wrappers_run_here(wrap: Wrap) -> None:
    for strategy in ("sequential", "thread", "batch", "auto"):
        assert wrap({"a": Doing(pid)}, strategy).step({"a": SEEN}) == {"a": os.getpid()}


def test_a_policy_that_is_given_an_array_may_keep_it(wrap: Wrap) -> None:
    policy = wrap({"a": Keeping(), "b": Keeping()}, "process")
    for turn in range(4):
        policy.step(dict.fromkeys("ab", np.full(3, turn)))
    kept = policy.step(dict.fromkeys("ab", np.full(3, 4)))
    assert kept == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}


class Keeping:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def step(self, observation: Any) -> Any:
        self.kept.append(observation)
        return [int(one[0]) for one in self.kept]


def test_what_a_policy_writes_into_its_observation_is_seen_by_nobody_else(wrap: Wrap) -> None:
    policy = wrap({"a": Doing(_overwrite), "b": Doing(_overwrite)}, "process")
    seen = np.zeros(3)
    assert [policy.step({"a": seen, "b": seen}) for _ in range(3)] == [{"a": 1.0, "b": 1.0}] * 3
    assert seen.tolist() == [0, 0, 0]


def _overwrite(observation: Any) -> float:
    observation += 1
    return float(observation[0])


# ---- saving --------------------------------------------------------------------------------------


def test_after_sync_the_policies_that_were_given_hold_the_truth(wrap: Wrap, strategy: str) -> None:
    policies = {"a": Drawing(1), "b": Exploring(2), "c": Telling(3), "e": Slotted(4), "k": Composed(5)}
    reference = {"a": Drawing(1), "b": Exploring(2), "c": Telling(3), "e": Slotted(4), "k": Composed(5)}
    policy, sequential = wrap(policies, strategy), wrap(reference, "sequential")
    for wrapped in (policy, sequential):
        turns(wrapped, "abcek", 5)
        wrapped.reset()
        turns(wrapped, "abcek", 5)
    policy.sync()
    saved = pickle.loads(pickle.dumps(policies))
    for agent, one in reference.items():
        assert comparable(_memory(saved[agent])) == comparable(_memory(one))
    assert turns(policy, "abce", 5) == turns(wrap(saved, "sequential"), "abce", 5)


def _memory(policy: Any) -> Any:
    return {
        name: getattr(policy, name) for name in (*getattr(policy, "__dict__", {}), *getattr(policy, "__slots__", ()))
    }


def test_nothing_is_brought_home_while_a_turn_is_under_way(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Drawing()}, strategy)
    policy.send({"a": 0})
    with pytest.raises(RuntimeError, match="sync was called between send and recv"):
        policy.sync()
    policy.recv()
    policy.sync()


def test_a_single_name_is_no_list_of_agents(wrap: Wrap) -> None:
    with pytest.raises(TypeError, match=r"agents='agent_0' is a single name. Give a list of names"):
        wrap({"agent_0": Drawing()}, "process").revive("agent_0")


def test_without_sync_the_policies_that_were_given_are_as_they_were(wrap: Wrap) -> None:
    given = Drawing()
    turns(wrap({"a": given, "b": Drawing()}, "process"), "ab", 3)
    assert given.count == 0


def test_a_state_can_be_put_back(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Drawing(1), "b": Exploring(2), "c": Telling(3), "e": Slotted(4)}, strategy)
    turns(policy, "abce", 3)
    kept = policy.get_state()
    first = turns(policy, "abce", 4)
    policy.set_state(kept)
    assert turns(policy, "abce", 4) == first
    policy.set_state(kept)  # it was not changed by what came after
    assert turns(policy, "abce", 4) == first


def test_a_state_can_be_put_into_another_strategy(wrap: Wrap, strategy: str) -> None:
    policy, other = (
        wrap({"a": Drawing(1), "b": Exploring(2)}, strategy),
        wrap({"a": Drawing(5), "b": Exploring(6)}, "thread"),
    )
    turns(policy, "ab", 3)
    other.set_state(policy.get_state())
    assert turns(other, "ab", 4) == turns(policy, "ab", 4)


def test_the_state_of_one_agent_by_itself(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Drawing(1), "b": Drawing(2)}, strategy)
    agent: Any = policy.agent_policy("a")
    agent.step(SEEN)
    kept = agent.get_state()
    first = agent.step(SEEN)
    agent.set_state(kept)
    assert agent.step(SEEN) == first
    agent.reset()
    assert (agent.step(SEEN) // 1000, policy.step({"b": SEEN})["b"] // 1000) == (1, 1)
    assert (agent.tally.turns, policy.tallies["b"].turns) == (4, 1)


def test_a_policy_that_keeps_its_own_method_keeps_it(wrap: Wrap, strategy: str) -> None:
    given = {"a": Switching(), "b": Switching()}
    policy = wrap(given, strategy)
    for count in (1, 2, 3):
        assert policy.step({"a": SEEN, "b": SEEN}) == {"a": count, "b": count}
        policy.set_state(policy.get_state())
        policy.sync()
        assert given["a"].act.__self__ is given["a"]
        assert given["a"].count == count


class Switching:
    """Acts by the method that it has chosen."""

    def __init__(self) -> None:
        self.count = 0
        self.act: Any = self.counting

    def counting(self) -> int:
        self.count += 1
        return self.count

    def step(self, observation: Any) -> Any:
        return self.act()


def test_rows_have_states_too(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Drawing(1)})
    batch, alive = {"a": np.zeros((3, 2))}, {"a": np.ones(3, bool)}
    wrapper.step(batch, alive)
    kept = wrapper.get_state("a")
    first = wrapper.step(batch, alive)["a"].tolist()
    wrapper.set_state("a", kept)
    assert wrapper.step(batch, alive)["a"].tolist() == first


# ---- sharers -------------------------------------------------------------------------------------


def sharers() -> dict[str, Sharing]:
    notes: list[str] = []
    generator = np.random.default_rng(1)
    return {name: Sharing(name, notes, generator) for name in "abcd"}


def test_agents_who_share_something_are_kept_in_one_worker(wrap: Wrap) -> None:
    shared: list[int] = []
    policies = {agent: Doing(partial(_noting, shared)) for agent in "ab"}
    pids = wrap({**policies, "c": Doing(pid)}, "process").step(dict.fromkeys("abc", SEEN))
    assert pids["a"] == pids["b"] != pids["c"]


def _noting(notes: list[int], _: Any) -> int:
    notes.append(0)
    return os.getpid()


def test_what_agents_share_stays_shared_through_everything(wrap: Wrap, strategy: str) -> None:
    policies, reference = sharers(), sharers()
    policy, sequential = wrap(policies, strategy), wrap(reference, "sequential")
    for _ in range(3):
        assert turns(policy, "abcd", 4) == turns(sequential, "abcd", 4)
        assert turns(policy, "bd", 2) == turns(sequential, "bd", 2)
        policy.set_state(policy.get_state())
        policy.sync()
        assert policies["a"].notes is policies["d"].notes
        assert policies["a"].notes == reference["a"].notes
        policy.reset()
        sequential.reset()


@pytest.mark.parametrize("apart", ["thread", "process", "batch", "auto"])
def test_agents_who_share_something_are_not_split_by_strategies(wrap: Wrap, apart: str) -> None:
    with pytest.raises(ValueError, match=r"\['a', 'b', 'c', 'd'\] share an object.*apart they would stop sharing"):
        wrap(sharers(), {"a": apart, **dict.fromkeys("bcd", "sequential")})


@pytest.mark.parametrize("strategy", ["thread", "process", "auto"])
def test_an_agent_who_comes_later_and_shares_is_refused(wrap: Wrap, strategy: str) -> None:
    policies = sharers()
    policy = wrap(OneByOne(lambda agent: policies[agent]), strategy)
    policy.step({"a": SEEN, "b": SEEN})
    with pytest.raises(
        ValueError, match=r"policy of 'c' shares an object with those of \['a', 'b'\], which were added before"
    ):
        policy.step({"a": SEEN, "c": SEEN})
    policy.step({"a": SEEN, "b": SEEN})


@pytest.mark.parametrize("strategy", ["sequential", "batch"])
def test_an_agent_who_comes_later_and_shares_is_seated_where_all_are_in_one_thread(wrap: Wrap, strategy: str) -> None:
    policies = sharers()
    policy = wrap(OneByOne(lambda agent: policies[agent]), strategy)
    for agent in "abcd":
        policy.step({agent: SEEN})
    assert policies["a"].notes == ["a", "b", "c", "d"]


# ---- new weights ---------------------------------------------------------------------------------


def test_new_weights_are_there_from_the_next_turn_on(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Loaded(), "b": Loaded()}, strategy)
    for weight in (2.0, 3.0):
        policy.load_state_dict({"a": {"weight": weight}})
        assert policy.step({"a": SEEN, "b": SEEN}) == {"a": weight, "b": 1.0}


def test_rows_get_new_weights_too(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Loaded()})
    batch, alive = {"a": np.zeros((2, 2))}, {"a": np.ones(2, bool)}
    wrapper.step(batch, alive)
    wrapper.load_state_dict("a", {"weight": 5.0})
    assert wrapper.step(batch, alive)["a"].tolist() == [5.0, 5.0]


def test_weights_that_do_not_fit_change_nothing_and_say_whose_they_are(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Loaded(), "b": Loaded()}, strategy)
    with pytest.raises(PolicyError, match="policy of 'b' raised KeyError") as caught:
        policy.load_state_dict({"b": {"wait": 2.0}})
    assert isinstance(caught.value, KeyError)
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 1.0, "b": 1.0}


def test_a_policy_that_takes_no_weights_says_so(wrap: Wrap, strategy: str) -> None:
    with pytest.raises(PolicyError, match=r"policy of 'a' raised AttributeError.*load_state_dict"):
        wrap({"a": Drawing()}, strategy).load_state_dict({"a": {}})


def test_after_sync_the_policies_that_were_given_have_the_new_weights(wrap: Wrap, strategy: str) -> None:
    given = {agent: Careful() for agent in "ab"}
    policy = wrap(given, strategy)
    policy.load_state_dict({"a": {"weight": 2.0}, "b": {"weight": 3.0}})
    policy.load_state_dict({"a": {"weight": 4.0}})
    policy.sync()
    assert [one.weight for one in given.values()] == [4.0, 3.0]


def test_weights_that_one_agent_cannot_take_reach_nobody(wrap: Wrap, strategy: str) -> None:
    for policies in ({agent: Careful() for agent in "abc"}, {agent: MadeCareful() for agent in "abc"}):
        policy = wrap(policies, strategy)
        with pytest.raises(PolicyError, match="policy of 'b' raised KeyError"):
            policy.load_state_dict({"a": {"weight": 2.0}, "b": {"wait": 2.0}, "c": {"weight": 2.0}})
        assert policy.step(dict.fromkeys("abc", SEEN)) == dict.fromkeys("abc", 1.0)
        assert policy.versions == dict.fromkeys("abc", 0)


def test_where_nobody_can_tell_before_all_but_those_that_raise_have_new_weights(wrap: Wrap, strategy: str) -> None:
    policy = wrap({agent: Loaded() for agent in "abc"}, strategy)
    with pytest.raises(PolicyError, match="policy of 'b' raised KeyError"):
        policy.load_state_dict({"a": {"weight": 2.0}, "b": {"wait": 2.0}, "c": {"weight": 2.0}})
    assert policy.step(dict.fromkeys("abc", SEEN)) == {"a": 2.0, "b": 1.0, "c": 2.0}
    assert policy.versions == {"a": 1, "b": 0, "c": 1}


def test_a_check_that_knows_nothing_of_a_later_way_to_load_is_not_asked(wrap: Wrap) -> None:
    policy = wrap({"a": Renamed(), "b": Loaded()}, "sequential")
    policy.load_state_dict({"a": {"wait": 2.0}, "b": {"weight": 3.0}})
    assert policy.step(dict.fromkeys("ab", SEEN)) == {"a": 2.0, "b": 3.0}


class Careful(Loaded):
    """Can tell which weights fit, and remembers nothing else."""

    def check_weights(self, weights: Any) -> None:
        weights["weight"]

    def load_state_dict(self, weights: Any) -> None:
        self.check_weights(weights)
        super().load_state_dict(weights)

    def get_state(self) -> None:
        """Not the weights."""

    def set_state(self, state: None) -> None:
        """Nothing is remembered."""


class Renamed(Careful):
    def load_state_dict(self, weights: Any) -> None:
        self.weight = weights["wait"]


class MadeCareful:
    def make(self) -> Careful:
        return Careful()


# ---- made where they live ------------------------------------------------------------------------


def test_a_spec_makes_the_policy_where_it_lives(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Spec(), "b": Spec()}, strategy)
    assert [policy.step({"a": SEEN, "b": SEEN}) for _ in range(2)] == [{"a": 1, "b": 1}, {"a": 2, "b": 2}]
    policy.sync()


def test_unpicklable_policies_stay_here_with_one_warning(pool: PolicyPool) -> None:
    with pytest.warns(RuntimeWarning, match=r"policies of \['a', 'c'\] cannot be pickled") as warned:
        policy = WrappedMultiAgentPolicy({"a": Held(), "b": Doing(pid), "c": Held()}, "process", budget=pool)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    with policy:
        actions = policy.step(dict.fromkeys("abc", SEEN))
    assert (actions["a"], actions["c"], actions["b"] != os.getpid()) == (1, 1, True)


def test_who_shares_with_an_unpicklable_policy_stays_with_it(wrap: Wrap) -> None:
    notes: list[Any] = []
    policies = {"a": Held(notes), "b": Doing(lambda _: (len(notes), os.getpid())), "c": Doing(pid)}
    with pytest.warns(RuntimeWarning, match=r"\['a', 'b'\]"):
        actions = wrap(policies, "process").step(dict.fromkeys("abc", SEEN))
    assert actions["b"] == (0, os.getpid())
    assert actions["c"] != os.getpid()


def test_a_policy_is_closed_when_its_wrapper_leaves_the_pool(seat: Seat, tmp_path: Path, pool: PolicyPool) -> None:
    with seat("process", {"a": Closing(tmp_path / "log")}) as wrapper:
        wrapper.step({"a": SEEN})
    pool.processes().wait(pool.processes().call_all(0, "build", pool.processes().new_key(), dict))
    assert (tmp_path / "log").read_text() == "closed\n"


class Closing(Drawing):
    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def close(self) -> None:
        told("closed", self.log)
