"""Loops: their options, their figures, what all have in common, and the synchronous one.

    sync       collect, learn, collect, learn, ...                  the reference; below
    overlap    the next rollout is collected while all learn from the last one     `asynchronous.py`
    free       each as fast as it can, within bounds                               `asynchronous.py`

Figures: compared with one after the other, at best the shorter of both times is saved: `bound` = min(collect, learn) /
(collect + learn). `gain` is the share that was saved.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict

import numpy as np
import numpy.typing as npt

from parallel_envs.checks import choice, is_whole
from parallel_envs.choices import LearnIn, LoopMode, ScheduleName
from parallel_envs.engine import num_cores
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent, Count, Positive, Whole, check_fields
from parallel_envs.learners.loops.learner_thread import SCHEDULES, Schedule
from parallel_envs.learners.updates.process import check_learns_here
from parallel_envs.settings import documents_fields

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

Metrics = dict[Agent, dict[str, float]]

# ---- options ---------------------------------------------------------------------------------------------------------


class LoopWords(TypedDict, total=False):
    """The fields of `LoopOptions` as keywords of `IndependentLearners.train`, with their types.

    For editors and type checkers: `tests/test_choices.py` compares the two.
    """

    mode: LoopMode
    learn_in: LearnIn
    queue: int | None
    max_lag: int
    updates_per_step: float | None
    vtrace: bool
    schedule: ScheduleName | Schedule
    minibatch: tuple[int, int] | None
    worker_budget: int | None


@documents_fields
@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Options for how collecting and learning are combined.

    Threads: any number of threads may use an instance at once; an instance never changes.
    """

    mode: LoopMode = "sync"
    """"sync": one after the other. "overlap": the next rollout is collected with the previous weights while all learn,
    one update behind, and the same in every run. "free": collecting and learning each go on as fast as they can within
    `queue` and `max_lag`; the result depends on timing."""
    learn_in: LearnIn = "process"
    """Place of learning while the caller collects. "process": in a worker; in several with update_mode="process"
    ("auto" is "fused" where agents are alike). "thread": in a thread, for networks so large that most of the time is
    spent inside torch. "serial": in the caller, in one thread, with the same numbers: for debugging."""
    queue: Count | None = None
    """"free": number of planned updates that may wait, of all agents together. Collecting waits when there are so
    many."""
    max_lag: Whole = 1
    """"free": number of updates that an agent's acting weights may be behind where a rollout begins."""
    updates_per_step: Positive | None = None
    """"free": updates for each step beyond `learning_starts`, for agents with a replay buffer. `train_interval` says
    when updates are due. They are never more than this ratio, and fewer only by the updates of one interval. None: one
    update each time."""
    vtrace: bool = False
    """Correct PPO's advantages for actions that older weights have chosen."""
    schedule: ScheduleName | Schedule = "round_robin"
    """Order in which waiting agents learn: "round_robin", "most_data", "slowest", or a function (see `Schedule`)."""
    minibatch: tuple[int, int] | None = None
    """"free", and not with fused updates: bounds between which minibatches grow while learning is behind, and shrink
    while learning waits. With learn_in="serial" nothing waits, and minibatches keep their size."""
    worker_budget: Count | None = None
    """Number of workers for environments and learning together."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (callable(self.schedule) or self.schedule in SCHEDULES):
            choice("schedule", self.schedule, SCHEDULES)
        if self.mode != "free":
            for name, default in (("queue", None), ("max_lag", 1), ("updates_per_step", None), ("minibatch", None)):
                if (value := getattr(self, name)) != default:
                    raise ValueError(
                        f"{name}={value!r} contradicts mode={self.mode!r}, which is the same in every run. Leave "
                        f"{name} out, or give mode='free'."
                    )
        elif self.queue is None:
            raise ValueError("mode='free' needs a bound of its queue. Give queue=, such as twice the number of agents.")
        sizes: Any = self.minibatch
        if sizes is not None:
            is_pair = isinstance(sizes, tuple | list) and len(sizes) == 2 and all(map(is_whole, sizes))
            if not is_pair or not 0 < sizes[0] <= sizes[1]:
                raise ValueError(f"minibatch={sizes!r} is no pair of bounds. Give two sizes, as (64, 256).")
        if self.mode == "sync" and self.vtrace:
            raise ValueError(
                "vtrace=True contradicts mode='sync', in which the newest weights act. Give mode='overlap' or 'free'."
            )


def check_agents(options: LoopOptions, agents: Mapping[Agent, AgentLearner], update_mode: str) -> None:
    """Raise ValueError for options that these agents cannot have."""
    if options.mode != "sync" and options.learn_in == "process":
        device = str(next(iter(agents.values())).parameters.matrix.weights.device)
        check_learns_here(device, "learn_in", "'thread' or 'serial'")
    replaying = [agent for agent, one in agents.items() if not one.algorithm.on_policy]
    if options.vtrace and replaying:
        raise ValueError(
            f"vtrace=True, and agent {replaying[0]!r} learns by {agents[replaying[0]].algorithm.name} from a replay "
            "buffer, which has no probabilities of actions to correct by. Leave vtrace out, or have it learn by PPO."
        )
    if options.updates_per_step is not None and not replaying:
        raise ValueError(
            f"updates_per_step={options.updates_per_step}, and no agent learns from a replay buffer: the others make "
            "one update for each rollout. Leave it out, or give another rollout_length."
        )
    if options.minibatch is None:
        return
    if update_mode in ("fused", "auto"):
        raise ValueError(
            f"minibatch={options.minibatch} with update_mode={update_mode!r}: sizes that adapt differ from agent to "
            "agent, and fused updates need one size for all. Give update_mode='sequential', 'thread' or 'process'."
        )
    for learner in agents.values():
        if options.minibatch[1] > learner.most_rows:
            raise ValueError(
                f"minibatch={options.minibatch} and agent {learner.agent!r} learns from {learner.most_rows} rows at "
                "most. Give smaller bounds."
            )


# ---- the budget of workers -------------------------------------------------------------------------------------------

_WITH_WORKERS = ("thread", "process", "auto", "fused_or_process", "fused_or_thread")
"""Update modes that have workers also in a synchronous loop."""


class Shares(NamedTuple):
    """Numbers of workers for environments and for learning. A thread counts as a worker."""

    envs: int
    learning: int


def fewest_workers(mode: str, learn_in: str, update_mode: str) -> int:
    """Return the fewest workers with which learning can do."""
    if mode == "sync" or learn_in == "serial":
        return 1 if update_mode in _WITH_WORKERS else 0
    return 1


def share_workers(budget: int, num_envs: int, least: int, *, env_workers: int | None = None) -> Shares:
    """Share out a budget of workers. Raises ValueError, naming the numbers, if the budget is too small.

    Learning gets its minimum, `least`, environments as many of the rest as they can use, and learning what is left.
    `num_envs` is 0 if environments are stepped in the caller. `env_workers`: their workers, if the number is fixed.
    """
    envs = min(num_envs, max(budget - least, 1)) if env_workers is None else env_workers
    envs = envs if num_envs else 0
    if envs + least > budget:
        raise ValueError(
            f"A budget of {budget} workers was given; environments hold {envs} and learning needs at least {least}, "
            f"which makes {envs + least}. Give a larger budget, or environments fewer workers."
        )
    return Shares(envs, budget - envs if least else 0)


def learning_workers(options: LoopOptions, learners: IndependentLearners) -> int:
    """Return the number of workers for learning. Raises ValueError, naming the numbers, if the budget is too small."""
    least = own = fewest_workers(options.mode, options.learn_in, learners.update_mode)
    in_workers = options.mode != "sync" and options.learn_in == "process"
    if learners.update_mode in (("process",) if in_workers else _WITH_WORKERS):
        cores = num_cores() - in_workers  # one core is for collecting
        own = max(min(learners.workers or max(cores, 1), len(learners.agents)), least)
    if options.worker_budget is None:
        return own
    envs = 0 if learners.envs.envs.backend == "serial" else learners.envs.num_workers
    least = own if options.mode == "sync" else least  # an existing mode is not made smaller
    return min(own, share_workers(options.worker_budget, envs, least, env_workers=envs).learning)


# ---- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of updates that the acting weights were behind the learning weights, over an agent's transitions."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Lags and times of a loop so far."""

    mode: str
    lags: Mapping[Agent, Lag]
    """By agent, without agents that have not learnt."""
    updates_per_step: Mapping[Agent, float]
    """Updates that each of these agents has made in this loop, for each step that it has lived in it."""
    collect_seconds: float
    """Seconds of acting, stepping the environments and drawing plans."""
    learn_seconds: float
    collect_waited: float
    """Seconds that collecting waited for learning."""
    learn_waited: float
    """Seconds that learning waited for collecting."""
    seconds: float
    """Seconds by the wall clock."""

    @property
    def bound(self) -> float:
        """Return the share of the time that can be saved at best."""
        both = self.collect_seconds + self.learn_seconds
        return min(self.collect_seconds, self.learn_seconds) / both if both else 0.0

    @property
    def gain(self) -> float:
        """Return the share of the time of collecting and learning that was saved. Negative if waiting cost more."""
        both = self.collect_seconds + self.learn_seconds
        return 1 - self.seconds / both if both else 0.0

    def described(self) -> dict[str, Any]:
        """Return the report in plain values for JSON."""
        lags = {str(agent): {"min": lag.least, "mean": lag.mean, "max": lag.most} for agent, lag in self.lags.items()}
        times = ("collect_seconds", "learn_seconds", "collect_waited", "learn_waited", "seconds", "bound", "gain")
        ratios = {str(agent): round(ratio, 6) for agent, ratio in self.updates_per_step.items()}
        description = {"mode": self.mode, "lag": lags, "updates_per_step": ratios}
        return {**description, **{name: round(float(getattr(self, name)), 6) for name in times}}

    def __str__(self) -> str:
        if not self.lags:
            return f"{self.mode}: nothing learnt yet"
        if self.mode == "sync":  # collecting and learning always wait for each other
            return f"sync: learning while collecting could save {self.bound:.0%} of the time at best"
        least, most = min(lag.least for lag in self.lags.values()), max(lag.most for lag in self.lags.values())
        mean = sum(lag.mean for lag in self.lags.values()) / len(self.lags)
        return (
            f"{self.mode}: lag {least} / {mean:.2f} / {most} updates, collecting waited {self.collect_waited:.1f} s, "
            f"learning {self.learn_waited:.1f} s, saved {self.gain:.0%} of the time ({self.bound:.0%} at best)"
        )


# ---- loops -----------------------------------------------------------------------------------------------------------


class Loop(ABC):
    """Collects and learns until it is stopped; a context manager.

    While a loop is open, only `advance` and `settle` may touch the learners. Errors of collecting and of learning are
    raised by these two. After `stop` the learners are complete and can be saved.
    """

    def __init__(self, learners: IndependentLearners, mode: str) -> None:
        self.learners, self.mode = learners, mode
        self.while_waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while collecting waits for learning. Nothing is half done during that time."""
        self.seconds = {"collect": 0.0, "wait": 0.0}
        """Seconds of collecting, and of waiting for learning."""
        self._began = time.perf_counter()
        self._steps_before = {agent: one.counters["steps"] for agent, one in learners.agents.items()}
        self._lags: dict[Agent, tuple[int, int, int, int, int]] = {}  # least, most, sum, count; number of updates

    @abstractmethod
    def advance(self) -> Metrics:
        """Make one step of all environments, and learn where updates are due. Returns metrics of finished updates."""

    def settle(self) -> Metrics:
        """Wait for all planned updates, and act with their weights. Returns their metrics.

        In the middle of an on-policy rollout, episodes begin anew, so that one version acts throughout each rollout.
        """
        return {}

    def changed(self, agents: Iterable[Agent]) -> None:  # noqa: B027  # a synchronous loop holds no copies
        """Take note that, after `settle`, other numbers have been put into the parameters of these agents."""

    def stop(self) -> None:  # noqa: B027  # a synchronous loop has nothing in flight
        """Stop learning: finish the running updates and drop the waiting ones. May be called again."""

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Count the time of the block as "collect" or "wait"."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - began

    def _count(self, agent: Agent, lags: npt.NDArray[np.int64]) -> None:
        """Count an agent's update from transitions with these lags, if there are any."""
        least, most, total, count, updates = self._lags.get(agent, (2**62, 0, 0, 0, 0))
        if lags.size:
            least, most = min(least, int(lags.min())), max(most, int(lags.max()))
            total, count = total + int(lags.sum()), count + lags.size
        self._lags[agent] = least, most, total, count, updates + 1

    def report(self) -> LoopReport:
        """Return lags and times so far."""
        lags, ratios = {}, {}
        for agent, (least, most, total, count, updates) in self._lags.items():
            if count:
                lags[agent] = Lag(least, total / count, most)
                num_steps = self.learners.agents[agent].counters["steps"] - self._steps_before[agent]
                ratios[agent] = updates / max(num_steps, 1)
        learnt, learn_waited = self._learning_seconds()
        collected, waited = self.seconds["collect"], self.seconds["wait"]
        seconds = time.perf_counter() - self._began
        return LoopReport(self.mode, lags, ratios, collected, learnt, waited, learn_waited, seconds)

    @abstractmethod
    def _learning_seconds(self) -> tuple[float, float]:
        """Return the seconds of learning, and those that learning waited."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stop()
        self.learners.loop = None
        if error is not None:  # some agents may have stored the interrupted step, and others not
            self.learners.forget_episodes()


class SyncLoop(Loop):
    """Steps the environments and updates the learners in turn, in the caller. The reference for the other loops."""

    def advance(self) -> Metrics:
        with self._timed("collect"):
            self.learners.step()
        began = time.perf_counter()
        metrics = self.learners.update()
        if metrics:  # otherwise no update was due
            self.seconds["wait"] += time.perf_counter() - began
        for agent in metrics:
            self._count(agent, np.zeros(1, np.int64))
        return metrics

    def _learning_seconds(self) -> tuple[float, float]:
        return self.seconds["wait"], self.seconds["collect"]


def open_loop(learners: IndependentLearners, options: LoopOptions) -> Loop:
    """Open the loop for these options and register it with the learners. Raises ValueError for impossible options."""
    from parallel_envs.learners.loops.asynchronous import FreeLoop, OverlapLoop

    if learners.loop is not None:
        raise RuntimeError("A loop was opened inside another of the same learners. End that one first.")
    check_agents(options, learners.agents, learners.update_mode)
    workers = learning_workers(options, learners)
    if options.mode == "sync":
        learners.run_by()
        learners.loop = SyncLoop(learners, options.mode)
    else:
        learners.loop = (OverlapLoop if options.mode == "overlap" else FreeLoop)(learners, options, workers)
    return learners.loop
