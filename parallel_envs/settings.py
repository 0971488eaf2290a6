"""Settings: the files that hold them, in YAML, and the documentation of their fields.

    @documents_fields
    @dataclass(frozen=True)
    class Config:
        "Settings of ..."

        rate: float = 0.1
        "How fast."             # in `help(Config)` as well, with the type and the default

A settings file holds the values of JSON: text, numbers, true, false, null, lists, and blocks with names. A date
(`2024-01-01`) is therefore text, as it is after the settings were written and read again. Tags such as `!!binary` or
`!!python/...` are refused. To bound memory and stack, the reader also refuses blocks nested deeper than `DEEPEST`,
blocks that contain themselves, and aliases that stand for more than `MOST_VALUES` values.

A line with nothing but `...` is ignored: guides use it for settings that they leave out, which have their defaults.

The texts of fields are read from the source when one is first used, so importing stays fast. Without a source (in a
packed program) they are empty.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from parallel_envs.checks import similar_path
from parallel_envs.errors import ParallelEnvsError


class BadSettings(ParallelEnvsError, ValueError):
    """Raised for settings that cannot be run. The text has one line for each mistake, with its place."""

    def retell(self, text: str) -> None:
        """Make the error from its text alone, as it arrives from a worker: there is nothing else in it."""


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
        meant = similar_path(path, lambda one: one.suffix in (".yaml", ".yml"))
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

    def mistake(text: str, node: Any) -> Exception:
        return yaml.MarkedYAMLError(problem=text, problem_mark=node.start_mark)

    class Loader(yaml.SafeLoader):
        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._depth = 0
            self._values: dict[Any, int] = {}  # number of values that each node stands for

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias, event = self.check_event(yaml.AliasEvent), self.peek_event()  # type: ignore[no-untyped-call]
            if self._depth == DEEPEST and not is_alias:
                raise mistake(f"more than {DEEPEST} blocks within one another", event)
            self._depth += 1
            node: Any = super().compose_node(parent, index)
            self._depth -= 1
            if is_alias and node not in self._values:
                raise mistake("a block that contains itself", event)
            if not is_alias:
                parts = [] if isinstance(node, yaml.ScalarNode) else node.value
                parts = itertools.chain.from_iterable(parts) if isinstance(node, yaml.MappingNode) else parts
                self._values[node] = 1 + sum(self._values[part] for part in parts)
            if self._values[node] > MOST_VALUES:
                raise mistake(f"more than {MOST_VALUES:,} values", event)
            return node

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
                raise mistake("half a character (a surrogate)", node)
            return value

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = Counter(name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode))
            if isinstance(node, yaml.MappingNode) and (twice := sorted(name for name in names if names[name] > 1)):
                raise mistake(f"`{twice[0]}` stands twice", node)
            return super().construct_mapping(node, deep)

    def refused(loader: Any, node: Any) -> Any:
        raise mistake(f"the tag {node.tag!r} is not allowed", node)

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


_POWER_OF_TEN = re.compile(r"[+-]?[\d.]*\d[eE][+-]?\d+")


def parse_number(value: Any) -> Any:
    """Return the number of a text such as `1e6`, which YAML reads as text. Raises ValueError for True and False."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a flag")  # pydantic takes no TypeError
    return float(value) if isinstance(value, str) and _POWER_OF_TEN.fullmatch(value) else value


# ---- documentation of fields -----------------------------------------------------------------------------------------

Kind = TypeVar("Kind", bound=type)

_WIDTH = 100
_NAMES = {int: "int", float: "float", str: "str", bool: "bool", Any: "any"}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a class: name, type, default (`Field.required` if it has none), and its meaning in one line."""

    name: str
    hint: Any
    default: Any
    text: str

    required: typing.ClassVar[object] = inspect.Parameter.empty


def texts_of(kind: type) -> dict[str, str]:
    """Return the text below each field by name, for the class and its bases."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__ != "builtins" and "__annotations__" in vars(one):
            texts |= _texts_in(one)
    return texts


def _texts_in(kind: type) -> dict[str, str]:
    try:
        (body,) = (node for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body)
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            text: Any = typing.cast(Any, below).value.value
            found[field.target.id] = " ".join(text.split()) if isinstance(text, str) else ""
    return found


def fields_of(kind: type) -> tuple[Field, ...]:
    """Return the fields of a dataclass or a pydantic model in order."""
    texts, hints = texts_of(kind), dict[str, Any]()
    for one in reversed(kind.__mro__):
        if not one.__module__.startswith("pydantic"):  # its own annotations name what only type checkers import
            hints |= inspect.get_annotations(one, eval_str=True)
    if dataclasses.is_dataclass(kind):
        declared: dict[str, Any] = {field.name: field for field in dataclasses.fields(kind)}
    else:
        declared = typing.cast(Any, kind).model_fields
    found = []
    for name, field in declared.items():
        default = field.default_factory() if callable(field.default_factory) else field.default
        if default is dataclasses.MISSING or type(default).__name__ == "PydanticUndefinedType":
            default = Field.required
        elif hasattr(default, "model_dump"):  # a block
            default = default.model_dump()
        found.append(Field(name, hints[name], default, texts.get(name, "")))
    return tuple(found)


def type_text(hint: Any, none: str = "None") -> str:
    """Return a type in few words: `int`, `float or None`, `"mlp" or "cnn"`. `none` is the word for None."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return none
    if origin is Annotated:
        return type_text(parts[0], none)
    if origin is Literal:
        return _or([f'"{one}"' if isinstance(one, str) else str(one) for one in parts])
    if origin in (typing.Union, types.UnionType):
        return _or([type_text(one, none) for one in parts])
    if origin is tuple:
        return "list of " + type_text(parts[0], none)
    if origin is not None and inspect.isclass(origin):
        return "function" if not issubclass(origin, Mapping) else "dict"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def documents_fields(kind: Kind) -> Kind:
    """Add the meaning of each field to the docstring of a class. Put this decorator above `@dataclass`."""
    typing.cast(Any, kind).__doc__ = _Docstring(inspect.cleandoc(kind.__doc__ or ""))
    return kind


class _Docstring:
    """Docstring that is assembled on first use."""

    def __init__(self, text: str) -> None:
        self._text, self._whole = text, ""

    def __get__(self, instance: object, kind: type) -> str:
        if not self._whole:
            self._whole = f"{self._text}\n\nArgs:"
            for one in fields_of(kind):
                default = "" if one.default is Field.required else f", by default {one.default!r}"
                words = f"{one.name} ({type_text(one.hint)}{default}): {one.text}"
                lines = textwrap.wrap(words, _WIDTH - 4, subsequent_indent="    ", break_long_words=False)
                self._whole += "".join(f"\n    {line}" for line in lines)
        return self._whole
