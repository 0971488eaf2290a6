"""What is played and where: the tasks, environments for training, and others for evaluation."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from gymnasium import Env
from gymnasium.spaces import Space

from parallel_envs.learners.settings import BadSettings
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.meta.families import Family, TaskSplit, family_of, find_family, split, split_of
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import advice
from parallel_envs.tasks import offers, part_of
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


class Stage(ABC):
    """Tasks and environments of one learner, which closes them. `OwnStage` makes them as settings say, `GivenStage` has
    those that a subclass of `Learner` has made.
    """

    def __init__(self, seed: SeedTree) -> None:
        self._seed = seed
        self._singles: dict[str, Env[Any, Any]] = {}
        self._many: dict[str, ParallelEnvManager | None] = {}

    @property
    @abstractmethod
    def tasks(self) -> TaskSplit:
        """Which tasks are trained on, and which are kept for evaluation."""

    @abstractmethod
    def single(self, purpose: str) -> Env[Any, Any]:
        """Return the one environment of its own for "train" or "eval"."""

    @abstractmethod
    def many(self, purpose: str) -> ParallelEnvManager | None:
        """Return the environments of its own for "train" or "eval", if there are to be several."""

    def use_single(self, purpose: str, env: Env[Any, Any]) -> None:
        """Use this environment from now on, and close the one before."""
        _replace(self._singles, purpose, env)

    def use_many(self, purpose: str, envs: ParallelEnvManager | None) -> None:
        """Use these environments from now on, and close those before. None: only the single one."""
        _replace(self._many, purpose, envs)

    @property
    def restarts(self) -> tuple[int, str]:
        """How often environments were replaced so far, and the last reason, with its environments."""
        number, told = 0, ""
        for envs in self._many.values():
            if envs is not None and envs.last_restart is not None:
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


class OwnStage(Stage):
    """Tasks and environments as settings say. Environments are made when they are first asked for.

    Args:
        env: The words of the block `env`, as `EnvBlock` names them.
        shown: Keywords for `MultiEpisodeWrapper`, by what the agent is to see.
        seed: All that is drawn here comes from it.

    Raises:
        BadSettings: For a family that is not there or too small, or words that say what others say.
    """

    def __init__(self, env: Mapping[str, Any], shown: Mapping[str, bool], seed: SeedTree) -> None:
        super().__init__(seed)
        given = env["env_kwargs"]
        if twice := sorted(_SAID_ELSEWHERE & given.keys()):
            raise BadSettings(
                f"`env.env_kwargs.{twice[0]}` is decided by other settings (the architecture, the seed, the numbers of "
                "rollouts, environments and workers). Leave it out."
            )
        family = find_family(env["env_name"], given)
        sizes = env["num_train_tasks"], env["num_eval_tasks"]
        self._tasks = split(family, *sizes, seed.child("tasks"), share=env["share_tasks"])
        self._making = {"env_id": family.env_id, "episodes_per_task": env["max_rollouts_per_task"], **shown, **given}
        self.num_envs: int = env["num_envs"] or env["num_parallel_workers"]
        self._num_workers = min(env["num_parallel_workers"], self.num_envs)
        _check_options(env["manager_options"])
        self._options = {"backend": env["backend"], **env["manager_options"]}

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


class GivenStage(Stage):
    """Environments that the `init_env` of a subclass has made. They tell the tasks, as those of `make_env` do if it is
    given `num_train_tasks` and `num_eval_tasks`.
    """

    _tasks: TaskSplit | None = None

    @property
    def tasks(self) -> TaskSplit:
        if self._tasks is None:
            train, kept = self._told("train"), self._told("eval")
            if not kept:
                raise BadSettings(
                    "The environments do not tell their tasks. Make them by `make_env(..., num_train_tasks=, "
                    "num_eval_tasks=)`, or give them attributes `train_tasks` and `eval_tasks`, which are lists."
                )
            self._tasks = split_of(self._family, train, kept, self._seed.child("tasks"))
        return self._tasks

    def _told(self, purpose: str) -> list[Any] | None:
        env, name = self.single(purpose), f"{purpose}_tasks"
        return list(part_of(env, name)) if offers(env, name) else None

    def _family(self) -> Family:
        env = self.single("train")
        return family_of(str(env), None, env, {})

    def single(self, purpose: str) -> Env[Any, Any]:
        if purpose not in self._singles:
            raise BadSettings(f"`init_env` has not set `self.{purpose}_env`. Set it to what `make_env` returns.")
        return self._singles[purpose]

    def many(self, purpose: str) -> ParallelEnvManager | None:
        return self._many.get(purpose)


def _check_options(given: Mapping[str, Any]) -> None:
    """Also where there is a single environment, and nobody would look at them."""
    known = [name for name in inspect.signature(ParallelEnvManager).parameters if name not in ("env_fns", "self")]
    if unknown := sorted(given.keys() - set(known)):
        raise BadSettings(f"`env.manager_options.{unknown[0]}` is unknown. {advice(unknown[0], known)}")
