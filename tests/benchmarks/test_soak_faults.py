from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.memory import num_descriptors
from benchmarks.soak.env import INSIDE
from benchmarks.soak.faults import OUTSIDE, Planner, Strike, landing
from benchmarks.soak.model import Disturbance, Where
from parallel_envs.testing.scripted import Fault

KILL = (Where.IDLE, Fault.SIGKILL)


def planner(per_minute: float = 60.0, at_once: int = 1000) -> Planner:
    return Planner(np.random.default_rng(0), per_minute, at_once, now=100.0)


def test_so_many_faults_a_minute_come_due() -> None:
    assert planner(per_minute=100.0).due(100.0) == []
    assert 850 < len(planner(per_minute=100.0).due(100.0 + 600.0)) < 1150


def test_what_was_not_done_stays_due_and_comes_in_small_lots() -> None:
    all_due, plan, done = len(planner().due(700.0)), planner(at_once=3), 0
    while due := plan.due(700.0):
        assert len(due) <= 3
        done += len(due)
        due.clear()
    assert done == all_due


def test_what_has_come_to_nothing_is_made_up_for() -> None:
    plan = planner()
    plan.make_up()
    assert len(plan.due(100.0)) == 1


def test_signals_come_from_outside_and_every_kind_of_fault_comes_everywhere() -> None:
    plan = planner()
    drawn = Counter(plan.draw() for _ in range(5000))
    outside = {(where, fault) for where in (Where.WAITING, Where.IDLE) for fault in OUTSIDE}
    inside = {(where, fault) for where in (Where.STEP, Where.RESET, Where.AUTORESET) for fault in INSIDE}
    around = {(Where.AROUND, disturbance) for disturbance in Disturbance}
    assert set(drawn) == outside | inside | around


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_strike_hits_the_process_it_was_aimed_at(child: subprocess.Popen[bytes]) -> None:
    strike = Strike(3, child.pid, KILL)
    strike.land()
    strike.close()
    assert strike.has_landed
    assert child.wait() == -signal.SIGKILL


def test_a_strike_at_a_process_that_has_ended_does_not_land(child: subprocess.Popen[bytes]) -> None:
    strike = Strike(3, child.pid, KILL)
    child.kill()
    child.wait()
    strike.land()
    strike.close()
    assert not strike.has_landed


def test_no_strike_is_aimed_at_a_process_that_is_no_worker() -> None:
    before = num_descriptors()
    with pytest.raises(ProcessLookupError):
        Strike(0, os.getppid(), KILL)
    assert num_descriptors() == before


def test_strikes_land_while_the_block_runs_and_no_later(child: subprocess.Popen[bytes]) -> None:
    late = Strike(0, child.pid, KILL)
    with landing([late], [3600.0]):
        pass
    assert not late.has_landed
    soon = Strike(0, child.pid, KILL)
    with landing([soon], [0.0]):
        child.wait()
    assert soon.has_landed
    late.close()
    soon.close()
