"""The synchronous loop: collect, then learn. The reference for the other loops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from parallel_envs.learners.loops.loop import Accounts, Loop, LoopReport, Metrics

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


class SyncLoop(Loop):
    """Steps the environments and updates the learners in turn, in the caller."""

    def __init__(self, learners: IndependentLearners) -> None:
        super().__init__(learners)
        learners.run_by()
        self._accounts = Accounts("sync")
        self._learn_seconds = 0.0

    def advance(self) -> Metrics:
        with self._accounts.collecting():
            self.learners.step()
        began = time.perf_counter()
        metrics = self.learners.update()
        if metrics:
            self._learn_seconds += time.perf_counter() - began
        for agent in metrics:
            self._accounts.learnt(agent, np.zeros(1, np.int64))
        return metrics

    def report(self) -> LoopReport:
        accounts, seconds = self._accounts, self._learn_seconds
        return accounts.report(seconds, accounts.collected, self.lived(), collect_waited=seconds)
