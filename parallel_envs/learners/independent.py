"""`IndependentLearners`: many agents that learn side by side, and share nothing.

    with MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=8) as envs:
        with IndependentLearners(envs, PPOConfig(rollout_length=128), seed=1) as learners:
            learners.train(100_000)
            print(learners.returns())

Each agent has its own network, optimiser, buffer and random generator; no number of one depends on another's except
through the environments. What is done for all at once (acting, updates) is done so only to be quicker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from parallel_envs.choices import OnDivergence, Strategy, UpdateModeName
from parallel_envs.closing import ClosedAtExit
from parallel_envs.errors import ClosedError
from parallel_envs.learners.algorithm import Agent, AlgorithmConfig
from parallel_envs.learners.arguments import (
    check_options,
    check_said_once,
    check_words,
    configs_of,
    no_actions,
    with_train_interval,
)
from parallel_envs.learners.brain import Brain, Diverged, Report
from parallel_envs.learners.keeping import check_states, load_states_from, put_states, save_states_to, states_of
from parallel_envs.learners.learner import AgentLearner
from parallel_envs.learners.life import Life
from parallel_envs.learners.runner import Make, Runner
from parallel_envs.learners.updates import MODES, UPDATE_TIMEOUT, UpdateMode, mode_for
from parallel_envs.learners.updates.failures import UpdateFailed
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, one_thread
from parallel_envs.vector.checks import optional_seconds
from parallel_envs.wrappers import WrappedMultiAgentPolicy

if TYPE_CHECKING:
    from parallel_envs.learners.loops import Loop, LoopReport
    from parallel_envs.learners.loops.options import LoopWords

_log = logging.getLogger(__name__)

_LAST_IN: weakref.WeakKeyDictionary[MultiAgentEnvManager, Any] = weakref.WeakKeyDictionary()
"""Whose episodes are being played in which environments."""

Flags = npt.NDArray[np.bool_]
Named = dict[Agent, Any]
Watcher = Callable[["IndependentLearners"], None]


class IndependentLearners(ClosedAtExit):
    """Learners of all agents of some environments.

    `agents[agent]` is an `AgentLearner`; `agents[agent].model.memory` is what it has lived. Agents that die, join or
    are absent learn from what they lived and nothing else. Where masks of actions are looked for stands in `masks.py`.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method, such as `train`,
    raises `ConcurrentCall` and does nothing; so does `close`. `returns` may be called meanwhile.

    Args:
        envs: The environments, with `autoreset_mode=NEXT_STEP` and `turns="simultaneous"` (the defaults). Whoever made
            them closes them. Several learners may take turns in them, each with new episodes. Who resets or steps them
            in between calls `forget_episodes` then.
        config: `PPOConfig`, `DQNConfig` or `SACConfig`, or one for each agent in a dict.
        update_mode: How updates are run: "sequential", "thread", "process", "fused", or "auto", which measures and
            takes the quickest. All come to the same numbers up to rounding, and each by itself to the same bits in
            every run; what "auto" takes may differ from run to run. "fused_or_process" (or `_thread`, `_sequential`) is
            "fused" for agents of one kind with small networks and minibatches, where that is quicker, else the other.
        seed: All that is random here follows from it.
        strategy: How actions are computed: see `WrappedMultiAgentPolicy`.
        workers: How many threads or processes updates may use.
        update_timeout: Seconds that a worker process has for a round of updates; None: as long as it takes. One that
            hangs is replaced and the update made again; the second time, `WorkerTimeout` says where it was. Threads,
            and what learns in the caller, cannot be ended and have no such limit.
        on_divergence: An agent's update that is not finite is undone, and the agent named: in a log with "skip", in a
            `Diverged` error with "raise". The others have learnt in either case.
        parallel: The block `parallel` of a settings file, as a dict: `{"parallel_training": True, "async_learning":
            True, "train_interval": 4, "num_workers": None, ...}`; see `ParallelBlock` in `settings.py`. It takes the
            place of `update_mode`, `strategy`, `workers` (here `num_workers` are workers that learn) and, of `train`,
            of `mode` and `learn_in`. A dict that holds it under "parallel" will do.

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
        parallel: Mapping[str, Any] | None = None,
    ) -> None:
        self._guard = CallGuard("IndependentLearners")
        self._how: dict[str, Any] = {}
        if parallel is not None:
            from parallel_envs.learners.settings import read_parallel

            check_said_once(update_mode=(update_mode, "fused"), strategy=(strategy, "batch"), workers=(workers, None))
            meant = read_parallel(parallel)
            update_mode, strategy, workers = meant["update_mode"], meant["strategy"], meant["worker_budget"]
            self._how = {name: meant[name] for name in ("mode", "learn_in")}
            config = with_train_interval(config, meant["train_interval"])
        check_options(envs, update_mode, on_divergence, workers)
        self.envs, self.seed, self.on_divergence = envs, seed, on_divergence
        self._tree = SeedTree(seed)
        configs = configs_of(envs, config)
        self.agents: dict[Agent, AgentLearner] = {
            agent: AgentLearner(
                agent,
                own,
                envs.single_observation_space(agent),
                envs.single_action_space(agent),
                num_rows=envs.num_envs,
                seed=self._tree.child("learner", *_stream_of(agent)),
            )
            for agent, own in configs.items()
        }
        self.updates = 0
        """Rounds of updates: some agents' at a time."""
        self.steps = 0
        """Of environments, all rows together; resets not counted."""
        self.seconds = {"collect": 0.0, "act": 0.0, "update": 0.0}
        """What the time went into."""
        self.closed = False
        self._owner = os.getpid()
        self._observations: Named | None = None
        self._life = Life(list(self.agents), envs.num_envs)
        self.policy = WrappedMultiAgentPolicy({agent: one.policy() for agent, one in self.agents.items()}, strategy)
        """What acts."""
        brains = {agent: one.brain for agent, one in self.agents.items()}
        self.update_mode, self.workers = mode_for(update_mode, brains), workers
        self.update_timeout = optional_seconds("update_timeout", update_timeout)
        self.loop: Loop | None = None
        """What collects and learns just now, if `train` does."""
        self._runner = Runner(brains)

    # ---- living -----------------------------------------------------------------------------------------------------

    @one_thread
    def begin(self, seed: int | None = None) -> None:
        """Reset all environments. What was lived and not yet learnt from on-policy is dropped.

        Args:
            seed: Of the environments. None: one that follows from the learners' seed and from how far they are.
        """
        self._check_open()
        seed = self._tree.child("envs", self.steps).seed() if seed is None else seed
        self._observations, _ = self.envs.reset(seed=seed)
        _LAST_IN[self.envs] = weakref.ref(self)
        self.policy.reset()
        self._life.begin(self.envs.present)
        for agent, learner in self.agents.items():
            learner.begin(self._observations[agent], self._life.begins[agent])

    def forget_episodes(self) -> None:
        """The next step begins new episodes: what is being lived is of no account any more."""
        self._observations = None

    @one_thread
    def act(self) -> Named:
        """Actions of those who are alive, for the observations that the environments returned last."""
        self._check_open()
        if self._observations is None or _LAST_IN[self.envs]() is not self:
            self.begin()
        assert self._observations is not None
        there = {agent: self.envs.alive[agent] & self.envs.present[agent] for agent in self.agents}
        asked = {agent: self._observations[agent] for agent, rows in there.items() if rows.any()}
        return self.policy.step(asked, {agent: there[agent] for agent in asked})

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
        """Take in a step: what everyone did, and what the environments returned. `alive_before`: who acted where."""
        self._check_open()
        before = self._observations
        if before is None:
            raise RuntimeError(
                "A step was to be taken in before anybody had acted. Call act(), step the environments with that, and "
                "observe what they return; step() does all of it."
            )
        begins_before = self._life.begins
        lost = np.asarray(infos.common.get("worker_restarted", np.zeros(self.envs.num_envs)), np.bool_)
        over = self._life.go_on(
            alive_before, self.envs.alive, self.envs.present, rewards, terminations, truncations, lost
        )
        self.steps += over.num_steps
        for agent, learner in self.agents.items():
            learner.observe(
                before[agent],
                begins_before[agent],
                actions[agent] if agent in actions else no_actions(self.envs, agent),
                rewards[agent],
                terminations[agent],
                truncations[agent] | over.unseen[agent] if agent in over.unseen else truncations[agent],
                observations[agent],
                over.lived[agent],
                self._life.begins[agent],
            )
        self._observations = observations
        if over.anew.any():
            self.policy.reset(over.anew)
        for agent, rows in over.returned.items():
            self.policy.reset(rows, agents=[agent])

    @one_thread
    def step(self) -> None:
        """Act, step the environments, and take in what came of it."""
        began = time.perf_counter()
        actions = self.act()
        acted = time.perf_counter()
        before = {agent: self.envs.alive[agent] & self.envs.present[agent] for agent in self.agents}
        self.observe(actions, *self.envs.step(actions), before)
        self.seconds["act"] += acted - began
        self.seconds["collect"] += time.perf_counter() - acted

    # ---- learning ---------------------------------------------------------------------------------------------------

    @one_thread
    def update(self) -> dict[Agent, dict[str, float]]:
        """Have those learn for whom it is time. Returns their metrics; empty if it is nobody's time.

        Raises:
            UpdateFailed: An agent's update raised; it is undone. The others have learnt.
            Diverged: Likewise, with on_divergence="raise", for numbers that were not finite.
        """
        self._check_open()
        began = time.perf_counter()
        plans = {agent: plan for agent, one in self.agents.items() if one.ready and (plan := one.plan()) is not None}
        if plans:
            mode = self.mode
            with contextlib.nullcontext() if mode.is_elsewhere else Interrupts():  # all of it, or a second Ctrl-C
                self._finish(mode.update(plans))
        self.seconds["update"] += time.perf_counter() - began
        return {agent: self.agents[agent].metrics for agent in plans}

    def _finish(self, reports: Mapping[Agent, Report]) -> None:
        for agent, report in reports.items():
            self.agents[agent].finish(report)
        self.act_with({agent: self.agents[agent].acting_weights() for agent in reports})
        self.tell_of(reports)

    @one_thread
    def act_with(self, weights: Mapping[Agent, Any]) -> None:
        """These agents' newest weights act from now on."""
        self.policy.load_state_dict(weights)
        for agent in weights:
            self.agents[agent].acting_version = self.agents[agent].version

    @one_thread
    def tell_of(self, reports: Mapping[Agent, Report]) -> None:
        """A round of updates has been made: count it, and name those who have not learnt.

        Raises `UpdateFailed` for those whose updates raised; who has diverged is told as `on_divergence` says.
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
    def train(self, total_steps: int, on_update: Watcher | None = None, **how: Unpack[LoopWords]) -> LoopReport:
        """Go on for so many steps of environments (all rows together), learning whenever it is time.

        Args:
            total_steps: From now on; at least so many are made.
            on_update: Called after every round of updates, with these learners.
            **how: `mode` ("sync", "overlap" or "free"; by default "sync", or what `parallel` said) and the other fields
                of `LoopOptions`, which says what they mean. What cannot be is a ValueError, another word a TypeError,
                before anything starts.

        Returns:
            Lags, waiting times, and how much of the time was saved.
        """
        from parallel_envs.learners.loops import LoopOptions, run_loop

        self._check_open()
        check_words(how, LoopOptions)
        if on_update is not None and not callable(on_update):
            raise TypeError(f"on_update={on_update!r} cannot be called. Give a function of these learners, or None.")
        return run_loop(self, LoopOptions(**{**self._how, **how}), total_steps, on_update)

    @property
    def mode(self) -> UpdateMode:
        """How updates are run; `mode.why` says which way was chosen."""
        return self._runner.mode or self.run_by()

    @one_thread
    def run_by(self, key: Any = None, make: Make | None = None) -> UpdateMode:
        """Have updates run in the way that `make` makes, or as was asked for at first, until there is yet another.

        One that was made with the same key is kept.
        """
        self._check_open()
        return self._runner.put(key, make or self._as_asked)

    def _as_asked(self, brains: Mapping[Agent, Brain]) -> UpdateMode:
        return MODES[self.update_mode](brains, self.workers, self.update_timeout)

    def returns(self) -> dict[Agent, float]:
        """Each agent's mean return in the last 100 episodes that it was in; without those who have finished none."""
        returns = {agent: list(own) for agent, own in self._life.returns.items()}  # another thread may be training
        return {agent: float(np.mean(own)) for agent, own in returns.items() if own}

    @property
    def num_episodes(self) -> dict[Agent, int]:
        """How many episodes each agent has finished. Of learners that were loaded from a checkpoint, those before it
        count too (of one that an earlier version wrote, at most the last 100)."""
        return dict(self._life.num_episodes)

    # ---- keeping ----------------------------------------------------------------------------------------------------

    @one_thread
    def states(self) -> dict[Agent, dict[str, Any]]:
        """All that each agent is: see `AgentLearner.state`. Episodes that are being played are not part of it."""
        self._check_open()
        if self.loop is not None:
            self.loop.settle()
        return states_of(self)

    @one_thread
    def load_states(self, states: Mapping[Agent, Mapping[str, Any]]) -> None:
        """Have these agents become what `states` told; others stay. The next step begins new episodes."""
        self._check_open()
        check_states(self, states)
        if self.loop is not None:
            self.loop.settle()
        self._runner.changed(states)
        put_states(self, states)
        self.forget_episodes()
        if self.loop is not None:
            self.loop.changed(states)

    @one_thread
    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: a folder for each agent, safetensors and JSON. See `checkpoints.py`."""
        self._check_open()
        save_states_to(self, folder, self._life.returns, self._life.num_episodes)

    @one_thread
    def load(self, folder: str | Path) -> None:
        """Become what a checkpoint holds, its seed too. Nothing is changed if it does not fit."""
        self._check_open()
        about, returns, num_episodes = load_states_from(self, folder)
        self._life.recall(returns, num_episodes)
        self.seed, self._tree = about["seed"], SeedTree(about["seed"])
        self.steps, self.updates = about["steps"], about["updates"]

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("Learners were used after they had been closed. Make new ones, and load a checkpoint.")
        if os.getpid() != self._owner:  # what was lived, workers and environments are shared with the owner
            raise ClosedError(
                f"These learners belong to process {self._owner}, and process {os.getpid()} was forked from it: make "
                "others there, and load a checkpoint."
            )

    @one_thread
    def close(self) -> None:
        """Let go of workers and threads. The environments stay as they are. May be called again.

        In a process forked from the one that made the learners it does nothing.
        """
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        if self.loop is not None:
            self.loop.stop()
        self._runner.close()
        self.policy.close()
        for learner in self.agents.values():
            learner.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "Learners hold shared memory, environments and workers, and cannot be pickled or copied. Write them down "
            "with save(folder), or take their states()."
        )

    def __repr__(self) -> str:
        why = self._runner.mode.why if self._runner.mode else self.update_mode
        return f"IndependentLearners({len(self.agents)} agents, {why}, {self.updates} updates)"


def _stream_of(agent: Agent) -> tuple[str, ...]:
    """What names an agent's random numbers: 1 and "1" are two agents."""
    return (agent,) if isinstance(agent, str) else (type(agent).__name__, str(agent))
