"""One environment in its place, be that a worker or the caller. `Player.play` is where a turn is made."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import let_ctrl_c_through
from parallel_envs.groups.guarded import Guarded, seeded
from parallel_envs.groups.interface import Outcome
from parallel_envs.groups.jobs import Job, Played, Restore

_PLAIN = frozenset({str, float, int, bool, type(None)})
"""What nobody can write into."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the environments of a tag are made and used.

    `threads`: how many of them may be stepped at once within a worker.
    """

    tag: str
    factory: Callable[[Any], Any]
    config: Any
    threads: int = 1


class Player:
    """An environment and where it stands.

    With `copies`, what it answers is the asker's: for askers of the same process, who would otherwise see the
    environment write into it.
    """

    def __init__(self, recipe: Recipe, *, copies: bool = False) -> None:
        self._recipe, self._copies = recipe, copies
        self._env: Any = None
        self._state: Any = None
        self._names: dict[str, Any] | None = None

    @property
    def made(self) -> bool:
        return self._env is not None

    def make(self) -> None:
        """Make the environment. What its constructor draws at random is the same everywhere."""
        with seeded(0):
            self._env = _suited(self._recipe.factory(self._recipe.config))

    def drop(self) -> None:
        """Be without an environment: the next job has another one made."""
        env, self._env = self._env, None
        if callable(close := getattr(env, "close", None)):
            close()

    # ---- the jobs, for an environment that has been made -----------------------------------------------------------

    def reset(self, seed: int, mode: str) -> Any:
        """Begin an episode; its first state."""
        self._begin(seed, mode)
        return self._told(self._state)

    def play(self, actions: Sequence[str], allowance: int) -> Played:
        """A turn: at most `allowance` of these actions, until the episode is over."""
        wanted = self._meant(actions)
        doable = wanted if len(wanted) <= allowance else wanted[:allowance]
        executed, following, step = tuple(doable), iter(doable), self._env.step
        state, reward, terminated, truncated = self._state, 0.0, False, False
        info: dict[str, Any] = {}
        note = info.update
        for action in following:
            told = step(action)
            try:
                state, one, terminated, truncated, facts = told
                usual = type(one) is float and type(facts) is dict
            except (TypeError, ValueError):
                usual = False
            if not usual:
                state, one, terminated, truncated, facts = _outcome(told, self._recipe.tag)
            reward += one
            note(facts)
            if terminated or truncated:
                executed = executed[: len(executed) - len(list(following))]
                break
        self._state = state
        if self._copies:
            state, info = self._told(state), self._told_of(info)
        over = terminated or truncated or len(executed) >= allowance
        own, all_valid = self.measure() if over else None, 0 < len(wanted) == len(actions)
        return state, reward, bool(terminated), bool(truncated), info, executed, all_valid, own

    def render(self, mode: str) -> Any:
        """What it shows: `text` or `rgb_array`."""
        return self._told(self._shown(mode))

    def measure(self) -> dict[str, float]:
        """Its own metrics."""
        tell = getattr(self._env, "metrics", None)
        return {str(name): float(value) for name, value in tell().items()} if callable(tell) else {}

    def restore(self, restore: Restore) -> Any:
        """Come to where an episode stood; the state there, which the environment may write into no more."""
        self._begin(restore.seed, restore.mode)
        for turn in restore.turns:
            for action in turn:
                self._state = _outcome(self._env.step(action), self._recipe.tag)[0]
        return _copied(self._state)

    # ---- what they are made of ---------------------------------------------------------------------------------------

    def _begin(self, seed: int, mode: str) -> None:
        self._state = self._env.reset(seed, mode)
        self._names = _names_of(getattr(self._env, "action_lookup", None))

    def _meant(self, actions: Sequence[str]) -> Sequence[Any]:
        """The actions that have a meaning here, as values."""
        names = self._names
        if names is None:
            return actions
        try:
            return [names[action] for action in actions]  # mostly all are spelt as they are in the lookup
        except KeyError:
            return [names[name] for action in actions if (name := action.strip().lower()) in names]

    def _told(self, value: Any) -> Any:
        return _copied(value) if self._copies else value

    def _told_of(self, info: dict[str, Any]) -> dict[str, Any]:
        return info if _PLAIN.issuperset(map(type, info.values())) else copy.deepcopy(info)

    def _shown(self, mode: str) -> Any:
        if callable(render := getattr(self._env, "render", None)):
            return render(mode=mode)
        if mode == "text":
            return self._state
        raise AttributeError(
            f"{_kind_of(self._env)} has no render(mode), so it cannot be shown as {mode!r}. Give it one, or render as "
            "'text'."
        )


WORK: Mapping[Job, Callable[..., Any]] = {
    Job.RESET: Player.reset,
    Job.PLAY: Player.play,
    Job.RENDER: Player.render,
    Job.MEASURE: Player.measure,
}
"""How each job is done: called with the player and what was told for it."""


def drop_quietly(player: Player) -> None:
    """Drop an environment that broke: what it says about it is of no interest."""
    try:
        player.drop()
    except BaseException as error:  # noqa: BLE001  # SystemExit too
        let_ctrl_c_through(error)


def _suited(env: Any) -> Any:
    """An environment with the methods of a group's."""
    if "gymnasium" in sys.modules:
        import gymnasium

        from parallel_envs.groups.gymnasium_env import GymnasiumEnv

        env = GymnasiumEnv(env) if isinstance(env, gymnasium.Env) else env
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise TypeError(f"{_kind_of(env)} has no {name}(). An environment has reset(seed, mode) and step(action).")
    return Guarded(env) if getattr(env, "uses_global_random", False) else env


def _copied(value: Any) -> Any:
    return value if type(value) in _PLAIN else copy.deepcopy(value)


def _names_of(lookup: Any) -> dict[str, Any] | None:
    """What each name means, without regard to case; as it is spelt in the lookup, and in lower case."""
    if lookup is None:
        return None
    if not isinstance(lookup, Mapping) or not all(isinstance(name, str) for name in lookup.values()):
        raise TypeError(
            f"action_lookup is {lookup!r}. Give a mapping from the actions that step() takes to their names, such as "
            "{0: 'left', 1: 'right'}."
        )
    names = {name.strip().lower(): value for value, name in lookup.items()}
    return {name: names[name.strip().lower()] for name in lookup.values()} | names


def _outcome(told: Any, tag: str) -> Outcome:
    """What `step` returned, as Gymnasium's five."""
    if isinstance(told, tuple | list) and len(told) in (4, 5) and isinstance(told[-1], Mapping):
        state, reward, terminated, *truncated, info = told
        return state, _number(reward), terminated, truncated[0] if truncated else False, info
    what = f"{len(told)} values" if isinstance(told, tuple | list) else f"a {type(told).__name__}"
    raise TypeError(
        f"step() of {tag!r} returned {what}. Return (state, reward, terminated, truncated, info), info being a dict."
    )


def _number(reward: Any) -> float:
    if reward is None:
        raise TypeError("step() returned the reward None. Give a number: 0.0, if there is nothing to be paid.")
    return float(reward) if isinstance(reward, float | int) else float(np.asarray(reward, float).reshape(()))


def _kind_of(env: Any) -> str:
    kind = type(env)
    return f"{kind.__module__}.{kind.__qualname__}"
