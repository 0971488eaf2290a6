"""Families of tasks by name: what their environments are made by, and where their tasks come from."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium

from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.errors import MissingExtra
from parallel_envs.spelling import advice
from parallel_envs.tasks import part_of
from parallel_envs.yaml_files import BadSettings

KNOWN = {
    "AntDir-v0": "parallel_envs.testing.ant_direction:AntDirection",
    "Bandit-v0": "parallel_envs.testing.families:BanditEnv",
    "GridNavi-v0": "parallel_envs.testing.families:GridNaviEnv",
    "PointRobotSparse-v0": "parallel_envs.testing.families:PointRobotEnv",
    "TabularMDP-v0": "parallel_envs.testing.families:TabularMDPEnv",
}
"""Families that can be named shortly, and where they are. An id of the same name that a user has registered with
Gymnasium takes the place of the family."""


def maker_of(env_name: str) -> Callable[..., Any] | None:
    """Return the class of a known family. None if `env_name` is not one, or if it is a registered id."""
    if env_name in gymnasium.registry or env_name not in KNOWN:
        return None
    maker: Callable[..., Any] = _imported(KNOWN[env_name], env_name)
    return maker


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks of one kind."""

    name: str
    env_id: Any
    """What `make_env` takes: an id, or a callable."""
    draw: Callable[[int, int], Sequence[Any]]
    """From a number and a seed to so many tasks."""
    draw_eval: Callable[[int, int], Sequence[Any]] | None = None
    """The same for evaluation, where its tasks are others."""
    everything: tuple[Any, ...] | None = None
    """All tasks there are, if they can be listed."""


def find_family(env_name: str, env_kwargs: Mapping[str, Any]) -> Family:
    """The family of this name. Raises BadSettings if there is none, or if nobody says what its tasks are."""
    path = env_name if env_name in gymnasium.registry else KNOWN.get(env_name, env_name)
    if is_env_file(path):
        try:
            factory = FileFactory.of(path)
            return family_of(env_name, factory, factory.load(), env_kwargs)
        except MissingExtra:
            raise
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise BadSettings(f"`env.env_name: {env_name}`: {error}") from error
    if ":" in path:
        maker = _imported(path, env_name)
        return family_of(env_name, maker, maker, env_kwargs)
    if path not in gymnasium.registry:
        raise BadSettings(f"`env.env_name: {env_name}` is unknown. {advice(env_name, [*KNOWN, *gymnasium.registry])}")
    with closing(gymnasium.make(path, **env_kwargs)) as env:
        return family_of(env_name, path, env, env_kwargs)


def _imported(path: str, env_name: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadSettings(f"`env.env_name: {env_name}` cannot be imported: {error}.") from error


def family_of(name: str, env_id: Any, source: Any, env_kwargs: Mapping[str, Any]) -> Family:
    """Return what a class or an env says about its tasks. Raises BadSettings if it says nothing."""
    sample, listed = _method(source, "sample_tasks"), _method(source, "all_tasks")
    if sample is None:
        raise BadSettings(
            f"The environment {name!r} does not say what its tasks are. Give it a static method "
            "`sample_tasks(num_tasks, seed=0)`, and `sample_eval_tasks` if evaluation is to be on others."
        )
    return Family(
        name,
        env_id,
        _drawing(sample, env_kwargs),
        _drawing(_method(source, "sample_eval_tasks"), env_kwargs),
        None if listed is None else tuple(listed(**_taken(listed, env_kwargs))),
    )


def _drawing(sample: Any, env_kwargs: Mapping[str, Any]) -> Any:
    """A function from a number and a seed to tasks."""
    if sample is None:
        return None
    shape = _taken(sample, env_kwargs)
    return lambda count, seed: sample(count, seed=seed, **shape)


def _method(source: Any, name: str) -> Any:
    try:
        return part_of(source, name) if isinstance(source, gymnasium.Env) else getattr(source, name)
    except AttributeError:
        return None


def _taken(function: Any, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those keywords of the env that its tasks depend on, too."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in env_kwargs.items() if name in names}
