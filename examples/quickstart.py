"""Environment steps per second of three ways to run many environments.

    python examples/quickstart.py --num-envs 8 --seconds 1.5

in-process      Gymnasium's SyncVectorEnv: a plain loop over the environments, in this process
gymnasium       Gymnasium's AsyncVectorEnv: one process for each environment
parallel_envs   ParallelEnvManager: the same, with the same arguments and the same results

Two kinds of environment are stepped with random actions. CartPole-v1 takes some microseconds a step, less
than it costs to wake a process: there the plain loop wins. MillisecondEnv takes a millisecond of CPU, like a
light simulator: there every core counts. All ways take turns in short rounds, so that a busy moment of the
machine falls on each of them, and the median round is reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from parallel_envs import ParallelEnvManager

ROUNDS = 5
EPISODE_STEPS = 200

Observation = npt.NDArray[np.float32]
Vector = VectorEnv[Any, Any, Any]


class MillisecondEnv(gymnasium.Env[Observation, np.int64]):
    """Spends a millisecond of CPU time in every step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        self._step += 1
        return self._observe(), float(action), False, self._step >= EPISODE_STEPS, {}

    def _observe(self) -> Observation:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)


def make_cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


ENVS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "CartPole-v1": make_cartpole,
    "MillisecondEnv": MillisecondEnv,
}
WAYS: dict[str, Callable[..., Vector]] = {
    "in-process": SyncVectorEnv,
    "gymnasium": AsyncVectorEnv,
    "parallel_envs": ParallelEnvManager,
}


class Contestant:
    """A vector environment that is stepped for a while whenever it is its turn."""

    def __init__(self, envs: Vector) -> None:
        self.rates: list[float] = []
        self._envs = envs
        self._actions = [envs.action_space.sample() for _ in range(64)]
        self._ended = np.zeros(envs.num_envs, dtype=np.bool_)
        envs.reset(seed=0)
        self._run(seconds=0.02)  # warm up

    def take_turn(self, seconds: float) -> None:
        self.rates.append(self._run(seconds))

    def _run(self, seconds: float) -> float:
        """Environment steps per second. A row that only begins its next episode is not a step."""
        num_steps, calls, start = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            num_steps += self._envs.num_envs - int(np.count_nonzero(self._ended))
            _, _, terminated, truncated, _ = self._envs.step(self._actions[calls % len(self._actions)])
            self._ended = terminated | truncated
            calls += 1
        return num_steps / elapsed


def measure(num_envs: int, seconds: float) -> dict[str, dict[str, float]]:
    """The median rate of every way for every environment: `measure(...)[env][way]`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        task = progress.add_task("starting", total=len(ENVS) * len(WAYS) * ROUNDS)
        contestants: dict[tuple[str, str], Contestant] = {}
        for env, make in ENVS.items():
            for way, vectorize in WAYS.items():
                envs = vectorize([make] * num_envs)
                stack.callback(envs.close)
                contestants[env, way] = Contestant(envs)
        for _ in range(ROUNDS):
            for (env, way), contestant in contestants.items():
                progress.update(task, description=f"{env}, {way}")
                contestant.take_turn(seconds / ROUNDS)
                progress.advance(task)
        progress.update(task, description="done")
    return {env: {way: statistics.median(contestants[env, way].rates) for way in WAYS} for env in ENVS}


def show(rates: dict[str, dict[str, float]], num_envs: int) -> None:
    """Print a table with the best of each row in bold, and ours as a multiple of the other two."""
    table = Table(title=f"environment steps per second: {num_envs} environments, {os.cpu_count()} cores")
    table.add_column("environment")
    for way in WAYS:
        table.add_column(way, justify="right")
    table.add_column("parallel_envs is", justify="right")
    for env, row in rates.items():
        best = max(row.values())
        cells = [f"[bold]{rate:,.0f}[/bold]" if rate == best else f"{rate:,.0f}" for rate in row.values()]
        ours = row["parallel_envs"]
        versus = f"{ours / row['gymnasium']:.2f} x gymnasium\n{ours / row['in-process']:.2f} x in-process"
        table.add_row(env, *cells, versus)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Environment steps per second of three ways to run them.")
    parser.add_argument("--num-envs", type=int, default=8, help="environments per way (default: 8)")
    parser.add_argument("--seconds", type=float, default=1.5, help="stepping time per cell (default: 1.5)")
    arguments = parser.parse_args()
    rates = measure(arguments.num_envs, arguments.seconds)
    show(rates, arguments.num_envs)
    for env, row in rates.items():
        print(f"{env}: {max(row, key=lambda way: row[way])} is the fastest.")


if __name__ == "__main__":
    main()
