"""The policy that acts for an agent while its parameters is away learning: a copy of the actor."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Plan

BEHAVIOUR, CORRECTED = "behaviour", "corrected"
"""Names of the arrays that `with_log_probs` adds to a plan: see `PPO.prepare`."""


class BehaviorPolicy:
    """Holds the weights that act, and computes how likely their actions were.

    Args:
        learner: The agent's learner. Its parameters is read here only, while it is not learning.
    """

    def __init__(self, learner: AgentLearner) -> None:
        self._learner, self._algorithm = learner, learner.algorithm
        self.actor: Any = copy.deepcopy(learner.parameters.module.actor).requires_grad_(False)

    def load(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take over these weights. Returns weights for the acting policy, with exploration as it is due."""
        self.actor.load_state_dict(weights)
        actor: Any = self  # `explore` reads nothing but the attribute `actor`
        self._algorithm.explore(actor, self._learner.counters["steps"])
        return {name: tensor.clone() for name, tensor in self.actor.state_dict().items()}

    @torch.inference_mode()
    def with_log_probs(self, plan: Plan, *, corrected: bool) -> tuple[Plan, Any]:
        """Return an on-policy plan with the log-probability of each action under the weights that took it.

        `corrected` marks the plan's advantages as to be corrected by them. The second value is the final memory of a
        recurrent network, None for others.
        """
        arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in plan.arrays.items()}
        if hasattr(self.actor, "unroll"):
            features, begins = arrays["features"].transpose(0, 1), arrays["begins"].transpose(0, 1)
            held = arrays["held"].transpose(0, 1) if "held" in arrays else None
            remembered, carry = self.actor.unrolled(features, begins, arrays["memory"], held)
            outputs, carry = self.actor.head(remembered[:, :-1]).transpose(0, 1), carry.numpy()
        else:
            outputs, carry = self.actor(arrays["features"][:-1]), None
        mask = arrays["mask"][:-1] if "mask" in arrays else None
        added = {BEHAVIOUR: self._algorithm.head.log_prob(outputs, arrays["actions"], mask).numpy()}
        if corrected:
            added[CORRECTED] = np.ones(arrays["rewards"].shape, np.bool_)
        return dataclasses.replace(plan, arrays={**plan.arrays, **added}), carry
