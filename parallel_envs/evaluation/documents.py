"""Evaluations as plain values, which JSON and YAML can hold, and back.

A document holds the episodes as they were and, for readers, what they come to. Reading takes the episodes alone and
works the statistics out anew. Numbers come back to the bit; what is no number or infinite is written as text, since
JSON has no word for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure
from parallel_envs.evaluation.statistics import Summary, per_mission, per_mission_and_policy, per_policy

SCHEMA = 1
KIND = "parallel_envs evaluation"

Values = dict[str, Any]

_NUMBERS = {"returns": float, "timeouts": int}
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("mission", "alone"), (str,)),
    **dict.fromkeys(("episode", "seed", "length", "attempts"), (int,)),
    **dict.fromkeys(("assignment", "returns", "infos", "timeouts"), (Mapping,)),
    **dict.fromkeys(("seconds",), (int, float)),
    **dict.fromkeys(("success",), (bool, type(None))),
}
"""What a record may have where."""
_SETTINGS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("missions",), (Mapping,)),
    **dict.fromkeys(("policies",), (Mapping, list, tuple)),
    **dict.fromkeys(("seed", "max_steps", "episodes"), (int,)),
}
"""The same for those settings that are read from a document."""


class BadDocument(ValueError):
    """Something that is no evaluation. The text says what, and where."""


def document_of(result: EvaluationResult) -> Values:
    """All of an evaluation except trajectories."""
    cells = per_mission_and_policy(result)
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "settings": plain(result.settings),
        "options": plain(result.options),
        **({"strategies": plain(result.strategies)} if result.strategies else {}),
        **({"why": plain(result.why)} if result.why else {}),
        "interrupted": result.interrupted,
        "missing": [list(key) for key in result.missing],
        "worker_bytes": list(result.worker_bytes),
        "missions": {
            name: {
                **summary_values(summary),
                "policies": {policy: summary_values(cell) for (of, policy), cell in cells.items() if of == name},
            }
            for name, summary in per_mission(result).items()
        },
        "policies": {name: summary_values(summary) for name, summary in per_policy(result).items()},
        "episodes": [record_values(record) for record in result.episodes],
    }


def result_of(document: Any, where: str = "The document") -> EvaluationResult:
    """The evaluation in a document. Raises BadDocument, naming what is wrong with it."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise BadDocument(f"{where} is not an evaluation. Give a file that `parallel-envs eval --output` wrote.")
    if document.get("schema") != SCHEMA:
        raise BadDocument(
            f"{where} has schema {document.get('schema')!r}, and this version reads {SCHEMA}. Evaluate anew, or read "
            "it with the version that wrote it."
        )
    try:
        _check_kind("episodes", document["episodes"], (list, tuple))
        _check_kind("settings", document["settings"], (Mapping,))
        for name in ("options", "strategies", "why"):
            _check_kind(name, document.get(name, {}), (Mapping,))
        for name, kinds in _SETTINGS.items():
            if name in document["settings"]:
                _check_kind(name, document["settings"][name], kinds)
        return EvaluationResult(
            episodes=tuple(map(record_of, document["episodes"])),
            settings=dict(document["settings"]),
            interrupted=bool(document["interrupted"]),
            missing=tuple(map(_key_of, document["missing"])),
            worker_bytes=tuple(map(int, document["worker_bytes"])),
            options=dict(document.get("options", {})),
            strategies={
                str(mission): {str(agent): str(name) for agent, name in named.items()}
                for mission, named in document.get("strategies", {}).items()
            },
            why={str(mission): str(text) for mission, text in document.get("why", {}).items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadDocument(f"{where} is damaged: {type(error).__name__}: {error}. Evaluate anew.") from error


def summary_values(summary: Summary) -> Values:
    return {name: plain(value) for name, value in dataclasses.asdict(summary).items()}


def record_values(record: EpisodeRecord) -> Values:
    """An episode as plain values, without its trajectory. Agents are text."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    del values["trajectory"]
    if not record.alone:
        del values["alone"]  # earlier versions, which do not know it, read such a record
    failure = dataclasses.asdict(record.failure) if record.failure else None
    return {**plain(values), "late": record.late, "failure": failure}


def record_of(values: Mapping[str, Any]) -> EpisodeRecord:
    """The episode that `record_values` told. Raises what is wrong with the values."""
    told = dict(values)
    for name, kinds in _KINDS.items():
        if name in told:
            _check_kind(name, told[name], kinds)
    for name, kind in _NUMBERS.items():
        told[name] = {agent: kind(number) for agent, number in told.get(name, {}).items()}
    for policy in told.get("assignment", {}).values():
        _check_kind("assignment", policy, (str,))
    failure = told.pop("failure", None)
    told.pop("late", None)  # for readers: it is the sum of `timeouts`
    for name, text in (failure or {}).items():
        _check_kind(name, text, (str,))
    if told.pop("trajectory", None) is not None:
        raise ValueError("trajectories are not in such files")
    return EpisodeRecord(**told, failure=Failure(**failure) if failure else None)


def _key_of(told: Sequence[Any]) -> tuple[str, int] | tuple[str, int, str]:
    mission, episode, *alone = told
    if alone:
        (policy,) = alone
        return str(mission), int(episode), str(policy)
    return str(mission), int(episode)


def _check_kind(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name} is {value!r}")


def plain(value: Any) -> Any:
    """A value as JSON can say it: arrays as lists, keys as text, what is none of its kinds as its `repr`."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() | np.floating():
            return float(value) if math.isfinite(value) else str(float(value))
        case np.bool_() | np.integer() | np.ndarray():
            return plain(value.tolist())
        case Mapping():
            names = names_of(value)
            return {names[key]: plain(inner) for key, inner in value.items()}
        case Sequence() | set() | frozenset() if not isinstance(value, bytes):
            return [plain(inner) for inner in value]
        case _:
            return repr(value)


def names_of(keys: Iterable[Any]) -> dict[Any, str]:
    """Keys as text: as they are shown, or where that does not tell them apart, as Python writes them."""
    shown = {key: str(key) for key in keys}
    return shown if len(set(shown.values())) == len(shown) else {key: repr(key) for key in shown}
