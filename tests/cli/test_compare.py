"""`parallel-envs compare`."""

from __future__ import annotations

from pathlib import Path

from parallel_envs.evaluation import EpisodeRecord, EvaluationResult
from tests.cli.test_tool import command, told


def saved(path: Path, scores: dict[str, list[float]], seed: int = 0) -> str:
    """An evaluation of one agent with these scores by mission, in a file."""
    episodes = [
        EpisodeRecord(mission=mission, episode=n, seed=seed + n, assignment={"a": path.stem}, returns={"a": score})
        for mission, own in scores.items()
        for n, score in enumerate(own)
    ]
    EvaluationResult(episodes=tuple(episodes)).to_json(path)
    return str(path)


def row(text: str, name: str) -> list[str]:
    """The cells of the row of that name."""
    (line,) = [line for line in text.splitlines() if line.replace("│", "|").startswith(f"| {name} ")]
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_two_evaluations_are_compared_mission_by_mission_and_as_a_whole(tmp_path: Path) -> None:
    first = saved(tmp_path / "first.json", {"easy": [3.0, 5.0], "hard": [1.0, 2.0]})
    second = saved(tmp_path / "second.json", {"easy": [1.0, 5.0], "hard": [0.0, 3.0]})
    result = command("compare", first, second)
    assert result.exit_code == 0, result.output
    assert row(result.stdout, "easy") == ["easy", "2", "1.0 ± 1.0", "0 to 2", "1", "1", "0", "1"]
    assert row(result.stdout, "hard") == ["hard", "2", "0.0 ± 1.0", "-1 to 1", "1", "0", "1", "1"]
    assert row(result.stdout, "all missions")[:3] == ["all missions", "4", "0.50 ± 0.71"]


def test_policies_that_met_have_a_row_each(tmp_path: Path) -> None:
    assignment, returns = {"a": "good", "b": "bad"}, ({"a": 2.0, "b": 1.0}, {"a": 4.0, "b": 0.0})
    episodes = [
        EpisodeRecord(mission="m", episode=n, seed=n, assignment=assignment, returns=own)
        for n, own in enumerate(returns)
    ]
    EvaluationResult(episodes=tuple(episodes)).to_json(tmp_path / "r.json")
    result = command("compare", str(tmp_path / "r.json"))
    assert result.exit_code == 0, result.output
    assert row(result.stdout, "good")[:3] == ["good", "3", "-"]
    assert row(result.stdout, "bad")[:3] == ["bad", "-", "0.5"]
    assert float(row(result.stdout, "good")[3]) > 1000 > float(row(result.stdout, "bad")[3])


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    first = saved(tmp_path / "first.json", {"easy": [3.0, 5.0]})
    second = saved(tmp_path / "second.json", {"easy": [3.0]}, seed=5)
    for files, message in (
        ([first, second], "No episode was played to its end by both from the same seed"),
        ([first], "No two policies met"),
        ([str(tmp_path / "none.json")], "none.json cannot be read"),
    ):
        result = command("compare", *files)
        assert (result.exit_code, message in told(result)) == (2, True), result.output
