"""The environments of a process, a worker or the caller: `EnvHost` holds them and does requests for them."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from parallel_envs.engine import Failure, SharedBlock, dump_reply, reraise_ctrl_c
from parallel_envs.engine.interrupts import forked, leave_if_forked
from parallel_envs.groups.hosted_env import WORK, HostedEnv, TagSpec
from parallel_envs.groups.transport import (
    MAKING,
    READ_ONLY_JOBS,
    REPLAYING,
    SENDING,
    JobAnswers,
    Raised,
    Replay,
    Request,
    TimeLimits,
    WorkerClock,
)
from parallel_envs.vector.registry import OwnedEnvs

if TYPE_CHECKING:
    from parallel_envs.vector.registry import Registrations
    from parallel_envs.wrappers.pool import Threads


class EnvHost:
    """The environments of one process, by number, each made as the spec of its tag says."""

    def __init__(
        self,
        tags: Mapping[int, str],
        specs: Mapping[str, TagSpec],
        limits: TimeLimits | None = None,
        clock: WorkerClock | None = None,
        *,
        copies: bool,
    ) -> None:
        self._specs = {env: specs[tag] for env, tag in tags.items()}
        owned = OwnedEnvs()
        self._envs = {env: HostedEnv(spec, copies=copies, number=env, owned=owned) for env, spec in self._specs.items()}
        self._limits, self._clock = limits or TimeLimits(), clock
        self._threads: Threads | None = None
        if clock is not None and any(spec.threads > 1 for spec in specs.values()):
            from parallel_envs.wrappers.pool import Threads  # only workers with such environments need it

            self._threads = Threads("environment")

    @classmethod
    def in_worker(
        cls,
        tags: Mapping[int, str],
        specs: Mapping[str, TagSpec],
        limits: TimeLimits,
        clocks: SharedBlock,
        num_envs: int,
        worker: int,
        registrations: Registrations,
    ) -> EnvHost:
        """Return the host of a worker. `clocks` is the memory of all clocks."""
        registrations.install()
        return cls(tags, specs, limits, WorkerClock(clocks, num_envs, worker), copies=False)

    def work(self, message: bytes) -> bytes:
        """Do the request in a message from another process; return the answers, pickled.

        If an answer cannot be pickled, that is the failure of the one environment that gave it.
        """
        number, request = pickle.loads(message)
        assert self._clock is not None
        self._clock.start(number)
        answers = self.do(request)
        self._clock.begin_sending()
        try:
            return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)
        except BaseException:  # noqa: BLE001  # user code may raise anything when it is pickled
            for env in list(answers.values):
                try:
                    dump_reply((answers.values[env], answers.replayed.get(env)))
                except BaseException as error:  # noqa: BLE001  # the same
                    self._envs[env].drop_quietly()
                    answers.values.pop(env)
                    answers.replayed.pop(env, None)
                    answers.errors[env] = Raised(SENDING, Failure.of(error))
            return dump_reply(answers)

    def do(self, request: Request) -> JobAnswers:
        """Do a request. Environments that raise are among the errors of the answers."""
        answers = JobAnswers()
        if self._threads is None:
            self._do_each(request, iter(request.arguments.items()), answers)
        else:
            self._do_in_threads(request, answers, self._threads)
        return answers

    def _do_in_threads(self, request: Request, answers: JobAnswers, threads: Threads) -> None:
        """Do the environments of each tag in as many threads as its spec allows, all tags at once.

        Environments are made before any thread starts: constructors take turns in any case (`seeded`), and one that
        waited for its turn in a thread would be late because of the others. For the same reason an environment that
        draws from the process's generators is done in the worker's own thread.
        """
        alone, by_tag = dict[int, Any](), dict[str, dict[int, Any]]()
        for env, argument in request.arguments.items():
            if self._ensure_ready(env, None, answers):
                spec = self._specs[env]
                is_alone = spec.threads == 1 or self._envs[env].uses_global_random
                (alone if is_alone else by_tag.setdefault(spec.tag, {}))[env] = argument
        helpers, rest = list[Future[None]](), [iter(alone.items())]
        for tag_arguments in by_tag.values():
            pairs = iter(list(tag_arguments.items()))  # shared by several threads
            wanted = len(helpers) + min(len(tag_arguments), self._specs[next(iter(tag_arguments))].threads)
            with contextlib.suppress(RuntimeError):  # the system has no room for another thread
                while len(helpers) < wanted:
                    helpers.append(threads.submit(self._do_each, request, pairs, answers))
            if len(helpers) < wanted:
                rest.append(pairs)
        for pairs in rest:
            self._do_each(request, pairs, answers)
        for helper in helpers:
            helper.result()

    def _do_each(self, request: Request, pairs: Iterator[tuple[int, Any]], answers: JobAnswers) -> None:
        """Do the job for one environment after the other. In a worker, the clock records which one is at work."""
        job, envs, replays, values = request.job, self._envs, request.replays, answers.values
        work, seconds, now = WORK[job], self._limits.of(job.value), time.monotonic
        due, ended = (None, None) if self._clock is None else (self._clock.due, self._clock.ended)
        for env, argument in pairs:
            hosted = envs[env]
            if (replays or not hosted.made) and not self._ensure_ready(env, replays.get(env), answers):
                continue
            if due is not None:
                due[env] = now() + seconds
            try:
                values[env] = work(hosted, argument)
                if forked:
                    leave_if_forked()  # before the forked process writes where the worker will write
            except BaseException as error:  # noqa: BLE001  # SystemExit too: it must not end the worker
                self._note_error(env, job.value, error, answers, drops=job not in READ_ONLY_JOBS)
            if due is not None and ended is not None:
                ended[env] = now()
                due[env] = 0.0

    def _ensure_ready(self, env: int, replay: Replay | None, answers: JobAnswers) -> bool:
        """Make and replay an environment where needed. Return False if it broke, which is then among the errors."""
        hosted = self._envs[env]
        steps = list[tuple[str, Callable[[], Any]]]() if hosted.made else [(MAKING, hosted.make)]
        if replay is not None:
            steps.append((REPLAYING, lambda: answers.replayed.update({env: hosted.replay(replay)})))
        for doing, work in steps:
            if self._clock is not None:
                self._clock.begin(env, self._limits.of(doing, replay), doing)
            try:
                work()
                leave_if_forked()
            except BaseException as error:  # noqa: BLE001  # the same
                self._note_error(env, doing, error, answers, drops=True)
                return False
            finally:
                if self._clock is not None:
                    self._clock.end(env)
        return True

    def _note_error(self, env: int, doing: str, error: BaseException, answers: JobAnswers, *, drops: bool) -> None:
        try:
            reraise_ctrl_c(error)
        except KeyboardInterrupt:
            self._envs[env].drop_quietly()  # Ctrl-C came in the middle of its own code: its state is unknown
            raise
        if drops:
            self._envs[env].drop_quietly()
        answers.errors[env] = Raised(doing, Failure.of(error))

    def close(self) -> None:
        """Close all environments, and ignore what they raise."""
        for hosted in self._envs.values():
            hosted.drop_quietly()
        if self._threads is not None:
            self._threads.close()
