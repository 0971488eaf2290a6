"""Whose episode begins where, and what each agent has got in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Agent = Any
Flags = npt.NDArray[np.bool_]

_EPISODES = 100  # that returns are kept of
_MOST_EMPTY = 1000  # rounds in which nobody lives, before it is said that nobody ever will


@dataclass(frozen=True, slots=True)
class Passage:
    """What a step was: where episodes began `anew`, and how many environments took a real step."""

    anew: Flags
    num_steps: int
    lived: Mapping[Agent, Flags]
    """Where each agent took a step and what came of it is known."""
    unseen: Mapping[Agent, Flags]
    """Where it took one and was away from then on, though nobody said that its episode had ended. Without those who
    are nowhere so."""
    returned: Mapping[Agent, Flags]
    """Where it is back, after its own episode had ended, in the same episode of the environment. Likewise."""


class Life:
    """Follows the agents of some environments through their episodes.

    An environment in which nobody is alive is reset by its next step (NEXT_STEP). An agent's episode begins with the
    first observation that it has in the environment's episode, also if it joins later than others; and again if it
    comes back after it was terminated or truncated. One that is away without that goes on in the same episode.
    """

    def __init__(self, agents: Sequence[Agent], num_rows: int) -> None:
        self.begins: dict[Agent, Flags] = {agent: np.zeros(num_rows, np.bool_) for agent in agents}
        """Where the agent's newest observation is the first of an episode."""
        self.returns: dict[Agent, deque[float]] = {agent: deque(maxlen=_EPISODES) for agent in agents}
        """Of the last episodes that the agent was in."""
        self.num_episodes: dict[Agent, int] = dict.fromkeys(agents, 0)
        """That each agent has finished."""
        self._seen = {agent: np.zeros(num_rows, np.bool_) for agent in agents}
        self._ended = {agent: np.zeros(num_rows, np.bool_) for agent in agents}
        self._running = {agent: np.zeros(num_rows) for agent in agents}
        self._num_empty = 0  # rounds since anybody lived
        self._steady: tuple[object, object] | None = None
        self._nowhere = np.zeros(num_rows, np.bool_)

    def recall(self, returns: Mapping[Agent, Sequence[float]], num_episodes: Mapping[Agent, int]) -> None:
        """These are what the agents got in their last episodes, and how many they have finished."""
        for agent, own in returns.items():
            self.returns[agent] = deque(own, maxlen=_EPISODES)
            self.num_episodes[agent] = num_episodes[agent]

    def begin(self, present: Mapping[Agent, Flags]) -> None:
        """All environments have been reset."""
        for agent in self.begins:
            self._seen[agent] = present[agent].copy()
            self.begins[agent] = present[agent].copy()
            self._ended[agent] = np.zeros_like(self._ended[agent])
            self._running[agent] = np.zeros_like(self._running[agent])
        self._steady = None

    def go_on(
        self,
        alive_before: Mapping[Agent, Flags],
        alive: Mapping[Agent, Flags],
        present: Mapping[Agent, Flags],
        rewards: Mapping[Agent, Any],
        terminations: Mapping[Agent, Flags],
        truncations: Mapping[Agent, Flags],
        lost: Flags,
    ) -> Passage:
        """A step was taken. `lost`: where a worker had to be restarted, and the episode is of no account.

        The dicts of those who are there are looked at again only when they are others than last time.
        """
        if self._steady is not None and self._steady[0] is alive and self._steady[1] is present and not lost.any():
            for agent in self._running:
                self._running[agent] += rewards[agent]
            self.begins = dict.fromkeys(self.begins, self._nowhere)
            return Passage(self._nowhere, len(lost), alive_before, {}, {})
        before = np.logical_or.reduce([alive_before[agent] for agent in self.begins])
        now = np.logical_or.reduce([alive[agent] for agent in self.begins])
        anew, over = ~before, before & ~now
        self._check_alive(before)
        begins, lived, unseen, returned = {}, {}, {}, {}
        for agent, seen in self._seen.items():
            acted, ended = alive_before[agent] & ~lost, self._ended[agent]
            away = acted & ~present[agent] & ~terminations[agent]
            back = ended & present[agent] & alive[agent] & ~anew
            self._ended[agent] = (ended & ~back & ~anew) | (acted & (terminations[agent] | truncations[agent]))
            lived[agent], unseen[agent], returned[agent] = acted & ~away, away, back
            begins[agent] = (present[agent] & (anew | ~seen)) | back
            self._running[agent] += np.where(acted, rewards[agent], 0.0)
            finished = self._running[agent][over & seen & ~lost].tolist()
            self.returns[agent].extend(finished)
            self.num_episodes[agent] += len(finished)
            self._running[agent][over] = 0.0
            self._seen[agent] = present[agent] | (seen & ~anew)
        self.begins = begins
        everyone = all((alive[agent] & present[agent] & seen).all() for agent, seen in self._seen.items())
        self._steady = (alive, present) if everyone else None
        return Passage(anew, int((before & ~lost).sum()), lived, _anywhere(unseen), _anywhere(returned))

    def _check_alive(self, before: Flags) -> None:
        self._num_empty = 0 if before.any() else self._num_empty + 1
        if self._num_empty >= _MOST_EMPTY:
            raise RuntimeError(
                f"In {self._num_empty} rounds nobody took a step: episodes begin without agents. See that `reset` of "
                "the environments leaves some in `agents`."
            )


def _anywhere(flags: Mapping[Agent, Flags]) -> dict[Agent, Flags]:
    """Those who have a flag set at all."""
    return {agent: own for agent, own in flags.items() if own.any()}
