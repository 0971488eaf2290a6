"""Checkpoints of agents: files that are complete or absent, without pickle.

    checkpoint/                      complete, or beside this place under another name
        checkpoint.json              the agents; data about all of them (counts, seeds)
        agent_0/                     everything of one agent: copy the folder, and you have the agent
            agent.json               config, counters, state of the random generator; form and checksum of the arrays
            arrays.safetensors       parameters, the optimiser's moments
            memory.npz               its replay buffer, if it has one

An agent's *state* is a dict. `config`, `form` (the meaning of its numbers: see `form_of`), `counters` and `generator`
are JSON; `arrays` is a dict of NumPy arrays. `memory` is the state of a replay buffer, if the agent has one.

Each JSON file contains a checksum of its own content, and is refused if the two do not agree. Files of earlier formats
(checkpoint 1, agent 1 and 2) have none, and are read without. Agents of format 1 have no `form` either: they are read,
but only their arrays are checked. Saving them again adds the form.
"""

from __future__ import annotations

import itertools
import json
import urllib.parse
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parallel_envs.files import new_folder, place_of, write_down
from parallel_envs.rollouts.replay import archive_writer, read_archive

if TYPE_CHECKING:
    from parallel_envs.learners.parameters import AgentParameters

Agent = Hashable
State = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]

CARRY = "carry"
"""Name of an array, prepared or saved: the memory of a recurrent agent at its end, `[rows, ...]`."""
STAMPS = "versions"
"""Name of an array of a replay buffer: the version of the weights that acted in each place."""

_ALL, _ONE, _ARRAYS, _MEMORY = "checkpoint.json", "agent.json", "arrays.safetensors", "memory.npz"
_FORMATS = {
    _ALL: ("parallel_envs checkpoint 2", "parallel_envs checkpoint 1"),
    _ONE: ("parallel_envs agent 3", "parallel_envs agent 2", "parallel_envs agent 1"),
}
"""Readable formats; the first is written. It has a checksum of the file itself, which older ones lack."""
_CHECKSUM = "checksum_of_this_file"
_IN_JSON = ("config", "counters", "generator")


class BadCheckpoint(ValueError):
    """A checkpoint is damaged, foreign, or does not fit. The text names the file and the agent; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every agent's state, and data `about` all of them."""

    agents: dict[Agent, State]
    about: dict[str, Any]


# ---- all agents ---------------------------------------------------------------------------------------------------


def save_checkpoint(folder: str | Path, agents: Mapping[Agent, State], about: Mapping[str, Any] | None = None) -> None:
    """Write every agent's state into a folder, in place of an older checkpoint.

    If the process dies at any moment, `folder` is the old checkpoint or the new one, complete. A folder that is no
    checkpoint is not written over: FileExistsError.
    """
    names = folder_names(agents)
    entries = [{"agent": _as_json(agent), "folder": name} for agent, name in names.items()]
    with _in_place_of(place_of(folder), _ALL) as draft:
        for agent, state in agents.items():
            _write_agent(draft / names[agent], agent, state)
        _write_json(draft / _ALL, {"agents": entries, "about": dict(about or {})})


def load_checkpoint(folder: str | Path) -> Checkpoint:
    """Read what `save_checkpoint` wrote. Raises BadCheckpoint, FileNotFoundError."""
    paths = _agent_paths(folder)
    return Checkpoint({agent: _read_agent(path, agent) for agent, path in paths.items()}, about(folder))


def about(folder: str | Path) -> dict[str, Any]:
    """Read the data about all agents, without the agents."""
    content = _read_json(Path(folder) / _ALL).get("about", {})
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{folder} says {content!r} about all agents, where names and values are wanted.")
    return content


def is_checkpoint(folder: str | Path) -> bool:
    """Return whether a checkpoint was written here. It may be damaged."""
    return (Path(folder) / _ALL).is_file()


# ---- one agent ----------------------------------------------------------------------------------------------------


def export_agent(checkpoint: str | Path, agent: Agent, folder: str | Path) -> None:
    """Write one agent of a checkpoint into its own folder, for `load_agent`."""
    save_agent(folder, agent, load_agent(checkpoint, agent))


def save_agent(folder: str | Path, agent: Agent, state: State) -> None:
    """Write one agent's state into a folder, in place of an agent that was saved there."""
    target = place_of(folder)
    if is_checkpoint(target.parent):
        raise FileExistsError(
            f"{target} is within a checkpoint, which is to stay whole. Choose another folder, or put the agent in the "
            "place of one of the checkpoint's with replace_agent."
        )
    with _in_place_of(target, _ONE) as draft:
        _write_agent(draft, agent, state)


def load_agent(folder: str | Path, agent: Agent | None = None, *, with_memory: bool = True) -> State:
    """Read an agent's state: from its own folder, whatever its name was, or by name from a checkpoint.

    `with_memory=False` leaves out its replay buffer, which then need not be there.
    """
    folder = Path(folder)
    if not is_checkpoint(folder):
        return _read_agent(folder, agent, is_own=False, with_memory=with_memory)
    paths = _agent_paths(folder)
    if agent is None and len(paths) == 1:
        (agent,) = paths
    if agent is None:
        raise BadCheckpoint(f"{folder} holds several agents. Name one: {', '.join(map(repr, paths))}.")
    if agent not in paths:
        raise BadCheckpoint(f"{folder} holds no agent {agent!r}. It holds {', '.join(map(repr, paths))}.")
    return _read_agent(paths[agent], agent, with_memory=with_memory)


def replace_agent(checkpoint: str | Path, agent: Agent, state: State) -> None:
    """Replace the state of an agent: by an exported or frozen state, or by another agent's of the same form.

    Its replay buffer comes with it and must have the same size. After a state without `memory` the agent learns from
    new experience.
    """
    whole = load_checkpoint(checkpoint)
    if agent not in whole.agents:
        raise BadCheckpoint(f"{checkpoint} holds no agent {agent!r}. It holds {', '.join(map(repr, whole.agents))}.")
    check_whole(state, whole.agents[agent], agent, "The given state")
    save_checkpoint(checkpoint, {**whole.agents, agent: state}, whole.about)


def frozen(state: State, *, is_frozen: bool = True) -> State:
    """Return the state of an agent that acts but does not learn."""
    if not isinstance(state.get("counters"), Mapping):
        raise BadCheckpoint("The given state is not the state of an agent: it has no counters.")
    return {**state, "counters": {**state["counters"], "frozen": is_frozen}}


# ---- folders and files of agents ----------------------------------------------------------------------------------


def folder_names(agents: Iterable[Agent]) -> dict[Agent, str]:
    """Return a folder name for each agent, close to its own name. TypeError for a name that no file can have."""
    names: dict[Agent, str] = {}
    taken: set[str] = set()
    for position, agent in enumerate(agents):
        if isinstance(agent, bool) or not isinstance(agent, str | int | np.integer):
            raise TypeError(f"Agent {agent!r} cannot be named in a file. Agents' names must be words or whole numbers.")
        try:
            quoted = urllib.parse.quote(str(agent), safe="")
        except UnicodeEncodeError as error:
            raise TypeError(f"Agent {agent!r} cannot be named in a file: half a character has no UTF-8.") from error
        name = quoted.replace(".", "%2E")[:200] or "%"  # the empty name: a quoted character has digits behind this sign
        numbered = (f"{name}-{number}" for number in itertools.count(position))
        names[agent] = next(one for one in itertools.chain([name], numbered) if one.casefold() not in taken)
        taken.add(names[agent].casefold())  # to some file systems, A and a are one name
    return names


def _as_json(agent: Agent) -> Any:
    """Return an agent's name for JSON. A NumPy integer becomes the equal int."""
    return int(agent) if isinstance(agent, np.integer) else agent


def _write_agent(folder: Path, agent: Agent, state: State) -> None:
    from safetensors.numpy import save

    folder.mkdir(exist_ok=True)
    arrays, memory = state["arrays"], state.get("memory")
    data = bytes(save({name: np.asarray(array, order="C") for name, array in arrays.items()}))
    if memory is not None:
        write_down(folder / _MEMORY, archive_writer(memory["counters"], memory["arrays"]))
    write_down(folder / _ARRAYS, lambda file: file.write(data))
    content = {
        "agent": _as_json(agent),
        **{name: state[name] for name in _IN_JSON},
        "form": state.get("form"),
        "arrays": {name: described(arrays, name) for name in arrays},
        "checksum": zlib.crc32(data),
        "has_memory": memory is not None,
    }
    _write_json(folder / _ONE, content)


def _agent_paths(folder: str | Path) -> dict[Agent, Path]:
    """Read a checkpoint's table: the folder of each agent."""
    path = Path(folder) / _ALL
    entries: Any = _read_json(path).get("agents")
    try:
        names: dict[Agent, str] = {entry["agent"]: entry["folder"] for entry in entries}
        if odd := [name for name in names.values() if Path(name).name != name or name in ("", "..")]:
            raise ValueError(f"{odd[0]!r} is not a folder's name")  # it might lead elsewhere
        if not len(entries) == len(names) == len(set(names.values())):
            raise ValueError("an agent or a folder is named twice")
        return {agent: path.parent / name for agent, name in names.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path} does not say which agents there are, and where: {error}.") from error


def _read_agent(folder: Path, agent: Agent | None, *, is_own: bool = True, with_memory: bool = True) -> State:
    """Return the state in a folder. With `is_own`, refuse another agent's folder that was put there by hand."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    whose = f"agent {agent!r}" if agent is not None else "the agent"
    try:
        content = _read_json(folder / _ONE)
        state: State = {name: content[name] for name in _IN_JSON}
        if content.get("form") is not None:
            state["form"] = content["form"]
        path = folder / _ARRAYS
        data = path.read_bytes()
        if zlib.crc32(data) != content["checksum"]:
            raise BadCheckpoint(f"{path} is truncated, damaged, or not the file that was written with {_ONE}.")
        state["arrays"] = dict(load(data))
        if content["has_memory"] and with_memory:
            counters, arrays = read_archive(folder / _MEMORY)
            state["memory"] = {"counters": counters, "arrays": arrays}
    except (KeyError, ValueError, TypeError, OSError, SafetensorError) as error:
        raise BadCheckpoint(f"{whose} cannot be read from {folder}. {error}") from error
    if is_own and content.get("agent") != _as_json(agent):
        raise BadCheckpoint(
            f"{whose} cannot be read from {folder}, which holds agent {content.get('agent')!r}. To put one agent in "
            "another's place, use replace_agent."
        )
    return state


def _write_json(path: Path, content: dict[str, Any]) -> None:
    content = {"format": _FORMATS[path.name][0], **content}
    try:
        text = json.dumps({**content, _CHECKSUM: _checksum_of(content)}, indent=2)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path.name} cannot say what it is to hold: {error}") from error
    write_down(path, lambda file: file.write(text.encode()))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"There is no file {path}.") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from error
    newest = _FORMATS[path.name][0]
    if not isinstance(content, dict) or content.get("format") not in _FORMATS[path.name]:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise BadCheckpoint(f"{path} is not of the format {newest!r}, but {found!r}.")
    checksum = content.pop(_CHECKSUM, None)
    if (content["format"] == newest or checksum is not None) and checksum != _checksum_of(content):
        raise BadCheckpoint(
            f"{path} is damaged or was changed by hand: its checksum differs. Agents are changed with load_agent, "
            "frozen and replace_agent."
        )
    return content


def _checksum_of(content: dict[str, Any]) -> int:
    """Return the checksum of a JSON file's content, whatever its layout. A number equals itself to the last digit."""
    return zlib.crc32(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode())


def _in_place_of(target: Path, sign: str) -> AbstractContextManager[Path]:
    """Return a new folder that replaces `target`, which must be empty, or contain a file called `sign`."""
    if target.exists() and not (target / sign).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} exists and is not a checkpoint: it is not written over. Choose another folder."
        )
    return new_folder(target)


# ---- compatibility of a state with an agent -----------------------------------------------------------------------

_OPTIONAL = {"acting", STAMPS}  # a generator and an array that a state may lack
_MOST = 2**62  # the largest counter: versions are stored in arrays of int64


def form_of(parameters: AgentParameters) -> dict[str, Any]:
    """Return the meaning of an agent's numbers, as JSON. Only an agent with an equal form can use the numbers."""
    algorithm, layout = parameters.algorithm, parameters.layout
    return {
        "algorithm": algorithm.name,
        "network": getattr(algorithm.config, "network", "mlp"),
        "activation": algorithm.config.activation,
        "observation_space": repr(algorithm.observation_space),
        "action_space": repr(algorithm.action_space),
        "parameters": [[part.name, list(part.shape)] for part in (*layout.trained, *layout.targets)],
    }


def check_fits(state: Any, own: State, agent: Agent, where: str | Path) -> None:
    """Raise BadCheckpoint unless a state has the architecture of an agent's own: its form and all its arrays."""
    if odd := misfits(state, own):
        settings = ""
        if isinstance(state["config"], dict) and isinstance(own["config"], dict):
            stored, mine = json.loads(json.dumps([state["config"], own["config"]]))  # tuples become lists
            settings = ", ".join(name for name in sorted({*stored, *mine}) if stored.get(name) != mine.get(name))
        advice = f" Their configs differ in {settings}." if settings else ""
        raise BadCheckpoint(
            f"{where} does not fit agent {agent!r}: it is of another architecture ({'; '.join(odd)}).{advice} Nothing "
            "was loaded."
        )


def check_whole(state: Any, own: State, agent: Agent, where: str | Path) -> None:
    """Raise BadCheckpoint unless a state fits and all its other parts can be loaded: counters, generators, memory."""
    try:
        check_fits(state, own, agent, where)
        odd = list(_damages(state, own))
    except (AttributeError, KeyError, TypeError, OverflowError) as error:  # a part is missing, or is something else
        raise BadCheckpoint(f"{where} is not a state of agent {agent!r} ({error!r}). Nothing was loaded.") from error
    if odd:
        advice = " Leave its `memory` out to take the rest over." if odd[-1].startswith("memory") else ""
        raise BadCheckpoint(f"{where} does not fit agent {agent!r} ({'; '.join(odd)}). Nothing was loaded.{advice}")


def misfits(state: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Return the differences between the architecture of a state and an agent's own: forms (if stored) and arrays."""
    pairs, stored, form = list[tuple[str, Any, Any]](), state.get("form"), own.get("form")
    if stored and form:  # a state of format 1 has no form
        pairs = [(name, stored.get(name), value) for name, value in form.items() if name != "parameters"]
        layers = itertools.zip_longest(stored["parameters"], form["parameters"], fillvalue="nothing")
        pairs += [("parameters", *pair) for pair in layers if pair[0] != pair[1]][:1]  # most behind it differ as well
    given, arrays = state["arrays"], own["arrays"]
    names = sorted({*given, *arrays} - {CARRY}, key=str)
    pairs += [(name, described(given, name), described(arrays, name)) for name in names]
    return [f"{name}: {one} stored, {other} here" for name, one, other in pairs if one != other]


def described(arrays: Mapping[str, Any], name: str, first_axis: int = 0) -> str:
    """Return the dtype and shape of an array, without the axes before `first_axis`."""
    return f"{arrays[name].dtype}{list(arrays[name].shape[first_axis:])}" if name in arrays else "nothing"


def _damages(state: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts that cannot be loaded, from a state with the architecture of the agent's own state."""
    arrays, counters, memory = state["arrays"], state["counters"], state.get("memory")
    for name in sorted(arrays.keys() - {CARRY}):
        if not np.isfinite(arrays[name]).all():
            yield f"arrays: {name} is not finite everywhere"
    for name, mine in own["counters"].items():
        given = counters.get(name)
        if type(given) is not type(mine) or (isinstance(given, int) and not 0 <= given <= _MOST):
            yield f"counters: {name} is {given!r}"
    # The state of a generator, or those of several by name.
    stored, mine = (
        {"": one} if "bit_generator" in own["generator"] else one for one in (state["generator"], own["generator"])
    )
    kind = next(iter(mine.values()))["bit_generator"]
    for name in sorted({*mine, *stored} - {name for name in _OPTIONAL if stored.get(name) is None}, key=str):
        try:
            getattr(np.random, kind)().state = stored.get(name)
        except (TypeError, ValueError, KeyError, OverflowError):
            yield f"generator: {name} is no state of {kind}"
    if memory is None or own.get("memory") is None:  # a state without one is fine, and an agent without one ignores it
        return
    for name in ("capacity", "num_rows"):
        given, mine = (part["counters"].get(name) for part in (memory, own["memory"]))
        if given != mine:
            yield f"memory: {name}={given} stored, {mine} here"
    for name in sorted({*memory["arrays"], *own["memory"]["arrays"]}, key=str):
        given, here = (described(part["arrays"], name, first_axis=1) for part in (memory, own["memory"]))
        if given != here and not (name in _OPTIONAL and given == "nothing"):
            yield f"memory: {name}: {given} stored, {here} here"
