"""Tables of every command fit terminals of 70 and of 80 columns, whatever names are in them."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Hashable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from parallel_envs import cli
from parallel_envs.bench.cli import step_report, suggest_report
from parallel_envs.bench.measure import Quartiles
from parallel_envs.bench.step import Row, Setting, Trial
from parallel_envs.evaluation import EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.records import Failure
from parallel_envs.evaluation.tables import tables
from parallel_envs.terminal import FittingTable

NARROW = pytest.mark.parametrize("columns", [70])
MISSIONS = ["a_rather_long_name_of_a_mission_that_somebody_gave.v3", "walk", "package.module.with.a.path:factory_of_it"]
POLICIES = ["class=my_package.policies.very_long:SomePolicyClass,data=runs/spread-20260101", "random"]
FAILED = Failure(kind="policy", error_type="ValueError", message="This is wrong with it. " * 9, where="step 17")


def record(mission: str, episode: int, low: float) -> EpisodeRecord:
    return EpisodeRecord(
        mission=mission,
        episode=episode,
        seed=episode,
        assignment={"red": POLICIES[0], "blue": POLICIES[1]},
        returns={"red": low + 97.531 * episode, "blue": 0.0123 * episode},
        success=episode % 2 == 0,
        timeouts={"red": 3},
        failure=FAILED if episode == 5 else None,
    )


RESULT = EvaluationResult(
    episodes=tuple(record(mission, episode, -12345.678) for mission in MISSIONS for episode in range(6)),
    missing=(("walk", 6),),
)


def printed(thing: RenderableType, columns: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=columns, color_system=None).print(thing)
    return text.getvalue().splitlines()


def check_fits(lines: list[str], columns: int) -> None:
    assert max(map(cell_len, lines)) <= columns, "\n".join(lines)


def command(columns: int, *words: str) -> list[str]:
    done = CliRunner().invoke(cli.app, list(words), env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    check_fits(done.stdout.splitlines(), columns)
    return done.stdout.splitlines()


def table(*names: str) -> FittingTable:
    made = FittingTable(title="What it is")
    made.add_column("name")
    for head in ("first figure", "second figure", "third"):
        made.add_column(head, justify="right")
    for name in names:
        made.add_row(name, "1 to 23456", "-0.12345", "100%")
    return made


def test_what_is_too_wide_has_names_on_several_lines() -> None:
    assert "│ short │" in "\n".join(printed(table("short"), 80))  # what fits is drawn as it is
    lines = printed(table("runs/spread-of-the-first-seed", "b"), 50)
    check_fits(lines, 50)
    assert "│" not in "".join(lines)
    assert re.search(r"^runs/spread\S* +1 to 23456 +-0\.12345 +100%", "\n".join(lines), re.MULTILINE)
    assert "".join(line.split()[0] for line in lines[-3:-1]) == "runs/spread-of-the-first-seed"


def test_names_stand_on_lines_of_their_own_where_figures_leave_no_room() -> None:
    names = [f"runs/spread-{seed}" for seed in range(2)]
    lines = printed(table(*names), 36)
    check_fits(lines, 36)
    assert [line.strip() for line in lines if line.startswith("runs")] == names
    assert [line.split() for line in lines].count(["1", "to", "23456", "-0.12345", "100%"]) == 2
    check_fits(printed(table("a-name-that-is-long"), 24), 24)  # its figures are wrapped


@NARROW
def test_an_evaluation_fits_and_is_printed_as_its_table(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert str(RESULT).splitlines() == RESULT.to_table(columns).splitlines()
    check_fits(str(RESULT).splitlines(), columns)
    lines = [line for part in tables(RESULT) for line in printed(part, columns)]
    check_fits(lines, columns)
    assert all(name in "".join(lines) for name in (*MISSIONS, *POLICIES))
    assert any(re.search(r"-12151 ± 69 .*-1\d+ to -1\d+ +50% +1 +18", line) for line in lines), "\n".join(lines)


@NARROW
def test_comparisons_fit(tmp_path: Path, columns: int) -> None:
    saved = [str(tmp_path / f"{number}.json") for number in range(2)]
    for name, low in zip(saved, (-12345.678, 0.5), strict=True):
        episodes = tuple(record(mission, episode, low) for mission in MISSIONS for episode in range(5))
        EvaluationResult(episodes=episodes).to_json(name)
    assert "walk" in "".join(command(columns, "compare", *saved))
    assert "#1:" in "".join(command(columns, "compare", saved[0]))
    assert max(map(len, command(200, "compare", *saved))) > 80  # $COLUMNS says how wide a table is in a pipe


def test_a_result_is_short_where_objects_are_shown_and_a_table_in_a_notebook() -> None:
    assert repr(RESULT) == "<EvaluationResult: 18 episodes, 3 missions, 2 policies, 3 failed, 1 missing>"
    assert "3 of 18 episodes failed" in RESULT._repr_html_()
    assert "&lt;b&gt;" in EvaluationResult(episodes=(record("<b>", 0, 1.0),))._repr_html_()


SPREAD = Quartiles(123456.0, 98765.0, 234567.0, 9)
RATIO = Quartiles(1.92, 1.5, 2.1, 9)


@NARROW
def test_reports_of_the_benchmark_fit(columns: int) -> None:
    names = ["parallel_envs", "gymnasium AsyncVectorEnv, shared memory", "stable-baselines3 SubprocVecEnv (forkserver)"]
    rows = [Row(name=name, settings="process, 8 workers", spread=SPREAD, ours_to_this=RATIO) for name in names]
    rows += [Row(name="envpool", settings="8 threads", missing="envpool")]
    trials = [Trial(setting=Setting("process", 16), spread=SPREAD, to_in_process=RATIO, error=None)]
    title = "package.module:factory_of_environments_with_a_long_name, 64 environments"
    for report in (step_report(rows, {}, "a title that is long " * 5), suggest_report(trials, {}, title)):
        lines = printed(report.table, columns)
        check_fits(lines, columns)
        assert "123,456" in "".join(lines)


@NARROW
def test_the_doctor_fits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel_envs.cli.doctor import findings
    from tests.cli.test_doctor import FINE

    text, doctor = io.StringIO(), importlib.import_module("parallel_envs.cli.doctor")  # the package has its command
    monkeypatch.setattr(doctor, "console", lambda: Console(file=text, width=columns, color_system=None))
    doctor._show(FINE, findings(FINE, 10_000))
    check_fits(text.getvalue().splitlines(), columns)


@NARROW
def test_the_last_panel_of_a_training_run_fits(columns: int) -> None:
    from parallel_envs.learners.progress import returns_told
    from parallel_envs.progress import Bar, frame

    returns: dict[Hashable, float] = {f"an_agent_with_a_long_name_{number}": -1234.5678 for number in range(20)}
    lines = ["told " * 30, returns_told(returns), "lag 1 " * 20]
    check_fits(printed(frame([Bar(10**6, 10**7)], lines), columns), columns)
    bars = [Bar(number, 10**6, f"mission {number}", f"{number}/{10**6} 3 failed") for number in range(16)]
    check_fits(printed(frame(bars, lines), columns), columns)
