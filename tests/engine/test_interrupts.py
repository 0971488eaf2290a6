"""A Ctrl-C between an answer's arrival and the moment it is noted loses nothing, wherever it strikes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from parallel_envs.engine import Call, PoolSettings, SharedBlock, WorkerPool, open_pool
from parallel_envs.engine.channel import Outbox
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.process import CompletionReader, ProcessPool
from parallel_envs.errors import ParallelEnvsError
from tests.engine.asking import host, run
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Raiser, Runner
from tests.striking import strikes_after, struck

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


def test_a_restart_loses_no_answer_of_another(open_forkserver: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = open_forkserver(2)
    key = host(pool, Echo)
    pool.kill(1)
    request = pool.ring(key, workers=[0])
    strike_once_read(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pool.wait(request, 5.0)
    pool.restart(1)
    assert pool.wait(request, 5.0)


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


ASKS: list[Any] = [
    pytest.param(lambda pool, key: pool.ring(key), id="ring"),
    pytest.param(lambda pool, key: pool.ring_each(key, [(0, 1, None)]), id="ring each"),
    pytest.param(lambda pool, key: pool.send({0: Call(key, "echo", (1,))}), id="send"),
    pytest.param(lambda pool, key: pool.pump(0.0), id="pump"),
]


@pytest.fixture
def handled() -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Has SIGUSR1 do something; what came of it."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(what: Callable[[], object]) -> list[object]:
        came: list[object] = []

        def note(number: int, frame: object) -> None:
            try:
                came.append(what())
            except ParallelEnvsError as error:
                came.append(str(error))

        signal.signal(signal.SIGUSR1, note)
        return came

    yield handle
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("amid", ["asking", "waiting"])
def test_it_is_refused_and_what_it_interrupted_goes_on(
    open_forkserver: Open,
    monkeypatch: pytest.MonkeyPatch,
    handled: Callable[[Callable[[], object]], list[object]],
    ask: Callable[[WorkerPool, int], object],
    amid: str,
) -> None:
    pool: Any = open_forkserver(1)
    key = host(pool, Echo)
    came = handled(lambda: ask(pool, key))
    with monkeypatch.context() as patch:
        what, name = (Outbox, "put") if amid == "asking" else (pool._poller, "wait")
        real = getattr(what, name)

        def strike(*given: Any) -> Any:
            if not came:
                signal.raise_signal(signal.SIGUSR1)
            return real(*given)

        patch.setattr(what, name, strike)
        request = pool.send({0: Call(key, "echo", (7,))})
        assert pool.wait(request, 30.0)
    assert request.replies[0].value == 7
    [refusal] = came
    assert "Let the handler take a note" in str(refusal)
    again = pool.send({0: Call(key, "echo", (8,))})
    assert pool.wait(again, 30.0)


@pytest.mark.parametrize("rings", [True, False], ids=["ring", "send"])
@pytest.mark.parametrize("opener", ["open_forkserver", "open_thread"])
def test_handler_that_takes_in_all_answers_leaves_no_wait_hanging(
    request: pytest.FixtureRequest, opener: str, rings: bool
) -> None:
    """The handler runs at every moment of a request: also between its number and its bytes, and before the sleep."""
    pool: WorkerPool = request.getfixturevalue(opener)(1)
    key = host(pool, Echo)

    def take_in_all() -> None:
        with contextlib.suppress(ParallelEnvsError):  # refused while the pool is in the middle of sending or waiting
            assert pool.wait(pool.send({0: Call(key, "echo", (0,))}), 30.0)

    def asked(argument: int) -> Any:
        sent = pool.ring(key, argument) if rings else pool.send({0: Call(key, "echo", (argument,))})
        pool.wait(sent)
        return sent.replies[0].value

    for moment in count(1):
        answers = list[Any]()
        passed = struck(moment, lambda: answers.append(asked(moment)), take_in_all)  # noqa: B023
        assert answers == [moment]
        if passed < moment:
            break
    assert moment > 5


def test_handler_wakes_a_sleeping_thread_pool(
    open_thread: Open, handled: Callable[[Callable[[], object]], list[object]]
) -> None:
    pool = open_thread(1)
    key = host(pool, Runner)
    came = handled(lambda: pool.wait(pool.send({0: Call(key, "run", (len, "ab"))}), 30.0))
    asked = pool.send({0: Call(key, "run", (time.sleep, 0.1))})
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.03, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    assert pool.wait(asked)
    timer.join()
    assert came == [True]


OPENED = PoolSettings(context="fork")


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """A finalizer that is struck can tell nobody."""
    gc.disable()
    yield
    gc.enable()


def some_moments(what: Callable[[], object], count: int = 12) -> range:
    """Numbers of moments at which it may be struck."""
    whole = struck(sys.maxsize, what)
    return range(1, whole, max(whole // count, 1))


def test_a_pool_that_is_struck_as_it_opens_ends_its_workers() -> None:
    def opened_and_closed() -> None:
        open_pool(2, OPENED).close()

    opened_and_closed()  # whatever is imported late has been by now
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    for moment in (*range(1, 200, 8), *some_moments(opened_and_closed)):
        struck(moment, opened_and_closed)
        gc.collect()  # who was never given the pool cannot close it: that it is dropped must be enough
        assert moment > 200 or set(Path("/proc/self/fd").iterdir()) == before, f"struck at moment {moment}"


def test_shared_memory_that_is_struck_as_it_is_made_is_not_left_open() -> None:
    made: list[SharedBlock] = []
    before = set(Path("/proc/self/fd").iterdir())
    for moment in strikes_after(made.clear, lambda: made.append(SharedBlock.create(100))):
        made.clear()
        gc.collect()
        assert set(Path("/proc/self/fd").iterdir()) == before, f"struck at moment {moment}"


def test_a_pool_that_is_struck_as_it_closes_has_ended_its_workers() -> None:
    pools = [open_pool(1, OPENED)]

    def closed() -> None:
        pools[-1].close()

    for moment in some_moments(closed):
        pools.append(open_pool(1, OPENED))
        pid = run(pools[-1], os.getpid)
        struck(moment, closed)
        closed()
        assert not Path(f"/proc/{pid}").exists(), f"struck at moment {moment}"
