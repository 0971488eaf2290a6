"""`MultiAgentEnvManager`: PettingZoo environments in worker processes, as arrays by agent."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Space, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parallel_envs.checks import optional_wait, unknown_keyword
from parallel_envs.choices import Autoreset, Turns
from parallel_envs.errors import EnvError, WorkerDied
from parallel_envs.multiagent.agent_arrays import AgentResults, FixedAgents, Infos, OpenAgents
from parallel_envs.multiagent.agent_layout import Agent, Flags, JointObservations, Kind, grouped
from parallel_envs.multiagent.joint_env import JointFactory, OnJoint, joint_factories
from parallel_envs.threads import ClosedAtExit, one_thread
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import Options, fork_targets, reset_arguments, some_envs
from parallel_envs.vector.env_errors import env_names
from parallel_envs.vector.env_states import EnvState
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.manager import CommonOptions

ByAgent = dict[Agent, Any]
Step = tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]
P = ParamSpec("P")
R = TypeVar("R")


def _delegated(method: Callable[Concatenate[ParallelEnvManager, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method of `MultiAgentEnvManager` that calls this one of the manager underneath."""

    @functools.wraps(method)
    def delegated(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", getattr(self.envs, method.__name__)(*args, **kwargs))

    return cast("Callable[Concatenate[Any, P], R]", delegated)


class _JointEnvManager(ParallelEnvManager):
    """Manager of joint envs, inside a `MultiAgentEnvManager`, whose name stands in its errors."""

    _known_as = "MultiAgentEnvManager"

    def __init__(self, factories: Sequence[JointFactory], **options: Any) -> None:
        try:
            super().__init__(factories, **options)
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # an error of an environment or a worker
                raise
            # the environments differ: replace the advice, which is for environments without agents
            fact = str(error).partition(" With observation_mode=")[0].partition(" To batch actions,")[0]
            raise RuntimeError(
                f"{fact} The environments of one manager must have the same agents with equal spaces: open one manager "
                "for each kind. (Only environments without possible_agents may differ in their agents and spaces.)"
            ) from None

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, ParallelEnvManager.__name__, 1)


class MultiAgentEnvManager(ClosedAtExit):
    """Many PettingZoo environments at once, in worker processes.

        envs = MultiAgentEnvManager("mpe2/simple_spread-v3", num_envs=8, num_workers=2)
        observations, infos = envs.reset(seed=7)                    # observations[agent]: (8, ...)
        for _ in range(1000):
            actions = {agent: envs.action_space(agent).sample() for agent in envs.agents_now}
            observations, rewards, terminations, truncations, infos = envs.step(actions)

    Every dict is keyed by agent, and every array has one row for each environment. `alive[agent]` marks the rows in
    which the agent is still in play, `present[agent]` the rows in which it has an observation: other rows hold zeros.
    An agent acts next in the rows in which it is both; actions in all other rows are ignored. In the step that ends an
    agent, its last observation is present and the agent is not alive. Flags, `terminations` and `truncations` included,
    are read-only: copy them to change them.

    An environment's episode ends when no agent is left; the environment is then reset as `autoreset_mode` says. In that
    step the infos of each agent hold `final_obs`, `final_reward` and `final_info`, the last results of that agent, with
    masks.

    Agents of environments without `possible_agents` come and go: the dicts then hold the agents that are in some
    environment, and `infos.common["new_agents"]` names the agents that are new. An agent whose spaces differ between
    environments has a list with one item a row in place of an array: its `observation_space` and `action_space` are
    then `Tuple`s with one space a row, and `single_action_space(agent, env_id)` is the space in one environment.

    Threads: one thread at a time, its views (`as_vector_env`, `single_env`) included. A call from a second thread while
    a first one is inside a method raises `ConcurrentCall` and does nothing. `close` may be called by any thread at any
    time: a call that waits for environments then raises `ClosedError`.

    Args:
        env_fns: Callables that make PettingZoo environments (parallel or AEC), one for each environment; or an id, such
            as `"sisl/pursuit-v5"` or, with the module that registers it, `"my_package:my_env-v0"`; or the path of a
            module, such as `"mpe2.simple_spread_v3"`. An id of a package that registers nothing means a module of that
            package: `"mpe2/simple_spread-v3"`. The workers know the ids that the caller has registered.
        num_envs: With an id or a path: how many environments to make.
        env_kwargs: With an id or a path: keyword arguments for the function that makes the environment.
        turns: How AEC environments are played. `"simultaneous"`: all agents observe, then all act (PettingZoo's own
            conversion, for parallelizable environments). `"sequential"`: agents act one after another, and a step is
            one turn in each environment. All agents in play are alive; only the agent to move is present, and only its
            action is used.
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
        known = {*inspect.signature(ParallelEnvManager).parameters, "turns"} - {"observation_mode", "infos_list"}
        for name, value in options.items():
            if name not in known:
                raise unknown_keyword("MultiAgentEnvManager", name, value, sorted(known), what="option")
        factories = joint_factories(env_fns, num_envs, turns, env_kwargs)
        self.turns = turns
        if callable(setter := options.get("task_setter")):
            options["task_setter"] = OnJoint(setter)
        self.envs: ParallelEnvManager = _JointEnvManager(factories, **options)
        """The manager underneath: each environment with all its agents is one of its environments."""
        self._guard = self.envs._guard
        space = self.envs.single_observation_space
        self.num_envs, self.num_workers = self.envs.num_envs, self.envs.num_workers
        self._arrays = (
            FixedAgents(space.layout, self.num_envs)
            if isinstance(space, JointObservations)
            else OpenAgents(self.num_envs)
        )
        self.metadata, self.render_mode = self.envs.metadata, self.envs.render_mode
        self._resetting: list[int] = []
        self._was_reset = False
        self._views: weakref.WeakSet[Any] = weakref.WeakSet()
        """Views of single envs, which are refreshed when a state has been set."""
        self._masks_are_late = False
        """True after an error that was raised while envs were stepping: their answers are not in the masks yet."""
        self._batched: dict[tuple[str, Agent], tuple[tuple[Space[Any], ...], Space[Any]]] = {}

    # ---- agents and spaces ------------------------------------------------------------------------------------------

    @property
    def possible_agents(self) -> tuple[Agent, ...]:
        """All possible agents; of environments without `possible_agents`, all agents seen so far."""
        return self._arrays.agents

    @property
    def is_open(self) -> bool:
        return isinstance(self._arrays, OpenAgents)

    @property
    def alive(self) -> dict[Agent, Flags]:
        """Flags by agent, read-only: the environments in which the agent is still in play.

        With `turns="simultaneous"` the agent acts there next. With `turns="sequential"` players that wait for their
        turn are alive too: `alive[agent] & present[agent]` marks the environments in which the agent is to move.
        """
        return self._arrays.alive

    @property
    def present(self) -> dict[Agent, Flags]:
        """Flags by agent, read-only: the environments in which the agent has an observation.

        It acts there next, or has just ended (and is not alive). With `turns="sequential"`, only the agent to move and
        agents that have just ended are present.
        """
        return self._arrays.present

    @property
    def agents_now(self) -> tuple[Agent, ...]:
        """The agents that are alive in some environment: give actions for all of them.

        It is seldom empty, because environments are reset at different times: count steps. With `turns="sequential"`
        all players are included, and only the moves of players that are `present` are used (and must be given).
        """
        return tuple(agent for agent, alive in self.alive.items() if alive.any())

    def agents(self, env_id: int) -> list[Agent]:
        """Return the agents that are alive in an environment, in its own order."""
        (agents,) = self.envs.get_attr("agents", env_ids=env_id)
        return list(agents)

    def single_observation_space(self, agent: Agent, env_id: int | None = None) -> Space[Any]:
        """Return an agent's observation space in one environment. Give `env_id` where environments differ."""
        return self._single_space("observation", agent, env_id)

    def single_action_space(self, agent: Agent, env_id: int | None = None) -> Space[Any]:
        """Return an agent's action space in one environment. Give `env_id` where environments differ."""
        return self._single_space("action", agent, env_id)

    def observation_space(self, agent: Agent) -> Space[Any]:
        """Return an agent's batched observation space: a `Tuple` with one space a row where environments differ."""
        return self._batched_space("observation", agent)

    def action_space(self, agent: Agent) -> Space[Any]:
        """Return an agent's batched action space: a `Tuple` with one space a row where environments differ.

        A sample of this space may be given to `step`.
        """
        return self._batched_space("action", agent)

    def _single_space(self, kind: Kind, agent: Agent, env_id: int | None) -> Space[Any]:
        if env_id is not None:
            (env,) = some_envs(env_id, self.num_envs)
            return self._arrays.space(kind, agent, env)
        spaces = self._arrays.spaces_by_row(kind, agent)
        if spaces is not None and len(groups := grouped(spaces)) > 1:
            raise ValueError(
                f"{agent!r} has no one {kind} space: "
                f"{', '.join(f'{one.space} in {env_names(one.indices)}' for one in groups)}. Say in which environment: "
                f"single_{kind}_space({agent!r}, env_id=...); {kind}_space({agent!r}) has one space a row."
            )
        return self._arrays.space(kind, agent)

    def _batched_space(self, kind: Kind, agent: Agent) -> Space[Any]:
        """Return the same object each time, so that it may be seeded."""
        spaces = self._arrays.spaces_by_row(kind, agent)
        made_of = (self._single_space(kind, agent, None),) if spaces is None else spaces
        known = self._batched.get((kind, agent))
        if known is None or known[0] != made_of:
            if spaces is None:
                batched = batch_space(made_of[0], self.num_envs)
            else:
                batched = Tuple(copy.deepcopy(list(spaces)))
                batched.seed()  # each space samples from a stream of its own
            known = self._batched[kind, agent] = made_of, batched
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
    ) -> tuple[ByAgent, Infos]:
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
        env_ids = list(env_ids) if isinstance(env_ids, Iterable) else env_ids  # it is iterated over twice
        self._update_late_masks()
        self.envs.reset_async(seed=seed, options=options, tasks=tasks, env_ids=env_ids)
        self._resetting = reset_arguments(options, tasks, env_ids, self.num_envs).envs
        self._arrays.forget(self._resetting)
        self._was_reset = True

    @one_thread
    def reset_wait(self, timeout: float | None = None) -> tuple[ByAgent, Infos]:
        try:
            observations, infos = self.envs.reset_wait(timeout)
        except (EnvError, WorkerDied):
            self._update_masks_after_error()
            raise
        self._masks_are_late = False
        others = set(range(self.num_envs)).difference(self._resetting)
        results = self._arrays.of_all(observations, infos, others)
        return results.observations, Infos(results.infos, results.common)

    @one_thread
    def set_state(
        self,
        states: Sequence[EnvState],
        env_ids: int | Iterable[int] | None = None,
        *,
        load: Callable[[Any, Any], None] | None = None,
        timeout: float | None = None,
    ) -> tuple[ByAgent, Infos]:
        """Bring environments to states from `get_state`, as `ParallelEnvManager.set_state` does."""
        optional_wait(timeout)
        self._refuse_open("set_state")
        env_ids = list(env_ids) if isinstance(env_ids, Iterable) else env_ids
        self._update_late_masks()
        self.envs._begin_set_state(states, env_ids, None if load is None else OnJoint(load))
        self._resetting = some_envs(env_ids, self.num_envs)
        for env, state in zip(self._resetting, states, strict=True):
            self._arrays.restore_ended(env, state.agents or {})
        self._was_reset = True
        results = self.reset_wait(timeout)
        for view in self._views:
            view.refresh()
        return results

    def get_state(
        self,
        env_ids: int | Iterable[int] | None = None,
        *,
        save: Callable[[Any], Any] | None = None,
        timeout: float | None = None,
    ) -> list[EnvState]:
        """Return the states of environments between two steps, as `ParallelEnvManager.get_state` does."""
        self._refuse_open("get_state")
        env_ids = list(env_ids) if isinstance(env_ids, Iterable) else env_ids
        states = self.envs.get_state(env_ids, save=None if save is None else OnJoint(save), timeout=timeout)
        return [
            dataclasses.replace(state, agents=self._arrays.results_of_ended(env))
            for env, state in zip(some_envs(env_ids, self.num_envs), states, strict=True)
        ]

    def fork(
        self, source: int, targets: int | Iterable[int] | None = None, *, timeout: float | None = None
    ) -> tuple[ByAgent, Infos]:
        """Bring environments (by default all others) to the state of environment `source`."""
        (origin,) = some_envs(source, self.num_envs)
        envs = fork_targets(targets, origin, self.num_envs)
        return self.set_state(self.get_state(origin, timeout=timeout) * len(envs), envs, timeout=timeout)

    def _refuse_open(self, asked: str) -> None:
        if self.is_open:
            raise TypeError(
                f"{asked} needs environments with possible_agents: those without announce the spaces of their agents "
                "when these first appear, which a state cannot repeat."
            )

    @one_thread
    def step(self, actions: Mapping[Agent, Any], timeout: float | None = None) -> Step:
        """Step all environments. `actions[agent]` has a row for each; rows where it is not alive are ignored."""
        if timeout is not None:
            optional_wait(timeout)
        self.step_async(actions)
        return self.step_wait(timeout)

    @one_thread
    def step_async(self, actions: Mapping[Agent, Any]) -> None:
        self._update_late_masks()
        self._check_actions(actions, None)
        self.envs.step_async(self._arrays.join_actions(actions, self.alive, self.num_envs))

    @one_thread
    def step_wait(self, timeout: float | None = None) -> Step:
        try:
            observations, _, terminated, truncated, infos = self.envs.step_wait(timeout)
        except (EnvError, WorkerDied):
            self._update_masks_after_error()
            raise
        self._masks_are_late = False
        return self._step_results(None, observations, terminated | truncated, infos)

    def _check_actions(self, actions: Mapping[Agent, Any], envs: Sequence[int] | None) -> None:
        """Raise for actions that miss an agent or are given for an unknown one. `envs`: the rows (None: all)."""
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions={actions!r} is not a dict. Give a batch of actions for each agent, by its id.")
        if self._was_reset and (tuple(actions) == self._arrays.agents or actions.keys() == self.alive.keys()):
            for batch in actions.values():
                if batch is None:
                    break
            else:
                return
        if not self._was_reset and not self.closed:
            raise ResetNeeded("Actions were given before the first reset: no agent is there to act. Call reset first.")
        rows = range(self.num_envs) if envs is None else envs
        for agent in actions:
            if agent not in self.alive and agent not in self.possible_agents:
                known = list(self.possible_agents)
                raise ValueError(f"Actions were given for {agent!r}, which is no agent here: {known}.")
        for agent, alive in self.alive.items():
            if actions.get(agent) is None and (acting := (alive & self.present[agent])[list(rows)]).any():
                where = env_names([rows[row] for row in np.flatnonzero(acting).tolist()])
                raise ValueError(
                    f"No actions were given for {agent!r}, which is alive in {where}. Give actions for every agent of "
                    "agents_now."
                )

    def _step_results(self, envs: npt.NDArray[np.intp] | None, observations: Any, ended: Flags, infos: Any) -> Step:
        """Return the five dicts: rewards and flags of the step, observations and infos after any autoreset."""
        last, shown = self._arrays.of_step(envs, observations, ended, infos)
        return shown.observations, last.rewards, last.terminations, last.truncations, Infos(shown.infos, shown.common)

    def _update_masks_after_error(self) -> None:
        """After a failed step or reset: update the masks of the environments that went on, once all have answered."""
        self._masks_are_late = self.envs._has_answers_to_come
        if not self._masks_are_late:
            self._arrays.of_all(self.envs._observations(), {})

    def _update_late_masks(self) -> None:
        """Before a request: give up a failed one, and update the masks of environments that answered it late."""
        if self._masks_are_late and not self.closed:
            self.envs._become_idle("send")
            self._masks_are_late = False
            self._arrays.of_all(self.envs._observations(), {})

    # ---- each environment at its own pace ---------------------------------------------------------------------------

    @one_thread
    def send(self, actions: Mapping[Agent, Any], env_ids: int | Iterable[int] | None = None) -> None:
        """Step some environments, each at its own pace. `actions[agent]` has a row for each. `recv` has the results."""
        self._update_late_masks()
        envs = some_envs(env_ids, self.num_envs)
        self._check_actions(actions, envs)
        alive = {agent: flags[envs] for agent, flags in self.alive.items()}
        self.envs.send(self._arrays.join_actions(actions, alive, len(envs)), envs)

    @one_thread
    def send_reset(
        self,
        env_ids: int | Iterable[int] | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        tasks: Sequence[Any] | None = None,
    ) -> None:
        """Reset some environments, each at its own pace; arguments as in `reset`. `recv` has the results."""
        env_ids = list(env_ids) if isinstance(env_ids, Iterable) else env_ids  # it is iterated over twice
        self._update_late_masks()
        self.envs.send_reset(env_ids, seed=seed, options=options, tasks=tasks)
        self._arrays.forget(reset_arguments(options, tasks, env_ids, self.num_envs).envs)
        self._was_reset = True

    @one_thread
    def recv(
        self, min_envs: int = 1, timeout: float | None = None
    ) -> tuple[npt.NDArray[np.intp], ByAgent, ByAgent, ByAgent, ByAgent, Infos]:
        """Return the results of `send` and `send_reset` that have arrived: environment numbers, and a row for each."""
        envs, observations, _, terminated, truncated, infos = self.envs.recv(min_envs, timeout)
        return envs, *self._step_results(envs, observations, terminated | truncated, infos)

    @one_thread
    def recv_env(self, env_id: int, timeout: float | None = None) -> AgentResults:
        """Return one environment's answer to `send` or `send_reset`, as a batch of one row, before any autoreset."""
        observation, _, terminated, truncated, info = self.envs.recv_env(env_id, timeout)
        infos = add_info({}, info, 0, 1)
        observations, ended = self._arrays.joint_batch({0: observation}, 1), np.array([terminated or truncated])
        return self._arrays.of_step(np.array([env_id]), observations, ended, infos)[0]

    @property
    def ready_ids(self) -> list[int]:
        return self.envs.ready_ids

    # ---- views ------------------------------------------------------------------------------------------------------

    def as_vector_env(
        self, agents: Sequence[Agent] | None = None, *, autoreset_mode: AutoresetMode | Autoreset | None = None
    ) -> Any:
        """Return agents of equal spaces as rows of one `gymnasium.vector.VectorEnv`: see `AgentRows`.

        `agents` may set their order in each environment; all must be named. `autoreset_mode` is by default the
        manager's; another one, given before the first reset, is from then on the manager's as well.
        """
        from parallel_envs.multiagent.views import AgentRows

        return AgentRows(self, agents, autoreset_mode)

    def single_env(self, env_id: int) -> Any:
        """Return one environment as a PettingZoo `ParallelEnv`, or as an `AECEnv` if its agents take turns."""
        from parallel_envs.multiagent.views import SingleEnv, SingleTurnEnv

        view = SingleTurnEnv(self, env_id) if self.turns == "sequential" else SingleEnv(self, env_id)
        self._views.add(view)
        return view

    def _use_autoreset_mode(self, mode: AutoresetMode) -> None:
        """Set the mode for a view. After a reset it cannot change: an environment may wait for the reset it implies."""
        if mode is self.envs.autoreset_mode:
            return
        if self._was_reset:
            raise ValueError(
                f"autoreset_mode={mode.value!r} was given after the first reset, and the environments have "
                f"{self.envs.autoreset_mode.value!r}. Make the view before the first reset, or give the mode to "
                "MultiAgentEnvManager."
            )
        self.envs._use_autoreset_mode(mode)

    # ---- delegation -------------------------------------------------------------------------------------------------

    set_tasks = _delegated(ParallelEnvManager.set_tasks)
    get_tasks = _delegated(ParallelEnvManager.get_tasks)
    call_async = _delegated(ParallelEnvManager.call_async)
    call_wait = _delegated(ParallelEnvManager.call_wait)
    get_attr = _delegated(ParallelEnvManager.get_attr)
    set_attr = _delegated(ParallelEnvManager.set_attr)
    render = _delegated(ParallelEnvManager.render)
    restart = _delegated(ParallelEnvManager.restart)
    stats = _delegated(ParallelEnvManager.stats)
    trace = _delegated(ParallelEnvManager.trace)

    def call(self, name: str, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments (or read an attribute): all, or those of `env_ids`."""
        return self.envs.call(name, *args, env_ids=env_ids, **kwargs)

    def apply(
        self,
        fn: Callable[..., Any],
        *args: Any,
        env_ids: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Return `fn(env, *args)` for each PettingZoo environment, or those of `env_ids`, as `ParallelEnvManager` does.

        An AEC environment that is played in turns is passed as it is, the others with PettingZoo's conversion.
        """
        given: Any = fn
        return self.envs.apply(OnJoint(fn) if callable(given) else fn, *args, env_ids=env_ids, timeout=timeout)

    def state(self) -> npt.NDArray[Any]:
        """Return the global state of each environment. The environments must have one."""
        return np.stack(self.envs.call("state"))

    @property
    def num_restarts(self) -> int:
        return self.envs.num_restarts

    @property
    def last_restart(self) -> tuple[tuple[int, ...], str] | None:
        """The environments that were replaced last, and the reason in one line. None if none was replaced."""
        return self.envs.last_restart

    @property
    def closed(self) -> bool:
        return self.envs.closed

    def close(self, timeout: float = 5.0) -> None:
        self.envs.close(timeout=timeout)

    def __repr__(self) -> str:
        agents = len(self.possible_agents)
        known = f"{agents} agents so far" if self.is_open else f"{agents} agents"
        return f"MultiAgentEnvManager({known}, {self.envs!r})"
