"""The walks through the code (docs/design/walks.md) are those that a tracer sees, and they are short."""

from __future__ import annotations

import re

import pytest

from tests.docs.walks import PAGE, WALKS


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_on_the_page_has_the_files_of_the_code(title: str) -> None:
    pytest.importorskip("torch")
    _, most, walk = WALKS[title]
    shown = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    files = re.findall(r"^1\. `([^`]+)`", shown, re.MULTILINE)
    assert set(files) == set(walk())
    assert len(files) <= most
