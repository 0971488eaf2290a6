"""What a signal handler asks of a pool while its thread is in the midst of asking it, or of waiting for it."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from parallel_envs.engine import Call, WorkerPool
from parallel_envs.engine.channel import Outbox
from parallel_envs.errors import ParallelEnvsError
from tests.engine.asking import host
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Runner
from tests.striking import struck

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


@pytest.mark.parametrize("opener", ["open_forkserver", "open_thread"])
def test_handler_that_takes_in_all_answers_leaves_no_wait_hanging(request: pytest.FixtureRequest, opener: str) -> None:
    """The handler runs at every moment of a wait: also between the look at the request and the sleep."""
    pool: WorkerPool = request.getfixturevalue(opener)(1)
    key = host(pool, Echo)
    for moment in count(1):
        asked = pool.send({0: Call(key, "echo", (moment,))})

        def take_in_all() -> None:
            with contextlib.suppress(ParallelEnvsError):  # refused while the pool is in the middle of waiting
                assert pool.wait(pool.send({0: Call(key, "echo", (0,))}), 30.0)

        passed = struck(moment, functools.partial(pool.wait, asked), take_in_all)
        assert asked.replies[0].value == moment
        if passed < moment:
            break
    assert moment > 5


def test_handler_that_takes_in_all_answers_wakes_a_thread_pool_that_sleeps(
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
