"""`bench step`: environment steps per second of `ParallelEnvManager`, of the plain loop, and of other runners."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import Spread, Tell, paired_ratio, spread
from parallel_envs.bench.runners import Backend, InProcess, Ours, Runner
from parallel_envs.bench.turns import Pace, make_workload, rates_of, run_in_turns
from parallel_envs.choices import StartMethod


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Arguments of `bench step`. `num_workers=None` means one worker per environment; `peers` are further runners."""

    env: EnvChoice
    num_envs: int
    pace: Pace
    num_workers: int | None = None
    backend: Backend = "process"
    context: StartMethod | None = None
    peers: tuple[type[Runner], ...] = ()

    @property
    def settings(self) -> dict[str, object]:
        """The arguments as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        peers = [peer.name for peer in self.peers]
        return {**fields, "env": self.env.name, "pace": dataclasses.asdict(self.pace), "peers": peers}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of one runner in environment steps per second.

    A runner without figures stays in the table: `missing` is what to pip install if its library is not installed,
    `error` why it stopped. `ours_to_this` is the spread over the rounds of our rate divided by its rate.
    """

    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Spread | None = None
    ours_to_this: Spread | None = None
    missing: str | None = None
    error: str | None = None


def step_runners(plan: StepPlan) -> dict[str, Runner]:
    """Return every runner of the plan by name, including those whose library is not installed."""
    workload = make_workload(plan.env, plan.num_envs)
    ours = Ours(workload, num_workers=plan.num_workers, backend=plan.backend, context=plan.context)
    return {each.name: each for each in (ours, InProcess(workload), *(peer(workload) for peer in plan.peers))}


def measure_step(plan: StepPlan, tell: Tell = lambda text: None) -> tuple[Row, ...]:
    """Return one row per runner: ours, the plain loop, then the peers."""
    runners = step_runners(plan)
    measured = run_in_turns({name: each for name, each in runners.items() if each.missing() is None}, plan.pace, tell)
    ours = rates_of(measured[Ours.name])
    rows = []
    for name, runner in runners.items():
        if name not in measured:
            rows.append(Row(name=name, missing=runner.missing()))
            continue
        rates = rates_of(measured[name])
        rows.append(
            Row(
                name=name,
                settings=runner.settings,
                rates=rates,
                spread=spread(rates) if rates else None,
                ours_to_this=paired_ratio(ours, rates),
                error=measured[name].error,
            )
        )
    return tuple(rows)
