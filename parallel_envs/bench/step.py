"""`bench step`: environment steps per second, ours beside the plain loop and every peer, in one run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from parallel_envs.bench.contestants import Backend, Contestant, InProcess, Ours
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import Series, Slice, Spread, Tell, paired_ratio, spread
from parallel_envs.bench.peers import PEERS
from parallel_envs.bench.turns import Pace, make_workload, rates_of, run_in_turns
from parallel_envs.choices import StartMethod


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What `bench step` was asked for. `num_workers` None is one environment a worker."""

    env: EnvChoice
    num_envs: int
    pace: Pace
    num_workers: int | None = None
    backend: Backend = "process"
    context: StartMethod | None = None
    peers: tuple[str, ...] = tuple(PEERS)

    @property
    def settings(self) -> dict[str, object]:
        """All of it in plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "env": self.env.name, "pace": dataclasses.asdict(self.pace)}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant's figures, in environment steps per second.

    `missing` is what to pip install if its library is not here, `error` why it stopped: a contestant without
    figures stays in the table. `ours_to_this` is the spread over the rounds of our rate divided by its rate.
    """

    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Spread | None = None
    ours_to_this: Spread | None = None
    missing: str | None = None
    error: str | None = None


def measure_step(plan: StepPlan, tell: Tell = lambda text: None) -> tuple[Row, ...]:
    """One row per contestant: ours, in-process, then the peers that were asked for."""
    contestants = step_contestants(plan)
    present = {name: each for name, each in contestants.items() if each.missing() is None}
    series = run_in_turns(present, plan.pace, tell)
    ours = rates_of(series[Ours.name])
    return tuple(_row(name, each, series.get(name), ours) for name, each in contestants.items())


def step_contestants(plan: StepPlan) -> dict[str, Contestant]:
    """Everyone who was asked for, installed or not."""
    workload = make_workload(plan.env, plan.num_envs)
    ours = Ours(workload, num_workers=plan.num_workers, backend=plan.backend, context=plan.context)
    everyone = [ours, InProcess(workload), *(PEERS[name](workload) for name in plan.peers)]
    return {each.name: each for each in everyone}


def _row(name: str, contestant: Contestant, series: Series[Slice] | None, ours: tuple[float, ...]) -> Row:
    if series is None:
        return Row(name=name, missing=contestant.missing())
    rates = rates_of(series)
    return Row(
        name=name,
        settings=contestant.settings,
        rates=rates,
        spread=spread(rates) if rates else None,
        ours_to_this=paired_ratio(ours, rates),
        error=series.error,
    )
