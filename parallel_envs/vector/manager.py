"""`ParallelEnvManager`: many Gymnasium environments at once, behind Gymnasium's own vector interface."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from parallel_envs.engine import BACKENDS, START_METHODS, Failure, PoolSettings, Ticket
from parallel_envs.errors import ClosedError
from parallel_envs.vector import arguments
from parallel_envs.vector.failures import env_error, env_names
from parallel_envs.vector.fleet import EnvFleet
from parallel_envs.vector.slice import ResetRequest
from parallel_envs.vector.stepping import bell_argument

Batch = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]

_RESERVED = ("reset", "step", "close")


class State(enum.Enum):
    """What the manager is waiting for. The values are the words of Gymnasium's errors."""

    IDLE = "default"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    SEND = "send"


class ClosedManager(ClosedError, ClosedEnvironmentError):
    """Something was asked of a manager that has been closed."""


class ParallelEnvManager(VectorEnv[Any, Any, npt.NDArray[Any]]):
    """Environments in worker processes, stepped at once.

    It takes the place of `gymnasium.vector.AsyncVectorEnv`: the same arguments, the same results, under the same vector
    wrappers. No environment is built in this process; workers do not import the user's script, so no main guard is
    needed.

    Args:
        env_fns: One callable for each environment, or an environment id with `num_envs`.
        shared_memory: None: parts of observations that have a fixed shape go through shared memory, others by pipe.
            True: the same, but a space of a class that Gymnasium does not know is a ValueError. False: all by pipe.
        copy: False: observations are views of shared memory that stay valid until the step after next.
        context: `"forkserver"` (default on Linux), `"spawn"` or `"fork"`.
        daemon: Accepted for AsyncVectorEnv's sake. Workers always end with this process, and their environments may
            always start children.
        num_envs: With an id: how many environments to make.
        num_workers: Workers to share the environments, contiguous slices each; by default one for each environment.
        backend: `"process"`, `"thread"` or `"serial"` (in the caller: for debugging, and for very cheap environments).
        observation_mode: `"same"`, `"different"` (bounds may differ), a space for one environment, or a pair of the
            batched space and the space for one.
        autoreset_mode: When an environment whose episode has ended is reset; see Gymnasium.
        threads_per_worker: Cap for the numeric libraries in each worker process; None leaves them alone.
        cpu_affinity: Cores for the workers, given out in turn: `[0, 1]`, or sets of cores: `[[0, 1], [2, 3]]`.
        env_kwargs: With an id: keyword arguments for `gymnasium.make`.
    """

    def __init__(
        self,
        env_fns: Sequence[arguments.EnvFactory] | str | EnvSpec,
        shared_memory: bool | None = None,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        *,
        num_envs: int | None = None,
        num_workers: int | None = None,
        backend: str = "process",
        observation_mode: str | Space[Any] | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads_per_worker: int | None = 1,
        cpu_affinity: Sequence[int] | Sequence[Sequence[int]] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._state = State.IDLE
        self.closed = True  # until there is something to close
        factories, self.spec = arguments.factories(env_fns, num_envs, env_kwargs)
        self.num_envs = len(factories)
        self.num_workers = self.num_envs if num_workers is None else num_workers
        arguments.check_count(
            "num_workers", self.num_workers, at_most=self.num_envs, what=f"the {self.num_envs} environments"
        )
        if threads_per_worker is not None:
            arguments.check_count("threads_per_worker", threads_per_worker)
        self.backend = arguments.choice("backend", backend, BACKENDS)
        if context is not None:
            arguments.choice("context", context, START_METHODS)
        self.autoreset_mode = arguments.autoreset(autoreset_mode)
        self.copy = copy
        settings = PoolSettings(
            backend=backend,
            context=context,
            threads=threads_per_worker,
            affinity=arguments.affinity(cpu_affinity),
            preload=("parallel_envs.vector.slice",),
            name="env worker",
        )
        self._fleet = fleet = EnvFleet(
            factories,
            self.num_workers,
            settings,
            autoreset_mode=self.autoreset_mode,
            observation_mode=observation_mode,
            shared_memory=shared_memory,
            num_sets=1 if copy else 2,
        )
        self.closed = False
        self.metadata = {**fleet.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = fleet.render_mode
        self.single_observation_space, self.observation_space = fleet.observation_spaces
        self.single_action_space, self.action_space = fleet.action_spaces
        self._set = 0
        self._ticket: Ticket | None = None
        self._call_name = ""
        self._call_envs: list[int] = []
        self._in_flight: dict[int, Ticket] = {}
        self._landed: list[Ticket] = []
        self._num_steps = 0

    # ---- reset and step -------------------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those that `options["reset_mask"]` marks."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Begin a reset. `reset_wait` ends it."""
        self._check_idle("reset_async")
        seeds = arguments.seeds(seed, self.num_envs)
        env_options, mask = arguments.reset_options(options, self.num_envs)
        chosen = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        requests = [ResetRequest(env, seeds[env], env_options) for env in chosen]
        self._turn_set(untouched=None if mask is None else ~mask)
        self._ticket = self._fleet.reset(requests, self._set)
        self._state = State.RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The observations and infos of the reset that was begun. After a `StepTimeout` it may be called again."""
        ticket = self._finish(State.RESET, "reset", timeout)
        envs = np.asarray(ticket.label, np.intp)
        infos = self._fleet.infos(None if len(envs) == self.num_envs else envs, ticket, scatter=True)
        return self._observations(), infos

    def step(self, actions: Any) -> Batch:
        """Step every environment; those whose episode has ended are reset as `autoreset_mode` says."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step. `step_wait` ends it."""
        if self._state is not State.IDLE or self.closed:
            self._check_idle("step_async")
        code, loose = self._fleet.actions.write(actions)
        self._turn_set(untouched=None)
        self._ticket = self._fleet.step(bell_argument(self._set, code), loose)
        self._state = State.STEP

    def step_wait(self, timeout: float | None = None) -> Batch:
        """The results of the step that was begun. After a `StepTimeout` it may be called again."""
        ticket = self._finish(State.STEP, "step", timeout)
        self._num_steps += 1
        fleet = self._fleet
        infos = fleet.infos(None, ticket)
        buffers = fleet.buffers
        return (
            self._observations(),
            buffers.rewards.copy(),
            buffers.terminated.copy(),
            buffers.truncated.copy(),
            infos,
        )

    def _turn_set(self, untouched: npt.NDArray[np.bool_] | None) -> None:
        """With zero-copy reads, write to the other set, so that what the caller holds stays as it is for one more step.

        Rows that will not be written (`untouched`) move over with it.
        """
        if self.copy:
            return
        before, self._set = self._set, 1 - self._set
        if untouched is not None:
            self._fleet.move_rows(before, self._set, untouched)

    def _observations(self) -> Any:
        return self._fleet.observations(self._set, copied=self.copy)

    # ---- each env at its own pace ---------------------------------------------------------------------------------

    def send(self, actions: Any, env_ids: int | Iterable[int] | None = None) -> None:
        """Step some environments, each at its own pace. `actions` has a row for each. `recv` brings the results."""
        self._check_open("send")
        if self._state not in (State.IDLE, State.SEND):
            raise _pending("send", self._state)
        envs = arguments.some_envs(env_ids, self.num_envs)
        busy = [env for env in envs if env in self._in_flight]
        if busy:
            raise AlreadyPendingCallError(
                f"`send` was called for {env_names(busy)}, still on the way from an earlier `send`. Call `recv` first.",
                "send",
            )
        code, loose = self._fleet.actions.write(actions, envs)
        for env in envs:
            self._in_flight[env] = self._fleet.step_env(env, self._set, code, loose)
        self._state = State.SEND

    def recv(
        self, min_envs: int = 1, timeout: float | None = None
    ) -> tuple[npt.NDArray[np.intp], Any, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """What has come back from `send`, once at least `min_envs` environments have answered.

        Returns:
            `env_ids` in the order in which they answered, and rows for these: observations, rewards, terminations,
            truncations, infos.

        Raises:
            StepTimeout: Fewer had answered in time. Nothing is lost; `recv` may be called again.
        """
        self._check_open("recv")
        arguments.check_count("min_envs", min_envs)
        if self._state is not State.SEND:
            raise NoAsyncCallError("Calling `recv` without any prior call to `send`.", "send")
        if min_envs > len(self._in_flight):
            raise ValueError(
                f"min_envs={min_envs} is more than the {len(self._in_flight)} environments that are on the way. "
                "Send to more of them first, or wait for fewer."
            )
        self._await_landed(min_envs, timeout)
        landed, self._landed = self._landed, []
        envs = np.array([ticket.label for ticket in landed], np.intp)
        for env in envs.tolist():
            del self._in_flight[env]
        if not self._in_flight:
            self._state = State.IDLE
        return (envs, *self._fleet.rows(envs, self._set, landed))

    def _await_landed(self, count: int, timeout: float | None) -> None:
        deadline = math.inf if timeout is None else time.monotonic() + check_timeout(timeout)
        flying = set(map(id, self._in_flight.values()))
        known = set(map(id, self._landed))
        self._landed += [t for t in self._in_flight.values() if t.done and id(t) not in known]
        while len(self._landed) < count:
            remaining = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
            self._landed += [ticket for ticket in self._fleet.pool.pump(remaining) if id(ticket) in flying]
            if remaining == 0.0 and len(self._landed) < count:
                late = [env for env, ticket in self._in_flight.items() if not ticket.done]
                raise self._fleet.timeout("recv", timeout, late)

    # ---- attributes and methods of the envs -----------------------------------------------------------------------

    def call(self, name: str, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments (or read an attribute): all, or those of `env_ids`. One result for each."""
        self.call_async(name, *args, env_ids=env_ids, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> None:
        """Begin a call. `call_wait` ends it."""
        self._check_idle("call_async")
        if name in _RESERVED:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        self._call_envs = arguments.some_envs(env_ids, self.num_envs)
        self._call_name = name
        self._ticket = self._fleet.call(self._call_envs, name, args, kwargs)
        self._state = State.CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of the call that was begun. After a `StepTimeout` it may be called again."""
        ticket = self._finish(State.CALL, f"call of {self._call_name!r}", timeout)
        results = {env: value for reply in ticket.replies.values() for env, value in reply.value.items()}
        self._raise_failures(
            {env: value for env, value in results.items() if isinstance(value, Failure)},
            f"call of {self._call_name!r}",
        )
        return tuple(results[env] for env in self._call_envs)

    def get_attr(self, name: str, env_ids: int | Iterable[int] | None = None) -> tuple[Any, ...]:
        """An attribute of the environments: all, or those of `env_ids`."""
        return self.call(name, env_ids=env_ids)

    def set_attr(
        self, name: str, values: list[Any] | tuple[Any, ...] | Any, env_ids: int | Iterable[int] | None = None
    ) -> None:
        """Set an attribute: a list or tuple holds one value for each environment, anything else goes to all."""
        self._check_idle("set_attr")
        envs = arguments.some_envs(env_ids, self.num_envs)
        given = values if isinstance(values, list | tuple) else [values] * len(envs)
        if len(given) != len(envs):
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(given)}` values for {len(envs)} environments."
            )
        self._ticket = self._fleet.set_attr(name, dict(zip(envs, given, strict=True)))
        self._state = State.CALL
        ticket = self._finish(State.CALL, f"setting of {name!r}", None)
        failures = {env: failure for reply in ticket.replies.values() for env, failure in reply.value.items()}
        self._raise_failures(failures, f"setting of {name!r}")

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

    def stats(self) -> list[dict[str, Any]]:
        """For each worker what it has done so far. Durations are in seconds.

        `step_seconds` and `reset_seconds` are spent inside the environments, `idle_seconds` without work;
        `wait_seconds` is how long this process was blocked until that worker had answered.
        """
        self._check_open("stats")
        return self._fleet.stats()

    def close_extras(self, timeout: float | None = 5.0, terminate: bool = False) -> None:
        """End the workers within `timeout` seconds, whatever they are doing; at once with `terminate`."""
        self._state = State.IDLE
        seconds = 5.0 if timeout is None else check_timeout(timeout)
        self._fleet.close(0.2 if terminate else seconds)

    def __enter__(self) -> ParallelEnvManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()

    def __repr__(self) -> str:
        name = "" if self.spec is None else f"{self.spec.id}, "
        state = "closed" if self.closed else "idle" if self._state is State.IDLE else f"waiting for {self._state.value}"
        return (
            f"{type(self).__name__}({name}num_envs={self.num_envs}, num_workers={self.num_workers}, "
            f"backend={self.backend!r}, state={state!r})"
        )

    # ---- states ---------------------------------------------------------------------------------------------------

    def _check_open(self, asked: str) -> None:
        if self.closed:
            raise ClosedManager(f"Trying to operate on `{type(self).__name__}` (`{asked}`), after a call to `close()`.")

    def _check_idle(self, asked: str) -> None:
        self._check_open(asked)
        if self._state is not State.IDLE:
            raise _pending(asked, self._state)

    def _finish(self, state: State, doing: str, timeout: float | None) -> Ticket:
        """Wait for what was begun. The state goes back to idle unless the time was up."""
        asked = f"{state.value}_wait"
        self._check_open(asked)
        if self._state is not state or self._ticket is None:
            raise NoAsyncCallError(f"Calling `{asked}` without any prior call to `{state.value}_async`.", state.value)
        ticket = self._ticket
        if timeout is not None:
            check_timeout(timeout)
        if not self._fleet.pool.wait(ticket, timeout):
            raise self._fleet.timeout(doing, timeout, self._fleet.envs_of(ticket))
        self._state, self._ticket = State.IDLE, None
        if ticket.replies:
            where = f"{doing} {self._num_steps + 1}" if state is State.STEP else doing
            self._fleet.check(ticket, where)
        return ticket

    def _raise_failures(self, failures: Mapping[int, Failure], doing: str) -> None:
        if failures:
            raise env_error(failures, doing)


def _pending(asked: str, state: State) -> AlreadyPendingCallError:
    return AlreadyPendingCallError(
        f"Calling `{asked}` while waiting for a pending call to `{state.value}` to complete", state.value
    )


def check_timeout(timeout: Any) -> float:
    """A number of seconds from 0 up."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | np.number) or not timeout >= 0:
        raise ValueError(f"timeout={timeout!r} is not a number of seconds from 0 up.")
    return float(timeout)


def vector_entry_point(env_id: str, **settings: Any) -> Callable[..., ParallelEnvManager]:
    """A `vector_entry_point` for `gymnasium.register`: `gymnasium.make_vec` then makes a `ParallelEnvManager`.

    `settings` are keyword arguments of the manager; those of `make_vec` go to the environments.
    """

    def make(num_envs: int, **env_kwargs: Any) -> ParallelEnvManager:
        return ParallelEnvManager(env_id, num_envs=num_envs, env_kwargs=env_kwargs, **settings)

    return make
