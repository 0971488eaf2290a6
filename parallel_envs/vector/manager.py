"""`ParallelEnvManager`: many Gymnasium environments at once, behind Gymnasium's own vector interface."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from parallel_envs.choices import Autoreset, Backend, ObservationMode, OnFailure, StartMethod, words
from parallel_envs.engine import (
    BACKENDS,
    START_METHODS,
    Failure,
    PendingRequest,
    PoolSettings,
    Unpicklable,
    picklable,
    pin_workers,
    unpicklable_part,
)
from parallel_envs.errors import EnvError
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import suggests_keywords, unknown_keyword
from parallel_envs.tasks import KEEP, TaskSource, TaskWay
from parallel_envs.threads import NOT_HELD, CallGuard, one_thread
from parallel_envs.vector import arguments
from parallel_envs.vector.failures import WAIT_ADVICE, env_error, env_names, unreadable_result
from parallel_envs.vector.fleet import EnvFleet
from parallel_envs.vector.flights import Flight, Flights
from parallel_envs.vector.infos import Info
from parallel_envs.vector.recovery import Recovery
from parallel_envs.vector.remotes import Remote, RemoteMethod, RemoteRequests, Remotes
from parallel_envs.vector.settling import AskAgain, Settler
from parallel_envs.vector.slice import Method
from parallel_envs.vector.snapshots import unpacked
from parallel_envs.vector.states import Pending, State
from parallel_envs.vector.stepping import ResetRequest, bell_argument
from parallel_envs.vector.tasking import TaskBook, TaskSetter

Infos = Any
"""`dict[str, Any]`; with `infos_list` `list[dict[str, Any]]`."""

Batch = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]

_STEPS_TO_SETTLE = 128  # enough to know how long a step takes, few enough to gain from it early


class CommonOptions(TypedDict, total=False):
    """The arguments of `ParallelEnvManager` that `MultiAgentEnvManager` passes on to it, with their types.

    For editors and type checkers: `tests/test_choices.py` compares it with the signature.
    """

    shared_memory: bool | None
    copy: bool
    context: StartMethod | None
    daemon: bool
    num_workers: int | None
    backend: Backend
    autoreset_mode: AutoresetMode | Autoreset
    threads_per_worker: int | None
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
    """The same with what only environments of one agent have."""

    observation_mode: ObservationMode | Space[Any] | tuple[Space[Any], Space[Any]]
    infos_list: bool


_RESERVED = ("reset", "step", "close")

_CALLER_OF_CLOSE = 3  # levels up from `close_extras`: `VectorEnv.close` lies in between


class ParallelEnvManager(VectorEnv[Any, Any, npt.NDArray[Any]]):
    """Environments in worker processes, stepped at once.

    It takes the place of `gymnasium.vector.AsyncVectorEnv`: the same arguments, the same results, under the same vector
    wrappers. No environment is built in this process; workers do not import the user's script, so no main guard is
    needed.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method raises
    `ConcurrentCall` and does nothing. One thread may begin a step and another end it. `close` may be called by any
    thread at any time: a call that waits for environments then raises `ClosedError`.

    Args:
        env_fns: One callable for each environment, or an environment id with `num_envs`. Each callable must make an
            environment of its own: two that return one object to one process, or wrappers of it, are an EnvError.
        shared_memory: None: parts of observations that have a fixed shape go through shared memory, others by pipe.
            True: the same, but a space of a class that Gymnasium does not know is a ValueError. False: all by pipe.
        copy: False: observations are views of shared memory that stay valid until the step after next. A request that
            is refused changes nothing, and an env that fails keeps its latest observation.
        context: How workers are started: `"forkserver"` (default on Linux), `"spawn"`, or `"fork"`, which forks them
            from this process. With `"fork"` the callables are inherited as they are, and nothing of them is pickled:
            they may hold a lock, an open file or a generator. A worker that is replaced is forked from this process
            too, and has the callables as they are here by then. Locks that other threads hold stay locked in workers,
            and a GPU that this process uses cannot be used there.
        daemon: Accepted for AsyncVectorEnv's sake. Workers always end with this process, and their environments may
            always start children.
        num_envs: With an id: how many environments to make.
        num_workers: Workers to share the environments, contiguous slices each; by default one for each environment.
        backend: `"process"`, `"thread"` or `"serial"` (in the caller: for debugging, and for very cheap environments).
        observation_mode: `"same"`, `"different"` (bounds may differ), a space for one environment, or a pair of the
            batched space and the space for one.
        autoreset_mode: When an environment whose episode has ended is reset; see Gymnasium.
        threads_per_worker: Cap for the numeric libraries in each worker process; None leaves them alone.
        cpu_affinity: Cores for the workers, given out in turn: `[0, 1]`, or sets of cores: `[[0, 1], [2, 3]]`. `"auto"`
            keeps each worker on one core if the workers fill all cores evenly and steps turn out to be short; None
            leaves workers to the system.
        env_kwargs: With an id: keyword arguments for `gymnasium.make`.
        on_failure: What to do when a worker dies or hangs, or an environment raises, during a reset or a step.
            `"raise"`, or `"restart"`: the broken part alone is replaced, and its row says so: truncated, with reward 0,
            the first observation of the new episode, and `infos["worker_restarted"]`.
        step_timeout: Seconds that a step may take, unless the call says otherwise. None: as long as it takes. (With
            `backend="serial"` nothing can be interrupted, so no deadline holds there.)
        reset_timeout: The same for a reset.
        start_timeout: The same for the construction of the environments.
        task_source: Where tasks come from: a new one for each episode (see `parallel_envs.tasks`).
        task_setter: A function of an environment and a task, for environments that take tasks in a way of their own.
        max_restarts: With `on_failure="restart"`, how often each worker may be restarted within `restart_window`
            seconds before the failure is raised after all.
        restart_window: See `max_restarts`. The seconds in which a deadline ran out are not counted.
        infos_list: True: `reset`, `step` and `recv` return infos as a list with one dict for each row, in the order of
            the rows, in the place of Gymnasium's dict of arrays. Each dict is as its environment gave it, `final_info`
            and `final_obs` included; it is empty for environments that a reset left alone. Gymnasium's vector wrappers
            that read infos need the dict of arrays.
        preload: Modules that the environments import, such as `("torch",)`. They are imported once, in the process that
            workers are forked from, rather than in each worker: by forkserver in its own process (with the environment
            variables that it was started with), with `context="fork"` in this one. With `"spawn"` each worker imports
            them; backends `"thread"` and `"serial"` import them here. One that cannot be imported is an ImportError.
            Eight workers that import torch 2.13 and `gymnasium.wrappers` took 4.2 s and 1.18 GB (the sum of their PSS)
            on two quiet cores, with `preload=("torch", "gymnasium.wrappers")` 1.1 s and 0.20 GB, and the next manager
            of the kind 0.15 s.

    Attributes:
        env_fns: One callable for each environment; with an id, those that call `gymnasium.make`.
        observation_mode, shared_memory, copy, context, daemon: As they were given, like AsyncVectorEnv's.
    """

    closed = True  # until there is something to close
    _known_as: str | None = None  # to the user, if not by its own name

    @suggests_keywords
    def __init__(
        self,
        env_fns: Sequence[arguments.EnvFactory] | str | EnvSpec,
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
        cpu_affinity: Sequence[int] | Sequence[Sequence[int]] | Literal["auto"] | None = "auto",
        env_kwargs: Mapping[str, Any] | None = None,
        on_failure: OnFailure = "raise",
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        start_timeout: float | None = None,
        max_restarts: int = 10,
        restart_window: float = 600.0,
        task_source: TaskSource | None = None,
        task_setter: TaskSetter | None = None,
        infos_list: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        self._guard = CallGuard(self._known_as or type(self).__name__)
        factories, self.spec = arguments.factories(env_fns, num_envs, env_kwargs)
        self.env_fns, self.observation_mode = factories, observation_mode
        self.shared_memory, self.context, self.daemon = shared_memory, context, daemon
        self.num_envs = len(factories)
        self.num_workers = self.num_envs if num_workers is None else num_workers
        arguments.check_count(
            "num_workers", self.num_workers, at_most=self.num_envs, what=f"the {self.num_envs} environments"
        )
        if threads_per_worker is not None:
            arguments.check_count("threads_per_worker", threads_per_worker)
        arguments.choice("backend", backend, BACKENDS)
        self.on_failure = arguments.choice("on_failure", on_failure, words(OnFailure))
        self.step_timeout = arguments.optional_seconds("step_timeout", step_timeout)
        self.reset_timeout = arguments.optional_seconds("reset_timeout", reset_timeout)
        arguments.check_count("max_restarts", max_restarts)
        window = arguments.seconds("restart_window", restart_window)
        if context is not None:
            arguments.choice("context", context, START_METHODS)
        self.autoreset_mode = arguments.autoreset(autoreset_mode)
        self.copy = arguments.yes_or_no("copy", copy)
        if shared_memory is not None:
            arguments.yes_or_no("shared_memory", shared_memory)
        self.infos_list = arguments.yes_or_no("infos_list", infos_list)
        modules = arguments.modules("preload", preload)
        self._settles = isinstance(cpu_affinity, str) and cpu_affinity == "auto"
        settings = PoolSettings(
            backend=backend,
            context=context,
            threads=threads_per_worker,
            affinity=None if self._settles else arguments.affinity(cpu_affinity),
            preload=("parallel_envs.vector.slice", *modules),
            name="env worker",
            start_timeout=arguments.optional_seconds("start_timeout", start_timeout),
        )
        self._fleet = fleet = EnvFleet(
            factories,
            self.num_workers,
            settings,
            autoreset_mode=self.autoreset_mode,
            observation_mode=observation_mode,
            shared_memory=shared_memory,
            num_sets=1 if copy else 2,
            start_timeout=settings.start_timeout,
            tasks=arguments.task_settings(task_source, task_setter, self.num_envs),
            preload=modules,
        )
        try:
            self._tasks = TaskBook(self.num_envs, task_source, fleet.task_ways, fleet.episode_of)
            self._recovery = Recovery(fleet.crew, max_restarts, window, self._tasks, self.reset_timeout)
        except BaseException:
            fleet.close(2.0)
            raise
        self.backend = fleet.pool.backend
        self._pending = Pending(self._known_as or type(self).__name__, fleet.pool)
        self.closed = False
        self.metadata = {**fleet.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = fleet.render_mode
        self.single_observation_space, self.observation_space = fleet.observation_spaces
        self.single_action_space, self.action_space = fleet.action_spaces
        self._set = 0
        """The set of observations that was written last; `_next_set`: that which the next step or reset writes."""
        self._next_set = 0 if copy else 1
        self._all_rows = np.ones(self.num_envs, np.bool_)
        self._told_of_tasks = task_source is not None
        self._requests: list[ResetRequest] = []
        self._failed_wait: tuple[str, float | None] = ("", None)
        self._calling = ""
        self._call_envs: list[int] = []
        self._settler = Settler(fleet.crew, self._recovery, restarts=on_failure == "restart")
        self._stop = self._settler.has_new_deaths  # kept: it is passed on in each step
        self._flights = Flights(fleet, self._settler, self.step_timeout, self.reset_timeout)
        self._num_steps = 0

    # ---- reset and step -------------------------------------------------------------------------------------------

    @one_thread
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: arguments.Options = None,
        tasks: Sequence[Any] | None = None,
        env_ids: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> tuple[Any, Infos]:
        """Reset all environments, or those that `env_ids` names or `options["reset_mask"]` marks.

        Args:
            seed: As Gymnasium has it: an int counts up from environment to environment, a list has one for each (with
                `env_ids`, for each of those).
            options: For `Env.reset`: a dict for all, or a list with one for each. `"tasks"` and `"task"` in a dict are
                taken as `tasks` (for all in the second case), for wrappers that pass nothing else.
            tasks: One for each environment that is reset: any value, a `Task`, `KEEP` or `RESAMPLE`. It stays through
                autoresets until it is changed (or, with a `task_source`, for this episode).
            env_ids: Which environments to reset. Here and elsewhere negative numbers count from the end, as in a list.
            timeout: In the place of `reset_timeout`.

        Returns:
            The latest observation of every environment, and the infos of those that were reset.
        """
        arguments.optional_wait(timeout)
        self.reset_async(seed=seed, options=options, tasks=tasks, env_ids=env_ids)
        return self.reset_wait(timeout)

    @one_thread
    def reset_async(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: arguments.Options = None,
        tasks: Sequence[Any] | None = None,
        env_ids: int | Iterable[int] | None = None,
    ) -> None:
        """Begin a reset. `reset_wait` ends it."""
        self._pending.check_open("reset_async")
        wish = arguments.reset_wish(options, tasks, env_ids, self.num_envs)
        self._check_can_reset(wish.envs)
        seeds = arguments.seeds(seed, self.num_envs, None if env_ids is None else wish.envs)
        chosen = self._tasks.choices(wish.tasks, wish.envs)
        requests = [ResetRequest(env, seeds[env], wish.options[env], chosen[env]) for env in wish.envs]
        with self._pending.asking(State.RESET):
            self._update_source()
            self._pending.ticket = self._fleet.reset(requests, self._next_set)
            self._requests = requests
            self._turn_set(untouched=wish.untouched(self.num_envs))
        self._use_tasks(chosen)
        if isinstance(seed, int | np.integer) and seed >= 0:
            self._recovery.begin(SeedTree(int(seed)))

    def _check_can_reset(self, envs: Sequence[int]) -> None:
        if self._pending.state is State.ASKING and len(envs) == self.num_envs:
            self._flights.abandon()
            self._fleet.tell_all("announce_anew")
            return  # the state stays as it is until they have been asked
        self._become_idle("reset_async")

    @one_thread
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """The observations and infos of the reset that was begun. After a `StepTimeout` it may be called again."""
        seconds = self.reset_timeout if timeout is None else timeout
        tickets = self._finish(State.RESET, "reset", seconds, self._reset_again)
        pickled = self._fleet.take_in(tickets, self._set)
        envs = [request.env for request in self._requests]
        if self.infos_list:
            return self._observations(), self._fleet.infos_list(pickled, envs, tasks=self._tasks.active)
        infos = self._fleet.infos(pickled, only=envs)
        if self._tasks.active:
            infos = {**self._fleet.task_infos(None, of=envs), **infos}
        return self._observations(), infos

    def _reset_again(self, envs: Sequence[int]) -> PendingRequest:
        again = [dataclasses.replace(one, restarted=True) for one in self._requests if one.env in envs]
        return self._fleet.reset(again, self._set)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Have `step` call the `step_async` and `step_wait` of a subclass that defines its own, as Gymnasium's does."""
        super().__init_subclass__(**settings)
        if cls.step_async is not ParallelEnvManager.step_async:
            setattr(cls, "_begin_step", lambda self, actions: self.step_async(actions))  # noqa: B010  # a method
        if cls.step_wait is not ParallelEnvManager.step_wait:
            setattr(cls, "_end_step", lambda self, timeout: self.step_wait(timeout))  # noqa: B010  # a method

    def step(self, actions: Any, timeout: float | None = None) -> Batch:
        """Step every environment; those whose episode has ended are reset as `autoreset_mode` says."""
        if timeout is not None:
            arguments.optional_wait(timeout)
        guard = self._guard
        lock = guard.lock
        try:  # as `one_thread`, which costs too much here
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
        code, loose = self._fleet.actions.write(actions)
        pending.state = State.ASKING  # as `Pending.asking`, which costs too much here
        try:
            if self._tasks.source is not None:
                self._update_source()
            pending.ticket = self._fleet.step(bell_argument(self._next_set, code), loose)
        except Exception:
            pending.state = State.IDLE
            raise
        self._set = self._next_set
        if not self.copy:
            self._next_set = 1 - self._set
        pending.state = State.STEP

    @one_thread
    def step_wait(self, timeout: float | None = None) -> Batch:
        """The results of the step that was begun. After a `StepTimeout` it may be called again.

        `WorkerDied` is raised at once, also while other environments are at work. After `restart` of those that were
        lost, call `step_wait` again: it brings the rows of all. Any other request drops this step, once those at work
        have answered. (The same holds for `reset_wait`; a call that has failed cannot be completed.)
        """
        return ParallelEnvManager._end_step(self, timeout)

    def _end_step(self, timeout: float | None) -> Batch:
        seconds = self.step_timeout if timeout is None else timeout
        tickets = self._finish(State.STEP, f"step {self._num_steps + 1}", seconds, self._report_lost)
        self._num_steps += 1
        if self._num_steps == _STEPS_TO_SETTLE and self._settles:
            pin_workers(self._fleet.pool)
        fleet = self._fleet
        pickled = fleet.take_in(tickets, self._set)
        if self.infos_list:
            infos: Infos = fleet.infos_list(pickled, tasks=self._tasks.active)
        else:
            infos = fleet.infos(pickled)
            if self._tasks.active:
                infos = {**fleet.task_infos(None), **infos}
        buffers = fleet.buffers
        return (
            self._observations(),
            buffers.rewards.copy(),
            buffers.terminated.copy(),
            buffers.truncated.copy(),
            infos,
        )

    def _report_lost(self, envs: Sequence[int]) -> PendingRequest:
        return self._fleet.report_lost(envs, self._set)

    def _turn_set(self, untouched: npt.NDArray[np.bool_] | None) -> None:
        """Read from the set of observations that a request has been made to write to.

        With zero-copy reads that is the other set, so that what the caller holds stays as it is for one more step.
        Rows that the request does not write (`untouched`) move over. Turn only once the request has been made: one
        that is refused changes nothing.
        """
        if self.copy:
            return
        before, self._set, self._next_set = self._set, self._next_set, self._set
        if untouched is not None:
            self._fleet.move_rows(before, self._set, untouched)

    def _put_back_unanswered(self, ticket: PendingRequest) -> None:
        """With zero-copy reads, give envs that have failed in a step or reset their observations before it."""
        if not self.copy and (failed := self._fleet.crew.unanswered(ticket)):
            rows = np.zeros(self.num_envs, np.bool_)
            rows[failed] = True
            self._fleet.move_rows(self._next_set, self._set, rows)

    def _observations(self) -> Any:
        return self._fleet.observations(self._set, copied=self.copy)

    # ---- each env at its own pace ---------------------------------------------------------------------------------

    @one_thread
    def send(self, actions: Any, env_ids: int | Iterable[int] | None = None) -> None:
        """Step some environments, each at its own pace. `actions` has a row for each. `recv` brings the results."""
        envs = self._ready_to_fly("send", env_ids)
        code, loose = self._fleet.actions.write(actions, envs)
        self._fleet.check_loose(loose)
        begins = self._pending.state is State.IDLE
        with self._pending.asking(State.SEND):
            self._update_source()
            self._keep_what_was_returned(begins)
            self._flights.start_steps(envs, self._set, code, loose)

    @one_thread
    def send_reset(
        self,
        env_ids: int | Iterable[int] | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: arguments.Options = None,
        tasks: Sequence[Any] | None = None,
    ) -> None:
        """Reset some environments, each at its own pace; arguments as in `reset`. `recv` brings the results."""
        wish = arguments.reset_wish(options, tasks, env_ids, self.num_envs)
        self._ready_to_fly("send_reset", wish.envs)
        seeds = arguments.seeds(seed, self.num_envs, None if env_ids is None else wish.envs)
        chosen = self._tasks.choices(wish.tasks, wish.envs)
        requests = [ResetRequest(env, seeds[env], wish.options[env], chosen[env]) for env in wish.envs]
        self._fleet.check_can_travel(requests)
        begins = self._pending.state is State.IDLE
        with self._pending.asking(State.SEND):
            self._update_source()
            self._keep_what_was_returned(begins)
            for request in requests:
                self._flights.start_reset(request, self._set)
        self._use_tasks(chosen)

    def _keep_what_was_returned(self, begins: bool) -> None:
        """The first of these requests begins a step, as far as the observations go that the caller may still hold.

        All rows move over before the request is made, so call this only when nothing can refuse it any more.
        """
        if begins:
            self._turn_set(untouched=self._all_rows)

    def _ready_to_fly(self, asked: str, env_ids: int | Iterable[int] | None) -> list[int]:
        self._pending.check_open(asked)
        if self._pending.failed:
            self._give_up_failed()
        if self._pending.state not in (State.IDLE, State.SEND):
            raise self._pending.error(asked)
        envs = arguments.some_envs(env_ids, self.num_envs)
        if busy := self._flights.among(envs):
            raise AlreadyPendingCallError(
                f"`{asked}` was called for {env_names(busy)}, still on the way from an earlier `send`. "
                "Call `recv` first.",
                "send",
            )
        return envs

    @one_thread
    def recv(
        self, min_envs: int = 1, timeout: float | None = None
    ) -> tuple[npt.NDArray[np.intp], Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], Infos]:
        """What has come back from `send` and `send_reset`, once at least `min_envs` environments have answered.

        Returns:
            `env_ids` in the order in which they answered, and rows for these: observations, rewards, terminations,
            truncations, infos.

        Raises:
            StepTimeout: Fewer had answered in time. Nothing is lost; `recv` may be called again.
        """
        if self.infos_list:
            return self.recv_each(min_envs, timeout)
        envs, pickled = self._recv(min_envs, timeout)
        infos = self._fleet.infos_of(envs, pickled)
        if self._tasks.active:
            infos = {**self._fleet.task_infos(envs), **infos}
        return envs, *self._fleet.rows(envs, self._set), infos

    @one_thread
    def recv_each(
        self, min_envs: int = 1, timeout: float | None = None
    ) -> tuple[npt.NDArray[np.intp], Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], list[dict[str, Any]]]:
        """The same as `recv`, but for the infos: a list with each environment's own, as it gave it.

        In a batch each column has one type, that of its first row: what it holds depends on who is beside whom.
        """
        envs, pickled = self._recv(min_envs, timeout)
        infos = self._fleet.own_infos(envs, pickled)
        if self._tasks.active:
            infos = [{**self._fleet.task_info(env), **info} for env, info in zip(envs.tolist(), infos, strict=True)]
        return envs, *self._fleet.rows(envs, self._set), infos

    def _recv(self, min_envs: int, timeout: float | None) -> tuple[npt.NDArray[np.intp], dict[int, Info]]:
        """Who has come back, and the infos that came by pipe."""
        arguments.check_count("min_envs", min_envs)
        self._pending.check_sent()
        if min_envs > len(self._flights):
            raise ValueError(
                f"min_envs={min_envs} is more than the {len(self._flights)} environments that are on the way. "
                "Send to more of them first, or wait for fewer."
            )
        landed, pickled = self._receive(lambda: self._flights.landed(min_envs), timeout)
        return np.array([flight.env for flight in landed], np.intp), pickled

    @one_thread
    def ready(self, min_envs: int = 1, timeout: float | None = 0.0) -> int:
        """How many environments have answered to `send` and are yet to be received.

        Waits until they are at least `min_envs`, or `timeout` seconds have passed (None: for as long as it takes).
        """
        self._pending.check_open("ready")
        arguments.check_count("min_envs", min_envs)
        arguments.optional_wait(timeout)
        return self._flights.ready(min(min_envs, len(self._flights)), timeout)

    @property
    @one_thread
    def ready_ids(self) -> list[int]:
        """The environments that have answered to `send` and `send_reset` and are yet to be received, in the order in
        which they answered. It returns at once, and receives nothing. An environment whose worker has died is among
        them, since `recv` deals with it without waiting.

        With `backend="serial"`, where environments work only while somebody asks for answers, each look runs one.
        """
        self._pending.check_open("ready_ids")
        return self._flights.ready_ids()

    @property
    def late(self) -> list[int]:
        """The environments on their way whose deadline has passed: `recv` deals with them, and does not wait for it."""
        return self._flights.late()

    @property
    def workers_of(self) -> tuple[int, ...]:
        """The worker that holds each environment."""
        return tuple(self._fleet.crew.owner)

    @one_thread
    def recv_env(self, env: int, timeout: float | None = None) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What one environment has answered to `send` or `send_reset`, as the environment itself would return it."""
        self._pending.check_open("recv_env")
        env = env + self.num_envs if env < 0 else env
        flight = self._flights.of(env)
        if flight is None:
            raise NoAsyncCallError(f"Calling `recv_env` for env {env}, to which nothing was sent.", "send")
        _, pickled = self._receive(lambda: [flight] if flight.ticket.done else [], timeout, flight)
        *results, info = self._fleet.single(env, self._set, pickled)
        if self._tasks.active:
            info = {**self._fleet.task_info(env), **info}
        observation, reward, terminated, truncated = results
        return observation, reward, terminated, truncated, info

    def _receive(
        self, ready: Callable[[], list[Flight]], timeout: float | None, only: Flight | None = None
    ) -> tuple[list[Flight], dict[int, Info]]:
        """Wait for flights (see `Flights.wait`) and bring them home. Returns them, and the infos that came by pipe.

        After an error the other flights stay for the next time.
        """
        try:
            landed = self._flights.wait(ready, timeout, only)
            return landed, self._fleet.take_in(self._flights.bring_home(landed), self._set)
        finally:
            if not self._flights:
                self._pending.end()

    def is_away(self, env: int) -> bool:
        """Whether something was sent to an environment that has yet to be received."""
        return self._flights.of(env + self.num_envs if env < 0 else env) is not None

    @property
    def remotes(self) -> Sequence[Remote]:
        """The environments one by one, with the wire words of the meta-RL pipeline: see `Remote`."""
        return Remotes(self, self._remote_requests)

    @functools.cached_property
    def _remote_requests(self) -> RemoteRequests:
        return RemoteRequests(self.single_action_space, self.num_envs)

    # ---- tasks ----------------------------------------------------------------------------------------------------

    @one_thread
    def set_tasks(self, tasks: Sequence[Any], env_ids: int | Iterable[int] | None = None) -> None:
        """Give environments tasks, one for each, from their next episodes on. `KEEP` leaves one as it is."""
        self._become_idle("set_tasks")
        envs = arguments.some_envs(env_ids, self.num_envs)
        chosen = self._tasks.choices(tasks, envs)
        with self._pending.asking(State.CALL):
            told = {env: task for env, task in chosen.items() if task is not KEEP}
            self._pending.ticket = self._fleet.set_tasks(told)
        self._finish(State.CALL, "setting of tasks", None)
        self._tasks.note_for_later(chosen)
        self._use_tasks(chosen)

    @one_thread
    def get_tasks(self, env_ids: int | Iterable[int] | None = None) -> list[Any]:
        """The tasks that environments have: as they tell themselves where they have `get_task` or `get_current_task`,
        else as they were given. None where there is none.
        """
        self._become_idle("get_tasks")
        envs = arguments.some_envs(env_ids, self.num_envs)
        with self._pending.asking(State.CALL):
            self._pending.ticket = self._fleet.get_tasks(envs)
        (ticket,) = self._finish(State.CALL, "asking for tasks", None)
        told = {env: unpacked(value) for reply in ticket.replies.values() for env, value in reply.value.items()}
        _raise_failures({env: value for env, value in told.items() if isinstance(value, Failure)}, "asking for tasks")
        return [told[env] for env in envs]

    @property
    def task_source(self) -> TaskSource | None:
        """Where the tasks of new episodes come from."""
        return self._tasks.source

    @property
    def task_ways(self) -> tuple[TaskWay | str, ...]:
        """How each environment takes a task, or why it cannot."""
        return self._tasks.ways

    def reset_all(self, tasks: Sequence[Any] | None = None) -> tuple[Any, Infos]:
        """Reset every environment, each with its task."""
        return self.reset(tasks=tasks)

    def step_all(self, actions: Any) -> Batch:
        """Step every environment."""
        return self.step(actions)

    def _use_autoreset_mode(self, mode: AutoresetMode) -> None:
        """From now on reset environments whose episodes have ended as this mode says. Call before the first reset."""
        self._become_idle("use_autoreset_mode")
        self.autoreset_mode = self.metadata["autoreset_mode"] = mode
        self._fleet.crew.use_autoreset_mode(mode)
        self._fleet.tell_all("use_autoreset_mode", mode)

    def _use_tasks(self, chosen: Mapping[int, Any]) -> None:
        self._tasks.note(chosen)
        if self._tasks.active and not self._told_of_tasks:
            self._told_of_tasks = True
            self._fleet.crew.use_tasks()
            self._fleet.tell_all("tell_tasks")

    def _update_source(self) -> None:
        """Bring the workers' copies of the task source up to date, if the trainer has changed it."""
        source = self._tasks.source_to_send() if self._tasks.source is not None else None
        if source is not None:
            self._fleet.tell_all("set_source", source)

    # ---- attributes and methods of the envs -----------------------------------------------------------------------

    @one_thread
    def call(self, name: str, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments (or read an attribute): all, or those of `env_ids`. One result for each."""
        self.call_async(name, *args, env_ids=env_ids, **kwargs)
        return self.call_wait()

    @one_thread
    def call_async(self, name: str, /, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> None:
        """Begin a call. `call_wait` ends it."""
        self._begin_call(name, args, kwargs, env_ids)

    def _begin_call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], env_ids: int | Iterable[int] | None
    ) -> None:
        self._become_idle("call_async")
        if name in _RESERVED:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        envs = arguments.some_envs(env_ids, self.num_envs)
        self._call_envs, self._calling = envs, f"call of {name!r}"
        with self._pending.asking(State.CALL):
            self._pending.ticket = self._fleet.call(envs, name, args, kwargs)

    @one_thread
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of the call that was begun. After a `StepTimeout` it may be called again."""
        doing = self._calling
        (ticket,) = self._finish(State.CALL, doing, timeout)
        results = _unpacked_results(ticket, doing)
        _raise_failures({env: value for env, value in results.items() if isinstance(value, Failure)}, doing)
        return tuple(results[env] for env in self._call_envs)

    @one_thread
    def apply(
        self,
        fn: Callable[..., Any],
        *args: Any,
        env_ids: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Return `fn(env, *args)` for the environments, all or those of `env_ids`, in their order. It runs in workers.

            lengths = envs.apply(lambda env: env.spec.max_episode_steps)

        `env` is the environment as its callable made it, with its wrappers; `env.unwrapped` is the one inside. In the
        workers of processes `fn` and `args` are copies, which travel by cloudpickle, so what `fn` changes outside `env`
        stays there. What `fn` returns must be something that can be pickled. Errors and dead workers are raised as for
        `call`. After a `StepTimeout` (`timeout` seconds were too few) `call_wait` brings the results.
        """
        if not callable(fn):
            raise TypeError(f"fn={fn!r} cannot be called. Give a function of an environment.")
        arguments.optional_wait(timeout)
        self._become_idle("apply")
        envs = arguments.some_envs(env_ids, self.num_envs)
        self._call_envs, self._calling = envs, f"apply of {getattr(fn, '__name__', type(fn).__name__)!r}"
        try:
            with self._pending.asking(State.CALL):
                self._pending.ticket = self._fleet.apply(envs, fn, args)
        except Unpicklable as error:
            for name, value in [("fn", fn), *((f"args[{number}]", arg) for number, arg in enumerate(args))]:
                if not picklable(value):
                    raise Unpicklable(
                        f"{unpicklable_part(value, name)} cannot be pickled, so it cannot travel to a worker process. "
                        f"Make it inside the function, or use backend='thread'. ({error.__cause__!r})"
                    ) from error
            raise
        return list(self.call_wait(timeout))

    def get_attr(self, name: str, env_ids: int | Iterable[int] | None = None) -> tuple[Any, ...]:
        """An attribute of the environments: all, or those of `env_ids`. A method is called, as by Gymnasium's own."""
        return self.call(name, env_ids=env_ids)

    @one_thread
    def _look_up(self, name: str, env: int) -> Any:
        """Return an attribute of one environment without calling it: a method comes back as a `RemoteMethod`."""
        self._become_idle("get_attr")
        with self._pending.asking(State.CALL):
            self._pending.ticket = self._fleet.look_up(env, name)
        doing = f"reading of {name!r}"
        (ticket,) = self._finish(State.CALL, doing, None)
        (found,) = [unpacked(value) for reply in ticket.replies.values() for value in reply.value.values()]
        if isinstance(found, Failure):
            raise env_error({env: found}, doing)
        return RemoteMethod(self, env, name) if isinstance(found, Method) else found

    @one_thread
    def _call_one(self, env: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of one environment. Its keywords may have any names, also those of `call`'s own."""
        self._begin_call(name, args, kwargs, env)
        (result,) = self.call_wait()
        return result

    @one_thread
    def set_attr(
        self, name: str, values: list[Any] | tuple[Any, ...] | Any, env_ids: int | Iterable[int] | None = None
    ) -> None:
        """Set an attribute: a list or tuple holds one value for each environment, anything else goes to all."""
        self._become_idle("set_attr")
        envs = arguments.some_envs(env_ids, self.num_envs)
        given = values if isinstance(values, list | tuple) else [values] * len(envs)
        if len(given) != len(envs):
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(given)}` values for {len(envs)} environments."
            )
        with self._pending.asking(State.CALL):
            self._pending.ticket = self._fleet.set_attr(name, dict(zip(envs, given, strict=True)))
        (ticket,) = self._finish(State.CALL, f"setting of {name!r}", None)
        failures = {env: failure for reply in ticket.replies.values() for env, failure in reply.value.items()}
        _raise_failures(failures, f"setting of {name!r}")

    def render(self) -> tuple[Any, ...] | None:
        """What each environment renders."""
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
        """For each worker what it has done so far. Durations are in seconds.

        `step_seconds` and `reset_seconds` are spent inside the environments, `idle_seconds` without work;
        `wait_seconds` is how long this process was blocked until that worker had answered.
        """
        self._pending.check_open("stats")
        return self._fleet.stats(self._recovery.restarts)

    @property
    def num_restarts(self) -> int:
        """How many times a worker or an environment has been replaced so far."""
        return sum(self._recovery.restarts)

    @property
    def last_restart(self) -> tuple[tuple[int, ...], str] | None:
        """The environments that were replaced last, and why, in one line. None: none was."""
        return self._recovery.last

    @one_thread
    def restart(self, env_ids: int | Iterable[int] | None = None) -> None:
        """Replace environments: all, or those of `env_ids`. Each is made anew and reset with a fresh seed.

        It may be done at any time, also while a step is on its way: a worker that is busy, or has died, is replaced as
        a whole. The next row of a replaced environment says that an episode was lost, as with `on_failure="restart"`.
        """
        self._pending.check_open("restart")
        envs = arguments.some_envs(env_ids, self.num_envs)
        pending = [ticket for ticket in (self._pending.ticket, *(flight.ticket for flight in self._flights)) if ticket]
        busy = {worker for ticket in pending for worker in ticket.waiting}
        for worker, held in self._fleet.crew.holders(envs):
            chosen = [env for env in envs if env in held]
            if worker in busy or len(chosen) == len(held) or self._fleet.crew.needs_replacing(worker):
                self._recovery.replace_worker(worker, None)
                continue
            for env in chosen:
                self._recovery.rebuild_env(env, None)

    def close_extras(self, timeout: float | None = 5.0, terminate: bool = False) -> None:
        """End the workers within `timeout` seconds, whatever they are doing; at once with `terminate`.

        A warning says so if a `reset_async`, `step_async` or `call_async` was never waited for.
        """
        # While a call is under way, another thread or a signal handler closes the manager: nothing is forgotten then.
        forgotten = None if self._guard.is_held else self._pending.forgotten()
        self._pending.close()
        seconds = 5.0 if timeout is None else arguments.seconds("timeout", timeout)
        self._fleet.close(0.2 if terminate else seconds)
        if forgotten is not None:  # only now: where warnings are errors, the workers have ended all the same
            gymnasium.logger.warn(forgotten, stacklevel=_CALLER_OF_CLOSE)

    def __enter__(self) -> ParallelEnvManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self._pending.close()  # nobody has called `close`, so it warns of nothing
            self.close()

    def __repr__(self) -> str:
        name = "" if self.spec is None else f"{self.spec.id}, "
        ways = sorted({way.value for way in self._tasks.ways if isinstance(way, TaskWay)}) if self._tasks.active else []
        tasks = f"tasks by {', '.join(ways)}, " if ways else ""
        return (
            f"{type(self).__name__}({name}num_envs={self.num_envs}, num_workers={self.num_workers}, "
            f"backend={self.backend!r}, {tasks}state={str(self._pending)!r})"
        )

    def _finish(
        self, state: State, doing: str, timeout: float | None, ask_again: AskAgain | None = None
    ) -> list[PendingRequest]:
        """Wait for what was begun, and return the tickets that hold the answers. Still pending if the time was up."""
        self._pending.check_open(f"{state.value}_wait")
        ticket = self._pending.awaited(state)
        arguments.optional_wait(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        tickets = [ticket]
        if not self._fleet.pool.wait(ticket, timeout, self._stop) or ticket.replies:
            tickets = self._settle(ticket, doing, timeout, until, ask_again)
        self._pending.end()  # not before: a Ctrl-C until here leaves something that may be waited for again
        return tickets

    def _settle(
        self, ticket: PendingRequest, doing: str, timeout: float | None, until: float | None, ask_again: AskAgain | None
    ) -> list[PendingRequest]:
        """Bring a ticket that has more to say than "done", or whose wait has stopped, to its end."""
        while True:
            self._settler.wait(ticket, doing, timeout, until, ask_again)
            if not ticket.replies:
                return [ticket]
            try:
                if ticket.waiting:
                    self._settler.act_on_deaths(ticket, doing, timeout, ask_again)
                    continue
                tickets = self._settler.resolve(ticket, doing, timeout, ask_again)
            except Exception:
                self._fail(ticket, doing, timeout)
                raise
            self._fleet.learn(tickets)
            return tickets

    def _fail(self, ticket: PendingRequest, doing: str, timeout: float | None) -> None:
        """Note that an error of what was begun is about to be raised.

        If a worker has died, whether or not others are still at work: the request may be waited for again, or given
        up (`Pending.failed`). If all envs are alive and have answered: it has ended.
        """
        self._take_in_failed(ticket)
        if ticket.waiting or any(reply.death is not None for reply in ticket.replies.values()):
            self._pending.failed, self._failed_wait = True, (doing, timeout)
        else:
            self._pending.end()

    def _take_in_failed(self, ticket: PendingRequest) -> None:
        self._fleet.take_in([ticket], self._set)
        if self._pending.state is not State.CALL:
            self._put_back_unanswered(ticket)

    def _become_idle(self, asked: str) -> None:
        """Raise unless a request may be made. One that has failed is given up first."""
        if self._pending.failed and not self._pending.closed:
            self._give_up_failed()
        self._pending.check_idle(asked)

    def _give_up_failed(self) -> None:
        """Drop a request that has failed, once all envs that are still at work on it have answered.

        Until then they read their actions from shared memory and write what they return, so nothing else can be asked.
        Raises `StepTimeout` after as many seconds as the request itself was waited for.
        """
        ticket, (doing, seconds) = self._pending.ticket, self._failed_wait
        assert ticket is not None
        if not self._fleet.pool.wait(ticket, seconds):
            crew = self._fleet.crew
            raise crew.timeout(doing, seconds, crew.late_envs(ticket), advice=WAIT_ADVICE)
        self._take_in_failed(ticket)
        self._pending.end()

    @property
    def _has_answers_to_come(self) -> bool:
        """Whether a request has failed while some envs are still at work on it."""
        return self._pending.failed and self._pending.ticket is not None and not self._pending.ticket.done


def _unpacked_results(ticket: PendingRequest, doing: str) -> dict[int, Any]:
    """What envs returned, by env. Raises `EnvError` for what cannot be unpickled, unless an env has raised itself."""
    results: dict[int, Any] = {}
    errors: dict[int, EnvError] = {}
    for env, value in (item for reply in ticket.replies.values() for item in reply.value.items()):
        try:
            results[env] = unpacked(value)
        except Exception as error:  # noqa: BLE001  # it runs code of the user's classes
            errors[env] = unreadable_result(env, error, doing)
    if errors:
        _raise_failures({env: value for env, value in results.items() if isinstance(value, Failure)}, doing)
        raise errors[min(errors)]
    return results


def _raise_failures(failures: Mapping[int, Failure], doing: str) -> None:
    if failures:
        raise env_error(failures, doing)


def vector_entry_point(env_id: str, **settings: Unpack[VectorOptions]) -> Callable[..., ParallelEnvManager]:
    """A `vector_entry_point` for `gymnasium.register`: `gymnasium.make_vec` then makes a `ParallelEnvManager`.

    `settings` are keyword arguments of the manager; those of `make_vec` go to the environments.

    Threads: any number may call it at once; for what it makes see `ParallelEnvManager`.
    """
    known = set(inspect.signature(ParallelEnvManager).parameters) - {"env_fns", "num_envs", "env_kwargs"}
    for name, value in settings.items():
        if name not in known:
            raise unknown_keyword("ParallelEnvManager", name, value, sorted(known))

    def make(num_envs: int, **env_kwargs: Any) -> ParallelEnvManager:
        return ParallelEnvManager(env_id, num_envs=num_envs, env_kwargs=env_kwargs, **settings)

    return make
