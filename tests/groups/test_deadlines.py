"""Who is given up, when, and what is said of it. No process is needed to know."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from parallel_envs.engine import PendingRequest, WorkerPool
from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.recovery import Deadlines
from parallel_envs.groups.transport import (
    MAKING,
    REPLAYING,
    SENDING,
    InFlightRequest,
    Job,
    Replay,
    Request,
    TimeLimits,
    WorkerClock,
)

LIMITS = TimeLimits(step=2.0, reset=5.0, start=9.0)
REPLAY = Replay(0, "train", ("left", "left", "left"), 3)


class NoPool:
    """Workers of whom nobody knows but who was ended."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def kill(self, worker: int) -> None:
        self.killed.append(worker)

    def stack(self, worker: int) -> str:
        return "a stack"


class Bench:
    """One worker with three environments, and its deadlines."""

    def __init__(self) -> None:
        block = WorkerClock.allocate(3, 1)
        self.pool, self.clock = NoPool(), WorkerClock(block, 3, 0)
        block.close()
        pool, tags = cast(WorkerPool, self.pool), dict.fromkeys(range(3), "Tag")
        self.deadlines = Deadlines(pool, [self.clock], LIMITS, {0: [0, 1, 2]}, tags)

    def asked(self, *envs: int, ago: float = 0.0, job: Job = Job.PLAY) -> InFlightRequest:
        """A request of so long ago, that the worker has begun with."""
        request = Request(job, dict.fromkeys(envs, ()), dict.fromkeys(envs, REPLAY))
        self.clock.start(0)
        return InFlightRequest(request, 0, time.monotonic() - ago, 0.0, {0: PendingRequest(1, [0])})

    def given_up(self, asked: InFlightRequest) -> dict[int, EnvFailure] | None:
        """Who is to blame for the end of the worker; None: it goes on."""
        late: dict[int, dict[int, EnvFailure]] = {}
        self.deadlines.end_late_workers(asked, late)
        assert self.pool.killed == list(late)
        return late.get(0)


@pytest.mark.parametrize(
    ("doing", "job", "told", "advice"),
    [
        (MAKING, Job.RESET, "9.0 seconds during its construction", "es_manager.start_timeout."),
        (REPLAYING, Job.PLAY, "11.0 seconds during its replay", "es_manager.reset_timeout or es_manager.step_timeout"),
        ("", Job.RESET, "5.0 seconds during its reset", "es_manager.reset_timeout."),
        ("", Job.PLAY, "2.0 seconds during its turn", "es_manager.step_timeout."),
        ("", Job.RENDER, "2.0 seconds during render", "es_manager.step_timeout."),
    ],
)
def test_who_is_late_is_told_for_what_and_what_it_may_be_given(doing: str, job: Job, told: str, advice: str) -> None:
    bench = Bench()
    asked = bench.asked(0, 1, job=job)
    bench.clock.begin(1, -1.0, doing)
    late = bench.given_up(asked)
    assert late is not None
    assert list(late) == [1]
    assert (late[1].kind, late[1].doing) == ("timeout", doing or job.value)
    assert f"Env 1 did not answer within {told}." in str(late[1])
    assert f"If 'Tag' needs longer, give it more: {advice}" in str(late[1])


def test_sending_may_take_longer_than_a_step() -> None:
    bench = Bench()
    asked = bench.asked(0, 1, ago=10.0)
    bench.clock.ended[1] = time.monotonic() - 8.0
    bench.clock.begin_sending(0, 2)
    assert bench.given_up(asked) is None
    assert bench.deadlines.at_work(0, asked) == {0: SENDING, 1: SENDING}
    assert 50.0 < (bench.deadlines.seconds_left(asked) or 0.0) < 60.0


def test_of_several_who_send_too_long_nobody_is_blamed_yet() -> None:
    bench = Bench()
    asked = bench.asked(0, 1, ago=100.0)
    bench.clock.ended[0] = bench.clock.ended[1] = time.monotonic() - 61.0
    bench.clock.begin_sending(0, 2)
    assert bench.given_up(asked) == {}


def test_one_who_sends_too_long_by_itself_is_late() -> None:
    bench = Bench()
    asked = bench.asked(1, ago=100.0)
    bench.clock.ended[1] = time.monotonic() - 61.0
    bench.clock.begin_sending(0, 1)
    late: Any = bench.given_up(asked)
    assert (late[1].kind, late[1].doing) == ("timeout", SENDING)
    assert "did not answer within 60.0 seconds during sending its answer" in str(late[1])
    assert "let its states be smaller, or give it more: es_manager.step_timeout." in str(late[1])


def test_those_whose_answers_have_been_sent_are_not_blamed_for_the_others() -> None:
    bench = Bench()
    asked = bench.asked(0, 1, ago=10.0)
    bench.clock.begin_sending(0, 1)
    bench.clock.end_sending()
    bench.clock.begin_sending(1, 2)
    assert bench.deadlines.at_work(0, asked) == {1: SENDING}
    bench.clock.end_sending()
    assert bench.deadlines.at_work(0, asked) == {}


def test_a_worker_that_has_not_begun_with_somebody_is_stuck_and_not_sending() -> None:
    bench = Bench()
    asked = bench.asked(0, 1, ago=10.0)
    bench.clock.ended[0] = time.monotonic() - 3.0
    assert bench.deadlines.at_work(0, asked) == {}
    assert bench.given_up(asked) == {}


def test_who_is_at_an_earlier_request_is_late_and_nobody_is_blamed() -> None:
    bench = Bench()
    bench.asked(2)
    bench.clock.begin(2, -1.0)
    bench.clock.request += 1
    asked = InFlightRequest(Request(Job.PLAY, {0: ()}), 1, time.monotonic() - 1.0, 0.0, {0: PendingRequest(1, [0])})
    bench.clock.ended[0] = time.monotonic()
    assert bench.given_up(asked) == {}
    assert bench.deadlines.at_work(0, asked) == {}
