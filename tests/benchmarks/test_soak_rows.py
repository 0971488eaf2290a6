from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.soak.model import Row, row_of, rows_of_reset, rows_of_step
from parallel_envs.vector.infos import add_info

ENV_INFOS: list[dict[str, Any]] = [
    {},
    {"count": 3, "inner": {"level": 2.5}},
    {"note": "hello", "final_info": {}, "final_obs": np.array([1, 2])},
    {"final_info": {"note": "bye"}, "final_obs": {"numbers": np.array([3, 4]), "text": "t"}},
]
PLAIN_INFOS: list[dict[str, Any]] = [
    {},
    {"count": 3, "inner": {"level": 2.5}},
    {"note": "hello", "final_info": {}, "final_obs": (1, 2)},
    {"final_info": {"note": "bye"}, "final_obs": {"numbers": (3, 4), "text": "t"}},
]


def batched(infos: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for row, info in enumerate(infos):
        add_info(batch, info, row, len(infos))
    return batch


def test_infos_come_back_as_the_envs_gave_them() -> None:
    rows = rows_of_reset(np.zeros((4, 2), np.int64), batched(ENV_INFOS))
    assert [row.info for row in rows] == PLAIN_INFOS


def test_a_batch_of_arrays_becomes_rows() -> None:
    rewards, flags = np.array([0.5, 1.0]), np.array([True, False])
    rows = rows_of_step(np.array([[1, 2], [3, 4]]), rewards, flags, ~flags, {})
    assert rows == [Row((1, 2), {}, 0.5, True, False), Row((3, 4), {}, 1.0, False, True)]


def test_a_batch_of_dicts_becomes_rows() -> None:
    batch = {"numbers": np.array([[1, 2], [3, 4]]), "text": ("a", "b")}
    assert [row.observation for row in rows_of_reset(batch, {})] == [
        {"numbers": (1, 2), "text": "a"},
        {"numbers": (3, 4), "text": "b"},
    ]


@pytest.mark.parametrize(("given", "plain"), [*zip(ENV_INFOS, PLAIN_INFOS, strict=True)])
def test_what_a_single_env_returned_becomes_a_row(given: dict[str, Any], plain: dict[str, Any]) -> None:
    assert row_of((np.array([1, 2]), 0.5, False, True, given)) == Row((1, 2), plain, 0.5, False, True)
