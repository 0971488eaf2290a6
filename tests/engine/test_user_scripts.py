"""What becomes of a script that uses a pool: how it begins, what it prints, how it ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.engine.asking import SOON_SECONDS, WAIT_SECONDS, ends_within, kill
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


def test_a_script_needs_no_guard_and_no_worker_runs_it_again(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        print("the script runs")

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


def test_what_workers_write_goes_to_stderr_with_their_names(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        class Talker:
            def __init__(self):
                print("to stdout")
                print("to stderr", file=sys.stderr)
                os.write(1, b"raw bytes \\xff\\n")
                os.system("echo from a program")
                print("unfinished", end="")

        pool, key = opened(2, Talker, name="env worker")
        pool.close()
        print("to stdout, by the script")
        """,
        method,
    )
    assert done.stdout == "to stdout, by the script\n"
    spoken = ["to stdout", "to stderr", "raw bytes \\xff", "from a program", "unfinished"]
    lines = done.stderr.splitlines()
    for worker in (0, 1):
        name = f"[env worker {worker}] "
        assert [line.removeprefix(name) for line in lines if line.startswith(name)] == spoken
    assert len(lines) == 10
    assert done.returncode == 0


def test_no_line_of_many_is_lost_or_torn(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        class Talker:
            def talk(self, count):
                for number in range(count):
                    print(number, "x" * 100)

        pool, key = opened(2, Talker)
        pool.wait(pool.call_all(key, "talk", 5000))
        pool.close()
        """,
        method,
    )
    lines = done.stderr.splitlines()
    for worker in (0, 1):
        own = [line.split("] ")[1] for line in lines if line.startswith(f"[worker {worker}] ")]
        assert own == [f"{number} {'x' * 100}" for number in range(5000)]
    assert len(lines) == 10_000


def test_what_the_script_had_not_flushed_is_printed_once(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        sys.stdout.write("still in the buffer\\n")
        pool, key = opened(2, dict)
        pool.close()
        pool, key = opened(1, dict)
        pool.wait(pool.call(0, key, "no such method"))
        """,
        method,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("still in the buffer\n", "", 0)


# ---- ending --------------------------------------------------------------------------------------

ENDINGS = {
    "by sys.exit": ("sys.exit(3)", 3),
    "by an error": ("raise ValueError('of the script')", 1),
    "in a function": ("def f():\n    pool, key = opened(1, dict)\n    sys.exit(4)\nf()", 4),
    "with a dead worker": ("os.kill(pool.pid(0), signal.SIGKILL)", 0),
    "with a busy worker": ("pool.call(0, HOST, 'build', 9, time.sleep, 1000)", 0),
}


OPENED = "pool, key = opened(2, dict)\nprint(pool.pid(0), pool.pid(1), supervisor_pid(), flush=True)\n"


def assert_all_end(pids: list[int]) -> None:
    left = [pid for pid in pids if not ends_within(pid, SOON_SECONDS)]
    kill(left)
    assert left == []


# Beside the plainest end below, the start method counts where there is a worker to be ended.
@pytest.mark.parametrize(
    ("method", "ending"),
    [("forkserver", ending) for ending in ENDINGS]
    + [(method, f"with a {state} worker") for method in ("fork", "spawn") for state in ("dead", "busy")],
)
def test_a_script_that_does_not_close_leaves_nothing_and_prints_nothing(
    method: str, tmp_path: Path, ending: str
) -> None:
    line, returncode = ENDINGS[ending]
    done = run_script(tmp_path, OPENED + line, method)
    assert_all_end([int(pid) for pid in done.stdout.split()])
    assert done.returncode == returncode
    assert done.stderr.splitlines()[-1:] == (["ValueError: of the script"] if "error" in ending else [])


def test_a_script_that_does_not_close_ends_at_once(method: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, f"{OPENED}print(time.monotonic())", method)
    *pids, ended = done.stdout.split()
    assert time.monotonic() - float(ended) < 1.5
    assert_all_end([int(pid) for pid in pids])
    assert (done.returncode, done.stderr) == (0, "")


CLOSED_AT_EXIT = """
class Closing:
    def close(self):
        open(f"closed {os.getpid()}", "w").close()

pool, key = opened(1, Closing)
"""


def test_at_exit_objects_are_closed(tmp_path: Path) -> None:
    run_script(tmp_path, CLOSED_AT_EXIT, "fork")
    assert len(list(tmp_path.glob("closed *"))) == 1


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_at_exit_objects_in_workers_of_the_first_pool_are_closed(method: str, tmp_path: Path) -> None:
    run_script(tmp_path, CLOSED_AT_EXIT, method)
    assert len(list(tmp_path.glob("closed *"))) == 1


# ---- Ctrl-C --------------------------------------------------------------------------------------

INTERRUPTED = {
    "while it waits": "pool.wait(pool.ring(key))",
    "while it rings": "while True:\n    pool.wait(pool.call(0, key, 'quick'))",
    "with a pool in a block": "try:\n    pool.wait(pool.ring(key))\nfinally:\n    pool.close(1.0)",
}


# What Python is in when it is interrupted is the script's own matter, whom the signal reaches is the start method's.
@pytest.mark.parametrize(
    ("method", "moment"),
    [("forkserver", moment) for moment in INTERRUPTED] + [("fork", "while it rings"), ("spawn", "while it rings")],
)
def test_ctrl_c_is_one_traceback_and_no_word_of_the_workers(method: str, tmp_path: Path, moment: str) -> None:
    script = f"""
class Sleeping:
    def ring(self, argument):
        time.sleep(1000)
    def quick(self):
        return 1

pool, key = opened(2, Sleeping)
print(pool.pid(0), pool.pid(1), supervisor_pid(), flush=True)
{INTERRUPTED[moment]}
"""
    with running_script(tmp_path, script, method) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert_all_end(pids)
    assert errors.count("Traceback") == 1
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert not [line for line in errors.splitlines() if line.startswith("[worker")]
    assert process.returncode == -signal.SIGINT
