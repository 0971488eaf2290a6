"""`close()` ends everything within its time, whatever the workers are doing, and leaves nothing."""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path

import pytest

from parallel_envs.engine import WorkerPool, open_pool
from parallel_envs.errors import ClosedError
from tests.engine.asking import SOON_SECONDS, ends_within, host, reply_to, run, settings_of, settled, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import (
    ENDS,
    Closing,
    Echo,
    FailingAtClose,
    Founder,
    Gated,
    HangingAtClose,
    Mortal,
)
from tests.gates import Gate

TIMEOUT = 0.2
MARGIN = 1.0  # for a busy machine


def close_in_time(pool: WorkerPool, timeout: float = TIMEOUT) -> float:
    """The seconds that closing took: no more than it was given, and no process is left."""
    pids = [pool.pid(worker) for worker in pool.all_workers]
    began = time.monotonic()
    pool.close(timeout)
    seconds = time.monotonic() - began
    assert seconds < timeout + MARGIN
    assert all(ends_within(pid, 0.0) for pid in pids)
    return seconds


def test_idle_workers_end_at_once(open_processes: Open) -> None:
    pool = open_processes(3)
    host(pool, Echo)
    assert close_in_time(pool, timeout=20.0) < 5.0


def test_workers_that_were_never_asked_anything_end(open_processes: Open) -> None:
    close_in_time(open_processes(2), timeout=20.0)


def test_a_worker_amid_a_bell_is_ended(open_processes: Open, gate: Gate) -> None:
    pool = open_processes(2)
    ticket = pool.ring(host(pool, Gated, gate.path), workers=(0,))
    assert not pool.wait(ticket, 0.0)
    close_in_time(pool)


def test_a_worker_that_takes_no_notice_of_sigterm_is_ended(open_processes: Open, gate: Gate) -> None:
    pool = open_processes()
    run(pool, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None)
    pool.ring(host(pool, Gated, gate.path))
    close_in_time(pool)


def test_a_worker_amid_a_huge_reply_is_ended(open_processes: Open) -> None:
    pool = open_processes()
    pool.call(0, host(pool, Founder), "much", 16 << 20)
    close_in_time(pool, timeout=2.0)


def test_a_worker_with_a_huge_message_on_its_way_is_ended(open_processes: Open, gate: Gate) -> None:
    pool = open_processes()
    gated = host(pool, Gated, gate.path)
    pool.ring(gated)
    pool.call(0, gated, "swallow", bytes(16 << 20))
    close_in_time(pool)


def test_a_worker_with_thousands_of_bells_before_it_is_ended(open_processes: Open, gate: Gate) -> None:
    pool = open_processes()
    key = host(pool, Gated, gate.path)
    for _ in range(10_000):
        pool.ring(key)
    close_in_time(pool)


def test_a_worker_under_sigstop_is_ended(open_processes: Open) -> None:
    pool = open_processes(2)
    os.kill(pool.pid(1), signal.SIGSTOP)
    close_in_time(pool)


@pytest.mark.parametrize("way", ENDS)
def test_after_a_crash_that_was_seen(open_processes: Open, way: str) -> None:
    pool = open_processes(2)
    reply = reply_to(pool, pool.call(0, host(pool, Mortal), "end", way))
    assert reply is not None
    assert reply.death is not None
    close_in_time(pool, timeout=20.0)


def test_after_a_crash_that_nobody_saw(open_processes: Open) -> None:
    pool = open_processes(2)
    os.kill(pool.pid(0), signal.SIGKILL)
    close_in_time(pool, timeout=20.0)


def test_after_all_have_crashed(open_processes: Open) -> None:
    pool = open_processes(2)
    for worker in (0, 1):
        os.kill(pool.pid(worker), signal.SIGKILL)
    close_in_time(pool, timeout=20.0)


def test_an_object_that_hangs_while_it_is_closed_is_ended(open_processes: Open) -> None:
    pool = open_processes()
    host(pool, HangingAtClose)
    close_in_time(pool)


def test_an_object_that_raises_while_it_is_closed_keeps_no_other_open(open_processes: Open, tmp_path: Path) -> None:
    pool = open_processes()
    for kind in (FailingAtClose, Closing):
        host(pool, kind, tmp_path / "notes")
    close_in_time(pool, timeout=20.0)
    assert (tmp_path / "notes").read_text() == "closed\n" * 2


def test_with_no_time_at_all_the_workers_still_end(open_processes: Open, gate: Gate) -> None:
    pids, _ = _left_by_closing_in_no_time(open_processes(2), gate)
    assert all(ends_within(pid, SOON_SECONDS) for pid in pids)


def test_with_no_time_at_all_no_descriptor_stays_open(open_processes: Open, gate: Gate) -> None:
    _, num_open = _left_by_closing_in_no_time(open_processes(2), gate)
    assert num_open == 0


def _left_by_closing_in_no_time(pool: WorkerPool, gate: Gate) -> tuple[list[int], int]:
    """The pids of the workers, and how many of their lines are still open after two calls."""
    pool.ring(host(pool, Gated, gate.path))
    pids = [pool.pid(worker) for worker in pool.all_workers]
    pool.close(timeout=0.0)
    for pid in pids:
        ends_within(pid, SOON_SECONDS)
    pool.close(timeout=0.0)
    processes = [line.process for line in vars(pool)["_lines"]]
    num_open = sum(process.channel.fileno() >= 0 for process in processes)
    for process in processes:
        process.obituary()
    return pids, num_open


def test_closing_twice_is_quick_the_second_time(open_processes: Open, gate: Gate) -> None:
    pool = open_processes()
    pool.ring(host(pool, Gated, gate.path))
    close_in_time(pool)
    assert close_in_time(pool, timeout=20.0) < 0.1


def test_what_a_hosted_object_started_ends_with_its_worker(open_processes: Open) -> None:
    pool = open_processes()
    key = host(pool, Founder)
    pids = [value_of(pool, pool.call(0, key, how)) for how in ("start", "fork")]
    assert not any(ends_within(pid, 0.0) for pid in pids)
    pool.close()
    assert all(ends_within(pid, SOON_SECONDS) for pid in pids)


def test_what_a_hosted_object_started_ends_with_a_worker_that_dies(open_processes: Open) -> None:
    pool = open_processes()
    key = host(pool, Founder)
    pids = [value_of(pool, pool.call(0, key, how)) for how in ("start", "fork")]
    ticket = pool.call(0, key, "start")
    os.kill(pool.pid(0), signal.SIGKILL)
    reply_to(pool, ticket)
    assert all(ends_within(pid, SOON_SECONDS) for pid in pids)


def test_closing_from_a_forked_process_ends_no_worker(open_forkserver: Open) -> None:
    pool = open_forkserver()
    key = host(pool, Echo)
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert value_of(pool, pool.ring(key, 7)) == 7


# ---- without a call ------------------------------------------------------------------------------


def test_workers_of_a_pool_that_is_let_go_of_end(method: str) -> None:
    pid = _pid_of_a_pool_let_go_of(method)
    gc.collect()
    assert ends_within(pid, SOON_SECONDS)
    _close_what_is_left()


def _pid_of_a_pool_let_go_of(method: str) -> int:
    pool = open_pool(1, settings_of(method))
    host(pool, Echo)
    return pool.pid(0)


def _close_what_is_left() -> None:
    """Descriptors that the pool should have closed: see the test below."""
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and str(link.readlink()).startswith("/memfd:parallel_envs"):
            os.close(int(link.name))


def test_a_pool_that_is_let_go_of_leaves_no_memory(method: str) -> None:
    before = _memory_descriptors()
    _pid_of_a_pool_let_go_of(method)
    gc.collect()
    left = _memory_descriptors() - before
    _close_what_is_left()
    assert left == 0


def _memory_descriptors() -> int:
    links = list(Path("/proc/self/fd").iterdir())
    return sum(link.is_symlink() and str(link.readlink()).startswith("/memfd:parallel_envs") for link in links)


def test_workers_answer_no_process_that_was_forked_from_theirs(open_parallel: Open) -> None:
    pool = open_parallel()
    key = host(pool, Echo)
    child = os.fork()
    if not child:
        told = 1
        try:
            pool.ring(key)
        except ClosedError as error:
            told = 0 if "forked" in str(error) else 2
        finally:
            os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    settled(pool, pool.ring(key))
