"""What algorithms that learn from a replay buffer have in common: settings, minibatches, slow copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_envs.choices import Activation
from parallel_envs.field_texts import documents_fields
from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig, Plan
from parallel_envs.learners.fields import check_not_negative, check_positive, check_share, check_whole
from parallel_envs.learners.parameters import Strip


@documents_fields
@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Settings that they share. Steps are those of the agent's environments together."""

    max_grad_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    activation: Activation = "relu"
    """What stands between hidden layers."""
    buffer_size: int = 50_000
    """Steps that are remembered."""
    learning_starts: int = 1_000
    """Steps before the first update."""
    train_interval: int = 4
    """Steps of each environment between two updates."""
    gradient_steps: int = 1
    """Steps of Adam in an update."""
    batch_size: int = 64
    """Steps of a minibatch."""
    target_rate: float = 0.005
    """How far the target network goes towards the network each time (1: all the way)."""
    target_interval: int = 1
    """Steps of Adam between two moves of the target network."""
    num_steps: int = 1
    """n of n-step returns: rewards of so many steps are summed up before a value is taken for the rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "buffer_size", "train_interval", "gradient_steps", "batch_size", "target_interval")
        check_positive(self, "num_steps", "target_rate")
        check_whole(self, "buffer_size", "train_interval", "gradient_steps", "batch_size", "target_interval")
        check_whole(self, "num_steps", "learning_starts")
        check_not_negative(self, "learning_starts")
        check_share(self, "target_rate")
        if self.batch_size > self.buffer_size:
            raise ValueError(
                f"{type(self).__name__}.batch_size={self.batch_size} is larger than buffer_size={self.buffer_size}. "
                "Give a larger buffer or a smaller batch."
            )


def sampled(algorithm: Algorithm, memory: Any, generator: np.random.Generator) -> Plan:
    """Minibatches out of a buffer, all drawn at once."""
    config: Any = algorithm.config
    shape = config.gradient_steps, config.batch_size
    drawn = memory.sample(generator, shape[0] * shape[1])
    arrays = {name: drawn[name] for name in ("rewards", "discounts")}
    arrays["actions"] = algorithm.head.numbers(drawn["actions"])
    if getattr(config, "prioritized", 0.0):
        arrays["indices"] = drawn["indices"]  # to tell the buffer afterwards what each taught
    for name, observations in (("", drawn["observations"]), ("next_", drawn["next_observations"])):
        features, mask = algorithm.sight.numbers(observations)
        arrays[f"{name}features"] = features
        if mask is not None:
            arrays[f"{name}mask"] = mask
    arrays["next_features"][arrays["discounts"] == 0] = 0  # counts nothing, and may be anything: 0 times NaN is NaN
    weights = np.asarray(drawn["weights"], np.float32).reshape(shape)
    return Plan(arrays, np.arange(shape[0] * shape[1]).reshape(shape), weights)


def follow(config: ReplayConfig, strip: Strip, active: Tensor) -> None:
    """Slow copies of the first trained parameters go towards them, in the rows that took a step."""
    due = active & (strip.steps % config.target_interval == 0)
    sources = strip.weights[:, : strip.targets.shape[1]]
    if due.all():
        strip.targets.lerp_(sources, config.target_rate)
    else:
        for row in torch.nonzero(due).flatten().tolist():
            strip.targets[row].lerp_(sources[row], config.target_rate)
