"""What breaks while rollouts are collected: envs, workers, policies. No rollout is lost, and no request left behind."""

from __future__ import annotations

import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode

from parallel_envs import ClosedError, EnvError, StepTimeout, WorkerDied, collect
from parallel_envs.rollouts import Rollouts
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.rollouts.players import LENGTHS, Acting, Counting, Remembering, by_observation, content, scripted, zeros
from tests.vector.conftest import Make, Manager
from tests.vector.small_envs import CountingEnv, FailingEnv, GatedEnv
from tests.vector.task_envs import Choosy

NUM_ROLLOUTS = 8
modes = pytest.mark.parametrize("mode", list(AutoresetMode))


def faulty(fault: Fault, moment: Moment, once: Path, at: int = 5) -> partial[FaultyEnv]:
    return partial(FaultyEnv, fault, moment, at=at, once=once, episode_lengths=LENGTHS)


def collected(envs: Any, policy: Any = None) -> Rollouts:
    policy = Counting() if policy is None else policy
    return collect(envs, policy, NUM_ROLLOUTS, tasks=[f"task {place}" for place in range(NUM_ROLLOUTS)], seed=3)


def unbroken(policy: Any = None) -> Rollouts:
    return collected(ScriptedEnv(episode_lengths=LENGTHS), policy)


def assert_usable(envs: Manager) -> None:
    """Nothing is on the way, and the next collection is what it should be."""
    assert not any(envs.is_away(env) for env in range(envs.num_envs))
    assert_same_batch(content(collected(envs)), content(unbroken()))


@pytest.mark.slow(sample=True)
@modes
@pytest.mark.parametrize(
    ("backend", "fault"),
    [("process", Fault.SIGKILL), *((backend, Fault.EXCEPTION) for backend in ("serial", "thread", "process"))],
)
@pytest.mark.parametrize(
    ("moment", "at"), [(Moment.STEP, 1), (Moment.STEP, 9), (Moment.RESET, 1), (Moment.AUTORESET, 1)]
)
def test_a_fault_loses_no_rollout(
    make_process: Make, tmp_path: Path, backend: str, mode: AutoresetMode, fault: Fault, moment: Moment, at: int
) -> None:
    factory, policy = faulty(fault, moment, tmp_path / "broken", at), partial([Counting, Remembering][at % 2])
    envs = make_process([factory] * 3, num_workers=2, on_failure="restart", autoreset_mode=mode, backend=backend)
    assert_same_batch(content(collected(envs, policy())), content(unbroken(policy())))
    assert (tmp_path / "broken").exists()
    assert sum(one["restarts"] for one in envs.stats()) == 1


class Killing(Counting):
    """Kills a worker in some of its calls, whatever that worker's envs are doing just then."""

    def __init__(self, envs: Manager, calls: set[int]) -> None:
        self.envs, self.calls, self.num_calls = envs, calls, 0

    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> tuple[Any, Any]:
        self.num_calls += 1
        if self.num_calls in self.calls:
            os.kill(self.envs.stats()[self.num_calls % self.envs.num_workers]["pid"], signal.SIGKILL)
        return super().act(observations, state, resets, rows)


@pytest.mark.slow(sample=True)
@modes
@pytest.mark.parametrize("calls", [{1}, {2}, {3, 4}, {7}, {5, 12, 13}])
def test_workers_killed_at_any_time_lose_no_rollout(make_process: Make, mode: AutoresetMode, calls: set[int]) -> None:
    envs = make_process([scripted] * 5, num_workers=2, on_failure="restart", autoreset_mode=mode)
    rollouts = collect(envs, Killing(envs, calls), NUM_ROLLOUTS, seed=3)
    assert_same_batch(content(rollouts), content(collect(scripted(), Counting(), NUM_ROLLOUTS, seed=3)))
    assert sum(one["restarts"] for one in envs.stats()) > 0


def test_a_worker_that_hangs_is_replaced(make_process: Make, tmp_path: Path) -> None:
    factory = faulty(Fault.INFINITE_LOOP, Moment.STEP, tmp_path / "broken", 3)
    envs = make_process([factory] * 3, num_workers=2, on_failure="restart", step_timeout=0.3, reset_timeout=5)
    assert_same_batch(content(collected(envs)), content(unbroken()))


def test_an_env_that_always_breaks_is_raised_in_the_end(make: Make) -> None:
    envs = make([partial(FailingEnv, at_steps=(2,))] * 2, on_failure="restart", max_restarts=2)
    with pytest.raises(EnvError, match="step 2 failed"):
        collect(envs, Acting(zeros), 3)
    assert not any(envs.is_away(env) for env in range(2))


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [(Fault.EXCEPTION, ValueError, "injected fault"), (Fault.SIGKILL, WorkerDied, "signal 9")],
)
def test_what_broke_comes_up(
    make_process: Make, tmp_path: Path, fault: Fault, error: type[Exception], words: str
) -> None:
    envs = make_process([faulty(fault, Moment.STEP, tmp_path / "broken")] * 3, num_workers=2)
    with pytest.raises(error, match=words):
        collected(envs)
    if error is WorkerDied:
        envs.restart()
    assert_usable(envs)


def test_all_envs_that_fail_at_once_are_received(make: Make) -> None:
    envs = make([partial(FailingEnv, at_steps=(1,), at_resets=(4,))] * 4)
    with pytest.raises(ZeroDivisionError, match="step 1 failed"):
        collect(envs, Acting(zeros), 9)
    assert not any(envs.is_away(env) for env in range(4))
    assert envs.reset()[0].shape == (4, 2)
    envs = make([Choosy] * 3)
    with pytest.raises(LookupError, match="no such goal"):
        collect(envs, Acting(zeros), 7, tasks=[1, 2, 3, 4, 99, 5, 6])
    assert len(collect(envs, Acting(zeros), 7, tasks=[1] * 7)) == 7


def test_a_late_env_comes_up_and_can_be_received_afterwards(
    make_parallel: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallel_envs.rollouts.collector._DRAIN_SECONDS", 0.05)
    envs = make_parallel([partial(GatedEnv, gate.path), partial(CountingEnv, 100)], step_timeout=0.5)
    with pytest.raises(StepTimeout):
        collect(envs, Acting(zeros), 2)
    assert [envs.is_away(env) for env in range(2)] == [True, False]
    gate.let_through()
    assert envs.recv_env(0, timeout=30)[0].tolist() == [0, 1]
    assert [len(one) for one in collect(envs, Acting(zeros), 2, max_steps=4)] == [4, 4]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("at", [1, 2, 7])
def test_the_error_of_a_policy_comes_up_and_nothing_is_left_on_the_way(make: Make, at: int) -> None:
    calls = []

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        calls.append(len(rows))
        if len(calls) == at:
            raise ArithmeticError("no idea")
        return zeros(observations, state, resets, rows)

    envs = make([scripted] * 4, num_workers=2)
    with pytest.raises(ArithmeticError, match="no idea"):
        collect(envs, Acting(act), 9)
    assert not any(envs.is_away(env) for env in range(4))
    assert_same_batch(content(collect(envs, by_observation, 5)), content(collect(scripted(), by_observation, 5)))


@pytest.mark.parametrize("name", ["send", "step", "reset", "call"])
def test_a_manager_that_is_busy_or_closed_is_refused_and_keeps_its_requests(make: Make, name: str) -> None:
    envs = make([CountingEnv] * 4)
    envs.reset(seed=1)
    begin: dict[str, Any] = {
        "send": partial(envs.send, [0], env_ids=[3]),
        "step": partial(envs.step_async, np.zeros(4)),
        "reset": envs.reset_async,
        "call": partial(envs.call_async, "observed"),
    }
    begin[name]()
    with pytest.raises(AlreadyPendingCallError, match="3.*recv" if name == "send" else name):
        collect(envs, Acting(zeros), 2)
    if name == "send":
        assert envs.recv()[1].tolist() == [[0, 1]]
    else:
        assert len(getattr(envs, f"{name}_wait")()) > 1
    assert len(collect(envs, Acting(zeros), 2)) == 2
    envs.close()
    with pytest.raises(ClosedError, match="close"):
        collect(envs, Acting(zeros), 3)


def test_one_env_that_fails_goes_back_to_its_owner() -> None:
    closed = []

    class Closing(FailingEnv):
        def close(self) -> None:
            closed.append(self)

    env = Closing(at_steps=(2,))
    with pytest.raises(ZeroDivisionError):
        collect(env, Acting(zeros), 3)
    assert isinstance(env, gymnasium.Env)
    assert closed == []
    assert len(collect(env, Acting(zeros), 1)) == 1


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """Restarts are logged as warnings, and these are meant."""
    logger = logging.getLogger("parallel_envs")
    before, logger.level = logger.level, logging.ERROR
    yield
    logger.level = before


def test_an_error_tells_what_was_played_and_brings_what_was_complete(make_serial: Make) -> None:
    envs = make_serial([ScriptedEnv, partial(FaultyEnv, Fault.EXCEPTION, Moment.STEP, at=30)], num_workers=1)
    with pytest.raises(EnvError) as caught:
        collect(envs, None, 40, random_actions=True, tasks=None, max_steps=5, seed=3)
    told = "\n".join(caught.value.__notes__)
    assert "Env 1 was playing rollout" in told
    assert f"{len(caught.value.rollouts)} rollouts were complete" in told  # type: ignore[attr-defined]
    assert 0 < len(caught.value.rollouts) < 40  # type: ignore[attr-defined]
