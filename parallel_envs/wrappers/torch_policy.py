"""A torch network as an agent's policy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn

from parallel_envs.policies import AgentPolicy
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import one_torch_thread
from parallel_envs.wrappers.choosing import choose
from parallel_envs.wrappers.gathering import Gathering, parted
from parallel_envs.wrappers.stacked import signature

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]


class TorchPolicy(AgentPolicy):
    """Samples the action that a network suggests; draws come from a generator of its own.

    For Discrete actions the network gives logits, for Box the mean of a normal distribution, whose logarithmic standard
    deviation is `log_std` (a number, or the module's attribute of this name). A network with `initial_state(num_rows)`
    is recurrent: `forward(features, state)` gives outputs and the next state. An observation that is a dict has
    `"observation"`, and `"action_mask"` where actions are masked.

    Args:
        module: The network.
        action_space: Discrete or Box.
        seed: Where draws begin.
        deterministic: Take the best action, or the mean, and draw nothing.
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

    # ---- acting -----------------------------------------------------------------------------------------------------

    def step(self, observation: Any) -> Any:
        action = self.step_batch(_as_batch(observation), np.zeros(1, np.intp))[0]
        return action if action.ndim else action.item()

    def step_batch(self, observations: Any, rows: Rows | None = None) -> Array:
        """Actions for the rows of a batch. `rows` numbers the episodes that they belong to, for recurrent networks."""
        features, mask = parted(observations)
        rows = np.arange(len(features)) if rows is None else rows
        with torch.inference_mode(), one_torch_thread():
            outputs = self._forward(torch.as_tensor(features, dtype=torch.float32), rows).numpy()
        actions: Array = choose(outputs[None], mask, [np.ones(len(outputs), bool)], [self])[0]
        return actions

    def _forward(self, features: Tensor, rows: Rows) -> Tensor:
        if not self.is_recurrent:
            out: Tensor = self.module(features)
            return out
        self._remember(int(rows.max()) + 1)
        before = tuple(part[rows] for part in self._memory)
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

    def _remember(self, num_rows: int) -> None:
        """Have memory for so many rows."""
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
            self._remember(int(np.max(rows)) + 1)
            for part, fresh in zip(self._memory, self._initial_state(len(rows)), strict=True):
                part[rows] = fresh

    # ---- state and weights ------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The generator's state and what a recurrent network remembers. Not the weights."""
        memory = None if self._memory is None else [part.numpy().copy() for part in self._memory]
        return {"generator": copy.deepcopy(self.generator.bit_generator.state), "memory": memory}

    def set_state(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        memory = state["memory"]
        self._memory = None if memory is None else tuple(torch.tensor(part) for part in memory)

    def load_state_dict(self, weights: Any) -> None:
        """New weights for the network. All or none: what does not fit raises before anything has changed."""
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

    # ---- many at once -----------------------------------------------------------------------------------------------

    @property
    def can_be_stacked(self) -> bool:
        """Whether a row of a batch is all that an action depends on, and the network all that computes it."""
        own = type(self)
        return not self.is_recurrent and own.step is TorchPolicy.step and own.step_batch is TorchPolicy.step_batch

    def stack_signature(self) -> Any:
        """Equal for policies that may be computed in one pass; None if this one may not."""
        if not self.can_be_stacked:
            return None
        return type(self), signature(self.module), repr(self.action_space), self.deterministic

    new_gathering = staticmethod(Gathering)
    """Gathers what several of these policies see."""

    @staticmethod
    def compute_stacked(stack: Callable[[Tensor], Tensor], features: Array) -> Array:
        """The outputs of all policies, each for its own rows."""
        return stack(torch.from_numpy(features)).numpy()

    choose_stacked = staticmethod(choose)
    """From what their networks say to an action of each, drawn from its own generator."""

    @property
    def log_std(self) -> Array:
        if self._log_std is not None:
            return np.asarray(self._log_std)
        own = getattr(self.module, "log_std", None)
        return np.zeros(()) if own is None else own.detach().numpy()


def _shapes(state: Any) -> Any:
    return [tuple(part.shape) for part in state] if isinstance(state, tuple | list) else type(state).__name__


def _as_batch(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: np.asarray(part)[None] for key, part in observation.items()}
    return np.asarray(observation)[None]
