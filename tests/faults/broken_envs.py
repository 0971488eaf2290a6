"""Environments that keep breaking, or break in ways of their own. Workers import this module by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from parallel_envs.testing import ScriptedEnv

LONG: dict[str, Any] = {"episode_lengths": (100,)}


class BreakingEnv(ScriptedEnv):
    """Breaks as `first` says in its first life, and as `later` says in all others.

    Each is a dict from a moment ("construction", "reset", "step", "close") to a way: "raise"; "exit", which ends the
    worker with the number of the life as its exit code; "leave", which raises SystemExit; or "hang".
    """

    def __init__(self, notes: Path, first: dict[str, str], later: dict[str, str]) -> None:
        super().__init__(**LONG)
        self.life = lives(notes)
        self.ways = first if self.life == 1 else later
        self.arrive("construction")

    def arrive(self, moment: str) -> None:
        match self.ways.get(moment):
            case "raise":
                raise LookupError(f"{moment} of life {self.life}")
            case "exit":
                os._exit(self.life)
            case "leave":
                raise SystemExit(4)
            case "hang":
                time.sleep(3600.0)

    def reset(self, **arguments: Any) -> Any:
        self.arrive("reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.arrive("step")
        return super().step(action)

    def close(self) -> None:
        self.arrive("close")


def always(way: str, notes: Path) -> partial[BreakingEnv]:
    """Breaks at the first step of every life."""
    return partial(BreakingEnv, notes, {"step": way}, {"step": way})


def lives(notes: Path) -> int:
    """Count a life in a file. The number of it."""
    with notes.open("a") as file:
        file.write(".")
    return notes.stat().st_size


class AnnouncingEnv(ScriptedEnv):
    """Says something new in its info from step `since` on."""

    def __init__(self, since: int) -> None:
        super().__init__(**LONG)
        self.since = since

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"elapsed": self.elapsed} if self.elapsed >= self.since else {}
        return observation, reward, terminated, truncated, info


class LockInfoEnv(ScriptedEnv):
    """Returns a lock in the info of step `at`."""

    def __init__(self, at: int) -> None:
        super().__init__(**LONG)
        self.at = at

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"lock": threading.Lock()} if self.elapsed == self.at else {}


class FoundingEnv(ScriptedEnv):
    """Starts processes of its own, and dies when told to."""

    def __init__(self) -> None:
        super().__init__(**LONG)
        self.children: list[subprocess.Popen[bytes]] = []

    def found(self) -> list[int]:
        """A program and a fork, which go on for ever. Their pids."""
        self.children.append(subprocess.Popen(["sleep", "3600"]))
        pid = os.fork()
        if pid == 0:
            signal.pause()
        return [self.children[-1].pid, pid]

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
