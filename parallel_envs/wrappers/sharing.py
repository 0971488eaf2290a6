"""Which policies share something that can change, and so must stay together."""

from __future__ import annotations

import functools
import logging
import pathlib
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space, Tuple

from parallel_envs.engine import picklable

_CONSTANT = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    range,
    slice,
    np.dtype,
    np.generic,
    types.ModuleType,
    types.CodeType,
    property,
    logging.Logger,
    pathlib.PurePath,
)
_OF_TORCH = ("dtype", "device", "layout", "memory_format", "Size")  # constants too, of a library that may be absent
_SEEN_THROUGH = (
    tuple,
    frozenset,
    functools.partial,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)
"""These cannot change, but may hold what can."""
_IN_ONE_THREAD = ("sequential", "batch", "gpu")
_MOST_OBJECTS = 100_000  # of one policy; more are not looked at


def sharers(policies: Mapping[Hashable, Any]) -> list[list[Hashable]]:
    """The agents in groups: those of one group share something, directly or through others."""
    owner: dict[int, Hashable] = {}
    leader: dict[Hashable, Hashable] = {agent: agent for agent in policies}
    kept = []  # ids are unique only while their objects live

    def root(agent: Hashable) -> Hashable:
        while leader[agent] != agent:
            agent = leader[agent]
        return agent

    for agent, policy in policies.items():
        for part in _parts(policy):
            kept.append(part)
            first = owner.setdefault(id(part), agent)
            leader[root(agent)] = root(first)
    groups: dict[Hashable, list[Hashable]] = {}
    for agent in policies:
        groups.setdefault(root(agent), []).append(agent)
    return list(groups.values())


def check_together(
    policies: Mapping[Hashable, Any], strategy_of: Callable[[Hashable], str], new: Mapping[Hashable, Any]
) -> None:
    """Hashables that share something must have one strategy: apart they would stop sharing."""
    for group in sharers(policies):
        names = {strategy_of(agent) for agent in group}
        if len(names) > 1:
            raise ValueError(
                f"The policies of {group} share an object, but their strategies are {sorted(names)}: apart they would "
                "stop sharing it. Give them one strategy, or policies of their own."
            )
        late = [agent for agent in group if agent in new]
        if 0 < len(late) < len(group) and not names <= {*_IN_ONE_THREAD}:
            raise ValueError(
                f"The policy of {late[0]!r} shares an object with those of {[a for a in group if a not in new]}, who "
                f"were met before: with strategy={names.pop()!r} they would stop sharing it. Give a dict of all "
                f"policies, so that all are met at once, or one of the strategies {_IN_ONE_THREAD}, "
                "of which it is known that they compute in the caller."
            )


def stuck(policies: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Those policies that cannot be pickled, with those that share something with them."""
    groups = [group for group in sharers(policies) if not picklable([policies[agent] for agent in group])]
    return {agent: policies[agent] for group in groups for agent in group}


def _parts(thing: Any) -> Iterator[Any]:
    """Everything that can change and can be reached from a thing, the thing itself first."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or _is_constant(one):
            continue
        seen.add(id(one))
        if not isinstance(one, _SEEN_THROUGH) and not _is_frozen(one):
            yield one
        waiting.extend(_inside(one))


def _is_constant(one: Any) -> bool:
    kind = type(one)
    return (
        isinstance(one, _CONSTANT)
        or (isinstance(one, Space) and not _has_generator(one))
        or (kind.__module__ == "torch" and kind.__name__ in _OF_TORCH)
    )


def _has_generator(space: Space[Any]) -> bool:
    """Whether a space has been seeded, or sampled. Until then it can change only by that."""
    parts = space.spaces.values() if isinstance(space, Dict) else space.spaces if isinstance(space, Tuple) else ()
    own: Any = space._np_random
    return own is not None or any(_has_generator(part) for part in parts)


def _is_frozen(one: Any) -> bool:
    parameters = getattr(type(one), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _inside(one: Any) -> Iterable[Any]:
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, list | tuple | set | frozenset | deque):
        return list(one)
    if isinstance(one, types.MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, types.BuiltinFunctionType):
        return [one.__self__]
    if isinstance(one, functools.partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, types.FunctionType):
        cells = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        return [*cells, *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values(), *vars(one).values()]
    if isinstance(one, np.ndarray):
        return [one.base, *(one.flat if one.dtype.hasobject and one.dtype.names is None else ())]
    if isinstance(one, np.random.Generator):
        return [one.bit_generator]
    return _attributes(one)


def _attributes(one: Any) -> list[Any]:
    inside = list(getattr(one, "__dict__", {}).values())
    for kind in type(one).__mro__:
        slots = getattr(kind, "__slots__", ())
        inside += [getattr(one, name) for name in ((slots,) if isinstance(slots, str) else slots) if hasattr(one, name)]
    return inside


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # an empty cell raises
    except ValueError:
        return False
    return True
