"""A late policy gets the default action, is counted, and disturbs neither the others nor a later turn."""

from __future__ import annotations

import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import PolicyError
from parallel_envs.wrappers import PerAgentProcessWrapper, PolicyPool, Rules, WrappedMultiAgentPolicy
from tests.gates import Gate
from tests.wrappers.agents import Constant, Waiting
from tests.wrappers.conftest import Wrap

SHORT = 0.15
"""A deadline that a policy that waits at a gate misses, and no other."""
LATE = -1
RULES = Rules(action_timeout=SHORT, default_action=LATE)
SOON = 3.0

WAIT, GO = np.ones(2), np.zeros(2)
BOTH = {"a": GO, "b": GO}
DEFAULT = {"a": LATE, "b": 7}


@pytest.fixture
def policy(wrap: Wrap, gate: Gate, parallel: str) -> Any:
    """One that waits where it is told to, and one that does not."""
    policy = wrap({"a": Waiting(gate.path), "b": Constant(7)}, parallel, rules=RULES)
    return weakref.proxy(policy)  # pytest holds what it is given for longer than the check for leaks waits


def test_a_late_policy_gets_the_default_action_and_holds_up_no_other(policy: WrappedMultiAgentPolicy) -> None:
    began = time.monotonic()
    assert policy.step({"a": WAIT, "b": GO}) == DEFAULT
    assert SHORT <= time.monotonic() - began < SOON
    tally = policy.tallies["a"]
    assert (tally.turns, tally.late, tally.defaults, tally.failed) == (1, 1, 1, 0)
    assert (policy.tallies["b"].late, policy.tallies["b"].defaults) == (0, 0)
    began = time.monotonic()
    for _ in range(50):  # it is still busy
        assert policy.step(BOTH) == DEFAULT
        assert policy.step({"b": GO}) == {"b": 7}
    assert time.monotonic() - began < SOON
    assert policy.tallies["a"].late == 51


def test_a_late_answer_answers_no_later_turn_and_what_was_not_asked_is_not_computed(
    policy: WrappedMultiAgentPolicy, gate: Gate
) -> None:
    for _ in range(4):
        policy.step({"a": WAIT, "b": GO})
    gate.let_through()
    counts: list[int] = []
    while len(counts) < 5:  # it is back within some turns
        told = policy.step(BOTH)["a"]
        if told != LATE:
            counts.append(told)
    assert counts == [2, 3, 4, 5, 6]


def test_lateness_is_counted_until_the_answer_has_come_and_not_until_the_next_question(
    policy: WrappedMultiAgentPolicy, gate: Gate
) -> None:
    began = time.monotonic()
    policy.step({"a": WAIT})
    missed = asked = time.monotonic()
    while asked - missed < SHORT:
        asked = time.monotonic()
        policy.step({"a": GO})
    assert asked - missed <= policy.tallies["a"].late_seconds <= time.monotonic() - began - SHORT
    gate.let_through()
    policy.get_state()  # it is back
    back = time.monotonic()
    time.sleep(0.6)  # what the caller does meanwhile is its own affair
    policy.step({"a": GO})
    assert asked - missed <= policy.tallies["a"].late_seconds <= back - began - SHORT


def test_a_policy_that_has_used_up_the_budget_is_not_asked_any_more_until_the_next_episode(
    wrap: Wrap, gate: Gate, parallel: str
) -> None:
    rules = Rules(action_timeout=SHORT, default_action=LATE, lateness_budget=0.2)
    policy = wrap({"a": Waiting(gate.path), "b": Constant(7)}, parallel, rules=rules)
    tally, count = policy.tallies["a"], 0
    for asked_meanwhile in (False, True):
        before = tally.late
        policy.step({"a": WAIT, "b": GO})
        if asked_meanwhile:
            while tally.late_seconds <= 0.2:
                policy.step(BOTH)
        else:
            time.sleep(0.3)
        gate.let_through()
        count += 1
        assert policy.get_state()["a"][0]["count"] == count  # it is back
        late = tally.late
        assert [policy.step(BOTH) for _ in range(3)] == [DEFAULT] * 3
        assert (tally.late, tally.defaults >= late + 3) == (late, True)
        assert (late == before + 1) != asked_meanwhile
        policy.reset()
        count += 1
        assert policy.step(BOTH) == {"a": count, "b": 7}
        assert tally.late_seconds == 0.0


def test_a_reset_does_not_wait_for_a_late_policy_and_is_not_lost(policy: WrappedMultiAgentPolicy, gate: Gate) -> None:
    policy.step({"a": WAIT, "b": GO})
    began = time.monotonic()
    policy.reset()
    policy.reset()
    assert time.monotonic() - began < SOON
    gate.let_through()
    while policy.step({"a": GO})["a"] == LATE:
        pass
    assert policy.get_state()["a"][0]["resets"] == 2


def test_what_else_is_asked_of_a_late_policy_is_an_error_in_time(policy: WrappedMultiAgentPolicy) -> None:
    policy.step({"a": WAIT, "b": GO})
    for ask in ("get_state", "set_state", "load_state_dict"):
        arguments: list[Any] = [] if ask == "get_state" else [{"a": ({}, [])}]
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"policy of 'a'.*{ask} was not answered.*still busy") as caught:
            getattr(policy, ask)(*arguments)
        assert isinstance(caught.value, PolicyError)
        assert time.monotonic() - began < SOON
        assert policy.step(BOTH) == DEFAULT


def test_a_policy_that_hangs_does_not_hold_up_the_end(gate: Gate, parallel: Strategy) -> None:
    pool = PolicyPool(2)
    policy = WrappedMultiAgentPolicy({"a": Waiting(gate.path)}, parallel, budget=pool, rules=RULES)
    policy.step({"a": WAIT})
    began = time.monotonic()
    policy.close()
    pool.close(0.5)
    assert time.monotonic() - began < SOON
    gate.let_through()


def test_a_worker_that_hangs_can_be_revived_and_is_of_use_again_when_its_wrapper_has_left(
    pool: PolicyPool, gate: Gate
) -> None:
    with PerAgentProcessWrapper({"a": Waiting(gate.path), "b": Waiting(gate.path)}, RULES, pool=pool) as wrapper:
        assert wrapper.step({"a": WAIT, "b": WAIT}) == {"a": LATE, "b": LATE}
        assert wrapper.revive(["a"]) == ["a"]
        assert wrapper.step({"a": GO}) == {"a": 1}
        assert wrapper.step({"a": WAIT, "b": WAIT}) == {"a": LATE, "b": LATE}
    with PerAgentProcessWrapper({"a": Constant(1), "b": Constant(2)}, pool=pool) as other:
        assert other.step(BOTH) == {"a": 1, "b": 2}


SCRIPT = """
import threading
from parallel_envs.wrappers import Rules, WrappedMultiAgentPolicy
class Hanging:
    def step(self, observation): threading.Event().wait()
rules = Rules(action_timeout=0.05, default_action=3)
with WrappedMultiAgentPolicy({'a': Hanging()}, 'thread', rules=rules) as policy:
    print(policy.step({'a': 0}))
"""


def test_a_program_ends_though_a_policy_hangs_in_a_thread() -> None:
    command, root = [sys.executable, "-c", SCRIPT], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=root, check=True)
    assert done.stdout == "{'a': 3}\n"


@pytest.mark.parametrize("strategy", ["sequential", "batch"])
def test_a_policy_in_the_caller_is_found_to_be_late_afterwards(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Slow(0.5), "b": Constant(7)}, strategy, rules=Rules(action_timeout=0.3, default_action=LATE))
    began = time.monotonic()
    assert policy.step(BOTH) == DEFAULT
    taken = time.monotonic() - began
    tally = policy.tallies["a"]
    assert (tally.late, tally.defaults) == (1, 1)
    assert 0.19 <= tally.late_seconds <= taken - 0.3


class Slow:
    """Takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, observation: Any) -> Any:
        time.sleep(self.seconds)
        return 0


# ---- default actions -----------------------------------------------------------------------------

BRIEF = 0.001


def test_the_default_action_may_depend_on_the_agent(wrap: Wrap) -> None:
    rules = Rules(action_timeout=BRIEF, default_action=lambda agent: f"nothing from {agent}")
    policy = wrap({"a": Slow(0.02), "b": Slow(0.02)}, "sequential", rules=rules)
    assert policy.step(BOTH) == {"a": "nothing from a", "b": "nothing from b"}


@pytest.mark.parametrize("default", [5, np.array([1.0, 2.0]), {"move": np.array([1.0]), "say": 2}, (1, 2)])
def test_rows_get_the_default_action_where_one_is_wanted(wrap: Wrap, default: Any) -> None:
    policy = wrap({"a": Slow(0.02)}, "sequential", rules=Rules(action_timeout=BRIEF, default_action=default))
    told = policy.step({"a": np.zeros((3, 2))}, {"a": np.array([True, False, True])})["a"]
    for part, expected in zip(_leaves(told), _leaves(default), strict=True):
        wanted, unwanted = np.asarray(expected).tolist(), np.zeros_like(expected).tolist()
        assert part.tolist() == [wanted, unwanted, wanted]


def _leaves(action: Any) -> list[Any]:
    parts = action.values() if isinstance(action, dict) else action if isinstance(action, tuple) else [action]
    return list(parts)


def test_the_default_action_cannot_be_changed_by_its_receiver(wrap: Wrap) -> None:
    policy = wrap({"a": Slow(0.02)}, "sequential", rules=Rules(action_timeout=BRIEF, default_action=np.zeros(2)))
    policy.step({"a": GO})["a"][:] = 9
    assert policy.step({"a": GO})["a"].tolist() == [0, 0]
