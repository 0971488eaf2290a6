"""An environment whose whole course follows from its seed and the actions it gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from hashlib import blake2b
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Ending = Literal["terminated", "truncated", "both"]


class RewardKind(Enum):
    """The forms in which environments return a reward."""

    FLOAT = "a Python float"
    INTEGER = "a Python int"
    SCALAR = "a numpy scalar"
    ARRAY = "an array of shape (1,)"


class InfoKind(Enum):
    """What an info dict may hold; an env may mix them."""

    SCALARS = "numbers and flags of many types"
    NESTED = "dicts in dicts"
    STRINGS = "text and None"
    ARRAYS = "arrays"
    FLICKERING = "keys that come and go from step to step"


class ScriptedEnv(gym.Env[Any, Any]):
    """A cheap env for any spaces: the same seed, options and actions always give the same bits, anywhere.

    Each value is drawn from the digest of (seed, number of the episode, options, all actions of the episode
    with their dtypes), so a lost, repeated, reordered, cast or misdirected action changes all that follows.
    A `reset` with a seed starts again at episode 0; one without goes on to the next episode.

    Args:
        observation_space: the space observations are drawn from.
        action_space: the space of actions; actions are not checked against it.
        episode_lengths: lengths in steps, taken in turn from a start that depends on the seed.
        endings: how episodes end, taken in turn likewise.
        rewards: the forms of reward, taken in turn step by step.
        infos: what the infos hold; empty dicts by default.
        reuse_buffers: return the same arrays and dicts each time with new content, as many native envs do.
        render_mode: "rgb_array" for a small picture of the digest.

    A step before the first reset or after an episode's end is a RuntimeError.
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
        self.observation_space = _own(observation_space, self.default_observation_space)
        self.action_space = _own(action_space, self.default_action_space)
        self.episode_lengths = tuple(episode_lengths)
        self.endings = tuple(endings)
        self.reward_kinds = tuple(rewards)
        self.info_kinds = tuple(infos)
        self.reuse_buffers = reuse_buffers
        self.render_mode = render_mode
        self.episode = -1
        self.elapsed = 0
        self.ended = True
        self.last_action: Any = None
        self._digest = b""
        self._sampler = deepcopy(self.observation_space)
        self._observation: Any = None
        self._info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode, or with a seed the first one of that seed."""
        super().reset(seed=seed)
        self.episode = self.episode + 1 if seed is None else 0
        self.elapsed = 0
        self.ended = False
        self._digest = _digest(self._script(), self.episode, options)
        return self._observe(), self._inform()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the action into the digest and return what follows from it."""
        if self.ended:
            raise RuntimeError(f"step({action!r}) after the end of episode {self.episode}. Call reset first.")
        self.elapsed += 1
        self.last_action = action
        self._digest = _digest(self._digest, action)
        ending = self._ending()
        self.ended = ending is not None
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

    def _script(self) -> int:
        """Return the seed behind the whole course, which is drawn by Gymnasium if none was ever given."""
        return self.np_random_seed

    def _key(self) -> int:
        return int.from_bytes(self._digest[:4], "little")

    def _ending(self) -> Ending | None:
        turn = self._script() + self.episode
        if self.elapsed < self.episode_lengths[turn % len(self.episode_lengths)]:
            return None
        return self.endings[turn % len(self.endings)]

    def _observe(self) -> Any:
        self._sampler.seed(self._key())
        drawn = self._sampler.sample()
        self._observation = _refilled(self._observation, drawn) if self.reuse_buffers else drawn
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
        drawn: dict[str, Any] = {}
        for kind in self.info_kinds:
            drawn |= _info_of(kind, self._key())
        self._info = _refilled(self._info, drawn) if self.reuse_buffers else drawn
        return self._info


def _own(space: spaces.Space[Any] | None, default: spaces.Space[Any]) -> spaces.Space[Any]:
    return deepcopy(default if space is None else space)


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
        return _refilled_array(buffer, value)
    if isinstance(value, dict):
        kept = buffer if isinstance(buffer, dict) else {}
        fresh = {key: _refilled(kept.get(key), item) for key, item in value.items()}
        kept.clear()
        kept.update(fresh)
        return kept
    if type(value) is tuple and isinstance(buffer, tuple) and len(buffer) == len(value):
        return tuple(_refilled(old, new) for old, new in zip(buffer, value, strict=True))
    return value


def _refilled_array(buffer: Any, value: np.ndarray[Any, Any]) -> Any:
    if not isinstance(buffer, np.ndarray) or (buffer.shape, buffer.dtype) != (value.shape, value.dtype):
        return value
    np.copyto(buffer, value)
    return buffer


def _info_of(kind: InfoKind, key: int) -> dict[str, Any]:
    number = key % 251
    match kind:
        case InfoKind.SCALARS:
            return _scalars(number)
        case InfoKind.NESTED:
            return {"nested": {"level": number, "deeper": {"half": number / 2, "name": f"n{number}"}}}
        case InfoKind.STRINGS:
            return {"text": f"step {number}", "nothing": None}
        case InfoKind.ARRAYS:
            return _arrays(number)
        case InfoKind.FLICKERING:
            return _flickering(number)


def _scalars(number: int) -> dict[str, Any]:
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


def _arrays(number: int) -> dict[str, Any]:
    return {
        "vector": np.full(3, number, np.float32),
        "table": np.full((2, 2), number),
        "point": np.array(number),
    }


def _flickering(number: int) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    if number % 2:
        drawn["odd"] = number
    if number % 3 == 0:
        drawn["third"] = {"number": number, "text": f"t{number}"}
    if number % 5 == 0:
        drawn["fifth"] = f"f{number}"
    return drawn
