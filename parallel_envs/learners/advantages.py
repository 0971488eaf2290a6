"""How much better actions were than expected: estimates over trajectories, rows before steps.

Generalised advantage estimates (Schulman et al. 2015, arXiv 1506.02438), and the same corrected by V-trace (Espeholt et
al. 2018, arXiv 1802.01561) for actions that another policy has chosen: where the policy of now would hardly take an
action, what came of it says little about its values. If both policies are one, the two estimates are one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def advantages_and_returns(
    lived: Mapping[str, Tensor], values: Tensor, discount: float, trace: float, ratios: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advantages, and what the values should have been. Rows that are not valid have none, and pass none on.

    Args:
        lived: `rewards`, `terminated`, `truncated`, `valid`: (..., rows, steps).
        values: Of all observations: one more step.
        discount: What the next step's reward counts.
        trace: 1: whole returns; 0: one step and the value after it.
        ratios: How much likelier each action is now than it was for the policy that took it. None: equally.
    """
    ahead = torch.where(lived["terminated"], 0.0, discount * values[..., 1:])
    errors = torch.where(lived["valid"], lived["rewards"] + ahead - values[..., :-1], 0.0)
    if ratios is None:
        advantages = discounted_sums(errors, lived, discount * trace)
        return advantages, advantages + values[..., :-1]
    cuts = torch.where(lived["valid"], ratios, 1.0).clamp(max=1.0)
    leads = discounted_sums(cuts * errors, lived, discount * trace, cuts)
    following = torch.cat([leads[..., 1:], torch.zeros_like(leads[..., :1])], -1)
    behind = torch.where(_goes_on(lived), discount * trace * following, 0.0)
    return errors + behind, leads + values[..., :-1]


def discounted_sums(parts: Tensor, lived: Mapping[str, Tensor], factor: float, cuts: Tensor | None = None) -> Tensor:
    """Each step's part, and `factor` (times the step's cut) times the sum of the step after it, where it goes on."""
    goes_on, shares = _goes_on(lived).numpy(), None if cuts is None else cuts.numpy()
    sums = parts.clone().numpy()  # many small steps: NumPy takes half the time of torch for each
    with np.errstate(invalid="ignore", over="ignore"):
        for step in reversed(range(sums.shape[-1] - 1)):
            passed_on = np.where(goes_on[..., step], factor * sums[..., step + 1], 0.0)
            sums[..., step] += passed_on if shares is None else shares[..., step] * passed_on
    return torch.from_numpy(sums)


def _goes_on(lived: Mapping[str, Tensor]) -> Tensor:
    """Whether the episode goes on after a step."""
    return lived["valid"] & ~lived["terminated"] & ~lived["truncated"]
