"""`EnvBatch`: the envs of a manager, the worker of each, the arrays they share, and the requests sent to them.

The manager above it knows Gymnasium's interface; the worker pool below it knows no envs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import (
    HOST,
    Call,
    Death,
    Failure,
    Inherited,
    PendingRequest,
    PoolSettings,
    Unpicklable,
    advice_on_too_many_files,
    dump_request,
    load_modules,
    open_pool,
    picklable,
    unpicklable_part,
)
from parallel_envs.engine.restart_budget import LEAST_START_SECONDS
from parallel_envs.engine.worker_group import WorkerGroup
from parallel_envs.errors import EnvError, StepTimeout, WorkerStartError
from parallel_envs.vector.env_errors import env_error, step_timeout, worker_died, worker_error
from parallel_envs.vector.infos import Info, InfoReader
from parallel_envs.vector.registry import OwnedEnvs, Registrations
from parallel_envs.vector.shared_arrays import (
    AUTORESET_SECONDS,
    MESSAGE_STEP_SECONDS,
    NOT_STEPPED,
    RESET_SECONDS,
    ActionWriter,
    SharedArrays,
    assembler,
    batched_action_space,
    batched_observation_space,
    leaves,
    snapshot,
    unknown_parts,
    unpacked,
)
from parallel_envs.vector.step_loop import NO_TASK, AnyEnv, PipedReply, ResetRequest, TaskSettings, bell_argument
from parallel_envs.vector.worker_envs import EnvDescription, WorkerEnvs

_TASK_COLUMNS = ("task_id", "_task_id", "episode_index", "_episode_index")

_CONSTRUCTION = "its construction"
_REMAKING = f"{_CONSTRUCTION}, while it was made anew (envs.restart(env_ids) tries again)"
_MOST_STACKS = 4  # more stacks make the error too long to read


class Faults(NamedTuple):
    """The faults that a request reports: the deaths of workers; requests for several envs that failed as a whole in a
    worker, with these envs; and the failures of envs. An example of the second is a request that could not be
    unpickled. No single env can be blamed, and it is not known which of the envs have done what was asked.
    """

    deaths: dict[int, Death]
    workers: dict[int, tuple[list[int], Failure]]
    envs: dict[int, Failure]


class EnvBatch:
    """Envs `0 .. len(factories) - 1`, each in a worker, and their arrays.

    The construction of envs must be over within `settings.start_timeout` seconds (None: no limit).

    Workers that are forked from this process, now or in the place of a dead one, inherit the factories and the task
    settings as they are in this process when it forks: nothing of them is pickled.

    Every worker imports the modules of `settings.preload` before it makes its envs. This costs nothing in workers that
    come from a fork server, which has imported them already, or are forked from this process, which imports them first.

    Attributes:
        slices: The envs of each worker: contiguous, and as even as possible, with the larger slices first.
        owner: The worker of each env.
        key: The key of the `WorkerEnvs` in each worker.
        mode: The autoreset mode of all workers, also of those that replace others.
        observation_spaces, action_spaces: The space of one env, and the space of the batch.
        episodes: The number of the episode that each env is in; -1 before the first.
        tells_tasks: Whether tasks are in use, so that infos contain them.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], AnyEnv]],
        num_workers: int,
        settings: PoolSettings,
        *,
        autoreset_mode: AutoresetMode,
        observation_mode: Any,
        shared_memory: bool | None,
        num_sets: int,
        tasks: TaskSettings,
    ) -> None:
        self.num_envs = len(factories)
        self._factories, self.mode, self._tasks = factories, autoreset_mode, tasks
        self._start_timeout, self._preload = settings.start_timeout, settings.preload[1:]  # without our own module
        parts = np.array_split(np.arange(self.num_envs), num_workers)
        self.slices = tuple(range(int(part[0]), int(part[-1]) + 1) for part in parts)
        self.owner = [worker for worker, held in enumerate(self.slices) for _ in held]
        is_forked_here = settings.start_method == "fork" and settings.backend in ("process", "auto")
        if is_forked_here and (unloadable := load_modules(self._preload)) is not None:
            raise _unloadable(self._preload, "this process, from which workers are forked", *unloadable)
        self._inherited = [Inherited(factory) for factory in factories] if is_forked_here else None
        self._inherited_tasks = Inherited(tasks)
        self.tells_tasks = tasks.source is not None
        self._has_arrays = self._all_have_tasks = False
        self._missing: set[int] = set()
        """Envs that are being replaced or could not be made again, in workers that are alive and hold other envs."""
        self._full_steps = 0
        self.env_seconds: dict[int, float] = {}
        """The mean seconds of a step of each env in the newest trace."""
        self._single_steps = [0] * num_workers
        self.pool = open_pool(num_workers, settings)
        self._in_process = self.pool.backend == "process"
        if not self._in_process:  # "auto" found that no process can be started
            self._inherited = None
        self._owned = None if self._in_process else OwnedEnvs()
        self._group = WorkerGroup(self.pool, self._host_of)
        self._group.unbuilt.clear()  # it names the workers whose envs are being replaced
        self.key = self._group.key
        try:
            described = self._build(self.pool.all_workers)
            each = [described[worker] for worker in self.pool.all_workers]
            self.metadata, self.render_mode = each[0].metadata, each[0].render_mode
            self.task_ways = [way for one in each for way in one.task_ways]
            self.observation_spaces = batched_observation_space(
                [space for one in each for space in one.observation_spaces], observation_mode
            )
            self.action_spaces = batched_action_space([space for one in each for space in one.action_spaces])
            self._make_arrays(shared_memory, num_sets)
            self._attach(self.pool.all_workers)
        except BaseException:
            self.close(2.0)
            raise

    # ---- construction ---------------------------------------------------------------------------------------------

    def _build(self, workers: Sequence[int]) -> dict[int, EnvDescription]:
        """Have the workers make their envs. Raise the error of the first worker or env that fails. If a factory cannot
        be pickled, the error names its part and says what to do.
        """
        if self._preload:
            loaded = self.pool.send(dict.fromkeys(workers, Call(HOST, "load", (self._preload,))))
            self._await(loaded, _CONSTRUCTION, self._start_timeout)
            for worker, reply in sorted(loaded.replies.items(), key=lambda item: item[0]):
                raise _unloadable(self._preload, f"worker {worker}", *reply.value)
        self._registrations = Registrations.here() if self._in_process and self._inherited is None else None
        try:
            built = self.pool.send({worker: self._group.build_call(worker) for worker in workers})
        except Unpicklable as error:
            unsent = next((index for index, one in enumerate(self._factories) if not picklable(one)), None)
            if unsent is None:
                raise
            factory = self._factories[unsent]
            spec = next((arg for arg in getattr(factory, "args", ()) if isinstance(arg, EnvSpec)), None)
            if spec is None or picklable(spec):
                part = unpicklable_part(factory, f"env_fns[{unsent}]")
            else:  # the factory of an id: the user knows its registration
                part = unpicklable_part(spec, f"gymnasium.spec({spec.id!r})")
            advice = (
                "Make it inside the function that makes the environment, or in the environment's __init__, or use "
                "context='fork', whose workers inherit it as it is, or backend='thread'."
            )
            if ".metadata[" in part:
                advice = "Leave it out of metadata (an attribute set in __init__ may hold it), or use backend='thread'."
            raise Unpicklable(
                f"{part} cannot be pickled, so it cannot travel to a worker process. {advice} ({error.__cause__!r})"
            ) from error
        self._await(built, _CONSTRUCTION, self._start_timeout)
        described = self.pool.send(dict.fromkeys(workers, Call(self.key, "describe")))
        self._await(described, _CONSTRUCTION, self._start_timeout)
        return {worker: reply.value for worker, reply in described.replies.items()}

    def _host_of(self, worker: int) -> tuple[Any, ...]:
        """Return how to make the envs of a worker."""
        held, factories = self.slices[worker], self._factories if self._inherited is None else self._inherited
        tasks = self._tasks if self._inherited is None else self._inherited_tasks
        make = partial(WorkerEnvs, copies=not self._in_process, owned=self._owned)
        return make, held.start, [factories[env] for env in held], self.mode, self._registrations, tasks

    def _make_arrays(self, shared_memory: bool | None, num_sets: int) -> None:
        """Make the shared arrays, and the objects that read and write them on this side."""
        single, action = self.observation_spaces[0], self.action_spaces[0]
        for part in unknown_parts(single) if shared_memory else ():
            raise ValueError(
                f"shared_memory=True was given, but Gymnasium does not know spaces of class {type(part).__name__}, so "
                "their values cannot lie in shared memory. Leave shared_memory out: such parts then travel by pipe."
            ) from CustomSpaceError(f"unknown space {part!r}")
        parts = leaves(single)
        sent = parts if shared_memory is not False else tuple(dataclasses.replace(leaf, piped=True) for leaf in parts)
        with advice_on_too_many_files():
            self.arrays = SharedArrays(sent, leaves(action), self.num_envs, self.pool.num_workers, num_sets)
        self._has_arrays = True
        self._task_ids, self.episodes = self.arrays.rows["task_id"], self.arrays.rows["episode_index"]
        self._task_ids[:] = NO_TASK
        self.episodes[:] = -1
        self._all_rows = np.ones(self.num_envs, np.bool_)
        self.actions = ActionWriter(self.arrays, action)
        self._info_reader = InfoReader(self.arrays.info_schemas, self.arrays.info_rows)
        self._assemble = assembler(single)
        self._sets: list[list[Any]] = [list(arrays) for arrays in self.arrays.observations]
        """For each set and leaf the column that the caller reads: a shared array, or for a leaf that travels by pipe an
        array of this process, or a list with one item for each env if the leaf has no fixed shape.
        """
        for columns in self._sets:
            for position, leaf in enumerate(parts):
                if columns[position] is None:
                    shape = self.num_envs, *leaf.shape
                    columns[position] = np.zeros(shape, leaf.dtype) if leaf.fixed else [None] * self.num_envs

    def _attach(self, workers: Sequence[int]) -> None:
        """Give the workers their arrays."""
        given = self.arrays, self.action_spaces[0]
        calls = {worker: Call(self.key, "attach", (*given, worker)) for worker in workers}
        self._await(self.pool.send(calls), _CONSTRUCTION, self._start_timeout)
        self._group.unbuilt.difference_update(workers)

    def _await(self, pending: PendingRequest, doing: str, timeout: float | None) -> None:
        """Wait until a request is done, and raise the faults it reports. Late workers are killed."""
        if not self.pool.wait(pending, timeout, _reports_death) and not _reports_death(pending):
            late = self.timeout(doing, timeout, self.late_envs(pending))
            for worker in sorted(pending.waiting):  # the worker holds nothing that is still needed
                with contextlib.suppress(WorkerStartError):
                    self.pool.kill(worker)
            self.pool.forget(pending)
            raise late
        self.check(pending, doing)

    def close(self, timeout: float) -> None:
        self.pool.close(timeout)
        if self._has_arrays:
            self.arrays.block.close()

    # ---- requests -------------------------------------------------------------------------------------------------

    def step(self, argument: int, loose: Mapping[int, list[Any]] | None) -> PendingRequest:
        """Step all envs. `loose`: see `ActionWriter.write`."""
        if loose is None:
            pending = self.pool.ring(self.key, argument)
        else:
            calls = {
                worker: Call(self.key, "step_with", (argument, {env: loose[env] for env in held}))
                for worker, held in enumerate(self.slices)
            }
            pending = self.pool.send(calls)
        self._full_steps += 1
        return pending

    def step_envs(
        self, envs: Sequence[int], which_set: int, code: int, loose: Mapping[int, list[Any]] | None
    ) -> list[PendingRequest]:
        """Send each of these envs a step request of its own. Return the requests, each labelled with its env's number.
        Call `check_can_travel` first: a part that cannot be pickled must be refused before any env is asked.
        """
        bells = []
        for env in envs:
            worker = self.owner[env]
            bells.append((worker, bell_argument(which_set, code, env - self.slices[worker].start), env))
            self._single_steps[worker] += 1
        if loose is None:
            return self.pool.ring_each(self.key, bells)
        return [
            self.pool.send({worker: Call(self.key, "step_with", (argument, {env: loose[env]}))}, label=env)
            for worker, argument, env in bells
        ]

    def reset(self, requests: Sequence[ResetRequest], which_set: int) -> PendingRequest:
        """Reset some envs."""
        return self.ask("reset", {request.env: request for request in requests}, which_set)

    def ask(self, method: str, envs: Sequence[int] | Mapping[int, Any], *args: Any) -> PendingRequest:
        """Call a method of `WorkerEnvs` in the workers of some envs. The label of the request lists the envs. The first
        argument of the method is the part of `envs` (a list of envs, or a dict by env) that belongs to the worker;
        `args` follow.
        """
        calls = {}
        for worker, held in self.holders(envs):
            own = [env for env in envs if env in held]
            part = {env: envs[env] for env in own} if isinstance(envs, Mapping) else own
            calls[worker] = Call(self.key, method, (part, *args))
        return self.pool.send(calls, label=list(envs))

    def tell_all(self, method: str, *args: Any) -> None:
        """Call a method of `WorkerEnvs` in every worker and drop the reply. It runs before any later request."""
        self.pool.forget(self.pool.call_all(self.key, method, *args))

    def check_can_travel(self, content: Any) -> None:
        """Raise `Unpicklable` if this content of a request cannot be sent to a worker."""
        if self._in_process:
            dump_request(content)

    def holders(self, envs: Iterable[int]) -> list[tuple[int, range]]:
        """Return the workers that hold these envs, each with all its envs."""
        return [(worker, self.slices[worker]) for worker in sorted({self.owner[env] for env in envs})]

    # ---- answers --------------------------------------------------------------------------------------------------

    def take_in(self, requests: Iterable[PendingRequest], which_set: int) -> dict[int, Info]:
        """Store the parts of answers that came by pipe. Return the infos among them, by env. Call it even if an error
        is raised afterwards, since workers do not send anything twice.
        """
        pickled: dict[int, Info] = {}
        requests = list(requests)
        self.learn(requests)
        for pending in requests:
            for reply in pending.replies.values():
                piped = reply.value
                if not isinstance(piped, PipedReply):
                    continue
                for env, values in piped.leaves.items():
                    loose = iter(unpacked(values))
                    for position, array in enumerate(self.arrays.observations[which_set]):
                        if array is None:
                            self._sets[which_set][position][env] = next(loose)
                pickled |= {env: unpacked(info) for env, info in piped.infos.items()}
        return pickled

    def learn(self, requests: Iterable[PendingRequest]) -> None:
        """Store the schemas that these requests announce. Infos of other requests may already refer to them."""
        for pending in requests:
            for reply in pending.replies.values():
                for schema in reply.value.schemas if isinstance(reply.value, PipedReply) else ():
                    self._info_reader.learn(schema)

    def observations(self, which_set: int, envs: npt.NDArray[np.intp] | None = None, *, copied: bool = True) -> Any:
        """Return the latest observations of `envs` (None: of all)."""
        values: list[Any] = []
        for column in self._sets[which_set]:
            if isinstance(column, list):
                rows = column if envs is None else [column[env] for env in envs]
                values.append(tuple(map(snapshot, rows) if copied else rows))
            elif envs is not None:
                values.append(column[envs])
            else:
                values.append(column.copy() if copied else column)
        return self._assemble(values)

    def move_rows(self, before: int, after: int, rows: npt.NDArray[np.bool_]) -> None:
        """Copy rows of observations from one set to another."""
        for source, target in zip(self._sets[before], self._sets[after], strict=True):
            if isinstance(source, list):
                for row in np.flatnonzero(rows):
                    target[row] = source[row]
            else:
                target[rows] = source[rows]

    def single(self, env: int, which_set: int, pickled: Mapping[int, Info]) -> tuple[Any, float, bool, bool, Info]:
        """Return the results of one env as the env itself would return them from a step."""
        row = self.arrays.rows[env]
        flags = bool(row["terminated"]), bool(row["truncated"])
        return self.observation(env, which_set), float(row["reward"]), *flags, self._info(env, pickled)

    def observation(self, env: int, which_set: int) -> Any:
        """Return a copy of the latest observation of one env."""
        return self._assemble([snapshot(column[env]) for column in self._sets[which_set]])

    def infos(
        self,
        pickled: Mapping[int, Info],
        envs: npt.NDArray[np.intp] | None = None,
        only: Sequence[int] | None = None,
        *,
        as_list: bool,
    ) -> Any:
        """Return the infos of `envs` (None: of all envs): as one batch, or as a list of each as its env returned it.

        If tasks are in use, they contain the task and the episode of each row. `only`: infos of other envs are left
        out, since they are older.
        """
        if only is not None and len(only) < self.num_envs:
            others = np.ones(self.num_envs, np.bool_)
            others[only] = False
            self.arrays.info_schemas[others] = 0
        if as_list:
            numbers = range(self.num_envs) if envs is None else envs.tolist()
            new = None if only is None else set(only)
            return [self._info(env, pickled, new is None or env in new) for env in numbers]
        infos = self._info_reader.batch(envs, pickled)
        if not self.tells_tasks:
            return infos
        tasks, episodes, mask = self._task_ids, self.episodes, self._all_rows.copy()
        if envs is not None:
            tasks, episodes, mask = tasks[envs], episodes[envs], mask[: len(envs)]
        if only is not None:
            mask[:] = False
            mask[only] = True
        elif not self._all_have_tasks:  # tasks are never unset, so once all envs have one the rows need no search
            self._all_have_tasks = not (self._task_ids == NO_TASK).any()
        if only is None and self._all_have_tasks:
            columns = tasks.copy(), mask, episodes.copy(), mask.copy()
        else:
            has_task = mask & (tasks != NO_TASK)
            columns = np.where(has_task, tasks, 0), has_task, np.where(mask, episodes, 0), mask
        return {**dict(zip(_TASK_COLUMNS, columns, strict=True)), **infos}

    def _info(self, env: int, pickled: Mapping[int, Info], is_new: bool = True) -> Info:
        """Return the info of one env as the env returned it, with its task and episode if tasks are in use."""
        info = self._info_reader.single(env, pickled)
        if self.tells_tasks and is_new:
            row = self.arrays.rows[env]
            info = {"episode_index": int(row["episode_index"]), **info}
            if row["task_id"] != NO_TASK:
                info = {"task_id": int(row["task_id"]), **info}
        return info

    def stats(self, restarts: Sequence[int]) -> list[dict[str, Any]]:
        """Return the statistics of each worker (see `ParallelEnvManager.stats`)."""
        stats = []
        for worker, held in enumerate(self.slices):
            counters, meters = self.arrays.counters[worker], self.pool.meters(worker)
            resets = counters[AUTORESET_SECONDS]
            of_envs = {env: self.env_seconds[env] for env in held if env in self.env_seconds}
            stats.append(
                {
                    "worker": worker,
                    "pid": self.pool.pid(worker),
                    "env_ids": tuple(held),
                    "steps": self._full_steps * len(held) + self._single_steps[worker] - int(counters[NOT_STEPPED]),
                    "step_seconds": meters.bell_seconds - float(resets - counters[MESSAGE_STEP_SECONDS]),
                    "reset_seconds": float(counters[RESET_SECONDS] + resets),
                    "wait_seconds": meters.wait_seconds,
                    "idle_seconds": meters.idle_seconds,
                    "seconds": meters.bell_seconds + meters.message_seconds + meters.idle_seconds,
                    "restarts": restarts[worker],
                    "bytes": meters.num_bytes,
                    **({"env_step_seconds": of_envs} if of_envs else {}),
                }
            )
        return stats

    # ---- replacing ------------------------------------------------------------------------------------------------

    def use_tasks(self) -> None:
        """Tell all workers that tasks are in use, also workers that replace others."""
        self.tells_tasks = True
        self._tasks = dataclasses.replace(self._tasks, in_use=True)
        if self._inherited is not None:
            self._inherited_tasks = Inherited(self._tasks)
        self.tell_all("set_tasks", {})

    def replace(self, worker: int, timeout: float | None = None) -> None:
        """Start a fresh worker with fresh envs in the place of one that is dead or hangs. Raise `WorkerStartError` if
        the process does not run within `start_timeout` or within `timeout`. `timeout` belongs to a step or a reset,
        which may be far shorter than the start of a process, so it counts as at least `LEAST_START_SECONDS`.
        """
        longest = [] if timeout is None else [max(timeout, LEAST_START_SECONDS)]
        longest += [] if self._start_timeout is None else [self._start_timeout]
        self._group.replace(worker, built=False, start_seconds=min(longest, default=None))
        self._build((worker,))
        if self._has_arrays:
            self._attach((worker,))
        self._missing.difference_update(self.slices[worker])

    def rebuild(self, env: int) -> None:
        """Make one env again, in the worker that holds it."""
        self._missing.add(env)
        rebuilt = self.pool.send({self.owner[env]: Call(self.key, "rebuild", (env,))}, label=env)
        self._await(rebuilt, _CONSTRUCTION, self._start_timeout)
        self._missing.discard(env)

    def revive(self, seeds_and_tasks: Mapping[int, tuple[int, Any]], timeout: float | None) -> dict[int, Failure]:
        """Reset new envs, each with its seed and task. Their next steps report lost episodes. Return the failures."""
        requests = {env: ResetRequest(env, seed, task=task) for env, (seed, task) in seeds_and_tasks.items()}
        revived = self.ask("revive", requests)
        revived.label = None  # if a request fails as a whole here, all envs of the worker are in doubt
        self._await(revived, "the reset after a restart", timeout)
        return {env: failure for reply in revived.replies.values() for env, failure in reply.value.items()}

    def give_up(self, worker: int) -> None:
        """Kill a worker, where that is possible, whose replacement was interrupted and is of no use."""
        self._group.give_up(worker)
        with contextlib.suppress(WorkerStartError):
            self.pool.kill(worker)

    def needs_replacing(self, worker: int) -> bool:
        """Return whether a worker is dead, or has no envs because they could not be made again."""
        return self._group.lost(worker) is not None

    # ---- faults ---------------------------------------------------------------------------------------------------

    def faults(self, pending: PendingRequest) -> Faults:
        """Return all faults that the replies report. If a request to a single env fails, that env is at fault."""
        faults = Faults({}, {}, {})
        for worker, reply in sorted(pending.replies.items(), key=lambda item: item[0]):
            if reply.death is not None:
                faults.deaths[worker] = reply.death
            elif reply.failure is not None:
                asked, held = pending.label, self.slices[worker]  # None (all), an env, or a list
                labelled = held if asked is None else [asked] if isinstance(asked, int) else asked
                envs = [env for env in labelled if env in held]
                if len(envs) == 1:
                    faults.envs[envs[0]] = reply.failure
                else:
                    faults.workers[worker] = envs, reply.failure
            elif isinstance(reply.value, PipedReply):
                faults.envs.update(reply.value.failures)
        return faults

    def dead_workers(self, pending: PendingRequest) -> dict[int, Death]:
        """Return the workers that died instead of answering and have not been replaced since."""
        return {
            worker: reply.death
            for worker, reply in pending.replies.items()
            if reply.death is not None and self.needs_replacing(worker)
        }

    def late_envs(self, pending: PendingRequest) -> list[int]:
        """Return the envs of the workers that have not replied yet."""
        return [env for worker in sorted(pending.waiting) for env in self.slices[worker]]

    def check(self, pending: PendingRequest, doing: str, *, advice: str = "") -> None:
        """Raise the fault that the replies report: a dead worker first, then a failed worker, then errors of envs."""
        faults = self.faults(pending)
        for worker, death in faults.deaths.items():
            if self.pool.death(worker) is not None:
                raise worker_died(death, self.slices[worker], doing, advice=advice)
        for worker, (asked, failure) in faults.workers.items():
            raise worker_error(failure, worker, asked, doing)
        if faults.envs:
            raise self.env_fault(faults.envs, doing)
        for worker, death in faults.deaths.items():  # of workers that have been replaced since
            raise worker_died(death, self.slices[worker], doing)

    def env_fault(self, failures: Mapping[int, Failure], doing: str) -> EnvError:
        """Return the error of envs that raised, or that could not be made again."""
        env = min(failures)
        is_missing = env in self._missing or self.owner[env] in self._group.unbuilt
        return env_error(failures, _REMAKING if is_missing else doing)

    def timeout(self, doing: str, seconds: float | None, envs: Sequence[int], *, advice: str = "") -> StepTimeout:
        """Return the error for envs that did not answer in time, with the stacks of their workers."""
        workers = [worker for worker, _ in self.holders(envs)]
        stacks = {worker: self.pool.stack(worker) for worker in workers[:_MOST_STACKS]}
        return step_timeout(doing, seconds, workers, envs, stacks, advice=advice)


def _reports_death(pending: PendingRequest) -> bool:
    return any(reply.death is not None for reply in pending.replies.values())


def _unloadable(preload: Sequence[str], where: str, module: str, failure: Failure) -> ImportError:
    """Return the error for a module of `preload` that could not be imported."""
    kind = ModuleNotFoundError if failure.type_name == "ModuleNotFoundError" else ImportError
    error = kind(
        f"preload={tuple(preload)!r}: the module {module!r} could not be imported in {where} "
        f"({failure.type_name}: {failure.message}).",
        name=module,
    )
    error.__cause__ = failure.origin()
    return error
