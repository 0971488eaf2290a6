"""What `step` is given, checked as a whole before anything is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parallel_envs.groups.failures import BadTurn
from parallel_envs.spelling import nearest

if TYPE_CHECKING:
    from parallel_envs.groups.episodes import Episode

_STRINGS = frozenset({str})
_FIELDS = ("env_id", "llm_response", "llm_raw_response", "actions")

Turns = dict[int, tuple[Sequence[str], int]]
"""By environment, its actions, and how many of them it may do: what is asked of it."""
Said = dict[int, tuple[Any, Any]]
"""By environment, what the language model said for its turn, and its raw answer, for the histories."""


def read_turns(given: Any, episodes: Sequence[Episode]) -> tuple[Turns, Said]:
    """The turns to be played, in order. Raises `BadTurn`: then none has been."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise BadTurn(f"step() was given a {type(given).__name__}. Give a list of dicts with {_listed(_FIELDS)}.")
    turns, said, num_envs, strings = Turns(), Said(), len(episodes), _STRINGS.issuperset
    for position, one in enumerate(given):
        try:
            env, actions = one["env_id"], one["actions"]
            responses = one["llm_response"], one["llm_raw_response"]
        except (KeyError, TypeError, IndexError):
            raise _not_a_turn(position, one) from None
        if type(env) is not int or not 0 <= env < num_envs:
            env = _read_env_id(position, env, num_envs)
        episode = episodes[env]
        if episode.done:
            raise BadTurn(_over(position, episode), position=position)
        if type(actions) is not list or not strings(map(type, actions)):
            actions = _read_actions(position, env, actions)
        turns[env], said[env] = (actions, episode.left), responses
    if len(turns) < len(given):
        _complain_of_twins([int(one["env_id"]) for one in given])
    return turns, said


def _complain_of_twins(envs: Sequence[int]) -> None:
    position = next(position for position, env in enumerate(envs) if env in envs[:position])
    raise BadTurn(
        f"Input {position} is a second one for env {envs[position]}. Give each environment one, with all its actions.",
        position=position,
    )


def _not_a_turn(position: int, given: Any) -> BadTurn:
    if not isinstance(given, Mapping):
        return BadTurn(f"Input {position} is {given!r}. Give a dict with {_listed(_FIELDS)}.", position=position)
    name = next((name for name in _FIELDS if name not in given), "env_id")
    return BadTurn(_missing(position, name, given), position=position)


def _missing(position: int, name: str, given: Mapping[Any, Any]) -> str:
    others = [str(key) for key in given if key not in _FIELDS]
    close = nearest(name, others)
    spelt = f" It has `{close}`." if close else ""
    return f"Input {position} has no `{name}`.{spelt} Give {_listed(_FIELDS)}."


def _read_env_id(position: int, env_id: Any, num_envs: int) -> int:
    if isinstance(env_id, bool) or not hasattr(env_id, "__index__"):
        raise BadTurn(f"Input {position} has env_id={env_id!r}, which is no whole number.", position=position)
    env = int(env_id)
    if not 0 <= env < num_envs:
        raise BadTurn(f"Input {position} is for env {env}, and there are envs 0 to {num_envs - 1}.", position=position)
    return env


def _over(position: int, episode: Episode) -> str:
    env = episode.seat.env_id
    if episode.failure is not None:
        return (
            f"Input {position} is for env {env}, which has failed. Leave out entries with a `failure`. "
            f"({episode.failure})"
        )
    return (
        f"Input {position} is for env {env}, whose episode is over. Give inputs for the entries that step() returned "
        "last."
    )


def _read_actions(position: int, env: int, actions: Any) -> tuple[str, ...]:
    if isinstance(actions, str) or not isinstance(actions, Sequence):
        raise BadTurn(
            f"Input {position} (env {env}) has actions={actions!r}. Give a list of strings, empty if there are none.",
            position=position,
        )
    return tuple(_read_action(position, env, action) for action in actions)


def _read_action(position: int, env: int, action: Any) -> str:
    if not isinstance(action, str):
        raise BadTurn(
            f"Input {position} (env {env}) has the action {action!r}, a {type(action).__name__}. Actions are "
            "strings: the names in action_lookup, or free text.",
            position=position,
        )
    return str(action)  # NumPy's strings are strings too, and slow on their way to a worker


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
