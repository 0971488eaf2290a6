"""The asynchronous pairs: what they return, their errors out of turn, their timeouts, and closing."""

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
from tests.faults.processes import all_end_within
from tests.gates import Gate
from tests.vector.conftest import Make, Manager
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

ACTIONS = np.zeros(2, int)
SHORT = 0.05

Act = Callable[[Manager], Any]

STARTS: dict[str, Act] = {
    "reset": lambda envs: envs.reset_async(seed=0),
    "step": lambda envs: envs.step_async(ACTIONS),
    "call": lambda envs: envs.call_async("label"),
}
WAITS: dict[str, Act] = {
    "reset": lambda envs: envs.reset_wait(),
    "step": lambda envs: envs.step_wait(),
    "call": lambda envs: envs.call_wait(),
}
OTHERS: dict[str, Act] = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(ACTIONS),
    "call": lambda envs: envs.call("label"),
    "get_attr": lambda envs: envs.get_attr("label"),
    "set_attr": lambda envs: envs.set_attr("label", 1),
    "render": lambda envs: envs.render(),
}


def test_the_pairs_return_what_the_plain_calls_do(make: Make) -> None:
    results: list[list[Any]] = []
    for is_async in (False, True):
        envs = make([ScriptedEnv] * 2)
        if is_async:
            envs.reset_async(seed=3)
            first = envs.reset_wait()
            envs.step_async(ACTIONS)
            second = envs.step_wait()
            envs.call_async("echo", 1, two=2)
            results.append([first, second, envs.call_wait()])
        else:
            results.append([envs.reset(seed=3), envs.step(ACTIONS), envs.call("echo", 1, two=2)])
    assert_same_batch(results[1], results[0])


@pytest.mark.parametrize("pending", STARTS)
def test_every_other_call_is_refused_while_one_is_pending(make: Make, pending: str) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    STARTS[pending](envs)
    for other in (*STARTS.values(), *OTHERS.values()):
        with pytest.raises(AlreadyPendingCallError, match=pending) as caught:
            other(envs)
        assert caught.value.name == pending
    WAITS[pending](envs)
    assert envs.get_attr("label") == ("plain", "plain")


@pytest.mark.parametrize("pending", [None, *STARTS])
def test_a_wait_without_its_call_is_refused(make: Make, pending: str | None) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    if pending is not None:
        STARTS[pending](envs)
    for name in WAITS.keys() - {pending}:
        with pytest.raises(NoAsyncCallError, match=f"{name}_wait") as caught:
            WAITS[name](envs)
        assert caught.value.name == name
    if pending is not None:
        WAITS[pending](envs)


def assert_is_timeout(error: BaseException) -> None:
    assert isinstance(error, StepTimeout)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, multiprocessing.TimeoutError)


def test_step_wait_times_out_and_can_be_waited_for_again(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([CountingEnv, partial(GatedEnv, gate.path)])
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.raises(TimeoutError, match=f"(?s){SHORT}.*|.*{SHORT}") as caught:
        envs.step_wait(timeout=SHORT)
    assert_is_timeout(caught.value)
    gate.let_through()
    assert envs.step_wait()[0].tolist() == [[0, 1], [0, 1]]


def test_reset_wait_times_out_and_can_be_waited_for_again(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([CountingEnv, partial(SlowResetEnv, gate.path)])
    envs.reset_async(seed=0)
    with pytest.raises(TimeoutError) as caught:
        envs.reset_wait(timeout=SHORT)
    assert_is_timeout(caught.value)
    gate.let_through()
    assert envs.reset_wait()[0].tolist() == [[0, 0], [0, 0]]


def test_call_wait_times_out_and_can_be_waited_for_again(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path)] * 2)
    envs.call_async("slow_call")
    with pytest.raises(TimeoutError) as caught:
        envs.call_wait(timeout=SHORT)
    assert_is_timeout(caught.value)
    gate.let_through(2)
    assert envs.call_wait() == ("answered", "answered")


def test_a_timeout_names_the_envs_that_are_silent(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([CountingEnv, partial(GatedEnv, gate.path), CountingEnv])
    envs.reset(seed=0)
    envs.step_async(np.zeros(3, int))
    with pytest.raises(StepTimeout) as caught:
        envs.step_wait(timeout=SHORT)
    assert caught.value.env_ids == (1,)
    gate.let_through()
    envs.step_wait()


def test_a_wait_with_time_to_spare_is_a_plain_wait(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset_async(seed=0)
    envs.reset_wait(timeout=60)
    envs.step_async(ACTIONS)
    assert envs.step_wait(timeout=60)[0].tolist() == [[0, 1], [0, 1]]


CLOSED_CALLS: dict[str, Act] = {**OTHERS, **{f"{name}_async": act for name, act in STARTS.items()}}
CLOSED_CALLS |= {f"{name}_wait": act for name, act in WAITS.items()}
CLOSED_CALLS |= {"send": lambda envs: envs.send(ACTIONS), "recv": lambda envs: envs.recv()}


@pytest.mark.parametrize("name", CLOSED_CALLS)
def test_a_closed_manager_says_so(name: str) -> None:
    from parallel_envs import ParallelEnvManager

    envs = ParallelEnvManager([CountingEnv] * 2, backend="serial")
    envs.close()
    assert envs.closed
    with pytest.raises(ClosedEnvironmentError, match="ParallelEnvManager"):
        CLOSED_CALLS[name](envs)


def test_close_may_be_called_again(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    assert envs.closed


def test_with_closes(make: Make) -> None:
    with make([CountingEnv] * 2) as envs:
        envs.reset(seed=0)
        assert not envs.closed
    assert envs.closed


@pytest.mark.parametrize("pending", STARTS)
def test_close_while_a_call_is_pending(make: Make, pending: str) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    STARTS[pending](envs)
    words = f"Calling `close` while waiting for a pending call to `{pending}` to complete."
    with pytest.warns(UserWarning, match=re.escape(words)) as caught:
        envs.close()
    assert [warning.filename for warning in caught] == [__file__]
    assert envs.closed


CLOSE_WARNING_IS_AN_ERROR = pytest.mark.filterwarnings("error:.*Calling .close. while waiting")


@CLOSE_WARNING_IS_AN_ERROR
def test_close_ends_the_workers_where_warnings_are_errors(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 2)
    envs.reset(seed=0)
    pids = {row["pid"] for row in envs.stats()}
    envs.step_async(ACTIONS)
    with pytest.raises(UserWarning, match="Calling `close`"):
        envs.close()
    assert all_end_within(pids, 0.0)


@CLOSE_WARNING_IS_AN_ERROR
def test_close_after_a_wait_that_raised_warns_of_nothing(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([CountingEnv, partial(GatedEnv, gate.path)])
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.raises(StepTimeout):
        envs.step_wait(timeout=SHORT)
    gate.let_through()
    envs.close()
    assert envs.closed


@CLOSE_WARNING_IS_AN_ERROR
def test_close_while_envs_are_at_their_own_pace_warns_of_nothing(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.send(ACTIONS)
    envs.close()
    assert envs.closed


def test_close_while_an_env_does_not_come_back(make_process: Make, gate: Gate) -> None:
    envs = make_process([CountingEnv, partial(GatedEnv, gate.path)])
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    envs.close(timeout=SHORT)
    assert envs.closed


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
            envs.step(np.zeros(2, int))
        assert (envs.begun, envs.ended) == (3, 3)
