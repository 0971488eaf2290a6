"""Environments and contestants that the tests of the bench put on stage, importable from any process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import PEERS
from benchmarks.plan import run_steps
from parallel_envs.bench.runners import InProcess, Runner, Workload

Observation = NDArray[np.float32]


class EpisodeEnv(gymnasium.Env[Observation, np.int64]):
    """Episodes of exactly `length` steps. Each call of `step` adds a byte to `record`, if there is one.

    A step before a reset, or after an episode's end, is an error.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, record: Path | None = None) -> None:
        self._length, self._record = length, record
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self._length
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._left == 0:
            raise RuntimeError("stepped after the episode's end")
        if self._record is not None:
            with self._record.open("ab") as file:
                file.write(b".")
        self._left -= 1
        return np.zeros(2, np.float32), 1.0, self._left == 0, False, {}


class ExitingEnv(EpisodeEnv):
    """Ends its process at the first step, with last words."""

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        os.write(2, b"farewell")
        os._exit(7)


def make_exiting() -> ExitingEnv:
    return ExitingEnv(length=5)


def make_nothing() -> None:
    return None


NOT_CALLABLE = 3


@dataclass
class Absent(InProcess):
    """A peer whose library nobody has."""

    name = "absent"
    module = "no_such_library_anywhere"
    pip_name = "absent-library"


@dataclass
class Broken(InProcess):
    """A peer that cannot open."""

    name = "broken"

    def open(self) -> None:
        raise RuntimeError("this space is not supported")


@dataclass
class NotingItsProcess(InProcess):
    """Writes its process number into a file each time it opens."""

    note: Path = Path("unset")

    def open(self) -> None:
        with self.note.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        super().open()


def main(length: int, num_envs: int, steps: int, folder: str, *names: str) -> None:
    """Let contestants step, one after the other, and print how many steps each says it made."""
    from functools import partial

    from parallel_envs.bench.runners import Ours

    kinds: dict[str, type[Runner]] = {**PEERS, InProcess.name: InProcess, Ours.name: Ours}
    for name in names:
        workload = Workload(
            factory=partial(EpisodeEnv, length, Path(folder) / name),
            action_space=EpisodeEnv.action_space,
            num_envs=num_envs,
        )
        contestant = kinds[name](workload)
        contestant.load()
        contestant.open()
        sys.stdout.write(f"{name}={run_steps(contestant.step, steps)}\n")
        contestant.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
