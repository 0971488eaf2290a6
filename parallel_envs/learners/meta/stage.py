"""What is played and where: the tasks, environments for training, and others for evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gymnasium import Env
from gymnasium.spaces import Space

from parallel_envs.learners.meta.families import find_family
from parallel_envs.learners.meta.splits import TaskSplit, split
from parallel_envs.learners.settings import BadSettings
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import advice
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.failures import env_names

_SAID_ELSEWHERE = {
    "add_previous_action",
    "add_previous_reward",
    "env_id",
    "episodes_per_task",
    "manager_options",
    "num_envs",
    "num_workers",
    "seed",
}


class Stage:
    """Tasks and environments of one learner. Environments are made when they are first asked for.

    Args:
        env: The words of the block `env`, as `EnvBlock` names them.
        shown: Keywords for `MultiEpisodeWrapper`, by what the agent is to see.
        seed: All that is drawn here comes from it.

    Raises:
        BadSettings: For a family that is not there or too small, or words that say what others say.
    """

    def __init__(self, env: Mapping[str, Any], shown: Mapping[str, bool], seed: SeedTree) -> None:
        given, self._seed = env["env_kwargs"], seed
        if twice := sorted(_SAID_ELSEWHERE & given.keys()):
            raise BadSettings(
                f"`env.env_kwargs.{twice[0]}` is decided by other settings (the architecture, the seed, the numbers of "
                "rollouts, environments and workers). Leave it out."
            )
        family = find_family(env["env_name"], given)
        sizes = env["num_train_tasks"], env["num_eval_tasks"]
        self.tasks: TaskSplit = split(family, *sizes, seed.child("tasks"), share=env["share_tasks"])
        """Which tasks are trained on, and which are kept for evaluation."""
        self._making = {"env_id": family.env_id, "episodes_per_task": env["max_rollouts_per_task"], **shown, **given}
        self.num_envs: int = env["num_envs"] or env["num_parallel_workers"]
        self._num_workers = min(env["num_parallel_workers"], self.num_envs)
        _check_options(env["manager_options"])
        self._options = {"backend": env["backend"], **env["manager_options"]}
        self._singles: dict[str, Env[Any, Any]] = {}
        self._many: dict[str, ParallelEnvManager] = {}

    def single(self, purpose: str) -> Env[Any, Any]:
        """The one environment of its own for "train" or "eval"."""
        if purpose not in self._singles:
            seed = self._seed.child(purpose, "single").seed()
            self._singles[purpose] = make_env(**self._making, seed=seed)
        return self._singles[purpose]

    def many(self, purpose: str) -> ParallelEnvManager | None:
        """The environments of its own for "train" or "eval", if there are to be several."""
        if self.num_envs == 1:
            return None
        if purpose not in self._many:
            self._many[purpose] = make_parallel_env(
                **self._making,
                num_workers=self._num_workers,
                num_envs=self.num_envs,
                seed=self._seed.child(purpose).seed(),
                manager_options=self._options,
            )
        return self._many[purpose]

    @property
    def restarts(self) -> tuple[int, str]:
        """How often environments were replaced so far, and the last reason, with its environments."""
        number, told = 0, ""
        for envs in self._many.values():
            if envs.last_restart is not None:
                number += envs.num_restarts
                told = f"{env_names(envs.last_restart[0])}: {envs.last_restart[1]}"
        return number, told

    @property
    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """What is seen, and what can be done."""
        many = self.many("train")
        if many is not None:
            return many.single_observation_space, many.single_action_space
        return self.single("train").observation_space, self.single("train").action_space

    @property
    def most_steps(self) -> int:
        """How many steps a rollout has at most."""
        many, name = self.many("train"), "horizon_bamdp"
        return int(self.single("train").get_wrapper_attr(name) if many is None else many.get_attr(name)[0])

    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        for envs in self._many.values():
            envs.close()
        for env in self._singles.values():
            env.close()
        self._many.clear()
        self._singles.clear()


def _check_options(given: Mapping[str, Any]) -> None:
    """Also where there is a single environment, and nobody would look at them."""
    known = [name for name in inspect.signature(ParallelEnvManager).parameters if name not in ("env_fns", "self")]
    if unknown := sorted(given.keys() - set(known)):
        raise BadSettings(f"`env.manager_options.{unknown[0]}` is unknown. {advice(unknown[0], known)}")
