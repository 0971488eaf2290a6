"""What `step` is given, checked as a whole before anything is played."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from parallel_envs.groups.episodes import ALLOWANCE
from parallel_envs.groups.failures import BadTurn
from parallel_envs.spelling import nearest

if TYPE_CHECKING:
    from parallel_envs.groups.episodes import Episode

_FIELDS = ("env_id", "llm_response", "llm_raw_response", "actions")
_fields_of = itemgetter(*_FIELDS)

Turns = dict[int, Sequence[str]]
"""The actions of each environment: what is asked of it."""
Said = tuple[Any, Any, Any, Any]
"""What was given for a turn: the environment, what the language model said for it, its raw answer, and the actions."""


def read_turns(given: Any, episodes: Sequence[Episode]) -> tuple[Turns, dict[int, Said]]:
    """The turns to be played, in order, and what was given for each. Raises `BadTurn`: then none has been.

    All workers wait for this, so it is to cost little.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise BadTurn(f"step() was given a {type(given).__name__}. Give a list of dicts with {_listed(_FIELDS)}.")
    turns, num_envs = Turns(), len(episodes)
    rows, mistake = _read_rows(given)
    for position, row in enumerate(rows):
        env, _, _, actions = row
        if type(env) is not int or not 0 <= env < num_envs:
            env = _read_env_id(position, env, num_envs)
        if not episodes[env].stand[ALLOWANCE]:
            raise BadTurn(_over(position, episodes[env]), position=position)
        if type(actions) is not list:
            actions = _read_actions(position, env, actions)
        for action in actions:
            if type(action) is not str:
                actions = _read_actions(position, env, actions)
                break
        turns[env] = actions
    if mistake is not None:
        raise mistake
    if len(turns) < len(rows):
        _complain_of_twins([int(env) for env, *_ in rows])
    return turns, dict(zip(turns, rows, strict=True))


def _read_rows(given: Sequence[Any]) -> tuple[list[Said], BadTurn | None]:
    """The fields of each input up to the first that is none, and what is wrong with that.

    They are read once and in order: there are tables of which a row is gone when it has been read.
    """
    rows = list[Said]()
    if type(given) is list:  # nearly always, and quickly done
        with contextlib.suppress(KeyError, TypeError, IndexError):
            rows.extend(map(_fields_of, given))
    for one in itertools.islice(given, len(rows), None):
        try:
            rows.append(_fields_of(one))
        except (KeyError, TypeError, IndexError):
            return rows, _not_a_turn(len(rows), one)
    return rows, None


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
            f"Input {position} (env {env}) has the action {action!r}, of type {type(action).__name__}. Actions are "
            "strings: the names in action_lookup, or free text.",
            position=position,
        )
    return str.__str__(action)  # NumPy's strings are strings too, and slow on their way to a worker


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
