"""Which way of running updates a loop has, and with how many workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.learner_thread import HostedUpdates, UpdateRunner
from parallel_envs.learners.loops.options import LoopOptions, fewest_workers, share_workers, wanted_workers
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates import MODES

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


def check_budget(options: LoopOptions, learners: IndependentLearners) -> int:
    """How many workers learning is to have. Raises ValueError, naming the numbers, if the budget is too small."""
    asked = options.mode, options.learn_in, learners.update_mode
    own = wanted_workers(*asked, len(learners.agents), learners.workers)
    if options.worker_budget is None:
        return own
    envs = 0 if learners.envs.envs.backend == "serial" else learners.envs.num_workers
    least = (
        own if options.mode == "sync" else fewest_workers(*asked)
    )  # a mode that is there already is not made smaller
    return min(own, share_workers(options.worker_budget, envs, least, env_workers=envs).learning)


def learner_of(learners: IndependentLearners, options: LoopOptions, workers: int) -> UpdateRunner:
    """What runs the updates while the learners' environments are stepped."""
    brains = {agent: one.parameters for agent, one in learners.agents.items()}
    inner = inner_mode(brains, learners.update_mode, options)
    if options.learn_in == "process":
        limit = learners.update_timeout
        mode = learners.run_by(("process", workers, inner), lambda own: HostedUpdates(own, workers, inner, limit))
        assert isinstance(mode, HostedUpdates)
        mode.resume()
        at_once = inner == "fused" or workers > 1
        return UpdateRunner(mode, options.order, at_once=at_once, abandon=mode.abandon)
    here = "thread" if options.learn_in == "thread" and learners.update_mode == "thread" else inner
    mode = learners.run_by((options.learn_in, workers, here), lambda own: MODES[here](own, workers))
    return UpdateRunner(mode, options.order, at_once=here != "sequential")


def inner_mode(brains: Mapping[Agent, AgentParameters], update_mode: str, options: LoopOptions) -> str:
    """How updates are run where they are run: "fused" if that was asked for, or can pay and nothing was asked for."""
    if update_mode == "fused":
        return "fused"
    kinds = {brain.algorithm.signature for brain in brains.values()}
    return "fused" if update_mode == "auto" and len(kinds) < len(brains) else "sequential"
