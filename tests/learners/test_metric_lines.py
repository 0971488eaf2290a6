"""Lines of metrics: what is written is read, what was cut off is left out, what is none is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel_envs.learners.run_folder import BadRun, MetricsFile, read_metrics


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[MetricsFile]:
    made = MetricsFile(tmp_path)
    for steps in (100, 200, 300):
        made.add({"steps": steps, "share": 1 / steps}, {"red": {"loss": 1 / 3}, 7: {"loss": float("nan")}})
    yield made
    made.close()


def test_they_are_lines_of_json(lines: MetricsFile, tmp_path: Path) -> None:
    assert read_metrics(tmp_path)[0] == {
        "steps": 100,
        "share": 0.01,
        "agents": {"red": {"loss": 1 / 3}, "7": {"loss": None}},
    }


def test_those_that_are_dropped_are_written_again_and_the_others_stay_to_the_byte(
    lines: MetricsFile, tmp_path: Path
) -> None:
    before = (tmp_path / "metrics.jsonl").read_bytes()
    lines.drop_after(200)
    assert [line["steps"] for line in read_metrics(tmp_path)] == [100, 200]
    lines.add({"steps": 300, "share": 1 / 300}, {"red": {"loss": 1 / 3}, 7: {"loss": float("inf")}})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("rest", [b'{"steps": 400', b"\xff\xfe", b"{}"])
def test_a_line_that_was_cut_off_is_left_out(rest: bytes, lines: MetricsFile, tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(rest)
    assert len(read_metrics(tmp_path)) == 3
    lines.drop_after(300)
    assert len(read_metrics(tmp_path)) == 3


def test_where_there_is_no_file_there_are_no_lines(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


ODD = [b'{"x": 1}', b"rubbish", b"[1]", b'{"steps": "1"}', b"\xff\xfe", '{"steps": 1}'.encode("utf-16"), b"[" * 9999]


@pytest.mark.parametrize("odd", ODD)
def test_one_that_is_none_is_named_and_nothing_changed(odd: bytes, lines: MetricsFile, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + odd + b'\n{"steps": 400}\n')
    before = path.read_bytes()
    with pytest.raises(BadRun, match=r"Line 4 of .*metrics\.jsonl is not a line of metrics: '.*\. Remove it"):
        lines.drop_after(100)
    assert path.read_bytes() == before
