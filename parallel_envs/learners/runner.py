"""Who runs the updates just now: one mode at a time, so that workers of the one before do not stay beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.brain import Brain
from parallel_envs.learners.updates.mode import UpdateMode

Make = Callable[[Mapping[Agent, Brain]], UpdateMode]


class Runner:
    """Makes update modes when they are wanted, and closes the one before."""

    def __init__(self, brains: Mapping[Agent, Brain]) -> None:
        self._brains = brains
        self._key: Any = None
        self.mode: UpdateMode | None = None
        """The one that runs updates now; None: none has been wanted yet."""

    def put(self, key: Any, make: Make) -> UpdateMode:
        """The mode with this key: the one there is, if it was made with the same, or else a new one."""
        if self.mode is None or key != self._key:
            self.close()
            self.mode, self._key = make(self._brains), key
        return self.mode

    def changed(self, agents: Iterable[Agent]) -> None:
        """Other numbers have been put into the brains of these agents."""
        if self.mode is not None:
            for agent in agents:
                self.mode.changed(agent)

    def close(self) -> None:
        """Let go of the mode. May be called again."""
        mode, self.mode = self.mode, None
        if mode is not None:
            mode.close()
