"""How many agents a mission is to have: by whichever keyword its environment takes their number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.evaluation import BadEvaluation, EvaluationResult, Mission, evaluate, missions_of
from parallel_envs.evaluation.missions import NUM_AGENTS
from tests.cli.test_tool import command
from tests.evaluation.stages import Course


def course_of(number: int, **kwargs: Any) -> Course:
    return Course(agents=tuple(f"agent_{place}" for place in range(number)), **kwargs)


def maker_with(keyword: str) -> Callable[..., Course]:
    """Return a function that has this keyword, and others that do not say how many agents there are."""
    found: dict[str, Any] = {"course_of": course_of}
    exec(f"def make(max_cycles=6, {keyword}=2): return course_of({keyword}, length=max_cycles)", found)
    return found["make"]  # type: ignore[no-any-return]  # exec knows no types


def hidden(**kwargs: Any) -> Course:
    """Does not say what it takes: `n_agents`, and nothing else."""
    return course_of(kwargs.pop("n_agents", 2), **kwargs)


def crowded(num_agents: int = 2) -> Course:
    """Has one agent more than it is told."""
    return course_of(num_agents + 1)


@pytest.mark.parametrize("keyword", NUM_AGENTS)
def test_the_keyword_is_found_in_the_signature(keyword: str) -> None:
    (found,) = missions_of({"m": maker_with(keyword)}, num_agents=4)
    assert (found.name, found.kwargs) == ("m", {keyword: 4})
    played = evaluate({"m": maker_with(keyword)}, "noop", 1, num_agents=4)
    assert len(played.episodes[0].returns) == 4


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("mpe2.simple_spread_v3", "N"),
        ("tests.evaluation.test_num_agents:hidden", "n_agents"),
        ("tests.evaluation.test_num_agents:hidden?length=3", "n_agents"),
    ],
)
def test_a_mission_by_name_is_called_as_if_its_name_had_said_it(name: str, keyword: str) -> None:
    pytest.importorskip("mpe2")
    written = f"{name}{'&' if '?' in name else '?'}{keyword}=4"
    assert missions_of(name, num_agents=4) == missions_of(written) == missions_of(written, num_agents=4)


def test_pettingzoo_modules_that_hide_their_keywords_are_tried() -> None:
    pytest.importorskip("pettingzoo.butterfly.pistonball_v6")
    (found,) = missions_of("pettingzoo.butterfly.pistonball_v6", num_agents=4)
    assert found.kwargs == {"n_pistons": 4}


@pytest.mark.parametrize(
    ("mission", "text"),
    [
        ("CartPole-v1", "'CartPole-v1' is a Gymnasium environment, which has one agent, and 4 are requested"),
        ("tests.evaluation.stages:Course", "takes no number of agents by any of the keywords .* agents, fatal_seed"),
        ("mpe2.simple_spread_v3?N=3", "has N=3, and 4 agents are requested. Give one of the two"),
        ({"m": Mission(name="a", env=crowded, kwargs={"num_agents": 2})}, "'m' has num_agents=2"),
        ({"m": crowded}, r"'m' has 5 agents \(agent_0, .*\), and 4 are requested"),
        ("tests.evaluation.test_num_agents:hiden", "cannot be made: AttributeError: .* has no attribute .hiden"),
    ],
)
def test_a_mission_that_cannot_have_so_many_is_an_error(mission: Any, text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        evaluate(mission, "noop", 1, num_agents=4)


def test_an_environment_of_one_agent_may_be_asked_for_one() -> None:
    assert missions_of("CartPole-v1", num_agents=1) == missions_of("CartPole-v1")


def test_cogs_are_kept_in_the_file_that_is_resumed(tmp_path: Path) -> None:
    file, words = tmp_path / "r.json", ("-m", "tests.evaluation.test_num_agents:hidden", "-p", "noop")
    assert command("eval", *words, "--cogs", "3", "-e", "2", "-o", str(file)).exit_code == 0
    whole = EvaluationResult.from_json(file).episodes
    document = json.loads(file.read_text())
    document["missing"] = [[document["episodes"][-1]["mission"], 1]]
    del document["episodes"][-1]
    file.write_text(json.dumps(document))
    trusted = ("--trust", "tests.evaluation.test_num_agents")
    result = command("eval", "--resume", str(file), *trusted)
    assert result.exit_code == 0, result.output
    assert EvaluationResult.from_json(file).episodes == whole
    assert len(whole[0].returns) == 3
    assert command("eval", "--resume", str(file), *trusted, "--cogs", "2").exit_code == 2
