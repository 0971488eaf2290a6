"""Each agent's update in a thread: for networks large enough that most of the time is spent inside torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from torch import set_num_threads

from parallel_envs.engine import cores_here
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.mode import UpdateMode
from parallel_envs.learners.updates.sequential import try_update
from parallel_envs.threads import one_torch_thread


class ThreadUpdates(UpdateMode):
    """As many agents at a time as there are `workers`: cores, unless told otherwise."""

    name = "thread"

    def __init__(self, brains: Mapping[Agent, AgentParameters], workers: int | None = None) -> None:
        super().__init__(brains)
        self._threads = ThreadPoolExecutor(workers or len(cores_here()) or 1, "learner", partial(set_num_threads, 1))

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        with one_torch_thread():  # each thread has its own number, but they share that of the matrix library
            futures = {agent: self._threads.submit(try_update, self.brains[agent], own) for agent, own in plans.items()}
            try:
                wait(futures.values())
            except BaseException:  # Ctrl-C: no thread may go on writing what the caller takes to be its own
                self._finish(futures.values())
                raise
        return {agent: future.result() for agent, future in futures.items()}

    @staticmethod
    def _finish(futures: Collection[Future[UpdateReport]]) -> None:
        for future in futures:
            future.cancel()
        wait(futures)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
