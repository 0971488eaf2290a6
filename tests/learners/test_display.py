"""The progress display: what it says, and how often."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from parallel_envs.learners.progress import Display, Progress, display, duration, returns_told

PROGRESS = Progress(
    steps=3_000,
    updates=3,
    returns={"red": 1.5, "blue": -20.0},
    seconds={"collect": 3.0, "act": 1.0, "update": 4.0},
)


class Stage:
    """A display on a made-up console by a made-up clock."""

    def __init__(self, *, is_terminal: bool, width: int = 150) -> None:
        self.now = 0.0
        self.written = io.StringIO()
        self.console = Console(file=self.written, force_terminal=is_terminal, width=width, color_system=None)

    @contextmanager
    def open(self) -> Iterator[Display]:
        with display(10_000, console=self.console, clock=lambda: self.now) as shown:
            yield shown

    @property
    def text(self) -> str:
        return self.written.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_everything_is_told(is_terminal: bool) -> None:
    stage = Stage(is_terminal=is_terminal)
    with stage.open() as shown:
        shown.show(Progress(steps=1_000, updates=1))
        stage.now = 20.0
        shown.show(PROGRESS)
    assert "3,000 of 10,000 steps (30%), 100 steps/s, 1 min 10 s left, update 3" in stage.text
    assert "return red 1.5, blue -20" in stage.text
    assert "collect 38%, act 12%, update 50%" in stage.text


def test_on_a_terminal_each_thing_has_a_line_of_its_own() -> None:
    stage = Stage(is_terminal=True, width=80)
    with stage.open() as shown:
        shown.show(PROGRESS)
    lines = [line.strip() for line in stage.text.splitlines()[:4]]
    assert [line.split(" ")[0] for line in lines[1:]] == ["3,000", "return", "collect"]


def test_a_resumed_run_counts_its_own_steps_only() -> None:
    stage = Stage(is_terminal=False)
    with stage.open() as shown:
        shown.show(Progress(steps=9_000, updates=90))
        stage.now = 10.0
        shown.show(Progress(steps=9_500, updates=95))
    assert "50 steps/s, 10 s left" in stage.text


def test_a_run_that_went_past_its_end_has_no_time_left() -> None:
    """It goes on until what was lived has been learnt from."""
    stage = Stage(is_terminal=False)
    with stage.open() as shown:
        shown.show(Progress(steps=9_000, updates=90))
        stage.now = 10.0
        shown.show(Progress(steps=10_100, updates=101), last=True)
    assert "10,100 of 10,000 steps (100%), 110 steps/s, 0 s left" in stage.text


def test_a_run_is_not_said_to_be_at_its_end_before_it_is() -> None:
    stage = Stage(is_terminal=False)
    with stage.open() as shown:
        shown.show(Progress(steps=9_999, updates=99))
    assert "9,999 of 10,000 steps (99%)" in stage.text


def test_lines_come_now_and_then_and_at_the_end() -> None:
    stage = Stage(is_terminal=False)
    with stage.open() as shown:
        for second in range(25):
            stage.now = float(second)
            shown.show(Progress(steps=second, updates=second))
        shown.show(Progress(steps=10_000, updates=99), last=True)
    lines = stage.text.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0", "10", "20", "10,000"]


def test_no_control_characters_where_there_is_no_terminal() -> None:
    stage = Stage(is_terminal=False)
    with stage.open() as shown:
        shown.show(PROGRESS)
    assert "\x1b" not in stage.text
    assert len(stage.text.splitlines()) == 1


def test_many_agents_are_counted() -> None:
    told = returns_told({f"agent_{number}": float(number) for number in range(64)})
    assert told.endswith("agent_11 11, and 52 more")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3_599.0, "59 min 59 s"), (7_500.0, "2 h 05 min")]
)
def test_durations_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words
