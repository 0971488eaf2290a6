"""Episodes as the manager knows them: inputs, state, history and metrics, which never leave the caller's process.

`read_turns` checks the inputs of `step` as a whole before any environment plays. `Episode` is the episode of one
environment, `EnvStatus` its public summary. `with_pass_at_k` and `means_by_tag` turn the metrics of episodes into those
of groups and tags.
"""

from __future__ import annotations

import contextlib
import copy
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from parallel_envs.checks import nearest
from parallel_envs.groups.failures import BadTurn, EnvFailure
from parallel_envs.groups.interface import INVALID, RAW_REWARD
from parallel_envs.groups.transport import Played, Replay

if TYPE_CHECKING:
    from parallel_envs.groups.registry import EnvSpec


_FIELDS = ("env_id", "llm_response", "llm_raw_response", "actions")
_LISTED = ", ".join(f"`{name}`" for name in _FIELDS)
_fields_of = itemgetter(*_FIELDS)
_STR = frozenset({str})

Turns = dict[int, Sequence[str]]
"""The actions of each environment."""
Given = tuple[Any, Any, Any, Any]
"""Input of a turn: env_id, the response of the language model, its raw response, and the actions."""


def read_turns(given: Any, episodes: Sequence[Episode]) -> tuple[Turns, dict[int, Given]]:
    """Return the turns to be played, in order, and the input of each. Raises `BadTurn`; then none has been played."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise BadTurn(f"step() was given a {type(given).__name__}. Give a list of dicts with {_LISTED}.")
    turns, rows, num_envs = Turns(), dict[int, Given](), len(episodes)

    position = 0

    def mistake(text: str) -> BadTurn:
        return BadTurn(f"Input {position} {text}", position=position)

    for position, one in enumerate(given):  # noqa: B007  # `mistake` uses it
        try:
            row = env, _, _, actions = _fields_of(one)
        except (KeyError, TypeError, IndexError):
            what = f"is {one!r}"
            if isinstance(one, Mapping):
                name = next((name for name in _FIELDS if name not in one), "env_id")
                close = nearest(name, [str(key) for key in one if key not in _FIELDS])
                what = f"has no `{name}`" + (f". It has `{close}`" if close else "")
            raise mistake(f"{what}. Give a dict with {_LISTED}.") from None
        if type(env) is not int:
            if isinstance(env, bool) or not hasattr(env, "__index__"):
                raise mistake(f"has env_id={env!r}, which is no whole number.")
            env = int(env)
        if not 0 <= env < num_envs:
            raise mistake(f"is for env {env}, and there are envs 0 to {num_envs - 1}.")
        if not episodes[env].state[ALLOWANCE]:
            why = "whose episode is over. Give inputs for the entries that step() returned last."
            if (failure := episodes[env].failure) is not None:
                why = f"which has failed. Leave out entries with a `failure`. ({failure})"
            raise mistake(f"is for env {env}, {why}")
        if env in turns:
            raise mistake(f"is a second one for env {env}. Give each environment one, with all its actions.")
        if type(actions) is not list or not _STR.issuperset(map(type, actions)):
            is_list = not isinstance(actions, str) and isinstance(actions, Sequence)
            if not is_list or not all(isinstance(action, str) for action in actions):
                raise mistake(
                    f"(env {env}) has actions={actions!r}. Give a list of strings: names in action_lookup, or free "
                    "text; an empty list if there are none."
                )
            # NumPy's strings are strings too, and slow on their way to a worker.
            actions = [str.__str__(action) for action in actions]
        turns[env], rows[env] = actions, row
    return turns, rows


IMAGE = "<images>"
"""Text for each image of a state that has no text."""

EPISODIC_RETURN = "episodic_return"
"""Metric: the sum of `raw_reward` over an episode. As in RAGEN."""
FAILED = "failed"
"""The only metric of an episode that broke: `{FAILED: 1.0}`. Its other metrics are unknown."""

Entry = dict[str, Any]
"""`{env_id, group_id, tag, history, penalty}`, and `failure` if the environment broke."""

Ends = tuple[bool, bool]
"""`(terminated, truncated)` of the last turn."""
_RUNNING: Ends = (False, False)
EpisodeState = tuple[int, int, float, Any, dict[str, Any], int, Ends, Mapping[str, float] | None]
"""State of an episode: `(allowance, left, penalty, observation, last_item, turns, ends, metrics)`.

`allowance`: the actions that may still be done, 0 if the episode is over; `left`: the actions that have not been used;
`penalty`: the sum of penalties for invalid turns; `observation`: the environment's state, and `last_item`: the
history's item that shows it; `turns`: the number of turns played; `metrics`: the environment's own, from the end of its
last turn or from when they were requested.
"""
ALLOWANCE: Final = 0
LEFT: Final = 1
OBSERVATION: Final = 3
TURNS: Final = 5
ENDS: Final = 6
METRICS: Final = 7

RecordedTurn = tuple[EpisodeState, Entry | None]
"""State of the episode after a turn, and its entry, unless the episode is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvStatus:
    """Status of an episode.

    Attributes:
        seed: The seed of its reset.
        num_actions: Actions done so far.
        rewards: The reward of each turn.
        terminated: The environment came to an end of its own, as in Gymnasium.
        truncated: The episode was cut short: by the environment, because its actions were used up, or by a failure.
        success: `success` of the last info that had one, else False.
        failure: How the environment broke, if it did.
    """

    seed: int
    num_actions: int = 0
    rewards: tuple[float, ...] = ()
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    failure: EnvFailure | None = None

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Episode:
    """Episode of one environment: its state, and a record of its turns.

    The reward, the actions and the info of each turn are kept as received, and everything else is computed from these
    when it is requested: most of it never is, and there are many turns. They are kept in two long lists, because
    Python's garbage collector visits every object that lives on.

    Attributes:
        state: The present state. Later turns in the record were interrupted and do not count.
        failure: How the environment broke, if it did.
    """

    __slots__ = "_actions", "_head", "_mode", "_past", "_rewards_and_infos", "_seed", "failure", "spec", "state"

    def __init__(self, spec: EnvSpec, seed: int, mode: str, first: Any) -> None:
        self.spec, self._seed, self._mode = spec, seed, mode
        self._head = {"env_id": spec.env_id, "group_id": spec.group_id, "tag": spec.tag}  # of every entry
        self.failure: EnvFailure | None = first if isinstance(first, EnvFailure) else None
        self._past: list[dict[str, Any]] = []  # the history's items before the last one
        self._rewards_and_infos, self._actions = list[Any](), list[Any]()  # two values a turn; all turns in one
        most = spec.max_actions_per_traj
        observation, item = (None, {}) if self.failure is not None else _history_item(first, most)
        self.state: EpisodeState = (most if item else 0, most, 0.0, observation, item, 0, _RUNNING, None)

    # ---- turns ------------------------------------------------------------------------------------------------------

    def record_turn(self, played: Played, given: Given, penalty: float) -> RecordedTurn:
        """Record a turn. It has happened once the caller sets `state` to the state that is returned.

        `given`: the input of the turn. `penalty` is added if not all actions were valid.
        """
        observation, reward, terminated, truncated, info, executed, all_valid, own = played
        _, left, total, _, last, turns, _, _ = self.state
        past = self._past
        if len(past) > turns:  # a turn was recorded and then interrupted
            del self._actions[self._num_actions :], self._rewards_and_infos[turns * 2 :]
            del past[turns:]  # last: its length shows that there is something to cut off
        left -= len(executed)
        if type(observation) is str:
            kept, item = observation, {"state": observation, "actions_left": left}
        else:
            kept, item = _history_item(observation, left)
        before = last.copy()  # an earlier entry may hold `last`, which stays as it is
        if not executed:
            item[INVALID] = True
        before["actions"], before["reward"], before["info"] = executed, reward, info.copy()
        _, before["llm_response"], before["llm_raw_response"], _ = given
        past.append(before)  # before the other lists: its length shows that there is something to cut off
        self._actions += executed
        self._rewards_and_infos += reward, info
        turns += 1
        if not all_valid:
            total += penalty
        if terminated or truncated or left <= 0:
            return (0, left, total, kept, item, turns, (terminated, truncated), own), None
        entry = self._head.copy()
        entry["history"], entry["penalty"] = [*past, item], total
        return (left, left, total, kept, item, turns, _RUNNING, None), entry

    def fail(self, failure: EnvFailure, given: Given | None = None) -> Entry:
        """End the episode with a failure, in a turn or elsewhere: no reward, no next state. Return its entry."""
        _, left, penalty, observation, item, *others = self.state
        if given is not None:
            item = {**item, "llm_response": given[1], "llm_raw_response": given[2], "failure": failure}
        self.failure, self.state = failure, (0, left, penalty, observation, item, *others)
        return self.entry()

    def set_metrics(self, own: Mapping[str, float]) -> None:
        self.state = (*self.state[:METRICS], own)

    # ---- what is known of it ----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return not self.state[ALLOWANCE]

    def entry(self) -> Entry:
        """Return the entry. Items of its history are never changed: later turns replace them."""
        _, _, penalty, _, item, turns, _, _ = self.state
        history = [*self._past[:turns], *([item] if item or self.failure is None else [])]  # [] if its reset failed
        entry = {**self._head, "history": history, "penalty": penalty}
        return entry if self.failure is None else {**entry, "failure": self.failure}

    @property
    def status(self) -> EnvStatus:
        terminated, truncated = self.state[ENDS]
        return EnvStatus(
            seed=self._seed,
            num_actions=self._num_actions,
            rewards=tuple(self._rewards_and_infos[: self.state[TURNS] * 2 : 2]),
            terminated=terminated,
            truncated=truncated or (self.done and not terminated) or self.failure is not None,
            success=bool(self._success),
            failure=self.failure,
        )

    @property
    def replay_target(self) -> tuple[Replay, Any]:
        """Return how a fresh environment is brought to the present state, and that state."""
        done = tuple(self._actions[: self._num_actions])
        return Replay(self._seed, self._mode, done, self.state[TURNS]), self.state[OBSERVATION]

    @property
    def _infos(self) -> list[Mapping[str, Any]]:
        return self._rewards_and_infos[1 : self.state[TURNS] * 2 : 2]

    @property
    def _num_actions(self) -> int:
        return self.spec.max_actions_per_traj - self.state[LEFT]

    @property
    def _success(self) -> bool | None:
        """Return the last `success` of the infos; None if none has one, as in many environments."""
        told = [info["success"] for info in self._infos if "success" in info]
        if not told:
            return None
        try:
            return bool(told[-1])
        except Exception:  # noqa: BLE001  # user code: an array, say, which is neither True nor False
            return False

    # ---- metrics ----------------------------------------------------------------------------------------------------

    @property
    def turn_metrics(self) -> Set[str] | None:
        """Return the names of the numbers in the infos; None before the first turn."""
        return _means(self._infos).keys() if self.state[TURNS] else None

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; only `failed` if the environment broke, since all others are unknown."""
        if self.failure is not None:
            return {FAILED: 1.0}
        known = {} if (success := self._success) is None else {"success": float(success)}
        known["num_actions"] = float(self._num_actions)
        if raw := [info[RAW_REWARD] for info in self._infos if RAW_REWARD in info]:
            known[EPISODIC_RETURN] = float(sum(raw))
        return {**_means(self._infos), **known, **(self.state[METRICS] or {})}


def _history_item(state: Any, left: int) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a state, with which a replay is compared, and the history's item that shows the state."""
    if isinstance(state, str):
        return state, {"state": state, "actions_left": left}
    kept = copy.deepcopy(state)
    match state:
        case {"text": text, "images": images} if images is None or isinstance(images, Iterable):
            pictures = [] if images is None else list(images)
            return kept, {"state": text or IMAGE * len(pictures), "images": pictures, "actions_left": left}
    return kept, {"state": state, "actions_left": left}


def _means(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each number over all turns. A turn without the number counts as 0."""
    sums: dict[str, float] = {}
    for info in infos:
        for name, value in info.items():
            if name != "success" and isinstance(value, numbers.Real | np.bool_):
                with contextlib.suppress(OverflowError):  # too large for a float
                    sums[name] = sums.get(name, 0.0) + float(value)
    return {name: total / len(infos) for name, total in sums.items()}


# ---- metrics of groups and tags -------------------------------------------------------------------------------------


class EpisodeMetrics(NamedTuple):
    """Metrics of one episode, with its tag and group.

    `in_turns`: the names of those that are means over its turns; None if it has had no turn yet.
    """

    tag: str
    group_id: int
    metrics: Mapping[str, float]
    in_turns: Set[str] | None = None


def with_pass_at_k(episodes: Sequence[EpisodeMetrics], group_size: int) -> list[dict[str, float]]:
    """Return each episode's metrics as `tag/name`, with `tag/pass@k`: whether an episode of its group succeeded.

    There is no `pass@k` if all episodes of a group have failed, or if none reports success. Zeros are added for metrics
    that other episodes of the tag report: a missing `success` becomes 0, except in a tag where episodes have played
    actions and none reported `success`. The other metrics of turns become 0 in an episode whose turns had no valid
    action.
    """
    in_turns, passed = dict[str, set[str]](), dict[int, float]()
    for one in episodes:
        in_turns.setdefault(one.tag, set()).update(one.in_turns or ())
    reporting = {one.tag for one in episodes if "success" in one.metrics}
    silent = {one.tag for one in episodes if one.metrics.get("num_actions")} - reporting
    completed = list[Mapping[str, float]]()
    for one in episodes:
        zeros: dict[str, float] = {}
        if "num_actions" in one.metrics:  # else it failed, so there are no metrics
            if one.in_turns is not None and one.in_turns <= {RAW_REWARD, INVALID}:  # the manager's own: it did nothing
                zeros = dict.fromkeys(in_turns[one.tag] - {INVALID}, 0.0)
            if one.tag not in silent:
                zeros["success"] = 0.0
        completed.append(both := {**zeros, **one.metrics})
        if "success" in both:
            passed[one.group_id] = max(both["success"], passed.get(one.group_id, 0.0))
    named = []
    for one, metrics in zip(episodes, completed, strict=True):
        passes = {f"{one.tag}/pass@{group_size}": passed[one.group_id]} if one.group_id in passed else {}
        named.append({f"{one.tag}/{name}": value for name, value in metrics.items()} | passes)
    return named


def means_by_tag(episodes: Sequence[EpisodeMetrics], named: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the episodes that have it; `tag/failed` is the share of failed episodes."""
    values: dict[str, list[float]] = {}
    for one, metrics in zip(episodes, named, strict=True):
        values.setdefault(failed := f"{one.tag}/{FAILED}", []).append(one.metrics.get(FAILED, 0.0))
        for name in metrics.keys() - {failed}:
            values.setdefault(name, []).append(metrics[name])
    for one in episodes:
        if (invalid := f"{one.tag}/{INVALID}") in values and one.in_turns is not None and INVALID not in one.metrics:
            values[invalid] += [] if FAILED in one.metrics else [0.0]
    return {name: fmean(own) for name, own in sorted(values.items())}
