"""Who has failed when a worker is lost, and who is asked again, in which order. No process is needed to know."""

from __future__ import annotations

import pytest

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import WorkerDied
from parallel_envs.groups.failures import EnvFailure, timeout_failure
from parallel_envs.groups.recovery import LossPolicy, LostWorker, UnreadableAnswers
from parallel_envs.groups.transport import MAKING, SENDING, Job, Request

TAGS = dict.fromkeys(range(4), "Tag")
TURN = Request(Job.PLAY, {env: (["go"], 1) for env in range(4)})
ALL = [0, 1, 2, 3]


def loss(*at_work: int, doing: str = "its turn", late: dict[int, EnvFailure] | None = None) -> LostWorker:
    return LostWorker(0, Death(0, 99, -9), dict.fromkeys(at_work, doing), late or {})


@pytest.fixture
def record() -> LossPolicy:
    return LossPolicy(TURN, TAGS)


def test_who_was_late_has_failed_and_the_others_are_asked_again(record: LossPolicy) -> None:
    late = timeout_failure(2, "Tag", "its turn", 1.0, 0, "a stack")
    assert record.decide(loss(2, late={2: late}), ALL) == ({2: late}, [[0, 1, 3]])


def test_who_was_at_work_is_asked_once_more_after_the_others(record: LossPolicy) -> None:
    assert record.decide(loss(1), ALL) == ({}, [[0, 2, 3], [1]])
    failed, again = record.decide(loss(1), [1])
    assert (failed[1].kind, failed[1].doing, again) == ("death", "its turn", [[]])
    assert "It was the second worker in this request that died with this environment alone at work." in str(failed[1])


def test_what_it_was_at_when_it_died_last_is_told(record: LossPolicy, caplog: pytest.LogCaptureFixture) -> None:
    record.decide(loss(1), [1])
    failed, _ = record.decide(loss(1, doing=MAKING), [1])
    assert failed[1].doing == MAKING
    assert "(SIGKILL) during its construction (Tag)" in str(failed[1])
    assert "(SIGKILL) during its construction." in caplog.text


def test_all_whose_answers_were_being_sent_are_asked_by_themselves(record: LossPolicy) -> None:
    assert record.decide(loss(0, 1, doing=SENDING), [0, 1]) == ({}, [[], [0], [1]])
    assert record.decide(loss(0, doing=SENDING), [0]) == ({}, [[], [0]])
    failed, _ = record.decide(loss(0, doing=SENDING), [0])
    assert (failed[0].kind, failed[0].doing) == ("death", SENDING)


def test_a_reset_is_hopeless_as_soon_as_one_cannot_be_made(record: LossPolicy) -> None:
    reset = LossPolicy(Request(Job.RESET, dict.fromkeys(ALL, (1, "train"))), TAGS)
    assert reset.decide(loss(1, doing=MAKING), ALL) == ({}, [[1], [0, 2, 3]])
    assert reset.decide(loss(2, doing="its reset"), ALL) == ({}, [[0, 1, 3], [2]])
    unmade = {0: timeout_failure(0, "Tag", MAKING, 1.0, 0, "a stack")}
    unbegun = {0: timeout_failure(0, "Tag", "its reset", 1.0, 0, "a stack")}
    assert [reset.is_hopeless(failed) for failed in ({}, unbegun, unmade)] == [False, False, True]
    assert not record.is_hopeless(unmade)


def test_each_of_several_is_asked_by_itself(record: LossPolicy) -> None:
    assert record.decide(loss(1, 3), ALL) == ({}, [[0, 2], [1], [3]])
    assert record.decide(loss(3), [3]) == ({}, [[], [3]])
    failed, _ = record.decide(loss(3), [3])
    assert failed.keys() == {3}


def test_a_worker_that_dies_at_nobody_is_replaced_a_few_times_only(record: LossPolicy) -> None:
    for _ in range(5):
        assert record.decide(loss(), ALL) == ({}, [ALL])
    with pytest.raises(WorkerDied, match="and so did those that took its place"):
        record.decide(loss(), ALL)


def test_of_those_whose_answers_cannot_be_read_each_is_asked_by_itself(record: LossPolicy) -> None:
    garbled = UnreadableAnswers(0, Failure("ValueError", "no such thing", "a traceback"))
    assert record.decide(garbled, [1, 3]) == ({}, [[1], [3]])
    failed, again = record.decide(garbled, [3])
    assert (failed[3].kind, failed[3].doing, failed[3].traceback, again) == ("error", SENDING, "a traceback", [])
    assert "raised ValueError during sending its answer: no such thing" in str(failed[3])


def test_who_is_busy_with_an_earlier_request_does_not_fail_this_one() -> None:
    record = LossPolicy(Request(Job.RESET, {0: (1, "train")}), TAGS)
    assert record.decide(loss(2), [0]) == ({}, [[0]])
