"""Matrix games: what both get, and when it is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.testing.matrix_games import CLIMBING, MatrixGame, climbing, penalty


def played(game: MatrixGame, row: int, column: int) -> list[Any]:
    """All steps of an episode in which both always do the same."""
    game.reset(seed=0)
    steps = []
    while game.agents:
        steps.append(game.step({"row": row, "column": column}))
    return steps


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("column", range(3))
def test_both_get_what_stands_where_their_lines_meet(row: int, column: int) -> None:
    for _, rewards, *_ in played(climbing(num_rounds=2), row, column):
        assert rewards == {"row": CLIMBING[row][column], "column": CLIMBING[row][column]}


@pytest.mark.parametrize(
    ("game", "row", "column", "best"),
    [
        (climbing(), 0, 0, 275.0),
        (climbing(), 1, 1, 175.0),
        (penalty(), 0, 2, 250.0),
        (penalty(), 2, 0, 250.0),
        (penalty(k=-100.0), 2, 2, -2500.0),
    ],
)
def test_returns_of_25_rounds(game: MatrixGame, row: int, column: int, best: float) -> None:
    steps = played(game, row, column)
    assert sum(rewards["row"] for _, rewards, *_ in steps) == best
    assert [truncated["row"] for *_, truncated, _ in steps] == [False] * 24 + [True]
    assert not any(terminated["row"] for _, _, terminated, *_ in steps)


def test_a_game_may_have_more_columns_than_rows() -> None:
    game = MatrixGame([[1, 2, 3]], num_rounds=1)
    assert [game.action_space(agent).n for agent in game.possible_agents] == [1, 3]  # type: ignore[attr-defined]  # Discrete
    assert played(game, 0, 2)[0][1] == {"row": 3.0, "column": 3.0}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_it_is_a_pettingzoo_environment() -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    parallel_api_test(climbing(), num_cycles=60)


def test_it_is_found_by_name() -> None:
    factory = env_factory("parallel_envs.testing.matrix_games:penalty", {"k": -5.0})
    with MultiAgentEnvManager([factory] * 2, backend="serial") as envs:
        observations, _ = envs.reset(seed=0)
        np.testing.assert_array_equal(observations["row"], [[1.0], [1.0]])
        _, rewards, *_ = envs.step({"row": np.array([0, 2]), "column": np.array([0, 0])})
    np.testing.assert_array_equal(rewards["column"], [-5.0, 10.0])


@pytest.mark.parametrize(("payoffs", "num_rounds"), [((1, 2), 3), ((), 3), (CLIMBING, 0)])
def test_what_is_no_game_is_refused(payoffs: Any, num_rounds: int) -> None:
    with pytest.raises(ValueError, match=r"payoffs=.* is no matrix|num_rounds=0"):
        MatrixGame(payoffs, num_rounds)
