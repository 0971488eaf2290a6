"""Which environments are late, or lost with their worker, and which are asked again. No process is needed to know."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest

from parallel_envs.engine import Death, PendingRequest, WorkerPool
from parallel_envs.errors import WorkerDied
from parallel_envs.groups.failures import EnvFailure, timeout_failure
from parallel_envs.groups.transport import (
    MAKING,
    REPLAYING,
    SENDING,
    Job,
    Replay,
    Request,
    TimeLimits,
    WorkerClock,
)
from parallel_envs.groups.worker_group import Deadlines, InFlightRequest, LossPolicy, LostWorker

LIMITS = TimeLimits(step=2.0, reset=5.0, start=9.0)
REPLAY = Replay(0, "train", ("left", "left", "left"), 3)

# ---- the clock: what a worker writes is what the manager reads ------------------------------------------------------


def test_how_long_anything_may_take() -> None:
    assert [LIMITS.of(job.value) for job in Job] == [5.0, 2.0, 2.0, 2.0]
    assert (LIMITS.of(REPLAYING, REPLAY), LIMITS.of(MAKING)) == (11.0, 9.0)
    assert (LIMITS.of(SENDING), TimeLimits(step=90.0).of(SENDING)) == (60.0, 90.0)
    activities = (Job.RESET.value, Job.PLAY.value, REPLAYING, MAKING, SENDING)
    assert {TimeLimits().of(doing, REPLAY) for doing in activities} == {math.inf}


# ---- deadlines ------------------------------------------------------------------------------------------------------


class NoPool:
    def __init__(self) -> None:
        self.killed: list[int] = []
        self.kill = self.killed.append
        self.stack = lambda worker: "a stack"


class Bench:  # one worker with three environments, and its deadlines
    def __init__(self) -> None:
        block = WorkerClock.allocate(3, 1)
        self.pool, self.clock = NoPool(), WorkerClock(block, 3, 0)
        block.close()
        pool, tags = cast(WorkerPool, self.pool), dict.fromkeys(range(3), "Tag")
        self.clock.start(0)
        self.deadlines = Deadlines(pool, [self.clock], LIMITS, {0: [0, 1, 2]}, tags)

    def asked(self, *envs: int, ago: float = 0.0, job: Job = Job.PLAY, number: int = 0) -> InFlightRequest:
        """A request of so long ago."""
        request = Request(job, dict.fromkeys(envs, ()), dict.fromkeys(envs, REPLAY))
        return InFlightRequest(request, number, time.monotonic() - ago, {0: PendingRequest(1, [0])})

    def given_up(self, asked: InFlightRequest) -> dict[int, EnvFailure] | None:
        """The environments that are to blame for the end of the worker; None: it goes on."""
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
def test_a_late_environment_is_told_with_its_limit(doing: str, job: Job, told: str, advice: str) -> None:
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
    bench.clock.begin_sending()
    assert bench.given_up(asked) is None
    assert bench.deadlines.at_work(0, asked) == {0: SENDING, 1: SENDING}
    assert bench.deadlines.seconds_left(asked) == LIMITS.shortest() == 2.0
    bench.clock.start(1)
    assert bench.deadlines.at_work(0, asked) == {}


@pytest.mark.parametrize("at_an_earlier_request", [False, True])
def test_a_worker_that_is_stuck_or_at_an_earlier_request_is_ended_and_no_env_is_blamed(
    at_an_earlier_request: bool,
) -> None:
    bench = Bench()
    if at_an_earlier_request:
        bench.clock.begin(2, -1.0)
    asked = bench.asked(0, 1, ago=10.0, number=int(at_an_earlier_request))
    bench.clock.ended[0] = time.monotonic() - 3.0  # it has not begun with the other
    assert bench.clock.is_any_at_work() is at_an_earlier_request
    assert bench.deadlines.at_work(0, asked) == {}
    assert bench.given_up(asked) == {}


# ---- after a loss ---------------------------------------------------------------------------------------------------

TAGS = dict.fromkeys(range(4), "Tag")
TURN = Request(Job.PLAY, {env: (["go"], 1) for env in range(4)})
ALL = [0, 1, 2, 3]


def loss(*at_work: int, doing: str = "its turn", late: dict[int, EnvFailure] | None = None) -> LostWorker:
    return LostWorker(0, Death(0, 99, -9), dict.fromkeys(at_work, doing), late or {})


@pytest.fixture
def record() -> LossPolicy:
    return LossPolicy(TURN, TAGS)


LATE = timeout_failure(2, "Tag", "its turn", 1.0, 0, "a stack")


@pytest.mark.parametrize(
    ("losses", "failed", "again"),
    [
        ([(loss(2, late={2: LATE}), ALL)], {2: ("timeout", "its turn")}, [[0, 1, 3]]),
        ([(loss(1), ALL)], {}, [[0, 2, 3], [1]]),
        ([(loss(1), ALL), (loss(1), [1])], {1: ("death", "its turn")}, [[]]),
        ([(loss(1), [1]), (loss(1, doing=MAKING), [1])], {1: ("death", MAKING)}, [[]]),
        ([(loss(0, 1, doing=SENDING), [0, 1])], {}, [[], [0], [1]]),
        ([(loss(0, 1, doing=SENDING), [0, 1])] + [(loss(0, doing=SENDING), [0])] * 2, {0: ("death", SENDING)}, [[]]),
        ([(loss(1, 3), ALL)], {}, [[0, 2], [1], [3]]),
        ([(loss(1, 3), ALL), (loss(3), [3])], {}, [[], [3]]),
        ([(loss(1, 3), ALL), (loss(3), [3]), (loss(3), [3])], {3: ("death", "its turn")}, [[]]),
        ([(loss(2), [0])], {}, [[0]]),  # it was at an earlier request
    ],
)
def test_which_have_failed_with_their_worker_and_which_are_asked_again(
    losses: list[Any], failed: dict[int, Any], again: list[list[int]], record: LossPolicy
) -> None:
    told, then = [record.decide(*one) for one in losses][-1]
    assert ({env: (one.kind, one.doing) for env, one in told.items()}, then) == (failed, again)


def test_a_second_death_is_told_with_what_the_env_was_at(record: LossPolicy, caplog: pytest.LogCaptureFixture) -> None:
    record.decide(loss(1), [1])
    failed, _ = record.decide(loss(1, doing=MAKING), [1])
    assert "It was the second worker in this request that died with this environment alone at work." in str(failed[1])
    assert "(SIGKILL) during its construction (Tag)" in str(failed[1])
    assert "(SIGKILL) during its construction." in caplog.text


def test_a_worker_that_dies_with_no_env_at_work_is_replaced_a_few_times_only(record: LossPolicy) -> None:
    for _ in range(5):
        assert record.decide(loss(), ALL) == ({}, [ALL])
    with pytest.raises(WorkerDied, match="and so did those that took its place"):
        record.decide(loss(), ALL)
