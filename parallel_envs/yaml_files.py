"""Settings files in YAML, and the texts about mistakes in them.

A settings file holds the values of JSON: text, numbers, true, false, null, lists, and blocks with names. A date
(`2024-01-01`) is therefore text, as it is after the settings were written and read again. Tags such as `!!binary` or
`!!python/...` are refused. To bound memory and stack, the reader also refuses blocks nested deeper than `DEEPEST`,
blocks that contain themselves, and aliases that stand for more than `MOST_VALUES` values.

A line with nothing but `...` is ignored: guides use it for settings that they leave out, which have their defaults.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.spelling import ABSENT, advice, hint, meanings_elsewhere, nearest, told

__all__ = ["DEEPEST", "MOST_VALUES", "BadSettings", "content_of", "explain", "right_setting", "settings_in", "value_of"]


class BadSettings(ValueError):
    """Raised for settings that cannot be run. The text has one line for each mistake, with its place."""


DEEPEST = 50
"""Deepest nesting of blocks and lists."""
MOST_VALUES = 100_000
"""Most values in a file. An alias (`*name`) counts as the values that it stands for."""
_LEFT_OUT = re.compile(r"^[ \t]*\.\.\.[ \t]*(#.*)?$", re.MULTILINE)


def content_of(path: str | Path, mistake: type[Exception]) -> Any:
    """Return the content of a YAML file. Raise `mistake` if it cannot be read, or has a name twice in one block."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        folder, meant = Path(path).parent, ""
        if isinstance(error, FileNotFoundError) and folder.is_dir():
            close = nearest(Path(path).name, [one.name for one in folder.iterdir() if one.suffix in (".yaml", ".yml")])
            meant = "" if close is None else f" Did you mean {str(folder / close)!r}?"
        raise mistake(f"{path} cannot be read: {error.strerror or error}.{meant}") from error
    except ValueError as error:  # the file is not UTF-8, or the path has a character that paths cannot have
        raise mistake(f"{path} cannot be read: {error}") from error
    return value_of(text, str(path), mistake)


def value_of(text: str, what: str, mistake: type[Exception]) -> Any:
    """Return the content of YAML text. Errors call the text `what`."""
    import yaml

    try:
        try:
            return yaml.load(text, Loader=_loader())
        except yaml.YAMLError:
            rest = re.sub(_LEFT_OUT, "", text)  # only now, because a block of text may contain such a line
            if rest == text:
                raise
            return yaml.load(rest, Loader=_loader())
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML raises Python's own errors for numbers that it cannot read: `0b_`, 5,000 digits.
        raise mistake(f"{what} is not YAML: {error}") from error


@functools.cache
def _loader() -> Any:
    """Return the class that reads YAML as the module's docstring says, and refuses names that are given twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._depth = 0
            self._values: dict[Any, int] = {}  # number of values that each node stands for

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias = self.check_event(yaml.AliasEvent)
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's stubs have no types here
            if self._depth == DEEPEST and not is_alias:
                raise yaml.composer.ComposerError(None, None, f"more than {DEEPEST} blocks within one another", mark)
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            if is_alias and node not in self._values:
                raise yaml.composer.ComposerError(None, None, "a block that contains itself", mark)
            if not is_alias:
                self._values[node] = 1 + sum(map(self._values.__getitem__, _parts(node)))
            if self._values[node] > MOST_VALUES:
                raise yaml.composer.ComposerError(None, None, f"more than {MOST_VALUES:,} values", mark)
            return node

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
                raise yaml.constructor.ConstructorError(None, None, "half a character (a surrogate)", node.start_mark)
            return value

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = Counter(name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode))
            twice = sorted(name for name, times in names.items() if times > 1)
            if twice and isinstance(node, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(None, None, f"`{twice[0]}` stands twice", node.start_mark)
            return super().construct_mapping(node, deep)

    def _parts(node: Any) -> list[Any]:
        if isinstance(node, yaml.MappingNode):
            return [part for pair in node.value for part in pair]
        return list(node.value) if isinstance(node, yaml.SequenceNode) else []

    def refused(loader: Any, node: Any) -> Any:
        raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag!r} is not allowed", node.start_mark)

    for tag in ("timestamp", "binary", "set", "omap", "pairs"):
        Loader.add_constructor(f"tag:yaml.org,2002:{tag}", refused)
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


def settings_in(path: str | Path, mistake: type[Exception]) -> dict[str, Any]:
    """Return the content of a YAML file that must be a block of settings."""
    content = content_of(path, mistake)
    if not isinstance(content, dict):
        raise mistake(f"{path} holds {type(content).__name__}, where settings (`key: value`) are wanted.")
    if odd := [name for name in content if not isinstance(name, str)]:
        raise mistake(f"{path} has a setting called {odd[0]!r}, which is not a word. Write it in quotes if it is one.")
    return content


# ---- mistakes -------------------------------------------------------------------------------------------------------


def explain(mistake: Mapping[str, Any], right: Callable[[str], str], where: str = "") -> str:
    """Return a mistake that pydantic found in the block `where` as a sentence or two.

    `right` returns advice for the path of an unknown setting: see `right_setting`.
    """
    text, value, kind = mistake["msg"].removeprefix("Value error, "), mistake["input"], mistake["type"]
    name = ".".join([*([where] if where else []), *map(str, mistake["loc"])])
    if not mistake["loc"]:  # a text of the block itself, in sentences
        return f"`{where}`: {text}"
    if kind == "extra_forbidden":
        return f"`{name}` is unknown. {right(name)}"
    if kind == "missing":
        return f"`{name}` is missing."
    meant = ""
    if kind == "literal_error":
        meant = hint(value, re.findall(r"'(\w+)'", mistake["ctx"]["expected"]))
    elif kind == "tuple_type":
        meant = " Give a list, such as [64, 256]."
    elif kind == "dict_type" and isinstance(value, str):
        meant = f" Did you mean `{name}.name={value}`?"
    return f"`{name}: {value!r}`: {text}.{meant}"


def right_setting(word: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return advice for an unknown setting: our name for a foreign one, its right place, or the nearest known name.

    `known` are the settings of its block. `elsewhere` has other settings, and a text that names the place of each.
    """
    if standard := told(word, known):
        return standard
    if word in elsewhere:
        return f"It is {elsewhere[word]}."
    if places := {elsewhere[one.ours]: one.note for one in meanings_elsewhere(word, known) if one.ours in elsewhere}:
        return " ".join([f"It is {' or '.join(places)}.", *filter(None, dict.fromkeys(places.values()))])
    if reason := ABSENT.get(word.lower()):
        return f"{reason}: leave it out."
    close = nearest(word, [*known, *elsewhere])
    is_elsewhere = close is not None and close not in known
    return f"Did you mean {elsewhere[str(close)]}?" if is_elsewhere else advice(word, known)
