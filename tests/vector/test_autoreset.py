"""What comes back around an episode's end, in each autoreset mode, and what a reset by hand does there."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs.testing import InfoKind, ScriptedEnv, assert_same_batch
from tests.vector.conftest import Make, Manager
from tests.vector.small_envs import ArgumentsEnv, CountingEnv

ACTIONS = np.zeros(2, int)


def course(envs: Manager, num_steps: int) -> list[tuple[Any, ...]]:
    """Observations, rewards and terminations of some steps, as lists."""
    results = [envs.step(ACTIONS)[:3] for _ in range(num_steps)]
    return [tuple(array.tolist() for array in result) for result in results]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("form", ["enum", "value"])
def test_the_mode_stands_in_the_metadata(make_process: Make, mode: AutoresetMode, form: str) -> None:
    envs = make_process([CountingEnv], autoreset_mode=mode if form == "enum" else mode.value)
    assert envs.metadata["autoreset_mode"] is mode


def test_next_step_resets_in_the_step_after_the_end(make: Make) -> None:
    envs = make([partial(CountingEnv, 2), partial(CountingEnv, 3)])
    envs.reset(seed=0)
    assert course(envs, 5) == [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[0, 2], [0, 2]], [2, 2], [True, False]),
        ([[1, 0], [0, 3]], [0, 3], [False, True]),
        ([[1, 1], [1, 0]], [1, 0], [False, False]),
        ([[1, 2], [1, 1]], [2, 1], [True, False]),
    ]


def test_same_step_resets_in_the_step_of_the_end(make: Make) -> None:
    envs = make([partial(CountingEnv, 2), partial(CountingEnv, 3)], autoreset_mode="SameStep")
    envs.reset(seed=0)
    assert course(envs, 5) == [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[1, 0], [0, 2]], [2, 2], [True, False]),
        ([[1, 1], [1, 0]], [1, 3], [False, True]),
        ([[2, 0], [1, 1]], [2, 1], [True, False]),
        ([[2, 1], [1, 2]], [1, 2], [False, False]),
    ]


def test_same_step_keeps_the_final_observation_and_info(make: Make) -> None:
    envs = make([partial(CountingEnv, 1), partial(CountingEnv, 2)], autoreset_mode="SameStep")
    envs.reset(seed=0)
    first, both = np.array([True, False]), np.array([True, True])
    infos = envs.step(ACTIONS)[4]
    assert infos["final_obs"].dtype == object
    assert_same_batch([*infos.pop("final_obs")], [np.array([0, 1]), None])
    assert_same_batch(
        infos,
        {
            "_final_obs": first,
            "final_info": {"elapsed": np.array([1, 0]), "_elapsed": first},
            "_final_info": first,
            "began": np.array([1, 0]),
            "_began": first,
            "elapsed": np.array([0, 1]),
            "_elapsed": ~first,
        },
    )
    infos = envs.step(ACTIONS)[4]
    assert_same_batch([*infos["final_obs"]], [np.array([1, 1]), np.array([0, 2])])
    assert_same_batch(infos["_final_info"], both)


def test_final_values_survive_an_env_that_reuses_its_memory(make: Make) -> None:
    kinds = {InfoKind.ARRAYS, InfoKind.NESTED}
    plain, reusing = (
        partial(ScriptedEnv, episode_lengths=[1], infos=kinds, reuse_buffers=reuse) for reuse in (False, True)
    )
    results = []
    for factory in (plain, reusing):
        envs = make([factory] * 2, autoreset_mode="SameStep")
        envs.reset(seed=0)
        results.append([envs.step(ACTIONS) for _ in range(3)])
    assert_same_batch(results[1], results[0])


def test_disabled_leaves_resets_to_the_caller(make: Make) -> None:
    envs = make([partial(CountingEnv, 2), partial(CountingEnv, 3)], autoreset_mode="Disabled")
    envs.reset(seed=0)
    assert course(envs, 2)[-1] == ([[0, 2], [0, 2]], [2, 2], [True, False])
    observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert observations.tolist() == [[1, 0], [0, 2]]
    assert course(envs, 1) == [([[1, 1], [0, 3]], [1, 3], [False, True])]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_masked_reset_touches_only_its_envs(make: Make, mode: AutoresetMode) -> None:
    envs = make([CountingEnv] * 3, num_workers=2, autoreset_mode=mode)
    envs.reset(seed=0)
    envs.step(np.zeros(3, int))
    observations, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert observations.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert_same_batch(infos, {"began": np.array([0, 1, 0]), "_began": np.array([False, True, False])})
    assert envs.step(np.zeros(3, int))[0].tolist() == [[0, 2], [1, 1], [0, 2]]


def test_a_masked_reset_seeds_its_envs_by_their_number(make: Make) -> None:
    envs = make([ArgumentsEnv] * 3)
    envs.reset(seed=0)
    _, infos = envs.reset(seed=10, options={"reset_mask": np.array([False, True, True])})
    assert infos["seed"].tolist() == [None, "11", "12"]


@pytest.mark.parametrize("mask", [None, np.array([True, True]), np.array([True, False])], ids=repr)
def test_a_reset_by_hand_takes_the_place_of_the_pending_one(make: Make, mask: Any) -> None:
    envs = make([partial(CountingEnv, 1), partial(CountingEnv, 5)])
    envs.reset(seed=0)
    envs.step(ACTIONS)  # env 0 has ended, and would be reset in the next step
    observations, _ = envs.reset(options=None if mask is None else {"reset_mask": mask})
    assert observations[0].tolist() == [1, 0]
    observations, rewards, *_ = envs.step(ACTIONS)
    assert (observations[0].tolist(), rewards[0]) == ([1, 1], 1.0)


def test_a_reset_of_other_envs_leaves_the_pending_one(make: Make) -> None:
    envs = make([partial(CountingEnv, 1), partial(CountingEnv, 5)])
    envs.reset(seed=0)
    envs.step(ACTIONS)
    envs.reset(options={"reset_mask": np.array([False, True])})
    assert envs.step(ACTIONS)[0].tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("mask", "error", "word"),
    [
        ([True, False], TypeError, "list"),
        (True, TypeError, "bool"),
        (np.array([True]), ValueError, r"\(1,\)"),
        (np.array([[True, False]]), ValueError, r"\(1, 2\)"),
        (np.array([1, 0]), TypeError, "int64"),
        (np.array([False, False]), ValueError, "False"),
    ],
)
def test_a_mask_of_a_wrong_form_is_refused(make: Make, mask: Any, error: type[Exception], word: str) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    with pytest.raises(error, match=f"reset_mask.*{word}"):
        envs.reset(options={"reset_mask": mask})
    assert envs.step(ACTIONS)[0].tolist() == [[0, 1], [0, 1]]


def test_options_reach_every_env_and_stay_the_callers(make: Make) -> None:
    envs = make([ArgumentsEnv] * 3, num_workers=1)
    options = {"level": 3, "list": ["mine"]}
    _, infos = envs.reset(seed=0, options=options)
    assert infos["options"].tolist() == ["{'level': 3, 'list': ['mine']}"] * 3
    assert options == {"level": 3, "list": ["mine"]}


def test_the_mask_stays_in_the_callers_options_and_does_not_reach_the_envs(make: Make) -> None:
    envs = make([ArgumentsEnv] * 2)
    envs.reset(seed=0)
    mask = np.array([True, False])
    options = {"level": 3, "reset_mask": mask}
    for _ in range(2):
        _, infos = envs.reset(options=options)
        assert infos["options"].tolist() == ["{'level': 3}", None]
    assert_same_batch(options, {"level": 3, "reset_mask": np.array([True, False])})


def test_a_mask_alone_leaves_empty_options(make: Make) -> None:
    envs = make([ArgumentsEnv] * 2)
    envs.reset(seed=0)
    _, infos = envs.reset(options={"reset_mask": np.array([True, False])})
    assert infos["options"].tolist() == ["{}", None]


def test_no_options_are_none(make: Make) -> None:
    assert make([ArgumentsEnv] * 2).reset()[1]["options"].tolist() == ["None", "None"]
