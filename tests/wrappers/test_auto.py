"""`auto` measures and says so; it never changes what policies say, remember or draw."""

from __future__ import annotations

import copy
import os
import random
import re
import threading
import time
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import PolicyError
from parallel_envs.wrappers import PerAgentAutoWrapper, PerAgentProcessWrapper, PolicyPool, Rules, auto
from tests.wrappers.agents import Batched, Constant, Doing, Drawing, Held, Loaded, Sharing
from tests.wrappers.conftest import Wrap

SEEN = np.zeros(2)
NUM_TURNS = 3
PATIENCE = 0.15


class Busy(Drawing):
    """Computes in Python for a while, and tells where."""

    def __init__(self, seed: int = 0, seconds: float = 0.004) -> None:
        super().__init__(seed)
        self.seconds = seconds

    def step(self, observation: Any) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return super().step(observation), os.getpid()


class Sleepy(Drawing):
    """Waits for something outside."""

    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.004)
        return super().step(observation)


def turn(wrapper: Any) -> Any:
    return wrapper.step(dict.fromkeys(wrapper.policies, SEEN))


def measured(pool: PolicyPool, policies: dict[str, Any], rules: Rules | None = None) -> PerAgentAutoWrapper:
    """A wrapper that has made its choice."""
    wrapper = PerAgentAutoWrapper(policies, rules, pool=pool, num_turns=NUM_TURNS)
    for _ in range(NUM_TURNS + 1):
        turn(wrapper)
    return wrapper


def test_it_says_what_it_chose_and_why(pool: PolicyPool) -> None:
    with PerAgentAutoWrapper({"a": Constant(), "b": Constant()}, pool=pool, num_turns=NUM_TURNS) as wrapper:
        assert (wrapper.chosen, wrapper.why) == ("sequential", "Nothing has been measured yet.")
        for _ in range(NUM_TURNS + 1):
            turn(wrapper)
        assert re.fullmatch(
            rf"{wrapper.chosen} \(\d+ us a turn; .*not process: a turn of \d+ us is too short for it\)\.", wrapper.why
        )


def test_policies_that_wait_are_computed_in_threads(pool: PolicyPool) -> None:
    with measured(pool, {agent: Sleepy() for agent in "abcdefgh"}) as wrapper:
        assert wrapper.chosen == "thread"
        assert wrapper.why.startswith("thread (")
        assert {said // 1000 for said in turn(wrapper).values()} == {NUM_TURNS + 2}


def test_what_it_chose_is_told_by_agent(wrap: Wrap) -> None:
    policy = wrap({"a": Constant(), "b": Constant()}, {"a": "auto", "b": "thread"})
    policy.step({"a": SEEN, "b": SEEN})
    assert policy.choices == {"a": "Nothing has been measured yet.", "b": "PerAgentThreadWrapper"}


@pytest.mark.parametrize("choice", ["sequential", "batch", "thread", "process"])
def test_whatever_it_chooses_says_and_remembers_the_same(
    pool: PolicyPool, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    policies: dict[str, Any] = {"a": Busy(1), "b": Busy(2), "c": Batched(3)}
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
            assert told["c"] == expected["c"]
            if number == NUM_TURNS + 2:
                assert wrapper.chosen == choice
                assert (told["a"][1] != os.getpid()) == (choice == "process")
                wrapper.measure_again()
                assert wrapper.chosen == "sequential"
        wrapper.sync()
        for agent in "ab":
            assert policies[agent].count == reference[agent].count
            assert policies[agent].generator.random() == reference[agent].generator.random()


def choosing(choice: str, pool: PolicyPool, policies: Any, monkeypatch: pytest.MonkeyPatch) -> PerAgentAutoWrapper:
    """A wrapper that will find this strategy the fastest, whatever it measures."""
    monkeypatch.setattr(auto, "_LEAST_SECONDS", dict.fromkeys(auto._LEAST_SECONDS, 0.0))
    wrapper = PerAgentAutoWrapper(policies, pool=pool, num_turns=NUM_TURNS)
    wrapper._times = Times(choice)
    return wrapper


class Times(dict[str, list[float]]):
    """Notes of times by which one strategy is the fastest."""

    def __init__(self, fastest: str) -> None:
        super().__init__()
        self.fastest = fastest

    def setdefault(self, name: str, default: Any = None) -> Any:
        return super().setdefault(name, Fixed(0.5 if name == self.fastest else 1.0))


class Fixed(list[float]):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def append(self, seconds: float) -> None:
        super().append(self.seconds)


@pytest.mark.parametrize("choice", ["batch", "thread"])
def test_what_is_chosen_here_runs_the_policies_themselves(
    pool: PolicyPool, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    policies = {"a": Loaded(), "b": Loaded()}
    with choosing(choice, pool, policies, monkeypatch) as wrapper:
        for _ in range(NUM_TURNS + 1):
            turn(wrapper)
            policies["a"].weight += 1.0  # trained in place, by whoever holds it
        assert wrapper.chosen == choice
        assert turn(wrapper) == {"a": NUM_TURNS + 2.0, "b": 1.0}


def test_rows_go_on_where_they_were(pool: PolicyPool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, alive = {"a": np.zeros((3, 2))}, {"a": np.ones(3, bool)}
    for choice in ("thread", "process"):
        with choosing(choice, pool, {"a": Drawing()}, monkeypatch) as wrapper:
            counts = [int(wrapper.step(batch, alive)["a"][0]) // 1000 for _ in range(NUM_TURNS + 3)]
            assert wrapper.chosen == choice
            assert counts == list(range(1, NUM_TURNS + 4))


def test_what_agents_share_stays_shared(pool: PolicyPool, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    generator = np.random.default_rng(0)
    policies = {name: Sharing(name, notes, generator) for name in "ab"}
    with choosing("process", pool, policies, monkeypatch) as wrapper:
        for _ in range(NUM_TURNS + 3):
            turn(wrapper)
        wrapper.sync()
        assert policies["a"].notes is policies["b"].notes
        assert policies["a"].notes == ["a", "b"] * (NUM_TURNS + 3)


def test_the_generators_that_belong_to_nobody_are_drawn_from_once(pool: PolicyPool) -> None:
    drawing = Doing(lambda _: (random.random(), np.random.random()))  # policies do this
    told = []
    for kind in ("auto", "plain"):
        random.seed(1)
        np.random.seed(1)
        with PerAgentAutoWrapper({"a": drawing, "b": drawing}, pool=pool, num_turns=NUM_TURNS) as wrapper:
            one_turn = (
                (lambda: turn(wrapper)) if kind == "auto" else (lambda: {agent: drawing.step(0) for agent in "ab"})
            )
            told.append([one_turn() for _ in range(NUM_TURNS + 3)])
    assert told[0] == told[1]


@pytest.mark.parametrize("policy", [Held, lambda: Doing(Held().step)])
def test_policies_that_cannot_be_copied_or_pickled_are_asked_all_the_same(pool: PolicyPool, policy: Any) -> None:
    with measured(pool, {"a": policy()}) as wrapper:
        turn(wrapper)
        assert "not " in wrapper.why
        turn(wrapper)
    assert wrapper.chosen in ("sequential", "batch")


def test_uncopyable_policies_are_named_as_the_reason(pool: PolicyPool) -> None:
    with measured(pool, {"a": Held()}) as wrapper:
        assert "not all others: the policies cannot be copied to try them" in wrapper.why


def test_a_trial_that_hangs_is_given_up(pool: PolicyPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_LEAST_PATIENCE", PATIENCE)
    with measured(pool, {"a": OnlyHere(threading.get_ident(), os.getpid())}) as wrapper:
        assert wrapper.chosen in ("sequential", "batch")
        assert f"not thread: it did not answer within {PATIENCE:.3g} seconds" in wrapper.why


class OnlyHere:
    """Answers in its own thread only; in any other it hangs for a while."""

    def __init__(self, thread: int, process: int) -> None:
        self.home = thread, process

    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.002 if (threading.get_ident(), os.getpid()) == self.home else PATIENCE + 0.3)
        return 0


def test_a_trial_that_fails_is_given_up_and_says_why(pool: PolicyPool) -> None:
    with measured(pool, {"a": FailingElsewhere(os.getpid())}) as wrapper:
        assert "not process: it failed: not at home" in wrapper.why


class FailingElsewhere:
    def __init__(self, home: int) -> None:
        self.home = home

    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.002)
        if os.getpid() != self.home:
            raise RuntimeError("not at home")
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
    with PerAgentAutoWrapper({"a": Busy(), "b": Busy()}, pool=pool, num_turns=NUM_TURNS) as wrapper:
        for _ in range(2):
            turn(wrapper)
            trials = list(wrapper._trials.values())
            assert len(trials) == 3
            wrapper.measure_again()
            assert all(trial.closed for trial in trials)
        turn(wrapper)
        trials = list(wrapper._trials.values())
    assert all(trial.closed for trial in trials)
    with pytest.raises(RuntimeError, match="measure_again was called"):
        wrapper.measure_again()


def test_networks_that_may_be_trained_here_are_not_tried_in_processes(pool: PolicyPool) -> None:
    with measured(pool, {"a": SlowLoaded()}) as wrapper:
        assert "not process: it would not see networks that are trained in place" in wrapper.why


def test_those_who_may_be_trained_here_stay_when_the_others_go_to_processes(
    pool: PolicyPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    stays = {"a": Loaded(), "b": Noting(notes), "c": Trained(notes)}  # `b` shares with `c`
    policies: dict[str, Any] = {**stays, "d": Busy(1, seconds=0.0), "e": Busy(2, seconds=0.0)}
    with choosing("process", pool, policies, monkeypatch) as wrapper:
        for number in range(3 * NUM_TURNS):
            policies["a"].weight += 1.0
            said = turn(wrapper)
            assert said["a"] == policies["a"].weight
            assert said["c"] == 2 * number + 2
            assert [said[agent][0] // 1000 for agent in "de"] == [number + 1] * 2
            if number > NUM_TURNS:
                assert {said[agent][1] for agent in "de"} == {pool.processes().pid(worker) for worker in range(2)}
        assert wrapper.why.startswith("process, with ['a', 'b', 'c'] here, to be trained (")
        wrapper.measure_again()
        assert turn(wrapper)["d"][0] // 1000 == policies["d"].count == 3 * NUM_TURNS + 1
        assert len(notes) == 6 * NUM_TURNS + 2


class Noting:
    """Notes its steps where others do, too."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def step(self, observation: Any) -> int:
        self.notes.append(type(self).__name__)
        return len(self.notes)


class Trained(Noting):
    def load_state_dict(self, weights: Any) -> None:
        raise NotImplementedError


class SlowLoaded(Loaded):
    def step(self, observation: Any) -> Any:
        threading.Event().wait(0.002)
        return super().step(observation)


def test_no_turns_are_too_few_to_measure() -> None:
    with pytest.raises(ValueError, match="num_turns=0 is not a number of turns"):
        PerAgentAutoWrapper({"a": Constant()}, num_turns=0)


# ---- with a deadline -----------------------------------------------------------------------------

LATE = -1


def test_measuring_keeps_the_deadline_and_who_is_late_goes_to_a_process(pool: PolicyPool) -> None:
    rules = Rules(action_timeout=0.05, default_action=LATE)
    policies = {"a": Stuck(), "b": Drawing()}
    with PerAgentAutoWrapper(policies, rules, pool=pool, num_turns=NUM_TURNS) as wrapper:
        assert wrapper.chosen == "thread"
        for _ in range(NUM_TURNS + 1):
            began = time.monotonic()
            assert turn(wrapper)["a"] == LATE
            assert time.monotonic() - began < 0.3
        assert wrapper.chosen == "process"
        assert "threads were late in " in wrapper.why
        while wrapper._next is not None:  # it moves when nobody is busy
            turn(wrapper)
        assert isinstance(wrapper._current, PerAgentProcessWrapper)
        assert wrapper.tallies["b"].failed == 0


class Stuck:
    """Takes longer than it may."""

    def step(self, observation: Any) -> int:
        threading.Event().wait(0.3)
        return 0


def test_with_a_deadline_that_is_kept_it_stays_where_it_can_be_kept(pool: PolicyPool) -> None:
    reference = {"a": Drawing(1), "b": Drawing(2)}
    rules = Rules(action_timeout=5.0, default_action=LATE)
    with PerAgentAutoWrapper(copy.deepcopy(reference), rules, pool=pool, num_turns=NUM_TURNS) as wrapper:
        for number in range(3 * NUM_TURNS):
            assert turn(wrapper) == {agent: one.step(SEEN) for agent, one in reference.items()}
            if number == NUM_TURNS + 1:
                assert wrapper.chosen in ("thread", "process")
                wrapper.measure_again()
