"""`parallel-envs eval`: what is printed, written and refused, and with which exit code."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from typer.testing import Result

from parallel_envs.evaluation import EvaluationResult
from parallel_envs.evaluation import evaluate as play
from parallel_envs.evaluation.recordings import read_episode
from parallel_envs.extras import shell_command
from tests.cli.test_tool import command, told
from tests.vector.test_tracing import Timeline

CART = ("-m", "CartPole-v1")
LEFT = ("-p", "tests.cli.agents:Left")


def evaluated(*words: str) -> Result:
    """Two episodes of a cart that is pushed to the left, with these words in addition."""
    return command("eval", *CART, *LEFT, "-e", "2", *words)


def test_every_format_tells_the_same_numbers_and_progress_is_not_in_them(tmp_path: Path) -> None:
    result = evaluated("--save-episodes", str(tmp_path / "kept"))
    assert result.exit_code == 0, result.output
    assert "return per agent" in result.stdout
    assert "2 of 2 episodes (100%)" in result.stderr
    assert "100%" not in result.stdout
    returns = [one["returns"]["agent_0"] for one in json.loads(evaluated("--format", "json").stdout)["episodes"]]
    rows = csv.DictReader(io.StringIO(evaluated("--format", "csv").stdout))
    assert [float(row["return:agent_0"]) for row in rows] == returns
    assert yaml.safe_load(evaluated("--format", "yaml").stdout)["missions"]["CartPole-v1"]["mean"] == sum(returns) / 2
    for name, beginning in (("r.csv", "mission,"), ("r.yml", "kind: "), ("r.txt", "┏")):
        assert evaluated("-o", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(beginning)
    files = sorted((tmp_path / "kept").iterdir())
    assert [file.name for file in files] == ["CartPole-v1-0000.npz", "CartPole-v1-0001.npz"]
    saved = read_episode(files[1])
    assert len(saved.arrays["observations/agent_0"]) == saved.record.length + 1
    assert saved.arrays["rewards/agent_0"].sum() == saved.record.returns["agent_0"] == returns[1]


def test_settings_reach_the_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    words = "-p random -p noop --proportions 2,1 -s 7 --seed 5 --action-timeout-ms 60000 -e 3 --parallel-policy thread"
    result = command("eval", "-m", "mpe2.simple_spread_v3", *words.split(), "-o", str(tmp_path / "r.json"))
    assert result.exit_code == 0, result.output
    read = EvaluationResult.from_json(tmp_path / "r.json")
    expected = {"seed": 5, "max_steps": 7, "action_timeout": 60.0, "parallel_policy": "thread"}
    assert expected.items() <= read.settings.items()
    assert [sorted(record.assignment.values()) for record in read.episodes] == [["noop", "random", "random"]] * 3
    assert {record.length for record in read.episodes} == {7}
    for more in (("--parallel-policy", "-s", "3"), ("-s", "3", "--parallel-policy")):  # which alone means auto
        assert json.loads(evaluated("--format", "json", *more).stdout)["settings"]["parallel_policy"] == "auto"


def test_players_may_take_turns() -> None:
    pytest.importorskip("pettingzoo.classic.connect_four_v3")
    words = ("eval", "-m", "pettingzoo.classic.connect_four_v3", "-p", "random", "-e", "1")
    assert "Give --turns 'sequential'" in told(command(*words))
    assert command(*words, "--turns", "sequential").exit_code == 0


def test_videos_are_made_and_what_cannot_be_filmed_is_told(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    result = evaluated("--record", "best", "--videos", str(tmp_path))
    assert result.exit_code == 0, result.output
    (video,) = tmp_path.iterdir()
    assert video.suffix == ".mp4"
    assert f"{video}: CartPole-v1, episode " in result.stderr
    env = ("-m", "tests.cli.agents:TwoSteps", "-p", "random", "-e", "2")
    result = command("eval", *env, "--record", "worst", "--videos", str(tmp_path))
    assert result.exit_code == 1
    assert "no video of tests.cli.agents:TwoSteps, episode" in told(result)
    assert list(tmp_path.iterdir()) == [video]


@pytest.mark.parametrize(
    ("policy", "words", "exit_code", "parts"),
    [
        ("Crashes", [], 1, ["3 of 3 episodes failed:", "RuntimeError: the network gave nan", "3 failed"]),
        ("Crashes", ["--strict"], 1, ["1 of 3 episodes were played.", "Episode 0 of 'CartPole-v1' fail"]),
        ("Interrupted", ["-o", "r.json"], 130, ["Not complete: 0 of 3 episodes were played."]),
        ("Interrupted", [], 130, ["0 of 3 episodes were played, and cannot be resumed: there is no --output FILE.js"]),
    ],
)
def test_failures_and_ctrl_c_are_exit_codes(
    policy: str, words: list[str], exit_code: int, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = command("eval", *CART, "-p", f"tests.cli.agents:{policy}", "-e", "3", *words)
    assert result.exit_code == exit_code
    assert [part for part in parts if part not in told(result)] == []
    if "-o" in words:
        assert EvaluationResult.from_json(tmp_path / "r.json").interrupted


@pytest.mark.parametrize(
    ("threshold", "exit_code", "words"),
    [
        ("mean=5", 0, ""),
        ("mean=500", 1, "tests.cli.agents:Left: mean is 9.5, below 500."),
        ("CartPole-v1:low=50", 1, "CartPole-v1: low is "),
        ("tests.cli.agents:Left:mean=50", 1, "below 50."),
        ("success=0.5", 1, "success is not known, and 0.5 is required."),
    ],
)
def test_thresholds_decide_about_the_exit_code(threshold: str, exit_code: int, words: str) -> None:
    result = evaluated("--fail-below", threshold)
    assert result.exit_code == exit_code, result.output
    assert words in told(result)
    if words.startswith("success"):  # it is judged where the env tells it
        env = ("-m", "tests.cli.agents:TwoSteps", "-p", "random", "-e", "20")
        assert command("eval", *env, "--fail-below", "success=0.1").exit_code == 0
        assert command("eval", *env, "--fail-below", "success=1").exit_code == 1


def test_late_actions_are_shown_and_are_exit_code_1_unless_they_are_allowed() -> None:
    plain = ("eval", *CART, "-p", "tests.cli.agents:Slow", "-e", "2")
    assert "late" not in command(*plain).output  # without a deadline
    words = (*plain, "--action-timeout-ms", "20", "--format", "json")
    result = command(*words)
    assert result.exit_code == 1, result.output
    assert "late in 2 of 2 episodes (action_timeout=0.02): the agents did nothing instead." in told(result)
    assert "With --allow-late this is no error." in told(result)
    allowed = command(*words, "--allow-late")
    assert allowed.exit_code == 0, allowed.output
    assert "late in 2 of 2 episodes" in told(allowed)
    document = json.loads(allowed.stdout)
    late = [episode["late"] for episode in document["episodes"]]
    assert min(late) >= 1
    assert document["missions"]["CartPole-v1"]["late"] == sum(late)


def test_what_cannot_be_written_costs_no_numbers_and_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    for words, message in (
        (["-o", "r.json"], "No space left on device"),
        (["--save-episodes", "."], "Episode 0 of CartPole-v1 is not saved: [Errno 28] No space left on device"),
    ):
        result = evaluated(*words)
        assert result.exit_code == 1, result.output
        assert "return per agent" in result.stdout
        assert message in told(result)
        assert "Episode 1" not in result.output, "once is enough"
        assert list(tmp_path.iterdir()) == []


TRUST = ["--trust", "tests"]
"""The file names policies of these tests, and a file's word alone is not enough to run them."""


@pytest.mark.parametrize("jobs", ["2", pytest.param("0", marks=pytest.mark.slow)])
def test_ctrl_c_says_how_to_go_on_and_that_is_enough(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, straight = tmp_path / "it's here.json", tmp_path / "straight.json"
    words = ["eval", *CART, "-p", "tests.cli.agents:Slow", "-e", "20", "-s", "9", "--seed", "5", "-o"]
    process = subprocess.Popen(
        [sys.executable, "-m", "parallel_envs", *words, str(file), "--jobs", jobs, "--fail-below", "mean=500"],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    begun = EvaluationResult.from_json(file)
    assert begun.interrupted
    assert 0 < len(begun.episodes) < 20
    at_the_end = f"{len(begun.episodes)} of 20 episodes were played, and are saved. To play the rest: "
    at_the_end += shell_command("parallel-envs", "parallel_envs", "")
    (line,) = [line for line in said.splitlines() if line.startswith(at_the_end)]
    assert line.endswith(" --trust tests.cli.agents")
    rest = command(*shlex.split(line.removeprefix(at_the_end)))
    assert rest.exit_code == 1, "the threshold too is kept"
    assert "below 500." in told(rest)
    assert "were played, and are saved" not in told(rest)
    monkeypatch.setattr("tests.cli.agents.Slow.wrong", lambda self: None)  # no need to be slow here
    assert command(*words, str(straight)).exit_code == 0
    one, other = EvaluationResult.from_json(file), EvaluationResult.from_json(straight)
    assert one.episodes == other.episodes
    assert one.settings == other.settings
    assert one.options["jobs"] == jobs


def test_policies_in_folders_are_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run := tmp_path / "runs" / "my cart").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (run / "policy.json").write_text('{"class": "tests.cli.agents:Left"}')
    (tmp_path / "agents.py").write_text("")  # not a policy: a word that is no folder of one is kept as it is
    monkeypatch.setattr("tests.cli.agents.Left.load", lambda self, folder: None, raising=False)
    monkeypatch.chdir(tmp_path)
    assert (
        command("eval", *CART, "-p", "runs/my cart", "-p", "random", *TRUST, "-e", "2", "-o", "r.json").exit_code == 0
    )
    monkeypatch.chdir(tmp_path / "other")
    result = command("eval", "--resume", "../r.json", "-e", "3", *TRUST)
    assert result.exit_code == 0, result.output
    found = EvaluationResult.from_json("../r.json")
    assert (len(found.episodes), found.failures) == (6, ())
    assert found.options["policy"] == {"runs/my cart": str(run), "random": "random"}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The file of an evaluation of which one episode of three was played."""
    file = tmp_path / "begun.json"
    words = ("-e", "3", "-s", "9", "--seed", "5", "--action-timeout-ms", "60000.7", "--strict")
    assert command("eval", *CART, *LEFT, *words, "-o", str(file)).exit_code == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    document |= {"interrupted": True, "episodes": document["episodes"][:1], "missing": [["CartPole-v1", 1]]}
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_the_file_is_enough_to_go_on_and_what_no_number_depends_on_may_be_given_besides(begun: Path) -> None:
    before, other = begun.read_text(encoding="utf-8"), begun.with_name("other.json")
    words = ("-o", str(other), "--jobs", "2", "-e", "4", "--format", "csv", *CART)
    result = command("eval", "--resume", str(begun), *words, *TRUST)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("mission,")
    assert begun.read_text(encoding="utf-8") == before
    found = EvaluationResult.from_json(other)
    assert (len(found.episodes), found.options["jobs"]) == (4, "2")
    for _ in range(2):  # the second time there is nothing left to do
        result = command("eval", "--resume", str(begun), *TRUST)
        assert result.exit_code == 0, result.output
        found = EvaluationResult.from_json(begun)
        assert (len(found.episodes), found.missing, found.interrupted) == (3, (), False)
    timeout = 60000.7 / 1000  # a number that does not survive the way to milliseconds and back
    expected = {"seed": 5, "max_steps": 9, "episodes": 3, "action_timeout": timeout}
    assert expected.items() <= found.settings.items()
    assert found.options["strict"] is True


def test_a_file_that_a_program_wrote_is_enough_where_it_gave_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # short paths: an error text in a box is wrapped
    play("tests.evaluation.stages:hidden", {"it": "random"}, 2, num_agents=3, save="named.json")
    play("CartPole-v1", {"it": lambda seen: 0}, 2, save="unnamed.json")
    for episodes in (3, 4):  # by a program and by the command
        result = command("eval", "--resume", "named.json", "-e", str(episodes), *TRUST)
        assert result.exit_code == 0, result.output
        found = EvaluationResult.from_json("named.json")
        assert [len(record.returns) for record in found.episodes] == [3] * episodes
    assert command("eval", "--resume", "named.json", *TRUST, "--cogs", "2").exit_code == 2
    refused = command("eval", "--resume", "unnamed.json")
    assert refused.exit_code == 2
    assert "unnamed.json does not hold the texts of what was evaluated" in told(refused)
    assert "Add --policy, or resume it in that program" in told(refused)


FOREIGN = "which neither belongs to this package nor was named by you"


@pytest.mark.parametrize(
    ("words", "changed", "message"),
    [
        (["--seed", "6"], {}, "begun.json was made with --seed 5, and 6 is requested."),
        (["-p", "random"], {}, "begun.json was made with policies="),
        (["-m", "CartPole-v0"], {}, "holds 1 episodes that are not requested now, and would lose them."),
        (TRUST, {"policy": ["runs/gone"]}, "The policy 'runs/gone' is unknown."),
        (TRUST, {"jobs": [3]}, "begun.json is damaged: `options.jobs: [3]`"),
        ([], {"policy": ["subprocess:Popen"]}, FOREIGN),
        ([], {"mission": ["subprocess:Popen?args=x"]}, FOREIGN),
        ([], {"mission": {"cart": "os:system"}}, FOREIGN),
        ([], {"mission": ["antigravity"]}, FOREIGN),
        ([], {"mission": ["ctypes.macholib.*"]}, FOREIGN),  # to look for what fits would import `ctypes`
        ([], {"mission": ["MISSIONS"]}, FOREIGN),
    ],
)
def test_a_file_that_is_contradicted_damaged_or_names_foreign_code_is_refused_and_stays(
    words: list[str], changed: dict[str, Any], message: str, begun: Path, tmp_path: Path
) -> None:
    missions = tmp_path / "missions.yaml"
    missions.write_text("missions: {one: {env: 'subprocess:Popen', kwargs: {args: x}}}", encoding="utf-8")
    document = json.loads(begun.read_text(encoding="utf-8"))
    options = {"policy": ["random"]} if message == FOREIGN else {}
    document["options"] |= options | changed
    begun.write_text(json.dumps(document).replace("MISSIONS", str(missions)), encoding="utf-8")
    before = begun.read_text(encoding="utf-8")
    result = command("eval", "--resume", str(begun), *words, *([] if message == FOREIGN else TRUST))
    assert result.exit_code == 2, result.output
    assert message in told(result)
    assert begun.read_text(encoding="utf-8") == before
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", "0"], "greater than or equal to 1"),
        (["--jobs", "two"], "--jobs 'two' is not a whole number from 0 up nor 'auto'."),
        (["--parallel-policy", "process", "-j", "1"], "Give --jobs 2 or more, or --jobs 0 to play the episodes in"),
        (["--strategy", "agent_0"], "--strategy 'agent_0' does not have the form AGENT=HOW"),
        (["--strategy", "agent_0=proces"], "--strategy 'proces' of the agent 'agent_0' is unknown."),
        (["--proportions", "a"], "--proportions 'a' are not numbers. Give one for each"),
        (["--episods", "3"], "No such option: --episods"),
        (["--output", "r.xyz"], "the ending must name the format: .json"),
        (["--output", "nowhere/r.json"], "there is no folder nowhere"),
        (["--output", "tests.json"], "it is a folder"),
        (["--resume", "nowhere.json"], "nowhere.json cannot be read"),
        (["--save-episodes", "file/kept"], "--save-episodes file/kept cannot be a folder: Not a directory"),
        (["--record", "bst"], "'bst' is not one of 'best'"),
        (["--fail-below", "men=3"], "there is no metric 'men'. Did you mean `mean`?"),
        (["--fail-below", "mean"], "does not have the form METRIC=VALUE"),
        (["--fail-below", "mean=x"], "'x' is not a number"),
        (["--fail-below", "CartPol-v1:mean=3"], "Did you mean `CartPole-v1`?"),
    ],
)
def test_mistakes_are_told_in_plain_words(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests.json").mkdir()
    (tmp_path / "file").touch()
    result = command("eval", *CART, "-p", "random", "-e", "2", *words)
    assert result.exit_code == 2, result.output
    assert message in told(result)
    assert "Traceback" not in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "tests.json"]


@pytest.mark.parametrize("jobs", ["0", "2"])
def test_a_trace_has_each_episode_in_the_row_of_its_job(tmp_path: Path, jobs: str) -> None:
    path = tmp_path / "trace.json"
    result = evaluated("-m", "tests.cli.agents:TwoSteps", "-j", jobs, "--trace", str(path), "-p", "random")
    assert result.exit_code == 0, result.output
    rows = Timeline(path).rows
    assert [name for name in rows if name != "caller"] == [f"evaluation worker {job}" for job in range(int(jobs) or 1)]
    found = [
        (one["name"], *(one["args"][name] for name in ("mission", "policy", "episode")))
        for row in rows.values()
        for one in row
        if one["name"] == "episode"
    ]
    missions, policies = ("CartPole-v1", "tests.cli.agents:TwoSteps"), ("tests.cli.agents:Left", "random")
    assert sorted(found) == sorted(
        ("episode", mission, policy, number) for mission in missions for policy in policies for number in range(2)
    )
    result = evaluated("--trace", str(tmp_path / "no" / "trace.json"))
    assert (result.exit_code, "there is no folder" in told(result)) == (2, True)
