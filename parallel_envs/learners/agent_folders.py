"""Which folder of a checkpoint is whose."""

from __future__ import annotations

import itertools
import urllib.parse
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Agent = Hashable

_LONGEST_NAME = 200


def folder_names(agents: Iterable[Agent]) -> dict[Agent, str]:
    """A folder for each agent, named like it as far as a file system can. TypeError for one that no file can name."""
    names: dict[Agent, str] = {}
    taken: set[str] = set()
    for number, agent in enumerate(agents):
        names[agent] = _unused(_as_name(agent), number, taken)
        taken.add(names[agent].casefold())  # to some file systems, A and a are one name
    return names


def _as_name(agent: Agent) -> str:
    if isinstance(agent, bool) or not isinstance(agent, str | int | np.integer):
        raise TypeError(f"Agent {agent!r} cannot be named in a file. Agents' names must be words or whole numbers.")
    try:
        quoted = urllib.parse.quote(str(agent), safe="")
    except UnicodeEncodeError as error:
        raise TypeError(f"Agent {agent!r} cannot be named in a file: half a character has no UTF-8.") from error
    return quoted.replace(".", "%2E")[:_LONGEST_NAME] or _NAMELESS


_NAMELESS = "%"
"""For the agent whose name is the empty word: what is quoted has digits behind the sign."""


def _unused(name: str, number: int, taken: Collection[str]) -> str:
    """This name, or with a number behind it if it is another's. With the number it may be another's as well."""
    numbered = (f"{name}-{one}" for one in itertools.count(number))
    return next(one for one in itertools.chain([name], numbered) if one.casefold() not in taken)


def folders_in(entries: Any) -> dict[Agent, str]:
    """What a table of agents and folders says. KeyError, TypeError or ValueError if it makes no sense."""
    told = {entry["agent"]: _plain(entry["folder"]) for entry in entries}
    if len(told) < len(entries):
        raise ValueError("an agent is named twice")
    if len(set(told.values())) < len(told):
        raise ValueError("two agents are in one folder, so that of one of them nothing is left")
    return told


def _plain(name: Any) -> str:
    """The name of a folder beside a file, and nowhere else."""
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(f"{name!r} is no folder's name")
    return name


def as_json(agent: Agent) -> Any:
    """A number of NumPy's comes back as the number that it equals."""
    return int(agent) if isinstance(agent, np.integer) else agent
