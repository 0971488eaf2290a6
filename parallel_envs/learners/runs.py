"""The folder of a training run: all that is needed to know what was done, and to go on.

One process at a time is at a run.

runs/spread/
    settings.yaml        every setting, defaults as well: can be run again as it is
    run.json             seed, versions of packages, machine, when it began
    metrics.jsonl        a line for each update, or for each few
    tensorboard/         the same for TensorBoard
    checkpoints/000051200/  by number of steps; the newest few
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import platform
import shutil
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from parallel_envs.closing import ClosedAtExit
from parallel_envs.learners.checkpoints import is_checkpoint
from parallel_envs.rollouts.archives import write_whole

Agent = Hashable

_log = logging.getLogger(__name__)

_SETTINGS, _ABOUT, _METRICS, _CHECKPOINTS, _BOARD = (
    "settings.yaml",
    "run.json",
    "metrics.jsonl",
    "checkpoints",
    "tensorboard",
)
_PACKAGES = (
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
)


class BadRun(ValueError):
    """A run cannot be gone on with as it stands. The text says what to do."""


class Run(ClosedAtExit):
    """A run's folder. Made by `Run.create` or, to go on with one, by `Run.resume`; a context manager.

    with Run.create("runs/spread", settings.described(), seed=settings.seed) as run:
        run.log({"update": 1, "steps": 1024}, {"agent_0": {"loss": 0.3}})
        run.save(1024, learners.save)
    """

    def __init__(self, folder: Path, *, keep_checkpoints: int = 3, tensorboard: bool = True) -> None:
        self.folder = folder
        self._keep, self._wants_board = keep_checkpoints, tensorboard
        self._board: Any = None
        self._claim = _claimed(folder)
        self._metrics: Any = None
        with self._or_closed():
            self._metrics = (folder / _METRICS).open("a", encoding="utf-8")

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
            about = {"seed": seed, "began": datetime.now(UTC).isoformat(timespec="seconds"), **surroundings()}
            write_whole(folder / _ABOUT, lambda file: file.write(json.dumps(about, indent=2).encode()))
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
            newest = run._go_back()
        return run, newest

    def _go_back(self) -> Path:
        """Have nothing be there that is newer than the newest checkpoint, which is returned."""
        newest = newest_checkpoint(self.folder)
        for path in _numbered(self.folder):
            if not is_checkpoint(path) and (newest is None or int(path.name) > int(newest.name)):
                raise BadRun(f"{path} is no whole checkpoint, its table is lost. {self.way_back(path)}")
        if newest is None:
            raise FileNotFoundError(f"{self.folder} holds no checkpoint yet: begin the run anew in another folder.")
        self._metrics.close()
        _drop_after(self.folder / _METRICS, steps=int(newest.name))
        self._metrics = (self.folder / _METRICS).open("a", encoding="utf-8")
        for left_over in newest.parent.glob(".*"):  # by a process that was killed while it wrote or removed it
            shutil.rmtree(left_over, ignore_errors=True)
        return newest

    def way_back(self, bad: Path) -> str:
        """What to do about a checkpoint that cannot be read."""
        older = [path for path in _checkpoints(self.folder) if int(path.name) < int(bad.name)]
        if not older:
            return "There is no older one to go on from: begin the run anew in another folder."
        return f"Remove {bad} to go on from the one before, {older[-1].name}."

    def close(self) -> None:
        """Close what is open. Calling it twice does nothing."""
        if self._metrics is not None:
            self._metrics.close()
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    # ---- what is written --------------------------------------------------------------------------------------------

    def remember(self, settings: Mapping[str, Any]) -> None:
        """With these settings the run goes on, and so it will when it is resumed."""
        write_settings(self.folder / _SETTINGS, settings)

    def log(self, counts: Mapping[str, Any], agents: Mapping[Agent, Mapping[str, float]]) -> None:
        """One line: `counts` (with `update` and `steps`), and each agent's metrics. What is not finite becomes null."""
        line = {**counts, "agents": {str(agent): _finite(metrics) for agent, metrics in agents.items()}}
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()
        self._show_on_board(int(counts["steps"]), agents)

    def _show_on_board(self, steps: int, agents: Mapping[Agent, Mapping[str, float]]) -> None:
        if self._wants_board and self._board is None:
            self._board = _open_board(self.folder / _BOARD, steps)
            self._wants_board = self._board is not None
        if self._board is not None:
            for agent, metrics in agents.items():
                for name, value in metrics.items():
                    self._board.add_scalar(f"{name}/{agent}", value, steps)

    def save(self, steps: int, save: Callable[[Path], Any]) -> Path:
        """Have a checkpoint written, whole or not at all, and forget those that are too old. Returns where it is.

        Args:
            steps: How far the run is.
            save: Writes a checkpoint into a folder, as `IndependentLearners.save` does.
        """
        os.fsync(self._metrics.fileno())  # whoever resumes from it finds the lines up to it
        folder = self.folder / _CHECKPOINTS / f"{steps:09}"
        save(folder)
        for old in _checkpoints(self.folder)[: -self._keep]:
            _forget(old)
        return folder


# ---- reading a run ------------------------------------------------------------------------------------------------


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = _checkpoints(Path(folder))
    return found[-1] if found else None


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`. A line that was cut off by the end of the process is left out."""
    return list(map(json.loads, _whole_lines(Path(folder) / _METRICS)))


def settings_of(folder: str | Path) -> Path:
    """Where the settings of a run are. FileNotFoundError if there is no run."""
    path = Path(folder) / _SETTINGS
    if not path.is_file():
        above = [parent for parent in Path(folder).parents[:2] if (parent / _SETTINGS).is_file()]
        hint = f" The run that it is part of is {above[0]}." if above else ""
        raise FileNotFoundError(f"{folder} holds no run: there is no file {_SETTINGS} in it.{hint}")
    return path


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(dict(settings), sort_keys=False)
    write_whole(path, lambda file: file.write(text.encode()))


def surroundings() -> dict[str, Any]:
    """What a result may depend on besides the settings: versions, machine."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {"parallel-envs": sys.modules["parallel_envs"].__version__, **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _checkpoints(folder: Path) -> list[Path]:
    """The oldest first."""
    return [path for path in _numbered(folder) if is_checkpoint(path)]


def _numbered(folder: Path) -> list[Path]:
    """All that stands in the place of a checkpoint."""
    found = (folder / _CHECKPOINTS).glob("[0-9]*")
    return sorted((path for path in found if path.name.isdecimal()), key=lambda path: int(path.name))


def _claimed(folder: Path) -> int | None:
    """A descriptor whose lock keeps all others from this folder until it is closed or the process ends.

    None where the file system has no locks.
    """
    claim = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(claim)
        raise BadRun(f"A process is at the run in {folder} already. End it first, or begin a run of its own.") from None
    except OSError:
        os.close(claim)
        return None
    return claim


def _forget(checkpoint: Path) -> None:
    """Under a name that is no checkpoint's first: what is half removed must not be taken for one."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _drop_after(metrics: Path, steps: int) -> None:
    kept = [line for number, line in enumerate(_whole_lines(metrics), 1) if _steps_of(line, number, metrics) <= steps]
    write_whole(metrics, lambda file: file.write("".join(kept).encode()))


def _steps_of(line: str, number: int, metrics: Path) -> int:
    try:
        return int(json.loads(line)["steps"])
    except (ValueError, KeyError, TypeError):
        raise BadRun(
            f"Line {number} of {metrics} is no line of metrics: {line.strip()[:80]!r}. Remove it, and resume again."
        ) from None


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def _open_board(folder: Path, steps: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _log.warning("TensorBoard is not installed: metrics go to %s only.", _METRICS)
        return None
    return SummaryWriter(str(folder), purge_step=steps)
