"""A policy in the process that runs it, the answers that it gives, and the batches of rows that it is called with.

A batch is an array with the rows along the first axis, or a dict or tuple of such arrays. Each row is one episode. A
mask says which rows of a batch want an action. `step_one_by_one` and `call_handle` call policies in the current
process, on behalf of all strategies.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import time
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import Failure
from parallel_envs.policies import ScriptedAgent
from parallel_envs.policies.base import is_network

Mask = npt.NDArray[np.bool_]
Agent = Any
"""Any hashable value. (A `dict[str, ...]` is no `Mapping[Hashable, ...]` to a type checker.)"""
PolicyInput = tuple[Any, Mask | None]
"""An observation and None; or a batch of observations and the mask of the rows that want an action."""
Inputs = Mapping[Agent, PolicyInput]
Arguments = Mapping[Agent, tuple[Any, ...]]
"""Arguments of a method of `PolicyHandle`, by agent."""


class PolicyHandle:
    """Calls one policy, in the process that runs it, and keeps a copy of the policy for each row where needed.

    A policy is called with one observation, or with a batch and a mask. Every row of a batch is an episode of its own:
    a policy whose `step_batch` takes `rows` (the numbers of the rows) keeps the state of each row itself; one whose
    `step_batch` does not is assumed to keep no state; any other policy is copied for each row.

    A subclass may define `step` anew and inherit `step_batch`. Then `step` counts, and rows are computed one by one.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.batches = _has_method(policy, "step_batch", "step")
        self.remembers_rows = self.batches and "rows" in inspect.signature(policy.step_batch).parameters
        self._copies: list[Any] = []

    def act(self, observation: Any, wanted: Mask | None) -> Any:
        """Return the action for an observation, or the actions for a batch, with zeros in rows that want none."""
        return self.policy.step(observation) if wanted is None else self._act_in_rows(observation, wanted)

    def _act_in_rows(self, observation: Any, wanted: Mask) -> Any:  # apart: its comprehension would slow `act` down
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return None
        batch = take_rows(observation, rows)
        if self.remembers_rows:
            actions = self.policy.step_batch(batch, rows=rows)
        elif self.batches:
            actions = self.policy.step_batch(batch)
        else:
            self._add_copies(int(rows[-1]) + 1)
            actions = [self._copies[row].step(take_rows(batch, place)) for place, row in enumerate(rows.tolist())]
        check_num_actions(actions, len(rows), self.policy)
        return scatter_rows(actions, rows, len(wanted))

    @property
    def uses_device(self) -> bool:
        """True if the policy, or its copy for a row, has been computed where `act_on` has told it."""
        return any(getattr(policy, "uses_device", True) for policy in (self.policy, *self._copies))

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Begin episodes: all of them, or those of some rows."""
        if rows is None:
            for policy in (self.policy, *self._copies):
                reset_policy(policy)
        elif self.remembers_rows:
            reset_policy(self.policy, rows=np.asarray(rows, np.intp))
        elif not self.batches:
            self._add_copies(max(rows, default=-1) + 1)
            for row in rows:
                reset_policy(self._copies[row])

    def _add_copies(self, num_rows: int) -> None:
        """Copy the policy until every row has a copy. The NumPy generators of each copy get a stream of their own."""
        for row in range(len(self._copies), num_rows):
            twin = copy.deepcopy(self.policy)
            for name, value in list(getattr(twin, "__dict__", {}).items()):
                if isinstance(value, np.random.Generator):
                    setattr(twin, name, np.random.default_rng([int(copy.deepcopy(value).integers(1 << 62)), row]))
            reset_policy(twin)
            self._copies.append(twin)

    def close(self) -> None:
        """Close the policy and its copies if they have `close`. If one raises, the others are closed all the same."""
        with contextlib.ExitStack() as closing:
            for policy in (self.policy, *self._copies):
                closing.callback(close_policy, policy)

    def get_state(self) -> Any:
        """Return the state of the policy and of the copies: the result of `get_state`, or else all attributes.

        Attributes are not copied here: the caller copies those of all agents at once, so that shared objects stay
        shared.
        """
        return _state_of(self.policy), [_state_of(twin) for twin in self._copies]

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        own, rows = state
        _restore(self.policy, own)
        del self._copies[len(rows) :]
        self._add_copies(len(rows))
        for twin, twin_state in zip(self._copies, rows, strict=True):
            _restore(twin, twin_state)

    def check_weights(self, weights: Any) -> None:
        """Raise if the weights do not fit. Does nothing for a policy that has no `check_weights` of its own."""
        if _has_method(self.policy, "check_weights", "load_state_dict"):
            self.policy.check_weights(weights)

    def load_state_dict(self, weights: Any, version: int) -> int:
        """Load weights into the policy and the copies, and return the version of these weights."""
        for policy in (self.policy, *self._copies):
            policy.load_state_dict(weights)
        return version


def as_policy(agent: Any, policy: Any) -> Any:
    """Return the policy or spec that was given for an agent. Wrap a function of the observation in a policy."""
    if isinstance(policy, type):
        raise TypeError(f"The policy of {agent!r}, {policy!r}, is a class. Give one of its objects.")
    if callable(getattr(policy, "step", None)) or is_spec(policy):
        return policy
    if callable(policy) and not is_network(policy):
        return ScriptedAgent(policy)
    shown, advice = repr(policy), "Give it one, or give a function from an observation to an action."
    if is_network(policy):
        shown = f"the torch module {type(policy).__name__}"
        advice = "Give parallel_envs.wrappers.TorchPolicy(module, action_space)."
    elif isinstance(policy, str):
        advice += " For a policy by its name give parallel_envs.policies.load_policy(...)."
    raise TypeError(f"The policy of {agent!r}, {shown}, has no method step(observation). {advice}")


def is_spec(policy: Any) -> bool:
    return callable(getattr(policy, "make", None))


def close_policy(policy: Any) -> None:
    if callable(close := getattr(policy, "close", None)):
        close()


def reset_policy(policy: Any, **rows: Any) -> None:
    if (reset := getattr(policy, "reset", None)) is not None:
        reset(**rows)


def _has_method(policy: Any, name: str, counterpart: str) -> bool:
    """Return whether a policy has a method that a subclass did not outdate by a new `counterpart` alone."""
    if not callable(getattr(policy, name, None)):
        return False
    for kind in type(policy).__mro__:
        if name in vars(kind):
            return True
        if counterpart in vars(kind):  # outdated if inherited from below the class that defined both
            return not any(name in vars(base) for base in kind.__mro__)
    return True


@dataclass(frozen=True, slots=True)
class _OwnMethod:
    """Replaces a method of the policy itself in its state: a copy of the method would belong to a copied policy."""

    name: str


def _state_of(policy: Any) -> Any:
    """Return the policy's own `get_state()`, or all attributes from its `__dict__` and its slots."""
    if hasattr(policy, "get_state"):
        return policy.get_state()
    state = object.__getstate__(policy)  # a dict, or a pair of dicts, either of which may be None
    attributes: dict[str, Any] = {}
    for part in state if isinstance(state, tuple) else (state,):
        for name, value in (part or {}).items():
            is_own = isinstance(value, types.MethodType) and value.__self__ is policy
            attributes[name] = _OwnMethod(value.__name__) if is_own else value
    return attributes


def _restore(policy: Any, state: Any) -> None:
    if hasattr(policy, "set_state"):
        policy.set_state(state)
        return
    getattr(policy, "__dict__", {}).clear()
    for name, saved in state.items():
        value = getattr(policy, saved.name) if isinstance(saved, _OwnMethod) else saved
        if isinstance(getattr(type(policy), name, None), types.MemberDescriptorType):  # a slot
            object.__setattr__(policy, name, value)
        else:
            vars(policy)[name] = value


# ---- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """An action, or a failure, or a late answer. `seconds` is the time the policy took, if known."""

    action: Any = None
    failure: Failure | None = None
    late: bool = False
    seconds: float = 0.0


class Answers(NamedTuple):
    """The answers of several agents: plain actions by agent, and an `Answer` for each agent with more to report.

    Most turns have plain actions only. An `Answer` for each agent would cost more than a small policy does.
    """

    actions: dict[Agent, Any]
    others: dict[Agent, Answer]
    ended: float = 0.0
    """When a worker ended the turn, by the monotonic clock that all processes share. 0.0: unknown."""

    @classmethod
    def none(cls) -> Answers:
        return cls({}, {})

    @classmethod
    def failed(cls, agents: Collection[Agent], error: BaseException) -> Answers:
        """Return answers in which all of these agents failed with one error."""
        return cls({}, dict.fromkeys(agents, Answer(failure=Failure.of(error))))

    def of(self, agent: Agent) -> Answer:
        """Return the answer of one agent."""
        return self.others[agent] if agent in self.others else Answer(self.actions[agent])

    def part(self, agents: Collection[Agent]) -> Answers:
        """Return the answers of some agents."""
        return Answers(
            {agent: self.actions[agent] for agent in agents if agent in self.actions},
            {agent: self.others[agent] for agent in agents if agent in self.others},
        )

    def add(self, more: Answers) -> None:
        self.actions.update(more.actions)
        self.others.update(more.others)


def step_one_by_one(
    handles: Mapping[Agent, PolicyHandle], inputs: Inputs, answers: Answers, *, timed: bool = False
) -> Answers:
    """Call one policy after another, in this process. Each answer is added to `answers` as soon as it is there."""
    for agent, (observation, wanted) in inputs.items():
        began, failure, action = time.monotonic() if timed else 0.0, None, None
        try:
            action = handles[agent].act(observation, wanted)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
            failure = Failure.of(error)
        if timed or failure is not None:
            answers.others[agent] = Answer(action, failure, seconds=time.monotonic() - began if timed else 0.0)
        else:
            answers.actions[agent] = action
    return answers


def call_handle(handle: PolicyHandle, method: str, arguments: tuple[Any, ...]) -> Answer:
    """Call a method of a handle, in this process. `action` of the answer is the return value."""
    try:
        return Answer(getattr(handle, method)(*arguments))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
        return Answer(failure=Failure.of(error))


# ---- batches of rows ------------------------------------------------------------------------------------------------


def take_rows(batch: Any, rows: Any) -> Any:
    """Return some rows of a batch, or a single row."""
    return _each_part(lambda part: part[rows], [batch])


def join_inputs(inputs: Sequence[PolicyInput]) -> PolicyInput | None:
    """Return single observations and batches of rows as one batch and mask; None if they differ in shape or dtype."""
    batches = [
        _each_part(lambda part: np.asarray(part)[None], [seen]) if wanted is None else seen for seen, wanted in inputs
    ]
    if not all(_can_join(batches[0], batch) for batch in batches):
        return None
    masks = [np.ones(1, bool) if wanted is None else np.asarray(wanted, bool) for _, wanted in inputs]
    return _each_part(lambda *parts: np.concatenate(parts), batches), np.concatenate(masks)


def split_actions(actions: Any, inputs: Iterable[PolicyInput]) -> list[Any]:
    """Return each input's own action, or its actions for all rows, of the actions for joined inputs."""
    parts: list[Any] = []
    start = 0
    for _, wanted in inputs:
        stop = start + (1 if wanted is None else len(wanted))
        if wanted is None:
            parts.append(take_rows(actions, start))
        else:
            parts.append(take_rows(actions, slice(start, stop)) if np.any(wanted) else None)
        start = stop
    return parts


def _each_part(function: Callable[..., Any], batches: Sequence[Any]) -> Any:
    """Call a function with each part of batches of one structure. Return the results in this structure."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: _each_part(function, [batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_each_part(function, parts) for parts in zip(*batches, strict=True))
    return function(*batches)


def _can_join(one: Any, other: Any) -> bool:
    """Return True if two batches have the same structure, dtypes and shapes, apart from the number of rows."""
    if isinstance(one, dict):
        same = isinstance(other, dict) and one.keys() == other.keys()
        return same and all(_can_join(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_can_join, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return (one.dtype, one.shape[1:]) == (other.dtype, other.shape[1:])


def scatter_rows(actions: Any, rows: npt.NDArray[np.intp], num_rows: int) -> Any:
    """Return the actions of all rows: `actions` in `rows`, zeros elsewhere."""
    if isinstance(actions, dict | tuple):
        return _each_part(lambda part: scatter_rows(part, rows, num_rows), [actions])
    if isinstance(actions, list) and isinstance(actions[0], dict | tuple):
        return _each_part(lambda *parts: scatter_rows(list(parts), rows, num_rows), actions)
    values = np.asarray(actions)
    if len(rows) == num_rows:
        return values
    full = np.zeros((num_rows, *values.shape[1:]), values.dtype)
    full[rows] = values
    return full


def check_num_actions(actions: Any, num_rows: int, policy: Any) -> None:
    """Raise unless `step_batch` of the policy returned one action for each row."""
    if isinstance(actions, dict | tuple):
        for part in actions.values() if isinstance(actions, dict) else actions:
            check_num_actions(part, num_rows, policy)
        return
    name = f"{type(policy).__name__}.step_batch"
    if not hasattr(actions, "__len__") or getattr(actions, "shape", None) == ():
        raise TypeError(f"{name} returned {actions!r}. Return an array, or a list, with an action for each row.")
    if len(actions) != num_rows:
        raise ValueError(
            f"{len(actions)} actions were returned for {num_rows} observations by {name}. Return one for each."
        )


def check_mask(agent: Any, mask: Any, batch: Any) -> int:
    """Return the number of rows of a mask. Raise if the batch is known to have another number of rows."""
    if not hasattr(mask, "__len__") or getattr(mask, "ndim", 1) != 1:
        raise TypeError(f"The mask of {agent!r}, {mask!r}, is not an array of one dimension. Give a bool for each row.")
    while isinstance(batch, dict | tuple):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch), None)
    shape = getattr(batch, "shape", None)
    num_rows = (*shape, 0)[0] if isinstance(shape, tuple) else len(batch) if hasattr(batch, "__len__") else len(mask)
    if num_rows != len(mask):
        raise ValueError(
            f"The mask of {agent!r} has {len(mask)} rows, its observations have {num_rows}. Give a bool for each row."
        )
    return len(mask)


def row_numbers(rows: Sequence[int] | Mask | None, num_rows: int = 0) -> list[int] | None:
    """Return the numbers of rows that were given as numbers or as a mask. `num_rows` is how many exist; 0: unknown."""
    if rows is None:
        return None
    given = np.asarray(rows)
    if given.size and (given.ndim != 1 or given.dtype.kind not in "biu"):
        raise TypeError(f"rows={rows!r} is neither a list of row numbers nor a mask. Give one of these.")
    numbers: list[int] = (np.flatnonzero(given) if given.dtype == bool else given.astype(np.intp)).tolist()
    if odd := [row for row in numbers if row < 0 or (num_rows and row >= num_rows)]:
        there = f"there are {num_rows}, numbered from 0" if num_rows else "rows are numbered from 0"
        raise ValueError(f"Row {odd[0]} was requested, and {there}. Give numbers of rows, or a mask.")
    return numbers
