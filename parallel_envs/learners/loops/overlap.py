"""The overlapping loop: collect the next rollout with the previous weights, while all learn from the last rollout.

    collecting   rollout 1 │ rollout 2      │ rollout 3      │ ...
    learning               │ from rollout 1 │ from rollout 2 │ ...

When an agent's next update is due, the loop waits for the agent's last update and only then takes its result. So
nothing depends on how long anything took. From its second update on, an agent is exactly one update behind.
"""

from __future__ import annotations

from parallel_envs.learners.loops.loop import AsyncLoop, Metrics


class OverlapLoop(AsyncLoop):
    """Collects one update ahead of learning, with the same result in every run."""

    def advance(self) -> Metrics:
        with self._accounts.collecting():
            self.learners.step()
        due = [agent for agent, one in self.learners.agents.items() if one.ready]
        if not due:
            return {}
        self._wait(lambda updates: not updates.num_unfinished(due))
        with self._accounts.collecting():
            results = self.updates.take(due)
            metrics = self._record(results)
            jobs = [job for agent in due if (job := self._next_job(agent)) is not None]
            self._adopt(results)
        if jobs:
            self.updates.submit(jobs)
        return metrics
