"""What each agent was told at its own end, kept until its environment's episode ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.multiagent.roster import Agent
from parallel_envs.multiagent.rows import Flags, Joint, row_of, table
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.snapshots import snapshot

FINAL_OBS, FINAL_REWARD, FINAL_INFO = "final_obs", "final_reward", "final_info"


class LastWords:
    """By environment and agent: the last observation, reward and info. `space_of` tells what an agent observes."""

    def __init__(self, space_of: Callable[[Agent], Space[Any]]) -> None:
        self._space_of = space_of
        self._words: dict[int, dict[Agent, tuple[Any, float, dict[str, Any]]]] = {}

    def hear(
        self,
        joint: Joint,
        envs: npt.NDArray[np.intp],
        lost: Flags,
        infos_of: Mapping[int, Mapping[Agent, dict[str, Any]]],
    ) -> None:
        """Note those who have ended in this step, except in rows that are `lost`.

        `infos_of` has the infos of the rows for which `joint` has not.
        """
        for agent, terminated in joint.terminations.items():
            ended = (terminated | joint.truncations[agent]) & joint.present[agent] & ~lost
            for row in np.flatnonzero(ended).tolist():
                observation = snapshot(row_of(self._space_of(agent), joint.observations[agent], row))
                info = _info_of(infos_of.get(row, joint.infos).get(agent, {}), row)
                words = observation, float(joint.rewards[agent][row]), info
                self._words.setdefault(int(envs[row]), {})[agent] = words

    def forget(self, envs: npt.NDArray[np.intp]) -> None:
        """The episodes of these environments are lost."""
        for env in envs.tolist():
            self._words.pop(env, None)

    def tell(self, infos: dict[Agent, dict[str, Any]], envs: npt.NDArray[np.intp], ended: Flags) -> None:
        """Put the last words of the episodes that have ended into the agents' infos."""
        told: dict[Agent, dict[int, tuple[Any, float, dict[str, Any]]]] = {}
        for row in np.flatnonzero(ended).tolist():
            for agent, words in self._words.pop(int(envs[row]), {}).items():
                told.setdefault(agent, {})[row] = words
        for agent, words_of in told.items():
            num_rows = len(envs)
            mask = np.zeros(num_rows, np.bool_)
            mask[list(words_of)] = True
            rewards = np.zeros(num_rows)
            final_infos: dict[str, Any] = {}
            for row, (_, reward, info) in words_of.items():
                rewards[row] = reward
                add_info(final_infos, info, row, num_rows)
            last = _batch(self._space_of(agent), {row: words[0] for row, words in words_of.items()}, num_rows)
            infos.setdefault(agent, {}).update(
                {
                    FINAL_OBS: last,
                    f"_{FINAL_OBS}": mask,
                    FINAL_REWARD: rewards,
                    f"_{FINAL_REWARD}": mask.copy(),
                    FINAL_INFO: final_infos,
                    f"_{FINAL_INFO}": mask.copy(),
                }
            )


def _info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a batch of infos."""
    own: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[row]:
            own[key] = _info_of(values, row) if isinstance(values, dict) else values[row]
    return own


def _batch(space: Space[Any], values: dict[int, Any], num_rows: int) -> Any:
    try:
        return table(space, values, num_rows)
    except (ValueError, TypeError, KeyError, IndexError):  # an agent whose spaces differ between environments
        return [values.get(row) for row in range(num_rows)]
