"""Policy that acts for a learner: a copy of its actor, which gets the new weights after each update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parallel_envs.learners.distributions import Head
from parallel_envs.learners.networks import ObservationEncoder
from parallel_envs.policies import AgentPolicy
from parallel_envs.threads import one_torch_thread
from parallel_envs.wrappers.torch_policy import signature

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Request = tuple[Any, Flags | None]
"""Observations of one policy, and the rows that need an action. None: a single observation."""


class LearnerPolicy(AgentPolicy):
    """Policy with a network and its own random generator. A recurrent network has a memory for each row.

    `PerAgentBatchWrapper` computes policies whose networks have one shape in one pass, as it does for `TorchPolicy`.

    Args:
        module: The network. The policy changes it, so give a copy.
        encoder: Encoder of the observations.
        head: Turns outputs into actions.
        seed: Seed of the random generator.
        deterministic: Take the most likely action, without random numbers.
    """

    def __init__(
        self, module: nn.Module, encoder: ObservationEncoder, head: Head, *, seed: int = 0, deterministic: bool = False
    ) -> None:
        self.module, self.encoder, self.head = module.requires_grad_(False), encoder, head
        self.deterministic = deterministic
        self.generator = np.random.default_rng(seed)
        self._memory: tuple[Tensor, ...] | None = None

    def step(self, observation: Any) -> Any:
        action = self.step_batch(_as_batch(observation), np.zeros(1, np.intp))[0]
        return action if action.ndim else action.item()

    def step_batch(self, observations: Any, rows: Rows | None = None) -> Array:
        """Return actions for the rows of a batch. `rows`: the number of each row's episode."""
        features, mask = self.encoder.numbers(observations)
        rows = np.arange(len(features)) if rows is None else rows
        with torch.inference_mode(), one_torch_thread():
            outputs = self._forward(torch.as_tensor(features), rows).numpy()
        if self.deterministic:
            return self.head.best(outputs, mask)
        return self.head.choose(outputs, mask, self.head.noise(self.generator, len(outputs)))

    def _forward(self, features: Tensor, rows: Rows) -> Tensor:
        if not self.is_recurrent:
            out: Tensor = self.module(features)
            return out
        memory = self._memory_of(int(rows.max()) + 1)
        before = tuple(part[rows] for part in memory)
        out, state = self.module(features, before)
        if not (seen := features.isfinite().all(-1)).all():  # features that are not finite leave the memory unchanged
            for new, old in zip(state, before, strict=True):
                new[~seen] = old[~seen]
        for part, new in zip(memory, state, strict=True):
            part[rows] = new
        return out

    # ---- memory and state -------------------------------------------------------------------------------------------

    @property
    def is_recurrent(self) -> bool:
        """True if the network has a memory."""
        return hasattr(self.module, "initial_state")

    def _memory_of(self, num_rows: int) -> tuple[Tensor, ...]:
        """Return the memory, extended to at least `num_rows` rows."""
        module: Any = self.module
        if self._memory is None:
            self._memory = module.initial_state(num_rows)
        elif (missing := num_rows - len(self._memory[0])) > 0:
            fresh = module.initial_state(missing)
            self._memory = tuple(torch.cat(pair) for pair in zip(self._memory, fresh, strict=True))
        memory: Any = self._memory
        return tuple(memory)

    @torch.inference_mode()
    def reset(self, rows: Rows | None = None) -> None:
        if rows is None:
            self._memory = None
        elif self.is_recurrent and len(rows):
            for part in self._memory_of(int(np.max(rows)) + 1):
                part[rows] = 0.0

    def get_state(self) -> dict[str, Any]:
        """Return the state of the generator and the memory, without the weights."""
        memory = None if self._memory is None else [part.numpy().copy() for part in self._memory]
        return {"generator": copy.deepcopy(self.generator.bit_generator.state), "memory": memory}

    def set_state(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        memory = state["memory"]
        self._memory = None if memory is None else tuple(torch.tensor(part) for part in memory)

    def load_state_dict(self, weights: Any) -> None:
        """Copy the weights of a network of the same shape."""
        self.module.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})

    # ---- many policies in one pass ----------------------------------------------------------------------------------

    def stack_signature(self) -> Any:
        """Return a key that is equal for policies that can be computed in one pass; None for a recurrent one."""
        if self.is_recurrent:
            return None
        return type(self), signature(self.module), repr(self.encoder.space), repr(self.head.space), type(self.head)

    def new_gathering(self, num_policies: int) -> Callable[[Collection[Request]], tuple[Array, Array | None]]:
        """Return a function that encodes the observations of several policies as (policies, rows, ...)."""

        def gather(requests: Collection[Request]) -> tuple[Array, Array | None]:
            seen = [_as_batch(observation) if wanted is None else observation for observation, wanted in requests]
            parts = [self.encoder.numbers(batch) for batch in seen]
            masks = [mask for _, mask in parts if mask is not None]
            return np.stack([features for features, _ in parts]), np.stack(masks) if masks else None

        return gather

    def compute_stacked(self, stack: Callable[[Tensor], Tensor], features: Array) -> Array:
        """Return the outputs of all policies, each for its own rows."""
        return stack(torch.from_numpy(features)).numpy()

    def choose_stacked(
        self, outputs: Array, mask: Array | None, wanted: Sequence[Flags | None], policies: Sequence[LearnerPolicy]
    ) -> list[Any]:
        """Return each policy's actions for all rows: zeros in rows that need none; None if no row needs one."""
        if all(own is not None and own.all() for own in wanted):  # the usual case
            if self.deterministic:
                return list(self.head.best(outputs, mask))
            drawn = [
                policy.head.noise(policy.generator, len(own))
                for policy, own in zip(policies, wanted, strict=True)
                if own is not None
            ]
            return list(self.head.choose(outputs, mask, np.stack(drawn)))
        rows = [np.zeros(1, np.intp) if own is None else np.flatnonzero(own) for own in wanted]
        if self.deterministic:
            actions = self.head.best(outputs, mask)
        else:
            drawn = [policy.head.noise(policy.generator, len(own)) for policy, own in zip(policies, rows, strict=True)]
            noise = np.zeros((*outputs.shape[:2], drawn[0].shape[-1]))
            for place, own, numbers in zip(noise, rows, drawn, strict=True):
                place[own] = numbers
            actions = self.head.choose(outputs, mask, noise)
        results: list[Any] = []
        for own, needed, request in zip(actions, rows, wanted, strict=True):
            if request is None:  # a single observation
                results.append(own[0] if own.ndim > 1 else own[0].item())
            elif len(needed):
                zeros = np.zeros_like(own)
                zeros[needed] = own[needed]
                results.append(zeros)
            else:
                results.append(None)
        return results


def _as_batch(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: np.asarray(part)[None] for key, part in observation.items()}
    return np.asarray(observation)[None]
