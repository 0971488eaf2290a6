"""What the manager knows of each environment's episode: its history, which never leaves the caller."""

from __future__ import annotations

import contextlib
import copy
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.jobs import Played, Restore, Standing
from parallel_envs.groups.metrics import FAILED
from parallel_envs.groups.roster import Seat

IMAGE = "<images>"
"""What stands for each image in a state that says nothing else."""


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

    A turn is noted as it was told, and everything else that is known of the episode follows from that when it is asked
    for: most of it never is, and there are many turns.

    Attributes:
        left: Actions that may still be done.
        penalty: The sum of what was added for turns without meaning.
        done: Whether it is over, for whatever reason.
        failure: How it broke, if it did.
        own_metrics: The environment's own, told at the end of its last turn or when it was asked.
    """

    __slots__ = (
        "_history", "_mode", "_seed", "_state", "_turns", "done", "failure", "left", "own_metrics", "penalty", "seat"
    )  # fmt: skip

    def __init__(self, seat: Seat, seed: int, mode: str, first: Any) -> None:
        self.seat, self._seed, self._mode = seat, seed, mode
        self.left, self.penalty = seat.max_actions_per_traj, 0.0
        self.own_metrics: Mapping[str, float] | None = None
        self.failure: EnvFailure | None = first if isinstance(first, EnvFailure) else None
        self.done = self.failure is not None
        self._turns: list[Played] = []
        self._state: Any = None
        self._history: list[dict[str, Any]] = [] if self.failure else [self._seen(first, self.left)]

    # ---- turns ------------------------------------------------------------------------------------------------------

    def played(self, told: Played, response: Any, raw_response: Any, penalty: float) -> None:
        """A turn has been played; what the language model said for it."""
        state, reward, terminated, truncated, info, executed, all_valid, own_metrics = told
        left = self.left - len(executed)
        if type(state) is str:
            self._state, seen = state, {"state": state, "actions_left": left}
        else:
            seen = self._seen(state, left)
        history = self._history
        history[-1] = item = history[-1].copy()  # in its place: the one that was told of before stays as it is
        item["actions"], item["reward"], item["info"] = [*executed], reward, info.copy()
        item["llm_response"], item["llm_raw_response"] = response, raw_response
        history.append(seen)
        self._turns.append(told)
        self.left, self.own_metrics = left, own_metrics
        if not all_valid:
            self.penalty += penalty
        if terminated or truncated or left <= 0:
            self.done = True

    def broke(self, failure: EnvFailure, said: tuple[Any, Any] | None = None) -> None:
        """It broke, in a turn or elsewhere. There is no reward and no next state."""
        self.failure, self.done = failure, True
        if said is not None:
            responses = {"llm_response": said[0], "llm_raw_response": said[1]}
            self._history[-1] = {**self._history[-1], **responses, "failure": failure}

    def _seen(self, state: Any, left: int) -> dict[str, Any]:
        """An item of the history. What it holds is the user's; whether a replay comes to it is judged by a copy."""
        if isinstance(state, str):
            self._state = state
            return {"state": state, "actions_left": left}
        self._state = copy.deepcopy(state)
        match state:
            case {"text": text, "images": images} if images is None or isinstance(images, Iterable):
                pictures = [] if images is None else list(images)
                return {"state": text or IMAGE * len(pictures), "images": pictures, "actions_left": left}
        return {"state": state, "actions_left": left}

    # ---- what is known of it ----------------------------------------------------------------------------------------

    def entry(self) -> dict[str, Any]:
        """What is told of it. The items of its history stay as they are: later turns put others in their place."""
        seat = self.seat
        entry = {
            "env_id": seat.env_id,
            "group_id": seat.group_id,
            "tag": seat.tag,
            "history": self._history.copy(),
            "penalty": self.penalty,
        }
        return entry if self.failure is None else {**entry, "failure": self.failure}

    @property
    def status(self) -> EnvStatus:
        terminated, truncated = self._turns[-1][2:4] if self._turns else (False, False)
        return EnvStatus(
            seed=self._seed,
            num_actions=self._num_actions,
            rewards=tuple([told[1] for told in self._turns]),
            terminated=terminated,
            truncated=truncated or (self.done and not terminated) or self.failure is not None,
            success=self._success,
            failure=self.failure,
        )

    @property
    def standing(self) -> Standing:
        """How to come here, and what is met here."""
        executed = tuple([told[5] for told in self._turns if told[5]])
        return Standing(Restore(self._seed, self._mode, executed), self._state)

    @property
    def _num_actions(self) -> int:
        return self.seat.max_actions_per_traj - self.left

    @property
    def _told_of_success(self) -> list[Any]:
        """What was said of it, turn by turn. Many environments never say anything."""
        return [told[4]["success"] for told in self._turns if "success" in told[4]]

    @property
    def _success(self) -> bool:
        """What was said of it last."""
        said = self._told_of_success
        with contextlib.suppress(Exception):  # an array, say, which is neither
            return bool(said and said[-1])
        return False

    # ---- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Its figures by name. Of one that broke there are none but `failed`: what it would have come to is unknown.

        There is a `success` only if the environment told one.
        """
        if self.failure is not None:
            return {FAILED: 1.0}
        known = {"success": float(self._success)} if self._told_of_success else {}
        known["num_actions"] = float(self._num_actions)
        return {**_means([told[4] for told in self._turns]), **known, **(self.own_metrics or {})}


def _means(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each number over all turns. A turn that did not tell it counts as 0."""
    sums: dict[str, float] = {}
    for info in infos:
        for name, value in info.items():
            if name != "success" and isinstance(value, numbers.Real | np.bool_):
                with contextlib.suppress(OverflowError):  # more than a float can be
                    sums[name] = sums.get(name, 0.0) + float(value)
    return {name: total / len(infos) for name, total in sums.items()}
