"""`TorchPolicy`: a torch network as an agent's policy. With it: observations into tensors, and action sampling.

`parted` and `GatheringBuffer` make features of the observations of one policy or of several. `choose` makes actions of
the outputs of networks. Both give the same numbers for one policy and for many at once: each policy samples from its
own generator, for the rows that want an action and in their order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn

from parallel_envs.policies import AgentPolicy
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import one_torch_thread
from parallel_envs.wrappers.policy_handle import Mask, as_row
from parallel_envs.wrappers.rules import PolicyInput
from parallel_envs.wrappers.stacked import signature

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]

# ---- observations ---------------------------------------------------------------------------------------------------


def parted(batch: Any) -> tuple[Array, Array | None]:
    """Return a batch of observations as an array (rows, numbers), and its action masks if it has any."""
    mask = None
    if isinstance(batch, dict):
        mask, batch = batch.get("action_mask"), batch["observation"]
    array = np.asarray(batch)
    return array.reshape(len(array), -1), mask


class GatheringBuffer:
    """Gathers the observations of several policies in one array (policies, rows, numbers).

    The buffer grows to the largest turn and stays. A returned array is valid until the next call. It has zeros where a
    policy has fewer rows than another.
    """

    def __init__(self, num_policies: int) -> None:
        self._num_policies = num_policies
        self._buffer = np.zeros(0, np.float32)

    def __call__(self, inputs: Collection[PolicyInput]) -> tuple[Array, Array | None]:
        """Return the observations, and the action masks if there are any, in equal positions."""
        observations = [observation for observation, _ in inputs]
        kinds, in_rows = set(map(type, observations)), {wanted is not None for _, wanted in inputs}
        if kinds == {np.ndarray} and len(in_rows) == 1 and len({one.shape for one in observations}) == 1:
            first = observations[0]  # all arrays have one shape: copy them in one go
            num_rows = len(first) if in_rows.pop() else 1
            array = self._array(num_rows, first.size // max(num_rows, 1))
            if first.ndim:
                np.concatenate(observations, out=array.reshape(-1, *first.shape[1:]))  # same kind: text is no number
            else:
                array[:, 0, 0] = observations
            return array, None
        batches = [as_row(observation) if wanted is None else observation for observation, wanted in inputs]
        features, masks = zip(*map(parted, batches), strict=True)
        array = self._array(max(map(len, features)), features[0].shape[1])
        for own, part in zip(array, features, strict=True):
            if part.shape[1] != array.shape[2] or part.dtype.kind not in "fiub":
                raise ValueError(f"An observation of {part.shape[1]} x {part.dtype} is among some of another size.")
            own[: len(part)], own[len(part) :] = part, 0.0
        return array, _join_masks(masks)

    def _array(self, num_rows: int, size: int) -> Array:
        length = self._num_policies * num_rows * size
        if len(self._buffer) < length:
            self._buffer = np.zeros(length, np.float32)
        return self._buffer[:length].reshape(self._num_policies, num_rows, size)


def _join_masks(masks: Sequence[Any]) -> Array | None:
    """Return one array of masks, with ones in the rows that a policy has fewer of than another."""
    if all(mask is None for mask in masks):
        return None
    if any(mask is None for mask in masks):
        raise ValueError("Some of the observations have masks and some have none: they cannot share a pass.")
    arrays = [np.asarray(mask) for mask in masks]
    joined = np.ones((len(arrays), max(map(len, arrays)), arrays[0].shape[-1]), bool)
    for own, array in zip(joined, arrays, strict=True):
        own[: len(array)] = array.reshape(len(array), -1)
    return joined


# ---- action sampling ------------------------------------------------------------------------------------------------


class SamplingPolicy(Protocol):
    """Attributes of a policy that action sampling needs."""

    action_space: Any
    deterministic: bool
    generator: np.random.Generator

    @property
    def log_std(self) -> Array: ...


def choose(
    outputs: Array, mask: Array | None, wanted: Sequence[Mask | None], policies: Sequence[SamplingPolicy]
) -> list[Any]:
    """Return each policy's action, or its actions for all rows if it has a mask in `wanted`.

    `outputs` is (policies, rows, numbers). Rows that want no action get zeros. A policy without wanted rows gets None.
    """
    rows = _WantedRows(wanted, outputs.shape[1])
    first, space = policies[0], policies[0].action_space
    if not isinstance(space, Discrete):
        if outputs.shape[-1] != np.prod(space.shape):
            raise ValueError(f"The network gives {outputs.shape[-1]} numbers for the actions of {space}.")
        if not first.deterministic:
            widths = np.stack([np.broadcast_to(np.exp(policy.log_std), outputs.shape[2:]) for policy in policies])
            outputs = outputs + widths[:, None] * rows.noise(outputs.shape, policies, normal=True)
        actions = outputs.reshape(*outputs.shape[:2], *space.shape)
        return rows.split(np.clip(actions, space.low, space.high).astype(space.dtype))
    if outputs.shape[-1] != space.n:
        raise ValueError(f"The network gives {outputs.shape[-1]} logits for the actions of {space}.")
    logits = outputs.astype(np.float64)
    if mask is not None:
        legal = mask.reshape(logits.shape).astype(bool)
        legal |= ~legal.any(-1, keepdims=True)  # rows of agents that are not there have masks of zeros
        logits[~legal] = -np.inf
    if first.deterministic:
        return rows.split(logits.argmax(-1) + space.start)
    logits -= logits.max(-1, keepdims=True)
    sums = np.cumsum(np.exp(logits, out=logits), axis=-1, out=logits)
    noise = rows.noise(outputs.shape[:2], policies, normal=False)
    sampled: Array = (sums <= noise[..., None] * sums[..., -1:]).argmin(-1) + space.start  # the first sum above it
    return rows.split(sampled)


class _WantedRows:
    """The rows of each policy that want an action."""

    def __init__(self, wanted: Sequence[Mask | None], num_rows: int) -> None:
        self._given = wanted
        self._is_single = set(map(type, wanted)) == {type(None)}
        self._masks = (
            [] if self._is_single else [np.ones(1, bool) if own is None else np.asarray(own) for own in wanted]
        )
        self._is_full: list[bool] = [self._is_single] * len(wanted)
        if {len(own) for own in self._masks} == {num_rows}:
            full: Any = np.stack(self._masks).all(1)
            self._is_full = [own and given is not None for own, given in zip(full.tolist(), wanted, strict=True)]

    def noise(self, shape: tuple[int, ...], policies: Sequence[SamplingPolicy], *, normal: bool) -> Array:
        """Return random numbers from the policies' generators as an array, with zeros in rows that want no action."""
        if self._is_single and not normal:
            return np.array([policy.generator.random() for policy in policies]).reshape(shape)
        noise = np.zeros(shape)
        for place, policy in enumerate(policies):
            draw: Any = policy.generator.standard_normal if normal else policy.generator.random
            if self._is_full[place]:
                draw(out=noise[place])
            else:
                rows = np.flatnonzero(self._masks[place])
                noise[place, rows] = draw((len(rows), *shape[2:]))
        return noise

    def split(self, actions: Array) -> list[Any]:
        """Return each policy's own part of the actions."""
        if self._is_single:
            return actions[:, 0].tolist() if actions.ndim == 2 else list(actions[:, 0])
        places = enumerate(self._is_full)
        return [actions[place] if full else self._part(place, actions[place]) for place, full in places]

    def _part(self, place: int, actions: Array) -> Any:
        mask = self._masks[place]
        if self._given[place] is None:
            return actions[0].item() if actions.ndim == 1 else actions[0]
        if not mask.any():
            return None
        own = actions[: len(mask)]
        own[~mask.astype(bool)] = 0
        return own


# ---- the policy -----------------------------------------------------------------------------------------------------


class TorchPolicy(AgentPolicy):
    """Samples the action that a network suggests, with random numbers from a generator of its own.

    For Discrete actions the network gives logits, for Box the mean of a normal distribution, whose logarithmic standard
    deviation is `log_std` (a number, or the module's attribute of this name). A network with `initial_state(num_rows)`
    is recurrent: `forward(features, state)` gives outputs and the next state. An observation that is a dict has
    `"observation"`, and `"action_mask"` if actions are masked.

    Args:
        module: The network.
        action_space: Discrete or Box.
        seed: Seed of the generator.
        deterministic: Take the best action, or the mean, without sampling.
        log_std: For Box. None: the module's own, else 0.
    """

    @suggests_keywords
    def __init__(
        self,
        module: nn.Module,
        action_space: Space[Any],
        *,
        seed: int = 0,
        deterministic: bool = False,
        log_std: float | None = None,
    ) -> None:
        if not isinstance(action_space, Discrete | Box):
            raise TypeError(f"{action_space} was given: a TorchPolicy acts in Discrete and Box spaces only.")
        self.module, self.action_space, self.deterministic = module, action_space, deterministic
        self.version = 0
        """Grows with every `load_state_dict`."""
        self.generator = np.random.default_rng(seed)
        self._log_std = log_std
        self._memory: Any = None

    def step(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            batch: Any = {key: np.asarray(part)[None] for key, part in observation.items()}
        else:
            batch = np.asarray(observation)[None]
        action = self.step_batch(batch, np.zeros(1, np.intp))[0]
        return action if action.ndim else action.item()

    def step_batch(self, observations: Any, rows: Rows | None = None) -> Array:
        """Return actions for the rows of a batch. `rows` numbers their episodes, for recurrent networks."""
        features, mask = parted(observations)
        rows = np.arange(len(features)) if rows is None else rows
        with torch.inference_mode(), one_torch_thread():
            tensor = torch.as_tensor(features, dtype=torch.float32)
            outputs = (self._forward_recurrent(tensor, rows) if self.is_recurrent else self.module(tensor)).numpy()
        actions: Array = choose(outputs[None], mask, [np.ones(len(outputs), bool)], [self])[0]
        return actions

    def _forward_recurrent(self, features: Tensor, rows: Rows) -> Tensor:
        self._add_memory(int(rows.max()) + 1)
        before = tuple(part[rows] for part in self._memory)
        out: Tensor
        out, state = self.module(features, before)
        if _shapes(state) != _shapes(before):
            raise ValueError(
                f"{type(self.module).__name__} returned a state of {_shapes(state)} for one of {_shapes(before)}. "
                "Return a tuple of tensors of the same shapes."
            )
        for part, new in zip(self._memory, state, strict=True):
            part[rows] = new
        return out

    @property
    def is_recurrent(self) -> bool:
        return hasattr(self.module, "initial_state")

    def _add_memory(self, num_rows: int) -> None:
        """Add initial states until every row has one."""
        have = 0 if self._memory is None else len(self._memory[0])
        if have < num_rows:
            fresh = self._initial_state(num_rows - have)
            self._memory = (
                fresh if not have else tuple(torch.cat(pair) for pair in zip(self._memory, fresh, strict=True))
            )

    def _initial_state(self, num_rows: int) -> Any:
        state = self.module.initial_state(num_rows)  # type: ignore[operator]  # an nn.Module's attribute
        if not isinstance(state, tuple | list) or any(len(part) != num_rows for part in state):
            raise ValueError(
                f"initial_state({num_rows}) of {type(self.module).__name__} returned {_shapes(state)}. Return a tuple "
                "of tensors with the rows along the first axis."
            )
        return tuple(state)

    @torch.inference_mode()
    def reset(self, rows: Rows | None = None) -> None:
        if rows is None:
            self._memory = None
        elif self.is_recurrent and self._memory is not None and len(rows):
            self._add_memory(int(np.max(rows)) + 1)
            for part, fresh in zip(self._memory, self._initial_state(len(rows)), strict=True):
                part[rows] = fresh

    def get_state(self) -> dict[str, Any]:
        """Return the states of the generator and of a recurrent network. Weights are not included."""
        memory = None if self._memory is None else [part.numpy().copy() for part in self._memory]
        return {"generator": copy.deepcopy(self.generator.bit_generator.state), "memory": memory}

    def set_state(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        memory = state["memory"]
        self._memory = None if memory is None else tuple(torch.tensor(part) for part in memory)

    def load_state_dict(self, weights: Any) -> None:
        """Load new weights into the network. If they do not fit, raise before anything has changed."""
        self.check_weights(weights)
        self.module.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
        self.version += 1

    def check_weights(self, weights: Any) -> None:
        """Raise ValueError if these are not weights of such a network."""
        own = self.module.state_dict()
        odd = {name for name in {*own, *weights} if name not in own or name not in weights}
        odd |= {name for name in own if name not in odd and tuple(own[name].shape) != np.shape(weights[name])}
        if odd:
            raise ValueError(
                f"The weights do not fit the network: {sorted(odd)} are missing, unknown or of another shape."
            )

    @property
    def log_std(self) -> Array:
        if self._log_std is not None:
            return np.asarray(self._log_std)
        own = getattr(self.module, "log_std", None)
        return np.zeros(()) if own is None else own.detach().numpy()

    # ---- batched forward: see `StackedGroup` in `local.py` ----------------------------------------------------------

    @property
    def can_be_stacked(self) -> bool:
        """True if an action depends on one row of a batch only, and only the network computes it."""
        own = type(self)
        return not self.is_recurrent and own.step is TorchPolicy.step and own.step_batch is TorchPolicy.step_batch

    def stack_signature(self) -> Any:
        """Return a value that is equal for policies that may be computed in one pass; None if this one may not."""
        if not self.can_be_stacked:
            return None
        return type(self), signature(self.module), repr(self.action_space), self.deterministic

    new_gathering = staticmethod(GatheringBuffer)
    """Makes the buffer that gathers the observations of several of these policies."""

    @staticmethod
    def compute_stacked(stack: Callable[[Tensor], Tensor], features: Array) -> Array:
        """Return the outputs of all policies, each for its own rows."""
        return stack(torch.from_numpy(features)).numpy()

    choose_stacked = staticmethod(choose)
    """Makes actions of the outputs of all policies."""


def _shapes(state: Any) -> Any:
    return [tuple(part.shape) for part in state] if isinstance(state, tuple | list) else type(state).__name__
