"""What `step` is given, checked as a whole before anything is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from parallel_envs.groups.failures import BadTurn, nearest

if TYPE_CHECKING:
    from parallel_envs.groups.episodes import Episode

_STRINGS = frozenset({str})
_FIELDS = ("env_id", "llm_response", "llm_raw_response", "actions")


class Turn(NamedTuple):
    """One environment's input."""

    env_id: int
    actions: tuple[str, ...]
    responses: Mapping[str, Any]
    """What the language model said, for the history."""


def read_turns(given: Any, episodes: Sequence[Episode]) -> list[Turn]:
    """The turns to be played. Raises `BadTurn`: then none has been."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise BadTurn(f"step() was given a {type(given).__name__}. Give a list of dicts with {_listed(_FIELDS)}.")
    turns = [_read_turn(position, one, episodes) for position, one in enumerate(given)]
    if len({turn.env_id for turn in turns}) < len(turns):
        _complain_of_twins(turns)
    return turns


def _complain_of_twins(turns: Sequence[Turn]) -> None:
    envs = [turn.env_id for turn in turns]
    position = next(position for position, env in enumerate(envs) if env in envs[:position])
    raise BadTurn(
        f"Input {position} is a second one for env {envs[position]}. Give each environment one, with all its actions.",
        position=position,
    )


def _read_turn(position: int, given: Any, episodes: Sequence[Episode]) -> Turn:
    if not isinstance(given, dict | Mapping):
        raise BadTurn(f"Input {position} is {given!r}. Give a dict with {_listed(_FIELDS)}.", position=position)
    try:
        env_id, actions = given["env_id"], given["actions"]
        responses = {"llm_response": given["llm_response"], "llm_raw_response": given["llm_raw_response"]}
    except KeyError as error:
        raise BadTurn(_missing(position, str(error.args[0]), given), position=position) from None
    env = _read_env_id(position, env_id, episodes)
    return Turn(env, _read_actions(position, env, actions), responses)


def _missing(position: int, name: str, given: Mapping[Any, Any]) -> str:
    others = [str(key) for key in given if key not in _FIELDS]
    advice = nearest(name, others) if others else ""
    spelt = f" It has `{advice[14:-2]}`." if advice.startswith("Did you mean") else ""
    return f"Input {position} has no `{name}`.{spelt} Give {_listed(_FIELDS)}."


def _read_env_id(position: int, env_id: Any, episodes: Sequence[Episode]) -> int:
    if isinstance(env_id, bool) or not hasattr(env_id, "__index__"):
        raise BadTurn(f"Input {position} has env_id={env_id!r}, which is no whole number.", position=position)
    env = int(env_id)
    if not 0 <= env < len(episodes):
        raise BadTurn(
            f"Input {position} is for env {env}, and there are envs 0 to {len(episodes) - 1}.", position=position
        )
    if episodes[env].done:
        raise BadTurn(_over(position, episodes[env]), position=position)
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
    if isinstance(actions, str) or not isinstance(actions, list | tuple | Sequence):
        raise BadTurn(
            f"Input {position} (env {env}) has actions={actions!r}. Give a list of strings, empty if there are none.",
            position=position,
        )
    if not _STRINGS.issuperset(map(type, actions)):
        return tuple(_read_action(position, env, action) for action in actions)
    return tuple(actions)


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
