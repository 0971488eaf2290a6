"""The scheme that `mode="overlap"` grew from, rebuilt as its plan describes it: a peer for `bench train`.

A thread looks every tenth of a second whether a rollout has been finished since it looked last, and has all agents
learn under a lock if so, one after another. The other side collects without that lock. Rollouts that are finished
between two looks are never learnt from. One thing is kinder than in the plan: new weights are taken up between two
rollouts, not in the middle of a step, where they were found half loaded.
"""

from __future__ import annotations

import copy
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_envs.learners import IndependentLearners

_LOOK_SECONDS = 0.1


class PollingScheme:
    """Collects in the caller, learns in a thread that polls. `close` ends the thread, which the original never did."""

    def __init__(self, learners: IndependentLearners) -> None:
        self.learners = learners
        self.num_rollouts = self.num_learnt = self._seen = 0
        self._plans: dict[Any, Any] = {}
        self._weights: dict[Any, Any] = {}
        self._training = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def collect(self) -> int:
        """A rollout of all agents; the number of environment steps."""
        before = self.learners.steps
        self.learners.policy.load_state_dict(self._weights)
        while not all(one.ready for one in self.learners.agents.values()):
            self.learners.step()
        self._plans = {agent: copy.deepcopy(one.plan()) for agent, one in self.learners.agents.items()}
        self.num_rollouts += 1
        return self.learners.steps - before

    def finish(self) -> None:
        """Wait until the last rollout has been learnt from."""
        while self._seen < self.num_rollouts and self._thread.is_alive():
            time.sleep(_LOOK_SECONDS / 10)
        with self._training:
            pass

    def _poll(self) -> None:
        while not self._closed:
            if self.num_rollouts > self._seen:
                with self._training:
                    self._seen = self.num_rollouts
                    self._learn()
            time.sleep(_LOOK_SECONDS)

    def _learn(self) -> None:
        from parallel_envs.learners.updates.sequential import update_one

        for agent, plan in self._plans.items():
            learner = self.learners.agents[agent]
            learner.finish(update_one(learner.parameters, plan))
        self._weights = {agent: learner.acting_weights() for agent, learner in self.learners.agents.items()}
        self.num_learnt += 1

    def close(self) -> None:
        self._closed = True
        self._thread.join()
