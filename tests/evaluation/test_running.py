"""What a crew is given to do, and what is made of what it did: no worker is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, Failure, candidates_of
from parallel_envs.evaluation.crew import Done, Task
from parallel_envs.evaluation.rehearsal import Rehearsal
from parallel_envs.evaluation.running import Episodes, Rehearsals
from parallel_envs.evaluation.settings import PlaySettings
from parallel_envs.evaluation.work import Order, Part, work_list

BROKEN = Failure(kind="env", error_type="ValueError", message="injected", where="step 2")
DEAD = Failure(kind="death", error_type="WorkerDied", message="killed")


def orders(*names: str, episodes: int = 2) -> list[Order]:
    return work_list(names, episodes, 0)


def episodes(*names: str, strict: bool = False, side_by_side: bool = True, noted: Any = None) -> Episodes:
    rehearsals: dict[Part, Rehearsal] = {name: Rehearsal(mission=name, agents=("red", "blue")) for name in names}
    return Episodes(
        orders(*names),
        rehearsals,
        candidates_of(["random", "noop"]),
        (lambda record: None) if noted is None else noted.append,
        strict=strict,
        side_by_side=side_by_side,
    )


def record(task: Task, seconds: float = 1.0, failure: Failure | None = None) -> Done:
    order, attempt = task.label
    found = EpisodeRecord(
        mission=order.mission,
        episode=order.episode,
        seed=order.env_seed,
        seconds=seconds,
        failure=failure,
        attempts=attempt,
    )
    return Done(task, found)


def taken(work: Any) -> Task:
    task = work.next()
    assert task is not None
    return task  # type: ignore[no-any-return]  # of either kind of work


# ---- rehearsals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_workers", "expected"), [(1, "ab"), (2, "ab"), (3, "aba"), (5, "ababa")])
def test_each_mission_is_rehearsed_and_no_worker_is_idle(num_workers: int, expected: str) -> None:
    work = Rehearsals(orders("a", "b"), PlaySettings(), num_workers)
    found = [taken(work).args[0] for _ in expected]
    assert work.next() is None
    assert "".join(order.mission for order in found) == expected
    assert {order.episode for order in found} == {0}


def test_the_first_answer_counts() -> None:
    work = Rehearsals(orders("a"), PlaySettings(strategy="auto"), 2)
    first, second = taken(work), taken(work)
    assert not work.settle(Done(second, Rehearsal(mission="a", strategy="batch")))
    assert not work.settle(Done(first, Rehearsal(mission="a", strategy="thread")))
    assert work.found["a"].strategy == "batch"


@pytest.mark.parametrize(("asked", "left"), [("auto", "sequential"), ("thread", "thread")])
def test_a_rehearsal_that_is_not_answered_says_nothing(asked: Strategy, left: str) -> None:
    work = Rehearsals(orders("a"), PlaySettings(strategy=asked), 1)
    assert work.settle(Done(taken(work), failure=DEAD)), "the worker is not to be trusted"
    assert work.found["a"].strategy == left
    work.check(candidates_of("random"))


def test_problems_are_told_together() -> None:
    work = Rehearsals(orders("a", "b", "c"), PlaySettings(), 1)
    for problem in ("first", None, "third"):
        task = taken(work)
        work.settle(Done(task, Rehearsal(mission=task.args[0].mission, problem=problem)))
    with pytest.raises(BadEvaluation, match=r"^first\nthird$"):
        work.check(candidates_of("random"))


@pytest.mark.parametrize(("agents", "proportions"), [(1, None), (3, [100, 1]), (2, [1, 1e-9])])
def test_a_policy_that_no_agent_would_get_is_refused(agents: int, proportions: list[float] | None) -> None:
    work = Rehearsals(orders("a"), PlaySettings(), 1)
    work.settle(Done(taken(work), Rehearsal(mission="a", agents=tuple(range(agents)))))
    with pytest.raises(BadEvaluation, match=f"share at most {agents} agents, so 'noop' would never play"):
        work.check(candidates_of({"random": "random", "noop": "noop"}, proportions))


def test_a_policy_that_plays_in_one_of_the_missions_is_accepted() -> None:
    work = Rehearsals(orders("small", "large"), PlaySettings(), 2)
    for number in (1, 2):
        task = taken(work)
        work.settle(Done(task, Rehearsal(mission=task.args[0].mission, agents=tuple(range(number)))))
    work.check(candidates_of(["random", "noop"]))


# ---- episodes -------------------------------------------------------------------------------------------------------


def test_one_of_each_mission_then_the_longest() -> None:
    work = episodes("a", "b", "c")
    first = [taken(work) for _ in range(3)]
    assert [task.label[0].key for task in first] == [("a", 0), ("b", 0), ("c", 0)]
    for task, seconds in zip(first, (1.0, 9.0, 5.0), strict=True):
        work.settle(record(task, seconds))
    assert [taken(work).label[0].key for _ in range(3)] == [("b", 1), ("c", 1), ("a", 1)]
    assert work.next() is None


def test_without_workers_the_list_is_gone_through_in_order() -> None:
    work = episodes("a", "b", side_by_side=False)
    assert [taken(work).label[0].key for _ in range(4)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_what_failed_is_tried_once_more_before_anything_else_and_then_counts() -> None:
    noted: list[EpisodeRecord] = []
    work = episodes("a", noted=noted)
    task = taken(work)
    assert work.settle(record(task, failure=BROKEN)), "the second try wants a fresh worker"
    assert noted == []
    again = taken(work)
    assert (again.label, again.args[2]) == ((task.label[0], 2), 2)
    assert not work.settle(record(again, failure=BROKEN))
    assert [(one.key, one.attempts) for one in noted] == [(("a", 0), 2)]
    assert list(work.records) == [("a", 0)]


def test_an_episode_of_which_nothing_was_told_has_its_assignment() -> None:
    work = episodes("a")
    task = taken(work)
    work.settle(Done(task, failure=DEAD))
    work.settle(Done(taken(work), failure=DEAD))
    (found,) = work.records.values()
    assert (found.failure, found.attempts, found.seed) == (DEAD, 2, task.label[0].env_seed)
    assert sorted(found.assignment.values()) == ["noop", "random"]


def test_strict_raises_at_the_second_failure() -> None:
    work = episodes("a", strict=True)
    work.settle(record(taken(work), failure=BROKEN))
    with pytest.raises(EpisodeFailed, match="Episode 0 of 'a' failed 2 times, by the fault of its env at step 2"):
        work.settle(record(taken(work), failure=BROKEN))
