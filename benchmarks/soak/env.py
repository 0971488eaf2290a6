"""Environment of the soak. All its results are predictable, and it breaks when an action orders it to.

`Course` is the behaviour: a state machine of plain numbers, which both the worker and the model run. `SoakEnv` runs a
course in a worker and breaks there. An action is `(value, order)`: the value enters the digest that all later results
depend on, and the order selects whether and how the env breaks, now or at the next reset.
"""

from __future__ import annotations

import faulthandler
import os
import struct
import time
import zlib
from typing import Any, Final, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from parallel_envs.testing.scripted import Fault, FaultyEnv, Moment

Form: TypeAlias = Literal["array", "dict"]
Info: TypeAlias = dict[str, Any]
Numbers: TypeAlias = tuple[int, ...]

INSIDE: Final = tuple(fault for fault in Fault if fault is not Fault.HUGE_REPLY)
"""Faults that an action can order."""

ENDS_THE_WORKER: Final = frozenset(
    {Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGSTOP, Fault.OS_EXIT, Fault.INFINITE_LOOP, Fault.SLEEP}
)
"""Faults after which the whole worker has to be replaced. The other faults cost only one env its episode."""

FIRST_FRESH_SEED: Final = 1 << 20
"""Smallest seed that can be cursed. The soak's own seeds are smaller; seeds of a seed tree are hardly ever so small."""

NUM_VALUES: Final = 1000
LINGER: Final = 1
LINGER_SECONDS: Final = 0.02
FLOOD: Final = 2
FLOOD_BYTES: Final = 500_000
"""Bytes that an env writes in one step on the order FLOOD, to its standard output and its standard error in turn."""

_FIRST_FAULT: Final = 3
_MOMENTS: Final = (Moment.STEP, Moment.RESET)
_CURSES: Final = (Fault.EXCEPTION, Fault.SIGKILL, Fault.OS_EXIT)
_ONE_CURSED_IN: Final = 12


def order(fault: Fault, moment: Moment) -> int:
    """Return the order that makes an env break in this step, or at its next reset of any kind."""
    return _FIRST_FAULT + _MOMENTS.index(moment) * len(INSIDE) + INSIDE.index(fault)


NUM_ORDERS: Final = _FIRST_FAULT + len(_MOMENTS) * len(INSIDE)


def meaning(number: int) -> tuple[Moment, Fault] | None:
    """Return the moment and fault of an order, the inverse of `order`. None means that the env does not break."""
    if number < _FIRST_FAULT:
        return None
    moment, fault = divmod(number - _FIRST_FAULT, len(INSIDE))
    return _MOMENTS[moment], INSIDE[fault]


def curse(seed: int | None) -> Fault | None:
    """Return the fault of a reset with this seed, or None.

    A few of the fresh seeds have a fault, so that restarts sometimes fail, too.
    """
    if seed is None or seed < FIRST_FRESH_SEED or seed % _ONE_CURSED_IN:
        return None
    return _CURSES[seed // _ONE_CURSED_IN % len(_CURSES)]


class Course:
    """Behaviour of env number `env`, apart from faults. All its numbers follow from its seed and its actions."""

    def __init__(self, env: int) -> None:
        self.env, self.seed, self.episode, self.elapsed = env, 0, 0, 0
        self.ended = True
        self._digest = self._start = 0
        self._armed: Fault | None = None

    def fault_of_step(self, action: Numbers) -> Fault | None:
        """Return the fault of a step with this action, or None."""
        told = meaning(action[1])
        return told[1] if told is not None and told[0] is Moment.STEP else None

    def fault_of_reset(self, seed: int | None) -> Fault | None:
        """Return the fault of a reset in the current state, or None."""
        return self._armed or curse(seed)

    def reset(self, seed: int | None) -> Info:
        """Begin the first episode of a seed or, with None, the next episode of the same seed."""
        self.seed, self.episode = (self.seed, self.episode + 1) if seed is None else (seed, 0)
        self.elapsed, self.ended = 0, False
        self._start = self._digest = zlib.crc32(struct.pack("=3q", self.env, self.seed, self.episode))
        return {"began": self.episode}

    def step(self, action: Numbers) -> tuple[float, bool, bool, Info]:
        """Return reward, terminated, truncated and info."""
        if self.ended:
            raise RuntimeError(f"env {self.env} was stepped after the end of episode {self.episode}")
        told = meaning(action[1])
        if told is not None and told[0] is Moment.RESET:
            self._armed = told[1]
        self.elapsed += 1
        self._digest = zlib.crc32(struct.pack("=2q", *action), self._digest)
        self.ended = self.elapsed > 1 + self._start % 15
        terminates = bool(self._start & 1024)
        return self._digest % 1000 / 8, self.ended and terminates, self.ended and not terminates, self._info()

    def numbers(self) -> Numbers:
        """Return the state of the course, which is the content of an observation."""
        return self.env, self.seed, self.episode, self.elapsed, self._digest

    def _info(self) -> Info:
        """Return an info that is empty, has numbers, or has to be pickled.

        Each kind travels to the caller in its own way.
        """
        match self.elapsed % 3:
            case 0:
                return {}
            case 1:
                return {"digest": self._digest, "inner": {"elapsed": self.elapsed}}
            case _:
                return {"note": caption(self.numbers())}


def caption(numbers: Numbers) -> str:
    """Return the numbers as text, which travels by pipe."""
    return "n".join(map(str, numbers))


class SoakEnv(gymnasium.Env[Any, Any]):
    """Env that runs a course in a worker.

    With `form` "array" an observation is an array, with "dict" a dict of an array and a text.
    """

    def __init__(self, env: int, form: Form) -> None:
        # The tracebacks of ordered crashes would bury all other output of a soak.
        faulthandler.disable()
        numbers = spaces.Box(0, np.iinfo(np.int64).max, (5,), np.int64)
        text = spaces.Text(120)
        self.observation_space = numbers if form == "array" else spaces.Dict(numbers=numbers, text=text)
        self.action_space = spaces.MultiDiscrete([NUM_VALUES, NUM_ORDERS])
        self._course, self._form = Course(env), form

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        _break(self._course.fault_of_reset(seed))
        if options and self._course.env in options.get("linger", ()):
            time.sleep(LINGER_SECONDS)
        info = self._course.reset(seed)
        return observation(self._course.numbers(), self._form), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        numbers = tuple(action.tolist())
        _break(self._course.fault_of_step(numbers))
        if numbers[1] == LINGER:
            time.sleep(LINGER_SECONDS)
        elif numbers[1] == FLOOD:
            flood(1 + self._course.elapsed % 2, FLOOD_BYTES)
        result = self._course.step(numbers)
        return observation(self._course.numbers(), self._form), *result


def observation(numbers: Numbers, form: Form) -> Any:
    """Return the observation for the numbers of a course."""
    array = np.array(numbers, np.int64)
    return array if form == "array" else {"numbers": array, "text": caption(numbers)}


def flood(descriptor: int, num_bytes: int) -> None:
    """Write `num_bytes` to a descriptor, in lines."""
    lines = (b"." * 99 + b"\n") * 10
    for _ in range(num_bytes // len(lines)):
        os.write(descriptor, lines)


def _break(fault: Fault | None) -> None:
    if fault is not None:
        FaultyEnv(fault, Moment.CALL).poke()
