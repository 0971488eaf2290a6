"""Loops that collect in the caller while updates run elsewhere: the overlapping one and the free one.

    overlap    collecting   rollout 1 │ rollout 2      │ rollout 3      │ ...
               learning               │ from rollout 1 │ from rollout 2 │ ...

In `overlap`, when an agent's next update is due, the loop waits for the agent's last update and only then takes its
result. So nothing depends on how long anything took. From its second update on, an agent is exactly one update behind.

In `free`, collecting and learning each run as fast as they can, within bounds that always hold:

- `queue`: collecting waits while so many plans have not been started.
- `max_lag`: collecting waits before a rollout of an agent whose acting weights are further behind its planned updates.
- `updates_per_step`: an agent with a replay buffer makes, whenever its updates are due, as many as keep this ratio.
  Collecting waits for them as `max_lag` says.

So weights that learn from a rollout are at most `max_lag` updates newer than the weights that acted in it, and no
experience has to be dropped as too old.

Both handle a finished update in the order of `AsyncLoop._exchange`. The result is recorded first (counters, priorities,
metrics), because later plans depend on it. The next plans come before the new weights, because they hold the
log-probabilities of actions under the weights that took them. An agent that learns on-policy gets new weights for
acting only between two of its rollouts, so one version acts throughout each rollout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_envs import trace
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.learner_thread import SCHEDULES, BehaviorPolicy, LearnerThread, Result, UpdateJob
from parallel_envs.learners.loops.loop import Loop, LoopOptions, Metrics
from parallel_envs.learners.updates import MODES, ProcessUpdates
from parallel_envs.rollouts.replay import PrioritizedReplayBuffer
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.threads import one_torch_thread

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

_REPAID = "repaid"  # an agent's counter, which checkpoints hold
_ROUNDING = 1e-9  # three times a third is to be a whole update


class AsyncLoop(Loop):
    """Collects in the caller while updates run elsewhere."""

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners, options.mode)
        self.options = options
        self._planned = {agent: one.version for agent, one in learners.agents.items()}
        self._lived = dict(self._steps_before)
        self._behavior = {agent: BehaviorPolicy(one) for agent, one in learners.agents.items()}
        kinds, update_mode = {one.algorithm.signature for one in learners.agents.values()}, learners.update_mode
        fuses = update_mode == "fused" or (update_mode == "auto" and len(kinds) < len(learners.agents))
        where, inner = options.learn_in, "fused" if fuses else "sequential"
        if where == "process":
            limits, at_once = (workers, learners.update_timeout, inner), fuses or workers > 1
            mode = learners.run_by((where, workers, inner), lambda own: ProcessUpdates(own, *limits))
            assert isinstance(mode, ProcessUpdates)
            mode.resume()
        else:
            here = "thread" if where == update_mode == "thread" else inner
            mode, at_once = (
                learners.run_by((where, workers, here), lambda own: MODES[here](own, workers)),
                here != "sequential",
            )
        schedule = options.schedule if callable(options.schedule) else SCHEDULES[options.schedule]
        self._one_thread = one_torch_thread()  # two threads use torch now, and its number of threads is one for both
        self._one_thread.__enter__()
        merge, inline = options.mode == "free", where == "serial"
        self.updates = LearnerThread(mode, schedule, at_once=at_once, merge=merge, inline=inline)
        self._stopped = False
        learners.act_with({agent: one.actor for agent, one in self._behavior.items()})

    # ---- parts of `advance` -----------------------------------------------------------------------------------------

    def _next_job(self, agent: Agent) -> UpdateJob | None:
        """Draw an agent's next update. Returns None if the agent has not lived since its last update."""
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
                    f"Agent {agent!r}: plans of {type(learner.algorithm).__name__} have no `valid`, so the age of "
                    "their steps is unknown. Train it in mode='sync', or have its plans say which steps were lived, as "
                    "PPO's do."
                )
            versions = np.repeat(versions, plan.arrays["valid"].sum(1))
            plan, learner.carry = self._behavior[agent].with_log_probs(plan, corrected=self.options.vtrace)
        assert plan is not None
        if self.options.mode == "free":  # the memory may be overwritten before the plan is learnt from
            plan = dataclasses.replace(plan, arrays={name: np.array(array) for name, array in plan.arrays.items()})
        steps = learner.counters["steps"]
        num_added = 0 if isinstance(learner.memory, TrajectoryStore) else learner.memory.num_added
        job = UpdateJob(agent, plan, versions, self._planned[agent], steps - self._lived[agent], num_added)
        self._planned[agent] += 1
        self._lived[agent] = steps
        return job

    def _record(self, results: Sequence[Result]) -> Metrics:
        """Record finished updates in counters, metrics and priorities. The acting weights stay the same."""
        for result in results:
            job, taught = result.job, result.report.taught
            learner = self.learners.agents[job.agent]
            learner.finish(dataclasses.replace(result.report, carry=None, taught=None), job.plan)
            if taught is not None and isinstance(learner.memory, PrioritizedReplayBuffer):
                # `drawn_at` leaves out steps that have been overwritten since the plan was drawn.
                learner.memory.update_priorities(job.plan.arrays["indices"], taught, drawn_at=job.num_added)
            self._count(job.agent, job.lags)
        return {result.job.agent: self.learners.agents[result.job.agent].metrics for result in results}

    def _exchange(self, agents: Sequence[Agent], *, draws: bool = True) -> tuple[Metrics, list[UpdateJob]]:
        """Record what these agents have learnt, draw their next updates, and only then act with the new weights.

        Raises `Diverged` and `UpdateFailed` as `IndependentLearners.update` does.
        """
        with self._timed("collect"):
            results = self.updates.take(agents)
            metrics = self._record(results)
            jobs = [job for agent in agents if draws and (job := self._next_job(agent)) is not None]
            for round_ in rounds_of(results):
                newest = {result.job.agent: self._behavior[result.job.agent].load(result.weights) for result in round_}
                self.learners.act_with(newest)
                self.learners.tell_of({result.job.agent: result.report for result in round_})
        return metrics, jobs

    def _wait(self, is_so: Callable[[LearnerThread], bool]) -> None:
        """Wait until this holds for the submitted updates."""
        before = self.seconds["wait"]
        with trace.span("wait for learning"), self._timed("wait"), self.while_waiting():
            self.updates.wait_until(is_so)
        self.learners.seconds["update"] += self.seconds["wait"] - before

    # ---- a loop -----------------------------------------------------------------------------------------------------

    def settle(self) -> Metrics:
        if self._stopped:
            return {}
        self._wait(lambda updates: not updates.num_unfinished())
        results = self.updates.take()
        metrics = self._record(results)
        self.changed(self.learners.agents)
        memories = [self.learners.agents[result.job.agent].memory for result in results]
        if any(isinstance(memory, TrajectoryStore) and memory.num_steps > 0 for memory in memories):
            self.learners.forget_episodes()  # in mid-rollout: the rest of it must not be acted by other weights
        for round_ in rounds_of(results):
            self.learners.tell_of({result.job.agent: result.report for result in round_})
        return metrics

    def changed(self, agents: Iterable[Agent]) -> None:
        learners = {agent: self.learners.agents[agent] for agent in agents}
        for agent, learner in learners.items():
            self._planned[agent], self._lived[agent] = learner.version, learner.counters["steps"]
        fresh = {agent: self._behavior[agent].load(one.acting_weights()) for agent, one in learners.items()}
        self.learners.act_with(fresh)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.updates.stop()
        results = self.updates.take()
        self._record(results)
        self.learners.updates += len(rounds_of(results))
        self._one_thread.__exit__(None, None, None)
        if not self.learners.closed:
            self.learners.act_with({agent: one.actor() for agent, one in self.learners.agents.items()})

    def _learning_seconds(self) -> tuple[float, float]:
        return self.updates.seconds, self.updates.waited


class OverlapLoop(AsyncLoop):
    """Collects one update ahead of learning, with the same result in every run."""

    def advance(self) -> Metrics:
        with self._timed("collect"):
            self.learners.step()
        due = [agent for agent, one in self.learners.agents.items() if one.ready]
        if not due:
            return {}
        self._wait(lambda updates: not updates.num_unfinished(due))
        metrics, jobs = self._exchange(due)
        if jobs:
            self.updates.submit(jobs)
        return metrics


def rounds_of(results: Sequence[Result]) -> list[list[Result]]:
    """Split results, in order, into rounds of different agents."""
    rounds: list[list[Result]] = []
    for result in results:
        if not rounds or any(result.job.agent == other.job.agent for other in rounds[-1]):
            rounds.append([])
        rounds[-1].append(result)
    return rounds


class FreeLoop(AsyncLoop):
    """Collects and learns as fast as possible. The result depends on timing.

    `updates_per_step` holds from `learning_starts` on: steps make updates due, and each update repays some steps. The
    repaid steps are one of the agent's counters, so a resumed run continues where it was.
    """

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners, options, workers)
        self._replaying = [agent for agent, one in learners.agents.items() if not one.algorithm.on_policy]
        self._ratios = dict.fromkeys(self._replaying, options.updates_per_step) if options.updates_per_step else {}
        self._minibatches = MinibatchSizes(learners.agents, options.minibatch) if options.minibatch else None

    def advance(self) -> Metrics:
        with self._timed("collect"):
            self.learners.step()
        metrics, _ = self._exchange(self._replaying, draws=False)
        for agent, learner in self.learners.agents.items():
            if not learner.ready:
                continue
            num_due = 1
            if agent in self._ratios:
                missing = learner.counters["steps"] - self._repaid(agent)
                num_due = math.floor(missing * self._ratios[agent] + _ROUNDING)
            for _ in range(num_due):
                metrics |= self._plan_update(agent)
        return metrics

    def _plan_update(self, agent: Agent) -> Metrics:
        """Submit an agent's next update, and wait until there is room for it and the agent's next rollout may begin."""
        if self._minibatches is not None and self.options.learn_in != "serial":  # in series, nothing ever waits
            self._minibatches.adapt(agent, self.seconds["wait"], self.updates.waited)
        if agent in self._ratios:
            self.learners.agents[agent].counters[_REPAID] = self._repaid(agent) + 1 / self._ratios[agent]
        metrics, jobs = self._exchange([agent])
        queue, max_lag = self.options.queue, self.options.max_lag
        assert queue is not None
        if jobs:
            self._wait(lambda updates: updates.num_waiting < queue)
            self.updates.submit(jobs)
        self._wait(lambda updates: updates.num_unfinished([agent]) <= max_lag)
        return metrics | self._exchange([agent], draws=False)[0]

    def _repaid(self, agent: Agent) -> float:
        """Return the steps for which updates were made, and those while the agent was frozen or learnt otherwise."""
        learner = self.learners.agents[agent]
        most_since = learner.config.train_interval * learner.memory.num_rows + 1 / self._ratios[agent]
        repaid = learner.counters.get(_REPAID, learner.config.learning_starts)
        return float(max(repaid, learner.counters["steps"] - most_since))

    def stop(self) -> None:
        super().stop()
        if self._minibatches is not None:
            self._minibatches.restore()


class MinibatchSizes:
    """Minibatch sizes that grow while learning is behind, so that updates are faster, and shrink while learning waits,
    so that updates make more of their data. The sizes depend on timing, so only the free loop has them.
    """

    def __init__(self, agents: Mapping[Agent, AgentLearner], bounds: tuple[int, int]) -> None:
        self._algorithms, self._bounds = {agent: one.algorithm for agent, one in agents.items()}, bounds
        self._configs: dict[Agent, Any] = {agent: one.config for agent, one in self._algorithms.items()}
        self._waits = 0.0, 0.0
        self.sizes: dict[Agent, int] = {}
        for agent, own in self._configs.items():
            self._set_size(agent, getattr(own, "minibatch_size", 0) or own.batch_size)

    def adapt(self, agent: Agent, collect_waited: float, learn_waited: float) -> None:
        """Choose the size of an agent's next minibatches, from the seconds that each part of the loop has waited."""
        behind = collect_waited - self._waits[0] - (learn_waited - self._waits[1])
        self._waits = collect_waited, learn_waited
        if behind:
            self._set_size(agent, self.sizes[agent] * 2 if behind > 0 else self.sizes[agent] // 2)

    def _set_size(self, agent: Agent, size: int) -> None:
        """Set the size, moved within the bounds."""
        self.sizes[agent] = size = min(max(size, self._bounds[0]), self._bounds[1])
        config = self._configs[agent]
        field = "minibatch_size" if hasattr(config, "minibatch_size") else "batch_size"
        self._algorithms[agent].config = dataclasses.replace(config, **{field: size})

    def restore(self) -> None:
        """Restore the configs as they were."""
        for agent, config in self._configs.items():
            self._algorithms[agent].config = config
