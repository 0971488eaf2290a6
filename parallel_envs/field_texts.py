"""What the fields of a class mean: the text that stands below each of them in the source.

    @documents_fields
    @dataclass(frozen=True)
    class Config:
        "Settings of ..."

        rate: float = 0.1
        "How fast."             # in `help(Config)` as well, with the type and the default

The source is read when a text is asked for, not before: importing stays quick. Where there is no source (a program that
was packed without it) the texts are empty.
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

__all__ = ["Field", "documents_fields", "fields_of", "texts_of", "type_text"]

Kind = TypeVar("Kind", bound=type)

_WIDTH = 100
_NAMES = {int: "int", float: "float", str: "str", bool: "bool", Any: "any"}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field, as a reader wants it.

    Args:
        name: Its name.
        hint: Its type.
        default: Its default; `Field.required` if it has none.
        text: What it means, in one line.
    """

    name: str
    hint: Any
    default: Any
    text: str

    required: typing.ClassVar[object] = inspect.Parameter.empty


def texts_of(kind: type) -> dict[str, str]:
    """The text below each field, by name, of the class and those that it inherits from."""
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
    """The fields of a dataclass or a pydantic model, in their order."""
    texts, hints = texts_of(kind), typing.get_type_hints(kind)
    return tuple(Field(name, hints[name], default, texts.get(name, "")) for name, default in _defaults(kind).items())


def _defaults(kind: Any) -> Mapping[str, Any]:
    if not dataclasses.is_dataclass(kind):
        return {name: _default(one.default, one.default_factory) for name, one in kind.model_fields.items()}
    return {field.name: _default(field.default, field.default_factory) for field in dataclasses.fields(kind)}


def _default(value: Any, factory: Any) -> Any:
    """What a field holds that was not given. `value` is a mark of dataclasses or pydantic where there is none."""
    if callable(factory):
        return factory()
    is_missing = value is dataclasses.MISSING or type(value).__name__ == "PydanticUndefinedType"
    return Field.required if is_missing else value


def type_text(hint: Any, none: str = "None") -> str:
    """A type in few words: `int`, `float or None`, `"mlp" or "cnn"`. `none`: the word for None."""
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
    """A class as it is, whose docstring says also what each field means. Put it above `@dataclass`."""
    typing.cast(Any, kind).__doc__ = _Docstring(inspect.cleandoc(kind.__doc__ or ""))
    return kind


class _Docstring:
    """A docstring that is put together when it is first asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._whole: str | None = None

    def __get__(self, instance: object, kind: type) -> str:
        if self._whole is None:
            told = "\n".join(map(_paragraph, fields_of(kind)))
            self._whole = f"{self._text}\n\nArgs:\n{told}"
        return self._whole


def _paragraph(field: Field) -> str:
    default = "" if field.default is Field.required else f", by default {field.default!r}"
    words = f"{field.name} ({type_text(field.hint)}{default}): {field.text}"
    return textwrap.fill(words, _WIDTH, initial_indent="    ", subsequent_indent="        ", break_long_words=False)
