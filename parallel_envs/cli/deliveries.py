"""What comes of an evaluation: what is printed, and what is written if it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from parallel_envs.choices import Recorded

if TYPE_CHECKING:
    from rich.console import Console

    from parallel_envs.evaluation import Candidate, EpisodeRecord, EvaluationResult, Mission
    from parallel_envs.evaluation.recording import Video

Format = Literal["table", "json", "csv", "yaml"]

_SUFFIXES: dict[str, Format] = {".json": "json", ".csv": "csv", ".yaml": "yaml", ".yml": "yaml", ".txt": "table"}
_FILE_WIDTH = 132


def show(result: EvaluationResult, format: Format) -> None:  # noqa: A002  # what the option is called
    """Print it to stdout."""
    if format != "table":
        typer.echo(_text(result, format), nl=False)
        return
    from parallel_envs.evaluation.tables import tables

    for part in tables(result):
        console().print(part)


def console() -> Console:
    """Of stdout; in full width if that is no terminal, and COLUMNS says nothing else."""
    from parallel_envs.fitting_tables import stdout_console

    return stdout_console(_FILE_WIDTH)


@dataclass
class Deliveries:
    """Files that were asked for.

    Args:
        output: The result, written as its ending says.
        save_episodes: A folder for all that was seen and done.
        record: Which episodes are to be filmed.
        videos: The folder for that.
    """

    output: Path | None
    save_episodes: Path | None
    record: Recorded | None
    videos: Path
    complete: bool = True
    """Whether all could be made."""
    num_kept: int = 0
    """How many episodes were written to `save_episodes`."""

    def check(self) -> None:
        """Raise what keeps any of it from being made, before anything is played. Folders are there afterwards."""
        if self.output is not None:
            _check_output(self.output)
        if self.record is not None:
            from parallel_envs.evaluation.recording import check_can_record

            check_can_record(self.record)
            _make_folder("--videos", self.videos)
        if self.save_episodes is not None:
            _make_folder("--save-episodes", self.save_episodes)

    @property
    def kept_up_to_date(self) -> Path | None:
        """The file that holds at any moment what has been played."""
        return self.output if self.output is not None and _format_of(self.output) == "json" else None

    def keep(self, record: EpisodeRecord) -> None:
        """Write down what was seen and done in an episode, unless its worker has taken that along."""
        if self.save_episodes is None or record.trajectory is None:
            return
        from parallel_envs.evaluation.trajectories import save_episode

        try:
            save_episode(self.save_episodes, record)
            self.num_kept += 1
        except OSError as error:  # the evaluation goes on: its numbers are worth more
            if self.complete:
                typer.echo(f"Episode {record.episode} of {record.mission} is not kept: {error}", err=True)
            self.complete = False

    def make(
        self,
        result: EvaluationResult,
        missions: Sequence[Mission],
        policies: Sequence[Candidate],
    ) -> None:
        """Write what is to be written in the end, and film what is to be filmed."""
        if self.output is not None and not self.kept_up_to_date:
            from parallel_envs.evaluation.formats import write

            write(self.output, _text(result, _format_of(self.output)))
        self._tell_missing(result)
        if self.record is not None and not result.interrupted:
            from parallel_envs.evaluation.recording import record_videos

            for video in record_videos(result, missions, policies, self.record, self.videos):
                self.complete = self.complete and video.path is not None
                typer.echo(_told(video), err=True)

    def _tell_missing(self, result: EvaluationResult) -> None:
        without = len(result.episodes) - self.num_kept
        if self.save_episodes is not None and without:
            what = f"{without} of {len(result.episodes)} episodes, which were played in an earlier run, or lost"
            typer.echo(f"This run has put nothing into {self.save_episodes} of {what}.", err=True)
        if self.record is not None and all(one.score is None for one in result.episodes):
            typer.echo("There is no video: no episode was played to its end.", err=True)


def _told(video: Video) -> str:
    what = f"{video.record.mission}, episode {video.record.episode}"
    if video.path is None:
        return f"no video of {what}: {video.problem}"
    problem = f": {video.problem}" if video.problem else ""
    return f"{video.path}: {what}, return {video.record.score:.4g}{problem}"


def _text(result: EvaluationResult, format: Format) -> str:  # noqa: A002  # as above
    from parallel_envs.evaluation import formats

    writers = {"json": formats.to_json, "csv": formats.to_csv, "yaml": formats.to_yaml, "table": formats.to_table}
    return writers[format](result)


def _format_of(path: Path) -> Format:
    return _SUFFIXES[path.suffix.lower()]


def _make_folder(option: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{option} {path} cannot be a folder: {error.strerror}. Name another.") from None


def _check_output(path: Path) -> None:
    if path.suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"--output {path}: its ending says how it is written: {', '.join(_SUFFIXES)}.")
    from parallel_envs.evaluation.resuming import check_writable

    check_writable(path)
