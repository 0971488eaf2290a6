"""The inputs of `step`, checked as a whole before any environment plays."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from parallel_envs.groups.episode import ALLOWANCE
from parallel_envs.groups.failures import BadTurn
from parallel_envs.spelling import nearest

if TYPE_CHECKING:
    from parallel_envs.groups.episode import Episode

_FIELDS = ("env_id", "llm_response", "llm_raw_response", "actions")
_LISTED = ", ".join(f"`{name}`" for name in _FIELDS)
_fields_of = itemgetter(*_FIELDS)

Turns = dict[int, Sequence[str]]
"""The actions of each environment."""
Given = tuple[Any, Any, Any, Any]
"""Input of a turn: env_id, the response of the language model, its raw response, and the actions."""


def read_turns(given: Any, episodes: Sequence[Episode]) -> tuple[Turns, dict[int, Given]]:
    """Return the turns to be played, in order, and the input of each. Raises `BadTurn`; then none has been played.

    All workers wait for this, so it must take little time.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise BadTurn(f"step() was given a {type(given).__name__}. Give a list of dicts with {_LISTED}.")
    turns, num_envs = Turns(), len(episodes)
    rows, mistake = _read_rows(given)
    for position, row in enumerate(rows):
        env, _, _, actions = row
        if type(env) is not int or not 0 <= env < num_envs:
            env = _read_env_id(position, env, num_envs)
        if not episodes[env].state[ALLOWANCE]:
            raise _episode_over(position, episodes[env])
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
        envs = [int(env) for env, *_ in rows]
        position = next(position for position, env in enumerate(envs) if env in envs[:position])
        raise BadTurn(
            f"Input {position} is a second one for env {envs[position]}. Give each environment one, with all its "
            "actions.",
            position=position,
        )
    return turns, dict(zip(turns, rows, strict=True))


def _read_rows(given: Sequence[Any]) -> tuple[list[Given], BadTurn | None]:
    """Return the fields of each input up to the first input without them, and the error for that one.

    Inputs are read once and in order: some tables drop a row when it has been read.
    """
    rows = list[Given]()
    if type(given) is list:  # nearly always, and quickly done
        with contextlib.suppress(KeyError, TypeError, IndexError):
            rows.extend(map(_fields_of, given))
    for one in itertools.islice(given, len(rows), None):
        position = len(rows)
        try:
            rows.append(_fields_of(one))
        except (KeyError, TypeError, IndexError):
            if not isinstance(one, Mapping):
                return rows, BadTurn(f"Input {position} is {one!r}. Give a dict with {_LISTED}.", position=position)
            name = next((name for name in _FIELDS if name not in one), "env_id")
            close = nearest(name, [str(key) for key in one if key not in _FIELDS])
            spelt = f" It has `{close}`." if close else ""
            return rows, BadTurn(f"Input {position} has no `{name}`.{spelt} Give {_LISTED}.", position=position)
    return rows, None


def _read_env_id(position: int, env_id: Any, num_envs: int) -> int:
    if isinstance(env_id, bool) or not hasattr(env_id, "__index__"):
        raise BadTurn(f"Input {position} has env_id={env_id!r}, which is no whole number.", position=position)
    env = int(env_id)
    if not 0 <= env < num_envs:
        raise BadTurn(f"Input {position} is for env {env}, and there are envs 0 to {num_envs - 1}.", position=position)
    return env


def _episode_over(position: int, episode: Episode) -> BadTurn:
    env = episode.spec.env_id
    if episode.failure is not None:
        why = f"which has failed. Leave out entries with a `failure`. ({episode.failure})"
    else:
        why = "whose episode is over. Give inputs for the entries that step() returned last."
    return BadTurn(f"Input {position} is for env {env}, {why}", position=position)


def _read_actions(position: int, env: int, actions: Any) -> tuple[str, ...]:
    if isinstance(actions, str) or not isinstance(actions, Sequence):
        raise BadTurn(
            f"Input {position} (env {env}) has actions={actions!r}. Give a list of strings, empty if there are none.",
            position=position,
        )
    read = []
    for action in actions:
        if not isinstance(action, str):
            raise BadTurn(
                f"Input {position} (env {env}) has the action {action!r}, of type {type(action).__name__}. Actions are "
                "strings: the names in action_lookup, or free text.",
                position=position,
            )
        read.append(str.__str__(action))  # NumPy's strings are strings too, and slow on their way to a worker
    return tuple(read)
