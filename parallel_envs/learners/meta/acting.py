"""The learner's network as a policy that `collect` calls for many rollouts at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parallel_envs.learners.algorithm import Algorithm
from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.threads import one_torch_thread


class NetworkRows(BatchPolicy):
    """Acts with a network; what it remembers of a rollout travels with the rollout's row, and begins as zeros.

    Draws come from each row's own generator, and no operation looks from one row to another: what a row does depends on
    its own rollout. Up to rounding, that is: a product of matrices may round a row differently in a batch of another
    size or at another place in it. In batches of one row (`exact`) there is no such difference.

    Args:
        module: The network that acts, which stays the learner's: what that learns shows at once.
        algorithm: How observations become numbers and outputs actions.
        deterministic: Take the likeliest action, and draw nothing.
    """

    def __init__(self, module: nn.Module, algorithm: Algorithm, *, deterministic: bool = False) -> None:
        self.module: Any = module
        self.encoder, self.head, self.deterministic = algorithm.encoder, algorithm.head, deterministic

    def initial_state(self, num_rows: int) -> Any:
        if not hasattr(self.module, "initial_state"):
            return ()
        return tuple(part.numpy() for part in self.module.initial_state(num_rows))

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        features, mask = self.encoder.numbers(observations)
        with torch.inference_mode(), one_torch_thread():
            outputs, state = self._forward(torch.as_tensor(features), state)
        if self.deterministic:
            return self.head.best(outputs.numpy(), mask), state
        noise = np.concatenate([self.head.noise(generator, 1) for generator in rows.generators])
        return self.head.choose(outputs.numpy(), mask, noise), state

    def _forward(self, features: Tensor, state: Any) -> tuple[Tensor, Any]:
        if not state:
            return self.module(features), state
        outputs, after = self.module(features, tuple(torch.as_tensor(part) for part in state))
        return outputs, tuple(part.numpy() for part in after)
