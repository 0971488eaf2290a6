"""`parallel-envs` as one tool: its help, its suggestions, that it starts at once, and its progress bars."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from parallel_envs import cli
from parallel_envs.bench import cli as bench
from parallel_envs.cli.episode_display import shown_episodes
from parallel_envs.commands import examples_in
from parallel_envs.evaluation import EpisodeRecord, Failure

ROOT = typer.main.get_command(cli.app)
BENCH = typer.main.get_command(bench.app)
COMMANDS = ("train", "sweep", "eval", "compare", "report", "watch", "tasks", "doctor")
HELPS: dict[str, Any] = {
    "": ROOT,
    **{name: cast(Any, ROOT).commands[name] for name in COMMANDS},
    "bench": BENCH,
    **{f"bench {name}": one for name, one in cast(Any, BENCH).commands.items()},
}
"""The commands with a help of their own, by their words."""
LONG = {"train": 40, "eval": 40, "sweep": 40, "": 26}
"""Most lines of their help at 100 columns. The help of any other command has 24 lines."""


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words), prog_name="parallel-envs")


def told(result: Result) -> str:
    """All that was said, without frames and line breaks."""
    return " ".join(result.output.replace("│", " ").split())


def test_the_program_lists_its_commands_and_a_command_without_words_explains_itself() -> None:
    assert set(cast(Any, ROOT).commands) == {*COMMANDS, "bench"}  # a new command belongs into COMMANDS above
    assert all(f" {name} " in told(command("--help")) for name in (*COMMANDS, "bench"))
    assert "Usage: parallel-envs [OPTIONS] COMMAND" in told(command())
    assert "Usage: parallel-envs bench suggest [OPTIONS] ENV" in told(command("bench", "suggest", "--help"))
    assert command("eval").output == command("eval", "--help").output == command("eval", "-h").output
    assert "Missing option '--policy'" in told(command("eval", "-m", "CartPole-v1"))


def options_of(one: Any) -> set[str]:
    return {option for param in one.params if param.param_type_name == "option" for option in param.opts}


@pytest.mark.parametrize("words", HELPS)
def test_help_fits_one_screen_and_names_every_option(words: str) -> None:
    shown = CliRunner().invoke(cli.app, [*words.split(), "--help"], env={"COLUMNS": "100"}).output
    lines = shown.splitlines()
    assert len(lines) <= LONG.get(words, 24), shown
    assert max(map(len, lines)) <= 100, shown
    assert options_of(HELPS[words]) - set(re.findall(r"-[-\w]+", shown)) <= {"-m", "-p", "-e", "-s"}, shown
    assert all(param.metavar for param in HELPS[words].params if not getattr(param, "is_flag", False))


def test_help_all_has_the_whole_text_of_every_option() -> None:
    for words, one in HELPS.items():
        if hasattr(one, "commands"):
            continue
        found = told(command(*words.split(), "--help-all")).replace(" ", "")
        for param in one.params:
            assert param.help.replace("`", "").replace(" ", "").removesuffix(".") in found, (words, param.name)
    assert "0: episodes in this process" not in told(command("eval", "--help"))


@pytest.mark.parametrize("words", HELPS)
def test_help_has_three_examples_that_can_be_parsed(words: str) -> None:
    examples = examples_in(HELPS[words].help)
    assert len(examples) == 3
    for example in examples:
        program, *rest = shlex.split(example.partition(" > ")[0])
        assert program == "parallel-envs"
        assert " ".join(rest).startswith(words)
        group, name = ROOT, rest.pop(0)
        if name == "bench":
            group, name = BENCH, rest.pop(0)
        if rest != ["--help"]:
            cast(Any, group).commands[name].make_context(name, rest)  # raises for an unknown option, or a wrong value


@pytest.mark.slow
@pytest.mark.timeout(220)
@pytest.mark.parametrize(
    "chain",
    [
        ["train", "eval", "compare", "report"],
        ["tasks"],
        ["doctor"],
        ["bench step"],
        ["bench suggest"],
        ["bench machine"],
    ],
)
def test_the_examples_work_one_after_another(chain: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    before = {"compare": ["parallel-envs eval -m CartPole-v1 -p random -e 50 --output random.json"]}
    for words in chain:
        for line in [*before.get(words, ()), *examples_in(HELPS[words].help)]:
            done = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            may_fail = words in ("doctor", "bench suggest")  # they tell of problems of this machine, or that it is busy
            assert done.returncode in ((0, 1) if may_fail else (0,)), (line, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["evla"], "eval"),
        (["train", "--resum", "x"], "--resume"),
        (["tasks", "CartPole-v1", "--timout", "3"], "--timeout"),
        (["bench", "sugest"], "suggest"),
        (["bench", "step", "--num-env", "3"], "--num-envs"),
    ],
)
def test_what_is_misspelt_is_guessed(words: list[str], meant: str) -> None:
    result = command(*words)
    assert result.exit_code == 2
    assert meant in told(result).rpartition("No such")[2]
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["compare", "resluts.json"], "Did you mean 'results.json'?"),
        (["report", "runs/cartpol"], "Did you mean 'runs/cartpole'?"),
        (["train", "--resume", "runs/cartpol"], "Did you mean 'runs/cartpole'?"),
        (["train", "cartpol.yaml"], "Did you mean 'cartpole.yaml'?"),
        (["compare", "nothing/like/it.json"], "cannot be read: No such file or directory. "),
    ],
)
def test_the_nearest_file_or_run_is_named(
    words: list[str], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("runs/cartpole/settings.yaml", "runs/cartpols/other.txt", "results.json", "cartpole.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    result = command(*words)
    assert result.exit_code == 2
    assert meant in f"{told(result)} "


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)


def test_help_loads_nothing_that_it_does_not_need() -> None:
    program = (
        "import json, runpy, sys\n"
        "sys.argv = ['parallel-envs', '--help']\n"
        "try: runpy.run_module('parallel_envs', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    shown = ran("-c", program).stdout
    loaded = set(json.loads(shown.splitlines()[-1]))
    assert "Usage: parallel-envs" in shown
    assert "parallel_envs.cli" in loaded
    assert loaded & {"numpy", "gymnasium", "pettingzoo", "torch", "pydantic", "parallel_envs.engine"} == set()


def test_a_terminal_without_signs_for_everything_gets_other_signs() -> None:
    words = ("-m", "parallel_envs", "eval", "-m", "CartPole-v1", "-p", "random", "-e", "2")
    assert "15.50 ? 0.50" in ran(*words, PYTHONIOENCODING="ascii").stdout


# ---- progress: bars, and lines where there is no terminal ------------------------------------------------------------

BROKEN = Failure(kind="env", error_type="ValueError", message="no")


def record(mission: str, episode: int, failure: Failure | None = None) -> EpisodeRecord:
    return EpisodeRecord(mission=mission, episode=episode, seed=0, failure=failure)


def written(num_missions: int, num_episodes: int, *, is_terminal: bool) -> str:
    """What is written while all episodes are played, a second each; every fourth fails."""
    now, text = 0.0, io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=110, color_system=None)
    work = [(f"mission {mission:02d}", number) for mission in range(num_missions) for number in range(num_episodes)]
    with shown_episodes(console, lambda: now) as progress:
        progress.begin(work, [])
        for place, (mission, episode) in enumerate(work):
            now += 1.0
            progress.note(record(mission, episode, failure=BROKEN if place % 4 == 3 else None))
    return text.getvalue()


def test_lines_come_each_minute_and_at_the_end_and_what_was_complete_before_is_no_speed() -> None:
    assert written(1, 128, is_terminal=False).splitlines() == [
        "60 of 128 episodes (46%), 1 episodes/s, 1 min 08 s left, 15 failed",
        "120 of 128 episodes (93%), 1 episodes/s, 8 s left, 30 failed",
        "128 of 128 episodes (100%), 1 episodes/s, 0 s left, 32 failed",
    ]
    now, text = 0.0, io.StringIO()
    with shown_episodes(Console(file=text, width=110), lambda: now) as progress:
        now = 100.0
        progress.begin([("m", number) for number in range(10)], [record("m", 0), record("m", 1, failure=BROKEN)])
        now = 170.0
        progress.note(record("m", 2))
    assert text.getvalue() == "3 of 10 episodes (30%), 0.0143 episodes/s, 8 min 10 s left, 1 failed\n"


@pytest.mark.parametrize(
    ("num_missions", "num_episodes", "there", "not_there"),
    [
        (
            2,
            4,
            ["mission 00", "4/4 1 failed", "episodes/s, 4 s left, 1 failed", "8/8", "1 episodes/s, 0 s"],
            "mission 02",
        ),
        (1, 2, ["2/2"], "mission 00"),  # one mission has one bar
        (30, 1, ["mission 15", "30/30"], "mission 16"),  # more than fit a screen have bars for some
    ],
)
def test_bars_tell_missions_speed_time_left_and_failures(
    num_missions: int, num_episodes: int, there: list[str], not_there: str
) -> None:
    text = written(num_missions, num_episodes, is_terminal=True)
    assert [part for part in there if part not in text] == []
    assert not_there not in text
