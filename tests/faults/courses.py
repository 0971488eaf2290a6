"""What the rows of a manager must be: each env's course played once more in this process, losses and all."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from parallel_envs import ParallelEnvManager, SeedTree
from parallel_envs.testing import ScriptedEnv, assert_same_batch


class Row(NamedTuple):
    """What one env returns from a step."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool


class Course:
    """One env under an autoreset mode, as Gymnasium describes it; `lose` puts another in its place."""

    def __init__(self, index: int, mode: AutoresetMode, scripted: dict[str, Any]) -> None:
        self.index, self.mode, self.scripted = index, mode, scripted
        self.env = ScriptedEnv(**scripted)
        self.ended = False
        self.num_lost = 0

    def reset(self, seed: int | None, options: dict[str, Any] | None = None) -> Any:
        self.ended = False
        return self.env.reset(seed=seed, options=options)[0]

    def step(self, action: Any) -> Row:
        if self.ended and self.mode is AutoresetMode.NEXT_STEP:
            return Row(self.reset(None), 0.0, False, False)
        observation, reward, terminated, truncated, _ = self.env.step(action)
        self.ended = terminated or truncated
        if self.ended and self.mode is AutoresetMode.SAME_STEP:
            observation = self.reset(None)
        return Row(observation, reward, terminated, truncated)

    def lose(self, root: int) -> Row:
        """The row that tells of the loss: a new episode has begun, with a fresh seed of the root's tree."""
        self.num_lost += 1
        self.env = ScriptedEnv(**self.scripted)
        observation, _ = self.env.reset(seed=SeedTree(root).child("restart", self.index, self.num_lost).seed())
        self.ended = self.mode is not AutoresetMode.SAME_STEP
        return Row(observation, 0.0, False, True)


class Witness:
    """Plays a manager and its envs' courses side by side; whatever differs is an error.

    `lost` says which episodes are lost in a step; None is what the manager says. With `own_pace`, steps go through
    `send` and `recv`. Each env's infos have the keys of its course, unless they are taken as told.
    """

    def __init__(
        self, envs: ParallelEnvManager, *, own_pace: bool = False, infos_as_told: bool = False, **scripted: Any
    ) -> None:
        self.envs, self.own_pace, self.infos_as_told = envs, own_pace, infos_as_told
        self.courses = [Course(index, envs.autoreset_mode, scripted) for index in range(envs.num_envs)]
        self.num_steps = 0
        self.root = 0
        self.infos: dict[str, Any] = {}

    def reset(self, seed: int = 0, lost: Collection[int] = ()) -> None:
        """A reset is done anew for those who were lost: nobody's seed changes."""
        self.root = seed
        observations, self.infos = self.envs.reset(seed=seed)
        for course in self.courses:
            if course.index in lost:
                course.lose(seed)
        self.compare(observations, [course.reset(seed + course.index) for course in self.courses])
        self.check_marks(lost)

    def step(self, lost: Collection[int] | None = ()) -> None:
        self.reset_ended()
        if self.num_steps == 0:
            self.envs.action_space.seed(1)
        self.num_steps += 1
        actions = self.envs.action_space.sample()
        batch = self.stepped(actions)
        if lost is None:
            lost = set(np.flatnonzero(batch[-1].get("worker_restarted", [])).tolist())
        self.check(batch, self.rows(actions, lost), lost)

    def rows(self, actions: Any, lost: Collection[int] = ()) -> list[Row]:
        """What a step must return."""
        given = list(iterate(self.envs.action_space, actions))
        return [c.lose(self.root) if c.index in lost else c.step(given[c.index]) for c in self.courses]

    def check(self, batch: Any, rows: list[Row], lost: Collection[int] = ()) -> None:
        observations, rewards, terminated, truncated, self.infos = batch
        self.compare(observations, [row.observation for row in rows])
        expected = (
            np.array([row.reward for row in rows]),
            np.array([row.terminated for row in rows]),
            np.array([row.truncated for row in rows]),
        )
        assert_same_batch((rewards, terminated, truncated), expected)
        for course in self.courses:
            assert self.infos_as_told or self.info_keys(course.index) == set(vars(course.env)["_info"])
        self.check_marks(lost)

    def compare(self, observations: Any, expected: list[Any]) -> None:
        seen = list(iterate(self.envs.observation_space, observations))
        assert len(seen) == len(expected)
        for row, right in zip(seen, expected, strict=True):
            assert_same_batch(row, right)

    def info_keys(self, row: int) -> set[str]:
        """What an env says itself in its info."""
        keys = {key for key in self.infos if f"_{key}" in self.infos and self.infos[f"_{key}"][row]}
        return keys - {"worker_restarted", "final_obs", "final_info"}

    def check_marks(self, lost: Collection[int]) -> None:
        marks = self.infos.get("worker_restarted", np.zeros(len(self.courses), np.bool_))
        assert set(np.flatnonzero(marks)) == set(lost)

    def stepped(self, actions: Any) -> Any:
        if not self.own_pace:
            return self.envs.step(actions)
        self.envs.send(actions)
        order, *batch = self.envs.recv(min_envs=len(self.courses))
        place = np.argsort(order)
        *arrays, infos = batch
        return (*[array[place] for array in arrays], {key: value[place] for key, value in infos.items()})

    def reset_ended(self) -> None:
        """Under DISABLED the caller resets what has ended."""
        ended = np.array([course.ended for course in self.courses])
        if self.envs.autoreset_mode is not AutoresetMode.DISABLED or not ended.any():
            return
        observations, _ = self.envs.reset(options={"reset_mask": ended})
        for course in self.courses:
            if course.ended:
                assert_same_batch(observations[course.index], course.reset(None, {}))  # all that a mask leaves
