"""From what the caller gives to callables that make joint envs in workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.multiagent.conversion import quicker
from parallel_envs.multiagent.joint_env import JointEnv
from parallel_envs.multiagent.nearest import no_module
from parallel_envs.multiagent.open_env import OpenJointEnv
from parallel_envs.multiagent.turns import TurnEnv
from parallel_envs.spelling import hint, is_one_of
from parallel_envs.vector.arguments import check_count

TURNS = ("simultaneous", "sequential")


@dataclass(frozen=True)
class JointFactory:
    """Makes an env with `make` and puts it behind the joint interface. `turns` says how an AEC env is played."""

    make: Callable[[], Any]
    turns: str

    def __call__(self) -> JointEnv | OpenJointEnv:
        env = self.make()
        try:
            parallel = playable(env, self.turns)
            return JointEnv(parallel) if hasattr(parallel, "possible_agents") else OpenJointEnv(parallel)
        except BaseException:
            close = getattr(env, "close", None)
            if close is not None:
                close()
            raise


@dataclass(frozen=True)
class ModuleFactory:
    """Makes the env of a PettingZoo module, such as `mpe2.simple_spread_v3`."""

    path: str
    turns: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        try:
            with explained(f"The environment {self.path!r}"):
                module = importlib.import_module(self.path)
        except MissingExtra:
            raise
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.path}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports what is not
            raise ModuleNotFoundError(no_module(self.path, error.name), name=error.name) from error
        made_by = "parallel_env" if self.turns == "simultaneous" and hasattr(module, "parallel_env") else "env"
        if not hasattr(module, made_by):
            raise AttributeError(
                f"The module {self.path!r} has neither parallel_env nor env: it is no PettingZoo module."
            )
        return getattr(module, made_by)(**self.kwargs)


@dataclass(frozen=True)
class TaskOfJoint:
    """Gives a task to the PettingZoo env inside a joint one."""

    setter: Callable[[Any, Any], None]

    def __call__(self, env: JointEnv | OpenJointEnv, task: Any) -> None:
        self.setter(_env_within(env), task)


@dataclass(frozen=True, slots=True)
class OnJoint:
    """A function of a PettingZoo env as one of the joint env around it."""

    function: Callable[..., Any]

    def __call__(self, env: JointEnv | OpenJointEnv, *args: Any) -> Any:
        return self.function(_env_within(env), *args)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def _env_within(env: JointEnv | OpenJointEnv) -> Any:
    return env.env.env if isinstance(env.env, TurnEnv) else env.env


def joint_factories(
    env_fns: Any, num_envs: Any, turns: str, env_kwargs: Mapping[str, Any] | None
) -> list[JointFactory]:
    """One factory for each env. Raises what is wrong with the arguments."""
    if not is_one_of(turns, TURNS):
        raise ValueError(f"turns={turns!r} is unknown. Choose 'simultaneous' or 'sequential'.{hint(turns, TURNS)}")
    if isinstance(env_fns, str):
        if num_envs is None:
            raise ValueError(f"The module {env_fns!r} was given without num_envs. Say how many environments to make.")
        check_count("num_envs", num_envs)
        if not env_fns.strip(".") or env_fns.startswith("."):
            raise ValueError(f"{env_fns!r} is not the path of a module. Give one such as 'mpe2.simple_spread_v3'.")
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise TypeError(f"env_kwargs={env_kwargs!r} is not a dict of keyword arguments.")
        return [JointFactory(ModuleFactory(env_fns, turns, dict(env_kwargs or {})), turns)] * int(num_envs)
    if not isinstance(env_fns, Sequence):
        raise TypeError(f"env_fns={env_fns!r} is neither a sequence of callables nor the path of a PettingZoo module.")
    if num_envs is not None or env_kwargs is not None:
        raise ValueError(
            "num_envs and env_kwargs go with a module path. With callables, give one for each environment."
        )
    for env, make in enumerate(env_fns):
        if not callable(make):
            raise TypeError(
                f"env_fns[{env}]={make!r} is not callable. Give functions that make environments, not environments."
            )
    return [JointFactory(make, turns) for make in env_fns]


def playable(env: Any, turns: str, quicken: Callable[[Any], Any] = quicker) -> Any:
    """The env with a parallel interface. `quicken` is what is done to PettingZoo's conversion."""
    if hasattr(env, "agent_selection") or _is_aec(env):
        if turns == "sequential":
            return TurnEnv(env)
        if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
            raise ValueError(
                f"{env} is an AEC environment whose agents cannot act all at once (its metadata does not say "
                "is_parallelizable). Give turns='sequential'."
            )
        from pettingzoo.utils.conversions import aec_to_parallel

        return quicken(aec_to_parallel(env))
    if not callable(getattr(env, "step", None)) or not callable(getattr(env, "observation_space", None)):
        raise TypeError(f"The factory returned {env!r}, which is not a PettingZoo environment.")
    if turns == "sequential":
        raise ValueError(f"{env} is a parallel environment: all its agents act at once. Give turns='simultaneous'.")
    return quicken(env)


def _is_aec(env: Any) -> bool:
    from pettingzoo import AECEnv

    return isinstance(env, AECEnv)
