"""Trajectories in files, an archive of arrays for each episode, without pickle.

    save_episode(folder, record)                     # folder/simple_spread_v3-0007.npz
    episode = read_episode(path)
    episode.arrays["observations/agent_0"]           # a row for each step in which the agent was present

Observations and actions that are dicts or tuples have an array for each part: `observations/agent_0/camera`. Values
whose shape changes from step to step are kept as text. `steps/...` has the numbers of the steps of the rows, if the
agent was not present in all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from parallel_envs.evaluation.records import BadDocument, EpisodeRecord, Trajectory, names_of, record_of, record_values
from parallel_envs.files import short_name
from parallel_envs.rollouts.replay import read_archive, write_archive

Array = npt.NDArray[Any]

KIND = "parallel_envs episode"
SCHEMA = 1

_PARTS = ("observations", "actions", "rewards", "terminations", "truncations")
_PLAIN_KINDS = "biufcUS"  # numbers, flags and text: arrays that need no pickle


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An episode from a file: its record, without trajectory, and the trajectory as arrays by name."""

    record: EpisodeRecord
    arrays: Mapping[str, Array]


def save_episode(folder: str | Path, record: EpisodeRecord) -> Path:
    """Write an episode to the folder, which is created if it is missing. Return the path of the file."""
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
    """Return the episode in a file that `save_episode` wrote. Raise BadDocument, naming the file, for another file."""
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
    """Return the path for an episode: its mission, quoted as in a URL, the policy if it played alone, and its number.

    A name that is too long for a file is cut, with a checksum at the end.
    """
    parts = [record.mission, record.alone] if record.alone else [record.mission]
    name = short_name("-".join(quote(part, safe=",=+", errors="surrogatepass") for part in parts), 200)
    return Path(folder) / f"{name}-{record.episode:04d}{suffix}"


def trajectory_arrays(trajectory: Trajectory) -> dict[str, Array]:
    """Return a trajectory as arrays by name."""
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
    """Return the values as rows of one array, or of an array for each of their parts."""
    if all(isinstance(value, Mapping) for value in values) and len({tuple(value) for value in values}) == 1:
        parts = {f"{name}/{key}": [value[key] for value in values] for key in values[0]}
    elif all(isinstance(value, tuple) for value in values) and len({len(value) for value in values}) == 1:
        parts = {f"{name}/{place}": [value[place] for value in values] for place in range(len(values[0]))}
    else:
        try:
            rows = np.stack([np.asarray(value) for value in values])
        except ValueError:  # of different shapes
            rows = np.array([], object)
        if rows.dtype.kind not in _PLAIN_KINDS:
            rows = np.array([repr(value) for value in values])
        return {name: rows}
    return {column: array for part, inner in parts.items() for column, array in _columns(part, inner).items()}
