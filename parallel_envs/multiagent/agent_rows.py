"""Agents of equal spaces as the rows of one Gymnasium vector environment: for loops in which they share a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parallel_envs.choices import Autoreset
from parallel_envs.multiagent.joint import row_of, shown
from parallel_envs.multiagent.last_words import FINAL_OBS
from parallel_envs.multiagent.roster import Agent
from parallel_envs.threads import one_thread
from parallel_envs.vector.arguments import autoreset, seeds
from parallel_envs.vector.shared_arrays import snapshot
from parallel_envs.vector.spaces import Leaf, assembler, leaves

if TYPE_CHECKING:
    from parallel_envs.multiagent.manager import MultiAgentEnvManager

Batch = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]


class AgentRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Row `env * len(agents) + j` is agent `j` of environment `env`.

    `infos["alive"]` says which rows act next: others hold zeros (or, where an agent has just ended, its last
    observation), and their actions are ignored. `infos["env_id"]` and `infos["agent"]` (the place in `agents`) name the
    rows. What counts rows (`RecordEpisodeStatistics`) counts those in which an agent waits for the others too: its
    returns are right, its lengths are not, where agents end early.

    A row is terminated or truncated in the one step in which its agent ends. An environment is reset as a whole, once
    all of its agents have ended. Until then the rows of agents that ended earlier wait, in every mode: zeros, no flags,
    not alive. `infos["final_obs"]`, with its mask, has the last observation of every row of an environment in the step
    in which its last agent ends. What follows is said by `autoreset_mode`:

    - `"NextStep"`: That step returns the last observations. The next step ignores the actions of these rows and returns
      the first observations of the new episode, with reward 0 and no flags; all rows are alive again.
    - `"SameStep"`: That step returns the first observations of the new episode beside the rewards and flags of the old
      one; all rows are alive again.
    - `"Disabled"`: That step returns the last observations. Steps from then on return zeros for these rows, which are
      not alive, until `reset(options={"reset_mask": mask})` resets the environments of which the mask marks all agents
      that are alive. An environment that was restarted after a failure waits for that reset too. Rows of agents
      that wait may be marked, and nothing happens to them. A mask that marks an agent while others of its
      environment play on, and are not marked, raises ValueError.

    `reset(seed=)` takes an int, from which environment `i` has the seed `seed + i` (as the manager's), or a list with
    one seed a row: an environment has the first seed of its rows that is not None, so `[7, 8, 9, 10]` gives two
    environments of two agents the seeds 7 and 9. Where all its rows have None, its own generator goes on. With a
    `reset_mask`, seeds of environments that are not reset are ignored. A list with one seed for each environment is
    taken as well; one of any other length raises ValueError.

    Threads: as its manager, one thread at a time.

    Args:
        envs: Its environments have `possible_agents`.
        agents: The order of the agents, by default that of `possible_agents`. All of them must be named, as the others
            would have nobody to act for them, and their spaces must be equal.
        autoreset_mode: When an environment whose agents have all ended is reset; by default as the manager was told.
            Another mode holds for the manager and all its views. It must be given before the first reset, else
            ValueError.
    """

    def __init__(
        self,
        envs: MultiAgentEnvManager,
        agents: Sequence[Agent] | None = None,
        autoreset_mode: AutoresetMode | Autoreset | None = None,
    ) -> None:
        if envs.is_open:
            raise ValueError("Agents of these environments come and go: they cannot be rows. Use the manager itself.")
        self.envs, self._guard = envs, envs._guard
        self.agents = _all_of(envs.possible_agents, agents)
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
        self._latest: Any = None
        if autoreset_mode is not None:  # last: nothing is changed for a view that cannot be made
            envs._use_autoreset_mode(autoreset(autoreset_mode))

    def _common(self, what: str, space_of: Any) -> Any:
        first = space_of(self.agents[0])
        for agent in self.agents[1:]:
            if space_of(agent) != first:
                raise ValueError(
                    f"The {what} of {agent!r} is {space_of(agent)}, that of {self.agents[0]!r} is {first}. Only agents "
                    "of equal spaces can be rows of one vector environment."
                )
        return first

    @one_thread
    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        seed, env_ids = self._env_seeds(seed), None
        if isinstance(options, Mapping) and "reset_mask" in options:
            env_ids = self._marked(options["reset_mask"])
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
            if not env_ids:  # agents that have ended wait for the others
                return snapshot(self._latest), self._names_and_masks()
        observations, infos = self.envs.reset(seed=seed, options=options, env_ids=env_ids)
        return self._noted(self._observations(observations)), self._infos(infos)

    def _env_seeds(self, seed: Any) -> Any:
        """Seeds of rows as seeds of environments: of each the first that one of its rows has."""
        if seed is None or isinstance(seed, int | np.integer | str) or not isinstance(seed, Iterable):
            return seed  # the manager takes it, or refuses it
        given, count = list(seed), len(self.agents)
        if len(given) == self.envs.num_envs:
            return given
        if len(given) != self.num_envs:
            raise ValueError(
                f"{len(given)} seeds were given for {self.num_envs} rows ({count} agents in each of "
                f"{self.envs.num_envs} environments). Give one for each row (the first that is not None counts for its "
                "environment), one for each environment, or an int."
            )
        checked = seeds(given, self.num_envs)
        by_env = [checked[start : start + count] for start in range(0, self.num_envs, count)]
        return [next((one for one in rows if one is not None), None) for rows in by_env]

    def _noted(self, observations: Any) -> Any:
        """Kept for a reset that resets nobody."""
        if self.envs.envs.autoreset_mode is AutoresetMode.DISABLED:
            self._latest = snapshot(observations)
        return observations

    def _marked(self, mask: Any) -> list[int]:
        """The environments of which nobody is left but those whose rows are marked."""
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},), not {mask!r}.")
        table = mask.reshape(self.envs.num_envs, -1)
        alive = np.zeros_like(table)
        for place, agent in enumerate(self.agents):
            alive[:, place] = self.envs.alive.get(agent, False)
        over = (table | ~alive).all(1) & table.any(1)
        for env, place in np.argwhere(table & alive & np.logical_not(over).reshape(-1, 1)):
            raise ValueError(
                f"options['reset_mask'] marks {self.agents[place]!r} of env {env} while other agents there play on. An "
                "environment is reset as a whole: mark them all."
            )
        return [int(env) for env in np.flatnonzero(over)]

    @one_thread
    def step(self, actions: Any) -> Batch:
        count, columns = len(self.agents), [self._column(leaf, actions) for leaf in self._action_leaves]
        batches = {
            agent: self._assemble_action([column[place::count] for column in columns])
            for place, agent in enumerate(self.agents)
        }
        observations, rewards, terminations, truncations, infos = self.envs.step(batches)
        return (
            self._noted(self._observations(observations)),
            self._side_by_side([rewards[agent] for agent in self.agents]),
            self._side_by_side([terminations[agent] for agent in self.agents]),
            self._side_by_side([truncations[agent] for agent in self.agents]),
            self._infos(infos),
        )

    def _column(self, leaf: Leaf, actions: Any) -> Any:
        """A part of the actions, checked: nothing is to be told of a single agent's share."""
        try:
            part = leaf.of(actions)
            column = np.asarray(part) if leaf.fixed else list(part)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{shown(actions)} is no batch of actions: its part{leaf.name} is missing.") from error
        shape, wanted = np.shape(column) if leaf.fixed else (len(column),), (self.num_envs, *leaf.shape)
        if shape != wanted:
            raise ValueError(
                f"Actions{leaf.name} of shape {shape} were given for {self.num_envs} rows ({len(self.agents)} agents "
                f"in each of {self.envs.num_envs} environments), whose actions have shape {leaf.shape}: {shown(part)}. "
                f"Give an array of shape {wanted}."
            )
        if isinstance(column, np.ndarray) and column.dtype.kind not in "biuf":
            raise TypeError(
                f"Actions{leaf.name} of dtype {column.dtype} were given: {shown(part)}. Give numbers, such as "
                f"{leaf.dtype}."
            )
        return column

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
        if any(FINAL_OBS in infos[agent] for agent in self.agents):
            rows[FINAL_OBS] = self._final_observations(infos, rows[f"_{FINAL_OBS}"])
        for key, values in infos.common.items():
            rows.setdefault(key, _repeated(values, count))
        return rows | self._names_and_masks()

    def _names_and_masks(self) -> dict[str, Any]:
        everyone = np.ones(self.num_envs, np.bool_)
        alive = self._side_by_side([self.envs.alive[agent] for agent in self.agents])
        told: dict[str, Any] = {"alive": alive, "_alive": everyone}
        for name, values in self._names.items():
            told |= {name: values.copy(), f"_{name}": everyone.copy()}
        return told

    def _final_observations(self, infos: Any, mask: Any) -> npt.NDArray[Any]:
        """In Gymnasium's layout: an object for each row that has one."""
        rows = np.full(self.num_envs, None, object)
        for row in np.flatnonzero(mask).tolist():
            env, place = divmod(row, len(self.agents))
            rows[row] = row_of(self.single_observation_space, infos[self.agents[place]][FINAL_OBS], env)
        return rows

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments: one result for each environment, not for each row."""
        return self.envs.call(name, *args, **kwargs)

    def render(self) -> tuple[Any, ...] | None:
        return self.envs.render()

    def close_extras(self, **kwargs: Any) -> None:
        self.envs.envs.close(**kwargs)


def _all_of(possible: Sequence[Agent], agents: Sequence[Agent] | None) -> tuple[Agent, ...]:
    """All agents, in the order that was asked for."""
    if agents is None:
        return tuple(possible)
    if isinstance(agents, str) or not isinstance(agents, Sequence):
        raise TypeError(f"agents={agents!r} is not a list of agents. They are {list(possible)}.")
    if unknown := [agent for agent in agents if agent not in possible]:
        raise ValueError(f"as_vector_env was asked for {unknown}, who are no agents here: {list(possible)}.")
    if len(set(agents)) < len(agents):
        raise ValueError(f"as_vector_env was asked for {list(agents)}: name each agent once.")
    if others := [agent for agent in possible if agent not in agents]:
        raise ValueError(
            f"as_vector_env was asked for {list(agents)}, and nobody would act for {others}. "
            "Rows must be all agents: give those with other spaces to another policy through the manager itself."
        )
    return tuple(agents)


def _spread(rows: dict[str, Any], infos: dict[str, Any], place: int, count: int, num_rows: int) -> None:
    """Put one agent's infos into its rows."""
    for key, values in infos.items():
        if key == FINAL_OBS:
            continue
        if isinstance(values, dict):
            _spread(rows.setdefault(key, {}), values, place, count, num_rows)
        elif isinstance(values, np.ndarray):
            column = rows.get(key)
            if column is None:
                column = rows[key] = np.zeros((num_rows, *values.shape[1:]), values.dtype)
            elif column.dtype != values.dtype or column.shape[1:] != values.shape[1:]:
                column = rows[key] = _as_objects(column)
            column[place::count] = values if column.dtype != object else _as_objects(values)


def _repeated(values: Any, count: int) -> Any:
    """What is about environments, in the rows of all their agents."""
    if isinstance(values, dict):
        return {key: _repeated(value, count) for key, value in values.items()}
    return np.repeat(values, count, 0)


def _as_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    objects = np.full(len(values), None, object)
    for row, value in enumerate(values):
        objects[row] = value
    return objects
