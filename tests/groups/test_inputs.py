"""Inputs that make no sense are told, and nothing is played."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups import BadTurn, EnvStateManager
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import configured, inputs


@pytest.fixture
def manager() -> Iterator[EnvStateManager]:
    with EnvStateManager(configured({"Talk": 1, "Breaking": 1}, use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({1: ["please"], 2: ["raise"]}))
        yield manager


class Row(dict[str, Any]):
    """A row of a table that is read as it goes by: nothing in it can be had again."""

    def __getitem__(self, name: str) -> Any:
        return self.pop(name)


class Table(Sequence[dict[str, Any]]):
    """All rows of it are one dict, filled anew for each."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows, self._row = rows, dict[str, Any]()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        self._row.update(self._rows[index])
        return self._row


@pytest.mark.parametrize("odd", [lambda rows: list(map(Row, rows)), Table])
@pytest.mark.parametrize("in_workers", [True, False])
def test_what_is_given_is_read_once_and_at_once(in_workers: bool, odd: Callable[[Any], Any]) -> None:
    told = []
    for way in (list, odd):
        with EnvStateManager(configured({"Breaking": 2}, max_workers=1, use_multiprocessing=in_workers)) as manager:
            manager.reset(seed=1)
            rows = inputs({env: ["raise" if env == 1 else "right"] for env in range(4)})
            told.append([{**entry, "failure": None} for entry in manager.step(way(rows))])
            for entry in told[-1]:
                entry["history"][-1].pop("failure", None)
    assert_same_batch(told[1], told[0])


class Name(str, enum.Enum):  # noqa: UP042  # a StrEnum has a `str()` of its own
    RIGHT = "right"


@pytest.mark.parametrize("kind", [np.str_, Name])
def test_strings_of_other_types_mean_what_they_say(kind: Callable[[str], str]) -> None:
    with EnvStateManager(configured({"Walk": 1}, use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        (entry, *_) = manager.step(inputs({0: [kind("right")]}))
        assert (entry["penalty"], len(entry["history"][0]["actions"])) == (0.0, 1)


GOOD = inputs({0: ["a"]})[0]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({**GOOD, "env_id": 4}, "Input 1 is for env 4, and there are envs 0 to 3."),
        ({**GOOD, "env_id": -1}, "Input 1 is for env -1"),
        ({**GOOD, "env_id": "0"}, "Input 1 has env_id='0', which is no whole number."),
        ({**GOOD, "env_id": True}, "Input 1 has env_id=True"),
        ({**GOOD, "env_id": 1}, "Input 1 is for env 1, whose episode is over."),
        ({**GOOD, "env_id": 2}, "Input 1 is for env 2, which has failed. Leave out entries with a `failure`."),
        (GOOD, "Input 1 is a second one for env 0."),
        ({**GOOD, "env_id": 3, "actions": "right"}, "Input 1 (env 3) has actions='right'. Give a list of strings"),
        ({**GOOD, "env_id": 3, "actions": None}, "Input 1 (env 3) has actions=None."),
        ({**GOOD, "env_id": 3, "actions": ["a", 1]}, "Input 1 (env 3) has the action 1, of type int."),
        ("right", "Input 1 is 'right'. Give a dict"),
        ({key: GOOD[key] for key in GOOD if key != "actions"}, "Input 1 has no `actions`."),
        ({key: GOOD[key] for key in GOOD if key != "env_id"}, "Input 1 has no `env_id`."),
        (
            {("llm_respons" if key == "llm_response" else key): GOOD[key] for key in GOOD},
            "Input 1 has no `llm_response`. It has `llm_respons`.",
        ),
    ],
)
def test_nothing_is_played_of_inputs_with_a_mistake(manager: EnvStateManager, bad: Any, text: str) -> None:
    before = manager.get_rollout_states()
    with pytest.raises(BadTurn) as caught:
        manager.step([GOOD, bad])
    assert text in str(caught.value)
    assert caught.value.position == 1
    assert_same_batch(manager.get_rollout_states(), before)


@pytest.mark.parametrize("given", ["right", GOOD, None, 3])
def test_inputs_are_a_list(manager: EnvStateManager, given: Any) -> None:
    with pytest.raises(BadTurn, match="Give a list of dicts with `env_id`, `llm_response`"):
        manager.step(given)


def test_numbers_of_any_kind_name_an_env(manager: EnvStateManager) -> None:
    assert manager.step([{**GOOD, "env_id": np.int64(0), "actions": ("a", "b")}])[0]["env_id"] == 0


def test_there_must_be_an_episode() -> None:
    with EnvStateManager(configured({"Talk": 1})) as manager:
        manager.use_multiprocessing = False
        for call in (lambda: manager.step([]), manager.render, manager.metrics):
            with pytest.raises(BadTurn, match="Call reset"):
                call()


class Once(Sequence[dict[str, Any]]):
    """Its rows are there until they have been read."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self._rows:
            yield self._rows.pop(0)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


@pytest.mark.parametrize("kind", [list, Once])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([{**GOOD, "env_id": 99}, {"env_id": 0}], "Input 0 is for env 99"),
        ([GOOD, {"env_id": 3}, GOOD], "Input 1 has no `llm_response`"),
        ([GOOD, GOOD, {"env_id": 3}], "Input 2 has no `llm_response`"),
    ],
)
def test_of_several_mistakes_the_first_is_told(manager: EnvStateManager, given: Any, text: str, kind: Any) -> None:
    with pytest.raises(BadTurn) as caught:
        manager.step(kind(given))
    assert text in str(caught.value)
