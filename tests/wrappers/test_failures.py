"""A policy that fails is named; the others have answered; what died can begin anew."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import ClosedError, PolicyError, RemoteTraceback
from parallel_envs.wrappers import PerAgentProcessWrapper, PolicyPool, Rules
from tests.engine.asking import ends_within
from tests.wrappers.agents import (
    Batched,
    Constant,
    Doing,
    Drawing,
    Held,
    Loaded,
    ended,
    exiting,
    killed,
    raising,
    unpicklable,
)
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
SEEN_BY = dict.fromkeys("abcd", SEEN)
RAISED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "exception": (raising, ZeroDivisionError, "The policy of 'b' raised ZeroDivisionError: by nothing"),
    "exit": (exiting, PolicyError, "The policy of 'b' raised SystemExit: 3"),
}
DIED: dict[str, tuple[Callable[..., Any], str]] = {
    "SIGKILL": (killed, "was killed by signal 9"),
    "os._exit": (ended, "exited with code 17"),
}

raised = pytest.mark.parametrize("how", RAISED)
died = pytest.mark.parametrize("how", DIED)


def four(**others: Any) -> dict[str, Any]:
    return {**{agent: Constant(agent) for agent in "abcd"}, **others}


# ---- errors --------------------------------------------------------------------------------------


@raised
def test_an_error_names_the_agent_and_holds_the_actions_of_the_others(wrap: Wrap, strategy: str, how: str) -> None:
    function, kind, text = RAISED[how]
    policy = wrap(four(b=Doing(function)), strategy)
    for _ in range(3):
        with pytest.raises(PolicyError) as caught:
            policy.step(SEEN_BY)
        assert isinstance(caught.value, kind)
        assert str(caught.value) == text
        assert caught.value.agents == ("b",)
        assert caught.value.actions == {agent: agent for agent in "acd"}
    assert policy.step({"a": SEEN}) == {"a": "a"}
    assert (policy.tallies["b"].failed, policy.tallies["b"].turns, policy.tallies["b"].defaults) == (3, 3, 0)


def test_errors_of_several_agents_are_told_together(wrap: Wrap, strategy: str) -> None:
    policy = wrap(four(b=Doing(raising), d=Doing(exiting)), {"a": strategy, "b": strategy, "c": "thread", "d": "batch"})
    with pytest.raises(PolicyError) as caught:
        policy.step(SEEN_BY)
    assert set(caught.value.agents) == {"b", "d"}
    assert caught.value.actions == {"a": "a", "c": "c"}
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
    with pytest.raises(PolicyError) as caught:
        getattr(policy, method)()
    assert isinstance(caught.value, kind)
    assert (str(caught.value), caught.value.agents) == (text, ("b",))
    counts = [policy.step({agent: SEEN})[agent] // 1000 for agent in "ac"]
    assert counts == ([1, 1] if method == "reset" else [2, 2])


def test_the_traceback_of_the_policy_is_shown_as_the_cause(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Doing(raising), "b": Constant()}, strategy)
    with pytest.raises(ZeroDivisionError) as caught:
        policy.step({"a": SEEN, "b": SEEN})
    cause = caught.value.__cause__
    if strategy == "process":
        assert isinstance(cause, RemoteTraceback)
        assert "agents.py" in str(cause)
    else:
        assert type(cause) is ZeroDivisionError


def test_an_error_can_be_pickled(wrap: Wrap) -> None:
    with pytest.raises(PolicyError) as caught:
        wrap(four(b=Doing(raising)), "sequential").step(SEEN_BY)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(caught.value, ZeroDivisionError)
    assert type(again) is type(caught.value)
    assert (again.agents, again.actions) == (("b",), {agent: agent for agent in "acd"})


def test_a_default_action_may_stand_in_for_an_error(wrap: Wrap, strategy: str) -> None:
    rules = Rules(on_error="default", default_action="nothing")
    policy = wrap(four(b=Doing(raising)), strategy, rules=rules)
    assert policy.step(SEEN_BY) == {"a": "a", "b": "nothing", "c": "c", "d": "d"}
    assert (policy.tallies["b"].failed, policy.tallies["b"].defaults) == (1, 1)


def test_an_action_that_cannot_be_pickled_is_an_error_of_its_agent_only(wrap: Wrap) -> None:
    policy = wrap(four(b=Doing(unpicklable)), "process")
    for _ in range(2):
        with pytest.raises(TypeError, match=r"policy of 'b' raised TypeError: its answer cannot leave.*lock") as caught:
            policy.step(SEEN_BY)
        assert isinstance(caught.value, PolicyError)
        assert (caught.value.agents, caught.value.actions) == (("b",), {agent: agent for agent in "acd"})


def test_a_state_that_cannot_be_pickled_is_an_error_of_its_agent_only(wrap: Wrap) -> None:
    policy = wrap(four(b=Doing(len, get_state=unpicklable)), "process")
    with pytest.raises(TypeError, match="policy of 'b' raised TypeError: its answer cannot leave") as caught:
        policy.get_state()
    assert isinstance(caught.value, PolicyError)
    assert caught.value.agents == ("b",)


@pytest.mark.parametrize("strategy", ["sequential", "thread", "batch"])
def test_a_state_that_cannot_be_copied_is_an_error_of_its_agent_only(wrap: Wrap, strategy: str) -> None:
    with pytest.raises(TypeError, match=r"policy of 'b' raised TypeError.*lock") as caught:
        wrap(four(b=Held()), strategy).get_state()
    assert isinstance(caught.value, PolicyError)
    assert caught.value.agents == ("b",)


def test_an_observation_that_cannot_be_pickled_is_an_error_of_its_agent_only(wrap: Wrap) -> None:
    policy = wrap(four(), "process")
    with pytest.raises(
        TypeError, match=r"policy of 'b' raised TypeError: its observation.*cannot be pickled"
    ) as caught:
        policy.step({**SEEN_BY, "b": unpicklable()})
    assert isinstance(caught.value, PolicyError)
    assert caught.value.actions == {agent: agent for agent in "acd"}
    assert policy.step(SEEN_BY) == {agent: agent for agent in "abcd"}


def test_a_keyboard_interrupt_of_a_policy_in_a_thread_is_an_error_of_its_agent(wrap: Wrap) -> None:
    policy = wrap(four(b=Doing(_interrupting)), "thread")
    with pytest.raises(PolicyError, match="policy of 'b' raised KeyboardInterrupt") as caught:
        policy.step(SEEN_BY)
    assert caught.value.actions == {agent: agent for agent in "acd"}


def _interrupting(_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("strategy", ["sequential", "batch"])
def test_ctrl_c_in_the_caller_ends_the_turn_and_nothing_else(wrap: Wrap, strategy: str) -> None:
    policy = wrap(four(b=Doing(_interrupting)), strategy)
    with pytest.raises(KeyboardInterrupt):
        policy.step(SEEN_BY)
    assert policy.step({"a": SEEN}) == {"a": "a"}


def test_a_policy_that_cannot_be_made_in_its_worker_is_named(pool: PolicyPool) -> None:
    with pytest.raises(ZeroDivisionError, match="policy of 'a' raised ZeroDivisionError") as caught:
        PerAgentProcessWrapper({"a": Unmakeable(), "b": Constant()}, pool=pool)
    assert isinstance(caught.value, PolicyError)


class Unmakeable:
    def make(self) -> Any:
        raising()


@pytest.mark.parametrize("returned", [1, 4])
def test_a_wrong_count_from_step_batch_is_an_error(seat: Seat, strategy: str, returned: int) -> None:
    policy = Miscounting(returned)
    wrapper = seat(strategy, {"a": policy, "b": policy})
    seen = dict.fromkeys("ab", np.zeros((3, 2)))
    with pytest.raises(ValueError, match=rf"{returned} actions were returned for \d observations"):
        wrapper.step(seen, {"a": np.array([True, False, True]), "b": np.array([True, False, False])})


class Miscounting(Batched):
    """Returns so many actions, whoever asks."""

    def __init__(self, returned: int) -> None:
        super().__init__()
        self.returned = returned

    def step_batch(self, observations: Any) -> Any:
        return np.zeros(self.returned if len(observations) > 1 else 4)


# ---- deaths --------------------------------------------------------------------------------------


def held_apart(pool: PolicyPool, **others: Any) -> PerAgentProcessWrapper:
    """Four agents: `a` and `c` in one worker, `b` and `d` in the other."""
    return PerAgentProcessWrapper(four(**others), pool=pool)


@died
def test_a_worker_that_dies_in_a_turn_is_an_error_that_names_its_agents(pool: PolicyPool, how: str) -> None:
    function, ending = DIED[how]
    with held_apart(pool, b=Doing(function)) as wrapper:
        for _ in range(2):
            with pytest.raises(PolicyError, match=f"policy of 'b' raised WorkerDied: .*{ending}.*revive") as caught:
                wrapper.step(SEEN_BY)
            assert caught.value.agents == ("b", "d")
            assert caught.value.actions == {"a": "a", "c": "c"}
        assert wrapper.step({"a": SEEN, "c": SEEN}) == {"a": "a", "c": "c"}


@died
@pytest.mark.parametrize("method", ["reset", "get_states"])
def test_a_worker_that_dies_elsewhere_is_an_error_that_names_its_agents(
    pool: PolicyPool, how: str, method: str
) -> None:
    function, ending = DIED[how]
    own = "get_state" if method == "get_states" else method
    with held_apart(pool, b=Doing(len, **{own: function})) as wrapper:
        with pytest.raises(PolicyError, match=f"WorkerDied: .*{ending}") as caught:
            getattr(wrapper, method)()
        assert caught.value.agents == ("b", "d")
        assert wrapper.step({"a": SEEN, "c": SEEN}) == {"a": "a", "c": "c"}


@pytest.mark.parametrize("when", ["before send", "before recv", "before reset"])
def test_a_worker_that_is_killed_from_outside(pool: PolicyPool, when: str) -> None:
    with held_apart(pool) as wrapper:
        wrapper.step(SEEN_BY)
        if when == "before recv":
            wrapper.send({**SEEN_BY, "b": "by pipe"})
        worker = pool.processes().pid(wrapper._home["b"])
        os.kill(worker, signal.SIGKILL)
        assert ends_within(worker, 20.0)
        if when == "before reset":
            with pytest.raises(PolicyError, match="signal 9"):
                wrapper.reset()
        elif when == "before send":
            with pytest.raises(PolicyError, match="signal 9"):
                wrapper.step({agent: np.zeros(5) for agent in "abcd"})
        else:
            _received_or_died(wrapper)
        assert wrapper.revive() == ["b", "d"]
        assert wrapper.step(SEEN_BY) == {agent: agent for agent in "abcd"}


def _received_or_died(wrapper: PerAgentProcessWrapper) -> None:
    """It may have answered before it was killed."""
    try:
        told = set(wrapper.recv())
    except PolicyError as error:
        told = {*error.agents, *error.actions}
    assert told == set("abcd")


def test_a_revived_policy_begins_anew_as_it_was_last_synced(pool: PolicyPool) -> None:
    with PerAgentProcessWrapper({"a": Drawing(1), "b": Drawing(2)}, pool=pool) as wrapper:
        reference = {"a": Drawing(1), "b": Drawing(2)}
        for turn in range(6):
            told = wrapper.step({"a": SEEN, "b": SEEN})
            if turn < 3:
                assert told == {agent: one.step(SEEN) for agent, one in reference.items()}
            if turn == 2:
                wrapper.sync()
        worker = pool.processes().pid(wrapper._home["a"])
        os.kill(worker, signal.SIGKILL)
        assert ends_within(worker, 20.0)
        with pytest.raises(PolicyError, match="signal 9"):
            wrapper.step({"a": SEEN})
        assert wrapper.revive() == ["a"]
        assert wrapper.step({"a": SEEN})["a"] == reference["a"].step(SEEN)
        assert wrapper.step({"b": SEEN})["b"] // 1000 == 7
        assert wrapper.revive() == []


def test_a_default_action_may_stand_in_for_a_dead_worker(wrap: Wrap) -> None:
    policy = wrap(four(b=Doing(killed)), "process", rules=Rules(on_error="default", default_action=0))
    for shape in (2, 3, 3):  # the arrays are laid out anew after the death, too
        assert policy.step({agent: np.zeros(shape) for agent in "abcd"}) == {"a": "a", "b": 0, "c": "c", "d": 0}


def test_the_last_output_of_a_dead_worker_is_told(wrap: Wrap) -> None:
    policy = wrap({"a": Doing(_last_words)}, "process")
    with pytest.raises(PolicyError, match="Its last output:\n  goodbye"):
        policy.step({"a": SEEN})


def _last_words(_: Any) -> None:
    os.write(2, b"goodbye\n")
    os._exit(1)


def test_the_wrapped_policy_revives_its_own_with_the_weights_loaded_last(wrap: Wrap) -> None:
    policy = wrap({"a": LoadedAndMortal(), "b": Constant("b")}, "process")
    policy.load_state_dict({"a": {"weight": 5.0}})
    with pytest.raises(PolicyError, match="revive"):
        policy.step({"a": None, "b": SEEN})
    assert policy.revive(["b"]) == []
    assert policy.revive() == ["a"]
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 5.0, "b": "b"}
    policy.send({"a": SEEN})
    with pytest.raises(RuntimeError, match="revive was called between send and recv"):
        policy.revive()
    policy.recv()
    with pytest.raises(KeyError, match="no policy for 'z'"):
        policy.revive(["z"])


class LoadedAndMortal(Loaded):
    """Dies of None."""

    def step(self, observation: Any) -> Any:
        return ended() if observation is None else super().step(observation)


def test_where_default_actions_stand_in_the_log_warns_once(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    policy = wrap(four(b=Doing(killed)), "process", rules=Rules(on_error="default", default_action=0))
    for _ in range(3):
        policy.step(SEEN_BY)
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING" and "'b'" in one.getMessage()]
    assert len(told) == 1
    assert "WorkerDied" in told[0]
    assert "revive" in told[0]


def test_a_pool_that_was_closed_is_told_of(pool: PolicyPool) -> None:
    with PerAgentProcessWrapper({"a": Constant()}, pool=pool) as wrapper:
        pool.close(0.5)
        for call in (lambda: wrapper.step({"a": SEEN}), wrapper.reset, wrapper.revive):
            with pytest.raises(ClosedError, match="pool was used after it had been closed"):
                call()


def test_threads_do_not_follow_into_a_forked_process(pool: PolicyPool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = pool.threads()
    monkeypatch.setattr(threads, "_owner_pid", -1)
    with pytest.raises(ClosedError, match="forked"):
        threads.submit(int)
