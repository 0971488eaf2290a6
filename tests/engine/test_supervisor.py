"""The supervisor: one process that starts the others. What happens when it is ended, held up, or out of means."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from parallel_envs.engine import open_pool, start_supervisor, supervisor_client, supervisor_pid
from parallel_envs.engine.channel import Inbox
from parallel_envs.errors import WorkerStartError
from tests.engine.asking import SOON_SECONDS, ends_within, host, reply_to, run, settings_of, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Talker
from tests.engine.scripts import running_script


def the_supervisor() -> int:
    start_supervisor()
    pid = supervisor_pid()
    assert pid is not None
    return pid


def end_the_supervisor() -> int:
    pid = the_supervisor()
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pid, SOON_SECONDS)
    return pid


def test_modules_are_loaded_before_the_first_worker_is_asked_for(tmp_path: Path) -> None:
    module = tmp_path / "loaded_early.py"
    module.write_text("import os; PID = os.getpid()")
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from parallel_envs.engine import PoolSettings, supervisor_pid, open_pool, start_supervisor, HOST, Call\n"
        "start_supervisor(preload=['loaded_early', 'no_such_module'])\n"
        "pool = open_pool(1, PoolSettings())\n"
        "key = pool.new_key()\n"
        "pool.wait(pool.send({0: Call(HOST, 'build', (key, __import__, 'loaded_early'))}))\n"
        "request = pool.call(0, key, '__getattribute__', 'PID')\n"
        "pool.wait(request)\n"
        "supervisor = open(f'/proc/{pool.pid(0)}/stat').read().rpartition(')')[2].split()[1]\n"
        "print(supervisor == str(supervisor_pid()), request.replies[0].value not in (supervisor_pid(), pool.pid(0)))\n"
        "pool.close()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("True True\n", "", 0)  # loaded in a fork server


def test_forked_workers_outlive_a_supervisor_that_was_killed_and_may_print() -> None:
    pool = open_pool(1, settings_of("fork"))
    talker, echo = host(pool, Talker), host(pool, Echo)
    end_the_supervisor()
    assert reply_to(pool, pool.call(0, talker, "say", "hello")) is None
    assert value_of(pool, pool.ring(echo, 7)) == 7
    os.kill(pool.pid(0), signal.SIGKILL)
    reply = reply_to(pool, pool.ring(echo, 7))
    assert reply is not None
    assert reply.death is not None
    assert reply.death.exitcode == -signal.SIGKILL
    pool.close()
    start_supervisor()


def test_ctrl_c_while_the_supervisor_is_asked_mixes_up_no_answers() -> None:
    with tidied():
        try:
            supervisor = the_supervisor()
            os.kill(supervisor, signal.SIGSTOP)
            with interrupted_after(0.2), suppress(KeyboardInterrupt):
                open_pool(1).close()
            os.kill(supervisor, signal.SIGCONT)
            pool = open_pool(1)
            assert run(pool, os.getpid) == pool.pid(0)
            pool.close()
        finally:
            end_the_supervisor()  # one that is out of step would be so for the next test as well
    start_supervisor()


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_an_answer_that_was_torn_holds_up_nobody(open_forkserver: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the answer stays on the channel. The next pool has another supervisor; earlier workers go on."""
    pool, supervisor = open_forkserver(), the_supervisor()

    def torn(inbox: Inbox) -> Any:
        monkeypatch.undo()
        inbox._channel.recv(4)
        raise KeyboardInterrupt

    monkeypatch.setattr(Inbox, "receive", torn)
    with pytest.raises(KeyboardInterrupt):
        open_forkserver()
    other = open_forkserver()
    assert supervisor_pid() != supervisor
    for one in (other, pool):
        assert run(one, os.getpid) == one.pid(0)
        one.close()
    supervisor_client._torn.pop().abandon()


def test_a_pool_collected_while_another_starts_does_not_hang(tmp_path: Path) -> None:
    """The collection is made to happen inside the question, where it may happen at any time."""
    script = """
import gc

class Collecting(str):
    def __reduce__(self):
        gc.collect()
        return str, (str(self),)

gc.disable()
opened(1, dict)  # let go of, but collected only by `gc.collect`
pool, key = opened(1, dict, preload=(Collecting("json"),))
pool.close()
print("closed")
"""
    with running_script(tmp_path, script, "forkserver") as process:
        try:
            output, _ = process.communicate(timeout=30.0)
        except subprocess.TimeoutExpired:
            output = "hangs"
    assert output == "closed\n"


@contextmanager
def spare_descriptors(count: int) -> Iterator[None]:
    """Not more than `count` descriptors can be opened inside."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    held: list[int] = []
    with suppress(OSError):
        while True:
            held.append(os.dup(0))
    for _ in range(count):
        os.close(held.pop())
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@dataclass
class Left:
    """What failed starts have left behind."""

    descriptors: set[int]
    processes: list[int]


@contextmanager
def tidied() -> Iterator[Left]:
    """What is left at the end of the block; it is given up then, so that the next test begins as this one did."""
    left, before = Left(set(), []), descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a channel that is left open, once its owner has gone
        try:
            yield left
        finally:
            left.descriptors = descriptors() - before
    for fd in left.descriptors:
        os.close(fd)
    supervisor = supervisor_pid()  # one that has ended is waited for here
    for child in psutil.Process().children():
        if child.status() == psutil.STATUS_ZOMBIE and child.pid != supervisor:
            left.processes.append(child.pid)
            os.waitpid(child.pid, 0)


def descriptors() -> set[int]:
    gc.collect()
    return {int(link.name) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_start_that_runs_out_of_descriptors_says_so_and_leaves_nothing(method: str) -> None:
    start_supervisor()
    errors: list[type[Exception] | None] = []  # not the errors, which hold what their frames held
    with tidied() as left:
        for count in (*range(0, 22, 2), 23):
            try:
                with spare_descriptors(count):
                    open_pool(2, settings_of(method)).close()
                errors.append(None)
            except Exception as error:  # noqa: BLE001  # the fact is which one it is
                errors.append(type(error))
    assert errors[-1] is None, "there was never room enough"
    assert set(errors) <= {OSError, WorkerStartError, None}
    assert left == Left(set(), [])
