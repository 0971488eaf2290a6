"""What the user can mend is said in plain words, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer


@contextmanager
def plain_errors(
    *kinds: type[BaseException], words: Mapping[str, str] | None = None, exit_code: int = 2
) -> Iterator[None]:
    """Errors of these kinds end the program with their text, their notes and this exit code.

    `words`: what arguments in their texts are called on the command line; `jobs=2` becomes `--jobs 2`.
    """
    try:
        yield
    except kinds as error:
        for told in (str(error), *getattr(error, "__notes__", ())):
            typer.echo(_in_options(told, words or {}), err=True)
        raise typer.Exit(exit_code) from None


def trusted(words: Sequence[str] | None) -> list[str]:
    """Return the modules and files of `--trust`. A word that is neither ends the program with one line, and code 2."""
    from parallel_envs.trust import trusted_modules

    with plain_errors(ValueError):
        return list(trusted_modules(words or ()))


def _in_options(text: str, words: Mapping[str, str]) -> str:
    for argument, option in words.items():
        text = re.sub(rf"(?<![\w.]){argument}=(?=\S)", f"{option} ", text)
    return text
