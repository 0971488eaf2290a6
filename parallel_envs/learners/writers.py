"""Writers: where the metrics of a run go besides `metrics.jsonl`.

    line of metrics ──▶ metrics.jsonl                     at once, always complete
                    ├─▶ TensorBoardWriter                 at once, into the run's folder
                    └─▶ WriterThread ──▶ wandb, mlflow, trackio, a `Writer` of your own

A writer may be slow, wait for a network or raise: it has a thread of its own, so training neither waits for it nor ends
with it. The first failure of a writer is logged by its name. `close` waits for all writers together, `CLOSE_SECONDS` at
most.

`writers.json` in the run's folder has, for each writer, the id of the run in its store and the newest step that was
given to it, recorded before the line is written. A run that is resumed
- goes on in the same W&B or MLflow run,
- first writes the lines of `metrics.jsonl` that the writer has not had,
- writes no line twice, also if training repeats steps after a crash,
- lacks at most one line of each writer: that which the writer had in hand when the process was killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parallel_envs.checks import hint
from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.extras import explained, require
from parallel_envs.files import write_json
from parallel_envs.learners.config import BadSettings, MlflowBlock, TrackioBlock, WandbBlock, WritersBlock

Status = Literal["finished", "interrupted", "failed"]
"""How a run ended: as its settings say, by Ctrl-C, or by an error."""

BOARD, STATES = "tensorboard", "writers.json"
CLOSE_SECONDS = 30.0
"""Seconds that all writers together have at the end of a run."""

_BOARD_SECONDS = 5.0  # for TensorBoard to close its file
_QUIET_SECONDS = 3.0  # of them, before the user is told what is waited for
_PROJECT = "parallel-envs"
_MOST_WAITING = 10_000  # lines that wait for one writer; further lines are dropped
_TOTALS = ("restarts",)
"""Counts of a line of metrics that writers get, besides the metrics of each agent."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run, as a writer gets to know it."""

    folder: Path
    name: str
    """Name of the run's folder."""
    settings: Mapping[str, Any]
    """All settings of the run, as in settings.yaml, except `writers`."""
    run_id: str | None = None
    """Text that `begin` returned when the run was begun; None for a new run."""


class Writer:
    """Interface of a writer. Only `write` must be defined.

    class Csv(Writer):
        def __init__(self, path="metrics.csv"):
            self.file = open(path, "a")

        def write(self, steps, numbers):
            print(steps, numbers.get("return/agent_0"), sep=",", file=self.file, flush=True)

    In settings: `writers: [my_writers:Csv]`, or `writers: {my_writers:Csv: {path: curve.csv}}`; in Python:
    `begin("settings.yaml", writers=[Csv()])` and `Learner(...).train(writers=[Csv()])`.

    Threads: all methods are called by one thread, one after another.
    """

    def begin(self, run: RunFacts) -> str | None:
        """Prepare for the run. Return a text that the writer needs to go on if the run is resumed (`run.run_id`)."""
        return None

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Write a line of metrics: numbers by name (`return/agent_0`) after so many steps, which only grow."""
        raise NotImplementedError

    def close(self, status: Status) -> None:
        """End the run. Nothing is written after it."""


def numbers_of(counts: Mapping[str, Any], agents: Mapping[Any, Mapping[str, float | None]]) -> dict[str, float]:
    """Return the numbers of a line of metrics by name: `loss/agent_0`, `restarts`, `evaluation/total`."""
    numbers = {
        f"{name}/{agent}": float(value)
        for agent, own in agents.items()
        for name, value in own.items()
        if value is not None
    }
    numbers |= {name: float(counts[name]) for name in _TOTALS if name in counts}
    if isinstance(evaluation := counts.get("evaluation"), Mapping):  # of a meta-RL run
        numbers["evaluation/total"] = float(evaluation["total"])
    return numbers


# ---- a writer in its thread ------------------------------------------------------------------------------------------


class WriterThread:
    """Thread of one writer. `add` returns at once, whatever the writer does."""

    def __init__(self, name: str, writer: Writer, run: RunFacts, states: WriterStates) -> None:
        self.name, self._writer, self._run, self._states = name, writer, run, states
        self._queue: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._num_given = self._num_done = 0  # lines
        self._steps = states.steps(name)  # newest step that the writer had when the run was resumed
        self._status: Status = "failed"
        self._is_over = self._has_failed = self._has_dropped = False
        self._thread = threading.Thread(target=self._work, name=f"writer-{name}", daemon=True)
        self._thread.start()

    def add(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Hand a line of metrics to the writer, unless the writer has had it or is over."""
        if self._is_over or steps <= self._steps:
            return
        if self._queue.qsize() < _MOST_WAITING:
            self._num_given += 1
            self._queue.put((steps, numbers))
        elif not self._has_dropped:
            self._has_dropped = True
            _log.warning("The writer %s is %d lines behind, and misses lines from step %d on.%s", self.name,
                         _MOST_WAITING, steps, _ALL)  # fmt: skip

    def end(self, status: Status) -> None:
        """Have the writer end after the lines that wait. Returns at once: see `wait`."""
        self._status = status
        self._queue.put(None)

    def wait(self, deadline: float) -> None:
        """Wait for the end of the writer until a time of `time.monotonic`, then leave it behind with a warning."""
        left = max(deadline - time.monotonic(), 0.0)
        self._thread.join(min(left, _QUIET_SECONDS))
        if self._thread.is_alive() and left > _QUIET_SECONDS:
            _log.warning("Waiting for the writer %s, for %.0f seconds at most.", self.name, left)
            self._thread.join(left - _QUIET_SECONDS)
        if self._thread.is_alive():
            text = "The writer %s has not ended within %.0f seconds and is left behind with %d lines.%s"
            _log.warning(text, self.name, CLOSE_SECONDS, self._num_given - self._num_done, _ALL)

    def _work(self) -> None:
        """Begin, write lines, and close: the life of the thread."""
        try:
            run_id = self._writer.begin(self._run)
            if not (run_id is None or isinstance(run_id, str)):
                raise TypeError(f"`begin` returned {run_id!r}. Return a text, such as str(...), or None")
            self._states.record(self.name, run_id=run_id)
        except BaseException as error:  # noqa: BLE001  # code of other packages, which must not end the run
            self._is_over = True
            _log.warning("The writer %s could not begin: %s.%s Resume the run to write them again.", self.name,
                         _told(error), _ALL)  # fmt: skip
            return
        while (line := self._queue.get()) is not None:
            steps, numbers = line
            try:
                self._states.record(self.name, steps=steps)  # first: rather a gap than a line twice
                self._writer.write(steps, numbers)
            except BaseException as error:  # noqa: BLE001
                if not self._has_failed:
                    self._has_failed = True
                    text = "The writer %s failed at step %d: %s.%s Further failures are not shown."
                    _log.warning(text, self.name, steps, _told(error), _ALL)
            self._num_done += 1
        try:
            self._writer.close(self._status)
        except BaseException as error:  # noqa: BLE001
            _log.warning("The writer %s failed at its end: %s.%s", self.name, _told(error), _ALL)


_ALL = " metrics.jsonl has all metrics."


def _told(error: BaseException) -> str:
    """Return an error as one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300].rstrip('.')}"


class WriterStates:
    """The file `writers.json` of a run. Threads may record at the same time."""

    def __init__(self, folder: Path) -> None:
        self._path, self._lock, self._has_failed = folder / STATES, threading.Lock(), False
        self._states: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):  # without it, writers begin anew
            found = json.loads(self._path.read_bytes())
            self._states = {name: own for name, own in found.items() if isinstance(own, dict)}

    def run_id(self, name: str) -> str | None:
        found = self._states.get(name, {}).get("run_id")
        return found if isinstance(found, str) else None

    def steps(self, name: str) -> int:
        found = self._states.get(name, {}).get("steps")
        return found if isinstance(found, int) else -1

    def record(self, name: str, **facts: Any) -> None:
        """Write facts about a writer into the file. If that fails, a warning says so the first time."""
        with self._lock:
            self._states.setdefault(name, {}).update(facts)
            try:
                write_json(self._path, self._states)
            except OSError as error:
                if not self._has_failed:
                    self._has_failed = True
                    _log.warning("%s could not be written: %s", STATES, str(error))


class Writers:
    """All writers of a run that is being trained, each in its thread."""

    def __init__(
        self,
        writers: Mapping[str, Writer],
        folder: Path,
        settings: Mapping[str, Any],
        lines: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Begin. `lines` are those of `metrics.jsonl` so far: a writer gets those that it has not had."""
        states, name = WriterStates(folder), folder.resolve().name
        settings = {key: value for key, value in settings.items() if key != "writers"}  # an address may hold a password
        self._threads = []
        for own, writer in writers.items():
            facts = RunFacts(folder=folder, name=name, settings=deepcopy(settings), run_id=states.run_id(own))
            self._threads.append(WriterThread(own, writer, facts, states))
        for line in lines if self._threads else ():
            self.write(line["steps"], numbers_of(line, line.get("agents") or {}))

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        for one in self._threads:
            one.add(steps, dict(numbers))

    def close(self, status: Status) -> None:
        """End all writers, and wait for them. May be called again."""
        threads, self._threads = self._threads, []
        for one in threads:
            one.end(status)
        deadline = time.monotonic() + CLOSE_SECONDS
        for one in threads:
            one.wait(deadline)


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


class TensorBoardWriter:
    """Writes a run's metrics for TensorBoard, if it is installed and `wanted`. Nothing is imported before that."""

    def __init__(self, folder: Path, *, wanted: bool = True) -> None:
        self._folder, self._wanted = folder / BOARD, wanted
        self._writer: Any = None
        self.has_failed = False
        """True: nothing is written, as the disk may be full. May be set to False once there is room."""

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Write numbers by name after so many steps. If that fails, as on a full disk, a warning says so."""
        if not self._wanted or self.has_failed:
            return
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self._folder), purge_step=steps)  # drops later steps of before
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, steps)
        except ImportError:
            _log.warning("TensorBoard is not installed: metrics go to metrics.jsonl only.")
            self._wanted = False
        except OSError as error:
            self.has_failed = True
            _log.warning("TensorBoard has a gap from step %d on: %s.%s", steps, str(error), _ALL)
            self.close()

    def close(self) -> None:
        """Close the file. May be called again. An interrupt at a bad moment leaves TensorBoard's own thread waiting for
        ever, so this waits for a thread that waits for that one, and not for long.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return

        def close() -> None:
            with contextlib.suppress(OSError):  # its last lines found no room
                writer.close()

        closing = threading.Thread(target=close, name="close TensorBoard", daemon=True)
        closing.start()
        closing.join(_BOARD_SECONDS)


# ---- W&B, MLflow, Trackio --------------------------------------------------------------------------------------------


class WandbWriter(Writer):
    """Writes to Weights & Biases. An offline run is in the folder `wandb` of the run's folder."""

    def __init__(self, settings: WandbBlock) -> None:
        require("The writer wandb", "wandb")
        import wandb

        self._settings = settings
        self._run: Any = None
        mode = settings.mode or wandb.setup().settings.mode  # which knows WANDB_MODE and `wandb offline`
        if mode == "online" and not wandb.login(prompt=False, verify=False):  # a thread must not ask on the terminal
            raise BadSettings(
                "The writer wandb finds no API key. Run `wandb login` or set WANDB_API_KEY, or keep the metrics in the "
                "run's folder until `wandb sync`: writers.wandb.mode=offline."
            )

    def begin(self, run: RunFacts) -> str | None:
        import wandb

        wanted = self._settings
        self._run = wandb.init(
            project=wanted.project or os.environ.get("WANDB_PROJECT") or _PROJECT,
            name=wanted.name or run.name,
            entity=wanted.entity,
            group=wanted.group,
            tags=list(wanted.tags) or None,
            mode=wanted.mode,
            dir=str(run.folder),
            config=dict(run.settings),
            id=run.run_id,
            resume="allow" if run.run_id else None,
            allow_val_change=True,  # a resumed run may have more steps
            reinit="create_new",  # leaves a run alone that the user's program has begun
            # W&B's own limits are shorter than ours: Python waits for W&B again when it ends.
            settings=wandb.Settings(
                console="off", silent=True, init_timeout=CLOSE_SECONDS * 0.8, finish_timeout=CLOSE_SECONDS * 0.8
            ),
        )
        return str(self._run.id)

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=steps)

    def close(self, status: Status) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


_MLFLOW_STATUS: dict[Status, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 6000  # of one request of MLflow's


class MlflowWriter(Writer):
    """Writes to an MLflow server or a local store. Settings become parameters by their names with dots."""

    def __init__(self, settings: MlflowBlock) -> None:
        require("The writer mlflow", "mlflow")
        importlib.import_module("mlflow.tracking")  # takes a second, so not beside the training
        self._settings, self._id = settings, ""
        self._client: Any = None

    def begin(self, run: RunFacts) -> str | None:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        wanted = self._settings
        client = self._client = MlflowClient(tracking_uri=wanted.tracking_uri)
        if run.run_id is not None:
            client.update_run(run.run_id, status="RUNNING")
            self._id = run.run_id
            return run.run_id
        experiment = wanted.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT
        try:
            place = client.create_experiment(experiment)
        except MlflowException:  # it exists already
            place = client.get_experiment_by_name(experiment).experiment_id
        self._id = client.create_run(place, run_name=wanted.name or run.name, tags=dict(wanted.tags)).info.run_id
        params = [Param(name, text[:_LONGEST_PARAM]) for name, text in _leaves(run.settings)]
        for first in range(0, len(params), _MOST_PARAMS):
            client.log_batch(self._id, params=params[first : first + _MOST_PARAMS])
        return self._id

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_plain(name), value, now, steps) for name, value in numbers.items()]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS])

    def close(self, status: Status) -> None:
        self._client.set_terminated(self._id, _MLFLOW_STATUS[status])


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield all settings as texts, by names with dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield _plain(f"{prefix}{key}"), str(value)


def _plain(name: str) -> str:
    """Return a name with the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)


class TrackioWriter(Writer):
    """Writes to Trackio, on this machine or in a Space."""

    def __init__(self, settings: TrackioBlock) -> None:
        require("The writer trackio", "trackio")
        self._settings = settings
        self._run: Any = None
        self._package: Any = importlib.import_module("trackio")
        for name in ("trackio", "trackio.run", "trackio.utils"):  # stdout belongs to the user's program
            vars(importlib.import_module(name))["print"] = lambda *words, **_: _log.info(" ".join(map(str, words)))

    def begin(self, run: RunFacts) -> str | None:
        wanted = self._settings
        name = run.run_id or wanted.name or run.name
        self._run = self._package.init(
            project=wanted.project,
            name=name,
            group=wanted.group,
            space_id=wanted.space_id,
            config=dict(run.settings),
            resume="must" if run.run_id else "never",
            embed=False,
        )
        return name

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=steps)

    def close(self, status: Status) -> None:
        self._run.finish()


# ---- from settings to writers ----------------------------------------------------------------------------------------

_KINDS: dict[str, Any] = {"wandb": WandbWriter, "mlflow": MlflowWriter, "trackio": TrackioWriter}


def make_writers(wanted: WritersBlock, own: Sequence[Writer] = ()) -> dict[str, Writer]:
    """Return the writers of the settings and those that the user's program gives, by name. None of them has begun.

    Raises MissingExtra if a package is not installed, and BadSettings for a class that cannot be made.
    """
    if wanted.tensorboard is not None:
        require("The writer tensorboard", "tensorboard")
    made: dict[str, Writer] = {}
    for name, kind in _KINDS.items():
        if (block := getattr(wanted, name)) is not None:
            made[name] = kind(block)
    for path, kwargs in wanted.own.items():
        made[path] = _made_by_name(path, kwargs)
    for one in own:
        names = (type(one).__name__, *(f"{type(one).__name__}-{number}" for number in range(2, len(own) + 1)))
        made[next(name for name in names if name not in made)] = one
    for name, one in made.items():
        if missing := [word for word in ("begin", "write", "close") if not callable(getattr(one, word, None))]:
            raise BadSettings(
                f"The writer {name} is {one!r}, which has no method {' and no '.join(missing)}. Make it a subclass of "
                "parallel_envs.learners.Writer."
            )
    return made


def _made_by_name(path: str, kwargs: Mapping[str, Any]) -> Writer:
    module, _, name = path.rpartition(":")
    try:
        if is_env_file(path):
            kind = FileFactory.of(path).load()
        else:
            with explained(f"The writer {path!r}"):
                found = importlib.import_module(module)
            if not hasattr(found, name):
                raise BadSettings(f"The module {module!r} has no attribute {name!r}.{hint(name, dir(found))}")
            kind = getattr(found, name)
        made: Writer = kind(**kwargs)
    except BadSettings:
        raise
    except Exception as error:
        from parallel_envs.errors import MissingExtra

        if isinstance(error, MissingExtra):
            raise
        raise BadSettings(f"The writer {path!r} cannot be made: {_told(error)}.") from error
    return made
