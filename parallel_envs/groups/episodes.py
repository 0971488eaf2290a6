"""What the manager knows of each environment's episode: its history, which never leaves the caller."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.inputs import Turn
from parallel_envs.groups.jobs import Played, Restore, Standing
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
        success: It said so in its last info.
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
    """One environment's episode, from its first state on."""

    def __init__(self, seat: Seat, seed: int, mode: str, first: Any) -> None:
        self.seat = seat
        self.penalty = 0.0
        self.own_metrics: Mapping[str, float] = {}
        self._seed, self._mode = seed, mode
        self._turns: list[tuple[Any, ...]] = []
        self._infos: list[Mapping[str, Any]] = []
        self._rewards: list[float] = []
        self._num_actions = 0
        self._terminated = self._truncated = self._success = False
        self._failure: EnvFailure | None = first if isinstance(first, EnvFailure) else None
        self.done = self._failure is not None
        self._state: Any = None
        self._history: list[dict[str, Any]] = [] if self._failure else [self._seen(first)]

    @property
    def left(self) -> int:
        """Actions that may still be done."""
        return self.seat.max_actions_per_traj - self._num_actions

    @property
    def failure(self) -> EnvFailure | None:
        return self._failure

    @property
    def status(self) -> EnvStatus:
        return EnvStatus(
            seed=self._seed,
            num_actions=self._num_actions,
            rewards=tuple(self._rewards),
            terminated=self._terminated,
            truncated=self._truncated or self._failure is not None,
            success=self._success,
            failure=self._failure,
        )

    @property
    def standing(self) -> Standing:
        """How to come here, and what is met here."""
        return Standing(Restore(self._seed, self._mode, tuple(self._turns)), self._state)

    def entry(self) -> dict[str, Any]:
        """What is told of it. The items of its history stay as they are: later turns put others in their place."""
        seat = self.seat
        entry = {
            "env_id": seat.env_id,
            "group_id": seat.group_id,
            "tag": seat.tag,
            "history": list(self._history),
            "penalty": self.penalty,
        }
        return entry if self._failure is None else {**entry, "failure": self._failure}

    def played(self, turn: Turn, told: Played, penalty: float) -> None:
        """A turn has been played."""
        state, reward, terminated, truncated, info, executed, all_valid, metrics = told
        if not all_valid:
            self.penalty += penalty
        if executed:
            self._turns.append(executed)
        self._num_actions += len(executed)
        self._rewards.append(reward)
        self._infos.append(info)
        self._terminated, self._truncated = terminated, not terminated and (truncated or self.left <= 0)
        self._success = bool(info.get("success", self._success))
        self.done = terminated or self._truncated
        self.own_metrics = metrics
        answer = {"actions": list(executed), "reward": reward, "info": dict(info)}
        self._history[-1] = {**self._history[-1], **answer, **turn.responses}
        self._history.append(self._seen(state))

    def broke(self, turn: Turn | None, failure: EnvFailure) -> None:
        """It broke, in a turn or elsewhere. There is no reward and no next state."""
        self._failure, self.done = failure, True
        if turn is not None:
            self._history[-1] = {**self._history[-1], **turn.responses, "failure": failure}

    def _seen(self, state: Any) -> dict[str, Any]:
        """An item of the history. What it holds is the user's; whether a replay comes to it is judged by a copy."""
        if isinstance(state, str):
            self._state = state
            return {"state": state, "actions_left": self.left}
        self._state = copy.deepcopy(state)
        match state:
            case {"text": text, "images": images}:
                return {"state": text or IMAGE * len(images), "images": list(images), "actions_left": self.left}
        return {"state": state, "actions_left": self.left}

    # ---- metrics ----------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Its figures by name. Of one that broke there are none but `failed`: what it would have come to is unknown."""
        if self._failure is not None:
            return {"failed": 1.0}
        told = {"success": float(self._success), "num_actions": float(self._num_actions)}
        return {**_means(self._infos), **told, **self.own_metrics}


def _means(infos: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each number over all turns. A turn that did not tell it counts as 0."""
    sums: dict[str, float] = {}
    for info in infos:
        for name, value in info.items():
            if name != "success" and isinstance(value, numbers.Real | np.bool_):
                sums[name] = sums.get(name, 0.0) + float(value)
    return {name: total / len(infos) for name, total in sums.items()}
