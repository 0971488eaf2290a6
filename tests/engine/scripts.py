"""Scripts as users write them, run by an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.engine.asking import WAIT_SECONDS

ROOT = Path(__file__).parents[2]

OPENING = """
import os, signal, sys, threading, time
from parallel_envs.engine import HOST, PoolSettings, supervisor_pid, open_pool

def opened(num_workers, factory, *args, **settings):
    pool = open_pool(num_workers, PoolSettings(context=sys.argv[1], **settings))
    key = pool.new_key()
    built = pool.call_all(HOST, "build", key, factory, *args)
    assert pool.wait(built, 30) and not built.replies, built.replies
    return pool, key
"""
"""What most of them begin with; no main guard anywhere."""


def written(folder: Path, text: str) -> Path:
    """The script, in a file."""
    script = folder / "users_script.py"
    script.write_text(OPENING + dedent(text))
    return script


def run_script(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    command = [sys.executable, str(written(folder, text)), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=WAIT_SECONDS,
        check=False,
        cwd=folder,
        env=environment(),
    )


@contextmanager
def running_script(folder: Path, text: str, *arguments: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a script in a process group of its own, and kill it afterwards if it has not ended."""
    command = [sys.executable, str(written(folder, text)), *arguments]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    with subprocess.Popen(command, text=True, cwd=folder, env=environment(), process_group=0, **settings) as process:
        try:
            yield process
        finally:
            process.kill()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
