"""What agents have learned, in files that are whole or not there, without pickle.

    checkpoint/                      whole, or under another name beside it
        checkpoint.json              which agents; what is about all of them (counts, seeds)
        agent_0/                     all there is of one agent: copy it, and you have that agent
            agent.json               config, counters, the random generator's state; form and checksum of the arrays
            arrays.safetensors       parameters, the optimiser's moments
            memory.npz               its replay buffer, if it has one

An agent's *state* is a dict: `config`, `form` (what its numbers mean: see `forms.py`), `counters` and `generator`,
which JSON can say, `arrays`, a dict of NumPy arrays, and, if it has a replay buffer, `memory`, that buffer's own state.

Each JSON file has a checksum of what it says itself, and one that does not agree with it is refused. Files of earlier
formats (checkpoint 1, agent 1 and 2) have none, and are read without.

Agents of the format 1 have no `form`. They are read all the same, and what only a form tells is not checked: that they
fit is up to whoever loads them. Saving them again gives them one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.files import new_folder, place_of, write_down
from parallel_envs.learners.agent_folders import as_json, folder_names, folders_in
from parallel_envs.learners.forms import damages, described, differing, misfits
from parallel_envs.rollouts.replay import archive_writer, read_archive

Agent = Hashable
State = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]

_ALL, _ONE, _ARRAYS, _MEMORY = "checkpoint.json", "agent.json", "arrays.safetensors", "memory.npz"
_FORMATS = {
    _ALL: ("parallel_envs checkpoint 2", "parallel_envs checkpoint 1"),
    _ONE: ("parallel_envs agent 3", "parallel_envs agent 2", "parallel_envs agent 1"),
}
"""Those that can be read; the first is written. It has a checksum of the file itself, which older ones lack."""
_CHECKSUM = "checksum_of_this_file"
_SAID_IN_JSON = ("config", "counters", "generator")


class BadCheckpoint(ValueError):
    """A checkpoint is damaged, foreign, or does not fit. The text names the file and the agent; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every agent's state, and what was said `about` all of them."""

    agents: dict[Agent, State]
    about: dict[str, Any]


# ---- all agents ---------------------------------------------------------------------------------------------------


def save_checkpoint(folder: str | Path, agents: Mapping[Agent, State], about: Mapping[str, Any] | None = None) -> None:
    """Write every agent's state into a folder, in the place of the checkpoint that may be there.

    Whenever the process dies, `folder` is the old checkpoint or the new one, whole. A folder that is no checkpoint is
    not written over: FileExistsError.
    """
    target = place_of(folder)
    _check_free(target, _ALL)
    names = folder_names(agents)
    entries = [{"agent": as_json(agent), "folder": name} for agent, name in names.items()]
    with new_folder(target) as draft:
        for agent, state in agents.items():
            _write_agent(draft / names[agent], agent, state)
        _write_json(draft / _ALL, {"agents": entries, "about": dict(about or {})})


def load_checkpoint(folder: str | Path) -> Checkpoint:
    """What `save_checkpoint` wrote. Raises BadCheckpoint, FileNotFoundError."""
    told = _table_of(folder)
    return Checkpoint({agent: _read_own(path, agent) for agent, path in told.items()}, about(folder))


def is_checkpoint(folder: str | Path) -> bool:
    """Whether a checkpoint was written here. It may be damaged all the same."""
    return (Path(folder) / _ALL).is_file()


def about(folder: str | Path) -> dict[str, Any]:
    """What is said about all agents, without reading theirs."""
    path = Path(folder) / _ALL
    told = _read_json(path).get("about", {})
    if not isinstance(told, dict):
        raise BadCheckpoint(f"{path} says {told!r} about all agents, where names and values are wanted.")
    return told


# ---- one agent ----------------------------------------------------------------------------------------------------


def export_agent(checkpoint: str | Path, agent: Agent, folder: str | Path) -> None:
    """Write one agent of a checkpoint into a folder of its own, for `load_agent`."""
    save_agent(folder, agent, load_agent(checkpoint, agent))


def save_agent(folder: str | Path, agent: Agent, state: State) -> None:
    """Write one agent's state into a folder, in the place of the agent that may be there."""
    target = place_of(folder)
    if is_checkpoint(target.parent):
        raise FileExistsError(
            f"{target} is within a checkpoint, which is to stay whole. Choose another folder, or put the agent in the "
            "place of one of the checkpoint's with replace_agent."
        )
    _check_free(target, _ONE)
    with new_folder(target) as draft:
        _write_agent(draft, agent, state)


def load_agent(folder: str | Path, agent: Agent | None = None, *, with_memory: bool = True) -> State:
    """An agent's state, from a folder of its own, whoever it was, or, by name, out of a checkpoint.

    `with_memory=False` leaves out its replay buffer, whose file need not be there.
    """
    folder = Path(folder)
    if not is_checkpoint(folder):
        return _read(folder, agent, with_memory=with_memory)[0]
    told = _table_of(folder)
    if agent is None and len(told) == 1:
        (agent,) = told
    if agent is None:
        raise BadCheckpoint(f"{folder} holds several agents. Name one: {', '.join(map(repr, told))}.")
    if agent not in told:
        raise BadCheckpoint(f"{folder} holds no agent {agent!r}. It holds {', '.join(map(repr, told))}.")
    return _read_own(told[agent], agent, with_memory=with_memory)


def replace_agent(checkpoint: str | Path, agent: Agent, state: State) -> None:
    """Put another state in an agent's place: one that was exported, frozen, or another agent's of the same form.

    Its replay buffer comes with it and has to be of the same size; a state without `memory` has the agent go on with
    what it is given to live.
    """
    whole = load_checkpoint(checkpoint)
    if agent not in whole.agents:
        raise BadCheckpoint(f"{checkpoint} holds no agent {agent!r}. It holds {', '.join(map(repr, whole.agents))}.")
    check_whole(state, whole.agents[agent], agent, "The given state")
    save_checkpoint(checkpoint, {**whole.agents, agent: state}, whole.about)


def frozen(state: State, *, is_frozen: bool = True) -> State:
    """A state whose agent acts but does not learn."""
    if not isinstance(state.get("counters"), Mapping):
        raise BadCheckpoint("The given state is no state of an agent: it has no counters.")
    return {**state, "counters": {**state["counters"], "frozen": is_frozen}}


def check_fits(state: State, own: State, agent: Agent, where: str | Path) -> None:
    """Raise BadCheckpoint unless a state is of an agent's own architecture: what its numbers mean, and all its arrays.

    How it learnt (rates, discount) may be other than how it is to learn.
    """
    if odd := misfits(state, own):
        settings = sorted(differing(state["config"], own["config"]))
        hint = f" Their configs differ in {', '.join(settings)}." if settings else ""
        raise BadCheckpoint(
            f"{where} does not fit agent {agent!r}: it is of another architecture ({'; '.join(odd)}).{hint} Nothing "
            "was loaded."
        )


def check_whole(state: State, own: State, agent: Agent, where: str | Path) -> None:
    """The same, and that everything else in it can be taken over: counters, generators, a replay buffer."""
    if not isinstance(state, Mapping):
        raise BadCheckpoint(f"{where} holds {state!r} for agent {agent!r}, where a state is wanted.")
    if missing := [name for name in (*_SAID_IN_JSON, "arrays") if name not in state]:
        raise BadCheckpoint(f"{where} is no state of agent {agent!r}: it has no {', '.join(missing)}.")
    check_fits(state, own, agent, where)
    if odd := damages(state, own):
        hint = " Leave its `memory` out to take the rest over." if any(one.startswith("memory") for one in odd) else ""
        raise BadCheckpoint(f"{where} does not fit agent {agent!r} ({'; '.join(odd)}). Nothing was loaded.{hint}")


# ---- files --------------------------------------------------------------------------------------------------------


def _write_agent(folder: Path, agent: Agent, state: State) -> None:
    folder.mkdir(exist_ok=True)
    data = _as_safetensors(agent, state["arrays"])
    said = {name: state[name] for name in _SAID_IN_JSON} | {"form": state.get("form")}
    forms = {name: described(state["arrays"], name) for name in state["arrays"]}
    memory = state.get("memory")
    if memory is not None:
        write_down(folder / _MEMORY, archive_writer(memory["counters"], memory["arrays"]))
    write_down(folder / _ARRAYS, lambda file: file.write(data))
    told = {
        "agent": as_json(agent),
        **said,
        "arrays": forms,
        "checksum": zlib.crc32(data),
        "has_memory": memory is not None,
    }
    _write_json(folder / _ONE, told)


def _as_safetensors(agent: Agent, arrays: Arrays) -> bytes:
    from safetensors import SafetensorError
    from safetensors.numpy import save

    try:
        return bytes(save({name: np.asarray(array, order="C") for name, array in arrays.items()}))
    except SafetensorError as error:
        raise TypeError(f"The arrays of agent {agent!r} cannot be stored: {error}") from error


def _table_of(folder: str | Path) -> dict[Agent, Path]:
    """Where each agent's folder is."""
    path = Path(folder) / _ALL
    entries = _read_json(path).get("agents")
    try:
        return {agent: path.parent / name for agent, name in folders_in(entries).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} does not say which agents there are, and where: {error}.") from error


def _read_own(folder: Path, agent: Agent, *, with_memory: bool = True) -> State:
    """The state of an agent from its own folder in a checkpoint: another's, put there by hand, is not taken for it."""
    state, named = _read(folder, agent, with_memory=with_memory)
    if named != as_json(agent):
        raise BadCheckpoint(
            f"agent {agent!r} cannot be read from {folder}, which holds agent {named!r}. To put one agent in another's "
            "place, use replace_agent."
        )
    return state


def _read(folder: Path, agent: Agent | None, *, with_memory: bool = True) -> tuple[State, Any]:
    """The state in a folder, and whose it is. `agent`: who is wanted, for errors."""
    try:
        told = _read_json(folder / _ONE)
        state: State = {name: told[name] for name in _SAID_IN_JSON}
        if told.get("form") is not None:
            state["form"] = told["form"]
        state["arrays"] = _read_arrays(folder / _ARRAYS, told["checksum"])
        if told["has_memory"] and with_memory:
            counters, arrays = read_archive(folder / _MEMORY)
            state["memory"] = {"counters": counters, "arrays": arrays}
    except (KeyError, ValueError, TypeError, OSError) as error:
        whose = f"agent {agent!r}" if agent is not None else "the agent"
        raise BadCheckpoint(f"{whose} cannot be read from {folder}. {error}") from error
    return state, told.get("agent")


def _read_arrays(path: Path, checksum: int) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = path.read_bytes()
    if zlib.crc32(data) != checksum:
        raise BadCheckpoint(f"{path} is truncated, damaged, or not the file that was written with {_ONE}.")
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise BadCheckpoint(f"{path} is no safetensors file: {error}") from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    told = {"format": _FORMATS[path.name][0], **content}
    try:
        text = json.dumps({**told, _CHECKSUM: _checksum_of(told)}, indent=2)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path.name} cannot say what it is to hold: {error}") from error
    write_down(path, lambda file: file.write(text.encode()))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"There is no file {path}.") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from error
    if not isinstance(told, dict) or told.get("format") not in _FORMATS[path.name]:
        found = told.get("format") if isinstance(told, dict) else type(told).__name__
        raise BadCheckpoint(f"{path} is not of the format {_FORMATS[path.name][0]!r}, but {found!r}.")
    checksum = told.pop(_CHECKSUM, None)
    is_new = told["format"] == _FORMATS[path.name][0]
    if (is_new or checksum is not None) and checksum != _checksum_of(told):
        raise BadCheckpoint(
            f"{path} is damaged or was changed by hand: its checksum differs. Agents are changed with load_agent, "
            "frozen and replace_agent."
        )
    return told


def _checksum_of(content: dict[str, Any]) -> int:
    """Return the checksum of what a JSON file says, whatever its layout. A number equals itself to the last digit."""
    return zlib.crc32(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode())


def _check_free(target: Path, sign: str) -> None:
    if target.exists() and not (target / sign).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} exists and is not a checkpoint: it is not written over. Choose another folder."
        )
