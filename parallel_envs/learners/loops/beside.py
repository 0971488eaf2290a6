"""What "overlap" and "free" share: a side that learns beside the one that collects, and what passes between them.

Three things happen to a result, in this order: it is *noted* (counters, priorities, metrics), which plans that are
drawn later depend on; plans are drawn, with how likely the actions were for the weights that took them; then the new
weights are *adopted*. An agent that learns on-policy adopts between two of its rollouts only, so one version acts
throughout each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent, Plan
from parallel_envs.learners.loops.accounts import Accounts, LoopReport
from parallel_envs.learners.loops.behavior_policy import BehaviorPolicy
from parallel_envs.learners.loops.learner_thread import (
    InlineUpdates,
    Job,
    LearnerThread,
    Result,
    SubmittedUpdates,
    open_runner,
)
from parallel_envs.learners.loops.loop import Loop, Metrics
from parallel_envs.learners.loops.options import LoopOptions
from parallel_envs.rollouts.priorities import PrioritizedReplayBuffer
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.threads import one_torch_thread

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


class BesideLoop(Loop):
    """Collects in the caller, and has a `SubmittedUpdates` learn."""

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int, *, merge: bool) -> None:
        super().__init__(learners)
        self.options = options
        self._planned = {agent: one.version for agent, one in learners.agents.items()}
        self._lived = {agent: one.counters["steps"] for agent, one in learners.agents.items()}
        self._understudies = {agent: BehaviorPolicy(one) for agent, one in learners.agents.items()}
        learner = open_runner(learners, options, workers)
        self._threads = one_torch_thread()  # for as long as two threads may use torch: it is one number for both
        self._threads.__enter__()
        self.side: SubmittedUpdates = (
            InlineUpdates(learner) if options.learn_in == "serial" else LearnerThread(learner, merge=merge)
        )
        self._accounts = Accounts(options.mode)
        self._stopped = False

    # ---- what passes between the sides ------------------------------------------------------------------------------

    def _plan(self, agent: Agent) -> Job | None:
        """Draw an agent's next update. None if it has not lived since the last one."""
        learner = self.learners.agents[agent]
        if not learner.algorithm.on_policy:
            plan, versions = learner.plan(), np.array([learner.acting_version])
        else:
            versions = learner.stamps[: learner.memory.num_steps].copy()
            plan = learner.plan()
            if plan is None:
                return None
            if "valid" not in plan.arrays:
                raise ValueError(
                    f"Agent {agent!r}: plans of {type(learner.algorithm).__name__} have no `valid`, so nobody knows "
                    "how old what they hold is. Train it in mode='sync', or have its plans say which steps were lived, "
                    "as PPO's do."
                )
            versions = np.repeat(versions, plan.arrays["valid"].sum(1))
            plan, carry = self._understudies[agent].witnessed(plan, corrected=self.options.vtrace)
            learner.carry_on(carry)
        assert plan is not None
        return self._job(learner, self._kept(plan), versions)

    def _kept(self, plan: Plan) -> Plan:
        """The plan as it can wait: until the next one is drawn, unless a subclass copies it."""
        return plan

    def _job(self, learner: AgentLearner, plan: Plan, versions: Any) -> Job:
        agent, steps = learner.agent, learner.counters["steps"]
        num_added = 0 if isinstance(learner.memory, TrajectoryStore) else learner.memory.num_added
        job = Job(agent, plan, versions, self._planned[agent], steps - self._lived[agent], num_added)
        self._planned[agent] += 1
        self._lived[agent] = steps
        return job

    def _note(self, results: Sequence[Result]) -> Metrics:
        """Take down what has been learnt: what acts stays as it is."""
        for result in results:
            job, learner = result.job, self.learners.agents[result.job.agent]
            learner.finish(dataclasses.replace(result.report, carry=None, taught=None), job.plan)
            self._weigh(learner, result)
            self._accounts.learnt(job.agent, job.lags)
        return {result.job.agent: self.learners.agents[result.job.agent].metrics for result in results}

    def _weigh(self, learner: AgentLearner, result: Result) -> None:
        """Tell a replay buffer what its steps have taught: those that have not been written over meanwhile."""
        memory, taught, job = learner.memory, result.report.taught, result.job
        if taught is not None and isinstance(memory, PrioritizedReplayBuffer):
            memory.update_priorities(job.plan.arrays["indices"], taught, drawn_at=job.num_added)

    def _adopt(self, results: Sequence[Result]) -> None:
        """Act with what has been learnt. Raises `Diverged` where that is asked for."""
        if not results:
            return
        newest = {result.job.agent: result.weights for result in results}
        self.learners.act_with({agent: self._understudies[agent].adopt(own) for agent, own in newest.items()})
        self.learners.tell_of({result.job.agent: result.report for result in results})

    def _wait_for(self, agents: Iterable[Agent] | None) -> None:
        """Wait until these agents (None: all) have learnt all that they were to."""
        wanted = None if agents is None else list(agents)
        self._wait(lambda side: not side.num_unlearnt(wanted))

    def _wait(self, is_so: Callable[[SubmittedUpdates], bool]) -> None:
        """Wait for the side that learns."""
        waited = self._accounts.waited
        with self._accounts.waiting(), self.while_waiting():
            self.side.wait_until(is_so)
        self.learners.seconds["update"] += self._accounts.waited - waited

    # ---- a loop -----------------------------------------------------------------------------------------------------

    def settle(self) -> Metrics:
        if self._stopped:
            return {}
        self._wait_for(None)
        return self._finish_up()

    def _finish_up(self) -> Metrics:
        results = self.side.take()
        metrics = self._note(results)
        self.changed(self.learners.agents)
        if any(self._is_amid_rollout(result.job.agent) for result in results):
            self.learners.forget_episodes()
        for round_ in rounds_of(results):
            self.learners.tell_of({result.job.agent: result.report for result in round_})
        return metrics

    def _is_amid_rollout(self, agent: Agent) -> bool:
        """Whether an agent has lived part of a rollout: other weights are not to act in the rest of it."""
        memory = self.learners.agents[agent].memory
        return isinstance(memory, TrajectoryStore) and memory.num_steps > 0

    def changed(self, agents: Iterable[Agent]) -> None:
        learners = {agent: self.learners.agents[agent] for agent in agents}
        for agent, learner in learners.items():
            self._planned[agent], self._lived[agent] = learner.version, learner.counters["steps"]
        fresh = {agent: self._understudies[agent].adopt(one.acting_weights()) for agent, one in learners.items()}
        self.learners.act_with(fresh)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.side.stop()
        results = self.side.take()
        self._note(results)
        self.learners.updates += len(rounds_of(results))
        self._threads.__exit__(None, None, None)
        if not self.learners.closed:
            self.changed(self.learners.agents)

    def report(self) -> LoopReport:
        return self._accounts.report(self.side.learner.seconds, self.side.waited, self.lived())


def rounds_of(results: Sequence[Result]) -> list[list[Result]]:
    """Results in groups of different agents, in order."""
    rounds: list[list[Result]] = []
    for result in results:
        if not rounds or any(result.job.agent == other.job.agent for other in rounds[-1]):
            rounds.append([])
        rounds[-1].append(result)
    return rounds
