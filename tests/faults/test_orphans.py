"""However its process ends, and at whatever moment: no worker, no supervisor and no memory outlives a manager."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from parallel_envs.engine import start_supervisor, supervisor_pid
from parallel_envs.errors import WorkerDied
from parallel_envs.testing import ScriptedEnv
from tests.engine.asking import WAIT_SECONDS, ends_within, kill
from tests.faults.broken_envs import LONG, FoundingEnv
from tests.faults.courses import Witness
from tests.faults.matrix import Make, all_end_within, left_after, marked, reset, running

GONE_SECONDS = 2.0

SmallEnv = partial(ScriptedEnv, **LONG)

SCRIPT = """
from pathlib import Path
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

MOMENT = sys.argv[2]

class PausingEnv(ScriptedEnv):
    '''Tells when its moment has come, and is not done with it until the end of its days.'''

    def __init__(self):
        super().__init__()
        born = Path("born").exists()
        Path("born").touch()
        self.pause("construction")
        if born:
            self.pause("restart")

    def reset(self, **arguments):
        self.pause("reset")
        return super().reset(**arguments)

    def step(self, action):
        self.pause("step")
        return super().step(action)

    def close(self):
        self.pause("close")

    def pause(self, moment):
        if moment == MOMENT:
            Path("come").write_bytes(b".")
            while MOMENT == "step":
                pass
            threading.Event().wait()

envs = ParallelEnvManager([PausingEnv, ScriptedEnv], context=sys.argv[1])
envs.reset(seed=0)
if MOMENT == "idle":
    Path("come").write_bytes(b".")
    time.sleep(1000)
if MOMENT == "restart":
    envs.restart(0)
envs.step([0, 0])
envs.close(timeout=1000)
"""
MOMENTS = ["construction", "reset", "idle", "step", "restart", "close"]


QUICK = [("fork", "step", signal.SIGKILL), ("forkserver", "close", signal.SIGTERM), ("spawn", "reset", signal.SIGHUP)]
QUICK += [("fork", "construction", signal.SIGKILL), ("forkserver", "restart", signal.SIGKILL)]
SLOW = [("fork", moment, signal.SIGKILL) for moment in MOMENTS]
SLOW += [(method, moment, signal.SIGKILL) for method in ("forkserver", "spawn") for moment in MOMENTS[::4]]
SLOW += [("forkserver", "step", number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV)]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW if case not in QUICK)]


@pytest.mark.parametrize(("method", "moment", "number"), CASES)
def test_nothing_outlives_a_process_that_a_signal_ends(method: str, tmp_path: Path, moment: str, number: int) -> None:
    os.mkfifo(tmp_path / "come")
    with running(tmp_path, SCRIPT, method, moment) as (process, mark):
        with (tmp_path / "come").open("rb") as come:
            assert come.read(1)
        pids = marked(mark)
        assert len(pids) >= 3
        process.send_signal(number)
        assert all_end_within(pids, GONE_SECONDS)
        assert marked(mark) == set()


BOTH = """
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

class HangingEnv(ScriptedEnv):
    def step(self, action):
        if action == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            pass

def make():
    global envs
    envs = ParallelEnvManager([HangingEnv] * 2, context=sys.argv[1])
    envs.reset(seed=0)

if sys.argv[2] == "a thread that has ended":
    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
else:
    make()
envs.reset(seed=1)  # the workers are alive, though the thread that forked them is not
envs.step_async([0, 1])
print(supervisor_pid(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("method", "maker"),
    [("fork", "a thread that has ended"), pytest.param("forkserver", "the main thread", marks=pytest.mark.slow)],
)
def test_no_hanging_worker_outlives_both_its_supervisor_and_its_program(
    tmp_path: Path, method: str, maker: str
) -> None:
    with running(tmp_path, BOTH, method, maker) as (process, mark):
        assert process.stdout is not None
        supervisor = int(process.stdout.readline())
        os.kill(supervisor, signal.SIGKILL)
        assert ends_within(supervisor, WAIT_SECONDS)
        process.kill()
        process.wait()
        assert left_after(5.0, mark) == set()


FORKED_MEANWHILE = """
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

class HangingEnv(ScriptedEnv):
    def step(self, action):
        time.sleep(1000)

envs = ParallelEnvManager([HangingEnv], context="fork")
envs.reset(seed=0)
if (forked := os.fork()) == 0:  # holds a copy of whatever the program had open
    time.sleep(1000)
envs.step_async([0])
print(supervisor_pid(), forked, *[row["pid"] for row in envs.stats()], flush=True)
time.sleep(1000)
"""


def test_a_process_that_the_program_forked_keeps_no_forked_worker_alive(tmp_path: Path) -> None:
    with running(tmp_path, FORKED_MEANWHILE) as (process, _):
        assert process.stdout is not None
        supervisor, forked, worker = map(int, process.stdout.readline().split())
        os.kill(supervisor, signal.SIGKILL)
        assert ends_within(supervisor, WAIT_SECONDS)
        process.kill()
        assert ends_within(worker, WAIT_SECONDS)
        assert not ends_within(forked, 0.0)


@pytest.fixture
def _a_supervisor_again() -> Iterator[None]:
    """One is expected to be there before and after each test."""
    yield
    start_supervisor()


def kill_the_supervisor() -> None:
    pid = supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pid, WAIT_SECONDS)


@pytest.mark.usefixtures("_a_supervisor_again")
def test_what_workers_started_ends_with_the_supervisor_too(make: Make) -> None:
    envs = make([FoundingEnv] * 2, context="forkserver")
    reset(envs)
    workers = {row["pid"] for row in envs.stats()}
    started = {pid for pids in envs.call("found") for pid in pids}
    kill_the_supervisor()
    assert all_end_within(workers, GONE_SECONDS)
    with pytest.raises(WorkerDied, match=r"^Worker 0 \(env 0, pid \d+\) ended during step 1\."):
        envs.step([0, 0])
    envs.close()
    left = {pid for pid in started if not ends_within(pid, 0.5)}
    kill(left)
    assert left == set()


@pytest.mark.usefixtures("_a_supervisor_again")
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_of_a_dead_supervisor_are_restarted_and_forked_ones_go_on(make: Make, context: str) -> None:
    witness = Witness(make([SmallEnv] * 2, context=context, on_failure="restart"), **LONG)
    witness.reset()
    witness.step()
    workers = {row["pid"] for row in witness.envs.stats()}
    kill_the_supervisor()
    if context == "fork":
        witness.step()
        witness.envs.restart(0)
        witness.step(lost={0})
        return
    assert all_end_within(workers, GONE_SECONDS)
    witness.step(lost={0, 1})
    witness.step()
    assert supervisor_pid() is not None
