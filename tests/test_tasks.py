"""Tasks without any environment: which is drawn, by which number and key it is told, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.tasks import (
    KEEP,
    RESAMPLE,
    CurriculumTasks,
    CycleTasks,
    FixedTasks,
    ScoredTasks,
    Task,
    TaskSource,
    TaskWay,
    UniformTasks,
    split_tasks,
    task_key,
)
from tests.vector.task_envs import Playing

WORDS = ["a", "b", "c", "d", "e"]

Pool = Callable[..., Any]
POOLS: list[Pool] = [FixedTasks, UniformTasks, CycleTasks, ScoredTasks]

seeds = st.integers(0, 2**64)
places = st.integers(0, 5000)


def levels(progress: float) -> list[Any]:
    """A curriculum: more tasks with more progress."""
    return list(range(1 + int(progress * 10)))


def drawn(source: TaskSource, num_envs: int = 4, num_episodes: int = 8) -> list[list[int]]:
    """The numbers of the tasks of some envs and episodes."""
    return [[source.task_for(env, episode).id for env in range(num_envs)] for episode in range(num_episodes)]


def test_tasks_are_values_and_choices_stay_themselves_when_copied_or_pickled() -> None:
    for choice, name in ((KEEP, "KEEP"), (RESAMPLE, "RESAMPLE")):
        assert pickle.loads(pickle.dumps(choice)) is copy.deepcopy(choice) is choice
        assert repr(choice) == name
    assert Task((1, 2), 3) == Task((1, 2), 3) != Task((1, 2), 4)
    with pytest.raises(AttributeError):
        Task(1, 2).id = 3  # type: ignore[misc]  # that it cannot be set is the fact


@pytest.mark.parametrize("pool", POOLS)
def test_plain_tasks_are_numbered_by_their_place_and_others_keep_their_numbers(pool: Pool) -> None:
    words = list(WORDS)
    source = pool(words, 3)
    before = drawn(source)
    words.clear()  # what becomes of the list does not change the source
    assert drawn(source) == before
    assert source.tasks == tuple(Task(word, place) for place, word in enumerate(WORDS))
    assert [task.id for task in pool([Task("a", 40), Task("b", 7)]).tasks] == [40, 7]


@pytest.mark.parametrize("pool", POOLS)
@given(seed=seeds, asked=st.lists(st.tuples(places, places), max_size=12))
def test_a_draw_does_not_depend_on_what_was_asked_before(pool: Pool, seed: int, asked: list[tuple[int, int]]) -> None:
    source = pool(WORDS, seed)
    for env, episode in asked:
        source.task_for(env, episode)
    for env, episode in asked:
        assert source.task_for(env, episode) == pool(WORDS, seed).task_for(env, episode)


def test_seeds_differ() -> None:
    for pool in (UniformTasks, CycleTasks, ScoredTasks):
        courses = [drawn(pool(list(range(50)), seed)) for seed in range(4)]
        assert all(first != second for place, first in enumerate(courses) for second in courses[:place])


@given(seed=seeds, num_tasks=st.integers(1, 12), num_envs=st.integers(1, 9), num_cycles=st.integers(1, 4))
def test_a_cycle_holds_every_task_once(seed: int, num_tasks: int, num_envs: int, num_cycles: int) -> None:
    source = CycleTasks(list(range(num_tasks)), seed)
    source.bind(num_envs)
    num_episodes = -(-num_tasks * num_cycles // num_envs)
    played = np.ravel(drawn(source, num_envs, num_episodes))
    for cycle in played[: num_tasks * num_cycles].reshape(num_cycles, num_tasks):
        assert sorted(cycle) == list(range(num_tasks))


scores = st.lists(st.floats(0, 1e6), min_size=5, max_size=5)


def scored(values: list[float], uniform_share: float = 0.1, seed: int = 0) -> ScoredTasks:
    source = ScoredTasks(WORDS, seed, uniform_share)
    for task, value in enumerate(values):
        source.score(task, value)
    return source


@given(scores, st.floats(0, 1))
def test_chances_are_chances_and_follow_the_scores(values: list[float], share: float) -> None:
    chances = scored(values, share).chances
    assert chances.sum() == pytest.approx(1.0)
    assert (chances >= share / 5 - 1e-12).all()
    if sum(values) > 0:
        assert chances == pytest.approx(share / 5 + (1 - share) * np.array(values) / sum(values))


def test_a_task_without_score_comes_by_the_uniform_share_alone() -> None:
    values = [0.0, 3.0, 0.0, 1.0, 0.0]
    assert {task for row in drawn(scored(values, 0.0), 20, 20) for task in row} == {1, 3}
    assert {task for row in drawn(scored(values, 0.5), 20, 20) for task in row} == {0, 1, 2, 3, 4}
    assert scored([0] * 5, uniform_share=0.0).chances.tolist() == [0.2] * 5


def test_a_curriculum_draws_from_the_tasks_of_its_progress() -> None:
    source = CurriculumTasks(levels, seed=3)
    assert {task for row in drawn(source) for task in row} == {0}
    source.progress = 0.5
    assert source.progress == 0.5
    assert {task for row in drawn(source, 20, 20) for task in row} == set(range(6))


def test_a_curriculum_without_tasks_is_refused_and_stays_where_it_was() -> None:
    source = CurriculumTasks(lambda progress: [] if progress > 0.5 else [1, 2])
    before = drawn(source), source.version
    with pytest.raises(ValueError, match="empty"):
        source.progress = 0.6
    assert (source.progress, (drawn(source), source.version)) == (0.0, before)


def advanced(source: TaskSource) -> TaskSource:
    """The source after some training."""
    if isinstance(source, ScoredTasks):
        source.score(1, 30.5)
    if isinstance(source, CurriculumTasks):
        source.progress = 0.7
    return source


SOURCES: dict[str, Callable[[], TaskSource]] = {
    "fixed": lambda: FixedTasks(WORDS, 5),
    "uniform": lambda: UniformTasks(WORDS, 5),
    "cycle": lambda: CycleTasks(WORDS, 5),
    "scored": lambda: ScoredTasks(WORDS, 5),
    "curriculum": lambda: CurriculumTasks(levels, 5),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_goes_on_from_its_checkpoint(name: str) -> None:
    source, fresh = SOURCES[name](), SOURCES[name]()
    at_first, version = source.state_dict(), source.version
    kept = json.loads(json.dumps(at_first))
    advanced(source)
    assert at_first == kept  # it does not change with its source
    state = json.loads(json.dumps(source.state_dict()))
    before = fresh.version
    fresh.load_state_dict(state)
    for each in (source, fresh):
        each.bind(4)
    assert drawn(fresh) == drawn(source)
    assert fresh.version > before
    assert fresh.state_dict() == source.state_dict()
    assert source.version == version + (name in ("scored", "curriculum"))  # it grows with every change, not with draws


@given(seeds, st.integers(2, 40), st.data())
def test_a_split_is_disjoint_and_complete(seed: int, num_tasks: int, data: st.DataObject) -> None:
    num_train = data.draw(st.integers(1, num_tasks - 1))
    goals = [f"goal {place}" for place in range(num_tasks)]
    train, test = split_tasks(goals, num_train, seed)
    assert len(train) == num_train
    assert sorted([*train, *test], key=lambda task: task.id) == [Task(goal, place) for place, goal in enumerate(goals)]
    assert (train, test) == split_tasks(goals, num_train, seed)


SPLIT: Any = split_tasks
CURRICULUM: Any = CurriculumTasks


def refused_by_pools() -> Iterator[Any]:
    for pool in POOLS:
        for tasks, error, word in [
            *(("abc", TypeError, "'abc'"), (7, TypeError, "7"), (None, TypeError, "None"), ([], ValueError, "empty")),
            (np.array(3), TypeError, "not a list of tasks"),
            ([Task("a", 3), Task("b", 3)], ValueError, r"'a' and 'b' both have the number 3"),
            ([Task("a", 1), "b"], ValueError, r"'a' and 'b' both have the number 1"),
        ]:
            yield partial(pool, tasks), error, word
        for seed, error in ((-3, ValueError), (1.5, TypeError), ("x", TypeError)):
            yield partial(pool, WORDS, seed), error, f"seed={seed!r}"


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *refused_by_pools(),
    *((partial(ScoredTasks, WORDS, 0, share), ValueError, f"uniform_share={share}") for share in (-0.1, 1.5, np.nan)),
    (partial(ScoredTasks(WORDS).score, 9, 1.0), KeyError, r"Task 9.*\[0, 1, 2, 3, 4\]"),
    *((partial(SPLIT, WORDS, num), ValueError, f"num_train={num} .* from 1 to 4") for num in (0, -1, 5, 6)),
    *((partial(SPLIT, WORDS, n), TypeError, f"num_train={n!r} is not a number of tasks") for n in (0.5, True, "2")),
    (partial(SPLIT, [], 1), ValueError, "one side of 0. Give at least two tasks"),
    (partial(SPLIT, [1, 2, 1, 3], 2), ValueError, r"places 0 and 2 are the same, 1"),
    (partial(SPLIT, [Task(1, 0), Task(2, 1), Task(1, 2), Task(3, 3)], 2), ValueError, r"places 0 and 2 are the same"),
    (partial(CURRICULUM, [1, 2]), TypeError, r"tasks_at=\[1, 2\] is not a function"),
    (partial(TaskWay.of, Playing(), None), TypeError, r"Playing.*reset_task nor set_task.*task_setter="),
    (partial(task_key, {"goal": [threading.Lock()]}), TypeError, "cannot be pickled"),
]


def test_bad_arguments_are_refused() -> None:
    for call, error, text in REFUSED:
        with pytest.raises(error, match=text):
            call()


def test_bad_scores_are_refused_and_change_nothing() -> None:
    source = ScoredTasks(WORDS)
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"{value}.*task 2"):
            source.score(2, value)
        with pytest.raises(ValueError, match="numbers from 0 up"):
            source.load_state_dict({"scores": [value, 1.0, 1.0, 1.0, 1.0]})
    with pytest.raises(ValueError, match=r"were given for 5 tasks"):
        source.load_state_dict({"scores": [1.0, 2.0]})
    assert (source.version, source.chances.tolist()) == (0, [0.2] * 5)


@dataclass(frozen=True)
class Goal:
    name: str
    place: Any


def other_string(text: str) -> str:
    """An equal string that is another object."""
    return "".join(list(text))


TABLE = np.arange(6.0).reshape(2, 3)
EQUAL: dict[str, tuple[Any, Any]] = {
    "whole numbers": (3, np.int16(3)),
    "columns": (TABLE[:, 1], TABLE[:, 1].copy()),
    "orders of memory": (TABLE, np.asfortranarray(TABLE)),
    "strings": (("goal", "goal"), ("goal", other_string("goal"))),
    "dicts": ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    "sets": ({"x", "y", "z"}, {"z", "y", "x"}),
    "zeros": ([0.0, np.zeros(2)], [-0.0, -np.zeros(2)]),
    "dataclasses": (Goal("goal", ("goal", TABLE.T)), Goal("goal", (other_string("goal"), TABLE.T.copy()))),
}
DIFFERENT: list[Any] = [
    *(0, 0.0, False, None, "0", b"0", (), [], {}, set(), frozenset(), ("",), ("", ""), [[]], {"a": 1}, {"a": 2}),
    *(("ab", "c"), ("a", "bc"), ("a", "b", "c"), (("a", "b"), "c"), [("a", 1)], 1 + 0j),
    *(np.zeros(2), np.zeros((2, 1)), np.zeros((1, 2)), np.zeros(2, np.float32), np.float64(0), np.zeros(())),
    *(Goal("a", 1), Goal("a", 2), Goal, ("a", 1)),
]


def test_equal_tasks_have_one_key_and_different_ones_have_others() -> None:
    for case, (one, other) in EQUAL.items():
        assert task_key(one) == task_key(other), case
    assert len({task_key(task) for task in DIFFERENT}) == len(DIFFERENT)
    endless: list[Any] = [1]
    endless.append(endless)  # a task may hold itself
    assert task_key(endless) == task_key(endless) != task_key([1])
