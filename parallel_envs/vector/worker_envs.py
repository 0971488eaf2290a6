"""The envs of one worker: `WorkerEnvs`, the object that a worker hosts, and `StepLoop`, which steps and resets them.

Actions come from shared memory. Observations, rewards, flags and numeric infos go to shared memory; everything that
does not fit there is sent by pipe, as a `PipedReply`. Autoreset follows Gymnasium's three modes. If an env raises, the
error is recorded and the other envs go on.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import Failure, picklable, reraise_ctrl_c, unpicklable_part
from parallel_envs.engine.interrupts import forked, leave_if_forked
from parallel_envs.env_ids import is_unregistered
from parallel_envs.tasks import Task, TaskSource, TaskWay, offers, part_of, takes
from parallel_envs.vector.infos import EMPTY, PICKLED, Info, InfoWriter, Schema
from parallel_envs.vector.registry import OwnedEnvs, Registrations
from parallel_envs.vector.shared_arrays import (
    AUTORESET_SECONDS,
    MESSAGE_STEP_SECONDS,
    NOT_STEPPED,
    RESET_SECONDS,
    ROW,
    ActionReader,
    ObservationWriter,
    SharedArrays,
    as_float,
    cells,
    pack_row,
    packed,
    snapshot,
)
from parallel_envs.vector.worker_tasks import UNSAID, TaskSettings, WatchedOptions, WorkerTasks, warn_unseen, way_of

_log = logging.getLogger(__name__)

AnyEnv = gymnasium.Env[Any, Any]


@dataclass(slots=True)
class PipedReply:
    """The parts of a reply that do not fit in shared memory, by env. Most steps have none."""

    schemas: list[Schema] = field(default_factory=list)
    infos: dict[int, Info] = field(default_factory=dict)
    leaves: dict[int, list[Any]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.schemas or self.infos or self.leaves or self.failures)


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The arguments of the reset of one env. `restarted`: an earlier attempt failed, in a worker or env since replaced.
    `task` is a `Task`, `KEEP`, `RESAMPLE` or `UNSAID`.
    """

    env: int
    seed: int | None = None
    options: dict[str, Any] | None = None
    task: Any = UNSAID
    restarted: bool = False


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """Facts about the envs of a worker that the caller needs to make the arrays. Equal spaces are one object.
    `task_ways` says for each env how it takes a task, or why it takes none.
    """

    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]
    metadata: dict[str, Any]
    render_mode: str | None
    task_ways: tuple[TaskWay | str, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """Stands for a method (any callable but a class) in the answer of `WorkerEnvs.look_up`."""


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
        ring: Steps the envs: see `_make_ring`.
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

    def ring_with(self, argument: int, parts: Mapping[int, Sequence[Any]]) -> PipedReply | None:
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

    def _reset(self, local: int, request: ResetRequest, which_set: int) -> None:
        observation, info = self._begin_episode(local, request)
        self._pending[local] = _NOTHING
        self._lost.pop(local, None)
        self._write_first(request.env, observation, {**info, RESTARTED: True} if request.restarted else info, which_set)

    def _begin_episode(self, local: int, request: ResetRequest) -> tuple[Any, Info]:
        """Choose the task of the next episode, and reset the env with it."""
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


# ---- the object that a worker hosts ----------------------------------------------------------------------------------


class WorkerEnvs:
    """The envs `first, first + 1, ...`, made by `factories`, in one worker.

    With `copies`, values that would leave by reference are copied first, for backends that pickle nothing; otherwise
    they are pickled at once. `owned` is shared by all workers of a process (None: this is the only one).

    If an env cannot be made, the reply that says so answers `describe` and every request for steps and resets.

    Attributes:
        ring, step_with, reset, report_lost: The methods of the `StepLoop`, from `attach` on.
    """

    def __init__(
        self,
        first: int,
        factories: Sequence[Callable[[], AnyEnv]],
        autoreset_mode: AutoresetMode,
        registrations: Registrations | None,
        tasks: TaskSettings,
        *,
        copies: bool,
        owned: OwnedEnvs | None = None,
    ) -> None:
        self._tasks, self._mode, self._copies = tasks, autoreset_mode, copies
        self._owned = OwnedEnvs() if owned is None else owned
        self._first, self._factories, self._registrations = first, factories, registrations
        self._keep: Callable[[Any], Any] = snapshot if copies else packed
        self._envs: list[AnyEnv] = []
        self._unmade = PipedReply()
        self._loop: StepLoop | None = None
        self.ring: Callable[[int], PipedReply | None] = self._unmade_reply
        self.step_with: Callable[[int, Mapping[int, Sequence[Any]]], PipedReply | None] = self._unmade_reply
        self.reset: Callable[[Mapping[int, ResetRequest], int], PipedReply | None] = self._unmade_reply
        self.report_lost: Callable[[Sequence[int], int], PipedReply | None] = self._unmade_reply
        if registrations is not None and registrations.replace_built_in():
            registrations.install()
        for env, factory in enumerate(factories, first):
            try:
                self._envs.append(self._make(env, factory))
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                self._unmade.failures[env] = Failure.of(error)
                break

    def _make(self, index: int, factory: Callable[[], AnyEnv]) -> AnyEnv:
        """Make an env. Raise if the factory returned something else, or an env that is in use already."""
        try:
            env = factory()
        except Exception as error:
            if self._registrations is None or not is_unregistered(error):
                raise
            self._registrations.install()
            env = factory()
        for attribute in ("reset", "step", "observation_space", "action_space"):
            if not hasattr(env, attribute):
                raise TypeError(
                    f"The factory of env {index} returned {env!r}, which has no {attribute!r}. "
                    "A factory takes no arguments and returns a gymnasium.Env."
                )
        self._owned.claim(index, env)
        return env

    def describe(self) -> EnvDescription | PipedReply:
        """Return the description of the envs, or the reply that one could not be made. An env that cannot be described
        (its metadata cannot be pickled, a property raises) counts as not made.
        """
        described: list[tuple[Space[Any], Space[Any], TaskWay | str]] = []
        metadata: dict[str, Any] = {}
        for index, env in enumerate(self._envs, self._first):
            if self._unmade:
                break
            try:
                if index == self._first:
                    metadata = dict(env.metadata)
                    if not self._copies and not picklable(metadata):
                        raise TypeError(
                            f"{unpicklable_part(metadata, 'metadata')} cannot be pickled, so the manager cannot be "
                            "told of it. Leave it out of metadata (an attribute set in __init__ may hold it), or use "
                            "backend='thread'."
                        )
                described.append((env.observation_space, env.action_space, way_of(env, self._tasks.setter)))
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                self._unmade.failures[index] = Failure.of(error)
        if self._unmade:
            self.close()
            return self._unmade
        observation_spaces, action_spaces, task_ways = zip(*described, strict=True)
        render_mode = getattr(self._envs[0], "render_mode", None)
        spaces = _shared_where_equal(observation_spaces), _shared_where_equal(action_spaces)
        return EnvDescription(*spaces, metadata, render_mode, task_ways)

    def attach(self, arrays: SharedArrays, action_space: Space[Any], worker: int) -> None:
        """Use these arrays from now on."""
        given = self._envs, self._first, self._mode, arrays, action_space, worker, self._keep, self._tasks
        loop = self._loop = StepLoop(*given)
        self.ring, self.step_with, self.reset, self.report_lost = (
            loop.ring,
            loop.ring_with,
            loop.reset,
            loop.report_lost,
        )

    def _unmade_reply(self, *_: Any) -> PipedReply:
        """Return the reply that says which env could not be made."""
        if not self._unmade:
            raise RuntimeError(
                "These environments were to be made anew, which was cut short. Call `restart()` for them."
            )
        return self._unmade

    def _made(self) -> StepLoop:
        """Return the step loop. Raise the reasons if envs could not be made."""
        if self._loop is None:
            failures = self._unmade_reply().failures
            raise RuntimeError(
                "; ".join(f"env {env} could not be made: {one.message}" for env, one in failures.items())
            )
        return self._loop

    def announce_again(self) -> None:
        """Announce the schemas of infos again, since the caller may not have received earlier replies."""
        if self._loop is not None:
            self._loop.infos.announce_again()

    def change(self, mode: AutoresetMode | None = None, source: TaskSource | None = None) -> None:
        """Use this autoreset mode, or take tasks from this source, from now on."""
        loop = self._made()
        if mode is not None:
            self._mode = loop.mode = mode
        if source is not None:
            loop.tasks.source = snapshot(source) if self._copies else source

    def set_tasks(self, tasks: Mapping[int, Any]) -> None:
        """Set the tasks (or `RESAMPLE`) of some envs for their next episodes. From now on tasks are in use, so their
        numbers are in final infos.
        """
        loop = self._made()
        loop.tells_tasks = True
        for env, task in tasks.items():
            loop.tasks.next[env - self._first] = task

    def get_tasks(self, envs: Sequence[int]) -> dict[int, Any]:
        """Return the task of each env, from the env's own method if it has one. An env that raises has a `Failure`."""

        def task_of(index: int) -> Any:
            env, held = self._env(index), self._made().tasks.held[index - self._first]
            for name in ("get_task", "get_current_task"):
                if offers(env, name):
                    return self._keep(part_of(env, name)())
            return None if held is None else self._keep(held.value)

        return self._for_each(envs, task_of)

    def call(self, envs: Sequence[int], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """Call a method, or read an attribute, of some envs. An env that raises has a `Failure` as its result."""

        def called(env: AnyEnv) -> Any:
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return self.apply(envs, called, ())

    def apply(self, envs: Sequence[int], function: Callable[..., Any], args: Sequence[Any]) -> dict[int, Any]:
        """Return `function(env, *args)` for some envs. An env for which it raises has a `Failure` as its result."""
        return self._for_each(envs, lambda index: self._keep(function(self._env(index), *args)))

    def look_up(self, envs: Sequence[int], name: str) -> dict[int, Any]:
        """Read an attribute of some envs without calling it: its value, a `Method`, or a `Failure` if it raises."""

        def found(index: int) -> Any:
            attribute = self._env(index).get_wrapper_attr(name)
            is_method = callable(attribute) and not isinstance(attribute, type)
            return Method() if is_method else self._keep(attribute)

        return self._for_each(envs, found)

    def set_attr(self, values: Mapping[int, Any], name: str) -> dict[int, Failure]:
        """Set an attribute of some envs. Return the failures of the envs that raised."""
        outcomes = self._for_each(values, lambda index: self._env(index).set_wrapper_attr(name, values[index]))
        return {env: outcome for env, outcome in outcomes.items() if isinstance(outcome, Failure)}

    def revive(self, requests: Mapping[int, ResetRequest]) -> dict[int, Failure]:
        """Reset new envs: their next steps report lost episodes. Return the failures of the envs that raised."""
        outcomes = self._for_each(requests, lambda env: self._made().revive(requests[env]))
        return {env: outcome for env, outcome in outcomes.items() if outcome is not None}

    def _for_each(self, envs: Iterable[int], function: Callable[[int], Any]) -> dict[int, Any]:
        results: dict[int, Any] = {}
        for env in envs:
            try:
                results[env] = function(env)
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                results[env] = Failure.of(error)
        return results

    def _env(self, env: int) -> AnyEnv:
        self._made()
        return self._envs[env - self._first]

    def rebuild(self, env: int) -> PipedReply | None:
        """Make an env again. Return a reply if that failed. An error of the old env while it is closed is logged."""
        local = env - self._first
        try:
            self._envs[local].close()
        except BaseException as error:  # noqa: BLE001  # it is broken: that is why it is replaced
            reraise_ctrl_c(error)
            _log.info("Env %d raised while it was closed to be replaced.", env, exc_info=True)
        try:
            self._owned.release(env)
            self._envs[local] = self._make(env, self._factories[local])
        except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
            reraise_ctrl_c(error)
            self._envs[local] = _Missing(error)
            return PipedReply(failures={env: Failure.of(error)})
        return None

    def close(self) -> None:
        """Close every env, then raise the first error, with a note that names its env."""
        errors: list[BaseException] = []
        for index, env in enumerate(self._envs, start=self._first):
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001  # an error of one env must not keep the others open
                reraise_ctrl_c(error)
                error.add_note(f"This is what env {index} raised when it was closed.")
                errors.append(error)
            self._owned.release(index)
        self._envs = []
        if errors:
            raise errors[0]


class _Missing(gymnasium.Env[Any, Any]):
    """Stands in for an env that could not be made again: every reset and step raises the reason."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def reset(self, **_: Any) -> Any:
        raise self._error

    def step(self, action: Any) -> Any:
        raise self._error


def _shared_where_equal(spaces: Sequence[Space[Any]]) -> tuple[Space[Any], ...]:
    """Return the spaces, with one object in the place of several that are equal, so that less is sent."""
    distinct: list[Space[Any]] = []
    for space in spaces:
        if space not in distinct:
            distinct.append(space)
    return tuple(distinct[distinct.index(space)] for space in spaces)
