"""Several policies: each on its own, on the same episodes, or sharing the agents (`versus`); what has a common mean."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from parallel_envs import cli, evaluate
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.evaluation.recordings import chosen_records, episode_file
from parallel_envs.evaluation.statistics import comparable_missions

TEAM = "parallel_envs.testing.matrix_games:climbing"
POLICIES = {"random": "random", "noop": "noop"}
DRAWING = {"first": "tests.evaluation.test_versus:Drawn", "second": "tests.evaluation.test_versus:Drawn"}


class Drawn:
    """Draws one action while it is made, and plays it for ever."""

    def __init__(self, action_space: Any, seed: int) -> None:
        action_space.seed(seed)
        self.action = action_space.sample()

    def step(self, observation: Any) -> Any:
        return self.action


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def told(result: Result) -> str:
    return " ".join(result.output.replace("│", " ").split())


# ---- each on its own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [0, 2])
def test_policies_that_play_one_by_one_have_the_numbers_that_each_has_alone(jobs: int) -> None:
    """To the bit: the episodes of both are those of an evaluation of one policy."""
    policies = {**POLICIES, **DRAWING}
    both = evaluate(["CartPole-v1", "Acrobot-v1"], policies, 3, jobs=jobs, versus=False, max_steps=30)
    assert [(one.mission, one.alone, one.episode) for one in both.episodes] == [
        (mission, policy, episode)
        for mission in ("CartPole-v1", "Acrobot-v1")
        for policy in policies
        for episode in range(3)
    ]
    for name, policy in policies.items():
        alone = evaluate(["CartPole-v1", "Acrobot-v1"], {name: policy}, 3, max_steps=30)
        mine = [one for one in both.episodes if one.alone == name]
        assert [dataclasses.replace(one, alone="") for one in mine] == list(alone.episodes)
        assert {tuple(one.assignment.values()) for one in mine} == {(name,)}
    assert not any(summary.mixed for summary in both.per_policy().values())
    assert all(summary.mean is None for summary in both.per_mission().values())  # of two policies nobody wants a mean


def test_a_team_is_mixed_only_where_it_is_asked_for() -> None:
    apart = evaluate(TEAM, POLICIES, 2, versus=False)
    assert {one.mixed for one in apart.episodes} == {False}
    assert apart.settings["versus"] is False
    shared = evaluate(TEAM, POLICIES, 2)
    assert {one.mixed for one in shared.episodes} == {True}
    assert "versus" not in shared.settings
    assert all(summary.mixed for summary in [*shared.per_policy().values(), *shared.per_mission().values()])
    assert "random (mixed)" in shared.to_table()
    assert "mixed: several policies shared the agents" in shared.to_table()
    assert "mixed" not in apart.to_table()
    assert json.loads(shared.to_json())["policies"]["noop"]["mixed"] is True
    assert [line.split(",")[11] for line in shared.to_csv().splitlines()] == ["policy", "mixed", "mixed"]
    assert [line.split(",")[11] for line in apart.to_csv().splitlines()][1:] == ["random", "random", "noop", "noop"]


def test_proportions_are_for_policies_that_share(tmp_path: Path) -> None:
    with pytest.raises(BadEvaluation, match=r"versus=False has each play on its own\. Give one of the two"):
        evaluate(TEAM, POLICIES, 1, versus=False, proportions=[1, 1])
    with pytest.raises(BadEvaluation, match="versus='no' is neither True nor False"):
        evaluate(TEAM, POLICIES, 1, versus="no")  # type: ignore[arg-type]  # what this is about


def test_an_evaluation_of_policies_one_by_one_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = evaluate("CartPole-v1", POLICIES, 3, versus=False, save=tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    document["episodes"], lost = document["episodes"][:4], document["episodes"][4:]
    document["missing"] = [[one["mission"], one["episode"], one["alone"]] for one in lost]
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(BadEvaluation, match="was made with policies that play one by one"):
        evaluate("CartPole-v1", POLICIES, 3, resume=tmp_path / "r.json")
    assert EvaluationResult.from_json(tmp_path / "r.json").missing == (
        ("CartPole-v1", 1, "noop"),
        ("CartPole-v1", 2, "noop"),
    )
    found = evaluate("CartPole-v1", POLICIES, 3, versus=False, resume=tmp_path / "r.json")
    assert found.episodes == whole.episodes
    again = command("eval", "--resume", str(tmp_path / "r.json"))
    assert again.exit_code == 0, again.output
    assert EvaluationResult.from_json(tmp_path / "r.json").episodes == whole.episodes


def test_files_of_episodes_and_films_are_named_by_the_policy_too(tmp_path: Path) -> None:
    found = evaluate("CartPole-v1", POLICIES, 2, versus=False)
    assert len({episode_file(tmp_path, one) for one in found.episodes}) == 4
    assert [(one.alone, one.score) for one in chosen_records(found, "best")] == [
        (name, max(one.score or 0.0 for one in found.episodes if one.alone == name)) for name in POLICIES
    ]


# ---- the command --------------------------------------------------------------------------------------------------


def test_two_policies_stand_side_by_side_and_are_compared(tmp_path: Path) -> None:
    file = str(tmp_path / "r.json")
    words = ("eval", "-m", "CartPole-v1", "-p", "random", "-p", "noop", "-e", "4")
    result = command(*words, "-o", file)
    assert result.exit_code == 0, result.output
    assert "Each of the 2 policies is evaluated on its own, on the same episodes" in told(result)
    assert "give --versus" in told(result)
    compared = command("compare", file)
    assert compared.exit_code == 0, compared.output
    assert "random - noop: CartPole-v1" in compared.output
    refused = command("compare", file, file)
    assert refused.exit_code == 2
    assert "has several policies, each on its own: 'random', 'noop'. Give that file alone" in told(refused)
    found = EvaluationResult.from_json(file)
    with pytest.raises(ValueError, match="Say which one is compared: first_policy="):
        compare_results(found, found)
    assert compare_results(found, found, first_policy="random", second_policy="noop").n == 4
    missed = command(*words, "--fail-below", "CartPole-v1:mean=1000")
    assert missed.exit_code == 1
    assert "random in CartPole-v1: mean is" in told(missed)
    assert "noop in CartPole-v1: mean is" in told(missed)


@pytest.mark.parametrize(
    "words",
    [
        ["-p", "random", "-p", "noop", "--versus"],
        ["-p", "random", "-p", "noop", "--proportions", "1,1"],
        ["-p", "class=random,proportion=2", "-p", "noop"],
    ],
)
def test_versus_and_proportions_have_policies_share_the_agents(words: list[str], tmp_path: Path) -> None:
    result = command("eval", "-m", TEAM, *words, "-e", "2", "--format", "json")
    assert result.exit_code == 0, result.output
    assert "The 2 policies share the agents of each episode: their rows are mixed." in told(result)
    document = json.loads(result.stdout)
    assert "versus" not in document["settings"]
    assert all(len(set(one["assignment"].values())) == 2 for one in document["episodes"])


def test_an_agent_cannot_be_shared() -> None:
    result = command("eval", "-m", "CartPole-v1", "-p", "random", "-p", "noop", "--versus")
    assert result.exit_code == 2
    assert "2 policies are to share at most 1 agents" in told(result)
    assert "leave out --versus" in told(result)


def test_resuming_takes_the_way_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    words = ("-m", "CartPole-v1", "-p", "random", "-p", "noop", "-o", str(file))
    assert command("eval", *words, "-e", "2").exit_code == 0
    assert command("eval", "--resume", str(file), "-e", "3").exit_code == 0
    assert len(EvaluationResult.from_json(file).episodes) == 6
    refused = command("eval", "--resume", str(file), "--versus", "-e", "3")
    assert refused.exit_code == 2
    assert "policies that play one by one" in told(refused)


# ---- means --------------------------------------------------------------------------------------------------------


def test_missions_of_different_environments_have_no_common_mean() -> None:
    found = evaluate(["CartPole-v1", "Acrobot-v1"], "random", 2, max_steps=20)
    (summary,) = found.per_policy().values()
    assert (summary.n, summary.failed) == (4, 0)
    assert (summary.mean, summary.standard_error, summary.iqm, summary.iqm_interval) == (None, None, None, None)
    assert "all " not in found.to_table()
    assert all(one.mean is not None for one in found.per_mission().values())
    compared = compare_results(found, found)
    assert (compared.n, compared.ties, compared.mean_difference, compared.p_value) == (4, 4, None, None)


def test_missions_of_one_environment_have_one() -> None:
    short, long = "CartPole-v1?max_episode_steps=5", "CartPole-v1?max_episode_steps=9"
    alike = evaluate([short, long], "random", 2)
    assert "all missions" in alike.to_table()
    assert alike.per_policy()["random"].mean is not None
    more = evaluate([short, "Acrobot-v1", long], "random", 2, max_steps=20)
    assert comparable_missions(more) == [(short, long), ("Acrobot-v1",)]
    assert "all of CartPole-v1" in more.to_table(), more.to_table()
    assert more.per_policy()["random"].mean is None


def test_functions_without_a_name_are_like_no_other() -> None:
    def record(mission: str) -> EpisodeRecord:
        return EpisodeRecord(mission=mission, episode=0, seed=0, assignment={"a": "p"}, returns={"a": 1.0})

    def groups(**missions: Any) -> int:
        settings = {"missions": missions} if missions else {}
        return len(comparable_missions(EvaluationResult(episodes=(record("m"), record("n")), settings=settings)))

    assert groups(m={"env": "<lambda>"}, n={"env": "<lambda>"}) == 2
    assert groups(m={"env": "partial"}, n={"env": "partial"}) == 2
    assert groups(m={"env": "make"}, n={"env": "make"}) == 1
    assert groups() == 1  # nothing is known of them


def test_a_bound_for_a_mean_that_there_is_none_of_is_refused_before_anything_is_played() -> None:
    words = ("eval", "-m", "CartPole-v1", "-m", "Acrobot-v1", "-p", "random", "-e", "1", "-s", "5", "--fail-below")
    refused = command(*words, "mean=3")
    assert refused.exit_code == 2
    assert "have no common mean. Give one for each, such as CartPole-v1:mean=3." in told(refused)
    assert command(*words, "CartPole-v1:mean=1").exit_code == 0
    assert command(*words, "random:low=1").exit_code == 2


def test_a_mission_with_too_few_agents_for_all_policies_is_told() -> None:
    text = "In the mission 'CartPole-v1' 'noop' never plays: 2 policies share its 1 agent."
    with pytest.warns(UserWarning, match=text) as caught:
        evaluate(["CartPole-v1", TEAM], POLICIES, 1, max_steps=3)
    assert len([one for one in caught if "never plays" in str(one.message)]) == 1
    assert caught[0].filename == __file__
    words = ("eval", "-m", "CartPole-v1", "-m", TEAM, "-p", "random", "-p", "noop", "-e", "1", "-s", "3")
    shared = command(*words, "--versus")
    assert shared.exit_code == 0, shared.output
    (line,) = [line for line in shared.stderr.splitlines() if "never plays" in line]
    assert line.startswith(text)
    assert "never plays" not in command(*words).stderr
