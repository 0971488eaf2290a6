"""A serial replay of one env of the soak, which no process takes part in: what it has to answer, row by row.

A row may tell of a lost episode only if something was done that may have cost it, and must tell of it if that was
certain. The course is then replaced by one of a fresh seed, which must be among those that are next in the seed tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gymnasium.vector import AutoresetMode

from parallel_envs.bench.soak_env import Course, Form, Info, Numbers, caption
from parallel_envs.testing.scripted import Fault

RESTARTED = "worker_restarted"


class Where(Enum):
    """When a fault happens: inside the env, from outside by a signal to its worker, or around the workers."""

    STEP = "in step"
    RESET = "in reset"
    AUTORESET = "in autoreset"
    WAITING = "signal, waiting"
    IDLE = "signal, idle"
    AROUND = "around it"


class Disturbance(Enum):
    """What is done around the workers. It costs no env its episode."""

    FLOOD = "flood of output"
    STOPPED_KEEPER = "keeper stopped"
    FORK = "caller forked"
    EVALUATION = "evaluation's worker killed"
    LEFT_READER = "stderr's reader left"
    KILLED_PROGRAM = "flooding program killed"


Injection = tuple[Where, Fault | Disturbance]


@dataclass(frozen=True, slots=True)
class Row:
    """What came back for one env, in plain values. A reset says nothing of rewards and flags."""

    observation: Any
    info: Info
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


@dataclass(slots=True)
class _Asked:
    """What an env has been asked. `row` is the answer, if that is known and nothing comes in between."""

    is_reset: bool
    seed: int | None = None
    row: Row | None = None
    loss: str = ""
    """Why the answer has to tell of a lost episode, if it has to."""


class EnvReplay:
    """One env: its course (None: a new one, whose fresh seed has not shown yet), and what it has been asked."""

    def __init__(self, env: int, mode: AutoresetMode, form: Form) -> None:
        self.env, self._mode, self._form = env, mode, form
        self.course: Course | None = Course(env)
        self.asked: _Asked | None = None
        self.is_resetting = False
        """Whether its next step will reset it instead."""
        self.may_be_new = False
        """Whether a second new course may have taken the place of the one that its last row began."""
        self.shaken = False
        """Whether its worker was replaced while it was on its way: it is lost, told in this answer or in the next."""
        self.last_fresh, self.restarts_then = 0, 0
        """Which fresh seed it was seen with last, and how often its worker had been restarted before that."""

    @property
    def is_sure(self) -> bool:
        """Whether the course is the one that the env is on."""
        return not (self.course is None or self.may_be_new or self.shaken)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def ask_step(self, action: Numbers) -> Injection | None:
        """It is asked to step. Returns the fault that this brings about."""
        if self.course is None:
            self.asked = _Asked(is_reset=False, loss="its worker had been replaced")
            return None
        result = self._reset_instead(self.course) if self.is_resetting else self._step(self.course, action)
        self.asked = _to_come(result, is_reset=False, seed=None)
        return None if isinstance(result, Row) else result

    def ask_reset(self, seed: int | None) -> Injection | None:
        """The same for a reset."""
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

    # ---- answering --------------------------------------------------------------------------------------------------

    def answer(self, row: Row, fresh: Mapping[int, int], *, may_tell: bool) -> str:
        """What is wrong with the row that came back; nothing, if all is right.

        `fresh`: the seeds that a new env may have been given, and the number of each. `may_tell`: something was done to
        the worker.
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
        """The first row of a new env, which the answer's own seed says which it is."""
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
        """It has been replaced by one that has not shown itself yet."""
        self.course, self.is_resetting, self.may_be_new, self.shaken = None, False, False, False


def shown(numbers: Numbers, form: Form) -> Any:
    """What `observation` makes of these numbers, in plain values."""
    return numbers if form == "array" else {"numbers": numbers, "text": caption(numbers)}


def difference(row: Row, expected: Row | str) -> str:
    """In words; nothing, if they are the same."""
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
