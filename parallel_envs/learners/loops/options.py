"""What `IndependentLearners.train` was asked for, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from parallel_envs.choices import LearnIn, LoopMode, ScheduleName, words
from parallel_envs.field_texts import documents_fields
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.options import SCHEDULES, Schedule
from parallel_envs.vector.checks import check_count, check_whole, choice, is_number, yes_or_no


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
    """How collecting and learning go together.

    Threads: any number may use one at once; nothing in it changes.
    """

    mode: LoopMode = "sync"
    """"sync": one after the other. "overlap": the next rollout is collected with the weights of before while all learn,
    one update behind, and the same in every run. "free": each side goes on as fast as it can within `queue` and
    `max_lag`; what comes of it depends on time."""
    learn_in: LearnIn = "process"
    """Where learning is while the other side collects. "process": in a worker; in several with update_mode="process"
    ("auto" is "fused" where agents are alike). "thread": in a thread, for networks so large that most of the time is
    spent inside torch. "serial": in the caller, in one thread, with the same numbers: for debugging."""
    queue: int | None = None
    """"free": plans of updates that may wait, of all agents together. Collecting waits when there are so many."""
    max_lag: int = 1
    """"free": updates that an agent's acting weights may be behind where a rollout begins."""
    updates_per_step: float | None = None
    """"free": agents that learn from a replay buffer make so many updates for each step that they live beyond
    `learning_starts`, no more, and no fewer but for those of the last `train_interval`, which says when it is their
    time. None: one update each time."""
    vtrace: bool = False
    """Advantages of PPO are corrected for actions that older weights have chosen."""
    schedule: ScheduleName | Schedule = "round_robin"
    """Who learns first: "round_robin", "most_data", "slowest", or a function: see `schedules.py`."""
    minibatch: tuple[int, int] | None = None
    """"free", and not with fused updates: bounds between which minibatches grow while learning is behind, and shrink
    while it waits. With learn_in="serial" nobody waits, and they stay as they are."""
    worker_budget: int | None = None
    """Workers of environments and of learning together."""

    def __post_init__(self) -> None:
        choice("mode", self.mode, words(LoopMode))
        choice("learn_in", self.learn_in, words(LearnIn))
        if not callable(self.schedule):
            choice("schedule", self.schedule, words(ScheduleName))
        check_whole("max_lag", self.max_lag)
        if self.max_lag < 0:
            raise ValueError(f"max_lag={self.max_lag} is below 0. Give 0 or more.")
        yes_or_no("vtrace", self.vtrace)
        if self.mode == "free":
            self._check_queue()
        else:
            self._refuse_what_is_for_free()
        if self.mode == "sync" and self.vtrace:
            raise ValueError(
                "vtrace=True with mode='sync': what is learnt from was chosen by the newest weights, and there is "
                "nothing to correct. Give mode='overlap' or 'free'."
            )
        self._check_minibatch()
        if self.worker_budget is not None:
            check_count("worker_budget", self.worker_budget)

    def _check_queue(self) -> None:
        if self.queue is None:
            raise ValueError(
                "mode='free' was asked for without a bound of its queue: what waits could grow for ever. Give queue=, "
                "the number of plans that may wait, such as twice the number of agents."
            )
        check_count("queue", self.queue)
        ratio = self.updates_per_step
        if ratio is not None and not (is_number(ratio) and ratio > 0):
            raise ValueError(f"updates_per_step={ratio!r} allows no updates, or is no bound. Give a number above 0.")

    def _refuse_what_is_for_free(self) -> None:
        for name, default in (("queue", None), ("max_lag", 1), ("updates_per_step", None), ("minibatch", None)):
            if getattr(self, name) != default:
                why = "whose lag is exactly one update" if self.mode == "overlap" else "where nothing ever waits"
                raise ValueError(
                    f"{name}={getattr(self, name)!r} contradicts mode={self.mode!r}, {why} and which is the same in "
                    f"every run. Leave {name} out, or give mode='free'."
                )

    def _check_minibatch(self) -> None:
        if self.minibatch is None:
            return
        bounds: Any = self.minibatch
        if not isinstance(bounds, tuple | list) or len(bounds) != 2:
            raise ValueError(f"minibatch={bounds!r} is no pair of bounds. Give two sizes, as (64, 256).")
        low, high = bounds
        for bound in (low, high):
            check_count("minibatch", bound)
        if high < low:
            raise ValueError(f"minibatch={self.minibatch} has its bounds the wrong way round. Give the smaller first.")

    @property
    def order(self) -> Schedule:
        """The schedule itself."""
        return self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]


def check_agents(options: LoopOptions, agents: Mapping[Agent, AgentLearner], update_mode: str) -> None:
    """Raise ValueError for what these agents cannot do."""
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
    if options.minibatch is not None:
        _check_sizes(options.minibatch, agents.values(), update_mode)


def _check_sizes(bounds: tuple[int, int], learners: Iterable[AgentLearner], update_mode: str) -> None:
    if update_mode in ("fused", "auto"):
        raise ValueError(
            f"minibatch={bounds} with update_mode={update_mode!r}: sizes that adapt are those of each agent alone, and "
            "fused updates are written down for one size of all. Give update_mode='sequential', 'thread' or 'process'."
        )
    for learner in learners:
        if bounds[1] > learner.most_rows:
            raise ValueError(
                f"minibatch={bounds} and agent {learner.agent!r} learns from {learner.most_rows} rows at most. Give "
                "smaller bounds."
            )
