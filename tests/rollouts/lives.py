"""Lives of one agent in several rows, and a naive memory of them: lists of steps, one for each stretch of life."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from parallel_envs.rollouts.replay import ReplayBuffer

OBSERVATIONS = spaces.Dict(
    {"number": spaces.Box(-np.inf, np.inf, (), np.float64), "pair": spaces.MultiDiscrete([9, 9])}
)
ACTIONS = spaces.Discrete(100)


@dataclass
class Step:
    """A stored step. `number` is unlike that of any other observation; it is the reward as well."""

    number: float
    after: float
    terminated: bool
    truncated: bool
    row: int
    following: Step | None = None


@dataclass
class Life:
    """Adds steps to a buffer and to a list, each in its own way."""

    buffer: ReplayBuffer
    steps: list[Step] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self._open: list[Step | None] = [None] * self.buffer.num_rows
        self._seen = [self._new() for _ in range(self.buffer.num_rows)]

    def _new(self) -> float:
        self._count += 1
        return float(self._count)

    def play(self, events: tuple[str, ...]) -> None:
        """One step of every row: "goes on", "terminated", "truncated", "both", "absent" or "restarted"."""
        if "reset" in events:
            self.buffer.cut()
            self._open = [None] * len(self._open)
            return
        before, after = list(self._seen), [self._new() for _ in events]
        terminated = np.array([event in ("terminated", "both") for event in events])
        truncated = np.array([event in ("truncated", "both") for event in events])
        valid = np.array([event != "absent" for event in events])
        self.buffer.add(
            observed(before),
            np.array(before).astype(int) % 100,
            np.array(before),
            terminated,
            truncated,
            observed(after),
            valid,
            memory=(np.array(before)[:, None],) if self.buffer.state()["arrays"].get("memory0") is not None else None,
        )
        for row, event in enumerate(events):
            self._note(row, event, before[row], after[row])
        self._seen = [self._new() if event != "goes on" else seen for event, seen in zip(events, after, strict=True)]

    def _note(self, row: int, event: str, before: float, after: float) -> None:
        if event == "absent":
            self._open[row] = None
            return
        step = Step(before, after, event in ("terminated", "both"), event in ("truncated", "both"), row)
        last = self._open[row]
        if last is not None:
            last.following = step
        self._open[row] = step if event == "goes on" else None
        self.steps.append(step)

    @property
    def kept(self) -> dict[float, Step]:
        """The steps that the buffer must still have, by number."""
        return {step.number: step for step in self.steps[-self.buffer.capacity :]}


def observed(numbers: list[float]) -> dict[str, Any]:
    pairs = [[int(number) % 9, int(number) // 9 % 9] for number in numbers]
    return {"number": np.array(numbers), "pair": np.array(pairs)}


def endings(num_rows: int) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """What happens to each row, step by step; mostly nothing."""
    event = st.sampled_from(["goes on"] * 5 + ["terminated", "truncated", "both", "absent"])
    step = st.tuples(*[event] * num_rows)
    return st.lists(step | step | step | st.just(("reset",)), min_size=1, max_size=25)


@st.composite
def lives(draw: st.DrawFn, /, kind: type[ReplayBuffer] = ReplayBuffer, **options: Any) -> Life:
    """A buffer of any size after a life of any length."""
    num_rows = draw(st.integers(1, 3))
    buffer = kind(OBSERVATIONS, ACTIONS, draw(st.integers(num_rows, 20)), num_rows, **options)
    life = Life(buffer)
    for events in draw(endings(num_rows)):
        life.play(events)
    return life
