"""YAML files in Hydra's form: the list `defaults`, and interpolations. Hydra and OmegaConf are not needed.

A file with a list `defaults` is laid over the files that the list names, in Hydra's order: the later entry wins, and
the file itself comes where `_self_` stands, or last. Blocks are merged name by name; anything else is replaced. Only
files beside the first one are read. An entry without such a file is left out, because other parts of a training
configuration come from elsewhere (RAGEN's `ppo_trainer` from verl): errors name it if something is missing then. Of
`group: option` the file `group/option.yaml` is read if it can hold one of the wanted blocks.

An interpolation `${a.b}` stands for the value of that name, one with a leading dot for a name beside it. In the blocks
that are read, any other one (a resolver such as `${oc.env:HOME}`, a name that is not there, a circle) raises
`BadSettings`, as does `???`, which says that the value is still to be given. `\\${` is a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.groups.failures import BadSettings
from parallel_envs.yaml_files import settings_in

__all__ = ["composed", "resolved"]

_INTERPOLATION = re.compile(r"(?<!\\)\$\{([^{}]*)\}")
_NAME = re.compile(r"\.*[\w-]+(?:\.[\w-]+)*")
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_MOST_STEPS = 50
"""Interpolations that lead to one another."""


def composed(path: Path, wanted: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Return what a file and its `defaults` say, and the entries of `defaults` for which there is no file.

    `wanted`: the names at the top that matter.
    """
    missing: list[str] = []
    return _composed(path, path.parent, frozenset(wanted), (), missing), missing


def _composed(path: Path, root: Path, wanted: frozenset[str], above: tuple[Path, ...], missing: list[str]) -> Any:
    if path in above:
        circle = " -> ".join(str(one) for one in (*above, path))
        raise BadSettings(f"The files name one another in their `defaults`: {circle}. Take one entry out.")
    own = settings_in(path, BadSettings)
    if not isinstance(entries := own.get("defaults"), list):
        return own
    content: dict[str, Any] = {}
    del own["defaults"]
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            content = _merged(content, own)
            continue
        for name, package in _files_of(entry, wanted):
            file = (root if name.startswith("/") else path.parent) / f"{name.strip('/')}.yaml"
            if not file.is_file():
                missing.append(name)
                continue
            below = _composed(file, root, wanted, (*above, path), missing)
            for part in reversed(_package_of(file, package)):
                below = {part: below}
            content = _merged(content, below)
    return content


def _files_of(entry: Any, wanted: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that an entry of `defaults` names, without `.yaml`, each with the name under which it stands."""
    pairs = entry.items() if isinstance(entry, Mapping) else [(entry, None)]
    for left, options in pairs:
        if not isinstance(left, str) or left.startswith("override "):
            continue
        name, _, package = left.removeprefix("optional ").partition("@")
        if not isinstance(entry, Mapping):
            yield name.removesuffix(".yaml"), package
            continue
        package = package or name.strip("/").replace("/", ".")
        for option in options if isinstance(options, list) else [options]:
            if isinstance(option, str):
                yield f"{name}/{option.removesuffix('.yaml')}", package


def _package_of(file: Path, package: str) -> list[str]:
    """Return the names under which a file's content stands. Its own line `# @package` has the last word."""
    if found := _PACKAGE.search(file.read_text(encoding="utf-8")):
        package = found[1]
    return [] if package in ("", "_global_") else package.split(".")


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            both[name] = _merged(below[name], value)
    return both


# ---- interpolations ---------------------------------------------------------------------------------------------


def resolved(content: Mapping[str, Any], value: Any, path: tuple[Any, ...], steps: int = 0) -> Any:
    """Return a value that stands at a path in `content`, with everything in it resolved.

    `steps`: how many interpolations have led there.
    """
    if isinstance(value, Mapping):
        return {name: resolved(content, one, (*path, name), steps) for name, one in value.items()}
    if isinstance(value, list):
        return [resolved(content, one, (*path, place), steps) for place, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    where = ".".join(map(str, path))
    if value == "???":
        raise BadSettings(f"`{where}: ???`: the value is still to be given. Give one.")
    if "${" not in value:
        return value
    if whole := _INTERPOLATION.fullmatch(value):
        return _looked_up(content, whole[1], path, value, steps)
    text = _INTERPOLATION.sub(lambda found: str(_looked_up(content, found[1], path, value, steps)), value)
    if re.search(r"(?<!\\)\$\{", text):
        raise _unresolved(where, value, "is more than the name of another value")
    return text.replace("\\${", "${")


def _looked_up(content: Mapping[str, Any], name: str, path: tuple[Any, ...], said: str, steps: int) -> Any:
    where, name = ".".join(map(str, path)), name.strip()
    if not _NAME.fullmatch(name):
        raise _unresolved(where, said, "is more than the name of another value")
    dots = len(name) - len(name.lstrip("."))
    target = [*(path[: len(path) - dots] if dots else ()), *name.lstrip(".").split(".")]
    found: Any = content
    for part in target:
        if isinstance(found, list) and str(part).isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        else:
            raise _unresolved(where, said, f"names `{'.'.join(map(str, target))}`, which is not there")
    if steps == _MOST_STEPS:
        raise _unresolved(where, said, "leads in a circle")
    return resolved(content, found, tuple(target), steps + 1)


def _unresolved(where: str, said: str, what: str) -> BadSettings:
    return BadSettings(
        f"`{where}: {said}`: the interpolation {what}. Write the value itself, or resolve the configuration with "
        "OmegaConf and give the result; a plain `${` is written `\\${`."
    )
