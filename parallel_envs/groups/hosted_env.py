"""An environment in its process: `HostedEnv` makes it, resets it, plays its turns and replays its episode.

`GlobalRandomGuard` wraps an environment that draws from the global generators, `RagenEnv` one written for RAGEN.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import reraise_ctrl_c
from parallel_envs.groups.interface import (
    INVALID,
    RAW_REWARD,
    Outcome,
    actions_by_name,
    check_images,
    fold_name,
    read_flag,
    read_outcome,
)
from parallel_envs.groups.transport import Job, Played, Replay
from parallel_envs.seeding import GlobalStates, global_states_kept
from parallel_envs.vector.registry import OwnedEnvs

_IMMUTABLE = frozenset({str, float, int, bool, type(None)})


@dataclass(frozen=True, slots=True)
class TagSpec:
    """Factory of the environments of a tag, and how they are used."""

    tag: str
    factory: Callable[[Any], Any]
    config: Any
    threads: int = 1
    most_actions: int = sys.maxsize


class HostedEnv:
    """An environment and the state of its episode.

    With `copies`, answers are copies: a caller of the same process would otherwise see the environment write into them.
    `owned` knows which environment of this process each object belongs to, by `number`.
    """

    def __init__(self, spec: TagSpec, *, copies: bool = False, number: int = 0, owned: OwnedEnvs | None = None) -> None:
        self._spec, self._copies = spec, copies
        self._number, self._owned = number, owned
        self._env: Any = None
        self._state: Any = None
        self._left = 0  # of the episode's actions
        self._actions_by_name: dict[str, Any] | None = None
        self._has_meaning: Callable[[str], bool] | None = None

    @property
    def made(self) -> bool:
        return self._env is not None

    @property
    def uses_global_random(self) -> bool:
        """Return whether the environment draws from the process's generators, so that others like it wait for it."""
        return isinstance(self._env, GlobalRandomGuard)

    def make(self) -> None:
        """Construct the environment, with seeded global generators: its constructor draws the same everywhere."""
        spec = self._spec
        config = spec.config
        params = getattr(type(config), "__dataclass_params__", None)
        with seeded(0):
            if params is not None and not params.frozen:  # environments written for RAGEN write into their config
                config = copy.deepcopy(config)
            made = spec.factory(config)
            if self._owned is not None:
                self._owned.claim(self._number, made)
            if is_ragen_env(made):
                made = RagenEnv(made)
            elif "gymnasium" in sys.modules:
                from parallel_envs.groups.gymnasium_env import adapted

                made = adapted(made)
            for name in ("reset", "step"):
                if not callable(getattr(made, name, None)):
                    raise TypeError(
                        f"{_class_name(made)} has no {name}(). An environment has reset(seed, mode) and step(action)."
                    )
            self._env = GlobalRandomGuard(made) if getattr(made, "uses_global_random", False) else made

    def drop_quietly(self) -> None:
        """Close and forget the environment, and ignore what it raises. The next job makes another one."""
        env, self._env = self._env, None
        if self._owned is not None:
            self._owned.release(self._number)
        try:
            if callable(close := getattr(env, "close", None)):
                close()
        except BaseException as error:  # noqa: BLE001  # SystemExit too
            reraise_ctrl_c(error)

    # The jobs, for an environment that has been made.

    def reset(self, seed: int, mode: str) -> Any:
        """Begin an episode; return its first state."""
        self._begin(seed, mode)
        check_images(self._state)
        return _copied(self._state) if self._copies else self._state

    def _begin(self, seed: int, mode: str) -> None:
        env = self._env
        self._state, self._left = env.reset(seed, mode), self._spec.most_actions
        self._actions_by_name = actions_by_name(getattr(env, "action_lookup", None))
        self._has_meaning = getattr(env, "has_meaning", None)

    def play(self, actions: Sequence[str]) -> Played:
        """Play a turn: do as many of these actions as are left, until the episode is over."""
        names, left = self._actions_by_name, self._left
        if names is None:
            wanted: Sequence[Any] = actions if self._has_meaning is None else list(filter(self._has_meaning, actions))
        else:
            try:
                wanted = [names[action] for action in actions]  # mostly all are spelt as they are in the lookup
            except KeyError:
                wanted = [names[name] for action in actions if (name := fold_name(action)) in names]
        doable = wanted if len(wanted) <= left else wanted[:left]
        executed, following, step = [*doable], iter(doable), self._env.step
        state, terminated, truncated = self._state, False, False
        reward: float = 0  # whole numbers stay whole: RAGEN's prompts say `Reward: 0` and `Reward: 1`
        raw_reward = 0.0
        info: dict[str, Any] = {}
        update_info = info.update
        for action in following:
            returned = step(action)
            try:
                state, one, terminated, truncated, step_info = returned
                usual = (type(one) is float or type(one) is int) and type(step_info) is dict
            except (TypeError, ValueError):
                usual = False
            if not usual:
                state, one, terminated, truncated, step_info = read_outcome(returned, self._spec.tag)
            reward += one
            update_info(step_info)
            if RAW_REWARD in step_info:
                with suppress(TypeError, ValueError, OverflowError):  # no number
                    raw_reward += float(step_info[RAW_REWARD])
            if terminated or truncated:
                del executed[len(executed) - len(list(following)) :]
                break
        self._state, self._left = state, left - len(executed)
        info[RAW_REWARD] = raw_reward
        if not executed:
            info[INVALID] = True
        if type(state) is not str:
            check_images(state)
        success = info.get("success")
        if isinstance(success, str | bytes) or (isinstance(success, np.ndarray) and success.size == 1):
            info["success"] = read_flag(success, "success in its info")
        if self._copies:
            state = _copied(state)
            info = info if _IMMUTABLE.issuperset(map(type, info.values())) else copy.deepcopy(info)
        if not (terminated is truncated is False):  # the episode is over, or the flags are not bools
            terminated, truncated = read_flag(terminated), read_flag(truncated)
        over = terminated or truncated or self._left <= 0
        own, all_valid = self.measure() if over else None, 0 < len(wanted) == len(actions)
        return state, reward, terminated, truncated, info, executed, all_valid, own

    def render(self, mode: str) -> Any:
        """Return the picture or text that the environment shows: `text` or `rgb_array`."""
        if mode == "text" and not callable(getattr(self._env, "render", None)):
            shown = self._state
        else:
            shown = self._env.render(mode=mode)
        return _copied(shown) if self._copies else shown

    def measure(self) -> dict[str, float]:
        """Return the environment's own metrics."""
        metrics = getattr(self._env, "metrics", None)
        given = metrics() if callable(metrics) else {}
        try:
            return {str(name): float(value) for name, value in given.items()}
        except (AttributeError, TypeError, ValueError):
            raise TypeError(
                f"metrics() of {_class_name(self._env)} returned {given!r}. Give a dict of numbers by name."
            ) from None

    def replay(self, replay: Replay) -> Any:
        """Bring the environment to the state of its episode; return a copy of that state."""
        self._begin(replay.seed, replay.mode)
        for action in replay.actions:
            self._state = read_outcome(self._env.step(action), self._spec.tag)[0]
        self._left -= len(replay.actions)
        return _copied(self._state)


WORK: Mapping[Job, Callable[..., Any]] = {
    Job.RESET: lambda hosted, argument: hosted.reset(*argument),
    Job.PLAY: HostedEnv.play,
    Job.RENDER: HostedEnv.render,
    Job.MEASURE: lambda hosted, _: hosted.measure(),
}
"""Function of each job, called with the hosted environment and the argument."""


def _copied(value: Any) -> Any:
    return value if type(value) in _IMMUTABLE else copy.deepcopy(value)


def _class_name(env: Any) -> str:
    kind = type(env)
    return f"{kind.__module__}.{kind.__qualname__}"


# ---- global generators ----------------------------------------------------------------------------------------------

_generators_lock = threading.RLock()
"""The generators belong to the process: threads must take turns."""


class GlobalRandomGuard:
    """Environment that samples from the global generators of `random` and NumPy, with generator states of its own.

    The states are seeded with the episode, put in place before each call and taken away after it. So the environment
    neither disturbs other code nor is disturbed by it.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._states: GlobalStates | None = None  # from the first reset on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._env, name)
        return functools.partial(self._call, found) if callable(found) else found

    def reset(self, seed: int, mode: str) -> Any:
        self._states = None
        return self._call(self._env.reset, seed, mode, own_seed=seed)

    def _call(self, method: Callable[..., Any], *arguments: Any, own_seed: int | None = None, **named: Any) -> Any:
        with seeded(own_seed):
            if self._states is not None:
                self._states.restore()
            try:
                return method(*arguments, **named)
            finally:
                self._states = GlobalStates.now()


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the global generators, unless the seed is None, and restore them afterwards."""
    with _generators_lock, global_states_kept():
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
        yield


# ---- environments written for RAGEN ---------------------------------------------------------------------------------

_NUM_SEEDS = 2**32
"""RAGEN's environments seed NumPy's old generator, which takes smaller seeds only."""


def is_ragen_env(env: Any) -> bool:
    """Return whether an environment is written for RAGEN."""
    if hasattr(env, "action_lookup") or not callable(getattr(env, "render", None)):
        return False
    return hasattr(getattr(env, "config", None), "action_lookup") or any(
        kind.__module__ == "ragen.env.base" for kind in type(env).__mro__
    )


class RagenEnv:
    """An environment written for RAGEN, with the methods of `GroupEnv`.

    It has `config.action_lookup` (None: actions are text) and no `action_lookup` of its own, and behaves as in RAGEN:
    `reset(seed=..., mode=...)` is called with keywords, without the mode if it does not take one. `step(action)`
    returns `(state, reward, done, info)`. The state is what `render()` returns afterwards: an array is a picture, a
    list of arrays several pictures. It may draw from the global generators, which are kept apart for it.
    """

    uses_global_random = True

    def __init__(self, env: Any) -> None:
        self._env = env
        try:
            parameters = inspect.signature(env.reset).parameters
            self._takes_mode = "mode" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        except (ValueError, TypeError):  # a compiled function may have no signature
            self._takes_mode = True

    @property
    def action_lookup(self) -> Any:
        """The lookup of the episode: RAGEN's bandit makes it in `reset`."""
        return getattr(self._env.config, "action_lookup", None)

    def reset(self, seed: int, mode: str) -> Any:
        mode_if_wanted = {"mode": mode} if self._takes_mode else {}
        returned = self._env.reset(seed=seed % _NUM_SEEDS, **mode_if_wanted)
        return self._state(returned[0] if isinstance(returned, tuple) else returned)

    def step(self, action: Any) -> Outcome:
        returned = self._env.step(action)
        state, reward, terminated, truncated, info = read_outcome(returned, type(self._env).__name__)
        return self._state(state), reward, terminated, truncated, info

    def render(self, mode: str = "text") -> Any:
        """Return the picture or text, in the mode of the config; as `rgb_array` if `render` takes a mode."""
        if mode != "text" and "mode" in inspect.signature(self._env.render).parameters:
            return self._env.render(mode=mode)
        return self._env.render()

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _state(self, returned: Any) -> Any:
        """Return what `render()` shows, or the returned state if `render()` returns None."""
        shown = self._env.render()
        if isinstance(shown, np.ndarray):
            return {"text": "", "images": [shown]}
        if isinstance(shown, list) and shown and all(isinstance(one, np.ndarray) for one in shown):
            return {"text": "", "images": shown}
        return returned if shown is None else shown
