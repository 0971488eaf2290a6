"""Environments in their process: a worker, or the caller.

`EnvHost` holds the environments of one process and does requests for them. `HostedEnv` is one environment: `play` makes
a turn of it. `GlobalRandomGuard` wraps an environment that draws from the global generators. `ThreadedEnvs` does
requests for environments that wait for something outside, in threads.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_envs.engine import Failure, SharedBlock, dump_reply, let_ctrl_c_through
from parallel_envs.engine.forks import forked, leave_if_forked
from parallel_envs.groups.interface import (
    INVALID,
    RAW_REWARD,
    actions_by_name,
    check_images,
    fold_name,
    number_or_zero,
    read_flag,
    read_outcome,
    read_success,
)
from parallel_envs.groups.ragen_env import RagenEnv, is_ragen_env
from parallel_envs.groups.transport import (
    MAKING,
    READ_ONLY_JOBS,
    REPLAYING,
    SENDING,
    Answers,
    Job,
    Pairs,
    Played,
    Raised,
    Replay,
    Request,
    SharedChannel,
    TimeLimits,
    WorkerClock,
)
from parallel_envs.vector.identity import OwnedEnvs

if TYPE_CHECKING:
    from parallel_envs.vector.registry import Registrations

_IMMUTABLE = frozenset({str, float, int, bool, type(None)})

_FACTORY_ADVICE = "A factory, or an environment's class, is called with the config: def __init__(self, config)."
_RESET_ADVICE = "An episode is begun with a seed and the mode, `train` or `val`: def reset(self, seed, mode)."


@dataclass(frozen=True, slots=True)
class TagSpec:
    """Factory of the environments of a tag, and how they are used.

    `threads`: how many of them may be stepped at once within a worker. `most_actions`: actions of an episode.
    """

    tag: str
    factory: Callable[[Any], Any]
    config: Any
    threads: int = 1
    most_actions: int = sys.maxsize


# ---- one environment ------------------------------------------------------------------------------------------------


class HostedEnv:
    """An environment and the state of its episode.

    Args:
        spec: How it is made.
        copies: Whether answers are copies, for a caller of the same process, who would otherwise see the environment
            write into them.
        number: The number of the environment, for `owned`.
        owned: Knows which environment of this process each object belongs to.
    """

    def __init__(self, spec: TagSpec, *, copies: bool = False, number: int = 0, owned: OwnedEnvs | None = None) -> None:
        self._spec, self._copies = spec, copies
        self._number, self._owned = number, owned
        self._env: Any = None
        self._state: Any = None
        self._left = 0  # of the episode's actions
        self._actions_by_name: dict[str, Any] | None = None
        self._has_meaning: Callable[[str], bool] | None = None

    @property
    def made(self) -> bool:
        return self._env is not None

    @property
    def uses_global_random(self) -> bool:
        """Return whether the environment draws from the process's generators, so that others like it wait for it."""
        return isinstance(self._env, GlobalRandomGuard)

    def make(self) -> None:
        """Construct the environment, with seeded global generators: its constructor draws the same everywhere."""
        spec = self._spec
        config = spec.config
        params = getattr(type(config), "__dataclass_params__", None)
        with seeded(0):
            if params is not None and not params.frozen:  # environments written for RAGEN write into their config
                config = copy.deepcopy(config)
            made = _called(lambda: spec.factory(config), _FACTORY_ADVICE)
            if self._owned is not None:
                self._owned.claim(self._number, made)
            self._env = _adapted(made)

    def drop(self) -> None:
        """Close and forget the environment. The next job makes another one."""
        env, self._env = self._env, None
        if self._owned is not None:
            self._owned.release(self._number)
        if callable(close := getattr(env, "close", None)):
            close()

    def drop_quietly(self) -> None:
        """Drop an environment that broke, and ignore what it raises."""
        try:
            self.drop()
        except BaseException as error:  # noqa: BLE001  # SystemExit too
            let_ctrl_c_through(error)

    # The jobs, for an environment that has been made.

    def reset(self, seed: int, mode: str) -> Any:
        """Begin an episode; return its first state."""
        self._begin(seed, mode)
        check_images(self._state)
        return _copied(self._state) if self._copies else self._state

    def _begin(self, seed: int, mode: str) -> None:
        env = self._env
        self._state, self._left = _called(lambda: env.reset(seed, mode), _RESET_ADVICE), self._spec.most_actions
        self._actions_by_name = actions_by_name(getattr(self._env, "action_lookup", None))
        self._has_meaning = getattr(self._env, "has_meaning", None)

    def play(self, actions: Sequence[str]) -> Played:
        """Play a turn: do as many of these actions as are left, until the episode is over."""
        wanted, left = self._valid_actions(actions), self._left
        doable = wanted if len(wanted) <= left else wanted[:left]
        executed, following, step = [*doable], iter(doable), self._env.step
        state, terminated, truncated = self._state, False, False
        reward: float = 0  # whole numbers stay whole: RAGEN's prompts say `Reward: 0` and `Reward: 1`
        raw_reward = 0.0
        info: dict[str, Any] = {}
        update_info = info.update
        for action in following:
            returned = step(action)
            try:
                state, one, terminated, truncated, step_info = returned
                usual = (type(one) is float or type(one) is int) and type(step_info) is dict
            except (TypeError, ValueError):
                usual = False
            if not usual:
                state, one, terminated, truncated, step_info = read_outcome(returned, self._spec.tag)
            reward += one
            update_info(step_info)
            if RAW_REWARD in step_info:
                raw_reward += number_or_zero(step_info[RAW_REWARD])
            if terminated or truncated:
                del executed[len(executed) - len(list(following)) :]
                break
        self._state, self._left = state, left - len(executed)
        info[RAW_REWARD] = raw_reward
        if not executed:
            info[INVALID] = True
        if type(state) is not str:
            check_images(state)
        if "success" in info and type(info["success"]) is not bool:
            info["success"] = read_success(info["success"])
        if self._copies:
            state = _copied(state)
            info = info if _IMMUTABLE.issuperset(map(type, info.values())) else copy.deepcopy(info)
        if not (terminated is truncated is False):  # the episode is over, or the flags are not bools
            terminated, truncated = read_flag(terminated), read_flag(truncated)
        over = terminated or truncated or self._left <= 0
        own, all_valid = self.measure() if over else None, 0 < len(wanted) == len(actions)
        return state, reward, terminated, truncated, info, executed, all_valid, own

    def _valid_actions(self, actions: Sequence[str]) -> Sequence[Any]:
        """Return the valid actions, as values; as text if actions have no names."""
        names = self._actions_by_name
        if names is None:
            return actions if self._has_meaning is None else list(filter(self._has_meaning, actions))
        try:
            return [names[action] for action in actions]  # mostly all are spelt as they are in the lookup
        except KeyError:
            return [names[name] for action in actions if (name := fold_name(action)) in names]

    def render(self, mode: str) -> Any:
        """Return the picture or text that the environment shows: `text` or `rgb_array`."""
        if callable(render := getattr(self._env, "render", None)):
            shown = render(mode=mode)
        elif mode == "text":
            shown = self._state
        else:
            raise AttributeError(
                f"{_class_name(self._env)} has no render(mode), so it cannot be shown as {mode!r}. Give it one, or "
                "render as 'text'."
            )
        return _copied(shown) if self._copies else shown

    def measure(self) -> dict[str, float]:
        """Return the environment's own metrics."""
        metrics = getattr(self._env, "metrics", None)
        if not callable(metrics):
            return {}
        try:
            given = metrics()
        except Exception as error:
            error.add_note("It comes from metrics(), which is called at the end of an episode.")
            raise
        try:
            return {str(name): float(value) for name, value in given.items()}
        except (AttributeError, TypeError, ValueError):
            raise TypeError(
                f"metrics() of {_class_name(self._env)} returned {given!r}. Give a dict of numbers by name."
            ) from None

    def replay(self, replay: Replay) -> Any:
        """Bring the environment to the state of its episode; return a copy of that state."""
        self._begin(replay.seed, replay.mode)
        for action in replay.actions:
            self._state = read_outcome(self._env.step(action), self._spec.tag)[0]
        self._left -= len(replay.actions)
        return _copied(self._state)


_WORK: Mapping[Job, Callable[..., Any]] = {
    Job.RESET: lambda hosted, argument: hosted.reset(*argument),
    Job.PLAY: HostedEnv.play,
    Job.RENDER: HostedEnv.render,
    Job.MEASURE: lambda hosted, _: hosted.measure(),
}
"""Function of each job, called with the hosted environment and the argument."""


def _called(call: Callable[[], Any], advice: str) -> Any:
    """Return the result of a call. If the called function does not accept the arguments, add advice to the error."""
    try:
        return call()
    except TypeError as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code is not call.__code__:
            place = place.tb_next
        if place is not None and place.tb_next is None:  # raised by the call itself, not inside the called function
            error.add_note(advice)
        raise


def _adapted(env: Any) -> Any:
    """Return an environment with the methods of `GroupEnv`."""
    if is_ragen_env(env):
        env = RagenEnv(env)
    elif "gymnasium" in sys.modules:
        from parallel_envs.groups.gymnasium_env import adapted

        env = adapted(env)
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise TypeError(
                f"{_class_name(env)} has no {name}(). An environment has reset(seed, mode) and step(action)."
            )
    return GlobalRandomGuard(env) if getattr(env, "uses_global_random", False) else env


def _copied(value: Any) -> Any:
    return value if type(value) in _IMMUTABLE else copy.deepcopy(value)


def _class_name(env: Any) -> str:
    kind = type(env)
    return f"{kind.__module__}.{kind.__qualname__}"


# ---- global generators ----------------------------------------------------------------------------------------------

_generators_lock = threading.RLock()
"""The generators belong to the process: threads must take turns."""


class GlobalRandomGuard:
    """An environment that draws from the global generators of `random` and NumPy, with generator states of its own.

    The states are seeded with the episode, put in place before each call and taken away after it. So the environment
    neither disturbs other code nor is disturbed by it.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._states: tuple[Any, Any] | None = None  # from the first reset on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._env, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            with self._own_generators():
                return found(*arguments, **named)

        return call

    def reset(self, seed: int, mode: str) -> Any:
        with self._own_generators(seed):
            return self._env.reset(seed, mode)

    @contextmanager
    def _own_generators(self, seed: int | None = None) -> Iterator[None]:
        with seeded(seed):
            if seed is None and self._states is not None:
                _set_generators(self._states)
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the global generators, unless the seed is None, and restore them afterwards."""
    with _generators_lock:
        outside = random.getstate(), np.random.get_state()
        try:
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed % 2**32)
            yield
        finally:
            _set_generators(outside)


def _set_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


# ---- all environments of a process ----------------------------------------------------------------------------------


class EnvHost:
    """The environments of one process, by number, each made as the spec of its tag says.

    In a worker, requests and answers are bytes: plain pickle of small values. If an answer cannot be pickled, that is
    the failure of the one environment that gave it.
    """

    def __init__(self, tags: Mapping[int, str], specs: Mapping[str, TagSpec], *, copies: bool) -> None:
        self._specs = {env: specs[tag] for env, tag in tags.items()}
        owned = OwnedEnvs()
        self._envs = {env: HostedEnv(spec, copies=copies, number=env, owned=owned) for env, spec in self._specs.items()}
        self._limits = TimeLimits()
        self._clock: WorkerClock | None = None
        self._channel: SharedChannel | None = None
        self._threaded: ThreadedEnvs | None = None

    @classmethod
    def in_worker(
        cls,
        tags: Mapping[int, str],
        specs: Mapping[str, TagSpec],
        limits: TimeLimits,
        clocks: SharedBlock,
        num_envs: int,
        worker: int,
        channel: SharedBlock,
        registrations: Registrations | None,
    ) -> EnvHost:
        """Return the host of a worker. `clocks` is the memory of all clocks, `channel` that of the worker's channel."""
        host = cls(tags, specs, copies=False)
        host._limits, host._clock = limits, WorkerClock(clocks, num_envs, worker)
        host._channel = SharedChannel(channel)
        if any(spec.threads > 1 for spec in specs.values()):  # in the caller there are no threads
            host._threaded = ThreadedEnvs(host._specs, host._do_each, lambda env: host._envs[env].uses_global_random)
        if registrations is not None:
            registrations.install()
        return host

    # Requests from another process.

    def ring(self, argument: int) -> list[bytes] | None:
        """Do the request in the channel, and write the answers there, part by part. Return the parts that do not fit.

        The engine calls this when the manager wakes the worker.
        """
        channel = self._channel
        assert channel is not None
        request, begin, unsent = self._read(channel.read_request()), 0, list[bytes]()
        for part in (request,) if self._threaded is not None else request.parts():
            if begin and self._clock is not None:  # not earlier: freeing the previous answers may run user code, too
                self._clock.end_sending()
            data = self._answered(part, begin)
            begin += len(part.arguments)
            if unsent or not channel.write_part(data):
                unsent.append(data)
        return unsent or None

    def work(self, message: bytes) -> list[bytes]:
        """Do the request in a message; return the answers."""
        return [self._answered(self._read(message))]

    def _read(self, data: bytes | memoryview) -> Request:
        number, *plain = pickle.loads(data)
        request = Request.from_plain(tuple(plain))
        if self._clock is not None:
            self._clock.start(number)
        return request

    def _answered(self, request: Request, begin: int = 0) -> bytes:
        """Do a request, or the part of a request that begins at this position; return the pickled answers."""
        answers = self.do(request)
        if self._clock is not None:
            self._clock.begin_sending(begin, begin + len(request.arguments))
        try:
            return pickle.dumps((answers.values, answers.errors, answers.replayed), pickle.HIGHEST_PROTOCOL)
        except BaseException:  # noqa: BLE001  # user code may raise anything when it is pickled
            for env in list(answers.values):
                try:
                    dump_reply((answers.values[env], answers.replayed.get(env)))
                except BaseException as error:  # noqa: BLE001  # the same
                    self._envs[env].drop_quietly()
                    answers.values.pop(env)
                    answers.replayed.pop(env, None)
                    answers.errors[env] = Raised(SENDING, Failure.of(error))
            return dump_reply((answers.values, answers.errors, answers.replayed))

    # The work itself.

    def do(self, request: Request) -> Answers:
        """Do a request. Environments that raise are among the errors of the answers."""
        answers = Answers()
        if self._threaded is None:
            self._do_each(request, iter(request.arguments.items()), answers)
            return answers
        # Environments are made before any thread starts: constructors take turns in any case (`seeded`), and one that
        # waited for its turn in a thread would be late because of the others.
        if not all(self._envs[env].made for env in request.arguments):
            request = request.subset([env for env in request.arguments if self._ensure_made(env, answers)])
        self._threaded.do(request, answers)
        return answers

    def _do_each(self, request: Request, pairs: Pairs, answers: Answers) -> None:
        """Do the job for one environment after the other. In a worker, the clock records which one is at work."""
        job, envs, replays, values = request.job, self._envs, request.replays, answers.values
        work, seconds, now = _WORK[job], self._limits.of_job(job), time.monotonic
        due, ended = (None, None) if self._clock is None else (self._clock.due, self._clock.ended)
        for env, argument in pairs:
            hosted = envs[env]
            if (replays or not hosted.made) and not self._prepare(env, replays.get(env), answers):
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

    def _prepare(self, env: int, replay: Replay | None, answers: Answers) -> bool:
        """Make and replay an environment where needed. Return False if it broke."""
        if not self._ensure_made(env, answers):
            return False
        if replay is None:
            return True

        def work() -> None:
            answers.replayed[env] = self._envs[env].replay(replay)

        return self._tried(env, REPLAYING, self._limits.of_replay(replay), work, answers)

    def _ensure_made(self, env: int, answers: Answers) -> bool:
        hosted = self._envs[env]
        return hosted.made or self._tried(env, MAKING, self._limits.of_making(), hosted.make, answers)

    def _tried(self, env: int, doing: str, seconds: float, work: Callable[[], None], answers: Answers) -> bool:
        """Do work before a job. Return False if it raised, which is then among the errors."""
        if self._clock is not None:
            self._clock.begin(env, seconds, doing)
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

    def _note_error(self, env: int, doing: str, error: BaseException, answers: Answers, *, drops: bool) -> None:
        try:
            let_ctrl_c_through(error)
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
        if self._threaded is not None:
            self._threaded.close()


# ---- threads --------------------------------------------------------------------------------------------------------

_PATIENCE_SECONDS = 2e-3

DoEach = Callable[[Request, Pairs, Answers], None]


@dataclass(slots=True)
class _TagQueue:
    """The environments of a tag in a request. Several threads take from `pairs`: each takes the next when it is free.

    `seconds`: the time that each thread spent on it.
    """

    tag: str
    pairs: Pairs
    most_threads: int
    seconds: list[float] = field(default_factory=list)


class _HelperStart:
    """Lets a watching thread start helpers unless the work is done by then. Neither thread waits for the other."""

    def __init__(self) -> None:
        self._working, self._lock = threading.Lock(), threading.Lock()
        self._working.acquire()
        self._over = False
        self._helpers: list[Future[None]] = []

    def finish(self) -> list[Future[None]]:
        """Prevent further starts of helpers; return the helpers that were started."""
        with self._lock:
            self._over = True
        self._working.release()
        return self._helpers

    def outlasts(self, seconds: float) -> bool:
        """Return whether the work takes longer than this; return as soon as that is known."""
        return not self._working.acquire(timeout=seconds)

    def start(self, start: Callable[[], list[Future[None]]]) -> None:
        """Start helpers, unless the work is done."""
        with self._lock:
            if not self._over:
                self._helpers = start()


class ThreadedEnvs:
    """Does requests for environments that wait for something outside, as many at once as the spec of the tag allows.

    Waking a thread for each environment takes longer than many resets. So a tag that was quick the last time is done
    one after another; if it takes longer than `_PATIENCE_SECONDS` this time, threads help with the rest.

    Args:
        specs: The spec of each environment.
        do_each: Does the part of a request that concerns the environments of an iterator.
        uses_global_random: Returns whether an environment draws from the process's generators. It is then done in the
            worker's own thread, so that it does not wait in a thread for others while its time runs.
    """

    def __init__(
        self, specs: Mapping[int, TagSpec], do_each: DoEach, uses_global_random: Callable[[int], bool]
    ) -> None:
        from parallel_envs.wrappers.pool import Threads  # only workers with such environments need it

        self._specs, self._do_each, self._uses_global_random = specs, do_each, uses_global_random
        self._threads = Threads("environment")
        self._slow: set[tuple[str, Job]] = set()

    def do(self, request: Request, answers: Answers) -> None:
        """Do a request."""
        by_tag: dict[str, list[int]] = {}  # "" for environments that are done one after the other
        for env in request.arguments:
            spec = self._specs[env]
            is_alone = spec.threads == 1 or self._uses_global_random(env)
            by_tag.setdefault("" if is_alone else spec.tag, []).append(env)
        alone = request.pairs(by_tag.pop("", []))
        queues = [
            _TagQueue(tag, request.pairs(envs), min(len(envs), self._specs[envs[0]].threads))
            for tag, envs in by_tag.items()
        ]
        helpers, quick = list[Future[None]](), list[_TagQueue]()
        for queue in queues:
            is_slow = (queue.tag, request.job) in self._slow
            started = self._start_helpers(queue, queue.most_threads, request, answers) if is_slow else []
            helpers += started
            if not started:
                quick.append(queue)
        self._do_each(request, alone, answers)
        for queue in quick:
            helpers += self._do_here(queue, request, answers)
        for helper in helpers:
            helper.result()
        for queue in queues:
            is_slow = sum(queue.seconds) > _PATIENCE_SECONDS
            (self._slow.add if is_slow else self._slow.discard)((queue.tag, request.job))

    def _start_helpers(self, queue: _TagQueue, count: int, request: Request, answers: Answers) -> list[Future[None]]:
        """Start as many threads as wanted, or as many as the system has room for, that take from a queue."""
        helpers: list[Future[None]] = []
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                helpers.append(self._threads.submit(self._take, queue, request, answers))  # noqa: PERF401  # keeps those started before an error
        return helpers

    def _take(self, queue: _TagQueue, request: Request, answers: Answers) -> None:
        began = time.perf_counter()
        self._do_each(request, queue.pairs, answers)
        queue.seconds.append(time.perf_counter() - began)

    def _do_here(self, queue: _TagQueue, request: Request, answers: Answers) -> list[Future[None]]:
        """Take from a queue in this thread, while another one starts helpers if this takes long. Return the helpers."""
        start = _HelperStart()

        def watch() -> None:
            if start.outlasts(_PATIENCE_SECONDS):
                start.start(lambda: self._start_helpers(queue, queue.most_threads - 1, request, answers))

        with contextlib.suppress(RuntimeError):  # the system has no room for another thread
            self._threads.submit(watch)
        try:
            self._take(queue, request, answers)
        finally:
            helpers = start.finish()
        return helpers

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()
