"""What environments are asked, and what they answer: all that travels between the manager and its workers.

An order names an environment and the jobs it is to do, one after another. Histories are not among it: an order holds
one turn's actions, an answer what came of them, so both stay as small in the last turn as in the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parallel_envs.engine import Failure


class Reset(NamedTuple):
    """Begin an episode. The answer is its first state."""

    seed: int
    mode: str


class Play(NamedTuple):
    """Do at most `allowance` of these actions. The answer is `Played`."""

    actions: tuple[str, ...]
    allowance: int


class Restore(NamedTuple):
    """Come to where an episode stood: begin it anew and do what was done. The answer is the state there."""

    seed: int
    mode: str
    turns: tuple[tuple[Any, ...], ...]


class Render(NamedTuple):
    """Show yourself: `text` or `rgb_array`. The answer is what there is to see."""

    mode: str


class Measure(NamedTuple):
    """Tell metrics of your own. The answer is a dict of numbers."""


Job = Reset | Play | Restore | Render | Measure
Orders = Mapping[int, tuple[Job, ...]]
"""By environment, what it is to do."""


class Played(NamedTuple):
    """What came of a turn.

    `executed` are the actions that were done, as values; `all_valid`: there were actions, and each had a meaning;
    `metrics`: the environment's own, if the turn ended its episode.
    """

    state: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    executed: tuple[Any, ...]
    all_valid: bool
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer of an environment that raised, and what it was doing."""

    doing: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an episode stands: how to come there, and the state that is met there."""

    restore: Restore
    state: Any


Answers = dict[int, list[Any]]
"""By environment, an answer for each of its jobs; the last may be `Broken`, and then there are fewer."""
