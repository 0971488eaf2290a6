"""`ParallelEnvManager`: many Gymnasium environments at once, behind Gymnasium's own vector interface."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from parallel_envs.checks import (
    check_count,
    choice,
    is_one_of,
    optional_seconds,
    optional_wait,
    seconds,
    suggests_keywords,
    unknown_keyword,
    yes_or_no,
)
from parallel_envs.choices import Autoreset, Backend, ObservationMode, OnFailure, StartMethod, words
from parallel_envs.engine import (
    Failure,
    PendingRequest,
    PoolSettings,
    Unpicklable,
    picklable,
    pin_workers,
    unpicklable_part,
)
from parallel_envs.engine.restart_budget import MAX_RESTARTS, RESTART_WINDOW, RestartBudget
from parallel_envs.errors import EnvError
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import KEEP, TaskSource, TaskWay
from parallel_envs.threads import NOT_HELD, CallGuard, one_thread
from parallel_envs.trace import Trace
from parallel_envs.vector import arguments
from parallel_envs.vector.arguments import EnvFactory, EnvIds, Options, Seed, TaskLedger, WorkerEnv
from parallel_envs.vector.env_batch import EnvBatch
from parallel_envs.vector.env_errors import env_error, env_names, unreadable_result
from parallel_envs.vector.env_states import EnvState
from parallel_envs.vector.infos import Info
from parallel_envs.vector.recovery import (
    ENDS,
    SETTING,
    WAIT_ADVICE,
    Awaited,
    EnvRequest,
    InFlight,
    PendingCall,
    Recovery,
    Retry,
    State,
)
from parallel_envs.vector.remotes import Remote, RemoteMethod, RemoteRequests
from parallel_envs.vector.shared_arrays import unpacked
from parallel_envs.vector.step_loop import UNSAID, ResetRequest, TaskSetter, bell_argument
from parallel_envs.vector.worker_envs import Method

Infos = Any
"""`dict[str, Any]`; with `infos_list` `list[dict[str, Any]]`."""

Batch = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]

Received = tuple[npt.NDArray[np.intp], Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Infos]
"""The numbers of the environments that have answered, and rows for these."""

_STEPS_TO_SETTLE = 128  # enough to know how long a step takes, few enough to gain from it early


class CommonOptions(TypedDict, total=False):
    """The arguments of `ParallelEnvManager` that `MultiAgentEnvManager` passes on to it, with their types.

    For editors and type checkers: `tests/test_choices.py` compares them with the signature.
    """

    shared_memory: bool | None
    copy: bool
    context: StartMethod | None
    daemon: bool
    num_workers: int | None
    backend: Backend
    autoreset_mode: AutoresetMode | Autoreset
    threads_per_worker: int | None
    worker_env: WorkerEnv
    cpu_affinity: Sequence[int] | Sequence[Sequence[int]] | Literal["auto"] | None
    on_failure: OnFailure
    step_timeout: float | None
    reset_timeout: float | None
    start_timeout: float | None
    max_restarts: int
    restart_window: float
    task_source: TaskSource | None
    task_setter: TaskSetter | None
    preload: Sequence[str]


class VectorOptions(CommonOptions, total=False):
    """The common options, and the options for environments of one agent only."""

    observation_mode: ObservationMode | Space[Any] | tuple[Space[Any], Space[Any]]
    infos_list: bool


_RESERVED = ("reset", "step", "close")

_CALLER_OF_CLOSE = 3  # levels up from `close_extras`: `VectorEnv.close` lies in between


class ParallelEnvManager(VectorEnv[Any, Any, npt.NDArray[Any]]):
    """A vector environment whose environments run in worker processes and are stepped at the same time.

    It replaces `gymnasium.vector.AsyncVectorEnv`: it has the same arguments and results, and works under the same
    vector wrappers. No environment is built in this process. Workers do not import the user's script, so no
    main guard is needed.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method raises
    `ConcurrentCall` and does nothing. One thread may begin a step and another end it. `close` may be called by any
    thread at any time: a call that waits for environments then raises `ClosedError`.

    Args:
        env_fns: One callable for each environment, or an environment id with `num_envs`. Each callable must make an
            environment of its own. If two callables return the same object in one process, or wrappers of it, an
            EnvError is raised.
        shared_memory: None: parts of observations with a fixed shape go through shared memory, other parts by pipe.
            True: as None, but a space of a class that Gymnasium does not know is a ValueError. False: all by pipe.
        copy: False: observations are views of shared memory that stay valid until the step after next. A request that
            is refused changes nothing, and an environment that fails keeps its latest observation.
        context: How workers are started: `"forkserver"` (default on Linux), `"spawn"`, or `"fork"`, which forks them
            from this process. With `"fork"` workers, also replaced ones, inherit the callables as they are then, and
            nothing is pickled: a callable may hold a lock or an open file. Locks that other threads hold stay locked
            in workers, and a GPU that this process uses cannot be used there.
        daemon: Accepted for compatibility with AsyncVectorEnv. Workers always end with this process, and their
            environments may always start children.
        num_envs: With an id: the number of environments to make.
        num_workers: The number of workers; each holds a contiguous slice of the environments. By default each
            environment has a worker of its own; with `backend="serial"` one place holds all.
        backend: `"process"`, `"thread"` or `"serial"` (in the caller: for debugging, and for very cheap environments).
        observation_mode: `"same"`, `"different"` (bounds may differ), a space for one environment, or a pair of the
            batched space and the space for one.
        autoreset_mode: When an environment whose episode has ended is reset; see Gymnasium.
        threads_per_worker: Limit for the threads of numeric libraries in each worker process; None sets no limit.
        worker_env: Environment variables of the worker processes: a dict for all, or a function of the number of the
            worker, such as `lambda worker: {"CUDA_VISIBLE_DEVICES": str(worker % 2)}`. They are set before the
            environments are made, but after the modules of `preload` have been imported. None changes nothing.
        cpu_affinity: Cores for the workers, given out in turn: `[0, 1]`, or sets of cores: `[[0, 1], [2, 3]]`. `"auto"`
            keeps each worker on one core if the workers fill all cores evenly and steps are short; None leaves the
            choice to the operating system.
        env_kwargs: With an id: keyword arguments for `gymnasium.make`.
        on_failure: What to do if a worker dies or hangs, or an environment raises, during a reset or a step. `"raise"`
            raises the error. `"restart"` replaces only the broken part; the row of its environment is truncated, with
            reward 0, the first observation of the new episode, and `infos["worker_restarted"]`.
        step_timeout: Seconds that a step may take, unless the call says otherwise. None: no limit. (With
            `backend="serial"` nothing can be interrupted, so deadlines have no effect.)
        reset_timeout: Seconds that a reset may take, as `step_timeout`.
        start_timeout: Seconds that the construction of the environments may take, as `step_timeout`.
        task_source: A source that gives a new task to each episode (see `parallel_envs.tasks`).
        task_setter: A function of an environment and a task, for environments that take tasks in a way of their own.
        max_restarts: With `on_failure="restart"`: the number of times that each worker may be restarted within
            `restart_window` seconds. The next failure of the worker is raised.
        restart_window: See `max_restarts`. The seconds in which a deadline ran out are not counted.
        infos_list: True: `reset`, `step` and `recv` return infos as a list with one dict for each row, as its
            environment returned it, with `final_info` and `final_obs`; empty for environments that a reset left alone.
            Gymnasium's vector wrappers that read infos need the dict of arrays.
        preload: Modules that the environments import, such as `("torch",)`. They are imported once, in the process that
            workers are forked from (with `context="fork"`, and backends `"thread"` and `"serial"`: in this process),
            rather than in each worker; with `"spawn"` in each. A module that cannot be imported raises an ImportError.
            Eight workers with torch took 4.2 s and 1.18 GB to start without, 1.1 s and 0.20 GB with it.

    Attributes:
        env_fns: One callable for each environment. With an id, the callables call `gymnasium.make`.
        observation_mode, shared_memory, copy, context, daemon: The arguments, as in AsyncVectorEnv.
    """

    closed = True  # set to False once construction has succeeded, so that close() after a failed __init__ does nothing
    _known_as: str | None = None  # the name of the class in errors, if it is not its own name

    @suggests_keywords
    def __init__(
        self,
        env_fns: Sequence[EnvFactory] | str | EnvSpec,
        shared_memory: bool | None = None,
        copy: bool = True,
        context: StartMethod | None = None,
        daemon: bool = True,
        *,
        num_envs: int | None = None,
        num_workers: int | None = None,
        backend: Backend = "process",
        observation_mode: ObservationMode | Space[Any] | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: AutoresetMode | Autoreset = AutoresetMode.NEXT_STEP,
        threads_per_worker: int | None = 1,
        worker_env: WorkerEnv = None,
        cpu_affinity: Sequence[int] | Sequence[Sequence[int]] | Literal["auto"] | None = "auto",
        env_kwargs: Mapping[str, Any] | None = None,
        on_failure: OnFailure = "raise",
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        start_timeout: float | None = None,
        max_restarts: int = MAX_RESTARTS,
        restart_window: float = RESTART_WINDOW,
        task_source: TaskSource | None = None,
        task_setter: TaskSetter | None = None,
        infos_list: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        name = self._known_as or type(self).__name__
        self._guard = CallGuard(name)
        factories, self.spec = arguments.factories(env_fns, num_envs, env_kwargs)
        self.env_fns, self.observation_mode = factories, observation_mode
        self.shared_memory, self.context, self.daemon = shared_memory, context, daemon
        self.num_envs = len(factories)
        if num_workers is None:
            num_workers = 1 if is_one_of(backend, ("serial",)) else self.num_envs
        self.num_workers = num_workers
        check_count("num_workers", self.num_workers, at_most=self.num_envs, what=f"the {self.num_envs} environments")
        self.on_failure = choice("on_failure", on_failure, words(OnFailure))
        self.step_timeout = optional_seconds("step_timeout", step_timeout)
        self.reset_timeout = optional_seconds("reset_timeout", reset_timeout)
        check_count("max_restarts", max_restarts)
        budget = RestartBudget(max_restarts, seconds("restart_window", restart_window))
        if threads_per_worker is not None:
            check_count("threads_per_worker", threads_per_worker)
        if shared_memory is not None:
            yes_or_no("shared_memory", shared_memory)
        self.autoreset_mode = arguments.autoreset(autoreset_mode)
        self.copy = yes_or_no("copy", copy)
        self.infos_list = yes_or_no("infos_list", infos_list)
        modules = arguments.modules("preload", preload)
        self._settles = isinstance(cpu_affinity, str) and cpu_affinity == "auto"
        settings = PoolSettings(
            backend=backend,
            context=context,
            threads=threads_per_worker,
            environ=arguments.worker_environ(worker_env, self.num_workers, backend),
            affinity=None if self._settles else arguments.affinity(cpu_affinity),
            preload=("parallel_envs.vector.worker_envs", *modules),
            name="env worker",
            start_timeout=optional_seconds("start_timeout", start_timeout),
        )
        self._batch = batch = EnvBatch(
            factories,
            self.num_workers,
            settings,
            autoreset_mode=self.autoreset_mode,
            observation_mode=observation_mode,
            shared_memory=shared_memory,
            num_sets=1 if copy else 2,
            tasks=arguments.task_settings(task_source, task_setter, self.num_envs),
        )
        try:
            self._tasks = TaskLedger(task_source, batch.task_ways, batch.episodes)
            automatic = on_failure == "restart"
            self._recovery = Recovery(batch, self._tasks, budget, self.reset_timeout, automatic=automatic)
        except BaseException:
            batch.close(2.0)
            raise
        self.backend = batch.pool.backend
        self._pending = PendingCall(name, batch.pool)
        self.closed = False
        self.metadata = {**batch.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = batch.render_mode
        self.single_observation_space, self.observation_space = batch.observation_spaces
        self.single_action_space, self.action_space = batch.action_spaces
        self._set, self._next_set = 0, 0 if copy else 1
        """The set of observations that was written last, and the set that the next step or reset writes."""
        self._all_rows = np.ones(self.num_envs, np.bool_)
        self._sent_version = None if task_source is None else task_source.version
        self._remote_requests = RemoteRequests(self.single_action_space)
        self._requests: list[ResetRequest] = []
        """The resets that were begun last."""
        self._failed_wait: tuple[str, float | None] = ("", None)
        self._calling = ""
        self._call_envs: list[int] = []
        self._call_made_of: Callable[[int, Any], Any] | None = None
        """Makes a result of the call that was begun from an answer."""
        self._stop = self._recovery.new_deaths  # stored, since making a bound method costs time at each step
        self._in_flight = InFlight(batch, self._recovery, self.step_timeout, self.reset_timeout)
        self._num_steps = 0
        self._is_traced = False

    # ---- reset and step -------------------------------------------------------------------------------------------

    @one_thread
    def reset(
        self,
        *,
        seed: Seed = None,
        options: Options = None,
        tasks: Sequence[Any] | None = None,
        env_ids: EnvIds = None,
        timeout: float | None = None,
    ) -> tuple[Any, Infos]:
        """Reset all environments, or those that `env_ids` names or `options["reset_mask"]` marks.

        Args:
            seed: As in Gymnasium: an int counts up from environment to environment, a list has one seed for each
                environment (with `env_ids`, for each of these).
            options: For `Env.reset`: a dict for all, or a list with one for each. In a dict, `"tasks"` (one for each)
                and `"task"` (one for all) have the effect of `tasks`, for wrappers that pass only options.
            tasks: One for each environment that is reset: any value, a `Task`, `KEEP` or `RESAMPLE`. A task stays
                through autoresets until it is changed (with a `task_source`: for this episode only).
            env_ids: The environments to reset. Here and elsewhere negative numbers count from the end, as in a list.
            timeout: Replaces `reset_timeout`.

        Returns:
            The latest observation of every environment, and the infos of those that were reset.
        """
        optional_wait(timeout)
        self.reset_async(seed=seed, options=options, tasks=tasks, env_ids=env_ids)
        return self.reset_wait(timeout)

    @one_thread
    def reset_async(
        self, seed: Seed = None, options: Options = None, tasks: Sequence[Any] | None = None, env_ids: EnvIds = None
    ) -> None:
        """Begin a reset. `reset_wait` ends it."""
        self._pending.check_open("reset_async")
        given = arguments.reset_arguments(options, tasks, env_ids, self.num_envs)
        if self._pending.state is State.ASKING and len(given.envs) == self.num_envs:
            self._in_flight.abandon()
            self._batch.tell_all("announce_again")  # the state stays ASKING until all envs have been asked
        else:
            self._become_idle("reset_async")
        requests, chosen = self._reset_requests(given, seed, env_ids)
        self._begin_reset(requests, chosen)
        if isinstance(seed, int | np.integer) and seed >= 0:
            self._recovery.begin(SeedTree(int(seed)))

    def _begin_reset(self, requests: list[ResetRequest], chosen: Mapping[int, Any]) -> None:
        with self._pending.asking(State.RESET):
            self._update_source()
            self._pending.pending = self._batch.reset(requests, self._next_set)
            self._requests = requests
            untouched = self._all_rows.copy()
            untouched[[request.env for request in requests]] = False
            self._switch_set(untouched)
        self._use_tasks(chosen)

    def _reset_requests(
        self, given: arguments.ResetArguments, seed: Any, env_ids: EnvIds
    ) -> tuple[list[ResetRequest], dict[int, Any]]:
        """Return a request for each env, and the tasks of the envs."""
        seeds = arguments.seeds(seed, self.num_envs, None if env_ids is None else given.envs)
        chosen = self._tasks.choices(given.tasks, given.envs)
        return [ResetRequest(env, seeds[env], given.options[env], chosen[env]) for env in given.envs], chosen

    @one_thread
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """Return the observations and infos of the reset that was begun. May be called again after a `StepTimeout`."""

        def retry(envs: Sequence[int]) -> PendingRequest:
            wanted = [one for one in self._requests if one.env in envs]
            again = [dataclasses.replace(one, restarted=one.state is None) for one in wanted]
            return self._batch.reset(again, self._set)

        seconds = self.reset_timeout if timeout is None else timeout
        doing = "reset" if not self._requests or self._requests[0].state is None else SETTING
        pickled = self._batch.take_in(self._finish(State.RESET, doing, seconds, retry), self._set)
        envs = [request.env for request in self._requests]
        return self._observations(), self._batch.infos(pickled, only=envs, as_list=self.infos_list)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Have `step` call the `step_async` and `step_wait` of a subclass that defines its own, as Gymnasium's does."""
        super().__init_subclass__(**settings)
        if cls.step_async is not ParallelEnvManager.step_async:
            setattr(cls, "_begin_step", lambda self, actions: self.step_async(actions))  # noqa: B010  # a method
        if cls.step_wait is not ParallelEnvManager.step_wait:
            setattr(cls, "_end_step", lambda self, timeout: self.step_wait(timeout))  # noqa: B010  # a method

    def step(self, actions: Any, timeout: float | None = None) -> Batch:
        """Step every environment. Environments whose episode has ended are reset as `autoreset_mode` says."""
        if timeout is not None:
            optional_wait(timeout)
        guard = self._guard
        lock = guard.lock
        try:  # the same as `one_thread`, which costs too much time here
            if not lock.acquire(False):
                lock = NOT_HELD
                guard.refuse("step")
            self._begin_step(actions)
            return self._end_step(timeout)
        finally:
            lock.release()

    @one_thread
    def step_async(self, actions: Any) -> None:
        """Begin a step. `step_wait` ends it."""
        ParallelEnvManager._begin_step(self, actions)

    def _begin_step(self, actions: Any) -> None:
        pending = self._pending
        if pending.state is not State.IDLE or pending.closed or pending.pool.closed:
            self._become_idle("step_async")
        code, loose = self._batch.actions.write(actions)
        pending.state = State.ASKING  # the same as `PendingCall.asking`, which costs too much time here
        try:
            if self._tasks.source is not None:
                self._update_source()
            pending.pending = self._batch.step(bell_argument(self._next_set, code), loose)
        except Exception:
            pending.state = State.IDLE
            raise
        self._set = self._next_set
        if not self.copy:
            self._next_set = 1 - self._set
        pending.state = State.STEP

    @one_thread
    def step_wait(self, timeout: float | None = None) -> Batch:
        """Return the results of the step that was begun. May be called again after a `StepTimeout`.

        `WorkerDied` is raised at once, even while other environments are still busy. After `restart` of the lost
        environments, call `step_wait` again: it returns the rows of all. Any other request drops this step, once the
        busy environments have answered. (All this holds for `reset_wait` too. A call that has failed cannot be
        completed.)
        """
        return ParallelEnvManager._end_step(self, timeout)

    def _end_step(self, timeout: float | None) -> Batch:
        seconds = self.step_timeout if timeout is None else timeout
        batch = self._batch
        requests = self._finish(
            State.STEP, f"step {self._num_steps + 1}", seconds, lambda envs: batch.ask("report_lost", envs, self._set)
        )
        self._num_steps += 1
        if self._num_steps == _STEPS_TO_SETTLE and self._settles:
            pin_workers(batch.pool)
        infos = batch.infos(batch.take_in(requests, self._set), as_list=self.infos_list)
        arrays = batch.arrays
        return self._observations(), arrays.rewards.copy(), arrays.terminated.copy(), arrays.truncated.copy(), infos

    def _switch_set(self, untouched: npt.NDArray[np.bool_]) -> None:
        """Read from the set of observations that a request writes to.

        With `copy=False` this is the other set, so that the observations that the caller holds stay valid for one more
        step. Rows that the request does not write (`untouched`) are copied. Call this only after the request has been
        made, since a request that is refused must change nothing.
        """
        if self.copy:
            return
        before, self._set, self._next_set = self._set, self._next_set, self._set
        self._batch.move_rows(before, self._set, untouched)

    def _observations(self) -> Any:
        return self._batch.observations(self._set, copied=self.copy)

    # ---- each env at its own pace ---------------------------------------------------------------------------------

    @one_thread
    def send(self, actions: Any, env_ids: EnvIds = None) -> None:
        """Step some environments, each at its own pace. `actions` has a row for each. `recv` returns the results."""
        envs = self._envs_to_send("send", env_ids)
        code, loose = self._batch.actions.write(actions, envs)
        if loose is not None:
            self._batch.check_can_travel(loose)
        is_first = self._pending.state is State.IDLE
        with self._pending.asking(State.SEND):
            self._update_source()
            if is_first:  # the observations that the caller holds stay valid; nothing can refuse the request any more
                self._switch_set(self._all_rows)
            self._in_flight.start_steps(envs, self._set, code, loose)

    @one_thread
    def send_reset(
        self, env_ids: EnvIds = None, *, seed: Seed = None, options: Options = None, tasks: Sequence[Any] | None = None
    ) -> None:
        """Reset some environments, each at its own pace; arguments as in `reset`. `recv` returns the results."""
        given = arguments.reset_arguments(options, tasks, env_ids, self.num_envs)
        self._envs_to_send("send_reset", given.envs)
        requests, chosen = self._reset_requests(given, seed, env_ids)
        if any(request.options is not None or request.task is not UNSAID for request in requests):
            self._batch.check_can_travel(requests)
        is_first = self._pending.state is State.IDLE
        with self._pending.asking(State.SEND):
            self._update_source()
            if is_first:  # as in `send`
                self._switch_set(self._all_rows)
            for request in requests:
                self._in_flight.start_reset(request, self._set)
        self._use_tasks(chosen)

    def _envs_to_send(self, asked: str, env_ids: EnvIds) -> list[int]:
        """Return the envs to send a request to. Raise if another request is pending for all envs or one of them."""
        self._pending.check_open(asked)
        if self._pending.failed:
            self._drop_failed()
        if self._pending.state not in (State.IDLE, State.SEND):
            raise self._pending.error(asked)
        envs = arguments.some_envs(env_ids, self.num_envs)
        if busy := [env for env in envs if self._in_flight.of(env) is not None]:
            raise AlreadyPendingCallError(
                f"`{asked}` was called for {env_names(busy)}, still on the way from an earlier `send`. "
                "Call `recv` first.",
                "send",
            )
        return envs

    @one_thread
    def recv(self, min_envs: int = 1, timeout: float | None = None) -> Received:
        """Return the results of `send` and `send_reset`, once at least `min_envs` environments have answered.

        Returns:
            `env_ids` in the order in which they answered, and rows for these: observations, rewards, terminations,
            truncations, infos.

        Raises:
            StepTimeout: Fewer had answered in time. Nothing is lost; `recv` may be called again.
        """
        return self._recv(min_envs, timeout, self.infos_list)

    @one_thread
    def recv_each(self, min_envs: int = 1, timeout: float | None = None) -> Received:
        """Return the results as `recv` does, but with infos as a list: the own info of each environment.

        In a batch of infos each column has the type of its first row, so its values depend on which rows are together.
        """
        return self._recv(min_envs, timeout, True)

    def _recv(self, min_envs: int, timeout: float | None, as_list: bool) -> Received:
        check_count("min_envs", min_envs)
        self._pending.check_begun(State.SEND)
        if min_envs > len(self._in_flight):
            raise ValueError(
                f"min_envs={min_envs} is more than the {len(self._in_flight)} environments that are on the way. "
                "Send to more of them first, or wait for fewer."
            )
        answered, pickled = self._receive(lambda: self._in_flight.answered(min_envs), timeout)
        envs = np.array([request.env for request in answered], np.intp)
        batch, arrays = self._batch, self._batch.arrays
        observations, infos = batch.observations(self._set, envs), batch.infos(pickled, envs, as_list=as_list)
        return envs, observations, arrays.rewards[envs], arrays.terminated[envs], arrays.truncated[envs], infos

    @one_thread
    def recv_env(self, env: int, timeout: float | None = None) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the answer of one environment to `send` or `send_reset`, as its own `step` would return it."""
        self._pending.check_open("recv_env")
        request = self._in_flight.of(env)
        if request is None:
            raise NoAsyncCallError(f"Calling `recv_env` for env {env}, to which nothing was sent.", "send")
        _, pickled = self._receive(lambda: [request] if request.pending.done else [], timeout, request)
        return self._batch.single(request.env, self._set, pickled)

    def _receive(
        self, ready: Callable[[], list[EnvRequest]], timeout: float | None, only: EnvRequest | None = None
    ) -> tuple[list[EnvRequest], dict[int, Info]]:
        """Wait for requests (see `InFlight.wait`) and end them. Return them, and the infos that came by pipe.

        After an error the other requests stay for the next call.
        """
        try:
            answered = self._in_flight.wait(ready, timeout, only)
            return answered, self._batch.take_in(self._in_flight.finish(answered), self._set)
        finally:
            if not self._in_flight:
                self._pending.end()

    @one_thread
    def ready(self, min_envs: int = 1, timeout: float | None = 0.0) -> int:
        """Return how many environments have answered to `send` and have not been received yet.

        Waits until there are at least `min_envs`, or `timeout` seconds have passed (None: no limit).
        """
        self._pending.check_open("ready")
        check_count("min_envs", min_envs)
        optional_wait(timeout)
        return self._in_flight.ready(min(min_envs, len(self._in_flight)), timeout)

    @property
    @one_thread
    def ready_ids(self) -> list[int]:
        """The environments that have answered to `send` and `send_reset` and have not been received yet.

        They are in the order in which they answered. The property returns at once, and receives nothing. It contains
        environments whose worker has died, since `recv` deals with them without waiting.

        With `backend="serial"` environments work only while the caller asks for answers, so each look runs one.
        """
        self._pending.check_open("ready_ids")
        if any(not request.pending.done for request in self._in_flight):
            self._batch.pool.pump(0.0)
        return [request.env for request in self._in_flight.answered(1)]

    @property
    def late(self) -> list[int]:
        """The environments that have not answered by their deadline. `recv` deals with them without waiting."""
        return [request.env for request in self._in_flight.late()]

    @property
    def workers_of(self) -> tuple[int, ...]:
        """The worker that holds each environment."""
        return tuple(self._batch.owner)

    def is_away(self, env: int) -> bool:
        """Return whether an environment has been sent a request whose answer has not been received yet."""
        return self._in_flight.of(env) is not None

    @property
    def remotes(self) -> Sequence[Remote]:
        """The environments one by one, with messages in the form of a meta-RL pipeline: see `Remote`.

        Each `Remote` keeps the manager alive.
        """
        return tuple(Remote(self, self._remote_requests, env) for env in range(self.num_envs))

    # ---- tasks ----------------------------------------------------------------------------------------------------

    @one_thread
    def set_tasks(self, tasks: Sequence[Any], env_ids: EnvIds = None) -> None:
        """Set the tasks of environments from their next episodes on, one for each. `KEEP` leaves a task as it is."""
        self._become_idle("set_tasks")
        envs = arguments.some_envs(env_ids, self.num_envs)
        chosen = self._tasks.choices(tasks, envs)
        self._ask("set_tasks", {env: task for env, task in chosen.items() if task is not KEEP})
        self._answers("setting of tasks")
        self._tasks.note(chosen, later=True)
        self._use_tasks(chosen)

    @one_thread
    def get_tasks(self, env_ids: EnvIds = None) -> list[Any]:
        """Return the tasks of environments, or None for an environment without a task.

        The answer comes from the environment's own `get_task` or `get_current_task`, if it has one. Otherwise it is the
        task as it was given.
        """
        self._become_idle("get_tasks")
        envs = arguments.some_envs(env_ids, self.num_envs)
        self._ask("get_tasks", envs)
        tasks = self._answers("asking for tasks")
        return [tasks[env] for env in envs]

    @property
    def task_source(self) -> TaskSource | None:
        """The source of the tasks of new episodes."""
        return self._tasks.source

    @property
    def task_ways(self) -> tuple[TaskWay | str, ...]:
        """The way in which each environment takes a task, or the reason why it takes none."""
        return self._tasks.ways

    def reset_all(self, tasks: Sequence[Any] | None = None) -> tuple[Any, Infos]:
        """Reset every environment, each with its task."""
        return self.reset(tasks=tasks)

    def step_all(self, actions: Any) -> Batch:
        """Step every environment."""
        return self.step(actions)

    def _use_tasks(self, chosen: Mapping[int, Any]) -> None:
        """Record tasks that were given. At the first ones, tell the workers that tasks are in use."""
        self._tasks.note(chosen)
        if self._tasks.active and not self._batch.tells_tasks:
            self._batch.use_tasks()

    def _update_source(self) -> None:
        """Send the task source to the workers if the trainer has changed it."""
        source = self._tasks.source
        if source is not None and source.version != self._sent_version:
            self._sent_version = source.version
            self._batch.tell_all("change", None, source)

    def _use_autoreset_mode(self, mode: AutoresetMode) -> None:
        """Reset environments whose episodes have ended as this mode says. Call this before the first reset."""
        self._become_idle("use_autoreset_mode")
        self.autoreset_mode = self.metadata["autoreset_mode"] = mode
        self._batch.mode = mode
        self._batch.tell_all("change", mode)

    # ---- attributes and methods of the envs -----------------------------------------------------------------------

    @one_thread
    def call(self, name: str, *args: Any, env_ids: EnvIds = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments (or read an attribute): all, or those of `env_ids`. One result for each."""
        self.call_async(name, *args, env_ids=env_ids, **kwargs)
        return self.call_wait()

    @one_thread
    def call_async(self, name: str, /, *args: Any, env_ids: EnvIds = None, **kwargs: Any) -> None:
        """Begin a call. `call_wait` ends it."""
        self._become_idle("call_async")
        if name in _RESERVED:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        self._begin_call(f"call of {name!r}", arguments.some_envs(env_ids, self.num_envs), "call", name, args, kwargs)

    def _begin_call(self, doing: str, envs: Sequence[int], method: str, *args: Any) -> None:
        self._call_envs, self._calling, self._call_made_of = list(envs), doing, None
        self._ask(method, envs, *args)

    @one_thread
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of the call that was begun. May be called again after a `StepTimeout`."""
        results, made_of = self._answers(self._calling, timeout), self._call_made_of
        return tuple(results[env] if made_of is None else made_of(env, results[env]) for env in self._call_envs)

    @one_thread
    def apply(
        self, fn: Callable[..., Any], *args: Any, env_ids: EnvIds = None, timeout: float | None = None
    ) -> list[Any]:
        """Return `fn(env, *args)` for the environments, all or those of `env_ids`, in their order. It runs in workers.

            lengths = envs.apply(lambda env: env.spec.max_episode_steps)

        `env` is the environment as its callable made it, with its wrappers; `env.unwrapped` is the one inside. In
        worker processes `fn` and `args` are copies, sent by cloudpickle, so changes that `fn` makes outside `env` stay
        there. The result of `fn` must be picklable. Errors and dead workers are raised as for `call`. After a
        `StepTimeout` (`timeout` seconds were too few) `call_wait` returns the results.
        """
        if not callable(fn):
            raise TypeError(f"fn={fn!r} cannot be called. Give a function of an environment.")
        optional_wait(timeout)
        self._become_idle("apply")
        envs, doing = arguments.some_envs(env_ids, self.num_envs), getattr(fn, "__name__", type(fn).__name__)
        try:
            self._begin_call(f"apply of {doing!r}", envs, "apply", fn, args)
        except Unpicklable as error:
            for name, value in [("fn", fn), *((f"args[{number}]", arg) for number, arg in enumerate(args))]:
                if not picklable(value):
                    raise Unpicklable(
                        f"{unpicklable_part(value, name)} cannot be pickled, so it cannot travel to a worker process. "
                        f"Make it inside the function, or use backend='thread'. ({error.__cause__!r})"
                    ) from error
            raise
        return list(self.call_wait(timeout))

    def get_attr(self, name: str, env_ids: EnvIds = None) -> tuple[Any, ...]:
        """Return an attribute of the environments, all or those of `env_ids`. A method is called, as in Gymnasium."""
        return self.call(name, env_ids=env_ids)

    @one_thread
    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any, env_ids: EnvIds = None) -> None:
        """Set an attribute: a list or tuple has one value for each environment, any other value is for all."""
        self._become_idle("set_attr")
        envs = arguments.some_envs(env_ids, self.num_envs)
        given = values if isinstance(values, list | tuple) else [values] * len(envs)
        if len(given) != len(envs):
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(given)}` values for {len(envs)} environments."
            )
        self._ask("set_attr", dict(zip(envs, given, strict=True)), name)
        self._answers(f"setting of {name!r}")

    @one_thread
    def _look_up(self, name: str, env: int) -> Any:
        """Return an attribute of one environment without calling it. A method is returned as a `RemoteMethod`."""
        self._become_idle("get_attr")
        self._ask("look_up", [env], name)
        (found,) = self._answers(f"reading of {name!r}").values()
        return RemoteMethod(self, env, name) if isinstance(found, Method) else found

    @one_thread
    def _call_one(self, env: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of one environment. Its keywords may have the names of keywords of `call` too."""
        self._become_idle(name)
        self._begin_call(f"call of {name!r}", [env], "call", name, args, kwargs)
        (result,) = self.call_wait()
        return result

    # ---- states -----------------------------------------------------------------------------------------------------

    @one_thread
    def get_state(
        self, env_ids: EnvIds = None, *, save: Callable[[Any], Any] | None = None, timeout: float | None = None
    ) -> list[EnvState]:
        """Return the states of environments between two steps: one for each, or for each of `env_ids`.

            before = envs.get_state()
            envs.step(actions)                  # try something
            observations, infos = envs.set_state(before)

        A state contains the environment with its wrappers, its random generators, the latest observation, its task and
        the number of its episode. Generators of whole modules (`random`, `numpy.random`) are not part of it.

        Attributes are copied, and the simulators of ALE and MuJoCo by their own functions. If that is not possible, an
        environment or wrapper with `get_env_state()` and `set_env_state(state)` saves itself by these. Where neither
        works, a TypeError (the cause of an `EnvError`) names the attribute: wrap the environment in
        `parallel_envs.ReplayableEnv`, or give a function of the environment as `save`.
        """
        optional_wait(timeout)
        self._become_idle("get_state")
        envs = arguments.some_envs(env_ids, self.num_envs)
        self._begin_call("saving of a state", envs, "get_states", save)
        self._call_made_of = self._as_state
        return list(self.call_wait(timeout))

    def _as_state(self, env: int, facts: dict[str, Any]) -> EnvState:
        return EnvState(observation=self._batch.observation(env, self._set), **facts)

    @one_thread
    def set_state(
        self,
        states: Sequence[EnvState],
        env_ids: EnvIds = None,
        *,
        load: Callable[[Any, Any], None] | None = None,
        timeout: float | None = None,
    ) -> tuple[Any, Infos]:
        """Bring environments to states from `get_state`, of these or of other environments made in the same way.

        Args:
            states: One for each environment, or for each of `env_ids`.
            env_ids: The environments that go on from them; the others stay as they are.
            load: A function of the environment and what `save` returned, for states saved by a function.
            timeout: As in `reset`.

        Returns:
            The latest observation of every environment, and infos that are empty for those that were set.
        """
        optional_wait(timeout)
        self._begin_set_state(states, env_ids, load)
        return self.reset_wait(timeout)

    def _begin_set_state(
        self, states: Sequence[EnvState], env_ids: EnvIds, load: Callable[[Any, Any], None] | None
    ) -> None:
        self._become_idle("set_state")
        envs = arguments.some_envs(env_ids, self.num_envs)
        arguments.check_states(states, envs, load)
        self._begin_reset([ResetRequest(env, state=(state, load)) for env, state in zip(envs, states, strict=True)], {})
        for env, episode in ((env, state.episode) for env, state in zip(envs, states, strict=True)):
            self._tasks.restore(env, episode.task, episode.next_task, episode.marks[1])
        self._use_tasks({})

    def fork(self, source: int, targets: EnvIds = None, *, timeout: float | None = None) -> tuple[Any, Infos]:
        """Bring environments (by default all others) to the state of environment `source`.

        Equal actions then have equal results in all of them. With a `task_source` this ends with the episode, because
        each environment has tasks of its own. Returns what `set_state` returns.
        """
        (origin,) = arguments.some_envs(source, self.num_envs)
        envs = arguments.fork_targets(targets, origin, self.num_envs)
        states = self.get_state(origin, timeout=timeout)
        return self.set_state(states * len(envs), envs, timeout=timeout)

    def _ask(self, method: str, envs: Sequence[int] | Mapping[int, Any], *args: Any) -> None:
        """Begin a call of a method of `WorkerEnvs` (see `EnvBatch.ask`)."""
        with self._pending.asking(State.CALL):
            self._pending.pending = self._batch.ask(method, envs, *args)

    def _answers(self, doing: str, timeout: float | None = None) -> dict[int, Any]:
        """Wait for the call that was begun. Return the answers by env, or raise the errors of the envs."""
        (pending,) = self._finish(State.CALL, doing, timeout)
        answers: dict[int, Any] = {}
        unreadable: dict[int, EnvError] = {}
        for reply in pending.replies.values():
            for env, value in reply.value.items():
                try:
                    answers[env] = unpacked(value)
                except Exception as error:  # noqa: BLE001  # unpickling runs code of the user's classes
                    unreadable[env] = unreadable_result(env, error, doing)
        if failures := {env: answer for env, answer in answers.items() if isinstance(answer, Failure)}:
            raise env_error(failures, doing)
        if unreadable:
            raise unreadable[min(unreadable)]
        return answers

    def render(self) -> tuple[Any, ...] | None:
        """Return the result of `render` of each environment."""
        return self.call("render")

    @property  # type: ignore[misc]  # read-only and a tuple, as in AsyncVectorEnv
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The environments' generators (copies of them, where workers are processes)."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as in AsyncVectorEnv
        """The seeds of the environments' generators."""
        return self.get_attr("np_random_seed")

    # ---- the manager itself ---------------------------------------------------------------------------------------

    @one_thread
    def stats(self) -> list[dict[str, Any]]:
        """Return statistics of each worker since it was started. Durations are in seconds.

        `print(envs.stats())` shows a table with shares of the worker's `seconds`. `step_seconds` and `reset_seconds`
        are spent inside the environments, `idle_seconds` without work; `wait_seconds` is the time for which this
        process was blocked until the worker had answered. The last line names the slowest environment, if each has a
        worker of its own or was in a `trace`: then `env_step_seconds` has the mean step of each environment in the
        newest trace. Otherwise it names the slowest worker, since steps of single environments are not timed.
        """
        from parallel_envs.vector.tracing import WorkerStats

        self._pending.check_open("stats")
        return WorkerStats(self._batch.stats(self._recovery.restarts))

    @contextlib.contextmanager
    def trace(self, path: str | Path, seconds: float | None = 60.0) -> Iterator[None]:
        """Record a timeline of this process and the workers for the context, and write it to a file at its end.

            with envs.trace("trace.json"):      # open the file in https://ui.perfetto.dev
                train(envs)

        Each worker has a row with its steps, resets and calls, each with the env and the number of the request. The
        row of the caller has the calls of this manager, and within them the waits for workers; and what else this
        process does that is marked: acting and updates of learners. Restarts are marked too.

        The file is written also if the block raises, and then has the events of dead workers as well. It holds the last
        `seconds` seconds (None: no limit), and of these at most 65,536 events of the caller and 262,144 of all workers
        together; its metadata say how many were dropped. Afterwards `stats()` knows the mean step of each environment.

        Raises:
            RuntimeError: The manager is being traced.
            OSError: The file cannot be written.
        """
        from parallel_envs.vector.tracing import traced

        self._pending.check_open("trace")
        trace = Trace(path, seconds)
        with traced(self, trace), trace:  # in this order: a trace that is refused writes no file
            yield

    @one_thread
    def _begin_trace(self, start: Callable[[], None]) -> None:
        self._pending.check_open("trace")
        if self._is_traced:
            raise RuntimeError("A trace of this manager was begun inside another one. End that one first.")
        start()
        self._is_traced = True

    @property
    def num_restarts(self) -> int:
        """The number of times that a worker or an environment has been replaced so far."""
        return sum(self._recovery.restarts)

    @property
    def last_restart(self) -> tuple[tuple[int, ...], str] | None:
        """The environments that were replaced last, and the reason in one line. None if there were none."""
        return self._recovery.last

    @one_thread
    def restart(self, env_ids: EnvIds = None) -> None:
        """Replace environments: all, or those of `env_ids`. Each is made again and reset with a fresh seed.

        This may be called at any time, even during a step: a worker that is busy or dead is replaced as a whole. The
        next row of a replaced environment reports a lost episode, as with `on_failure="restart"`.
        """
        self._pending.check_open("restart")
        envs = arguments.some_envs(env_ids, self.num_envs)
        requests = (self._pending.pending, *(request.pending for request in self._in_flight))
        busy = {worker for pending in requests if pending for worker in pending.waiting}
        for worker, held in self._batch.holders(envs):
            chosen = [env for env in envs if env in held]
            if worker in busy or len(chosen) == len(held) or self._batch.needs_replacing(worker):
                self._recovery.replace(worker, None, None)
                continue
            for env in chosen:
                self._recovery.replace(worker, env, None)

    def close_extras(self, timeout: float | None = 5.0, terminate: bool = False) -> None:
        """End the workers within `timeout` seconds, even if they are busy; at once with `terminate`.

        A warning is given if a `reset_async`, `step_async` or `call_async` was never waited for.
        """
        limit = 5.0 if timeout is None else seconds("timeout", timeout)
        call = self._pending
        # A request that was waited for is not forgotten: the wait has raised (a timeout, a dead worker, Ctrl-C). During
        # another call the manager is closed by another thread or a signal handler: then nothing is forgotten either.
        is_open = not (self._guard.is_held or call.closed or call.pool.closed)
        is_forgotten = is_open and call.state in (State.RESET, State.STEP, State.CALL) and not call.waited_for
        call.closed = True
        self._batch.close(0.2 if terminate else limit)
        if is_forgotten:  # last, so that the workers have ended even where warnings are errors
            gymnasium.logger.warn(
                f"Calling `close` while waiting for a pending call to `{call.state.value}` to complete. Its results "
                f"are lost: call `{ENDS[call.state]}()` first to get them.",
                stacklevel=_CALLER_OF_CLOSE,
            )

    def __enter__(self) -> ParallelEnvManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self._pending.closed = True  # the user has not called `close`, so `close` gives no warning
            self.close()

    def __repr__(self) -> str:
        name = "" if self.spec is None else f"{self.spec.id}, "
        ways = sorted({way.value for way in self._tasks.ways if isinstance(way, TaskWay)}) if self._tasks.active else []
        tasks = f"tasks by {', '.join(ways)}, " if ways else ""
        return (
            f"{type(self).__name__}({name}num_envs={self.num_envs}, num_workers={self.num_workers}, "
            f"backend={self.backend!r}, {tasks}state={str(self._pending)!r})"
        )

    # ---- the end of a request -------------------------------------------------------------------------------------

    def _finish(
        self, state: State, doing: str, timeout: float | None, retry: Retry | None = None
    ) -> list[PendingRequest]:
        """Wait for the request that was begun. Return the requests that hold its answers.

        After a `StepTimeout` the request is still pending. After another error, if a worker has died, the request may
        be waited for again or dropped, even while other workers are still busy (`PendingCall.failed`). If all envs are
        alive and have answered, the request has ended.
        """
        call, pool, until = self._pending, self._batch.pool, None
        pending = call.pending
        if call.state is not state or pending is None or call.closed or pool.closed:
            call.check_begun(state)
        assert pending is not None
        call.waited_for = True
        if timeout is not None:
            until = time.monotonic() + seconds("timeout", timeout)
        requests = [pending]
        if not pool.wait(pending, timeout, self._stop) or pending.replies:
            job = Awaited(pending, doing, timeout, retry)
            while True:
                remaining = None if until is None else max(until - time.monotonic(), 0.0)
                if not pool.wait(pending, remaining, self._stop) and not self._stop(pending):
                    self._recovery.stop_or_raise(job, self._batch.late_envs(pending))
                try:
                    if pending.waiting and pending.replies:
                        self._recovery.act_on_deaths(job)
                        continue
                    requests = self._recovery.resolve(job)
                except Exception:
                    self._take_in_failed(pending)
                    if pending.waiting or any(reply.death is not None for reply in pending.replies.values()):
                        call.failed, self._failed_wait = True, (doing, timeout)
                    else:
                        call.end()
                    raise
                self._batch.learn(requests)
                break
        # Not earlier: after a Ctrl-C before this line the request may be waited for again.
        call.state, call.pending, call.failed, call.waited_for = State.IDLE, None, False, False
        return requests

    def _take_in_failed(self, pending: PendingRequest) -> None:
        """Store the answers of a failed request. With `copy=False`, envs that failed keep their latest observations."""
        batch = self._batch
        batch.take_in([pending], self._set)
        if self._pending.state is State.CALL or self.copy:
            return
        deaths, workers, envs = batch.faults(pending)
        failed = {*envs, *(env for worker in deaths for env in batch.slices[worker])}
        rows = np.zeros(self.num_envs, np.bool_)
        rows[sorted(failed.union(*(asked for asked, _ in workers.values())))] = True
        batch.move_rows(self._next_set, self._set, rows)

    def _become_idle(self, asked: str) -> None:
        """Raise unless a request may be made. A request that has failed is dropped first."""
        if self._pending.failed and not self._pending.closed:
            self._drop_failed()
        self._pending.check_open(asked, State.IDLE)

    def _drop_failed(self) -> None:
        """Drop a request that has failed, once all envs that are still busy with it have answered.

        Until then they read actions from shared memory and write results, so no other request can be made. Raises
        `StepTimeout` after as many seconds as the request itself was waited for.
        """
        pending, (doing, seconds) = self._pending.pending, self._failed_wait
        assert pending is not None
        if not self._batch.pool.wait(pending, seconds):
            raise self._batch.timeout(doing, seconds, self._batch.late_envs(pending), advice=WAIT_ADVICE)
        self._take_in_failed(pending)
        self._pending.end()

    @property
    def _has_answers_to_come(self) -> bool:
        """Return whether a request has failed while some envs are still busy with it."""
        return self._pending.failed and self._pending.pending is not None and not self._pending.pending.done


def vector_entry_point(env_id: str, **settings: Unpack[VectorOptions]) -> Callable[..., ParallelEnvManager]:
    """Return a `vector_entry_point` for `gymnasium.register`: `gymnasium.make_vec` then makes a `ParallelEnvManager`.

    `settings` are keyword arguments of the manager; keyword arguments of `make_vec` go to the environments.

    Threads: any number may call it at once; for the manager see `ParallelEnvManager`.
    """
    known = set(inspect.signature(ParallelEnvManager).parameters) - {"env_fns", "num_envs", "env_kwargs"}
    for name, value in settings.items():
        if name not in known:
            raise unknown_keyword("ParallelEnvManager", name, value, sorted(known))

    def make(num_envs: int, **env_kwargs: Any) -> ParallelEnvManager:
        return ParallelEnvManager(env_id, num_envs=num_envs, env_kwargs=env_kwargs, **settings)

    return make
