"""Environments that wait: at once where that helps, one after the other where it costs more than it brings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from parallel_envs.groups import env_host
from parallel_envs.groups.env_host import ThreadedEnvs, _HelperStart
from parallel_envs.groups.hosted_env import TagSpec
from parallel_envs.groups.transport import Answers, Job, Pairs, Request
from tests.groups.walks import Walk

FRIENDLY, STRICT = TagSpec("friendly", Walk, None, threads=4), TagSpec("strict", Walk, None)
RECIPES = {0: FRIENDLY, 1: FRIENDLY, 2: FRIENDLY, 3: FRIENDLY, 4: STRICT, 5: STRICT}


class Workplace:
    """Notes who is done by which thread. `meeting`: nobody is done before all of a crowd have been begun."""

    def __init__(self) -> None:
        self.threads: dict[int, str] = {}
        self.meeting: threading.Barrier | None = None
        self.alone: set[int] = set()
        self.waiting = ThreadedEnvs(RECIPES, self.do_each, self.alone.__contains__)

    def do_each(self, request: Request, pairs: Pairs, answers: Answers) -> None:
        for env, what in pairs:
            self.threads[env] = threading.current_thread().name
            if self.meeting is not None and env < 4:
                self.meeting.wait(30.0)
            answers.values[env] = what

    def do(self, *envs: int) -> set[str]:
        """The threads in which these were done."""
        self.threads.clear()
        asked, answers = {env: (env,) for env in envs}, Answers()
        self.waiting.do(Request(Job.PLAY, asked), answers)
        assert answers.values == asked
        return {self.threads[env] for env in envs if env < 4}


@pytest.fixture
def workplace() -> Iterator[Workplace]:
    place = Workplace()
    yield place
    place.waiting.close()


def here() -> str:
    return threading.current_thread().name


def test_quick_ones_are_done_by_the_thread_that_asks(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_host, "_PATIENCE_SECONDS", 60.0)
    for _ in range(3):
        assert workplace.do(0, 1, 2, 3, 4, 5) == {here()}
        assert workplace.threads[4] == workplace.threads[5] == here()


def test_threads_come_when_quick_ones_are_not(workplace: Workplace) -> None:
    workplace.meeting = threading.Barrier(4)
    assert len(workplace.do(3, 4, 1, 0, 2)) == 4
    assert workplace.threads[4] == here()


def test_nobody_is_called_to_what_is_over() -> None:
    early, late = _HelperStart(), _HelperStart()
    assert early.outlasts(0.0)
    taker: Future[None] = Future()
    early.start(lambda: [taker])
    assert early.finish() == [taker]
    assert late.finish() == []
    assert not late.outlasts(60.0)
    late.start(lambda: pytest.fail("it is over"))


def test_slow_ones_are_done_by_threads_from_the_start(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_host, "_PATIENCE_SECONDS", -1.0)
    workplace.do(0, 1)
    assert here() not in workplace.do(0, 1, 2, 3, 5)
    assert workplace.threads[5] == here()


def test_those_that_take_turns_are_done_by_the_thread_that_asks(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_host, "_PATIENCE_SECONDS", -1.0)
    workplace.alone.update([1, 2])
    workplace.do(0, 1)
    assert here() in workplace.do(0, 1, 2, 3)
    assert [workplace.threads[env] == here() for env in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("patience", [60.0, -1.0])
@pytest.mark.parametrize("room", [0, 1])
def test_where_there_is_no_room_for_threads_all_is_done_all_the_same(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, patience: float, room: int
) -> None:
    monkeypatch.setattr(env_host, "_PATIENCE_SECONDS", patience)
    workplace.do(0, 1)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = workplace.waiting._threads
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(threads, "_num_free", min(room, threads._num_free))
    for _ in range(3):
        assert workplace.do(3, 4, 1, 0, 5, 2)


def test_what_a_thread_raises_reaches_who_asked(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_host, "_PATIENCE_SECONDS", -1.0)
    workplace.do(0, 1)
    workplace.meeting = threading.Barrier(4)
    workplace.meeting.abort()
    with pytest.raises(threading.BrokenBarrierError):
        workplace.do(0, 1, 2, 3)
