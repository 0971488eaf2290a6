"""Views of a `MultiAgentEnvManager`: agents as rows of one vector env (`AgentRows`), and one env.

One env is a `SingleEnv` (a `ParallelEnv`), or a `SingleTurnEnv` (an `AECEnv`) if its agents take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from pettingzoo import AECEnv, ParallelEnv

from parallel_envs.choices import Autoreset
from parallel_envs.multiagent.agent_arrays import FINAL_INFO, FINAL_OBS, FINAL_REWARD, info_of, row_of
from parallel_envs.multiagent.agent_layout import Agent, shortened
from parallel_envs.threads import one_thread
from parallel_envs.vector.arguments import autoreset, seeds
from parallel_envs.vector.shared_arrays import assembler, leaves, snapshot

if TYPE_CHECKING:
    from parallel_envs.multiagent.manager import MultiAgentEnvManager

Batch = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]
ByAgent = dict[Agent, Any]


class AgentRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Agents of equal spaces as rows of one Gymnasium vector env, for loops in which they share a network.

    Row `env * len(agents) + j` is agent `j` of environment `env`; `infos["env_id"]` and `infos["agent"]` (the index in
    `agents`) name the rows. `infos["alive"]` marks the rows that act next: other rows hold zeros (or the last
    observation, where an agent has just ended), and their actions are ignored. A wrapper that counts steps of rows
    (`RecordEpisodeStatistics`) also counts steps in which an agent waits for the others: its returns are right, its
    lengths are not, where agents end early.

    A row is terminated or truncated in the one step in which its agent ends. An environment is reset as a whole, once
    all of its agents have ended; until then the rows of agents that ended earlier wait, in every mode. In the step in
    which the last agent ends, `infos["final_obs"]` has the last observation of every row of that environment.
    `autoreset_mode` says what follows:

    - `"NextStep"`: That step returns the last observations. The next step ignores the actions of these rows and returns
      the first observations of the new episode, with reward 0 and no flags; all rows are alive again.
    - `"SameStep"`: That step returns the first observations of the new episode beside the rewards and flags of the old
      one; all rows are alive again.
    - `"Disabled"`: That step returns the last observations. Steps from then on return zeros for these rows, which are
      not alive, until `reset(options={"reset_mask": mask})` resets the environments in which the mask marks all living
      agents. An environment that was restarted after a failure waits for that reset too. Rows of agents that wait may
      be marked without effect. A mask that marks some living agents of an environment, but not all, raises ValueError.

    `reset(seed=)` takes an int, from which environment `i` has the seed `seed + i` (as the manager's), or a list with
    one seed a row: an environment has the first seed of its rows that is not None, so `[7, 8, 9, 10]` gives two
    environments of two agents the seeds 7 and 9. Where all its rows have None, its own generator goes on. A list with
    one seed for each environment is accepted as well.

    Threads: as its manager, one thread at a time.

    Args:
        envs: Its environments have `possible_agents`.
        agents: The order of the agents, by default that of `possible_agents`. All must be named, because nothing else
            would act for them, and their spaces must be equal.
        autoreset_mode: When an environment whose agents have all ended is reset; by default the manager's mode. Another
            mode holds for the manager and all its views. It must be given before the first reset, else ValueError.
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
        possible = envs.possible_agents
        if agents is not None and (isinstance(agents, str) or not isinstance(agents, Sequence)):
            raise TypeError(f"agents={agents!r} is not a list of agents. They are {list(possible)}.")
        self.agents = possible if agents is None else tuple(agents)
        if len(self.agents) != len(possible) or set(self.agents) != set(possible):
            raise ValueError(
                f"as_vector_env was asked for {list(self.agents)}. Rows must be all agents, each named once: "
                f"{list(possible)}. Give agents with other spaces to another policy through the manager itself."
            )
        self.single_observation_space = self._common_space("observation space", envs.single_observation_space)
        self.single_action_space = self._common_space("action space", envs.single_action_space)
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
        """The latest observations in DISABLED mode, for a reset that resets no environment."""
        if autoreset_mode is not None:  # last: a view that cannot be made changes nothing
            envs._use_autoreset_mode(autoreset(autoreset_mode))

    def _common_space(self, what: str, space_of: Any) -> Any:
        first = space_of(self.agents[0])
        for agent in self.agents[1:]:
            if space_of(agent) != first:
                raise ValueError(
                    f"The {what} of {agent!r} is {space_of(agent)}, that of {self.agents[0]!r} is {first}. Only agents "
                    "of equal spaces can be rows of one vector environment."
                )
        return first

    # ---- reset and step ---------------------------------------------------------------------------------------------

    @one_thread
    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        seed, env_ids = self._env_seeds(seed), None
        if isinstance(options, Mapping) and "reset_mask" in options:
            env_ids = self._envs_to_reset(options["reset_mask"])
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
            if not env_ids:  # only agents that wait for the others were marked
                return snapshot(self._latest), self._names_and_masks()
        observations, infos = self.envs.reset(seed=seed, options=options, env_ids=env_ids)
        return self._observations(observations), self._infos(infos)

    def _env_seeds(self, seed: Any) -> Any:
        """Return seeds of environments for seeds of rows: the first of each environment's rows that is not None."""
        if seed is None or isinstance(seed, int | np.integer | str) or not isinstance(seed, Iterable):
            return seed  # the manager accepts or refuses it
        given, count = list(seed), len(self.agents)
        if len(given) == self.envs.num_envs:
            return given
        if len(given) != self.num_envs:
            raise ValueError(
                f"{len(given)} seeds were given for {self.num_envs} rows ({count} agents in each of "
                f"{self.envs.num_envs} environments). Give one for each row, one for each environment, or an int."
            )
        by_env = np.reshape(np.array(seeds(given, self.num_envs), object), (-1, count)).tolist()
        return [next((one for one in rows if one is not None), None) for rows in by_env]

    def _envs_to_reset(self, mask: Any) -> list[int]:
        """Return the environments in which a reset mask marks all living agents and at least one row."""
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},), not {mask!r}.")
        marked = mask.reshape(self.envs.num_envs, -1)
        alive = np.zeros_like(marked)
        for place, agent in enumerate(self.agents):
            alive[:, place] = self.envs.alive.get(agent, False)
        over = (marked | ~alive).all(1) & marked.any(1)
        for env, place in np.argwhere(marked & alive & np.logical_not(over).reshape(-1, 1)):
            raise ValueError(
                f"options['reset_mask'] marks {self.agents[place]!r} of env {env} while other agents there play on. An "
                "environment is reset as a whole: mark them all."
            )
        return [int(env) for env in np.flatnonzero(over)]

    @one_thread
    def step(self, actions: Any) -> Batch:
        count, columns = len(self.agents), [self._action_column(leaf, actions) for leaf in self._action_leaves]
        batches = {
            agent: self._assemble_action([column[place::count] for column in columns])
            for place, agent in enumerate(self.agents)
        }
        observations, rewards, terminations, truncations, infos = self.envs.step(batches)
        return (
            self._observations(observations),
            self._interleaved([rewards[agent] for agent in self.agents]),
            self._interleaved([terminations[agent] for agent in self.agents]),
            self._interleaved([truncations[agent] for agent in self.agents]),
            self._infos(infos),
        )

    def _action_column(self, leaf: Any, actions: Any) -> Any:
        """Return a part of the actions. Its rows are counted here: the manager would name an agent's share of them."""
        try:
            part = leaf.of(actions)
            column = np.asarray(part) if leaf.fixed else list(part)
            num_rows = len(column)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{shortened(actions)} is no batch of actions: its part{leaf.name} is missing.") from error
        if num_rows != self.num_envs:
            raise ValueError(
                f"{num_rows} actions{leaf.name} were given for {self.num_envs} rows ({len(self.agents)} agents in each "
                f"of {self.envs.num_envs} environments): {shortened(part)}. Give one for each row."
            )
        return column

    # ---- from dicts by agent to rows --------------------------------------------------------------------------------

    def _observations(self, observations: ByAgent) -> Any:
        parts = [[leaf.of(observations[agent]) for agent in self.agents] for leaf in self._leaves]
        batch = self._assemble([self._interleaved(part) for part in parts])
        if self.envs.envs.autoreset_mode is AutoresetMode.DISABLED:
            self._latest = snapshot(batch)
        return batch

    def _interleaved(self, columns: Sequence[Any]) -> Any:
        """Join columns by agent: the rows of all agents of the first environment, then those of the next."""
        if not isinstance(columns[0], np.ndarray):
            return tuple(value for row in zip(*columns, strict=True) for value in row)
        return np.stack(columns, 1).reshape(self.num_envs, *columns[0].shape[1:])

    def _infos(self, infos: Any) -> dict[str, Any]:
        """Return the agents' infos as rows, with their masks, `alive`, `env_id` and `agent`."""
        count = len(self.agents)
        rows: dict[str, Any] = {}
        for place, agent in enumerate(self.agents):
            _put_infos(rows, infos[agent], place, count, self.num_envs)
        if any(FINAL_OBS in infos[agent] for agent in self.agents):
            finals = np.full(self.num_envs, None, object)  # Gymnasium's layout: an object for each row that has one
            for row in np.flatnonzero(rows[f"_{FINAL_OBS}"]).tolist():
                env, place = divmod(row, count)
                finals[row] = row_of(self.single_observation_space, infos[self.agents[place]][FINAL_OBS], env)
            rows[FINAL_OBS] = finals
        for key, values in infos.common.items():
            rows.setdefault(key, _repeated(values, count))
        return rows | self._names_and_masks()

    def _names_and_masks(self) -> dict[str, Any]:
        all_rows = np.ones(self.num_envs, np.bool_)
        alive = self._interleaved([self.envs.alive[agent] for agent in self.agents])
        infos: dict[str, Any] = {"alive": alive, "_alive": all_rows}
        for name, values in self._names.items():
            infos |= {name: values.copy(), f"_{name}": all_rows.copy()}
        return infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments: one result for each environment, not for each row."""
        return self.envs.call(name, *args, **kwargs)

    def render(self) -> tuple[Any, ...] | None:
        return self.envs.render()

    def close_extras(self, **kwargs: Any) -> None:
        self.envs.envs.close(**kwargs)


def _put_infos(rows: dict[str, Any], infos: dict[str, Any], place: int, count: int, num_rows: int) -> None:
    """Put one agent's infos into its rows."""
    for key, values in infos.items():
        if key == FINAL_OBS:
            continue
        if isinstance(values, dict):
            _put_infos(rows.setdefault(key, {}), values, place, count, num_rows)
        elif isinstance(values, np.ndarray):
            column = rows.get(key)
            if column is None:
                column = rows[key] = np.zeros((num_rows, *values.shape[1:]), values.dtype)
            elif column.dtype != values.dtype or column.shape[1:] != values.shape[1:]:
                column = rows[key] = _as_objects(column)
            column[place::count] = values if column.dtype != object else _as_objects(values)


def _repeated(values: Any, count: int) -> Any:
    """Repeat infos about environments in the rows of all their agents."""
    if isinstance(values, dict):
        return {key: _repeated(value, count) for key, value in values.items()}
    return np.repeat(values, count, 0)


def _as_objects(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    objects = np.full(len(values), None, object)
    for row, value in enumerate(values):
        objects[row] = value
    return objects


class SingleEnv(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Environment `env_id` of a manager as a `ParallelEnv`: each call is sent to its worker and waits for the answer.

    It is the manager's environment, not a copy. An episode that has ended stays ended until `reset`. Attributes that
    PettingZoo does not have are read from the environment: reading one runs no code but that of a property, and a
    method is returned as a callable that runs in the worker.

    Threads: as its manager, one thread at a time, over all of its environments.
    """

    def __init__(self, envs: MultiAgentEnvManager, env_id: int) -> None:
        if not 0 <= env_id < envs.num_envs:
            raise IndexError(f"There is no env {env_id}: the manager has {envs.num_envs}, counted from 0.")
        self._envs, self._env, self._guard = envs, env_id, envs._guard
        self.metadata, self.render_mode = envs.metadata, envs.render_mode
        self.agents: list[Any] = []
        self._spaces: dict[tuple[str, Any], Space[Any]] = {}
        if not envs.is_open:
            self.possible_agents = list(envs.possible_agents)

    def observation_space(self, agent: Any) -> Space[Any]:
        return self._space("observation_space", agent)

    def action_space(self, agent: Any) -> Space[Any]:
        return self._space("action_space", agent)

    def _space(self, which: str, agent: Any) -> Space[Any]:
        """Return a space of an agent. Without `possible_agents` it may differ between envs, so this env is asked."""
        if not self._envs.is_open:
            return cast("Space[Any]", getattr(self._envs, f"single_{which}")(agent))
        if (which, agent) not in self._spaces:
            (self._spaces[which, agent],) = self._envs.call(which, agent, env_ids=self._env)
        return self._spaces[which, agent]

    @one_thread
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        seeds: list[int | None] = [None] * self._envs.num_envs
        seeds[self._env] = seed
        self._envs.send_reset(self._env, seed=seeds, options=options)
        self.agents = []
        self._spaces.clear()
        observations, _, _, _, infos = self._receive()
        return observations, infos

    @one_thread
    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        batches: ByAgent = {}
        for agent, action in actions.items():
            if agent not in self.agents and agent not in self._envs.possible_agents:
                raise ValueError(f"An action was given for {agent!r}, which is no agent here: {self.agents} are alive.")
            if self._envs.is_open:
                batches[agent] = [action]
                continue
            space = self._envs.single_action_space(agent)
            parts = [(leaf.fixed, leaf.of(action)) for leaf in leaves(space)]
            batches[agent] = assembler(space)(
                [np.asarray(value)[None] if fixed else (value,) for fixed, value in parts]
            )
        self._envs.send(batches, self._env)
        return self._receive()

    def refresh(self) -> None:
        """Take over the agents of the environment, after a state has been set."""
        self.agents = [agent for agent, flags in self._envs.alive.items() if flags[self._env]]

    def _receive(self) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        results = self._envs.recv_env(self._env)
        present = [agent for agent, flags in results.present.items() if flags[0]]
        before, self.agents = self.agents, [agent for agent, flags in results.alive.items() if flags[0]]
        concerned = [agent for agent in results.present if agent in present or agent in before or agent in self.agents]
        added = (FINAL_INFO, FINAL_OBS, FINAL_REWARD)
        return (
            {
                agent: row_of(self._envs.single_observation_space(agent, self._env), results.observations[agent], 0)
                for agent in present
            },
            {agent: float(results.rewards[agent][0]) for agent in concerned},
            {agent: bool(results.terminations[agent][0]) for agent in concerned},
            {agent: bool(results.truncations[agent][0]) for agent in concerned},
            {
                agent: {key: value for key, value in info_of(results.infos[agent], 0).items() if key not in added}
                for agent in concerned
            },
        )

    def state(self) -> Any:
        (state,) = self._envs.call("state", env_ids=self._env)
        return state

    def render(self) -> Any:
        (picture,) = self._envs.call("render", env_ids=self._env)
        return picture

    def close(self) -> None:
        """Do nothing: the environment belongs to its manager."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "possible_agents":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._envs.envs._look_up(name, self._env)


class SingleTurnEnv(AECEnv[Any, Any, Any]):  # type: ignore[misc]  # as SingleEnv
    """Environment `env_id` of a manager with `turns="sequential"` as an `AECEnv`, for libraries that play turn by turn.

    Each reset and step is one call of the worker, which returns the new state of the game and the observation of the
    next agent. It is the manager's environment, not a copy: before the manager itself steps it again, it must be reset
    there. An error of the environment is an `EnvError`, a dead worker `WorkerDied`: calls are not repeated after a
    restart.
    """

    def __init__(self, envs: MultiAgentEnvManager, env_id: int) -> None:
        self._view = SingleEnv(envs, env_id)
        self._envs, self._env = envs, env_id
        self.metadata, self.render_mode = envs.metadata, envs.render_mode
        self.observation_space, self.action_space = self._view.observation_space, self._view.action_space
        self.agents: list[Any] = []
        if not envs.is_open:
            self.possible_agents = list(envs.possible_agents)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._play(_reset_game, {"seed": seed, "options": options})

    def step(self, action: Any) -> None:
        self._play(_take_turn, action)

    def refresh(self) -> None:
        """Take over the state of the game, after a state has been set."""
        if hasattr(self, "agent_selection"):  # it has been reset
            self._play(_game_of)

    def _play(self, function: Any, *arguments: Any) -> None:
        seconds = self._envs.envs.reset_timeout if function is _reset_game else self._envs.envs.step_timeout
        (game,) = self._envs.apply(function, *arguments, env_ids=self._env, timeout=seconds)
        self._seen = game.pop("observation")
        self.__dict__.update(game)

    def observe(self, agent: Any) -> Any:
        if self.agents and agent == self.agent_selection:
            return self._seen
        (observation,) = self._envs.apply(_observe, agent, env_ids=self._env)
        return observation

    def state(self) -> Any:
        return self._view.state()

    def render(self) -> Any:
        return self._view.render()

    def close(self) -> None:
        """Do nothing: the environment belongs to its manager."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("possible_agents", *_GAME):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._envs.envs._look_up(name, self._env)


_GAME = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos", "_cumulative_rewards")
"""Attributes of an AEC env that change with each turn."""


def _reset_game(env: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    env.reset(**{name: value for name, value in arguments.items() if value is not None})
    return _game_of(env)


def _take_turn(env: Any, action: Any) -> dict[str, Any]:
    env.step(action)
    return _game_of(env)


def _observe(env: Any, agent: Any) -> Any:
    return env.observe(agent)


def _game_of(env: Any) -> dict[str, Any]:
    """Return the attributes of a game, and the observation of the agent whose turn it is."""
    game = {name: getattr(env, name) for name in _GAME}
    return {**game, "observation": env.observe(env.agent_selection) if env.agents else None}
