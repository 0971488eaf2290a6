"""The example of evaluations runs as its docstring says."""

from __future__ import annotations

import re

import pytest

from tests.test_examples import output_of


def test_policies_are_compared_and_the_numbers_are_the_same_without_workers() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("evaluate_policies.py", "--episodes", "3")
    assert "the same numbers without workers: yes" in shown
    assert (found := re.search(r"nearest - random, episode by episode: \+(\d+\.\d+)", shown)) is not None
    assert float(found[1]) > 5.0
    assert {name for name in ("nearest", "own", "random") if f"'{name}'" in shown} == {"nearest", "own", "random"}
