"""What acts for an agent while its brain is away learning: a copy of the actor, on the side that collects."""

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
"""Names of what is added to a plan: see `PPO.prepare`."""


class Understudy:
    """The weights that act, and what they say of what was done with them.

    Args:
        learner: Whose they are. Its brain is looked at here only, while it is not learning.
    """

    def __init__(self, learner: AgentLearner) -> None:
        self._learner, self._algorithm = learner, learner.algorithm
        self.actor: Any = copy.deepcopy(learner.parameters.module.actor).requires_grad_(False)

    def adopt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Act with these from now on. Returns what the policy is to load: with exploration as it is due."""
        self.actor.load_state_dict(weights)
        actor: Any = self  # `explore` looks at nothing but the part that acts
        self._algorithm.explore(actor, self._learner.counters["steps"])
        return {name: tensor.clone() for name, tensor in self.actor.state_dict().items()}

    @torch.inference_mode()
    def witnessed(self, plan: Plan, *, corrected: bool) -> tuple[Plan, Any]:
        """A plan on-policy with how likely each action was (its logarithm) for the weights that took it.

        `corrected`: the advantages are to be corrected for it. Also returns what a recurrent network remembers at the
        end; None for others.
        """
        arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in plan.arrays.items()}
        outputs, carry = self._outputs(arrays)
        mask = arrays["mask"][:-1] if "mask" in arrays else None
        added = {BEHAVIOUR: self._algorithm.head.log_prob(outputs, arrays["actions"], mask).numpy()}
        if corrected:
            added[CORRECTED] = np.ones(arrays["rewards"].shape, np.bool_)
        return dataclasses.replace(plan, arrays={**plan.arrays, **added}), carry

    def _outputs(self, arrays: dict[str, Tensor]) -> tuple[Tensor, Any]:
        """For all observations but the last; and what is remembered before that."""
        if not hasattr(self.actor, "unroll"):
            outputs: Tensor = self.actor(arrays["features"][:-1])
            return outputs, None
        features, begins = arrays["features"].transpose(0, 1), arrays["begins"].transpose(0, 1)
        held = arrays["held"].transpose(0, 1) if "held" in arrays else None
        remembered, carry = self.actor.unrolled(features, begins, arrays["memory"], held)
        return self.actor.head(remembered[:, :-1]).transpose(0, 1), carry.numpy()
