"""Who is there: which agents are alive, and have observations, in which environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.multiagent.joint import Flags, Joint, read_only
from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.checks import env_names


class Attendance:
    """As of the last that was heard of each environment. The arrays are replaced, never written to."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.alive: dict[Agent, Flags] = {}
        self.present: dict[Agent, Flags] = {}

    def note(self, joint: Joint, envs: npt.NDArray[np.intp] | None = None) -> None:
        """These environments (None: all) have said who is there now."""
        if envs is None:
            self.alive, self.present = joint.alive, joint.present
            return
        self.alive = self._with_rows(self.alive, envs, joint.alive)
        self.present = self._with_rows(self.present, envs, joint.present)
        for agent in [agent for agent in self.alive if agent not in joint.alive]:
            if not self.alive[agent].any() and not self.present[agent].any():  # it has gone everywhere
                del self.alive[agent], self.present[agent]

    def _with_rows(
        self, flags: Mapping[Agent, Flags], envs: npt.NDArray[np.intp], news: Mapping[Agent, Flags]
    ) -> dict[Agent, Flags]:
        changed = {}
        for agent in {**flags, **news}:
            there = flags[agent].copy() if agent in flags else np.zeros(self._num_envs, np.bool_)
            there[envs] = news.get(agent, False)
            changed[agent] = read_only(there)
        return changed

    def alive_in(self, envs: Sequence[int]) -> dict[Agent, Flags]:
        """Who is alive, with a row for each of these environments."""
        return {agent: there[envs] for agent, there in self.alive.items()}

    def check_actors(self, actions: Mapping[Agent, Any], agents: Iterable[Agent], envs: Sequence[int]) -> None:
        """Raise if actions for these environments are for somebody unknown, or miss somebody who awaits its turn.

        `agents` are all that are known.
        """
        for agent in actions:
            if agent not in self.alive and agent not in agents:
                raise ValueError(f"Actions were given for {agent!r}, who is no agent here: {list(agents)}.")
        for agent, there in self.alive.items():
            if actions.get(agent) is None and (awaited := (there & self.present[agent])[list(envs)]).any():
                where = env_names([envs[row] for row in np.flatnonzero(awaited).tolist()])
                raise ValueError(
                    f"No actions were given for {agent!r}, who is alive in {where}. Give actions for every agent of "
                    "agents_now."
                )
