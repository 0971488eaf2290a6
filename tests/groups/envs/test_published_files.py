"""Files of data as others publish them: Countdown's Parquet, MetaMathQA's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.errors import MissingExtra
from parallel_envs.groups.envs.countdown import CountdownConfig, CountdownEnv
from parallel_envs.groups.envs.metamathqa import MetaMathQAConfig, MetaMathQAEnv
from parallel_envs.groups.envs.records import DataFileError, read_entries

PUZZLES = [{"target": 24 + number, "nums": [number, 20, 4]} for number in range(1, 31)]


def table(path: Path, rows: list[dict[str, Any]]) -> str:
    """A Parquet file of these rows, in groups of 7 of them."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    return str(path)


def countdown_row(number: int, puzzle: dict[str, Any]) -> dict[str, Any]:
    """A row as TinyZero's preparation writes it, and RAGEN reads it."""
    return {
        **puzzle,
        "data_source": "countdown",
        "prompt": [{"content": f"Using the numbers {puzzle['nums']}, make {puzzle['target']}.", "role": "user"}],
        "ability": "math",
        "reward_model": {"ground_truth": {"numbers": puzzle["nums"], "target": puzzle["target"]}, "style": "rule"},
        "extra_info": {"index": number, "split": "train"},
    }


@pytest.mark.parametrize("columns", ["target and nums", "all"])
def test_countdown_parquet_as_published(tmp_path: Path, columns: str) -> None:
    rows = [countdown_row(number, one) if columns == "all" else one for number, one in enumerate(PUZZLES)]
    path = table(tmp_path / "train.parquet", rows)
    in_lines = tmp_path / "train.jsonl"
    in_lines.write_text("\n".join(map(json.dumps, PUZZLES)))
    for config in ({"val_share": 0.0}, {"max_instances": 9}, {}):
        env = CountdownEnv(CountdownConfig(data_path=path, **config))
        same = CountdownEnv(CountdownConfig(data_path=str(in_lines), **config))
        for seed in range(20):
            for mode in ("train", "val"):
                assert env.reset(seed, mode) == same.reset(seed, mode)
                assert env.puzzle == same.puzzle
    assert type(env.puzzle.target) is type(env.puzzle.numbers[0]) is int
    assert {key for (key,) in [tuple(one.value) for one in read_entries(path, 1, ("target",))]} == {"target"}


def test_parquet_that_cannot_be_used_is_told_with_its_row(tmp_path: Path) -> None:
    path = table(tmp_path / "odd.parquet", [*PUZZLES[:8], {"target": -1, "nums": [1]}])
    with pytest.raises(DataFileError, match=r"odd.parquet, line 9: `target` is -1"):
        CountdownEnv(CountdownConfig(data_path=path))
    path = table(tmp_path / "other.parquet", [{"target": 3, "numbers": [1, 2]}])
    with pytest.raises(DataFileError, match=r"the field `nums` is missing\. There are numbers, target"):
        CountdownEnv(CountdownConfig(data_path=path))
    for name, content in (("text.parquet", b"nums,target\n"), ("none.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataFileError, match="Give the path of a Parquet file"):
            CountdownEnv(CountdownConfig(data_path=str(tmp_path / name)))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    monkeypatch.setattr("parallel_envs.extras.is_installed", lambda module: False)
    with pytest.raises(MissingExtra, match=r"train.parquet needs pyarrow, .*parallel-envs\[data\]"):
        CountdownEnv(CountdownConfig(data_path=str(tmp_path / "train.parquet")))


MATH = [
    {
        "type": "MATH_AnsAug",
        "query": "Gracie and Joe are choosing numbers on the complex plane. Joe chooses $1+2i$. How far is $0$?",
        "original_question": "Gracie and Joe are choosing numbers on the complex plane.",
        "response": "The distance is $\\sqrt{1^2+2^2} = \\boxed{\\sqrt{5}}.$\nThe answer is: \\sqrt{5}",
    },
    {
        "type": "GSM_Rephrased",
        "query": "What is 5 and 6 \u2013 together?",
        "original_question": "Add 5 and 6.",
        "response": "5 + 6 = <<5+6=11>>11\n#### 11\nThe answer is: 11",
    },
    {
        "type": "GSM_FOBAR",
        "query": "x and 6 are 11. What is the value of unknown variable x?",
        "original_question": "Add 5 and 6.",
        "response": "x = 11 - 6\nx = 5\nThe answer is: 5",
    },
]
"""Entries as in `MetaMathQA-395K.json`: one array, the fields in this order."""


@pytest.mark.parametrize("form", ["indented", "dense", "parquet"])
def test_metamathqa_as_published(tmp_path: Path, form: str) -> None:
    path = str(tmp_path / "MetaMathQA-395K.json")
    if form == "parquet":
        path = table(tmp_path / "train.parquet", MATH)
    else:
        Path(path).write_text(json.dumps(MATH, indent=4 if form == "indented" else None), encoding="utf-8")
    env = MetaMathQAEnv(MetaMathQAConfig(data_path=path, val_share=0.0))
    asked = {env.reset(seed): env.question for seed in range(30)}
    assert set(asked) == {one["query"] for one in MATH}
    for entry in MATH:
        question = asked[entry["query"]]
        assert (question.kind, question.original) == (entry["type"], entry["original_question"])
        assert question.answer == entry["response"].split("The answer is: ")[1]
    split = MetaMathQAEnv(MetaMathQAConfig(data_path=path, val_share=0.5))
    kept = [{split.reset(seed, mode) and split.question.original for seed in range(30)} for mode in ("train", "val")]
    assert not kept[0] & kept[1]  # variations of a question stay together
