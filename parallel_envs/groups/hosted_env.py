"""An environment in its process: `HostedEnv` makes it, resets it, plays its turns and replays its episode.

`GlobalRandomGuard` wraps an environment that draws from the global generators.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import reraise_ctrl_c
from parallel_envs.groups.interface import (
    INVALID,
    RAW_REWARD,
    actions_by_name,
    check_images,
    fold_name,
    number_or_zero,
    read_flag,
    read_outcome,
    read_success,
)
from parallel_envs.groups.ragen_env import RagenEnv, is_ragen_env
from parallel_envs.groups.transport import Job, Played, Replay
from parallel_envs.vector.registry import OwnedEnvs

_IMMUTABLE = frozenset({str, float, int, bool, type(None)})

_FACTORY_ADVICE = "A factory, or an environment's class, is called with the config: def __init__(self, config)."
_RESET_ADVICE = "An episode is begun with a seed and the mode, `train` or `val`: def reset(self, seed, mode)."


@dataclass(frozen=True, slots=True)
class TagSpec:
    """Factory of the environments of a tag, and how they are used.

    `threads`: how many of them may be stepped at once within a worker. `most_actions`: actions of an episode.
    """

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
            made = _called(lambda: spec.factory(config), _FACTORY_ADVICE)
            if self._owned is not None:
                self._owned.claim(self._number, made)
            self._env = _adapted(made)

    def drop(self) -> None:
        """Close and forget the environment. The next job makes another one."""
        env, self._env = self._env, None
        if self._owned is not None:
            self._owned.release(self._number)
        if callable(close := getattr(env, "close", None)):
            close()

    def drop_quietly(self) -> None:
        """Drop an environment that broke, and ignore what it raises."""
        try:
            self.drop()
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
        self._state, self._left = _called(lambda: env.reset(seed, mode), _RESET_ADVICE), self._spec.most_actions
        self._actions_by_name = actions_by_name(getattr(self._env, "action_lookup", None))
        self._has_meaning = getattr(self._env, "has_meaning", None)

    def play(self, actions: Sequence[str]) -> Played:
        """Play a turn: do as many of these actions as are left, until the episode is over."""
        wanted, left = self._valid_actions(actions), self._left
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
                raw_reward += number_or_zero(step_info[RAW_REWARD])
            if terminated or truncated:
                del executed[len(executed) - len(list(following)) :]
                break
        self._state, self._left = state, left - len(executed)
        info[RAW_REWARD] = raw_reward
        if not executed:
            info[INVALID] = True
        if type(state) is not str:
            check_images(state)
        if "success" in info and type(info["success"]) is not bool:
            info["success"] = read_success(info["success"])
        if self._copies:
            state = _copied(state)
            info = info if _IMMUTABLE.issuperset(map(type, info.values())) else copy.deepcopy(info)
        if not (terminated is truncated is False):  # the episode is over, or the flags are not bools
            terminated, truncated = read_flag(terminated), read_flag(truncated)
        over = terminated or truncated or self._left <= 0
        own, all_valid = self.measure() if over else None, 0 < len(wanted) == len(actions)
        return state, reward, terminated, truncated, info, executed, all_valid, own

    def _valid_actions(self, actions: Sequence[str]) -> Sequence[Any]:
        """Return the valid actions, as values; as text if actions have no names."""
        names = self._actions_by_name
        if names is None:
            return actions if self._has_meaning is None else list(filter(self._has_meaning, actions))
        try:
            return [names[action] for action in actions]  # mostly all are spelt as they are in the lookup
        except KeyError:
            return [names[name] for action in actions if (name := fold_name(action)) in names]

    def render(self, mode: str) -> Any:
        """Return the picture or text that the environment shows: `text` or `rgb_array`."""
        if callable(render := getattr(self._env, "render", None)):
            shown = render(mode=mode)
        elif mode == "text":
            shown = self._state
        else:
            raise AttributeError(
                f"{_class_name(self._env)} has no render(mode), so it cannot be shown as {mode!r}. Give it one, or "
                "render as 'text'."
            )
        return _copied(shown) if self._copies else shown

    def measure(self) -> dict[str, float]:
        metrics = getattr(self._env, "metrics", None)
        if not callable(metrics):
            return {}
        try:
            given = metrics()
        except Exception as error:
            error.add_note("It comes from metrics(), which is called at the end of an episode.")
            raise
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


def _called(call: Callable[[], Any], advice: str) -> Any:
    """Return the result of a call. If the called function does not accept the arguments, add advice to the error."""
    try:
        return call()
    except TypeError as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code is not call.__code__:
            place = place.tb_next
        if place is not None and place.tb_next is None:  # raised by the call itself, not inside the called function
            error.add_note(advice)
        raise


def _adapted(env: Any) -> Any:
    """Return an environment with the methods of `GroupEnv`."""
    if is_ragen_env(env):
        env = RagenEnv(env)
    elif "gymnasium" in sys.modules:
        from parallel_envs.groups.gymnasium_env import adapted

        env = adapted(env)
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise TypeError(
                f"{_class_name(env)} has no {name}(). An environment has reset(seed, mode) and step(action)."
            )
    return GlobalRandomGuard(env) if getattr(env, "uses_global_random", False) else env


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
        self._states: tuple[Any, Any] | None = None  # from the first reset on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._env, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            with self._own_generators():
                return found(*arguments, **named)

        return call

    def reset(self, seed: int, mode: str) -> Any:
        with self._own_generators(seed):
            return self._env.reset(seed, mode)

    @contextmanager
    def _own_generators(self, seed: int | None = None) -> Iterator[None]:
        with seeded(seed):
            if seed is None and self._states is not None:
                _set_generators(self._states)
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the global generators, unless the seed is None, and restore them afterwards."""
    with _generators_lock:
        outside = random.getstate(), np.random.get_state()
        try:
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed % 2**32)
            yield
        finally:
            _set_generators(outside)


def _set_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
