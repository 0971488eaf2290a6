"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def shown_with_output() -> list[tuple[str, str]]:
    """The Python blocks that are followed at once by what they print."""
    one_block = r"((?:(?!```)[^\n]*\n)*)"
    return re.findall(rf"^```python\n{one_block}```\n\n```\n{one_block}```$", README, re.MULTILINE)


def test_there_is_something_to_run() -> None:
    assert shown_with_output()
    assert commands_with_output()
    assert shown_with_output()[0][0] == BLOCKS[0][1], "the README begins with code that runs as it stands"


@pytest.mark.parametrize(("code", "output"), shown_with_output())
def test_code_prints_what_is_shown_under_it(code: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "shown.py"
    script.write_text(code, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ran.stdout, ran.stderr) == (output, "")


def commands_with_output() -> list[tuple[str, str]]:
    """The calls of the command line tool that are followed at once by what they print."""
    return re.findall(
        r"^```bash\n\.venv/bin/parallel-envs ([^\n]*)\n```\n\n```\n(.*?)^```$", README, re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize(("words", "output"), commands_with_output())
def test_a_command_prints_what_is_shown_under_it(words: str, output: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parallel_envs", *shlex.split(words)]
    wide = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # which readline sets behind pytest
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=wide)
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr


def test_every_other_python_block_is_at_least_python() -> None:
    for kind, code in BLOCKS:
        if kind == "python":
            compile(code, "README.md", "exec")


def test_files_that_are_named_are_there() -> None:
    root = Path(__file__).parent.parent
    for name in set(re.findall(r"`((?:tests|examples|parallel_envs)/[\w/.]+)`", README)):
        assert (root / name).exists(), name
