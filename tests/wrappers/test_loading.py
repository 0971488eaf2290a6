"""Wrappers load torch for those only whose policies need it."""

from __future__ import annotations

import sys
from typing import Any

from tests.test_imports import HEAVY, in_fresh_interpreter
from tests.wrappers.conftest import Wrap


def test_importing_wrappers_loads_no_heavy_library() -> None:
    loaded = set(in_fresh_interpreter("import parallel_envs.wrappers\nanswer = sorted(sys.modules)"))
    assert loaded & (HEAVY | {"pettingzoo"}) == set()


def test_the_top_level_name_loads_no_heavy_library() -> None:
    program = "import parallel_envs; parallel_envs.WrappedMultiAgentPolicy\nanswer = sorted(sys.modules)"
    loaded = set(in_fresh_interpreter(program))
    assert "parallel_envs.wrappers.multi" in loaded
    assert loaded & (HEAVY | {"pettingzoo"}) == set()


def test_workers_of_policies_without_torch_load_no_torch(wrap: Wrap) -> None:
    loaded = wrap({"a": teller()}, "process").step({"a": 0})["a"]
    assert "parallel_envs.wrappers.process" in loaded
    assert loaded & (HEAVY | {"pettingzoo", "pytest"}) == set()


def teller() -> Any:
    # Made in a function, so that it travels by value: no worker need import this module, and pytest with it.
    class Teller:
        def step(self, observation: Any) -> Any:
            return set(sys.modules)

    return Teller()
