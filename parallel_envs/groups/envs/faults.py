"""What is wrong with a file of data: an error that names the file and the line."""

from __future__ import annotations

import re

from parallel_envs.errors import ParallelEnvsError

_PLACE = re.compile(r"(?P<path>.*?), line (?P<line>\d+): |(?P<whole>.*?): ", re.DOTALL)
"""How every text begins that `fault` writes."""


class DataFileError(ParallelEnvsError, ValueError):
    """A file of data cannot be used. `path` names it; `line` is where, or None where that is nowhere in particular.

    One that an environment raises, wherever it lives, is an `EnvError` too.
    """

    def __init__(self, text: str, *, path: str = "", line: int | None = None) -> None:
        super().__init__(text)
        self.path = path
        self.line = line

    def retell(self, text: str) -> None:
        """Become the error with this text: of one that a worker raised nothing else arrives."""
        if found := _PLACE.match(text):
            self.path = found["path"] or found["whole"]
            self.line = None if found["line"] is None else int(found["line"])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0],), {"path": self.path, "line": self.line}


def fault(path: str, line: int | None, what: str) -> DataFileError:
    where = path if line is None else f"{path}, line {line}"
    return DataFileError(f"{where}: {what}", path=path, line=line)
