"""Folder of a training run: everything needed to know what was done, and to continue.

runs/spread/
    settings.yaml        every setting, including defaults: can be run again as it is
    run.json             seed, versions of packages, machine, time of the start; devices, those of the last start
    chosen.json          the update mode that "auto" has found to be the quickest, if it has
    metrics.jsonl        a line for each update, or for several
    tensorboard/         the same for TensorBoard
    writers.json         for each other writer (`writers.py`), the id of its run and the newest step that it has
    outcome.json         how the run ended, and its results; absent while it trains, and after a kill
    trace.json           timeline of the last minute, if the run was traced (`--trace`)
    checkpoints/000051200/  by number of steps; the newest few

`Run` writes into the folder, one process at a time. Tables of results and commands are in `outcomes.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parallel_envs.checks import similar_path
from parallel_envs.engine import num_cores
from parallel_envs.errors import UntrustedName
from parallel_envs.extras import as_argument, shell_command
from parallel_envs.files import discard, locked, open_to_append, short_name, sweep, write_json, write_text
from parallel_envs.learners.checkpoint import is_checkpoint
from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.writers import Status, TensorBoardWriter, Writer, Writers, numbers_of
from parallel_envs.meta.making import KNOWN
from parallel_envs.settings import settings_in
from parallel_envs.threads import ClosedAtExit
from parallel_envs.trust import check_env, check_writer

Agent = Hashable
Metrics = Mapping[Agent, Mapping[str, float]]

_log = logging.getLogger(__name__)

SETTINGS, ABOUT, CHOSEN, METRICS = "settings.yaml", "run.json", "chosen.json", "metrics.jsonl"
OUTCOME, TRACE = "outcome.json", "trace.json"
CHECKPOINTS = "checkpoints"


class BadRun(ValueError):
    """A run cannot be continued as it is. The text says what to do."""


# ---- places -----------------------------------------------------------------------------------------------------


def new_folder_in_runs(env: str, algorithms: Iterable[str], seed: int) -> Path:
    """Make an empty folder for a run and return it: `runs/CartPole-v1_ppo_seed0_20260131-120000`.

    Characters that are unusual in file names become `-`. Runs that begin in the same second get a number at the end.
    """
    path, colon, name = env.rpartition(":")
    whole = f"{Path(path).name.removesuffix('.py')}-{name}" if colon else env
    safe = re.sub(r"[^\w.+-]+", "-", whole).strip("-.") or "env"
    learnt = re.sub(r"[^0-9A-Za-z_.+-]+", "-", "+".join(dict.fromkeys(algorithms)))
    stem = f"{short_name(safe, 150)}_{learnt}_seed{seed}_{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        folder = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def settings_of(folder: str | Path) -> Path:
    """Return the path of a run's settings. FileNotFoundError if there is no run."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        above = [one for one in Path(folder).parents[:2] if (one / SETTINGS).is_file()]
        hint = similar_path(folder, lambda one: (one / SETTINGS).is_file())
        hint = f" The run that it is part of is {above[0]}." if above else hint
        raise FileNotFoundError(f"{folder} holds no run: there is no file {SETTINGS} in it.{hint}")
    return path


def checkpoints_in(folder: Path, *, whole: bool = True) -> list[Path]:
    """Return the checkpoints of a run, the oldest first; with `whole=False` everything at the place of one."""
    found = [path for path in (folder / CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()]
    return sorted((path for path in found if not whole or is_checkpoint(path)), key=lambda path: int(path.name))


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a run, if it has one."""
    return next(reversed(checkpoints_in(Path(folder))), None)


def newest_whole(folder: Path) -> Path:
    """Return the checkpoint to continue from. BadRun if it is not complete; FileNotFoundError if there is none."""
    if not (found := checkpoints_in(folder, whole=False)):
        raise FileNotFoundError(f"{folder} holds no checkpoint yet: begin the run anew in another folder.")
    if not is_checkpoint(found[-1]):
        text = f"{found[-1]} is not a complete checkpoint: its table is missing."
        raise BadRun(f"{text} {way_back(folder, found[-1])}")
    return found[-1]


def way_back(folder: Path, bad: Path) -> str:
    """Return advice for a checkpoint that cannot be read."""
    older = [path for path in checkpoints_in(folder) if int(path.name) < int(bad.name)]
    if not older:
        return "There is no older one to go on from: begin the run anew in another folder."
    return f"Remove {bad} to go on from the one before, {older[-1].name}."


# ---- metrics ----------------------------------------------------------------------------------------------------


class MetricsFile:
    """The file `metrics.jsonl` of a run, open for appending. It holds complete lines at any time.

    A line that cannot be written, as on a full disk, waits for the next call: `add` warns, and `write` raises.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._waiting, self._has_warned = folder, b"", False
        self._file = open_to_append(folder / METRICS)
        self._end = self._file.seek(0, os.SEEK_END)  # end of the last complete line

    def add(self, counts: Mapping[str, Any], agents: Metrics) -> None:
        """Append a line: `counts`, and each agent's metrics. Numbers that are not finite become null."""
        finite = {
            str(agent): {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
            for agent, metrics in agents.items()
        }
        self._waiting += json.dumps({**counts, "agents": finite}).encode() + b"\n"
        try:
            self.write()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("Lines of %s wait in memory until they can be written: %s", METRICS, str(error))

    def write(self, *, sync: bool = False) -> None:
        """Append all waiting lines, or none, and `sync` them to the disk. Raises OSError if that fails."""
        try:
            left = memoryview(self._waiting)
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)  # the next line must not follow half a line
            raise
        self._end += len(self._waiting)
        self._waiting, self._has_warned = b"", False
        if sync:
            os.fsync(self._file.fileno())

    def drop_after(self, steps: int) -> None:
        """Remove lines of later steps, and half a line. Raises BadRun, and changes nothing, if a line is damaged."""
        num_kept = sum(line["steps"] <= steps for line in read_metrics(self._folder))
        kept = (self._folder / METRICS).read_bytes().splitlines(keepends=True)[:num_kept]
        self._end = sum(map(len, kept))
        self._file.truncate(self._end)

    def close(self) -> None:
        """Write waiting lines, if that is possible now, and close the file. May be called again."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self.write()
        self._file.close()


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`, without a last one that was cut off. Raises BadRun for a damaged line."""
    path = Path(folder) / METRICS
    if path.exists() and not path.is_file():  # a pipe has no end
        raise BadRun(f"{path} is not a file. Remove it, and resume again.")
    *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    lines = []
    for number, text in enumerate(whole, 1):
        with contextlib.suppress(ValueError, KeyError, RecursionError):
            line = json.loads(text.decode())
            if isinstance(line, dict) and isinstance(line["steps"], int):
                lines.append(line)
                continue
        shown = text.decode(errors="backslashreplace").strip()[:80]
        raise BadRun(f"Line {number} of {path} is not a line of metrics: {shown!r}. Remove it, and resume again.")
    return lines


class MetricMeans:
    """Means of each agent's metrics over many updates: agents with a replay buffer update every few steps.

    The first update after `every` steps makes a line. If one of the numbers is not finite, their mean is NaN.
    """

    def __init__(self, every: int, write: Callable[[int, dict[Agent, dict[str, float]]], None], *, begins: int) -> None:
        self._every, self._write, self._mark = every, write, begins
        self._values: dict[Agent, dict[str, list[float]]] = {}

    def add(self, steps: int, metrics: Metrics) -> None:
        """Add the metrics of an update after so many steps."""
        for agent, own in metrics.items():
            known = self._values.setdefault(agent, {})
            for name, value in own.items():
                known.setdefault(name, []).append(value)
        if steps - self._mark >= self._every:
            self.flush(steps)

    def flush(self, steps: int) -> None:
        """Write the means since the last line."""
        if self._values:
            means = {
                agent: {
                    name: math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
                    for name, values in own.items()
                }
                for agent, own in self._values.items()
            }
            self._write(steps, means)
        self._values, self._mark = {}, steps


# ---- the run ----------------------------------------------------------------------------------------------------

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MOST_MISSED = 2
"""Consecutive checkpoints that a run goes without, if the disk is full. The next failure ends the run: by default that
is after three tenths of the run, which would be lost if the machine failed."""
_MOST_MODULES = 5
"""Modules that one environment and the writers may need to have trusted: each is defined in one, and may be imported
from another."""
_PACKAGES = (
    *("numpy", "gymnasium", "pettingzoo", "torch", "safetensors"),
    *("cpprb", "mpe2", "lbforaging", "mujoco", "ale-py"),
)
"""Packages with versions in run.json, as results may depend on them."""


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written, and the run has ended. The text says why, and which one is kept."""


def read_choice(folder: Path, steps: int) -> str | None:
    """Return the update mode that `update_mode: auto` had chosen after so many steps. A later choice is removed.

    A resumed run begins with the mode that it had: modes give the same numbers up to rounding only.
    """
    path = folder / CHOSEN
    if not path.exists():
        return None
    mode = since = None
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        content = json.loads(path.read_bytes())
        mode, since = content["update_mode"], content["since_steps"]
    if not isinstance(mode, str) or not isinstance(since, int):
        text = f"{path} does not say which update mode was chosen, and when."
        raise BadRun(f'{text} Remove it to have "auto" choose anew.')
    if since > steps:
        path.unlink()
        return None
    return mode


class Run(ClosedAtExit):
    """A run's folder. Made by `Run.create` or, to continue a run, by `Run.resume`; a context manager.

    Raises BadRun if another process has the run, as far as the system has locks.

    with Run.create("runs/spread", settings.described(), seed=settings.seed) as run:
        run.log({"update": 1, "steps": 1024}, {"agent_0": {"loss": 0.3}})
        run.save(1024, learners.save)
    """

    chosen: str | None = None
    """The update mode that "auto" had chosen by the newest checkpoint; None: none yet."""
    status: Status = "failed"
    """How the run has ended, for its writers. Set before `close`."""

    def __init__(self, folder: Path, *, keep_checkpoints: int = 3, tensorboard: bool = True) -> None:
        self.folder = folder
        self._keep = keep_checkpoints
        self._num_missed = 0  # checkpoints since the last one that was saved
        self._board = TensorBoardWriter(folder, wanted=tensorboard)
        self._writers = Writers({}, folder, {})
        with contextlib.ExitStack() as files:
            try:
                files.enter_context(locked(folder))
            except BlockingIOError:
                text = f"Another process is using the run in {folder}. End it first, or begin another run."
                raise BadRun(text) from None
            self._metrics = MetricsFile(folder)
            files.callback(self._board.close)
            files.callback(self._metrics.close)
            files.callback(lambda: self._writers.close(self.status))
            self._files = files.pop_all()

    @classmethod
    def create(cls, folder: str | Path, settings: Mapping[str, Any], *, seed: int, **options: Any) -> Self:
        """Begin a run in a new folder. FileExistsError if the folder is not empty."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError(
                f"{folder} holds something already. Choose another folder, or go on with the run in it (--resume)."
            )
        folder.mkdir(parents=True, exist_ok=True)
        versions = {"parallel-envs": sys.modules["parallel_envs"].__version__}
        for package in _PACKAGES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        about = {
            "seed": seed,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": num_cores(),
            "packages": versions,
        }
        run = cls(folder, **options)
        try:
            run.remember(settings)
            write_json(folder / ABOUT, about)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def resume(cls, folder: str | Path, **options: Any) -> tuple[Self, Path]:
        """Return a run and its newest checkpoint, to continue from there. Everything newer is removed.

        Raises BadRun if another process has the run, or the newest is not complete; FileNotFoundError without either.
        """
        settings_of(folder)
        run = cls(Path(folder), **options)
        try:
            newest = newest_whole(run.folder)
            steps = int(newest.name)
            run._metrics.drop_after(steps)
            run.chosen = read_choice(run.folder, steps)
            (run.folder / OUTCOME).unlink(missing_ok=True)
            sweep(run.folder / CHECKPOINTS)
        except BaseException:
            run.close()
            raise
        return run, newest

    def begin_writers(self, writers: Mapping[str, Writer], settings: Mapping[str, Any]) -> None:
        """Begin to write metrics by these writers, too. They first get the lines of before that they have not had."""
        self._writers = Writers(writers, self.folder, settings, read_metrics(self.folder) if writers else ())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.status = "interrupted"
        super().__exit__(kind, error, traceback)

    def close(self) -> None:
        """Close all files, and end the writers (see `status`). Calling it twice does nothing."""
        self._files.close()

    def remember(self, settings: Mapping[str, Any]) -> None:
        """Write the settings with which the run continues, now and when it is resumed."""
        import yaml

        write_text(self.folder / SETTINGS, yaml.safe_dump(dict(settings), sort_keys=False))

    def describe(self, **facts: Any) -> None:
        """Write facts about this start of the run into run.json, in the place of those of the start before."""
        path, about = self.folder / ABOUT, None
        with contextlib.suppress(OSError, ValueError):  # a run can do without this file
            about = json.loads(path.read_bytes())
        if isinstance(about, dict) and about != {**about, **facts}:
            write_json(path, {**about, **facts})

    def log(self, counts: Mapping[str, Any], agents: Metrics) -> None:
        """Write a line: `counts` (with `update`, `steps`), and each agent's metrics. Infinity and NaN become null."""
        self._metrics.add(counts, agents)
        numbers = numbers_of(counts, agents)
        self._board.write(int(counts["steps"]), numbers)
        self._writers.write(int(counts["steps"]), numbers)

    def save(self, steps: int, save: Callable[[Path], Any], chosen: str | None = None) -> Path:
        """Write a checkpoint by `save`, completely or not at all, remove those that are too old, and return its folder.

        Raises OSError if it cannot be written. `chosen` is the update mode that "auto" has chosen by now, if it has.
        """
        self._metrics.write(sync=True)  # a run that is resumed from this checkpoint needs the lines up to it
        if chosen is not None and chosen != self.chosen:  # first: a note without its checkpoint is dropped later
            write_json(self.folder / CHOSEN, {"update_mode": chosen, "since_steps": steps})
            self.chosen = chosen
        folder = self.folder / CHECKPOINTS / f"{steps:09}"
        save(folder)
        self._num_missed = 0
        self._board.has_failed = False  # there is room on the disk: write again, into a new file
        try:
            for old in checkpoints_in(self.folder)[: -self._keep]:
                discard(old)
        except OSError as error:  # they are removed when the next one is saved
            _log.warning("Old checkpoints in %s could not be removed: %s", self.folder, str(error))
        return folder

    def save_if_possible(
        self, steps: int, save: Callable[[Path], Any], chosen: str | None = None, *, is_last: bool = False
    ) -> Path | None:
        """Save a checkpoint as `save` does. Warn and return None if the disk is full: there may be room for the next.

        Raises:
            CheckpointNotSaved: There was no room for the last one (`is_last`), or for the third in a row, or the disk
                reported another error than that it is full.
        """
        try:
            return self.save(steps, save, chosen)
        except OSError as error:
            self._num_missed += 1
            text = f"The checkpoint at step {steps:,} could not be written: {error}. {self.kept()}"
            if is_last or self._num_missed > _MOST_MISSED or error.errno not in _NO_ROOM:
                raise CheckpointNotSaved(f"{text} {self.way_on()}") from error
            _log.warning("%s The run goes on; make room on the disk before the next checkpoint is due.", text)
            return None

    def kept(self) -> str:
        """Return a sentence that names the newest checkpoint."""
        newest = newest_checkpoint(self.folder)
        return f"The newest whole checkpoint is {newest}." if newest else f"{self.folder} holds no checkpoint yet."

    def way_on(self) -> str:
        """Return a sentence that says how to continue a run that has ended too early."""
        if newest_checkpoint(self.folder):
            return f"To go on from it: {self.resume_command()}"
        return "Begin the run anew in another folder."

    def resume_command(self) -> str:
        """Return the command that continues the run, with `--trust MODULE` for each module that needs it."""
        modules: list[str] = []
        file = self.folder / SETTINGS
        with contextlib.suppress(BadSettings, OSError):  # settings that cannot be read: then the command is shorter
            content = settings_in(file, BadSettings)
            env = content.get("env")
            block = env if isinstance(env, Mapping) else {**content, "env_name": env}  # a block: of the meta learner
            name, kwargs = str(block.get("env_name")), block.get("env_kwargs") or {}
            writers = [one for one in content.get("writers") or () if ":" in one]
            while len(modules) < _MOST_MODULES:
                try:
                    check_env(KNOWN.get(name, name), kwargs, file, modules)
                    for one in writers:
                        check_writer(one, file, modules)
                    break
                except UntrustedName as error:
                    modules.append(error.module)
        trust = [f"--trust {shlex.quote(module)}" for module in modules]
        words = " ".join(["train --resume", as_argument(self.folder), *trust])
        return shell_command("parallel-envs", "parallel_envs", words)
