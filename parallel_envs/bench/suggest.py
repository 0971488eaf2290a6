"""`bench suggest`: which way of stepping suits this environment on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallel_envs.bench.contestants import Backend, Contestant, InProcess, Ours, Workload
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.machine import available_cores
from parallel_envs.bench.measure import Series, Slice, Spread, Tell, paired_ratio, spread
from parallel_envs.bench.turns import Pace, make_workload, rates_of, run_in_turns

_AS_GOOD = 0.97  # of the best: within this, the simpler setting is the better advice


@dataclass(frozen=True)
class Setting:
    """One way of stepping. `backend` None is the plain in-process loop."""

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

    def contestant(self, workload: Workload) -> Contestant:
        if self.backend is None:
            return InProcess(workload)
        workers = None if self.backend == "serial" else self.num_workers
        return Ours(workload, num_workers=workers, backend=self.backend)

    def code(self, env: EnvChoice, num_envs: int) -> str:
        """The line to write into one's own program."""
        if self.backend is None:
            return _in_process_code(env, num_envs)
        name = (
            f"ale_py:{env.name}" if env.name.startswith("ALE/") else env.name
        )  # its package registers it when imported
        envs = f'"{name}", num_envs={num_envs}' if env.is_id else f"[make_env] * {num_envs}"
        workers = "" if self.backend == "serial" else f", num_workers={self.num_workers}"
        backend = "" if self.backend == "process" else f', backend="{self.backend}"'
        return f"envs = ParallelEnvManager({envs}{workers}{backend})"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one setting reached. `to_in_process` is its rate divided by the plain loop's, round by round."""

    setting: Setting
    spread: Spread | None
    to_in_process: Spread | None
    error: str | None


def settings_to_try(num_envs: int, num_cores: int) -> tuple[Setting, ...]:
    """The simplest first. No setting twice, none with more workers than environments."""
    workers = sorted({min(count, num_envs) for count in (1, 2, num_cores, num_envs)})
    processes = [Setting("process", count) for count in workers]
    return (Setting(None), Setting("serial"), Setting("thread", min(num_cores, num_envs)), *processes)


def try_settings(env: EnvChoice, num_envs: int, pace: Pace, tell: Tell = lambda text: None) -> tuple[Trial, ...]:
    """Measure every setting in turns."""
    workload = make_workload(env, num_envs)
    settings = settings_to_try(num_envs, available_cores())
    series = run_in_turns({each.name: each.contestant(workload) for each in settings}, pace, tell)
    base = series[InProcess.name]
    return tuple(_trial(each, series[each.name], base) for each in settings)


def _trial(setting: Setting, series: Series[Slice], base: Series[Slice]) -> Trial:
    rates = rates_of(series)
    return Trial(
        setting=setting,
        spread=spread(rates) if rates else None,
        to_in_process=paired_ratio(rates, rates_of(base)),
        error=series.error,
    )


def best(trials: Sequence[Trial]) -> Trial | None:
    """The first, that is the simplest, of those that are as good as the fastest. None if nothing worked."""
    rates = {trial: trial.spread.median for trial in trials if trial.spread is not None and trial.error is None}
    enough = _AS_GOOD * max(rates.values(), default=0.0)
    return next((trial for trial, rate in rates.items() if rate >= enough), None)


def _in_process_code(env: EnvChoice, num_envs: int) -> str:
    if env.is_id:
        return f'envs = gymnasium.make_vec("{env.name}", num_envs={num_envs}, vectorization_mode="sync")'
    return f"envs = gymnasium.vector.SyncVectorEnv([make_env] * {num_envs})"
