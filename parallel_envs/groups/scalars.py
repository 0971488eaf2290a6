"""Truths and numbers that settings hold, taken from nothing else: `true` is no number, and "yes" and "8" are texts.

1.0 will do for a whole number. Numbers with a point may be texts: YAML takes `1e-3` for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt, StrictBool, TypeAdapter
from pydantic_core import PydanticKnownError, SchemaValidator, core_schema


def _whole(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise PydanticKnownError("int_type")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Flag = StrictBool
Count = Annotated[PositiveInt, BeforeValidator(_whole)]
CountFromZero = Annotated[NonNegativeInt, BeforeValidator(_whole)]
Number = Annotated[FiniteFloat, BeforeValidator(_number)]
Seconds = Annotated[PositiveFloat, BeforeValidator(_number)]


def maker_of(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """Makes a dataclass of a mapping, its fields checked against their types in the same way."""
    return SchemaValidator(_guarded(TypeAdapter(kind).core_schema)).validate_python


_AS_IT_IS = {"default", "metadata", "serialization", "keys_schema"}
"""What of a schema is no schema of a value; and keys, which JSON has as texts only."""


def _guarded(schema: Any) -> Any:
    """A schema, and all within it, with what is said above."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_guarded, schema))
    if not isinstance(schema, dict):
        return schema
    inner = {name: part if name in _AS_IT_IS else _guarded(part) for name, part in schema.items()}
    match schema.get("type"):
        case "bool":
            return {**inner, "strict": True}
        case "int":
            return core_schema.no_info_before_validator_function(_whole, inner)
        case "float":
            return core_schema.no_info_before_validator_function(_number, inner)
    return inner
