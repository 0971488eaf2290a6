"""What somebody may have meant who gave the path of a module that is not there."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from collections.abc import Iterator

import gymnasium

from parallel_envs.spelling import nearest

PACKAGES = ("mpe2", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "pettingzoo.atari")
"""Where the environments of PettingZoo and its kin are."""


def no_module(path: str, missing_part: str) -> str:
    """The text of an error: what was looked for, and what is there."""
    missing = f"No module named {missing_part!r} was found: {path!r} was to have parallel_env or env."
    if path in gymnasium.registry or re.fullmatch(r"([\w.]+:)?[\w./]*\w-.*v\d+", path):
        it = "It is" if path in gymnasium.registry else "It looks like"
        advice = _in_tuples(path) or (
            "give that to ParallelEnvManager; where learners are to live in it, make "
            f"MultiAgentEnvManager([env_factory({path!r})] * num_envs), with env_factory from "
            "parallel_envs.multiagent.by_name."
        )
        return f"{missing} {it} the id of a Gymnasium environment: {advice}"
    if ":" in path:
        return f"{missing} Give what makes environments itself: MultiAgentEnvManager([factory] * num_envs)."
    if close := nearest_module(path):
        return f"{missing} Did you mean {close!r}?"
    package, _, _ = path.replace("/", ".").rpartition(".")
    if package and (others := list(modules_of(package))):
        return f"{missing} {package!r} has {', '.join(module.rpartition('.')[2] for module in others)}."
    return f"{missing} Give its whole path, such as 'mpe2.simple_spread_v3', and install what it is in."


def nearest_module(path: str) -> str | None:
    """The environment most like this one: of its package, or of any that is known; None where none is like it."""
    package, _, name = path.replace("/", ".").rpartition(".")
    modules = list(modules_of(package)) if package else []
    if not modules:
        modules = [module for known in PACKAGES for module in modules_of(known)]
    names = {module.rpartition(".")[2]: module for module in modules}
    close = nearest(name, names, cutoff=0.75)
    return None if close is None else names[close]


def _in_tuples(path: str) -> str:
    """Level-based foraging is Gymnasium's, and has several agents all the same."""
    if not path.rpartition(":")[2].startswith("Foraging-"):
        return ""
    return "its agents are in tuples, so give [lambda: parallel_envs.testing.tuple_agents.tuple_agents(id)] * num_envs."


def modules_of(package: str) -> Iterator[str]:
    """The environments of a package that is installed: their names end in a version."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for module in pkgutil.iter_modules(spec.submodule_search_locations or () if spec else ()):
        if module.name.rpartition("_v")[2].isdecimal():
            yield f"{package}.{module.name}"
