"""How returns grow from one inner episode on a task to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.rollouts import Rollout, Rollouts

Floats = npt.NDArray[np.float64]

INNER = "inner_episode"
"""The info that says to which inner episode a step belonged."""


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """Returns of evaluation rollouts, inner episode by inner episode."""

    returns: Floats
    """`[rollouts, inner episodes]`. NaN where a rollout was over before."""
    task_ids: npt.NDArray[np.int64]
    """`[rollouts]`."""

    @classmethod
    def of(cls, rollouts: Rollouts, num_episodes: int) -> Adaptation:
        """Of rollouts that were collected with `info_keys=[INNER]`."""
        returns = np.stack([_by_episode(rollout, num_episodes) for rollout in rollouts])
        return cls(returns, np.array([rollout.task_id for rollout in rollouts], np.int64))

    @property
    def curve(self) -> Floats:
        """The mean return of each inner episode, over all rollouts."""
        return np.asarray(np.nanmean(self.returns, 0))

    @property
    def total(self) -> float:
        """The mean return of a whole rollout."""
        return float(np.nansum(self.returns, 1).mean())

    @property
    def error(self) -> float:
        """The standard error of `total`."""
        totals = np.nansum(self.returns, 1)
        return float(totals.std(ddof=1) / np.sqrt(len(totals))) if len(totals) > 1 else float("nan")

    def __repr__(self) -> str:
        told = ", ".join(f"{value:.3g}" for value in self.curve)
        return f"Adaptation({len(self.returns)} rollouts, total {self.total:.4g}, by episode [{told}])"

    def told(self) -> dict[str, Any]:
        """In plain values, for a line of metrics."""
        curve = [float(value) if np.isfinite(value) else None for value in self.curve]
        return {"total": self.total, "by_episode": curve, "rollouts": len(self.returns)}


def _by_episode(rollout: Rollout, num_episodes: int) -> Floats:
    episodes = np.array(rollout.infos[INNER], np.int64)
    returns = np.bincount(episodes, rollout.rewards, num_episodes).astype(np.float64)
    returns[int(episodes[-1]) + 1 :] = np.nan
    return returns
