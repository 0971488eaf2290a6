"""Networks that the torch policies are tested with. Workers import this module by its name; it needs torch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from parallel_envs.policies.torch_policy import TorchPolicy

FOUR = spaces.Discrete(4, start=2)
BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)


def mlp(seed: int, hidden: int = 16, num_in: int = 6, num_out: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(num_in, hidden), nn.Tanh(), nn.Linear(hidden, num_out))


class Recurrent(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 4)

    def initial_state(self, num_rows: int) -> Any:
        return (torch.zeros(num_rows, 8),)

    def forward(self, features: Any, state: Any) -> Any:
        hidden = self.cell(features, state[0])
        return self.head(hidden), (hidden,)


class Misshapen(Recurrent):
    """Has its rows along the second axis, as `nn.GRU` has."""

    def initial_state(self, num_rows: int) -> Any:
        return (torch.zeros(1, num_rows, 8),)


class Forgetful(Recurrent):
    def __init__(self, seed: int, state: Any) -> None:
        super().__init__(seed)
        self.state = state

    def forward(self, features: Any, state: Any) -> Any:
        return super().forward(features, state)[0], self.state


class Scaled(nn.Module):
    def __init__(self, seed: int, scale: float) -> None:
        super().__init__()
        self.layers, self.scale = mlp(seed), scale

    def forward(self, features: Any) -> Any:
        return self.layers(features) * self.scale


class Mlp(nn.Module):
    """Has the name of one of ours, and does something else."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers = mlp(seed)

    def forward(self, features: Any) -> Any:
        return -self.layers(features)


class Noisy(nn.Linear):
    def forward(self, features: Any) -> Any:
        return super().forward(features) * 3 + 1


class Reading(nn.Module):
    """Reads a number from a tensor, for which `torch.vmap` has no rule."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers = mlp(seed)

    def forward(self, features: Any) -> Any:
        return self.layers(features) * (2.0 if features.sum().item() > 0 else 1.0)


class WithStd(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layers = mlp(seed, num_out=2)
        self.log_std = nn.Parameter(torch.full((2,), -0.5 * (seed + 1)))

    def forward(self, features: Any) -> Any:
        return self.layers(features)


class Slow(nn.Module):
    def forward(self, features: Any) -> Any:
        time.sleep(0.03)
        return features


# ---- policies ------------------------------------------------------------------------------------


def discrete(seed: int, **more: Any) -> TorchPolicy:
    return TorchPolicy(mlp(seed), FOUR, seed=seed, **more)


def several(agents: str = "abc", **more: Any) -> dict[str, Any]:
    return {agent: discrete(seed, **more) for seed, agent in enumerate(agents)}


def mixed() -> dict[str, Any]:
    """Equal shapes, another shape, a recurrent one, Box actions, a shared one, a deterministic one."""
    shared = discrete(4)
    return {
        "a": discrete(0),
        "b": TorchPolicy(mlp(1, hidden=5), FOUR, seed=1),
        "c": discrete(2),
        "d": TorchPolicy(Recurrent(3), FOUR, seed=3),
        "e": shared,
        "f": shared,
        "g": TorchPolicy(WithStd(5), BOX, seed=5),
        "h": TorchPolicy(WithStd(6), BOX, seed=6),
        "i": discrete(7, deterministic=True),
    }


def observed(agent: str, seed: int, rows: int | None = None) -> Any:
    """An observation, or a batch; those of `a` and `c` have an action mask."""
    generator = np.random.default_rng([seed, ord(agent)])
    shape = () if rows is None else (rows,)
    array = generator.standard_normal((*shape, 2, 3)).astype(np.float32)
    if agent not in "ac":
        return array
    mask = generator.integers(2, size=(*shape, 4), dtype=np.int8)
    mask[..., 1] = 1
    return {"observation": array, "action_mask": mask}


def plain(agents: Any, seed: int) -> dict[str, Any]:
    return {agent: np.random.default_rng([seed, ord(agent)]).standard_normal(6) for agent in agents}
