"""Each contestant's own count of steps against a record that the environments themselves keep."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from benchmarks.peers import PEERS, UnknownPeer, chosen_peers
from parallel_envs.bench.runners import InProcess, Ours, Runner, Workload
from parallel_envs.bench.turns import python_environment
from tests.benchmarks.stages import Absent, EpisodeEnv

EVERYONE: dict[str, type[Runner]] = {InProcess.name: InProcess, Ours.name: Ours, **PEERS}


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


def test_a_row_that_only_reset_is_no_step(tmp_path: Path) -> None:
    contestant = InProcess(_workload(length=3, num_envs=2))
    contestant.open()
    assert [contestant.step() for _ in range(9)] == [2, 2, 2, 0, 2, 2, 2, 0, 2]
    contestant.close()


def test_opening_again_begins_anew() -> None:
    contestant = InProcess(_workload(length=1, num_envs=2))
    for _ in range(2):
        contestant.open()
        assert [contestant.step(), contestant.step()] == [2, 0]
        contestant.step()
        contestant.close()


def test_all_play_the_same_actions() -> None:
    workload = _workload(length=3, num_envs=2)
    singles, batches = list(workload.single_actions()), list(workload.batched_actions())
    np.testing.assert_array_equal(np.asarray(singles), np.stack(batches))
    np.testing.assert_array_equal(np.asarray(singles), np.asarray(list(workload.single_actions())))
    assert len(np.unique(np.asarray(singles))) == 2


def test_drawing_actions_leaves_the_given_space_as_it_was() -> None:
    space, twin = gymnasium.spaces.Discrete(1000, seed=5), gymnasium.spaces.Discrete(1000, seed=5)
    list(Workload(factory=partial(EpisodeEnv, 3), action_space=space, num_envs=1).single_actions())
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
    ("text", "names"),
    [("all", tuple(PEERS)), ("none", ()), ("sb3, gymnasium,sb3", ("sb3", "gymnasium")), ("", ())],
)
def test_peers_are_chosen_by_name(text: str, names: tuple[str, ...]) -> None:
    assert chosen_peers(text) == names


def test_an_unknown_peer_is_named_beside_the_known_ones() -> None:
    with pytest.raises(UnknownPeer, match=r'no peer called "envpool"\. Give some of gymnasium, sb3'):
        chosen_peers("gymnasium,envpool")


def _workload(length: int, num_envs: int) -> Workload:
    return Workload(factory=partial(EpisodeEnv, length), action_space=EpisodeEnv.action_space, num_envs=num_envs)
