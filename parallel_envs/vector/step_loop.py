"""`StepLoop`: steps and resets the envs of one worker, with their tasks.

Actions come from shared memory. Observations, rewards, flags and numeric infos go to shared memory; everything that
does not fit there is sent by pipe, as a `PipedReply`. Autoreset follows Gymnasium's three modes. If an env raises, the
error is recorded and the other envs go on.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
import struct
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import Failure, reraise_ctrl_c
from parallel_envs.engine.interrupts import forked, leave_if_forked
from parallel_envs.engine.worker import Host
from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, TaskWay, takes
from parallel_envs.trace import CALL, FAILED_STEP, RESET, STEP, SpanBuffer
from parallel_envs.vector.env_states import EnvState, EpisodeState, layer_names, load_env
from parallel_envs.vector.infos import EMPTY, PICKLED, Info, InfoWriter, Schema
from parallel_envs.vector.shared_arrays import (
    AUTORESET_SECONDS,
    MESSAGE_STEP_SECONDS,
    NOT_STEPPED,
    RESET_SECONDS,
    ROW,
    TASK_OFFSET,
    ActionReader,
    ObservationWriter,
    SharedArrays,
    as_float,
    cells,
    pack_row,
    snapshot,
)

AnyEnv = gymnasium.Env[Any, Any]

TaskSetter = Callable[[Any, Any], None]


class _Unsaid(enum.Enum):
    UNSAID = "unsaid"


UNSAID = _Unsaid.UNSAID
"""Stands for a task that was not given. The env then plays a task that was set before, else the next task of the
source, else the same task again.
"""

NO_TASK = -(1 << 63)
"""Stands for the number of a task, in the row of an env that has no task."""

_task_cells = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The function that gives a task to an env, the source of tasks, and whether tasks are in use already."""

    setter: TaskSetter | None = None
    source: TaskSource | None = None
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The arguments of the reset of one env. `restarted`: an earlier attempt failed, in a worker or env since replaced.
    `task` is a `Task`, `KEEP`, `RESAMPLE` or `UNSAID`. With a `state` (and a function, if `load_env` does not load it)
    the env is not reset, but goes on from there.
    """

    env: int
    seed: int | None = None
    options: dict[str, Any] | None = None
    task: Any = UNSAID
    restarted: bool = False
    state: tuple[EnvState, Callable[[Any, Any], None] | None] | None = None


@dataclass(slots=True)
class PipedReply:
    """The parts of a reply that do not fit in shared memory, by env. Most steps have none."""

    schemas: list[Schema] = field(default_factory=list)
    infos: dict[int, Info] = field(default_factory=dict)
    leaves: dict[int, list[Any]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.schemas or self.infos or self.leaves or self.failures)

    def add(self, other: PipedReply) -> None:
        """Add the parts of another reply."""
        self.schemas += other.schemas
        self.infos |= other.infos
        self.leaves |= other.leaves
        self.failures |= other.failures


# ---- tasks -----------------------------------------------------------------------------------------------------------


class WorkerTasks:
    """The task and the episode number of each env of a worker.

    Attributes:
        held: The task that each env has now.
        next: By env, its task, or `RESAMPLE`, for its next episode and those after it.
    """

    def __init__(self, envs: Sequence[Any], first: int, arrays: SharedArrays, settings: TaskSettings) -> None:
        self._envs, self._first = envs, first
        self._setter = settings.setter
        self.source = copy.deepcopy(settings.source)
        self._rows = cells(arrays.rows.view(np.uint8))
        self.held: list[Task | None] = [None] * len(envs)
        self.next: dict[int, Any] = {}
        self._ways: dict[int, tuple[Any, TaskWay]] = {}

    def begin(self, local: int, choice: Any) -> dict[str, Any]:
        """Begin an episode with the task of `choice`: a `Task`, `KEEP`, `RESAMPLE` or `UNSAID`. Returns the options to
        add to the reset of the env. The env gets a copy of the task, so the next episode begins with the task as it was
        given, whatever the env does to the copy.
        """
        _, before = self.marks(local)
        task = self._chosen(local, choice, before + 1)
        added: dict[str, Any] = {}
        if task is not None:
            env, known = self._envs[local], self._ways.get(local)
            try:
                if known is None or known[0] is not env:  # the first task of this env, which may have been replaced
                    known = self._ways[local] = env, TaskWay.of(env, self._setter)
                added = known[1].apply(env, snapshot(task.value), self._setter)
            except Exception as error:
                error.add_note(f"This is what it said to task {task.id}: {task.value!r}")
                raise
        self.held[local] = task
        self.write_marks(local, NO_TASK if task is None else task.id, before + 1)
        return added

    def marks(self, local: int) -> tuple[int, int]:
        """Return the number of the task and the number of the episode of an env."""
        row = (self._first + local) * ROW.itemsize
        number, episode = _task_cells.unpack_from(self._rows, row + TASK_OFFSET)
        return number, episode

    def write_marks(self, local: int, task: int, episode: int) -> None:
        """Write the number of the task and the number of the episode of an env into its row, for the caller."""
        _task_cells.pack_into(self._rows, (self._first + local) * ROW.itemsize + TASK_OFFSET, task, episode)

    def _chosen(self, local: int, choice: Any, episode: int) -> Task | None:
        """Return the task of the episode that begins."""
        if choice is UNSAID and not self.next and self.source is not None:  # as nearly every episode begins
            return self.source.task_for(self._first + local, episode)
        assigned = self.next.pop(local, UNSAID)
        if choice is UNSAID and assigned is UNSAID:
            choice = KEEP if self.source is None else RESAMPLE
        elif choice is UNSAID or (choice is KEEP and assigned is not RESAMPLE):
            choice = KEEP if assigned is UNSAID else assigned
        if isinstance(choice, Task):
            return Task(snapshot(choice.value), choice.id)
        if choice is RESAMPLE and self.source is not None:
            return self.source.task_for(self._first + local, episode)
        return self.held[local]


class WatchedOptions(dict[str, Any]):
    """Reset options that record whether the env has read the task in them. A copy counts as reading. Most envs accept
    options and ignore the keys they do not know. A task given to such an env would change nothing, and the user would
    not notice: see `warn_unseen`.
    """

    seen = False


def _recording(name: str, any_key: bool) -> Callable[..., Any]:
    """Return a method of `WatchedOptions` that records a look at the task (`any_key`: at all entries) and goes on."""
    method = getattr(dict, name)

    def recording(self: WatchedOptions, *args: Any) -> Any:
        self.seen = self.seen or any_key or args[0] == "task"
        return method(self, *args)

    return recording


for _name in ("__getitem__", "__contains__", "get", "pop"):
    setattr(WatchedOptions, _name, _recording(_name, any_key=False))
for _name in ("__iter__", "keys", "values", "items"):  # with `__iter__`, dict(options) and {**options} are recorded too
    setattr(WatchedOptions, _name, _recording(_name, any_key=True))


def warn_unseen(env: Any) -> None:
    """Warn that an env has not read the task in its options."""
    warnings.warn(
        f"{env!r} was given a task in its reset's options and did not look at it, so the task changes nothing. Give "
        "task_setter=, a function of the environment and the task, or an environment that has reset_task or set_task, "
        "or that reads options['task'].",
        stacklevel=2,
    )


# ---- steps and resets ------------------------------------------------------------------------------------------------

RESTARTED = "worker_restarted"
"""The key in infos that marks a row whose episode was lost."""

_NOTHING, _AUTORESET, _LOST = "nothing", "autoreset", "lost"
"""The action that replaces the next step of an env: none, an autoreset, or the report of a lost episode."""

_ALL_ENVS, _SET_BIT, _DTYPE_BITS = 0, 1, 4


def bell_argument(which_set: int, dtype_code: int, local: int | None = None) -> int:
    """Return the argument of a bell: the set of observations to write, the dtype of actions, the env (None: all)."""
    return which_set | dtype_code << _SET_BIT | (_ALL_ENVS if local is None else local + 1) << _SET_BIT + _DTYPE_BITS


class StepLoop:
    """Steps and resets the envs `first, first + 1, ...` of a worker, and writes their results into the shared arrays.

    `keep` copies or packs values that would otherwise leave by reference. In methods, `env` is the number of an env in
    the batch and `local` its place in this worker.

    Attributes:
        ring: Steps the envs: see `_make_ring`. While the work is traced, another function does: see `trace`.
        tells_tasks: Whether the final info of an episode contains the numbers of its task and of the episode.
    """

    def __init__(
        self,
        envs: Sequence[AnyEnv],
        first: int,
        mode: AutoresetMode,
        arrays: SharedArrays,
        action_space: Space[Any],
        worker: int,
        keep: Callable[[Any], Any],
        tasks: TaskSettings,
    ) -> None:
        self.tasks = WorkerTasks(envs, first, arrays, tasks)
        self.tells_tasks = tasks.source is not None or tasks.in_use
        self.mode = mode
        self._envs, self._first, self._keep = envs, first, keep
        self._rows = cells(arrays.rows.view(np.uint8))
        self._counters = cells(arrays.counters[worker])
        self.infos = InfoWriter(arrays.info_rows)
        self._actions = ActionReader(arrays, action_space)
        self._observations = ObservationWriter(arrays)
        self._pending = [_NOTHING] * len(envs)
        self._lost: dict[int, tuple[Any, Info, tuple[int, int]]] = {}
        self._reply: PipedReply | None = None
        self._has_watched_options = False
        self._span: Callable[[int, int, float], None] | None = None
        self._reset_began = 0.0  # of the newest reset in a step that is traced
        self.ring = self._make_ring()

    def _make_ring(self) -> Callable[[int], PipedReply | None]:
        """Return the function that a bell calls: it steps all envs or one, as its argument says (`bell_argument`). The
        function is a closure, because a cheap env steps in two microseconds and every attribute that is looked up costs
        time at each step, most of all on a busy core, where other workers have just used the caches.
        """
        envs, first, pending, rows = self._envs, self._first, self._pending, self._rows
        all_envs, row_bytes = tuple(range(len(self._envs))), ROW.itemsize
        views, shaped, compose = self._actions.views, self._actions.shaped, self._actions.compose
        arrays, shape = self._observations.arrays, self._observations.shape

        def ring(argument: int) -> PipedReply | None:
            which_set = argument & 1
            observations = arrays[which_set]
            actions = None if views is None else views[argument >> 1 & 15]
            which = argument >> 5
            for local in all_envs if which == _ALL_ENVS else (which - 1,):
                env = first + local
                try:
                    if pending[local] is not _NOTHING:
                        self._instead_of_step(local, which_set)
                        continue
                    action = compose(env) if actions is None else actions[env].copy() if shaped else actions[env]
                    observation, reward, terminated, truncated, info = envs[local].step(action)
                    if forked:
                        leave_if_forked()  # before the forked copy writes where the worker writes
                    if terminated or truncated:
                        observation, info = self._end_episode(local, observation, info)
                    if type(reward) is not float:
                        reward = as_float(reward, True)  # before the row is written: if it raises, the old row stays
                    if info or type(observation) is not np.ndarray or observation.shape != shape:
                        number = self._deliver(env, observation, info, which_set)
                    else:
                        observations[env] = observation
                        number = EMPTY
                    pack_row(rows, env * row_bytes, reward, number, terminated, truncated)
                except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                    self._add_failure(env, error)
                    self._counters[NOT_STEPPED] += 1
            return None if self._reply is None else self._take_reply()

        return ring

    def trace(self, spans: SpanBuffer | None, host: Host) -> None:
        """Record steps, resets and calls in `spans` from now on, with the numbers of the requests to `host`. None: no
        more. While nothing is recorded, steps are made by a function that knows nothing of this.
        """
        step = self._make_ring()
        if spans is None:
            self.ring, self._span = step, None
            return
        add, clock, pending, first = spans.writer(), time.perf_counter, self._pending, self._first
        all_envs = tuple(range(len(self._envs)))

        def traced(argument: int) -> PipedReply | None:
            reply: PipedReply | None = None
            which_and_dtype, which = argument & 31, argument >> 5
            ended = clock()
            for local in all_envs if which == _ALL_ENVS else (which - 1,):
                env, began, is_step = first + local, ended, pending[local] is _NOTHING
                self._reset_began = 0.0
                part = step(which_and_dtype | (local + 1) << 5)
                ended = clock()
                if is_step:
                    kind = STEP if part is None or env not in part.failures else FAILED_STEP
                    add(kind, env, host.number, began, self._reset_began or ended)
                if reply is None:
                    reply = part
                elif part is not None:
                    reply.add(part)
            return reply

        self.ring = traced
        self._span = lambda kind, env, began: add(kind, env, host.number, began, clock())

    def add_call(self, env: int, began: float) -> None:
        """Record a call of an env that has ended, if the work is traced."""
        if self._span is not None:
            leave_if_forked()
            self._span(CALL, env, began)

    def step_with(self, argument: int, parts: Mapping[int, Sequence[Any]]) -> PipedReply | None:
        """Step as `ring` does. `parts` holds, by env, the leaves of actions that have no fixed shape."""
        began = time.perf_counter()
        before = self._counters[AUTORESET_SECONDS]
        self._actions.parts = parts
        reply = self.ring(argument)
        self._actions.parts = {}
        resets = self._counters[AUTORESET_SECONDS] - before
        self._counters[MESSAGE_STEP_SECONDS] += time.perf_counter() - began - resets
        return reply

    def _instead_of_step(self, local: int, which_set: int) -> None:
        """Do what is pending for an env: reset it, or report that its episode was lost."""
        self._counters[NOT_STEPPED] += 1
        if self._pending[local] is not _LOST:
            began = time.perf_counter()
            try:
                self._reset(local, ResetRequest(self._first + local), which_set)
            finally:
                self._counters[AUTORESET_SECONDS] += time.perf_counter() - began
            return
        # The episode was lost with an earlier worker or env: its row is truncated. A new episode has begun.
        observation, info, before = self._lost.pop(local)
        self._pending[local] = _AUTORESET if self.mode is AutoresetMode.NEXT_STEP else _NOTHING
        if self.mode is AutoresetMode.SAME_STEP:
            info = {"final_info": self._ids(*before), "final_obs": snapshot(observation), **info}
        elif self.mode is AutoresetMode.DISABLED and (
            wait := getattr(type(self._envs[local]), "wait_after_loss", None)
        ):
            wait(self._envs[local])  # an env of agents: agents whose episode ended do not act before a reset
        self._write_first(self._first + local, observation, {**info, RESTARTED: True}, which_set, truncated=True)

    def _end_episode(self, local: int, observation: Any, info: Info) -> tuple[Any, Info]:
        """Return the observation and info to report for a step that ended an episode."""
        if self.mode is AutoresetMode.NEXT_STEP:
            self._pending[local] = _AUTORESET
        if self.mode is not AutoresetMode.SAME_STEP:
            return observation, info
        began = time.perf_counter()
        final = {"final_info": snapshot(info), "final_obs": snapshot(observation)}
        final["final_info"] = {**self._ids(*self.tasks.marks(local)), **final["final_info"]}
        observation, info = self._begin_episode(local, ResetRequest(self._first + local))
        self._counters[AUTORESET_SECONDS] += time.perf_counter() - began
        return observation, {**final, **info}

    def _ids(self, task: int, episode: int) -> Info:
        return {"task_id": task, "episode_index": episode} if self.tells_tasks else {}

    def reset(self, requests: Mapping[int, ResetRequest], which_set: int) -> PipedReply | None:
        """Reset some envs, and drop what was pending for them."""
        for env, request in requests.items():
            began = time.perf_counter()
            try:
                self._reset(env - self._first, request, which_set)
            except BaseException as error:  # noqa: BLE001  # as in ring
                self._add_failure(env, error)
            self._counters[RESET_SECONDS] += time.perf_counter() - began
        return self._take_reply()

    def report_lost(self, envs: Sequence[int], which_set: int) -> PipedReply | None:
        """Write the rows of revived envs for a step that their predecessors did not answer."""
        for env in envs:
            try:
                self._instead_of_step(env - self._first, which_set)
            except BaseException as error:  # noqa: BLE001  # as in ring
                self._add_failure(env, error)
        return self._take_reply()

    def set_tasks(self, tasks: Mapping[int, Any]) -> None:
        """Set the tasks (or `RESAMPLE`) of some envs for their next episodes. From now on tasks are in use, so their
        numbers are in final infos.
        """
        self.tells_tasks = True
        for env, task in tasks.items():
            self.tasks.next[env - self._first] = task

    def revive(self, request: ResetRequest) -> None:
        """Reset a new env that has replaced a failed one. The next step of the env reports a lost episode."""
        local = request.env - self._first
        before = self.tasks.marks(local)
        if request.seed is not None and not takes(self._envs[local], "seed"):
            request = dataclasses.replace(request, seed=None)
        observation, info = self._begin_episode(local, request)
        if self.mode is AutoresetMode.NEXT_STEP:  # the reset after the report begins the episode that counts
            self.tasks.write_marks(local, *before)
            if isinstance(request.task, Task):
                self.tasks.next[local] = request.task
        self._lost[local] = snapshot(observation), snapshot(info), before
        self._pending[local] = _LOST

    def episode_state(self, local: int) -> EpisodeState:
        """Return what is to be saved of an env beside the env itself."""
        tasks, pending = self.tasks, self._pending[local]
        return EpisodeState(
            pending, self._lost.get(local), tasks.held[local], tasks.next.get(local, UNSAID), tasks.marks(local)
        )

    def _load(self, local: int, state: EnvState, load: Callable[[Any, Any], None] | None) -> None:
        """Bring an env to a saved state. Raise ValueError if the state is of an env with other layers."""
        env, episode = self._envs[local], state.episode
        if state.layers != (own := layer_names(env)):
            raise ValueError(
                f"The state was saved from {' of '.join(state.layers)}, and the environment is {' of '.join(own)}. "
                "Give a state of an environment that is made in the same way."
            )
        load_env(env, state.content) if load is None else load(env, pickle.loads(state.content))
        self._lost.pop(local, None)
        self._pending[local] = next(one for one in (_NOTHING, _AUTORESET, _LOST) if one == episode.pending)
        if episode.lost is not None:
            self._lost[local] = episode.lost
        self.tasks.held[local] = episode.task
        self.tasks.next.pop(local, None)
        if episode.next_task is not UNSAID:
            self.tasks.next[local] = episode.next_task
        self.tasks.write_marks(local, *episode.marks)

    def _reset(self, local: int, request: ResetRequest, which_set: int) -> None:
        if request.state is not None:
            self._load(local, *request.state)
            self._write_first(request.env, request.state[0].observation, {}, which_set)
            return
        observation, info = self._begin_episode(local, request)
        self._pending[local] = _NOTHING
        self._lost.pop(local, None)
        self._write_first(request.env, observation, {**info, RESTARTED: True} if request.restarted else info, which_set)

    def _begin_episode(self, local: int, request: ResetRequest) -> tuple[Any, Info]:
        """Choose the task of the next episode, and reset the env with it."""
        began = self._reset_began = time.perf_counter()
        outcome = self._reset_with_task(local, request)
        if self._span is not None:
            self._span(RESET, self._first + local, began)
        return outcome

    def _reset_with_task(self, local: int, request: ResetRequest) -> tuple[Any, Info]:
        env, options, added = self._envs[local], snapshot(request.options), self.tasks.begin(local, request.task)
        if added:
            options = {**(options or {}), **added}
        if not added or self._has_watched_options:
            return reset_env(env, request.seed, options)
        watched = WatchedOptions(options)
        outcome = reset_env(env, request.seed, watched)
        self._has_watched_options = True  # one look, and at most one warning, is enough for a worker
        if not watched.seen and not self._first:
            warn_unseen(env)
        return outcome

    def _write_first(self, env: int, observation: Any, info: Info, which_set: int, truncated: bool = False) -> None:
        """Write the row of an env whose episode begins."""
        number = self._deliver(env, observation, info, which_set)
        pack_row(self._rows, env * ROW.itemsize, 0.0, number, False, truncated)

    def _deliver(self, env: int, observation: Any, info: Info, which_set: int) -> int:
        """Write an observation and an info, or add them to the reply. Return the number of the info for the row."""
        loose = self._observations.write(which_set, env, observation)
        if loose is not None:
            self._open_reply().leaves[env] = self._keep(loose)
        number, schema = self.infos.write(env, info)
        if schema is not None:
            self._open_reply().schemas.append(schema)
        if number == PICKLED:
            self._open_reply().infos[env] = self._keep(info)
        return number

    def _add_failure(self, env: int, error: BaseException) -> None:
        reraise_ctrl_c(error)
        self._open_reply().failures[env] = Failure.of(error)

    def _open_reply(self) -> PipedReply:
        if self._reply is None:
            self._reply = PipedReply()
        return self._reply

    def _take_reply(self) -> PipedReply | None:
        """Return everything that has not fitted in shared memory since the last call."""
        reply, self._reply = self._reply, None
        return reply


def reset_env(env: AnyEnv, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Info]:
    """Reset an env. Without a seed and options `reset` gets no arguments, for envs whose `reset` takes none. `options`
    belongs to the env from then on.
    """
    result = env.reset() if seed is None and options is None else env.reset(seed=seed, options=options)
    leave_if_forked()
    return result
