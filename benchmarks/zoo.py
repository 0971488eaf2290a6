"""`bench zoo`: joint steps per second of many PettingZoo environments, ours beside the plain loop and the peers.

zoo_envs ──▶ which environment        zoo_contestants ──▶ by whom
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.zoo_contestants import ZOO_PEERS, OursBeneath, OursTogether, PlainLoop
from benchmarks.zoo_envs import make_zoo_workload
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import Series, Slice, Spread, Tell, paired_ratio, spread
from parallel_envs.bench.runners import Runner
from parallel_envs.bench.turns import Pace, rates_of, run_in_turns

OURS_FEW, OURS_EACH = "parallel_envs", "parallel_envs, one env a worker"
"""Ours twice: with the workers that were asked for, and with a worker for each environment."""
_BENEATH = OursBeneath.name


@dataclass(frozen=True, kw_only=True)
class ZooPlan:
    """What `bench zoo` was asked for. Ours is measured with `num_workers` and, beside it, one environment a worker."""

    env: EnvChoice
    num_envs: int
    num_workers: int
    pace: Pace
    peers: tuple[str, ...] = tuple(ZOO_PEERS)

    @property
    def settings(self) -> dict[str, object]:
        """All of it in plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "env": self.env.name, "pace": dataclasses.asdict(self.pace)}


@dataclass(frozen=True, kw_only=True)
class ZooRow:
    """One contestant's figures, in joint steps per second: an environment stepped once by all its agents.

    `ours_to_this` is, for each of ours, the spread over the rounds of its rate divided by this one's. `parent_share`
    is the processor time of the calling process (all its threads, no workers) divided by the time that passed: for a
    plain loop it is 1. `batching` is the part of it that goes into dicts by agent: what a step takes more of the
    caller's processor time than one of the manager beneath, divided by the time that the step takes. `missing` is what
    to pip install if the library is not here, `error` why it stopped.
    """

    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Spread | None = None
    parent_share: Spread | None = None
    batching: Spread | None = None
    ours_to_this: Mapping[str, Spread] = field(default_factory=dict)
    missing: str | None = None
    error: str | None = None


def measure_zoo(plan: ZooPlan, tell: Tell = lambda text: None) -> tuple[ZooRow, ...]:
    """A row for each contestant: ours, the plain loop, then the peers that were asked for."""
    contestants = zoo_contestants(plan)
    present = {name: each for name, each in contestants.items() if each.missing() is None}
    series = run_in_turns(present, plan.pace, tell)
    ours = {name: rates_of(series[name]) for name in (OURS_FEW, OURS_EACH) if name in series}
    rows = {name: _row(name, each, series.get(name), ours) for name, each in contestants.items()}
    batching = batching_share(series[OURS_EACH].samples, series[_BENEATH].samples)
    rows[OURS_EACH] = dataclasses.replace(rows[OURS_EACH], batching=batching)
    return tuple(rows.values())


def batching_share(by_agent: Sequence[Slice], beneath: Sequence[Slice]) -> Spread | None:
    """The processor time by which a step is dearer for the caller, over the time it takes, round by round."""
    shares = [
        (mine.cpu_seconds / mine.steps - other.cpu_seconds / other.steps) * mine.rate
        for mine, other in zip(by_agent, beneath, strict=False)
    ]
    return spread(shares) if shares else None


def zoo_contestants(plan: ZooPlan) -> dict[str, Runner]:
    """Everyone who was asked for, installed or not. Where every environment has a worker anyway, ours is there once."""
    workload = make_zoo_workload(plan.env, plan.num_envs)
    everyone: dict[str, Runner] = {
        OURS_EACH: OursTogether(workload),
        _BENEATH: OursBeneath(workload),
        PlainLoop.name: PlainLoop(workload),
    }
    if plan.num_workers < plan.num_envs:
        everyone = {OURS_FEW: OursTogether(workload, num_workers=plan.num_workers), **everyone}
    return everyone | {name: ZOO_PEERS[name](workload, num_workers=plan.num_workers) for name in plan.peers}


def _row(name: str, contestant: Runner, series: Series[Slice] | None, ours: Mapping[str, tuple[float, ...]]) -> ZooRow:
    if series is None:
        return ZooRow(name=name, missing=contestant.missing())
    rates = rates_of(series)
    ratios = {mine: paired_ratio(ours[mine], rates) for mine in ours if mine != name}
    return ZooRow(
        name=name,
        settings=contestant.settings,
        rates=rates,
        spread=spread(rates) if rates else None,
        parent_share=spread([each.cpu_share for each in series.samples]) if series.samples else None,
        ours_to_this={mine: ratio for mine, ratio in ratios.items() if ratio is not None},
        error=series.error,
    )
