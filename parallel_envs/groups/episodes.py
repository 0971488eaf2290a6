"""What the manager knows of each environment's episode: its history, which never leaves the caller."""

from __future__ import annotations

import contextlib
import copy
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.jobs import Played, Restore, Standing
from parallel_envs.groups.metrics import EPISODIC_RETURN, FAILED, INVALID, RAW_REWARD
from parallel_envs.groups.roster import Seat

if TYPE_CHECKING:
    from parallel_envs.groups.inputs import Said

IMAGE = "<images>"
"""What stands for each image in a state that says nothing else."""

Entry = dict[str, Any]
"""`{env_id, group_id, tag, history, penalty}`, and `failure` if the environment broke."""

Ends = tuple[bool, bool]
"""Whether the environment has terminated, and whether it was truncated, as the last turn told it."""
_GOING: Ends = (False, False)
Stand = tuple[int, int, float, Any, dict[str, Any], int, Ends, Mapping[str, float] | None]
"""Where an episode stands: `(allowance, left, penalty, state, seen, turns, ends, metrics)`.

`allowance`: the actions that may still be done, 0 if it is over; `left`: those that have not been used; `penalty`: the
sum of what was added for turns without meaning; `state`, and the history's item `seen` which shows it; `turns`: how
many have been played; `metrics`: the environment's own, told at the end of its last turn or when it was asked.
"""
ALLOWANCE: Final = 0
LEFT: Final = 1
STATE: Final = 3
TURNS: Final = 5
ENDS: Final = 6
METRICS: Final = 7

Note = tuple[Stand, Entry | None]
"""What comes of a turn: where the episode stands then, and what is told of it, unless it is over."""

_REWARD, _INFO = range(2)
_A_TURN = 2
"""What is kept of each turn, beside its actions, and how much that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvStatus:
    """Where an episode stands.

    Attributes:
        seed: What it began with.
        num_actions: Actions done so far.
        rewards: One for each turn.
        terminated: The environment came to an end of its own, as Gymnasium has it.
        truncated: It was cut short: by itself, because its actions were used up, or because it broke.
        success: It said so in its last info. Whoever says nothing of it has not succeeded.
        failure: How it broke, if it did.
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
        """Whether it is over, for whatever reason."""
        return self.terminated or self.truncated


class Episode:
    """One environment's episode, from its first state on: where it stands, and a record of how it came there.

    Of each turn its reward, its actions and its info are kept as they were told, and everything else that is known of
    the episode follows from these when it is asked for: most of it never is, and there are many turns. They are kept in
    two long lists, the actions of all turns in one: whatever lives on is what Python's collector looks at, time and
    again.

    Attributes:
        stand: Where it stands. What the record holds beyond its turns did not happen.
        failure: How it broke, if it did.
    """

    __slots__ = "_done", "_head", "_mode", "_past", "_seed", "_told", "failure", "seat", "stand"

    def __init__(self, seat: Seat, seed: int, mode: str, first: Any) -> None:
        self.seat, self._seed, self._mode = seat, seed, mode
        self._head = {"env_id": seat.env_id, "group_id": seat.group_id, "tag": seat.tag}  # of every entry
        self.failure: EnvFailure | None = first if isinstance(first, EnvFailure) else None
        self._past: list[dict[str, Any]] = []  # the history's items, up to that which shows the state
        self._told, self._done = list[Any](), list[Any]()
        most = seat.max_actions_per_traj
        state, seen = (None, {}) if self.failure is not None else _seen(first, most)
        self.stand: Stand = (most if seen else 0, most, 0.0, state, seen, 0, _GOING, None)

    # ---- turns ------------------------------------------------------------------------------------------------------

    def noted(self, told: Played, said: Said, penalty: float) -> Note:
        """What comes of a turn. It is recorded, and has happened when the episode's `stand` is the one that is noted.

        `said` is what was given for it. `penalty` is added where not all actions had a meaning.
        """
        state, reward, terminated, truncated, info, executed, all_valid, own = told
        _, left, total, _, last, turns, _, _ = self.stand
        past = self._past
        if len(past) > turns:
            self._unnote()
        left -= len(executed)
        if type(state) is str:
            kept, seen = state, {"state": state, "actions_left": left}
        else:
            kept, seen = _seen(state, left)
        item = last.copy()  # the one that was told of before stays as it is
        if not executed:
            seen[INVALID] = True
        item["actions"], item["reward"], item["info"] = executed, reward, info.copy()
        _, item["llm_response"], item["llm_raw_response"], _ = said
        past.append(item)  # before the rest: what is longer than it should be is cut off, and this tells
        self._done += executed
        self._told += reward, info  # in the places that are named above
        turns += 1
        if not all_valid:
            total += penalty
        if terminated or truncated or left <= 0:
            return (0, left, total, kept, seen, turns, (terminated, truncated), own), None
        entry = self._head.copy()
        entry["history"], entry["penalty"] = [*past, seen], total
        return (left, left, total, kept, seen, turns, _GOING, None), entry

    def _unnote(self) -> None:
        """What was noted beyond the turns that have happened is gone."""
        turns = self.stand[TURNS]
        del self._done[self._num_actions :], self._told[turns * _A_TURN :]
        del self._past[turns:]  # after the rest: it tells that there is something to cut off

    def broke(self, failure: EnvFailure, said: Said | None = None) -> Entry:
        """It broke, in a turn or elsewhere. There is no reward and no next state. The entry that is told of it."""
        _, left, penalty, state, seen, *others = self.stand
        if said is not None:
            seen = {**seen, "llm_response": said[1], "llm_raw_response": said[2], "failure": failure}
        self.failure, self.stand = failure, (0, left, penalty, state, seen, *others)
        return self.entry()

    def measured(self, own: Mapping[str, float]) -> None:
        """The environment told metrics of its own."""
        *stand, _ = self.stand
        self.stand = (*stand, own)

    # ---- what is known of it ----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it is over, for whatever reason."""
        return not self.stand[ALLOWANCE]

    def entry(self) -> Entry:
        """What is told of it. The items of its history stay as they are: later turns put others in their place."""
        _, _, penalty, _, seen, turns, _, _ = self.stand
        history = [*self._past[:turns], *([seen] if seen or self.failure is None else [])]  # [] if its reset failed
        entry = {**self._head, "history": history, "penalty": penalty}
        return entry if self.failure is None else {**entry, "failure": self.failure}

    @property
    def status(self) -> EnvStatus:
        terminated, truncated = self.stand[ENDS]
        return EnvStatus(
            seed=self._seed,
            num_actions=self._num_actions,
            rewards=tuple(self._every(_REWARD)),
            terminated=terminated,
            truncated=truncated or (self.done and not terminated) or self.failure is not None,
            success=self._success,
            failure=self.failure,
        )

    @property
    def standing(self) -> Standing:
        """How to come here, and what is met here."""
        done = tuple(self._done[: self._num_actions])
        return Standing(Restore(self._seed, self._mode, done, self.stand[TURNS]), self.stand[STATE])

    def _every(self, place: int) -> list[Any]:
        """What is kept there of each turn."""
        return self._told[place : self.stand[TURNS] * _A_TURN : _A_TURN]

    @property
    def _num_actions(self) -> int:
        return self.seat.max_actions_per_traj - self.stand[LEFT]

    @property
    def _told_of_success(self) -> list[Any]:
        """What was said of it, turn by turn. Many environments never say anything."""
        return [info["success"] for info in self._every(_INFO) if "success" in info]

    @property
    def _success(self) -> bool:
        """What was said of it last."""
        said = self._told_of_success
        with contextlib.suppress(Exception):  # an array, say, which is neither
            return bool(said and said[-1])
        return False

    @property
    def told_in_turns(self) -> Set[str] | None:
        """The numbers that turns told; None before the first."""
        return _means(self._every(_INFO)).keys() if self.stand[TURNS] else None

    # ---- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Its figures by name. Of one that broke there are none but `failed`: what it would have come to is unknown.

        There is a `success` only if the environment told one.
        """
        if self.failure is not None:
            return {FAILED: 1.0}
        known = {"success": float(self._success)} if self._told_of_success else {}
        known["num_actions"] = float(self._num_actions)
        if raw := [info[RAW_REWARD] for info in self._every(_INFO) if RAW_REWARD in info]:
            known[EPISODIC_RETURN] = float(sum(raw))
        return {**_means(self._every(_INFO)), **known, **(self.stand[METRICS] or {})}


def _seen(state: Any, left: int) -> tuple[Any, dict[str, Any]]:
    """A copy of a state, by which it is judged whether a replay comes to it; and the history's item, which shows it."""
    if isinstance(state, str):
        return state, {"state": state, "actions_left": left}
    kept = copy.deepcopy(state)
    match state:
        case {"text": text, "images": images} if images is None or isinstance(images, Iterable):
            pictures = [] if images is None else list(images)
            return kept, {"state": text or IMAGE * len(pictures), "images": pictures, "actions_left": left}
    return kept, {"state": state, "actions_left": left}


def _means(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each number over all turns. A turn that did not tell it counts as 0."""
    sums: dict[str, float] = {}
    for info in infos:
        for name, value in info.items():
            if name != "success" and isinstance(value, numbers.Real | np.bool_):
                with contextlib.suppress(OverflowError):  # more than a float can be
                    sums[name] = sums.get(name, 0.0) + float(value)
    return {name: total / len(infos) for name, total in sums.items()}
