"""An agent's policy in the place where it runs, whether that is here, in a thread or in a worker process."""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.policies import ScriptedAgent
from parallel_envs.policies.base import is_network
from parallel_envs.wrappers.rows import Mask, check_count, spread, take_rows


class Seat:
    """A policy, and its memory for each row.

    A policy is asked with one observation, or with a batch and a mask that says which rows want an action. With rows,
    every row is an episode of its own: a policy whose `step_batch` takes `rows` (the numbers of the rows) remembers by
    row itself; one whose `step_batch` does not is taken to remember nothing; any other is copied for each row.

    A `step` that was defined later than the `step_batch` it goes with (in a subclass) is what counts: then rows are
    asked one by one.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.batches = callable(getattr(policy, "step_batch", None)) and not _is_overridden(
            type(policy), "step", "step_batch"
        )
        self.remembers_rows = self.batches and "rows" in inspect.signature(policy.step_batch).parameters
        self._copies: list[Any] = []

    def answer(self, observation: Any, wanted: Mask | None) -> Any:
        """The action for an observation, or actions for the rows of a batch: zeros where none is wanted."""
        if wanted is None:
            return self.policy.step(observation)
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return None
        actions = self.answer_rows(take_rows(observation, rows), rows)
        check_count(actions, len(rows), self.policy)
        return spread(actions, rows, len(wanted))

    def answer_rows(self, observations: Any, rows: npt.NDArray[np.intp]) -> Any:
        """The actions for these rows."""
        if self.remembers_rows:
            return self.policy.step_batch(observations, rows=rows)
        if self.batches:
            return self.policy.step_batch(observations)
        self._grow(int(rows[-1]) + 1)
        return [self._copies[row].step(take_rows(observations, place)) for place, row in enumerate(rows.tolist())]

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Episodes begin: all, or those of some rows."""
        if rows is None:
            for policy in (self.policy, *self._copies):
                reset_policy(policy)
        elif self.remembers_rows:
            reset_policy(self.policy, rows=np.asarray(rows, np.intp))
        elif not self.batches:
            self._grow(max(rows, default=-1) + 1)
            for row in rows:
                reset_policy(self._copies[row])

    def _grow(self, num_rows: int) -> None:
        """Copies for new rows. Each draws its own random numbers: a copy's generators go on from its row's number."""
        while len(self._copies) < num_rows:
            twin = copy.deepcopy(self.policy)
            _part_generators(twin, len(self._copies))
            reset_policy(twin)
            self._copies.append(twin)

    def close(self) -> None:
        """Close the policy and its copies, those that can be, also where one raises."""
        with contextlib.ExitStack() as closing:
            for policy in (self.policy, *self._copies):
                closing.callback(close_policy, policy)

    # ---- state ------------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        """What the policy remembers, as it tells itself or else all its attributes; with the copies of its rows.

        Attributes are told as they are: whoever keeps them copies them, all agents' at once, so that what is shared
        stays shared.
        """
        return _state_of(self.policy), [_state_of(twin) for twin in self._copies]

    def set_state(self, state: Any) -> None:
        """Put back what `get_state` has told."""
        own, rows = state
        _restore(self.policy, own)
        del self._copies[len(rows) :]
        self._grow(len(rows))
        for twin, told in zip(self._copies, rows, strict=True):
            _restore(twin, told)

    def check_weights(self, weights: Any) -> None:
        """Raise if these weights do not fit, where the policy can tell without taking them (`check_weights`)."""
        if callable(getattr(self.policy, "check_weights", None)) and not _is_overridden(
            type(self.policy), "load_state_dict", "check_weights"
        ):
            self.policy.check_weights(weights)

    def load_state_dict(self, weights: Any, version: int) -> int:
        """New weights, for the copies too. Returns their version, which acts from now on."""
        for policy in (self.policy, *self._copies):
            policy.load_state_dict(weights)
        return version


def as_policy(agent: Any, policy: Any) -> Any:
    """What was given as an agent's policy, if it is one; a function of the observation becomes one."""
    if isinstance(policy, type):
        raise TypeError(f"The policy of {agent!r}, {policy!r}, is a class. Give one of its objects.")
    if callable(getattr(policy, "step", None)) or is_spec(policy):
        return policy
    if is_network(policy):
        raise TypeError(
            f"The policy of {agent!r} is a torch module, {type(policy).__name__}, and has no method step(observation). "
            "Give parallel_envs.wrappers.TorchPolicy(module, action_space)."
        )
    if callable(policy):
        return ScriptedAgent(policy)
    text = " For a policy by its name give parallel_envs.policies.load_policy(...)." if isinstance(policy, str) else ""
    raise TypeError(
        f"The policy of {agent!r}, {policy!r}, has no method step(observation). Give it one, or give a function from "
        f"an observation to an action.{text}"
    )


def is_spec(policy: Any) -> bool:
    """Whether a policy is still to be made."""
    return callable(getattr(policy, "make", None))


def made(policy: Any) -> Any:
    """The policy, made here if it was given as a spec."""
    return policy.make() if is_spec(policy) else policy


def close_policy(policy: Any) -> None:
    """Close a policy, if it can be."""
    close = getattr(policy, "close", None)
    if callable(close):
        close()


def reset_policy(policy: Any, **rows: Any) -> None:
    """Tell a policy that an episode begins, if it wants to know."""
    reset = getattr(policy, "reset", None)
    if reset is not None:
        reset(**rows)


def _is_overridden(kind: type, method: str, companion: str) -> bool:
    """Whether a method was defined by a subclass of the class that defined its companion, which knows nothing of it."""
    for one in kind.__mro__:
        if companion in vars(one):
            return False
        if method in vars(one):
            return any(companion in vars(base) for base in one.__mro__)
    return False


def _state_of(policy: Any) -> Any:
    return policy.get_state() if hasattr(policy, "get_state") else _attributes(policy)


def _restore(policy: Any, state: Any) -> None:
    if hasattr(policy, "set_state"):
        policy.set_state(state)
        return
    getattr(policy, "__dict__", {}).clear()
    for name, told in state.items():
        value = getattr(policy, told.name) if isinstance(told, _OwnMethod) else told
        if isinstance(getattr(type(policy), name, None), types.MemberDescriptorType):  # a slot
            object.__setattr__(policy, name, value)
        else:
            vars(policy)[name] = value


def _attributes(policy: Any) -> dict[str, Any]:
    """All attributes of an object, in its `__dict__` or in slots."""
    state = object.__getstate__(policy)  # a dict, or a pair of them, either of which may be None
    parts = state if isinstance(state, tuple) else (state,)
    return {name: _told(value, policy) for part in parts if part is not None for name, value in part.items()}


@dataclass(frozen=True, slots=True)
class _OwnMethod:
    """In the place of a method of the policy itself: copied as it is, it would be that of a copy."""

    name: str


def _told(value: Any, policy: Any) -> Any:
    is_own = isinstance(value, types.MethodType) and value.__self__ is policy
    return _OwnMethod(value.__name__) if is_own else value


def _part_generators(policy: Any, row: int) -> None:
    """Give the NumPy generators among a copy's attributes streams of their own."""
    for name, value in list(getattr(policy, "__dict__", {}).items()):
        if isinstance(value, np.random.Generator):
            seed = int(copy.deepcopy(value).integers(1 << 62))
            setattr(policy, name, np.random.default_rng([seed, row]))
