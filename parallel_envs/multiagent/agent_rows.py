"""Agents of equal spaces as the rows of one Gymnasium vector environment: for loops in which they share a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import batch_space

from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.layout import assembler, leaves

if TYPE_CHECKING:
    from parallel_envs.multiagent.manager import MultiAgentEnvManager

Batch = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]


class AgentRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Row `env * len(agents) + j` is agent `j` of environment `env`.

    `infos["alive"]` says which rows act next: others hold zeros (or, where an agent has just ended, its last
    observation), and their actions are ignored. A row's episode ends with its agent; it goes on when its environment
    has been reset, which waits until all of its agents have ended. `infos["env_id"]` and `infos["agent"]` (the place in
    `agents`) name the rows.

    Args:
        envs: Its environments have `possible_agents`.
        agents: Which agents, by default all. Their spaces must be equal.
    """

    def __init__(self, envs: MultiAgentEnvManager, agents: Sequence[Agent] | None = None) -> None:
        if envs.is_open:
            raise ValueError("Agents of these environments come and go: they cannot be rows. Use the manager itself.")
        self.envs = envs
        self.agents = tuple(envs.possible_agents if agents is None else agents)
        self._others = [agent for agent in envs.possible_agents if agent not in self.agents]
        if self._others:
            raise ValueError(
                f"as_vector_env was asked for {list(self.agents)}, and nobody would act for {self._others}. "
                "Rows must be all agents: give those with other spaces to another policy through the manager itself."
            )
        self.single_observation_space = self._common("observation space", envs.single_observation_space)
        self.single_action_space = self._common("action space", envs.single_action_space)
        self.num_envs = envs.num_envs * len(self.agents)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata, self.render_mode = envs.metadata, envs.render_mode
        self._leaves, self._assemble = leaves(self.single_observation_space), assembler(self.single_observation_space)
        self._action_leaves = leaves(self.single_action_space)
        self._assemble_action = assembler(self.single_action_space)
        rows = np.arange(self.num_envs)
        self._names = {"env_id": rows // len(self.agents), "agent": rows % len(self.agents)}

    def _common(self, what: str, space_of: Any) -> Any:
        first = space_of(self.agents[0])
        for agent in self.agents[1:]:
            if space_of(agent) != first:
                raise ValueError(
                    f"The {what} of {agent!r} is {space_of(agent)}, that of {self.agents[0]!r} is {first}. Only agents "
                    "of equal spaces can be rows of one vector environment."
                )
        return first

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.envs.reset(seed=seed, options=options)
        return self._observations(observations), self._infos(infos)

    def step(self, actions: Any) -> Batch:
        count = len(self.agents)
        batches = {
            agent: self._assemble_action([leaf.of(actions)[place::count] for leaf in self._action_leaves])
            for place, agent in enumerate(self.agents)
        }
        observations, rewards, terminations, truncations, infos = self.envs.step(batches)
        return (
            self._observations(observations),
            self._side_by_side([rewards[agent] for agent in self.agents]),
            self._side_by_side([terminations[agent] for agent in self.agents]),
            self._side_by_side([truncations[agent] for agent in self.agents]),
            self._infos(infos),
        )

    def _observations(self, observations: dict[Agent, Any]) -> Any:
        parts = [[leaf.of(observations[agent]) for agent in self.agents] for leaf in self._leaves]
        return self._assemble([self._side_by_side(part) for part in parts])

    def _side_by_side(self, columns: Sequence[Any]) -> Any:
        """Rows of all agents of an environment, then those of the next."""
        if not isinstance(columns[0], np.ndarray):
            return tuple(value for row in zip(*columns, strict=True) for value in row)
        return np.stack(columns, 1).reshape(self.num_envs, *columns[0].shape[1:])

    def _infos(self, infos: Any) -> dict[str, Any]:
        """The agents' infos as rows, their masks, and who is alive."""
        count = len(self.agents)
        rows: dict[str, Any] = {}
        for place, agent in enumerate(self.agents):
            _spread(rows, infos[agent], place, count, self.num_envs)
        everyone = np.ones(self.num_envs, np.bool_)
        rows["alive"], rows["_alive"] = self._side_by_side([self.envs.alive[agent] for agent in self.agents]), everyone
        for name, values in self._names.items():
            rows[name], rows[f"_{name}"] = values.copy(), everyone.copy()
        for key, values in infos.common.items():
            if isinstance(values, np.ndarray) and len(values) == self.envs.num_envs:
                rows[key] = np.repeat(values, count, 0)
        return rows

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments: one result for each environment, not for each row."""
        return self.envs.call(name, *args, **kwargs)

    def render(self) -> tuple[Any, ...] | None:
        return self.envs.render()

    def close_extras(self, **kwargs: Any) -> None:
        self.envs.close(**kwargs)


def _spread(rows: dict[str, Any], infos: dict[str, Any], place: int, count: int, num_rows: int) -> None:
    """Put one agent's infos into its rows."""
    for key, values in infos.items():
        if isinstance(values, dict):
            _spread(rows.setdefault(key, {}), values, place, count, num_rows)
        elif isinstance(values, np.ndarray):
            column = rows.get(key)
            if column is None:
                column = rows[key] = np.zeros((num_rows, *values.shape[1:]), values.dtype)
            elif column.dtype != values.dtype or column.shape[1:] != values.shape[1:]:
                column = rows[key] = _as_objects(column)
            column[place::count] = values if column.dtype != object else _as_objects(values)


def _as_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    objects = np.full(len(values), None, object)
    for row, value in enumerate(values):
        objects[row] = value
    return objects
