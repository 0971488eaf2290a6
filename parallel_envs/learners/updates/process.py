"""Updates in worker processes. Each worker owns copies of its agents' parameters.

    caller                                               worker
    plan       ──▶ shared block ── request ──▶           steps, Adam, statistics
    parameters ◀── shared block ◀──── report ─           all numbers after the update

Everything random is already in the `Plan`, so only arrays travel. The caller's parameters are complete at any time:
they change when a report has arrived, never while a worker writes. So a dead worker loses nothing: another worker
starts from the caller's numbers and makes the same update from the same plan. A worker that misses its deadline is
ended and then treated as dead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import (
    ArrayLayout,
    Call,
    Failure,
    PoolSettings,
    SharedBlock,
    num_cores,
    open_pool,
)
from parallel_envs.engine.worker_group import LostWorker, WorkerGroup
from parallel_envs.errors import RemoteError, RemoteTraceback, WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent, Algorithm, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.fused import FusedUpdates
from parallel_envs.learners.updates.mode import SequentialUpdates, UpdateMode

_log = logging.getLogger(__name__)

UPDATE_TIMEOUT = 600.0
"""Default seconds for a round of updates. Updates take milliseconds to seconds. A run that hangs overnight costs more
than a run that ends and says which option to give."""
_START_SECONDS = 300.0  # for a worker to import torch and build networks, on a busy machine
AN_UPDATE, ITS_START = "an update", "its start"
AGAIN = " Another worker takes its place and does the same again."
GIVEN_UP = (
    " It was the second time in a row. What was learnt before is kept: update again, which starts another worker, or "
    "use another update_mode."
)

Arrays = dict[str, npt.NDArray[Any]]


# ---- in shared memory, and in the worker -----------------------------------------------------------------------------


class LearnerHost:
    """Object in a worker that holds the parameters of some agents and updates them by a mode.

    Plans are read from shared memory, and new numbers are written to `block`.
    """

    def __init__(
        self,
        mode: type[UpdateMode],
        algorithms: Mapping[Agent, Algorithm],
        block: SharedBlock,
        layout: ArrayLayout,
    ) -> None:
        self._parameters = {agent: AgentParameters(algorithm, 0) for agent, algorithm in algorithms.items()}
        self._mode = mode(self._parameters)
        self._out = layout.views(block)
        self._plans: SharedBlock | None = None

    def load(self, arrays: Mapping[Agent, Arrays]) -> None:
        """Replace the numbers of these agents."""
        for agent, own in arrays.items():
            self._parameters[agent].load(own)

    def attach(self, block: SharedBlock) -> None:
        """Read plans from this block from now on."""
        self._plans = block

    def update(self, layout: ArrayLayout, rates: Mapping[Agent, float | None]) -> dict[Agent, UpdateReport]:
        """Learn from the plans in these places, with these learning rates, and write the new numbers.

        If an agent's update raises, its numbers are unchanged.
        """
        assert self._plans is not None
        parts: dict[Agent, dict[str, Arrays]] = {agent: {"plan": {}, "arrays": {}, "noise": {}} for agent in rates}
        for (agent, part, name), array in layout.views(self._plans).items():
            parts[agent][part][name] = array
        plans = {
            agent: Plan(own["arrays"], **own["plan"], noise=own["noise"], learning_rate=rates[agent])
            for agent, own in parts.items()
        }
        reports = self._mode.update(plans)
        for agent in rates:
            for name, array in self._parameters[agent].arrays().items():
                self._out[agent, name][...] = array
        return reports


# ---- in the caller ---------------------------------------------------------------------------------------------------


class ProcessUpdates(UpdateMode):
    """Runs updates in workers: by default one worker for each core, and never more workers than agents.

    A loop that learns while it collects uses it with `inner`, because updates in a thread of the caller would take
    turns with the caller's work for each step: an operation of a small network takes microseconds, and between any two
    operations the interpreter may run the other thread for milliseconds. The workers give way to the environments,
    whose workers wait for the caller between any two steps: learning uses that time.

    A worker has `timeout` seconds for a round of its agents' updates (None: no limit). A worker that takes longer is
    replaced and the update made again, as after a death. The second time, `WorkerTimeout` is raised (`WorkerDied` for a
    death). The mode can be used after that. `inner`, "sequential" or "fused", runs the updates in the workers, beside
    collecting. None: sequential, while the caller waits.
    """

    name = "process"
    is_elsewhere = True
    host: Callable[..., LearnerHost] = LearnerHost
    """Makes the object that lives in a worker."""

    def __init__(
        self,
        all_parameters: Mapping[Agent, AgentParameters],
        workers: int | None = None,
        timeout: float | None = UPDATE_TIMEOUT,
        inner: str | None = None,
    ) -> None:
        super().__init__(all_parameters)
        self.timeout, self.inner, self._abandoned = timeout, inner, False
        num_workers = min(workers or num_cores(), len(self.all_parameters))
        self._worker_of = dict.fromkeys(self.all_parameters, 0)
        sizes = {agent: own.matrix.weights.numel() for agent, own in self.all_parameters.items()}
        load = [0] * num_workers
        for agent in sorted(sizes, key=lambda agent: -sizes[agent]):  # each to the worker with the least load
            self._worker_of[agent] = load.index(min(load))
            load[self._worker_of[agent]] += sizes[agent]
        self._stale = set(self.all_parameters)  # agents whose newest numbers the worker does not have
        self._layouts: dict[int, ArrayLayout] = {}  # of the parameters in a worker's block
        self._out: dict[int, SharedBlock] = {}
        self._in: dict[int, SharedBlock] = {}
        # Nothing is preloaded: every later worker of this program would hold it, and torch is large. A niceness of 10
        # gains hardly more than 5, and lets other programs on the machine take nearly all of the time.
        niceness = 0 if inner is None else 5
        self._pool = open_pool(
            num_workers, PoolSettings(name="learner", niceness=niceness, start_timeout=_START_SECONDS)
        )
        try:
            self._group = WorkerGroup(self._pool, self._host_of)
            for worker in range(num_workers):
                arrays = {agent: self.all_parameters[agent].arrays() for agent in self._agents_of(worker)}
                layout = ArrayLayout.of(
                    {(agent, name): one for agent, own in arrays.items() for name, one in own.items()}
                )
                self._layouts[worker], self._out[worker] = layout, SharedBlock.create(layout.num_bytes)
            self._build_hosts(range(num_workers))
        except BaseException:
            self.close()
            raise

    @property
    def why(self) -> str:
        if self.inner is None:
            return self.name
        number = self._pool.num_workers
        return f"{self.inner} in {number} worker{'s' if number > 1 else ''} of their own"

    def _agents_of(self, worker: int) -> list[Agent]:
        return [agent for agent, own in self._worker_of.items() if own == worker]

    def _host_of(self, worker: int) -> tuple[Any, ...]:
        """Return how to make the host of a fresh worker, which has neither numbers nor a block of plans yet."""
        agents = self._agents_of(worker)
        algorithms = {agent: self.all_parameters[agent].algorithm for agent in agents}
        self._stale.update(agents)
        self._in.pop(worker, None)
        inner = FusedUpdates if self.inner == "fused" else SequentialUpdates
        return self.host, inner, algorithms, self._out[worker], self._layouts[worker]

    def _build_hosts(self, workers: Collection[int]) -> None:
        """Build the hosts in fresh workers. A worker that dies meanwhile is replaced, once."""

        def on_lost(losses: Sequence[LostWorker], is_last: bool) -> None:
            if is_last:
                raise self._fault_of(losses, ITS_START, GIVEN_UP)  # the next update replaces the workers
            self._restart(losses, ITS_START)

        losses = self._group.build(workers, _START_SECONDS, on_lost)
        for loss in losses:
            self._pool.kill(loss.worker)  # useless without its host; the next update replaces the worker
        for loss in losses:
            if loss.failure is not None:
                raise host_error(loss.failure, self._agents_of(loss.worker))

    # ---- an update --------------------------------------------------------------------------------------------------

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        self._pool.check_open("Updates were to be made")  # before plans are written into shared memory
        if lost := [worker for worker in self._group.unbuilt if self._pool.death(worker) is None]:
            self._build_hosts(lost)  # a Ctrl-C came after the restart of these workers
        workers = dict.fromkeys(self._worker_of[agent] for agent in plans)
        replies = self._group.ask(lambda worker: self._call(worker, plans), workers, self.timeout, self._on_lost)
        reports: dict[Agent, UpdateReport] = {}
        for worker, reply in replies.items():
            if reply.failure is None:
                reports |= reply.value
            else:  # the host itself raised, so this holds for all agents of the worker
                mine = [agent for agent in self._agents_of(worker) if agent in plans]
                reports |= dict.fromkeys(mine, UpdateReport.of_nothing(failure=reply.failure))
        # All numbers are taken over at once, so that the agents of a lost worker are not left behind the others.
        learnt = [agent for agent, report in reports.items() if report.failure is None]
        numbers: dict[Agent, Arrays] = {agent: {} for agent in learnt}
        for worker in workers:
            for (agent, name), array in self._layouts[worker].views(self._out[worker]).items():
                if agent in numbers:
                    numbers[agent][name] = array
        for agent in learnt:
            self.all_parameters[agent].load(numbers[agent])
            self._stale.discard(agent)
        return {agent: reports[agent] for agent in plans}

    def _call(self, worker: int, plans: Mapping[Agent, Plan]) -> Call:
        """Write the plans of a worker's agents into shared memory, and return the request."""
        agents = [agent for agent in self._agents_of(worker) if agent in plans]
        arrays: dict[tuple[Agent, str, str], npt.NDArray[Any]] = {}
        for agent in agents:
            plan = plans[agent]
            arrays |= {(agent, "plan", "picks"): plan.picks, (agent, "plan", "weights"): plan.weights}
            arrays |= {(agent, "arrays", name): array for name, array in plan.arrays.items()}
            arrays |= {(agent, "noise", name): array for name, array in plan.noise.items()}
        layout = ArrayLayout.of(arrays)
        if worker not in self._in or self._in[worker].num_bytes < layout.num_bytes:
            block = self._in[worker] = SharedBlock.create(layout.num_bytes)
            self._tell(worker, "attach", block)
            block.close()
        if stale := {agent: self.all_parameters[agent].arrays() for agent in agents if agent in self._stale}:
            self._tell(worker, "load", stale)
        for key, array in layout.views(self._in[worker]).items():
            np.copyto(array, arrays[key])
        self._stale.update(agents)  # until the reports have arrived: Ctrl-C or an error may come first
        return self._group.call("update", layout, {agent: plans[agent].learning_rate for agent in agents})

    def _tell(self, worker: int, method: str, *arguments: Any) -> None:
        """Call a short method of a worker's host. If the worker is dead, the next request reports the death."""
        request = self._pool.send({worker: self._group.call(method, *arguments)})
        for reply in self._group.replies(request, self.timeout).values():
            if reply.failure is not None:
                raise host_error(reply.failure, self._agents_of(worker))

    # ---- lost workers -----------------------------------------------------------------------------------------------

    def _on_lost(self, losses: Sequence[LostWorker], is_last: bool) -> None:
        """Replace the workers that were lost in an update, also if they are given up: later updates need them."""
        self._restart(losses, None if is_last else AN_UPDATE)
        self._build_hosts([loss.worker for loss in losses])
        if is_last:
            raise self._fault_of(losses, AN_UPDATE, GIVEN_UP)

    def _fault_of(self, losses: Sequence[LostWorker], doing: str, advice: str) -> WorkerDied | WorkerTimeout:
        """Return the error for the first loss, with the errors for the others as notes."""
        first, *others = [worker_fault(loss, self._agents_of(loss.worker), doing, advice) for loss in losses]
        for other in others:
            first.add_note(str(other))
        return first

    def _restart(self, losses: Sequence[LostWorker], doing: str | None) -> None:
        """Replace workers, and log why if `doing` is given. Raises WorkerDied if the update was abandoned."""
        if self._abandoned:
            death = losses[0].death
            raise WorkerDied(
                "An update was abandoned, because its worker did not finish it when it was to stop. What had been "
                "learnt before is kept: update again, and another worker takes its place.",
                worker=losses[0].worker,
                pid=losses[0].pid,
                exitcode=None if death is None else death.exitcode,
            )
        if doing is not None:
            fault = self._fault_of(losses, doing, AGAIN)
            _log.warning("%s", "\n".join([str(fault), *getattr(fault, "__notes__", ())]))
        for loss in losses:
            self._group.replace(loss.worker, built=False)

    def abandon(self) -> None:
        """End, from another thread, an update that does not end by itself. The update raises `WorkerDied` there.

        Updates may be made again after `resume`.
        """
        self._pool.check_owner()
        self._abandoned = True
        for worker in [worker for worker in self._pool.all_workers if self._pool.death(worker) is None]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pool.pid(worker), signal.SIGKILL)

    def resume(self) -> None:
        """Replace the workers that were ended, and from now on workers that die."""
        self._abandoned = False
        dead = [worker for worker in self._pool.all_workers if self._pool.death(worker) is not None]
        for worker in dead:
            self._group.replace(worker, built=False)
        self._build_hosts(sorted(self._group.unbuilt))

    def changed(self, agent: Agent) -> None:
        self._stale.add(agent)

    def close(self) -> None:
        self._pool.close()
        for block in (*self._out.values(), *self._in.values()):
            block.close()


# ---- errors ----------------------------------------------------------------------------------------------------------


def check_learns_here(device: str, word: str, others: str) -> None:
    """Raise ValueError for a device other than the CPU: workers share the parameters through the CPU's memory.

    `word` is the argument that asked for workers, `others` are its values without them.
    """
    if device.partition(":")[0] != "cpu":
        raise ValueError(
            f"device={device!r} was given with {word}='process': worker processes learn on the CPU, from parameters in "
            f"shared memory. Give {word}={others}, or device='cpu'."
        )


def worker_fault(loss: LostWorker, agents: Sequence[Agent], doing: str, advice: str) -> WorkerDied | WorkerTimeout:
    """Return the error for a lost worker that learns for these agents."""
    if loss.stack is not None and doing == AN_UPDATE:
        advice = f" Give a larger update_timeout if updates take so long.{advice}"
    subject = f"Worker {loss.worker}, which learns for {list(agents)} (pid {loss.pid}),"
    text = loss.text(subject, doing, memory="use fewer workers, or smaller batches", advice=advice)
    if loss.stack is not None:
        return WorkerTimeout(text, workers=[loss.worker])
    return WorkerDied(text, worker=loss.worker, pid=loss.pid, exitcode=loss.death.exitcode if loss.death else None)


def host_error(failure: Failure, agents: Sequence[Agent]) -> RemoteError:
    """Return the error for a worker whose host raised outside of an update."""
    error = RemoteError.named(failure.type_name)(
        f"A worker that learns for {', '.join(map(repr, agents))} raised {failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        remote_message=failure.message,
    )
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error
