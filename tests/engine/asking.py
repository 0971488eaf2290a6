"""Short ways to ask a worker and to see what became of it."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterable
from typing import Any, cast

from parallel_envs.choices import Backend, StartMethod
from parallel_envs.engine import HOST, Failure, PendingRequest, PoolSettings, Reply, WorkerPool
from parallel_envs.engine.channel import readable
from tests.engine.hosted import Runner

WAIT_SECONDS = 30.0
"""More than anything here takes on a busy machine: a test that needs it has failed."""

SOON_SECONDS = 1.0
"""How soon a death has to be seen."""


def settings_of(kind: str, **settings: Any) -> PoolSettings:
    """Settings for workers of a kind: "serial", "thread", or a start method of processes."""
    if kind in ("serial", "thread"):
        return PoolSettings(backend=cast(Backend, kind), **settings)
    return PoolSettings(context=cast(StartMethod, kind), **settings)


def settled(pool: WorkerPool, request: PendingRequest) -> PendingRequest:
    """The request, once all have replied."""
    assert pool.wait(request, WAIT_SECONDS), f"no answer to {request}"
    return request


def host(pool: WorkerPool, factory: Callable[..., Any], *args: Any) -> int:
    """Host `factory(*args)` in every worker. Its key."""
    key = pool.new_key()
    request = settled(pool, pool.call_all(HOST, "build", key, factory, *args))
    assert request.replies == {}
    return key


def reply_to(pool: WorkerPool, request: PendingRequest, worker: int = 0) -> Reply | None:
    """What that worker replied; None where it was done and had nothing to say."""
    return settled(pool, request).replies.get(worker)


def value_of(pool: WorkerPool, request: PendingRequest, worker: int = 0) -> Any:
    """The value with which that worker replied."""
    reply = reply_to(pool, request, worker)
    assert reply is None or (reply.failure is None and reply.death is None), reply
    return None if reply is None else reply.value


def failure_of(pool: WorkerPool, request: PendingRequest, worker: int = 0) -> Failure:
    """The failure with which that worker replied."""
    reply = reply_to(pool, request, worker)
    assert reply is not None
    assert reply.failure is not None, reply
    return reply.failure


def run(pool: WorkerPool, function: Callable[..., Any], *args: Any, worker: int = 0) -> Any:
    """What `function(*args)` returns in that worker. A lambda travels by value: the worker need not import its home."""
    key = pool.new_key()
    value_of(pool, pool.call(worker, HOST, "build", key, Runner), worker)
    return value_of(pool, pool.call(worker, key, "run", function, *args), worker)


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process, no matter whose, ends within that time."""
    try:
        sentinel = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return readable(sentinel, seconds)
    finally:
        os.close(sentinel)


def kill(pids: Iterable[int]) -> None:
    """End what a test has left, should it have failed."""
    for pid in pids:
        if not ends_within(pid, 0.0):
            os.kill(pid, 9)
            ends_within(pid, WAIT_SECONDS)


def in_fork(function: Callable[[], Any]) -> Any:
    """Return what `function` returns in a process forked from this one, or the exception that it raises, as text.

    A process that hangs is ended, and is a failure.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(WAIT_SECONDS))
        try:
            try:
                told = function()
            except BaseException as error:  # noqa: BLE001  # whatever it is, the test is to see it
                told = f"{type(error).__name__}: {error}"
            os.write(write, pickle.dumps(told))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert data, f"the forked process ended with status {status}"
    return pickle.loads(data)


def refusal(function: Callable[[], Any]) -> str:
    """Return how a process forked from this one is refused what belongs to this one; fail unless it is."""
    told = in_fork(function)
    assert isinstance(told, str), told
    assert "was forked" in told, told
    return told
