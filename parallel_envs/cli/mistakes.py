"""Errors that the user can correct: the command prints their text, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer


@contextmanager
def plain_errors(
    *kinds: type[BaseException], words: Mapping[str, str] | None = None, exit_code: int = 2
) -> Iterator[None]:
    """End the program with the text and the notes of an error of these kinds, and with this exit code.

    `words`: options by the names of arguments in the texts; `jobs=2` becomes `--jobs 2`.
    """
    try:
        yield
    except kinds as error:
        for text in (str(error), *getattr(error, "__notes__", ())):
            for argument, option in (words or {}).items():
                text = re.sub(rf"(?<![\w.]){argument}=(?=\S)", f"{option} ", text)  # noqa: PLW2901
            typer.echo(text, err=True)
        raise typer.Exit(exit_code) from None


def trusted(words: Sequence[str] | None) -> list[str]:
    """Return the modules and files of `--trust`. A word that is neither ends the program with exit code 2."""
    from parallel_envs.trust import trusted_modules

    with plain_errors(ValueError):
        return list(trusted_modules(words or ()))
