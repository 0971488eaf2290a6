"""Find the policies that share an object: they must have one strategy, and live in one worker or thread."""

from __future__ import annotations

import functools
import gc
import logging
import pathlib
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space, Tuple

from parallel_envs.engine import picklable

IN_ONE_THREAD = ("sequential", "batch", "gpu")
"""Strategies that compute in the caller's thread, where policies may share objects with policies of other wrappers."""

_CONSTANT = (
    *(str, bytes, int, float, complex, bool, type(None), type, range, slice, property),
    *(np.dtype, np.generic, types.ModuleType, types.CodeType, logging.Logger, pathlib.PurePath),
)
_OF_TORCH = ("dtype", "device", "layout", "memory_format", "Size")  # constants too, of a library that may be absent
_IMMUTABLE_CONTAINERS = (
    *(tuple, frozenset, functools.partial, types.CellType),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType),
)
"""Objects of these types cannot change, but may hold objects that can."""
_MOST_OBJECTS = 100_000  # of one policy; more are not searched


def sharers(policies: Mapping[Hashable, Any]) -> list[list[Hashable]]:
    """Return the agents in groups: the agents of a group share an object, directly or through other agents."""
    group_of: dict[Hashable, list[Hashable]] = {}
    owner: dict[int, Hashable] = {}
    kept = []  # ids are unique only while their objects live
    for agent, policy in policies.items():
        group_of[agent] = [agent]
        for part in _mutable_parts(policy):
            kept.append(part)
            other = group_of[owner.setdefault(id(part), agent)]
            if other is not group_of[agent]:
                joined = other + group_of[agent]
                group_of |= dict.fromkeys(joined, joined)
    order = {agent: place for place, agent in enumerate(policies)}
    groups = {id(group): sorted(group, key=lambda agent: order[agent]) for group in group_of.values()}
    return list(groups.values())


def check_together(
    policies: Mapping[Hashable, Any], strategy_of: Callable[[Hashable], str], new: Mapping[Hashable, Any]
) -> None:
    """Raise if agents that share an object have different strategies: their policies would stop sharing it."""
    for group in sharers(policies):
        names = {strategy_of(agent) for agent in group}
        if len(names) > 1:
            raise ValueError(
                f"The policies of {group} share an object, but their strategies are {sorted(names)}: apart they would "
                "stop sharing it. Give them one strategy, or policies of their own."
            )
        late = [agent for agent in group if agent in new]
        if 0 < len(late) < len(group) and not names <= {*IN_ONE_THREAD}:
            raise ValueError(
                f"The policy of {late[0]!r} shares an object with those of {[a for a in group if a not in new]}, which "
                f"were added before: with strategy={names.pop()!r} they would stop sharing it. Give a dict of all "
                f"policies, so that all are added at once, or one of the strategies {IN_ONE_THREAD}, which compute in "
                "the caller."
            )


def stuck(policies: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Return the policies that cannot be pickled, and the policies that share an object with them."""
    groups = [group for group in sharers(policies) if not picklable([policies[agent] for agent in group])]
    return {agent: policies[agent] for group in groups for agent in group}


def _mutable_parts(thing: Any) -> Iterator[Any]:
    """Return all objects that can change and can be reached from a thing, the thing itself first."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.pop()
        kind = type(one)
        if (
            id(one) in seen
            or isinstance(one, _CONSTANT)
            or (isinstance(one, Space) and not _has_generator(one))
            or (kind.__module__ == "torch" and kind.__name__ in _OF_TORCH)
        ):
            continue
        seen.add(id(one))
        dataclass_parameters = getattr(kind, "__dataclass_params__", None)
        is_frozen = dataclass_parameters is not None and bool(dataclass_parameters.frozen)
        if not isinstance(one, _IMMUTABLE_CONTAINERS) and not is_frozen:
            yield one
        if isinstance(one, types.FunctionType):  # not its globals
            waiting += [one.__closure__, one.__defaults__, *vars(one).values(), *(one.__kwdefaults__ or {}).values()]
        elif isinstance(one, np.ndarray):  # which the garbage collector does not look into
            waiting += [one.base, *(one.flat if one.dtype.hasobject and one.dtype.names is None else ())]
        else:
            waiting += gc.get_referents(one)


def _has_generator(space: Space[Any]) -> bool:
    """Return True if a space has been seeded or sampled. Before that, only seeding and sampling can change it."""
    parts = space.spaces.values() if isinstance(space, Dict) else space.spaces if isinstance(space, Tuple) else ()
    own: Any = space._np_random
    return own is not None or any(_has_generator(part) for part in parts)
