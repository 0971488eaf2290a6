"""Infos are merged into one dict of arrays with masks, as Gymnasium lays them out, however they travelled."""

from __future__ import annotations

import enum
import functools
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
from parallel_envs.testing import InfoKind, ScriptedEnv, assert_same_batch
from parallel_envs.vector.infos import MOST_SCHEMAS, PICKLED, InfoWriter
from parallel_envs.vector.shared_arrays import INFO_BYTES
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ChosenInfoEnv, CountingEnv

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


class ChangingEnv(CountingEnv):
    """Tells one info after another, each made anew."""

    def __init__(self, *infos: Callable[[], dict[Any, Any]]) -> None:
        super().__init__(100)
        self.infos = infos

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], self.infos[(self.elapsed - 1) % len(self.infos)]()


def test_numbers_that_turn_into_something_else_or_vanish_stay_right(make: Make) -> None:
    infos: list[dict[str, Any]] = [
        {"a": 1},
        {"a": 2.5},
        {"a": "three"},
        {},
        {"b": 5},
        {"a": np.float32(6), "b": {"c": 7}},
    ]
    factories = [partial(ChangingEnv, *(partial(dict, info) for info in infos))] * 2
    envs, reference = make(factories), SyncVectorEnv(factories)
    for each in (envs, reference):
        each.reset(seed=0)
    for _ in range(2 * len(infos)):
        assert_same_batch(envs.step([0, 0])[4], reference.step([0, 0])[4])


def test_a_key_that_is_new_each_time_is_a_copy_and_one_that_cannot_travel_an_error_of_its_env(
    make_process: Make,
) -> None:
    envs = opened(make_process, [partial(ChangingEnv, lambda: {object(): 1.5}), CountingEnv], num_workers=1)
    for _ in range(3):
        infos: dict[Any, Any] = envs.step([0, 0])[4]
        assert [value.tolist() for key, value in infos.items() if not isinstance(key, str)] == [[1.5, 0.0]]
    envs = opened(make_process, [CountingEnv, partial(ChangingEnv, lambda: {threading.Lock(): 1.5})], num_workers=1)
    with pytest.raises(EnvError, match=r"(?s)^Env 1 raised .*lock"):
        envs.step([0, 0])


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


PAIRS: list[Any] = [
    ({}, {}),
    ({}, {"lives": 3}),
    ({"outer": {"a": 1.5}}, {"outer": {"b": "x"}}),
    ({"outer": {}}, {"outer": {}}),
    ({"goal": np.array([1, 2], np.float32)}, {"goal": np.array([3, 4], np.float32)}),
    ({"b": 1, "a": 2.0}, {"b": 3, "a": 4.0}),
    ({"b": 1}, {"a": 2, "b": 3}),
    ({"text": "x", "a": 1}, {"outer": {"y": 1, "x": "z"}, "text": "y"}),
    ({"outer": {"y": 1, "x": 2}}, {"outer": {"x": 3, "z": np.zeros(2)}}),
    ({"_hidden": 1, "a b": 2.0, "": 3, "final": True, "obs": 4, "episode": {"r": 1.0, "l": 3}},) * 2,
]


@functools.cache
def told_by_gymnasium(number: int, mode: str) -> list[Any]:
    factories = [partial(ChosenInfoEnv, info, info) for info in PAIRS[number]]
    with closing(AsyncVectorEnv(factories, context="fork", autoreset_mode=mode)) as envs:
        return [envs.reset(seed=0)[1], *(envs.step([0, 0])[4] for _ in range(3))]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_infos_are_merged_as_gymnasium_does_in_its_order_of_keys(make: Make, mode: str) -> None:
    for number, infos in enumerate(PAIRS):
        envs = make([partial(ChosenInfoEnv, info, info) for info in infos], autoreset_mode=mode, num_workers=1)
        told = [envs.reset(seed=0)[1], *(envs.step([0, 0])[4] for _ in range(3))]
        envs.close()
        expected = told_by_gymnasium(number, mode)
        assert_same_batch(told, expected)
        assert [order(one) for one in told] == [order(one) for one in expected]


def order(infos: dict[str, Any]) -> list[Any]:
    return [(key, order(value)) if isinstance(value, dict) else key for key, value in infos.items()]


def test_numeric_infos_move_no_more_bytes_through_pipes_than_none(make_process: Make) -> None:
    kinds = (np.bool_, np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64)
    numbers: dict[str, Any] = {"int": 1, "float": 1.5, "bool": True, "nested": {"x": 0.5}}
    numbers |= {f"np.{kind.__name__}": kind(1) for kind in kinds}
    moved = []
    for info in ({}, numbers, {"text": "x"}):
        envs = opened(make_process, [partial(ChosenInfoEnv, {}, info)] * 2, num_workers=1)
        envs.step([0, 0])  # now the form of its infos is known
        before = envs.stats()[0]["bytes"]
        envs.step([0, 0])
        moved.append(envs.stats()[0]["bytes"] - before)
    assert moved[0] == moved[1] < moved[2]


@pytest.mark.parametrize("wrap", [lambda info: info, lambda info: {"inner": info}], ids=["flat", "nested"])
def test_keys_that_never_come_again_do_not_pile_up(wrap: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    writer = InfoWriter(np.zeros((1, INFO_BYTES), np.uint8))
    numbers = [writer.write(0, wrap({f"seen_{number}": 1.0}))[0] for number in range(MOST_SCHEMAS + 50)]
    assert PICKLED not in numbers[:MOST_SCHEMAS]
    assert set(numbers[MOST_SCHEMAS:]) == {PICKLED}
    assert writer.write(0, wrap({"seen_7": 2.0})) == (numbers[7], None)  # those that are known go on as before
    assert len(writer._known) + len(writer._nested) == MOST_SCHEMAS


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


@pytest.mark.slow(sample=True)
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


def test_infos_as_a_list_name_task_and_episode_and_what_was_lost(make_process: Make) -> None:
    settings: dict[str, Any] = {"autoreset_mode": "SameStep", "task_setter": lambda env, task: None}
    envs = make_process([CountingEnv] * 2, infos_list=True, **settings)
    _, infos = envs.reset(seed=0, tasks=[7, 8])
    assert infos == [{"task_id": task, "episode_index": 0, "began": 0} for task in (7, 8)]
    for _ in range(3):
        infos = envs.step([0, 0])[4]
    assert [(info["episode_index"], info["final_info"]["episode_index"]) for info in infos] == [(1, 0)] * 2
    envs = opened(make_process, [CountingEnv] * 3, infos_list=True, on_failure="restart")
    os.kill(envs.stats()[1]["pid"], signal.SIGKILL)
    assert envs.step([0] * 3)[4] == [{"elapsed": 1}, {"began": 0, "worker_restarted": True}, {"elapsed": 1}]
    assert envs.reset(env_ids=[2])[1] == [{}, {}, {"began": 1}]  # those that were left alone have none
