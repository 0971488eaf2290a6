"""Who is late gets the default action, is counted, and disturbs nobody: neither the others nor a later turn."""

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
"""A deadline that a policy who waits at a gate misses, and no other."""
LATE = -1
RULES = Rules(action_timeout=SHORT, default_action=LATE)
SOON = 3.0

ROOT = Path(__file__).parents[2]
WAIT, GO = np.ones(2), np.zeros(2)


@pytest.fixture
def policy(wrap: Wrap, gate: Gate, parallel: str) -> Any:
    """One that waits where it is told to, and one that does not."""
    policy = wrap({"a": Waiting(gate.path), "b": Constant(7)}, parallel, rules=RULES)
    return weakref.proxy(policy)  # pytest holds what it is given for longer than the check for leaks waits


def test_who_is_late_gets_the_default_action_and_the_others_their_own(policy: WrappedMultiAgentPolicy) -> None:
    began = time.monotonic()
    assert policy.step({"a": WAIT, "b": GO}) == {"a": LATE, "b": 7}
    assert SHORT <= time.monotonic() - began < SOON
    tally = policy.tallies["a"]
    assert (tally.turns, tally.late, tally.defaults, tally.failed) == (1, 1, 1, 0)
    assert (policy.tallies["b"].late, policy.tallies["b"].defaults) == (0, 0)


def test_who_is_still_busy_keeps_nobody_waiting(policy: WrappedMultiAgentPolicy) -> None:
    policy.step({"a": WAIT, "b": GO})
    began = time.monotonic()
    for _ in range(50):
        assert policy.step({"a": GO, "b": GO}) == {"a": LATE, "b": 7}
        assert policy.step({"b": GO}) == {"b": 7}
    assert time.monotonic() - began < SOON
    assert policy.tallies["a"].late == 51


def test_a_late_answer_is_never_given_to_a_later_turn(policy: WrappedMultiAgentPolicy, gate: Gate) -> None:
    policy.step({"a": WAIT, "b": GO})
    gate.let_through()
    counts: list[int] = []
    while len(counts) < 5:  # it is back within some turns
        told = policy.step({"a": GO, "b": GO})["a"]
        if told != LATE:
            counts.append(told)
    assert counts == [2, 3, 4, 5, 6]


def test_what_was_not_asked_is_not_computed_later(policy: WrappedMultiAgentPolicy, gate: Gate) -> None:
    policy.step({"a": WAIT})
    for _ in range(3):
        policy.step({"a": WAIT})
    gate.let_through()
    while policy.step({"a": GO})["a"] == LATE:
        pass
    assert policy.get_state()["a"][0]["count"] == 2


def test_lateness_is_counted_until_the_answer_has_come(policy: WrappedMultiAgentPolicy) -> None:
    policy.step({"a": WAIT})
    began = time.monotonic()
    while time.monotonic() - began < SHORT:
        policy.step({"a": GO})
    assert policy.tallies["a"].late_seconds == pytest.approx(time.monotonic() - began, abs=0.1)


def test_lateness_ends_when_the_policy_is_back_and_not_when_it_is_asked_again(
    policy: WrappedMultiAgentPolicy, gate: Gate
) -> None:
    began = time.monotonic()
    policy.step({"a": WAIT})
    time.sleep(0.3)
    gate.let_through()
    policy.get_state()  # it is back
    back = time.monotonic()
    time.sleep(1.0)  # what the caller does meanwhile is its own affair
    policy.step({"a": GO})
    assert 0.3 <= policy.tallies["a"].late_seconds <= back - began


def test_an_answer_that_came_while_nobody_waited_uses_up_the_budget(wrap: Wrap, gate: Gate, parallel: str) -> None:
    rules = Rules(action_timeout=SHORT, default_action=LATE, lateness_budget=0.2)
    policy = wrap({"a": Waiting(gate.path), "b": Constant(7)}, parallel, rules=rules)
    policy.step({"a": WAIT, "b": GO})
    time.sleep(0.3)
    gate.let_through()
    assert policy.get_state()["a"][0]["count"] == 1  # it is back
    assert [policy.step({"a": GO, "b": GO}) for _ in range(3)] == [{"a": LATE, "b": 7}] * 3
    assert policy.tallies["a"].late == 1


def test_who_has_used_up_the_budget_is_not_asked_any_more_until_the_next_episode(
    wrap: Wrap, gate: Gate, parallel: str
) -> None:
    rules = Rules(action_timeout=SHORT, default_action=LATE, lateness_budget=0.02)
    policy = wrap({"a": Waiting(gate.path), "b": Constant(7)}, parallel, rules=rules)
    policy.step({"a": WAIT, "b": GO})
    while policy.tallies["a"].late_seconds <= 0.02:
        policy.step({"a": GO, "b": GO})
    gate.let_through()
    late = policy.tallies["a"].late
    assert policy.get_state()["a"][0]["count"] == 1  # it is back
    assert [policy.step({"a": GO, "b": GO}) for _ in range(3)] == [{"a": LATE, "b": 7}] * 3
    assert policy.tallies["a"].late == late
    assert policy.tallies["a"].defaults > late
    policy.reset()
    assert policy.step({"a": GO, "b": GO}) == {"a": 2, "b": 7}
    assert policy.tallies["a"].late_seconds == 0.0


def test_a_reset_does_not_wait_for_who_is_late_and_is_not_lost(policy: WrappedMultiAgentPolicy, gate: Gate) -> None:
    policy.step({"a": WAIT, "b": GO})
    began = time.monotonic()
    policy.reset()
    policy.reset()
    assert time.monotonic() - began < SOON
    gate.let_through()
    while policy.step({"a": GO})["a"] == LATE:
        pass
    assert policy.get_state()["a"][0]["resets"] == 2


@pytest.mark.parametrize("ask", ["get_state", "set_state", "load_state_dict"])
def test_what_else_is_asked_of_who_is_late_is_an_error_in_time(policy: WrappedMultiAgentPolicy, ask: str) -> None:
    policy.step({"a": WAIT, "b": GO})
    arguments: list[Any] = [] if ask == "get_state" else [{"a": ({}, [])}]
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=f"policy of 'a'.*{ask} was not answered.*still busy") as caught:
        getattr(policy, ask)(*arguments)
    assert isinstance(caught.value, PolicyError)
    assert time.monotonic() - began < SOON
    assert policy.step({"a": GO, "b": GO}) == {"a": LATE, "b": 7}


def test_a_policy_that_hangs_does_not_hold_up_the_end(gate: Gate, parallel: Strategy) -> None:
    pool = PolicyPool(2)
    policy = WrappedMultiAgentPolicy({"a": Waiting(gate.path)}, parallel, budget=pool, rules=RULES)
    policy.step({"a": WAIT})
    began = time.monotonic()
    policy.close()
    pool.close(0.5)
    assert time.monotonic() - began < SOON
    gate.let_through()


def test_a_worker_that_hangs_is_of_use_again_when_its_wrapper_has_left(wrap: Wrap, gate: Gate) -> None:
    with wrap({"a": Waiting(gate.path), "b": Waiting(gate.path)}, "process", rules=RULES) as policy:
        assert policy.step({"a": WAIT, "b": WAIT}) == {"a": LATE, "b": LATE}
    assert wrap({"a": Constant(1), "b": Constant(2)}, "process").step({"a": GO, "b": GO}) == {"a": 1, "b": 2}


def test_a_worker_that_hangs_can_be_revived(pool: PolicyPool, gate: Gate) -> None:
    with PerAgentProcessWrapper({"a": Waiting(gate.path), "b": Constant(7)}, RULES, pool=pool) as wrapper:
        assert wrapper.step({"a": WAIT, "b": GO}) == {"a": LATE, "b": 7}
        assert wrapper.revive() == ["a"]
        assert wrapper.step({"a": GO, "b": GO}) == {"a": 1, "b": 7}


def test_a_program_ends_though_a_policy_hangs_in_a_thread() -> None:
    script = (
        "import threading\n"
        "from parallel_envs.wrappers import Rules, WrappedMultiAgentPolicy\n"
        "class Hanging:\n"
        "    def step(self, observation): threading.Event().wait()\n"
        "rules = Rules(action_timeout=0.05, default_action=3)\n"
        "with WrappedMultiAgentPolicy({'a': Hanging()}, 'thread', rules=rules) as policy:\n"
        "    print(policy.step({'a': 0}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, cwd=ROOT, check=True
    )
    assert done.stdout == "{'a': 3}\n"


# ---- in the caller -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sequential", "batch"])
def test_a_policy_in_the_caller_is_found_to_be_late_afterwards(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Slow(0.5), "b": Constant(7)}, strategy, rules=Rules(action_timeout=0.3, default_action=LATE))
    began = time.monotonic()
    assert policy.step({"a": GO, "b": GO}) == {"a": LATE, "b": 7}
    taken = time.monotonic() - began
    tally = policy.tallies["a"]
    assert (tally.late, tally.defaults) == (1, 1)
    assert 0.19 <= tally.late_seconds <= taken - 0.3


class Slow:
    """Computes for so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, observation: Any) -> Any:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            pass
        return 0


# ---- default actions -----------------------------------------------------------------------------


def test_the_default_action_may_depend_on_the_agent(wrap: Wrap, gate: Gate, parallel: str) -> None:
    rules = Rules(action_timeout=SHORT, default_action=lambda agent: f"nothing from {agent}")
    policy = wrap({"a": Waiting(gate.path), "b": Constant(7)}, parallel, rules=rules)
    assert policy.step({"a": WAIT, "b": GO}) == {"a": "nothing from a", "b": 7}


@pytest.mark.parametrize("default", [5, np.array([1.0, 2.0]), {"move": np.array([1.0]), "say": 2}, (1, 2)])
def test_rows_get_the_default_action_where_one_is_wanted(wrap: Wrap, default: Any) -> None:
    policy = wrap({"a": Slow(0.02)}, "sequential", rules=Rules(action_timeout=0.001, default_action=default))
    told = policy.step({"a": np.zeros((3, 2))}, {"a": np.array([True, False, True])})["a"]
    for part, expected in zip(_leaves(told), _leaves(default), strict=True):
        wanted, unwanted = np.asarray(expected).tolist(), np.zeros_like(expected).tolist()
        assert part.tolist() == [wanted, unwanted, wanted]


def _leaves(action: Any) -> list[Any]:
    return (
        list(action.values()) if isinstance(action, dict) else list(action) if isinstance(action, tuple) else [action]
    )


def test_nobody_can_change_the_default_action(wrap: Wrap) -> None:
    policy = wrap({"a": Slow(0.02)}, "sequential", rules=Rules(action_timeout=0.001, default_action=np.zeros(2)))
    policy.step({"a": GO})["a"][:] = 9
    assert policy.step({"a": GO})["a"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"action_timeout": 0}, "action_timeout=0 is not a number of seconds"),
        ({"action_timeout": -1.0}, "action_timeout=-1.0"),
        ({"action_timeout": True}, "action_timeout=True"),
        ({"action_timeout": float("nan")}, "action_timeout=nan"),
        ({"action_timeout": float("inf")}, "action_timeout=inf"),
        ({"action_timeout": "1"}, "action_timeout='1'"),
        ({"action_timeout": 1.0, "lateness_budget": 0.0, "default_action": 0}, "lateness_budget=0.0"),
        ({"lateness_budget": 1.0}, "lateness_budget=1.0 was given without action_timeout"),
        ({"action_timeout": 1.0}, "default_action is missing"),
        ({"on_error": "default"}, "default_action is missing"),
        ({"on_error": "ignore"}, "on_error='ignore' is unknown. Choose 'raise' or 'default'"),
    ],
)
def test_rules_that_make_no_sense_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Rules(**settings)


def test_rules_are_rules(wrap: Wrap) -> None:
    with pytest.raises(TypeError, match="are not Rules"):
        wrap({"a": Constant()}, "sequential", rules={"action_timeout": 1.0})
