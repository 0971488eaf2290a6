"""However its process ends, and at whatever moment: no worker, no keeper and no memory outlives a manager."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from parallel_envs.engine import start_supervisor, supervisor_pid
from parallel_envs.errors import WorkerDied
from parallel_envs.testing import ScriptedEnv
from tests.engine.asking import WAIT_SECONDS, ends_within
from tests.engine.scripts import environment, written
from tests.faults.broken_envs import LONG, FoundingEnv
from tests.faults.courses import Witness
from tests.faults.matrix import Make, reset
from tests.faults.processes import all_end_within, left_after, marked

GONE_SECONDS = 2.0

SmallEnv = partial(ScriptedEnv, **LONG)

SCRIPT = """
from functools import partial
from pathlib import Path
import numpy as np
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
envs.step(np.zeros(2, int))
envs.close(timeout=1000)
"""
MOMENTS = ["construction", "reset", "idle", "step", "restart", "close"]


@contextmanager
def running(
    folder: Path, script: str, *arguments: str, stderr: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A script, and the mark that it and all its processes bear."""
    mark = f"PARALLEL_ENVS_ORPHAN={uuid.uuid4().hex}"
    variables = {**environment(), **dict([mark.split("=")])}
    command = [sys.executable, str(written(folder, script)), *arguments]
    with subprocess.Popen(
        command, text=True, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=stderr
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)


def shared_memory_of(pids: set[int]) -> set[Path]:
    """The files in /dev/shm that these processes have open or mapped. Other programs may make and remove theirs."""
    names = set()
    for folder in [Path(f"/proc/{pid}") for pid in pids]:
        for fd in (folder / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                names.add(str(fd.readlink()))
        names.update("".join(line.partition("/")[1:]).rstrip() for line in (folder / "maps").read_text().splitlines())
    return {Path(name) for name in names if name.startswith("/dev/shm/") and not name.endswith(" (deleted)")}


CASES = [("forkserver", moment) for moment in MOMENTS]
CASES += [(method, moment) for method in ("fork", "spawn") for moment in ("construction", "step", "restart")]


@pytest.mark.parametrize(("method", "moment"), CASES)
def test_nothing_outlives_a_process_that_is_killed(method: str, tmp_path: Path, moment: str) -> None:
    os.mkfifo(tmp_path / "come")
    with running(tmp_path, SCRIPT, method, moment) as (process, mark):
        with (tmp_path / "come").open("rb") as come:
            assert come.read(1)
        pids = marked(mark)
        assert len(pids) >= 3
        named = shared_memory_of(pids)
        process.kill()
        assert all_end_within(pids, GONE_SECONDS)
        assert marked(mark) == set()
    assert [path for path in named if path.exists()] == []


LEAVING = """
import mmap
with open(f"/dev/shm/{sys.argv[1]}", "w+b") as file:
    file.truncate(8)
    memory = mmap.mmap(file.fileno(), 8)
print("made", flush=True)
time.sleep(1000)
"""


def test_memory_that_a_process_leaves_is_seen_and_that_of_others_is_not(tmp_path: Path) -> None:
    mine, another = (Path("/dev/shm", f"orphan-{uuid.uuid4().hex}") for _ in range(2))
    another.touch()
    try:
        with running(tmp_path, LEAVING, mine.name) as (process, mark):
            assert process.stdout is not None
            assert process.stdout.readline() == "made\n"
            assert shared_memory_of(marked(mark)) == {mine}
    finally:
        another.unlink()
        mine.unlink(missing_ok=True)


LIFE = """
import numpy as np
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

print("alive", flush=True)
while True:
    envs = ParallelEnvManager([ScriptedEnv] * 2, context=sys.argv[1], on_failure="restart")
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(np.zeros(2, int))
        envs.restart(1)
    os.kill(envs.stats()[0]["pid"], signal.SIGKILL)
    envs.step(np.zeros(2, int))
    envs.close()
"""


INSTANTS = [("forkserver", milliseconds) for milliseconds in (0, 11, 29, 53, 97, 151)]
INSTANTS += [(method, milliseconds) for method in ("fork", "spawn") for milliseconds in (0, 43, 127)]


@pytest.mark.parametrize(("method", "milliseconds"), INSTANTS)
def test_nothing_outlives_a_process_that_is_killed_at_any_moment(
    tmp_path: Path, method: str, milliseconds: int
) -> None:
    with running(tmp_path, LIFE, method) as (process, mark):
        assert process.stdout is not None
        assert process.stdout.readline() == "alive\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=milliseconds / 1000)
        process.kill()
        process.wait()
        assert left_after(GONE_SECONDS, mark) == set()


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
    [("fork", "the main thread"), ("fork", "a thread that has ended"), ("forkserver", "a thread that has ended")],
)
def test_no_worker_that_hangs_outlives_both_its_keeper_and_its_program(tmp_path: Path, method: str, maker: str) -> None:
    with running(tmp_path, BOTH, method, maker) as (process, mark):
        assert process.stdout is not None
        keeper = int(process.stdout.readline())
        os.kill(keeper, signal.SIGKILL)
        assert ends_within(keeper, WAIT_SECONDS)
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
        keeper, forked, worker = map(int, process.stdout.readline().split())
        os.kill(keeper, signal.SIGKILL)
        assert ends_within(keeper, WAIT_SECONDS)
        process.kill()
        assert ends_within(worker, WAIT_SECONDS)
        assert not ends_within(forked, 0.0)


# ---- the keeper ----------------------------------------------------------------------------------


@pytest.fixture
def _a_keeper_again() -> Iterator[None]:
    """One is expected to be there before and after each test."""
    yield
    start_supervisor()


def kill_the_keeper() -> None:
    pid = supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pid, WAIT_SECONDS)


@pytest.mark.usefixtures("_a_keeper_again")
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_end_with_their_keeper_and_the_manager_says_so(make: Make, context: str) -> None:
    envs = make([SmallEnv] * 2, context=context)
    reset(envs)
    pids = {row["pid"] for row in envs.stats()}
    kill_the_keeper()
    assert all_end_within(pids, GONE_SECONDS)
    with pytest.raises(WorkerDied, match=r"^Worker 0 \(env 0, pid \d+\) ended during step 1\."):
        envs.step([0, 0])


@pytest.mark.usefixtures("_a_keeper_again")
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_that_ended_with_their_keeper_are_restarted_with_a_new_one(make: Make, context: str) -> None:
    witness = Witness(make([SmallEnv] * 2, context=context, on_failure="restart"), **LONG)
    witness.reset()
    witness.step()
    before = {row["pid"] for row in witness.envs.stats()}
    kill_the_keeper()
    assert all_end_within(before, GONE_SECONDS)
    witness.step(lost={0, 1})
    witness.step()
    assert supervisor_pid() is not None


@pytest.mark.usefixtures("_a_keeper_again")
def test_forked_workers_go_on_without_their_keeper(make: Make) -> None:
    witness = Witness(make([SmallEnv] * 2, context="fork", on_failure="restart"), **LONG)
    witness.reset()
    kill_the_keeper()
    witness.step()
    witness.envs.restart(0)
    witness.step(lost={0})


@pytest.mark.usefixtures("_a_keeper_again")
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_what_envs_started_ends_when_the_keeper_was_killed(make: Make, context: str) -> None:
    assert left_by_envs_whose_keeper_was_killed(make, context) == set()


def left_by_envs_whose_keeper_was_killed(make: Make, context: str) -> set[int]:
    envs = make([FoundingEnv], context=context)
    (pids,) = envs.call("found")
    workers = {row["pid"] for row in envs.stats()}
    kill_the_keeper()
    assert all_end_within(workers, GONE_SECONDS)
    with pytest.raises(WorkerDied):
        reset(envs)
    envs.close()
    left = {pid for pid in pids if not ends_within(pid, 0.5)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        ends_within(pid, WAIT_SECONDS)
    return left
