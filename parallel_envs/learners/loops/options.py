"""Options of a loop, checked before anything starts: the mode, schedules, and the budget of workers.

Schedules decide which of several waiting agents learns first:

    round_robin   the agent that has not learnt for the longest time
    most_data     the agent with the most steps that are not learnt from yet
    slowest       the agent whose updates take the longest

An agent learns only from its own steps, so the order decides when each agent learns, never what it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from parallel_envs.checks import check_count, check_whole, choice, is_number, yes_or_no
from parallel_envs.choices import LearnIn, LoopMode, ScheduleName, words
from parallel_envs.engine import cores_here
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent
from parallel_envs.settings import documents_fields

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

# ---- schedules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that waits to learn."""

    agent: Agent
    num_fresh: int
    """Steps that wait to be learnt from."""
    seconds: float
    """Average seconds of its updates so far."""
    last_turn: int
    """Turn in which it learnt last: a number that grows with every agent's update; -1: never."""


Schedule = Callable[[Sequence[Candidate]], Sequence[Agent]]
"""Function from the waiting agents, in the order in which they came, to the order in which they learn."""


def _sorting(key: Callable[[Candidate], Any]) -> Schedule:
    return lambda waiting: [one.agent for one in sorted(waiting, key=key)]


by_turn = _sorting(lambda one: one.last_turn)
SCHEDULES: Mapping[str, Schedule] = {
    "round_robin": by_turn,
    "most_data": _sorting(lambda one: (-one.num_fresh, one.last_turn)),
    "slowest": _sorting(lambda one: (-one.seconds, one.last_turn)),
}


def ordered(schedule: Schedule, waiting: Sequence[Candidate]) -> list[Agent]:
    """Return the schedule's order. Raises ValueError unless it holds each waiting agent once."""
    order = list(schedule(waiting))
    there = [one.agent for one in waiting]
    if len(order) != len(there) or set(order) != set(there):
        raise ValueError(f"schedule={schedule!r} put {there} into the order {order}. Return each of them, once.")
    return order


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


_WORDS = {"mode": words(LoopMode), "learn_in": words(LearnIn), "schedule": words(ScheduleName)}


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
    queue: int | None = None
    """"free": number of planned updates that may wait, of all agents together. Collecting waits when there are so
    many."""
    max_lag: int = 1
    """"free": number of updates that an agent's acting weights may be behind where a rollout begins."""
    updates_per_step: float | None = None
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
    worker_budget: int | None = None
    """Number of workers for environments and learning together."""

    def __post_init__(self) -> None:
        for name, known in _WORDS.items():
            if name != "schedule" or not callable(self.schedule):
                choice(name, getattr(self, name), known)
        yes_or_no("vtrace", self.vtrace)
        for name in ("queue", "worker_budget"):
            if (count := getattr(self, name)) is not None:
                check_count(name, count)
        check_whole("max_lag", self.max_lag)
        if self.max_lag < 0:
            raise ValueError(f"max_lag={self.max_lag} is below 0. Give 0 or more.")
        if self.mode != "free":
            for name, default in (("queue", None), ("max_lag", 1), ("updates_per_step", None), ("minibatch", None)):
                if (value := getattr(self, name)) != default:
                    raise ValueError(
                        f"{name}={value!r} contradicts mode={self.mode!r}, which is the same in every run. Leave "
                        f"{name} out, or give mode='free'."
                    )
        elif self.queue is None:
            raise ValueError("mode='free' needs a bound of its queue. Give queue=, such as twice the number of agents.")
        ratio = self.updates_per_step
        if ratio is not None and not (is_number(ratio) and ratio > 0):
            raise ValueError(f"updates_per_step={ratio!r} is not a finite number above 0.")
        bounds: Any = self.minibatch
        if bounds is not None:
            if not isinstance(bounds, tuple | list) or len(bounds) != 2:
                raise ValueError(f"minibatch={bounds!r} is no pair of bounds. Give two sizes, as (64, 256).")
            for bound in bounds:
                check_count("minibatch", bound)
            if bounds[1] < bounds[0]:
                raise ValueError(f"minibatch={bounds} has its bounds the wrong way round. Give the smaller first.")
        if self.mode == "sync" and self.vtrace:
            raise ValueError(
                "vtrace=True contradicts mode='sync', in which the newest weights act. Give mode='overlap' or 'free'."
            )

    @property
    def order(self) -> Schedule:
        """Return the schedule as a function."""
        return self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]


def check_agents(options: LoopOptions, agents: Mapping[Agent, AgentLearner], update_mode: str) -> None:
    """Raise ValueError for options that these agents cannot have."""
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
        cores = len(cores_here()) - in_workers  # one core is for collecting
        own = max(min(learners.workers or max(cores, 1), len(learners.agents)), least)
    if options.worker_budget is None:
        return own
    envs = 0 if learners.envs.envs.backend == "serial" else learners.envs.num_workers
    least = own if options.mode == "sync" else least  # an existing mode is not made smaller
    return min(own, share_workers(options.worker_budget, envs, least, env_workers=envs).learning)
