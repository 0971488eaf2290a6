"""Episodes kept as files: what was seen and done, without pickle, and whole or not there.

    save_episode(folder, record)                     # folder/simple_spread_v3-0007.npz
    episode = read_episode(path)
    episode.arrays["observations/agent_0"]           # a row for each step in which the agent was there

Observations and actions that are dicts or tuples have an array for each part: `observations/agent_0/camera`. What has
another shape from step to step is kept as text. `steps/...` says in which steps the rows were, where that is not all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from parallel_envs.evaluation.documents import BadDocument, names_of, record_of, record_values
from parallel_envs.evaluation.records import EpisodeRecord, Trajectory
from parallel_envs.files import short_name
from parallel_envs.rollouts.replay import read_archive, write_archive

Array = npt.NDArray[Any]

KIND = "parallel_envs episode"
SCHEMA = 1

_PARTS = ("observations", "actions", "rewards", "terminations", "truncations")
_PLAIN_KINDS = "biufcUS"  # numbers, flags and text: what a file holds without pickle


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode from a file: its record, without trajectory, and the trajectory as arrays by name."""

    record: EpisodeRecord
    arrays: Mapping[str, Array]


def save_episode(folder: str | Path, record: EpisodeRecord) -> Path:
    """Write an episode to the folder, which is made if need be. Returns the file."""
    if record.trajectory is None:
        raise ValueError(
            f"Episode {record.episode} of {record.mission!r} has no trajectory. Evaluate with trajectories=True."
        )
    path = episode_file(folder, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"kind": KIND, "schema": SCHEMA, "record": record_values(record)}
    write_archive(path, header, trajectory_arrays(record.trajectory))
    return path


def read_episode(path: str | Path) -> SavedEpisode:
    """What `save_episode` wrote. Raises BadDocument, naming the file, if it holds something else."""
    try:
        header, arrays = read_archive(path)
    except (OSError, ValueError) as error:
        raise BadDocument(f"{path} is not a saved episode: {error}") from error
    if header.get("kind") != KIND or header.get("schema") != SCHEMA:
        raise BadDocument(f"{path} is not a saved episode, or one of another version.")
    try:
        return SavedEpisode(record_of(header["record"]), arrays)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadDocument(f"{path} is damaged: {type(error).__name__}: {error}.") from error


def episode_file(folder: str | Path, record: EpisodeRecord, suffix: str = ".npz") -> Path:
    """Where an episode goes: named by its mission, quoted as in an address, by the policy where policies played one by
    one, and by its number.

    A mission's name that is too long for a file is cut, with a checksum at the end that tells it from others.
    """
    parts = [record.mission, record.alone] if record.alone else [record.mission]
    name = short_name("-".join(quote(part, safe=",=+", errors="surrogatepass") for part in parts), 200)
    return Path(folder) / f"{name}-{record.episode:04d}{suffix}"


def trajectory_arrays(trajectory: Trajectory) -> dict[str, Array]:
    """A trajectory as arrays by name."""
    arrays: dict[str, Array] = {}
    names = names_of(dict.fromkeys(agent for step in trajectory.observations for agent in step))
    for part in _PARTS:
        steps: Sequence[Mapping[Any, Any]] = getattr(trajectory, part)
        for agent in dict.fromkeys(agent for step in steps for agent in step):
            rows = [number for number, step in enumerate(steps) if agent in step]
            name = names.get(agent, str(agent))
            if len(rows) < len(steps):
                arrays[f"steps/{part}/{name}"] = np.array(rows)
            arrays.update(_columns(f"{part}/{name}", [steps[number][agent] for number in rows]))
    return arrays


def _columns(name: str, values: Sequence[Any]) -> dict[str, Array]:
    """The values as rows of one array, or of one for each of their parts."""
    if all(isinstance(value, Mapping) for value in values) and len({tuple(value) for value in values}) == 1:
        parts = {f"{name}/{key}": [value[key] for value in values] for key in values[0]}
    elif all(isinstance(value, tuple) for value in values) and len({len(value) for value in values}) == 1:
        parts = {f"{name}/{place}": [value[place] for value in values] for place in range(len(values[0]))}
    else:
        return {name: _rows(values)}
    return {column: array for part, inner in parts.items() for column, array in _columns(part, inner).items()}


def _rows(values: Sequence[Any]) -> Array:
    try:
        rows = np.stack([np.asarray(value) for value in values])
    except ValueError:  # of different shapes
        return _text(values)
    return rows if rows.dtype.kind in _PLAIN_KINDS else _text(values)


def _text(values: Sequence[Any]) -> Array:
    return np.array([repr(value) for value in values])
