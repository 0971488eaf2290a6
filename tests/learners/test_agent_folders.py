"""Which folder of a checkpoint is whose: no two agents in one, whatever their names."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.learners.checkpoint import as_json, folder_names, folders_in

WORDS = st.text("aA-0123. %/ü", max_size=4)


def entries_of(names: dict[Any, str]) -> list[dict[str, Any]]:
    return [{"agent": as_json(agent), "folder": name} for agent, name in names.items()]


@given(st.lists(WORDS | st.integers(-3, 12), unique=True))
def test_no_two_agents_share_a_folder(agents: list[Any]) -> None:
    names = folder_names(agents)
    assert list(names) == agents
    assert len({name.casefold() for name in names.values()}) == len(agents)
    assert folders_in(entries_of(names)) == names


@pytest.mark.parametrize("agents", list(itertools.permutations(["a-2", "A", "a"])))
def test_a_name_with_a_number_behind_it_may_be_anothers_as_well(agents: tuple[str, ...]) -> None:
    assert len(set(folder_names(agents).values())) == 3


def test_agents_are_found_under_their_own_names() -> None:
    assert folder_names(["red", 7, np.int64(8), "a/b"]) == {"red": "red", 7: "7", 8: "8", "a/b": "a%2Fb"}


@pytest.mark.parametrize(
    ("agent", "why"),
    [(("a", 1), "words or whole numbers"), (True, "words or whole numbers"), ("a\ud800", "half a character")],
)
def test_agents_that_no_file_can_name_are_refused(agent: Any, why: str) -> None:
    with pytest.raises(TypeError, match=rf"cannot be named in a file.* {why}"):
        folder_names([agent])


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([("a", "x"), ("b", "x")], "two agents are in one folder"),
        ([("a", "x"), ("a", "y")], "an agent is named twice"),
        ([("a", "../x")], "not a folder's name"),
        ([("a", "")], "not a folder's name"),
    ],
)
def test_tables_that_make_no_sense_are_refused(entries: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        folders_in([{"agent": agent, "folder": name} for agent, name in entries])
