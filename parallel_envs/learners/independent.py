"""`IndependentLearners`: many agents that learn at the same time, without shared parameters.

    with MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=8) as envs:
        with IndependentLearners(envs, PPOConfig(rollout_length=128), seed=1) as learners:
            learners.train(100_000)
            print(learners.returns())

Each agent has its own network, optimiser, buffer and random generator. No agent's numbers depend on another agent's,
except through the environments. Actions and updates of all agents are computed together only for speed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array
from pydantic import NonNegativeInt, TypeAdapter, ValidationError, conlist

from parallel_envs import trace
from parallel_envs.checks import check_count, choice, optional_seconds, suggests_keywords, unknown_keyword
from parallel_envs.choices import OnDivergence, Strategy, UpdateModeName, words
from parallel_envs.devices import AUTO, CPU, described_device, find_device
from parallel_envs.engine.interrupts import Interrupts
from parallel_envs.errors import ClosedError
from parallel_envs.learners.agent import AgentLearner, EpisodeTracker
from parallel_envs.learners.algorithm import Agent, AlgorithmConfig, Diverged, UpdateReport
from parallel_envs.learners.checkpoint import BadCheckpoint, load_checkpoint, save_checkpoint
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates import MODES, UPDATE_TIMEOUT, UpdateMode, check_learns_here, mode_for
from parallel_envs.learners.updates.mode import UpdateFailed, trace_updates
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.seeding import SeedTree
from parallel_envs.threads import CallGuard, ClosedAtExit, one_thread
from parallel_envs.wrappers import WrappedMultiAgentPolicy

if TYPE_CHECKING:
    from parallel_envs.learners.loops import Loop, LoopReport
    from parallel_envs.learners.loops.loop import LoopWords

_log = logging.getLogger(__name__)

_LAST_IN: weakref.WeakKeyDictionary[MultiAgentEnvManager, Any] = weakref.WeakKeyDictionary()
"""The learners whose episodes are running in each manager."""

Flags = npt.NDArray[np.bool_]
Named = dict[Agent, Any]
OnUpdate = Callable[["IndependentLearners"], None]


class IndependentLearners(ClosedAtExit):
    """Learners of all agents of some environments.

    `agents[agent]` is an `AgentLearner`; `agents[agent].model.memory` is its experience. Agents that die, join or are
    absent learn from their own steps only. `networks.py` describes action masks.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method, such as `train`,
    raises `ConcurrentCall` and does nothing; so does `close`. `returns` may be called meanwhile.

    Args:
        envs: The environments, with `autoreset_mode=NEXT_STEP` and `turns="simultaneous"` (the defaults). Close them
            yourself. Several learners may take turns in the same environments, each with new episodes. After you reset
            or step the environments yourself, call `forget_episodes`.
        config: `PPOConfig`, `DQNConfig` or `SACConfig`, or a dict with one for each agent.
        update_mode: How updates are run: "sequential", "thread", "process", "fused", or "auto", which measures all and
            takes the quickest. All modes give the same numbers up to rounding, and each mode gives the same bits in
            every run; the choice of "auto" may differ from run to run. "fused_or_process" (or `_thread`, `_sequential`)
            is "fused" for agents of one kind with small networks and minibatches, as that is quicker, else the other.
        seed: Source of all random numbers.
        strategy: How actions are computed: see `WrappedMultiAgentPolicy`.
        workers: The largest number of threads or processes for updates.
        update_timeout: Seconds that a worker process has for a round of updates; None: no limit. A process that hangs
            is replaced and the update made again; the second time, `WorkerTimeout` says where it was. Threads and
            updates in the caller cannot be ended and have no limit.
        on_divergence: An agent's update with numbers that are not finite is undone. "skip" logs a warning with the
            agent's name, "raise" raises `Diverged`. The other agents have learnt in either case.
        device: Place of the parameters, of updates and of acting: "cpu", such as "cuda:0", or "auto" (the first CUDA
            device if there is one, else MPS, else the CPU). Experience stays in the memory of the CPU. Policies act
            with the parameters themselves; strategy="process" acts on the CPU, with a copy of the weights after each
            update. Updates in worker processes (update_mode or learn_in "process") are refused on a device.
        parallel: The block `parallel` of a settings file, as a dict: `{"parallel_training": True, "async_learning":
            True, "train_interval": 4, "num_workers": None, ...}`; see `ParallelBlock` in `config.py`. It replaces
            `update_mode`, `strategy`, `workers` (here `num_workers` are workers that learn) and, of `train`, `mode` and
            `learn_in`. A dict that contains it under "parallel" is accepted too.

    Raises:
        BadSettings: A ValueError, for a mistake in `parallel`.
    """

    @suggests_keywords
    def __init__(
        self,
        envs: MultiAgentEnvManager,
        config: AlgorithmConfig | Mapping[Agent, AlgorithmConfig],
        *,
        update_mode: UpdateModeName = "fused",
        seed: int = 0,
        strategy: Strategy | Mapping[Agent, Strategy] = "batch",
        workers: int | None = None,
        update_timeout: float | None = UPDATE_TIMEOUT,
        on_divergence: OnDivergence = "skip",
        device: str = "cpu",
        parallel: Mapping[str, Any] | None = None,
    ) -> None:
        self._guard = CallGuard("IndependentLearners")
        self._how: dict[str, Any] = {}  # defaults of `train`
        interval: int | None = None
        if parallel is not None:
            from parallel_envs.learners.config import read_parallel

            given = {"update_mode": (update_mode, "fused"), "strategy": (strategy, "batch"), "workers": (workers, None)}
            if twice := [name for name, (value, default) in given.items() if value != default]:
                raise ValueError(
                    f"{twice[0]}={given[twice[0]][0]!r} was given beside parallel=, which says the same thing. Give "
                    "one of them."
                )
            block = read_parallel(parallel)
            update_mode, strategy, workers = block["update_mode"], block["strategy"], block["worker_budget"]
            self._how, interval = {name: block[name] for name in ("mode", "learn_in")}, block["train_interval"]
        self.device = find_device(device)
        """The full name of the device."""
        check_envs(envs)
        choice("update_mode", update_mode, words(UpdateModeName))
        choice("on_divergence", on_divergence, words(OnDivergence))
        if workers is not None:
            check_count("workers", workers)
        agents = envs.possible_agents
        configs = config if isinstance(config, Mapping) else dict.fromkeys(agents, config)
        if odd := [agent for agent in (*agents, *configs) if agent not in agents or agent not in configs]:
            raise ValueError(
                f"There is no agent or no config {odd[0]!r}. Give a config for each of {list(agents)}, and no other."
            )
        self.envs, self.seed, self.on_divergence = envs, seed, on_divergence
        self._tree = SeedTree(seed)
        self.agents: dict[Agent, AgentLearner] = {
            agent: AgentLearner(
                agent,
                with_train_interval(configs[agent], interval),
                envs.single_observation_space(agent),
                envs.single_action_space(agent),
                num_rows=envs.num_envs,
                # 1 and "1" are two agents
                seed=self._tree.child(
                    "learner", *((agent,) if isinstance(agent, str) else (type(agent).__name__, str(agent)))
                ),
            )
            for agent in agents
        }
        self.updates = 0
        """Rounds of updates: each updates some agents."""
        self.steps = 0
        """Steps of environments, summed over all rows, without resets."""
        self.seconds = {"collect": 0.0, "act": 0.0, "update": 0.0}
        """Time spent on each part."""
        self.closed = False
        self._owner = os.getpid()
        self._observations: Named | None = None
        self._acting: dict[Agent, Flags] = {}  # where each agent has acted
        self._episodes = EpisodeTracker(list(self.agents), envs.num_envs)
        for one in self.agents.values():
            one.parameters.to(self.device)
        self._parameters = {agent: one.parameters for agent, one in self.agents.items()}
        self.update_mode, self.workers = mode_for(update_mode, self._parameters), workers
        if self.update_mode == "process":
            check_learns_here(self.device, "update_mode", "'fused', 'sequential' or 'thread'")
        names = strategy if isinstance(strategy, Mapping) else dict.fromkeys(agents, strategy)
        self._in_workers = {agent for agent in agents if names.get(agent) == "process"}
        self._policies = {agent: one.policy(shared=agent not in self._in_workers) for agent, one in self.agents.items()}
        elsewhere = self.device != CPU and "gpu" in names.values()
        self.policy = WrappedMultiAgentPolicy(self._policies, strategy, device=self.device if elsewhere else AUTO)
        """The policy that acts for all agents."""
        self.update_timeout = optional_seconds("update_timeout", update_timeout)
        self.loop: Loop | None = None
        """The loop that collects and learns while `train` runs."""
        self._mode: UpdateMode | None = None
        self._mode_key: Any = None

    # ---- experience -------------------------------------------------------------------------------------------------

    @one_thread
    def begin(self, seed: int | None = None) -> None:
        """Reset all environments. On-policy experience without an update is dropped.

        Args:
            seed: Seed of the environments. None: derived from the learners' seed and the number of steps so far.
        """
        self._check_open()
        seed = self._tree.child("envs", self.steps).seed() if seed is None else seed
        self._observations, _ = self.envs.reset(seed=seed)
        _LAST_IN[self.envs] = weakref.ref(self)
        self.policy.reset()
        self._episodes.begin(self.envs.present)
        for agent, learner in self.agents.items():
            learner.begin(self._observations[agent], self._episodes.begins[agent])

    @property
    def devices(self) -> dict[str, str]:
        """The devices on which networks learn and act, with the names of their hardware."""
        names = self.policy.strategy
        acting = set()
        for agent in self.agents:
            own = names if isinstance(names, str) else names.get(agent)
            gpu = self.policy.device if own == "gpu" else self.device
            acting.add(f"{CPU} (worker processes)" if agent in self._in_workers else described_device(find_device(gpu)))
        return {"learning": described_device(self.device), "acting": " and ".join(sorted(acting))}

    def forget_episodes(self) -> None:
        """Begin new episodes with the next step."""
        self._observations = None

    @one_thread
    def act(self) -> Named:
        """Return actions of the agents that are alive, for the newest observations."""
        self._check_open()
        if self._observations is None or _LAST_IN[self.envs]() is not self:
            self.begin()
        assert self._observations is not None
        self._acting = {agent: self.envs.alive[agent] & self.envs.present[agent] for agent in self.agents}
        asked = {agent: self._observations[agent] for agent, rows in self._acting.items() if rows.any()}
        return self.policy.step(asked, {agent: self._acting[agent] for agent in asked})

    @one_thread
    def observe(
        self,
        actions: Named,
        observations: Named,
        rewards: Named,
        terminations: Mapping[Agent, Flags],
        truncations: Mapping[Agent, Flags],
        infos: Any,
        alive_before: Mapping[Agent, Flags],
    ) -> None:
        """Store a step: all actions, and the results of the environments. `alive_before`: where each agent acted."""
        self._check_open()
        before, envs = self._observations, self.envs
        if before is None:
            raise RuntimeError("observe() was called before act(). Call step(), which does both.")
        begins_before = self._episodes.begins
        lost = np.asarray(infos.common.get("worker_restarted", np.zeros(envs.num_envs)), np.bool_)
        facts = self._episodes.step(alive_before, envs.alive, envs.present, rewards, terminations, truncations, lost)
        self.steps += facts.num_steps
        for agent, learner in self.agents.items():
            own = actions.get(agent)
            if own is None:  # alive nowhere
                own = create_empty_array(envs.single_action_space(agent), envs.num_envs, np.zeros)
            learner.observe(
                before[agent],
                begins_before[agent],
                own,
                rewards[agent],
                terminations[agent],
                truncations[agent] | facts.unseen[agent] if agent in facts.unseen else truncations[agent],
                observations[agent],
                facts.lived[agent],
                self._episodes.begins[agent],
            )
        self._observations = observations
        if facts.anew.any():
            self.policy.reset(facts.anew)
        for agent, rows in facts.returned.items():
            self.policy.reset(rows, agents=[agent])

    @one_thread
    def step(self) -> None:
        """Act, step the environments, and store the step."""
        began = time.perf_counter()
        actions = self.act()
        acted = time.perf_counter()
        self.observe(actions, *self.envs.step(actions), self._acting)
        self.seconds["act"] += acted - began
        self.seconds["collect"] += time.perf_counter() - acted
        trace.record("collect", began, steps=self.steps)

    # ---- learning ---------------------------------------------------------------------------------------------------

    @one_thread
    def update(self) -> dict[Agent, dict[str, float]]:
        """Update the agents whose updates are due. Return their metrics; empty if no update is due.

        Raises:
            UpdateFailed: An agent's update raised and is undone. The others have learnt.
            Diverged: With on_divergence="raise": an agent's numbers were not finite, and its update is undone. The
                others have learnt.
        """
        self._check_open()
        began = time.perf_counter()
        plans = {agent: plan for agent, one in self.agents.items() if one.ready and (plan := one.plan()) is not None}
        if plans:
            mode = self.mode
            with contextlib.nullcontext() if mode.is_elsewhere else Interrupts():  # all of it, or a second Ctrl-C
                reports = mode.update(plans)
                if trace.open_traces:
                    trace_updates(reports)
                for agent, report in reports.items():
                    self.agents[agent].finish(report)
                self.act_with({agent: self.agents[agent].actor() for agent in reports})
                self.tell_of(reports)
            trace.record("update", began, agents=len(plans))
        self.seconds["update"] += time.perf_counter() - began
        return {agent: self.agents[agent].metrics for agent in plans}

    @one_thread
    def act_with(self, actors: Mapping[Agent, Any]) -> None:
        """Act with these agents' networks, as they are now and wherever they are, from now on.

        A network in this process is not copied: what changes it changes the actions. Policies in workers get a copy of
        its weights.
        """
        copied: dict[Agent, Any] = {}
        for agent, actor in actors.items():
            if agent in self._in_workers:
                copied[agent] = {name: tensor.cpu() for name, tensor in actor.state_dict().items()}
            else:
                self._policies[agent].act_with(actor)
            self.agents[agent].acting_version = self.agents[agent].version
        if copied:
            self.policy.load_state_dict(copied)

    @one_thread
    def tell_of(self, reports: Mapping[Agent, UpdateReport]) -> None:
        """Count a round of updates, and report the agents that have not learnt.

        Raises `UpdateFailed` for updates that raised. For agents that diverged, `on_divergence` decides.
        """
        self.updates += 1
        failed = {agent: report.failure for agent, report in reports.items() if report.failure}
        diverged = {agent: report.diverged for agent, report in reports.items() if report.diverged}
        if diverged and (failed or self.on_divergence == "skip"):
            _log.warning("%s", Diverged.of(diverged))
        if failed:
            raise UpdateFailed.of(failed)
        if diverged and self.on_divergence == "raise":
            raise Diverged.of(diverged)

    @one_thread
    def train(self, total_steps: int, on_update: OnUpdate | None = None, **how: Unpack[LoopWords]) -> LoopReport:
        """Train for a number of steps of environments (all rows together), with an update whenever one is due.

        Args:
            total_steps: Number of steps from now on; at least so many are made.
            on_update: Called after every round of updates, with these learners.
            **how: `mode` ("sync", "overlap" or "free"; by default "sync", or the one of `parallel`) and the other
                fields of `LoopOptions`, which describes them. A wrong value raises ValueError, an unknown word
                TypeError, before anything starts.

        Returns:
            Lags, waiting times, and the share of time saved.
        """
        from parallel_envs.learners.loops import LoopOptions, open_loop

        self._check_open()
        known = ["total_steps", "on_update", *(field.name for field in dataclasses.fields(LoopOptions))]
        for name, value in how.items():
            if name not in known:
                raise unknown_keyword("train", name, value, known)
        if on_update is not None and not callable(on_update):
            raise TypeError(f"on_update={on_update!r} cannot be called. Give a function of these learners, or None.")
        options = LoopOptions(**{**self._how, **how})
        check_count("total_steps", total_steps)
        with open_loop(self, options) as loop:
            end = self.steps + total_steps
            while self.steps < end:
                if loop.advance() and on_update is not None:
                    on_update(self)
            if loop.settle() and on_update is not None:
                on_update(self)
            return loop.report()

    @property
    def mode(self) -> UpdateMode:
        """The object that runs updates; `mode.why` describes the choice."""
        return self._mode or self.run_by()

    @one_thread
    def run_by(
        self, key: Any = None, make: Callable[[Mapping[Agent, AgentParameters]], UpdateMode] | None = None
    ) -> UpdateMode:
        """Run updates by the mode that `make` returns, or by `update_mode`, until the next call with another key.

        There is one mode at a time: the one before is closed, so that its workers do not stay.
        """
        self._check_open()
        if self._mode is None or key != self._mode_key:
            self._close_mode()
            limits = self.workers, self.update_timeout
            self._mode = make(self._parameters) if make else MODES[self.update_mode](self._parameters, *limits)
            self._mode_key = key
        return self._mode

    def _close_mode(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.close()

    def returns(self) -> dict[Agent, float]:
        """Return each agent's mean return in its last 100 episodes, without agents that have finished no episode."""
        returns = {agent: list(own) for agent, own in self._episodes.returns.items()}  # another thread may be training
        return {agent: float(np.mean(own)) for agent, own in returns.items() if own}

    @property
    def num_episodes(self) -> dict[Agent, int]:
        """Number of episodes that each agent has finished, also before a loaded checkpoint was written."""
        return dict(self._episodes.num_episodes)

    # ---- states and checkpoints -------------------------------------------------------------------------------------

    @one_thread
    def states(self) -> dict[Agent, dict[str, Any]]:
        """Return each agent's state: see `AgentLearner.state`. Running episodes are not part of it."""
        self._check_open()
        if self.loop is not None:
            self.loop.settle()
        acting = self.policy.get_state()
        states = {agent: learner.state() for agent, learner in self.agents.items()}
        for agent, state in states.items():
            state["generator"]["acting"] = acting[agent][0]["generator"]
        return states

    @one_thread
    def load_states(self, states: Mapping[Agent, Mapping[str, Any]]) -> None:
        """Restore the states of these agents; others stay as they are. The next step begins new episodes."""
        self._check_open()
        self._check_states(states, "The given state")
        if self.loop is not None:
            self.loop.settle()
        if self._mode is not None:
            for agent in states:
                self._mode.changed(agent)
        for agent, state in states.items():
            self.agents[agent].load_state(dict(state))
        self.act_with({agent: self.agents[agent].actor() for agent in states})
        acting = self.policy.get_state()
        generators = {agent: state["generator"].get("acting") for agent, state in states.items()}
        self.policy.set_state(
            {agent: ({"generator": own, "memory": None}, acting[agent][1]) for agent, own in generators.items() if own}
        )
        self.forget_episodes()
        if self.loop is not None:
            self.loop.changed(states)

    def _check_states(self, states: Mapping[Agent, Mapping[str, Any]], where: str | Path) -> None:
        """Raise KeyError or BadCheckpoint unless each of these agents can load its state."""
        if not isinstance(states, Mapping):
            raise TypeError(f"{states!r} was given as states. Give a dict: {{agent: state}}, as `states()` returns.")
        for agent, state in states.items():
            if agent not in self.agents:
                raise KeyError(f"There is no agent {agent!r} here. There are {list(self.agents)}.")
            self.agents[agent].check_state(state, where)

    @one_thread
    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: a folder for each agent, safetensors and JSON. See `checkpoint.py`."""
        self._check_open()
        states = self.states()
        about = {
            "seed": self.seed,
            "steps": self.steps,
            "updates": self.updates,
            "returns": [list(self._episodes.returns[agent]) for agent in states],
            "episodes": [self._episodes.num_episodes[agent] for agent in states],
        }
        save_checkpoint(folder, states, about)

    @one_thread
    def load(self, folder: str | Path) -> None:
        """Load a checkpoint, including its seed. Nothing is changed if it does not fit."""
        self._check_open()
        checkpoint = load_checkpoint(folder)
        agents = checkpoint.agents
        if others := agents.keys() ^ self.agents.keys():
            raise KeyError(f"{folder} and these learners differ in the agents {sorted(map(str, others))}.")
        about: dict[str, Any] = {"returns": [[] for _ in agents], "episodes": None, **checkpoint.about}
        one_each = partial(conlist, min_length=len(agents), max_length=len(agents))
        kinds: dict[str, Any] = dict.fromkeys(("seed", "steps", "updates"), NonNegativeInt)
        kinds |= {"returns": one_each(list[float]), "episodes": one_each(NonNegativeInt) | None}
        for name, kind in kinds.items():
            try:
                TypeAdapter(kind).validate_python(about.get(name), strict=True)
            except ValidationError as error:
                text = f"{folder} says {name}={about.get(name)!r} about all agents. Nothing was loaded."
                raise BadCheckpoint(text) from error
        self._check_states(agents, folder)
        self.load_states(agents)
        episodes = about["episodes"] or map(len, about["returns"])  # earlier versions wrote neither of the two
        for agent, own, count in zip(agents, about["returns"], episodes, strict=True):
            self._episodes.returns[agent].clear()
            self._episodes.returns[agent].extend(own)
            self._episodes.num_episodes[agent] = count
        self.seed, self._tree = about["seed"], SeedTree(about["seed"])
        self.steps, self.updates = about["steps"], about["updates"]

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("Learners were used after they had been closed. Make new ones, and load a checkpoint.")
        if os.getpid() != self._owner:  # memory, workers and environments are shared with the owner
            raise ClosedError(
                f"These learners belong to process {self._owner}, and process {os.getpid()} was forked from it: make "
                "others there, and load a checkpoint."
            )

    @one_thread
    def close(self) -> None:
        """End workers and threads. The environments stay open. May be called again.

        In a process forked from the one that made the learners it does nothing.
        """
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        if self.loop is not None:
            self.loop.stop()
        self._close_mode()
        self.policy.close()
        for learner in self.agents.values():
            learner.close()

    def __reduce__(self) -> Any:
        raise TypeError("Learners hold workers and cannot be pickled or copied. Use save(folder), or their states().")

    def __repr__(self) -> str:
        why = self._mode.why if self._mode else self.update_mode
        return f"IndependentLearners({len(self.agents)} agents, {why}, {self.updates} updates)"


# ---- arguments --------------------------------------------------------------------------------------------------


def check_envs(envs: Any) -> None:
    """Raise ValueError or TypeError for environments that learners cannot use."""
    if not isinstance(envs, MultiAgentEnvManager):
        raise TypeError(
            f"{envs!r} was given as environments. Learners need a MultiAgentEnvManager, also for a single agent: "
            "MultiAgentEnvManager([env_factory('CartPole-v1')] * 8), with env_factory from "
            "parallel_envs.multiagent.by_name."
        )
    if (mode := envs.metadata.get("autoreset_mode")) is not AutoresetMode.NEXT_STEP:
        raise ValueError(
            f"The environments have autoreset_mode={mode}, which hides what agents saw last. Give NEXT_STEP."
        )
    if envs.turns != "simultaneous":
        raise ValueError(
            f"The environments have turns={envs.turns!r}: rewards for one agent's action come in others' turns. Make "
            "them with turns='simultaneous'."
        )
    if envs.is_open:
        raise ValueError("The environments do not say which agents may come. Learners need `possible_agents`.")


def with_train_interval(config: Any, interval: int | None) -> Any:
    """Return the config with this `train_interval` if it has its default value."""
    default = getattr(type(config), "train_interval", None)
    if interval is None or default is None or config.train_interval != default:
        return config
    return dataclasses.replace(config, train_interval=interval)
