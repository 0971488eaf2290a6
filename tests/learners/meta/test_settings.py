"""Settings of a meta-RL run, and mistakes that are refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.meta import Learner, load_settings
from parallel_envs.meta.making import KNOWN, Family, TaskSplit, find_family, split
from parallel_envs.seeding import SeedTree
from tests.learners.meta.families import DQN, FAST, HERE, SAC, settings


def test_a_file_is_read_as_a_dict_and_overrides_take_the_place_of_words(tmp_path: Path) -> None:
    given, path = settings(), tmp_path / "settings.yaml"
    read = load_settings(given, {"seed": 3, "train.num_iters": 9})
    assert (read.seed, read.train.num_iters) == (3, 9)
    assert given == settings()
    path.write_text(yaml.safe_dump(read.described()), encoding="utf-8")
    assert load_settings(path) == read


def test_memories_last_as_long_as_a_rollout_unless_it_is_said() -> None:
    for span, most in ((None, 24 / 25), (1, 0.5)):  # three inner episodes of at most 8 steps
        with Learner(settings(policy__memory_span=span)) as learner:
            bias = learner.agent.parameters.module.actor.cell.seen.bias
            assert torch.sigmoid(bias[12:24]).max().item() == pytest.approx(most)


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        ("env__num_paralel_workers", 2, "`env.num_paralel_workers` is unknown. Did you mean `num_parallel_workers`?"),
        ("env__env_type", "metta", "`env.env_type: 'metta'`: Input should be 'meta'."),
        ("env__env_name", "AntDirr-v0", "`env.env_name: AntDirr-v0` is unknown. Did you mean `AntDir-v0`?"),
        ("env__env_name", "CartPole-v1", "does not say what its tasks are"),
        ("env__env_name", f"{HERE}:Nobody", "cannot be imported"),
        ("policy__arch", "memori", "`policy.arch: 'memori'`"),
        ("policy__algorithm", {"name": "pppo"}, "`policy.algorithm.name: pppo` is unknown. Did you mean `ppo`?"),
        ("policy__algorithm", {"name": "ppo", "network": "mlp"}, "`policy.arch: memory`, which needs `gru`"),
        ("policy__algorithm", {"name": "ppo", "rollout_length": 9}, "Say `train.num_rollouts_per_iter`"),
        ("policy__algorithm", {**DQN, "num_steps": 3}, "does not go together with `policy.arch: memory`"),
        ("policy__memory", {"name": "fast_weight"}, "`policy.memory.name: 'fast_weight'`"),
        ("policy__memory", {"name": "gru", "num_values": 8}, "`policy.memory.num_values: 8` means nothing to a GRU"),
        ("policy__memory", {**FAST, "num_place": 3}, "`num_places`?"),
        ("policy", {"memory": FAST, "memory_span": 9}, "`policy.memory_span: 9` is for GRUs"),
        ("policy", {"memory": FAST, "arch": "markov"}, "`policy.arch: markov` does not"),
        ("train__num_init_rollouts_pool", 5, "PPO learns once from each iteration's own rollouts"),
        ("train__n_env_steps_total", 5, "both say when training ends"),
        ("env__env_kwargs", {"seed": 1}, "`env.env_kwargs.seed` is decided by other settings"),
        ("policy__algorithm", {"name": "ppo", "minibatch_size": 145}, "is more than the 144 steps"),
        ("policy", {"arch": "markov", "algorithm": {"name": "ppo", "network": "gru"}}, "which remembers nothing"),
        ("policy", {"arch": "memory_markov", "algorithm": DQN}, "wants a policy apart from the values"),
        ("policy", {"arch": "markov", "algorithm": SAC}, "SAC acts in floating Box spaces only"),
        ("env__manager_options", {"on_failur": "raise"}, "`env.manager_options.on_failur` is unknown. Did you mean"),
    ],
)
def test_wrong_settings_are_named(word: str, value: Any, text: str) -> None:
    given = settings(**{word: value})
    with pytest.raises(BadSettings) as caught:
        Learner(given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("num_iters", "`num_iters` is unknown. It is `train.num_iters`."),
        ("num_itres", "`num_itres` is unknown. Did you mean `train.num_iters`?"),
        ("total_steps", "`total_steps` is unknown. It is `train.n_env_steps_total`."),
        ("policy.gamma", "`policy.gamma` is unknown. It is `policy.algorithm.discount`."),
        ("train.seed", "`train.seed` is unknown. It is `seed`."),
    ],
)
def test_a_word_of_another_block_is_told_by_its_path(word: str, text: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load_settings(settings(), {word: 2})
    assert str(caught.value) == f"In the settings with {word}=2:\n  {text}"


def test_settings_that_contradict_one_another_are_refused() -> None:
    falling = {"name": "ppo", "learning_rate_end": 1e-4, "learning_rate_updates": 10}
    load_settings(settings(policy__algorithm=falling))
    with pytest.raises(BadSettings, match=r"`train\.last_learning_rate: 0\.5` and .*_end: 0\.0001` both say how"):
        load_settings(settings(policy__algorithm=falling, train__last_learning_rate=0.5))
    with pytest.raises(BadSettings, match="some workers would hold no environment"):
        load_settings(settings(workers=4, backend="process", env__num_envs=2))


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


def test_fresh_tasks_are_new_for_each_rollout_and_none_of_those_for_evaluation() -> None:
    few = Family("few", None, lambda count, seed: np.random.default_rng(seed).integers(9, size=count).tolist())
    parts = split(few, None, 4, SEED)
    kept = {task.value for task in parts.eval_tasks}
    tasks = parts.for_rollouts(0, 100)
    assert parts.train_tasks is None
    assert {task.value for task in tasks} == set(range(9)) - kept
    assert parts.for_rollouts(40, 2) == tasks[40:42]
    assert len({task.id for task in (*tasks, *parts.eval_tasks)}) == 104


@pytest.mark.parametrize("num_train", [6, None])
def test_a_family_may_have_tasks_of_its_own_for_evaluation(num_train: int | None) -> None:
    """Also where all its tasks can be listed, and NumPy's whole numbers are the tasks that Python's are."""
    corner = [(4, 4), (4, 3), (3, 4), (3, 3)]
    parts = split(replace(GRID, draw_eval=lambda count, seed: corner[:count]), num_train, 4, SEED)
    assert [task.value for task in parts.eval_tasks] == corner
    assert not {task.value for task in parts.for_rollouts(0, 300)} & set(corner)

    def draw(count: int, seed: int) -> list[Any]:
        return list(np.random.default_rng(seed).integers(12, size=count))

    parts = split(Family("numbers", None, draw, lambda count, seed: list(range(count))), num_train, 6, SEED)
    assert [task.value for task in parts.eval_tasks] == list(range(6))
    assert {int(task.value) for task in parts.for_rollouts(0, 100)} == set(range(6, 12))


def test_keywords_shape_tasks_and_those_of_rollouts_depend_on_their_number_alone() -> None:
    assert len(find_family("Bandit-v0", {"num_arms": 3}).draw(1, 0)[0]) == 3
    assert len(find_family("GridNavi-v0", {"size": 6}).everything or ()) == 32
    parts = split(GRID, 12, 9, SEED)
    tasks = parts.for_rollouts(0, 200)
    assert {task.value for task in tasks} == values(parts)[0]
    assert parts.for_rollouts(120, 5) == tasks[120:125]
    train, kept = values(split(GRID, 21, 21, SEED, share=True))
    assert train == kept
