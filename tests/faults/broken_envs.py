"""Environments that keep breaking, or break in ways of their own. Workers import this module by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from parallel_envs.testing import ScriptedEnv

LONG: dict[str, Any] = {"episode_lengths": (100,)}


class AlwaysFailingEnv(ScriptedEnv):
    """Raises at every step; the error counts its lives."""

    def __init__(self, notes: Path) -> None:
        super().__init__(**LONG)
        self.life = lives(notes)

    def step(self, action: Any) -> Any:
        raise LookupError(f"step of life {self.life}")


class AlwaysDyingEnv(AlwaysFailingEnv):
    """Ends its worker at every step, with its life as the exit code."""

    def step(self, action: Any) -> Any:
        os._exit(self.life)


class OneLifeEnv(ScriptedEnv):
    """Can be made and reset once; raises at its first step, and whenever it is made again."""

    def __init__(self, notes: Path, way: str = "raise") -> None:
        super().__init__(**LONG)
        if (life := lives(notes)) > 1:
            self.end(way, f"construction {life}")
        self.way = way

    def step(self, action: Any) -> Any:
        self.end(self.way, "the first step")

    def end(self, way: str, text: str) -> None:
        match way:
            case "raise":
                raise LookupError(text)
            case "exit":
                os._exit(9)
            case _:
                time.sleep(3600.0)


class NoSecondResetEnv(ScriptedEnv):
    """Its first life is well until its first step; later ones cannot be reset."""

    def __init__(self, notes: Path, way: str = "raise") -> None:
        super().__init__(**LONG)
        self.life, self.way = lives(notes), way

    def reset(self, **arguments: Any) -> Any:
        if self.life > 1:
            if self.way == "hang":
                time.sleep(3600.0)
            raise LookupError(f"reset of life {self.life}")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        raise LookupError("the first step")


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


class TalkingEnv(ScriptedEnv):
    """Writes in every way there is."""

    def say(self) -> None:
        sys.stdout.write("by print\n")
        sys.stderr.write("by stderr\n")
        os.write(2, b"by C\n")

    def last_words(self) -> None:
        os.write(2, b"the last line, without an end")
        os._exit(3)


class ClosingBadlyEnv(ScriptedEnv):
    """Raises at every step, and cannot be closed."""

    def __init__(self, notes: Path, way: str) -> None:
        super().__init__(**LONG)
        self.life, self.way = lives(notes), way

    def step(self, action: Any) -> Any:
        if self.life == 1:
            raise LookupError("the first step")
        return super().step(action)

    def close(self) -> None:
        match self.way:
            case "raise":
                raise OSError("cannot be closed")
            case "exit":
                raise SystemExit(4)
            case _:
                time.sleep(3600.0)
