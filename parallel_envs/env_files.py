"""Environments in single files: `./my_env.py:MyEnv`, without a package around the file.

    is_env_file("./my_env.py:MyEnv")           whether a text has this form; nothing is looked up
    absolute("./my_env.py:MyEnv")              the same text with an absolute path; other texts as they are
    FileFactory.of("./my_env.py:MyEnv", {})    makes the environment, in this process or in a worker

The path may be relative to the working folder, or absolute. What travels (into workers, settings, results files) is the
absolute path, so a run can be resumed from another folder. The file is executed once per process, as the module
`parallel_envs.env_files.NAME__HEX`, where HEX is the path: any process that meets this name, such as a worker that
unpickles a task whose class is in the file, finds the file by it. The file's own folder is added at the end of
`sys.path`, so the file may import what lies beside it. An installed module of that name goes first. Modules have one
name in a process, so a file is refused where Python would take another folder's module in the place of its neighbour.

Failures: ValueError where the file is missing (raised early, in the caller). Where the file is executed: AttributeError
with the nearest name if it defines no such name, MissingExtra if it needs a library of an extra, ImportError if it
raises, imports relatively (the file is in no package), or would get a neighbour of another folder. Files that a
stranger's settings name are refused by `trust.check_env` before anything here is called.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from parallel_envs.checks import hint
from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.files import is_file

_FORM = re.compile(r"(?P<path>.*\S\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)

_MOST_NAMED = 5  # classes of a file, in the text of an error

__path__: list[str] = []  # makes this module a package to the import system, whose submodules `_Finder` finds


def is_env_file(name: object) -> bool:
    """Return whether a text has the form `path/file.py:Name`. Nothing is looked up."""
    return isinstance(name, str) and _FORM.fullmatch(name) is not None


def file_of(name: str) -> Path:
    """Return the absolute path of the file in `path/file.py:Name`, with links resolved."""
    found = _FORM.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} has not the form path/file.py:Name.")
    return Path(found["path"]).resolve()


def without_class(name: str) -> str:
    """Return an error text for the path of a Python file without `:Class`; "" for any other text."""
    if not name.endswith(".py") or not is_file(name):
        return ""
    try:  # the text of the file is read: nothing in it is run
        found = [node.name for node in ast.parse(Path(name).read_bytes()).body if isinstance(node, ast.ClassDef)]
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        found = []
    meant = " or ".join(repr(f"{name}:{one}") for one in found[:_MOST_NAMED] or ["MyEnv"])
    return f"{name!r} is a file. Name the class in it, too: {meant}{', ...' if found[_MOST_NAMED:] else ''}."


def absolute(name: str, beside: Path | None = None) -> str:
    """Return `path/file.py:Name` with an absolute path. Any other text is returned as it is.

    `beside`: a folder to look in where the working folder has no such file.
    """
    found = _FORM.fullmatch(name)
    if found is None:
        return name
    path = Path(found["path"])
    if beside is not None and not is_file(path) and is_file(beside / path):
        path = beside / path
    return f"{path.resolve()}:{found['name']}"


@dataclass(frozen=True)
class FileFactory:
    """Makes the environment that `name`, `/absolute/path/file.py:Name`, says. It can be pickled."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, kwargs: Mapping[str, Any] | None = None) -> FileFactory:
        """Return the factory. Raises ValueError, with the nearest file, if there is no such file."""
        path = file_of(name)
        if not is_file(path):
            near = [one.name for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise ValueError(
                f"The environment {name!r} cannot be made: there is no file {path}.{hint(path.name, near)}"
            )
        return cls(absolute(name), dict(kwargs or {}))

    def __call__(self, **more: Any) -> Any:
        return self.load()(**{**self.kwargs, **more})

    def load(self) -> Any:
        """Return what the file has under the name: a class, or a function that makes an environment."""
        path, name = file_of(self.name), self.name.rpartition(":")[2]
        code = str(path).encode(errors="surrogateescape").hex()
        try:
            with explained(f"The environment {self.name!r}"):
                module = importlib.import_module(f"{__name__}.{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}__{code}")
        except MissingExtra:
            raise
        except Exception as error:  # user code
            raise ImportError(f"The file {path} raised {type(error).__name__} when it was imported: {error}") from error
        if not hasattr(module, name):
            known = [one for one in vars(module) if not one.startswith("_")]
            raise AttributeError(f"The file {path} defines no {name!r}.{hint(name, known)}")
        made_by = getattr(module, name)
        if not callable(made_by):
            raise TypeError(
                f"{name!r} in {path} is {made_by!r}. Name a class, or a function that makes an environment."
            )
        return made_by


class _Finder:
    """Finds the file of a module that is named as `FileFactory.load` names it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if parent != __name__:
            return None
        try:
            file = bytes.fromhex(name.rpartition("__")[2]).decode(errors="surrogateescape")
        except ValueError:
            return None
        if (folder := str(Path(file).parent)) not in sys.path:
            sys.path.append(folder)  # last: a file beside it must not take the place of an installed module
        _check_neighbours(Path(file))
        return importlib.util.spec_from_file_location(fullname, file)


def _check_neighbours(file: Path) -> None:
    """Raise ImportError if `file` imports a neighbour by a name that is a module of another folder in this process."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return  # importing it will tell
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ImportError(
                f"{file}, line {node.lineno}, imports relatively, and the file is in no package. Import the file "
                "beside it by its name: `import helper`."
            )
        if isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    for name in sorted({name.partition(".")[0] for name in names} - sys.stdlib_module_names):
        beside = [one for one in (file.parent / f"{name}.py", file.parent / name / "__init__.py") if is_file(one)]
        try:
            spec = importlib.util.find_spec(name) if beside else None
        except (ImportError, ValueError):
            continue
        found = Path(spec.origin).resolve() if spec is not None and spec.origin and is_file(Path(spec.origin)) else None
        if found is None or found == beside[0].resolve() or {"site-packages", "dist-packages"} & set(found.parts):
            continue
        if found.read_bytes() != beside[0].read_bytes():
            raise ImportError(
                f"{file} imports {name!r}, which is {beside[0]} for it, and this process takes {name!r} from {found}. "
                "Rename one of the two files."
            )


sys.meta_path.append(_Finder())  # last, and for names below this module only: no other import is changed by it
