"""What `bench policies` computes: agents, their policies and observations, all decided beforehand.

Policies travel into workers, so nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.plan import Needs
from parallel_envs.policies import AgentPolicy

SEQUENTIAL, AUTO = "sequential", "auto"
SHIPPED = "executor, policy shipped"
"""Not a strategy: a `ProcessPoolExecutor` that gets the policy with every observation, and gives it back."""

_NUM_FEATURES, _NUM_HIDDEN, _NUM_ACTIONS = 8, 32, 4
_TURN_SECONDS = 0.02
_TORCH: Needs = (("torch", "torch"),)


class Spinning(AgentPolicy):
    """Burns processor time in pure Python. Its own thread's time is counted, so waiting for a turn is no progress."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, observation: Any) -> int:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return 0


class Sleeping(AgentPolicy):
    """Waits, as for a remote model."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, observation: Any) -> int:
        time.sleep(self.seconds)
        return 0


class Empty(AgentPolicy):
    """Does nothing: what is measured is what asking it costs."""

    def step(self, observation: Any) -> int:
        return 0


def network(number: int) -> Any:
    """A small network of its own weights, which acts by drawing."""
    import torch
    from gymnasium.spaces import Discrete
    from torch import nn

    from parallel_envs.wrappers.torch_policy import TorchPolicy

    torch.manual_seed(number)
    layers = [nn.Linear(_NUM_FEATURES, _NUM_HIDDEN), nn.Tanh(), nn.Linear(_NUM_HIDDEN, _NUM_HIDDEN), nn.Tanh()]
    return TorchPolicy(
        nn.Sequential(*layers, nn.Linear(_NUM_HIDDEN, _NUM_ACTIONS)), Discrete(_NUM_ACTIONS), seed=number
    )


@dataclass(frozen=True, kw_only=True)
class PolicyWork:
    """So many agents, a policy for each, and how they are computed.

    `num_rows` None is one observation an agent, else a batch of as many environments. `slices` is how many slices a
    usual one is cut into: short turns are compared in more and shorter ones.
    """

    what: str
    make: Callable[[int], Any]
    strategies: tuple[str, ...]
    num_agents: int = 8
    num_rows: int | None = None
    slices: int = 1
    needs: Needs = ()

    @property
    def agents(self) -> list[str]:
        return [f"agent_{number}" for number in range(self.num_agents)]

    def policies(self) -> dict[str, Any]:
        """A policy for each agent; the same ones for whoever asks."""
        return {agent: self.make(number) for number, agent in enumerate(self.agents)}

    def turn(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What every agent sees, and which of its rows are alive: all."""
        generator = np.random.default_rng(0)
        shape = (_NUM_FEATURES,) if self.num_rows is None else (self.num_rows, _NUM_FEATURES)
        seen = {agent: generator.standard_normal(shape).astype(np.float32) for agent in self.agents}
        alive = None if self.num_rows is None else {agent: np.ones(self.num_rows, bool) for agent in self.agents}
        return seen, alive


_AT_ONCE = (SEQUENTIAL, "thread", "process", AUTO)
_NETWORKS = (SEQUENTIAL, "thread", "process", "batch", "gpu", AUTO)
_networks = functools.partial(PolicyWork, make=network, strategies=_NETWORKS, slices=4, needs=_TORCH)

POLICY_WORKS: dict[str, PolicyWork] = {
    "python": PolicyWork(what="8 agents, 20 ms of Python", make=lambda _: Spinning(_TURN_SECONDS), strategies=_AT_ONCE),
    "sleep": PolicyWork(what="8 agents, 20 ms of waiting", make=lambda _: Sleeping(_TURN_SECONDS), strategies=_AT_ONCE),
    "networks": _networks(what="8 networks"),
    "networks-64": _networks(what="64 networks", num_agents=64),
    "networks-rows": _networks(what="8 networks, 16 rows each", num_rows=16),
    "empty": PolicyWork(what="8 empty policies", make=lambda _: Empty(), strategies=(*_AT_ONCE, SHIPPED), slices=4),
}
"""By name: the rows of the table."""
