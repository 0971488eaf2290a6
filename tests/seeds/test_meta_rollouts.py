"""A guide to rollouts of meta-RL side by side: its blocks as they are printed, `AntDir-v0` where MuJoCo is installed.

Only the import is another one: `envs.meta.make_env` there is `parallel_envs.meta` here.
"""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

import parallel_envs.learners
from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.run_folder import read_metrics
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import command

NEEDS_MUJOCO = pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="needs MuJoCo")
SLOW = pytest.mark.slow
FAMILIES = [
    "GridNavi-v0",
    pytest.param("PointRobotSparse-v0", marks=SLOW),
    pytest.param("AntDir-v0", marks=[NEEDS_MUJOCO, SLOW]),
]
SHORT = 4
"""Steps of an inner episode, here."""


logger = Mock()
"""The guide's."""


class Learner(parallel_envs.learners.Learner):
    # In learner.py init_env method:
    def init_env(  # type: ignore[no-untyped-def]  # as it is printed
        self,
        env_type,
        env_name,
        max_rollouts_per_task,
        num_train_tasks,
        num_eval_tasks,
        num_parallel_workers=4,
        **kwargs,
    ):
        # Create single env for evaluation
        self.eval_env = make_env(
            env_name,
            max_rollouts_per_task,
            seed=self.seed + 1,
            num_train_tasks=num_train_tasks,
            num_eval_tasks=num_eval_tasks,
            **kwargs,
        )

        # Create parallel envs for training
        if num_parallel_workers > 1:
            self.train_env_parallel = make_parallel_env(
                env_name,
                max_rollouts_per_task,
                num_workers=num_parallel_workers,
                seed=self.seed,
                num_train_tasks=num_train_tasks,
                num_eval_tasks=num_eval_tasks,
                **kwargs,
            )
        else:
            self.train_env_parallel = None

        # Also keep single env for compatibility
        self.train_env = make_env(
            env_name,
            max_rollouts_per_task,
            seed=self.seed,
            num_train_tasks=num_train_tasks,
            num_eval_tasks=num_eval_tasks,
            **kwargs,
        )

    # In learner.py train method:
    def train(self) -> None:  # type: ignore[override]  # returns nothing, as it is printed
        self._start_training()

        # Initial pool collection
        if self.num_init_rollouts_pool > 0:
            logger.log("Collecting initial pool of data..")
            while self._n_env_steps_total < self.num_init_rollouts_pool * self.max_trajectory_len:
                # Use parallel collection if available
                self.collect_rollouts_parallel(
                    num_rollouts=1,
                    random_actions=True,
                    parallel_env=self.train_env_parallel,  # Will fallback to sequential if None
                )

        # Main training loop
        while self._n_env_steps_total < self.n_env_steps_total:
            # Collect data in parallel
            env_steps = self.collect_rollouts_parallel(  # noqa: F841  # as it is printed
                num_rollouts=self.num_rollouts_per_iter, parallel_env=self.train_env_parallel
            )

            # Update policy
            train_stats = self.update(...)
            self.log_train_stats(train_stats)


def settings(family: str, folder: Path, algorithm: str = "ppo", arch: str = "memory", workers: int = 2) -> Any:
    small: dict[str, Any] = {"hidden": [8]}
    small |= {"minibatch_size": 8, "num_epochs": 1} if algorithm == "ppo" else {"batch_size": 8, "buffer_size": 200}
    return {
        "env": {
            "env_type": "meta",
            "env_name": family,
            "max_rollouts_per_task": 2,
            "num_train_tasks": 6,
            "num_eval_tasks": 3,
            "num_parallel_workers": workers,
            "env_kwargs": {"horizon": SHORT},
        },
        "train": {
            "num_iters": 2,
            "num_rollouts_per_iter": 3,
            "num_init_rollouts_pool": 0 if algorithm == "ppo" else 2,
            "exact": True,
        },
        "policy": {"arch": arch, "algorithm": {"name": algorithm, **small}},
        "folder": folder,
        "seed": 5,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_the_learner_trains(family: str, tmp_path: Path) -> None:
    with Learner(settings(family, tmp_path / "run")) as learner:
        before = learner.agent.parameters.matrix.weights.clone()
        learner.train()
        assert (learner.agent.parameters.matrix.weights != before).any()
        assert learner.num_env_steps == learner.n_env_steps_total == 2 * 3 * 2 * SHORT
        assert (len(learner.train_tasks or ()), len(learner.eval_tasks)) == (6, 3)
        parallel = learner.train_env_parallel
        weights = learner.agent.parameters.matrix.weights.numpy().copy()
    lines = read_metrics(tmp_path / "run")
    assert [line["steps"] for line in lines] == [24, 48]
    assert len(lines[-1]["evaluation"]["by_episode"]) == 2
    assert parallel is not None
    assert parallel.closed
    more: dict[str, Any] = {"train.num_iters": 3}
    with Learner.resume(tmp_path / "run", **more) as learner:
        np.testing.assert_array_equal(learner.agent.parameters.matrix.weights.numpy(), weights)
        learner.train()
    assert [line["update"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("algorithm", ["dqn", pytest.param("sac", marks=SLOW)])
def test_a_pool_is_collected_first(algorithm: str, tmp_path: Path) -> None:
    logger.reset_mock()
    family = {"dqn": "GridNavi-v0", "sac": "PointRobotSparse-v0"}[algorithm]
    with Learner(settings(family, tmp_path / "run", algorithm)) as learner:
        learner.train()
        logger.log.assert_called_once_with("Collecting initial pool of data..")
        assert learner.num_env_steps == (2 + 2 * 3) * 2 * SHORT
        assert learner.agent.counters["updates"] == 2


def test_an_init_env_of_the_users_own_gets_all_words_and_must_tell_its_tasks(tmp_path: Path) -> None:
    class Adding(parallel_envs.learners.Learner):
        def init_env(self, *args: Any, **kwargs: Any) -> None:
            super().init_env(*args, **{**kwargs, "num_envs": 3})

    class Forgetful(parallel_envs.learners.Learner):
        def init_env(self, env_type: str, env_name: str, **kwargs: Any) -> None:  # type: ignore[override]
            self.train_env = self.eval_env = make_env(env_name, 2, horizon=SHORT)

    with Adding(settings("GridNavi-v0", tmp_path / "run")) as learner:
        assert learner.train_env_parallel is not None
        assert (learner.train_env_parallel.num_envs, learner.max_trajectory_len) == (3, 2 * SHORT)
    given = settings("GridNavi-v0", tmp_path / "run", workers=1)
    with Forgetful(given) as forgetful, pytest.raises(BadSettings, match=r"`make_env\(..., num_train_tasks=, "):
        forgetful.collect_rollouts(1)


@pytest.mark.parametrize("family", FAMILIES)
def test_environments_of_a_family_agree_on_its_tasks(family: str) -> None:
    numbers = dict[str, Any](num_train_tasks=5, num_eval_tasks=4, horizon=SHORT)
    one, other = (make_env(family, 2, seed=seed, **numbers) for seed in (1, 2))
    with contextlib.closing(make_parallel_env(family, 2, num_workers=2, seed=0, **numbers)) as many:
        for name, count in (("train_tasks", 5), ("eval_tasks", 4)):
            assert len(getattr(one, name)) == count
            for told in (getattr(other, name), *many.get_attr(name)):
                assert_same_batch(told, getattr(one, name))
    assert not {str(task) for task in one.train_tasks} & {str(task) for task in one.eval_tasks}
    observation, _ = one.reset(task=one.train_tasks[0])
    assert one.observation_space.contains(observation)
    for env in (one, other):
        env.close()


def test_tasks_and_steps_are_sent_to_each_worker() -> None:
    numbers: dict[str, Any] = {"num_train_tasks": 6, "num_eval_tasks": 3}
    num_workers = 2
    with make_parallel_env("GridNavi-v0", 2, num_workers=2, seed=0, **numbers) as parallel_env:
        train_tasks = parallel_env.get_attr("train_tasks")[0]
        asked = []
        # In collect_rollouts_parallel:
        for worker_id in range(num_workers):
            task = train_tasks[np.random.randint(len(train_tasks))]
            parallel_env.remotes[worker_id].send(("reset", {"task": task}))
            asked.append(task)
        obs = [parallel_env.remotes[worker_id].recv()[1] for worker_id in range(num_workers)]
        assert parallel_env.get_tasks() == asked

        active_workers, stored = list(range(num_workers)), []
        while active_workers:
            actions = {}
            for worker_id in active_workers:
                actions[worker_id] = int(abs(obs[worker_id].sum())) % 5  # in the place of the policy

            # Send commands to ALL workers (non-blocking)
            for worker_id in active_workers:
                action, remote = actions[worker_id], parallel_env.remotes[worker_id]
                remote.send(("step", action))  # Returns immediately

            # Collect results after all workers finish
            for worker_id in list(active_workers):
                remote = parallel_env.remotes[worker_id]
                result = remote.recv()  # Blocks until this worker is done
                kind, (obs[worker_id], reward, done, _) = result
                assert kind == "transition"
                stored.append((worker_id, reward))
                if done:
                    active_workers.remove(worker_id)
        assert len(stored) == 2 * parallel_env.get_attr("horizon_bamdp")[0]


def test_cleanup() -> None:
    for is_explicit in (False, True):
        parallel_env = make_parallel_env("GridNavi-v0", 2, num_workers=2, seed=0)
        pool = parallel_env._batch.pool
        parallel_env.remotes[0].send(("reset", {"task": (3, 1)}))
        parallel_env.remotes[0].recv()
        if is_explicit:
            # Or explicit cleanup
            parallel_env.close()
            assert pool.closed
        # Automatic cleanup on deletion
        del parallel_env
        assert pool.closed


CONFIG = """
# In your config YAML
env:
  env_type: meta
  env_name: AntDir-v0
  max_rollouts_per_task: 2
  num_train_tasks: 50
  num_eval_tasks: 20
  num_parallel_workers: 6  # NEW: Number of parallel environment workers

train:
  num_rollouts_per_iter: 12  # Will be distributed across 6 workers (2 each)
  ...
"""


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (["env.env_name=PointRobotSparse-v0", "env.env_kwargs.horizon=12", "env.num_parallel_workers=2"], 2),
        pytest.param(["env.env_kwargs.horizon=12"], 6, marks=[NEEDS_MUJOCO, SLOW]),
    ],
)
def test_the_command_trains_with_the_printed_configuration(tmp_path: Path, words: list[str], workers: int) -> None:
    config, folder = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG, encoding="utf-8")
    done = command(config, "train.num_iters=1", *words, f"folder={folder}")
    assert done.exit_code == 0, done.output
    assert "evaluation tasks:" in done.output
    (line,) = read_metrics(folder)
    assert (line["rollouts"], line["evaluation"]["rollouts"]) == (12, 20)
    stored = yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8"))
    assert (stored["env"]["num_parallel_workers"], stored["policy"]["arch"]) == (workers, "memory")
    done = command("--resume", folder, config)
    assert (done.exit_code, "was given beside a meta-RL run" in done.output) == (2, True), done.output
