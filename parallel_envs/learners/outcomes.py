"""What came of a training run, in figures and words, and the commands that go on from there.

    outcome = outcome_of(learners, run.folder, settings, ended="budget", seconds=42.0, began=0)
    outcome.write()                            `outcome.json` in the run's folder
    print(outcome.told())                      how it ended, a row for each agent
    for line in commands_after(run, settings): eval, tensorboard or report, train --resume

`parallel-envs train` does so when it ends, and `parallel-envs report DIR` reads it again (`outcome_in`). A run that is
still training, or whose process was killed, has no `outcome.json`: what is said of it then comes from its metrics and
its newest checkpoint, and what they do not say is left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from parallel_envs.extras import is_installed
from parallel_envs.learners.display import duration
from parallel_envs.learners.metric_lines import read_metrics
from parallel_envs.learners.run_folder import BOARD, OUTCOME, BadRun, newest_checkpoint, settings_of, write_json
from parallel_envs.multiagent.by_name import as_text
from parallel_envs.shell_commands import as_argument, shell_command

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners
    from parallel_envs.learners.runs import Run
    from parallel_envs.learners.settings import TrainSettings

Ended = Literal["budget", "ctrl-c", "error", "unknown"]

_log = logging.getLogger(__name__)

_MOST_AGENTS = 12  # rows of the table; `outcome.json` has all
_EPISODES = 20  # of the evaluation that is proposed


@dataclass(frozen=True, kw_only=True)
class AgentOutcome:
    """One agent. A return is the mean of up to 100 episodes; None: no episode has ended, or it is not known."""

    algorithm: str | None
    episodes: int | None
    """That the agent has finished, since the run began."""
    last_return: float | None
    best_return: float | None
    """The highest mean return that a line of the metrics has, or the last one."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A whole run."""

    folder: Path
    ended: Ended
    """By `total_steps`, by Ctrl-C, by an error (`reason`); "unknown": it goes on, or its process was killed."""
    reason: str = ""
    steps: int
    """That the run has made, also before it was resumed."""
    total_steps: int | None
    steps_here: int | None
    """Of these, the ones since it was begun or resumed last, which took `seconds`."""
    seconds: float | None
    agents: Mapping[str, AgentOutcome]

    def told(self) -> str:
        """How it ended, and a row for each agent, in plain text of less than 80 columns."""
        return "\n".join([self._how(), *_table(self.agents)])

    def _how(self) -> str:
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
        if self.seconds is None or self.steps_here is None:
            return f"{how}."
        since = f"{self.steps_here:,} of them since it was resumed, in " if self.steps_here < self.steps else "in "
        speed = f", {self.steps_here / self.seconds:,.0f} steps/s" if self.seconds > 0 else ""
        return f"{how}, {since}{duration(self.seconds)}{speed}."

    def write(self) -> None:
        """Write `outcome.json` into the run's folder. If that fails, as on a full disk, a warning says so."""
        content = dataclasses.asdict(self)
        del content["folder"]
        try:
            write_json(self.folder / OUTCOME, content)
        except OSError as error:
            _log.warning("%s could not be written: %s", OUTCOME, str(error))


def outcome_of(
    learners: IndependentLearners,
    folder: Path,
    settings: TrainSettings,
    *,
    ended: Ended,
    reason: str = "",
    began: int,
    seconds: float,
) -> RunOutcome:
    """Return what has come of a run that ends now. `began`: the steps when it was begun or resumed last."""
    from parallel_envs.learners.learner import ALGORITHMS  # brings torch, which a report can do without

    best, returns = _best_returns(folder), learners.returns()
    agents = {
        str(agent): AgentOutcome(
            algorithm=ALGORITHMS[type(one.config)].name,
            episodes=learners.num_episodes[agent],
            last_return=returns.get(agent),
            best_return=_highest([best.get(str(agent)), returns.get(agent)]),
        )
        for agent, one in learners.agents.items()
    }
    return RunOutcome(
        folder=folder,
        ended=ended,
        reason=reason,
        steps=learners.steps,
        total_steps=settings.total_steps,
        steps_here=learners.steps - began,
        seconds=seconds,
        agents=agents,
    )


def outcome_of_meta(
    folder: Path, algorithm: str, *, ended: Ended, reason: str = "", steps: int, began: int, seconds: float
) -> RunOutcome:
    """Return what has come of a meta-learning run that ends now; its returns are those of its metrics.

    A return is the mean of an iteration's rollouts. Damaged metrics keep no run from ending: then there is no agent.
    """
    agents: dict[str, AgentOutcome] = {}
    with contextlib.suppress(BadRun, OSError):
        found = _outcome_so_far(folder).agents
        agents = {name: dataclasses.replace(one, algorithm=algorithm) for name, one in found.items()}
    return RunOutcome(
        folder=folder,
        ended=ended,
        reason=reason,
        steps=steps,
        total_steps=None,
        steps_here=steps - began,
        seconds=seconds,
        agents=agents,
    )


def outcome_in(folder: str | Path) -> RunOutcome:
    """Return what came of the run in a folder. Raises FileNotFoundError if there is no run, BadRun for a damaged file.

    A run without `outcome.json` (see above; also of a `Learner` whose `train` is a subclass's own) is told by its
    metrics.
    """
    folder = Path(folder)
    settings_of(folder)
    file = folder / OUTCOME
    if not file.is_file():
        return _outcome_so_far(folder)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        agents = {name: AgentOutcome(**own) for name, own in told.pop("agents").items()}
        return RunOutcome(folder=folder, agents=agents, **told)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadRun(f"{file} is damaged: {error}. Remove it: the metrics tell most of it again.") from error


def _outcome_so_far(folder: Path) -> RunOutcome:
    """Return what the metrics and the newest checkpoint say of a run that has not ended properly."""
    lines = read_metrics(folder)
    newest = newest_checkpoint(folder)
    last: dict[str, Any] = {}
    for line in lines:
        last |= _returns_of(line)
    best = _best_returns(folder)
    agents = {
        name: AgentOutcome(algorithm=None, episodes=None, last_return=value, best_return=best.get(name))
        for name, value in last.items()
    }
    steps = max([line["steps"] for line in lines] + ([int(newest.name)] if newest else []), default=0)
    parts: dict[str, Any] = {"total_steps": None, "steps_here": None, "seconds": None}
    return RunOutcome(folder=folder, ended="unknown", steps=steps, agents=agents, **parts)


def _returns_of(line: Mapping[str, Any]) -> dict[str, float]:
    agents = line.get("agents")
    known = agents.items() if isinstance(agents, dict) else ()
    values = {name: own.get("return") for name, own in known if isinstance(own, dict)}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _best_returns(folder: Path) -> dict[str, float]:
    best: dict[str, float] = {}
    with contextlib.suppress(BadRun, OSError):  # a damaged line keeps no run from ending
        for line in read_metrics(folder):
            for name, value in _returns_of(line).items():
                best[name] = max(best.get(name, -np.inf), value)
    return best


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _table(agents: Mapping[str, AgentOutcome]) -> list[str]:
    if not agents:
        return []
    rows = [("agent", "algorithm", "episodes", "last mean return", "best")]
    for name, one in list(agents.items())[:_MOST_AGENTS]:
        episodes = "-" if one.episodes is None else f"{one.episodes:,}"
        last, best = ("-" if value is None else f"{value:.4g}" for value in (one.last_return, one.best_return))
        rows.append((name, one.algorithm or "-", episodes, last, best))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    more = len(agents) - _MOST_AGENTS
    return [*lines, f"and {more} more agents"] if more > 0 else lines


# ---- what to do next ----------------------------------------------------------------------------------------------


def commands_after(run: Run, settings: TrainSettings, steps: int) -> list[str]:
    """Return three commands for a run that has ended, ready to copy; none if it has no checkpoint.

    They evaluate it, show how it learnt (TensorBoard if it is installed and the run has written for it), and go on with
    it: a run that has made all of its steps gets as many again.
    """
    if newest_checkpoint(run.folder) is None:
        return []
    folder = as_argument(run.folder)
    mission = shlex.quote(as_text(settings.env, settings.env_kwargs))
    more = [] if steps < settings.total_steps else [f"total_steps={2 * settings.total_steps}"]
    return [
        shell_command("parallel-envs", "parallel_envs", f"eval -m {mission} -p {folder} --episodes {_EPISODES}"),
        _shown_by(run.folder),
        " ".join([run.resume_command(), *more]),
    ]


def commands_after_meta(run: Run, until: str) -> list[str]:
    """Return the commands for a meta-learning run that has ended; none if it has no checkpoint.

    They show what came of it, and go on with it. `until`: the setting that says when it ends then, as `key=value`.
    """
    if newest_checkpoint(run.folder) is None:
        return []
    return [_shown_by(run.folder), f"{run.resume_command()} {until}"]


def resume_command(folder: Path, modules: Sequence[str] = ()) -> str:
    """Return the command that goes on with a run whose environment needs these modules (or files) to be trusted."""
    trust = [f"--trust {shlex.quote(module)}" for module in modules]
    return shell_command("parallel-envs", "parallel_envs", " ".join(["train --resume", as_argument(folder), *trust]))


def _shown_by(folder: Path) -> str:
    board = folder / BOARD
    if board.is_dir() and is_installed("tensorboard"):
        return shell_command("tensorboard", "tensorboard.main", f"--logdir {as_argument(board)}")
    return shell_command("parallel-envs", "parallel_envs", f"report {as_argument(folder)}")
