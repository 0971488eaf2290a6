"""Faults of the soak: the schedule, signals to workers, and disturbances around the workers."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from benchmarks.memory import descendants, parent_of
from benchmarks.soak.env import INSIDE, SoakEnv, flood
from benchmarks.soak.model import Disturbance, Injection, Where
from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import ParallelEnvsError, WorkerTimeout
from parallel_envs.evaluation import evaluate
from parallel_envs.testing.scripted import Fault
from parallel_envs.vector import ParallelEnvManager

OUTSIDE: Final = (Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGSTOP)
AROUND: Final = tuple(Disturbance)
_SHARES: Final = {
    Where.STEP: 0.25,
    Where.RESET: 0.13,
    Where.AUTORESET: 0.12,
    Where.WAITING: 0.2,
    Where.IDLE: 0.12,
    Where.AROUND: 0.18,
}


class Planner:
    """Samples faults at random moments, with a fixed average number per minute. The time is an argument.

    A fault that could not be injected when it was due is injected later, together with others: at most `at_once` in a
    call.
    """

    def __init__(self, generator: np.random.Generator, per_minute: float, at_once: int, now: float) -> None:
        self._generator, self._pause, self._at_once = generator, 60.0 / per_minute, at_once
        self._next = now + generator.exponential(self._pause)
        self._num_owed = 0
        self._due: list[Injection] = []

    def due(self, now: float) -> list[Injection]:
        """Return the faults that are due now.

        The caller removes the injected ones from the list; the others stay due.
        """
        while self._next <= now:
            self._num_owed += 1
            self._next += self._generator.exponential(self._pause)
        while self._num_owed and len(self._due) < self._at_once:
            self._num_owed -= 1
            self._due.append(self.draw())
        return self._due

    def make_up(self) -> None:
        """Schedule another fault for one that was due but was not injected."""
        self._num_owed += 1

    def draw(self) -> Injection:
        """Sample a fault, whether one is due or not."""
        where = tuple(_SHARES)[self._generator.choice(len(_SHARES), p=tuple(_SHARES.values()))]
        faults: Sequence[Fault | Disturbance] = INSIDE
        if where in (Where.WAITING, Where.IDLE):
            faults = OUTSIDE
        elif where is Where.AROUND:
            faults = AROUND
        return where, faults[int(self._generator.integers(len(faults)))]


class Strike:
    """Signal for one worker process.

    Make a Strike while the worker is known to live. It holds a pidfd, so no other process can be hit instead.
    """

    def __init__(self, worker: int, pid: int, injection: Injection) -> None:
        self.worker, self.pid, self.injection = worker, pid, injection
        self.has_landed = False
        self._process = os.pidfd_open(pid)
        if parent_of(pid) not in (supervisor_pid(), os.getpid()):
            os.close(self._process)
            raise ProcessLookupError(f"process {pid} is no longer a worker of this program")

    def land(self) -> None:
        """Send the signal, unless the process has ended."""
        try:
            signal.pidfd_send_signal(self._process, getattr(signal, self.injection[1].name))
        except ProcessLookupError:
            return
        self.has_landed = True

    def close(self) -> None:
        """Release the process."""
        os.close(self._process)


@contextmanager
def landing(strikes: Sequence[Strike], delays: Sequence[float]) -> Iterator[None]:
    """Land each strike after its delay while the block runs. No strike lands after the block."""
    timers = [threading.Timer(delay, strike.land) for strike, delay in zip(strikes, delays, strict=True)]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


STOP_SECONDS: Final = 0.3
"""Time for which the supervisor is stopped."""

FORK_SECONDS: Final = 20.0
"""Time limit of a forked child that tries every call. Each call is refused at once, but the machine may be busy."""

PROGRAM_SECONDS: Final = 60.0
"""Time limit of a `FloodingProgram`, after which it is killed."""

_LEFT_SECONDS = 20.0
"""Time limit for the workers of a killed program to end."""


_EPISODES = 20
_PROGRAM = "from benchmarks.soak.faults import flooding_program; flooding_program()"


# ---- the supervisor is stopped --------------------------------------------------------------------------------------


class KeeperStop:
    """Stop the supervisor now and continue it after STOP_SECONDS. `end` waits until it continues."""

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
        """Wait until the supervisor has been continued."""
        self._timer.join()
        os.close(self._process)


# ---- the caller is forked -------------------------------------------------------------------------------------------


def fork_and_try(envs: ParallelEnvManager, actions: Any) -> str:
    """Fork this process and try every call of the manager in the child.

    Return a description of errors, or an empty text.
    """
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
    """Yield a text for each call that a forked child can make. `close` must not end the parent's workers either."""
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
            pass  # an error: the call waited for answers that belong to the parent
        except (ParallelEnvsError, NoAsyncCallError, AlreadyPendingCallError):
            continue
        yield f"{name} was not refused in a forked child"
    envs.close()
    gc.collect()


# ---- an evaluation runs beside the manager --------------------------------------------------------------------------


def evaluate_and_kill(killed_after: float) -> str:
    """Run an evaluation and kill one of its workers during it. Return a description of errors, or an empty text."""
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
        if parent_of(pid) == supervisor_pid():  # children of this process are other programs of the soak
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return


@cache
def _reference_scores() -> list[float | None]:
    return _scores(jobs=0)


def _scores(jobs: int) -> list[float | None]:
    result = evaluate("CartPole-v1", "random", episodes=_EPISODES, seed=3, jobs=jobs, strict=True)
    return [episode.score for episode in result.episodes]


# ---- separate programs -----------------------------------------------------------------------------------------------


class FloodingProgram:
    """Separate program with envs that write very much output. A thread checks the program while the soak continues.

    With `is_killed` the program is killed while its envs write, and all of its processes must end. Otherwise the reader
    of its stderr is closed, and the program must continue and print "good".
    """

    def __init__(self, *, is_killed: bool) -> None:
        self._is_killed, self._wrong = is_killed, ""
        self._thread = threading.Thread(target=self._judge, name="soak program", daemon=True)
        self._thread.start()

    def end(self) -> str:
        """Wait for the program. Return a description of errors, or an empty text."""
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
            time.sleep(0.05)  # let the envs start writing
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
            self._wrong = (
                f"a program without a reader of its stderr printed {first + rest!r}, exit code {program.returncode}"
            )


def _left_of(pids: list[int]) -> str:
    """Return a text that names the processes of a killed program that did not end, or an empty text."""
    until = time.monotonic() + _LEFT_SECONDS
    while (left := [pid for pid in pids if parent_of(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"processes {left} outlived a killed program with envs that never stop writing" if left else ""


class Flooding(SoakEnv):
    """Env of the soak with 200 kB of output in each step, or with a first step that never stops writing."""

    def __init__(self, env: int, is_endless: bool) -> None:
        super().__init__(env, "array")
        self._is_endless = is_endless

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        flood(2 if self._course.elapsed % 2 else 1, 200_000)
        while self._is_endless:
            flood(1, 200_000)
        return super().step(action)


def flooding_program() -> None:
    """Step envs that write very much and, in this process, quiet ones. Print "good" if both give equal observations."""
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
