"""`MultiAgentEnvManager`: PettingZoo environments in worker processes, as arrays by agent."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Space, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parallel_envs.choices import Autoreset, Turns
from parallel_envs.errors import EnvError, WorkerDied
from parallel_envs.multiagent.attendance import Attendance
from parallel_envs.multiagent.beneath import ManagerBeneath
from parallel_envs.multiagent.fixed_rows import FixedRows
from parallel_envs.multiagent.joint import Flags, Joint
from parallel_envs.multiagent.loading import TaskOfJoint, joint_factories
from parallel_envs.multiagent.open_rows import OpenRows
from parallel_envs.multiagent.outcomes import Infos, Outcomes
from parallel_envs.multiagent.passed_on import PassedOn
from parallel_envs.multiagent.roster import Agent, JointObservations, Kind
from parallel_envs.spelling import unknown_keyword
from parallel_envs.threads import one_thread
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import Options, reset_arguments, some_envs
from parallel_envs.vector.checks import env_names, optional_wait
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.manager import CommonOptions

Named = dict[Agent, Any]
Step = tuple[Named, Named, Named, Named, Infos]


class MultiAgentEnvManager(PassedOn):
    """Many PettingZoo environments at once, in worker processes.

        envs = MultiAgentEnvManager("mpe2/simple_spread-v3", num_envs=8, num_workers=2)
        observations, infos = envs.reset(seed=7)                    # observations[agent]: (8, ...)
        for _ in range(1000):
            actions = {agent: envs.action_space(agent).sample() for agent in envs.agents_now}
            observations, rewards, terminations, truncations, infos = envs.step(actions)

    Every dict is keyed by agent, every array has one row for each environment. `alive[agent]` says in which rows the
    agent is still in play, `present[agent]` in which its observation is one: other rows hold zeros. Where it is both,
    it acts in the next step; actions in all other rows are ignored. In the step that ends an agent its last observation
    is present and it is not alive. Flags, `terminations` and `truncations` among them, cannot be written to: copy what
    is to be altered. `agents_now` names those who are alive in some environment: as environments are reset when their
    episodes end, somebody always is where episodes differ in length. So count steps, as above.

    An environment's episode ends when no agent is left; it is then reset as `autoreset_mode` says. There the infos of
    each agent hold `final_obs`, `final_reward` and `final_info`, what it was last told at its own end, with masks.

    Agents of environments without `possible_agents` come and go: the dicts then hold those that are there in some
    environment, `infos.common["new_agents"]` names those not met before, and an agent whose spaces differ between
    environments has a list with one item a row in the place of an array: its `observation_space` and `action_space`
    are then `Tuple`s with one space a row, and `single_action_space(agent, env_id)` is that of one environment.

    Threads: one thread at a time, its views (`as_vector_env`, `single_env`) included. A call from a second thread while
    a first one is inside a method raises `ConcurrentCall` and does nothing. `close` may be called by any thread at any
    time: a call that waits for environments then raises `ClosedError`.

    Args:
        env_fns: Callables that make PettingZoo environments (parallel or AEC), one of its own each; or an id, such as
            `"sisl/pursuit-v5"` or, with the module that registers it, `"my_package:my_env-v0"`; or the path of a
            module, such as `"mpe2.simple_spread_v3"`. Ids of packages that register nothing mean modules of theirs:
            `"mpe2/simple_spread-v3"`. What the caller has registered with PettingZoo is known in the workers.
        num_envs: With an id or a path: how many environments to make.
        env_kwargs: With an id or a path: keyword arguments for what makes the environment.
        turns: How AEC environments are played. `"simultaneous"`: all observe, then all act (PettingZoo's own
            conversion, for those that are parallelizable). `"sequential"`: agents act one after another on the world as
            it changes; a step is one turn in each environment. All who are in play are alive; only the agent to move is
            present, and only its action is used.
        **options: As for `ParallelEnvManager`: `num_workers`, `backend`, `context`, `copy`, `shared_memory`,
            `autoreset_mode`, `on_failure`, `step_timeout`, `task_source` and so on.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | str,
        *,
        num_envs: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        turns: Turns = "simultaneous",
        **options: Unpack[CommonOptions],
    ) -> None:
        _check_options(options)
        factories = joint_factories(env_fns, num_envs, turns, env_kwargs)
        self.turns = turns
        if callable(setter := options.get("task_setter")):
            options["task_setter"] = TaskOfJoint(setter)
        self.envs = ManagerBeneath(factories, **options)
        """The manager underneath: each environment with all its agents is one of its environments."""
        self._guard = self.envs._guard
        space = self.envs.single_observation_space
        self._rows = FixedRows(space.roster) if isinstance(space, JointObservations) else OpenRows()
        self.num_envs, self.num_workers = self.envs.num_envs, self.envs.num_workers
        self.metadata, self.render_mode = self.envs.metadata, self.envs.render_mode
        self._attendance = Attendance(self.num_envs)
        self._outcomes = Outcomes(self._rows, self._attendance)
        self._resetting: list[int] = []
        self._begun = False
        self._is_behind = False
        """Whether an error was raised while environments were at work whose answers have not been noted since."""
        self._batched: dict[tuple[str, Agent], tuple[tuple[Space[Any], ...], Space[Any]]] = {}

    # ---- agents and spaces ------------------------------------------------------------------------------------------

    @property
    def possible_agents(self) -> tuple[Agent, ...]:
        """All agents that may come; of environments that do not say, all that have come so far."""
        return self._rows.agents

    @property
    def is_open(self) -> bool:
        """Whether the environments do not say beforehand which agents may come."""
        return isinstance(self._rows, OpenRows)

    @property
    def alive(self) -> dict[Agent, Flags]:
        """By agent, in which environments it is still in play. Not to be written to.

        With `turns="simultaneous"` it acts there next. With `turns="sequential"` players who wait for their turn are
        alive too: `alive[agent] & present[agent]` says where it is to move.
        """
        return self._attendance.alive

    @property
    def present(self) -> dict[Agent, Flags]:
        """By agent, in which environments its observation is one: it is to act next, or has just ended (and is not
        alive). With `turns="sequential"`, only the agent to move and those who have just ended. Not to be written to.
        """
        return self._attendance.present

    @property
    def agents_now(self) -> tuple[Agent, ...]:
        """The agents that are alive in some environment: actions are to be given for all of them.

        Where episodes differ in length, and are reset as they end, somebody always is: a loop `while envs.agents_now`
        need not end. With `turns="sequential"` all players are among them, and only the moves of those who are
        `present` are used (and must be given).
        """
        return tuple(agent for agent, there in self.alive.items() if there.any())

    def agents(self, env_id: int) -> list[Agent]:
        """The agents that are alive in an environment, in its own order."""
        (agents,) = self.envs.get_attr("agents", env_ids=env_id)
        return list(agents)

    def single_observation_space(self, agent: Agent, env_id: int | None = None) -> Space[Any]:
        """What an agent observes in one environment: in `env_id`, which only matters where environments differ."""
        return self._single("observation", agent, env_id)

    def single_action_space(self, agent: Agent, env_id: int | None = None) -> Space[Any]:
        """What an agent does in one environment: in `env_id`, which only matters where environments differ."""
        return self._single("action", agent, env_id)

    def observation_space(self, agent: Agent) -> Space[Any]:
        """What an agent observes in all environments: a `Tuple` with one space a row where they differ."""
        return self._batch_of("observation", agent)

    def action_space(self, agent: Agent) -> Space[Any]:
        """What an agent does in all environments: a `Tuple` with one space a row where they differ. What is sampled
        from it may be given to `step`.
        """
        return self._batch_of("action", agent)

    def _single(self, what: Kind, agent: Agent, env_id: int | None) -> Space[Any]:
        if env_id is not None:
            (env,) = some_envs(env_id, self.num_envs)
            return self._rows.space_in(what, agent, env)
        spaces = self._rows.spaces_by_row(what, agent, self.num_envs)
        if spaces is not None and any(space != spaces[0] for space in spaces):
            raise ValueError(
                f"{agent!r} has no one {what} space: {_told_apart(spaces)}. Say in which environment: "
                f"single_{what}_space({agent!r}, env_id=...); {what}_space({agent!r}) has one space a row."
            )
        return self._rows.observation_space(agent) if what == "observation" else self._rows.action_space(agent)

    def _batch_of(self, what: Kind, agent: Agent) -> Space[Any]:
        """The same object each time, so that it may be seeded."""
        spaces = self._rows.spaces_by_row(what, agent, self.num_envs)
        made_of = (self._single(what, agent, None),) if spaces is None else spaces
        known = self._batched.get((what, agent))
        if known is None or known[0] != made_of:
            batched = batch_space(made_of[0], self.num_envs) if spaces is None else _one_a_row(spaces)
            known = self._batched[what, agent] = made_of, batched
        return known[1]

    # ---- reset and step ---------------------------------------------------------------------------------------------

    @one_thread
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        tasks: Sequence[Any] | None = None,
        env_ids: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> tuple[Named, Infos]:
        """Reset all environments, or those of `env_ids`. Arguments as in `ParallelEnvManager.reset`."""
        optional_wait(timeout)
        self.reset_async(seed=seed, options=options, tasks=tasks, env_ids=env_ids)
        return self.reset_wait(timeout)

    @one_thread
    def reset_async(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        tasks: Sequence[Any] | None = None,
        env_ids: int | Iterable[int] | None = None,
    ) -> None:
        """Begin a reset. `reset_wait` ends it."""
        env_ids = list(env_ids) if isinstance(env_ids, Iterable) else env_ids  # it is looked at twice
        self._catch_up()
        self.envs.reset_async(seed=seed, options=options, tasks=tasks, env_ids=env_ids)
        self._resetting = reset_arguments(options, tasks, env_ids, self.num_envs).envs
        self._outcomes.forget(self._resetting)
        self._begun = True

    @one_thread
    def reset_wait(self, timeout: float | None = None) -> tuple[Named, Infos]:
        """The observations and infos of the reset that was begun."""
        try:
            observations, infos = self.envs.reset_wait(timeout)
        except (EnvError, WorkerDied):
            self._note_error()
            raise
        self._is_behind = False
        others = set(range(self.num_envs)).difference(self._resetting)
        joint = self._outcomes.of_reset(observations, infos, others, self.num_envs)
        return joint.observations, Infos(joint.infos, joint.common)

    @one_thread
    def step(self, actions: Mapping[Agent, Any], timeout: float | None = None) -> Step:
        """Step all environments. `actions[agent]` has a row for each; those where it is not alive are ignored."""
        if timeout is not None:
            optional_wait(timeout)
        self.step_async(actions)
        return self.step_wait(timeout)

    @one_thread
    def step_async(self, actions: Mapping[Agent, Any]) -> None:
        """Begin a step. `step_wait` ends it."""
        self._catch_up()
        self._check_actions(actions, None)
        self.envs.step_async(self._rows.join_actions(actions, self.num_envs, self.alive))

    @one_thread
    def step_wait(self, timeout: float | None = None) -> Step:
        """The results of the step that was begun."""
        try:
            observations, _, terminated, truncated, infos = self.envs.step_wait(timeout)
        except (EnvError, WorkerDied):
            self._note_error()
            raise
        self._is_behind = False
        return self._results(None, observations, terminated | truncated, infos)

    # ---- each environment at its own pace ---------------------------------------------------------------------------

    @one_thread
    def send(self, actions: Mapping[Agent, Any], env_ids: int | Iterable[int] | None = None) -> None:
        """Step some environments, each at its own pace. `actions[agent]` has a row for each. `recv` has the results."""
        self._catch_up()
        envs = some_envs(env_ids, self.num_envs)
        self._check_actions(actions, envs)
        self.envs.send(self._rows.join_actions(actions, len(envs), self._attendance.alive_in(envs)), envs)

    @one_thread
    def send_reset(
        self,
        env_ids: int | Iterable[int] | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        tasks: Sequence[Any] | None = None,
    ) -> None:
        """Reset some environments, each at its own pace; arguments as in `reset`. `recv` brings the results."""
        env_ids = list(env_ids) if isinstance(env_ids, Iterable) else env_ids  # it is looked at twice
        self._catch_up()
        self.envs.send_reset(env_ids, seed=seed, options=options, tasks=tasks)
        self._outcomes.forget(reset_arguments(options, tasks, env_ids, self.num_envs).envs)
        self._begun = True

    @one_thread
    def recv(
        self, min_envs: int = 1, timeout: float | None = None
    ) -> tuple[npt.NDArray[np.intp], Named, Named, Named, Named, Infos]:
        """What has come back from `send` and `send_reset`: the environments' numbers, and rows for these."""
        envs, observations, _, terminated, truncated, infos = self.envs.recv(min_envs, timeout)
        return envs, *self._results(envs, observations, terminated | truncated, infos)

    @one_thread
    def recv_env(self, env_id: int, timeout: float | None = None) -> Joint:
        """What one environment has answered to `send` or `send_reset`, as a batch of one row, before any autoreset."""
        observation, _, terminated, truncated, info = self.envs.recv_env(env_id, timeout)
        infos = add_info({}, info, 0, 1)
        observations, ended = self._rows.lifted(observation), np.array([terminated or truncated])
        return self._outcomes.of_step(np.array([env_id]), observations, ended, infos)[0]

    # ---- views ------------------------------------------------------------------------------------------------------

    def as_vector_env(
        self, agents: Sequence[Agent] | None = None, *, autoreset_mode: AutoresetMode | Autoreset | None = None
    ) -> Any:
        """Agents of equal spaces as rows of one `gymnasium.vector.VectorEnv`: see `AgentRows`.

        `agents` may say in which order they come in each environment; all must be named. `autoreset_mode` is by default
        the manager's; another one, given before the first reset, is from then on the manager's as well.
        """
        from parallel_envs.multiagent.agent_rows import AgentRows

        return AgentRows(self, agents, autoreset_mode)

    def single_env(self, env_id: int) -> Any:
        """One environment as a PettingZoo `ParallelEnv`: see `SingleEnv`."""
        from parallel_envs.multiagent.single import SingleEnv

        return SingleEnv(self, env_id)

    def __repr__(self) -> str:
        agents = len(self.possible_agents)
        known = f"{agents} agents so far" if self.is_open else f"{agents} agents"
        return f"MultiAgentEnvManager({known}, {self.envs!r})"

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _use_autoreset_mode(self, mode: AutoresetMode) -> None:
        """For a view. What has been reset keeps its mode: an environment may be waiting for the reset it prescribes."""
        if mode is self.envs.autoreset_mode:
            return
        if self._begun:
            raise ValueError(
                f"autoreset_mode={mode.value!r} was given after the first reset, and the environments have "
                f"{self.envs.autoreset_mode.value!r}. Make the view before the first reset, or give the mode to "
                "MultiAgentEnvManager."
            )
        self.envs._use_autoreset_mode(mode)

    def _check_actions(self, actions: Mapping[Agent, Any], envs: Sequence[int] | None) -> None:
        """`envs` are the numbers of the rows (None: all)."""
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions={actions!r} is not a dict. Give a batch of actions for each agent, by its id.")
        if self._begun and (tuple(actions) == self._rows.agents or actions.keys() == self.alive.keys()):
            for batch in actions.values():
                if batch is None:
                    break
            else:
                return
        if not self._begun and not self.closed:
            raise ResetNeeded("Actions were given before the first reset: nobody is there to act. Call reset first.")
        self._attendance.check_actors(actions, self._rows.agents, range(self.num_envs) if envs is None else envs)

    def _note_error(self) -> None:
        """A step or reset has failed: note who is there in the environments that went on, once all have answered."""
        self._is_behind = self.envs._has_answers_to_come
        if not self._is_behind:
            self._outcomes.of_error(self.envs._observations(), self.num_envs)

    def _catch_up(self) -> None:
        """Before a request: give up a failed one, and note who is there in environments that answered it late."""
        if self._is_behind and not self.closed:
            self.envs._become_idle("send")
            self._is_behind = False
            self._outcomes.of_error(self.envs._observations(), self.num_envs)

    def _results(self, envs: npt.NDArray[np.intp] | None, observations: Any, ended: Flags, infos: Any) -> Step:
        """The five dicts, with what belongs to an episode that has just ended in its place."""
        last, joint = self._outcomes.of_step(envs, observations, ended, infos)
        return joint.observations, last.rewards, last.terminations, last.truncations, Infos(joint.infos, joint.common)


def _one_a_row(spaces: Sequence[Space[Any]]) -> Space[Any]:
    """A space with one item a row, each drawn from a stream of its own."""
    together = Tuple(copy.deepcopy(list(spaces)))
    together.seed()
    return together


def _told_apart(spaces: Sequence[Space[Any]]) -> str:
    """Which environments have which of these spaces."""
    kinds: list[tuple[Space[Any], list[int]]] = []
    for env, space in enumerate(spaces):
        for kind, envs in kinds:
            if kind == space:
                envs.append(env)
                break
        else:
            kinds.append((space, [env]))
    return ", ".join(f"{space} in {env_names(envs)}" for space, envs in kinds)


def _check_options(options: Mapping[str, Any]) -> None:
    known = {*inspect.signature(ParallelEnvManager).parameters, "turns"} - {"observation_mode", "infos_list"}
    for name, value in options.items():
        if name not in known:
            raise unknown_keyword("MultiAgentEnvManager", name, value, sorted(known), what="option")
