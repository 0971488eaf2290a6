"""Environments that keep breaking, or break in ways of their own. Workers import this module by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedAgentsEnv, ScriptedEnv, Stay

LONG: dict[str, Any] = {"episode_lengths": (100,)}


class Breaking:
    """Makes an env break as `first` says in its first life, and as `later` says in all others.

    Each is a dict from a moment ("construction", "reset", "step", "close") to a way: "raise"; "exit", which ends the
    worker with the number of the life as its exit code; "leave", which raises SystemExit; or "hang".
    """

    def __init__(self, notes: Path | None, first: dict[str, str], later: dict[str, str], **env: Any) -> None:
        super().__init__(**env)
        self.life = 1 if notes is None else lives(notes)
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
        return super().reset(**arguments)  # type: ignore[misc]  # of the env that is broken

    def step(self, action: Any) -> Any:
        self.arrive("step")
        return super().step(action)  # type: ignore[misc]  # of the env that is broken

    def close(self) -> None:
        self.arrive("close")


class BreakingEnv(Breaking, ScriptedEnv):
    def __init__(self, notes: Path, first: dict[str, str], later: dict[str, str]) -> None:
        super().__init__(notes, first, later, **LONG)


def always(way: str, notes: Path) -> partial[BreakingEnv]:
    """Breaks at the first step of every life."""
    return partial(BreakingEnv, notes, {"step": way}, {"step": way})


def lives(notes: Path) -> int:
    """Count a life in a file. The number of it."""
    with notes.open("a") as file:
        file.write(".")
    return notes.stat().st_size


class TellingEnv(ScriptedEnv):
    """Says something new in its info from step `since` on, and returns a lock in that of step `lock_at`."""

    def __init__(self, since: int, lock_at: int = 0) -> None:
        super().__init__(**LONG)
        self.since, self.lock_at = since, lock_at

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"elapsed": self.elapsed} if self.elapsed >= self.since else {}
        if self.elapsed == self.lock_at:
            info["lock"] = threading.Lock()
        return observation, reward, terminated, truncated, info


class FoundingEnv(ScriptedEnv):
    """Starts processes of its own when told to."""

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


TOGETHER: list[dict[Any, Stay]] = [{"a": Stay(100), "b": Stay(100)}]


class FaultyAgentsEnv(ScriptedAgentsEnv):
    """Two agents; breaks as a `FaultyEnv` would."""

    def __init__(self, fault: Fault, moment: Moment, once: Path) -> None:
        self.fuse = FaultyEnv(fault, moment, once=once, **LONG)
        super().__init__(TOGETHER)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.fuse.reset(seed=seed)
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.fuse.step(0)
        return super().step(actions)

    def poke(self) -> bytes:
        return self.fuse.poke()


@dataclass
class Fuse:
    """How and when an env of a group breaks, in every life."""

    fault: str = ""
    moment: str = ""


class FaultyWalk:
    """An env of groups that breaks as a `FaultyEnv` would, unless its fuse says nothing."""

    action_lookup: Mapping[Any, str] = {1: "Right"}

    def __init__(self, config: Fuse) -> None:
        self.fuse: ScriptedEnv = FaultyEnv(config.fault, config.moment, **LONG) if config.fault else ScriptedEnv(**LONG)

    def reset(self, seed: int, mode: str) -> Any:
        self.fuse.reset(seed=seed)
        self.place = 0
        return "0"

    def step(self, action: int) -> Any:
        self.fuse.step(0)
        self.place += action
        return str(self.place), 1.0, False, False, {}

    def render(self, mode: str = "text") -> str:
        return str(self.place)


class FaultyPolicy:
    """Acts with 7, and breaks as a `FaultyEnv` would. Like a spec, it is made in its worker."""

    def __init__(self, fault: str = "", moment: str = "") -> None:
        self.fault, self.moment = fault, moment  # texts: policies that share an object are kept in one worker

    def make(self) -> FaultyPolicy:
        self.fuse: ScriptedEnv = FaultyEnv(self.fault, self.moment, **LONG) if self.fault else ScriptedEnv(**LONG)
        return self

    def reset(self) -> None:
        self.fuse.reset(seed=0)

    def step(self, observation: Any) -> int:
        self.fuse.step(0)
        return 7
