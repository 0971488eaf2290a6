"""From what the user gives to a list of missions: names, wildcards, files, callables.

CartPole-v1                            a Gymnasium id, a PettingZoo id or module, or package.module:factory
./my_env.py:MyEnv                      a class in a file; results call it my_env.py:MyEnv, wherever the file is
mpe2.simple_spread_v3?N=5              with what it is made with; values are read as YAML
mpe2.simple_*                          every environment whose name fits
missions.yaml   missions.yaml:easy     every mission of a file; one of its sets, or those whose names fit
"""

from __future__ import annotations

import fnmatch
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from parallel_envs.env_files import absolute, file_of, is_env_file, without_class
from parallel_envs.env_ids import PACKAGES, known_zoo_ids, modules_of, zoo_module
from parallel_envs.evaluation.missions import Mission, with_num_agents
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.settings import check_whole
from parallel_envs.extras import advice_for
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.spelling import nearest_few, suggests_keywords
from parallel_envs.trust import check_env
from parallel_envs.yaml_files import value_of

_FILE = re.compile(r"(?P<path>.+\.ya?ml)(:(?P<which>[^:].*))?")
_FACTORY = re.compile(r"[\w.]+:\w+")


@suggests_keywords
def missions_of(given: Any, num_agents: int | None = None) -> list[Mission]:
    """The missions, in the order given. Raises BadEvaluation.

    Args:
        given: A name (see above), a callable that makes an environment, or a `Mission`; a sequence of these; or a dict
            of them by the names that results are to have.
        num_agents: How many agents each of them is to have: see `with_num_agents`.
    """
    if num_agents is not None:
        check_whole("num_agents", num_agents, least=1)
    if isinstance(given, Mapping):
        found = [mission for name, one in given.items() for mission in _renamed(str(name), _missions(one))]
    else:
        several = isinstance(given, Sequence) and not isinstance(given, str)
        found = [mission for one in (given if several else [given]) for mission in _missions(one)]
    if not found:
        raise BadEvaluation("No mission was given. Give at least one, such as 'CartPole-v1'.")
    if num_agents is not None:
        found = [with_num_agents(mission, int(num_agents)) for mission in found]
    names = [mission.name for mission in found]
    if twice := [name for name in names if names.count(name) > 1]:
        files = {str(one.env) for one in found if one.name == twice[0] and is_env_file(one.env)}
        if len(files) > 1:
            raise BadEvaluation(
                f"Two missions are called {twice[0]!r}: results name a file by its name, without its folder. Rename "
                "one of the files, or evaluate them apart (in Python, a dict {name: mission} names them, too)."
            )
        raise BadEvaluation(
            f"Two missions are called {twice[0]!r}, and results could not tell them apart. Leave one out, or give a "
            "dict {name: mission}."
        )
    return found


def _missions(given: Any) -> list[Mission]:
    if isinstance(given, Mission):
        return [given]
    if isinstance(given, str):
        return named_missions(given)
    if callable(given):
        return [Mission(name=_name_of(given), env=given)]
    raise BadEvaluation(
        f"The mission {given!r} is none. Give a name, a callable that makes an environment, or a Mission."
    )


def _name_of(make: Callable[..., Any]) -> str:
    inner = getattr(make, "func", make)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _renamed(name: str, missions: list[Mission]) -> list[Mission]:
    if len(missions) == 1:
        return [_with_name(missions[0], name)]
    return [_with_name(mission, f"{name}:{mission.name}") for mission in missions]


def _with_name(mission: Mission, name: str) -> Mission:
    return Mission(name=name, env=mission.env, kwargs=mission.kwargs, turns=mission.turns)


def named_missions(text: str) -> list[Mission]:
    """The missions that a text names."""
    if match := _FILE.fullmatch(text):
        from parallel_envs.evaluation.mission_files import missions_in  # late: it needs pydantic

        return missions_in(Path(match["path"]), match["which"])
    name, kwargs = _split(text)
    if is_env_file(name):
        check_known(name)
        short = f"{file_of(name).name}:{name.rpartition(':')[2]}"  # seeds follow from it, so it has no folder in it
        return [Mission(name=f"{short}{text[len(name) :]}", env=name, kwargs=kwargs)]
    if "*" in name or "[" in name:
        endings = text[len(name) :]
        return [Mission(name=f"{one}{endings}", env=one, kwargs=kwargs) for one in _fitting(name)]
    check_known(name)
    return [Mission(name=text, env=name, kwargs=kwargs)]


def check_trusted(text: str, file: str, trust: Sequence[str]) -> None:
    """Raise UntrustedName if `file` names a mission that may run code which the user does not trust: see `trust.py`.

    Nothing is imported before it has been checked, so call it before `missions_of`.
    """
    if match := _FILE.fullmatch(text):
        from parallel_envs.evaluation.mission_files import named_in

        named = list(named_in(Path(match["path"])))
    else:
        name, kwargs = _split(text)
        if not is_env_file(name) and ("*" in name or "[" in name):
            if package := _package_of(name):
                check_env(f"{package}.any", {}, file, trust)  # to look for what fits imports the package
            named = [(one, kwargs) for one in _fitting(name)]
        else:
            named = [(name, kwargs)]
    for name, kwargs in named:
        check_env(name, kwargs, file, trust)


def with_absolute_path(text: str) -> str:
    """Return the text of a mission; if it names a file, with an absolute path, to be read from any folder."""
    name, mark, rest = text.partition("?")
    return f"{absolute(name)}{mark}{rest}"


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """A name and what stands behind its question mark."""
    name, _, given = text.partition("?")
    parts = [part.partition("=") for part in given.split("&")] if given else []
    if not name.strip() or any(not key or not equals for key, equals, _ in parts):
        raise BadEvaluation(f"The mission {text!r} has not the form name?key=value&key=value, as CartPole-v1 has.")
    if not parts:
        return name, {}
    return name, {key: value_of(value, f"A value in the mission {text!r}", BadEvaluation) for key, _, value in parts}


def check_known(name: str) -> None:
    """Raise BadEvaluation for a name that leads nowhere, with those most like it. Nothing is built."""
    if is_env_file(name):
        try:
            env_factory(name)
        except ValueError as error:
            raise BadEvaluation(str(error)) from None
        return
    if _FACTORY.fullmatch(name):
        module = name.partition(":")[0]
        if not _is_there(module):
            text = f"The mission {name!r} cannot be made: there is no module {module!r}.{_not_installed(name)}"
            raise BadEvaluation(text)
        return
    if problem := without_class(name):
        raise BadEvaluation(f"The mission {problem}")
    try:
        env_factory(name, {})
    except ValueError as error:
        text = _not_installed(name) or _meant(name) or f" {error}"
        raise BadEvaluation(f"The mission {name!r} is unknown.{text}") from None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _meant(name: str) -> str:
    close = nearest(name, known_names())
    return f" Did you mean {close}?" if close else ""


def _not_installed(name: str) -> str:
    package = re.split(r"[.:/]", name)[0]
    if advice := advice_for(package):
        return advice
    if package not in {known.partition(".")[0] for known in PACKAGES} or _is_there(package):
        return ""
    return f" Its package is not installed: pip install {package}."


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """Those names most like a wrong one, as text; empty where none is."""
    return " or ".join(map(repr, nearest_few(name, known, most=most, cutoff=0.7)))


def known_names() -> list[str]:
    """The environments that can be given by name alone: those that are installed."""
    modules = [module for package in PACKAGES for module in modules_of(package)]
    return [*sorted(gymnasium.registry), *sorted(known_zoo_ids()), *modules]


def _package_of(pattern: str) -> str:
    """Return the package whose modules a wildcard may mean, or an empty text."""
    package = pattern.rpartition(".")[0]
    return "" if set("*[/") & set(package) else package


def _fitting(pattern: str) -> list[str]:
    others = modules_of(package) if (package := _package_of(pattern)) else ()
    found = fnmatch.filter(dict.fromkeys([*known_names(), *others]), pattern)
    if "/" not in pattern:  # an environment with a module and an id would be played twice
        found = [name for name in found if "/" not in name or zoo_module(name) is None]
    if not found:
        raise BadEvaluation(f"No mission fits {pattern!r}.{_meant(pattern.replace('*', ''))}")
    return found
