"""`python -m benchmarks policies`: time of a turn, one policy call for every agent, under each strategy.

The agents, their policies and their observations are predetermined. Policies travel into workers, so this module
imports nothing heavy before it is needed.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

import numpy as np

from benchmarks.plan import BenchPlan, Needs, first_missing
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import (
    MeasurementFailed,
    Pace,
    Quartiles,
    Series,
    Slice,
    Tell,
    interleave,
    paired_ratio,
    rates_of,
    run_for,
    spread,
)
from parallel_envs.policies import AgentPolicy
from parallel_envs.terminal import FittingTable
from parallel_envs.wrappers import PolicyPool, WrappedMultiAgentPolicy

SEQUENTIAL, AUTO = "sequential", "auto"
SHIPPED = "executor, policy shipped"
"""Name of the comparison that is no strategy: a `ProcessPoolExecutor` that gets and returns the policy in every call.
"""

_NUM_FEATURES, _NUM_HIDDEN, _NUM_ACTIONS = 8, 32, 4
_TURN_SECONDS = 0.02
_TORCH: Needs = (("torch", "torch"),)


class Spinning(AgentPolicy):
    """Policy that burns processor time in pure Python.

    It counts the processor time of its own thread, without the time spent waiting.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, observation: Any) -> int:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return 0


class Sleeping(AgentPolicy):
    """Policy that waits, as for a remote model."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, observation: Any) -> int:
        time.sleep(self.seconds)
        return 0


class Empty(AgentPolicy):
    """Policy that does nothing, so that only the cost of the call is measured."""

    def step(self, observation: Any) -> int:
        return 0


def network(number: int) -> Any:
    """Return a small network with its own weights, which samples its actions."""
    import torch
    from gymnasium.spaces import Discrete
    from torch import nn

    from parallel_envs.policies.torch_policy import TorchPolicy

    torch.manual_seed(number)
    layers = [nn.Linear(_NUM_FEATURES, _NUM_HIDDEN), nn.Tanh(), nn.Linear(_NUM_HIDDEN, _NUM_HIDDEN), nn.Tanh()]
    return TorchPolicy(
        nn.Sequential(*layers, nn.Linear(_NUM_HIDDEN, _NUM_ACTIONS)), Discrete(_NUM_ACTIONS), seed=number
    )


@dataclass(frozen=True, kw_only=True)
class PolicyWork:
    """Number of agents, a policy for each, and the strategies that compute them.

    With `num_rows` None each agent has one observation, otherwise a batch of `num_rows` environments. `slices` is the
    number of parts into which a usual slice is divided: short turns are compared in more and shorter slices.
    """

    what: str
    make: Callable[[int], Any]
    strategies: tuple[str, ...]
    num_agents: int = 8
    num_rows: int | None = None
    slices: int = 1
    needs: Needs = ()

    @property
    def agents(self) -> list[str]:
        return [f"agent_{number}" for number in range(self.num_agents)]

    def policies(self) -> dict[str, Any]:
        """Return a policy for each agent. Every call returns equal policies."""
        return {agent: self.make(number) for number, agent in enumerate(self.agents)}

    def turn(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the observations of every agent, and the mask of its alive rows, which is all true."""
        generator = np.random.default_rng(0)
        shape = (_NUM_FEATURES,) if self.num_rows is None else (self.num_rows, _NUM_FEATURES)
        seen = {agent: generator.standard_normal(shape).astype(np.float32) for agent in self.agents}
        alive = None if self.num_rows is None else {agent: np.ones(self.num_rows, bool) for agent in self.agents}
        return seen, alive


_AT_ONCE = (SEQUENTIAL, "thread", "process", AUTO)
_NETWORKS = (SEQUENTIAL, "thread", "process", "batch", "gpu", AUTO)
_networks = functools.partial(PolicyWork, make=network, strategies=_NETWORKS, slices=4, needs=_TORCH)

POLICY_WORKS: dict[str, PolicyWork] = {
    "python": PolicyWork(what="8 agents, 20 ms of Python", make=lambda _: Spinning(_TURN_SECONDS), strategies=_AT_ONCE),
    "sleep": PolicyWork(what="8 agents, 20 ms of waiting", make=lambda _: Sleeping(_TURN_SECONDS), strategies=_AT_ONCE),
    "networks": _networks(what="8 networks"),
    "networks-64": _networks(what="64 networks", num_agents=64),
    "networks-rows": _networks(what="8 networks, 16 rows each", num_rows=16),
    "empty": PolicyWork(what="8 empty policies", make=lambda _: Empty(), strategies=(*_AT_ONCE, SHIPPED), slices=4),
}
"""Works by name: the rows of the table."""


_WARM_TURNS = 8  # turns; more than `auto` needs to make its choice


@dataclass(frozen=True, kw_only=True)
class PolicyPlan(BenchPlan):
    """Arguments of `python -m benchmarks policies`."""

    works: tuple[str, ...] = tuple(POLICY_WORKS)
    workers: int = 2
    pace: Pace = dataclasses.field(default_factory=Pace)


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """Figures of one strategy in one work.

    `turn` is the spread of the seconds that a turn of all agents takes. `to_sequential` is the spread, over the rounds,
    of the speed as a multiple of the sequential strategy. `to_best`, for `auto` only, is the same as a multiple of the
    best other strategy. `choice` is the strategy that `auto` chose, and the reason. `missing` is what to pip install
    before the work can be measured, `error` the reason why a strategy stopped.
    """

    work: str
    name: str
    num_agents: int = 0
    turn: Quartiles | None = None
    to_sequential: Quartiles | None = None
    to_best: Quartiles | None = None
    choice: str = ""
    missing: str | None = None
    error: str | None = None

    @property
    def agent_microseconds(self) -> float | None:
        """Microseconds of a turn per agent."""
        return None if self.turn is None else self.turn.median / self.num_agents * 1e6


class Turner(ABC):
    """Base class of the ways to compute a turn."""

    @abstractmethod
    def turn(self) -> int:
        """Compute a turn of all agents. Return the number of turns, 1."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that this object opened."""


class Strategy(Turner):
    """Computes a turn with a strategy of `WrappedMultiAgentPolicy`."""

    def __init__(self, name: str, work: PolicyWork, workers: int) -> None:
        self._pool = PolicyPool(workers)
        self._policy = WrappedMultiAgentPolicy(work.policies(), cast(Any, name), budget=self._pool)
        self._turn = work.turn()

    def turn(self) -> int:
        self._policy.step(*self._turn)
        return 1

    def choice(self) -> str:
        """Return the strategy that `auto` chose, and the reason."""
        return next(iter(self._policy.choices.values()))

    def close(self) -> None:
        self._policy.close()
        self._pool.close()


class Shipped(Turner):
    """Computes a turn in a process pool that gets each policy with its observation and returns it with the action."""

    def __init__(self, work: PolicyWork, workers: int) -> None:
        self._executor = ProcessPoolExecutor(workers, mp_context=get_context("forkserver"))
        self._policies, (self._seen, _) = work.policies(), work.turn()

    def turn(self) -> int:
        futures = {
            agent: self._executor.submit(_acted, policy, self._seen[agent]) for agent, policy in self._policies.items()
        }
        self._policies = {agent: future.result()[1] for agent, future in futures.items()}
        return 1

    def close(self) -> None:
        self._executor.shutdown()


def _acted(policy: Any, observation: Any) -> tuple[Any, Any]:
    return policy.step(observation), policy


def measure_policies(plan: PolicyPlan, tell: Tell = lambda text: None) -> tuple[PolicyRow, ...]:
    """Measure each work and return a row for each strategy."""
    return tuple(row for name in plan.works for row in measure_work(POLICY_WORKS[name], plan, tell))


def measure_work(work: PolicyWork, plan: PolicyPlan, tell: Tell = lambda text: None) -> list[PolicyRow]:
    """Measure one work and return a row for each strategy that can compute it."""
    if (missing := first_missing(work.needs)) is not None:
        return [PolicyRow(work=work.what, name=SEQUENTIAL, missing=missing)]
    with ExitStack() as closing:
        turners = {name: _opened(name, work, plan, closing, tell) for name in work.strategies}
        samplers = {name: partial(_slice, turner, plan.pace.seconds / work.slices) for name, turner in turners.items()}
        series = interleave(samplers, plan.pace.rounds * work.slices, lambda text: tell(f"{work.what}: {text}"))
        choices = {name: one.choice() for name, one in turners.items() if name == AUTO and isinstance(one, Strategy)}
    return _rows(work, series, choices)


def _opened(name: str, work: PolicyWork, plan: PolicyPlan, closing: ExitStack, tell: Tell) -> Turner:
    """Return a warmed-up object that computes turns."""
    tell(f"{work.what}: opening {name}")
    turner = Shipped(work, plan.workers) if name == SHIPPED else Strategy(name, work, plan.workers)
    closing.callback(turner.close)
    for _ in range(_WARM_TURNS):
        turner.turn()
    return turner


def _slice(turner: Turner, seconds: float) -> Slice:
    try:
        return run_for(turner.turn, seconds)
    except Exception as error:
        raise MeasurementFailed(f"{type(error).__name__}: {error}") from error


def _rows(work: PolicyWork, series: Mapping[str, Series[Slice]], choices: Mapping[str, str]) -> list[PolicyRow]:
    rates = {name: rates_of(one) for name, one in series.items()}
    others = {name: spread(own).median for name, own in rates.items() if name not in (AUTO, SHIPPED) and own}
    best = max(others, key=others.__getitem__, default=SEQUENTIAL)
    return [
        PolicyRow(
            work=work.what,
            name=name,
            num_agents=work.num_agents,
            turn=_seconds(own),
            to_sequential=paired_ratio(own, rates[SEQUENTIAL]),
            to_best=paired_ratio(own, rates[best]) if name == AUTO else None,
            choice=choices.get(name, ""),
            error=series[name].error,
        )
        for name, own in rates.items()
    ]


def _seconds(rates: Sequence[float]) -> Quartiles | None:
    return spread([1.0 / rate for rate in rates]) if rates else None


_COLUMNS = ("work", "strategy", "a turn, us", "quartiles", "us an agent", "x sequential", "x the best other")


def policies_report(rows: Sequence[PolicyRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the time of a turn and the speed as a multiple of the sequential strategy, as a table and as JSON."""
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=number < 2)
    for row in rows:
        table.add_row(row.work, row.name, *_times(row), _ratio(row.to_sequential), _ratio(row.to_best))
    return Report(
        "policies", settings, [_record(row) for row in rows], table, [note for row in rows for note in _notes(row)]
    )


def _record(row: PolicyRow) -> dict[str, Any]:
    return {**dataclasses.asdict(row), "agent_microseconds": row.agent_microseconds}


def _times(row: PolicyRow) -> tuple[str, str, str]:
    if row.turn is None or row.agent_microseconds is None:
        return "[yellow]not installed[/yellow]" if row.missing else "[yellow]failed[/yellow]", "", ""
    lower, upper = row.turn.lower_quartile * 1e6, row.turn.upper_quartile * 1e6
    return f"{row.turn.median * 1e6:,.0f}", f"{lower:,.0f} to {upper:,.0f}", f"{row.agent_microseconds:,.1f}"


def _ratio(ratio: Quartiles | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}"


def _notes(row: PolicyRow) -> list[str]:
    """Return the notes of a row: missing packages, failures, and the choice of `auto`."""
    notes = [f"{row.work} needs: pip install {row.missing}"] if row.missing else []
    notes += [f"{row.work}, {row.name} failed: {row.error}"] if row.error else []
    return [*notes, *([f"{row.work}: auto chose {row.choice}"] if row.choice else [])]
