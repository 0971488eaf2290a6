"""Tasks and environments of a learner, for training and for evaluation.

Every rollout has a number. Its task, its environment's seed and its random draws follow from that number and the
learner's seed. So sequential and parallel collection give the same rollouts, for any number of workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gymnasium import Env
from gymnasium.spaces import Space

from parallel_envs.checks import advice
from parallel_envs.learners.config import BadSettings
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.meta.making import TaskSplit, family_of, find_family, split, split_of
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import offers, part_of
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.env_errors import env_names

_DECIDED_ELSEWHERE = {
    *("add_previous_action", "add_previous_reward", "env_id", "episodes_per_task"),
    *("manager_options", "num_envs", "num_workers", "seed"),
}
"""Keywords that other settings decide, so that `env_kwargs` may not hold them."""


class LearnerEnvs:
    """The tasks and environments of one learner: made on first use as settings say, or set by a subclass of `Learner`.

    `purpose` is "train" or "eval". Training and evaluation have separate environments.

    `env` is the settings' block of this name; None: the `init_env` of a subclass makes the environments, and they name
    the tasks. `extras` are keywords for `MultiEpisodeWrapper` that say what to add to observations.
    """

    def __init__(self, seed: SeedTree, env: Mapping[str, Any] | None, extras: Mapping[str, bool]) -> None:
        self._seed = seed
        self.singles: dict[str, Env[Any, Any]] = {}
        self.many: dict[str, ParallelEnvManager | None] = {}
        self._tasks: TaskSplit | None = None
        self._making: dict[str, Any] | None = None
        if env is None:
            return
        given, options = env["env_kwargs"], env["manager_options"]
        if twice := sorted(_DECIDED_ELSEWHERE & given.keys()):
            raise BadSettings(
                f"`env.env_kwargs.{twice[0]}` is decided by other settings (the architecture, the seed, the numbers of "
                "rollouts, environments and workers). Leave it out."
            )
        family = find_family(env["env_name"], given)
        sizes = env["num_train_tasks"], env["num_eval_tasks"]
        self._tasks = split(family, *sizes, seed.child("tasks"), share=env["share_tasks"])
        self._making = {"env_id": family.env_id, "episodes_per_task": env["max_rollouts_per_task"], **extras, **given}
        # Options are checked here, because a single environment has no manager that would check them.
        known = [name for name in inspect.signature(ParallelEnvManager).parameters if name not in ("env_fns", "self")]
        if unknown := sorted(options.keys() - set(known)):
            raise BadSettings(f"`env.manager_options.{unknown[0]}` is unknown. {advice(unknown[0], known)}")
        num_envs: int = env["num_envs"] or env["num_parallel_workers"]
        self._of_many = {
            "num_envs": num_envs,
            "num_workers": min(env["num_parallel_workers"], num_envs),
            "manager_options": {"backend": env["backend"], **options},
        }

    @property
    def tasks(self) -> TaskSplit:
        """Return the tasks for training and the tasks that are kept for evaluation."""
        if self._tasks is None:
            envs = {f"{purpose}_tasks": self.single_env(purpose) for purpose in ("train", "eval")}
            train, kept = (list(part_of(env, name)) if offers(env, name) else None for name, env in envs.items())
            if not kept:
                raise BadSettings(
                    "The environments do not tell their tasks. Make them by `make_env(..., num_train_tasks=, "
                    "num_eval_tasks=)`, or give them attributes `train_tasks` and `eval_tasks`, which are lists."
                )
            env = self.single_env("train")
            self._tasks = split_of(lambda: family_of(str(env), None, env, {}), train, kept, self._seed.child("tasks"))
        return self._tasks

    def single_env(self, purpose: str) -> Env[Any, Any]:
        """Return the single environment for this purpose."""
        if purpose not in self.singles:
            if self._making is None:
                raise BadSettings(f"`init_env` has not set `self.{purpose}_env`. Set it to what `make_env` returns.")
            self.singles[purpose] = make_env(**self._making, seed=self._seed.child(purpose, "single").seed())
        return self.singles[purpose]

    def parallel_envs(self, purpose: str) -> ParallelEnvManager | None:
        """Return the parallel environments for this purpose, or None if there is only the single one."""
        if purpose not in self.many and self._making is not None and self._of_many["num_envs"] > 1:
            seed = self._seed.child(purpose).seed()
            self.many[purpose] = make_parallel_env(**self._making, **self._of_many, seed=seed)
        return self.many.get(purpose)

    @property
    def restarts(self) -> tuple[int, str]:
        """Return the number of environment restarts, and the last restart's environments and reason."""
        number, last = 0, ""
        for envs in self.many.values():
            if envs is not None and envs.last_restart is not None:
                number += envs.num_restarts
                last = f"{env_names(envs.last_restart[0])}: {envs.last_restart[1]}"
        return number, last

    @property
    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Return the observation space and the action space."""
        if (many := self.parallel_envs("train")) is not None:
            return many.single_observation_space, many.single_action_space
        return self.single_env("train").observation_space, self.single_env("train").action_space

    @property
    def most_steps(self) -> int:
        """Return the largest number of steps in a rollout."""
        many, name = self.parallel_envs("train"), "horizon_bamdp"
        return int(self.single_env("train").get_wrapper_attr(name) if many is None else many.get_attr(name)[0])

    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        for envs in (*self.many.values(), *self.singles.values()):
            if envs is not None:
                envs.close()
        self.many.clear()
        self.singles.clear()
