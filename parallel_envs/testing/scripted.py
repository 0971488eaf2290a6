"""Envs for tests: `ScriptedEnv`, which repeats to the bit, and `FaultyEnv`, which breaks on purpose.

Every value that a `ScriptedEnv` returns follows from its seed and the actions that it gets. A `FaultyEnv` is a
`ScriptedEnv` with one chosen fault at one chosen moment.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Ending = Literal["terminated", "truncated", "both"]


class RewardKind(Enum):
    """The forms in which envs return a reward."""

    FLOAT = "a Python float"
    INTEGER = "a Python int"
    SCALAR = "a numpy scalar"
    ARRAY = "an array of shape (1,)"


class InfoKind(Enum):
    """The kinds of content of an info dict. An env may mix them."""

    SCALARS = "numbers and flags of many types"
    NESTED = "dicts in dicts"
    STRINGS = "text and None"
    ARRAYS = "arrays"
    FLICKERING = "keys that come and go from step to step"


class ScriptedEnv(gym.Env[Any, Any]):
    """A cheap env for any spaces: the same seed, options and actions always give the same bits, anywhere.

    Each value is sampled from the digest of (seed, number of the episode, options, all actions of the episode with
    their dtypes). So an action that is lost, repeated, reordered, cast or misdirected changes every later value.
    A `reset` with a seed starts again at episode 0; a `reset` without one starts the next episode.

    Args:
        observation_space: the space that observations are sampled from.
        action_space: the space of actions; actions are not checked against it.
        episode_lengths: lengths in steps, taken in turn from a start that depends on the seed.
        endings: the ways in which episodes end, taken in turn likewise.
        rewards: the forms of reward, taken in turn step by step.
        infos: the content of the infos; empty dicts by default.
        reuse_buffers: return the same arrays and dicts each time with new content, as many native envs do.
        render_mode: "rgb_array" for a small picture of the digest.

    A step before the first reset or after an episode's end raises RuntimeError.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  Gymnasium's own form

    default_observation_space: ClassVar[spaces.Space[Any]] = spaces.Box(-1.0, 1.0, (3,), np.float32)
    default_action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(3)

    def __init__(
        self,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        *,
        episode_lengths: Sequence[int] = (3, 5, 2),
        endings: Sequence[Ending] = ("terminated", "truncated"),
        rewards: Sequence[RewardKind] = (RewardKind.FLOAT,),
        infos: Collection[InfoKind] = (),
        reuse_buffers: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = deepcopy(
            self.default_observation_space if observation_space is None else observation_space
        )
        self.action_space = deepcopy(self.default_action_space if action_space is None else action_space)
        self.episode_lengths, self.endings = tuple(episode_lengths), tuple(endings)
        self.reward_kinds, self.info_kinds = tuple(rewards), tuple(infos)
        self.reuse_buffers, self.render_mode = reuse_buffers, render_mode
        self.episode, self.elapsed, self.ended = -1, 0, True
        self.last_action: Any = None
        self._digest = b""
        self._sampler = deepcopy(self.observation_space)
        self._observation: Any = None
        self._info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode, or with a seed the first episode of that seed."""
        super().reset(seed=seed)
        self.episode = self.episode + 1 if seed is None else 0
        self.elapsed = 0
        self.ended = False
        self._digest = _digest(self.np_random_seed, self.episode, options)  # Gymnasium samples a seed if none was given
        return self._observe(), self._inform()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Add the action to the digest, and return the values that follow from the digest."""
        if self.ended:
            raise RuntimeError(f"step({action!r}) after the end of episode {self.episode}. Call reset first.")
        self.elapsed += 1
        self.last_action = action
        self._digest = _digest(self._digest, action)
        turn = self.np_random_seed + self.episode
        self.ended = self.elapsed >= self.episode_lengths[turn % len(self.episode_lengths)]
        ending = self.endings[turn % len(self.endings)] if self.ended else None
        terminated, truncated = ending in ("terminated", "both"), ending in ("truncated", "both")
        return self._observe(), self._reward(), terminated, truncated, self._inform()

    def render(self) -> Any:
        """Return 8 x 8 pixels that follow from the digest."""
        if self.render_mode != "rgb_array":
            return None
        return np.resize(np.frombuffer(self._digest, np.uint8), (8, 8, 3)).copy()

    def echo(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, to show that a call arrived whole."""
        return args, kwargs

    def _key(self) -> int:
        return int.from_bytes(self._digest[:4], "little")

    def _observe(self) -> Any:
        self._sampler.seed(self._key())
        sampled = self._sampler.sample()
        self._observation = _refilled(self._observation, sampled) if self.reuse_buffers else sampled
        return self._observation

    def _reward(self) -> Any:
        value = self._key() % 2001 / 8 - 125
        match self.reward_kinds[self.elapsed % len(self.reward_kinds)]:
            case RewardKind.FLOAT:
                return value
            case RewardKind.INTEGER:
                return int(value)
            case RewardKind.SCALAR:
                return np.float32(value)
            case RewardKind.ARRAY:
                return np.array([value])

    def _inform(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for kind in self.info_kinds:
            info |= _info_of(kind, self._key() % 251)
        self._info = _refilled(self._info, info) if self.reuse_buffers else info
        return self._info


def _info_of(kind: InfoKind, number: int) -> dict[str, Any]:
    match kind:
        case InfoKind.SCALARS:
            return {
                "int": number,
                "float": number / 7,
                "bool": number % 2 == 0,
                "int64": np.int64(number),
                "float32": np.float32(number / 7),
                "float16": np.float16(number / 7),
                "uint8": np.uint8(number),
                "bool_": np.bool_(number % 2),
            }
        case InfoKind.NESTED:
            return {"nested": {"level": number, "deeper": {"half": number / 2, "name": f"n{number}"}}}
        case InfoKind.STRINGS:
            return {"text": f"step {number}", "nothing": None}
        case InfoKind.ARRAYS:
            vector, table = np.full(3, number, np.float32), np.full((2, 2), number)
            return {"vector": vector, "table": table, "point": np.array(number)}
        case InfoKind.FLICKERING:
            odd = {"odd": number} if number % 2 else {}
            third = {"third": {"number": number, "text": f"t{number}"}} if number % 3 == 0 else {}
            fifth = {"fifth": f"f{number}"} if number % 5 == 0 else {}
            return {**odd, **third, **fifth}


def _digest(*parts: Any) -> bytes:
    return blake2b(b"\0".join(map(_bytes_of, parts)), digest_size=8).digest()


def _bytes_of(value: Any) -> bytes:
    """Return bytes that tell values apart by content, shape and dtype, the same in every process."""
    if isinstance(value, Mapping):
        return b"{" + b",".join(_bytes_of(key) + b":" + _bytes_of(value[key]) for key in sorted(value)) + b"}"
    if isinstance(value, (tuple, list)):
        return b"(" + b",".join(map(_bytes_of, value)) + b")"
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        array = np.asarray(value)
        return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()
    return value if isinstance(value, bytes) else repr(value).encode()


def _refilled(buffer: Any, value: Any) -> Any:
    """Return `value` in the arrays and dicts of `buffer` wherever the two have the same form."""
    if isinstance(value, np.ndarray):
        if not isinstance(buffer, np.ndarray) or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
            return value
        np.copyto(buffer, value)
        return buffer
    if isinstance(value, dict):
        kept = buffer if isinstance(buffer, dict) else {}
        fresh = {key: _refilled(kept.get(key), item) for key, item in value.items()}
        kept.clear()
        kept.update(fresh)
        return kept
    if type(value) is tuple and isinstance(buffer, tuple) and len(buffer) == len(value):
        return tuple(_refilled(old, new) for old, new in zip(buffer, value, strict=True))
    return value


# ---- faults ----------------------------------------------------------------------------------------------------------

EXIT_CODE: Final = 17  # exit status of `Fault.OS_EXIT` and `Fault.SYSTEM_EXIT`


class Fault(Enum):
    """The kinds of faults of a `FaultyEnv`."""

    SIGKILL = "sigkill"
    SIGSEGV = "sigsegv"
    SIGSTOP = "sigstop"
    OS_EXIT = "os_exit"
    EXCEPTION = "exception"
    UNPICKLABLE_EXCEPTION = "unpicklable_exception"
    TWO_ARGUMENT_EXCEPTION = "two_argument_exception"
    SYSTEM_EXIT = "system_exit"
    INFINITE_LOOP = "infinite_loop"
    SLEEP = "sleep"
    HUGE_REPLY = "huge_reply"


class Moment(Enum):
    """The moments of a fault. `IDLE` is shortly after a step has returned, while no call runs."""

    CONSTRUCTOR = "constructor"
    RESET = "reset"
    STEP = "step"
    AUTORESET = "autoreset"
    CALL = "call"
    CLOSE = "close"
    IDLE = "idle"


_ALL: Final = frozenset(Fault)
_ENDS_THE_PROCESS: Final = frozenset({Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGSTOP, Fault.OS_EXIT})

FAULTS_AT: Final[Mapping[Moment, frozenset[Fault]]] = MappingProxyType(
    dict.fromkeys((Moment.CONSTRUCTOR, Moment.RESET, Moment.STEP, Moment.AUTORESET, Moment.CALL), _ALL)
    | {Moment.CLOSE: _ALL - {Fault.HUGE_REPLY}, Moment.IDLE: _ENDS_THE_PROCESS | {Fault.INFINITE_LOOP}}
)
"""The faults that can happen at each moment: `close` has no reply, and an idle env has no caller to raise to."""


class UnpicklableError(Exception):
    """An error that cannot be pickled, since it holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class TwoArgumentError(Exception):
    """An error that can be pickled but not unpickled, since its constructor takes two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}{second}")


class FaultyEnv(ScriptedEnv):
    """A `ScriptedEnv` that breaks.

    Args:
        fault: the fault, as `Fault` or its value.
        moment: the moment, as `Moment` or its value. `CALL` is the method `poke`; `AUTORESET` is a reset after an
            episode's end.
        at: the occurrence of the moment at which the env breaks, counted from 1. For `IDLE` these are steps.
        seconds: duration of `SLEEP`.
        num_bytes: size that `HUGE_REPLY` adds to the info, the result of `poke`, or (constructor) the metadata.
        once: a file that the first env to break creates. No env breaks once it exists, so a restarted env lives.
        scripted: all other arguments of `ScriptedEnv`.

    With the backends serial and thread, the faults that end a process end the caller's own process.
    """

    def __init__(
        self,
        fault: Fault | str,
        moment: Moment | str,
        *,
        at: int = 1,
        seconds: float = 3600.0,
        num_bytes: int = 64 << 20,
        once: Path | None = None,
        **scripted: Any,
    ) -> None:
        super().__init__(**scripted)
        self.fault, self.moment = Fault(fault), Moment(moment)
        if self.fault not in FAULTS_AT[self.moment]:
            raise ValueError(f"{self.fault} cannot happen at {self.moment}. See testing.FAULTS_AT.")
        self.at, self.seconds, self.num_bytes, self.once, self.occurrences = at, seconds, num_bytes, once, 0
        self.metadata = {**self.metadata, **_huge(self._reach(Moment.CONSTRUCTOR))}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or break."""
        reply = self._reach(Moment.AUTORESET if self.ended and self.elapsed else Moment.RESET)
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, **_huge(reply)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, or break."""
        reply = self._reach(Moment.STEP)
        observation, reward, terminated, truncated, info = super().step(action)
        if self._is_due(Moment.IDLE):
            timer = threading.Timer(0.05, self._inflict)
            timer.daemon = True
            timer.start()
        return observation, reward, terminated, truncated, {**info, **_huge(reply)}

    def poke(self) -> bytes:
        """Return no bytes, or break."""
        return self._reach(Moment.CALL)

    def close(self) -> None:
        self._reach(Moment.CLOSE)
        super().close()

    def _reach(self, moment: Moment) -> bytes:
        """Break if the fault is due at this moment. Return the bytes that make the reply huge, or none."""
        return self._inflict() if self._is_due(moment) else b""

    def _is_due(self, moment: Moment) -> bool:
        if moment is not self.moment:
            return False
        self.occurrences += 1
        if self.occurrences != self.at:
            return False
        try:
            if self.once is not None:
                self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _inflict(self) -> bytes:
        text = f"injected fault at {self.moment.value}"
        match self.fault:
            case Fault.SIGKILL | Fault.SIGSEGV | Fault.SIGSTOP:
                os.kill(os.getpid(), getattr(signal, self.fault.name))
            case Fault.OS_EXIT:
                os._exit(EXIT_CODE)
            case Fault.INFINITE_LOOP:
                while True:
                    pass
            case Fault.SLEEP:
                time.sleep(self.seconds)
            case Fault.HUGE_REPLY:
                return bytes(self.num_bytes)
            case Fault.SYSTEM_EXIT:
                raise SystemExit(EXIT_CODE)
            case Fault.UNPICKLABLE_EXCEPTION:
                raise UnpicklableError(text)
            case Fault.TWO_ARGUMENT_EXCEPTION:
                raise TwoArgumentError(text, "!")
            case Fault.EXCEPTION:
                raise ValueError(text)
        return b""


def _huge(reply: bytes) -> dict[str, bytes]:
    return {"huge": reply} if reply else {}
