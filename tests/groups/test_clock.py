"""By when environments are to be done: what a worker writes is what the manager reads."""

from __future__ import annotations

import math
import time

from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.jobs import MAKING, REPLAYING, Job, Restore


def test_what_one_side_writes_the_other_reads() -> None:
    block = Clock.room(3)
    here, there = Clock(block, 3), Clock(block, 3)
    block.close()
    here.request = 7
    there.start(7, [0, 1, 2])
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
    there.start(here.request, [0, 1])
    there.begin(0, -1.0)
    here.request += 1
    assert (here.late([0, 1], time.monotonic()), here.at_work([0, 1])) == ([], [])
    assert here.is_any_at_work([0, 1])
    assert here.next_due([0, 1]) < time.monotonic()


def test_what_an_environment_is_at_is_told() -> None:
    block = Clock.room(2)
    here, there = Clock(block, 2), Clock(block, 2)
    block.close()
    told = [here.doing(1, Job.RESET)]
    for doing in (MAKING, REPLAYING):
        there.begin(1, 10.0, doing)
        told += [here.doing(1, Job.RESET), here.doing(0, Job.PLAY)]
        there.end(1)
    there.begin(1, 10.0, MAKING)
    here.clear([1])
    told.append(there.doing(1, Job.PLAY))
    assert told == ["its reset", "its construction", "its turn", "its replay", "its turn", "its turn"]


def test_whose_answers_are_being_sent() -> None:
    block = Clock.room(3)
    here, there = Clock(block, 3), Clock(block, 3)
    block.close()
    here.request, told = 7, []
    there.start(7, [0, 1])
    there.send([0, 1])
    told.append(here.sending([0, 1, 2]))
    there.sent([0])
    told.append(here.sending([0, 1, 2]))
    here.request = 8  # which the worker has not begun with
    told.append(here.sending([0, 1, 2]))
    there.start(8, [1])
    told.append(here.sending([0, 1, 2]))
    assert told == [[0, 1], [1], [], []]
    assert here.doing(1, Job.PLAY) == "its turn"


def test_how_long_anything_may_take() -> None:
    limits, replay = Limits(step=2.0, reset=5.0, start=9.0), Restore(0, "train", ("a", "b", "c"), 2)
    assert [limits.of(job) for job in Job] == [5.0, 2.0, 2.0, 2.0]
    assert (limits.of_replay(replay), limits.of_making(), limits.shortest()) == (9.0, 9.0, 2.0)
    assert (limits.of_sending(), Limits(step=90.0).of_sending()) == (60.0, 90.0)
    ever = Limits(start=None)
    assert {ever.of(Job.RESET), ever.of_replay(replay), ever.of_making(), ever.of_sending(), ever.shortest()} == {
        math.inf
    }
