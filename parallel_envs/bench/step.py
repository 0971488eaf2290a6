"""`bench step` and `bench suggest`: environment steps per second, in one setting or in several.

`bench step` measures `ParallelEnvManager` beside the plain loop and other runners. `bench suggest` measures several
settings and finds the fastest, if the figures can decide:

    trials = try_settings(choice, num_envs, pace)          # every setting, in turns
    advise(trials, busy_cores=0.1, num_cores=4)            # pure function: figures to verdict

The interval of a setting runs from its lower to its upper quartile over the rounds. If the interval of another setting
overlaps with that of the fastest, the result is too close to tell, and the advice is the simplest of these settings. If
other programs keep the cores busy, or the rounds of the fastest setting differ too much, there is no advice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import (
    Pace,
    Quartiles,
    Series,
    Slice,
    Tell,
    paired_ratio,
    rates_of,
    run_in_turns,
    spread,
)
from parallel_envs.bench.runners import InProcess, Ours, Runner, Workload, make_workload
from parallel_envs.choices import FixedBackend, StartMethod
from parallel_envs.engine import num_cores

_AGAIN = "No setting is advised: measure again when the machine is quiet, or with longer --seconds."
_AS_GOOD = 0.97  # share of the best rate from which a simpler setting is the better advice
_LEAST_ROUNDS = 3  # fewer rounds give no useful quartiles
_STEADY = 0.3  # quartiles further apart than this share of the median come from something else than the setting
_BUSY_CORES, _BUSY_SHARE = 0.5, 0.1  # cores, or share of cores, of other programs above which figures are worthless


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Arguments of `bench step`. `num_workers=None` means one worker per environment; `peers` are further runners."""

    env: EnvChoice
    num_envs: int
    pace: Pace
    num_workers: int | None = None
    backend: FixedBackend = "process"
    context: StartMethod | None = None
    peers: tuple[type[Runner], ...] = ()

    @property
    def settings(self) -> dict[str, object]:
        """The arguments as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        peers = [peer.name for peer in self.peers]
        return {**fields, "env": self.env.name, "pace": dataclasses.asdict(self.pace), "peers": peers}


@dataclass(frozen=True)
class Row:
    """Figures of one runner in environment steps per second.

    A runner without figures stays in the table: `missing` is what to pip install if its library is not installed,
    `error` why it stopped. `ours_to_this` is the spread over the rounds of our rate divided by its rate.
    """

    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Quartiles | None = None
    ours_to_this: Quartiles | None = None
    missing: str | None = None
    error: str | None = None


def figures_of(series: Series[Slice]) -> tuple[tuple[float, ...], Quartiles | None, str | None]:
    """Return the rates of a runner, their spread, and the error that stopped it."""
    rates = rates_of(series)
    return rates, spread(rates) if rates else None, series.error


def measure_step(plan: StepPlan, tell: Tell = lambda text: None) -> tuple[Row, ...]:
    """Return one row per runner: ours, the plain loop, then the peers."""
    workload = make_workload(plan.env, plan.num_envs)
    first = Ours(workload, num_workers=plan.num_workers, backend=plan.backend, context=plan.context)
    runners = {one.name: one for one in (first, InProcess(workload), *(peer(workload) for peer in plan.peers))}
    measured = run_in_turns({name: each for name, each in runners.items() if each.missing() is None}, plan.pace, tell)
    ours = rates_of(measured[Ours.name])
    rows = []
    for name, runner in runners.items():
        if name not in measured:
            rows.append(Row(name, missing=runner.missing()))
            continue
        rates, found, error = figures_of(measured[name])
        rows.append(Row(name, runner.settings, rates, found, paired_ratio(ours, rates), error=error))
    return tuple(rows)


# ---- bench suggest ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Way of stepping. `backend=None` is the plain in-process loop."""

    backend: FixedBackend | None
    num_workers: int = 1

    @property
    def name(self) -> str:
        if self.backend in (None, "serial"):
            return self.backend or InProcess.name
        return f"{self.backend}, {self.num_workers} worker{'s' if self.num_workers > 1 else ''}"

    def runner(self, workload: Workload) -> Runner:
        if self.backend is None:
            return InProcess(workload)
        workers = None if self.backend == "serial" else self.num_workers
        return Ours(workload, num_workers=workers, backend=self.backend)

    def code(self, env: EnvChoice, num_envs: int) -> str:
        """Return the line to write into a program."""
        if self.backend is None and env.is_id:
            return f'envs = gymnasium.make_vec("{env.name}", num_envs={num_envs}, vectorization_mode="sync")'
        if self.backend is None:
            return f"envs = gymnasium.vector.SyncVectorEnv([make_env] * {num_envs})"
        # ale_py registers the ids of ALE when it is imported.
        name = f"ale_py:{env.name}" if env.name.startswith("ALE/") else env.name
        envs = f'"{name}", num_envs={num_envs}' if env.is_id else f"[make_env] * {num_envs}"
        workers = "" if self.backend == "serial" else f", num_workers={self.num_workers}"
        backend = "" if self.backend == "process" else f', backend="{self.backend}"'
        return f"envs = ParallelEnvManager({envs}{workers}{backend})"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Result of one setting. `to_in_process` is its rate divided by the rate of the plain loop, round by round."""

    setting: Setting
    spread: Quartiles | None
    to_in_process: Quartiles | None
    error: str | None


def settings_to_try(num_envs: int, num_cores: int) -> tuple[Setting, ...]:
    """Return the settings to try, the simplest first, without repeats and without more workers than environments."""
    workers = sorted({min(count, num_envs) for count in (1, 2, num_cores, num_envs)})
    processes = [Setting("process", count) for count in workers]
    return (Setting(None), Setting("serial"), Setting("thread", min(num_cores, num_envs)), *processes)


def try_settings(env: EnvChoice, num_envs: int, pace: Pace, tell: Tell = lambda text: None) -> tuple[Trial, ...]:
    """Measure every setting in turns; return one trial per setting."""
    workload = make_workload(env, num_envs)
    settings = settings_to_try(num_envs, num_cores())
    series = run_in_turns({each.name: each.runner(workload) for each in settings}, pace, tell)
    base = series[InProcess.name]
    trials = []
    for setting in settings:
        rates, found, error = figures_of(series[setting.name])
        trials.append(
            Trial(setting=setting, spread=found, to_in_process=paired_ratio(rates, rates_of(base)), error=error)
        )
    return tuple(trials)


Verdict = Literal["best", "too close to tell", "machine busy", "nothing works"]


class Advice(NamedTuple):
    """Result of `advise`. `setting=None` means that there is no advice. `why` holds figures with their intervals."""

    verdict: Verdict
    setting: Setting | None
    why: str


def advise(trials: Sequence[Trial], *, busy_cores: float | None, num_cores: int) -> Advice:
    """Decide which setting to take, if the trials allow a decision.

    Args:
        trials: One trial per setting, the simplest first.
        busy_cores: Number of cores that other programs keep busy; None where the system does not say.
        num_cores: Number of cores of the machine.
    """
    spreads = {one: one.spread for one in trials if one.spread is not None and one.error is None}
    if not spreads:
        return Advice("nothing works", None, "No setting could be measured.")
    good = sorted(spreads, key=lambda one: spreads[one].median, reverse=True)
    figures = {
        one: f"{one.setting.name} {found.median:,.0f} env steps/s (quartiles {found.lower_quartile:,.0f} to "
        f"{found.upper_quartile:,.0f}, {found.num_samples} rounds)"
        for one, found in spreads.items()
    }
    fastest, top = good[0], spreads[good[0]]
    if busy_cores is not None and busy_cores > max(_BUSY_CORES, _BUSY_SHARE * num_cores):
        return Advice("machine busy", None, f"Other programs keep {busy_cores:.1f} of {num_cores} cores busy. {_AGAIN}")
    width = (top.upper_quartile - top.lower_quartile) / top.median if top.median > 0 else 0.0
    if width > _STEADY:
        return Advice("machine busy", None, f"{figures[fastest]}: its rounds differ by {width:.0%}. {_AGAIN}")
    rivals = [one for one in good[1:] if spreads[one].upper_quartile >= top.lower_quartile]
    if rivals or (len(good) > 1 and top.num_samples < _LEAST_ROUNDS):
        close = [fastest, *(rivals or good[1:2])]
        simplest = next(one for one in trials if one in close)
        overlap = "overlap" if rivals else f"need {_LEAST_ROUNDS} rounds or more"
        why = f"The intervals {overlap}, so take the simplest, or give more --rounds."
        return Advice("too close to tell", simplest.setting, f"{'; '.join(figures[one] for one in close)}. {why}")
    found = next(one for one in spreads if spreads[one].median >= _AS_GOOD * top.median)  # the simplest that is close
    next_best = [f"next {figures[one]}" for one in good if one is not found][:1]
    return Advice("best", found.setting, "; ".join([figures[found], *next_best]) + ".")
