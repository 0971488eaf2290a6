"""Repeated games of two agents with one payoff for both: small tests of learning together.

    climbing game (Claus and Boutilier 1998)        penalty game

             b0   b1   b2                                b0   b1   b2
        a0   11  -30    0                           a0    k    0   10
        a1  -30    7    0                           a1    0    2    0
        a2    0    6    5                           a2   10    0    k

In the climbing game an agent that is not sure of the other had better leave the optimum (a0, b0) alone: whoever learns
by itself comes by way of (a2, b1) to (a1, b1). In the penalty game with k = 0 both optima are harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

CLIMBING = ((11, -30, 0), (-30, 7, 0), (0, 6, 5))
AGENTS = ("row", "column")

Named = dict[str, Any]


def penalty_payoffs(k: float) -> tuple[tuple[float, ...], ...]:
    """Those of the penalty game; `k` is 0 or below."""
    return (k, 0, 10), (0, 2, 0), (10, 0, k)


class MatrixGame(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """The same game for `num_rounds` rounds; then the episode is truncated. Nothing is random.

    Agents "row" and "column" each choose a line of the matrix, and both get what stands where the two meet. They
    observe a one, always: what was played before is not told.

    Args:
        payoffs: A row for each action of "row".
        num_rounds: Rounds of an episode.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "matrix_game"}  # noqa: RUF012  PettingZoo's

    def __init__(self, payoffs: Sequence[Sequence[float]], num_rounds: int = 25) -> None:
        self.payoffs = np.asarray(payoffs, np.float64)
        if self.payoffs.ndim != 2 or not self.payoffs.size:
            raise ValueError(f"payoffs={payoffs!r} is no matrix. Give a row of numbers for each action of 'row'.")
        if num_rounds < 1:
            raise ValueError(f"num_rounds={num_rounds}. Play at least 1 round.")
        self.num_rounds, self.elapsed, self.render_mode = num_rounds, 0, None
        self.possible_agents, self.agents = list(AGENTS), list[str]()
        self._observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self._action_spaces = {
            agent: spaces.Discrete(size) for agent, size in zip(AGENTS, self.payoffs.shape, strict=True)
        }

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        self.elapsed, self.agents = 0, list(AGENTS)
        return self._to_both(np.ones(1, np.float32)), self._to_both({})

    def step(self, actions: Mapping[str, Any]) -> tuple[Named, Named, Named, Named, Named]:
        self.elapsed += 1
        payoff = float(self.payoffs[actions["row"], actions["column"]])
        over = self.elapsed >= self.num_rounds
        if over:
            self.agents = []
        told: Any = np.ones(1, np.float32), payoff, False, over, {}
        observations, rewards, terminations, truncations, infos = map(self._to_both, told)
        return observations, rewards, terminations, truncations, infos

    @staticmethod
    def _to_both(value: Any) -> Named:
        return {agent: value.copy() if hasattr(value, "copy") else value for agent in AGENTS}


def climbing(num_rounds: int = 25) -> MatrixGame:
    """The climbing game: 275 is the best return of 25 rounds, 175 that of the equilibrium beside it."""
    return MatrixGame(CLIMBING, num_rounds)


def penalty(k: float = 0.0, num_rounds: int = 25) -> MatrixGame:
    """The penalty game: 250 is the best return of 25 rounds."""
    return MatrixGame(penalty_payoffs(k), num_rounds)
