"""Wrapped envs in `ParallelEnvManager`: the same rows in every autoreset mode, and tasks that hold."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parallel_envs import ParallelEnvManager, make_parallel_env
from parallel_envs.choices import Backend
from parallel_envs.meta import MultiEpisodeWrapper
from parallel_envs.tasks import KEEP, CycleTasks
from parallel_envs.testing import assert_same_batch
from tests.meta.counting_envs import ROWS, wrapped
from tests.vector.task_envs import ByOptions, ByResetTask, BySetTask, Playing, Telling, put_task

NUM_ENVS = 2
EACH_WAY = [ByResetTask, BySetTask, ByOptions]

backends = pytest.mark.parametrize("backend", ["serial", "process"])
modes = pytest.mark.parametrize("mode", list(AutoresetMode))


def both(value: Any) -> Any:
    """A value in the rows of both envs."""
    return np.stack([value] * NUM_ENVS)


@modes
@backends
def test_rows_are_those_of_gymnasiums_own_vector_env(backend: Backend, mode: AutoresetMode) -> None:
    """`test_multi_episode` says what one env returns."""
    plain = SyncVectorEnv([wrapped] * NUM_ENVS, autoreset_mode=mode)
    with ParallelEnvManager([wrapped] * NUM_ENVS, backend=backend, autoreset_mode=mode) as envs:
        assert_same_batch(envs.reset(seed=1), plain.reset(seed=1))
        for step in range(2 * len(ROWS) + 3):
            actions = np.array([step % 3, (step + 1) % 3])
            found, wanted = envs.step(actions), plain.step(actions)
            assert_same_batch(found, wanted)
            if mode is AutoresetMode.DISABLED and wanted[2].any():
                options = {"reset_mask": wanted[2]}
                assert_same_batch(envs.reset(options=options), plain.reset(options=dict(options)))


def wrap(lineage: type[Playing], **settings: Any) -> MultiEpisodeWrapper:
    return MultiEpisodeWrapper(lineage(), 3, horizon=2, **settings)


def tasks_seen(envs: ParallelEnvManager, num_steps: int = 20) -> list[list[int]]:
    """The distinct tasks that each env's observations show over some steps: three outer episodes."""
    seen = []
    for _ in range(num_steps):
        observations, _, terminated, truncated, _ = envs.step(both(0))
        if envs.autoreset_mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            observations, _ = envs.reset(options={"reset_mask": terminated | truncated})
        seen.append(observations[:, 0])
    return [np.unique(column).astype(int).tolist() for column in np.stack(seen, axis=1)]


@modes
@pytest.mark.parametrize("lineage", EACH_WAY)
def test_a_task_holds_through_inner_resets_and_autoresets(lineage: type[Playing], mode: AutoresetMode) -> None:
    with ParallelEnvManager([partial(wrap, lineage)] * NUM_ENVS, backend="serial", autoreset_mode=mode) as envs:
        envs.reset(tasks=[7, 8])
        assert tasks_seen(envs) == [[7], [8]]
        assert envs.get_tasks() == [7, 8]
        envs.reset(tasks=[KEEP, 9])
        assert tasks_seen(envs) == [[7], [9]]


def test_a_source_gives_a_task_to_each_outer_episode() -> None:
    settings: dict[str, Any] = {"task_source": CycleTasks(list(range(6)), seed=1), "backend": "serial"}
    with make_parallel_env(ByOptions, 3, NUM_ENVS, horizon=2, manager_options=settings) as envs:
        drawn = [envs.reset()[0][:, 0].astype(int).tolist()]
        for _ in range(2):
            rows = [envs.step(both(0))[0][:, 0].astype(int).tolist() for _ in range(7)]
            assert rows[:6] == [drawn[-1]] * 6
            drawn.append(rows[6])
        assert sorted(np.ravel(drawn)) == list(range(6))


@backends
@pytest.mark.parametrize("lineage", EACH_WAY)
def test_the_oracle_shows_the_task_of_its_env(lineage: type[Playing], backend: Backend) -> None:
    make = partial(wrap, lineage, oracle=True, task_vector=lambda task: [-1 if task is None else task])
    with ParallelEnvManager([make] * NUM_ENVS, backend=backend) as envs:
        assert envs.reset()[0][:, 3].tolist() == [-1, -1]
        assert envs.reset(tasks=[7, 8])[0][:, 3].tolist() == [7, 8]
        envs.set_tasks([9, 10])
        shown_tasks = [envs.step(both(0))[0][:, 3].tolist() for _ in range(8)]
        assert shown_tasks == [[7, 8]] * 6 + [[9, 10]] * 2


def test_tasks_reach_envs_in_workers_by_options_or_a_setter_and_envs_are_asked_for_them() -> None:
    with ParallelEnvManager([partial(wrap, ByOptions), partial(wrap, ByResetTask)]) as envs:
        envs.reset(tasks=[7, 8])
        assert tasks_seen(envs) == [[7], [8]]
        envs.reset(options={"task": 7})
        assert tasks_seen(envs) == [[7], [7]]
    with ParallelEnvManager([partial(wrap, Playing)] * NUM_ENVS, backend="serial", task_setter=put_task) as envs:
        envs.reset(tasks=[7, 8])
        for _ in range(7):
            envs.step(both(0))
        assert envs.call("played") == (("set", 7), ("set", 8))
    with ParallelEnvManager([partial(wrap, Telling)] * NUM_ENVS, backend="serial") as envs:
        envs.reset(tasks=[7, 8])
        assert envs.get_tasks() == ["my 7", "my 8"]
    envs = ParallelEnvManager([partial(wrap, Playing)] * NUM_ENVS, backend="serial")
    with envs, pytest.raises(TypeError, match="no way to take a task"):
        envs.reset(tasks=[7, 8])
