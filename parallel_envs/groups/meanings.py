"""What names mean: the `action_lookup` of an environment, turned round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def meanings_of(lookup: Any) -> dict[str, Any] | None:
    """The action of each name, as the name is spelt in the lookup and as it is `folded`. None: actions have no names.

    Raises where two actions have the same name: nobody could do the one of them.
    """
    if lookup is None:
        return None
    if not isinstance(lookup, Mapping) or not all(isinstance(name, str) for name in lookup.values()):
        raise TypeError(
            f"action_lookup is {lookup!r}. Give a mapping from the actions that step() takes to their names, such as "
            "{0: 'left', 1: 'right'}."
        )
    meanings = {folded(name): action for action, name in lookup.items()}
    if len(meanings) < len(lookup):
        raise ValueError(_of_twins(lookup, meanings))
    return {name: action for action, name in lookup.items()} | meanings


def folded(name: str) -> str:
    """A name without regard to case, and to spaces around it."""
    return name.strip().casefold()


def _of_twins(lookup: Mapping[Any, str], meanings: Mapping[str, Any]) -> str:
    """What is wrong with a lookup in which a name comes twice: of its actions, `meanings` has the last."""
    first = next(action for action, name in lookup.items() if meanings[folded(name)] is not action)
    second = meanings[folded(lookup[first])]
    return (
        f"action_lookup has one name for two actions: {first!r} is {lookup[first]!r}, and {second!r} is "
        f"{lookup[second]!r}. Give each a name of its own; case, and spaces around it, make no difference."
    )
