"""Cross-play and Elo: worked by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from parallel_envs.evaluation.comparison import AVERAGE, Pairing, cross_play, elo_ratings, pairings_of
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure


def games(first: str, second: str, wins: int, draws: int, losses: int) -> list[Pairing]:
    returns = [(1.0, 0.0)] * wins + [(0.5, 0.5)] * draws + [(0.0, 1.0)] * losses
    return [Pairing(first, second, one, other) for one, other in returns]


def test_a_cross_play_matrix_by_hand() -> None:
    table = cross_play(
        [Pairing("a", "b", 3.0, 1.0), Pairing("b", "a", 2.0, 5.0), Pairing("a", "a", 7.0, 9.0), Pairing("c", "c", 0, 0)]
    )
    assert table.policies == ("a", "b", "c")
    assert table.returns == ((8.0, 4.0, None), (1.5, None, None), (None, None, 0.0))
    assert table.counts == ((1, 2, 0), (2, 0, 0), (0, 0, 1))


def test_the_ratings_of_two_players_are_the_odds() -> None:
    ratings = elo_ratings(games("a", "b", 3, 0, 1), prior=0)
    assert list(ratings) == ["a", "b"]
    assert ratings["a"].elo - ratings["b"].elo == pytest.approx(400 * math.log10(3))
    assert (ratings["a"].elo + ratings["b"].elo) / 2 == pytest.approx(AVERAGE)
    assert ratings["a"].games == 4


def test_a_draw_is_half_a_win() -> None:
    assert elo_ratings(games("a", "b", 1, 4, 1), prior=0)["a"].elo == pytest.approx(AVERAGE)
    four_of_five = elo_ratings(games("a", "b", 3, 2, 0), prior=0)
    assert four_of_five["a"].elo - four_of_five["b"].elo == pytest.approx(400 * math.log10(4))


def test_a_prior_is_draws_against_an_average_player() -> None:
    # By symmetry a and b stand at +x and -x: 3.5 points of a are expected of 4 games with b and 1 with the average.
    rated = elo_ratings(games("a", "b", 3, 0, 1), prior=1.0)
    strength = 10 ** ((rated["a"].elo - AVERAGE) / 400)
    assert 4 * strength**2 / (1 + strength**2) + strength / (1 + strength) == pytest.approx(3.5)


def test_ratings_explain_a_chain_of_players_who_never_all_met() -> None:
    ratings = elo_ratings([*games("a", "b", 10, 0, 1), *games("b", "c", 10, 0, 1)], prior=0)
    assert ratings["a"].elo - ratings["c"].elo == pytest.approx(800.0)


def test_the_order_of_the_games_does_not_matter() -> None:
    played = [*games("a", "b", 5, 1, 3), *games("b", "c", 2, 0, 2), *games("c", "a", 1, 1, 4)]
    shuffled = random.Random(1).sample(played, len(played))
    assert [one.elo for one in elo_ratings(played).values()] == pytest.approx(
        [one.elo for one in elo_ratings(shuffled).values()]
    )


def test_who_never_lost_has_a_finite_rating_thanks_to_the_prior() -> None:
    ratings = elo_ratings(games("a", "b", 5, 0, 0))
    assert AVERAGE < ratings["a"].elo < AVERAGE + 800
    with pytest.raises(ValueError, match="their ratings are infinite"):
        elo_ratings(games("a", "b", 5, 0, 0), prior=0)
    apart = [*games("a", "b", 1, 1, 1), *games("c", "d", 1, 1, 1), *games("a", "c", 2, 0, 0)]
    with pytest.raises(ValueError, match="their ratings are infinite"):
        elo_ratings(apart, prior=0)
    with pytest.raises(ValueError, match="prior=-1 is not a number of games"):
        elo_ratings([], prior=-1)


def test_intervals_are_seeded_and_hold_the_rating() -> None:
    played = games("a", "b", 25, 7, 19)
    rated = elo_ratings(played, seed=3)["a"]
    assert rated.interval is not None
    assert rated.interval[0] < rated.elo < rated.interval[1]
    assert elo_ratings(played, seed=3)["a"] == rated
    assert len({elo_ratings(played, seed=seed)["a"].interval for seed in range(8)}) > 1


def test_many_games_settle() -> None:
    generator = np.random.default_rng(5)
    true = {"a": 1200.0, "b": 1000.0, "c": 800.0}
    played = []
    for _ in range(3000):
        one, other = generator.choice(list(true), 2, replace=False).tolist()
        wins = generator.random() < 1 / (1 + 10 ** ((true[other] - true[one]) / 400))
        played.append(Pairing(one, other, float(wins), float(not wins)))
    ratings = elo_ratings(played)
    assert {name: ratings[name].elo for name in true} == pytest.approx(true, abs=25)


def test_nobody_met_anybody() -> None:
    assert elo_ratings([]) == {}
    assert elo_ratings([Pairing("a", "a", 1.0, 0.0)]) == {}
    assert cross_play([]).policies == ()


def test_episodes_tell_who_met_whom() -> None:
    def record(number: int, policies: str, failure: Failure | None = None) -> EpisodeRecord:
        returns = {str(seat): float(seat) for seat in range(len(policies))}
        assignment = {str(seat): policy for seat, policy in enumerate(policies)}
        return EpisodeRecord(
            mission="m", episode=number, seed=number, assignment=assignment, returns=returns, failure=failure
        )

    lost = Failure(kind="death", error_type="WorkerDied", message="gone")
    records = [record(0, "aab"), record(1, "aa"), record(2, "a"), record(3, "abc"), record(4, "ab", failure=lost)]
    assert pairings_of(EvaluationResult(episodes=tuple(records))) == [
        Pairing("a", "b", 0.5, 2.0),
        Pairing("a", "a", 0.5, 0.5),
        Pairing("a", "b", 0.0, 1.0),
        Pairing("a", "c", 0.0, 2.0),
        Pairing("b", "c", 1.0, 2.0),
    ]
