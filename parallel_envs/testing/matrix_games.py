"""Repeated games of two agents with one payoff for both: small tests of learning together.

    climbing game (Claus and Boutilier 1998)        penalty game

             b0   b1   b2                                b0   b1   b2
        a0   11  -30    0                           a0    k    0   10
        a1  -30    7    0                           a1    0    2    0
        a2    0    6    5                           a2   10    0    k

In the climbing game the optimum (a0, b0) is dangerous for an agent that cannot rely on the other one. Agents that learn
independently move over (a2, b1) to (a1, b1). In the penalty game with k = 0 both optima are harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from parallel_envs.checks import check_count

CLIMBING = ((11, -30, 0), (-30, 7, 0), (0, 6, 5))
AGENTS = ("row", "column")

Named = dict[str, Any]


class MatrixGame(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """The same game for `num_rounds` rounds; then the episode is truncated. Nothing is random.

    The agents "row" and "column" choose a row and a column of the matrix, and both get the payoff at that place. Their
    observation is always 1: earlier actions are not observed.

    Args:
        payoffs: A row for each action of "row".
        num_rounds: Rounds of an episode.
    """

    metadata: dict[str, Any] = {"render_modes": [], "name": "matrix_game"}  # noqa: RUF012  PettingZoo's

    def __init__(self, payoffs: Sequence[Sequence[float]], num_rounds: int = 25) -> None:
        self.payoffs = np.asarray(payoffs, np.float64)
        if self.payoffs.ndim != 2 or not self.payoffs.size:
            raise ValueError(f"payoffs={payoffs!r} is no matrix. Give a row of numbers for each action of 'row'.")
        check_count("num_rounds", num_rounds)
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
        return {agent: np.ones(1, np.float32) for agent in AGENTS}, {agent: {} for agent in AGENTS}

    def step(self, actions: Mapping[str, Any]) -> tuple[Named, Named, Named, Named, Named]:
        self.elapsed += 1
        payoff = float(self.payoffs[actions["row"], actions["column"]])
        over = self.elapsed >= self.num_rounds
        if over:
            self.agents = []
        return (
            {agent: np.ones(1, np.float32) for agent in AGENTS},
            dict.fromkeys(AGENTS, payoff),
            dict.fromkeys(AGENTS, False),
            dict.fromkeys(AGENTS, over),
            {agent: {} for agent in AGENTS},
        )


def climbing(num_rounds: int = 25) -> MatrixGame:
    """Return the climbing game. The best return of 25 rounds is 275; the neighbouring equilibrium has 175."""
    return MatrixGame(CLIMBING, num_rounds)


def penalty(k: float = 0.0, num_rounds: int = 25) -> MatrixGame:
    """Return the penalty game, with `k` of 0 or below. The best return of 25 rounds is 250."""
    return MatrixGame(((k, 0, 10), (0, 2, 0), (10, 0, k)), num_rounds)
