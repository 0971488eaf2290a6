"""What the manager knows of each environment's episode: its history, which never leaves the caller."""

from __future__ import annotations

import contextlib
import copy
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.jobs import Played, Restore, Standing
from parallel_envs.groups.metrics import FAILED
from parallel_envs.groups.roster import Seat

IMAGE = "<images>"
"""What stands for each image in a state that says nothing else."""

_PLAYED = len(get_args(Played))

Note = tuple[Played, Any, dict[str, Any], dict[str, Any], int, float, dict[str, Any] | None]
"""What comes of a turn: what was told of it; the state; the item of the history that it completes, and the next one;
actions that are left; the penalty; and the entry that is told of it, unless the episode is over."""


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
    """One environment's episode, from its first state on.

    What is told of turns is kept as it was told, and everything else that is known of the episode follows from that
    when it is asked for: most of it never is, and there are many turns. It is one long list, with as many items a turn
    as `Played` has: each container that lives on is one more that Python's collector looks at, time and again.

    Attributes:
        left: Actions that may still be done.
        penalty: The sum of what was added for turns without meaning.
        done: Whether it is over, for whatever reason.
        failure: How it broke, if it did.
        own_metrics: The environment's own, told at the end of its last turn or when it was asked.
    """

    __slots__ = (
        "_history", "_mode", "_seed", "_state", "_told", "done", "failure", "left", "own_metrics", "penalty", "seat"
    )  # fmt: skip

    def __init__(self, seat: Seat, seed: int, mode: str, first: Any) -> None:
        self.seat, self._seed, self._mode = seat, seed, mode
        self.left, self.penalty = seat.max_actions_per_traj, 0.0
        self.own_metrics: Mapping[str, float] | None = None
        self.failure: EnvFailure | None = first if isinstance(first, EnvFailure) else None
        self.done = self.failure is not None
        self._told: list[Any] = []
        self._state: Any = None
        self._history: list[dict[str, Any]] = []
        if self.failure is None:
            self._state, seen = _seen(first, self.left)
            self._history.append(seen)

    # ---- turns ------------------------------------------------------------------------------------------------------

    def noted(self, told: Played, said: tuple[Any, Any], penalty: float) -> Note:
        """What comes of a turn: `played` makes it so. Nothing changes yet.

        `said` is what was given for it, with what the language model said. `penalty` is added where not all actions had
        a meaning.
        """
        state, reward, terminated, truncated, info, executed, all_valid, _ = told
        left = self.left - len(executed)
        kept, seen = (state, {"state": state, "actions_left": left}) if type(state) is str else _seen(state, left)
        item = self._history[-1].copy()  # the one that was told of before stays as it is
        item["actions"], item["reward"], item["info"] = [*executed], reward, info.copy()
        item["llm_response"], item["llm_raw_response"] = said
        total = self.penalty if all_valid else self.penalty + penalty
        if terminated or truncated or left <= 0:
            return told, kept, item, seen, left, total, None
        history = self._history.copy()
        history[-1] = item
        history.append(seen)
        return told, kept, item, seen, left, total, _entry(self.seat, history, total)

    def played(self, note: Note) -> dict[str, Any] | None:
        """A turn has been played. The entry that is told of it, unless the episode is over."""
        told, self._state, item, seen, self.left, self.penalty, entry = note
        self._history[-1] = item
        self._history.append(seen)
        self._told += told
        self.own_metrics, self.done = told[-1], entry is None
        return entry

    def broke(self, failure: EnvFailure, said: tuple[Any, Any] | None = None) -> dict[str, Any]:
        """It broke, in a turn or elsewhere. There is no reward and no next state. The entry that is told of it."""
        self.failure, self.done = failure, True
        if said is not None:
            responses = {"llm_response": said[0], "llm_raw_response": said[1]}
            self._history[-1] = {**self._history[-1], **responses, "failure": failure}
        return self.entry()

    # ---- what is known of it ----------------------------------------------------------------------------------------

    def entry(self) -> dict[str, Any]:
        """What is told of it. The items of its history stay as they are: later turns put others in their place."""
        entry = _entry(self.seat, self._history.copy(), self.penalty)
        return entry if self.failure is None else {**entry, "failure": self.failure}

    @property
    def status(self) -> EnvStatus:
        terminated, truncated = self._every(2)[-1:] == [True], self._every(3)[-1:] == [True]
        return EnvStatus(
            seed=self._seed,
            num_actions=self._num_actions,
            rewards=tuple(self._every(1)),
            terminated=terminated,
            truncated=truncated or (self.done and not terminated) or self.failure is not None,
            success=self._success,
            failure=self.failure,
        )

    @property
    def standing(self) -> Standing:
        """How to come here, and what is met here."""
        executed = tuple(filter(None, self._every(5)))
        return Standing(Restore(self._seed, self._mode, executed), self._state)

    def _every(self, place: int) -> list[Any]:
        """What stands there in `Played`, turn by turn."""
        return self._told[place::_PLAYED]

    @property
    def _num_actions(self) -> int:
        return self.seat.max_actions_per_traj - self.left

    @property
    def _told_of_success(self) -> list[Any]:
        """What was said of it, turn by turn. Many environments never say anything."""
        return [info["success"] for info in self._every(4) if "success" in info]

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
        return _means(self._every(4)).keys() if self._told else None

    # ---- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Its figures by name. Of one that broke there are none but `failed`: what it would have come to is unknown.

        There is a `success` only if the environment told one.
        """
        if self.failure is not None:
            return {FAILED: 1.0}
        known = {"success": float(self._success)} if self._told_of_success else {}
        known["num_actions"] = float(self._num_actions)
        return {**_means(self._every(4)), **known, **(self.own_metrics or {})}


def _entry(seat: Seat, history: list[dict[str, Any]], penalty: float) -> dict[str, Any]:
    return {
        "env_id": seat.env_id,
        "group_id": seat.group_id,
        "tag": seat.tag,
        "history": history,
        "penalty": penalty,
    }


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
