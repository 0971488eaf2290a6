"""Commands that suggest the nearest right word. Apart from tables (`terminal.py`), so that they start without rich."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperGroup

from parallel_envs.checks import hint

_NO_CHOICE = re.compile(r"(?:Value error, )?('(?P<word>[^']*)' is not one of (?P<choices>.*)\.)", re.DOTALL)


class SuggestingGroup(TyperGroup):
    """Class for `typer.Typer(cls=...)`: suggests options, commands and values of options."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if found := _NO_CHOICE.fullmatch(error.message):
                error.message = found[1] + hint(found["word"], re.findall(r"'([^']*)'", found["choices"]))
            raise
