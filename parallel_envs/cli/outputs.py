"""Outputs of commands: printed results, files and videos, thresholds of `--fail-below`, errors without a traceback.

Thresholds:

    mean=-30                 each policy, over all missions, if these are of one environment
    CartPole-v1:mean=100     all episodes of a mission; each policy in it, where policies played one by one
    random:success=0.5       one policy
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from parallel_envs.checks import advice
from parallel_envs.choices import Recorded
from parallel_envs.commands import RARE as RARE
from parallel_envs.commands import AsJson as AsJson
from parallel_envs.commands import ExitCode as ExitCode
from parallel_envs.commands import json_text as json_text
from parallel_envs.commands import stdout_kept_clean as stdout_kept_clean
from parallel_envs.terminal import stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from parallel_envs.evaluation import Candidate, EpisodeRecord, EvaluationResult, Mission


@contextlib.contextmanager
def plain_errors(
    *kinds: type[BaseException], words: Mapping[str, str] | None = None, exit_code: ExitCode = ExitCode.REFUSED
) -> Iterator[None]:
    """End the program with the text and the notes of an error of these kinds, and with this exit code.

    `words`: options by the names of arguments in the texts; `jobs=2` becomes `--jobs 2`.
    """
    try:
        yield
    except kinds as error:
        said = str(error)
        if isinstance(error, OSError) and error.strerror and error.filename and said.startswith("[Errno"):
            said = f"{error.filename}: {error.strerror}."  # without the number
        for text in (said, *getattr(error, "__notes__", ())):
            for argument, option in (words or {}).items():
                text = re.sub(rf"(?<![\w.]){argument}=(?=\S)", f"{option} ", text)  # noqa: PLW2901
            typer.echo(text, err=True)
        raise typer.Exit(exit_code) from None


def trusted(words: Sequence[str] | None) -> list[str]:
    """Return the modules and files of `--trust`. A word that is neither ends the program with exit code 2."""
    from parallel_envs.trust import trusted_modules

    with plain_errors(ValueError):
        return list(trusted_modules(words or ()))


Format = Literal["table", "json", "csv", "yaml"]

_FORMATS: dict[str, Format] = {".json": "json", ".csv": "csv", ".yaml": "yaml", ".yml": "yaml", ".txt": "table"}
_FILE_WIDTH = 132


def console() -> Console:
    """Return the console of stdout: at full width if it is no terminal, unless COLUMNS is set."""
    return stdout_console(_FILE_WIDTH)


def text_of(result: EvaluationResult, format: Format) -> str:  # noqa: A002  # the name of the option
    """Return the result in a format."""
    writers = {"json": result.to_json, "csv": result.to_csv, "yaml": result.to_yaml, "table": result.to_table}
    return writers[format]()


def summary_of(result: EvaluationResult) -> dict[str, Any]:
    """Return the document of `eval --json`: figures by mission and policy, and the numbers of episodes."""
    from parallel_envs.evaluation.statistics import per_mission_and_policy

    missions: dict[str, dict[str, Any]] = {name: {} for name in result.missions}
    for (mission, policy), figures in per_mission_and_policy(result).items():
        missions[mission][policy] = figures
    return {
        "episodes": len(result.episodes),
        "failed": len(result.failures),
        "missing": len(result.missing),
        "interrupted": result.interrupted,
        "missions": missions,
        "policies": result.per_policy(),
    }


@dataclass
class Outputs:
    """Files that were requested.

    Args:
        output: The file of the result, in the format of its ending.
        save_episodes: The folder of trajectories.
        record: Which episodes are to be recorded as videos.
        videos: The folder of videos.
        report: The file of the page.
    """

    output: Path | None
    save_episodes: Path | None
    record: Recorded | None
    videos: Path
    report: Path | None = None
    complete: bool = True  # whether everything could be written
    num_saved: int = 0  # the number of episodes that were written to `save_episodes`

    def check(self) -> None:
        """Create the folders. Raise an error for an output that cannot be written, before anything is played."""
        if self.output is not None:
            if self.output.suffix.lower() not in _FORMATS:
                known = ", ".join(_FORMATS)
                raise typer.BadParameter(f"--output {self.output}: the ending must name the format: {known}.")
            from parallel_envs.evaluation.evaluate import check_writable

            check_writable(self.output)
        if self.report is not None:
            from parallel_envs.evaluation.evaluate import check_writable
            from parallel_envs.extras import require

            require("--report", "matplotlib")
            check_writable(self.report)
        if self.record is not None:
            from parallel_envs.evaluation.recordings import check_can_record

            check_can_record(self.record)
        videos = None if self.record is None else self.videos
        for option, path in (("--videos", videos), ("--save-episodes", self.save_episodes)):
            try:
                if path is not None:
                    path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                text = f"{option} {path} cannot be a folder: {error.strerror}. Name another."
                raise typer.BadParameter(text) from None

    @property
    def result_file(self) -> Path | None:
        """The file that always holds the complete episodes, and can be resumed."""
        return self.output if self.output is not None and self.output.suffix.lower() == ".json" else None

    def save_episode(self, record: EpisodeRecord) -> None:
        """Write the trajectory of an episode, unless it was lost with its worker."""
        if self.save_episodes is None or record.trajectory is None:
            return
        from parallel_envs.evaluation.recordings import save_episode

        try:
            save_episode(self.save_episodes, record)
            self.num_saved += 1
        except OSError as error:  # the evaluation goes on: its numbers are worth more
            if self.complete:
                typer.echo(f"Episode {record.episode} of {record.mission} is not saved: {error}", err=True)
            self.complete = False

    def write(self, result: EvaluationResult, missions: Sequence[Mission], policies: Sequence[Candidate]) -> None:
        """Write the outputs of the end: the result, unless its file is up to date already, and videos."""
        if self.output is not None and self.result_file is None:
            from parallel_envs.evaluation.records import write_text

            write_text(text_of(result, _FORMATS[self.output.suffix.lower()]), self.output)
        missing = len(result.episodes) - self.num_saved
        if self.save_episodes is not None and missing:
            which = f"{missing} of {len(result.episodes)} episodes, which were played in an earlier run, or lost"
            typer.echo(f"{self.save_episodes} has no files from this run for {which}.", err=True)
        if self.record is None:
            return
        if all(one.score is None for one in result.episodes):
            typer.echo("There is no video: no episode was played to its end.", err=True)
        if result.interrupted:
            return
        from parallel_envs.evaluation.recordings import record_videos

        for video in record_videos(result, missions, policies, self.record, self.videos):
            name = f"{video.record.mission}, episode {video.record.episode}"
            text = f"{video.path}: {name}, return {video.record.score:.4g}"
            if video.path is None:
                self.complete, text = False, f"no video of {name}"
            typer.echo(f"{text}: {video.problem}" if video.problem else text, err=True)

    def write_report(self, result: EvaluationResult) -> None:
        """Write the page, if one was requested. Call it after `write`: the page shows the videos."""
        if self.report is not None:
            from parallel_envs.cli.report import EvaluationRecord, page_of
            from parallel_envs.files import write_text

            name = "evaluation" if self.output is None else self.output.name
            folder = Path() if self.output is None else self.output.parent
            write_text(self.report, page_of([], [EvaluationRecord(name, result, folder)], output=self.report))
            typer.echo(f"Report: {self.report}", err=True)


# ---- thresholds -----------------------------------------------------------------------------------------------------

METRICS = {"mean": "mean", "iqm": "iqm", "low": "iqm_interval", "success": "success_rate"}
"""Fields of `Summary` by the names of metrics. `low` is the lower end of the interval."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A lower bound of a metric. `name` is a mission or a policy; None: every policy."""

    metric: str
    value: float
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return the threshold of a text. Raises BadParameter."""
        left, _, number = text.rpartition("=")
        name, colon, metric = left.rpartition(":")
        with contextlib.suppress(ValueError):
            if metric in METRICS and not math.isnan(value := float(number)):
                return cls(metric, value, name if colon else None)
        problem = f"{number!r} is not a number."
        if metric not in METRICS:
            problem = f"there is no metric {metric!r}. {advice(metric, METRICS)}"
        if not metric:
            problem = "it does not have the form METRIC=VALUE, such as mean=-30."
        raise typer.BadParameter(f"--fail-below {text!r}: {problem}")

    def check(self, missions: Collection[Mission], policies: Collection[str]) -> None:
        """Raise BadParameter for an unknown name, or for a mean over missions of different environments."""
        names = [mission.name for mission in missions]
        if self.name is not None and self.name not in (known := [*names, *policies]):
            text = f"--fail-below: no mission and no policy is called {self.name!r}."
            raise typer.BadParameter(f"{text} {advice(self.name, known)}")
        is_common = self.metric == "success" or self.name in names
        if not is_common and len({str(mission.described()["env"]) for mission in missions}) > 1:
            raise typer.BadParameter(
                f"--fail-below {self.metric}={self.value:g}: missions of different environments have no common "
                f"{self.metric}. Give one for each, such as {names[0]}:{self.metric}={self.value:g}."
            )

    def missed_by(self, result: EvaluationResult) -> list[str]:
        """Return a sentence for each figure that is below the threshold or unknown."""
        from parallel_envs.evaluation.statistics import per_mission_and_policy, summarise

        summaries = result.per_policy()
        if self.name is not None:
            cells = {}
            if len({record.alone for record in result.episodes}) > 1:  # policies played one by one
                of_missions = per_mission_and_policy(result).items()
                cells = {f"{policy} in {of}": cell for (of, policy), cell in of_missions if of == self.name}
            summary = {**summaries, **result.per_mission()}.get(self.name)
            # A policy that has not played yet has no figures.
            summaries = cells or {self.name: summary or summarise({})}
        found = []
        for name, summary in summaries.items():
            value = getattr(summary, METRICS[self.metric])
            number = value[0] if isinstance(value, tuple) else value
            if number is None:
                found.append(f"{name}: {self.metric} is not known, and {self.value:g} is required.")
            elif not number >= self.value:  # also NaN
                found.append(f"{name}: {self.metric} is {number:.6g}, below {self.value:g}.")
        return found
