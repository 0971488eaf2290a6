from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.startup import GYMNASIUM_FORK, Line, measure_startup
from parallel_envs.bench.envs import resolve
from tests.benchmarks.stages import Broken, NotingItsProcess


def test_a_warm_line_starts_in_one_program_and_a_cold_one_in_a_fresh_program_each_time(
    tmp_path: Path,
) -> None:
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    lines = [
        Line("warm", partial(NotingItsProcess, note=warm)),
        Line("cold", partial(NotingItsProcess, note=cold), cold=True),
    ]
    rows = measure_startup(resolve("spin:0"), num_envs=1, rounds=2, lines=lines)
    assert [row.open_seconds.num_samples for row in rows if row.open_seconds is not None] == [2, 2]
    assert len(warm.read_text().split()) == 3  # the first start is not counted
    assert len(set(warm.read_text().split())) == 1
    assert len(set(cold.read_text().split())) == 2


def test_a_line_that_breaks_keeps_its_row() -> None:
    lines = [Line(GYMNASIUM_FORK, NotingItsProcessNowhere), Line("broken", Broken)]
    base, broken = measure_startup(resolve("spin:0"), num_envs=1, rounds=1, lines=lines)
    assert base.to_gymnasium == 1.0
    assert broken.error == "RuntimeError: this space is not supported"
    assert broken.open_seconds is None
    assert broken.to_gymnasium is None


NotingItsProcessNowhere = partial(NotingItsProcess, note=Path("/dev/null"))
