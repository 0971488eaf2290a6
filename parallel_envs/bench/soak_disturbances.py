"""Faults of the soak around the workers: in their output, the keeper, the caller, and other work of the caller.

No env of the manager may lose its episode through them. Each fault is injected between two calls of the manager, or
runs beside them, and returns a text if something was wrong. The soak counts such a text as a complaint.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs.bench.holdings import descendants, parent_of
from parallel_envs.bench.soak_env import SoakEnv, flood
from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import ParallelEnvsError, WorkerTimeout
from parallel_envs.evaluation import evaluate
from parallel_envs.vector import ParallelEnvManager

STOP_SECONDS: Final = 0.3
"""How long the keeper is stopped."""

FORK_SECONDS: Final = 20.0
"""How long a forked child may take to try every call. Each call is refused at once, but the machine may be busy."""

PROGRAM_SECONDS: Final = 60.0
"""How long a `FloodingProgram` may take before it is killed."""

_LEFT_SECONDS = 20.0
"""How long the workers of a killed program may take to end after it."""


_EPISODES = 20
_PROGRAM = "from parallel_envs.bench.soak_disturbances import flooding_program; flooding_program()"


# ---- the keeper is stopped ------------------------------------------------------------------------------------------


class KeeperStop:
    """Stop the keeper now and let it continue after STOP_SECONDS. `end` waits until it continues."""

    def __init__(self) -> None:
        pid = supervisor_pid()
        assert pid is not None
        self._process = os.pidfd_open(pid)
        signal.pidfd_send_signal(self._process, signal.SIGSTOP)
        self._timer = threading.Timer(STOP_SECONDS, self._resume)
        self._timer.start()

    def _resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGCONT)

    def end(self) -> None:
        """Wait until the keeper has been continued."""
        self._timer.join()
        os.close(self._process)


# ---- the caller is forked -------------------------------------------------------------------------------------------


def fork_and_try(envs: ParallelEnvManager, actions: Any) -> str:
    """Fork this process and try every call of the manager in the child. Return what was wrong, or an empty text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            found = "; ".join(_not_refused(envs, actions))
            os.write(writing, found.encode()[:4000])
        except BaseException as error:  # noqa: BLE001  # the child must never return into the code of the soak
            os.write(writing, f"the forked child raised {error!r}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    until, said, is_done = time.monotonic() + FORK_SECONDS, b"", False
    while not is_done and time.monotonic() < until:
        if select.select([reading], [], [], 0.1)[0]:
            part = os.read(reading, 4096)
            said, is_done = said + part, not part
    os.close(reading)
    if not is_done:
        os.kill(child, signal.SIGKILL)
        said = b"the forked child hung"
    os.waitpid(child, 0)
    return said.decode(errors="replace")


def _not_refused(envs: ParallelEnvManager, actions: Any) -> Iterator[str]:
    """Yield a text for each call that a forked child can make. `close`, too, must not end the parent's workers."""
    calls: dict[str, Callable[[], object]] = {
        "step": partial(envs.step, actions),
        "step_wait": partial(envs.step_wait, timeout=0.1),
        "recv": partial(envs.recv, 1, timeout=0.1),
        "reset": envs.reset,
        "restart": envs.restart,
        "call": partial(envs.call, "render"),
    }
    for name, call in calls.items():
        try:
            call()
        except WorkerTimeout:
            pass  # wrong: it waited for answers that belong to the parent
        except (ParallelEnvsError, NoAsyncCallError, AlreadyPendingCallError):
            continue
        yield f"{name} was not refused in a forked child"
    envs.close()
    gc.collect()


# ---- an evaluation runs beside the manager --------------------------------------------------------------------------


def evaluate_and_kill(killed_after: float) -> str:
    """Run an evaluation and kill one of its workers during it. Return what was wrong, or an empty text."""
    before = set(descendants())
    killer = threading.Timer(killed_after, _kill_one_worker, [before])
    killer.start()
    try:
        scores = _scores(jobs=1)
    finally:
        killer.cancel()
        killer.join()
    return "" if scores == _reference_scores() else f"an evaluation gave {scores}, and {_reference_scores()} is right"


def _kill_one_worker(before: set[int]) -> None:
    for pid in set(descendants()) - before:
        if parent_of(pid) == supervisor_pid():  # children of this process are programs that run beside
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return


@cache
def _reference_scores() -> list[float | None]:
    return _scores(jobs=0)


def _scores(jobs: int) -> list[float | None]:
    result = evaluate("CartPole-v1", "random", episodes=_EPISODES, seed=3, jobs=jobs, strict=True)
    return [episode.score for episode in result.episodes]


# ---- programs of their own ------------------------------------------------------------------------------------------


class FloodingProgram:
    """A separate program whose envs write very much output. A thread checks the program while the soak goes on.

    With `is_killed` the program is killed while its envs write: all of its processes must end. Otherwise the reader of
    its stderr leaves: the program must go on and print "good".
    """

    def __init__(self, *, is_killed: bool) -> None:
        self._is_killed, self._wrong = is_killed, ""
        self._thread = threading.Thread(target=self._judge, name="soak program", daemon=True)
        self._thread.start()

    def end(self) -> str:
        """Wait for the program. Return what was wrong with it, or an empty text."""
        self._thread.join()
        return self._wrong

    def _judge(self) -> None:
        reading, writing = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *(["forever"] if self._is_killed else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=writing,
            text=True,
        ) as program:
            os.close(writing)
            assert program.stdout is not None
            overdue = threading.Timer(PROGRAM_SECONDS, program.kill)
            overdue.start()
            first = program.stdout.readline()
            time.sleep(0.05)  # by now the envs are writing
            if self._is_killed:
                program.kill()
            os.close(reading)
            rest = "" if self._is_killed else program.stdout.read()
            overdue.cancel()
            overdue.join()
        if not first:
            self._wrong = f"a flooding program did not start, exit code {program.returncode}"
        elif self._is_killed:
            self._wrong = _left_of(json.loads(first))
        elif rest.strip() != "good":
            self._wrong = f"a program whose reader had left said {first + rest!r}, exit code {program.returncode}"


def _left_of(pids: list[int]) -> str:
    """Return a text that names the processes of a killed program that did not end, or an empty text."""
    until = time.monotonic() + _LEFT_SECONDS
    while (left := [pid for pid in pids if parent_of(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"processes {left} outlived a killed program whose envs wrote without end" if left else ""


class Flooding(SoakEnv):
    """An env of the soak whose steps write 200 kB each, or whose first step never stops writing."""

    def __init__(self, env: int, is_endless: bool) -> None:
        super().__init__(env, "array")
        self._is_endless = is_endless

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        flood(2 if self._course.elapsed % 2 else 1, 200_000)
        while self._is_endless:
            flood(1, 200_000)
        return super().step(action)


def flooding_program() -> None:
    """Step envs that write very much, and quiet ones in this process. Print "good" if both give equal observations."""
    is_endless = sys.argv[1:] == ["forever"]
    factories = [partial(Flooding, env, is_endless) for env in range(2)]
    with ParallelEnvManager(factories, step_timeout=PROGRAM_SECONDS) as envs:
        quiet = ParallelEnvManager([partial(SoakEnv, env, "array") for env in range(2)], backend="serial")
        same = envs.reset(seed=1)[0].tolist() == quiet.reset(seed=1)[0].tolist()
        print(json.dumps([supervisor_pid(), *(each["pid"] for each in envs.stats())]), flush=True)
        for number in range(20):
            actions = [[number, 0]] * 2
            same = same and envs.step(actions)[0].tolist() == quiet.step(actions)[0].tolist()
        quiet.close()
    print("good" if same else "wrong rows", flush=True)
