"""Pages of the site that must agree with the code: the list of the API, and the errors by their text."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference/api").glob("*.md"))
MESSAGES = re.findall(
    r"^\| `([^`]+)` \|", (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8"), re.MULTILINE
)
SOURCE = " ".join(
    re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in (ROOT / "parallel_envs").rglob("*.py")
)
SELF_EXPLAINING = {"STRATEGIES", "AGENT_ARCHS", "PerAgentSubprocessWrapper"}  # two lists of words, and an older name


@pytest.mark.parametrize(
    "package",
    ["", ".wrappers", ".learners", ".rollouts", ".meta", ".groups", ".evaluation", ".policies", ".multiagent"],
)
def test_the_api_pages_have_every_public_name(package: str) -> None:
    module = importlib.import_module(f"parallel_envs{package}")
    missing = [name for name in module.__all__ if not re.search(rf"\b{name}\b", API)]
    assert set(missing) <= SELF_EXPLAINING


@pytest.mark.parametrize("message", MESSAGES)
def test_the_words_of_a_message_are_in_the_source(message: str) -> None:
    parts = re.split(r"\.\.\.|\b[A-Z]{1,}\b|[()]|\d", message)
    words = [part.strip() for part in parts if len(part.strip()) > 5]
    assert words
    for part in words:
        assert part in SOURCE, part
