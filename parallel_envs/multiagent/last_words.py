"""What each agent was told at its own end, kept until its environment's episode ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.multiagent.fixed_rows import FixedRows
from parallel_envs.multiagent.joint import Flags, Joint, only_rows, row_of
from parallel_envs.multiagent.open_rows import OpenRows
from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.shared_arrays import snapshot

FINAL_OBS, FINAL_REWARD, FINAL_INFO = "final_obs", "final_reward", "final_info"

Words = tuple[Any, float, dict[str, Any]]
"""The last observation of an agent (None if there was none at its end), its last reward and its last info."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step brought: a row for each of `envs`, as it was (`last`) and as it is shown (`shown`).

    They differ in the rows `finals`, where a reset came with the step: there the infos are those of `last`.
    """

    last: Joint
    shown: Joint
    envs: npt.NDArray[np.intp]
    finals: Collection[int] = ()

    def ended(self, agent: Agent, where: Flags) -> Flags:
        """The rows among these in which the agent ended."""
        if agent not in self.last.terminations:
            return np.zeros_like(where)
        return (self.last.terminations[agent] | self.last.truncations[agent]) & where

    def has_infos(self, agent: Agent) -> bool:
        return bool(self.last.infos.get(agent) or self.shown.infos.get(agent))

    def info(self, agent: Agent, row: int) -> dict[str, Any]:
        infos = self.last.infos if row in self.finals else self.shown.infos
        return info_of(infos.get(agent, {}), row)


class LastWords:
    """By environment and agent: the words of those who ended while others went on."""

    def __init__(self, rows: FixedRows | OpenRows) -> None:
        self._rows = rows
        self._words: dict[int, dict[Agent, Words]] = {}

    def hear(self, step: Step, where: Flags) -> None:
        """Note those who have ended in these rows, whose episodes go on."""
        for agent in step.last.terminations:
            for row in np.flatnonzero(step.ended(agent, where)).tolist():
                self._words.setdefault(int(step.envs[row]), {})[agent] = self._of(step, agent, row)

    def forget(self, envs: Iterable[int]) -> None:
        """The episodes of these environments are over, lost or broken off."""
        for env in envs:
            self._words.pop(int(env), None)

    def tell(self, infos: dict[Agent, dict[str, Any]], step: Step, over: Flags) -> None:
        """Put the last words of the episodes that end in these rows into the agents' infos."""
        earlier = self._taken(step.envs, over)
        for agent in {**step.last.terminations, **earlier}:
            now = step.ended(agent, over)
            if agent in earlier:
                latest = {row: self._of(step, agent, row) for row in np.flatnonzero(now).tolist()}
                infos.setdefault(agent, {}).update(self._told(agent, {**earlier[agent], **latest}, len(over)))
            elif np.count_nonzero(now):
                infos.setdefault(agent, {}).update(self._told_at_once(step, agent, now))

    def _taken(self, envs: npt.NDArray[np.intp], over: Flags) -> dict[Agent, dict[int, Words]]:
        """By agent and row what was noted in earlier steps of the episodes that end in these rows."""
        taken: dict[Agent, dict[int, Words]] = {}
        for row in np.flatnonzero(over).tolist() if self._words else ():
            for agent, words in self._words.pop(int(envs[row]), {}).items():
                taken.setdefault(agent, {})[row] = words
        return taken

    def _of(self, step: Step, agent: Agent, row: int) -> Words:
        last, observation = step.last, None
        if last.present[agent][row]:
            space = self._rows.observation_space(agent)
            observation = snapshot(row_of(space, last.observations[agent], row))
        return observation, float(last.rewards[agent][row]), snapshot(step.info(agent, row))

    def _told(self, agent: Agent, words_of: Mapping[int, Words], num_rows: int) -> dict[str, Any]:
        """The words of some rows as infos."""
        mask, seen, rewards = np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_), np.zeros(num_rows)
        infos: dict[str, Any] = {}
        for row, (observation, reward, info) in words_of.items():
            mask[row], seen[row], rewards[row] = True, observation is not None, reward
            add_info(infos, info, row, num_rows)
        observations = {row: words[0] for row, words in words_of.items() if words[0] is not None}
        return _final(self._rows.table(agent, observations, num_rows), seen, rewards, infos, mask)

    def _told_at_once(self, step: Step, agent: Agent, now: Flags) -> dict[str, Any]:
        """The same for rows in which the agent ended in this step."""
        last, seen = step.last, now & step.last.present[agent]
        infos: dict[str, Any] = {}
        for row in np.flatnonzero(now).tolist() if step.has_infos(agent) else ():
            add_info(infos, snapshot(step.info(agent, row)), row, len(now))
        observations = self._rows.only_rows(agent, last.observations[agent], seen)
        return _final(observations, seen, only_rows(last.rewards[agent], now), infos, now)


def _final(observations: Any, seen: Flags, rewards: Any, infos: dict[str, Any], mask: Flags) -> dict[str, Any]:
    return {
        FINAL_OBS: observations,
        f"_{FINAL_OBS}": seen,
        FINAL_REWARD: rewards,
        f"_{FINAL_REWARD}": mask,
        FINAL_INFO: infos,
        f"_{FINAL_INFO}": mask.copy(),
    }


def info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a batch of infos."""
    own: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[row]:
            continue
        if isinstance(values, dict):
            own[key] = info_of(values, row)
        else:  # a column of flags is one of Python's own: NumPy's are kept as objects
            own[key] = bool(values[row]) if values.dtype == np.bool_ else values[row]
    return own
