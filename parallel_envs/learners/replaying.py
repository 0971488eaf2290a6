"""Shared parts of the algorithms that learn from a replay buffer: settings, minibatches, target networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_envs.choices import Activation
from parallel_envs.field_texts import documents_fields
from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig, Plan, check_fields
from parallel_envs.learners.parameters import ParameterMatrix


@documents_fields
@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Settings of algorithms with a replay buffer. Steps are counted over all of the agent's environments."""

    max_grad_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    activation: Activation = "relu"
    """Activation between hidden layers."""
    buffer_size: int = 50_000
    """Steps that the replay buffer holds."""
    learning_starts: int = 1_000
    """Steps before the first update."""
    train_interval: int = 4
    """Steps of each environment between two updates."""
    gradient_steps: int = 1
    """Steps of Adam in an update."""
    batch_size: int = 64
    """Steps of a minibatch."""
    target_rate: float = 0.005
    """How far the target network moves towards the network each time (1: all the way)."""
    target_interval: int = 1
    """Steps of Adam between two moves of the target network."""
    num_steps: int = 1
    """n of n-step returns: the rewards of so many steps are summed before the value of the next observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = "buffer_size", "train_interval", "gradient_steps", "batch_size", "target_interval", "num_steps"
        check_fields(self, "positive", *counts, "target_rate")
        check_fields(self, "whole", *counts, "learning_starts")
        check_fields(self, "not negative", "learning_starts")
        check_fields(self, "share", "target_rate")
        if self.batch_size > self.buffer_size:
            raise ValueError(
                f"{type(self).__name__}.batch_size={self.batch_size} is larger than buffer_size={self.buffer_size}. "
                "Give a larger buffer or a smaller batch."
            )


def sampled(algorithm: Algorithm, memory: Any, generator: np.random.Generator) -> Plan:
    """Return a plan of minibatches from a replay buffer, all sampled at once."""
    config: Any = algorithm.config
    shape = config.gradient_steps, config.batch_size
    drawn = memory.sample(generator, shape[0] * shape[1])
    arrays = {name: drawn[name] for name in ("rewards", "discounts")}
    arrays["actions"] = algorithm.head.numbers(drawn["actions"])
    if getattr(config, "prioritized", 0.0):
        arrays["indices"] = drawn["indices"]  # for the buffer, which gets each row's error after the update
    for name, observations in (("", drawn["observations"]), ("next_", drawn["next_observations"])):
        features, mask = algorithm.encoder.numbers(observations)
        arrays[f"{name}features"] = features
        if mask is not None:
            arrays[f"{name}mask"] = mask
    arrays["next_features"][arrays["discounts"] == 0] = 0  # unused, but may be NaN: 0 times NaN is NaN
    weights = np.asarray(drawn["weights"], np.float32).reshape(shape)
    return Plan(arrays, np.arange(shape[0] * shape[1]).reshape(shape), weights)


def follow(config: ReplayConfig, matrix: ParameterMatrix, active: Tensor) -> None:
    """Move the targets of the active rows towards the first trained parameters."""
    due = active & (matrix.steps % config.target_interval == 0)
    sources = matrix.weights[:, : matrix.targets.shape[1]]
    if due.all():
        matrix.targets.lerp_(sources, config.target_rate)
    else:
        for row in torch.nonzero(due).flatten().tolist():
            matrix.targets[row].lerp_(sources[row], config.target_rate)
