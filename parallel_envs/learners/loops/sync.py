"""Collect, then learn: the reference."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from parallel_envs.learners.loops.accounts import Accounts, LoopReport
from parallel_envs.learners.loops.loop import Loop, Metrics

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


class SyncLoop(Loop):
    """All in the caller's time: what learns waits while the environments step, and the other way round."""

    def __init__(self, learners: IndependentLearners) -> None:
        super().__init__(learners)
        learners.run_by()
        self._accounts = Accounts("sync")
        self._learnt = 0.0

    def advance(self) -> Metrics:
        with self._accounts.collecting():
            self.learners.step()
        began = time.perf_counter()
        metrics = self.learners.update()
        if metrics:
            self._learnt += time.perf_counter() - began
        for agent in metrics:
            self._accounts.learnt(agent, np.zeros(1, np.int64))
        return metrics

    def report(self) -> LoopReport:
        accounts = self._accounts
        return accounts.report(self._learnt, accounts.collected, self.lived(), collect_waited=self._learnt)
