"""What lives in a worker: a contiguous slice of the environments, and what can be asked of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import Failure, SharedBlock, picklable, reraise_ctrl_c, unpicklable_part
from parallel_envs.env_ids import is_unregistered
from parallel_envs.tasks import TaskSource, TaskWay, offers, part_of
from parallel_envs.vector.buffers import Buffers, Plan
from parallel_envs.vector.identity import OwnedEnvs
from parallel_envs.vector.registry import Registrations
from parallel_envs.vector.snapshots import Packed, snapshot
from parallel_envs.vector.stepping import AnyEnv, News, ResetRequest, Stepper
from parallel_envs.vector.tasking import TaskSettings, way_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Description:
    """What the caller must know of a slice before it can plan the arrays. Equal spaces are one object."""

    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]
    metadata: dict[str, Any]
    render_mode: str | None
    task_ways: tuple[TaskWay | str, ...]
    """How each env takes a task, or why it cannot."""


@dataclass(frozen=True, slots=True)
class Method:
    """Stands for a method (any callable but a class) in the answer of `EnvSlice.look_up`."""


class EnvSlice:
    """The envs `first, first + 1, ...`, made by `factories`.

    With `copies`, what travels by reference is copied first, for backends where nothing is pickled on the way;
    otherwise it is pickled on the spot. `owned` is shared by all slices of a process (None: this is the only one).
    """

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
        self._tasks = tasks
        self._owned = OwnedEnvs() if owned is None else owned
        self._first, self._factories, self._registrations = first, factories, registrations
        self._mode = autoreset_mode
        self._copies = copies
        self._keep: Callable[[Any], Any] = snapshot if copies else Packed
        self._envs: list[AnyEnv] = []
        self._unmade = News()
        self._stepper: Stepper | None = None
        self.ring: Callable[[int], News | None] = lambda argument: self._news_instead()
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
        """Make an env. Raise if the factory returned none, or one that is in use already."""
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

    def describe(self) -> Description | News:
        """What the envs are like, or the news that one could not be made: all else is answered by it as well then.

        An env that cannot be described (its metadata cannot travel, a property raises) could not be made either.
        """
        described: list[tuple[Space[Any], Space[Any], TaskWay | str]] = []
        metadata: dict[str, Any] = {}
        for index, env in enumerate(self._envs, self._first):
            if self._unmade:
                break
            try:
                if index == self._first:
                    metadata = dict(env.metadata) if self._copies else _portable(env.metadata)
                described.append((env.observation_space, env.action_space, way_of(env, self._tasks.setter)))
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                self._unmade.failures[index] = Failure.of(error)
        if self._unmade:
            self.close()
            return self._unmade
        observation_spaces, action_spaces, task_ways = zip(*described, strict=True)
        return Description(
            _shared_where_equal(observation_spaces),
            _shared_where_equal(action_spaces),
            metadata,
            getattr(self._envs[0], "render_mode", None),
            task_ways,
        )

    def attach(self, plan: Plan, block: SharedBlock, action_space: Space[Any], worker: int) -> None:
        """Use these arrays from now on."""
        buffers = Buffers(plan, block)
        self._stepper = Stepper(
            self._envs, self._first, self._mode, buffers, action_space, worker, self._keep, self._tasks
        )
        self.ring = self._stepper.ring

    def step_with(self, argument: int, parts: Mapping[int, Sequence[Any]]) -> News | None:
        """As `ring`, where parts of the actions have no fixed shape: `parts` holds them, by env."""
        return self._news_instead() if self._stepper is None else self._stepper.ring_with(argument, parts)

    def reset(self, requests: Sequence[ResetRequest], which_set: int) -> News | None:
        """Reset some envs."""
        if self._stepper is None:
            return self._news_instead()
        for request in requests:
            self._stepper.reset(request, which_set)
        return self._stepper.take_news()

    def announce_anew(self) -> None:
        """Answers of this worker may not have been heard: what they said once is to be said again."""
        if self._stepper is not None:
            self._stepper.announce_anew()

    def _news_instead(self) -> News:
        """The news that these envs could not be made, in the place of any other answer."""
        if not self._unmade:
            raise RuntimeError(
                "These environments were to be made anew, which was cut short. Call `restart()` for them."
            )
        return self._unmade

    def _made(self) -> Stepper:
        """What steps the envs. Raises if there are none, and says why."""
        if self._stepper is None:
            failures = self._news_instead().failures
            raise RuntimeError(
                "; ".join(f"env {env} could not be made: {one.message}" for env, one in failures.items())
            )
        return self._stepper

    def rebuild(self, env: int) -> News | None:
        """Make an env anew. What becomes of the old one does not matter any more. Returns the news that it failed."""
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
            return News(failures={env: Failure.of(error)})
        return None

    def revive(self, requests: Sequence[ResetRequest]) -> dict[int, Failure]:
        """Reset new envs: their next step tells of a lost episode. Returns those that raised."""
        failures: dict[int, Failure] = {}
        for request in requests:
            try:
                self._made().revive(request)
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                failures[request.env] = Failure.of(error)
        return failures

    # ---- tasks ----------------------------------------------------------------------------------------------------

    def set_tasks(self, tasks: Mapping[int, Any]) -> None:
        """Give envs these tasks, or `RESAMPLE`, from their next episodes on."""
        stepper = self._made()
        stepper.tells_tasks = True
        for env, task in tasks.items():
            stepper.desk.assign(env - self._first, task)

    def set_source(self, source: TaskSource) -> None:
        """Draw from this source from now on."""
        self._made().desk.source = snapshot(source) if self._copies else source

    def use_autoreset_mode(self, mode: AutoresetMode) -> None:
        """Reset envs as this mode says from now on."""
        self._mode = self._made().mode = mode

    def tell_tasks(self) -> None:
        """Tasks are in use: final infos are to say which."""
        self._made().tells_tasks = True

    def get_tasks(self, envs: Sequence[int]) -> dict[int, Any]:
        """The tasks of envs: as an env itself tells where it can, else as given. A `Failure` where it raised."""
        return {env: self._task_of(env - self._first) for env in envs}

    def _task_of(self, local: int) -> Any:
        try:
            env = self._env(self._first + local)
            for name in ("get_task", "get_current_task"):
                if offers(env, name):
                    return self._keep(part_of(env, name)())
        except Exception as error:  # noqa: BLE001  # an error of this call, whatever it is
            return Failure.of(error)
        held = self._made().desk.held(local)
        return None if held is None else self._keep(held.value)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def report_lost(self, envs: Sequence[int], which_set: int) -> News | None:
        """The rows of revived envs for a step that their predecessors did not live to answer."""
        if self._stepper is None:
            return self._news_instead()
        self._stepper.report_lost([env - self._first for env in envs], which_set)
        return self._stepper.take_news()

    def call(self, envs: Sequence[int], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """Call a method, or read an attribute, of some envs. An env that raises has a `Failure` for its result."""

        def called(env: AnyEnv) -> Any:
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return self.apply(envs, called, ())

    def apply(self, envs: Sequence[int], function: Callable[..., Any], args: Sequence[Any]) -> dict[int, Any]:
        """Return `function(env, *args)` for some envs. An env for which it raises has a `Failure` for its result."""
        results: dict[int, Any] = {}
        for env in envs:
            try:
                results[env] = self._keep(function(self._env(env), *args))
            except BaseException as error:  # noqa: BLE001  # SystemExit too: an env may not end its worker
                reraise_ctrl_c(error)
                results[env] = Failure.of(error)
        return results

    def look_up(self, env: int, name: str) -> dict[int, Any]:
        """Read an attribute of one env without calling it: its value, a `Method`, or a `Failure` if reading raised."""
        try:
            attribute = self._env(env).get_wrapper_attr(name)
            is_method = callable(attribute) and not isinstance(attribute, type)
            return {env: Method() if is_method else self._keep(attribute)}
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a property may not end its worker
            reraise_ctrl_c(error)
            return {env: Failure.of(error)}

    def set_attr(self, name: str, values: Mapping[int, Any]) -> dict[int, Failure]:
        """Set an attribute of some envs. Those that raised come back."""
        failures: dict[int, Failure] = {}
        for env, value in values.items():
            try:
                self._env(env).set_wrapper_attr(name, value)
            except BaseException as error:  # noqa: BLE001  # as above
                reraise_ctrl_c(error)
                failures[env] = Failure.of(error)
        return failures

    def _env(self, env: int) -> AnyEnv:
        self._made()
        return self._envs[env - self._first]

    def close(self) -> None:
        """Close every env; the first error is raised after all have been closed, and says whose it is."""
        errors: list[BaseException] = []
        for index, env in enumerate(self._envs, start=self._first):
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001  # one env's trouble must not keep the others open
                reraise_ctrl_c(error)
                error.add_note(f"This is what env {index} raised when it was closed.")
                errors.append(error)
            self._owned.release(index)
        self._envs = []
        if errors:
            raise errors[0]


class _Missing(gymnasium.Env[Any, Any]):
    """In the place of an env that could not be made anew: whatever is asked of it, it says why."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise self._error

    def step(self, action: Any) -> Any:
        raise self._error


def _shared_where_equal(spaces: Sequence[Space[Any]]) -> tuple[Space[Any], ...]:
    distinct: list[Space[Any]] = []
    result = []
    for space in spaces:
        known = next((other for other in distinct if other == space), None)
        if known is None:
            distinct.append(space)
        result.append(space if known is None else known)
    return tuple(result)


def _portable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller is told of an env. Raises TypeError for what cannot travel, and says what to do."""
    told = dict(metadata)
    if not picklable(told):
        raise TypeError(
            f"{unpicklable_part(told, 'metadata')} cannot be pickled, so the manager cannot be told of it. Leave it "
            "out of metadata (an attribute set in __init__ may hold it), or use backend='thread'."
        )
    return told
