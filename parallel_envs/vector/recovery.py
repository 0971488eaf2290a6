"""Failed requests: the errors that the caller gets, or the restart of the broken part with `on_failure="restart"`.

With `"restart"` the broken part (a worker, or one env) is replaced, its envs are reset with fresh seeds, and the
unanswered request is made again. A step is then answered with a row that reports a lost episode (truncated, reward 0,
`infos["worker_restarted"]`); a reset is done again with the seed and options that were asked for. Other workers are not
affected. A budget limits how often a part that keeps breaking is replaced.

Nothing here imports Gymnasium, since managers of other kinds of envs use the errors too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from parallel_envs.engine import Death, Failure, PendingRequest
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.worker_group import RestartBudget, death_text, without_engine_frames
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied, WorkerStartError
from parallel_envs.seeding import SeedTree

if TYPE_CHECKING:
    from parallel_envs.vector.env_batch import EnvBatch
    from parallel_envs.vector.worker_tasks import TaskLedger

_log = logging.getLogger(__name__)

Fault = WorkerDied | EnvError | StepTimeout

Retry = Callable[[Sequence[int]], PendingRequest]
"""Asks replaced envs once more for the answers that their predecessors did not give."""


class Awaited(NamedTuple):
    """A request that is waited for, the words for it in errors, and the seconds that it may take. `retry` is None for a
    request that cannot be made again: its faults are always raised.
    """

    pending: PendingRequest
    doing: str
    timeout: float | None
    retry: Retry | None


RESTART_ADVICE = " Call envs.restart(env_ids) to replace it; on_failure='restart' does so by itself."
RESTARTS_LATER_ADVICE = " Call envs.restart(env_ids) to replace it, or go on: the next step or reset does so by itself."
LATE_ROWS_ADVICE = " After restart(env_ids), step_wait() or reset_wait() waits for them and brings all rows."
WAIT_ADVICE = (
    " Nothing is lost: wait again (reset_wait, step_wait, call_wait or recv), call restart(env_ids) and then wait, or "
    "close the manager."
)


# ---- errors ----------------------------------------------------------------------------------------------------------


def env_names(envs: Sequence[int]) -> str:
    """Return envs as a text for messages, such as `env 3`, `envs 4-7` or `envs 1, 5, 6`."""
    if len(envs) == 1:
        return f"env {envs[0]}"
    if len(envs) > 2 and list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"envs {envs[0]}-{envs[-1]}"
    return f"envs {', '.join(map(str, envs))}"


def env_error(failures: Mapping[int, Failure], doing: str) -> EnvError:
    """Return the error of the first env that raised. Notes on the error report the other envs."""
    (env, failure), *others = sorted(failures.items())
    text = f"Env {env} raised {failure.type_name} during {doing}: {failure.message}"
    error = _env_error(text, failure, tuple(sorted(failures)))
    for other, its_failure in others:
        error.add_note(f"Env {other} raised {its_failure.type_name}: {its_failure.message}")
    return error


def unreadable_result(env: int, error: Exception, doing: str) -> EnvError:
    """Return the error of an env whose result arrived but could not be unpickled."""
    failure = Failure.of(error)
    text = (
        f"What env {env} returned from the {doing} could not be unpickled here: {failure.type_name}: "
        f"{failure.message}. Return what can be pickled and unpickled, such as numbers, text, lists, dicts and arrays."
    )
    return _env_error(text, failure, (env,), with_attributes=False)


def worker_error(failure: Failure, worker: int, envs: Sequence[int], doing: str) -> EnvError:
    """Return the error of a request that failed in a worker as a whole: any of `envs` may have caused it."""
    text = (
        f"Worker {worker} ({env_names(envs)}) raised {failure.type_name} during {doing}, at no single environment: "
        f"{failure.message}"
    )
    return _env_error(text, failure, tuple(envs))


def _env_error(text: str, failure: Failure, envs: tuple[int, ...], with_attributes: bool = True) -> EnvError:
    """Return an EnvError that is also an instance of the type that was raised, where that is safe."""
    attributes = failure.attributes if with_attributes else None
    error = EnvError.retold(text, type_name=failure.type_name, remote_message=failure.message, attributes=attributes)
    assert isinstance(error, EnvError)
    error.env_ids = envs
    error.__cause__ = failure.origin()
    return error


def worker_died(death: Death, envs: Sequence[int], doing: str, *, advice: str = "") -> WorkerDied:
    subject = f"Worker {death.worker} ({env_names(envs)}, pid {death.pid})"
    memory = "use smaller environments, or fewer of them"
    text = death_text(death, subject, doing, memory=memory, advice=advice)
    return WorkerDied(text, worker=death.worker, pid=death.pid, exitcode=death.exitcode, env_ids=envs)


def step_timeout(
    doing: str,
    seconds: float | None,
    workers: Sequence[int],
    envs: Sequence[int],
    stacks: Mapping[int, str],
    *,
    advice: str = "",
) -> StepTimeout:
    text = f"{env_names(envs).capitalize()} did not answer within {seconds} seconds during {doing}.{advice}"
    for worker, stack in stacks.items():
        text += f"\nWorker {worker} is here:\n{without_engine_frames(stack)}"
    return StepTimeout(text, workers=workers, env_ids=envs, seconds=seconds)


# ---- restarts --------------------------------------------------------------------------------------------------------


class Recovery:
    """Decides what happens to a late or failed request, an error or a restart, and replaces broken workers and envs.

    With `automatic`, a request that has a `retry` is mended by restarts.

    Attributes:
        restarts: The number of restarts of each worker.
        seeds: The source of fresh seeds.
        last: The envs that were restarted last, and the first line of the reason. It is text, since an error may hold
            references to envs.
    """

    def __init__(
        self,
        batch: EnvBatch,
        ledger: TaskLedger,
        budget: RestartBudget,
        reset_seconds: float | None,
        *,
        automatic: bool,
    ) -> None:
        self._batch, self._ledger, self._budget, self._reset_seconds = batch, ledger, budget, reset_seconds
        self._automatic = automatic
        self._advice = RESTARTS_LATER_ADVICE if automatic else RESTART_ADVICE
        self._counts: dict[int, int] = {}
        self._late: dict[int, StepTimeout] = {}
        self._mending: dict[int, list[PendingRequest]] = {}
        self._raised: tuple[int, set[int]] = (0, set())
        """The number of a request, and its dead workers that an exception has named already."""
        self.restarts = [0] * len(batch.slices)
        self.seeds = SeedTree(0)
        self.last: tuple[tuple[int, ...], str] | None = None

    def begin(self, seeds: SeedTree) -> None:
        """Begin a seeded run: restarts before it do not affect the fresh seeds after it."""
        self.seeds = seeds
        self._counts.clear()

    # ---- raise or restart -----------------------------------------------------------------------------------------

    def stop_or_raise(self, job: Awaited, late: Sequence[int]) -> None:
        """Raise `StepTimeout` for late envs, or kill their workers, so that the request reports their deaths."""
        if not self._automatic or job.retry is None:
            raise self._batch.timeout(job.doing, job.timeout, late, advice=WAIT_ADVICE)
        self._kill_late(job.pending, self._batch.timeout(job.doing, job.timeout, late))

    def act_on_deaths(self, job: Awaited) -> None:
        """Raise `WorkerDied`, or replace the dead workers, at once: other workers are still busy with the request. Each
        death is raised once. The next wait is then for the workers that are still busy.
        """
        if self._automatic and job.retry is not None:
            self._replace_dead(job)
        else:
            self._raise_new_death(job)

    def resolve(self, job: Awaited) -> list[PendingRequest]:
        """Raise the faults that a request reports, or mend them. Return all requests that hold parts of the answer. If
        all dead workers of the request have been replaced by hand since, their envs are retried too.
        """
        if not job.pending.replies:
            return [job.pending]
        if job.retry is not None:
            faults = self._batch.faults(job.pending)
            is_broken = self._batch.dead_workers(job.pending) or faults.workers or faults.envs
            if self._automatic or (faults.deaths and not is_broken):
                return self._mend(job, job.retry)
        self._raise_new_death(job)
        self._batch.check(job.pending, job.doing, advice=self._advice)
        return [job.pending]

    def has_new_deaths(self, request: PendingRequest) -> bool:
        """Return whether workers have died that have neither been replaced nor named by an exception."""
        return bool(self._new_deaths(request))

    def _new_deaths(self, request: PendingRequest) -> dict[int, Death]:
        number, raised = self._raised
        known = raised if number == request.number else ()
        return {worker: death for worker, death in self._batch.dead_workers(request).items() if worker not in known}

    def _raise_new_death(self, job: Awaited) -> None:
        """Raise `WorkerDied` for the first dead worker that no exception has named yet, if there is one."""
        request, num_known = job.pending, 0
        while len(deaths := self._new_deaths(request)) > num_known:
            num_known = len(deaths)
            self._batch.pool.pump(0.0)  # several workers may have died at the same time
        advice = self._advice
        if request.waiting:
            advice += f" Still at work: {env_names(self._batch.late_envs(request))}."
            advice += LATE_ROWS_ADVICE if job.retry is not None else ""
        for worker, death in sorted(deaths.items()):
            if self._raised[0] != request.number:
                self._raised = (request.number, set())
            self._raised[1].add(worker)
            raise worker_died(death, self._batch.slices[worker], job.doing, advice=advice)

    # ---- replacing ------------------------------------------------------------------------------------------------

    def _mend(self, job: Awaited, retry: Retry) -> list[PendingRequest]:
        """Replace the broken parts that the replies of a request report, and `retry` their envs, until none is broken.
        Each retry may take `job.timeout` seconds. Return the request and those of the retries: all of them hold parts
        of the answer. If a Ctrl-C interrupts this, the next call for the request continues: no env is asked twice.
        """
        batch, requests = self._batch, self._mending.setdefault(job.pending.number, [job.pending])
        try:
            while True:
                last = requests[-1]
                if not batch.pool.wait(last, job.timeout):
                    self._kill_late(last, batch.timeout(job.doing, job.timeout, batch.late_envs(last)))
                broken = self._replace_broken(job._replace(pending=last))
                if not broken:
                    return self._mending.pop(job.pending.number)
                with delay_ctrl_c():
                    requests.append(retry(broken))
        except Exception:
            del self._mending[job.pending.number]
            raise

    def _kill_late(self, request: PendingRequest, fault: StepTimeout) -> None:
        """Kill the workers that have not replied, so that the request reports their deaths. Raises `fault` if a worker
        cannot be killed, since it is a thread.
        """
        for worker in sorted(request.waiting):
            try:
                self._batch.pool.kill(worker)
            except WorkerStartError as error:
                fault.add_note(str(error))
                raise fault from None
            self._late[worker] = fault

    def _replace_broken(self, job: Awaited) -> list[int]:
        """Replace the parts that a request reports as broken. Return the envs that have not answered it. The process of
        a new worker must run within `job.timeout` seconds.
        """
        batch = self._batch
        self._replace_dead(job)
        faults = batch.faults(job.pending)
        envs = {env for worker in faults.deaths for env in batch.slices[worker]}
        for worker, (asked, failure) in faults.workers.items():
            envs |= set(batch.slices[worker])
            self.replace(worker, None, worker_error(failure, worker, asked, job.doing), job.timeout)
        for env, failure in faults.envs.items():
            fault, worker = env_error({env: failure}, batch.raised_during([env], job.doing)), batch.owner[env]
            if batch.needs_replacing(worker):  # an earlier attempt to make its envs again has failed
                envs |= set(batch.slices[worker])
                self.replace(worker, None, fault, job.timeout)
            elif env not in envs:
                envs.add(env)
                self.replace(worker, env, fault)
        return sorted(envs)

    def _replace_dead(self, job: Awaited) -> None:
        """Replace the workers that died instead of answering a request, even while other workers are still busy."""
        for worker, death in self._batch.dead_workers(job.pending).items():
            died = worker_died(death, self._batch.slices[worker], job.doing)
            self.replace(worker, None, self._late.pop(worker, died), job.timeout)

    def replace(self, worker: int, env: int | None, fault: Fault | None, timeout: float | None = None) -> None:
        """Replace a worker, or make one env of it again, until the resets of the new envs succeed or the budget is used
        up. The next rows of the new envs report that an episode was lost. `fault` is the reason (None: the caller asked
        for it). Raises `WorkerStartError` if no process for the worker runs within `timeout` seconds.
        """
        envs: Sequence[int] = self._batch.slices[worker] if env is None else (env,)
        while True:
            self._spend(worker, envs, fault)
            try:
                if env is None or self._batch.needs_replacing(worker):
                    self._batch.replace(worker, timeout)
                    envs = self._batch.slices[worker]
                else:
                    self._batch.rebuild(env)
                seeds_and_tasks = {}
                for one in envs:
                    count = self._counts[one] = self._counts.get(one, 0) + 1
                    seed = self.seeds.child("restart", one, count).seed()
                    seeds_and_tasks[one] = seed, self._ledger.next_of(one)
                failures = self._batch.revive(seeds_and_tasks, self._reset_seconds)
                if not failures:
                    return
                fault = env_error(failures, "the reset after a restart")
            except StepTimeout as error:
                fault = error
                self._batch.pool.kill(worker)
            except (WorkerDied, EnvError) as error:
                fault = error
            except BaseException:
                self._batch.give_up(worker)
                raise

    def _spend(self, worker: int, envs: Sequence[int], fault: Fault | None) -> None:
        """Record and log a restart. Raises `fault` if the budget of the worker is used up."""
        if fault is None:
            _log.info("Worker %d (%s) is restarted on request.", worker, env_names(envs))
        elif self._budget.spend(worker, time.monotonic(), getattr(fault, "seconds", None) or 0.0):
            late = fault.workers if isinstance(fault, StepTimeout) else ()
            text = str(fault)  # text only, with the env's own traceback: a record of the log may outlive the env
            if isinstance(fault, EnvError) and fault.__cause__ is not None:
                text += f"\n{Failure.of(fault.__cause__).traceback.strip()}"
            _log.warning(
                "%s\nRestarting %s; all others go on as they were.", text, env_names(envs), extra={"late_workers": late}
            )
        else:
            fault.add_note(
                f"Worker {worker} was restarted {self._budget.limit} times within {self._budget.window:g} seconds, "
                "which is as often as max_restarts allows. This is its last failure."
            )
            raise fault
        self.restarts[worker] += 1
        self.last = tuple(envs), "asked for" if fault is None else str(fault).partition("\n")[0]
