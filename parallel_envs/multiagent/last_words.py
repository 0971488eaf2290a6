"""What each agent was told at its own end, kept until its environment's episode ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.multiagent.roster import Agent
from parallel_envs.multiagent.rows import FixedRows, Flags, Joint, OpenRows, row_of
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.snapshots import snapshot

FINAL_OBS, FINAL_REWARD, FINAL_INFO = "final_obs", "final_reward", "final_info"


class LastWords:
    """By environment and agent: the last observation (None if there was none at its end), reward and info."""

    def __init__(self, rows: FixedRows | OpenRows) -> None:
        self._rows = rows
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
            ended = (terminated | joint.truncations[agent]) & ~lost
            for row in np.flatnonzero(ended).tolist():
                observation = None
                if joint.present[agent][row]:
                    space = self._rows.observation_space(agent)
                    observation = snapshot(row_of(space, joint.observations[agent], row))
                info = snapshot(info_of(infos_of.get(row, joint.infos).get(agent, {}), row))
                words = observation, float(joint.rewards[agent][row]), info
                self._words.setdefault(int(envs[row]), {})[agent] = words

    def forget(self, envs: Iterable[int]) -> None:
        """The episodes of these environments are over, lost or broken off."""
        for env in envs:
            self._words.pop(int(env), None)

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
            seen = {row: words[0] for row, words in words_of.items() if words[0] is not None}
            last = self._rows.table(agent, seen, num_rows)
            seen_mask = np.zeros(num_rows, np.bool_)
            seen_mask[list(seen)] = True
            infos.setdefault(agent, {}).update(
                {
                    FINAL_OBS: last,
                    f"_{FINAL_OBS}": seen_mask,
                    FINAL_REWARD: rewards,
                    f"_{FINAL_REWARD}": mask,
                    FINAL_INFO: final_infos,
                    f"_{FINAL_INFO}": mask.copy(),
                }
            )


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
