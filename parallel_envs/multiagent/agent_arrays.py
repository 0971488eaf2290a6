"""In the caller's process: splits what the envs return by agent, and joins the actions of all agents.

`AgentArrays` turns results of `ParallelEnvManager` into `AgentResults`. When an episode ends, it adds `final_obs`,
`final_reward` and `final_info` to the infos of each agent: the last results of that agent, which may have ended many
steps earlier. It also holds the flags `alive` and `present` of the latest results of each env.

`FixedAgents` is for envs with `possible_agents`: it splits arrays into columns and joins actions into arrays. A step
makes a few views for each agent, and nothing else agent by agent. `OpenAgents`
is for envs without: it makes batches for the agents that are there. Its input is a tuple for each env, of
`OpenJointEnv`: observations, rewards, terminations, truncations and infos by agent, the living agents, and the
spaces of agents that are new or have new ones.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.multiagent.agent_layout import (
    AGENTS,
    ALIVE,
    COMMON,
    FLAGS,
    GROUPS,
    PRESENT,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Agent,
    AgentLayout,
    Flags,
    JointObservations,
    Kind,
    group_key,
    shortened,
)
from parallel_envs.vector.env_errors import env_names
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.shared_arrays import ACTION_DTYPES, Leaf, assembler, leaves, snapshot
from parallel_envs.vector.step_loop import RESTARTED

FINAL_OBS, FINAL_REWARD, FINAL_INFO = "final_obs", "final_reward", "final_info"

FinalResult = tuple[Any, float, dict[str, Any]]
"""The last observation of an agent (None if it had none at its end), its last reward and its last info."""

_JOINT_KEYS = frozenset((AGENTS, f"_{AGENTS}", COMMON, f"_{COMMON}"))
_NUMBERS = frozenset(ACTION_DTYPES)


class Infos(dict[Agent, dict[str, Any]]):
    """Infos by agent, each in Gymnasium's vector layout. `common` holds the infos about environments as a whole.

    Threads: the dict belongs to the caller. Nothing changes it after it has been returned.
    """

    def __init__(self, infos: Mapping[Agent, dict[str, Any]], common: dict[str, Any]) -> None:
        super().__init__(infos)
        self.common = common


@dataclass(slots=True)
class AgentResults:
    """Results of some envs by agent. Every array has one row for each env.

    Flags of any kind are `read_only`. The dicts `present` and `alive` are shared with other results; the other dicts
    belong to this object alone.
    """

    observations: dict[Agent, Any]
    rewards: dict[Agent, npt.NDArray[np.float64]]
    terminations: dict[Agent, Flags]
    truncations: dict[Agent, Flags]
    infos: dict[Agent, dict[str, Any]]
    present: dict[Agent, Flags]
    alive: dict[Agent, Flags]
    common: dict[str, Any]
    some_agent_ended: bool
    num_rows: int


def read_only(flags: Any) -> Flags:
    """Return flags as an array that cannot be written to, so that several results may share it."""
    array: Flags = np.asarray(flags, np.bool_)
    array.flags.writeable = False
    return array


def batch_of_rows(space: Space[Any], values: Mapping[int, Any], num_rows: int, base: Any = None) -> Any:
    """Return a new batch with these values at their rows. Its other rows are those of `base`, or else zeros or None."""
    columns: list[Any] = []
    for leaf in leaves(space):
        column: Any = np.zeros((num_rows, *leaf.shape), leaf.dtype) if leaf.fixed else [None] * num_rows
        if base is not None:
            column[:] = leaf.of(base)
        for row, value in values.items():
            column[row] = leaf.of(value)
        columns.append(column if leaf.fixed else tuple(column))
    return assembler(space)(columns)


def row_of(space: Space[Any], batch: Any, row: int) -> Any:
    if isinstance(batch, list):
        return batch[row]
    return assembler(space)([leaf.of(batch)[row] for leaf in leaves(space)])


def info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """Return one row of a batch of infos. Statistics of Gymnasium's wrappers have one mask for all their entries."""
    own: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[row]:
            continue
        if isinstance(values, dict):
            has_masks = any(f"_{name}" in values for name in values)
            own[key] = info_of(values, row) if has_masks else {name: column[row] for name, column in values.items()}
        else:  # a column of bool holds Python's own bool: NumPy's are kept as objects
            own[key] = bool(values[row]) if values.dtype == np.bool_ else values[row]
    return own


class AgentArrays(abc.ABC):
    """Base of both kinds of agents: the flags of the latest results, and the final results of each agent, which are
    kept until the episode of its env ends. The arrays of `alive` and `present` are never written to.
    """

    agents: tuple[Agent, ...]
    """All agents that are known."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.alive: dict[Agent, Flags] = {}
        self.present: dict[Agent, Flags] = {}
        self._final_results: dict[int, dict[Agent, FinalResult]] = {}
        """By env and agent."""

    # ---- what the two kinds do differently --------------------------------------------------------------------------

    @abc.abstractmethod
    def space(self, kind: Kind, agent: Agent, env: int | None = None) -> Space[Any]:
        """Return a space of an agent, as this env announced it last. None: the latest of any env."""

    @abc.abstractmethod
    def spaces_by_row(self, kind: Kind, agent: Agent) -> tuple[Space[Any], ...] | None:
        """Return an agent's spaces in all envs; None if they are equal. An env without the agent has the latest one."""

    @abc.abstractmethod
    def split(self, observations: Any, infos: Mapping[str, Any], envs: Any, others: Any) -> AgentResults:
        """Split results by agent. `envs` are the numbers of the rows. The agents in the rows of the results `others`
        have entries in these results too.
        """

    @abc.abstractmethod
    def batch_of_rows(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        """Return a batch of an agent's observations that holds each value at its row."""

    @abc.abstractmethod
    def joint_batch(self, values: Mapping[int, Any], num_rows: int, base: Any = None) -> Any:
        """Return a batch of the joint observations of envs: `values` at their rows, and the other rows of `base`."""

    @abc.abstractmethod
    def join_actions(self, actions: Mapping[Agent, Any], alive: Mapping[Agent, Flags], num_rows: int) -> Any:
        """Join the actions of all agents into a value of the action space."""

    # ---- resets and steps -------------------------------------------------------------------------------------------

    def forget(self, envs: Iterable[int]) -> None:
        """Drop the final results of episodes in these envs, which were broken off or lost."""
        for env in envs:
            self._final_results.pop(int(env), None)

    def results_of_ended(self, env: int) -> dict[Agent, FinalResult]:
        """Return the final results of the agents of an env that have ended before the others."""
        return dict(snapshot(self._final_results.get(env, {})))

    def restore_ended(self, env: int, results: Mapping[Agent, FinalResult]) -> None:
        """Replace the final results of an env by the results that a state holds."""
        self._final_results[env] = snapshot(dict(results))

    def of_all(self, observations: Any, infos: Mapping[str, Any], stale: Collection[int] = ()) -> AgentResults:
        """Split results of all envs that are no steps: of a reset, or after an error, when some envs have gone on.
        Infos in the rows `stale` are left out: these envs were not reset.
        """
        results = self.split(observations, infos, range(self.num_envs), ())
        self.alive, self.present = results.alive, results.present
        return results

    def of_step(
        self, envs: npt.NDArray[np.intp] | None, observations: Any, ended: Flags, infos: Any
    ) -> tuple[AgentResults, AgentResults]:
        """Split the results of steps of these envs (None: all).

        Returns the results of the steps themselves, and the results to show, which differ where an env was reset since.
        """
        num_rows, finals = len(ended), list[int]()
        numbers = range(num_rows) if envs is None else envs
        if FINAL_OBS not in infos:
            last = shown = self.split(observations, infos, numbers, ())
        else:  # SAME_STEP: in the rows `finals` rewards and ends are those of the last step, not of the reset after it
            finals = np.flatnonzero(infos[f"_{FINAL_OBS}"]).tolist()
            after = {key: value for key, value in infos.items() if key.removeprefix("_") not in (FINAL_OBS, FINAL_INFO)}
            before = self.joint_batch({row: infos[FINAL_OBS][row] for row in finals}, num_rows, observations)
            last = self.split(before, infos.get(FINAL_INFO, {}), numbers, observations)
            shown = self.split(observations, after, numbers, before)
            if "new_agents" in last.common:
                shown.common["new_agents"] = last.common.pop("new_agents")
            if last.common:
                shown.common |= {FINAL_INFO: last.common, f"_{FINAL_INFO}": infos[f"_{FINAL_INFO}"]}
        if RESTARTED in shown.common or last.some_agent_ended or np.count_nonzero(ended):
            self._end_agents(last, shown, np.asarray(numbers), finals, ended)
        if envs is None:
            self.alive, self.present = shown.alive, shown.present
            return last, shown
        self.alive, self.present = self.alive.copy(), self.present.copy()  # results share these dicts
        for flags, news in ((self.alive, shown.alive), (self.present, shown.present)):
            for agent in {**flags, **news}:
                mask = flags[agent].copy() if agent in flags else np.zeros(self.num_envs, np.bool_)
                mask[envs] = news.get(agent, False)
                flags[agent] = read_only(mask)
        gone = [agent for agent in self.alive if agent not in shown.alive]
        for agent in gone:
            if not self.alive[agent].any() and not self.present[agent].any():  # the agent has left every env
                del self.alive[agent], self.present[agent]
        return last, shown

    def _end_agents(
        self, last: AgentResults, shown: AgentResults, envs: npt.NDArray[np.intp], finals: Sequence[int], ended: Flags
    ) -> None:
        """Record the final results of agents that ended, and add them to the infos in the rows whose episodes are over.

        An episode that was lost with its worker has no final results: its living agents are truncated.
        """
        num_rows = len(ended)
        lost = np.asarray(shown.common.get(RESTARTED, np.zeros(num_rows)), np.bool_)
        if lost.any():
            self.forget(envs[lost])
            for agent, before in self.alive.items():
                cut = lost & before[envs]
                if agent not in shown.truncations and cut.any():  # the new episode does not have this agent
                    for results in (shown, last):
                        results.observations[agent] = self.batch_of_rows(agent, {}, num_rows)
                        results.rewards[agent], results.infos[agent] = np.zeros(num_rows), {}
                        for flags in (results.terminations, results.truncations, results.present, results.alive):
                            flags[agent] = read_only(np.zeros(num_rows))
                if agent in last.truncations:
                    last.truncations[agent] = read_only(last.truncations[agent] | cut)
            # the episode is over: where `last` is the result that is shown, no agent acts next
            last.alive = {agent: read_only(alive & ~lost) for agent, alive in last.alive.items()}

        def final_results(agent: Agent, where: Flags) -> Iterator[tuple[int, FinalResult]]:
            """Yield the rows of `where` in which the agent ended, and its results there."""
            if agent in last.terminations:
                for row in np.flatnonzero((last.terminations[agent] | last.truncations[agent]) & where).tolist():
                    observation = None
                    if last.present[agent][row]:
                        observation = snapshot(row_of(self.space("observation", agent), last.observations[agent], row))
                    infos = (last if row in finals else shown).infos  # elsewhere `last` has the infos of the last steps
                    info = snapshot(info_of(infos.get(agent, {}), row))
                    yield row, (observation, float(last.rewards[agent][row]), info)

        going_on, over = ~ended & ~lost, ended & ~lost
        if last.some_agent_ended and going_on.any():
            for agent in last.terminations:
                for row, result in final_results(agent, going_on):
                    self._final_results.setdefault(int(envs[row]), {})[agent] = result
        earlier: dict[Agent, dict[int, FinalResult]] = {}
        for row in np.flatnonzero(over).tolist():
            for agent, result in self._final_results.pop(int(envs[row]), {}).items():
                earlier.setdefault(agent, {})[row] = result
        for agent in {**last.terminations, **earlier} if over.any() else ():
            results_of = earlier.get(agent, {}) | dict(final_results(agent, over))
            if not results_of:
                continue
            mask, seen, rewards = np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_), np.zeros(num_rows)
            infos: dict[str, Any] = {}
            for row, (observation, reward, info) in results_of.items():
                mask[row], seen[row], rewards[row] = True, observation is not None, reward
                add_info(infos, info, row, num_rows)
            observations = {row: result[0] for row, result in results_of.items() if result[0] is not None}
            own = shown.infos.setdefault(agent, {})
            own[FINAL_OBS], own[f"_{FINAL_OBS}"] = self.batch_of_rows(agent, observations, num_rows), seen
            own[FINAL_REWARD], own[f"_{FINAL_REWARD}"] = rewards, mask
            own[FINAL_INFO], own[f"_{FINAL_INFO}"] = infos, mask.copy()


class FixedAgents(AgentArrays):
    """Agents of envs with `possible_agents`, whose columns are views: the caller copies what users may keep."""

    def __init__(self, layout: AgentLayout, num_envs: int) -> None:
        super().__init__(num_envs)
        self.agents = layout.agents
        self._joint_space = JointObservations(layout)
        self._spaces: dict[Kind, dict[Agent, Space[Any]]] = {
            "observation": dict(zip(layout.agents, layout.observation_spaces, strict=True)),
            "action": dict(zip(layout.agents, layout.action_spaces, strict=True)),
        }
        self._groups, self._action_groups = (
            [
                (group_key(n), tuple(layout.agents[i] for i in one.indices), leaves(one.space), assembler(one.space))
                for n, one in enumerate(groups)
            ]
            for groups in (layout.observation_groups, layout.action_groups)
        )
        self._has_one_action_array = layout.has_one_action_array
        self._flags: tuple[bytes, bool, list[dict[Agent, Flags]]] = b"", False, [{}, {}, {}, {}]
        """Joint flags, whether an agent has ended, and terminations, truncations, present and alive by agent.

        They are kept from step to step: they seldom change, and splitting costs much with many agents.
        """

    def space(self, kind: Kind, agent: Agent, env: int | None = None) -> Space[Any]:
        if agent not in self._spaces[kind]:
            raise KeyError(f"{agent!r} is no agent of these environments. They have {list(self.agents)}.")
        return self._spaces[kind][agent]

    def spaces_by_row(self, kind: Kind, agent: Agent) -> None:
        return None

    def split(self, observations: Any, infos: Mapping[str, Any], envs: Any, others: Any) -> AgentResults:
        joint_flags = observations[FLAGS]
        source = joint_flags.tobytes()
        if source != self._flags[0]:
            some_agent_ended = bool((joint_flags & (TERMINATED | TRUNCATED)).any())
            bits = (TERMINATED, TRUNCATED, PRESENT, ALIVE)
            self._flags = source, some_agent_ended, [self._columns(read_only(joint_flags & one != 0).T) for one in bits]
        _, some_agent_ended, (terminations, truncations, present, alive) = self._flags
        by_agent: dict[Agent, Any] = {}
        for key, agents, parts, assemble in self._groups:
            group = observations[GROUPS][key]
            if isinstance(group, np.ndarray):
                by_agent.update(zip(agents, group.swapaxes(0, 1), strict=False))
                continue
            columns = [(leaf.fixed, leaf.of(group)) for leaf in parts]
            for row, agent in enumerate(agents):
                by_agent[agent] = assemble([column[:, row] if fixed else column[row] for fixed, column in columns])
        if len(self._groups) > 1:
            by_agent = {agent: by_agent[agent] for agent in self.agents}
        if infos:
            by_index = infos.get(AGENTS, {})
            own_infos = {agent: by_index.get(str(index), {}) for index, agent in enumerate(self.agents)}
            common = {key: value for key, value in infos.items() if key not in _JOINT_KEYS}
            common |= infos.get(COMMON, {})
        else:
            own_infos, common = {agent: {} for agent in self.agents}, {}
        return AgentResults(
            by_agent,
            self._columns(observations[REWARDS].T.copy()),  # a copy: with copy=False rewards lie in shared memory
            terminations.copy(),
            truncations.copy(),
            own_infos,
            present,
            alive,
            common,
            some_agent_ended,
            len(joint_flags),
        )

    def _columns(self, columns: Iterable[npt.NDArray[Any]]) -> dict[Agent, npt.NDArray[Any]]:
        return dict(zip(self.agents, columns, strict=False))  # strict=True would take a seventh more time

    def batch_of_rows(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        return batch_of_rows(self._spaces["observation"][agent], values, num_rows)

    def joint_batch(self, values: Mapping[int, Any], num_rows: int, base: Any = None) -> Any:
        return batch_of_rows(self._joint_space, values, num_rows, base)

    def join_actions(self, actions: Mapping[Agent, Any], alive: Mapping[Agent, Flags], num_rows: int) -> Any:
        """Missing actions become zeros."""
        given, joined = tuple(actions), {}
        for key, agents, parts, assemble in self._action_groups:
            own = list(actions.values()) if given == agents else list(map(actions.get, agents))
            joined[key] = assemble([_action_column(leaf, own, num_rows, agents) for leaf in parts])
        return joined[key] if self._has_one_action_array else {GROUPS: joined}


def _action_column(leaf: Leaf, actions: Sequence[Any], num_rows: int, agents: Sequence[Agent]) -> Any:
    """Return one part of the actions of a group, with an axis for the agents; for parts without a shape, a tuple."""
    values, shape = list(actions), (num_rows, *leaf.shape)
    for index, action in enumerate(values) if leaf.path else ():
        try:
            values[index] = None if action is None else leaf.of(action)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"The actions of {agents[index]!r} lack the part{leaf.name} of its action space: {shortened(action)}."
            ) from error
    if not leaf.fixed:
        for value, agent in zip(values, agents, strict=True):
            is_sequence = (
                hasattr(value, "__len__") and hasattr(value, "__iter__") and not isinstance(value, str | bytes)
            )
            if value is not None and (not is_sequence or len(value) != num_rows):
                raise ValueError(
                    f"Actions{leaf.name} were given for {agent!r} in {num_rows} environments that are no sequence of "
                    f"{num_rows} items: {shortened(value)}."
                )
        return tuple([None] * num_rows if value is None else list(value) for value in values)
    column = None
    try:  # the usual case: every agent has an array of the right shape
        if set(map(len, values)) == {num_rows}:
            together = np.concatenate(values)  # raises if shapes differ; if all are wrong alike, the next line sees it
            if together.shape[1:] == leaf.shape:
                column = together.reshape(len(values), *shape).swapaxes(0, 1)
    except (TypeError, ValueError):
        pass
    if column is None:
        arrays: dict[int, npt.NDArray[Any]] = {}
        for index, (value, agent) in enumerate(zip(values, agents, strict=True)):
            if value is None:
                continue
            try:
                arrays[index] = np.asarray(value)
            except (TypeError, ValueError) as error:
                text = f"The actions{leaf.name} of {agent!r} are not an array: {shortened(value)} ({error})."
                raise ValueError(text) from error
            if arrays[index].shape != shape:
                raise ValueError(
                    f"Actions{leaf.name} of shape {arrays[index].shape} were given for {agent!r} in {num_rows} "
                    f"environments, whose actions have shape {leaf.shape}. Give an array of shape {shape}."
                )
        dtype = np.result_type(*(array.dtype for array in arrays.values())) if arrays else leaf.dtype
        column = np.zeros((num_rows, len(values), *leaf.shape), dtype)
        for index, array in arrays.items():
            column[:, index] = array
    if column.dtype in _NUMBERS:
        return column
    if (native := column.dtype.newbyteorder("=")) in _NUMBERS:
        return column.astype(native)
    for value, agent in zip(values, agents, strict=True):
        if value is not None and (dtype := np.asarray(value).dtype.newbyteorder("=")) not in _NUMBERS:
            raise TypeError(
                f"Actions{leaf.name} of dtype {dtype} were given for {agent!r}: {shortened(value)}. Give numbers, such "
                f"as {leaf.dtype}, in every row. Where the agent is not alive, any number will do."
            )
    raise TypeError(f"The actions{leaf.name} of {list(agents)} have no dtype in common. Give {leaf.dtype} to all.")


# ---- envs without possible_agents -----------------------------------------------------------------------------------

Spaces = tuple[Space[Any], Space[Any]]
"""Observation space and action space."""

_POSITION: dict[Kind, int] = {"observation": 0, "action": 1}
_NO_RESULTS: tuple[Any, ...] = ({}, {}, {}, {}, {}, (), {})


class OpenAgents(AgentArrays):
    """Agents that come and go. An agent whose spaces differ between envs has lists with one item per row."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self._spaces: dict[Agent, Spaces] = {}
        self._spaces_in: dict[Agent, dict[int, Spaces]] = {}
        """By agent and env the spaces announced last."""
        self._ragged: set[Agent] = set()
        """Agents whose spaces have differed once: their observations are lists."""
        self._ragged_actions: set[Agent] = set()
        """Agents whose action spaces differ between envs now."""

    @property
    def agents(self) -> tuple[Agent, ...]:  # type: ignore[override]  # read-only here
        """All agents seen so far."""
        return tuple(self._spaces)

    def space(self, kind: Kind, agent: Agent, env: int | None = None) -> Space[Any]:
        if agent not in self._spaces:
            raise KeyError(f"{agent!r} has not been met yet. So far there were {list(self._spaces)}.")
        known = self._spaces_in[agent]
        if env is not None and env not in known:
            raise KeyError(f"{agent!r} has not been met in env {env} yet. So far it was in {env_names([*known])}.")
        return (self._spaces[agent] if env is None else known[env])[_POSITION[kind]]

    def spaces_by_row(self, kind: Kind, agent: Agent) -> tuple[Space[Any], ...] | None:
        default = self.space(kind, agent)
        if agent not in (self._ragged_actions if kind == "action" else self._ragged):
            return None
        known, position = self._spaces_in[agent], _POSITION[kind]
        return tuple(known[env][position] if env in known else default for env in range(self.num_envs))

    def of_all(self, observations: Any, infos: Mapping[str, Any], stale: Collection[int] = ()) -> AgentResults:
        rows = [(*one[:4], {}, *one[5:]) if one and row in stale else one for row, one in enumerate(observations)]
        return super().of_all(rows, infos)

    def split(self, observations: Any, infos: Mapping[str, Any], envs: Any, others: Any) -> AgentResults:
        rows = [row or _NO_RESULTS for row in observations]  # None: the env has not been reset yet
        earlier = [row or _NO_RESULTS for row in others]
        num_rows, new = len(rows), list[Agent]()
        for told in (earlier, rows):
            for env, row in zip(envs, told, strict=False):  # there may be no rows at all
                for agent, spaces in row[6].items():
                    if agent not in self._spaces:
                        new.append(agent)
                        self._spaces[agent] = spaces
                    elif self._spaces[agent] != spaces:
                        self._ragged.add(agent)
                        self._spaces[agent] = spaces
                    latest, known = self._spaces[agent], self._spaces_in.setdefault(agent, {})
                    known[int(env)] = latest
                    if agent in self._ragged and any(one[1] != latest[1] for one in known.values()):
                        self._ragged_actions.add(agent)
                    else:
                        self._ragged_actions.discard(agent)
        agents: dict[Agent, None] = {}
        for row in (*earlier, *rows):
            ended = (agent for ends in row[2:4] for agent, flag in ends.items() if flag)
            agents.update(dict.fromkeys(agent for agent in (*row[0], *row[5], *ended) if agent in self._spaces))
        results = AgentResults({}, {}, {}, {}, {agent: {} for agent in agents}, {}, {}, dict(infos), False, num_rows)
        if new:
            results.common["new_agents"] = new
        for agent in agents:
            seen = {number: row[0][agent] for number, row in enumerate(rows) if agent in row[0]}
            results.observations[agent] = self.batch_of_rows(agent, seen, num_rows)
            results.rewards[agent] = np.array([float(row[1].get(agent, 0.0)) for row in rows])
            results.terminations[agent] = read_only([bool(row[2].get(agent)) for row in rows])
            results.truncations[agent] = read_only([bool(row[3].get(agent)) for row in rows])
            results.present[agent] = read_only([agent in row[0] for row in rows])
            results.alive[agent] = read_only([agent in row[5] for row in rows])
        for number, row in enumerate(rows):
            for agent, info in row[4].items():
                if agent in agents:
                    add_info(results.infos[agent], info, number, num_rows)
                else:  # a key that is no agent
                    add_info(results.common, {str(agent): info}, number, num_rows)
        results.some_agent_ended = any(map(np.any, (*results.terminations.values(), *results.truncations.values())))
        return results

    def batch_of_rows(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        if agent in self._ragged:
            return [values.get(row) for row in range(num_rows)]
        return batch_of_rows(self._spaces[agent][0], values, num_rows)

    def joint_batch(self, values: Mapping[int, Any], num_rows: int, base: Any = None) -> Any:
        return [values[row] if row in values else base[row] for row in range(num_rows)]

    def join_actions(self, actions: Mapping[Agent, Any], alive: Mapping[Agent, Flags], num_rows: int) -> Any:
        """Return for each row the actions of the agents that are alive in it.

        A list of actions has one item per row. Where action spaces differ between envs, any batch is read that way.
        """
        joined: list[dict[Agent, Any]] = [{} for _ in range(num_rows)]
        for agent, batch in actions.items():
            rows = np.flatnonzero(alive[agent]).tolist() if agent in alive and batch is not None else []
            if not rows:
                continue
            space = self._spaces[agent][1]
            by_row = isinstance(batch, list) or agent in self._ragged_actions
            parts = (Leaf((), None),) if by_row else leaves(space)
            for leaf in parts:
                try:
                    given: Any = len(leaf.of(batch))
                except (KeyError, IndexError, TypeError):
                    given = "No batch of"
                if given != num_rows:
                    raise ValueError(
                        f"{given} actions{leaf.name} were given for {agent!r} in {num_rows} environments. Give one for "
                        "each; those where it is not alive are ignored."
                    )
            is_single, assemble = len(parts) == 1 and not parts[0].path, assembler(space)
            for row in rows:
                joined[row][agent] = batch[row] if is_single else assemble([leaf.of(batch)[row] for leaf in parts])
        return joined
