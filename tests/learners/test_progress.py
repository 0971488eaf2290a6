"""What is shown on the way: the progress display, and warnings that are alike."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from parallel_envs.learners.progress import Counted, Progress, Repetitions, display, duration, returns_told

PROGRESS = Progress(
    steps=3_000,
    updates=3,
    returns={"red": 1.5, "blue": -20.0},
    seconds={"collect": 3.0, "act": 1.0, "update": 4.0},
)


class Stage:
    """A display on a made-up console by a made-up clock."""

    def __init__(self, *, is_terminal: bool = False, width: int = 150) -> None:
        self.now, self.written = 0.0, io.StringIO()
        self.console = Console(file=self.written, force_terminal=is_terminal, width=width, color_system=None)

    def show(self, *at: tuple[float, Progress], last: bool = False) -> str:
        """What is written when these are shown, each at its time; the `last` is the run's last."""
        with display(10_000, console=self.console, clock=lambda: self.now) as shown:
            for number, (self.now, progress) in enumerate(at, 1):
                shown.show(progress, last=last and number == len(at))
        return self.written.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_everything_is_told(is_terminal: bool) -> None:
    text = Stage(is_terminal=is_terminal).show((0.0, Progress(steps=1_000, updates=1)), (20.0, PROGRESS))
    assert "3,000 of 10,000 steps (30%), 100 steps/s, 1 min 10 s left, update 3" in text
    assert "return red 1.5, blue -20" in text
    assert "collect 38%, act 12%, update 50%" in text


def test_each_thing_has_a_line_of_its_own_on_a_terminal_and_elsewhere_there_are_no_control_characters() -> None:
    lines = [line.strip() for line in Stage(is_terminal=True, width=80).show((0.0, PROGRESS)).splitlines()[:4]]
    assert [line.split(" ")[0] for line in lines[1:]] == ["3,000", "return", "collect"]
    text = Stage().show((0.0, PROGRESS))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("steps", "is_last", "words"),
    [
        (9_500, False, "50 steps/s, 10 s left"),  # a resumed run counts its own steps only
        (10_100, True, "10,100 of 10,000 steps (100%), 110 steps/s, 0 s left"),  # it went on until all was learnt from
        (9_999, False, "9,999 of 10,000 steps (99%)"),  # not at its end before it is
    ],
)
def test_the_end_is_told_as_it_is(steps: int, is_last: bool, words: str) -> None:
    at = (0.0, Progress(steps=9_000, updates=90)), (10.0, Progress(steps=steps, updates=95))
    assert words in Stage().show(*at, last=is_last)


def test_lines_come_now_and_then_and_at_the_end() -> None:
    at = [(float(second), Progress(steps=second, updates=second)) for second in range(25)]
    lines = Stage().show(*at, (24.0, Progress(steps=10_000, updates=99)), last=True).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0", "10", "20", "10,000"]


def test_many_agents_are_counted() -> None:
    told = returns_told({f"agent_{number}": float(number) for number in range(64)})
    assert told.endswith("agent_11 11, and 52 more")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3_599.0, "59 min 59 s"), (7_500.0, "2 h 05 min")]
)
def test_durations_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def lines_of(*told: str) -> list[str]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(Repetitions())
    handler.setFormatter(Counted())
    for text in told:
        handler.handle(logging.LogRecord("x", logging.WARNING, __file__, 1, "%s", (text,), None))
    return written.getvalue().splitlines()


def test_each_tenth_power_is_told_with_how_many_there_were() -> None:
    assert lines_of(*["red"] * 101, "blue") == ["red", "red (10 times so far.)", "red (100 times so far.)", "blue"]


def test_in_which_step_it_was_makes_no_difference_and_who_it_was_does() -> None:
    told = [f"{agent} in step {step} of the update" for agent in ("agent_1", "agent_2") for step in (1, 2, 3)]
    assert lines_of(*told) == [told[0], told[3]]
