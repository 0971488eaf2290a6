"""Evaluations as text: golden files, the way back, and what is no evaluation."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from parallel_envs.evaluation.records import (
    BadDocument,
    EpisodeRecord,
    EvaluationResult,
    Failure,
    record_of,
    record_values,
    to_document,
)

GOLDEN = Path(__file__).parent / "golden"

NAN_ACTION = Failure(
    kind="nonsense", error_type="ValueError", message="The action nan is not in Discrete(5).", where="step 3"
)
LOST = Failure(kind="death", error_type="WorkerDied", message="Worker 0 was killed by signal 9.", traceback="far away")


def record(mission: str, episode: int, red: float, blue: float, **fields: Any) -> EpisodeRecord:
    known: dict[str, Any] = {
        "mission": mission,
        "episode": episode,
        "seed": 1000 + episode,
        "assignment": {"red": "random", "blue": "runs/spread"},
        "returns": {"red": red, "blue": blue},
        "length": 25,
        "seconds": 0.5,
    }
    return EpisodeRecord(**{**known, **fields})


RESULT = EvaluationResult(
    episodes=(
        record("easy", 0, -1.5, 2.0, success=True),
        record("easy", 1, -0.1, 4.25, success=False, timeouts={"blue": 3}),
        record("easy", 2, 0.25, 3.0, success=True, infos={"score": {"red": 0.5}}),
        record("easy", 3, 7.0, 7.0, success=False, failure=NAN_ACTION, length=2, attempts=2),
        record("hard, [bold]", 0, -12345.678, 1e-3),
        record("hard, [bold]", 1, 0.0, 0.0, failure=LOST, success=False, assignment={}, returns={}, length=0),
    ),
    settings={"seed": 42, "policies": ["random", "runs/spread"], "jobs": 2},
    interrupted=True,
    missing=(("hard, [bold]", 2),),
    worker_bytes=(80_000_000, 70_000_000),
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("result.json", RESULT.to_json()),
        ("result.yaml", RESULT.to_yaml()),
        ("result.csv", RESULT.to_csv()),
        ("result.txt", RESULT.to_table()),
    ],
)
def test_what_is_written_is_what_it_was(name: str, text: str) -> None:
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


# ---- there and back ----------------------------------------------------------------------------------------------


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    text = RESULT.to_json(tmp_path / "result.json")
    assert EvaluationResult.from_json(tmp_path / "result.json") == RESULT
    assert (tmp_path / "result.json").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_yaml_holds_the_same_as_json() -> None:
    assert yaml.safe_load(RESULT.to_yaml()) == json.loads(RESULT.to_json())


def test_numbers_come_back_to_the_bit_also_those_json_has_no_word_for(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"a": math.pi, "b": -0.0, "c": 5e-324, "d": math.inf, "e": math.nan, "f": np.float32(0.1)}
    odd = EvaluationResult(episodes=(record("m", 0, 0, 0, assignment=dict.fromkeys(numbers, "one"), returns=numbers),))
    text = odd.to_json(tmp_path / "odd.json")
    (read,) = EvaluationResult.from_json(tmp_path / "odd.json").episodes
    assert {agent: value.hex() for agent, value in read.returns.items()} == {
        agent: float(value).hex() for agent, value in numbers.items()
    }
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_agents_and_infos_of_any_kind_can_be_told() -> None:
    odd = record("m", 0, 0, 0, returns={(0, 1): 1.0}, infos={"place": {1: np.arange(2)}, "thing": range, "b": b"x"})
    told = json.loads(json.dumps(record_values(odd)))
    assert record_of(told).returns == {"(0, 1)": 1.0}
    assert told["infos"] == {"place": {"1": [0, 1]}, "thing": "<class 'range'>", "b": "b'x'"}


def test_agents_that_look_alike_are_told_apart() -> None:
    odd = record("m", 0, 0, 0, returns={1: 1.0, "1": 2.0})
    assert record_values(odd)["returns"] == {"1": 1.0, "'1'": 2.0}


def test_a_trajectory_stays_out() -> None:
    assert "trajectory" not in record_values(RESULT.episodes[0])
    assert {field.name for field in dataclasses.fields(EpisodeRecord)} - record_values(RESULT.episodes[0]).keys() == {
        "trajectory",
        "alone",  # only of policies that played one by one
    }


# ---- for spreadsheets and readers --------------------------------------------------------------------------------


def test_csv_has_a_row_for_each_episode_and_no_return_where_it_failed() -> None:
    rows = list(csv.DictReader(io.StringIO(RESULT.to_csv())))
    assert [(row["mission"], row["episode"]) for row in rows] == [
        (one.mission, str(one.episode)) for one in RESULT.episodes
    ]
    assert [row["score"] for row in rows] == ["0.25", "2.075", "1.625", "", "-6172.8385", ""]
    assert [row["return:blue"] for row in rows[2:4]] == ["3.0", ""]
    assert (rows[1]["timeouts:blue"], rows[1]["timeouts:red"]) == ("3", "0")
    assert rows[3]["error"] == "ValueError: The action nan is not in Discrete(5)."


def test_one_mission_needs_no_row_for_all() -> None:
    easy = EvaluationResult(episodes=RESULT.episodes[:3])
    assert "all missions" in RESULT.to_table()
    assert "all missions" not in easy.to_table()


def test_a_narrow_table_keeps_its_names_and_numbers() -> None:
    text = EvaluationResult(episodes=RESULT.episodes[:3]).to_table(width=70)
    rows = [line.split() for line in text.splitlines()]
    names = [" ".join(row) for row in rows if row and not any(part.strip("─+-0123456789.%") == "" for part in row)]
    assert [name for name in names if name in ("easy", "random (mixed)", "runs/spread (mixed)")] == [
        "easy",
        "random (mixed)",
        "runs/spread (mixed)",
    ]
    assert ["3", "-0.45", "±", "0.53", "-0.45", "-1.5", "to", "0.25", "67%", "0", "0"] in rows
    assert max(map(len, text.splitlines())) <= 70


def test_failures_of_one_kind_are_one_line() -> None:
    failed = [record("m", number, 0, 0, failure=NAN_ACTION) for number in range(9)]
    others = [record("m", 9 + n, 0, 0, failure=dataclasses.replace(LOST, message="x" * n)) for n in range(6)]
    died = [record("m", 15 + pid, 0, 0, failure=dataclasses.replace(LOST, message=f"pid {pid}")) for pid in range(2)]
    text = EvaluationResult(episodes=(*failed, *others, *died)).to_table()
    assert "17 of 17 episodes failed:" in text
    assert "  m, episode 0, step 3, and 8 more: ValueError: The action nan is not in Discrete(5).\n" in text
    assert "  m, episode 15, and 1 more: WorkerDied: pid 0\n" in text
    assert "and 3 other kinds of failure" in text


def test_of_nothing_there_is_a_table_too() -> None:
    nothing = EvaluationResult(episodes=())
    assert "mission" in nothing.to_table()
    assert nothing.to_csv().count("\n") == 1


# ---- what is no evaluation ---------------------------------------------------------------------------------------


def damaged(**changes: Any) -> str:
    return json.dumps({**to_document(RESULT), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not an evaluation. Give a file"),
        ('{"kind": "parallel_envs bench"}', "is not an evaluation"),
        (damaged(schema=99), "has schema 99, and this version reads 1"),
        (damaged(episodes=[{"mission": "m"}]), "is damaged: TypeError"),
        (damaged(episodes=3), "is damaged"),
        (damaged(missing=[["m"]]), "is damaged: ValueError"),
    ],
)
def test_what_is_no_evaluation_is_told(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(BadDocument) as raised:
        EvaluationResult.from_json(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadDocument, match=r"none\.json cannot be read: No such file or directory\."):
        EvaluationResult.from_json(tmp_path / "none.json")


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        RESULT.to_json(path)
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
