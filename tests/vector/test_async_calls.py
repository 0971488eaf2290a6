"""The asynchronous pairs: what they return, calls out of turn, timeouts, and closing."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import StepTimeout
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.faults.matrix import all_end_within
from tests.gates import Gate
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

ACTIONS = np.zeros(2, int)
SHORT = 0.05
Act = Callable[[Manager], Any]

STARTS: dict[str, Act] = {
    "reset": lambda envs: envs.reset_async(seed=0),
    "step": lambda envs: envs.step_async(ACTIONS),
    "call": lambda envs: envs.call_async("label"),
}
WAITS: dict[str, Act] = {"reset": Manager.reset_wait, "step": Manager.step_wait, "call": Manager.call_wait}
OTHERS: dict[str, Act] = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(ACTIONS),
    "call": lambda envs: envs.call("label"),
    "get_attr": lambda envs: envs.get_attr("label"),
    "set_attr": lambda envs: envs.set_attr("label", 1),
    "render": lambda envs: envs.render(),
    "apply": lambda envs: envs.apply(id),
}


def test_the_pairs_return_what_the_plain_calls_do(make: Make) -> None:
    envs, plain = make([ScriptedEnv] * 2), make([ScriptedEnv] * 2)
    envs.reset_async(seed=3)
    assert_same_batch(envs.reset_wait(timeout=60), plain.reset(seed=3))
    envs.step_async(ACTIONS)
    assert_same_batch(envs.step_wait(timeout=60), plain.step(ACTIONS))
    envs.call_async("echo", 1, two=2)
    assert_same_batch(envs.call_wait(timeout=60), plain.call("echo", 1, two=2))


@pytest.mark.parametrize("pending", [None, *STARTS])
def test_calls_out_of_turn_are_refused(make: Make, pending: str | None) -> None:
    envs = opened(make, [CountingEnv] * 2)
    idle = repr(envs)
    if pending is not None:
        STARTS[pending](envs)
        assert pending in repr(envs)
        assert repr(envs) != idle
        for other in (*STARTS.values(), *OTHERS.values()):
            with pytest.raises(AlreadyPendingCallError, match=pending) as caught:
                other(envs)
            assert caught.value.name == pending
        assert "`apply`" in str(caught.value)  # the last of them
    for name in WAITS.keys() - {pending}:
        with pytest.raises(NoAsyncCallError, match=f"{name}_wait") as missing:
            WAITS[name](envs)
        assert missing.value.name == name
    if pending is not None:
        WAITS[pending](envs)
    assert repr(envs) == idle
    assert envs.get_attr("label") == ("plain", "plain")


@pytest.mark.parametrize("pending", STARTS)
def test_a_wait_that_timed_out_names_the_silent_envs_and_may_be_repeated(
    make_parallel: Make, gate: Gate, pending: str
) -> None:
    kind = SlowResetEnv if pending == "reset" else GatedEnv
    envs = make_parallel([CountingEnv, partial(kind, gate.path), CountingEnv])
    if pending == "step":
        envs.reset(seed=0)
        envs.step_async(np.zeros(3, int))
    elif pending == "call":
        envs.call_async("slow_call", env_ids=[1])
    else:
        envs.reset_async(seed=0)
    with pytest.raises(TimeoutError, match=str(SHORT)) as caught:
        WAITS[pending](envs, timeout=SHORT)  # type: ignore[call-arg]
    assert isinstance(caught.value, StepTimeout)
    assert isinstance(caught.value, multiprocessing.TimeoutError)
    assert caught.value.env_ids == (1,)
    gate.let_through()
    result = WAITS[pending](envs)
    assert result == ("answered",) if pending == "call" else result[0].tolist() == [[0, int(pending == "step")]] * 3


CLOSED_CALLS: dict[str, Act] = {**OTHERS, **{f"{name}_async": act for name, act in STARTS.items()}}
CLOSED_CALLS |= {f"{name}_wait": act for name, act in WAITS.items()}
CLOSED_CALLS |= {"send": lambda envs: envs.send(ACTIONS), "recv": lambda envs: envs.recv()}


def test_a_closed_manager_says_so(make: Make) -> None:
    with make([CountingEnv] * 2) as envs:
        envs.reset(seed=0)
        before = envs.closed
    assert (before, envs.closed) == (False, True)
    envs.close()  # may be called again
    assert "closed" in repr(envs)
    for name, act in CLOSED_CALLS.items():
        with pytest.raises(ClosedEnvironmentError, match="ParallelEnvManager.*" + ("`apply`" * (name == "apply"))):
            act(envs)


@pytest.mark.parametrize("pending", STARTS)
def test_close_warns_of_a_pending_call(make: Make, pending: str) -> None:
    envs = opened(make, [CountingEnv] * 2)
    STARTS[pending](envs)
    words = f"Calling `close` while waiting for a pending call to `{pending}` to complete."
    with pytest.warns(UserWarning, match=re.escape(words)) as caught:
        envs.close()
    assert [warning.filename for warning in caught] == [__file__]
    assert envs.closed


CLOSE_WARNING_IS_AN_ERROR = pytest.mark.filterwarnings("error:.*Calling .close. while waiting")


@CLOSE_WARNING_IS_AN_ERROR
def test_close_ends_the_workers_where_warnings_are_errors(make_process: Make) -> None:
    envs = opened(make_process, [CountingEnv] * 2)
    pids = {row["pid"] for row in envs.stats()}
    envs.step_async(ACTIONS)
    with pytest.raises(UserWarning, match="Calling `close`"):
        envs.close()
    assert all_end_within(pids, 0.0)


@CLOSE_WARNING_IS_AN_ERROR
def test_close_after_a_wait_that_raised_or_a_send_warns_of_nothing(make_parallel: Make, gate: Gate) -> None:
    envs = opened(make_parallel, [CountingEnv, partial(GatedEnv, gate.path)])
    envs.step_async(ACTIONS)
    with pytest.raises(StepTimeout):
        envs.step_wait(timeout=SHORT)
    gate.let_through()
    sent = opened(make_parallel, [CountingEnv] * 2)
    sent.send(ACTIONS)
    for each in (envs, sent):
        each.close()
        assert each.closed


class Counting(ParallelEnvManager):
    """A manager of a user's own, whose halves of a step do something more."""

    begun = ended = 0

    def step_async(self, actions: Any) -> None:
        self.begun += 1
        super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        self.ended += 1
        return super().step_wait(timeout)


def test_step_calls_the_halves_that_a_subclass_defines() -> None:
    envs = Counting([CountingEnv] * 2, backend="serial")
    with envs:
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(ACTIONS)
        assert (envs.begun, envs.ended) == (3, 3)
