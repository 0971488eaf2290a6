"""A Ctrl-C between an answer's arrival and the moment it is noted loses nothing, wherever it strikes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from parallel_envs.engine import Call, WorkerPool
from parallel_envs.engine.channel import Outbox
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.messages import COMPLETION
from parallel_envs.engine.process import CompletionReader, ProcessPool
from tests.engine.asking import host
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Raiser

NOTING = (CompletionReader.take_in.__code__, ProcessPool._record.__code__)
"""Where answers are noted without Ctrl-C being kept back."""

STRIKES = 40  # more lines than are run there for three answers


class Strike:
    """Raises KeyboardInterrupt before the line number `at` that is run in `codes`, once."""

    def __init__(self, codes: tuple[CodeType, ...], at: int) -> None:
        self.codes, self.left = codes, at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in self.codes:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    @property
    def struck(self) -> bool:
        return self.left <= 0


def waited_for(pool: WorkerPool, requests: list[Any], strike: Strike | None = None) -> None:
    """Wait for all of them; whoever is interrupted asks again. Nothing may be lost, so this must end."""
    for request in requests:
        while not request.done:
            before = sys.gettrace()
            sys.settrace(strike)
            try:
                assert pool.wait(request, 5.0), "an answer was lost"
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)


def test_no_answer_is_lost_wherever_it_strikes(open_forkserver: Open) -> None:
    pool = open_forkserver(3)
    echo, raiser = host(pool, Echo), host(pool, Raiser)
    num_struck = 0
    for at in range(1, STRIKES):
        strike = Strike(NOTING, at)
        bells = pool.ring(echo)
        values = pool.send({worker: Call(echo, "echo", (worker,)) for worker in pool.all_workers})
        failures = pool.call_all(raiser, "fail", "ValueError")
        waited_for(pool, [bells, values, failures], strike)
        assert {worker: reply.value for worker, reply in values.replies.items()} == {0: 0, 1: 1, 2: 2}
        assert [reply.failure is not None for reply in failures.replies.values()] == [True] * 3
        num_struck += strike.struck
    assert num_struck > 10  # it did strike


def strike_once_read(patch: pytest.MonkeyPatch) -> list[int]:
    """Interrupt the asker, once, as soon as something has been read."""
    read, struck = os.readv, list[int]()

    def read_and_strike(fd: int, buffers: Any) -> int:
        size = read(fd, buffers)
        if not struck:
            struck.append(size)
            raise KeyboardInterrupt
        return size

    patch.setattr("parallel_envs.engine.process.os.readv", read_and_strike)
    return struck


def test_what_was_read_and_not_yet_looked_at_is_noted_later(
    open_forkserver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_forkserver(2)
    key = host(pool, Echo)
    request = pool.call_all(key, "echo", 7)
    struck = strike_once_read(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pool.wait(request, 5.0)
    assert struck
    assert pool.wait(request, 5.0)
    assert [reply.value for reply in request.replies.values()] == [7, 7]


def test_a_worker_in_the_place_of_another_is_not_taken_for_it(open_forkserver: Open) -> None:
    pool = open_forkserver(1)
    key = host(pool, Echo)
    request = pool.call(0, key, "echo", 1)
    waited_for(pool, [request], Strike(NOTING[1:2], 4))
    pool.restart(0)
    again = host(pool, Echo)
    answer = pool.call(0, again, "echo", 2)
    assert pool.wait(answer, 5.0)
    assert answer.replies[0].value == 2


def test_replacing_a_dead_worker_loses_no_answer_of_another(
    open_forkserver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_forkserver(2)
    key = host(pool, Echo)
    pool.kill(1)
    request = pool.ring(key, workers=[0])
    strike_once_read(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pool.wait(request, 5.0)
    pool.restart(1)
    assert pool.wait(request, 5.0)


def test_completions_are_noted_again_after_the_note_was_cut_short() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    noted: list[Any] = []

    def note(records: Any, finished: list[Any], began: float) -> None:
        noted.extend(record for record in records if record[2])
        if len(noted) == 2:
            raise KeyboardInterrupt

    reader = CompletionReader(reading, note)
    os.write(writing, COMPLETION.pack(0, 0, 5) + COMPLETION.pack(1, 0, 5))
    with pytest.raises(KeyboardInterrupt):
        reader.take_in([], 0.0)
    assert not reader.take_in([], 0.0)  # nothing new
    assert noted == [(0, 0, 5), (1, 0, 5)] * 2
    assert not reader.take_in([], 0.0)
    assert len(noted) == 4
    os.close(reading)
    os.close(writing)


def arrives() -> None:
    """Send this process a Ctrl-C, and return once the system has delivered it to one of the threads, whichever."""
    arrived, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        assert os.read(arrived, 1) == bytes([signal.SIGINT])
    finally:
        signal.set_wakeup_fd(before)
        os.close(arrived)
        os.close(tell)


@pytest.fixture
def second_thread() -> Iterator[None]:
    """A thread besides, to which the system may deliver signals: numeric libraries have some."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


def test_an_interrupt_waits_for_the_end_of_what_must_not_be_disturbed(second_thread: None) -> None:
    done: list[str] = []

    def at_work() -> None:
        with delay_ctrl_c():
            with delay_ctrl_c():
                arrives()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        at_work()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_is_called_afterwards() -> None:
    said: list[str] = []

    def say(word: str, number: int, frame: FrameType | None) -> None:
        said.append(word)

    before = signal.getsignal(signal.SIGINT)
    try:
        for word in ("one", "other"):  # one that was installed in between, too
            signal.signal(signal.SIGINT, partial(say, word))
            with delay_ctrl_c():
                arrives()
                said.append("done")
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == ["done", "one", "done", "other"]


def test_who_ignores_it_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with delay_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handler_alone() -> None:
    seen: list[Any] = []

    def look() -> None:
        with delay_ctrl_c():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_half_a_message_is_never_sent(open_forkserver: Open) -> None:
    pool = open_forkserver(1)
    key = host(pool, Echo)
    num_struck = 0
    for at in range(1, STRIKES):
        strike = SignalAt((Outbox.put.__code__, Outbox.flush.__code__), at)
        sys.settrace(strike)
        try:
            pool.call(0, key, "echo", "lost")
        except KeyboardInterrupt:
            num_struck += 1
        finally:
            sys.settrace(None)
        answer = pool.call(0, key, "echo", at)
        assert pool.wait(answer, 30.0), "the worker does not understand what it is told"
        assert answer.replies[0].value == at
    assert num_struck > 5


class SignalAt(Strike):
    """Sends the Ctrl-C, instead of raising what it leads to."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            return super().__call__(frame, event, argument)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            return self
