"""Warnings that are alike are told ever more rarely, and counted."""

from __future__ import annotations

import io
import logging

from parallel_envs.learners.progress import Counted, Repetitions


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
