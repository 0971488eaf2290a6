"""Updates in worker processes. Each worker owns copies of its agents' parameters.

    caller                                               worker
    plan       ──▶ shared block ── request ──▶           steps, Adam, statistics
    parameters ◀── shared block ◀── report, version ──   all numbers of the new version

Everything random is already in the `Plan`, so only arrays travel. The caller's parameters are complete at any time:
they change when a version has arrived, never while one is written. So a dead worker loses nothing: another worker
starts from the caller's numbers and makes the same update from the same plan. A worker that misses its deadline is
ended and then treated as dead.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import HOST, Call, PendingRequest, PoolSettings, Reply, SharedBlock, cores_here, open_pool
from parallel_envs.errors import WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent, Algorithm, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.mode import (
    AGAIN,
    AN_UPDATE,
    GIVEN_UP,
    ITS_START,
    NOT_STARTED,
    STARTED_AGAIN,
    UpdateMode,
    host_error,
    worker_died,
    worker_late,
)
from parallel_envs.learners.updates.sequential import SequentialUpdates
from parallel_envs.vector.shared_arrays import Field
from parallel_envs.vector.shared_arrays import plan as lay_out

_log = logging.getLogger(__name__)

UPDATE_TIMEOUT = 600.0
"""Default seconds for a round of updates. Updates take milliseconds to seconds. A run that hangs overnight costs more
than a run that ends and says which option to give."""
_START_SECONDS = 300.0  # for a worker to import torch and build networks, on a busy machine
_TRIES = 2

Arrays = dict[str, npt.NDArray[Any]]
Fields = tuple[Field, ...]


# ---- shared memory ---------------------------------------------------------------------------------------------------


class Outbox:
    """Shared memory for all numbers of one parameters, twice: one version is read while the next is written.

    Each half has a header with the version that it holds. The header is written last.
    """

    def __init__(self, block: SharedBlock, fields: Fields) -> None:
        arrays = _arrays_in(block, fields)
        self._versions = arrays.pop("version")
        self._halves = [{name[2:]: array for name, array in arrays.items() if name[0] == which} for which in "01"]

    @staticmethod
    def fields(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[Fields, int]:
        """Return the fields of an outbox for these arrays, and its size in bytes."""
        wanted: list[Any] = [("version", "i8", (2,))]
        wanted += [(f"{which}.{name}", array.dtype, array.shape) for which in "01" for name, array in arrays.items()]
        fields, num_bytes = lay_out(wanted)
        return tuple(fields), num_bytes

    def put(self, version: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._versions[version % 2] = -1
        for name, array in arrays.items():
            self._halves[version % 2][name][...] = array
        self._versions[version % 2] = version

    def get(self, version: int) -> Arrays:
        """Return views of a version. Raises RuntimeError if the version is not there, complete."""
        if self._versions[version % 2] != version:
            raise RuntimeError(f"Version {version} of a learner's weights is not in its outbox.")
        return self._halves[version % 2]


def _arrays_in(block: SharedBlock, fields: Sequence[Field]) -> Arrays:
    return {field.name: block.array(field.dtype, field.shape, field.offset) for field in fields}


def _placed_at(start: int, fields: Sequence[Field], num_bytes: int) -> tuple[Fields, int]:
    """Return the fields moved to `start` in a block, and where the next fields start."""
    moved = tuple(dataclasses.replace(field, offset=field.offset + start) for field in fields)
    return moved, start + -(-num_bytes // 64) * 64


def plan_arrays(plan: Plan) -> Arrays:
    """Return all arrays of a plan under unique names."""
    named: Arrays = {"picks": plan.picks, "weights": plan.weights}
    if plan.learning_rate is not None:
        named["learning_rate"] = np.array(plan.learning_rate)
    named |= {f"arrays.{name}": array for name, array in plan.arrays.items()}
    return named | {f"noise.{name}": array for name, array in plan.noise.items()}


def read_plan(block: SharedBlock, fields: Sequence[Field]) -> Plan:
    """Return the plan in shared memory, as views."""
    arrays = _arrays_in(block, fields)
    lived, noise = (
        {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(part)}
        for part in ("arrays.", "noise.")
    )
    rate = float(arrays["learning_rate"]) if "learning_rate" in arrays else None
    return Plan(lived, arrays["picks"], arrays["weights"], noise, rate)


# ---- in the worker ---------------------------------------------------------------------------------------------------


class LearnerHost:
    """Object in a worker that holds the parameters of some agents and updates them by a mode.

    Plans are read from shared memory, and new numbers are written to the outboxes in `block`.
    """

    def __init__(
        self,
        mode: type[UpdateMode],
        algorithms: Mapping[Agent, Algorithm],
        block: SharedBlock,
        fields: Mapping[Agent, Fields],
    ) -> None:
        self._brains = {agent: AgentParameters(algorithm, 0) for agent, algorithm in algorithms.items()}
        self._mode = mode(self._brains)
        self._outboxes = {agent: Outbox(block, fields[agent]) for agent in algorithms}
        self._plans: SharedBlock | None = None

    def load(self, arrays: Mapping[Agent, Arrays]) -> None:
        """Replace the numbers of these agents."""
        for agent, own in arrays.items():
            self._brains[agent].load(own)

    def attach(self, block: SharedBlock) -> None:
        """Read plans from this block from now on."""
        self._plans = block

    def update(self, requests: Mapping[Agent, tuple[Sequence[Field], int]]) -> dict[Agent, UpdateReport]:
        """Learn from the plans in these fields, and write the new numbers to the outboxes under these versions.

        If an agent's update raises, its version holds unchanged numbers.
        """
        assert self._plans is not None
        reports = self._mode.update({agent: read_plan(self._plans, fields) for agent, (fields, _) in requests.items()})
        for agent, (_, version) in requests.items():
            self._outboxes[agent].put(version, self._brains[agent].arrays())
        return reports


# ---- in the caller ---------------------------------------------------------------------------------------------------


class ProcessUpdates(UpdateMode):
    """Runs updates in workers: by default one worker for each core, and never more workers than agents.

    Args:
        all_parameters: The parameters of all agents.
        workers: The number of workers.
        timeout: Seconds that a worker has for a round of its agents' updates; None: no limit. A worker that takes
            longer is replaced and the update made again, as after a death. The second time, `WorkerTimeout` is raised
            (`WorkerDied` for a death). The mode can be used after that.
    """

    name = "process"
    is_elsewhere = True
    host: Callable[..., LearnerHost] = LearnerHost
    """Makes the object that lives in a worker."""
    worker_mode: type[UpdateMode] = SequentialUpdates
    """Mode that runs the updates in a worker."""
    niceness = 0
    """Niceness of the workers: a higher value leaves the cores to other processes."""

    def __init__(
        self,
        all_parameters: Mapping[Agent, AgentParameters],
        workers: int | None = None,
        timeout: float | None = UPDATE_TIMEOUT,
    ) -> None:
        super().__init__(all_parameters)
        self.timeout = timeout
        num_workers = min(workers or len(cores_here()) or 1, len(self.all_parameters))
        self._worker_of = _assign_workers(self.all_parameters, num_workers)
        self._versions = dict.fromkeys(self.all_parameters, 0)
        self._stale = set(self.all_parameters)  # agents whose newest numbers the worker does not have
        self._fields: dict[Agent, Fields] = {}
        self._outboxes: dict[Agent, Outbox] = {}
        self._out: dict[int, SharedBlock] = {}
        self._in: dict[int, SharedBlock] = {}
        self._late: dict[int, tuple[float | None, str]] = {}  # ended workers: their deadline, and where they hung
        # Nothing is preloaded: every later worker of this program would hold it, and torch is large.
        settings = PoolSettings(name="learner", niceness=self.niceness, start_timeout=_START_SECONDS)
        self._pool = open_pool(num_workers, settings)
        try:
            self._key = self._pool.new_key()
            for worker in range(num_workers):
                end = 0
                for agent in self._agents_of(worker):
                    self._fields[agent], end = _placed_at(end, *Outbox.fields(self.all_parameters[agent].arrays()))
                block = self._out[worker] = SharedBlock.create(end)
                self._outboxes |= {agent: Outbox(block, self._fields[agent]) for agent in self._agents_of(worker)}
            self._build_hosts(range(num_workers))
        except BaseException:
            self.close()
            raise

    def _agents_of(self, worker: int) -> list[Agent]:
        return [agent for agent, own in self._worker_of.items() if own == worker]

    def _build_hosts(self, workers: Collection[int]) -> None:
        """Build the hosts in fresh workers. A worker that dies meanwhile is replaced, once."""
        for attempt in range(1, _TRIES + 1):
            calls = {}
            for worker in workers:
                agents = self._agents_of(worker)
                algorithms = {agent: self.all_parameters[agent].algorithm for agent in agents}
                fields = {agent: self._fields[agent] for agent in agents}
                build = self._key, self.host, self.worker_mode, algorithms, self._out[worker], fields
                calls[worker] = Call(HOST, "build", build)
                self._stale.update(agents)
                self._in.pop(worker, None)
            replies = self._replies(self._pool.send(calls), _START_SECONDS)
            if failed := {worker: reply.failure for worker, reply in replies.items() if reply.failure is not None}:
                for worker in failed:
                    self._pool.kill(worker)  # useless without its host; the next update replaces the worker
                worker, failure = next(iter(failed.items()))
                raise host_error(failure, self._agents_of(worker))
            workers = dead = {worker: reply for worker, reply in replies.items() if reply.death is not None}
            if not dead:
                return
            if attempt == _TRIES:
                raise self._fault_of(dead, ITS_START, NOT_STARTED)
            self._restart(dead, self._fault_of(dead, ITS_START, STARTED_AGAIN))

    # ---- an update --------------------------------------------------------------------------------------------------

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        self._pool.check_open("Updates were to be made")  # before plans are written into shared memory
        reports: dict[Agent, UpdateReport] = {}
        for attempt in range(1, _TRIES + 1):
            missing = {agent: plan for agent, plan in plans.items() if agent not in reports}
            calls = self._calls(missing)
            self._stale |= missing.keys()  # until a version has arrived: Ctrl-C or an error may come first
            replies = self._replies(self._pool.send(calls), self.timeout)
            dead = {worker: reply for worker, reply in replies.items() if reply.death is not None}
            for worker, reply in replies.items():
                if reply.failure is not None:  # the host itself raised, so this holds for all agents of the worker
                    mine = [agent for agent in self._agents_of(worker) if agent in missing]
                    reports |= dict.fromkeys(mine, UpdateReport.of_nothing(failure=reply.failure))
                elif reply.death is None:
                    reports |= reply.value
            if not dead:
                break
            give_up = attempt == _TRIES
            fault = self._fault_of(dead, AN_UPDATE, GIVEN_UP if give_up else AGAIN)
            self._restart(dead, None if give_up else fault)
            self._build_hosts(dead)
            if give_up:
                raise fault
        # All versions are taken over at once, so that the agents of a lost worker are not left behind the others.
        for agent, report in reports.items():
            if report.failure is None:
                self._versions[agent] += 1
                self.all_parameters[agent].load(self._outboxes[agent].get(self._versions[agent]))
                self._stale.discard(agent)
        return {agent: reports[agent] for agent in plans}

    def _calls(self, plans: Mapping[Agent, Plan]) -> dict[int, Call]:
        """Write the plans into shared memory, and return the request to each worker."""
        calls = {}
        for worker in dict.fromkeys(self._worker_of[agent] for agent in plans):
            mine = {agent: plan_arrays(plans[agent]) for agent in self._agents_of(worker) if agent in plans}
            places: dict[Agent, Fields] = {}
            end = 0
            for agent, arrays in mine.items():
                laid_out = lay_out([(name, one.dtype, one.shape) for name, one in arrays.items()])
                places[agent], end = _placed_at(end, *laid_out)
            if worker not in self._in or self._in[worker].num_bytes < end:
                block = self._in[worker] = SharedBlock.create(end)
                self._tell(worker, "attach", block)
                block.close()
            if stale := {agent: self.all_parameters[agent].arrays() for agent in mine if agent in self._stale}:
                self._tell(worker, "load", stale)
            for agent, fields in places.items():
                for name, array in _arrays_in(self._in[worker], fields).items():
                    np.copyto(array, mine[agent][name])
            requests = {agent: (fields, self._versions[agent] + 1) for agent, fields in places.items()}
            calls[worker] = Call(self._key, "update", (requests,))
        return calls

    def _restart(self, workers: Collection[int], fault: WorkerDied | WorkerTimeout | None) -> None:
        """Replace workers. `fault` is logged as the reason."""
        if fault is not None:
            _log.warning("%s", "\n".join([str(fault), *getattr(fault, "__notes__", ())]))
        for worker in workers:
            self._pool.restart(worker)

    # ---- replies ----------------------------------------------------------------------------------------------------

    def _replies(self, request: PendingRequest, seconds: float | None) -> dict[int, Reply]:
        """Return the workers' replies. Workers that miss the deadline are ended; their death is the reply."""
        if not self._is_answered(request, seconds):
            for worker in sorted(request.waiting):
                stack = self._pool.stack(worker)
                self._pool.kill(worker)
                if (reply := request.replies.get(worker)) is not None and reply.death is not None:
                    self._late[worker] = seconds, stack
        return request.replies

    def _is_answered(self, request: PendingRequest, seconds: float | None) -> bool:
        return self._pool.wait(request, seconds)

    def _tell(self, worker: int, method: str, *arguments: Any) -> None:
        """Call a short method of a worker's host. If the worker is dead, the next request reports the death."""
        for reply in self._replies(self._pool.call(worker, self._key, method, *arguments), self.timeout).values():
            if reply.failure is not None:
                raise host_error(reply.failure, self._agents_of(worker))

    def _fault_of(self, dead: Mapping[int, Reply], doing: str, advice: str) -> WorkerDied | WorkerTimeout:
        """Return the error for the first dead worker, with the errors for the others as notes."""
        faults: list[WorkerDied | WorkerTimeout] = []
        for worker, reply in sorted(dead.items()):
            death, agents = reply.death, self._agents_of(worker)
            assert death is not None
            if worker in self._late:
                faults.append(worker_late(death, agents, doing, *self._late.pop(worker), advice))
            else:
                faults.append(worker_died(death, agents, doing, advice))
        for other in faults[1:]:
            faults[0].add_note(str(other))
        return faults[0]

    def changed(self, agent: Agent) -> None:
        self._stale.add(agent)

    def close(self) -> None:
        self._pool.close()
        for block in (*self._out.values(), *self._in.values()):
            block.close()


def _assign_workers(all_parameters: Mapping[Agent, AgentParameters], num_workers: int) -> dict[Agent, int]:
    """Assign a worker to each agent: large networks first, each to the worker with the least load."""
    load, workers = [0] * num_workers, {}
    for agent in sorted(all_parameters, key=lambda agent: -all_parameters[agent].matrix.weights.numel()):
        workers[agent] = load.index(min(load))
        load[workers[agent]] += all_parameters[agent].matrix.weights.numel()
    return {agent: workers[agent] for agent in all_parameters}
