"""One environment in its place, be that a worker or the caller. `Player.play` is where a turn is made."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_envs.engine import reraise_ctrl_c
from parallel_envs.groups.guarded import Guarded, seeded
from parallel_envs.groups.jobs import Job, Played, Restore
from parallel_envs.groups.meanings import folded, meanings_of
from parallel_envs.groups.metrics import INVALID, RAW_REWARD
from parallel_envs.groups.outcomes import check_pictures, number_or_zero, read_flag, read_outcome, read_success
from parallel_envs.groups.ragen_env import RagenEnv, is_ragen_env
from parallel_envs.vector.registry import OwnedEnvs

_PLAIN = frozenset({str, float, int, bool, type(None)})
"""What nobody can write into."""


_MADE = "A factory, or an environment's class, is called with the config: def __init__(self, config)."
_RESET = "An episode is begun with a seed and the mode, `train` or `val`: def reset(self, seed, mode)."


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the environments of a tag are made and used.

    `threads`: how many of them may be stepped at once within a worker. `most_actions`: how many an episode has.
    """

    tag: str
    factory: Callable[[Any], Any]
    config: Any
    threads: int = 1
    most_actions: int = sys.maxsize


class Player:
    """An environment and where it stands.

    With `copies`, what it answers is the asker's: for askers of the same process, who would otherwise see the
    environment write into it. `owned` says to which environment of this place each object belongs, by `number`.
    """

    def __init__(
        self, recipe: Recipe, *, copies: bool = False, number: int = 0, owned: OwnedEnvs | None = None
    ) -> None:
        self._recipe, self._copies = recipe, copies
        self._number, self._owned = number, owned
        self._env: Any = None
        self._state: Any = None
        self._left = 0  # of the episode's actions
        self._names: dict[str, Any] | None = None
        self._has_meaning: Callable[[str], bool] | None = None

    @property
    def made(self) -> bool:
        return self._env is not None

    @property
    def takes_turns(self) -> bool:
        """Whether it draws from the process's generators, so that others of its kind wait while it is at work."""
        return isinstance(self._env, Guarded)

    def make(self) -> None:
        """Make the environment. What its constructor draws at random is the same everywhere."""
        recipe = self._recipe
        with seeded(0):
            made = _called(lambda: recipe.factory(_own_config(recipe.config)), _MADE)
            if self._owned is not None:
                self._owned.claim(self._number, made)
            self._env = _suited(made)

    def drop(self) -> None:
        """Be without an environment: the next job has another one made."""
        env, self._env = self._env, None
        if self._owned is not None:
            self._owned.release(self._number)
        if callable(close := getattr(env, "close", None)):
            close()

    # ---- the jobs, for an environment that has been made -----------------------------------------------------------

    def reset(self, seed: int, mode: str) -> Any:
        """Begin an episode; its first state."""
        self._begin(seed, mode)
        check_pictures(self._state)
        return self._told(self._state)

    def play(self, actions: Sequence[str]) -> Played:
        """A turn: as many of these actions as are left, until the episode is over."""
        wanted, left = self._meant(actions), self._left
        doable = wanted if len(wanted) <= left else wanted[:left]
        executed, following, step = [*doable], iter(doable), self._env.step
        state, terminated, truncated = self._state, False, False
        reward: float = 0  # whole numbers stay whole: RAGEN's prompts say `Reward: 0` and `Reward: 1`
        raw_reward = 0.0
        info: dict[str, Any] = {}
        note = info.update
        for action in following:
            told = step(action)
            try:
                state, one, terminated, truncated, facts = told
                usual = (type(one) is float or type(one) is int) and type(facts) is dict
            except (TypeError, ValueError):
                usual = False
            if not usual:
                state, one, terminated, truncated, facts = read_outcome(told, self._recipe.tag)
            reward += one
            note(facts)
            if RAW_REWARD in facts:
                raw_reward += number_or_zero(facts[RAW_REWARD])
            if terminated or truncated:
                del executed[len(executed) - len(list(following)) :]
                break
        self._state, self._left = state, left - len(executed)
        info[RAW_REWARD] = raw_reward
        if not executed:
            info[INVALID] = True
        if type(state) is not str:
            check_pictures(state)
        if "success" in info and type(info["success"]) is not bool:
            info["success"] = read_success(info["success"])
        if self._copies:
            state, info = self._told(state), self._told_of(info)
        if not (terminated is truncated is False):  # over, or not told as Gymnasium tells it
            terminated, truncated = read_flag(terminated), read_flag(truncated)
        over = terminated or truncated or self._left <= 0
        own, all_valid = self.measure() if over else None, 0 < len(wanted) == len(actions)
        return state, reward, terminated, truncated, info, executed, all_valid, own

    def render(self, mode: str) -> Any:
        """What it shows: `text` or `rgb_array`."""
        return self._told(self._shown(mode))

    def measure(self) -> dict[str, float]:
        """Its own metrics."""
        tell = getattr(self._env, "metrics", None)
        if not callable(tell):
            return {}
        try:
            given = tell()
        except Exception as error:
            error.add_note("It comes from metrics(), which is asked for at the end of an episode.")
            raise
        try:
            return {str(name): float(value) for name, value in given.items()}
        except (AttributeError, TypeError, ValueError):
            raise TypeError(
                f"metrics() of {_kind_of(self._env)} returned {given!r}. Give a dict of numbers by name."
            ) from None

    def restore(self, restore: Restore) -> Any:
        """Come to where an episode stood; the state there, which the environment may write into no more."""
        self._begin(restore.seed, restore.mode)
        for action in restore.actions:
            self._state = read_outcome(self._env.step(action), self._recipe.tag)[0]
        self._left -= len(restore.actions)
        return _copied(self._state)

    # ---- what they are made of ---------------------------------------------------------------------------------------

    def _begin(self, seed: int, mode: str) -> None:
        env = self._env
        self._state, self._left = _called(lambda: env.reset(seed, mode), _RESET), self._recipe.most_actions
        self._names = meanings_of(getattr(self._env, "action_lookup", None))
        self._has_meaning = getattr(self._env, "has_meaning", None)

    def _meant(self, actions: Sequence[str]) -> Sequence[Any]:
        """The actions that have a meaning here, as values; as text where they have no names."""
        names = self._names
        if names is None:
            return actions if self._has_meaning is None else list(filter(self._has_meaning, actions))
        try:
            return [names[action] for action in actions]  # mostly all are spelt as they are in the lookup
        except KeyError:
            return [names[name] for action in actions if (name := folded(action)) in names]

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
    Job.RESET: lambda player, told: player.reset(*told),
    Job.PLAY: Player.play,
    Job.RENDER: Player.render,
    Job.MEASURE: lambda player, _: player.measure(),
}
"""How each job is done: called with the player and what was told for it."""


def drop_quietly(player: Player) -> None:
    """Drop an environment that broke: what it says about it is of no interest."""
    try:
        player.drop()
    except BaseException as error:  # noqa: BLE001  # SystemExit too
        reraise_ctrl_c(error)


def _called(call: Callable[[], Any], advice: str) -> Any:
    """What a call of an environment's returns. If it does not take what it is given, the error has a word of advice."""
    try:
        return call()
    except TypeError as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code is not call.__code__:
            place = place.tb_next
        if place is not None and place.tb_next is None:  # raised by the call, and not by what was called
            error.add_note(advice)
        raise


def _own_config(config: Any) -> Any:
    """Return a config that the environment may write into: a copy, unless it is a frozen dataclass or a plain dict.

    Environments written for RAGEN keep things of an episode in theirs.
    """
    params = getattr(type(config), "__dataclass_params__", None)
    return config if params is None or params.frozen else copy.deepcopy(config)


def _suited(env: Any) -> Any:
    """An environment with the methods of a group's."""
    if is_ragen_env(env):
        env = RagenEnv(env)
    elif "gymnasium" in sys.modules:
        from parallel_envs.groups.gymnasium_env import adapted

        env = adapted(env)
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise TypeError(f"{_kind_of(env)} has no {name}(). An environment has reset(seed, mode) and step(action).")
    return Guarded(env) if getattr(env, "uses_global_random", False) else env


def _copied(value: Any) -> Any:
    return value if type(value) in _PLAIN else copy.deepcopy(value)


def _kind_of(env: Any) -> str:
    kind = type(env)
    return f"{kind.__module__}.{kind.__qualname__}"
