"""Around every test: whatever it started has ended, whatever it opened is closed.

Four things are noted before and after each test: processes below this one (and orphans of this run), Python
threads, open descriptors, and mappings of anonymous shared memory. A test that leaves one behind fails at its
teardown with a list of what is left. An ending that takes a moment is given a few seconds.

What lives as long as the Python process itself (the engine's keeper, the helpers of `multiprocessing`) is
started once, before the first test, and is no leak. Nor are the keeper's fork servers, which come and go with
what workers need.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import hypothesis
import pytest

from parallel_envs import devices
from parallel_envs.engine import FORK_SERVER_NAME, start_supervisor, supervisor_pid

SETTLE_SECONDS = 5.0
POLL_SECONDS = 0.005

# A shell that starts the tests in the background has them ignore these, and every process that they start, too: no
# Ctrl-C would arrive in the tests that are about it.
for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

# Tables have one width, whatever terminal the tests run in, also in the workers of pytest-xdist.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Every helper and worker inherits it: an orphan that belongs to this run is known by its environment.
RUN_VARIABLE, RUN_ID = "PARALLEL_ENVS_TEST_RUN", uuid.uuid4().hex
os.environ[RUN_VARIABLE] = RUN_ID

# `multiprocessing.Array`, which Gymnasium's async env uses, keeps freed memory and its descriptor for later, and
# matplotlib keeps up to 64 open fonts, in each thread its own.
KEPT_BY_LIBRARIES = re.compile(r"/pym-\d+-\w+ \(deleted\)$|/mpl-data/fonts/")

SHARED_MEMORY = re.compile(r" (/memfd:|/dev/zero|/dev/shm/psm_)")

FAILED = pytest.StashKey[bool]()

# The same examples in every run, and no example judged by the clock of a busy machine.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("tests")


@dataclass(frozen=True)
class Holdings:
    """What is held at one moment, each thing by its number, with words that tell a reader what it is."""

    processes: dict[int, str]
    threads: dict[int, str]
    descriptors: dict[int, str]
    shared_memory: dict[int, str]

    @classmethod
    def now(cls) -> Holdings:
        return cls(_processes(), _threads(), _descriptors(), _shared_memory())

    def gained_since(self, before: Holdings) -> list[str]:
        """A line for each thing that is held now and was not held `before`."""
        gained = _new("process", self.processes, before.processes)
        gained += _new("thread", self.threads, before.threads)
        gained += _new("shared memory", self.shared_memory, before.shared_memory)
        # A helper that was replaced has other descriptors, not more.
        if len(self.descriptors) > len(before.descriptors):
            gained += _new("descriptor", self.descriptors, before.descriptors)
        return gained


def _new(kind: str, now: dict[int, str], before: dict[int, str]) -> list[str]:
    return [f"{kind} {number}: {words}" for number, words in now.items() if before.get(number) != words]


STRANGERS: set[int] = set()
"""Processes of others, as seen when last looked: a pid is not given away anew while it is in use."""

KERNEL_THREAD = 0x00200000


def _processes() -> dict[int, str]:
    """Every process below this one, and every orphan of this run, but the engine's keeper and its fork servers."""
    running = {int(name) for name in os.listdir("/proc") if name.isdecimal()}  # noqa: PTH208  # read at each test: quick
    STRANGERS.intersection_update(running)
    parents, marked, unmarked, mark = {}, set(), set(), f"{RUN_VARIABLE}={RUN_ID}".encode()
    for pid in running - STRANGERS:
        with suppress(OSError):  # it has just ended, or belongs to someone else
            parents[pid], flags = _parent_and_flags(pid)
            environment = b"none" if flags & KERNEL_THREAD else Path(f"/proc/{pid}/environ").read_bytes()
            if mark in environment:
                marked.add(pid)
            elif environment:  # there is none for a moment while another program begins
                unmarked.add(pid)
    ours = {pid for pid in parents if os.getpid() in _ancestors(pid, parents)} | marked
    STRANGERS.update(unmarked - ours - {os.getpid()})
    ours -= {os.getpid(), supervisor_pid()}
    return {
        pid: f"{_name(pid)}, child of {parents.get(pid)}: {_command_line(pid)}"
        for pid in sorted(ours)
        if _name(pid) != FORK_SERVER_NAME
    }


def _parent_and_flags(pid: int) -> tuple[int, int]:
    after_the_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(after_the_name[1]), int(after_the_name[6])


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while (pid := parents.get(pid, 0)) != 0:
        yield pid


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        words = b""
    return words.decode(errors="replace").strip()[:200] or "ended, and nobody has waited for it"


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""


def _threads() -> dict[int, str]:
    return {id(thread): repr(thread) for thread in threading.enumerate()}


def _descriptors() -> dict[int, str]:
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the one this loop itself reads the folder through
            continue
        if not KEPT_BY_LIBRARIES.search(target):
            found[int(link.name)] = target
    return found


def _shared_memory() -> dict[int, str]:
    """Mappings of memory that other processes can share, by inode."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    fields = [line.split(maxsplit=5) for line in lines if SHARED_MEMORY.search(line)]
    return {int(inode): target for *_, inode, target in fields}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `slow`, unless SLOW=1 is set or a test is named on the command line.

    Of a test marked `slow(sample=True)` a sample of its cases stays, in which every value of every parameter occurs.
    """
    if os.environ.get("SLOW") == "1" or any("::" in argument for argument in config.args):
        return
    seen: set[tuple[str, str, int]] = set()
    kept, left_out = [], []
    for item in items:
        marker = item.get_closest_marker("slow")
        case: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
        values = {(item.nodeid.partition("[")[0], name, id(value)) for name, value in case.items()}
        if marker is None or (marker.kwargs.get("sample") and values - seen):
            kept.append(item)
            seen |= values
        else:
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _helpers_that_live_as_long_as_python() -> None:
    """Started before the first test, so that no test is charged with them."""
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    start_supervisor()


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_set_aside(_helpers_that_live_as_long_as_python: None) -> None:
    """What is here before a module's first test need not be looked through for garbage after each of them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a failure: its traceback holds the test's variables, and its own message is the one to read."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's `meta` device counts as one that is here (see `tests/device.py`). Users are refused it."""
    here = devices.devices_here
    monkeypatch.setattr(devices, "devices_here", lambda: [*here(), "meta"])


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request: pytest.FixtureRequest, _what_stays_is_set_aside: None) -> Iterator[None]:
    before = Holdings.now()
    yield
    if request.node.stash.get(FAILED, False):
        return
    left = _wait_for_endings(before)
    if left:
        pytest.fail("The test left behind:\n  " + "\n  ".join(left), pytrace=False)


def _wait_for_endings(before: Holdings) -> list[str]:
    """What is still held once everything that is on its way out has gone."""
    deadline = time.monotonic() + SETTLE_SECONDS
    left = Holdings.now().gained_since(before)
    if left:
        gc.collect()
        left = Holdings.now().gained_since(before)
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        gc.collect()
        left = Holdings.now().gained_since(before)
    return left
