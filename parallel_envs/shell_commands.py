"""Commands that are printed for the user to copy into a shell."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from parallel_envs.files import is_file


def shell_command(script: str, module: str, words: str) -> str:
    """Return a command that starts the script of this Python environment.

    The command has the name of the script if a shell finds it by that name, otherwise the path by which it was called,
    otherwise `python -m`.
    """
    found = shutil.which(script)
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return f"{script} {words}"
    if Path(sys.argv[0]).name == script and is_file(sys.argv[0]):
        return f"{shlex.quote(sys.argv[0])} {words}"
    return f"{shlex.quote(sys.executable)} -m {module} {words}"


def as_argument(path: Path) -> str:
    """Return a path as one word of a shell that no command takes for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
