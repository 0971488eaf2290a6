"""What a loop is: steps of environments, and updates in their time."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.accounts import LoopReport
from parallel_envs.learners.loops.options import LoopOptions, check_agents
from parallel_envs.learners.loops.workers import check_budget
from parallel_envs.vector.checks import check_count

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

Metrics = dict[Agent, dict[str, float]]


class Loop(ABC):
    """Collects and learns until it is stopped; a context manager.

    While it is open, only `advance` and `settle` may touch the learners. Whatever goes wrong on either side is raised
    by one of these, and `stop` has the other side end; after it the learners are whole: they can be saved.
    """

    def __init__(self, learners: IndependentLearners) -> None:
        self.learners = learners
        self.while_waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while one side waits for the other: nothing is half done then."""
        self._lived_before = {agent: one.counters["steps"] for agent, one in learners.agents.items()}

    @abstractmethod
    def advance(self) -> Metrics:
        """One step of all environments, and learning where it is due. Returns metrics of updates that came to light."""

    def settle(self) -> Metrics:
        """Wait until all that was planned has been learnt, and act with it. Returns its metrics.

        In the middle of a rollout on-policy, episodes begin anew: one version acts throughout each.
        """
        return {}

    def changed(self, agents: Iterable[Agent]) -> None:  # noqa: B027  # nothing stands in for the brains here
        """After `settle`, other numbers have been put into these agents' brains."""

    def stop(self) -> None:  # noqa: B027  # nothing is on its way where one thing is done after another
        """Stop learning: what is on its way is finished, what waits is dropped. May be called again."""

    def lived(self) -> dict[Agent, int]:
        """Steps that each agent has lived since the loop was opened."""
        return {agent: one.counters["steps"] - self._lived_before[agent] for agent, one in self.learners.agents.items()}

    @abstractmethod
    def report(self) -> LoopReport:
        """What has been done so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self.learners.loop = None
        if error is not None:  # wherever it struck: some agents may have taken in a step, and others not
            self.learners.forget_episodes()


def open_loop(learners: IndependentLearners, options: LoopOptions) -> Loop:
    """A loop as the options say, which the learners know of. Raises ValueError for what cannot be."""
    from parallel_envs.learners.loops.free import FreeLoop
    from parallel_envs.learners.loops.overlap import OverlapLoop
    from parallel_envs.learners.loops.sync import SyncLoop

    if learners.loop is not None:
        raise RuntimeError("A loop was opened inside another of the same learners. End that one first.")
    check_agents(options, learners.agents, learners.update_mode)
    workers = check_budget(options, learners)
    match options.mode:
        case "overlap":
            loop: Loop = OverlapLoop(learners, options, workers)
        case "free":
            loop = FreeLoop(learners, options, workers)
        case _:
            loop = SyncLoop(learners)
    learners.loop = loop
    return loop


def run_loop(
    learners: IndependentLearners, options: LoopOptions, total_steps: int, on_update: Callable[..., Any] | None = None
) -> LoopReport:
    """See `IndependentLearners.train`."""

    def tell(metrics: Metrics) -> None:
        if metrics and on_update is not None:
            on_update(learners)

    check_count("total_steps", total_steps)
    with open_loop(learners, options) as loop:
        end = learners.steps + total_steps
        while learners.steps < end:
            tell(loop.advance())
        tell(loop.settle())
        return loop.report()
