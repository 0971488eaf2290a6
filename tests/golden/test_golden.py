"""Every case of `cases.py` computes what `recorded.json` holds, in every way in which it can be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.cases import CASES, way_name
from tests.golden.fingerprints import differences, fingerprint, machine

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())


def test_the_recorded_cases_are_those_that_are_computed() -> None:
    assert list(RECORDED["cases"]) == list(CASES)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(
            name, way, id=f"{name}-{way_name(way)}", marks=[pytest.mark.slow] if way in case.ways[1:-1] else []
        )
        for name, case in CASES.items()
        for way in case.ways
    ],
)
def test_the_same_as_recorded(name: str, way: dict[str, Any]) -> None:
    found = differences(
        RECORDED["cases"][name], fingerprint(CASES[name].compute(**way)), exact=RECORDED["machine"] == machine()
    )
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("exact", [True, False])
def test_a_changed_number_is_seen(exact: bool) -> None:
    recorded = fingerprint([np.arange(4.0), {"a": 1}])
    assert not differences(recorded, fingerprint([np.arange(4.0), {"a": 1}]), exact=exact)
    for changed in ([np.arange(4.0)[::-1], {"a": 1}], [np.arange(4.0), {"b": 1}], [np.arange(4), {"a": 1}]):
        assert differences(recorded, fingerprint(changed), exact=exact)


def test_rounding_is_forgiven_on_another_machine_only() -> None:
    recorded, rounded = fingerprint(np.arange(4.0)), fingerprint(np.arange(4.0) * (1 + 1e-9))
    assert differences(recorded, rounded, exact=True)
    assert not differences(recorded, rounded, exact=False)
