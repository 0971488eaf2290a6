"""Which policies share something that can change, and so must stay together."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

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
    types.BuiltinFunctionType,
    types.CodeType,
    property,
)
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


def _parts(thing: Any) -> Iterator[Any]:
    """Everything that can change and can be reached from a thing, the thing itself first."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.pop()
        if isinstance(one, _CONSTANT) or id(one) in seen:
            continue
        seen.add(id(one))
        if not isinstance(one, tuple | frozenset | types.FunctionType | types.MethodType):
            yield one
        waiting.extend(_inside(one))


def _inside(one: Any) -> Iterable[Any]:
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)
    if isinstance(one, types.MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, types.FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
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
