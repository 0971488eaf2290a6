"""The tasks and environments of a learner: made as settings say, or given by a subclass of `Learner`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gymnasium import Env
from gymnasium.spaces import Space

from parallel_envs.learners.config import BadSettings
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.meta.families import TaskSplit, family_of, find_family, split, split_of
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import advice
from parallel_envs.tasks import offers, part_of
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.recovery import env_names

_OTHER_SETTINGS = {
    "add_previous_action",
    "add_previous_reward",
    "env_id",
    "episodes_per_task",
    "manager_options",
    "num_envs",
    "num_workers",
    "seed",
}
"""Keywords that other settings decide, so that `env_kwargs` may not hold them."""


class EnvFactory(ABC):
    """Holds the tasks and environments of one learner, and closes the environments.

    `purpose` is "train" or "eval". Training and evaluation have separate environments.
    """

    def __init__(self, seed: SeedTree) -> None:
        self._seed = seed
        self._singles: dict[str, Env[Any, Any]] = {}
        self._many: dict[str, ParallelEnvManager | None] = {}

    @property
    @abstractmethod
    def tasks(self) -> TaskSplit:
        """Return the tasks for training and the tasks that are kept for evaluation."""

    @abstractmethod
    def single(self, purpose: str) -> Env[Any, Any]:
        """Return the single environment for this purpose."""

    @abstractmethod
    def many(self, purpose: str) -> ParallelEnvManager | None:
        """Return the parallel environments for this purpose, or None if there is only the single one."""

    def use_single(self, purpose: str, env: Env[Any, Any]) -> None:
        """Use this environment from now on, and close the previous one."""
        _replace(self._singles, purpose, env)

    def use_many(self, purpose: str, envs: ParallelEnvManager | None) -> None:
        """Use these environments from now on, and close the previous ones. None: use the single one only."""
        _replace(self._many, purpose, envs)

    @property
    def restarts(self) -> tuple[int, str]:
        """Return the number of environment restarts, and the last restart's environments and reason."""
        number, last = 0, ""
        for envs in self._many.values():
            if envs is not None and envs.last_restart is not None:
                number += envs.num_restarts
                last = f"{env_names(envs.last_restart[0])}: {envs.last_restart[1]}"
        return number, last

    @property
    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Return the observation space and the action space."""
        many = self.many("train")
        if many is not None:
            return many.single_observation_space, many.single_action_space
        return self.single("train").observation_space, self.single("train").action_space

    @property
    def most_steps(self) -> int:
        """Return the largest number of steps in a rollout."""
        many, name = self.many("train"), "horizon_bamdp"
        return int(self.single("train").get_wrapper_attr(name) if many is None else many.get_attr(name)[0])

    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        for envs in self._many.values():
            if envs is not None:
                envs.close()
        for env in self._singles.values():
            env.close()
        self._many.clear()
        self._singles.clear()


def _replace(held: dict[str, Any], purpose: str, envs: Any) -> None:
    old = held.get(purpose)
    held[purpose] = envs
    if old is not None and old is not envs:
        old.close()


class SettingsEnvFactory(EnvFactory):
    """Makes tasks and environments as settings say. Environments are made on first use.

    Args:
        env: The settings of the block `env`, named as in `EnvBlock`.
        extras: Keywords for `MultiEpisodeWrapper` that say what to add to observations.
        seed: Source of everything random here.

    Raises:
        BadSettings: A family is unknown or has too few tasks, or settings contradict each other.
    """

    def __init__(self, env: Mapping[str, Any], extras: Mapping[str, bool], seed: SeedTree) -> None:
        super().__init__(seed)
        given, options = env["env_kwargs"], env["manager_options"]
        if twice := sorted(_OTHER_SETTINGS & given.keys()):
            raise BadSettings(
                f"`env.env_kwargs.{twice[0]}` is decided by other settings (the architecture, the seed, the numbers of "
                "rollouts, environments and workers). Leave it out."
            )
        family = find_family(env["env_name"], given)
        sizes = env["num_train_tasks"], env["num_eval_tasks"]
        self._tasks = split(family, *sizes, seed.child("tasks"), share=env["share_tasks"])
        self._making = {"env_id": family.env_id, "episodes_per_task": env["max_rollouts_per_task"], **extras, **given}
        self.num_envs: int = env["num_envs"] or env["num_parallel_workers"]
        self._num_workers = min(env["num_parallel_workers"], self.num_envs)
        # Options are checked here, because a single environment has no manager that would check them.
        known = [name for name in inspect.signature(ParallelEnvManager).parameters if name not in ("env_fns", "self")]
        if unknown := sorted(options.keys() - set(known)):
            raise BadSettings(f"`env.manager_options.{unknown[0]}` is unknown. {advice(unknown[0], known)}")
        self._options = {"backend": env["backend"], **options}

    @property
    def tasks(self) -> TaskSplit:
        return self._tasks

    def single(self, purpose: str) -> Env[Any, Any]:
        if purpose not in self._singles:
            seed = self._seed.child(purpose, "single").seed()
            self._singles[purpose] = make_env(**self._making, seed=seed)
        return self._singles[purpose]

    def many(self, purpose: str) -> ParallelEnvManager | None:
        if purpose not in self._many and self.num_envs > 1:
            self._many[purpose] = make_parallel_env(
                **self._making,
                num_workers=self._num_workers,
                num_envs=self.num_envs,
                seed=self._seed.child(purpose).seed(),
                manager_options=self._options,
            )
        return self._many.get(purpose)


class GivenEnvs(EnvFactory):
    """Holds environments that the `init_env` of a subclass has made.

    The environments name the tasks. Environments of `make_env` do so if they are made with `num_train_tasks` and
    `num_eval_tasks`.
    """

    _tasks: TaskSplit | None = None

    @property
    def tasks(self) -> TaskSplit:
        if self._tasks is None:
            train, kept = self._named_tasks("train"), self._named_tasks("eval")
            if not kept:
                raise BadSettings(
                    "The environments do not tell their tasks. Make them by `make_env(..., num_train_tasks=, "
                    "num_eval_tasks=)`, or give them attributes `train_tasks` and `eval_tasks`, which are lists."
                )
            env = self.single("train")
            self._tasks = split_of(lambda: family_of(str(env), None, env, {}), train, kept, self._seed.child("tasks"))
        return self._tasks

    def _named_tasks(self, purpose: str) -> list[Any] | None:
        env, name = self.single(purpose), f"{purpose}_tasks"
        return list(part_of(env, name)) if offers(env, name) else None

    def single(self, purpose: str) -> Env[Any, Any]:
        if purpose not in self._singles:
            raise BadSettings(f"`init_env` has not set `self.{purpose}_env`. Set it to what `make_env` returns.")
        return self._singles[purpose]

    def many(self, purpose: str) -> ParallelEnvManager | None:
        return self._many.get(purpose)
