"""Which names in a file may become an import or a call.

A run folder, a policy folder, a checkpoint or a results file may come from a stranger, and importing a module runs its
code. So a name in such a file is imported or called only if it leads to

- a policy or an environment that is part of this package (`OUR_POLICIES`, `OUR_ENVS`),
- an environment that is registered with Gymnasium or PettingZoo in this process, or one of a few known families of
  environments that are installed (`mpe2`, `pettingzoo`, `ale_py`, ...),
- a module that the user trusts: `--trust MODULE` on the command line, `trust=[...]` in Python; an environment in a
  single file (`/path/file.py:Class`) if the user trusts that file, by its path: `--trust /path/file.py`.

Anything else raises `UntrustedName`. Names that the user gives (on the command line, in code, in settings or missions)
are not checked. Not everything in this package is allowed, because some of its functions remove folders, or import and
call what their arguments name (`load_policy`). New code that makes an object from a name in a file must call
`check_policy`, `check_env` or `check_writer`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.env_files import file_of, is_env_file
from parallel_envs.env_ids import zoo_package
from parallel_envs.errors import UntrustedName

__all__ = ["OUR_ENVS", "OUR_POLICIES", "TUPLE_AGENTS", "check_env", "check_policy", "check_writer", "trusted_modules"]

OUR_POLICIES = frozenset((
    "parallel_envs.learners.trained:SamplingAgent", "parallel_envs.learners.trained:TrainedAgent",
    "parallel_envs.policies:NoopAgent", "parallel_envs.policies:RandomAgent",
    "parallel_envs.policies.ready:NoopAgent", "parallel_envs.policies.ready:RandomAgent",
))  # fmt: skip
"""Policies of this package that run no code from outside, whatever their arguments are."""

TUPLE_AGENTS = frozenset((
    "parallel_envs:tuple_agents", "parallel_envs.multiagent:tuple_agents",
    "parallel_envs.multiagent.agents_in_tuples:tuple_agents",
    "parallel_envs.testing.tuple_agents:tuple_agents",  # deprecated, and in the settings of earlier runs
))  # fmt: skip
"""`tuple_agents` makes the Gymnasium id in its argument `env`, so that id is checked, too."""
OUR_ENVS = TUPLE_AGENTS | {
    "parallel_envs.testing.ant_direction:AntDirection", "parallel_envs.testing.scripted:ScriptedEnv",
    "parallel_envs.testing.families:BanditEnv", "parallel_envs.testing.families:GridNaviEnv",
    "parallel_envs.testing.families:PointRobotEnv", "parallel_envs.testing.families:TabularMDPEnv",
    "parallel_envs.testing.matrix_games:MatrixGame", "parallel_envs.testing.matrix_games:climbing",
    "parallel_envs.testing.matrix_games:penalty",
}  # fmt: skip
"""The same for environments."""

_FAMILIES = frozenset({"ale_py", "gymnasium", "gymnasium_robotics", "lbforaging", "metaworld", "minigrid", "mpe2"})
"""Packages of environments that may be imported if they are installed: `ale_py:ALE/Pong-v5`, `mpe2.simple_v3`."""
_PETTINGZOO = ("pettingzoo.atari", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl")
_CALLS_OTHERS = frozenset({"GymV21Environment", "GymV26Environment"})
"""Ids that Gymnasium itself registers, without their versions. Their environments import what their arguments name."""


def trusted_modules(trust: Any) -> tuple[str, ...]:
    """Return the modules that the user trusts; of files, their absolute paths. Raise TypeError or ValueError."""
    if isinstance(trust, str) or not isinstance(trust, Iterable):
        raise TypeError(f"trust={trust!r} is not a list of modules. Give their names, such as ['my_agents'].")
    modules = tuple(
        str(Path(one).resolve()) if isinstance(one, str | Path) and str(one).endswith(".py") else one for one in trust
    )
    for module in modules:
        if not isinstance(module, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*|.*\.py", module, re.DOTALL):
            whole = f" Files are trusted as a whole: {module.rpartition(':')[0]!r}." if is_env_file(module) else ""
            raise ValueError(
                f"The trusted module {module!r} is not a module's name. Give one such as 'my_agents', or the path of a "
                f"file that ends in .py.{whole}"
            )
    return modules


def check_policy(path: str, file: str | Path, trust: Iterable[str] = ()) -> None:
    """Raise `UntrustedName` unless the `package.module:Class` that `file` names may be imported and called.

    A trusted module is imported here, to see whether it defines the class. A class that the module only imports from
    elsewhere, such as `subprocess.Popen`, is not trusted.
    """
    modules = trusted_modules(trust)
    if path not in OUR_POLICIES:
        _check_import(path, "policy", file, modules)


def check_env(name: str, kwargs: Mapping[str, Any], file: str | Path, trust: Iterable[str] = ()) -> None:
    """Raise `UntrustedName` unless the environment that `file` names, with these arguments, may be made.

    `name` has one of the forms that `multiagent.by_name.env_factory` takes: `package.module:factory`,
    `/path/file.py:Class`, a PettingZoo module, or an id of Gymnasium's or PettingZoo's.
    """
    modules = trusted_modules(trust)
    if is_env_file(name):
        if (path := str(file_of(name))) not in modules:
            raise _untrusted(name, "environment", path, file)
    elif name in TUPLE_AGENTS:
        _check_id(str(kwargs.get("env", "")), file, modules)
    elif name in OUR_ENVS:
        return
    elif re.fullmatch(r"[\w.]+:\w+", name):
        _check_import(name, "environment", file, modules)
    else:
        _check_id(name, file, modules)


def check_writer(path: str, file: str | Path, trust: Iterable[str] = ()) -> None:
    """Raise `UntrustedName` unless the writer (`package.module:Class`, `/path/file.py:Class`) may be made."""
    modules = trusted_modules(trust)
    if not is_env_file(path):
        _check_import(path, "writer", file, modules)
    elif (own := str(file_of(path))) not in modules:
        raise _untrusted(path, "writer", own, file)


def _check_import(path: str, what: str, file: str | Path, trust: tuple[str, ...]) -> None:
    module, _, name = path.partition(":")
    if not _is_within(module, trust):
        raise _untrusted(path, what, module, file)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return  # the code that makes the object raises a better error, with the nearest name
    home = str(getattr(found, "__module__", None) or type(found).__module__)
    if not _is_within(home, trust):
        raise _untrusted(path, what, home, file)


def _check_id(name: str, file: str | Path, trust: tuple[str, ...]) -> None:
    """Check an id, with or without a module before it, or the path of a PettingZoo module."""
    import gymnasium

    module, colon, env_id = name.rpartition(":")
    if not colon and name not in gymnasium.registry:
        # A name with dots is imported as a module. A name without dots is imported if a module has this name. A
        # PettingZoo id may mean a module of the package in whose namespace it lies.
        is_module = "." in name.partition("/")[0]
        if not is_module:
            with contextlib.suppress(ImportError, ValueError):
                is_module = importlib.util.find_spec(name) is not None  # imports nothing
        module = name if is_module else zoo_package(name) or ""
    if env_id.partition("-v")[0] in _CALLS_OTHERS:
        raise _untrusted(name, "environment", "gymnasium.envs.registration", file)
    if module and not _is_within(module, trust) and not _is_of_family(module):
        raise _untrusted(name, "environment", module, file)


def _is_of_family(module: str) -> bool:
    """Return True if a module belongs to an installed family of environments outside the working folder."""
    package = module.partition(".")[0]
    if package not in _FAMILIES and not _is_within(module, _PETTINGZOO):
        return False
    found = importlib.util.find_spec(package)
    if found is None:
        return True  # not installed: nothing can be imported
    if found.origin is None:
        return False  # a folder without __init__.py is no family of environments
    here = Path.cwd()
    return Path(found.origin).parent.resolve() not in (here, here / package)


def _is_within(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _untrusted(name: str, what: str, module: str, file: str | Path) -> UntrustedName:
    return UntrustedName(
        module,
        f"{file} asks for the {what} {name!r}. To make it would run code of {module!r}, which neither belongs to this "
        f"package nor was named by you. If you trust the file and that module, allow it: --trust "
        f"{shlex.quote(module)} (in Python: trust=[{module!r}]).",
    )
