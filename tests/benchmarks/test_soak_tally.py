from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.memory import Holdings
from benchmarks.soak.model import Where
from benchmarks.soak.tally import RSS_BYTES_ALLOWED, Tally, TimedCall
from parallel_envs.testing.scripted import Fault

HELD = Holdings(processes=0, threads=1, descriptors=9, mappings=0, rss_bytes=50_000_000)


@pytest.fixture
def tally() -> Tally:
    """A soak in which two faults were survived and nothing was wrong."""
    tally = Tally(HELD, after=HELD, warm_rss_bytes=HELD.rss_bytes, survived=2)
    tally.injected.update([(Where.STEP, Fault.SIGKILL), (Where.IDLE, Fault.SIGSTOP)])
    return tally


def test_nothing_wrong_is_good(tally: Tally) -> None:
    assert tally.good


SPOILERS: dict[str, Callable[[Tally], object]] = {
    "a wrong row": lambda tally: setattr(tally, "wrong", 1),
    "a call that raised": lambda tally: setattr(tally, "errors", 1),
    "a call that came too late": lambda tally: tally.time(TimedCall("step", 2.0, 1.9)),
    "a fault that was not survived": lambda tally: tally.injected.update([(Where.STEP, Fault.SLEEP)]),
    "a process": lambda tally: setattr(tally, "after", replace(HELD, processes=1)),
    "a thread": lambda tally: setattr(tally, "after", replace(HELD, threads=2)),
    "a descriptor": lambda tally: setattr(tally, "after", replace(HELD, descriptors=10)),
    "a mapping": lambda tally: setattr(tally, "after", replace(HELD, mappings=1)),
    "memory": lambda tally: setattr(tally, "after", replace(HELD, rss_bytes=HELD.rss_bytes + RSS_BYTES_ALLOWED + 1)),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_anything_wrong_is_not_good(tally: Tally, spoiler: str) -> None:
    SPOILERS[spoiler](tally)
    assert not tally.good
    assert not tally.outcome()["good"]


def test_after_ctrl_c_faults_may_be_left_that_no_call_has_answered(tally: Tally) -> None:
    tally.injected.update([(Where.STEP, Fault.SLEEP)])
    tally.interrupted = True
    assert tally.good


def test_the_call_nearest_to_its_deadline_is_kept(tally: Tally) -> None:
    for call in (TimedCall("step", 1.0, 4.0), TimedCall("close", 3.0, 6.0), TimedCall("recv", 2.0, 9.0)):
        tally.time(call)
    assert (tally.slowest.name, tally.calls, tally.overdue) == ("close", 3, 0)


def test_only_the_first_complaints_are_kept(tally: Tally) -> None:
    for number in range(100):
        tally.complain(f"complaint {number}")
    assert len(tally.complaints) == 20
    assert tally.complaints[0] == "complaint 0"
