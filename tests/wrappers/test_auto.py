"""`auto` measures and says so; it never changes what policies say, remember or draw."""

from __future__ import annotations

import copy
import os
import random
import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import PolicyError
from parallel_envs.wrappers import PerAgentAutoWrapper, PolicyPool, Rules, auto
from tests.gates import MANY, Gate, wait_at
from tests.wrappers.agents import Batched, Constant, Doing, Drawing, Held, Loaded, Sharing
from tests.wrappers.conftest import Wrap

SEEN = np.zeros(2)
NUM_TURNS = 3
LATE = -1
PATIENCE = 0.15

Monkey = pytest.MonkeyPatch


class Placed(Drawing):
    def step(self, observation: Any) -> Any:
        return super().step(observation), os.getpid()


class Sleepy(Drawing):
    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.004)
        return super().step(observation)


def turn(wrapper: Any) -> Any:
    return wrapper.step(dict.fromkeys(wrapper.policies, SEEN))


def measured(pool: PolicyPool, policies: dict[str, Any]) -> PerAgentAutoWrapper:
    wrapper = PerAgentAutoWrapper(policies, pool=pool, num_turns=NUM_TURNS)
    for _ in range(NUM_TURNS + 1):
        turn(wrapper)
    return wrapper


def choosing(choice: str, pool: PolicyPool, policies: Any, monkeypatch: Monkey) -> PerAgentAutoWrapper:
    """A wrapper that will find this strategy the fastest, whatever it measures."""
    monkeypatch.setattr(auto, "_LEAST_SECONDS", dict.fromkeys(auto._LEAST_SECONDS, 0.0))
    monkeypatch.setattr(auto, "_WORTH", float("inf"))
    monkeypatch.setattr(auto, "min", lambda usual, key: choice if choice in usual else "missing", raising=False)
    return PerAgentAutoWrapper(policies, pool=pool, num_turns=NUM_TURNS)


# ---- what it chooses -----------------------------------------------------------------------------


def test_it_says_what_it_chose_and_why(pool: PolicyPool, wrap: Wrap) -> None:
    with PerAgentAutoWrapper({"a": Constant(), "b": Constant()}, pool=pool, num_turns=NUM_TURNS) as wrapper:
        assert (wrapper.chosen, wrapper.why) == ("sequential", "Nothing has been measured yet.")
        for _ in range(NUM_TURNS + 1):
            turn(wrapper)
        assert re.fullmatch(
            rf"{wrapper.chosen} \(\d+ us a turn; .*not process: a turn of \d+ us is too short for it\)\.", wrapper.why
        )
    policy = wrap({"a": Constant(), "b": Constant()}, {"a": "auto", "b": "thread"})
    policy.step({"a": SEEN, "b": SEEN})
    assert policy.choices == {"a": "Nothing has been measured yet.", "b": "PerAgentThreadWrapper"}


def test_policies_that_wait_are_computed_in_threads(pool: PolicyPool) -> None:
    with measured(pool, {agent: Sleepy() for agent in "abcdefgh"}) as wrapper:
        assert wrapper.chosen == "thread"
        assert wrapper.why.startswith("thread (")
        assert {said // 1000 for said in turn(wrapper).values()} == {NUM_TURNS + 2}


@pytest.mark.parametrize("choice", ["batch", "thread", "process"])
def test_whatever_it_chooses_says_and_remembers_the_same(pool: PolicyPool, monkeypatch: Monkey, choice: str) -> None:
    notes, generator = list[str](), np.random.default_rng(0)
    sharing = {name: Sharing(name, notes, generator) for name in "de"}
    policies: dict[str, Any] = {"a": Placed(1), "b": Placed(2), "c": Batched(3), **sharing}
    reference = copy.deepcopy(policies)
    with choosing(choice, pool, policies, monkeypatch) as wrapper:
        for number in range(3 * NUM_TURNS):
            if number % 4 == 3:
                wrapper.reset()
                for agent in "ab":
                    reference[agent].reset()
            told = turn(wrapper)
            expected = {agent: one.step(SEEN) for agent, one in reference.items()}
            assert [told[agent][0] for agent in "ab"] == [expected[agent][0] for agent in "ab"]
            assert [told[agent] for agent in "cde"] == [expected[agent] for agent in "cde"]
            if number == NUM_TURNS + 2:
                assert wrapper.chosen == choice
                assert (told["a"][1] != os.getpid()) == (choice == "process")
                wrapper.measure_again()
                assert wrapper.chosen == "sequential"
        wrapper.sync()
        for agent in "ab":
            assert policies[agent].count == reference[agent].count
            assert policies[agent].generator.random() == reference[agent].generator.random()
        assert policies["d"].notes is policies["e"].notes
        assert policies["d"].notes == ["d", "e"] * 3 * NUM_TURNS


@pytest.mark.parametrize("choice", ["batch", "thread", "process"])
def test_rows_and_policies_trained_in_place_go_on_where_they_were(
    pool: PolicyPool, monkeypatch: Monkey, choice: str
) -> None:
    batch, alive = {"a": np.zeros((3, 2))}, {"a": np.ones(3, bool)}
    with choosing(choice, pool, {"a": Drawing()}, monkeypatch) as wrapper:
        counts = [int(wrapper.step(batch, alive)["a"][0]) // 1000 for _ in range(NUM_TURNS + 3)]
        assert (wrapper.chosen, counts) == (choice, list(range(1, NUM_TURNS + 4)))
    if choice == "process":
        return
    policies = {"a": Loaded(), "b": Loaded()}
    with choosing(choice, pool, policies, monkeypatch) as wrapper:
        for _ in range(NUM_TURNS + 1):
            turn(wrapper)
            policies["a"].weight += 1.0
        assert wrapper.chosen == choice
        assert turn(wrapper) == {"a": NUM_TURNS + 2.0, "b": 1.0}


def test_the_global_generators_are_drawn_from_once(pool: PolicyPool) -> None:
    drawing = Doing(lambda _: (random.random(), np.random.random()))  # policies do this
    told = []
    for measures in (True, False):
        random.seed(1)
        np.random.seed(1)
        with PerAgentAutoWrapper({"a": drawing, "b": drawing}, pool=pool, num_turns=NUM_TURNS) as wrapper:
            ask = partial(turn, wrapper) if measures else lambda: {agent: drawing.step(0) for agent in "ab"}
            told.append([ask() for _ in range(NUM_TURNS + 3)])
    assert told[0] == told[1]


# ---- trials --------------------------------------------------------------------------------------


class SlowLoaded(Loaded):
    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.002)
        return super().step(observation)


class FailingElsewhere:
    def __init__(self, home: int) -> None:
        self.home = home

    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.002)
        if os.getpid() != self.home:
            raise RuntimeError("not at home")
        return 0


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Held, "not all others: the policies cannot be copied to try them"),
        (lambda: Doing(Held().step), "not "),
        (SlowLoaded, "not process: it would not see networks that are trained in place"),
        (lambda: FailingElsewhere(os.getpid()), "not process: it failed: not at home"),
    ],
)
def test_it_says_why_a_strategy_was_left_out(pool: PolicyPool, policy: Any, why: str) -> None:
    with measured(pool, {"a": policy()}) as wrapper:
        turn(wrapper)
        assert why in wrapper.why
        assert wrapper.chosen != "process"


def test_a_trial_that_hangs_is_given_up(pool: PolicyPool, gate: Gate, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(auto, "_LEAST_PATIENCE", PATIENCE)
    monkeypatch.setattr(auto, "_PATIENCE", 0)  # the patience does not grow with the turns of a busy machine
    with measured(pool, {"a": OnlyHere(gate.path)}) as wrapper:
        assert wrapper.chosen in ("sequential", "batch")
        assert f"not thread: it did not answer within {PATIENCE:.3g} seconds" in wrapper.why


class OnlyHere:
    """Answers in its own thread only; in any other it waits at a gate."""

    def __init__(self, gate: Path) -> None:
        self.gate, self.home = gate, (threading.get_ident(), os.getpid())

    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.002)
        if (threading.get_ident(), os.getpid()) != self.home:
            wait_at(self.gate)
        return 0


def test_an_error_of_a_policy_is_no_fault_of_a_strategy(pool: PolicyPool) -> None:
    with PerAgentAutoWrapper({"a": Odd()}, pool=pool, num_turns=NUM_TURNS) as wrapper:
        for number in range(4 * NUM_TURNS):
            if number % 2:
                with pytest.raises(PolicyError, match="odd"):
                    turn(wrapper)
            else:
                turn(wrapper)
        assert "failed" not in wrapper.why


class Odd(Drawing):
    def step(self, observation: Any) -> Any:
        if super().step(observation) // 1000 % 2 == 0:
            raise ValueError("odd")
        return 0


def test_measuring_anew_while_measuring_and_the_end_leave_nothing_behind(pool: PolicyPool) -> None:
    with PerAgentAutoWrapper({"a": Sleepy(), "b": Sleepy()}, pool=pool, num_turns=NUM_TURNS) as wrapper:
        for again in (True, True, False):
            turn(wrapper)
            trials = list(wrapper._trials.values())
            assert len(trials) == 3
            if again:
                wrapper.measure_again()
                assert all(trial.closed for trial in trials)
    assert all(trial.closed for trial in trials)
    with pytest.raises(RuntimeError, match="measure_again was called"):
        wrapper.measure_again()


# ---- with a deadline -----------------------------------------------------------------------------


def test_with_a_deadline_policies_act_in_threads_from_the_first_turn_on(pool: PolicyPool, gate: Gate) -> None:
    rules = Rules(action_timeout=0.05, default_action=LATE)
    policies = {"a": Doing(lambda _: wait_at(gate.path)), "b": Drawing()}
    with PerAgentAutoWrapper(policies, rules, pool=pool, num_turns=NUM_TURNS) as wrapper:
        assert wrapper.why == "thread (there is an action_timeout, so nothing was measured)."
        for _ in range(NUM_TURNS + 1):
            began = time.monotonic()
            assert turn(wrapper)["a"] == LATE
            assert time.monotonic() - began < 5.0
        assert (wrapper.chosen, wrapper.acts_in_background) == ("thread", True)
        gate.let_through(MANY)
        while turn(wrapper)["a"] == LATE:
            pass
        wrapper.measure_again()
        count = turn(wrapper)["b"] // 1000
        assert turn(wrapper)["b"] // 1000 == count + 1
        assert (wrapper.chosen, wrapper.tallies["b"].failed) == ("thread", 0)
