"""Folder of a training run: everything needed to know what was done, and to continue.

runs/spread/
    settings.yaml        every setting, including defaults: can be run again as it is
    run.json             seed, versions of packages, machine, time of the start
    chosen.json          the update mode that "auto" has found to be the quickest, if it has
    metrics.jsonl        a line for each update, or for several
    tensorboard/         the same for TensorBoard
    outcome.json         how the run ended, and its results; absent while it trains, and after a kill
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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from parallel_envs.errors import UntrustedName
from parallel_envs.extras import as_argument, shell_command
from parallel_envs.files import discard, open_to_append, short_name, sweep, write_whole
from parallel_envs.learners.checkpoint import is_checkpoint
from parallel_envs.learners.config import BadSettings, load_settings
from parallel_envs.meta.families import KNOWN
from parallel_envs.threads import ClosedAtExit
from parallel_envs.trust import check_env
from parallel_envs.yaml_files import settings_in

Agent = Hashable
Metrics = Mapping[Agent, Mapping[str, float]]

_log = logging.getLogger(__name__)

SETTINGS, ABOUT, CHOSEN, METRICS = "settings.yaml", "run.json", "chosen.json", "metrics.jsonl"
OUTCOME = "outcome.json"
BOARD, CHECKPOINTS = "tensorboard", "checkpoints"


class BadRun(ValueError):
    """A run cannot be continued as it is. The text says what to do."""


# ---- places -----------------------------------------------------------------------------------------------------


def new_folder_in_runs(env: str, algorithms: Iterable[str], seed: int) -> Path:
    """Make an empty folder for a run and return it: `runs/CartPole-v1_ppo_seed0_20260131-120000`.

    The name consists of env, algorithms (each once, joined by `+`) and seed. Characters that are unusual in file names
    become `-`; of a file or module that contains the env only the last part is used. Runs that begin in the same second
    get a number at the end, so that none takes another's folder.
    """
    path, colon, name = env.rpartition(":")
    whole = f"{Path(path).name.removesuffix('.py')}-{name}" if colon else env
    safe = re.sub(r"[^\w.+-]+", "-", whole).strip("-.") or "env"
    learnt = "+".join(dict.fromkeys(algorithms))
    now = datetime.now().astimezone()
    stem = f"{short_name(safe, 150)}_{re.sub(r'[^0-9A-Za-z_.+-]+', '-', learnt)}_seed{seed}_{now:%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        folder = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count does not end")


def settings_of(folder: str | Path) -> Path:
    """Return the path of a run's settings. FileNotFoundError if there is no run."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        above = [parent for parent in Path(folder).parents[:2] if (parent / SETTINGS).is_file()]
        advice = f" The run that it is part of is {above[0]}." if above else ""
        raise FileNotFoundError(f"{folder} holds no run: there is no file {SETTINGS} in it.{advice}")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, completely or not at all."""
    text = json.dumps(content, indent=2)
    write_whole(path, lambda file: file.write(text.encode()))


def newest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a run, if it has one."""
    found = checkpoints_in(Path(folder))
    return found[-1] if found else None


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, the oldest first."""
    return [path for path in _numbered_in(folder) if is_checkpoint(path)]


def _numbered_in(folder: Path) -> list[Path]:
    """Return everything at the place of a checkpoint."""
    found = (folder / CHECKPOINTS).glob("[0-9]*")
    return sorted((path for path in found if path.name.isdecimal()), key=lambda path: int(path.name))


def newest_whole(folder: Path) -> Path:
    """Return the checkpoint to continue from.

    Raises BadRun if there is anything newer that is no checkpoint; FileNotFoundError if there is no checkpoint.
    """
    newest = newest_checkpoint(folder)
    for path in _numbered_in(folder):
        if not is_checkpoint(path) and (newest is None or int(path.name) > int(newest.name)):
            raise BadRun(f"{path} is not a complete checkpoint: its table is missing. {way_back(folder, path)}")
    if newest is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet: begin the run anew in another folder.")
    return newest


def way_back(folder: Path, bad: Path) -> str:
    """Return advice for a checkpoint that cannot be read."""
    older = [path for path in checkpoints_in(folder) if int(path.name) < int(bad.name)]
    if not older:
        return "There is no older one to go on from: begin the run anew in another folder."
    return f"Remove {bad} to go on from the one before, {older[-1].name}."


# ---- metrics ----------------------------------------------------------------------------------------------------


class MetricsFile:
    """The file `metrics.jsonl` of a run, open for appending. It holds complete lines at any time.

    A line that cannot be written, as on a full disk, waits for the next call: `add` warns, and `sync` raises.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting = b""
        self._has_warned = False
        self._open()

    def _open(self) -> None:
        self._file = open_to_append(self._folder / METRICS)
        self._end = self._file.seek(0, os.SEEK_END)  # end of the last complete line

    def add(self, counts: Mapping[str, Any], agents: Metrics) -> None:
        """Append a line: `counts`, and each agent's metrics. Numbers that are not finite become null."""
        finite = {
            str(agent): {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
            for agent, metrics in agents.items()
        }
        self._waiting += _as_line({**counts, "agents": finite})
        try:
            self._write()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("Lines of %s wait in memory until they can be written: %s", METRICS, str(error))

    def sync(self) -> None:
        """Force all lines to the disk. Raises OSError if that fails; the lines then go on waiting."""
        self._write()
        os.fsync(self._file.fileno())

    def _write(self) -> None:
        """Append all waiting lines, or none."""
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

    def drop_after(self, steps: int) -> None:
        """Remove lines of later steps. Raises BadRun, and changes nothing, if a line is damaged."""
        kept = [line for line in read_metrics(self._folder) if line["steps"] <= steps]
        self._file.close()
        write_whole(self._folder / METRICS, lambda file: file.write(b"".join(map(_as_line, kept))))
        self._open()

    def close(self) -> None:
        """Write waiting lines, if that is possible now, and close the file. May be called again."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._write()
        self._file.close()


def _as_line(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content) + "\n").encode()


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`, without a last line that was cut off by the end of the process.

    Raises BadRun, with the line's number, for a line without metrics.
    """
    path = Path(folder) / METRICS
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


class TensorBoardWriter:
    """Writes a run's metrics for TensorBoard, if it is installed and `wanted`. Nothing is imported before that."""

    def __init__(self, folder: Path, *, wanted: bool = True) -> None:
        self._folder, self._wanted = folder / BOARD, wanted
        self._writer: Any = None
        self._has_failed = False

    def show(self, steps: int, agents: Metrics, totals: Mapping[str, float] = MappingProxyType({})) -> None:
        """Write each agent's metrics after so many steps, and metrics of the whole run (`totals`).

        If that fails, as on a full disk, a warning says so, and nothing is written until `try_again` is called.
        """
        if not self._wanted or self._has_failed:
            return
        try:
            if self._writer is None:
                try:
                    from torch.utils.tensorboard import SummaryWriter
                except ImportError:
                    _log.warning("TensorBoard is not installed: metrics go to %s only.", METRICS)
                    self._wanted = False
                    return
                self._writer = SummaryWriter(str(self._folder), purge_step=steps)  # drops later steps of before
            for agent, metrics in agents.items():
                for name, value in metrics.items():
                    self._writer.add_scalar(f"{name}/{agent}", value, steps)
            for name, value in totals.items():
                self._writer.add_scalar(name, value, steps)
        except OSError as error:
            self._has_failed = True
            _log.warning("TensorBoard has a gap from step %d on: %s. %s has all metrics.", steps, str(error), METRICS)
            self.close()

    def try_again(self) -> None:
        """Write again, into a new file, as there is room on the disk."""
        self._has_failed = False

    def close(self) -> None:
        """Close the file. May be called again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                if not self._has_failed:
                    _log.warning("The last lines for TensorBoard could not be written: %s", str(error))


class MetricMeans:
    """Means of each agent's metrics over many updates: agents with a replay buffer update every few steps.

    If one of the numbers is not finite, their mean is NaN.

    Args:
        every: Steps between two lines; the first update after that makes a line.
        write: Called with the steps at which the line ends, and the means.
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


# ---- other parts ------------------------------------------------------------------------------------------------


class RunLock:
    """Keeps other processes out of a run until it is released or the process ends, if the system has such locks.

    Raises BadRun if another process has the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        try:
            import fcntl
        except ImportError:
            return  # the system has no such locks
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise BadRun(f"Another process is using the run in {folder}. End it first, or begin another run.") from None
        except OSError:  # the file system has no such locks
            self.release()

    def release(self) -> None:
        """Release the lock. May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class AutoMode:
    """Note in a run's folder: the update mode that `update_mode: auto` has chosen, and the first checkpoint with it.

    The modes give the same numbers up to rounding only, and the quickest mode depends on the machine and the moment. A
    run that is resumed at a checkpoint therefore begins with the mode that it had there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CHOSEN
        self.mode: str | None = None
        """The chosen mode; None: none yet."""

    def go_back(self, steps: int) -> None:
        """Read the note, for a run that continues at so many steps. A later choice is removed."""
        if not self._path.exists():
            return
        mode = since = None
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            content = json.loads(self._path.read_bytes())
            mode, since = content["update_mode"], content["since_steps"]
        if not isinstance(mode, str) or not isinstance(since, int):
            raise BadRun(
                f'{self._path} does not say which update mode was chosen, and when. Remove it to have "auto" choose '
                "anew."
            )
        if since > steps:
            self._path.unlink()
        else:
            self.mode = mode

    def note(self, mode: str | None, steps: int) -> None:
        """Write the mode, before a checkpoint at so many steps. A note of the same mode keeps its steps."""
        if mode is not None and mode != self.mode:
            write_json(self._path, {"update_mode": mode, "since_steps": steps})
            self.mode = mode


_PACKAGES = [
    "numpy",
    "gymnasium",
    "pettingzoo",
    "torch",
    "safetensors",
    "cpprb",
    "mpe2",
    "lbforaging",
    "mujoco",
    "ale-py",
]


def run_metadata() -> dict[str, Any]:
    """Return versions and machine, as JSON: results may depend on them."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {"parallel-envs": sys.modules["parallel_envs"].__version__, **versions},
    }


# ---- the run ----------------------------------------------------------------------------------------------------

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_MOST_MISSED = 2
"""Consecutive checkpoints that a run goes without, if the disk is full. The next failure ends the run: by default that
is after three tenths of the run, which would be lost if the machine failed."""
_MOST_MODULES = 5
"""Modules that one environment may need to have trusted: it is defined in one, and imported from another."""
_TOTALS = ("restarts",)
"""Counts of a line of metrics that TensorBoard shows as well."""


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written, and the run has ended. The text says why, and which one is kept."""


class Run(ClosedAtExit):
    """A run's folder. Made by `Run.create` or, to continue a run, by `Run.resume`; a context manager.

    with Run.create("runs/spread", settings.described(), seed=settings.seed) as run:
        run.log({"update": 1, "steps": 1024}, {"agent_0": {"loss": 0.3}})
        run.save(1024, learners.save)
    """

    def __init__(self, folder: Path, *, keep_checkpoints: int = 3, tensorboard: bool = True) -> None:
        self.folder = folder
        self._keep = keep_checkpoints
        self._num_missed = 0  # checkpoints since the last one that was saved
        self._auto, self._board = AutoMode(folder), TensorBoardWriter(folder, wanted=tensorboard)
        self._lock = RunLock(folder)
        try:
            self._metrics = MetricsFile(folder)
        except BaseException:
            self._lock.release()
            raise

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: str | Path, settings: Mapping[str, Any], *, seed: int, **options: Any) -> Self:
        """Begin a run in a new folder. FileExistsError if the folder is not empty."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError(
                f"{folder} holds something already. Choose another folder, or go on with the run in it (--resume)."
            )
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, **options)
        with run._closed_on_error():
            run.remember(settings)
            began = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(folder / ABOUT, {"seed": seed, "began": began, **run_metadata()})
        return run

    @classmethod
    def resume(cls, folder: str | Path, **options: Any) -> tuple[Self, Path]:
        """Return a run and its newest checkpoint, to continue from there.

        Everything newer than the checkpoint is removed: it will be done again. Raises BadRun if another process has
        the run, or if anything newer is no checkpoint; FileNotFoundError if there is no run or no checkpoint.
        """
        settings_of(folder)
        run = cls(Path(folder), **options)
        with run._closed_on_error():
            newest = newest_whole(run.folder)
            steps = int(newest.name)
            run._metrics.drop_after(steps)
            run._auto.go_back(steps)
            (run.folder / OUTCOME).unlink(missing_ok=True)
            sweep(run.folder / CHECKPOINTS)
        return run, newest

    @property
    def chosen(self) -> str | None:
        """The update mode that "auto" had chosen by the checkpoint that the run continues from; None: none yet."""
        return self._auto.mode

    def close(self) -> None:
        """Close all files. Calling it twice does nothing."""
        self._metrics.close()
        self._board.close()
        self._lock.release()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def remember(self, settings: Mapping[str, Any]) -> None:
        """Write the settings with which the run continues, now and when it is resumed."""
        import yaml

        text = yaml.safe_dump(dict(settings), sort_keys=False)
        write_whole(self.folder / SETTINGS, lambda file: file.write(text.encode()))

    def log(self, counts: Mapping[str, Any], agents: Metrics) -> None:
        """Write a line of metrics: `counts` (with `update` and `steps`), and each agent's metrics.

        Numbers that are not finite become null.
        """
        self._metrics.add(counts, agents)
        totals = {name: float(counts[name]) for name in _TOTALS if name in counts}
        self._board.show(int(counts["steps"]), agents, totals)

    def save(self, steps: int, save: Callable[[Path], Any], chosen: str | None = None) -> Path:
        """Write a checkpoint, completely or not at all, remove those that are too old, and return its folder.

        Raises OSError if it cannot be written. Everything that was there before then stays.

        Args:
            steps: Number of steps so far.
            save: Writes a checkpoint into a folder, as `IndependentLearners.save` does.
            chosen: The update mode that "auto" has chosen by now, if it has.
        """
        self._metrics.sync()  # a run that is resumed from this checkpoint needs the lines up to it
        self._auto.note(chosen, steps)  # first: a note without its checkpoint is dropped, and measured again
        folder = self.folder / CHECKPOINTS / f"{steps:09}"
        save(folder)
        self._num_missed = 0
        self._board.try_again()
        try:
            for old in checkpoints_in(self.folder)[: -self._keep]:
                discard(old)
        except OSError as error:  # they are removed when the next one is saved
            _log.warning("Old checkpoints in %s could not be removed: %s", self.folder, str(error))
        return folder

    def save_if_possible(
        self, steps: int, save: Callable[[Path], Any], chosen: str | None = None, *, is_last: bool = False
    ) -> Path | None:
        """Save a checkpoint as `save` does; on a full disk the run may go on without it.

        There may be room again when the next one is due, so a run does without two in a row, with a warning for each.

        Args:
            steps: As for `save`.
            save: As for `save`.
            chosen: As for `save`.
            is_last: Whether this is the run's last checkpoint.

        Returns:
            Folder of the checkpoint. None: there is no room for it.

        Raises:
            CheckpointNotSaved: There was no room for the last one, or for the third in a row, or the disk reported
                another error than that it is full.
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

    # ---- how to continue --------------------------------------------------------------------------------------------

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
        """Return the command that continues the run, ready to copy.

        It has `--trust MODULE` for each module (or file) of the run's environment that a file alone may not name.
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
        trust = [f"--trust {shlex.quote(module)}" for module in modules]
        words = " ".join(["train --resume", as_argument(self.folder), *trust])
        return shell_command("parallel-envs", "parallel_envs", words)

    def _env(self) -> tuple[str, Mapping[str, Any]]:
        """Return the name of the run's environment, or of its family of tasks, and its keyword arguments."""
        content = settings_in(settings_of(self.folder), BadSettings)
        block = content.get("env")
        if isinstance(block, Mapping):  # settings of the meta learner
            name = str(block.get("env_name"))
            return KNOWN.get(name, name), block.get("env_kwargs") or {}
        stored = load_settings(settings_of(self.folder))
        return stored.env, stored.env_kwargs
