"""Pages of the site that must agree with the code: the list of the API."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference/api").glob("*.md"))
SELF_EXPLAINING = {"STRATEGIES", "AGENT_ARCHS", "PerAgentSubprocessWrapper"}  # two lists of words, and an older name


@pytest.mark.parametrize(
    "package",
    ["", ".wrappers", ".learners", ".rollouts", ".meta", ".groups", ".evaluation", ".policies", ".multiagent"],
)
def test_the_api_pages_have_every_public_name(package: str) -> None:
    module = importlib.import_module(f"parallel_envs{package}")
    missing = [name for name in module.__all__ if not re.search(rf"\b{name}\b", API)]
    assert set(missing) <= SELF_EXPLAINING


@pytest.mark.parametrize("project", ["gymnasium", "numpy", "torch"])
def test_the_inventories_are_those_that_the_script_writes(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    inventories = importlib.import_module("inventories")
    assert (ROOT / f"docs/inventories/{project}.inv").read_bytes() == inventories.inventory(project)
