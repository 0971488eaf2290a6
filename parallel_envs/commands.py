"""Command lines: exit codes, help of one screen, suggestions of the nearest right word, and results as JSON.

A program is a `CommandLine`; its commands are functions:

    app = CommandLine(help="Play environments.")

    @app.command()
    def play(env: Annotated[str, typer.Argument(metavar="ENV", help="What is played. More about it.")]) -> None:
        '''Play an environment.

        Examples:
            program play CartPole-v1
        '''

Tables are in `terminal.py`, so that commands start without rich.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from parallel_envs.checks import hint

if TYPE_CHECKING:
    from rich.text import Text


class ExitCode(IntEnum):
    """The exit codes of commands, apart from 0, which is done."""

    WENT_WRONG = 1
    REFUSED = 2  # it cannot be done as asked, and nothing was done
    INTERRUPTED = 130  # as shells expect after a Ctrl-C


# ---- commands and their help ----------------------------------------------------------------------------------------

RARE = "More options"
"""The `rich_help_panel` of options that few users need: `--help` shows their names, `--help-all` their texts."""
HELP_ALL = "--help-all"
_NO_CHOICE = re.compile(r"(?:Value error, )?('(?P<word>[^']*)' is not one of (?P<choices>.*)\.)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`0-9-])")
_EXAMPLES = "Examples:"
_WIDEST_HELP = 100


class Command(TyperCommand):
    """Command with a help of one screen: usage, meaning, examples, and a line for each option.

    The line of an option is the first sentence of its text; of options in the panel `RARE` there are only the names.
    `--help-all` shows every text in full.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.add_help_option and HELP_ALL in (args[: args.index("--")] if "--" in args else args):
            typer.echo(help_text(self, ctx, everything=True))
            ctx.exit()
        _help_without_words(self, ctx, args)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_metavar, arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx))


class SuggestingGroup(TyperGroup):
    """Group of commands that suggests options, commands and values of options."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if found := _NO_CHOICE.fullmatch(error.message):
                error.message = found[1] + hint(found["word"], re.findall(r"'([^']*)'", found["choices"]))
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _help_without_words(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx))


def _help_without_words(command: Any, ctx: Any, args: list[str]) -> None:
    """Show the help if there are no words and the command needs some. Typer would show it in its own form."""
    if not args and command.no_args_is_help:
        typer.echo(help_text(command, ctx))
        ctx.exit(ExitCode.REFUSED)


class CommandLine(typer.Typer):
    """Program with commands of the class `Command`. Unexpected errors have an ordinary traceback."""

    def __init__(self, *, command_class: type[Command] = Command, **settings: Any) -> None:
        self._command_class = command_class
        own: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
        own["context_settings"] = {"help_option_names": ["--help", "-h"]}
        super().__init__(**{"cls": SuggestingGroup, **own, **settings})

    def command(self, *names: Any, **settings: Any) -> Callable[[Any], Any]:
        return super().command(*names, **{"cls": self._command_class, **settings})


def examples_in(text: str | None) -> list[str]:
    """Return the examples in the help of a command: the indented lines below `Examples:`."""
    _, _, below = (text or "").partition(_EXAMPLES)
    return [line.strip() for line in below.splitlines() if line.startswith("  ")]


def help_text(command: Any, ctx: Any, *, everything: bool = False) -> str:
    """Return the help of a command or a group, as wide as the terminal and at most 100 columns wide."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, text = Console(highlight=False), command.help or ""
    console.width = min(console.width, _WIDEST_HELP)
    panels: dict[str, list[tuple[str, str]]] = {}
    if commands := getattr(command, "commands", None):
        panels["Commands"] = [(name, _first_sentence(one.help)) for name, one in commands.items() if not one.hidden]
    left_out = []
    for one in command.get_params(ctx):
        panel = getattr(one, "rich_help_panel", None)
        if panel == RARE and not everything:
            left_out.append(f"{one.opts[0]} {_metavar(one)}".strip())
        elif not getattr(one, "hidden", False):
            panels.setdefault(panel or f"{one.param_type_name.capitalize()}s", []).append(_row_of(one, everything))
    panels |= {RARE: panels.pop(RARE)} if RARE in panels else {}  # to the end
    names_width = max(cell_len(name) for rows in panels.values() for name, _ in rows)
    with console.capture() as shown:
        console.print(
            Text.assemble(("Usage: ", "bold"), " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)]))
        )
        for paragraph in re.split(r"\n\s*\n", text.partition(_EXAMPLES)[0].strip()):
            console.print("", _with_code(paragraph), sep="\n")
        if examples := examples_in(text):
            console.print(
                "", Text(_EXAMPLES, "bold"), *(f"  {one}" for one in examples), sep="\n", soft_wrap=True, markup=False
            )
        for panel, rows in panels.items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(width=names_width + 2)
            table.add_column()
            for name, meaning in rows:
                table.add_row(Text(f"  {name}", "cyan"), _with_code(meaning))
            console.print("", Text(f"{panel}:", "bold"), table, sep="\n")
        if left_out:
            named = Text.assemble((RARE, "bold"), f" ({ctx.command_path} {HELP_ALL}): {', '.join(left_out)}")
            console.print("", named, sep="\n")
        if command.epilog:
            console.print("", _with_code(command.epilog), sep="\n")
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def _first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    return _SENTENCE_END.split(paragraph)[0].removesuffix(".")


def _metavar(param: Any) -> str:
    """Return the word for the value of an option or argument; empty for a flag."""
    if param.param_type_name == "argument":
        word = param.metavar or param.name.upper()
        return word if param.required or word.startswith("[") else f"[{word}]"
    return "" if param.is_flag else param.metavar or param.name.upper()


def _row_of(param: Any, everything: bool) -> tuple[str, str]:
    """Return the name of an option or argument with its value, and its meaning with the default."""
    name, text, default = _metavar(param), " ".join((param.help or "").split()), param.default
    if param.param_type_name == "option":
        name = " ".join(filter(None, (", ".join(sorted(param.opts, key=len, reverse=True)), name)))
    if "--help" in param.opts:
        return name, f"Show this help; {HELP_ALL} also shows further texts and options."
    text = text if everything else _first_sentence(text)
    if default and default is not True and isinstance(default, str | int | float):
        text = f"{text.removesuffix('.')} (default {default})"
    return name, text


def _with_code(text: str) -> Text:
    """Return a paragraph whose words in backticks are shown in colour."""
    from rich.text import Text

    parts = " ".join(text.split()).split("`")
    return Text.assemble(*((part, "cyan" if number % 2 else "") for number, part in enumerate(parts)))


# ---- JSON -----------------------------------------------------------------------------------------------------------


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on stdout.")]


def json_text(document: Any) -> str:
    """Return values, also dataclasses with paths and tuples, as JSON. Numbers that are not finite become null."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return {str(name): plain(one) for name, one in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return list(map(plain, value))
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, Enum):
            return plain(value.value)
        return value if value is None or isinstance(value, str | int | float) else str(value)

    return json.dumps(plain(document), indent=2, allow_nan=False)


@contextlib.contextmanager
def stdout_kept_clean(*, wanted: bool = True) -> Iterator[None]:
    """Send to stderr what code of the user prints meanwhile, so that stdout has one document."""
    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        yield
