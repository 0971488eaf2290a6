from __future__ import annotations

import shutil

import pytest

from benchmarks import syscalls
from benchmarks.syscalls import StraceMissing, Trace, measure_calls, parse_summary, per_step

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 71.43    0.000050           3        16           read
 28.57    0.000020          10         2         1 write
  0.00    0.000000           0         0           poll
------ ----------- ----------- --------- --------- ----------------
100.00    0.000070           3        18         1 total
"""


def test_the_table_of_strace_is_read_by_column() -> None:
    assert parse_summary(SUMMARY) == {"read": 16, "write": 2, "poll": 0}


def test_what_starting_up_cost_cancels_out() -> None:
    few = Trace(steps=100, calls={"read": 1000, "write": 300})
    many = Trace(steps=300, calls={"read": 1800, "write": 700, "poll": 20})
    assert per_step(few, many) == {"poll": 0.1, "read": 4.0, "write": 2.0}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_gymnasium_makes_six_calls_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "_WARM_UP_STEPS", 50)
    try:
        rows = {row.name: row for row in measure_calls(num_envs=2, steps=200)}
    except StraceMissing as reason:
        pytest.skip(str(reason))
    assert rows["gymnasium"].read_write == pytest.approx(6.0, abs=0.2)
    assert rows["parallel_envs"].error is None
