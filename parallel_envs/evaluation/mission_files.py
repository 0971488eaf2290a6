"""Missions in a YAML file, checked word by word.

missions:
  spread:
    env: mpe2.simple_spread_v3
    kwargs: {max_cycles: 50}
    variants:                          # spread:three and spread:five
      three: {N: 3}
      five: {N: 5}
  cart: {env: CartPole-v1}
sets:
  easy: [cart, "spread:*"]
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from parallel_envs.choices import Turns
from parallel_envs.env_files import absolute
from parallel_envs.evaluation.mission_names import check_known, nearest
from parallel_envs.evaluation.missions import Mission
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.yaml_files import content_of

_FORM = "`missions: {cart: {env: CartPole-v1}}`"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MissionBlock(_Strict):
    """One entry of `missions`. With variants it stands for these, each with its own kwargs beside the common ones."""

    env: str
    kwargs: dict[str, Any] = {}
    turns: Turns = "simultaneous"
    variants: dict[str, dict[str, Any]] = {}


class MissionFile(_Strict):
    """A whole file. A set names missions, with wildcards if it likes, and other sets."""

    missions: dict[str, MissionBlock]
    sets: dict[str, list[str]] = {}


def missions_in(path: Path, which: str | None = None) -> list[Mission]:
    """The missions of a file: all of them, a set by name, or those whose names fit."""
    file = _checked(path, content_of(path, BadEvaluation))
    missions = {mission.name: mission for mission in _all(path, file)}
    if which is None:
        return list(missions.values())
    return [missions[name] for name in _chosen(path, which, missions, file.sets, ())]


def named_in(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the environments that a file names, each with its kwargs. Nothing is looked up or imported."""
    for block in _checked(path, content_of(path, BadEvaluation)).missions.values():
        for kwargs in block.variants.values() or [{}]:
            yield absolute(block.env, beside=path.parent), {**block.kwargs, **kwargs}


def _checked(path: Path, content: Any) -> MissionFile:
    try:
        return MissionFile.model_validate(content)
    except ValidationError as error:
        lines = "".join(f"\n  {_told(mistake)}" for mistake in error.errors())
        raise BadEvaluation(f"In {path}:{lines}") from None


def _told(mistake: Any) -> str:
    where = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        known = MissionBlock if mistake["loc"][0] == "missions" else MissionFile
        close = nearest(str(mistake["loc"][-1]), known.model_fields, most=1)
        meant = f"Did you mean {close}?" if close else f"Known are {', '.join(known.model_fields)}."
        return f"`{where}` is unknown. {meant}"
    if mistake["type"] == "model_type":
        return f"`{where or 'the file'}` is {mistake['input']!r}, and is to be a block: {_FORM}."
    if mistake["type"] == "missing":
        return f"`{where}` is missing."
    return f"`{where}: {mistake['input']!r}`: {mistake['msg']}."


def _all(path: Path, file: MissionFile) -> list[Mission]:
    found = []
    for name, block in file.missions.items():
        env = absolute(block.env, beside=path.parent)
        try:
            check_known(env)
        except BadEvaluation as error:
            raise BadEvaluation(f"In {path}, mission {name!r}: {error}") from None
        variants = {f"{name}:{variant}": kwargs for variant, kwargs in block.variants.items()} or {name: {}}
        found += [
            Mission(name=one, env=env, kwargs={**block.kwargs, **kwargs}, turns=block.turns)
            for one, kwargs in variants.items()
        ]
    return found


def _chosen(
    path: Path, which: str, missions: Mapping[str, Mission], sets: Mapping[str, list[str]], inside: tuple[str, ...]
) -> list[str]:
    """The names that a set, a name or a wildcard stands for, each once. `inside`: the sets that led here."""
    if which in inside:
        raise BadEvaluation(f"In {path} the set {which!r} contains itself, by way of {' and '.join(inside)}.")
    if which in sets:
        parts = [_chosen(path, one, missions, sets, (*inside, which)) for one in sets[which]]
        return list(dict.fromkeys(name for part in parts for name in part))
    found = fnmatch.filter(missions, which) or fnmatch.filter(missions, f"{which}:*")
    if not found:
        close = nearest(which, [*missions, *sets])
        meant = f"Did you mean {close}?" if close else f"It has {', '.join(map(repr, [*sets, *missions]))}."
        raise BadEvaluation(f"{path} has neither a mission nor a set {which!r}. {meant}")
    return found
