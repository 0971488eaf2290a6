"""Who learns first, where several wait: a pure choice.

    round_robin   whoever has not learnt for the longest time
    most_data     whoever has lived the most steps that are not learnt from yet
    slowest       whoever takes the longest to learn

Agents learn from what they lived and nothing else, so the order decides when each has learnt, never what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parallel_envs.learners.algorithm import Agent


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that waits to learn."""

    agent: Agent
    num_fresh: int
    """Steps that wait to be learnt from."""
    seconds: float
    """What its updates took so far, on average."""
    last_turn: int
    """When it learnt last: a number that grows with every update of anybody; -1: never."""


Schedule = Callable[[Sequence[Candidate]], Sequence[Agent]]
"""From those who wait, in the order in which they came, to the order in which they learn."""


def by_turn(waiting: Sequence[Candidate]) -> Sequence[Agent]:
    return [one.agent for one in sorted(waiting, key=lambda one: one.last_turn)]


def by_data(waiting: Sequence[Candidate]) -> Sequence[Agent]:
    return [one.agent for one in sorted(waiting, key=lambda one: (-one.num_fresh, one.last_turn))]


def by_seconds(waiting: Sequence[Candidate]) -> Sequence[Agent]:
    return [one.agent for one in sorted(waiting, key=lambda one: (-one.seconds, one.last_turn))]


SCHEDULES: Mapping[str, Schedule] = {"round_robin": by_turn, "most_data": by_data, "slowest": by_seconds}
"""By name."""


def ordered(schedule: Schedule, waiting: Sequence[Candidate]) -> list[Agent]:
    """The order that a schedule gives. ValueError if it is not one of those who wait."""
    order = list(schedule(waiting))
    there = [one.agent for one in waiting]
    if len(order) != len(there) or set(order) != set(there):
        raise ValueError(f"schedule={schedule!r} put {there} into the order {order}. Return each of them, once.")
    return order
