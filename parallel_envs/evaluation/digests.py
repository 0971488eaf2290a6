"""What a policy is made of, in a few letters: so that one which has changed is noticed before results are mixed.

Of a spec count the source of its module and what lies where its data are; of an object, or a function, its code. What
either imports, and what an object holds, does not: a network in a folder is known by its numbers, one in memory is not.
What belongs to this package is taken for the same.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from parallel_envs.policies import PolicySpec

_CHECKPOINTS = "checkpoints"
"""In a run's folder: what acts. What else is in there tells how it went."""


def digest_of(source: Any, apart_from: Collection[Path] = ()) -> str | None:
    """Equal for policies made of the same; None where there is nothing to look at.

    Args:
        source: A spec, or a policy itself.
        apart_from: Files that do not count: those that results are written to.
    """
    parts = list(_of_spec(source, apart_from) if isinstance(source, PolicySpec) else _of_object(source))
    if not parts:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


# ---- specs ----------------------------------------------------------------------------------------------------------


def _of_spec(spec: PolicySpec, apart_from: Collection[Path]) -> Iterator[bytes]:
    module = spec.class_path.partition(":")[0]
    if not _is_ours(module) and (file := _source_of(module)) is not None:
        yield _of_file(file)
    if spec.data_path is not None:
        yield from _of_data(Path(spec.data_path), {path.resolve() for path in apart_from})


def _source_of(module: str) -> Path | None:
    try:
        found = importlib.util.find_spec(module)
    except Exception:  # noqa: BLE001  # packages above it are user code, and what is wrong is told where it is made
        return None
    return None if found is None or found.origin is None or not Path(found.origin).is_file() else Path(found.origin)


def _of_data(data: Path, apart_from: Collection[Path]) -> Iterator[bytes]:
    root = data / _CHECKPOINTS if (data / _CHECKPOINTS).is_dir() else data
    files = [root] if root.is_file() else sorted(Path(at, name) for at, _, names in os.walk(root) for name in names)
    for file in files:
        if file.is_file() and file.resolve() not in apart_from:
            yield str(file.relative_to(root)).encode("utf-8", "surrogateescape")
            yield _of_file(file)


def _of_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "blake2b").digest()
    except OSError:  # whoever needs it says so
        return b""


# ---- objects --------------------------------------------------------------------------------------------------------


def _of_object(source: Any) -> Iterator[bytes]:
    thing = source.func if isinstance(source, functools.partial) else source
    codes = list(_codes_of(thing))
    for code in codes:
        yield from _of_code(code)
    package = type(thing).__module__.partition(".")[0]
    for kind in () if codes else type(thing).__mro__:
        if kind.__module__.partition(".")[0] == package and not _is_ours(kind.__module__):
            for name, attribute in sorted(vars(kind).items()):
                for code in _codes_of(attribute):
                    yield name.encode()
                    yield from _of_code(code)


def _codes_of(attribute: Any) -> Iterator[CodeType]:
    parts = (attribute.fget, attribute.fset) if isinstance(attribute, property) else (attribute,)
    for part in parts:
        function = part.__func__ if isinstance(part, classmethod | staticmethod | MethodType) else part
        if isinstance(function, FunctionType):
            yield inspect.unwrap(function).__code__


def _of_code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()  # in whatever order they lie
        else:
            yield repr(constant).encode("utf-8", "backslashreplace")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
