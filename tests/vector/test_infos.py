"""Infos are merged into one dict of arrays with masks, as Gymnasium lays them out, however they travelled."""

from __future__ import annotations

import enum
import os
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from parallel_envs.errors import EnvError
from parallel_envs.testing import InfoKind, ScriptedEnv, assert_same_batch, check_vector_env
from parallel_envs.vector.infos import MOST_SCHEMAS, PICKLED, InfoWriter
from parallel_envs.vector.shared_arrays import INFO_BYTES
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ChosenInfoEnv, CountingEnv

YES = np.array([True, True])


@pytest.mark.slow(sample=True)  # all of them together: test_trajectories.py
@pytest.mark.parametrize("kind", InfoKind)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_infos_of_every_kind_are_laid_out_as_gymnasiums(backend: str, kind: InfoKind, mode: str) -> None:
    make = partial(ScriptedEnv, infos=[kind], reuse_buffers=True)
    check_vector_env(make, 5, 30, num_envs=3, num_workers=2, backend=backend, autoreset_mode=mode)


LAYOUTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "none": ([{}, {}], {}),
    "masked": ([{}, {"lives": 3}], {"lives": np.array([0, 3]), "_lives": np.array([False, True])}),
    "nested": (
        [{"outer": {"a": 1.5}}, {"outer": {"b": "x"}}],
        {
            "outer": {
                "a": np.array([1.5, 0.0]),
                "_a": np.array([True, False]),
                "b": np.array([None, "x"], dtype=object),
                "_b": np.array([False, True]),
            },
            "_outer": YES,
        },
    ),
    "empty nested": ([{"outer": {}}, {"outer": {}}], {"outer": {}, "_outer": YES}),
    "arrays": (
        [{"goal": np.array([1, 2], np.float32)}, {"goal": np.array([3, 4], np.float32)}],
        {"goal": np.array([[1, 2], [3, 4]], np.float32), "_goal": YES},
    ),
    "numbers": (
        [{"x": 1.5, "count": 2, "done": True}, {"x": 2.5, "count": 3, "done": False}],
        {"x": np.array([1.5, 2.5]), "count": np.array([2, 3]), "done": np.array([True, False])}
        | {"_x": YES, "_count": YES, "_done": YES},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_infos_are_merged_with_masks(make: Make, name: str) -> None:
    infos, expected = LAYOUTS[name]
    envs = opened(make, [partial(ChosenInfoEnv, {}, info) for info in infos], num_workers=1)
    assert_same_batch(envs.step([0, 0])[4], expected)


VALUES: list[tuple[Any, Any]] = [
    *((1, 2.75), (2.75, 1), (True, 3), (np.float32(0.1), 0.1), (np.uint8(7), 3), (None, 0.5), ("text", 1)),
    *((np.bool_(True), np.bool_(False)), (np.float64("nan"), -0.0), (2**40, -(2**40)), (1 + 2j, 3j), ([1, 2], [3])),
    *((np.str_("a"), np.str_("b")), (np.array(["ab"]), np.array(["cd"]))),
]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_values_take_the_type_gymnasium_gives_them(make: Make, num_workers: int) -> None:
    infos: list[dict[str, Any]] = [
        {f"value {number}": pair[env] for number, pair in enumerate(VALUES)} for env in (0, 1)
    ]
    factories = [partial(ChosenInfoEnv, {}, info) for info in infos]
    envs, reference = make(factories, num_workers=num_workers), SyncVectorEnv(factories)
    for each in (envs, reference):
        each.reset(seed=0)
    for _ in range(2):
        assert_same_batch(envs.step([0, 0])[4], reference.step([0, 0])[4])


def test_numbers_that_turn_into_something_else_on_the_way_stay_right(make: Make) -> None:
    infos: list[dict[str, Any]] = [
        {"a": 1},
        {"a": 2.5},
        {"a": "three"},
        {},
        {"b": 5},
        {"a": np.float32(6), "b": {"c": 7}},
    ]

    class ChangingEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, _, _, _ = super().step(action)
            return observation, reward, False, False, infos[self.elapsed - 1]

    envs, reference = make([ChangingEnv] * 2), SyncVectorEnv([ChangingEnv] * 2)
    for each in (envs, reference):
        each.reset(seed=0)
    for _ in infos:
        assert_same_batch(envs.step([0, 0])[4], reference.step([0, 0])[4])


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_keys_with_any_name(make: Make) -> None:
    info = {"_hidden": 1, "a b": 2.0, "": 3, "final": True, "obs": 4, "episode": {"r": 1.0, "l": 3}}
    factories, mode = [partial(ChosenInfoEnv, info, info)] * 2, "SameStep"
    envs, reference = make(factories, autoreset_mode=mode), SyncVectorEnv(factories, autoreset_mode=mode)
    assert_same_batch(envs.reset(seed=0), reference.reset(seed=0))
    for _ in range(3):
        assert_same_batch(envs.step([0, 0])[4], reference.step([0, 0])[4])


class Label:
    """A key that equals others by its name. Each process shows it differently."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Label {id(self)}"

    def __str__(self) -> str:
        return self.name


class Shade(enum.Enum):
    RED = 1


KEYS: list[Any] = [Label("a"), Shade.RED, frozenset("abcdef"), 3, 2.5, True, None, b"b", np.int64(4), ("t", 1), Label]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_keys_that_are_no_strings(make: Make, num_workers: int) -> None:
    infos: list[dict[Any, Any]] = [{key: 1.5} for key in KEYS] + [{"x": 1}] + [{key: 2.5} for key in KEYS]
    size = len(infos)
    envs = opened(make, [partial(ChosenInfoEnv, {}, info) for info in infos], num_workers=num_workers)
    for _ in range(3):
        told: dict[Any, Any] = envs.step([0] * size)[4]
        for place, key in enumerate(KEYS):
            expected = [0.0] * size
            expected[place], expected[place + len(KEYS) + 1] = 1.5, 2.5
            assert told[key].tolist() == expected
        assert told["x"].tolist() == [int(place == len(KEYS)) for place in range(size)]


class KeyEnv(CountingEnv):
    """Has a new key in each info."""

    def __init__(self, key: Callable[[], Any]) -> None:
        super().__init__()
        self.key = key

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {self.key(): 1.5}


def test_a_key_that_is_new_each_time_comes_as_a_copy(make: Make) -> None:
    envs = opened(make, [partial(KeyEnv, object), CountingEnv], num_workers=1)
    for _ in range(3):
        infos: dict[Any, Any] = envs.step([0, 0])[4]
        assert [value.tolist() for key, value in infos.items() if not isinstance(key, str)] == [[1.5, 0.0]]


def test_a_key_that_cannot_travel_is_an_error_of_its_env(make_process: Make) -> None:
    envs = opened(make_process, [CountingEnv, partial(KeyEnv, threading.Lock)], num_workers=1)
    with pytest.raises(EnvError, match=r"(?s)^Env 1 raised .*lock"):
        envs.step([0, 0])


ORDERS: list[tuple[dict[str, Any], ...]] = [
    ({"b": 1, "a": 2.0}, {"b": 3, "a": 4.0}),
    ({"b": 1}, {"a": 2, "b": 3}),
    ({"text": "x", "a": 1}, {"outer": {"y": 1, "x": "z"}, "text": "y"}),
    ({"outer": {"y": 1, "x": 2}}, {"outer": {"x": 3, "z": np.zeros(2)}}),
]


@pytest.mark.parametrize("infos", ORDERS, ids=range(len(ORDERS)))
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_keys_come_in_gymnasiums_order(make: Make, infos: Any, mode: str) -> None:
    factories = [partial(ChosenInfoEnv, info, info) for info in infos]
    envs = make(factories, autoreset_mode=mode)
    with closing(AsyncVectorEnv(factories, context="fork", autoreset_mode=mode)) as reference:
        assert order(envs.reset(seed=0)[1]) == order(reference.reset(seed=0)[1])
        for _ in range(3):
            assert order(envs.step([0, 0])[4]) == order(reference.step([0, 0])[4])


def order(infos: dict[str, Any]) -> list[Any]:
    return [(key, order(value)) if isinstance(value, dict) else key for key, value in infos.items()]


# ---- the way through shared memory ----------------------------------------------------------------------------------


def bytes_of_a_step(make: Make, info: dict[str, Any]) -> int:
    """What a step moves through pipes once the form of its infos is known."""
    with make([partial(ChosenInfoEnv, {}, info)] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        before = envs.stats()[0]["bytes"]
        envs.step([0, 0])
        return int(envs.stats()[0]["bytes"] - before)


def test_numeric_infos_move_no_more_bytes_through_pipes_than_none(make_process: Make) -> None:
    kinds = (np.bool_, np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64)
    numbers = {
        "int": 1,
        "float": 1.5,
        "bool": True,
        "nested": {"x": 0.5},
        **{f"np.{kind.__name__}": kind(1) for kind in kinds},
    }
    assert bytes_of_a_step(make_process, numbers) == bytes_of_a_step(make_process, {})
    assert bytes_of_a_step(make_process, {"text": "x"}) > bytes_of_a_step(make_process, {})


def test_a_numeric_key_that_vanishes_leaves_nothing_stale(make_process: Make) -> None:
    class VanishingEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, _, _, _ = super().step(action)
            return observation, reward, False, False, {"early": 9} if self.elapsed < 3 else {}

    envs = make_process([VanishingEnv] * 2)
    envs.reset(seed=0)
    infos = [envs.step([0, 0])[4] for _ in range(4)]
    assert [set(each) for each in infos] == [{"early", "_early"}] * 2 + [set()] * 2


@pytest.mark.parametrize("wrap", [lambda info: info, lambda info: {"inner": info}], ids=["flat", "nested"])
def test_keys_that_never_come_again_do_not_pile_up(wrap: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    writer = InfoWriter(np.zeros((1, INFO_BYTES), np.uint8))
    numbers = [writer.write(0, wrap({f"seen_{number}": 1.0}))[0] for number in range(MOST_SCHEMAS + 50)]
    assert PICKLED not in numbers[:MOST_SCHEMAS]
    assert set(numbers[MOST_SCHEMAS:]) == {PICKLED}
    assert writer.write(0, wrap({"seen_7": 2.0})) == (numbers[7], None)  # those that are known go on as before
    assert len(writer._known) + len(writer._nested) == MOST_SCHEMAS


# ---- one dict an env -----------------------------------------------------------------------------

ALL_KINDS = partial(ScriptedEnv, infos=list(InfoKind), episode_lengths=(3, 5))


def plain_infos(mode: str, steps: int) -> list[list[dict[str, Any]]]:
    """The infos of three envs by themselves: of a reset, and of each step."""
    envs = [ALL_KINDS() for _ in range(3)]
    told = [[env.reset(seed=index)[1] for index, env in enumerate(envs)]]
    over = [False] * 3
    for _ in range(steps):
        row = []
        for index, env in enumerate(envs):
            if over[index]:
                info, over[index] = env.reset()[1], False
            else:
                observation, _, terminated, truncated, info = env.step(1)
                over[index] = terminated or truncated
                if over[index] and mode == "SameStep":
                    info, over[index] = {"final_info": info, "final_obs": observation, **env.reset()[1]}, False
            row.append(info)
        told.append(row)
    return told


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_infos_as_a_list_are_those_of_the_envs(make: Make, mode: str, num_workers: int) -> None:
    settings: dict[str, Any] = {"autoreset_mode": mode, "num_workers": num_workers, "infos_list": True}
    envs, sent = make([ALL_KINDS] * 3, **settings), make([ALL_KINDS] * 3, **settings)
    expected, actions = plain_infos(mode, 12), np.ones(3, int)
    sent.reset(seed=0)
    assert_same_batch(envs.reset(seed=0)[1], expected[0])
    for row in expected[1:]:
        infos = envs.step(actions)[4]
        assert isinstance(infos, list)
        assert_same_batch(infos, row)
        sent.send(actions)
        env_ids, *_, infos = sent.recv(3)
        assert_same_batch(infos, [row[env] for env in env_ids])


def test_envs_that_a_reset_left_alone_have_empty_infos(make: Make) -> None:
    envs = make([CountingEnv] * 3, infos_list=True)
    assert envs.reset(seed=0)[1] == [{"began": 0}] * 3
    envs.step(np.zeros(3, int))
    assert envs.reset(env_ids=[2])[1] == [{}, {}, {"began": 1}]


def test_infos_as_a_list_name_task_and_episode(make: Make) -> None:
    settings: dict[str, Any] = {"autoreset_mode": "SameStep", "task_setter": lambda env, task: None}
    envs = make([CountingEnv] * 2, infos_list=True, **settings)
    _, infos = envs.reset(seed=0, tasks=[7, 8])
    assert infos == [{"task_id": info["task_id"], "episode_index": 0, "began": 0} for info in infos]
    batch = make([CountingEnv] * 2, **settings)
    assert batch.reset(seed=0, tasks=[7, 8])[1]["task_id"].tolist() == [info["task_id"] for info in infos]
    for _ in range(3):
        infos = envs.step([0, 0])[4]
    assert [(info["episode_index"], info["final_info"]["episode_index"]) for info in infos] == [(1, 0)] * 2


def test_a_row_that_was_lost_says_so_in_its_own_dict(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 2, infos_list=True, on_failure="restart")
    envs.reset(seed=0)
    os.kill(envs.stats()[1]["pid"], signal.SIGKILL)
    assert envs.step([0, 0])[4] == [{"elapsed": 1}, {"began": 0, "worker_restarted": True}]
