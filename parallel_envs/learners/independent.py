"""`IndependentLearners`: many agents that learn side by side, and share nothing.

    with MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=8) as envs:
        with IndependentLearners(envs, PPOConfig(rollout_length=128), seed=1) as learners:
            learners.train(100_000)
            print(learners.returns())

Each agent has its own network, optimiser, buffer and random generator; no number of one depends on another's except
through the environments. What is done for all at once (acting, updates) is done so only to be quicker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from parallel_envs.errors import ClosedError
from parallel_envs.learners.algorithm import Agent, AlgorithmConfig, Plan
from parallel_envs.learners.arguments import check_options, configs_of, no_actions
from parallel_envs.learners.brain import Diverged, Report
from parallel_envs.learners.learner import AgentLearner
from parallel_envs.learners.life import Life
from parallel_envs.learners.updates import MODES
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.seeding import SeedTree
from parallel_envs.wrappers import WrappedMultiAgentPolicy

_log = logging.getLogger(__name__)

Flags = npt.NDArray[np.bool_]
Named = dict[Agent, Any]
Watcher = Callable[["IndependentLearners"], None]


class IndependentLearners:
    """Learners of all agents of some environments.

    `agents[agent]` is an `AgentLearner`; `agents[agent].model.memory` is what it has lived. Agents that die, join or
    are absent learn from what they lived and nothing else.

    Args:
        envs: The environments, with `autoreset_mode=NEXT_STEP` and `turns="simultaneous"` (the defaults). Whoever made
            them closes them.
        config: `PPOConfig`, `DQNConfig` or `SACConfig`, or one for each agent in a dict.
        update_mode: How updates are run: "sequential", "thread", "process", "fused", or "auto", which measures. All
            come to the same numbers, up to rounding.
        seed: All that is random here follows from it.
        strategy: How actions are computed: see `WrappedMultiAgentPolicy`.
        workers: How many threads or processes updates may use.
        on_divergence: An agent's update that is not finite is undone, and the agent named: in a log with "skip", in a
            `Diverged` error with "raise". The others have learnt in either case.
    """

    def __init__(
        self,
        envs: MultiAgentEnvManager,
        config: AlgorithmConfig | Mapping[Agent, AlgorithmConfig],
        *,
        update_mode: str = "auto",
        seed: int = 0,
        strategy: str | Mapping[Agent, str] = "batch",
        workers: int | None = None,
        on_divergence: str = "skip",
    ) -> None:
        check_options(envs, update_mode, on_divergence)
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
                seed=self._tree.child("learner", str(agent)),
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
        self._observations: Named | None = None
        self._life = Life(list(self.agents), envs.num_envs)
        self.policy = WrappedMultiAgentPolicy({agent: one.policy() for agent, one in self.agents.items()}, strategy)
        """What acts."""
        try:
            self.mode = MODES[update_mode]({agent: one.brain for agent, one in self.agents.items()}, workers)
            """How updates are run; `mode.why` says which way was chosen."""
        except BaseException:
            self.policy.close()
            raise

    # ---- living -----------------------------------------------------------------------------------------------------

    def begin(self, seed: int | None = None) -> None:
        """Reset all environments. What was lived and not yet learnt from on-policy is dropped.

        Args:
            seed: Of the environments. None: one that follows from the learners' seed and from how far they are.
        """
        self._check_open()
        seed = self._tree.child("envs", self.steps).seed() if seed is None else seed
        self._observations, _ = self.envs.reset(seed=seed)
        self.policy.reset()
        self._life.begin(self.envs.present)
        for agent, learner in self.agents.items():
            learner.begin(self._observations[agent], self._life.begins[agent])

    def act(self) -> Named:
        """Actions of those who are alive, for the observations that the environments returned last."""
        if self._observations is None:
            self.begin()
        assert self._observations is not None
        there = {agent: self.envs.alive[agent] & self.envs.present[agent] for agent in self.agents}
        asked = {agent: self._observations[agent] for agent, rows in there.items() if rows.any()}
        return self.policy.step(asked, {agent: there[agent] for agent in asked})

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
        begins_before = self._life.begins
        lost = np.asarray(infos.common.get("worker_restarted", np.zeros(self.envs.num_envs)), np.bool_)
        over = self._life.go_on(alive_before, self.envs.alive, self.envs.present, rewards, lost)
        self.steps += over.num_steps
        assert self._observations is not None
        for agent, learner in self.agents.items():
            learner.observe(
                self._observations[agent],
                begins_before[agent],
                actions[agent] if agent in actions else no_actions(self.envs, agent),
                rewards[agent],
                terminations[agent],
                truncations[agent],
                observations[agent],
                alive_before[agent] & ~lost,
                self._life.begins[agent],
            )
        self._observations = observations
        if over.anew.any():
            self.policy.reset(over.anew)

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

    def update(self) -> dict[Agent, dict[str, float]]:
        """Have those learn for whom it is time. Returns their metrics; empty if it is nobody's time."""
        self._check_open()
        began = time.perf_counter()
        plans = {agent: plan for agent, one in self.agents.items() if one.ready and (plan := one.plan()) is not None}
        if plans:
            self._learn(plans)
        self.seconds["update"] += time.perf_counter() - began
        return {agent: self.agents[agent].metrics for agent in plans}

    def _learn(self, plans: Mapping[Agent, Plan]) -> None:
        reports = self.mode.update(plans)
        self.updates += 1
        for agent, report in reports.items():
            self.agents[agent].finish(report)
        self.policy.load_state_dict({agent: self.agents[agent].acting_weights() for agent in reports})
        self._tell_of({agent: report for agent, report in reports.items() if report.diverged})

    def _tell_of(self, diverged: Mapping[Agent, Report]) -> None:
        if not diverged:
            return
        lines = [f"Agent {agent!r} has not learnt: {report.diverged}." for agent, report in diverged.items()]
        text = " ".join(lines) + (
            " Its numbers are as they were before. Look for rewards or observations that are not finite or very large, "
            "or give a lower learning_rate."
        )
        if self.on_divergence == "raise":
            raise Diverged(text, tuple(diverged))
        _log.warning("%s", text)

    def train(self, total_steps: int, on_update: Watcher | None = None) -> None:
        """Go on for so many steps of environments (all rows together), learning whenever it is time.

        Args:
            total_steps: From now on; at least so many are made.
            on_update: Called after every round of updates, with these learners.
        """
        end = self.steps + total_steps
        while self.steps < end:
            self.step()
            if self.update() and on_update is not None:
                on_update(self)

    def returns(self) -> dict[Agent, float]:
        """Each agent's mean return in the last 100 episodes that it was in; without those who have finished none."""
        return {agent: float(np.mean(own)) for agent, own in self._life.returns.items() if own}

    # ---- keeping ----------------------------------------------------------------------------------------------------

    def states(self) -> dict[Agent, dict[str, Any]]:
        """All that each agent is: see `AgentLearner.state`. Episodes that are being played are not part of it."""
        acting = self.policy.get_state()
        states = {agent: learner.state() for agent, learner in self.agents.items()}
        for agent, state in states.items():
            state["generator"]["acting"] = acting[agent][0]["generator"]
        return states

    def load_states(self, states: Mapping[Agent, Mapping[str, Any]]) -> None:
        """Have these agents become what `states` told; others stay. The next step begins new episodes."""
        for agent in states:
            if agent not in self.agents:
                raise KeyError(f"There is no agent {agent!r} here. There are {list(self.agents)}.")
        for agent, state in states.items():
            self.agents[agent].load_state(dict(state))
            self.mode.changed(agent)
        self.policy.load_state_dict({agent: self.agents[agent].acting_weights() for agent in states})
        acting = self.policy.get_state()
        drawn = {agent: state["generator"].get("acting") for agent, state in states.items()}
        self.policy.set_state(
            {agent: ({"generator": own, "memory": None}, acting[agent][1]) for agent, own in drawn.items() if own}
        )
        self._observations = None

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: a folder for each agent, safetensors and JSON. See `checkpoints.py`."""
        from parallel_envs.learners.checkpoints import save_checkpoint

        about = {"seed": self.seed, "steps": self.steps, "updates": self.updates}
        save_checkpoint(folder, self.states(), about)

    def load(self, folder: str | Path) -> None:
        """Become what a checkpoint holds. Nothing is changed if it does not fit."""
        from parallel_envs.learners.checkpoints import check_fits, load_checkpoint

        checkpoint = load_checkpoint(folder)
        own = self.states()
        if odd := checkpoint.agents.keys() ^ self.agents.keys():
            raise KeyError(f"{folder} and these learners differ in the agents {sorted(map(str, odd))}.")
        for agent, state in checkpoint.agents.items():
            check_fits(state, own[agent], agent, folder)
        self.load_states(checkpoint.agents)
        self.steps, self.updates = checkpoint.about["steps"], checkpoint.about["updates"]

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("Learners were used after they had been closed. Make new ones, and load a checkpoint.")

    def close(self) -> None:
        """Let go of workers and threads. The environments stay as they are. May be called again."""
        if self.closed:
            return
        self.closed = True
        self.mode.close()
        self.policy.close()
        for learner in self.agents.values():
            learner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"IndependentLearners({len(self.agents)} agents, {self.mode.why}, {self.updates} updates)"
