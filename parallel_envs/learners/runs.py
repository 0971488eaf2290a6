"""A training run in its folder: all that is needed to know what was done, and to go on. `run_folder.py` says what is in
it.

One process at a time is at a run.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from parallel_envs.closing import ClosedAtExit
from parallel_envs.errors import UntrustedName
from parallel_envs.files import discard, sweep
from parallel_envs.learners.boards import Board
from parallel_envs.learners.choice import Choice
from parallel_envs.learners.claims import Claim
from parallel_envs.learners.metric_lines import MetricLines, read_metrics
from parallel_envs.learners.outcomes import resume_command
from parallel_envs.learners.run_folder import (
    ABOUT,
    CHECKPOINTS,
    OUTCOME,
    SETTINGS,
    BadRun,
    checkpoints_in,
    newest_checkpoint,
    newest_whole,
    place_of_checkpoint,
    settings_of,
    way_back,
    write_json,
    write_settings,
)
from parallel_envs.learners.settings import BadSettings, load_settings
from parallel_envs.learners.surroundings import surroundings
from parallel_envs.meta.families import KNOWN
from parallel_envs.trust import check_env
from parallel_envs.yaml_files import settings_in

__all__ = ["BadRun", "CheckpointNotSaved", "Run", "newest_checkpoint", "read_metrics", "settings_of"]

Agent = Hashable

_log = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MOST_MISSED = 2
"""Checkpoints in a row that a run does without, as there is no room on the disk. The next one that fails ends it: by
default that is after three tenths of the run, which would be lost if the machine failed."""
_MOST_MODULES = 5
"""Modules that one environment may need to have trusted: it is defined in one, and imported from another."""
_TOTALS = ("restarts",)
"""Counts of a line of metrics that TensorBoard shows as well."""


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written, and the run has ended. The text says why, and which one is kept."""


class Run(ClosedAtExit):
    """A run's folder. Made by `Run.create` or, to go on with one, by `Run.resume`; a context manager.

    with Run.create("runs/spread", settings.described(), seed=settings.seed) as run:
        run.log({"update": 1, "steps": 1024}, {"agent_0": {"loss": 0.3}})
        run.save(1024, learners.save)
    """

    def __init__(self, folder: Path, *, keep_checkpoints: int = 3, tensorboard: bool = True) -> None:
        self.folder = folder
        self._keep = keep_checkpoints
        self._num_missed = 0  # checkpoints since the last one that was saved
        self._choice, self._board = Choice(folder), Board(folder, wanted=tensorboard)
        self._claim = Claim(folder)
        try:
            self._metrics = MetricLines(folder)
        except BaseException:
            self._claim.give_up()
            raise

    @contextlib.contextmanager
    def _or_closed(self) -> Iterator[None]:
        """What cannot be begun is let go of."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: str | Path, settings: Mapping[str, Any], *, seed: int, **options: Any) -> Self:
        """Begin a run in a new folder. FileExistsError if there is anything in it."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError(
                f"{folder} holds something already. Choose another folder, or go on with the run in it (--resume)."
            )
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, **options)
        with run._or_closed():
            run.remember(settings)
            began = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(folder / ABOUT, {"seed": seed, "began": began, **surroundings()})
        return run

    @classmethod
    def resume(cls, folder: str | Path, **options: Any) -> tuple[Self, Path]:
        """Go on with a run from its newest checkpoint, which is returned beside it.

        What was logged after that is dropped: it will be done again. Raises BadRun if another process is at it, or if
        there is something newer that is no checkpoint; FileNotFoundError if there is nothing to go on from.
        """
        settings_of(folder)
        run = cls(Path(folder), **options)
        with run._or_closed():
            newest = newest_whole(run.folder)
            run._go_back(int(newest.name))
        return run, newest

    def _go_back(self, steps: int) -> None:
        """Have nothing be there that is newer than the checkpoint at so many steps."""
        self._metrics.drop_after(steps)
        self._choice.go_back(steps)
        (self.folder / OUTCOME).unlink(missing_ok=True)
        sweep(self.folder / CHECKPOINTS)

    def way_back(self, bad: Path) -> str:
        """What to do about a checkpoint that cannot be read."""
        return way_back(self.folder, bad)

    @property
    def chosen(self) -> str | None:
        """The update mode that "auto" had chosen by the checkpoint that the run goes on from; None: none yet."""
        return self._choice.mode

    def close(self) -> None:
        """Close what is open. Calling it twice does nothing."""
        self._metrics.close()
        self._board.close()
        self._claim.give_up()

    # ---- what is written --------------------------------------------------------------------------------------------

    def remember(self, settings: Mapping[str, Any]) -> None:
        """With these settings the run goes on, and so it will when it is resumed."""
        write_settings(self.folder / SETTINGS, settings)

    def log(self, counts: Mapping[str, Any], agents: Mapping[Agent, Mapping[str, float]]) -> None:
        """One line: `counts` (with `update` and `steps`), and each agent's metrics. What is not finite becomes null."""
        self._metrics.add(counts, agents)
        totals = {name: float(counts[name]) for name in _TOTALS if name in counts}
        self._board.show(int(counts["steps"]), agents, totals)

    def save(self, steps: int, save: Callable[[Path], Any], chosen: str | None = None) -> Path:
        """Have a checkpoint written, whole or not at all, and forget those that are too old. Returns where it is.

        Raises OSError if it cannot be written. All that was there before is there still.

        Args:
            steps: How far the run is.
            save: Writes a checkpoint into a folder, as `IndependentLearners.save` does.
            chosen: The update mode that "auto" has chosen by now, if it has.
        """
        self._metrics.sync()  # whoever resumes from it finds the lines up to it
        self._choice.note(chosen, steps)  # first: a note without its checkpoint is dropped, and measured again
        folder = place_of_checkpoint(self.folder, steps)
        save(folder)
        self._num_missed = 0
        self._board.try_again()
        try:
            for old in checkpoints_in(self.folder)[: -self._keep]:
                discard(old)
        except OSError as error:  # they are forgotten when the next one is saved
            _log.warning("Old checkpoints in %s could not be removed: %s", self.folder, str(error))
        return folder

    def save_if_possible(
        self, steps: int, save: Callable[[Path], Any], chosen: str | None = None, *, is_last: bool = False
    ) -> Path | None:
        """Save a checkpoint as `save` does; on a full disk the run may go on without it.

        There may be room again when the next one is due, so a run does without two in a row. A warning tells of each.

        Args:
            steps: As for `save`.
            save: As for `save`.
            chosen: As for `save`.
            is_last: Whether there will be no next one.

        Returns:
            Where the checkpoint is. None: there is no room for it.

        Raises:
            CheckpointNotSaved: There was no room for the last one, or for the third in a row, or the disk reported
                another error than that it is full.
        """
        try:
            return self.save(steps, save, chosen)
        except OSError as error:
            self._num_missed += 1
            told = f"The checkpoint at step {steps:,} could not be written: {error}. {self.kept()}"
            if is_last or self._num_missed > _MOST_MISSED or error.errno not in _NO_ROOM:
                raise CheckpointNotSaved(f"{told} {self.way_on()}") from error
            _log.warning("%s The run goes on; make room on the disk before the next checkpoint is due.", told)
            return None

    def kept(self) -> str:
        """Return a sentence that says which checkpoint is the newest."""
        newest = newest_checkpoint(self.folder)
        return f"The newest whole checkpoint is {newest}." if newest else f"{self.folder} holds no checkpoint yet."

    def way_on(self) -> str:
        """Return a sentence that says how to go on with the run when it has ended too early."""
        if newest_checkpoint(self.folder):
            return f"To go on from it: {self.resume_command()}"
        return "Begin the run anew in another folder."

    def resume_command(self) -> str:
        """Return the command that goes on with the run, ready to copy.

        It has `--trust MODULE` for each module of the run's environment that a file alone may not name.
        """
        modules: list[str] = []
        with contextlib.suppress(BadSettings, OSError):  # settings that cannot be read: then the command is shorter
            name, kwargs = self._env()
            while len(modules) < _MOST_MODULES:
                try:
                    check_env(name, kwargs, settings_of(self.folder), modules)
                except UntrustedName as error:
                    modules.append(error.module)
                    continue
                break
        return resume_command(self.folder, modules)

    def _env(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the run's environment, or of its family of tasks, and its keyword arguments."""
        content = settings_in(settings_of(self.folder), BadSettings)
        block = content.get("env")
        if isinstance(block, Mapping):  # settings of the meta learner
            name = str(block.get("env_name"))
            return KNOWN.get(name, name), block.get("env_kwargs") or {}
        stored = load_settings(settings_of(self.folder))
        return stored.env, stored.env_kwargs
