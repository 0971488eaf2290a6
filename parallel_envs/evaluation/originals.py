"""A policy as it was made, and the copies of it that play.

No two episodes play with one object, and none begins with what another has left in it: so a policy that learns, counts
or remembers comes to the same, whichever worker plays whatever else. What is made from a spec is made once in a worker.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.spaces import Space

from parallel_envs.seeding import SeedTree

_DEEPEST, _MOST_PARTS = 4, 100  # how far a policy is looked through for generators


class Original:
    """What a policy was before it played.

    Args:
        policy: The policy. It never plays itself.
        again: Makes it anew, for those that cannot be copied.
    """

    def __init__(self, policy: Any, again: Callable[[], Any]) -> None:
        self._copy = _way_to_copy(policy) or again

    def copied(self, seed: int) -> Any:
        """A policy as the original was, whose random draws begin at `seed`."""
        policy = self._copy()
        reseed(policy, seed)
        return policy


def _way_to_copy(policy: Any) -> Callable[[], Any] | None:
    if not callable(getattr(policy, "function", None)):  # a function's deep copy is itself, with all it remembers
        with contextlib.suppress(Exception):  # user code: it may hold what cannot be copied
            kept = copy.deepcopy(policy)
            return lambda: copy.deepcopy(kept)
    with contextlib.suppress(Exception):  # as above
        data = cloudpickle.dumps(policy)
        pickle.loads(data)
        return lambda: pickle.loads(data)
    return None


def reseed(policy: Any, seed: int) -> None:
    """Have a policy's draws begin at `seed`: by its method `seed`, or else in the generators among its attributes.

    These are NumPy's, Python's and torch's generators and Gymnasium's spaces, each with a stream of its own, found in
    the policy, in its lists, tuples and dicts, and in policies that it holds.
    """
    if callable(method := getattr(policy, "seed", None)):
        method(seed)
        return
    for number, (name, generator) in enumerate(_generators(policy, "", set(), 0)):
        own = SeedTree(seed).child(name, number)
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(own.sequence()).state
        elif isinstance(generator, np.random.RandomState | random.Random | Space):
            generator.seed(own.seed())
        else:
            generator.manual_seed(own.seed())


def _generators(thing: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """The generators that a policy holds, each with its attribute's name, in the order of attributes."""
    if id(thing) in seen or depth > _DEEPEST:
        return
    seen.add(id(thing))
    if _is_generator(thing):
        yield name, thing
        return
    for key, part in _parts(thing, depth):
        yield from _generators(part, key or name, seen, depth + 1)


def _parts(thing: Any, depth: int) -> list[tuple[str, Any]]:
    if isinstance(thing, list | tuple):
        return [("", part) for part in thing[:_MOST_PARTS]]
    if isinstance(thing, dict):
        return [("", part) for part in list(thing.values())[:_MOST_PARTS]]
    acts = callable(getattr(thing, "step", None)) or callable(getattr(thing, "act", None))
    return list(getattr(thing, "__dict__", {}).items()) if acts or not depth else []


def _is_generator(thing: Any) -> bool:
    if isinstance(thing, np.random.Generator | np.random.RandomState | random.Random | Space):
        return True
    kind = type(thing)
    return kind.__module__.partition(".")[0] == "torch" and callable(getattr(thing, "manual_seed", None))
