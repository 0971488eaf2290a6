"""Results of a training run, in figures and words, and the commands that continue from there.

`parallel-envs train` writes `outcome.json` and shows a row for each agent when it ends, and `parallel-envs report DIR`
reads the results again (`outcome_in`). A run that is still training, or that was killed, has no `outcome.json`: its
results then come from its metrics and its newest checkpoint, and figures that these do not contain are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import shlex
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parallel_envs.extras import as_argument, is_installed, shell_command
from parallel_envs.files import write_json
from parallel_envs.learners.run_folder import (
    METRICS,
    OUTCOME,
    BadRun,
    Run,
    newest_checkpoint,
    read_metrics,
    settings_of,
)
from parallel_envs.learners.writers import BOARD, Status
from parallel_envs.progress import duration

Ended = Literal["budget", "ctrl-c", "error", "unknown"]
STATUS: dict[Ended, Status] = {"budget": "finished", "ctrl-c": "interrupted", "error": "failed", "unknown": "failed"}
"""What writers are told of how a run ended."""

_log = logging.getLogger(__name__)

_MOST_AGENTS = 12  # rows of the table; `outcome.json` has all agents
_MOST_COLUMNS = 79
_EPISODES = 20  # of the proposed evaluation


@dataclass(frozen=True, kw_only=True)
class AgentOutcome:
    """Results of one agent. A return is the mean of up to 100 episodes; None: unknown, or no episode has ended."""

    algorithm: str | None
    episodes: int | None
    """Number of finished episodes, since the run began."""
    last_return: float | None
    best_return: float | None
    """The highest mean return in the metrics, including the last one."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Results of a run."""

    folder: Path
    ended: Ended
    """By `total_steps`, by Ctrl-C, by an error (`reason`); "unknown": the run goes on, or its process was killed."""
    reason: str = ""
    steps: int
    """Number of steps of the run, including those before it was resumed."""
    total_steps: int | None = None
    steps_here: int | None = None
    """Number of steps since the run was begun or resumed last, which took `seconds`."""
    seconds: float | None = None
    agents: Mapping[str, AgentOutcome]

    def told(self) -> str:
        """Return how the run ended, and a row for each agent, as plain text of less than 80 columns."""
        of = "" if self.total_steps is None else f" of {self.total_steps:,}"
        match self.ended:
            case "budget" if self.total_steps is None:  # meta-learning may count iterations
                how = f"Ended as the settings say, after {self.steps:,} steps"
            case "budget":
                how = f"Ended: all {self.steps:,} steps were made (total_steps: {self.total_steps:,})"
            case "ctrl-c":
                how = f"Ended by Ctrl-C after {self.steps:,}{of} steps"
            case "error":
                how = f"Ended by an error ({self.reason}) after {self.steps:,}{of} steps"
            case _:
                how = f"Still training, or ended by a kill: {self.steps:,}{of} steps are known"
        if self.seconds is not None and self.steps_here is not None:
            since = f"{self.steps_here:,} of them since it was resumed, in " if self.steps_here < self.steps else "in "
            speed = f", {self.steps_here / self.seconds:,.0f} steps/s" if self.seconds > 0 else ""
            how = f"{how}, {since}{duration(self.seconds)}{speed}"
        if not self.agents:
            return f"{how}."
        from rich.console import Console
        from rich.text import Text

        from parallel_envs.terminal import FittingTable

        table = FittingTable("agent", "algorithm", box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for head in ("episodes", "last mean return", "best"):
            table.add_column(head, justify="right")
        for name, one in list(self.agents.items())[:_MOST_AGENTS]:
            episodes = "-" if one.episodes is None else f"{one.episodes:,}"
            last, best = ("-" if value is None else f"{value:.4g}" for value in (one.last_return, one.best_return))
            table.add_row(Text(name), one.algorithm or "-", episodes, last, best)
        console = Console(file=io.StringIO(), width=_MOST_COLUMNS, color_system=None, legacy_windows=False)
        with console.capture() as drawn:
            console.print(table)
        more = len(self.agents) - _MOST_AGENTS
        lines = [f"{how}.", *(line.rstrip() for line in drawn.get().splitlines())]
        return "\n".join([*lines, *([f"and {more} more agents"] if more > 0 else [])])

    def write(self) -> None:
        """Write `outcome.json` into the run's folder. If that fails, as on a full disk, a warning says so."""
        content = dataclasses.asdict(self)
        del content["folder"]
        try:
            write_json(self.folder / OUTCOME, content)
        except OSError as error:
            _log.warning("%s could not be written: %s", OUTCOME, str(error))


def outcome_of(
    folder: Path,
    algorithms: Mapping[Hashable, str],
    *,
    ended: Ended,
    reason: str = "",
    steps: int,
    began: int,
    seconds: float,
    total_steps: int | None = None,
    episodes: Mapping[Hashable, int] | None = None,
    returns: Mapping[Hashable, float] | None = None,
) -> RunOutcome:
    """Return the results of a run that ends now.

    `began` is the number of steps when it was begun or resumed last, and `seconds` the time since then. Best returns
    are those of its metrics, as are the last ones, unless `returns` gives these.
    """
    found: dict[str, tuple[float, float]] = {}
    with contextlib.suppress(BadRun, OSError):  # a damaged line keeps no run from ending
        found = _returns_in_metrics(folder)
    agents = {}
    for agent, algorithm in algorithms.items():
        last, best = found.get(str(agent), (None, None))
        last = last if returns is None else returns.get(agent)
        best = max([value for value in (best, last) if value is not None], default=None)
        number = None if episodes is None else episodes[agent]
        agents[str(agent)] = AgentOutcome(algorithm=algorithm, episodes=number, last_return=last, best_return=best)
    return RunOutcome(
        folder=folder,
        ended=ended,
        reason=reason,
        steps=steps,
        total_steps=total_steps,
        steps_here=steps - began,
        seconds=seconds,
        agents=agents,
    )


def check_learnt(counters: Mapping[Hashable, Mapping[str, Any]]) -> None:
    """Warn of updates that were undone since the run began, and raise NothingLearnt for agents without any other."""
    from parallel_envs.learners.algorithm import NothingLearnt  # brings torch, which a report can do without

    undone = {agent: own["skipped"] for agent, own in counters.items() if own["skipped"]}
    if nothing := {agent: number for agent, number in undone.items() if not counters[agent]["updates"]}:
        listed = ", ".join(f"{agent!r} ({count:,} of {count:,})" for agent, count in nothing.items())
        raise NothingLearnt(
            f"Nothing was learnt by {listed}: every update was undone, as a loss, a gradient or a weight was not "
            "finite. The weights are those of the beginning. Give a lower learning_rate or max_grad_norm, and look for "
            "rewards or observations that are not finite or very large (PPO has normalize_observations and "
            "normalize_returns).",
            tuple(nothing),
        )
    if undone:
        texts = [f"{agent} {number:,} of {number + counters[agent]['updates']:,}" for agent, number in undone.items()]
        _log.warning("Updates that were not finite, and undone: %s.", ", ".join(texts))


def outcome_in(folder: str | Path) -> RunOutcome:
    """Return the results of the run in a folder. Raises FileNotFoundError without a run, BadRun for a damaged file.

    A run without `outcome.json` (see above; also of a `Learner` with a `train` of its own) is described by its metrics.
    """
    folder = Path(folder)
    settings_of(folder)
    file = folder / OUTCOME
    if file.is_file():
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            agents = {name: AgentOutcome(**own) for name, own in content.pop("agents").items()}
            outcome = RunOutcome(folder=folder, agents=agents, **content)
            outcome.told()  # raises for values that nobody can be told, such as words instead of numbers
            return outcome
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise BadRun(f"{file} is damaged: {error}. Remove it: the metrics tell most of it again.") from error
    agents = {
        name: AgentOutcome(algorithm=None, episodes=None, last_return=last, best_return=best)
        for name, (last, best) in _returns_in_metrics(folder).items()
    }
    newest = newest_checkpoint(folder)
    steps = max([line["steps"] for line in read_metrics(folder)] + ([int(newest.name)] if newest else []), default=0)
    return RunOutcome(folder=folder, ended="unknown", steps=steps, agents=agents)


def _returns_in_metrics(folder: Path) -> dict[str, tuple[float, float]]:
    """Return each agent's last and best mean return in the metrics."""
    found: dict[str, tuple[float, float]] = {}
    for line in read_metrics(folder):
        agents = line.get("agents")
        for name, metrics in agents.items() if isinstance(agents, dict) else ():
            value = metrics.get("return") if isinstance(metrics, dict) else None
            if isinstance(value, int | float):
                try:
                    last = float(value)
                except OverflowError as error:
                    text = f"has a return of {name} after {line['steps']:,} steps that is too large a number"
                    raise BadRun(f"{folder / METRICS} {text}. Remove this line.") from error
                found[name] = last, max(last, found.get(name, (0.0, float("-inf")))[1])
    return found


def commands_after(run: Run, until: str, mission: str | None = None) -> list[str]:
    """Return commands for a run that has ended, ready to copy; none if it has no checkpoint.

    They evaluate the run on a `mission` (as in `parallel-envs eval -m`), show how it learnt (TensorBoard if it is
    installed and the run has written for it), and continue it `until` another setting, `key=value`, if not empty.
    """
    if newest_checkpoint(run.folder) is None:
        return []
    board = run.folder / BOARD
    if board.is_dir() and is_installed("tensorboard"):
        show = shell_command("tensorboard", "tensorboard.main", f"--logdir {as_argument(board)}")
    else:
        show = shell_command("parallel-envs", "parallel_envs", f"report {as_argument(run.folder)}")
    commands = [show, f"{run.resume_command()} {until}".rstrip()]
    if mission is not None:
        words = f"eval -m {shlex.quote(mission)} -p {as_argument(run.folder)} --episodes {_EPISODES}"
        commands.insert(0, shell_command("parallel-envs", "parallel_envs", words))
    return commands
