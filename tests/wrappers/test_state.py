"""A policy's state lives where it runs; policies that share; new weights."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import pickle
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import PolicyError
from parallel_envs.wrappers import PolicyPool, WrappedMultiAgentPolicy
from parallel_envs.wrappers.sharing import sharers
from tests.wrappers import agents
from tests.wrappers.agents import Doing, Drawing, Held, Loaded, OneByOne, Sharing, pid
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(3, np.float32)


def turns(policy: Any, names: str, count: int) -> list[Any]:
    return [policy.step({name: agents.observed(name, turn, None) for name in names}) for turn in range(count)]


def test_policies_travel_once_and_a_turn_sends_observations_and_brings_actions_only(
    wrap: Wrap, pool: PolicyPool
) -> None:
    policies = {agent: Big() for agent in "abc"}
    policy = wrap(policies, "process")
    policy.step(dict.fromkeys("abc", SEEN))
    workers = pool.processes()
    before = sum(workers.meters(worker).num_bytes for worker in range(2))
    for _ in range(100):
        policy.step(dict.fromkeys("abc", SEEN))
    assert sum(workers.meters(worker).num_bytes for worker in range(2)) - before < 300 * 500
    policy.reset()
    assert [one.pickles for one in policies.values()] == [1, 1, 1]


class Big:
    """Remembers a megabyte, and how often it has been pickled."""

    def __init__(self) -> None:
        self.memory, self.pickles = np.zeros(1 << 20, np.uint8), 0

    def __getstate__(self) -> Any:
        self.pickles += 1
        return vars(self).copy()

    def step(self, observation: Any) -> Any:
        return self.pickles


def test_policies_of_a_process_wrapper_run_in_the_workers_and_others_here(wrap: Wrap, pool: PolicyPool) -> None:
    pids = wrap({agent: Doing(pid) for agent in "abcd"}, "process").step(dict.fromkeys("abcd", SEEN))
    assert sorted(pids.values()) == sorted(pool.processes().pid(worker) for worker in (0, 1, 0, 1))
    shared: list[int] = []
    noting = {agent: Doing(partial(_noting, shared)) for agent in "ab"}  # agents that share are in one worker
    pids = wrap({**noting, "c": Doing(pid)}, "process").step(dict.fromkeys("abc", SEEN))
    assert pids["a"] == pids["b"] != pids["c"]
    for strategy in ("sequential", "thread", "batch", "auto"):
        assert wrap({"a": Doing(pid)}, strategy).step({"a": SEEN}) == {"a": os.getpid()}


def _noting(notes: list[int], _: Any) -> int:
    notes.append(0)
    return os.getpid()


def test_a_policy_may_keep_and_overwrite_its_observation_and_no_other_sees_it(wrap: Wrap) -> None:
    policy = wrap({"a": Doing(partial(_keeping, [])), "b": Doing(partial(_keeping, []))}, "process")
    for turn in range(5):
        seen, kept = np.full(3, turn), list(range(1, turn + 2))
        assert policy.step({"a": seen, "b": seen}) == {"a": kept, "b": kept}
        assert seen.tolist() == [turn] * 3


def _keeping(kept: list[Any], observation: Any) -> Any:
    observation += 1
    kept.append(observation)
    return [int(one[0]) for one in kept]


def test_after_sync_the_policies_that_were_given_hold_the_truth(wrap: Wrap, strategy: str) -> None:
    policies, reference = ({name: agents.mixed()[name] for name in "abcek"} for _ in range(2))
    policy, sequential = wrap(policies, strategy), wrap(reference, "sequential")
    for wrapped in (policy, sequential):
        turns(wrapped, "abcek", 5)
        wrapped.reset()
        turns(wrapped, "abcek", 5)
    if strategy == "process":
        assert policies["a"].count == 0, "without sync it is as it was"
    policy.sync()
    saved = pickle.loads(pickle.dumps(policies))
    for agent, one in reference.items():
        assert agents.comparable(_memory(saved[agent])) == agents.comparable(_memory(one))
    assert turns(policy, "abce", 5) == turns(wrap(saved, "sequential"), "abce", 5)


def _memory(policy: Any) -> Any:
    names = (*getattr(policy, "__dict__", {}), *getattr(policy, "__slots__", ()))
    return {name: getattr(policy, name) for name in names}


def test_a_state_can_be_put_back_and_into_another_strategy(wrap: Wrap, strategy: str) -> None:
    policies = [{name: agents.mixed()[name] for name in "abce"} for _ in range(2)]
    policy, other = wrap(policies[0], strategy), wrap(policies[1], "thread")
    turns(policy, "abce", 3)
    kept = policy.get_state()
    first = turns(policy, "abce", 4)
    for one in (policy, other, policy):  # it was not changed by what came after
        one.set_state(kept)
        assert turns(one, "abce", 4) == first


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
    def __init__(self) -> None:
        self.count = 0
        self.act: Any = self.counting

    def counting(self) -> int:
        self.count += 1
        return self.count

    def step(self, observation: Any) -> Any:
        return self.act()


def test_one_agent_by_itself_and_rows_have_states_and_get_new_weights(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Drawing(1), "b": Loaded()})
    agent = wrapper.agent_policy("a")
    agent.step(SEEN)
    kept = agent.get_state()
    drawn = agent.step(SEEN)
    agent.set_state(kept)
    assert agent.step(SEEN) == drawn
    agent.reset()
    assert (agent.step(SEEN) // 1000, wrapper.step({"b": SEEN})["b"]) == (1, 1.0)
    assert (agent.tally.turns, wrapper.tallies["b"].turns) == (4, 1)
    batch, alive = {"a": np.zeros((3, 2))}, dict.fromkeys("ab", np.ones(3, bool))
    wrapper.step(batch, alive)
    kept = wrapper.get_state("a")
    first = wrapper.step(batch, alive)["a"].tolist()
    wrapper.set_state("a", kept)
    assert wrapper.step(batch, alive)["a"].tolist() == first
    wrapper.step({"b": batch["a"]}, alive)
    wrapper.load_state_dict("b", {"weight": 5.0})
    assert wrapper.step({"b": batch["a"]}, alive)["b"].tolist() == [5.0] * 3


def sharing() -> dict[str, Sharing]:
    notes: list[str] = []
    generator = np.random.default_rng(1)
    return {name: Sharing(name, notes, generator) for name in "abcd"}


def test_what_agents_share_stays_shared_through_everything(wrap: Wrap, strategy: str) -> None:
    policies, reference = sharing(), sharing()
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
def test_agents_that_share_something_are_not_split_by_strategies(wrap: Wrap, apart: str) -> None:
    with pytest.raises(ValueError, match=r"\['a', 'b', 'c', 'd'\] share an object.*apart they would stop sharing"):
        wrap(sharing(), {"a": apart, **dict.fromkeys("bcd", "sequential")})


def test_an_agent_that_comes_later_and_shares_is_refused_unless_all_are_in_one_thread(
    wrap: Wrap, strategy: str
) -> None:
    policies = sharing()
    policy = wrap(OneByOne(lambda agent: policies[agent]), strategy)
    policy.step({"a": SEEN, "b": SEEN})
    if strategy in ("sequential", "batch"):
        for agent in "cd":
            policy.step({agent: SEEN})
        assert policies["a"].notes == ["a", "b", "c", "d"]
        return
    with pytest.raises(ValueError, match=r"policy of 'c' shares an object with those of \['a', 'b'\]"):
        policy.step({"a": SEEN, "c": SEEN})
    policy.step({"a": SEEN, "b": SEEN})


def test_new_weights_are_there_from_the_next_turn_on_and_after_sync_in_the_policies_that_were_given(
    wrap: Wrap, strategy: str
) -> None:
    given: dict[str, Any] = {"a": Careful(), "b": Careful(), "c": Drawing()}
    policy = wrap(given, strategy)
    for weight in (2.0, 3.0):
        policy.load_state_dict({"a": {"weight": weight}})
        assert policy.step({"a": SEEN, "b": SEEN}) == {"a": weight, "b": 1.0}
    with pytest.raises(PolicyError, match=r"policy of 'c' raised AttributeError.*load_state_dict"):
        policy.load_state_dict({"c": {}})
    policy.load_state_dict({"b": {"weight": 5.0}})
    policy.sync()
    assert [given[agent].weight for agent in "ab"] == [3.0, 5.0]


def test_weights_that_one_agent_cannot_take_reach_none_where_that_can_be_told_before(wrap: Wrap, strategy: str) -> None:
    """Else they reach all but those that raise. A check that knows nothing of a later way to load is not asked."""
    weights = {"a": {"weight": 2.0}, "b": {"wait": 2.0}, "c": {"weight": 2.0}}
    for kind in (Careful, MadeCareful, Loaded):
        policy = wrap({agent: kind() for agent in "abc"}, strategy)
        with pytest.raises(PolicyError, match="policy of 'b' raised KeyError") as caught:
            policy.load_state_dict(weights)
        assert isinstance(caught.value, KeyError)
        loaded = 1 if kind is Loaded else 0
        assert policy.step(dict.fromkeys("abc", SEEN)) == {"a": 1.0 + loaded, "b": 1.0, "c": 1.0 + loaded}
        assert policy.versions == {"a": loaded, "b": 0, "c": loaded}
    policy = wrap({"a": Renamed(), "b": Loaded()}, strategy)
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


def test_unpicklable_policies_and_those_that_share_with_them_stay_here_with_one_warning(pool: PolicyPool) -> None:
    notes: list[Any] = []
    noting = Doing(lambda _: (len(notes), os.getpid()))
    policies: dict[str, Any] = {"a": Held(notes), "b": Doing(pid), "c": Held(), "d": noting}
    with pytest.warns(RuntimeWarning, match=r"policy of \['a', 'd', 'c'\] cannot be pickled") as warned:
        policy = WrappedMultiAgentPolicy(policies, "process", budget=pool)
    assert [one.filename for one in warned] == [__file__]
    with policy:
        actions = policy.step(dict.fromkeys("abcd", SEEN))
    assert (actions["a"], actions["c"], actions["d"]) == (1, 1, (0, os.getpid()))
    assert actions["b"] != os.getpid()


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


class Slot:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


@dataclass(frozen=True)
class Config:
    name: str
    more: Any = ()


def closure(held: Any) -> Any:
    return lambda: held


def with_default(held: Any) -> Any:
    return lambda held=held: held


SHARED: list[Any] = [
    *([], {}, np.zeros(3), np.random.default_rng(), deque(), Holder(), Config("holds a list", [])),
    *(spaces.Discrete(3, seed=1), spaces.Dict({"seeded": spaces.Discrete(3, seed=1)})),
    *(closure([]), with_default([]), functools.partial(print, [])),
    *([].append, np.random.default_rng().random, Holder().__init__),  # type: ignore[misc]  # any method will do
]
CONSTANT: list[Any] = [
    *(1e300, "a text", np.float32(3), np.dtype(np.float32), Config("constant", (1, 2.0, "c")), pathlib.Path("/tmp")),
    *(Holder, np, closure, len, logging.getLogger("policies")),
    *(spaces.Box(-1, 1, (2,)), spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(2)])})),
]
WAYS: list[Any] = [
    *(Holder, Slot, closure, with_default),
    lambda held: Holder({"x": [(Slot(Holder(held)),)]}),
    lambda held: functools.partial(print, held),
    lambda held: deque([held]),
    lambda held: np.array([held, None], object),
]
ONE = Holder()
STREAM, ROWS = np.random.PCG64(1), np.zeros((2, 3))
FIRST, SECOND, CIRCLE = [0], [1], list[Any]()
CIRCLE.append(CIRCLE)


def open_ended() -> Any:
    """A function with a variable that has no value."""

    def told() -> Any:
        return later

    if told.__name__ == "something else":
        later = 1
    return told


CASES: dict[str, tuple[dict[Any, Any], list[list[str]]]] = {
    "one policy of two agents": ({"a": ONE, "b": ONE}, [["a", "b"]]),
    "generators over one stream": ({agent: Holder(np.random.Generator(STREAM)) for agent in "ab"}, [["a", "b"]]),
    "views of one array": ({"a": Holder(ROWS[0]), "b": Holder(ROWS[1])}, [["a", "b"]]),
    "through others": (
        {"a": Holder(FIRST), "b": Holder(FIRST, SECOND), "c": Holder(SECOND), "d": Holder()},
        [["a", "b", "c"], ["d"]],
    ),
    "a circle": ({"a": Holder(CIRCLE), "b": Holder()}, [["a"], ["b"]]),
    "a variable without a value": ({"a": Holder(open_ended()), "b": Holder(open_ended())}, [["a"], ["b"]]),
}
for number, held in enumerate(SHARED):
    policies = {"a": Holder(held), "b": Holder(), "c": Holder(held)}
    CASES[f"shared: {number} {type(held).__name__}"] = policies, [["a", "c"], ["b"]]
for number, held in enumerate(CONSTANT):
    CASES[f"constant: {number} {type(held).__name__}"] = {"a": Holder(held), "b": Holder(held)}, [["a"], ["b"]]
for number, way in enumerate(WAYS):
    found: list[Any] = []
    CASES[f"held: {number}"] = {"a": way(found), "b": Holder(found), "c": way([])}, [["a", "b"], ["c"]]


@pytest.mark.parametrize("case", CASES)
def test_policies_share_what_can_change(case: str) -> None:
    policies, groups = CASES[case]
    assert sharers(policies) == groups
