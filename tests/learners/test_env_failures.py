"""Environments that raise, hang or kill their worker while they are trained in."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Backend, UpdateModeName
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.learners.run_folder import read_metrics
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.rollouts.trajectories import Trajectory, TrajectoryStore
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import Train, learnt, newest
from tests.learners.faulty_walks import LENGTH, Walk

DISCOUNT = 0.5
ON_POLICY = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=1, hidden=(8,), network="gru", memory_size=4)
REPLAY = DQNConfig(
    batch_size=8, learning_starts=8, train_interval=2, buffer_size=400, hidden=(8,), num_steps=3, discount=DISCOUNT
)


def check_trajectory(lived: Trajectory) -> int:
    """Assert that a trajectory holds nothing that did not happen. Returns how many steps were lost.

    A lost step is not valid, and truncates. What was seen before it is the old episode's last observation, and its
    value is what counts ahead.
    """
    seen = lived.observations
    for row in range(lived.num_rows):
        steps = np.flatnonzero(lived.valid[:, row]).tolist()
        for step in steps:
            before, after = seen[step, row], seen[step + 1, row]
            # so it is where the next step was lost, too
            np.testing.assert_array_equal(after, before + np.array([0, 0, 1]))
            assert lived.rewards[step, row] == 1.0
            assert not lived.truncated[step, row]
        for one, other in itertools.pairwise(steps):
            is_same_episode = (seen[one, row, :2] == seen[other, row, :2]).all()
            assert bool(lived.begins[one + 1 : other + 1, row].any()) != bool(is_same_episode)
    return int((~lived.valid & lived.truncated).sum())


def check_replay(memory: ReplayBuffer, length: int) -> None:
    """Assert that sums of rewards stay within one episode of one environment."""
    drawn = memory.sample(np.random.default_rng(0), 2000)
    before, after = drawn["observations"], drawn["next_observations"]
    np.testing.assert_array_equal(after[:, :2], before[:, :2])
    num_steps = (after - before)[:, 2]
    assert set(num_steps.tolist()) <= {1.0, 2.0, 3.0}
    np.testing.assert_allclose(drawn["rewards"], 2 * (1 - DISCOUNT**num_steps))
    is_over = after[:, 2] == length
    np.testing.assert_allclose(drawn["discounts"], np.where(is_over, 0.0, DISCOUNT**num_steps))


OVERLAP, FREE = {"mode": "overlap", "learn_in": "thread"}, {"mode": "free", "learn_in": "serial", "queue": 4}
WAYS: list[tuple[Backend, UpdateModeName, dict[str, Any]]] = [
    *(("serial", mode, {}) for mode in ("sequential", "fused", "thread")),
    ("serial", "sequential", FREE),
    ("process", "sequential", OVERLAP),
]
SLOW_WAYS: list[tuple[Backend, UpdateModeName, dict[str, Any]]] = [
    *(("serial", "process", {}), ("serial", "sequential", OVERLAP), ("process", "sequential", {})),
    *(("process", "process", {}), ("process", "sequential", FREE)),
]


@pytest.mark.parametrize(
    ("backend", "update_mode", "how"), [*WAYS, *(pytest.param(*way, marks=pytest.mark.slow) for way in SLOW_WAYS)]
)
def test_nothing_is_learnt_across_a_restart(
    backend: Backend, update_mode: UpdateModeName, how: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived: list[Trajectory] = []
    finish = TrajectoryStore.finish

    def noted(store: TrajectoryStore, *memory: Any) -> int:
        turn = finish(store, *memory)
        lived.append(store.trajectory(turn).copy())
        return turn

    monkeypatch.setattr(TrajectoryStore, "finish", noted)
    in_steps = {"raise": 9, **({"kill": 13} if backend == "process" else {})}
    make = partial(Walk, str(tmp_path), {**in_steps, "reset": 3})
    with (
        MultiAgentEnvManager([make] * 2, backend=backend, on_failure="restart") as envs,
        IndependentLearners(envs, {"long": ON_POLICY, "short": REPLAY}, update_mode=update_mode, workers=1) as learners,
    ):
        learners.train(100, **how)
        assert envs.num_restarts == len(in_steps) + 1
        assert sum(map(check_trajectory, lived)) == len(in_steps)
        memory: Any = learners.agents["short"].model.memory
        check_replay(memory, LENGTH - 2)
        for one in learners.agents.values():
            assert one.counters["updates"] > 3
            assert one.counters["skipped"] == 0


WALKS = ["env=tests.learners.faulty_walks:Walk", "num_envs=2", "total_steps=240", "checkpoint_every=60"]


def walks(folder: Path, **faults: int) -> list[str]:
    notes = folder / "faults"
    notes.mkdir(exist_ok=True)
    return [*WALKS, f"env_kwargs={json.dumps({'folder': str(notes), 'faults': faults})}"]


def test_a_run_goes_on_after_a_kill_an_error_and_a_hang(train: Train, tmp_path: Path) -> None:
    """The hang is ended by `step_timeout`."""
    folder = tmp_path / "run"
    given = [*walks(tmp_path, kill=20, **{"raise": 31}, hang=44), "step_timeout=3", "backend=process"]
    done = train(*given, f"folder={folder}", "update_mode=sequential", "log_every=10", plain=False)
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert "was killed by signal 9 (SIGKILL) during step" in told
    assert "LookupError: the walker has lost its way" in told
    assert "did not answer within 3.0 seconds" in told
    assert "in wait_for_ever" in told
    assert "Restarts of environments: 3 (worker 0: " in told
    assert "The last was of env" in told
    lines = read_metrics(folder)
    counts = [line["restarts"] for line in lines]
    assert (counts[0], counts[-1]) == (0, 3)
    assert counts == sorted(counts)
    assert lines[-1]["steps"] >= 240
    _, about = learnt(folder)
    assert about["steps"] >= 240


def test_with_raise_a_run_ends_and_says_how_to_go_on_and_so_does_one_whose_environment_always_fails(
    train: Train, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = train(*walks(tmp_path, **{"raise": 50}), "on_failure=raise", f"folder={folder}")
    assert done.exit_code == 1
    assert "in inflict\n    raise LookupError" in done.output
    assert "learners/train.py" not in done.output
    told = " ".join(done.output.split())
    assert f"The newest whole checkpoint is {newest(folder)}. To go on from it: " in told
    assert f"train --resume {folder} --trust tests.learners.faulty_walks" in told
    assert "Ended by an error (EnvError) after" in told
    assert "With on_failure=restart a run goes on" in told
    done = train("on_failure=restart", resume=folder)
    assert done.exit_code == 0, done.output
    assert learnt(folder)[1]["steps"] >= 240
    kwargs = json.dumps({"faults": {"raise": 4}})
    given = [*WALKS, f"env_kwargs={kwargs}", "max_restarts=4", "restart_window=86400"]
    done = train(*given, f"folder={tmp_path / 'other'}")
    assert done.exit_code == 1
    told = " ".join(done.output.split())
    assert "was restarted 4 times within 86400 seconds, which is as often as max_restarts allows" in told
    assert "LookupError: the walker has lost its way" in told


def test_deadlines_and_restarts_change_nothing_that_is_learnt(train: Train, tmp_path: Path) -> None:
    """A run in which nothing fails is the same with all of them, which is the default, and without any."""
    patient = ["on_failure=raise", "step_timeout=null", "reset_timeout=null", "start_timeout=null"]
    outcomes = []
    for name, given in (("patient", patient), ("default", [])):
        folder = tmp_path / name
        done = train(*given, f"folder={folder}", "backend=process", "update_mode=sequential", plain=False)
        assert done.exit_code == 0, done.output
        outcomes.append({agent: state["arrays"]["weights"] for agent, state in learnt(folder)[0].items()})
    assert_same_batch(outcomes[0], outcomes[1])
