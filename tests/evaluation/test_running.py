"""The queues of work, and the records that they make of results: no worker is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, Failure, candidates_of
from parallel_envs.evaluation.config import EvaluationConfig
from parallel_envs.evaluation.episode import EpisodeSpec, MissionKey, episode_specs
from parallel_envs.evaluation.running import EpisodeQueue, RehearsalQueue, WorkItem, WorkResult
from parallel_envs.evaluation.worker import Rehearsal

BROKEN = Failure(kind="env", error_type="ValueError", message="injected", where="step 2")
DEAD = Failure(kind="death", error_type="WorkerDied", message="killed")


def orders(*names: str, episodes: int = 2) -> list[EpisodeSpec]:
    return episode_specs(names, episodes, 0)


def episodes(*names: str, strict: bool = False, side_by_side: bool = True, noted: Any = None) -> EpisodeQueue:
    rehearsals: dict[MissionKey, Rehearsal] = {name: Rehearsal(mission=name, agents=("red", "blue")) for name in names}
    return EpisodeQueue(
        orders(*names),
        rehearsals,
        candidates_of(["random", "noop"]),
        (lambda record: None) if noted is None else noted.append,
        strict=strict,
        side_by_side=side_by_side,
    )


def record(task: WorkItem, seconds: float = 1.0, failure: Failure | None = None) -> WorkResult:
    order, attempt = task.label
    found = EpisodeRecord(
        mission=order.mission,
        episode=order.episode,
        seed=order.env_seed,
        seconds=seconds,
        failure=failure,
        attempts=attempt,
    )
    return WorkResult(task, found)


def taken(work: Any) -> WorkItem:
    task = work.next()
    assert task is not None
    return task  # type: ignore[no-any-return]  # of either kind of work


# ---- rehearsals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_workers", "expected"), [(1, "ab"), (2, "ab"), (3, "aba"), (5, "ababa")])
def test_each_mission_is_rehearsed_and_no_worker_is_idle(num_workers: int, expected: str) -> None:
    work = RehearsalQueue(orders("a", "b"), EvaluationConfig(), num_workers)
    found = [taken(work).args[0] for _ in expected]
    assert work.next() is None
    assert "".join(order.mission for order in found) == expected
    assert {order.episode for order in found} == {0}


def test_the_first_answer_counts() -> None:
    work = RehearsalQueue(orders("a"), EvaluationConfig(strategy="auto"), 2)
    first, second = taken(work), taken(work)
    assert not work.finish(WorkResult(second, Rehearsal(mission="a", strategy="batch")))
    assert not work.finish(WorkResult(first, Rehearsal(mission="a", strategy="thread")))
    assert work.results["a"].strategy == "batch"


@pytest.mark.parametrize(("asked", "left"), [("auto", "sequential"), ("thread", "thread")])
def test_a_rehearsal_that_is_not_answered_says_nothing(asked: Strategy, left: str) -> None:
    work = RehearsalQueue(orders("a"), EvaluationConfig(strategy=asked), 1)
    assert work.finish(WorkResult(taken(work), failure=DEAD)), "the worker is not to be trusted"
    assert work.results["a"].strategy == left
    work.check(candidates_of("random"))


def test_problems_are_told_together() -> None:
    work = RehearsalQueue(orders("a", "b", "c"), EvaluationConfig(), 1)
    for problem in ("first", None, "third"):
        task = taken(work)
        work.finish(WorkResult(task, Rehearsal(mission=task.args[0].mission, problem=problem)))
    with pytest.raises(BadEvaluation, match=r"^first\nthird$"):
        work.check(candidates_of("random"))


@pytest.mark.parametrize(("agents", "proportions"), [(1, None), (3, [100, 1]), (2, [1, 1e-9])])
def test_a_policy_that_no_agent_would_get_is_refused(agents: int, proportions: list[float] | None) -> None:
    work = RehearsalQueue(orders("a"), EvaluationConfig(), 1)
    work.finish(WorkResult(taken(work), Rehearsal(mission="a", agents=tuple(range(agents)))))
    with pytest.raises(BadEvaluation, match=f"share at most {agents} agents, so 'noop' would never play"):
        work.check(candidates_of({"random": "random", "noop": "noop"}, proportions))


def test_a_policy_that_plays_in_one_of_the_missions_is_accepted() -> None:
    work = RehearsalQueue(orders("small", "large"), EvaluationConfig(), 2)
    for number in (1, 2):
        task = taken(work)
        work.finish(WorkResult(task, Rehearsal(mission=task.args[0].mission, agents=tuple(range(number)))))
    work.check(candidates_of(["random", "noop"]))


# ---- episodes -------------------------------------------------------------------------------------------------------


def test_one_of_each_mission_then_the_longest() -> None:
    work = episodes("a", "b", "c")
    first = [taken(work) for _ in range(3)]
    assert [task.label[0].key for task in first] == [("a", 0), ("b", 0), ("c", 0)]
    for task, seconds in zip(first, (1.0, 9.0, 5.0), strict=True):
        work.finish(record(task, seconds))
    assert [taken(work).label[0].key for _ in range(3)] == [("b", 1), ("c", 1), ("a", 1)]
    assert work.next() is None


def test_without_workers_the_list_is_gone_through_in_order() -> None:
    work = episodes("a", "b", side_by_side=False)
    assert [taken(work).label[0].key for _ in range(4)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_what_failed_is_tried_once_more_before_anything_else_and_then_counts() -> None:
    noted: list[EpisodeRecord] = []
    work = episodes("a", noted=noted)
    task = taken(work)
    assert work.finish(record(task, failure=BROKEN)), "the second try wants a fresh worker"
    assert noted == []
    again = taken(work)
    assert (again.label, again.args[2]) == ((task.label[0], 2), 2)
    assert not work.finish(record(again, failure=BROKEN))
    assert [(one.key, one.attempts) for one in noted] == [(("a", 0), 2)]
    assert list(work.records) == [("a", 0)]


def test_an_episode_of_which_nothing_was_told_has_its_assignment() -> None:
    work = episodes("a")
    task = taken(work)
    work.finish(WorkResult(task, failure=DEAD))
    work.finish(WorkResult(taken(work), failure=DEAD))
    (found,) = work.records.values()
    assert (found.failure, found.attempts, found.seed) == (DEAD, 2, task.label[0].env_seed)
    assert sorted(found.assignment.values()) == ["noop", "random"]


def test_strict_raises_at_the_second_failure() -> None:
    work = episodes("a", strict=True)
    work.finish(record(taken(work), failure=BROKEN))
    with pytest.raises(EpisodeFailed, match="Episode 0 of 'a' failed 2 times, by the fault of its env at step 2"):
        work.finish(record(taken(work), failure=BROKEN))
