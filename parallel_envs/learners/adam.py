"""Adam for many agents at once, each as if it were alone.

Adam works number by number, so agents in one matrix cannot touch one another: each row has its own gradient norm, step
count and learning rate. A row that is not active keeps everything, its step count too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from parallel_envs.learners.parameters import LANES, Strip

BETAS = 0.9, 0.999


def clip_rows(gradient: Tensor, norms: Tensor, limits: Tensor) -> None:
    """Shorten each row whose norm is above its own limit, in place."""
    gradient.mul_((limits / (norms + 1e-6)).clamp(max=1.0)[:, None])


def step_rows(
    strip: Strip, gradient: Tensor, active: Sequence[bool], rates: Sequence[float], epsilon: float = 1e-8
) -> None:
    """One step of Adam for the active rows of a strip, each with its own learning rate."""
    if all(active) and len(set(rates)) == 1 and len(set(strip.steps.tolist())) == 1 and gradient.shape[1] % LANES == 0:
        _step(rates[0], epsilon, [strip.weights], [gradient], [strip.first], [strip.second], [strip.steps[0].clone()])
        strip.steps.add_(1)
        return  # as usual: all rows as if they were one, and to the bit the same
    for rate in dict.fromkeys(rate for rate, wanted in zip(rates, active, strict=True) if wanted):
        rows = [row for row, wanted in enumerate(active) if wanted and rates[row] == rate]
        parts = (_rows(tensor, rows) for tensor in (strip.weights, gradient, strip.first, strip.second, strip.steps))
        _step(rate, epsilon, *parts)


@torch.no_grad()
def _step(
    rate: float,
    epsilon: float,
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
) -> None:
    """`steps` are counted up, too."""
    adam(
        weights,
        gradients,
        first,
        second,
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=rate,
        weight_decay=0.0,
        eps=epsilon,
        maximize=False,
    )


def _rows(tensor: Tensor, rows: list[int]) -> list[Tensor]:
    each = tensor.unbind()
    return [each[row] for row in rows]
