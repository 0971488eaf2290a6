"""Tasks for training and tasks for evaluation: never the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parallel_envs.learners.config import BadSettings
from parallel_envs.meta.making import KNOWN, Family, TaskSplit, find_family, split
from parallel_envs.seeding import SeedTree

GRID = find_family("GridNavi-v0", {})
SEED = SeedTree(5)


def values(parts: TaskSplit) -> tuple[set[object], set[object]]:
    assert parts.train_tasks is not None
    return {task.value for task in parts.train_tasks}, {task.value for task in parts.eval_tasks}


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "AntDir-v0"])
def test_train_and_eval_tasks_are_disjoint_and_told_apart_by_number_and_seed(name: str) -> None:
    family = find_family(name, {})
    assert family.name == name
    parts = split(family, 12, 9, SEED)
    train, kept = values(parts)
    assert (len(train), len(kept)) == (12, 9)
    assert not train & kept
    assert len({task.id for task in (*(parts.train_tasks or ()), *parts.eval_tasks)}) == 21
    assert values(split(family, 12, 9, SeedTree(6))) != (train, kept)


def test_keywords_of_the_environment_shape_its_tasks() -> None:
    assert len(find_family("Bandit-v0", {"num_arms": 3}).draw(1, 0)[0]) == 3
    assert len(find_family("GridNavi-v0", {"size": 6}).everything or ()) == 32


def test_splits_without_enough_tasks_are_refused() -> None:
    small = Family("small", None, lambda count, seed: np.random.default_rng(seed).integers(3, size=count).tolist())
    assert sum(map(len, values(split(small, 2, 1, SEED)))) == 3  # it repeats itself
    for family, num_train, num_eval, share, text in [
        (GRID, 12, 10, False, r"22 tasks are wanted of `GridNavi-v0`.* it has 21"),
        (GRID, 22, 21, True, "22 tasks are wanted"),
        (small, 2, 2, False, "it has 3"),
    ]:
        with pytest.raises(BadSettings, match=text):
            split(family, num_train, num_eval, SEED, share=share)
    one = Family("one", None, lambda count, seed: [7] * count)
    with pytest.raises(BadSettings, match="hardly any task besides"):
        split(one, None, 1, SEED).for_rollouts(0, 1)


@pytest.mark.parametrize("num_train", [15, None])
def test_tasks_of_evaluation_are_asked_for_also_where_all_tasks_can_be_listed(num_train: int | None) -> None:
    corner = [(4, 4), (4, 3), (3, 4), (3, 3)]
    family = replace(GRID, draw_eval=lambda count, seed: corner[:count])
    parts = split(family, num_train, 4, SEED)
    assert [task.value for task in parts.eval_tasks] == corner
    assert not {task.value for task in parts.for_rollouts(0, 300)} & set(corner)


@pytest.mark.parametrize("num_train", [6, None])
def test_numpys_whole_numbers_are_the_tasks_that_pythons_are(num_train: int | None) -> None:
    def draw(count: int, seed: int) -> list[Any]:
        return list(np.random.default_rng(seed).integers(12, size=count))

    family = Family("numbers", None, draw, lambda count, seed: list(range(count)))
    parts = split(family, num_train, 6, SEED)
    assert [task.value for task in parts.eval_tasks] == list(range(6))
    assert {int(task.value) for task in parts.for_rollouts(0, 100)} <= set(range(6, 12))


def test_tasks_of_rollouts_are_training_tasks_and_depend_on_their_number_alone() -> None:
    parts = split(GRID, 12, 9, SEED)
    tasks = parts.for_rollouts(0, 200)
    assert {task.value for task in tasks} == values(parts)[0]
    assert parts.for_rollouts(120, 5) == tasks[120:125]


def test_sharing_is_asked_for_by_name() -> None:
    train, kept = values(split(GRID, 21, 21, SEED, share=True))
    assert train == kept


def test_fresh_tasks_are_new_for_each_rollout_and_none_of_those_for_evaluation() -> None:
    few = Family("few", None, lambda count, seed: np.random.default_rng(seed).integers(9, size=count).tolist())
    parts = split(few, None, 4, SEED)
    kept = {task.value for task in parts.eval_tasks}
    tasks = parts.for_rollouts(0, 100)
    assert parts.train_tasks is None
    assert {task.value for task in tasks} == set(range(9)) - kept
    assert parts.for_rollouts(40, 2) == tasks[40:42]
    assert len({task.id for task in (*tasks, *parts.eval_tasks)}) == 104


def test_a_family_may_have_other_tasks_for_evaluation() -> None:
    def of(most: int) -> Any:
        return lambda count, seed: np.random.default_rng(seed).integers(most, size=count).tolist()

    family = Family("two", None, of(20), of(5))
    train, kept = values(split(family, 15, 5, SEED))
    assert kept == set(range(5))
    assert train == set(range(5, 20))
    fresh = split(family, None, 5, SEED)
    assert {task.value for task in fresh.for_rollouts(0, 200)} == set(range(5, 20))
