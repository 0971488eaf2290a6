"""`WorkerEnvs`: the envs of one worker, as the object that the worker hosts. A `StepLoop` steps and resets them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import Failure, picklable, reraise_ctrl_c, unpicklable_part
from parallel_envs.engine.worker import Host
from parallel_envs.env_ids import is_unregistered
from parallel_envs.tasks import TaskSource, TaskWay, offers, part_of
from parallel_envs.trace import SpanBuffer
from parallel_envs.vector.env_states import layer_names, save_env
from parallel_envs.vector.registry import OwnedEnvs, Registrations
from parallel_envs.vector.shared_arrays import SharedArrays, packed, snapshot
from parallel_envs.vector.step_loop import AnyEnv, PipedReply, ResetRequest, StepLoop, TaskSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """Facts about the envs of a worker that the caller needs to make the arrays. Equal spaces are one object.
    `task_ways` says for each env how it takes a task, or why it takes none.
    """

    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]
    metadata: dict[str, Any]
    render_mode: str | None
    task_ways: tuple[TaskWay | str, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """Stands for a method (any callable but a class) in the answer of `WorkerEnvs.look_up`."""


class WorkerEnvs:
    """The envs `first, first + 1, ...`, made by `factories`, in one worker.

    With `copies`, values that would leave by reference are copied first, for backends that pickle nothing; otherwise
    they are pickled at once. `owned` is shared by all workers of a process (None: this is the only one).

    If an env cannot be made, the reply that says so answers `describe` and every request for steps and resets.

    Attributes:
        ring, step_with, reset, report_lost, set_tasks: The methods of the `StepLoop`, from `attach` on.
    """

    ring: Callable[..., PipedReply | None]
    step_with: Callable[..., PipedReply | None]
    reset: Callable[..., PipedReply | None]
    report_lost: Callable[..., PipedReply | None]
    set_tasks: Callable[[Mapping[int, Any]], None]

    def __init__(
        self,
        first: int,
        factories: Sequence[Callable[[], AnyEnv]],
        autoreset_mode: AutoresetMode,
        registrations: Registrations | None,
        tasks: TaskSettings,
        *,
        copies: bool,
        owned: OwnedEnvs | None = None,
    ) -> None:
        self._tasks, self._mode, self._copies = tasks, autoreset_mode, copies
        self._owned = OwnedEnvs() if owned is None else owned
        self._first, self._factories, self._registrations = first, factories, registrations
        self._keep: Callable[[Any], Any] = snapshot if copies else packed
        self._envs: list[AnyEnv] = []
        self._unmade = PipedReply()
        self._loop: StepLoop | None = None
        self.ring = self.step_with = self.reset = self.report_lost = self._unmade_reply
        self.set_tasks = lambda tasks: self._made().set_tasks(tasks)
        if registrations is not None and registrations.replace_built_in():
            registrations.install()
        for env, factory in enumerate(factories, first):
            try:
                self._envs.append(self._make(env, factory))
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                self._unmade.failures[env] = Failure.of(error)
                break

    def _make(self, index: int, factory: Callable[[], AnyEnv]) -> AnyEnv:
        """Make an env. Raise if the factory returned something else, or an env that is in use already."""
        try:
            env = factory()
        except Exception as error:
            if self._registrations is None or not is_unregistered(error):
                raise
            self._registrations.install()
            env = factory()
        for attribute in ("reset", "step", "observation_space", "action_space"):
            if not hasattr(env, attribute):
                raise TypeError(
                    f"The factory of env {index} returned {env!r}, which has no {attribute!r}. "
                    "A factory takes no arguments and returns a gymnasium.Env."
                )
        self._owned.claim(index, env)
        return env

    def describe(self) -> EnvDescription | PipedReply:
        """Return the description of the envs, or the reply that one could not be made. An env that cannot be described
        (its metadata cannot be pickled, a property raises) counts as not made.
        """
        described: list[tuple[Space[Any], Space[Any], TaskWay | str]] = []
        metadata: dict[str, Any] = {}
        for index, env in enumerate(self._envs, self._first):
            if self._unmade:
                break
            try:
                if index == self._first:
                    metadata = dict(env.metadata)
                    if not self._copies and not picklable(metadata):
                        raise TypeError(
                            f"{unpicklable_part(metadata, 'metadata')} cannot be pickled, so the manager cannot be "
                            "told of it. Leave it out of metadata (an attribute set in __init__ may hold it), or use "
                            "backend='thread'."
                        )
                try:
                    way: TaskWay | str = TaskWay.of(env, self._tasks.setter)
                except Exception as error:  # noqa: BLE001  # anything that an attribute of the env raises when read
                    way = str(error)
                described.append((env.observation_space, env.action_space, way))
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                self._unmade.failures[index] = Failure.of(error)
        if self._unmade:
            self.close()
            return self._unmade
        *spaces, task_ways = zip(*described, strict=True)
        # One object in the place of several spaces that are equal, so that less is sent.
        observed, acted = (tuple(kind[kind.index(space)] for space in kind) for kind in spaces)
        render_mode = getattr(self._envs[0], "render_mode", None)
        return EnvDescription(observed, acted, metadata, render_mode, task_ways)

    def attach(self, arrays: SharedArrays, action_space: Space[Any], worker: int) -> None:
        """Use these arrays from now on."""
        given = self._envs, self._first, self._mode, arrays, action_space, worker, self._keep, self._tasks
        loop = self._loop = StepLoop(*given)
        self.ring, self.step_with, self.reset = loop.ring, loop.step_with, loop.reset
        self.report_lost, self.set_tasks = loop.report_lost, loop.set_tasks

    def trace(self, spans: SpanBuffer | None, host: Host) -> None:
        """Record the work in `spans` from now on (None: no more): see `StepLoop.trace`."""
        if self._loop is not None:
            self._loop.trace(spans, host)
            self.ring = self._loop.ring

    def _unmade_reply(self, *_: Any) -> PipedReply:
        """Return the reply that says which env could not be made."""
        if not self._unmade:
            raise RuntimeError(
                "These environments were to be made anew, which was cut short. Call `restart()` for them."
            )
        return self._unmade

    def _made(self) -> StepLoop:
        """Return the step loop. Raise the reasons if envs could not be made."""
        if self._loop is None:
            failures = self._unmade_reply().failures
            raise RuntimeError(
                "; ".join(f"env {env} could not be made: {one.message}" for env, one in failures.items())
            )
        return self._loop

    def announce_again(self) -> None:
        """Announce the schemas of infos again, since the caller may not have received earlier replies."""
        if self._loop is not None:
            self._loop.infos.announce_again()

    def change(self, mode: AutoresetMode | None = None, source: TaskSource | None = None) -> None:
        """Use this autoreset mode, or take tasks from this source, from now on."""
        loop = self._made()
        if mode is not None:
            self._mode = loop.mode = mode
        if source is not None:
            loop.tasks.source = snapshot(source) if self._copies else source

    def get_tasks(self, envs: Sequence[int]) -> dict[int, Any]:
        """Return the task of each env, from the env's own method if it has one. An env that raises has a `Failure`."""

        def task_of(index: int) -> Any:
            env, held = self._env(index), self._made().tasks.held[index - self._first]
            for name in ("get_task", "get_current_task"):
                if offers(env, name):
                    return self._keep(part_of(env, name)())
            return None if held is None else self._keep(held.value)

        return self._for_each(envs, task_of)

    def call(self, envs: Sequence[int], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """Call a method, or read an attribute, of some envs. An env that raises has a `Failure` as its result."""

        def called(env: AnyEnv) -> Any:
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return self.apply(envs, called, ())

    def apply(self, envs: Sequence[int], function: Callable[..., Any], args: Sequence[Any]) -> dict[int, Any]:
        """Return `function(env, *args)` for some envs. An env for which it raises has a `Failure` as its result."""

        def applied(index: int) -> Any:
            env, began = self._env(index), time.perf_counter()
            value = self._keep(function(env, *args))
            self._made().add_call(index, began)
            return value

        return self._for_each(envs, applied)

    def get_states(self, envs: Sequence[int], save: Callable[[Any], Any] | None) -> dict[int, Any]:
        """Return the state of each env but for its observation, as arguments of `EnvState`."""

        def state_of(index: int) -> Any:
            env, episode = self._env(index), self._made().episode_state(index - self._first)
            way, content = ("function", cloudpickle.dumps(save(env))) if save is not None else save_env(env)
            return self._keep({"layers": layer_names(env), "way": way, "content": content, "episode": episode})

        return self._for_each(envs, state_of)

    def look_up(self, envs: Sequence[int], name: str) -> dict[int, Any]:
        """Read an attribute of some envs without calling it: its value, a `Method`, or a `Failure` if it raises."""

        def found(index: int) -> Any:
            attribute = self._env(index).get_wrapper_attr(name)
            is_method = callable(attribute) and not isinstance(attribute, type)
            return Method() if is_method else self._keep(attribute)

        return self._for_each(envs, found)

    def set_attr(self, values: Mapping[int, Any], name: str) -> dict[int, Failure]:
        """Set an attribute of some envs. Return the failures of the envs that raised."""
        outcomes = self._for_each(values, lambda index: self._env(index).set_wrapper_attr(name, values[index]))
        return {env: outcome for env, outcome in outcomes.items() if isinstance(outcome, Failure)}

    def revive(self, requests: Mapping[int, ResetRequest]) -> dict[int, Failure]:
        """Reset new envs: their next steps report lost episodes. Return the failures of the envs that raised."""
        outcomes = self._for_each(requests, lambda env: self._made().revive(requests[env]))
        return {env: outcome for env, outcome in outcomes.items() if outcome is not None}

    def _for_each(self, envs: Iterable[int], function: Callable[[int], Any]) -> dict[int, Any]:
        results: dict[int, Any] = {}
        for env in envs:
            try:
                results[env] = function(env)
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                results[env] = Failure.of(error)
        return results

    def _env(self, env: int) -> AnyEnv:
        self._made()
        return self._envs[env - self._first]

    def rebuild(self, env: int) -> PipedReply | None:
        """Make an env again. Return a reply if that failed. An error of the old env while it is closed is logged."""
        local = env - self._first
        try:
            self._envs[local].close()
        except BaseException as error:  # noqa: BLE001  # it is broken: that is why it is replaced
            reraise_ctrl_c(error)
            _log.info("Env %d raised while it was closed to be replaced.", env, exc_info=True)
        try:
            self._owned.release(env)
            self._envs[local] = self._make(env, self._factories[local])
        except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
            reraise_ctrl_c(error)
            self._envs[local] = _Missing(error)
            return PipedReply(failures={env: Failure.of(error)})
        return None

    def close(self) -> None:
        """Close every env, then raise the first error, with a note that names its env."""
        errors: list[BaseException] = []
        for index, env in enumerate(self._envs, start=self._first):
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001  # an error of one env must not keep the others open
                reraise_ctrl_c(error)
                error.add_note(f"This is what env {index} raised when it was closed.")
                errors.append(error)
            self._owned.release(index)
        self._envs = []
        if errors:
            raise errors[0]


class _Missing(gymnasium.Env[Any, Any]):
    """Stands in for an env that could not be made again: every reset and step raises the reason."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def reset(self, **_: Any) -> Any:
        raise self._error

    def step(self, action: Any) -> Any:
        raise self._error
