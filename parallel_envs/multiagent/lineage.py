"""What an environment is made of, wrapper by wrapper, and which part of it would take a task.

Runs in a worker, where the environment is made, looked at and closed again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium

from parallel_envs.multiagent.by_name import OneAgent
from parallel_envs.tasks import TaskWay, part_of
from parallel_envs.vector.worker_tasks import WatchedOptions

_SETTERS = (TaskWay.RESET_TASK, TaskWay.SET_TASK)
_TOLD = ("get_task", "get_tasks", "sample_tasks")
_TRIAL = "a task that only tells whether anybody looks"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What was found out about an environment.

    Args:
        layers: The classes from the outermost wrapper to the environment itself, each as `module.Class`.
        is_gymnasium: Whether it is an environment of one agent, as Gymnasium has them.
        way: How a task would reach it; None if there is no way.
        method: The method that takes the task, with its signature; None where it goes into a reset's options.
        owner: The layer that has this method.
        looks: Whether a reset looks at `options["task"]`. None if that was not tried: there is a method.
        others: Further methods that have to do with tasks.
        sample: A task that its own `sample_tasks` drew, as text; None where there is none.
    """

    layers: tuple[str, ...]
    is_gymnasium: bool
    way: TaskWay | None
    method: str | None
    owner: str | None
    looks: bool | None
    others: tuple[str, ...]
    sample: str | None


class Looker:
    """Hosted by a worker, to look at environments there."""

    def look(self, make: Callable[[], Any]) -> Lineage:
        """Make the environment, look at it and close it."""
        made = make()
        try:
            return lineage_of(made.env if isinstance(made, OneAgent) else made)
        finally:
            made.close()


def lineage_of(env: Any) -> Lineage:
    """What this environment is made of. It may be reset once."""
    layers = list(_layers(env))
    try:
        way = TaskWay.of(env, None)
    except TypeError:
        way = None
    owner = next((layer for layer in layers if way in _SETTERS and hasattr(type(layer), way.value)), None)
    return Lineage(
        layers=tuple(map(_name, layers)),
        is_gymnasium=isinstance(env, gymnasium.Env),
        way=way,
        method=f"{way.value}{_signature(part_of(env, way.value))}" if way in _SETTERS else None,
        owner=None if owner is None else _name(owner),
        looks=_looks(env) if way is TaskWay.OPTIONS else None,
        others=tuple(name for name in _TOLD if any(hasattr(layer, name) for layer in layers)),
        sample=_sample(layers[-1]),
    )


def _layers(env: Any) -> Iterator[Any]:
    """From the outermost wrapper inwards. Wrappers call what they hold `env`, or `aec_env` where they convert."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        held = [getattr(env, name, None) for name in ("env", "aec_env")]
        env = next((inner for inner in held if callable(getattr(inner, "step", None))), None)


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _signature(method: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(method))
    except ValueError:  # compiled code does not always tell
        return "(...)"


def _looks(env: Any) -> bool:
    """An environment that fails over a task it cannot understand has looked at it, too."""
    options = WatchedOptions(task=_TRIAL)
    try:
        env.reset(seed=0, options=options)
    except Exception:  # noqa: BLE001  # any error is an answer here
        return options.seen
    return options.seen


def _sample(env: Any) -> str | None:
    for arguments in ((1,), (1, 0)):
        try:
            (task,) = env.sample_tasks(*arguments)
        except Exception:  # noqa: BLE001  # it has none, or wants to be asked in another way
            continue
        return repr(task)
    return None
