"""A user's script: what stands on its stderr when it is interrupted, when workers write, and when they break."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from parallel_envs.testing import Fault, Moment, ScriptedEnv
from tests.engine.asking import WAIT_SECONDS
from tests.engine.scripts import run_script, running_script
from tests.faults.matrix import CLOSE_SECONDS, Make, all_end_within, error_of, faulty, reset, step, within

LOOP = """
import numpy as np
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import FaultyEnv, ScriptedEnv

class SlowEnv(ScriptedEnv):
    def step(self, action):
        time.sleep(1000)

envs = ParallelEnvManager([{env}] * 3, context=sys.argv[1], {settings})
envs.reset(seed=0)
print(*[row["pid"] for row in envs.stats()], supervisor_pid(), flush=True)
{loop}
"""
LOOPS = {
    "quick steps": ("ScriptedEnv", "while True: envs.step([0, 0, 0])", ""),
    "a step that hangs": ("SlowEnv", "envs.step([0, 0, 0])", "step_timeout=1000"),
    "flights": ("ScriptedEnv", "while True: envs.send([0, 0, 0]); envs.recv(3)", ""),
    "with restarts": ("ScriptedEnv", "with envs:\n    while True: envs.step([0, 0, 0])", "on_failure='restart'"),
}


@pytest.mark.parametrize(
    ("method", "loop"),
    [
        *(("forkserver", "a step that hangs"), ("fork", "with restarts")),
        *(pytest.param("forkserver", loop, marks=pytest.mark.slow) for loop in ("quick steps", "flights")),
        pytest.param("spawn", "quick steps", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_is_one_traceback_and_no_worker_noise(method: str, tmp_path: Path, loop: str) -> None:
    env, line, settings = LOOPS[loop]
    with running_script(tmp_path, LOOP.format(env=env, settings=settings, loop=line), method) as process:
        assert process.stdout is not None
        pids = {int(pid) for pid in process.stdout.readline().split()}
        os.killpg(process.pid, signal.SIGINT)
        with within(5.0):
            _, told = process.communicate(timeout=WAIT_SECONDS)
    assert all_end_within(pids, 2.0)
    assert process.returncode == -signal.SIGINT
    assert (told.count("Traceback"), told.count("KeyboardInterrupt")) == (1, 1)
    assert "[env worker" not in told


UNCLOSABLE = """
import gymnasium as gym
from parallel_envs import ParallelEnvManager

class Unclosable(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def close(self):
        raise RuntimeError("the door is stuck")

ParallelEnvManager([Unclosable] * 3, num_workers=2).close()
"""


def test_an_env_that_cannot_be_closed_is_named_once_and_shortly(tmp_path: Path) -> None:
    told = run_script(tmp_path, UNCLOSABLE, "forkserver").stderr
    assert told.count("] RuntimeError: the door is stuck") == 2  # the first of each worker
    assert "[env worker 0] This is what env 0 raised when it was closed." in told
    assert "[env worker 1] This is what env 2 raised when it was closed." in told
    assert "engine/" not in told  # the way there is the package's own


METHODS = pytest.mark.parametrize(
    "method", ["forkserver", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fork", "spawn"))]
)

DEBUGGED = """
from parallel_envs import EnvError, ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

class DebuggedEnv(ScriptedEnv):
    def step(self, action):
        breakpoint() if action else __import__("pdb").set_trace()
        return super().step(action)

for action in (0, 1):
    envs = ParallelEnvManager([DebuggedEnv], context=sys.argv[1])
    envs.reset(seed=0)
    try:
        envs.step([action])
    except EnvError as error:
        print(error)
    envs.close()
"""


@METHODS
def test_a_debugger_in_a_worker_is_an_error_that_names_the_serial_backend(method: str, tmp_path: Path) -> None:
    lines = run_script(tmp_path, DEBUGGED, method).stdout.splitlines()
    words = "Env 0 raised bdb.BdbQuit during step 1: breakpoint() or pdb was called in a worker process"
    assert [(line.startswith(words), "backend='serial'" in line) for line in lines] == [(True, True)] * 2


TIDY = """
import logging, warnings
if len(sys.argv) > 2:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s")
warnings.simplefilter("always", ResourceWarning)
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

first = ParallelEnvManager([ScriptedEnv])
envs = ParallelEnvManager([ScriptedEnv] * 3, num_workers=2, context=sys.argv[1], on_failure="restart")
envs.reset(seed=0)
os.kill(envs.stats()[0]["pid"], signal.SIGKILL)
envs.step([0] * 3)
envs.restart(2)
envs.close()
first.close()
"""


@METHODS
def test_nothing_is_written_and_no_worker_warns_of_what_it_leaves_open(method: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, TIDY, method)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_log_that_is_asked_for_is_written(tmp_path: Path) -> None:
    told = run_script(tmp_path, TIDY, "forkserver", "log").stderr
    assert "WARNING parallel_envs.vector.recovery" in told
    assert "INFO parallel_envs.engine.process" in told


CROWDED = """
import gc, resource
from parallel_envs import ParallelEnvManager, WorkerStartError
from parallel_envs.testing import ScriptedEnv

ParallelEnvManager([ScriptedEnv], context=sys.argv[1]).close()
used, (soft, hard) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(used, used + 25, 3):  # from room for nothing to room for some of the workers
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        ParallelEnvManager([ScriptedEnv] * 8, context=sys.argv[1])
    except WorkerStartError as error:
        assert "num_workers" in str(error) and f"`ulimit -n` allows {limit} " in str(error), error
        print("told")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
gc.collect()
assert len(os.listdir("/proc/self/fd")) <= used, sorted(os.listdir("/proc/self/fd"))
with ParallelEnvManager([ScriptedEnv] * 8, context=sys.argv[1]) as envs:
    envs.reset(seed=0)
"""


@METHODS
def test_no_room_for_open_files_is_an_error_that_says_what_to_do(method: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, CROWDED, method)
    assert (done.stdout.splitlines(), done.stderr) == (["told"] * 9, "")


FAULTS = [Fault.OS_EXIT, Fault.EXCEPTION, Fault.SLEEP]


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_only_start_and_stop_are_logged(make: Make, caplog: pytest.LogCaptureFixture, backend: str) -> None:
    caplog.set_level(logging.INFO, "parallel_envs")
    envs = make([ScriptedEnv] * 2, num_workers=2, backend=backend)
    pids = [row["pid"] for row in envs.stats()]
    reset(envs)
    before = len(caplog.records)
    for _ in range(5):
        step(envs)
    envs.reset()
    assert len(caplog.records) == before
    envs.restart(0)
    assert "Worker 0 (env 0) is restarted on request." in caplog.text
    envs.close()
    told = "\n".join(logged(caplog, logging.INFO))
    assert "started" in told
    assert "2 workers stopped" in told
    assert backend != "process" or all(f"env worker {env} started: pid {pid}" in told for env, pid in enumerate(pids))
    assert logged(caplog, logging.WARNING) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("on_failure", ["restart", "raise"])
def test_a_restart_says_why_and_what_is_raised_is_no_warning(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault, on_failure: str
) -> None:
    caplog.set_level(logging.DEBUG)
    envs = make([faulty(fault, Moment.STEP, tmp_path / "broken")], on_failure=on_failure)
    reset(envs)
    if on_failure == "restart":
        step(envs)
        (told,) = logged(caplog, logging.WARNING)
        assert "step 1" in told
        assert "Restarting env 0; all others go on as they were." in told
    else:
        with pytest.raises(error_of(fault)):
            step(envs)
        assert logged(caplog, logging.WARNING) == []
        assert fault is not Fault.OS_EXIT or any("exit code 17" in line for line in logged(caplog, logging.INFO))
    envs.close(timeout=CLOSE_SECONDS)
    assert {record.name.partition(".")[0] for record in caplog.records} == {"parallel_envs"}
    assert {type(part) for record in caplog.records for part in (record.args or ())} <= {int, float, str}  # no env
