"""What becomes of a script that uses a pool: how it begins, what it prints, how it ends."""

from __future__ import annotations

from pathlib import Path

from tests.engine.scripts import run_script


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


def test_no_worker_runs_the_script_again_and_no_line_of_theirs_is_lost_or_torn(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        sys.stdout.write("the script runs\\n")  # it is not flushed before the workers begin

        class Made:
            def __init__(self, number):
                self.number = number

        class Maker:
            def make(self, number):
                for line in range(3000):
                    print(line, "x" * 100)
                print("to stderr", file=sys.stderr)
                os.write(1, b"raw bytes \\xff\\n")
                os.system("echo from a program")
                print("unfinished", end="")
                return Made(number), __name__, os.getpid() != asker

        asker = os.getpid()
        pool, key = opened(2, Maker, name="env worker")
        made = pool.call_all(key, "make", 7)
        pool.wait(made, 30)
        for reply in made.replies.values():
            print(isinstance(reply.value[0], Made), reply.value[0].number, *reply.value[1:])
        pool.close()
        """,
        method,
    )
    spoken = ["to stderr", "raw bytes \\xff", "from a program", "unfinished"]
    lines = done.stderr.splitlines()
    for worker in (0, 1):
        own = [line.split("] ", 1)[1] for line in lines if line.startswith(f"[env worker {worker}] ")]
        assert own == [*(f"{number} {'x' * 100}" for number in range(3000)), *spoken]
    assert len(lines) == 2 * 3004
    assert (done.stdout, done.returncode) == ("the script runs\n" + "True 7 __main__ True\n" * 2, 0)
