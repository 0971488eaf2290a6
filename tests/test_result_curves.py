"""The room of results: what is made of runs, and one run in small."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.test_examples import EXAMPLES

ROOM = EXAMPLES / "results"


@pytest.fixture
def learning_curve(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOM)
    return importlib.import_module("learning_curve")


@pytest.fixture
def train_seeds(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOM)
    return importlib.import_module("train_seeds")


def test_the_interval_is_students(learning_curve: Any) -> None:
    found = learning_curve.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert learning_curve.interval([7.0, 7.0]).half == 0.0
    assert math.isnan(learning_curve.interval([7.0]).half)
    assert [str(learning_curve.interval(values)) for values in ([7.0], [6.0, 6.0])] == ["7.00", "6.00 ± 0.00"]


def test_a_row_has_every_runs_last_value(learning_curve: Any) -> None:
    rows = learning_curve.curve([[(10, 1.0), (25, 2.0)], [(24, 4.0), (26, 6.0)]], total_steps=30, num_rows=3)
    assert [row.steps for row in rows] == [10, 20, 30]
    assert [row.seeds for row in rows] == [(1.0, None), (1.0, None), (2.0, 6.0)]
    assert [row.over_seeds is None for row in rows] == [True, True, False]
    assert rows[2].over_seeds.mean == 4.0


def test_the_csv_leaves_out_what_is_not_known(learning_curve: Any) -> None:
    rows = learning_curve.curve([[(1, 1.0)], [(2, 3.0)]], total_steps=2, num_rows=2)
    lines = list(csv.reader(learning_curve.as_csv(rows, [0, 7]).splitlines()))
    assert lines[0] == ["steps", "mean", "low", "high", "seed_0", "seed_7"]
    assert lines[1] == ["1", "", "", "", "1.0000", ""]
    assert lines[2] == ["2", "2.0000", f"{2 - 12.706:.4f}", f"{2 + 12.706:.4f}", "1.0000", "3.0000"]


@pytest.mark.parametrize("num_runs", [1, 3])
def test_the_picture_has_a_line_for_each_seed_and_one_for_the_mean(learning_curve: Any, num_runs: int) -> None:
    runs = [[(step, float(step * (run + 1))) for step in range(1, 9)] for run in range(num_runs)]
    svg = ET.fromstring(learning_curve.as_svg(learning_curve.curve(runs, 8, 4), "A < B", wanted=30.0))
    space = "{http://www.w3.org/2000/svg}"
    lines = svg.findall(f"{space}polyline")
    assert len(lines) == num_runs + 1
    assert len(svg.findall(f"{space}polygon")) == (num_runs > 1)
    assert svg.find(f"{space}text").text == "A < B"  # type: ignore[union-attr]  # it is there
    places = [tuple(map(float, place.split(","))) for line in lines for place in line.attrib["points"].split()]
    assert all(0 < x <= 640 and 0 < y < 360 for x, y in places)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-83.0, -29.0), (0.0, 1e6), (174.9, 175.1)])
def test_ticks_are_round_and_few(learning_curve: Any, low: float, high: float) -> None:
    ticks = learning_curve.round_numbers(low, high)
    assert 3 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize(("name", "total_steps"), [("penalty_ppo", "40000"), ("climbing_hysteretic_dqn", "50000")])
def test_a_task_in_small_from_config_to_curve(
    train_seeds: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, total_steps: str
) -> None:
    monkeypatch.setattr(train_seeds, "HERE", tmp_path)
    config = tmp_path / f"{name}.yaml"
    config.write_text((ROOM / f"{name}.yaml").read_text(encoding="utf-8").replace(total_steps, "3000"))
    line = train_seeds.summed_up(name, [0, 1], tmp_path / "runs")
    told = list(csv.DictReader((tmp_path / "figures.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["task"], row["seed"]) for row in told] == [(name, "0"), (name, "1")]
    payoffs = {float(row["deterministic"]) / 25 for row in told}  # always the same actions: one cell of the matrix
    assert payoffs <= {0.0, 2.0, 10.0, 11.0, -30.0, 7.0, 6.0, 5.0}
    assert line.startswith(f"| {train_seeds.TASKS[name].title} | 2 | ")
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8").count("\n") == 51
    config.write_text("env: nowhere\ntotal_steps: 3000\n")
    assert train_seeds.summed_up(name, [0, 1], tmp_path / "runs") == line  # nothing is done twice


def test_a_run_goes_on_when_its_config_wants_more(
    train_seeds: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(train_seeds, "HERE", tmp_path)
    config = (ROOM / "penalty_ppo.yaml").read_text(encoding="utf-8")
    steps = []
    for total in ("3000", "4000"):
        (tmp_path / "penalty_ppo.yaml").write_text(config.replace("40000", total), encoding="utf-8")
        steps.append(train_seeds.figures_of("penalty_ppo", 0, tmp_path / "run").steps)
    assert 2500 < steps[0] < 3500 < steps[1] < 4500
    lines = [line["steps"] for line in train_seeds.read_metrics(tmp_path / "run")]
    assert lines == sorted(lines)
    assert lines[0] < 500


def test_minutes_are_those_of_all_parts_of_a_run(train_seeds: Any) -> None:
    assert train_seeds.seconds([1.0, 5.0, 9.0]) == 9.0
    assert train_seeds.seconds([1.0, 5.0, 2.0, 3.0, 0.5]) == 8.5


def test_every_task_has_its_config(train_seeds: Any) -> None:
    for name in train_seeds.TASKS:
        settings = train_seeds.load_settings(ROOM / f"{name}.yaml")
        train_seeds.env_factory(settings.env, settings.env_kwargs)
        train_seeds.algorithm_configs(settings, ["agent", *settings.agents], train_seeds.configs_by_name())
