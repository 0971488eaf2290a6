"""Results by agent from step to step: where an episode ends, and which agents are alive and present.

`SplitByAgent` turns results of `ParallelEnvManager` into `AgentResults`. When an episode ends, it adds `final_obs`,
`final_reward` and `final_info` to the infos of each agent: the last results of that agent, which may have ended many
steps earlier. It also holds the flags `alive` and `present` of the latest results of each env.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.multiagent.agent_arrays import FixedAgents, OpenAgents
from parallel_envs.multiagent.agent_layout import Agent, AgentResults, Flags, read_only, row_of
from parallel_envs.vector.env_errors import env_names
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.shared_arrays import snapshot
from parallel_envs.vector.step_loop import RESTARTED

FINAL_OBS, FINAL_REWARD, FINAL_INFO = "final_obs", "final_reward", "final_info"

FinalResult = tuple[Any, float, dict[str, Any]]
"""The last observation of an agent (None if it had none at its end), its last reward and its last info."""


class Infos(dict[Agent, dict[str, Any]]):
    """Infos by agent, each in Gymnasium's vector layout. `common` holds the infos about environments as a whole.

    Threads: a dict of the caller's own, which nothing here changes once it has been returned.
    """

    def __init__(self, infos: Mapping[Agent, dict[str, Any]], common: dict[str, Any]) -> None:
        super().__init__(infos)
        self.common = common


@dataclass(frozen=True, slots=True)
class _StepResults:
    """Results of a step, with a row for each of `envs`: before (`last`) and after (`shown`) a reset in SAME_STEP mode.

    They differ in the rows `finals`, where a reset came with the step: there the infos to keep are those of `last`.
    """

    last: AgentResults
    shown: AgentResults
    envs: npt.NDArray[np.intp]
    finals: Collection[int]

    def ended(self, agent: Agent, where: Flags) -> Flags:
        """Return the rows of `where` in which the agent ended."""
        if agent not in self.last.terminations:
            return np.zeros_like(where)
        return (self.last.terminations[agent] | self.last.truncations[agent]) & where

    def info(self, agent: Agent, row: int) -> dict[str, Any]:
        infos = self.last.infos if row in self.finals else self.shown.infos
        return info_of(infos.get(agent, {}), row)


class SplitByAgent:
    """Splits results by agent. Keeps final results of agents that ended early until the episode of their env ends.

    `alive` and `present` are the flags by agent of the latest results of each env. Their arrays are never written to.
    """

    def __init__(self, agents: FixedAgents | OpenAgents, num_envs: int) -> None:
        self._agents, self._num_envs = agents, num_envs
        self.alive: dict[Agent, Flags] = {}
        self.present: dict[Agent, Flags] = {}
        self._final_results: dict[int, dict[Agent, FinalResult]] = {}
        """By env and agent."""

    def check_actions(self, actions: Mapping[Agent, Any], envs: Sequence[int]) -> None:
        """Raise ValueError for actions of an unknown agent, or if an agent that is to act in `envs` has none."""
        for agent in actions:
            if agent not in self.alive and agent not in self._agents.agents:
                known = list(self._agents.agents)
                raise ValueError(f"Actions were given for {agent!r}, which is no agent here: {known}.")
        for agent, alive in self.alive.items():
            if actions.get(agent) is None and (acting := (alive & self.present[agent])[list(envs)]).any():
                where = env_names([envs[row] for row in np.flatnonzero(acting).tolist()])
                raise ValueError(
                    f"No actions were given for {agent!r}, which is alive in {where}. Give actions for every agent of "
                    "agents_now."
                )

    def forget(self, envs: Iterable[int]) -> None:
        """Drop the final results of episodes in these envs, which were broken off or lost."""
        for env in envs:
            self._final_results.pop(int(env), None)

    def of_reset(self, observations: Any, infos: Any, others: Collection[int]) -> AgentResults:
        """Split the results of a reset. The envs `others` were not reset."""
        results = self._agents.split(self._agents.without_infos(observations, others), infos, self._num_envs)
        self.alive, self.present = results.alive, results.present
        return results

    def of_error(self, observations: Any) -> None:
        """Update masks and spaces after an error: the envs that did not raise have gone on."""
        results = self._agents.split(observations, {}, self._num_envs)
        self.alive, self.present = results.alive, results.present

    def of_step(
        self, envs: npt.NDArray[np.intp] | None, observations: Any, ended: Flags, infos: Any
    ) -> tuple[AgentResults, AgentResults]:
        """Split the results of steps of these envs (None: all).

        Returns the results of the steps themselves, and the results to show, which differ where an env was reset since.
        """
        agents, num_rows = self._agents, len(ended)
        finals: list[int] = []
        if FINAL_OBS not in infos:
            last = shown = agents.split(observations, infos, num_rows, envs)
        else:  # SAME_STEP: in the rows `finals` rewards and ends are those of the last step, not of the reset after it
            finals = np.flatnonzero(infos[f"_{FINAL_OBS}"]).tolist()
            after = {key: value for key, value in infos.items() if key.removeprefix("_") not in (FINAL_OBS, FINAL_INFO)}
            before = agents.with_rows_replaced(observations, {row: infos[FINAL_OBS][row] for row in finals})
            last = agents.split(before, infos.get(FINAL_INFO, {}), num_rows, envs, observations)
            shown = agents.split(observations, after, num_rows, envs, before)
            if "new_agents" in last.common:
                shown.common["new_agents"] = last.common.pop("new_agents")
            if last.common:
                shown.common |= {FINAL_INFO: last.common, f"_{FINAL_INFO}": infos[f"_{FINAL_INFO}"]}
        if RESTARTED in shown.common or last.some_agent_ended or np.count_nonzero(ended):
            lost = np.asarray(shown.common.get(RESTARTED, np.zeros(num_rows)), np.bool_)
            step = _StepResults(last, shown, np.arange(num_rows) if envs is None else envs, finals)
            if lost.any():
                self._end_lost(step, lost)
            going_on, over = ~ended & ~lost, ended & ~lost
            if last.some_agent_ended and going_on.any():
                for agent in last.terminations:
                    for row in np.flatnonzero(step.ended(agent, going_on)).tolist():
                        kept = self._final_results.setdefault(int(step.envs[row]), {})
                        kept[agent] = self._final_result(step, agent, row)
            if over.any():
                self._add_final_infos(step, over)
        if envs is None:
            self.alive, self.present = shown.alive, shown.present
            return last, shown
        self.alive, self.present = self.alive.copy(), self.present.copy()  # results share these dicts
        for flags, news in ((self.alive, shown.alive), (self.present, shown.present)):
            for agent in {**flags, **news}:
                mask = flags[agent].copy() if agent in flags else np.zeros(self._num_envs, np.bool_)
                mask[envs] = news.get(agent, False)
                flags[agent] = read_only(mask)
        gone = [agent for agent in self.alive if agent not in shown.alive]
        for agent in gone:
            if not self.alive[agent].any() and not self.present[agent].any():  # the agent has left every env
                del self.alive[agent], self.present[agent]
        return last, shown

    def _end_lost(self, step: _StepResults, lost: Flags) -> None:
        """End the episodes that were lost with their worker: truncate every living agent, without final infos."""
        last, shown = step.last, step.shown
        self.forget(step.envs[lost])
        for agent, before in self.alive.items():
            cut = lost & before[step.envs]
            if agent not in shown.truncations and cut.any():
                self._agents.add_absent(shown, agent)
                self._agents.add_absent(last, agent)
            if agent in last.truncations:
                last.truncations[agent] = read_only(last.truncations[agent] | cut)
        goes_on = ~lost  # the episode is over: where `last` is the result that is shown, no agent acts next
        last.alive = {agent: read_only(alive & goes_on) for agent, alive in last.alive.items()}

    def _add_final_infos(self, step: _StepResults, over: Flags) -> None:
        """Add the final results of all agents to their infos, in the rows whose episodes are over."""
        infos, num_rows = step.shown.infos, len(over)
        earlier: dict[Agent, dict[int, FinalResult]] = {}
        for row in np.flatnonzero(over).tolist() if self._final_results else ():
            for agent, result in self._final_results.pop(int(step.envs[row]), {}).items():
                earlier.setdefault(agent, {})[row] = result
        for agent in {**step.last.terminations, **earlier}:
            results = earlier.get(agent, {})
            for row in np.flatnonzero(step.ended(agent, over)).tolist():
                results[row] = self._final_result(step, agent, row)
            if not results:
                continue
            mask, seen, rewards = np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_), np.zeros(num_rows)
            final_infos: dict[str, Any] = {}
            for row, (observation, reward, info) in results.items():
                mask[row], seen[row], rewards[row] = True, observation is not None, reward
                add_info(final_infos, info, row, num_rows)
            observations = {row: result[0] for row, result in results.items() if result[0] is not None}
            own = infos.setdefault(agent, {})
            own[FINAL_OBS], own[f"_{FINAL_OBS}"] = self._agents.batch_of_rows(agent, observations, num_rows), seen
            own[FINAL_REWARD], own[f"_{FINAL_REWARD}"] = rewards, mask
            own[FINAL_INFO], own[f"_{FINAL_INFO}"] = final_infos, mask.copy()

    def _final_result(self, step: _StepResults, agent: Agent, row: int) -> FinalResult:
        last, observation = step.last, None
        if last.present[agent][row]:
            space = self._agents.space("observation", agent)
            observation = snapshot(row_of(space, last.observations[agent], row))
        return observation, float(last.rewards[agent][row]), snapshot(step.info(agent, row))


def info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """Return one row of a batch of infos."""
    own: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[row]:
            continue
        if isinstance(values, dict):
            own[key] = info_of(values, row)
        else:  # a column of flags holds Python's own bool: NumPy's are kept as objects
            own[key] = bool(values[row]) if values.dtype == np.bool_ else values[row]
    return own
