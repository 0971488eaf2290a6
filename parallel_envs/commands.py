"""A group of commands whose errors name the right word most like a wrong one. Only command lines import this."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperGroup

from parallel_envs.spelling import hint

__all__ = ["SuggestingGroup"]

_NO_CHOICE = re.compile(r"(?:Value error, )?('(?P<word>[^']*)' is not one of (?P<choices>.*)\.)", re.DOTALL)


class SuggestingGroup(TyperGroup):
    """As `typer.Typer(cls=SuggestingGroup)`: options, commands and the values that an option may have."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _with_hint(error.message)
            raise


def _with_hint(text: str) -> str:
    """The text of an error about an option that may only have some values, with the value that was meant."""
    found = _NO_CHOICE.fullmatch(text)
    return found[1] + hint(found["word"], re.findall(r"'([^']*)'", found["choices"])) if found else text
