"""By when environments are to be done: what a worker writes is what the manager reads."""

from __future__ import annotations

import math
import time

import pytest

from parallel_envs.groups.transport import MAKING, REPLAYING, Job, Replay, TimeLimits, WorkerClock


def both_sides(num_envs: int, worker: int = 0) -> tuple[WorkerClock, WorkerClock]:
    """The clock of a worker out of two, as its asker has it, and as it does itself."""
    block = WorkerClock.allocate(num_envs, 2)
    here, there = WorkerClock(block, num_envs, worker), WorkerClock(block, num_envs, worker)
    block.close()
    return here, there


@pytest.mark.parametrize("worker", [0, 1])
def test_what_one_side_writes_the_other_reads(worker: int) -> None:
    here, there = both_sides(3, worker)
    here.request = 7
    there.start(7)
    began = time.monotonic()
    there.begin(1, 10.0)
    there.begin(2, math.inf)
    assert here.at_work() == [1, 2]
    assert here.is_any_at_work()
    assert here.late(began + 9.0) == []
    assert here.late(began + 1e6) == [1]
    assert began + 10.0 <= here.next_due() <= time.monotonic() + 10.0
    there.end(1)
    assert began <= here.last_end() <= time.monotonic()
    assert (here.at_work(), here.next_due()) == ([2], math.inf)
    here.clear()
    assert (there.at_work(), there.is_any_at_work()) == ([], False)


def test_workers_do_not_write_into_each_others_parts() -> None:
    block = WorkerClock.allocate(2, 3)
    clocks = [WorkerClock(block, 2, worker) for worker in range(3)]
    block.close()
    for clock in clocks:
        clock.request = 1
    clocks[1].start(1)
    clocks[1].begin(0, -1.0, MAKING)
    clocks[1].begin(1, -1.0, REPLAYING)
    clocks[1].begin_sending(0, 2)
    for other in (clocks[0], clocks[2]):
        assert (other.is_any_at_work(), other.last_end(), other.sending([0, 1])) == (False, 0.0, [])
        assert [other.doing(env, Job.PLAY) for env in (0, 1)] == ["its turn"] * 2
    for other in (clocks[0], clocks[2]):
        other.clear()
    assert (clocks[1].at_work(), clocks[1].sending([0, 1])) == ([0, 1], [0, 1])


def test_who_is_busy_with_an_earlier_request_is_not_to_blame() -> None:
    here, there = both_sides(2)
    there.start(here.request)
    there.begin(0, -1.0)
    here.request += 1
    assert (here.late(time.monotonic()), here.at_work()) == ([], [])
    assert here.is_any_at_work()
    assert here.next_due() < time.monotonic()


def test_what_an_environment_is_at_is_told() -> None:
    here, there = both_sides(2)
    told = [here.doing(1, Job.RESET)]
    for doing in (MAKING, REPLAYING):
        there.begin(1, 10.0, doing)
        told += [here.doing(1, Job.RESET), here.doing(0, Job.PLAY)]
        there.end(1)
    there.begin(1, 10.0, MAKING)
    here.clear()
    told.append(there.doing(1, Job.PLAY))
    assert told == ["its reset", "its construction", "its turn", "its replay", "its turn", "its turn"]


def test_whose_answers_are_being_sent() -> None:
    here, there = both_sides(9)
    here.request, asked, told = 7, [8, 2, 5, 1], []
    there.start(7)
    told.append(here.sending(asked))
    there.begin_sending(0, 3)
    told.append(here.sending(asked))
    there.end_sending()
    told.append(here.sending(asked))
    there.begin_sending(3, 4)
    told.append(here.sending(asked))
    here.request = 8  # which the worker has not begun with
    told.append(here.sending(asked))
    there.start(8)
    told.append(here.sending(asked))
    assert told == [[], [8, 2, 5], [], [1], [], []]
    assert here.doing(1, Job.PLAY) == "its turn"


def test_how_long_anything_may_take() -> None:
    limits, replay = TimeLimits(step=2.0, reset=5.0, start=9.0), Replay(0, "train", ("a", "b", "c"), 2)
    assert [limits.of_job(job) for job in Job] == [5.0, 2.0, 2.0, 2.0]
    assert (limits.of_replay(replay), limits.of_making(), limits.shortest()) == (9.0, 9.0, 2.0)
    assert (limits.of_sending(), TimeLimits(step=90.0).of_sending()) == (60.0, 90.0)
    ever = TimeLimits(start=None)
    assert {ever.of_job(Job.RESET), ever.of_replay(replay), ever.of_making(), ever.of_sending(), ever.shortest()} == {
        math.inf
    }
