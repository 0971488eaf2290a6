"""Advantages, corrected for actions that another policy has chosen."""

from __future__ import annotations

import numpy as np
import torch

from parallel_envs.learners.ppo import advantages_and_returns

STEPS, ROWS, DISCOUNT, TRACE = 9, 4, 0.9, 0.8


def life(seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    source = np.random.default_rng(seed)
    lived = {name: torch.from_numpy(source.random((ROWS, STEPS)) < 0.2) for name in ("terminated", "truncated")}
    lived["valid"] = torch.from_numpy(source.random((ROWS, STEPS)) < 0.9)
    lived["rewards"] = torch.from_numpy(source.standard_normal((ROWS, STEPS)).astype(np.float32))
    values = torch.from_numpy(source.standard_normal((ROWS, STEPS + 1)).astype(np.float32))
    return lived, values, torch.from_numpy(source.uniform(0.2, 2.0, (ROWS, STEPS)).astype(np.float32))


def test_a_policy_that_chose_its_actions_itself_needs_no_correction() -> None:
    lived, values, ratios = life()
    plain = advantages_and_returns(lived, values, DISCOUNT, TRACE)
    corrected = advantages_and_returns(lived, values, DISCOUNT, TRACE, torch.ones_like(ratios))
    for one, other in zip(plain, corrected, strict=True):
        np.testing.assert_allclose(one[lived["valid"]], other[lived["valid"]], atol=1e-5)


def test_vtrace_is_its_definition() -> None:
    """Sums over what followed: each term is what a step brought, weighed by all cuts up to it."""
    lived, values, ratios = life(1)
    advantages, returns = advantages_and_returns(lived, values, DISCOUNT, TRACE, ratios)
    cuts = ratios.clamp(max=1.0).numpy()
    ahead = lived["rewards"] + DISCOUNT * values[:, 1:] * ~lived["terminated"]
    brought = (ahead - values[:, :-1]).numpy()

    def lead(row: int, step: int) -> float:
        total, weight = 0.0, 1.0
        for later in range(step, STEPS):
            if not lived["valid"][row, later]:
                break
            total += weight * cuts[row, later] * brought[row, later]
            weight *= DISCOUNT * TRACE * cuts[row, later]
            if lived["terminated"][row, later] or lived["truncated"][row, later]:
                break
        return total

    for row in range(ROWS):
        for step in range(STEPS):
            if not lived["valid"][row, step]:
                continue
            ends = lived["terminated"][row, step] or lived["truncated"][row, step] or step == STEPS - 1
            behind = 0.0 if ends else DISCOUNT * TRACE * lead(row, step + 1)
            np.testing.assert_allclose(returns[row, step], values[row, step] + lead(row, step), atol=1e-5)
            np.testing.assert_allclose(advantages[row, step], brought[row, step] + behind, atol=1e-5)


def test_filler_says_nothing() -> None:
    lived, values, ratios = life(2)
    before = advantages_and_returns(lived, values, DISCOUNT, TRACE, ratios)
    gone = ~lived["valid"]
    lived["rewards"] = torch.where(gone, torch.inf, lived["rewards"])
    after = advantages_and_returns(lived, values, DISCOUNT, TRACE, torch.where(gone, torch.nan, ratios))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one[lived["valid"]], other[lived["valid"]])
