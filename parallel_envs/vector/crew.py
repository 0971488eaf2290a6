"""Which worker holds which environments, and how they get there: at first, and again after a fault."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import (
    HOST,
    Call,
    Death,
    Failure,
    Inherited,
    PendingRequest,
    PoolSettings,
    SharedBlock,
    Unpicklable,
    load_modules,
    open_pool,
    picklable,
    unpicklable_part,
)
from parallel_envs.errors import StepTimeout, WorkerStartError
from parallel_envs.vector.buffers import Plan
from parallel_envs.vector.failures import env_error, step_timeout, worker_died, worker_error
from parallel_envs.vector.identity import OwnedEnvs
from parallel_envs.vector.layout import slices
from parallel_envs.vector.registry import Registrations
from parallel_envs.vector.slice import Description, EnvSlice
from parallel_envs.vector.stepping import AnyEnv, News, ResetRequest
from parallel_envs.vector.tasking import TaskSettings


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a slice needs before it can be stepped."""

    plan: Plan
    block: SharedBlock
    action_space: Space[Any]


class Crew:
    """The workers of a manager and the slice of envs in each.

    Construction must be over within `start_timeout` seconds (None: takes as long as it takes).

    Workers that are forked from this process, now or in the place of one that died, inherit the factories and the task
    settings: nothing of these is pickled. A worker has them as they are in this process when it is forked.

    Every worker imports the modules in `preload` before it makes its envs. Where workers come from a fork server that
    has imported them already, or are forked from this process, which then imports them first, they cost nothing there.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], AnyEnv]],
        num_workers: int,
        settings: PoolSettings,
        mode: AutoresetMode,
        start_timeout: float | None,
        tasks: TaskSettings,
        preload: Sequence[str] = (),
    ) -> None:
        self._tasks = tasks
        self._factories, self._mode, self._start_timeout = factories, mode, start_timeout
        self._preload = tuple(preload)
        self.slices = slices(len(factories), num_workers)
        self.owner = [worker for worker, held in enumerate(self.slices) for _ in held]
        is_forked_here = settings.start_method == "fork" and settings.backend in ("process", "auto")
        if is_forked_here and (unloadable := load_modules(self._preload)) is not None:
            raise _unloadable(self._preload, "this process, from which workers are forked", *unloadable)
        self._inherited = [Inherited(factory) for factory in factories] if is_forked_here else None
        self._inherited_tasks = Inherited(tasks)
        self.pool = open_pool(num_workers, settings)
        self._in_process = self.pool.backend == "process"
        if not self._in_process:  # "auto" found that no process can be started
            self._inherited = None
        self._owned = None if self._in_process else OwnedEnvs()
        self._attachment: Attachment | None = None
        self._unmade: set[int] = set()
        self._missing: set[int] = set()
        """The envs that could not be made anew, in workers that are well."""
        self.key = self.pool.new_key()

    def holders(self, envs: Iterable[int]) -> list[tuple[int, range]]:
        """The workers that hold these envs, and all that each holds."""
        return [(worker, self.slices[worker]) for worker in sorted({self.owner[env] for env in envs})]

    # ---- construction ---------------------------------------------------------------------------------------------

    def use_autoreset_mode(self, mode: AutoresetMode) -> None:
        """Workers that are replaced are to have this mode."""
        self._mode = mode

    def use_tasks(self) -> None:
        """Tasks are in use from now on: workers that are replaced are to know it too."""
        self._tasks = dataclasses.replace(self._tasks, in_use=True)
        self._inherited_tasks = Inherited(self._tasks)

    def build(self, workers: Sequence[int]) -> dict[int, Description]:
        """Have the workers make their envs. Raises what the first of them that failed reports."""
        if self._preload:
            self._load(workers)
        registrations = Registrations.here() if self._in_process and self._inherited is None else None
        calls = {worker: self._build_call(worker, registrations) for worker in workers}
        try:
            built = self.pool.send(calls)
        except Unpicklable as error:
            raise _unpicklable_factory(self._factories, error) from error
        self._await(built, _CONSTRUCTION, self._start_timeout)
        described = self.pool.send(dict.fromkeys(workers, Call(self.key, "describe")))
        self._await(described, _CONSTRUCTION, self._start_timeout)
        return {worker: reply.value for worker, reply in described.replies.items()}

    def _build_call(self, worker: int, registrations: Registrations | None) -> Call:
        held = self.slices[worker]
        factories = self._factories if self._inherited is None else self._inherited
        tasks = self._tasks if self._inherited is None else self._inherited_tasks
        what = (self.key, EnvSlice, held.start, [factories[env] for env in held], self._mode, registrations, tasks)
        return Call(HOST, "build", what, {"copies": not self._in_process, "owned": self._owned})

    def _load(self, workers: Sequence[int]) -> None:
        """Have the workers import the modules in `preload`. Raises `ImportError` for one that cannot be imported."""
        loaded = self.pool.send(dict.fromkeys(workers, Call(HOST, "load", (self._preload,))))
        self._await(loaded, _CONSTRUCTION, self._start_timeout)
        for worker, reply in sorted(loaded.replies.items(), key=lambda item: item[0]):
            raise _unloadable(self._preload, f"worker {worker}", *reply.value)

    def attach(self, attachment: Attachment, workers: Sequence[int]) -> None:
        """Give the workers' slices their arrays."""
        self._attachment = attachment
        plan, block, space = attachment.plan, attachment.block, attachment.action_space
        calls = {worker: Call(self.key, "attach", (plan, block, space, worker)) for worker in workers}
        self._await(self.pool.send(calls), _CONSTRUCTION, self._start_timeout)

    def replace(self, worker: int, timeout: float | None = None) -> None:
        """Put a fresh worker with fresh envs in the place of one that has died or hangs.

        Raises `WorkerStartError` if the process of the worker does not run within the seconds in which the construction
        of the envs must be over, or within `timeout`. The latter is of a step or a reset, which may be far shorter than
        what a process needs to start: it is given 5 seconds at least.
        """
        self._unmade.add(worker)
        longest = [] if timeout is None else [max(timeout, _LEAST_START_SECONDS)]
        longest += [] if self._start_timeout is None else [self._start_timeout]
        self.pool.restart(worker, min(longest, default=None))
        self.build((worker,))
        if self._attachment is not None:
            self.attach(self._attachment, (worker,))
        self._unmade.discard(worker)
        self._missing.difference_update(self.slices[worker])

    def give_up(self, worker: int) -> None:
        """The mending of a worker was cut short. What there is of it is of no use: it ends, where it can be ended."""
        self._unmade.add(worker)
        with contextlib.suppress(WorkerStartError):
            self.pool.kill(worker)

    def needs_replacing(self, worker: int) -> bool:
        """Whether a worker has died, or has no envs since they could not be made anew."""
        return worker in self._unmade or self.pool.death(worker) is not None

    def rebuild(self, env: int) -> None:
        """Make one env anew, in the worker that holds it."""
        self._missing.add(env)
        rebuilt = self.pool.send({self.owner[env]: Call(self.key, "rebuild", (env,))}, label=env)
        self._await(rebuilt, _CONSTRUCTION, self._start_timeout)
        self._missing.discard(env)

    def revive(self, requests: Sequence[ResetRequest], timeout: float | None) -> dict[int, Failure]:
        """Reset new envs within `timeout` seconds, so that their next step tells that an episode was lost."""
        calls = {
            worker: Call(self.key, "revive", ([request for request in requests if request.env in held],))
            for worker, held in self.holders(request.env for request in requests)
        }
        revived = self.pool.send(calls)
        self._await(revived, "the reset after a restart", timeout)
        return {env: failure for reply in revived.replies.values() for env, failure in reply.value.items()}

    def _await(self, ticket: PendingRequest, doing: str, timeout: float | None) -> None:
        if not self.pool.wait(ticket, timeout, _reports_death) and not _reports_death(ticket):
            late = self.timeout(doing, timeout, self.late_envs(ticket))
            for worker in sorted(ticket.waiting):  # it has nothing that anybody could still want
                with contextlib.suppress(WorkerStartError):
                    self.pool.kill(worker)
            self.pool.forget(ticket)
            raise late
        self.check(ticket, doing)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def failures(self, ticket: PendingRequest) -> dict[int, Failure]:
        """The envs that raised. A request to a single env of a worker that failed as a whole is that env's failure."""
        failures: dict[int, Failure] = {}
        for worker, reply in ticket.replies.items():
            if reply.failure is not None:
                if len(asked := self._asked(ticket, worker)) == 1:
                    failures[asked[0]] = reply.failure
            elif isinstance(reply.value, News):
                failures |= reply.value.failures
        return failures

    def worker_failures(self, ticket: PendingRequest) -> dict[int, tuple[list[int], Failure]]:
        """The workers in which a request for several envs failed as a whole, such as one that could not be unpickled.

        No one env can be blamed, and nobody can say which of them have done what was asked: all are in doubt.
        """
        return {
            worker: (asked, reply.failure)
            for worker, reply in ticket.replies.items()
            if reply.failure is not None and len(asked := self._asked(ticket, worker)) > 1
        }

    def _asked(self, ticket: PendingRequest, worker: int) -> list[int]:
        """The envs of a worker that a request is for. A ticket's label is None (all), one env, or a list."""
        held = self.slices[worker]
        if ticket.label is None:
            return list(held)
        labelled = [ticket.label] if isinstance(ticket.label, int) else ticket.label
        return [env for env in labelled if env in held]

    def unanswered(self, ticket: PendingRequest) -> list[int]:
        """The envs that have raised or died instead of answering, as far as is known."""
        dead = [env for worker, reply in ticket.replies.items() if reply.death for env in self.slices[worker]]
        in_doubt = [env for asked, _ in self.worker_failures(ticket).values() for env in asked]
        return sorted({*dead, *in_doubt, *self.failures(ticket)})

    def dead_workers(self, ticket: PendingRequest) -> dict[int, Death]:
        """The workers that have died instead of answering, and have not been replaced since."""
        return {
            worker: reply.death
            for worker, reply in ticket.replies.items()
            if reply.death is not None and self.needs_replacing(worker)
        }

    def check(self, ticket: PendingRequest, doing: str, *, advice: str = "") -> None:
        """Raise what the replies report: a worker's death first, then a worker's failure, then the envs' errors."""
        replies = sorted(ticket.replies.items(), key=lambda item: item[0])
        deaths = {worker: reply.death for worker, reply in replies if reply.death is not None}
        for worker, death in deaths.items():
            if self.pool.death(worker) is not None:
                raise worker_died(death, self.slices[worker], doing, advice=advice)
        for worker, (asked, failure) in self.worker_failures(ticket).items():
            raise worker_error(failure, worker, asked, doing)
        if failures := self.failures(ticket):
            raise env_error(failures, self.raised_during(failures, doing))
        for worker, death in deaths.items():  # of workers that have been replaced since
            raise worker_died(death, self.slices[worker], doing)

    def raised_during(self, envs: Iterable[int], doing: str) -> str:
        """What the first of these envs was at when it raised: `doing`, unless it could not be made anew before that."""
        env = min(envs)
        return _REMAKING if env in self._missing or self.owner[env] in self._unmade else doing

    def still_broken(self, ticket: PendingRequest) -> bool:
        """Whether a ticket reports a fault that nobody has mended since."""
        return bool(self.dead_workers(ticket) or self.worker_failures(ticket) or self.failures(ticket))

    def late_envs(self, ticket: PendingRequest) -> list[int]:
        """The envs whose workers still owe a reply."""
        return [env for worker in sorted(ticket.waiting) for env in self.slices[worker]]

    def timeout(self, doing: str, seconds: float | None, envs: Sequence[int], *, advice: str = "") -> StepTimeout:
        """The error for envs that did not answer in time, with the stacks of their workers."""
        stacks = {worker: self.pool.stack(worker) for worker, _ in self.holders(envs)[:_MOST_STACKS]}
        workers = [worker for worker, _ in self.holders(envs)]
        return step_timeout(doing, seconds, workers, envs, stacks, advice=advice)


def _reports_death(ticket: PendingRequest) -> bool:
    return any(reply.death is not None for reply in ticket.replies.values())


_CONSTRUCTION = "its construction"
_REMAKING = f"{_CONSTRUCTION}, while it was made anew (envs.restart(env_ids) tries again)"
_LEAST_START_SECONDS = 5.0
_MOST_STACKS = 4  # a message is to be read


def _advice(part: str) -> str:
    """What to do about a part of a factory that cannot travel."""
    if ".metadata[" in part:
        return "Leave it out of metadata (an attribute set in __init__ may hold it), or use backend='thread'."
    return (
        "Make it inside the function that makes the environment, or in the environment's __init__, or use "
        "context='fork', whose workers inherit it as it is, or backend='thread'."
    )


def _unloadable(preload: Sequence[str], where: str, module: str, failure: Failure) -> ImportError:
    kind = ModuleNotFoundError if failure.type_name == "ModuleNotFoundError" else ImportError
    error = kind(
        f"preload={tuple(preload)!r}: the module {module!r} could not be imported in {where} "
        f"({failure.type_name}: {failure.message}).",
        name=module,
    )
    error.__cause__ = failure.origin()
    return error


def _unpicklable_factory(factories: Sequence[Any], error: Unpicklable) -> TypeError:
    for index, factory in enumerate(factories):
        if not picklable(factory):
            spec = next((arg for arg in getattr(factory, "args", ()) if isinstance(arg, EnvSpec)), None)
            if spec is None or picklable(spec):
                part = unpicklable_part(factory, f"env_fns[{index}]")
            else:  # of an id: its registration is what the user knows
                part = unpicklable_part(spec, f"gymnasium.spec({spec.id!r})")
            return Unpicklable(
                f"{part} cannot be pickled, so it cannot travel to a worker process. {_advice(part)} "
                f"({error.__cause__!r})"
            )
    return error
