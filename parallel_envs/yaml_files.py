"""Files of settings, as they stand in YAML.

Such a file says what JSON can say: text, numbers, true, false, null, lists, and blocks with names. So a date is text
(`2024-01-01`), as it will be when the settings have been written down and read again, and tags such as `!!binary` or
`!!python/...` are refused. So is what would take more memory or stack to read than any settings need: blocks within
blocks beyond `DEEPEST`, blocks that contain themselves, and aliases that stand for more than `MOST_VALUES` in all.

A line with nothing but `...`, by which guides leave out the settings that do not matter there, is no mistake. It says
nothing, so those settings have their defaults.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

from parallel_envs.spelling import nearest

__all__ = ["DEEPEST", "MOST_VALUES", "BadSettings", "content_of", "settings_in", "value_of"]


class BadSettings(ValueError):
    """Settings that cannot be run. The text has a line for each mistake, and says where it is."""


DEEPEST = 50
"""Blocks and lists within one another."""
MOST_VALUES = 100_000
"""In a file, with every alias (`*name`) counted as what it stands for."""
_LEFT_OUT = re.compile(r"^[ \t]*\.\.\.[ \t]*(#.*)?$", re.MULTILINE)


def content_of(path: str | Path, mistake: type[Exception]) -> Any:
    """What is in a YAML file. What keeps it from being read is a `mistake` that says so: a name given twice, too."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise mistake(f"{path} cannot be read: {error.strerror or error}.{_meant(Path(path))}") from error
    except ValueError as error:  # it is not UTF-8, or the path holds a character that no path can
        raise mistake(f"{path} cannot be read: {error}") from error
    return value_of(text, str(path), mistake)


def value_of(text: str, what: str, mistake: type[Exception]) -> Any:
    """The same for text. `what`: what errors call it."""
    import yaml

    try:
        try:
            return yaml.load(text, Loader=_loader())
        except yaml.YAMLError:
            rest = re.sub(_LEFT_OUT, "", text)  # only now: in a text of several lines, `...` is a part of that text
            if rest == text:
                raise
            return yaml.load(rest, Loader=_loader())
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML lets errors of Python's own through for numbers that it cannot read: `0b_`, 5,000 digits.
        raise mistake(f"{what} is not YAML: {error}") from error


def _meant(path: Path) -> str:
    """The file beside it that is most like one that is not there."""
    try:
        if path.exists() or not path.parent.is_dir():
            return ""
    except OSError:  # no file can have such a name
        return ""
    close = nearest(path.name, [other.name for other in path.parent.iterdir() if other.suffix in (".yaml", ".yml")])
    return "" if close is None else f" Did you mean {str(path.parent / close)!r}?"


@functools.cache
def _loader() -> Any:
    """Return the class that reads YAML as the module's docstring says, and refuses names that are given twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._depth = 0
            self._values: dict[Any, int] = {}  # by node, how many values it stands for

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias = self.check_event(yaml.AliasEvent)
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's stubs say nothing of it
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
    """The same for a file that has to hold settings by name."""
    content = content_of(path, mistake)
    if not isinstance(content, dict):
        raise mistake(f"{path} holds {type(content).__name__}, where settings (`key: value`) are wanted.")
    if odd := [name for name in content if not isinstance(name, str)]:
        raise mistake(f"{path} has a setting called {odd[0]!r}, which is not a word. Write it in quotes if it is one.")
    return content
