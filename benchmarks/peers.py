"""Libraries that parallel_envs is compared with, each used in its fastest documented way.

Their modules are imported by name inside `load`: they are no dependencies of this package, and lint and type checks
give the same result whether the libraries are installed or not.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import multiprocessing
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from parallel_envs.bench.envs import EnvFactory
from parallel_envs.bench.runners import Runner, VectorEnvRunner
from parallel_envs.checks import hint
from parallel_envs.choices import StartMethod


def quick_start_method() -> str | None:
    """Return `fork` if the platform has it, else None.

    The start method changes how soon a peer is ready, not how fast it steps: by default SB3 and TorchRL import torch
    anew in every worker, which takes minutes for a hundred workers.
    """
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else None


@dataclass
class Peer(Runner):
    """Runner of another library. An environment is reset in the call that ends its episode, so each row is a step."""

    _library: Any = field(default=None, init=False)
    _envs: Any = field(default=None, init=False)
    _actions: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _prepare_stacked_actions(self) -> None:
        self._actions = itertools.cycle([np.stack(actions) for actions in self.workload.single_actions()])


@dataclass
class GymnasiumAsync(VectorEnvRunner):
    """Gymnasium's `AsyncVectorEnv` with its defaults. With `context` None it uses its default start method."""

    name = "gymnasium"
    module = "gymnasium"
    pip_name = "gymnasium"

    context: StartMethod | None = None

    @property
    def settings(self) -> str:
        return f"AsyncVectorEnv, {self.workload.num_envs} workers"

    def make(self) -> VectorEnv[Any, Any, Any]:
        return AsyncVectorEnv(self.workload.factories, context=self.context)


@dataclass
class StableBaselines3(Peer):
    """`SubprocVecEnv`: the worker resets an environment whose episode ended, in the same step."""

    name = "sb3"
    module = "stable_baselines3"
    pip_name = "stable-baselines3"

    @property
    def settings(self) -> str:
        return f"SubprocVecEnv, {self.workload.num_envs} workers"

    def load(self) -> None:
        self._library = importlib.import_module("stable_baselines3.common.vec_env")

    def open(self) -> None:
        self._prepare_stacked_actions()
        self._envs = self._library.SubprocVecEnv(self.workload.factories, start_method=quick_start_method())
        self._envs.reset()

    def step(self) -> int:
        self._envs.step(next(self._actions))
        return self.workload.num_envs


@dataclass
class Tianshou(Peer):
    """`ShmemVectorEnv`: the caller resets ended environments by number, as Tianshou's Collector does."""

    name = "tianshou"
    module = "tianshou"
    pip_name = "tianshou"

    @property
    def settings(self) -> str:
        return f"ShmemVectorEnv, {self.workload.num_envs} workers"

    def load(self) -> None:
        self._library = importlib.import_module("tianshou.env")

    def open(self) -> None:
        self._prepare_stacked_actions()
        self._envs = self._library.ShmemVectorEnv(self.workload.factories)
        self._envs.reset()

    def step(self) -> int:
        _, _, terminated, truncated, _ = self._envs.step(next(self._actions))
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            self._envs.reset(ended)
        return self.workload.num_envs


@dataclass
class TorchRL(Peer):
    """`ParallelEnv` over `GymWrapper`: `step_and_maybe_reset` resets ended environments before it returns.

    TorchRL leaves infos out unless their keys are declared. Here that is an advantage for TorchRL.
    """

    name = "torchrl"
    module = "torchrl"
    pip_name = "torchrl"

    _torch: Any = field(default=None, init=False)
    _state: Any = field(default=None, init=False)

    @property
    def settings(self) -> str:
        return f"ParallelEnv, {self.workload.num_envs} workers, no infos"

    def load(self) -> None:
        self._torch = importlib.import_module("torch")
        self._library = importlib.import_module("torchrl.envs")

    def open(self) -> None:
        make = functools.partial(_wrapped_for_torchrl, self.workload.factory)
        self._envs = self._library.ParallelEnv(self.workload.num_envs, make, mp_start_method=quick_start_method())
        self._state = self._envs.reset()
        tensors = [self._torch.as_tensor(np.stack(actions)) for actions in self.workload.single_actions()]
        self._actions = itertools.cycle(tensors)

    def step(self) -> int:
        self._state["action"] = next(self._actions)
        _, self._state = self._envs.step_and_maybe_reset(self._state)
        return self.workload.num_envs


def _wrapped_for_torchrl(factory: EnvFactory) -> Any:
    envs: Any = importlib.import_module("torchrl.envs")
    return envs.GymWrapper(factory(), categorical_action_encoding=True)  # action numbers, not one-hot rows


PEERS: dict[str, type[Runner]] = {peer.name: peer for peer in (GymnasiumAsync, StableBaselines3, Tianshou, TorchRL)}


class UnknownPeer(ValueError):
    """Error for a name that is no peer."""


def chosen_peers(text: str, known: Collection[str] = PEERS.keys()) -> tuple[str, ...]:
    """Return the names in a comma-separated list, which may also be `all` or `none`."""
    if text in ("all", "none"):
        return tuple(known) if text == "all" else ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            others = f"Give some of {', '.join(known)}, or all, or none.{hint(name, known)}"
            raise UnknownPeer(f'There is no peer called "{name}". {others}')
    return names
