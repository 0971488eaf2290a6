"""Placement of environments: each lives in a worker, or in the caller, for good.

`EnvPlacement` sends a request to all places at once and returns the results as one. An environment is *stale* if it is
not in the state of its episode: its worker was lost, or the result of its turn was not kept (Ctrl-C). Its next request
first brings it there by replay, and checks that it comes to the state that was seen last.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_envs.engine import Unpicklable, cores_here, dump_reply, picklable, unpicklable_part, user_stacklevel
from parallel_envs.errors import WorkerStartError
from parallel_envs.groups.env_host import EnvHost
from parallel_envs.groups.failures import EnvFailure, divergence_failure, error_failure
from parallel_envs.groups.hosted_env import TagSpec
from parallel_envs.groups.transport import Answers, Convert, Job, ReplayTarget, Request, TimeLimits
from parallel_envs.groups.worker_group import WorkerGroup

if TYPE_CHECKING:
    from parallel_envs.groups.config import ManagerBlock
    from parallel_envs.groups.registry import EnvSpecs

_log = logging.getLogger(__name__)

_MOST_WORKERS = 8
_RECORDING_SHARE = 0.11
"""Time to read and record the result of a turn, as a share of the time to play the turn."""


@dataclass(frozen=True, slots=True)
class Results:
    """Results of a request, by environment: its answer in `values`, or how it broke in `failures`."""

    values: dict[int, Any]
    failures: dict[int, EnvFailure]


class EnvPlacement:
    """The environments of a manager, each in its place.

    With `use_workers`, they live where their specs say, else all in the caller. `replay_target` returns how to bring an
    environment to the state of its episode.
    """

    def __init__(
        self,
        specs: EnvSpecs,
        settings: ManagerBlock,
        *,
        use_workers: bool,
        replay_target: Callable[[int], ReplayTarget],
    ) -> None:
        self._tags, self._replay_target = {env.env_id: env.tag for env in specs.envs}, replay_target
        self._stale: set[int] = set()
        self.workers: WorkerGroup | None = None
        types = {env.env_id: env.env_type for env in specs.envs if use_workers and specs.where[env.tag] != "caller"}
        if types:
            num_workers = min(settings.max_workers or min(_MOST_WORKERS, len(cores_here())), len(types))
            caller_works = "process" not in specs.where.values()
            worker_of = (assign_beside_caller if caller_works else assign_workers)(types, num_workers)
            try:
                self.workers = WorkerGroup(
                    worker_of,
                    self._tags,
                    specs.tag_specs,
                    TimeLimits(settings.step_timeout, settings.reset_timeout, settings.start_timeout),
                    settings.context,
                    caller_works=len(worker_of) < len(types),
                    on_answers=self._note_answers,
                    on_lost=self._stale.update,
                )
            except Unpicklable as error:
                raise _unpicklable_spec(specs.tag_specs, error) from error
            except (WorkerStartError, OSError, MemoryError) as error:  # nothing has been stepped, so nothing is lost
                warnings.warn(
                    f"Worker processes could not be started ({error}); all environments are stepped in the caller "
                    "instead. Say use_multiprocessing: false if that is what you want.",
                    RuntimeWarning,
                    stacklevel=user_stacklevel(),
                )
        elsewhere = self.workers.worker_of if self.workers else {}
        here = {env: tag for env, tag in self._tags.items() if env not in elsewhere}
        self._here = EnvHost(here, specs.tag_specs, copies=True)

    def _note_answers(self, job: Job, answers: Answers) -> None:
        """Record which environments are stale after a job."""
        if self._stale or answers.errors:  # hardly ever
            self._stale.update(answers.errors)
            self._stale.difference_update(answers.up_to_date(job))

    def mark_stale(self, envs: Collection[int]) -> None:
        """Record that environments are not in the state of their episodes."""
        self._stale.update(envs)

    def do(self, job: Job, arguments: Mapping[int, Any], convert: Convert | None = None) -> Results:
        """Do a job in all places at once. Environments that break are among the results.

        The values of the results are those that `convert` returns.
        """
        try:
            request, failed = self._with_replays(Request(job, arguments)), dict[int, EnvFailure]()
            if self.workers is None:
                answers = self._do_here(request, convert)
            else:
                answers, failed = self._do_everywhere(self.workers, request, convert)
            for env, raised in answers.errors.items():
                failed[env] = error_failure(env, self._tags[env], raised.doing, raised.failure)
                _log.warning("%s", failed[env])
            for env, state in answers.replayed.items():
                if env in answers.values and not is_same_state(state, self._replay_target(env).state):
                    failed[env] = divergence_failure(env, self._tags[env])
                    del answers.values[env]
            return Results(answers.values, failed)
        except BaseException:
            self._stale.update(arguments)
            raise

    def _do_here(self, request: Request, convert: Convert | None) -> Answers:
        answers = self._here.do(request)
        self._note_answers(request.job, answers)
        return answers.converted(convert)

    def _do_everywhere(
        self, workers: WorkerGroup, request: Request, convert: Convert | None
    ) -> tuple[Answers, dict[int, EnvFailure]]:
        """Send the request to the workers, do the caller's part meanwhile, and wait for the answers."""
        sent = workers.begin(request)
        try:
            worker_of = workers.worker_of  # the caller's part, now that the workers have something to do
            here = request.with_arguments({env: it for env, it in request.arguments.items() if env not in worker_of})
            answers_here = self._do_here(here, convert) if here.arguments else Answers()
        except BaseException:
            workers.abandon(sent)
            raise
        answers, failed = workers.do(sent, lambda envs: self._with_replays(request.subset(envs)), convert)
        return answers.merged(answers_here), failed

    def _with_replays(self, request: Request) -> Request:
        """Return the request with replays for stale environments."""
        if not self._stale or request.job is Job.RESET or self._stale.isdisjoint(request.arguments):
            return request
        stale = [env for env in request.arguments if env in self._stale]
        return Request(request.job, request.arguments, {env: self._replay_target(env).replay for env in stale})

    def end_workers(self) -> None:
        """End the workers, also while another thread waits for their answers: it gets a `ClosedError`."""
        if self.workers is not None:
            self.workers.end_workers()

    def close(self) -> None:
        """End the workers, and close the environments in the caller.

        In a process forked from the owner's, nothing is closed: the owner still uses all of it.
        """
        if self.workers is not None:
            if self.workers.pool.forked_from is not None:
                return
            self.workers.close()
        self._here.close()


def _unpicklable_spec(specs: Mapping[str, TagSpec], error: Unpicklable) -> Unpicklable:
    for tag, spec in specs.items():
        for name in ("factory", "config"):
            if not picklable(part := getattr(spec, name)):
                return Unpicklable(
                    f"{unpicklable_part(part, f'the {name} of {tag!r}')} cannot be pickled, so it cannot travel to a "
                    f"worker process. Make it inside the environment, or say where: caller in `custom_envs.{tag}`. "
                    f"({error.__cause__!r})"
                )
    return error


def is_same_state(one: Any, other: Any) -> bool:
    """Return whether two states are equal: arrays by value, objects without a usable `==` by their pickled bytes."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(is_same_state(one[key], other[key]) for key in one)
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(map(is_same_state, one, other))
        case np.ndarray(), np.ndarray():
            return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc")
    try:
        equal = bool(one == other)
    except Exception:  # noqa: BLE001  # user code
        equal = False
    return equal or dump_reply(one) == dump_reply(other)


# ---- which worker ---------------------------------------------------------------------------------------------------


def assign_workers(env_types: Mapping[int, str], num_workers: int, num_last: int | None = None) -> dict[int, int]:
    """Return the worker of each environment.

    The last worker holds `num_last` environments, if that is given, and the others share the rest evenly. Environments
    of a type are in as few workers as possible, so that their data is loaded as rarely as possible. Among these workers
    they are dealt out one by one, so that the members of a group, which tend to finish at about the same time, are in
    different workers.
    """
    order = sorted(env_types, key=lambda env: (env_types[env], env))
    even, sharing = (len(order), num_workers) if num_last is None else (len(order) - num_last, num_workers - 1)
    worker_at = [position * sharing // even if position < even else sharing for position in range(len(order))]
    worker_of: dict[int, int] = {}
    for env_type in sorted(set(env_types.values())):
        positions = [position for position, env in enumerate(order) if env_types[env] == env_type]
        workers = _dealt([worker_at[position] for position in positions])
        worker_of |= {order[position]: worker for position, worker in zip(positions, workers, strict=True)}
    return worker_of


def assign_beside_caller(env_types: Mapping[int, str], num_workers: int) -> dict[int, int]:
    """Return the worker of each environment; the caller replaces the last worker, unless there is only one.

    The caller's environments are left out. The caller gets a little less than a worker, so that all finish at the same
    time: while the workers play, it also reads and records the results of all turns.
    """
    share = (1.0 + _RECORDING_SHARE) / num_workers - _RECORDING_SHARE
    if num_workers == 1 or not (num_own := max(round(share * len(env_types)), 0)):
        return assign_workers(env_types, num_workers)
    worker_of = assign_workers(env_types, num_workers, num_own)
    return {env: worker for env, worker in worker_of.items() if worker < num_workers - 1}


def _dealt(workers: list[int]) -> list[int]:
    """Return the same workers, each as often as before, spread evenly from beginning to end."""
    counts = Counter(workers)
    return [
        worker
        for _, worker in sorted(((turn + 0.5) / counts[one], one) for one in counts for turn in range(counts[one]))
    ]
