"""Tasks without any environment: which task is drawn, by which number it is told, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
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
)
from tests.vector.task_envs import ByBoth, ByOptions, ByResetTask, BySetTask, Playing, put_task

WORDS = ["a", "b", "c", "d", "e"]

Pool = Callable[..., Any]
POOLS: list[Pool] = [FixedTasks, UniformTasks, CycleTasks, ScoredTasks]
RANDOM: list[Pool] = [UniformTasks, CycleTasks, ScoredTasks]

seeds = st.integers(0, 2**64)
places = st.integers(0, 5000)


def levels(progress: float) -> list[Any]:
    """A curriculum: more tasks with more progress."""
    return list(range(1 + int(progress * 10)))


def drawn(source: TaskSource, num_envs: int = 4, num_episodes: int = 8) -> list[list[int]]:
    """The numbers of the tasks of some envs and episodes."""
    return [[source.task_for(env, episode).id for env in range(num_envs)] for episode in range(num_episodes)]


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [KEEP, RESAMPLE], ids=repr)
def test_choices_stay_themselves_when_copied_or_pickled(choice: Any) -> None:
    assert pickle.loads(pickle.dumps(choice)) is choice
    assert copy.deepcopy(choice) is choice
    assert repr(choice) in ("KEEP", "RESAMPLE")


def test_a_task_is_a_value() -> None:
    assert Task((1, 2), 3) == Task((1, 2), 3) != Task((1, 2), 4)
    with pytest.raises(AttributeError):
        Task(1, 2).id = 3  # type: ignore[misc]  # that it cannot be set is the fact


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_plain_tasks_are_numbered_by_their_place(pool: Pool) -> None:
    assert pool(WORDS).tasks == tuple(Task(word, place) for place, word in enumerate(WORDS))


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_keep_the_numbers_they_have(pool: Pool) -> None:
    assert [task.id for task in pool([Task("a", 40), Task("b", 7)]).tasks] == [40, 7]


@pytest.mark.parametrize("pool", POOLS)
def test_a_source_is_not_changed_by_what_becomes_of_the_list(pool: Pool) -> None:
    words = list(WORDS)
    source = pool(words, 3)
    before = drawn(source)
    words.clear()
    assert drawn(source) == before


@pytest.mark.parametrize("pool", POOLS)
def test_the_rows_of_an_array_are_tasks(pool: Pool) -> None:
    assert [task.value.tolist() for task in pool(np.arange(4).reshape(2, 2)).tasks] == [[0, 1], [2, 3]]
    train, test = split_tasks(np.arange(4), 3)  # type: ignore[arg-type]  # arrays are taken, too
    assert sorted(task.value for task in train + test) == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="not a list of tasks"):
        pool(np.array(3))


@pytest.mark.parametrize("pool", POOLS)
def test_two_tasks_may_not_have_one_number(pool: Pool) -> None:
    with pytest.raises(ValueError, match=r"'a' and 'b' both have the number 3"):
        pool([Task("a", 3), Task("b", 3)])
    with pytest.raises(ValueError, match=r"'a' and 'b' both have the number 1"):
        pool([Task("a", 1), "b"])
    assert len(pool([Task("a", 3), Task("a", 3)]).tasks) == 2


def test_a_task_that_comes_twice_cannot_be_split() -> None:
    for tasks in ([1, 2, 1, 3], [Task(1, 0), Task(2, 1), Task(1, 2), Task(3, 3)]):
        with pytest.raises(ValueError, match=r"places 0 and 2 are the same, 1"):
            split_tasks(tasks, 2)


@pytest.mark.parametrize("scores", [[np.nan, 1.0], [-1.0, 1.0], [np.inf, 1.0]], ids=repr)
def test_scores_that_are_none_are_not_restored(scores: list[float]) -> None:
    source = ScoredTasks(["a", "b"])
    with pytest.raises(ValueError, match="numbers from 0 up"):
        source.load_state_dict({"scores": scores})
    assert source.chances.tolist() == [0.5, 0.5]


# ---- what is drawn -------------------------------------------------------------------------------


def test_fixed_tasks_go_round() -> None:
    assert drawn(FixedTasks(["a", "b", "c"]), num_envs=5, num_episodes=2) == [[0, 1, 2, 0, 1]] * 2


@pytest.mark.parametrize("pool", POOLS)
@given(seed=seeds, asked=st.lists(st.tuples(places, places), max_size=12))
def test_a_draw_does_not_depend_on_what_was_asked_before(pool: Pool, seed: int, asked: list[tuple[int, int]]) -> None:
    source = pool(WORDS, seed)
    for env, episode in asked:
        source.task_for(env, episode)
    for env, episode in asked:
        assert source.task_for(env, episode) == pool(WORDS, seed).task_for(env, episode)


@pytest.mark.parametrize("pool", POOLS)
def test_a_pickled_source_draws_the_same(pool: Pool) -> None:
    source = pool(WORDS, 5)
    source.bind(4)
    assert drawn(pickle.loads(pickle.dumps(source))) == drawn(copy.deepcopy(source)) == drawn(source)


@pytest.mark.parametrize("pool", RANDOM)
def test_seeds_differ(pool: Pool) -> None:
    courses = [drawn(pool(list(range(50)), seed)) for seed in range(4)]
    assert all(first != second for place, first in enumerate(courses) for second in courses[:place])


@pytest.mark.parametrize("pool", [UniformTasks, ScoredTasks])
def test_envs_and_episodes_have_streams_of_their_own(pool: Pool) -> None:
    rows = drawn(pool(list(range(1000)), 1), num_envs=30, num_episodes=30)
    assert len({tuple(row) for row in rows}) == len({*zip(*rows, strict=True)}) == 30
    assert len({task for row in rows for task in row}) > 500


@pytest.mark.parametrize("pool", [UniformTasks, ScoredTasks])
def test_equal_chances_are_equal(pool: Pool) -> None:
    counts = np.bincount(np.ravel(drawn(pool(WORDS, 2), num_envs=50, num_episodes=50)), minlength=5)
    assert abs(counts - 500).max() < 80  # four standard deviations


@given(seed=seeds, num_tasks=st.integers(1, 12), num_envs=st.integers(1, 9), num_cycles=st.integers(1, 4))
def test_a_cycle_holds_every_task_once(seed: int, num_tasks: int, num_envs: int, num_cycles: int) -> None:
    source = CycleTasks(list(range(num_tasks)), seed)
    source.bind(num_envs)
    num_episodes = -(-num_tasks * num_cycles // num_envs)
    played = np.ravel(drawn(source, num_envs, num_episodes))
    for cycle in played[: num_tasks * num_cycles].reshape(num_cycles, num_tasks):
        assert sorted(cycle) == list(range(num_tasks))


def test_each_cycle_has_an_order_of_its_own() -> None:
    orders = {tuple(np.ravel(drawn(CycleTasks(list(range(20)), seed), 1, 20))) for seed in range(3)}
    source = CycleTasks(list(range(20)))
    orders |= {tuple(source.task_for(0, 20 * cycle + place).id for place in range(20)) for cycle in range(1, 4)}
    assert len(orders) == 6


# ---- scores --------------------------------------------------------------------------------------

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


def test_without_any_score_all_are_alike() -> None:
    assert scored([0] * 5, uniform_share=0.0).chances.tolist() == [0.2] * 5


def test_a_task_without_score_comes_by_the_uniform_share_alone() -> None:
    values = [0.0, 3.0, 0.0, 1.0, 0.0]
    assert {task for row in drawn(scored(values, 0.0), 20, 20) for task in row} == {1, 3}
    assert {task for row in drawn(scored(values, 0.5), 20, 20) for task in row} == {0, 1, 2, 3, 4}


def test_scores_go_by_the_numbers_of_tasks() -> None:
    source = ScoredTasks([Task("a", 70), Task("b", 30)], uniform_share=0.0)
    source.score(30, 0.0)
    assert {source.task_for(env, 0).value for env in range(20)} == {"a"}


def test_a_task_that_comes_several_times_is_scored_in_all_its_places() -> None:
    source = ScoredTasks([Task("a", 0), Task("a", 0), Task("b", 1)], uniform_share=0.0)
    source.score(0, 0.0)
    assert source.chances.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.filterwarnings("ignore:overflow")
def test_large_scores_are_scores() -> None:
    source = scored([1.7e308] * 5)
    assert source.chances.tolist() == pytest.approx([0.2] * 5)
    source.task_for(0, 0)


# ---- progress ------------------------------------------------------------------------------------


def test_a_curriculum_draws_from_the_tasks_of_its_progress() -> None:
    source = CurriculumTasks(levels, seed=3)
    assert {task for row in drawn(source) for task in row} == {0}
    source.progress = 0.5
    assert source.progress == 0.5
    assert {task for row in drawn(source, 20, 20) for task in row} == set(range(6))


def test_a_curriculum_draws_by_its_seed_alone() -> None:
    first, second = CurriculumTasks(levels, seed=3), CurriculumTasks(levels, seed=3)
    second.progress = 0.2
    first.progress = second.progress = 0.9
    assert drawn(first) == drawn(second) != drawn(CurriculumTasks(levels, seed=4))


def test_a_curriculum_without_tasks_is_refused_and_stays_where_it_was() -> None:
    source = CurriculumTasks(lambda progress: [] if progress > 0.5 else [1, 2])
    before = drawn(source), source.version
    with pytest.raises(ValueError, match="empty"):
        source.progress = 0.6
    assert (source.progress, (drawn(source), source.version)) == (0.0, before)


# ---- checkpoints and versions --------------------------------------------------------------------


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
    source, fresh = advanced(SOURCES[name]()), SOURCES[name]()
    state = json.loads(json.dumps(source.state_dict()))
    before = fresh.version
    fresh.load_state_dict(state)
    for each in (source, fresh):
        each.bind(4)
    assert drawn(fresh) == drawn(source)
    assert fresh.version > before
    assert fresh.state_dict() == source.state_dict()


def test_a_checkpoint_does_not_change_with_its_source() -> None:
    source = ScoredTasks(WORDS)
    state = source.state_dict()
    source.score(0, 9.0)
    assert state == {"scores": [1.0] * 5}


@pytest.mark.parametrize("name", ["scored", "curriculum"])
def test_the_version_grows_with_every_change(name: str) -> None:
    source = SOURCES[name]()
    before = source.version
    assert advanced(source).version > before
    drawn(source)
    assert source.version == before + 1


# ---- train and test ------------------------------------------------------------------------------


@given(seeds, st.integers(2, 40), st.data())
def test_a_split_is_disjoint_and_complete(seed: int, num_tasks: int, data: st.DataObject) -> None:
    num_train = data.draw(st.integers(1, num_tasks - 1))
    goals = [f"goal {place}" for place in range(num_tasks)]
    train, test = split_tasks(goals, num_train, seed)
    assert len(train) == num_train
    assert sorted([*train, *test], key=lambda task: task.id) == [Task(goal, place) for place, goal in enumerate(goals)]
    assert (train, test) == split_tasks(goals, num_train, seed)


def test_splits_of_different_seeds_differ() -> None:
    assert len({tuple(task.id for task in split_tasks(range(40), 20, seed)[0]) for seed in range(5)}) == 5


def test_a_split_takes_arrays_as_tasks_and_tasks_with_numbers() -> None:
    train, test = split_tasks(list(np.arange(6).reshape(3, 2)), 2)
    assert sorted(task.value.tolist() for task in [*train, *test]) == [[0, 1], [2, 3], [4, 5]]
    train, test = split_tasks([Task("a", 9), Task("b", 4)], 1)
    assert {task.id for task in [*train, *test]} == {9, 4}


def test_pools_of_a_split_keep_its_numbers() -> None:
    train, test = split_tasks(WORDS, 3, seed=1)
    seen = [{task for row in drawn(UniformTasks(half), 20, 20) for task in row} for half in (train, test)]
    assert seen == [{task.id for task in train}, {task.id for task in test}]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("tasks", "error", "word"),
    [("abc", TypeError, "'abc'"), (7, TypeError, "7"), (None, TypeError, "None"), ([], ValueError, "empty")],
)
def test_what_is_no_list_of_tasks_is_refused(pool: Pool, tasks: Any, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        pool(tasks)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("seed", "error"), [(-3, ValueError), (1.5, TypeError), ("x", TypeError)])
def test_a_seed_that_is_none_is_refused(pool: Pool, seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"seed={seed!r}"):
        pool(WORDS, seed)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match=f"uniform_share={share}"):
        ScoredTasks(WORDS, uniform_share=share)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_score_that_is_none_is_refused(value: float) -> None:
    source = ScoredTasks(WORDS)
    with pytest.raises(ValueError, match=f"{value}.*task 2"):
        source.score(2, value)
    assert (source.version, source.chances.tolist()) == (0, [0.2] * 5)


def test_a_score_for_a_task_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match=r"Task 9.*\[0, 1, 2, 3, 4\]"):
        ScoredTasks(WORDS).score(9, 1.0)


def test_a_checkpoint_of_other_tasks_is_refused() -> None:
    source = ScoredTasks(WORDS)
    with pytest.raises(ValueError, match=r"2 scores.*5 tasks"):
        source.load_state_dict({"scores": [1.0, 2.0]})
    assert source.chances.tolist() == [0.2] * 5


@pytest.mark.parametrize("num_train", [0, -1, 5, 6])
def test_a_split_leaves_tasks_on_both_sides(num_train: int) -> None:
    with pytest.raises(ValueError, match=f"num_train={num_train} .* from 1 to 4"):
        split_tasks(WORDS, num_train)


# ---- ways into an environment --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "way"),
    [
        (ByResetTask, TaskWay.RESET_TASK),
        (BySetTask, TaskWay.SET_TASK),
        (ByOptions, TaskWay.OPTIONS),
        (ByBoth, TaskWay.RESET_TASK),
    ],
)
def test_the_first_way_an_env_offers_is_taken(env: type[Playing], way: TaskWay) -> None:
    assert TaskWay.of(env(), None) is way
    assert TaskWay.of(env(), put_task) is TaskWay.SETTER


def test_an_env_without_any_way_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Playing.*reset_task nor set_task.*task_setter="):
        TaskWay.of(Playing(), None)


def test_only_options_are_added_to_the_reset() -> None:
    cases: list[tuple[Playing, Any]] = [(ByResetTask(), None), (BySetTask(), None), (Playing(), put_task)]
    for env, setter in cases:
        assert TaskWay.of(env, setter).apply(env, 7, setter) == {}
    assert [env.task for env, _ in cases] == [7, 7, ("set", 7)]
    assert TaskWay.OPTIONS.apply(ByOptions(), 7, None) == {"task": 7}


def test_what_cannot_be_split_nor_be_a_curriculum_is_refused() -> None:
    for num_train in (0.5, True, "2"):
        with pytest.raises(TypeError, match=f"num_train={num_train!r} is not a number of tasks"):
            split_tasks(WORDS, num_train)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ValueError, match="0 tasks cannot be split"):
        split_tasks([], 1)
    with pytest.raises(TypeError, match=r"tasks_at=\[1, 2\] is not a function"):
        CurriculumTasks([1, 2])  # type: ignore[arg-type]  # as above
