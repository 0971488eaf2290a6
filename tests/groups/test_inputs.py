"""Inputs that make no sense are told, and nothing is played."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups import BadTurn, EnvStateManager
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import begun, configured, inputs


@pytest.fixture
def manager() -> Iterator[EnvStateManager]:
    with begun({"Talk": 1, "Breaking": 1}) as manager:
        manager.step(inputs({1: ["please"], 2: ["raise"]}))
        yield manager


class Name(str, enum.Enum):  # noqa: UP042  # a StrEnum has a `str()` of its own
    RIGHT = "right"


def test_strings_and_numbers_of_other_types_mean_what_they_say() -> None:
    for kind in (np.str_, Name):
        with begun({"Walk": 1}) as manager:
            (entry, *_) = manager.step([{**GOOD, "env_id": np.int64(0), "actions": (kind("right"),)}])
            assert (entry["env_id"], entry["penalty"], len(entry["history"][0]["actions"])) == (0, 0.0, 1)


GOOD = inputs({0: ["a"]})[0]


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


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
        ({**GOOD, "env_id": 3, "actions": ["a", 1]}, "Input 1 (env 3) has actions=['a', 1]."),
        ("right", "Input 1 is 'right'. Give a dict"),
        (without("actions"), "Input 1 has no `actions`."),
        (without("env_id"), "Input 1 has no `env_id`."),
        ({**without("llm_response"), "llm_respons": ""}, "Input 1 has no `llm_response`. It has `llm_respons`."),
    ],
)
def test_nothing_is_played_of_inputs_with_a_mistake_and_the_first_is_told(
    manager: EnvStateManager, bad: Any, text: str
) -> None:
    before = manager.get_rollout_states()
    for more in ([], [GOOD]) if bad is GOOD else ([], [GOOD], [{"env_id": 3}]):
        with pytest.raises(BadTurn) as caught:
            manager.step([GOOD, bad, *more])
        assert text in str(caught.value)
        assert caught.value.position == 1
    assert_same_batch(manager.get_rollout_states(), before)


def test_inputs_are_a_list(manager: EnvStateManager) -> None:
    for given in ("right", GOOD, None, 3):
        with pytest.raises(BadTurn, match="Give a list of dicts with `env_id`, `llm_response`"):
            manager.step(given)  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(("seed", "kind"), [(-1, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_seed_that_is_none_changes_nothing(manager: EnvStateManager, seed: Any, kind: type[Exception]) -> None:
    before = manager.get_rollout_states()
    with pytest.raises(kind, match="Give a whole number from 0 up"):
        manager.reset(seed)
    assert_same_batch(manager.get_rollout_states(), before)


def test_there_must_be_an_episode() -> None:
    with EnvStateManager(configured({"Talk": 1})) as manager:
        manager.use_multiprocessing = False
        for call in (lambda: manager.step([]), manager.render, manager.metrics):
            with pytest.raises(BadTurn, match="Call reset"):
                call()
