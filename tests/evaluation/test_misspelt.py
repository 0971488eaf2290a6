"""What is misspelt in an evaluation, or of a kind of its own, is named before anything is played."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.evaluation import BadEvaluation, Mission, evaluate
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.evaluation.recordings import check_can_record
from parallel_envs.policies import load_policy
from tests.evaluation.stages import Course

ODD = object()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"parallel_policy": "proces"}, r"parallel_policy='proces' is unknown\. .* Did you mean 'process'\?"),
        ({"jobs": np.ones(2)}, "jobs=.* is neither a whole number from 0 up nor 'auto'"),
        ({"proportions": 1}, "proportions=1 are not numbers. Give one for each policy"),
        ({"proportions": "1,2"}, "proportions='1,2' are not numbers"),
        ({"trajectories": 1}, "trajectories=1 is neither True nor False"),
        ({"strict": "yes"}, "strict='yes' is neither True nor False"),
        ({"save": 3}, "save=3 is not the path of a file"),
        ({"resume": ODD}, "resume=<object .*> is not the path of a file"),
        ({"progress": ODD}, r"progress=<object .*> has no begin\(work, done\) and note\(record\)"),
        ({"missions": "tests.evaluation.stages:Cuorse"}, r"has no attribute 'Cuorse'\. Did you mean 'Course'\?"),
        ({"policies": "tests.evaluation.stages:Countng"}, r"has no 'Countng', .*names\. Did you mean 'Counting'\?"),
        ({"policies": "randm"}, r"The policy 'randm' is unknown\. .* Did you mean 'random'\?"),
    ],
)
def test_what_was_meant(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        evaluate(**{"missions": Course, "policies": "noop", "episodes": 1, **settings})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"turns": "sequental"}, r"turns='sequental' .* Did you mean 'sequential'\?"),
        ({"turns": np.ones(2)}, "turns=.* of the mission 'm' is unknown"),
        ({"kwargs": 3}, "kwargs=3 of the mission 'm' is not a dict"),
    ],
)
def test_a_mission_that_cannot_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        Mission(**{"name": "m", "env": "CartPole-v1", **settings})


def test_an_id_whose_package_has_not_been_imported_is_told_with_it() -> None:
    with pytest.raises(BadEvaluation, match=r"'MiniGrid-Nowhere-v0' is unknown .*Write 'minigrid:MiniGrid-Nowhere-v0'"):
        evaluate("MiniGrid-Nowhere-v0", "noop", 1)


def test_videos_of_which_episodes() -> None:
    with pytest.raises(BadEvaluation, match=r"record='wrst' is unknown\. .* Did you mean 'worst'\?"):
        check_can_record("wrst")


def test_policies_that_are_compared_have_played() -> None:
    played = evaluate({"m": Course}, {"mine": lambda seen: 0}, 1)
    with pytest.raises(ValueError, match=r"first_policy='mien' played in no .* \['mine'\]\. Did you mean 'mine'\?"):
        compare_results(played, played, first_policy="mien")
    with pytest.raises(TypeError, match="second=3 is not an EvaluationResult"):
        compare_results(played, 3)  # type: ignore[arg-type]  # which is the mistake


def test_parts_of_a_policys_text() -> None:
    with pytest.raises(ValueError, match=r"has 'clas', which is none of .* Did you mean 'class'\?"):
        load_policy("clas=tests.cli.agents:Right")
