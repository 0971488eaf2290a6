"""From what the caller gives to callables that make joint envs in workers."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from parallel_envs.choices import Turns, words
from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.env_ids import (
    entry_module,
    modules_of,
    nearest_id,
    nearest_module,
    present_path,
    registered_kinds,
    zoo_module,
    zoo_package,
)
from parallel_envs.extras import explained, require
from parallel_envs.multiagent.conversion import quicker
from parallel_envs.multiagent.joint_env import JointEnv
from parallel_envs.multiagent.open_env import OpenJointEnv
from parallel_envs.multiagent.turns import TurnEnv
from parallel_envs.spelling import hint, is_one_of
from parallel_envs.vector.checks import check_count

TURNS: tuple[Turns, ...] = words(Turns)


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
class ZooFactory:
    """Makes the PettingZoo environment of a name, which is the path of a module or an id.

    A path (`mpe2.simple_spread_v3`) is imported, and its `parallel_env` or `env` is called. An id (`sisl/pursuit-v5`)
    is made as `pettingzoo.make` makes it: the parallel variant, or the AEC one where there is no other or where `turns`
    is "sequential". The module that registers an id may stand before it (`my_package:my_env-v0`) and is imported first.
    An id that is not registered, in a namespace of `env_ids.PACKAGES`, means the module of that name.

    Raises ModuleNotFoundError for a path that leads nowhere and `gymnasium.error.UnregisteredEnv` for an unknown id,
    with the nearest name; MissingExtra where an extra of this package is missing.
    """

    name: str
    turns: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        with explained(f"The environment {self.name!r}"):
            if is_module_path(self.name):
                return self._made_by(self._imported(present_path(self.name)))
            module, _, env_id = self.name.rpartition(":")
            if module and not _is_foraging(env_id):
                self._imported(module)
            if kinds := registered_kinds(env_id):
                return self._registered(env_id, kinds[0 if self.turns == "simultaneous" else -1])
            if (package := zoo_package(env_id)) is not None:
                require(f"The environment {self.name!r}", package)
            if (path := zoo_module(env_id)) is not None:
                return self._made_by(importlib.import_module(path))
        raise gymnasium.error.UnregisteredEnv(_nothing_found(self.name, self.name))

    def makers(self) -> list[Any]:
        """Return the functions that may make the environment: the last one names the keyword arguments.

        PettingZoo's modules make an environment by functions of `**kwargs`, which hand them on to `raw_env`.
        """
        if is_module_path(self.name):
            path: str | None = present_path(self.name)
        else:
            module, _, env_id = self.name.rpartition(":")
            if module and not _is_foraging(env_id):
                self._imported(module)
            path = zoo_module(env_id)
            if kinds := registered_kinds(env_id):
                import pettingzoo

                spec = pettingzoo.spec(kinds[0], env_id)
                if callable(spec.entry_point):
                    return [spec.entry_point]
                path = entry_module(spec)
        found = importlib.import_module(path) if path else None
        return [getattr(found, name) for name in ("parallel_env", "env", "raw_env") if hasattr(found, name)]

    def _imported(self, path: str) -> Any:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports what is not
            raise ModuleNotFoundError(_nothing_found(self.name, error.name), name=error.name) from error

    def _made_by(self, module: Any) -> Any:
        made_by = "parallel_env" if self.turns == "simultaneous" and hasattr(module, "parallel_env") else "env"
        if not hasattr(module, made_by):
            raise AttributeError(
                f"The module {self.name!r} has neither parallel_env nor env: it is no PettingZoo module."
            )
        return getattr(module, made_by)(**self.kwargs)

    def _registered(self, env_id: str, kind: str) -> Any:
        import pettingzoo

        try:
            return pettingzoo.make(kind, env_id, **self.kwargs)
        except pettingzoo.env_registry.exceptions.FailedToImport as error:
            raise (error.__cause__ or error) from None  # the cause says what is missing


def is_module_path(name: str) -> bool:
    """Return whether a name is the path of a module: with dots, or of a module that is there. Others are ids."""
    if re.fullmatch(r"\w+(\.\w+)+", name):
        return True
    try:
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _nothing_found(name: str, missing_part: str) -> str:
    """The text of an error for a name that means nothing: what was looked for, and what is there."""
    missing = f"No module named {missing_part!r} was found: {name!r} was to have parallel_env or env."
    if name in gymnasium.registry or re.fullmatch(r"([\w.]+:)?[\w./]*(\w-.*|/\w+_)v\d+", name):
        return _no_id(name)
    if ":" in name:
        return f"{missing} Give what makes environments itself: MultiAgentEnvManager([factory] * num_envs)."
    if close := nearest_module(name):
        return f"{missing} Did you mean {close!r}?"
    if close := nearest_id(name):
        return f"{missing} No environment is registered with this id either. Did you mean {close!r}?"
    package, _, _ = name.replace("/", ".").rpartition(".")
    if package and (others := list(modules_of(package))):
        return f"{missing} {package!r} has {', '.join(module.rpartition('.')[2] for module in others)}."
    return (
        f"{missing} Give its whole path, such as 'mpe2.simple_spread_v3', or its id, such as 'sisl/pursuit-v5', and "
        "install what it is in."
    )


def _no_id(env_id: str) -> str:
    """The text of an error for an id that PettingZoo does not have."""
    missing = f"No PettingZoo environment has the id {env_id!r}."
    if env_id in gymnasium.registry:
        return f"{missing} It is the id of a Gymnasium environment: {_advice_for_gymnasium(env_id)}"
    if (close := nearest_id(env_id)) is None:
        return f"{missing} It looks like the id of a Gymnasium environment: {_advice_for_gymnasium(env_id)}"
    if close not in gymnasium.registry:
        return f"{missing} Did you mean {close!r}?"
    return (
        f"{missing} Did you mean {close!r}? That is the id of a Gymnasium environment: {_advice_for_gymnasium(close)}"
    )


def _is_foraging(env_id: str) -> bool:
    """Return whether this is level-based foraging, which is Gymnasium's and has several agents all the same."""
    return env_id.startswith("Foraging-")


def _advice_for_gymnasium(env_id: str) -> str:
    """What to do with the id of a Gymnasium environment."""
    if _is_foraging(env_id.rpartition(":")[2]):
        return f"its agents are in tuples, so give [lambda: parallel_envs.tuple_agents({env_id!r})] * num_envs."
    return (
        "give that to ParallelEnvManager; where learners are to live in it, make "
        f"MultiAgentEnvManager([env_factory({env_id!r})] * num_envs), with env_factory from "
        "parallel_envs.multiagent.by_name."
    )


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
            raise ValueError(f"The name {env_fns!r} was given without num_envs. Say how many environments to make.")
        check_count("num_envs", num_envs)
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise TypeError(f"env_kwargs={env_kwargs!r} is not a dict of keyword arguments.")
        if is_env_file(env_fns):
            return [JointFactory(FileFactory.of(env_fns, env_kwargs), turns)] * int(num_envs)
        if not env_fns.strip(".") or env_fns.startswith("."):
            raise ValueError(
                f"{env_fns!r} is not the path of a module. Give one such as 'mpe2.simple_spread_v3', or an id such as "
                "'sisl/pursuit-v5'."
            )
        return [JointFactory(ZooFactory(env_fns, turns, dict(env_kwargs or {})), turns)] * int(num_envs)
    if not isinstance(env_fns, Sequence):
        raise TypeError(
            f"env_fns={env_fns!r} is neither a sequence of callables nor the path of a PettingZoo module nor an id."
        )
    if num_envs is not None or env_kwargs is not None:
        raise ValueError(
            "num_envs and env_kwargs go with a module path or an id. With callables, give one for each environment."
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
