"""What is wrong with settings, in plain words, and what was probably meant."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from parallel_envs import spelling, standard_names


def told(mistake: Mapping[str, Any], known: Collection[str]) -> str:
    """One that pydantic found, as a sentence or two. `known`: what may stand where it is."""
    path = mistake["loc"]
    name = ".".join(map(str, path))
    if mistake["type"] == "extra_forbidden":
        return f"`{name}` is unknown. {_right_word(str(path[-1]), known, _owners() if len(path) == 1 else {})}"
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    return f"`{name}: {mistake['input']!r}`: {mistake['msg'].removeprefix('Value error, ')}.{_meant(mistake)}"


def _right_word(name: str, known: Collection[str], owners: Mapping[str, Collection[str]]) -> str:
    """`owners`: settings of algorithms, and of which, that stand one level below."""
    if name in owners:
        return f"It is a setting of {', '.join(owners[name])}: write it as `algorithm.{name}`."
    if standard := standard_names.told(name, known) or _of_algorithms(name, owners):
        return standard
    close = spelling.nearest(name, [*known, *owners])
    if close is not None and close not in known:
        return f"Did you mean `algorithm.{close}`?"
    return spelling.advice(name, known)


def _of_algorithms(name: str, owners: Mapping[str, Collection[str]]) -> str:
    """What a name of another package is called among the settings of algorithms; why there is none; or nothing."""
    found = {one.ours: one.note for one in standard_names.meanings_elsewhere(name, ()) if one.ours in owners}
    if not found:
        reason = standard_names.ABSENT.get(name.lower())
        return f"{reason}: leave it out." if reason and owners else ""
    places = " or ".join(f"`algorithm.{ours}` ({', '.join(owners[ours])})" for ours in found)
    return " ".join([f"It is called {places} here.", *filter(None, dict.fromkeys(found.values()))])


def _owners() -> dict[str, list[str]]:
    from parallel_envs.learners.learner import configs_by_name  # brings torch, so only where something is wrong

    configs = configs_by_name()
    owners: dict[str, list[str]] = {"name": sorted(configs)}
    for name, kind in sorted(configs.items()):
        for field in dataclasses.fields(kind):
            owners.setdefault(field.name, []).append(name)
    return owners


def _meant(mistake: Mapping[str, Any]) -> str:
    """The word that is most like a wrong one, if there are words to choose from; how lists and settings look."""
    if mistake["type"] == "dict_type" and isinstance(mistake["input"], str):
        return f" Did you mean `{'.'.join(map(str, mistake['loc']))}.name={mistake['input']}`?"
    if mistake["type"] == "tuple_type":
        return " Give a list, such as [64, 256]."
    expected = mistake["ctx"]["expected"] if mistake["type"] == "literal_error" else ""
    close = spelling.nearest(mistake["input"], re.findall(r"'(\w+)'", expected))
    return f" Did you mean `{close}`?" if close else ""
