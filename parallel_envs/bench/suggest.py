"""`bench suggest`: find the fastest way of stepping an environment on this machine, if the figures can decide.

    trials = try_settings(choice, num_envs, pace)          # every setting, in turns
    advise(trials, busy_cores=0.1, num_cores=4)            # pure function: figures to verdict

The interval of a setting runs from its lower to its upper quartile over the rounds. If the interval of another setting
overlaps with that of the fastest, the result is too close to tell, and the advice is the simplest of these settings. If
other programs keep the cores busy, or the rounds of the fastest setting differ too much, there is no advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.machine import available_cores
from parallel_envs.bench.measure import Spread, Tell, paired_ratio, spread
from parallel_envs.bench.runners import Backend, InProcess, Ours, Runner, Workload
from parallel_envs.bench.turns import Pace, make_workload, rates_of, run_in_turns

_AS_GOOD = 0.97  # share of the best rate from which a simpler setting is the better advice
_LEAST_ROUNDS = 3  # fewer rounds give no useful quartiles
_STEADY = 0.3  # quartiles further apart than this share of the median come from something else than the setting
_BUSY_CORES, _BUSY_SHARE = (
    0.5,
    0.1,
)  # above this many cores of other programs, or this share of all cores, figures are worthless


@dataclass(frozen=True)
class Setting:
    """Way of stepping. `backend=None` is the plain in-process loop."""

    backend: Backend | None
    num_workers: int = 1

    @property
    def name(self) -> str:
        match self.backend:
            case None:
                return InProcess.name
            case "serial":
                return "serial"
            case _:
                plural = "s" if self.num_workers > 1 else ""
                return f"{self.backend}, {self.num_workers} worker{plural}"

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
    spread: Spread | None
    to_in_process: Spread | None
    error: str | None


def settings_to_try(num_envs: int, num_cores: int) -> tuple[Setting, ...]:
    """Return the settings to try, the simplest first, without repeats and without more workers than environments."""
    workers = sorted({min(count, num_envs) for count in (1, 2, num_cores, num_envs)})
    processes = [Setting("process", count) for count in workers]
    return (Setting(None), Setting("serial"), Setting("thread", min(num_cores, num_envs)), *processes)


def try_settings(env: EnvChoice, num_envs: int, pace: Pace, tell: Tell = lambda text: None) -> tuple[Trial, ...]:
    """Measure every setting in turns; return one trial per setting."""
    workload = make_workload(env, num_envs)
    settings = settings_to_try(num_envs, available_cores())
    series = run_in_turns({each.name: each.runner(workload) for each in settings}, pace, tell)
    base = series[InProcess.name]
    trials = []
    for setting in settings:
        rates = rates_of(series[setting.name])
        trials.append(
            Trial(
                setting=setting,
                spread=spread(rates) if rates else None,
                to_in_process=paired_ratio(rates, rates_of(base)),
                error=series[setting.name].error,
            )
        )
    return tuple(trials)


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the simplest trial whose rate is close to the fastest, or None if no setting worked."""
    rates = {trial: trial.spread.median for trial in trials if trial.spread is not None and trial.error is None}
    enough = _AS_GOOD * max(rates.values(), default=0.0)
    return next((trial for trial, rate in rates.items() if rate >= enough), None)


Verdict = Literal["best", "too close to tell", "machine busy", "nothing works"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Result of `advise`. `setting=None` means that there is no advice."""

    verdict: Verdict
    setting: Setting | None
    why: str
    """The figures with their intervals, as text."""


def advise(trials: Sequence[Trial], *, busy_cores: float | None, num_cores: int) -> Advice:
    """Decide which setting to take, if the trials allow a decision.

    Args:
        trials: One trial per setting, the simplest first.
        busy_cores: Number of cores that other programs keep busy; None where the system does not say.
        num_cores: Number of cores of the machine.
    """
    spreads = {one: one.spread for one in trials if one.spread is not None and one.error is None}
    if not spreads:
        return Advice(verdict="nothing works", setting=None, why="No setting could be measured.")
    good = sorted(spreads, key=lambda one: spreads[one].median, reverse=True)
    figures_of = {one: _figures(one.setting, found) for one, found in spreads.items()}
    fastest, top = good[0], spreads[good[0]]
    if busy_cores is not None and busy_cores > max(_BUSY_CORES, _BUSY_SHARE * num_cores):
        load = f"Other programs keep {busy_cores:.1f} of {num_cores} cores busy. {_AGAIN}"
        return Advice(verdict="machine busy", setting=None, why=load)
    width = (top.upper_quartile - top.lower_quartile) / top.median if top.median > 0 else 0.0
    if width > _STEADY:
        rounds = f"{figures_of[fastest]}: its rounds differ by {width:.0%}. {_AGAIN}"
        return Advice(verdict="machine busy", setting=None, why=rounds)
    rivals = [one for one in good[1:] if spreads[one].upper_quartile >= top.lower_quartile]
    if rivals or (len(good) > 1 and top.num_samples < _LEAST_ROUNDS):
        close = [fastest, *(rivals or good[1:2])]
        simplest = next(one for one in trials if one in close)
        overlap = "overlap" if rivals else f"need {_LEAST_ROUNDS} rounds or more"
        listed = "; ".join(figures_of[one] for one in close)
        why = f"{listed}. The intervals {overlap}, so take the simplest, or give more --rounds."
        return Advice(verdict="too close to tell", setting=simplest.setting, why=why)
    found = best(trials)
    assert found is not None  # at least one setting works
    next_best = [f"next {figures_of[one]}" for one in good if one is not found][:1]
    return Advice(verdict="best", setting=found.setting, why="; ".join([figures_of[found], *next_best]) + ".")


_AGAIN = "No setting is advised: measure again when the machine is quiet, or with longer --seconds."


def _figures(setting: Setting, found: Spread) -> str:
    quartiles = f"{found.lower_quartile:,.0f} to {found.upper_quartile:,.0f}"
    return f"{setting.name} {found.median:,.0f} env steps/s (quartiles {quartiles}, {found.num_samples} rounds)"
