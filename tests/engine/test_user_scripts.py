"""What becomes of a script that uses a pool: how it begins, what it prints, how it ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.asking import WAIT_SECONDS, ends_within, kill
from tests.engine.scripts import run_script, running_script

# ---- beginning -----------------------------------------------------------------------------------


def test_a_script_that_has_closed_its_standard_streams_has_workers(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        class Echo:
            def echo(self, value):
                print("heard")
                return value

        for fd in (0, 1, 2):
            os.close(fd)
        pool, key = opened(2, Echo)
        told = pool.call_all(key, "echo", 7)
        pool.wait(told, 30)
        values = [reply.value for reply in told.replies.values()]
        pool.close()
        os._exit(23 if values == [7, 7] else 1)
        """,
        method,
    )
    assert done.returncode == 23


def test_no_worker_runs_the_script_again_or_prints_what_it_had_not_flushed(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        sys.stdout.write("the script runs\\n")  # it is not flushed before the workers begin

        class Made:
            def __init__(self, number):
                self.number = number

        class Maker:
            def make(self, number):
                return Made(number), __name__, os.getpid() != asker

        asker = os.getpid()
        pool, key = opened(2, Maker)
        made = pool.call_all(key, "make", 7)
        pool.wait(made, 30)
        for reply in made.replies.values():
            print(isinstance(reply.value[0], Made), reply.value[0].number, *reply.value[1:])
        pool.close()
        """,
        method,
    )
    assert done.stderr == ""
    assert done.stdout == "the script runs\n" + "True 7 __main__ True\n" * 2
    assert done.returncode == 0


# ---- printing ------------------------------------------------------------------------------------


def test_what_workers_write_goes_to_stderr_with_their_names_and_no_line_is_lost_or_torn(
    method: str, tmp_path: Path
) -> None:
    done = run_script(
        tmp_path,
        """
        class Talker:
            def talk(self, count):
                for number in range(count):
                    print(number, "x" * 100)
                print("to stderr", file=sys.stderr)
                os.write(1, b"raw bytes \\xff\\n")
                os.system("echo from a program")
                print("unfinished", end="")

        pool, key = opened(2, Talker, name="env worker")
        pool.wait(pool.call_all(key, "talk", 5000))
        pool.close()
        print("to stdout, by the script")
        """,
        method,
    )
    spoken = ["to stderr", "raw bytes \\xff", "from a program", "unfinished"]
    lines = done.stderr.splitlines()
    for worker in (0, 1):
        own = [line.split("] ", 1)[1] for line in lines if line.startswith(f"[env worker {worker}] ")]
        assert own == [*(f"{number} {'x' * 100}" for number in range(5000)), *spoken]
    assert len(lines) == 2 * 5004
    assert (done.stdout, done.returncode) == ("to stdout, by the script\n", 0)


# ---- ending --------------------------------------------------------------------------------------


GONE_SECONDS = 2.0

WORKERS = {
    "asleep": "pool.ring(key)",
    "with children": "pool.wait(pool.call_all(key, 'start')); pool.ring(key)",
    "stopped": "os.kill(pool.pid(0), signal.SIGSTOP); os.kill(pool.pid(1), signal.SIGSTOP)",
    "amid huge replies": "pool.call_all(key, 'much'); pool.pump(10.0)",
}
SCRIPT = """
class Object:
    def ring(self, argument):
        time.sleep(1000)
    def start(self):
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
    def much(self):
        return bytes(64 << 20)

pool, key = opened(2, Object)
{work}
print("ready", flush=True)
time.sleep(1000)
"""


CASES: list[Any] = [
    ("fork", "with children", signal.SIGKILL),
    ("spawn", "stopped", signal.SIGKILL),
    ("forkserver", "amid huge replies", signal.SIGKILL),
    *(("forkserver", "asleep", number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV)),
    pytest.param("forkserver", "with children", signal.SIGKILL, marks=pytest.mark.slow),
    pytest.param("spawn", "with children", signal.SIGKILL, marks=pytest.mark.slow),
    pytest.param("fork", "amid huge replies", signal.SIGKILL, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("method", "work", "number"), CASES)
def test_nothing_is_left_when_its_process_ends_by_a_signal(method: str, work: str, number: int, tmp_path: Path) -> None:
    """Two seconds later nothing lives of all that the script and its workers had started."""
    with running_script(tmp_path, SCRIPT.format(work=WORKERS[work]), method) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(_living_in(tmp_path)) > 1
        os.kill(process.pid, number)
        process.wait(WAIT_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS
        while (living := _living_in(tmp_path)) and time.monotonic() < deadline:
            ends_within(min(living), max(deadline - time.monotonic(), 0.0))
    kill(living)
    assert living == {}


def _living_in(folder: Path) -> dict[int, str]:
    """The command lines of the processes whose working folder this is, by pid: a script and all that it started."""
    found = psutil.process_iter(["pid", "cwd", "cmdline"])
    return {one.pid: " ".join(one.info["cmdline"] or []) for one in found if one.info["cwd"] == str(folder)}
