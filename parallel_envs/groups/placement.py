"""Placement of environments: each lives in a worker, or in the caller, for good.

`EnvPlacement` sends a request to all places at once and returns the results as one. An environment is *stale* if it is
not in the state of its episode: its worker was lost, or the result of its turn was not kept (Ctrl-C). Its next request
first brings it there by replay, and checks that it comes to the state that was seen last.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parallel_envs.engine import Unpicklable, dump_reply, num_cores, user_stacklevel
from parallel_envs.errors import WorkerStartError
from parallel_envs.groups.env_host import EnvHost
from parallel_envs.groups.env_workers import EnvWorkers
from parallel_envs.groups.failures import EnvFailure, divergence_failure, error_failure
from parallel_envs.groups.transport import Convert, Job, JobAnswers, Replay, Request, TimeLimits

if TYPE_CHECKING:
    from parallel_envs.groups.config import ManagerBlock
    from parallel_envs.groups.registry import EnvSpecs

_log = logging.getLogger(__name__)

_MOST_WORKERS = 8


class Results(NamedTuple):
    """Results of a request, by environment: its answer in `values`, or how it broke in `failures`."""

    values: dict[int, Any]
    failures: dict[int, EnvFailure]


class EnvPlacement:
    """The environments of a manager, each in its place.

    With `use_workers`, they live where their specs say, else all in the caller. `replay_target` returns how to bring an
    environment to the state of its episode, and that state.
    """

    def __init__(
        self,
        specs: EnvSpecs,
        settings: ManagerBlock,
        *,
        use_workers: bool,
        replay_target: Callable[[int], tuple[Replay, Any]],
    ) -> None:
        self._tags, self._replay_target = {env.env_id: env.tag for env in specs.envs}, replay_target
        self.stale: set[int] = set()
        """The environments that are not in the state of their episodes."""
        self.workers: EnvWorkers | None = None
        types = {env.env_id: env.env_type for env in specs.envs if use_workers and specs.where[env.tag] != "caller"}
        if types:
            num_workers = min(settings.max_workers or min(_MOST_WORKERS, num_cores()), len(types))
            worker_of = assign_workers(types, num_workers)
            if num_workers > 1 and "process" not in specs.where.values():  # all live in `both`: the caller works, too
                worker_of = {env: worker for env, worker in worker_of.items() if worker < num_workers - 1}
            limits = TimeLimits(settings.step_timeout, settings.reset_timeout, settings.start_timeout)
            try:
                self.workers = EnvWorkers(worker_of, self._tags, specs.tag_specs, limits, settings.context, self.stale)
            except Unpicklable as error:
                error.add_note("Make it inside the environment, or say where: caller in its block of custom_envs.")
                raise
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

    def do(self, job: Job, arguments: Mapping[int, Any], convert: Convert | None = None) -> Results:
        """Do a job in all places at once. Environments that break are among the results.

        The values of the results are those that `convert` returns.
        """
        try:
            request, failed = self._with_replays(Request(job, arguments)), dict[int, EnvFailure]()
            if self.workers is None:
                answers = self._do_here(request, convert)
            else:
                sent = self.workers.begin(request)
                try:  # the caller's part, now that the workers have something to do
                    worker_of = self.workers.worker_of
                    own = {env: it for env, it in request.arguments.items() if env not in worker_of}
                    answers = self._do_here(request.with_arguments(own), convert) if own else JobAnswers()
                except BaseException:
                    self.workers.abandon(sent)
                    raise
                others, failed = self.workers.do(sent, self._with_replays, convert)
                answers.update(others)
            for env, raised in answers.errors.items():
                failed[env] = error_failure(env, self._tags[env], raised.doing, raised.failure)
                _log.warning("%s", failed[env])
            for env, state in answers.replayed.items():
                if env in answers.values and not is_same_state(state, self._replay_target(env)[1]):
                    failed[env] = divergence_failure(env, self._tags[env])
                    del answers.values[env]
            return Results(answers.values, failed)
        except BaseException:
            self.stale.update(arguments)
            raise

    def _do_here(self, request: Request, convert: Convert | None) -> JobAnswers:
        answers = self._here.do(request)
        answers.note_stale(request.job, self.stale)
        return answers.converted(convert)

    def _with_replays(self, request: Request) -> Request:
        """Return the request with replays for stale environments."""
        if not self.stale or request.job is Job.RESET:
            return request
        stale = self.stale.intersection(request.arguments)
        return Request(request.job, request.arguments, {env: self._replay_target(env)[0] for env in stale})

    def close(self) -> None:
        """End the workers, and close the environments in the caller."""
        if self.workers is not None:
            if self.workers.pool.forked_from is not None:
                return
            self.workers.close()
        self._here.close()


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


def assign_workers(env_types: Mapping[int, str], num_workers: int) -> dict[int, int]:
    """Return the worker of each environment. Workers hold equally many.

    Environments of a type are in as few workers as possible, so that their data is loaded as rarely as possible. Among
    these workers they are dealt out one by one, so that the members of a group, which tend to finish at about the same
    time, are in different workers.
    """
    order = sorted(env_types, key=lambda env: (env_types[env], env))
    worker_of: dict[int, int] = {}
    for _, own in itertools.groupby(range(len(order)), key=lambda position: env_types[order[position]]):
        positions = list(own)
        counts = Counter(position * num_workers // len(order) for position in positions)
        dealt = sorted(((turn + 0.5) / counts[one], one) for one in counts for turn in range(counts[one]))
        worker_of |= {order[position]: worker for position, (_, worker) in zip(positions, dealt, strict=True)}
    return worker_of
