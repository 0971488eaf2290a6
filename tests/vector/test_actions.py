"""Actions reach the envs as the caller gave them, and stay the caller's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make
from tests.vector.small_envs import ActionKeeper
from tests.word_space import WordSpace

BOX = spaces.Box(-1, 1, (2,), np.float32)

# Each is a space, and batches of two actions as users give them.
BATCHES: dict[str, tuple[spaces.Space[Any], list[Any]]] = {
    "float32": (BOX, [np.array([[0, 1], [2, 3]], np.float32)]),
    "float64 to a float32 box": (BOX, [np.array([[0.1, 1], [2, 3]]), np.array([[0.7, 1], [2, 3]])]),
    "integers to a float32 box": (BOX, [np.array([[0, 1], [2, 3]])]),
    "dtypes that change": (BOX, [np.array([[0, 1], [2, 3]], np.float32), np.array([[0.1, 1], [2, 3]])]),
    "fortran order": (BOX, [np.asfortranarray(np.array([[0, 1], [2, 3]], np.float32))]),
    "strided": (BOX, [np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]]),
    "int64": (spaces.Discrete(4), [np.array([1, 2]), np.array([3, 0])]),
    "int32 to a discrete space": (spaces.Discrete(4), [np.array([1, 2], np.int32)]),
    "numbers": (spaces.Box(-1, 1, ()), [np.array([0.5, 1], np.float32)]),
    "empty": (spaces.Box(-1, 1, (0,)), [np.zeros((2, 0), np.float32)]),
    "float16": (spaces.Box(-1, 1, (1,), np.float16), [np.array([[0.5], [1]], np.float16)]),
    "multi discrete": (spaces.MultiDiscrete([2, 3]), [np.array([[1, 2], [0, 1]])]),
    "a dict of one": (spaces.Dict(move=BOX), [{"move": np.zeros((2, 2), np.float32)}]),
    "a tuple of one": (spaces.Tuple([spaces.Discrete(4)]), [(np.array([1, 2]),)]),
    "a tuple in a tuple": (spaces.Tuple([spaces.Tuple([BOX])]), [((np.zeros((2, 2), np.float32),),)]),
    "text": (spaces.Text(5), [("go", "stop"), ("", "left")]),
    "sequences": (spaces.Sequence(spaces.Discrete(3)), [((1, 2), ()), ((), (0,))]),
    "words": (WordSpace(), [((), ("abc", "cab"))]),
    "one of": (spaces.OneOf([spaces.Discrete(2), spaces.Text(3)]), [((0, 1), (1, "ab"))]),
    "dict": (
        spaces.Dict(move=spaces.Discrete(3), say=spaces.Text(4)),
        [{"move": np.array([1, 2]), "say": ("hi", "")}, {"move": np.array([0, 0], np.int8), "say": ("a", "b")}],
    ),
    "tuple": (
        spaces.Tuple([BOX, spaces.Discrete(3)]),
        [
            (np.array([[0, 1], [2, 3]], np.float32), np.array([1, 2])),
            (np.array([[0.1, 1], [2, 3]]), np.array([1, 2], np.int8)),
        ],
    ),
}


# What users write by hand, and the same as arrays.
BY_HAND: dict[str, tuple[spaces.Space[Any], Any, Any]] = {
    "nested lists": (BOX, [[0.1, 1.0], [2.0, 3.0]], np.array([[0.1, 1], [2, 3]])),
    "a list of arrays": (
        BOX,
        [np.array([0, 1], np.float32), np.array([2, 3], np.float32)],
        np.array([[0, 1], [2, 3]], np.float32),
    ),
    "a list of ints": (spaces.Discrete(4), [1, 2], np.array([1, 2])),
    "a tuple of ints": (spaces.Discrete(4), (1, 2), np.array([1, 2])),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_envs_get_the_actions_gymnasium_gives_them(make: Make, name: str, num_workers: int) -> None:
    space, batches = BATCHES[name]
    factories = [partial(ActionKeeper, space)] * 2
    envs, reference = make(factories, num_workers=num_workers), SyncVectorEnv(factories)
    for each in (envs, reference):
        each.reset(seed=0)
        for actions in batches:
            each.step(actions)
    assert_same_batch(envs.call("kept"), reference.call("kept"))
    assert envs.call("kinds") == reference.call("kinds")  # pickle makes other types of some numbers


@pytest.mark.parametrize("name", BY_HAND)
def test_actions_written_by_hand_are_arrays_to_the_envs(make: Make, name: str) -> None:
    space, by_hand, array = BY_HAND[name]
    kept = []
    for actions in (by_hand, array):
        envs = make([partial(ActionKeeper, space)] * 2)
        envs.reset(seed=0)
        envs.step(actions)
        kept.append(envs.call("kept"))
    assert_same_batch(kept[0], kept[1])


def test_an_env_that_keeps_its_actions_keeps_them_unchanged(make: Make) -> None:
    envs = make([partial(ActionKeeper, BOX)] * 2, num_workers=1)
    envs.reset(seed=0)
    actions = np.zeros((2, 2), np.float32)
    for number in range(4):
        actions[:] = number  # the caller reuses the array, as training loops do
        envs.step(actions)
    expected = [np.full(2, number, np.float32) for number in range(4)]
    assert_same_batch(envs.call("kept"), (expected, expected))


def test_an_env_that_writes_into_its_action_does_not_reach_the_callers(make: Make) -> None:
    envs = make([partial(ActionKeeper, BOX, scribbles=True)] * 2)
    envs.reset(seed=0)
    actions = np.zeros((2, 2), np.float32)
    envs.step(actions)
    assert_same_batch(actions, np.zeros((2, 2), np.float32))


def test_an_action_given_asynchronously_may_be_overwritten_at_once(make_parallel: Make) -> None:
    envs = make_parallel([partial(ActionKeeper, BOX)] * 2)
    envs.reset(seed=0)
    actions = np.ones((2, 2), np.float32)
    envs.step_async(actions)
    actions[:] = 9
    envs.step_wait()
    assert_same_batch(envs.call("kept"), ([np.ones(2, np.float32)], [np.ones(2, np.float32)]))


# A space, one action for each of two envs, and the same in Gymnasium's batched form.
BY_ENV: dict[str, tuple[spaces.Space[Any], list[Any], Any]] = {
    "dict": (
        spaces.Dict(move=BOX, say=spaces.Text(4)),
        [{"move": np.array([0, 1], np.float32), "say": "hi"}, {"say": "", "move": np.array([2, 3], np.float32)}],
        {"move": np.array([[0, 1], [2, 3]], np.float32), "say": ("hi", "")},
    ),
    "a dict of fixed parts": (
        spaces.Dict(a=spaces.Discrete(3), b=BOX),
        [{"a": 1, "b": [0.5, 1]}, {"a": 2, "b": [2, 3]}],
        {"a": np.array([1, 2]), "b": np.array([[0.5, 1], [2, 3]])},
    ),
    "tuple": (
        spaces.Tuple([BOX, spaces.Discrete(3)]),
        [(np.array([0, 1], np.float32), 1), (np.array([2, 3], np.float32), 2)],
        (np.array([[0, 1], [2, 3]], np.float32), np.array([1, 2])),
    ),
    "nested": (
        spaces.Tuple([spaces.Dict(a=spaces.Discrete(3)), spaces.Tuple([spaces.Discrete(2)])]),
        [({"a": 1}, (0,)), ({"a": 2}, (1,))],
        ({"a": np.array([1, 2])}, (np.array([0, 1]),)),
    ),
}


@pytest.mark.parametrize("name", BY_ENV)
def test_a_list_with_one_action_for_each_env_is_the_batched_form(make: Make, name: str) -> None:
    space, by_env, batched = BY_ENV[name]
    kept = []
    for actions in (by_env, batched):
        envs = make([partial(ActionKeeper, space)] * 2)
        envs.reset(seed=0)
        envs.step(actions)
        envs.send(actions, env_ids=[1, 0])
        envs.recv(min_envs=2)
        kept.append(envs.call("kept"))
    assert_same_batch(kept[0], kept[1])


def test_a_list_of_arrays_is_the_batched_form_of_a_tuple_space(make: Make) -> None:
    envs = make([partial(ActionKeeper, spaces.Tuple([spaces.Discrete(4), spaces.Discrete(4)]))] * 2)
    envs.reset(seed=0)
    for actions in ([np.array([1, 2]), np.array([3, 0])], ((1, 2), (3, 0)), [(1, 3), (2, 0)]):
        envs.step(actions)
    assert envs.call("kept") == ([(1, 3)] * 3, [(2, 0)] * 3)


def test_an_action_in_a_list_that_lacks_a_part_is_named(make: Make) -> None:
    envs = make([partial(ActionKeeper, spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(3)))] * 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"^Action 1 has no part\['b'\], .*: \{'a': 1\}"):
        envs.step([{"a": 1, "b": 1}, {"a": 1}])
    with pytest.raises(ValueError, match=r"^Action 1 has no part\['a'\], .*: None"):
        envs.step([{"a": 1, "b": 1}, None])
    with pytest.raises(ValueError, match=r"^1 action was given for 2 environments \(envs 0, 1\): .* one for each"):
        envs.step([{"a": 1, "b": 1}])
    with pytest.raises(ValueError, match=r"^0 actions were given for 2 env"):
        envs.step([])
    with pytest.raises(ValueError, match=r"^2 actions were given for 1 environments \(env 1\): "):
        envs.send([{"a": 1, "b": 1}] * 2, env_ids=[1])
    assert envs.call("kept") == ([], [])
