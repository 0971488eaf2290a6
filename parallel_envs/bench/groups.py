"""`bench groups`: what a turn of many small environments takes, ours beside the plain loop and a pool that ships.

All contestants of a work are open at once and take turns in short slices; they play the same actions on environments
that were reset with the same kind of seeds. An episode's end and the resets between are not part of a turn. Resets are
measured with rollouts as a whole; and what travels to our workers, in an early turn and in the fiftieth.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from parallel_envs.bench.group_scheme import PlainLoop, ShippedPool
from parallel_envs.bench.group_works import GROUP_WORKS, GroupWork
from parallel_envs.bench.measure import (
    MeasurementFailed,
    Series,
    Slice,
    Spread,
    Tell,
    interleave,
    paired_ratio,
    spread,
)
from parallel_envs.bench.plan import BenchPlan
from parallel_envs.bench.report import Report
from parallel_envs.bench.turns import Pace, rates_of
from parallel_envs.groups import EnvStateManager, register

OURS = "EnvStateManager"
CALLER = "EnvStateManager, in the caller"
_EPISODE = 40
"""Turns after which all begin anew."""
_ROLLOUT = 10
"""Turns of a rollout, which begins with a reset."""
_EARLY, _LATE = 2, 50
_MOST_ROLLOUTS = 5


def shipped(context: str) -> str:
    """The name of a pool that ships histories."""
    return f"pool that ships, {context}"


class Contestant(Protocol):
    """Who steps groups."""

    def reset(self) -> Any:
        """Begin an episode in every environment."""

    def step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A turn of each; the entries of those that are not over."""

    def close(self) -> None:
        """End what was begun."""


@dataclass(frozen=True, kw_only=True)
class GroupPlan(BenchPlan):
    """What `bench groups` was asked for."""

    works: tuple[str, ...] = tuple(GROUP_WORKS)
    workers: int = 2
    pace: Pace = dataclasses.field(default_factory=Pace)


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """One contestant's figures in one work.

    `turn` is the spread of the seconds that a turn of all environments takes; `to_loop` and `to_caller` are those of
    how many times as fast as the plain loop, and as ours without workers, it is, round by round. `rollout_to_caller` is
    the latter of whole rollouts: a reset and 10 turns. `reset_seconds` is the median of the resets before these.
    `early_bytes` and `late_bytes` are what travels to our workers and back, by environment, in the second turn of an
    episode and in the fiftieth.
    """

    work: str
    name: str
    turn: Spread | None = None
    to_loop: Spread | None = None
    to_caller: Spread | None = None
    rollout_to_caller: Spread | None = None
    reset_seconds: float | None = None
    early_bytes: int | None = None
    late_bytes: int | None = None
    error: str | None = None


class Ours:
    """An `EnvStateManager` with the settings that it has by default, but for the number of workers."""

    def __init__(self, work: GroupWork, num_workers: int, *, in_caller: bool = False) -> None:
        if work.factory is not None:
            register(work.env_type, work.factory)
        self.manager = EnvStateManager(work.config(num_workers))
        self.manager.use_multiprocessing = not in_caller

    def reset(self) -> Any:
        return self.manager.reset()

    def step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return self.manager.step(inputs)

    def close(self) -> None:
        self.manager.close()


class Player:
    """Plays a contestant's episodes, turn by turn."""

    def __init__(self, contestant: Contestant, work: GroupWork) -> None:
        self._contestant, self._work = contestant, work
        self._turns, self._generator = 0, np.random.default_rng(0)
        self._going: list[int] = []

    def turn(self) -> Slice:
        """A turn; before it, all begin anew if it is time."""
        if not self._going or self._turns >= _EPISODE:
            self.begin()
        return self.go_on()

    def go_on(self) -> Slice:
        """A turn of those that are not over."""
        inputs = self._inputs()
        cpu, began = time.process_time(), time.perf_counter()
        entries = self._contestant.step(inputs)
        slice_ = Slice(len(inputs), time.perf_counter() - began, time.process_time() - cpu)
        self._going = [entry["env_id"] for entry in entries]
        self._turns += 1
        return slice_

    def begin(self) -> None:
        """All begin anew."""
        self._contestant.reset()
        self._going, self._turns = list(range(self._work.num_envs)), 0

    def _inputs(self) -> list[dict[str, Any]]:
        actions = self._work.actions(self._generator, self._work.num_envs)
        return [
            {"env_id": env, "llm_response": "", "llm_raw_response": "", "actions": actions[env]} for env in self._going
        ]

    def run(self, seconds: float) -> Slice:
        """Turns until they have taken so long."""
        steps, taken, cpu = 0, 0.0, 0.0
        while taken < seconds:
            one = self.turn()
            steps, taken, cpu = steps + one.steps, taken + one.seconds, cpu + one.cpu_seconds
        return Slice(steps, taken, cpu)


def measure_groups(plan: GroupPlan, tell: Tell = lambda text: None) -> tuple[GroupRow, ...]:
    """A row for each contestant, work by work."""
    return tuple(row for name in plan.works for row in measure_work(GROUP_WORKS[name], plan, tell))


def measure_work(work: GroupWork, plan: GroupPlan, tell: Tell = lambda text: None) -> list[GroupRow]:
    """A row for each contestant."""
    with ExitStack() as closing:
        contestants: dict[str, Contestant] = {
            PlainLoop.name: PlainLoop(work),
            CALLER: Ours(work, plan.workers, in_caller=True),
            OURS: Ours(work, plan.workers),
            **{shipped(context): ShippedPool(work, plan.workers, context) for context in work.contexts},
        }
        players = {name: Player(one, work) for name, one in contestants.items()}
        for name, one in contestants.items():
            closing.callback(one.close)
            players[name].turn()
        slices = {name: partial(_slice, one, plan.pace.seconds / work.slices) for name, one in players.items()}
        series = interleave(slices, plan.pace.rounds * work.slices, lambda text: tell(f"{work.what}: {text}"))
        samplers = {name: partial(_rollout, one) for name, one in players.items()}
        num_rollouts = min(plan.pace.rounds, _MOST_ROLLOUTS)
        rollouts = interleave(samplers, num_rollouts, lambda text: tell(f"{work.what}, rollouts: {text}"))
        payload = _payload(contestants[OURS], players[OURS])
    return [_row(work, name, series, rollouts, payload if name == OURS else (None, None)) for name in contestants]


def _slice(player: Player, seconds: float) -> Slice:
    try:
        return player.run(seconds)
    except Exception as error:
        raise MeasurementFailed(f"{type(error).__name__}: {error}") from error


def _rollout(player: Player) -> tuple[float, float]:
    """The seconds of a reset, and of a rollout as a whole."""
    began = time.perf_counter()
    player.begin()
    reset = time.perf_counter() - began
    return reset, reset + sum(player.turn().seconds for _ in range(_ROLLOUT))


def _payload(ours: Contestant, player: Player) -> tuple[int, int]:
    """The bytes by environment of an early turn and of a late one; zeros where nothing travels."""
    assert isinstance(ours, Ours)
    player.begin()
    sizes = []
    for _ in range(_LATE):
        before = ours.manager.stats().num_bytes
        num_envs = player.go_on().steps
        sizes.append((ours.manager.stats().num_bytes - before) // num_envs)
    return sizes[_EARLY - 1], sizes[_LATE - 1]


def _row(
    work: GroupWork,
    name: str,
    series: Mapping[str, Series[Slice]],
    rollouts: Mapping[str, Series[tuple[float, float]]],
    payload: tuple[int | None, int | None],
) -> GroupRow:
    own, speeds = (
        rates_of(series[name]),
        {key: [1 / whole for _, whole in one.samples] for key, one in rollouts.items()},
    )
    resets = [reset for reset, _ in rollouts[name].samples]
    return GroupRow(
        work=work.what,
        name=name,
        turn=spread([work.num_envs / rate for rate in own]) if own else None,
        to_loop=paired_ratio(own, rates_of(series[PlainLoop.name])),
        to_caller=paired_ratio(own, rates_of(series[CALLER])),
        rollout_to_caller=paired_ratio(speeds[name], speeds[CALLER]),
        reset_seconds=spread(resets).median if resets else None,
        early_bytes=payload[0],
        late_bytes=payload[1],
        error=series[name].error or rollouts[name].error,
    )


# ---- what is shown --------------------------------------------------------------------------------------------------

_COLUMNS = (
    "work",
    "contestant",
    "a turn, ms",
    "quartiles",
    "x plain loop",
    "x caller",
    "rollouts, x caller",
    "a reset, ms",
    "bytes an env, turn 2, 50",
)


def groups_report(rows: tuple[GroupRow, ...], plan: GroupPlan) -> Report:
    """As a table and as JSON."""
    title = f"a turn of all environments, {plan.workers} workers; {plan.pace.rounds} slices of {plan.pace.seconds:g} s"
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=number < 2)
    for row in rows:
        table.add_row(row.work, row.name, *_cells(row))
    notes = [f"{row.work}, {row.name} failed: {row.error}" for row in rows if row.error]
    return Report("groups", plan.settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _cells(row: GroupRow) -> tuple[str, ...]:
    if row.turn is None:
        return "[yellow]failed[/yellow]", *[""] * (len(_COLUMNS) - 3)
    turn = row.turn
    quartiles = f"{turn.lower_quartile * 1e3:.2f} to {turn.upper_quartile * 1e3:.2f}"
    ratios = [
        "" if ratio is None else f"{ratio.median:.2f}" for ratio in (row.to_loop, row.to_caller, row.rollout_to_caller)
    ]
    reset = "" if row.reset_seconds is None else f"{row.reset_seconds * 1e3:,.1f}"
    payload = "" if row.early_bytes is None else f"{row.early_bytes:,}, {row.late_bytes:,}"
    return f"{turn.median * 1e3:.2f}", quartiles, *ratios, reset, payload
