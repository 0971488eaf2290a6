"""`PolicyPool`, the worker processes and threads that several wrappers share, and its users.

PolicyPool                worker processes and threads
PerAgentThreadWrapper     the thread strategy
StandaloneAgent           the policy of a single agent, wrapped by itself; all of these share one pool
"""

from __future__ import annotations

import inspect
import os
import queue
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from parallel_envs.checks import is_whole, suggests_keywords
from parallel_envs.engine import PoolSettings, Unpicklable, WorkerPool, num_cores, open_pool, user_stacklevel
from parallel_envs.errors import ClosedError
from parallel_envs.threads import CallGuard, ClosedAtExit, in_turn
from parallel_envs.wrappers.base import PerAgentWrapper, Rules, WrappedAgent, still_busy
from parallel_envs.wrappers.local import LocalWrapper, PerAgentSequentialWrapper
from parallel_envs.wrappers.policy_handle import Agent, Answer, Answers, Arguments, Inputs, step_one_by_one
from parallel_envs.wrappers.sharing import sharers


class Threads:
    """Threads that run submitted tasks at once: there are as many threads as there were tasks at the same time.

    The threads are daemons, so a policy that never returns does not keep the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_free = 0
        self._owner_pid = os.getpid()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run `function(*arguments)` in a free thread, or in a new one."""
        self.check_owner()
        future: Future[Any] = Future()

        def run() -> None:
            try:
                value, error = function(*arguments), None
            except BaseException as raised:  # noqa: BLE001  # the future passes it on
                value, error = None, raised
            with self._lock:
                self._num_free += 1  # before the future is done: its waiter may submit at once
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        with self._lock:
            if self._num_free:
                self._num_free -= 1
            else:
                name = f"{self._name} {self._num_threads}"
                threading.Thread(target=self._run_tasks, name=name, daemon=True).start()
                self._num_threads += 1
        self._tasks.put(run)
        return future

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it refers to the arguments, and it may be long until the next task comes

    def check_owner(self) -> None:
        """Raise `ClosedError` in a forked process: the threads stayed in the process that was forked."""
        if os.getpid() != self._owner_pid:
            raise ClosedError("These threads stayed behind when this process was forked: make a new pool in it.")

    def close(self) -> None:
        """Let each thread end when it is free."""
        for _ in range(self._num_threads):
            self._tasks.put(None)


class PolicyPool(ClosedAtExit):
    """`workers` worker processes, and as many threads as there are agents that act at once.

    Processes and threads are started when they are first needed. The code that made the pool closes it.

    Threads: wrappers that share a pool may be used by different threads: calls to its processes wait for one another.

    Args:
        workers: How many processes; by default one for each core that this process may use.
        settings: How worker processes are started.
    """

    @suggests_keywords
    def __init__(self, workers: Any = None, settings: PoolSettings | None = None) -> None:
        if workers is not None and not (is_whole(workers) and workers > 0):
            raise ValueError(f"workers={workers!r} is not a number of workers. Give a whole number from 1 up, or None.")
        self.num_workers = workers or num_cores()
        self._settings = settings or PoolSettings(
            backend="process", preload=("parallel_envs.wrappers.process",), name="policy worker"
        )
        self.num_policies: Counter[int] = Counter()
        """The number of policies in each worker, of all wrappers that use this pool."""
        self._threads: Threads | None = None
        self._processes: WorkerPool | None = None
        self.guard = self._guard = CallGuard(type(self).__name__)
        """Wrappers that call the processes of this pool use this guard as their own."""
        self.closed = False

    @in_turn
    def threads(self) -> Threads:
        """Return the threads: one for each policy that acts at a time, since policies may wait for something else."""
        self.check_open()
        if self._threads is None:
            self._threads = Threads("policy")
            weakref.finalize(self, self._threads.close)
        return self._threads

    @in_turn
    def processes(self) -> WorkerPool:
        """Return the worker processes."""
        self.check_open()
        if self._processes is None:
            self._processes = open_pool(self.num_workers, self._settings)
        return self._processes

    def check_open(self) -> None:
        """Raise `ClosedError` if the pool has been closed, or if its workers belong to another process."""
        if self.closed:
            raise ClosedError("A policy pool was used after it had been closed. Open a new one.")
        self.check_owner()

    def check_owner(self) -> None:
        """Raise `ClosedError` in a forked process: processes and threads belong to the process that was forked."""
        if self._processes is not None:
            self._processes.check_owner()
        if self._threads is not None:
            self._threads.check_owner()

    def close(self, timeout: float = 5.0) -> None:
        """End all processes within `timeout` seconds. Threads cannot be ended by force: one that hangs is left."""
        if self.closed:
            return
        self.closed = True
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._processes.close(timeout)
            self.guard.wait_until_free(timeout)
            self._processes = None


# ---- the thread strategy ---------------------------------------------------------------------------------------------


RunningTurn = tuple[dict[int, Future[float]], Answers]
"""The future of each group, by its number, and the answers so far."""


class PerAgentThreadWrapper(LocalWrapper):
    """Every policy in a thread of a shared pool: for policies that release the interpreter's lock.

    Such policies use NumPy or torch, or wait for a remote model. Agents that share an object form a group and use one
    thread. A policy that is late cannot be interrupted: its agent gets default actions until the policy has returned.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    acts_in_background = True

    @suggests_keywords
    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._groups = sharers(self.policies)
        self._last: dict[int, Future[Any]] = {}
        """By group the last task. A task begins when the group's earlier ones have ended."""
        self._late: dict[int, Future[float]] = {}  # turns that have ended without the answers of a group

    def _submit(self, threads: Threads, number: int, function: Callable[[], Any]) -> Future[Any]:
        """Run a task of a group in a thread, after the group's earlier tasks."""
        before = self._last.get(number)

        def run() -> Any:
            if before is not None:
                wait([before])
            return function()

        future = self._last[number] = threads.submit(run)
        return future

    def _begin(self, inputs: Inputs) -> RunningTurn:
        running: dict[int, Future[float]] = {}
        answers = Answers.none()
        threads, is_timed = self._pool.threads(), self.rules.action_timeout is not None

        def act(own: Inputs) -> float:
            step_one_by_one(self._handles, own, answers, timed=is_timed)
            return time.monotonic()

        for number, group in enumerate(self._groups):
            own = {agent: inputs[agent] for agent in group if agent in inputs}
            if own and (number not in self._late or self._late[number].done()):
                self._late.pop(number, None)
                running[number] = self._submit(threads, number, partial(act, own))
        return running, answers

    def _end(self, token: RunningTurn, deadline: float | None) -> Answers:
        self._pool.check_owner()
        running, so_far = token
        wait(running.values(), None if deadline is None else max(deadline - time.monotonic(), 0.0))
        answers = Answers(so_far.actions.copy(), so_far.others.copy())  # any that come later are late
        for number, future in running.items():
            if not future.done():
                self._late[number] = future
            elif (error := future.exception()) is not None:  # KeyboardInterrupt: not Ctrl-C, in a thread
                known = answers.actions.keys() | answers.others.keys()
                answers.add(Answers.failed([agent for agent in self._groups[number] if agent not in known], error))
        return answers

    def _returned_at(self, agent: Agent) -> float | None:
        late = next((self._late.get(number) for number, group in enumerate(self._groups) if agent in group), None)
        if late is None or (late.done() and late.exception() is not None):
            return 0.0
        return late.result() if late.done() else None

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        self._pool.check_owner()
        limit = self.rules.action_timeout  # without it, no policy is ever late
        answers: dict[Agent, Answer] = {}
        for number, group in enumerate(self._groups):
            own = {agent: arguments[agent] for agent in group if agent in arguments}
            if not own:
                continue
            if number in self._last:
                wait([self._last[number]], None if limit is None else 0.0 if later else limit)
            if number not in self._last or self._last[number].done():
                answers |= super()._call_handles(method, own)
            elif later:
                self._submit(self._pool.threads(), number, partial(super()._call_handles, method, own))
            else:
                answers |= dict.fromkeys(own, Answer(failure=still_busy(method)))
        return answers

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._own_pool:
            self._pool.close()


# ---- the policy of a single agent -----------------------------------------------------------------------------------


@dataclass
class StandaloneAgent(WrappedAgent, ClosedAtExit):
    """The policy of a single agent, wrapped by itself: the result of `PerAgentSubprocessWrapper(policy)`.

        agents = {name: PerAgentSubprocessWrapper(policy) for name, policy in policies.items()}
        action = agents["red"].step(observation)      # computed in a worker process, where the policy lives

    The policy stays in its worker from the beginning on, so it keeps its state from step to step. To have several
    agents compute at once, call `send` of all of them before `recv` of the first.

    Agents that need processes and are given no `pool` share one pool with as many workers as there are cores. Closing
    the last of these agents closes the pool. A policy that cannot be pickled is computed in this process, with a
    warning.

    Threads: different agents may be used by different threads, and each of them by any thread, one at a time.
    """

    shared: SharedPool | None = field(default=None, repr=False)

    def close(self) -> None:
        """Release the policy, and close the shared pool if no other agent uses it."""
        self.wrapper.close()
        if self.shared is not None:
            self.shared.close()


def standalone(kind: type[PerAgentWrapper], policy: Any, *arguments: Any, **named: Any) -> StandaloneAgent:
    """Wrap the policy of a single agent. All other arguments go to the constructor of `kind`."""
    policies, signature = {"agent": policy}, inspect.signature(kind)  # errors name the agent "agent"
    are_known = named.keys() <= signature.parameters.keys()
    given = signature.bind_partial(policies, *arguments, **named).arguments if are_known else {}
    shared = SharedPool() if "pool" in signature.parameters and given.get("pool") is None else None
    if shared is not None:
        named["pool"] = shared.pool
    try:
        return StandaloneAgent(kind(policies, *arguments, **named), "agent", shared)
    except BaseException as error:
        if shared is not None:
            shared.close()
        if not isinstance(error, Unpicklable):
            raise
    warn_of_unpicklable(f"The policy {policy!r}")
    return StandaloneAgent(PerAgentSequentialWrapper(policies, given.get("rules")), "agent")


def warn_of_unpicklable(policies: str) -> None:
    """Warn that policies that were to live in workers are computed in this process."""
    warnings.warn(
        f"{policies} cannot be pickled, so it is computed in this process. Give a spec "
        "(parallel_envs.policies.PolicySpec) to have it made in the worker.",
        RuntimeWarning,
        stacklevel=user_stacklevel(),
    )


class SharedPool(ClosedAtExit):
    """A share in the one pool of all `StandaloneAgent`s that were given no pool of their own.

    The first share opens the pool. Closing the last share closes it.

    Threads: any thread may open and close shares.
    """

    _lock: ClassVar[Any] = threading.Lock()
    _current: ClassVar[PolicyPool | None] = None
    _owner_pid: ClassVar[int] = 0  # of the process that opened the pool
    _open: ClassVar[weakref.WeakSet[SharedPool]] = weakref.WeakSet()

    def __init__(self) -> None:
        with self._lock:
            if SharedPool._current is None or SharedPool._current.closed or SharedPool._owner_pid != os.getpid():
                SharedPool._current, SharedPool._owner_pid = PolicyPool(), os.getpid()
                SharedPool._open = weakref.WeakSet()
            self.pool = SharedPool._current
            self._open.add(self)

    def close(self) -> None:
        with self._lock:
            self._open.discard(self)
            is_last = not self._open and SharedPool._current is self.pool
            if is_last:
                SharedPool._current = None
        if is_last:
            self.pool.close()
