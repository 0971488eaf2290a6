"""Collect the next rollout with the weights of before, while all learn from the last one.

    collecting   rollout 1 │ rollout 2      │ rollout 3      │ ...
    learning               │ from rollout 1 │ from rollout 2 │ ...

When an agent's next update is due, its last one is waited for, and only then noted; so nothing depends on how long
anything took. From its second update on an agent is exactly one behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.learners.loops.beside import BesideLoop
from parallel_envs.learners.loops.loop import Metrics
from parallel_envs.learners.loops.options import LoopOptions

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


class OverlapLoop(BesideLoop):
    """One update behind, and the same in every run."""

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners, options, workers, merge=False)

    def advance(self) -> Metrics:
        with self._accounts.collecting():
            self.learners.step()
        due = [agent for agent, one in self.learners.agents.items() if one.ready]
        if not due:
            return {}
        self._wait_for(due)
        with self._accounts.collecting():
            results = self.side.take(due)
            metrics = self._note(results)
            jobs = [job for agent in due if (job := self._plan(agent)) is not None]
            self._adopt(results)
        if jobs:
            self.side.submit(jobs)
        return metrics
