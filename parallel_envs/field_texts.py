"""Documentation of the fields of a class, read from the strings below them in the source.

    @documents_fields
    @dataclass(frozen=True)
    class Config:
        "Settings of ..."

        rate: float = 0.1
        "How fast."             # in `help(Config)` as well, with the type and the default

The source is read when a text is first used, so importing stays fast. Without a source (in a packed program) the texts
are empty.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

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
