"""Libraries of extras, names that are imported on first use, and commands that a user is told to type.

    with explained("IndependentLearners"):    around an import that may need the library of an extra
        import torch
    require("Videos", "moviepy")              checks early, without an import
    install_line("mpe2")                      the command to type, as part of another sentence
    __getattr__, __dir__ = on_first_use(__name__, {"ParallelEnvManager": "vector"})    in a package's `__init__.py`

Use one of the first three wherever the library of an extra is imported: the user of a missing library reads one
sentence with the install command, and not a traceback. `import parallel_envs` loads this module and nothing else, so
the module itself imports other modules of the package only in its functions.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_envs.errors import MissingExtra

EXTRA_OF = {
    **dict.fromkeys(("safetensors", "tensorboard", "torch"), "learn"),
    "cpprb": "replay",
    **dict.fromkeys(("ale_py", "lbforaging", "mpe2", "mujoco"), "envs"),
    **dict.fromkeys(("Box2D", "chess", "pygame", "pymunk", "rlcard", "shimmy"), "zoo"),
    "matplotlib": "report",
    "moviepy": "video",
    "mettagrid": "mettagrid",
    "mlflow": "mlflow",
    "optuna": "sweep",
    "trackio": "trackio",
    "wandb": "wandb",
    "metaworld": "metaworld",
    "pyarrow": "data",
    **dict.fromkeys(("sb3_contrib", "stable_baselines3"), "sb3"),
}
"""The extra of each library, by its import name. Keep equal to `optional-dependencies` in pyproject.toml."""


def is_installed(module: str) -> bool:
    """Return whether the library that a module belongs to can be found. Nothing is imported."""
    import importlib.util  # late: `import parallel_envs` does without it

    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def install_line(module: str) -> str:
    """Return the command that installs the library of `module`. The library must be in `EXTRA_OF`."""
    extra = EXTRA_OF[module.partition(".")[0]]
    return f'pip install "parallel-envs[{extra}]", or in a checkout pip install -e ".[{extra}]"'


def advice_for(module: str) -> str:
    """Return a sentence with the install command if the library of `module` is in `EXTRA_OF` and missing, else ""."""
    if module.partition(".")[0] not in EXTRA_OF or is_installed(module):
        return ""
    return f" Its package is not installed: {install_line(module)}."


def require(what: str, *modules: str) -> None:
    """Raise `MissingExtra` if one of these libraries is not installed. `what` names the feature that needs them."""
    for module in modules:
        if not is_installed(module):
            raise _missing(what, module)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the error of an import into `MissingExtra` if a library of an extra is missing. `what` needs the library."""
    try:
        yield
    except ModuleNotFoundError as error:
        from parallel_envs.errors import MissingExtra

        if isinstance(error, MissingExtra):
            raise
        name = error.name or getattr(error.__cause__, "name", None) or ""  # Gymnasium's errors have no name
        if name.partition(".")[0] not in EXTRA_OF or is_installed(name):
            raise
        raise _missing(what, name) from error


def _missing(what: str, module: str) -> MissingExtra:
    from parallel_envs.errors import MissingExtra

    library = module.partition(".")[0]
    return MissingExtra(f"{what} needs {library}, which is not installed: {install_line(module)}.", name=library)


def shell_command(script: str, module: str, words: str) -> str:
    """Return a command that starts a script of this Python environment: by its name, its path, or `python -m`."""
    import shlex
    import shutil
    from pathlib import Path

    from parallel_envs.files import is_file

    found = shutil.which(script)
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return f"{script} {words}"
    if Path(sys.argv[0]).name == script and is_file(sys.argv[0]):
        return f"{shlex.quote(sys.argv[0])} {words}"
    return f"{shlex.quote(sys.executable)} -m {module} {words}"


def as_argument(path: Path) -> str:
    """Return a path as one word of a shell that no command takes for an option."""
    import shlex

    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def on_first_use(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. `homes` maps each name to its module in the package."""

    def find(name: str) -> Any:
        if name in homes.values():  # the module itself
            with explained(f"{package}.{name}"):
                return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explained(f"{package}.{name}"):
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names
