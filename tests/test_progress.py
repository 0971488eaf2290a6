"""Progress of long work: a line a minute in a pipe, in place on a terminal, nothing if it is quiet."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from parallel_envs.progress import LINE_SECONDS, Bar, ProgressDisplay, duration, shown


class Pipe(io.StringIO):
    """A pipe that tells what has reached its reader."""

    arrived = ""

    def flush(self) -> None:
        self.arrived = self.getvalue()


def work(display: ProgressDisplay, tick: Callable[[], None], seconds: int) -> Iterator[None]:
    """One thing is done each second."""
    for done in range(1, seconds + 1):
        tick()
        display.show(done, more="all well", last=done == seconds)
        yield


@pytest.mark.parametrize("begins", [True, False])
def test_a_pipe_gets_a_line_a_minute_and_the_last_one_at_once(begins: bool) -> None:
    now, pipe = [100.0], Pipe()

    def tick() -> None:
        now[0] += 1.0

    with shown("things", 200, console=Console(file=pipe, width=40), clock=lambda: now[0]) as display:
        if begins:
            display.begin()
        arrived = [pipe.arrived.count("\n") for _ in work(display, tick, 200)]
    lines = pipe.getvalue().splitlines()
    first = [] if begins else ["1 of 200 things (0%), 0 things/s, ? left, all well"]
    start = len(first)
    seconds = [*range(1, 1 + start), *range(60 + start, 200, 60), 200]
    assert [line.split(" ")[0] for line in lines] == list(map(str, seconds))
    assert lines[:start] == first
    assert lines[start] == f"{60 + start} of 200 things (30%), 1 things/s, {duration(140 - start)} left, all well"
    assert arrived[59 + start] == start + 1  # flushed when it is written, not when the pipe is full
    assert LINE_SECONDS == 60.0
    assert "\x1b" not in pipe.getvalue()


def test_a_terminal_shows_bars_and_texts_in_place_and_may_forget_them() -> None:
    for transient in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=True, width=100, color_system=None)
        with shown("things", 8, console=console, clock=lambda: 0.0, transient=transient) as display:
            display.show(2, texts=["of two kinds"], bars=[Bar(1, 4, "red", "1/4"), Bar(1, 4, "blue", "1/4")])
            display.show(4)  # not yet: no time has passed
        drawn = text.getvalue()
        assert all(words in drawn for words in ("red", "blue", "1/4", "2 of 8 things (25%)", "of two kinds"))
        assert "4 of 8" not in drawn
        assert drawn.rstrip("\n").endswith("\x1b[2K") == transient  # the last line is wiped


def test_quiet_shows_nothing_and_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    with shown("things", 2, console=Console(file=text, quiet=True, force_terminal=True)) as display:
        assert not display.due()
        display.show(2, last=True)
    assert text.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    with shown("things", 2, console=Console(file=text, force_terminal=True, width=100), clock=lambda: 0.0) as display:
        display.show(2, last=True)
    assert text.getvalue() == "2 of 2 things (100%), 0 things/s, ? left\n"


def test_texts_alone_are_shown_without_counts() -> None:
    text = io.StringIO()
    with shown(console=Console(file=text, width=100)) as display:
        display.show(more="round 1 of 9: serial")
    assert text.getvalue() == "round 1 of 9: serial\n"


@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_quiet_commands_print_results_only(option: str) -> None:
    words = [sys.executable, "-m", "parallel_envs", "eval", "-m", "CartPole-v1", "-p", "random", "-p", "noop"]
    done = subprocess.run([*words, "-e", "2", option], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "CartPole-v1" in done.stdout


def test_durations_are_told_in_words() -> None:
    told = [duration(seconds) for seconds in (0.4, 59.6, 200, 7500)]
    assert told == ["0 s", "1 min 00 s", "3 min 20 s", "2 h 05 min"]
