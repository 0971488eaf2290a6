"""Stepping and resetting the environments of a worker, and delivering what they return.

Actions come from shared memory; observations, rewards, flags and numeric infos go there. What does not fit is `News`.
Autoreset follows Gymnasium's three modes. An env that raises is noted, and the others go on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import Failure, reraise_ctrl_c
from parallel_envs.engine.interrupts import forked, leave_if_forked
from parallel_envs.tasks import Task, takes
from parallel_envs.vector.buffers import (
    AUTORESET_SECONDS,
    MESSAGE_STEP_SECONDS,
    NOT_STEPPED,
    RESET_SECONDS,
    ROW,
    Buffers,
    cells,
    pack_row,
)
from parallel_envs.vector.exchange import ActionReader, ObservationWriter, as_float
from parallel_envs.vector.infos import EMPTY, PICKLED, Info, InfoWriter, Schema
from parallel_envs.vector.snapshots import snapshot
from parallel_envs.vector.tasking import UNSAID, TaskDesk, TaskSettings
from parallel_envs.vector.watched_options import WatchedOptions, warn_unseen

AnyEnv = gymnasium.Env[Any, Any]


@dataclass(slots=True)
class News:
    """What shared memory could not hold, by env: nothing on most steps."""

    schemas: list[Schema] = field(default_factory=list)
    infos: dict[int, Info] = field(default_factory=dict)
    leaves: dict[int, list[Any]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.schemas or self.infos or self.leaves or self.failures)


RESTARTED = "worker_restarted"
"""The key of the infos that marks a row whose episode was lost."""

_NOTHING, _AUTORESET, _LOST = "nothing", "autoreset", "lost"
"""What is pending for an env instead of its next step."""

_EVERYONE, _SET_BIT, _DTYPE_BITS = 0, 1, 4


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """How one env is to be reset."""

    env: int
    seed: int | None = None
    options: dict[str, Any] | None = None
    task: Any = UNSAID
    """A `Task`, `KEEP`, `RESAMPLE` or `UNSAID`."""
    restarted: bool = False
    """Whether it is done anew, in a new worker or env, because the first attempt failed."""


def bell_argument(which_set: int, dtype_code: int, local: int | None = None) -> int:
    """What to ring with: the set of observations to write to, what the actions are made of, and the env (None: all)."""
    return which_set | dtype_code << _SET_BIT | (_EVERYONE if local is None else local + 1) << _SET_BIT + _DTYPE_BITS


class Stepper:
    """The envs `first, first + 1, ...` and the arrays that belong to them.

    `keep` is applied to what travels by reference.
    """

    def __init__(
        self,
        envs: Sequence[AnyEnv],
        first: int,
        mode: AutoresetMode,
        buffers: Buffers,
        action_space: Space[Any],
        worker: int,
        keep: Callable[[Any], Any],
        tasks: TaskSettings,
    ) -> None:
        self.desk = TaskDesk(envs, first, buffers, tasks)
        self.tells_tasks = tasks.source is not None or tasks.in_use
        """Whether the last words of an episode say which task and episode it was."""
        self._envs, self._first, self._keep = envs, first, keep
        self.mode = mode
        self._rows = cells(buffers.rows.view(np.uint8))
        self._counters = cells(buffers.counters[worker])
        self._infos = InfoWriter(buffers.info_rows)
        self._actions = ActionReader(buffers, action_space)
        self._observations = ObservationWriter(buffers)
        self._pending = [_NOTHING] * len(envs)
        self._lost: dict[int, tuple[Any, Info]] = {}
        self._before: dict[int, tuple[int, int]] = {}
        self._news: News | None = None
        self._looks_at_tasks = False
        self.ring = self._make_ring()

    def _make_ring(self) -> Callable[[int], News | None]:
        """What a bell does: step, as `bell_argument` says.

        A closure, because a cheap env steps in two microseconds and all that is looked up on the way is paid for at
        each step: most of all on a busy core, where other workers have just used the caches.
        """
        envs, first, pending, rows = self._envs, self._first, self._pending, self._rows
        everyone, row_bytes = tuple(range(len(self._envs))), ROW.itemsize
        views, shaped, compose = self._actions.views, self._actions.shaped, self._actions.compose
        arrays, shape = self._observations.arrays, self._observations.shape

        def ring(argument: int) -> News | None:
            which_set = argument & 1
            observations = arrays[which_set]
            actions = None if views is None else views[argument >> 1 & 15]
            which = argument >> 5
            for local in everyone if which == _EVERYONE else (which - 1,):
                env = first + local
                try:
                    if pending[local] is not _NOTHING:
                        self._instead_of_step(local, which_set)
                        continue
                    action = compose(env) if actions is None else actions[env].copy() if shaped else actions[env]
                    observation, reward, terminated, truncated, info = envs[local].step(action)
                    if forked:
                        leave_if_forked()  # before it writes where the worker will
                    if terminated or truncated:
                        observation, info = self._end_episode(local, observation, info)
                    if type(reward) is not float:
                        reward = as_float(reward, True)  # before the row is written: one that raises keeps its old row
                    if info or type(observation) is not np.ndarray or observation.shape != shape:
                        number = self._deliver(env, observation, info, which_set)
                    else:
                        observations[env] = observation
                        number = EMPTY
                    pack_row(rows, env * row_bytes, reward, number, terminated, truncated)
                except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                    reraise_ctrl_c(error)
                    self._note_failure(env, error)
            return None if self._news is None else self.take_news()

        return ring

    def ring_with(self, argument: int, parts: Mapping[int, Sequence[Any]]) -> News | None:
        """As `ring`, where parts of the actions have no fixed shape: `parts` holds them, by env."""
        began = time.perf_counter()
        before = self._counters[AUTORESET_SECONDS]
        self._actions.parts = parts
        news = self.ring(argument)
        self._actions.parts = {}
        resets = self._counters[AUTORESET_SECONDS] - before
        self._counters[MESSAGE_STEP_SECONDS] += time.perf_counter() - began - resets
        return news

    def reset(self, request: ResetRequest, which_set: int) -> None:
        """Reset an env. What was pending for it is done with."""
        began = time.perf_counter()
        local = request.env - self._first
        try:
            self._reset(local, request, which_set)
        except BaseException as error:  # noqa: BLE001  # as in ring
            reraise_ctrl_c(error)
            self._note().failures[request.env] = Failure.of(error)
        finally:
            self._counters[RESET_SECONDS] += time.perf_counter() - began

    def revive(self, request: ResetRequest) -> None:
        """Go on with a new env in the place of one that failed. Its next step tells that an episode was lost."""
        local = request.env - self._first
        before = self.desk.marks(local)
        if request.seed is not None and not takes(self._envs[local], "seed"):
            request = dataclasses.replace(request, seed=None)
        observation, info = self._begin_episode(local, request)
        if self.mode is AutoresetMode.NEXT_STEP:  # the reset that follows the report begins the episode that counts
            self.desk.write_marks(local, *before)
            if isinstance(request.task, Task):
                self.desk.assign(local, request.task)
        self._before[local] = before
        self._lost[local] = snapshot(observation), snapshot(info)
        self._pending[local] = _LOST

    def report_lost(self, locals_: Sequence[int], which_set: int) -> None:
        """Do now what the next step of revived envs would do."""
        for local in locals_:
            try:
                self._instead_of_step(local, which_set)
            except BaseException as error:  # noqa: BLE001  # as in ring
                reraise_ctrl_c(error)
                self._note().failures[self._first + local] = Failure.of(error)

    def announce_anew(self) -> None:
        """What has been told of infos may not have been heard: tell it again."""
        self._infos.announce_anew()

    def take_news(self) -> News | None:
        """What has not fitted since this was last asked."""
        news, self._news = self._news, None
        return news

    # ---- episodes -------------------------------------------------------------------------------------------------

    def _instead_of_step(self, local: int, which_set: int) -> None:
        self._counters[NOT_STEPPED] += 1
        if self._pending[local] is _LOST:
            self._report_lost(local, which_set)
            return
        began = time.perf_counter()
        try:
            self._reset(local, ResetRequest(self._first + local), which_set)
        finally:
            self._counters[AUTORESET_SECONDS] += time.perf_counter() - began

    def _report_lost(self, local: int, which_set: int) -> None:
        """The episode was lost with an earlier worker or env: it ends here, truncated, and a new one has begun."""
        env = self._first + local
        observation, info = self._lost.pop(local)
        before = self._before.pop(local)
        self._pending[local] = _AUTORESET if self.mode is AutoresetMode.NEXT_STEP else _NOTHING
        if self.mode is AutoresetMode.SAME_STEP:
            info = {"final_info": self._ids(*before), "final_obs": snapshot(observation), **info}
        elif self.mode is AutoresetMode.DISABLED and (
            wait := getattr(type(self._envs[local]), "wait_after_loss", None)
        ):
            wait(self._envs[local])  # an env of agents: those that ended do not act before they are reset
        number = self._deliver(env, observation, {**info, RESTARTED: True}, which_set)
        pack_row(self._rows, env * ROW.itemsize, 0.0, number, False, True)

    def _reset(self, local: int, request: ResetRequest, which_set: int) -> None:
        observation, info = self._begin_episode(local, request)
        self._pending[local] = _NOTHING
        self._lost.pop(local, None)
        marked = {**info, RESTARTED: True} if request.restarted else info
        number = self._deliver(request.env, observation, marked, which_set)
        pack_row(self._rows, request.env * ROW.itemsize, 0.0, number, False, False)

    def _begin_episode(self, local: int, request: ResetRequest) -> tuple[Any, Info]:
        added = self.desk.begin(local, request.task)
        if not added:
            return reset_env(self._envs[local], request.seed, snapshot(request.options))
        options = {**(snapshot(request.options) or {}), **added}
        if self._looks_at_tasks:
            return reset_env(self._envs[local], request.seed, options)
        watched = WatchedOptions(options)
        outcome = reset_env(self._envs[local], request.seed, watched)
        self._looks_at_tasks = True  # or has been told of: once a worker is enough
        if not watched.seen and not self._first:
            warn_unseen(self._envs[local])
        return outcome

    def _end_episode(self, local: int, observation: Any, info: Info) -> tuple[Any, Info]:
        """The observation and info to report for a step that ended its episode."""
        if self.mode is AutoresetMode.NEXT_STEP:
            self._pending[local] = _AUTORESET
        if self.mode is not AutoresetMode.SAME_STEP:
            return observation, info
        began = time.perf_counter()
        final = {"final_info": snapshot(info), "final_obs": snapshot(observation)}
        final["final_info"] = {**self._ids(*self.desk.marks(local)), **final["final_info"]}
        observation, info = self._begin_episode(local, ResetRequest(self._first + local))
        self._counters[AUTORESET_SECONDS] += time.perf_counter() - began
        return observation, {**final, **info}

    def _ids(self, task: int, episode: int) -> Info:
        return {"task_id": task, "episode_index": episode} if self.tells_tasks else {}

    # ---- delivery -------------------------------------------------------------------------------------------------

    def _deliver(self, env: int, observation: Any, info: Info, which_set: int) -> int:
        """Put an observation and an info where they fit; returns what the row is to say about the info."""
        loose = self._observations.write(which_set, env, observation)
        if loose is not None:
            self._note().leaves[env] = self._keep(loose)
        number, news = self._infos.write(env, info)
        if news is not None:
            self._note().schemas.append(news)
        if number == PICKLED:
            self._note().infos[env] = self._keep(info)
        return number

    def _note_failure(self, env: int, error: BaseException) -> None:
        self._counters[NOT_STEPPED] += 1
        self._note().failures[env] = Failure.of(error)

    def _note(self) -> News:
        if self._news is None:
            self._news = News()
        return self._news


def reset_env(env: AnyEnv, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Info]:
    """Reset; an env whose `reset` takes no arguments is content as long as none are given. Options become its own."""
    result = env.reset() if seed is None and options is None else env.reset(seed=seed, options=options)
    leave_if_forked()
    return result
