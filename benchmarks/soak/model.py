"""Model of the soak: a serial replay of every env without processes, which gives the expected answers row by row.

A row may report a lost episode only if a fault may have cost that episode, and must report it if the fault certainly
did. The course of the env is then replaced by a course with a fresh seed, which must be among the next ones of the seed
tree.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from benchmarks.soak.env import ENDS_THE_WORKER, Course, Form, Info, Numbers, caption, curse
from parallel_envs.seeding import SeedTree
from parallel_envs.testing.scripted import Fault

RESTARTED = "worker_restarted"


class Where(Enum):
    """Moment of a fault: inside the env, from outside by a signal to its worker, or around the workers."""

    STEP = "in step"
    RESET = "in reset"
    AUTORESET = "in autoreset"
    WAITING = "signal, waiting"
    IDLE = "signal, idle"
    AROUND = "around it"


class Disturbance(Enum):
    """Disturbance around the workers. It costs no env its episode."""

    FLOOD = "flood of output"
    STOPPED_KEEPER = "keeper stopped"
    FORK = "caller forked"
    EVALUATION = "evaluation's worker killed"
    LEFT_READER = "stderr's reader left"
    KILLED_PROGRAM = "flooding program killed"


Injection = tuple[Where, Fault | Disturbance]


@dataclass(frozen=True, slots=True)
class Row:
    """Answer of one env, in plain values. A reset has no reward and no flags."""

    observation: Any
    info: Info
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


@dataclass(slots=True)
class _Asked:
    """Request to an env. `row` is the answer, if it is known and no fault intervenes."""

    is_reset: bool
    seed: int | None = None
    row: Row | None = None
    loss: str = ""
    """Reason why the answer must report a lost episode; empty if it need not."""


class EnvReplay:
    """Replay of one env: its course and its pending request.

    `course` is None for a new env with a fresh seed that has not been seen yet.
    """

    def __init__(self, env: int, mode: AutoresetMode, form: Form) -> None:
        self.env, self._mode, self._form = env, mode, form
        self.course: Course | None = Course(env)
        self.asked: _Asked | None = None
        self.is_resetting = False
        """True if the next step resets the env instead."""
        self.may_be_new = False
        """True if a second new course may have replaced the one that the last row began."""
        self.shaken = False
        """True if the worker was replaced while this env was in flight.

        The answer or the one after it reports the loss.
        """
        self.last_fresh, self.restarts_then = 0, 0
        """Number of the last fresh seed that was seen, and the restarts of the worker before that."""

    @property
    def is_sure(self) -> bool:
        """True if the env is certainly on this course."""
        return not (self.course is None or self.may_be_new or self.shaken)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def ask_step(self, action: Numbers) -> Injection | None:
        """Record a request to step. Return the fault that it causes, or None."""
        if self.course is None:
            self.asked = _Asked(is_reset=False, loss="its worker had been replaced")
            return None
        result = self._reset_instead(self.course) if self.is_resetting else self._step(self.course, action)
        self.asked = _to_come(result, is_reset=False, seed=None)
        return None if isinstance(result, Row) else result

    def ask_reset(self, seed: int | None) -> Injection | None:
        """Record a request to reset. Return the fault that it causes, or None."""
        self.is_resetting = False
        if self.course is None and seed is None:
            self.asked = _Asked(is_reset=True)
            return None
        course = self.course = self.course or Course(self.env)
        fault = course.fault_of_reset(seed)
        result = (Where.RESET, fault) if fault else Row(info=course.reset(seed), observation=self._shown(course))
        self.asked = _to_come(result, is_reset=True, seed=seed)
        return None if isinstance(result, Row) else result

    def _reset_instead(self, course: Course) -> Row | Injection:
        self.is_resetting = False
        if fault := course.fault_of_reset(None):
            return Where.AUTORESET, fault
        return Row(info=course.reset(None), observation=self._shown(course))

    def _step(self, course: Course, action: Numbers) -> Row | Injection:
        if fault := course.fault_of_step(action):
            return Where.STEP, fault
        reward, terminated, truncated, info = course.step(action)
        shown = self._shown(course)
        if course.ended and self._mode is AutoresetMode.NEXT_STEP:
            self.is_resetting = True
        elif course.ended:
            if fault := course.fault_of_reset(None):
                return Where.AUTORESET, fault
            info = {"final_info": info, "final_obs": shown, **course.reset(None)}
        return Row(self._shown(course), info, reward, terminated, truncated)

    def _shown(self, course: Course) -> Any:
        return shown(course.numbers(), self._form)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def answer(self, row: Row, fresh: Mapping[int, int], *, may_tell: bool) -> str:
        """Return a description of the error in a row, or an empty text.

        `fresh` maps the seeds that a new env may have been given to their numbers. `may_tell` is True if the worker may
        have been affected by a fault.
        """
        asked, self.asked = self.asked, None
        if asked is None:
            return f"a row came that nobody had asked for: {row}"
        tells = row.info.get(RESTARTED) is True
        if tells and not (may_tell or asked.loss or self.may_be_new or self.shaken):
            return f"it tells of a lost episode, though nothing was done that could have cost one: {row}"
        if asked.loss and not tells:
            return f"it does not tell that the episode was lost ({asked.loss}): {row}"
        shows_new = self.may_be_new and asked.is_reset and _seed_shown(row.observation) in fresh
        if tells or asked.row is None or shows_new:
            return difference(row, self._first_row(asked, row, fresh, tells=tells))
        return difference(row, asked.row)

    def _first_row(self, asked: _Asked, row: Row, fresh: Mapping[int, int], *, tells: bool) -> Row | str:
        """Return the first row of a new env. The seed in the observation determines its course."""
        course = self.course = Course(self.env)
        self.is_resetting = not asked.is_reset and self._mode is AutoresetMode.NEXT_STEP
        if asked.seed is None:
            seed = _seed_shown(row.observation)
            if seed not in fresh:
                return f"its new seed {seed} is none of the fresh seeds {sorted(fresh)}"
            self.last_fresh = fresh[seed]
            info = course.reset(seed)
        if asked.is_reset:
            info = course.reset(asked.seed)
        shown = self._shown(course)
        if not asked.is_reset and self._mode is AutoresetMode.SAME_STEP:
            info = {"final_info": {}, "final_obs": shown, **info}
        return Row(shown, {**info, RESTARTED: True} if tells else info, truncated=not asked.is_reset)

    def lose(self) -> None:
        """Forget the course: a new env has replaced this one and has not answered yet."""
        self.course, self.is_resetting, self.may_be_new, self.shaken = None, False, False, False


def shown(numbers: Numbers, form: Form) -> Any:
    """Return the `observation` of these numbers, in plain values."""
    return numbers if form == "array" else {"numbers": numbers, "text": caption(numbers)}


def difference(row: Row, expected: Row | str) -> str:
    """Describe the difference in words. Return an empty text if there is none."""
    if isinstance(expected, str):
        return f"{expected}: {row}"
    return "" if row == expected else f"{row} came instead of {expected}"


def _to_come(result: Row | Injection, *, is_reset: bool, seed: int | None) -> _Asked:
    if isinstance(result, Row):
        return _Asked(is_reset, seed, row=result)
    where, fault = result
    return _Asked(is_reset, seed, loss=f"{fault.value} {where.value}")


def _seed_shown(observation: Any) -> int:
    numbers = observation["numbers"] if isinstance(observation, dict) else observation
    return int(numbers[1])


def rows_of_reset(observations: Any, infos: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a batch that has no rewards and flags."""
    if isinstance(observations, dict):
        numbers, texts = map(tuple, observations["numbers"].tolist()), observations["text"]
        shown: list[Any] = [{"numbers": one, "text": text} for one, text in zip(numbers, texts, strict=True)]
    else:
        shown = [tuple(numbers) for numbers in observations.tolist()]
    return [Row(one, _info(infos, row)) for row, one in enumerate(shown)]


def rows_of_step(
    observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Mapping[str, Any]
) -> list[Row]:
    """Return the rows of a whole batch."""
    flags = zip(rewards.tolist(), terminated.tolist(), truncated.tolist(), strict=True)
    rows = zip(rows_of_reset(observations, infos), flags, strict=True)
    return [Row(row.observation, row.info, *flag) for row, flag in rows]


def row_of(result: Sequence[Any]) -> Row:
    """Return the row of a single env."""
    observation, reward, terminated, truncated, info = map(_plain, result)
    return Row(observation, info, reward, terminated, truncated)


def _info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the infos of one row from a batch of infos: all entries that the masks mark."""
    keys = (key for key in infos if not key.startswith("_") and infos[f"_{key}"][row])
    return {key: _info(column, row) if isinstance(column := infos[key], dict) else _plain(column[row]) for key in keys}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class WorkerState:
    """Process id and number of restarts of a worker, from `stats`."""

    pid: int
    restarts: int


@dataclass(slots=True)
class _Worker:
    envs: tuple[int, ...]
    before: WorkerState
    """State of the worker at the end of the previous call."""
    now: WorkerState
    blamed: bool = False
    """True if a fault may end this process."""
    doomed: bool = False
    """True if a fault has certainly ended this process: no env that is requested from now on can answer."""
    breaking: bool = False
    """True if a fault that ends the process was ordered in the current call."""

    @property
    def is_new(self) -> bool:
        return self.now.pid != self.before.pid

    @property
    def num_attempts(self) -> int:
        return self.now.restarts - self.before.restarts


class Model:
    """Model of all envs and workers of a manager."""

    def __init__(self, slices: Sequence[Sequence[int]], mode: AutoresetMode, form: Form) -> None:
        nothing = WorkerState(0, 0)
        self._workers = [_Worker(tuple(envs), nothing, nothing) for envs in slices]
        self.envs = [EnvReplay(env, mode, form) for envs in slices for env in envs]
        self._owner = [worker for worker in self._workers for _ in worker.envs]
        self.seeds = SeedTree(0)

    # ---- requests and faults ----------------------------------------------------------------------------------------

    def begin(self, states: Sequence[WorkerState]) -> None:
        """Record the state of the workers before the first request."""
        for worker, state in zip(self._workers, states, strict=True):
            worker.before = worker.now = state

    def begin_seeds(self, seeds: SeedTree) -> None:
        """Take fresh seeds from this tree from now on, and count them from the beginning."""
        self.seeds = seeds
        for replay, worker in zip(self.envs, self._owner, strict=True):
            replay.last_fresh, replay.restarts_then = 0, worker.now.restarts

    def ask_step(self, env: int, action: Numbers) -> Injection | None:
        """Record a request to step an env. Return the fault that it causes, or None."""
        return self._ask(env, self.envs[env].ask_step(action))

    def ask_reset(self, env: int, seed: int | None) -> Injection | None:
        """Record a request to reset an env. Return the fault that it causes, or None."""
        return self._ask(env, self.envs[env].ask_reset(seed))

    def _ask(self, env: int, due: Injection | None) -> Injection | None:
        worker, asked = self._owner[env], self.envs[env].asked
        if worker.doomed and asked is not None:
            asked.loss = "its worker had been hit by a signal"
        if due is not None and due[1] in ENDS_THE_WORKER:
            worker.blamed = worker.breaking = True
        return due

    def blame(self, worker: int) -> bool:
        """Record that the process of this worker may end from now on. Return True if that was not known."""
        known, self._workers[worker].blamed = self._workers[worker].blamed, True
        return not known

    def struck(self, worker: int, pid: int) -> None:
        """Record that a signal has reached `pid`, the process of this worker at the end of the last call.

        If the process has not been replaced since, it sends no more answers, except those that are already on their
        way.
        """
        if self._workers[worker].before.pid == pid:
            self._workers[worker].blamed = self._workers[worker].doomed = True

    def can_break(self, env: int) -> bool:
        """Return True if a fault can be ordered: the env's next result is known, and its worker has no fault yet."""
        replay, worker = self.envs[env], self._owner[env]
        return replay.is_sure and not replay.is_resetting and not worker.blamed

    # ---- answers ----------------------------------------------------------------------------------------------------

    def check(self, rows: Mapping[int, Row], states: Sequence[WorkerState], *, together: bool) -> list[str]:
        """Return descriptions of the errors in the rows of a call, and in the workers after the call.

        With `together` all envs of a worker answer at once (`step`, `reset`), otherwise each answers separately
        (`recv`).
        """
        told = {env for env, row in rows.items() if RESTARTED in row.info}
        wrong = []
        for number, (worker, state) in enumerate(zip(self._workers, states, strict=True)):
            worker.now = state
            if worker.is_new and not worker.blamed and not self._curse_ends(worker, told):
                wrong.append(f"worker {number} was replaced, though nothing had been done to it")
            if together and worker.breaking:
                self._lose_asked(worker.envs)
        wrong += [f"env {env}: {text}" for env, row in rows.items() if (text := self._answer(env, row, together))]
        for worker in self._workers:
            self._follow(worker, told)
        return wrong

    def _answer(self, env: int, row: Row, together: bool) -> str:
        replay, worker = self.envs[env], self._owner[env]
        before, shaken, was_sure = replay.last_fresh, replay.shaken, replay.is_sure
        text = replay.answer(row, self._fresh(env), may_tell=worker.blamed or worker.is_new)
        if replay.last_fresh != before:
            replay.restarts_then = replay.restarts_then + 1 if shaken else worker.before.restarts
        elif shaken and RESTARTED not in row.info:
            replay.lose()
        replay.shaken = False
        # The answer may report an earlier loss. Envs that `recv` restarts later can cost this env the new episode, too.
        replay.may_be_new = worker.is_new and not together and not (was_sure and worker.num_attempts == 1)
        if (
            shaken and RESTARTED in row.info
        ):  # the env may have answered before the replacement and reported another loss
            replay.may_be_new = True
        return text

    def _fresh(self, env: int) -> dict[int, int]:
        """Return the seeds that the env may have been given since its last known one, from its worker's restarts."""
        replay = self.envs[env]
        first, count = replay.last_fresh + 1, self._owner[env].now.restarts - replay.restarts_then
        return {self.seeds.child("restart", env, number).seed(): number for number in range(first, first + count)}

    def _lose_asked(self, envs: Iterable[int]) -> None:
        for asked in (self.envs[env].asked for env in envs):
            if asked is not None and not asked.loss:
                asked.loss = "its worker was ended by a fault in this call"

    def _curse_ends(self, worker: _Worker, told: Container[int]) -> bool:
        """Return True if an env that was replaced alone may have got a seed that ends the worker."""
        return any(curse(seed) in ENDS_THE_WORKER for env in worker.envs if env in told for seed in self._fresh(env))

    def _follow(self, worker: _Worker, told: Container[int]) -> None:
        """Mark the envs of a replaced worker that have not reported the loss yet. Their next answer reports it."""
        if worker.is_new:
            for replay in (self.envs[env] for env in worker.envs if env not in told):
                if replay.asked is None:
                    replay.lose()
                else:
                    replay.shaken = True
            worker.blamed = worker.doomed = worker.breaking = False
        worker.before = worker.now
