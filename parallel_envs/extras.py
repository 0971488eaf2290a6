"""Libraries of the extras of this package: which extra brings which, and the sentence for one that is missing.

    with explained("IndependentLearners"):    an import that may need such a library
        import torch
    require("Videos", "moviepy")              the same before anything is begun
    install_line("mpe2")                      what to type, as part of another sentence

Every import of such a library goes through one of these, so that a missing one is one sentence with the line that
installs it, and not a traceback.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from parallel_envs.errors import MissingExtra

__all__ = ["EXTRA_OF", "advice_for", "explained", "install_line", "is_installed", "require"]

EXTRA_OF = {
    **dict.fromkeys(("safetensors", "tensorboard", "torch"), "learn"),
    "cpprb": "replay",
    **dict.fromkeys(("ale_py", "lbforaging", "mpe2", "mujoco"), "envs"),
    **dict.fromkeys(("Box2D", "chess", "pygame", "pymunk", "rlcard", "shimmy"), "zoo"),
    "moviepy": "video",
    "mettagrid": "mettagrid",
    "metaworld": "metaworld",
}
"""By the name of the library as it is imported. See `optional-dependencies` in pyproject.toml."""


def is_installed(module: str) -> bool:
    """Return whether the library that a module belongs to can be found. Nothing is imported."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def install_line(module: str) -> str:
    """Return what installs the library that a module belongs to. It must be one of `EXTRA_OF`."""
    extra = EXTRA_OF[module.partition(".")[0]]
    return f'pip install "parallel-envs[{extra}]", or in a checkout pip install -e ".[{extra}]"'


def advice_for(module: str) -> str:
    """Return a sentence with what installs a module's library, if it is of an extra and not installed; else nothing."""
    if module.partition(".")[0] not in EXTRA_OF or is_installed(module):
        return ""
    return f" Its package is not installed: {install_line(module)}."


def require(what: str, *modules: str) -> None:
    """Raise `MissingExtra` if one of these libraries is not installed. `what`: what needs them."""
    for module in modules:
        if not is_installed(module):
            raise _missing(what, module)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise `MissingExtra` in the place of the error of an import that finds no library of an extra."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        name = error.name or getattr(error.__cause__, "name", None) or ""  # Gymnasium raises one without a name
        if name.partition(".")[0] not in EXTRA_OF or is_installed(name):
            raise
        raise _missing(what, name) from error


def _missing(what: str, module: str) -> MissingExtra:
    library = module.partition(".")[0]
    return MissingExtra(f"{what} needs {library}, which is not installed: {install_line(module)}.", name=library)
