"""What keeps an agent from becoming what a state tells: its own state and that one, compared part by part."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from parallel_envs.learners.brain import Brain

CARRY = "carry"
"""Among arrays, prepared or kept: what a recurrent agent remembers at its end, `[rows, ...]`, for the next."""
STAMPS = "versions"
"""Among a memory's arrays: which version of the weights acted in each place."""
OF_THE_MOMENT = {CARRY}
"""Arrays of a state that are no part of the agent's architecture."""

_NOT_NEEDED = {"acting", STAMPS}  # a generator and an array that a state may come without
_FROM_ZERO_UP = {"steps", "second"}  # of Adam: how many, and a mean of squares

_PARTS_OF_A_MEMORY = "counters", "arrays"

_MOST = 2**62  # that can be counted to: versions stand in arrays


def form_of(brain: Brain) -> dict[str, Any]:
    """What an agent's numbers mean, as JSON can say it: they are of no use to an agent of which this is not true."""
    algorithm, layout = brain.algorithm, brain.layout
    return {
        "algorithm": algorithm.name,
        "network": getattr(algorithm.config, "network", "mlp"),
        "activation": algorithm.config.activation,
        "observation_space": repr(algorithm.observation_space),
        "action_space": repr(algorithm.action_space),
        "parameters": [[part.name, list(part.shape)] for part in (*layout.trained, *layout.targets)],
    }


def misfits(state: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """In what a state's architecture differs from an agent's own: its form (if it tells it), and its arrays."""
    return [*_of_forms(state.get("form"), own.get("form")), *_of_arrays(state["arrays"], own["arrays"])]


def damages(state: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """What else keeps it from being taken over: numbers that are none, or counters, a generator, a memory unlike the
    agent's own.
    """
    odd = {
        "arrays": _of_numbers(state["arrays"]),
        "counters": _of_counters(state["counters"], own["counters"]),
        "generator": _of_generators(state["generator"], own["generator"]),
        "memory": _of_memories(state.get("memory"), own.get("memory")),
    }
    return [f"{name}: {told}" for name, all_told in odd.items() for told in all_told]


def described(arrays: Mapping[str, Any], name: str) -> str:
    """The dtype and shape of an array."""
    return _form(arrays[name], 0) if name in arrays else "nothing"


def _form(array: Any, first_axis: int) -> str:
    """The same, without the axes in front of one; or what there is in the place of an array."""
    if not isinstance(array, np.ndarray):
        return f"no array but a {type(array).__name__}"
    return f"{array.dtype}{list(array.shape[first_axis:])}"


# ---- the parts ------------------------------------------------------------------------------------------------------


def _of_forms(stored: Any, own: Any) -> Iterator[str]:
    if stored is None or own is None:  # from before there were any
        return
    if not isinstance(stored, dict):
        yield f"form: {stored!r} stored"
        return
    for name, value in own.items():
        given = stored.get(name)
        if name == "parameters" and isinstance(given, list):
            yield from _of_parameters(given, value)
        elif given != value:
            yield f"{name}: {given} stored, {value} here"


def _of_parameters(stored: list[Any], own: list[Any]) -> Iterator[str]:
    """The first that differs: those behind it do so as a rule."""
    for given, wanted in itertools.zip_longest(stored, own):
        if given != wanted:
            yield f"parameters: {_parameter(given)} stored, {_parameter(wanted)} here"
            return


def _parameter(told: Any) -> str:
    return "nothing" if told is None else " ".join(map(str, told)) if isinstance(told, list) else repr(told)


def _of_arrays(stored: Any, own: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(stored, Mapping):
        yield f"arrays: {stored!r} stored"
        return
    for name in sorted({*stored, *own} - OF_THE_MOMENT, key=str):
        if described(stored, name) != described(own, name):
            yield f"{name}: {described(stored, name)} stored, {described(own, name)} here"


def _of_numbers(stored: Mapping[str, Any]) -> Iterator[str]:
    """From numbers that are none, no update would ever come to anything."""
    for name in sorted(stored.keys() - OF_THE_MOMENT):
        if not np.isfinite(stored[name]).all():
            yield f"{name} is not finite everywhere"
        elif name in _FROM_ZERO_UP and (stored[name] < 0).any():
            yield f"{name} is below 0 somewhere"


def _of_counters(stored: Any, own: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(stored, Mapping):
        yield f"{stored!r} stored"
        return
    for name, mine in own.items():
        given = stored.get(name)
        if type(given) is not type(mine) or (isinstance(given, int) and not 0 <= given <= _MOST):
            yield f"{name} is {given!r}"


def _of_generators(stored: Any, own: Mapping[str, Any]) -> Iterator[str]:
    """A generator's state, or several by name."""
    if "bit_generator" in own:
        if not _can_be_set(stored, own["bit_generator"]):
            yield f"no state of {own['bit_generator']}"
        return
    if not isinstance(stored, Mapping):
        yield f"{stored!r} stored"
        return
    kind = next(iter(own.values()))["bit_generator"]
    for name in sorted({*own, *stored} - {name for name in _NOT_NEEDED if stored.get(name) is None}, key=str):
        if not _can_be_set(stored.get(name), kind):
            yield f"{name} is no state of {kind}"


def _can_be_set(state: Any, kind: str) -> bool:
    try:
        getattr(np.random, kind)().state = state
    except (TypeError, ValueError, KeyError, OverflowError):
        return False
    return True


def _of_memories(stored: Any, own: Any) -> Iterator[str]:
    """A state without one is well: what is remembered stays as it is. Who needs none takes none over."""
    if stored is None or own is None:
        return
    if not isinstance(stored, Mapping) or not all(isinstance(stored.get(one), Mapping) for one in _PARTS_OF_A_MEMORY):
        yield f"{type(stored).__name__} without counters and arrays stored"
        return
    for name in ("capacity", "num_rows"):
        if stored["counters"].get(name) != own["counters"].get(name):
            yield f"{name}={stored['counters'].get(name)} stored, {own['counters'].get(name)} here"
    for name in sorted({*stored["arrays"], *own["arrays"]}, key=str):
        given, mine = (_step_of(part["arrays"], name) for part in (stored, own))
        if given != mine and not (name in _NOT_NEEDED and given == "nothing"):
            yield f"{name}: {given} stored, {mine} here"


def _step_of(arrays: Mapping[str, Any], name: str) -> str:
    """The form of what is stored of one step."""
    return _form(arrays[name], 1) if name in arrays else "nothing"


def differing(stored: Any, own: Any) -> set[str]:
    """The settings in which two configs differ."""
    if not isinstance(stored, dict) or not isinstance(own, dict):
        return set()
    said = json.loads(json.dumps([stored, own]))  # tuples become lists, as in the file
    return {name for name in {*stored, *own} if said[0].get(name) != said[1].get(name)}
