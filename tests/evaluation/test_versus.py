"""Several policies: each on its own, on the same episodes, or sharing the agents (`versus`); what has a common mean."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import evaluate
from parallel_envs.evaluation import EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.evaluation.recordings import chosen_records, episode_file
from parallel_envs.evaluation.statistics import comparable_missions
from tests.cli.test_tool import command, told

TEAM = "parallel_envs.testing.matrix_games:climbing"
CART, ACROBOT = "CartPole-v1", "Acrobot-v1"
POLICIES = {"random": "random", "noop": "noop"}
BOTH = ("-p", "random", "-p", "noop")
DRAWING = {"first": "tests.evaluation.test_versus:Drawn", "second": "tests.evaluation.test_versus:Drawn"}


class Drawn:
    """Draws one action while it is made, and plays it for ever."""

    def __init__(self, action_space: Any, seed: int) -> None:
        action_space.seed(seed)
        self.action = action_space.sample()

    def step(self, observation: Any) -> Any:
        return self.action


@pytest.mark.parametrize("jobs", [0, 2])
def test_policies_that_play_one_by_one_have_to_the_bit_the_numbers_that_each_has_alone(jobs: int) -> None:
    policies, missions = {**POLICIES, **DRAWING}, [CART, ACROBOT]
    both = evaluate(missions, policies, 3, jobs=jobs, versus=False, max_steps=30)
    assert [(one.mission, one.alone, one.episode) for one in both.episodes] == [
        (mission, policy, episode) for mission in missions for policy in policies for episode in range(3)
    ]
    for name, policy in policies.items():
        alone = evaluate(missions, {name: policy}, 3, max_steps=30)
        mine = [one for one in both.episodes if one.alone == name]
        assert [dataclasses.replace(one, alone="") for one in mine] == list(alone.episodes)
        assert {tuple(one.assignment.values()) for one in mine} == {(name,)}
    assert not any(summary.mixed for summary in both.per_policy().values())
    assert all(summary.mean is None for summary in both.per_mission().values())  # there are two policies
    assert len({episode_file(Path(), one) for one in both.episodes}) == len(both.episodes)
    best = [(one.alone, one.score) for one in chosen_records(both, "best") if one.mission == CART]
    scores = {name: [one.score or 0.0 for one in both.episodes[:12] if one.alone == name] for name in policies}
    assert best == [(name, max(own)) for name, own in scores.items()]


def test_a_team_is_mixed_only_where_it_is_asked_for() -> None:
    apart, shared = evaluate(TEAM, POLICIES, 2, versus=False), evaluate(TEAM, POLICIES, 2)
    assert ({one.mixed for one in apart.episodes}, {one.mixed for one in shared.episodes}) == ({False}, {True})
    assert apart.settings["versus"] is False
    assert "versus" not in shared.settings
    assert all(summary.mixed for summary in [*shared.per_policy().values(), *shared.per_mission().values()])
    assert "random (mixed)" in shared.to_table()
    assert "mixed: several policies shared the agents" in shared.to_table()
    assert "mixed" not in apart.to_table()
    assert json.loads(shared.to_json())["policies"]["noop"]["mixed"] is True
    columns = [[line.split(",")[11] for line in one.to_csv().splitlines()] for one in (shared, apart)]
    assert columns == [["policy", "mixed", "mixed"], ["policy", "random", "random", "noop", "noop"]]


def test_an_evaluation_of_policies_one_by_one_goes_on_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    whole = evaluate(CART, POLICIES, 3, versus=False, save=file)
    document = json.loads(file.read_text())
    document["episodes"], lost = document["episodes"][:4], document["episodes"][4:]
    document["missing"] = [[one["mission"], one["episode"], one["alone"]] for one in lost]
    file.write_text(json.dumps(document))
    assert EvaluationResult.from_json(file).missing == ((CART, 1, "noop"), (CART, 2, "noop"))
    refused = command("eval", "--resume", str(file), "--versus")
    assert refused.exit_code == 2
    assert "made with versus=False, and True is requested" in told(refused)
    assert command("eval", "--resume", str(file)).exit_code == 0  # the way is taken from the file
    assert EvaluationResult.from_json(file).episodes == whole.episodes


def test_two_policies_stand_side_by_side_and_are_compared(tmp_path: Path) -> None:
    file, words = str(tmp_path / "r.json"), ("eval", "-m", CART, *BOTH, "-e", "4")
    missed = command(*words, "-o", file, "--fail-below", "CartPole-v1:mean=1000")
    assert missed.exit_code == 1
    assert all(f"{name} in CartPole-v1: mean is" in told(missed) for name in POLICIES)
    assert "Each of the 2 policies is evaluated on its own, on the same episodes" in told(missed)
    assert "give --versus" in told(missed)
    compared = command("compare", file)
    assert compared.exit_code == 0, compared.output
    assert "random - noop: CartPole-v1" in compared.output
    refused = command("compare", file, file)
    assert refused.exit_code == 2
    assert "has several policies, each on its own: 'random', 'noop'. Give that file alone" in told(refused)
    found = EvaluationResult.from_json(file)
    with pytest.raises(ValueError, match="Give first_policy="):
        compare_results(found, found)
    assert compare_results(found, found, first_policy="random", second_policy="noop").n == 4


@pytest.mark.parametrize(
    "words",
    [(*BOTH, "--versus"), (*BOTH, "--proportions", "1,1"), ("-p", "class=random,proportion=2", "-p", "noop")],
)
def test_versus_and_proportions_have_policies_share_the_agents(words: tuple[str, ...]) -> None:
    result = command("eval", "-m", TEAM, *words, "-e", "2", "--format", "json")
    assert result.exit_code == 0, result.output
    assert "The 2 policies share the agents of each episode: their rows are mixed." in told(result)
    document = json.loads(result.stdout)
    assert "versus" not in document["settings"]
    assert all(len(set(one["assignment"].values())) == 2 for one in document["episodes"])


def test_a_mission_with_too_few_agents_for_all_policies_is_named() -> None:
    text = "In the mission 'CartPole-v1' some policies never play ('noop'): 2 policies share 1 agents."
    with pytest.warns(UserWarning, match=re.escape(text)) as caught:
        evaluate([CART, TEAM], POLICIES, 1, max_steps=3)
    assert [one.filename for one in caught if "never play" in str(one.message)] == [__file__]
    words = ("eval", "-m", CART, *BOTH, "-e", "1", "-s", "3")
    shared = command(*words, "-m", TEAM, "--versus")
    assert shared.exit_code == 0, shared.output
    assert [line[: len(text)] for line in shared.stderr.splitlines() if "never play" in line] == [text]
    assert "never play" not in command(*words, "-m", TEAM).stderr
    refused = command(*words, "--versus")
    assert refused.exit_code == 2
    assert "2 policies are to share at most 1 agents" in told(refused)
    assert "leave out --versus" in told(refused)


# ---- means -----------------------------------------------------------------------------------------------------------


def test_only_missions_of_one_environment_have_a_common_mean() -> None:
    found = evaluate([CART, ACROBOT], "random", 2, max_steps=20)
    (summary,) = found.per_policy().values()
    assert (summary.n, summary.failed) == (4, 0)
    assert (summary.mean, summary.standard_error, summary.iqm, summary.iqm_interval) == (None, None, None, None)
    assert "all " not in found.to_table()
    assert all(one.mean is not None for one in found.per_mission().values())
    compared = compare_results(found, found)
    assert (compared.n, compared.ties, compared.mean_difference, compared.p_value) == (4, 4, None, None)
    short, long = f"{CART}?max_episode_steps=5", f"{CART}?max_episode_steps=9"
    alike = evaluate([short, long], "random", 2)
    assert "all missions" in alike.to_table()
    assert alike.per_policy()["random"].mean is not None
    more = evaluate([short, ACROBOT, long], "random", 2, max_steps=20)
    assert comparable_missions(more) == [(short, long), (ACROBOT,)]
    assert "all of CartPole-v1" in more.to_table(), more.to_table()
    assert more.per_policy()["random"].mean is None
    for env, num_groups in (("<lambda>", 2), ("partial", 2), ("make", 1), (None, 1)):  # without a name: like no other
        settings = {"missions": {mission: {"env": env} for mission in "mn"}} if env else {}  # nothing is known of them
        episodes = tuple(EpisodeRecord(mission=one, episode=0, seed=0, returns={"a": 1.0}) for one in "mn")
        assert len(comparable_missions(EvaluationResult(episodes=episodes, settings=settings))) == num_groups


def test_a_bound_for_a_mean_that_there_is_none_of_is_refused_before_anything_is_played() -> None:
    words = ("eval", "-m", CART, "-m", ACROBOT, "-p", "random", "-e", "1", "-s", "5", "--fail-below")
    refused = command(*words, "mean=3")
    assert refused.exit_code == 2
    assert "have no common mean. Give one for each, such as CartPole-v1:mean=3." in told(refused)
    assert command(*words, "CartPole-v1:mean=1").exit_code == 0
    assert command(*words, "random:low=1").exit_code == 2
