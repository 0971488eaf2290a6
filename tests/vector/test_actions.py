"""Actions reach the envs as the caller gave them, and stay the caller's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ActionKeeper
from tests.word_space import WordSpace

BOX = spaces.Box(-1, 1, (2,), np.float32)
FOUR = np.array([[0, 1], [2, 3]], np.float32)
TENTHS = np.array([[0.1, 1], [2, 3]])
MOVE_AND_SAY = spaces.Dict(move=spaces.Discrete(3), say=spaces.Text(4))

# Each is a space, and batches of two actions as users give them.
BATCHES: dict[str, tuple[spaces.Space[Any], list[Any]]] = {
    "float32": (BOX, [FOUR]),
    "float64 to a float32 box": (BOX, [TENTHS, np.array([[0.7, 1], [2, 3]])]),
    "integers to a float32 box": (BOX, [np.array([[0, 1], [2, 3]])]),
    "dtypes that change": (BOX, [FOUR, TENTHS]),
    "fortran order": (BOX, [np.asfortranarray(FOUR)]),
    "strided": (BOX, [np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]]),
    "int32 to a discrete space": (spaces.Discrete(4), [np.array([1, 2], np.int32)]),
    "numbers": (spaces.Box(-1, 1, ()), [np.array([0.5, 1], np.float32)]),
    "empty": (spaces.Box(-1, 1, (0,)), [np.zeros((2, 0), np.float32)]),
    "float16": (spaces.Box(-1, 1, (1,), np.float16), [np.array([[0.5], [1]], np.float16)]),
    "a dict of one": (spaces.Dict(move=BOX), [{"move": np.zeros((2, 2), np.float32)}]),
    "a tuple in a tuple": (spaces.Tuple([spaces.Tuple([BOX])]), [((np.zeros((2, 2), np.float32),),)]),
    "text": (spaces.Text(5), [("go", "stop"), ("", "left")]),
    "sequences": (spaces.Sequence(spaces.Discrete(3)), [((1, 2), ()), ((), (0,))]),
    "words": (WordSpace(), [((), ("abc", "cab"))]),
    "one of": (spaces.OneOf([spaces.Discrete(2), spaces.Text(3)]), [((0, 1), (1, "ab"))]),
    "dict": (
        MOVE_AND_SAY,
        [{"move": np.array([1, 2]), "say": ("hi", "")}, {"move": np.array([0, 0], np.int8), "say": ("a", "b")}],
    ),
    "tuple": (spaces.Tuple([BOX, spaces.Discrete(3)]), [(FOUR, np.array([1, 2])), (TENTHS, np.array([1, 2], np.int8))]),
}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(("backend", "num_workers"), [("process", 1), ("process", 2), ("thread", 2), ("serial", 1)])
def test_envs_get_the_actions_gymnasium_gives_them(
    make_process: Make, name: str, backend: str, num_workers: int
) -> None:
    space, batches = BATCHES[name]
    factories = [partial(ActionKeeper, space)] * 2
    envs = make_process(factories, backend=backend, num_workers=num_workers)
    reference = SyncVectorEnv(factories)
    for each in (envs, reference):
        each.reset(seed=0)
        for actions in batches:
            each.step(actions)
    assert_same_batch(envs.call("kept"), reference.call("kept"))
    assert envs.call("kinds") == reference.call("kinds")  # pickle makes other types of some numbers


# A space, two actions as users write them by hand, and the same in Gymnasium's batched form.
BY_HAND: dict[str, tuple[spaces.Space[Any], Any, Any]] = {
    "nested lists": (BOX, [[0.1, 1.0], [2.0, 3.0]], TENTHS),
    "a list of arrays": (BOX, [*FOUR], FOUR),
    "a tuple of ints": (spaces.Discrete(4), (1, 2), np.array([1, 2])),
    "dicts": (
        spaces.Dict(move=BOX, say=spaces.Text(4)),
        [{"move": FOUR[0], "say": "hi"}, {"say": "", "move": FOUR[1]}],
        {"move": FOUR, "say": ("hi", "")},
    ),
    "dicts of fixed parts": (
        spaces.Dict(a=spaces.Discrete(3), b=BOX),
        [{"a": 1, "b": [0.5, 1]}, {"a": 2, "b": [2, 3]}],
        {"a": np.array([1, 2]), "b": np.array([[0.5, 1], [2, 3]])},
    ),
    "tuples": (spaces.Tuple([BOX, spaces.Discrete(3)]), [(FOUR[0], 1), (FOUR[1], 2)], (FOUR, np.array([1, 2]))),
    "nested": (
        spaces.Tuple([spaces.Dict(a=spaces.Discrete(3)), spaces.Tuple([spaces.Discrete(2)])]),
        [({"a": 1}, (0,)), ({"a": 2}, (1,))],
        ({"a": np.array([1, 2])}, (np.array([0, 1]),)),
    ),
    "a list of arrays for a tuple": (
        spaces.Tuple([spaces.Discrete(4)] * 2),
        [np.array([1, 2]), np.array([3, 0])],
        (np.array([1, 2]), np.array([3, 0])),
    ),
    "a list of tuples": (spaces.Tuple([spaces.Discrete(4)] * 2), [(1, 3), (2, 0)], ((1, 2), (3, 0))),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_actions_written_by_hand_are_those_of_the_batched_form(make: Make, name: str) -> None:
    space, by_hand, batched = BY_HAND[name]
    kept = []
    for actions in (by_hand, batched):
        envs = opened(make, [partial(ActionKeeper, space)] * 2, num_workers=1)
        envs.step(actions)
        envs.send(actions, env_ids=[1, 0])
        envs.recv(min_envs=2)
        kept.append(envs.call("kept"))
    assert_same_batch(kept[0], kept[1])


def test_neither_side_sees_what_the_other_writes_into_an_action(make: Make) -> None:
    envs = opened(make, [partial(ActionKeeper, BOX), partial(ActionKeeper, BOX, scribbles=True)], num_workers=1)
    actions = np.zeros((2, 2), np.float32)
    for number in range(4):
        actions[:] = number  # the caller reuses the array, as training loops do
        envs.step_async(actions)
        actions[:] = 9
        envs.step_wait()
        assert (actions == 9).all()
    kept, scribbled = envs.call("kept")
    assert_same_batch(kept, [np.full(2, number, np.float32) for number in range(4)])
    assert (np.array(scribbled) == 77).all()
