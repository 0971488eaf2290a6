"""Workers that start slowly or not at all.

A supervisor does not answer, a module takes long to import: deadlines hold, and other managers go on. No process can be
started: `backend="auto"` says why and does without; anything else is an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.engine import (
    HOST,
    PoolSettings,
    open_pool,
    process,
    start_supervisor,
    supervisor_client,
    supervisor_pid,
)
from parallel_envs.errors import WorkerDied, WorkerStartError
from parallel_envs.testing import ScriptedEnv
from tests.engine.asking import WAIT_SECONDS, ends_within, reply_to, value_of
from tests.engine.scripts import run_script, running_script
from tests.faults.broken_envs import LONG
from tests.faults.courses import Witness
from tests.faults.matrix import Make, reset, step, stops_within, within
from tests.gates import Gate

SmallEnv = partial(ScriptedEnv, **LONG)
DEADLINE = 0.5
IN_TIME = 10.0
"""Far less than the minute after which a supervisor that is silent is given up."""


@contextmanager
def stopped_supervisor() -> Iterator[int]:
    """While the block runs the supervisor does nothing."""
    start_supervisor()
    pid = supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert stops_within(pid, WAIT_SECONDS)
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "context", ["forkserver", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fork", "spawn"))]
)
def test_a_start_and_a_close_keep_their_time_though_the_supervisor_is_stopped(make: Make, context: str) -> None:
    other, envs = make([SmallEnv]), make([SmallEnv] * 4, context=context)
    reset(other)
    pids = [row["pid"] for row in envs.stats()]
    with stopped_supervisor() as supervisor:
        with within(1.0 + IN_TIME):
            envs.close(timeout=1.0)
        with (
            within(IN_TIME),
            pytest.raises(WorkerStartError, match=r"process that starts workers .* within 0\.\d+ sec"),
        ):
            make([SmallEnv] * 2, context=context, start_timeout=DEADLINE)
        step(other)  # its workers do not need the supervisor
    assert all(ends_within(pid, WAIT_SECONDS) for pid in pids)
    make([SmallEnv], context=context).close()
    assert supervisor_pid() == supervisor


@pytest.mark.parametrize(
    ("context", "on_failure"),
    [("fork", "raise"), *(pytest.param("forkserver", does, marks=pytest.mark.slow) for does in ("raise", "restart"))],
)
def test_a_death_is_told_or_mended_in_the_time_of_the_step_though_the_supervisor_is_stopped(
    make: Make, context: str, on_failure: str
) -> None:
    told: Any = (WorkerDied, r"^Worker 0 \(env 0, pid \d+\)") if on_failure == "raise" else (WorkerStartError, r"\w")
    envs = make([SmallEnv] * 3, context=context, on_failure=on_failure, step_timeout=DEADLINE, start_timeout=None)
    reset(envs)
    with stopped_supervisor():
        for env in (0, 2):
            os.kill(envs.stats()[env]["pid"], signal.SIGKILL)
        with within(IN_TIME), pytest.raises(told[0], match=told[1]):
            step(envs)
    envs.restart([0, 2])
    if on_failure == "restart":
        assert step(envs)[3].tolist() == [True, False, True]


@pytest.mark.slow
def test_a_supervisor_silent_for_long_is_replaced_and_its_workers_go_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_client, "_ANSWER_SECONDS", 2.5)
    envs = make([SmallEnv])
    reset(envs)
    with stopped_supervisor() as supervisor:
        with within(IN_TIME), pytest.raises(WorkerStartError, match="it is stopped, or hangs"):
            make([SmallEnv])
        other = make([SmallEnv])
        reset(other)
        assert supervisor_pid() != supervisor
        step(envs)
        other.close()
    until = time.monotonic() + IN_TIME
    while supervisor_client._torn[-1].silent_seconds() > 0.0 and time.monotonic() < until:
        time.sleep(0.01)  # the supervisor goes on, and answers what it was asked meanwhile
    os.kill(envs.stats()[0]["pid"], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="signal 9"):  # the supervisor that started it is asked, not the new one
        step(envs)
    envs.close()
    supervisor_client._torn.pop().abandon()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_an_import_that_takes_long_holds_up_nobody_else(make: Make, modules: Path, tmp_path: Path) -> None:
    witness = make([SmallEnv] * 2, on_failure="restart")
    reset(witness)
    with Gate(tmp_path / "gate") as gate:
        (modules / "slow_one.py").write_text(
            f"import tests.gates, pathlib\ntests.gates.wait_at(pathlib.Path({str(gate.path)!r}))"
        )
        opened: list[int] = []

        def open_slowly() -> None:
            pool = open_pool(1, PoolSettings(preload=("slow_one",)))
            opened.append(value_of(pool, pool.call(0, HOST, "__sizeof__")))
            pool.close()

        opening = threading.Thread(target=open_slowly)
        opening.start()
        with within(WAIT_SECONDS):
            os.kill(witness.stats()[0]["pid"], signal.SIGKILL)  # a death, a restart, a new manager, its end
            assert step(witness)[3].tolist() == [True, False]
            other = make([SmallEnv])
            reset(other)
            other.close()
            with pytest.raises(WorkerStartError, match=r"within 0\.5 seconds"):
                open_pool(1, PoolSettings(preload=("slow_one",), start_timeout=DEADLINE))
        assert opened == []
        gate.let_through()
        opening.join(WAIT_SECONDS)
    assert len(opened) == 1


@pytest.mark.parametrize("end", ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_module_that_ends_its_importer_harms_nobody(make: Make, modules: Path, end: str) -> None:
    (modules / "deadly.py").write_text(end)
    witness = make([SmallEnv])
    reset(witness)
    supervisor = supervisor_pid()
    pool = open_pool(1, PoolSettings(preload=("deadly",)))  # the worker that needs it would import it by itself
    assert reply_to(pool, pool.call(0, HOST, "build", 1, os.getpid)) is None
    reply = reply_to(pool, pool.call(0, HOST, "build", 2, __import__, "deadly"))
    assert reply is not None
    assert reply.death is not None
    pool.close()
    step(witness)
    assert supervisor_pid() == supervisor


SLOW_IMPORT = """
from pathlib import Path
Path("endless.py").write_text("import time\\nprint('importing', flush=True)\\ntime.sleep(1000)")
sys.path.insert(0, "")
try:
    open_pool(1, PoolSettings(context="forkserver", preload=("endless",)))
except KeyboardInterrupt:
    print("interrupted")
pool, key = opened(1, dict)
pool.close()
print("opened")
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_an_import(tmp_path: Path) -> None:
    with running_script(tmp_path, SLOW_IMPORT, "forkserver") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        with within(WAIT_SECONDS):
            os.kill(process.pid, signal.SIGINT)
            told, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (told, errors) == ("interrupted\nopened\n", "")


KILLED_FORK_SERVER = """
from contextlib import suppress
from pathlib import Path
from parallel_envs.engine import FORK_SERVER_NAME

pool, key = opened(2, dict)
for folder in Path("/proc").glob("[0-9]*"):
    with suppress(OSError):  # it may end just now
        name, stat = (folder / "comm").read_text().strip(), (folder / "stat").read_text()
        if name == FORK_SERVER_NAME and int(stat.rpartition(")")[2].split()[1]) == supervisor_pid():
            os.kill(int(folder.name), signal.SIGKILL)
            killed = folder
while killed.exists():
    time.sleep(0.01)
pool.restart(0)
pool.wait(pool.call(0, HOST, "build", key, dict))
ticket = pool.call_all(key, "__len__")
print(pool.wait(ticket, 20), [reply.value for reply in ticket.replies.values()])
pool.close()
"""


def test_a_fork_server_that_was_killed_is_replaced_and_its_workers_go_on(tmp_path: Path) -> None:
    done = run_script(tmp_path, KILLED_FORK_SERVER, "forkserver")
    assert (done.stdout, done.stderr) == ("True [0, 0]\n", "")


def refuse(*_arguments: Any, **_settings: Any) -> Any:
    raise OSError(38, "Function not implemented")


@pytest.fixture
def obstacle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons for which no process can be started."""
    match request.param:
        case "no supervisor":
            monkeypatch.setattr(supervisor_client, "_current", None)
            monkeypatch.setattr(subprocess, "Popen", refuse)
        case "no fork":
            monkeypatch.setattr(os, "fork", refuse)
        case "no process descriptors":
            monkeypatch.setattr(os, "pidfd_open", refuse)
        case "an old system":
            monkeypatch.delattr(os, "pidfd_open")


OBSTACLES = [
    ("no supervisor", "forkserver"),
    ("no supervisor", "spawn"),
    ("no fork", "fork"),
    ("no process descriptors", "fork"),
    ("an old system", "fork"),
]


@pytest.mark.usefixtures("obstacle")
@pytest.mark.parametrize(("obstacle", "context"), OBSTACLES, indirect=["obstacle"])
def test_auto_falls_back_to_threads_and_says_why(make: Make, request: pytest.FixtureRequest, context: str) -> None:
    reason = "Linux 5.3 or later" if "old" in request.node.name else "Function not implemented"
    with pytest.warns(RuntimeWarning, match=rf"(?s)2 workers .*'process'.*{reason}.*threads") as told:
        envs = make([SmallEnv] * 2, backend="auto", context=context)
    assert "parallel_envs" not in told[0].filename.replace("/tests/", "")  # it points at the user's line
    assert envs.backend == "thread"
    witness = Witness(envs, **LONG)
    witness.reset()
    witness.step()
    with pytest.raises(WorkerStartError):  # processes that were asked for, and cannot be
        make([ScriptedEnv] * 2, context=context)


def test_without_threads_too_everything_is_done_by_the_caller(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third thread that is started cannot be; the two that could be have ended."""
    begin, begun = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        patch.setattr(process, "ProcessPool", refuse)
        with pytest.warns(RuntimeWarning) as told:
            envs = make([ScriptedEnv] * 3, backend="auto")
    assert envs.backend == "serial"
    assert [str(warning.message).partition(" could")[0] for warning in told] == [
        "3 workers of backend 'process'",
        "3 workers of backend 'thread'",
    ]
    for thread in begun:
        thread.join(5.0)
        assert not thread.is_alive()


def test_an_env_that_cannot_be_made_is_no_reason_to_fall_back(make: Make) -> None:
    def factory_that_fails() -> Any:
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        make([factory_that_fails], backend="auto")
