"""Policies that fail, die or are late: they are named, the others have answered, and what died can begin anew.

`tests/faults/test_matrix.py` has the ways to die in a step, a reset and a constructor.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import PolicyError, RemoteTraceback
from parallel_envs.wrappers import PerAgentProcessWrapper, PolicyPool, Rules, WrappedMultiAgentPolicy, process
from tests.engine.asking import ends_within
from tests.gates import Gate
from tests.wrappers.agents import (
    Constant,
    Doing,
    Drawing,
    Held,
    Loaded,
    Waiting,
    ended,
    exiting,
    killed,
    raising,
    unpicklable,
)
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
SEEN_BY = dict.fromkeys("abcd", SEEN)
DEFAULTS = Rules(on_error="default", default_action=0)
RAISED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "exception": (raising, ZeroDivisionError, "The policy of 'b' raised ZeroDivisionError: by nothing"),
    "exit": (exiting, PolicyError, "The policy of 'b' raised SystemExit: 3"),
}
raised = pytest.mark.parametrize("how", RAISED)


def four(**others: Any) -> dict[str, Any]:
    return {**{agent: Constant(agent) for agent in "abcd"}, **others}


def said(agents: str) -> dict[str, str]:
    return {agent: agent for agent in agents}


@raised
def test_an_error_names_the_agent_and_holds_the_actions_of_the_others(wrap: Wrap, strategy: str, how: str) -> None:
    function, kind, text = RAISED[how]
    policy = wrap(four(b=Doing(function)), strategy)
    for _ in range(3):
        with pytest.raises(kind) as caught:
            policy.step(SEEN_BY)
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert isinstance(error, PolicyError)
            assert (str(error), error.agents, error.actions) == (text, ("b",), said("acd"))
    if strategy == "process":  # the traceback of the policy is shown as the cause
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "agents.py" in str(caught.value.__cause__)
    else:
        assert type(caught.value.__cause__) is (ZeroDivisionError if how == "exception" else SystemExit)
    assert policy.step({"a": SEEN}) == {"a": "a"}
    assert (policy.tallies["b"].failed, policy.tallies["b"].turns, policy.tallies["b"].defaults) == (3, 3, 0)
    policy = wrap(four(b=Doing(function)), strategy, rules=DEFAULTS)  # a default action may stand in for an error
    assert policy.step(SEEN_BY) == {**said("acd"), "b": 0}
    assert (policy.tallies["b"].failed, policy.tallies["b"].defaults) == (1, 1)


def test_errors_of_several_agents_are_told_together(wrap: Wrap, strategy: str) -> None:
    policy = wrap(four(b=Doing(raising), d=Doing(exiting)), {"a": strategy, "b": strategy, "c": "thread", "d": "batch"})
    with pytest.raises(PolicyError) as caught:
        policy.step(SEEN_BY)
    assert (set(caught.value.agents), caught.value.actions) == ({"b", "d"}, said("ac"))
    told = [str(caught.value), *caught.value.__notes__]
    assert sorted(told) == [RAISED["exception"][2], "The policy of 'd' raised SystemExit: 3"]


@pytest.mark.parametrize("method", ["reset", "get_state"])
@raised
def test_an_error_elsewhere_names_the_agent_and_the_others_have_been_asked(
    wrap: Wrap, strategy: str, how: str, method: str
) -> None:
    function, kind, text = RAISED[how]
    policy = wrap({"a": Drawing(), "b": Doing(len, **{method: function}), "c": Drawing()}, strategy)
    policy.step({"a": SEEN, "c": SEEN})
    with pytest.raises(kind) as caught:
        getattr(policy, method)()
    assert isinstance(caught.value, PolicyError)
    assert (str(caught.value), caught.value.agents) == (text, ("b",))
    counts = [policy.step({agent: SEEN})[agent] // 1000 for agent in "ac"]
    assert counts == ([1, 1] if method == "reset" else [2, 2])


def test_what_cannot_be_pickled_is_an_error_of_the_agents_of_its_worker(wrap: Wrap) -> None:
    policy = wrap(four(b=Doing(lambda seen: seen and unpicklable(), get_state=unpicklable)), "process")
    for seen in (1, 1, unpicklable()):
        with pytest.raises(PolicyError, match=r"policy of 'b' raised .*lock") as caught:
            policy.step({**SEEN_BY, "b": seen})
        assert (caught.value.agents, caught.value.actions) == (("b", "d"), said("ac"))
    with pytest.raises(PolicyError, match=r"policy of 'b' raised .*lock") as caught:
        policy.get_state()
    assert caught.value.agents == ("b", "d")
    assert policy.step({**SEEN_BY, "b": 0}) == {**said("acd"), "b": 0}


@pytest.mark.parametrize("strategy", ["sequential", "thread", "batch"])
def test_a_state_that_cannot_be_copied_is_an_error_of_its_agent_only(wrap: Wrap, strategy: str) -> None:
    with pytest.raises(PolicyError, match=r"policy of 'b' raised TypeError.*lock") as caught:
        wrap(four(b=Held()), strategy).get_state()
    assert caught.value.agents == ("b",)


def test_a_keyboard_interrupt_ends_the_turn_in_the_caller_and_is_an_error_of_its_agent_in_a_thread(wrap: Wrap) -> None:
    with pytest.raises(PolicyError, match="policy of 'b' raised KeyboardInterrupt") as caught:
        wrap(four(b=Doing(_interrupting)), "thread").step(SEEN_BY)
    assert caught.value.actions == said("acd")
    for strategy in ("sequential", "batch"):
        policy = wrap(four(b=Doing(_interrupting)), strategy)
        with pytest.raises(KeyboardInterrupt):
            policy.step(SEEN_BY)
        assert policy.step({"a": SEEN}) == {"a": "a"}


def _interrupting(_: Any) -> Any:
    raise KeyboardInterrupt


def test_ctrl_c_while_policies_compute_ends_the_turn_and_nothing_else(wrap: Wrap, gate: Gate, parallel: str) -> None:
    policy = wrap({"a": Waiting(gate.path), "b": Drawing()}, parallel)
    policy.send({"a": np.ones(2), "b": SEEN})
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            policy.recv()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    gate.let_through()
    told = policy.step({"a": SEEN, "b": SEEN})
    assert (told["a"], told["b"] // 1000) == (2, 2)
    policy.reset()
    assert policy.step({"b": SEEN})["b"] // 1000 == 1


@pytest.mark.parametrize("whose", ["wrapper", "agent", "policy"])
def test_ctrl_c_between_the_halves_of_a_step_leaves_no_turn_open(
    seat: Seat, wrap: Wrap, strategy: str, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a strategy's wrapper, of one agent of it, and of `WrappedMultiAgentPolicy`."""
    policies = {"a": Drawing(), "b": Drawing()}
    wrapper: Any = (wrap if whose == "policy" else lambda given, name: seat(name, given))(policies, strategy)
    step = wrapper.agent_policy("a").step if whose == "agent" else lambda seen: wrapper.step({"a": seen})["a"]
    step(SEEN)
    with monkeypatch.context() as patched:
        patched.setattr(wrapper, "_recv" if whose == "policy" else "_finish", lambda *_: _interrupting(None))
        with pytest.raises(KeyboardInterrupt):
            step(SEEN)
    step(SEEN)
    assert wrapper.step({"a": SEEN, "b": SEEN})["b"] // 1000 == 1
    wrapper.reset()
    assert step(SEEN) // 1000 == 1


def kill_worker_of(agent: str, wrapper: PerAgentProcessWrapper, pool: PolicyPool) -> None:
    worker = pool.processes().pid(wrapper._home[agent])
    os.kill(worker, signal.SIGKILL)
    assert ends_within(worker, 20.0)


@pytest.mark.parametrize("when", ["before send", "before recv", "before reset"])
def test_a_worker_that_is_killed_from_outside(pool: PolicyPool, when: str) -> None:
    with PerAgentProcessWrapper(four(), pool=pool) as wrapper:  # `b` and `d` are in one worker
        wrapper.step(SEEN_BY)
        if when == "before recv":
            wrapper.send({**SEEN_BY, "b": "by pipe"})
        kill_worker_of("b", wrapper, pool)
        if when == "before recv":
            assert _received_or_died(wrapper) == set("abcd")
        else:
            with pytest.raises(PolicyError, match="signal 9"):
                wrapper.reset() if when == "before reset" else wrapper.step(dict.fromkeys("abcd", np.zeros(5)))
        assert wrapper.revive() == ["b", "d"]
        assert wrapper.step(SEEN_BY) == said("abcd")


def _received_or_died(wrapper: PerAgentProcessWrapper) -> set[str]:
    """It may have answered before it was killed."""
    try:
        return set(wrapper.recv())
    except PolicyError as error:
        return {*error.agents, *error.actions}


def test_a_revived_policy_begins_anew_as_it_was_last_synced(pool: PolicyPool) -> None:
    with PerAgentProcessWrapper({"a": Drawing(1), "b": Drawing(2)}, pool=pool) as wrapper:
        reference = {"a": Drawing(1), "b": Drawing(2)}
        for turn in range(6):
            told = wrapper.step({"a": SEEN, "b": SEEN})
            if turn < 3:
                assert told == {agent: one.step(SEEN) for agent, one in reference.items()}
            if turn == 2:
                wrapper.sync()
        kill_worker_of("a", wrapper, pool)
        with pytest.raises(PolicyError, match="signal 9"):
            wrapper.step({"a": SEEN})
        assert wrapper.revive() == ["a"]
        assert wrapper.step({"a": SEEN})["a"] == reference["a"].step(SEEN)
        assert wrapper.step({"b": SEEN})["b"] // 1000 == 7
        assert wrapper.revive() == []


def test_a_default_action_may_stand_in_for_a_dead_worker_of_which_the_log_warns_once(
    wrap: Wrap, caplog: pytest.LogCaptureFixture
) -> None:
    policy = wrap(four(b=Doing(killed)), "process", rules=DEFAULTS)
    for shape in (2, 3, 3):  # the arrays are laid out anew after the death, too
        assert policy.step({agent: np.zeros(shape) for agent in "abcd"}) == {"a": "a", "b": 0, "c": "c", "d": 0}
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING" and "'b'" in one.getMessage()]
    assert len(told) == 1
    assert "WorkerDied" in told[0]
    assert "revive" in told[0]


def test_the_wrapped_policy_revives_its_own_with_the_weights_loaded_last(wrap: Wrap) -> None:
    policy = wrap({"a": LoadedAndMortal(), "b": Constant("b")}, "process")
    policy.load_state_dict({"a": {"weight": 5.0}})
    with pytest.raises(PolicyError, match="revive"):
        policy.step({"a": None, "b": SEEN})
    assert policy.revive(["b"]) == []
    assert policy.revive() == ["a"]
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 5.0, "b": "b"}
    with pytest.raises(KeyError, match="no policy for 'z'"):
        policy.revive(["z"])


class LoadedAndMortal(Loaded):
    def step(self, observation: Any) -> Any:
        return ended() if observation is None else super().step(observation)


def test_a_worker_that_one_wrapper_revives_is_lost_to_the_other_until_it_revives_too(pool: PolicyPool) -> None:
    with (
        PerAgentProcessWrapper({"a": Doing(_last_words), "b": Drawing()}, pool=pool) as one,
        PerAgentProcessWrapper({"c": Drawing(), "d": Drawing()}, pool=pool) as other,
    ):
        other.step({"c": SEEN, "d": SEEN})
        with pytest.raises(PolicyError, match="Its last output:\n  goodbye"):
            one.step({"a": SEEN})
        with PerAgentProcessWrapper({"x": Constant(3), "y": Constant(4)}, pool=pool) as third:  # has a fresh worker
            assert third.step({"x": SEEN, "y": SEEN}) == {"x": 3, "y": 4}
        assert one.revive() == ["a"]
        for _ in range(2):
            with pytest.raises(
                PolicyError, match=r"'c' raised WorkerDied: .*replaced by a fresh worker.*revive"
            ) as caught:
                other.step({"c": SEEN, "d": SEEN})
            assert caught.value.agents == ("c",)
        assert other.revive() == ["c"]
        assert {agent: told // 1000 for agent, told in other.step({"c": SEEN, "d": SEEN}).items()} == {"c": 1, "d": 4}


def _last_words(_: Any) -> None:
    os.write(2, b"goodbye\n")
    os._exit(1)


LIMIT = 0.3
"""Beyond it a policy is late. All others answer far sooner, also on a busy machine."""
HUGE = 8 << 20


class Odd(Exception):
    def __init__(self) -> None:
        super().__init__("odd")
        self.lock = threading.Lock()


def odd() -> Any:
    raise Odd


def hanging() -> Any:
    threading.Event().wait(60.0)


def stopped() -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)


def huge() -> bytes:
    return bytes(HUGE)


class Dying(Constant):
    def __init__(self, moment: str, how: Callable[[], Any]) -> None:
        super().__init__(7)
        self.moment, self.how = moment, how

    def _at(self, moment: str, value: Any = None) -> Any:
        return self.how() if moment == self.moment else value

    def step(self, observation: Any) -> Any:
        return self._at("step", 7)

    def get_state(self) -> Any:
        return self._at("get_state", {})

    def set_state(self, state: Any) -> None:
        self._at("set_state")

    def close(self) -> None:
        self._at("close")


RAISES = {
    "exception": (raising, "ZeroDivisionError: by nothing"),
    "exit": (exiting, "SystemExit: 3"),
    "odd": (odd, "Odd"),
}
DIES = {
    "SIGKILL": (killed, "WorkerDied: .*was killed by signal 9"),
    "os._exit": (ended, "WorkerDied: .*ended with exit code 17"),
}
HANGS = {"hang": (hanging, "still busy"), "SIGSTOP": (stopped, "still busy")}
WAYS: dict[str, Any] = {**RAISES, **DIES, **HANGS, "huge": (huge, "")}


def seated(pool: PolicyPool, moment: str, how: str) -> PerAgentProcessWrapper:
    """Return three policies in two workers: one that dies, one in the same worker, and one in the other worker."""
    policies = {"dying": Dying(moment, WAYS[how][0]), "apart": Dying("never", int), "beside": Dying("never", int)}
    rules = Rules(action_timeout=LIMIT, default_action=-1) if how in HANGS else None
    return PerAgentProcessWrapper(policies, rules, pool=pool)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("moment", ["get_state", "set_state"])
@pytest.mark.parametrize("how", WAYS)
def test_a_policy_that_dies_when_its_state_is_asked_for(
    pool: PolicyPool, monkeypatch: pytest.MonkeyPatch, how: str, moment: str
) -> None:
    monkeypatch.setattr(process, "_STATE_SECONDS", LIMIT)
    began = time.monotonic()
    with seated(pool, moment, how) as wrapper:
        states: Any = dict.fromkeys(wrapper.policies, ({}, []))
        happens = wrapper.get_states if moment == "get_state" else partial(wrapper.set_states, states)
        if how == "huge":
            happens()  # it is no error
        else:
            with pytest.raises(PolicyError, match=f"policy of 'dying' raised .*{WAYS[how][1]}") as caught:
                happens()
            assert set(caught.value.agents) == ({"dying"} if how in RAISES else {"dying", "beside"})
        assert wrapper.step({"apart": SEEN}) == {"apart": 7}
        assert wrapper.revive() == (["dying", "beside"] if how in DIES or how in HANGS else [])
        assert wrapper.step({"apart": SEEN, "beside": SEEN}) == {"apart": 7, "beside": 7}
    assert time.monotonic() - began < 10.0


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("how", WAYS)
def test_a_policy_that_dies_while_it_is_closed_holds_up_no_other(how: str) -> None:
    pool = PolicyPool(2)
    began = time.monotonic()
    with seated(pool, "close", how) as wrapper:
        assert set(wrapper.step(dict.fromkeys(wrapper.policies, SEEN)).values()) == {7}
    pool.close(0.3)
    assert time.monotonic() - began < 10.0


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


def test_a_late_policy_is_reset_later_and_what_else_is_asked_of_it_is_an_error_in_time(
    policy: WrappedMultiAgentPolicy, gate: Gate
) -> None:
    policy.step({"a": WAIT, "b": GO})
    began = time.monotonic()
    for ask in ("get_state", "set_state", "load_state_dict"):
        arguments: list[Any] = [] if ask == "get_state" else [{"a": ({}, [])}]
        with pytest.raises(TimeoutError, match=f"policy of 'a'.*{ask} was not answered.*still busy") as caught:
            getattr(policy, ask)(*arguments)
        assert isinstance(caught.value, PolicyError)
        assert policy.step(BOTH) == DEFAULT
    policy.reset()
    policy.reset()
    assert time.monotonic() - began < SOON
    gate.let_through()
    while policy.step({"a": GO})["a"] == LATE:
        pass
    assert policy.get_state()["a"][0]["resets"] == 2


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
    rules = Rules(action_timeout=0.3, default_action=LATE)
    policy = wrap({"a": Doing(lambda _: time.sleep(0.5)), "b": Constant(7)}, strategy, rules=rules)
    began = time.monotonic()
    assert policy.step(BOTH) == DEFAULT
    taken = time.monotonic() - began
    tally = policy.tallies["a"]
    assert (tally.late, tally.defaults) == (1, 1)
    assert 0.19 <= tally.late_seconds <= taken - 0.3


def test_rows_get_the_default_action_where_one_is_wanted_and_each_turn_its_own(wrap: Wrap) -> None:
    for default in (5, np.array([1.0, 2.0]), {"move": np.array([1.0]), "say": 2}, (1, 2)):
        policy = wrap({"a": Doing(raising)}, rules=Rules(on_error="default", default_action=default))
        told = policy.step({"a": np.zeros((3, 2))}, {"a": np.array([True, False, True])})["a"]
        for part, expected in zip(_leaves(told), _leaves(default), strict=True):
            wanted, unwanted = np.asarray(expected).tolist(), np.zeros_like(expected).tolist()
            assert part.tolist() == [wanted, unwanted, wanted]
    rules = Rules(on_error="default", default_action=lambda agent: f"nothing from {agent}")
    policy = wrap({"a": Doing(raising), "b": Doing(raising)}, rules=rules)
    assert policy.step(BOTH) == {"a": "nothing from a", "b": "nothing from b"}
    policy = wrap({"a": Doing(raising)}, rules=Rules(on_error="default", default_action=np.zeros(2)))
    policy.step({"a": GO})["a"][:] = 9
    assert policy.step({"a": GO})["a"].tolist() == [0, 0]


def _leaves(action: Any) -> list[Any]:
    parts = action.values() if isinstance(action, dict) else action if isinstance(action, tuple) else [action]
    return list(parts)
