"""Restarts where observations, actions and infos are of all kinds, and partly go by pipe."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from parallel_envs.testing import Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv, assert_same_batch
from tests.faults.courses import Course
from tests.faults.matrix import Make, name

OBSERVATIONS = spaces.Dict(
    box=spaces.Box(-1.0, 1.0, (2,), np.float32), text=spaces.Text(5), some=spaces.Sequence(spaces.Discrete(5))
)
ACTIONS = spaces.Dict(number=spaces.Discrete(3), text=spaces.Text(3))

KINDS: dict[str, dict[str, Any]] = {
    "odd observations, all infos": {"observation_space": OBSERVATIONS, "infos": tuple(InfoKind)},
    "odd actions, numeric infos": {"action_space": ACTIONS, "infos": (InfoKind.SCALARS,)},
    "odd both, infos that come and go": {
        "observation_space": OBSERVATIONS,
        "action_space": ACTIONS,
        "infos": (InfoKind.FLICKERING,),
    },
}
MARKS = {"worker_restarted", "final_obs", "final_info"}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("fault", [Fault.SIGKILL, Fault.EXCEPTION], ids=name)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_right_before_and_after(
    make: Make, tmp_path: Path, kind: str, fault: Fault, num_workers: int, mode: str
) -> None:
    scripted = {"episode_lengths": (3, 2), **KINDS[kind]}
    broken = partial(FaultyEnv, fault, Moment.STEP, at=2, once=tmp_path / "broken", **scripted)
    sound = partial(ScriptedEnv, **scripted)
    envs = make([sound, broken, sound], num_workers=num_workers, on_failure="restart", autoreset_mode=mode)
    envs.action_space.seed(1)
    courses = [Course(index, envs.autoreset_mode, scripted) for index in range(3)]
    envs.reset(seed=3)
    for course in courses:
        course.reset(3 + course.index)
    num_lost = sum(play_one_step(envs, courses) for _ in range(9))
    assert num_lost == (1 if fault is Fault.EXCEPTION or num_workers == 3 else len(envs.stats()[0]["env_ids"]))


def play_one_step(envs: Any, courses: list[Course]) -> int:
    """Compare a step with the courses; those whose rows are marked are lost. How many."""
    actions = envs.action_space.sample()
    observations, rewards, terminated, truncated, infos = envs.step(actions)
    marks = infos.get("worker_restarted", np.zeros(3, np.bool_))
    given, seen = list(iterate(envs.action_space, actions)), list(iterate(envs.observation_space, observations))
    for course in courses:
        row = course.index
        expected = course.lose(3) if marks[row] else course.step(given[row])
        assert_same_batch(seen[row], expected.observation)
        assert (rewards[row], terminated[row], truncated[row]) == expected[1:]
        assert keys_of(infos, row) - MARKS == set(vars(course.env)["_info"])
    return int(np.sum(marks.astype(bool)))


def keys_of(infos: dict[str, Any], row: int) -> set[str]:
    """The keys that an env has in the infos of a batch."""
    return {key for key in infos if f"_{key}" in infos and infos[f"_{key}"][row]}
