"""Environments by name, and each contestant's own count of steps against a record that the environments keep."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest

from benchmarks.peers import PEERS, UnknownPeer, chosen_peers
from benchmarks.step_costs import OursBlind, OursGuarded, measure_guard_cost
from parallel_envs import ParallelEnvManager
from parallel_envs.bench.envs import SpinEnv, UnknownEnv, action_space, resolve
from parallel_envs.bench.runners import InProcess, Ours, Runner, Workload
from parallel_envs.bench.turns import Pace, python_environment
from parallel_envs.engine.process import ProcessPool
from tests.benchmarks.stages import Absent, EpisodeEnv

EVERYONE: dict[str, type[Runner]] = {InProcess.name: InProcess, Ours.name: Ours, **PEERS}


def _workload(length: int, num_envs: int) -> Workload:
    return Workload(factory=partial(EpisodeEnv, length), action_space=EpisodeEnv.action_space, num_envs=num_envs)


def test_the_steps_counted_are_the_calls_of_step(tmp_path: Path) -> None:
    installed = [name for name, each in EVERYONE.items() if each.missing() is None]
    # A process of their own: what peers import and warn of is no part of this test run.
    command = [sys.executable, "-m", "tests.benchmarks.stages", "3", "2", "40", str(tmp_path), *installed]
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=") for line in done.stdout.splitlines() if line.partition("=")[0] in installed)
    counted = {name: int(count) for name, count in told.items()}
    assert counted == {name: (tmp_path / name).stat().st_size for name in installed}
    assert min(counted.values()) >= 40


def test_a_row_that_only_reset_is_no_step_and_opening_again_begins_anew() -> None:
    contestant = InProcess(_workload(length=3, num_envs=2))
    for _ in range(2):
        contestant.open()
        assert [contestant.step() for _ in range(10)] == [2, 2, 2, 0, 2, 2, 2, 0, 2, 2]
        contestant.close()


def test_all_play_the_same_actions_and_the_given_space_stays_as_it_was() -> None:
    space, twin = gymnasium.spaces.Discrete(1000, seed=5), gymnasium.spaces.Discrete(1000, seed=5)
    workload = Workload(factory=partial(EpisodeEnv, 3), action_space=space, num_envs=2)
    singles, batches = list(workload.single_actions()), list(workload.batched_actions())
    np.testing.assert_array_equal(np.asarray(singles), np.stack(batches))
    np.testing.assert_array_equal(np.asarray(singles), np.asarray(list(workload.single_actions())))
    assert len(np.unique(np.asarray(singles))) > 2
    assert space.sample() == twin.sample()


def test_a_library_that_is_not_here_has_a_pip_name() -> None:
    assert Absent.missing() == "absent-library"
    assert InProcess.missing() is None
    assert {name: peer.pip_name for name, peer in PEERS.items()} == {
        "gymnasium": "gymnasium",
        "sb3": "stable-baselines3",
        "tianshou": "tianshou",
        "torchrl": "torchrl",
    }


@pytest.mark.parametrize(
    ("text", "names"), [("all", tuple(PEERS)), ("none", ()), ("sb3, gymnasium,sb3", ("sb3", "gymnasium")), ("", ())]
)
def test_peers_are_chosen_by_name(text: str, names: tuple[str, ...]) -> None:
    assert chosen_peers(text) == names
    with pytest.raises(UnknownPeer, match=r'no peer called "envpool"\. Give some of gymnasium, sb3'):
        chosen_peers(f"gymnasium,envpool,{text}")


def test_an_id_is_made_by_gymnasium_and_a_factory_imported_by_its_path() -> None:
    choice = resolve("CartPole-v1")
    assert choice.is_id
    env = choice.factory()
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    env.close()
    choice = resolve("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    assert not choice.is_id
    assert action_space(choice) == gymnasium.spaces.Discrete(2)


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale_py is not installed")
def test_an_atari_id_is_registered_when_it_is_made() -> None:
    assert isinstance(action_space(resolve("ALE/Breakout-v5")), gymnasium.spaces.Discrete)


def test_spinning_burns_the_thread_s_own_processor_time() -> None:
    env = SpinEnv(2000.0)
    env.reset(seed=0)
    before = time.thread_time()
    env.step(np.int64(0))
    assert time.thread_time() - before >= 0.002


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NoSuchEnv-v1", '"NoSuchEnv-v1" cannot be made: NameNotFound'),
        ("Cart Pole", '"Cart Pole" cannot be made'),
        ("spin:soon", "Give microseconds, as in spin:1000."),
        ("spin:-1", "Give microseconds, as in spin:1000."),
        ("spin:inf", "Give microseconds, as in spin:1000."),
        ("no_such_module:make", "ModuleNotFoundError: No module named 'no_such_module'."),
        ("tests.benchmarks.stages:no_such_function", "no_such_function"),
        ("tests.benchmarks.stages:NOT_CALLABLE", "is a int and cannot be called"),
        ("tests.benchmarks.stages:make_nothing", "made a NoneType, not a gymnasium.Env"),
        ("mpe2/simple_spread-v3", "python -m benchmarks zoo --env mpe2/simple_spread-v3"),
    ],
)
def test_what_is_no_environment_is_named_with_what_to_give_instead(name: str, part: str) -> None:
    with pytest.raises(UnknownEnv) as caught:
        action_space(resolve(name))
    assert part in str(caught.value)
    assert "Give" in str(caught.value) or "mpe2" in name


def test_what_guarding_costs_is_measured_beside_a_wait_that_is_blind() -> None:
    with closing(OursBlind(_workload(3, 2))) as blind:
        blind.open()
        pool = blind._pool
        assert isinstance(pool, ProcessPool)
        assert os.get_blocking(pool._completions.fd)
        assert sum(blind.step() for _ in range(8)) > 0
    assert pool.closed
    with closing(OursGuarded(_workload(3, 2))) as guarded:
        guarded.open()
        envs = guarded._envs
        assert isinstance(envs, ParallelEnvManager)
        assert envs.step_timeout is not None
        assert envs.on_failure == "restart"
        envs.step(np.zeros(2, np.int64))


@pytest.mark.slow
def test_the_cost_of_guarding_is_a_ratio_with_its_spread() -> None:
    ratio = measure_guard_cost(resolve("spin:20"), num_envs=2, num_workers=2, pace=Pace(seconds=0.02, rounds=1))
    assert ratio.num_samples == 4
    assert 0.2 < ratio.median < 5.0


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "ALE/Breakout-v5", "spin:1000", "tests.benchmarks.stages:make_exiting"]
)
def test_every_factory_travels_to_another_process(name: str) -> None:
    choice = resolve(name)
    copy = cloudpickle.loads(cloudpickle.dumps(choice))
    assert copy.name == choice.name
