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
        advice = _in_tuples(path) or "give that to ParallelEnvManager."
        return f"{missing} {it} the id of a Gymnasium environment: {advice}"
    if ":" in path:
        return f"{missing} Give what makes environments itself: MultiAgentEnvManager([factory] * num_envs)."
    package, _, name = path.replace("/", ".").rpartition(".")
    modules = list(modules_of(package)) if package else []
    if not modules:
        modules = [module for known in PACKAGES for module in modules_of(known)]
    names = {module.rpartition(".")[2]: module for module in modules}
    if close := nearest(name, names, cutoff=0.75):
        return f"{missing} Did you mean {names[close]!r}?"
    if package and modules[0].startswith(f"{package}."):
        return f"{missing} {package!r} has {', '.join(names)}."
    return f"{missing} Give its whole path, such as 'mpe2.simple_spread_v3', and install what it is in."


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
