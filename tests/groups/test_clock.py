"""By when environments are to be done: what a worker writes is what the manager reads."""

from __future__ import annotations

import math
import time

import pytest

from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.jobs import Job, Measure, Play, Reset, Restore


def test_what_one_side_writes_the_other_reads() -> None:
    block = Clock.room(3)
    here, there = Clock(block, 3), Clock(block, 3)
    block.close()
    here.request = there.request = 7
    began = time.monotonic()
    there.begin(1, 10.0)
    there.begin(2, math.inf)
    assert here.at_work([0, 1, 2]) == [1, 2]
    assert (here.is_any_at_work([0, 1]), here.is_any_at_work([0])) == (True, False)
    assert here.late([0, 1, 2], began + 9.0) == []
    assert here.late([0, 1, 2], began + 1e6) == [1]
    assert began + 10.0 <= here.next_due([0, 1, 2]) <= time.monotonic() + 10.0
    assert here.next_due([0]) == math.inf
    there.end(1)
    assert began <= here.last_end([0, 1]) <= time.monotonic()
    assert (here.at_work([0, 1]), here.last_end([0])) == ([], 0.0)
    here.clear([2])
    assert there.at_work([2]) == []


def test_who_is_busy_with_an_earlier_request_is_not_to_blame() -> None:
    block = Clock.room(2)
    here, there = Clock(block, 2), Clock(block, 2)
    block.close()
    there.begin(0, -1.0)
    here.request += 1
    assert (here.late([0, 1], time.monotonic()), here.at_work([0, 1])) == ([], [])
    assert here.is_any_at_work([0, 1])
    assert here.next_due([0, 1]) < time.monotonic()


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (Play((), 1), 2.0),
        (Measure(), 2.0),
        (Reset(0, "train"), 5.0),
        (Restore(0, "train", (("a",), ("b", "c"))), 9.0),
    ],
)
def test_how_long_a_job_may_take(job: Job, seconds: float) -> None:
    assert Limits(step=2.0, reset=5.0).of(job) == seconds
    assert Limits().of(job) == math.inf
