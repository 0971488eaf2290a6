"""What names mean."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_envs.groups.interface import actions_by_name, fold_name


def test_names_are_known_as_they_are_spelt_and_without_regard_to_case() -> None:
    assert actions_by_name({0: "Up", 1: " Go Left "}) == {"Up": 0, "up": 0, " Go Left ": 1, "go left": 1}
    assert fold_name(" STRASSE") == fold_name("straße ")
    assert actions_by_name(None) is None


@pytest.mark.parametrize("lookup", [["up", "down"], {"Up": 1}, "up"])
def test_what_is_no_lookup(lookup: Any) -> None:
    with pytest.raises(TypeError, match=r"action_lookup is .*Give a mapping from the actions that step\(\) takes"):
        actions_by_name(lookup)


@pytest.mark.parametrize("second", ["A", "a", " a\n"])
def test_two_actions_of_one_name_are_both_named(second: str) -> None:
    with pytest.raises(ValueError, match="one name for two actions: 0 is 'a', and 'two' is ") as caught:
        actions_by_name({0: "a", 1: "b", "two": second})
    assert f"{second!r}. Give each a name of its own" in str(caught.value)
