"""Runners: one small class for each way of stepping many environments.

A runner is created closed and cheap, is sent to a process of its own (`measure.Driver`), and lives there: `load`
imports its library, `open` makes and resets the environments, `step` makes one vector step, `close` ends it. All
runners play the same prepared random actions, so the time to sample actions is not part of any figure.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from parallel_envs.bench.envs import EnvChoice, EnvFactory, action_space
from parallel_envs.bench.measure import WARM_UP_SHARE, Slice, run_for
from parallel_envs.choices import FixedBackend, StartMethod

_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`num_envs` copies of one environment, and the random actions that they are given again and again."""

    factory: EnvFactory
    action_space: gymnasium.Space[Any]
    num_envs: int
    tape_length: int = 256

    @property
    def factories(self) -> list[EnvFactory]:
        return [self.factory] * self.num_envs

    def single_actions(self) -> Iterator[list[Any]]:
        """Yield one list per vector step with one action per environment; every call yields the same lists."""
        space = copy.deepcopy(self.action_space)
        space.seed(_SEED)
        for _ in range(self.tape_length):
            yield [space.sample() for _ in range(self.num_envs)]

    def batched_actions(self) -> Iterator[Any]:
        """Yield the actions of `single_actions` as batches for the `step` of a Gymnasium vector environment."""
        for actions in self.single_actions():
            batch: Any = create_empty_array(self.action_space, self.num_envs, fn=np.zeros)
            yield concatenate(self.action_space, actions, batch)


def make_workload(env: EnvChoice, num_envs: int) -> Workload:
    """Return the workload of `num_envs` of these environments. Raise `UnknownEnv` if one cannot be made."""
    return Workload(factory=env.factory, action_space=action_space(env), num_envs=num_envs)


@dataclass
class Runner(ABC):
    """Way of stepping many environments. `open` keeps what it makes outside the constructor's fields.

    `measure.Driver` hosts any object with `load`, `open`, `run` and `close` in a process of its own.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    pip_name: ClassVar[str]

    workload: Workload

    @classmethod
    def missing(cls) -> str | None:
        """Return what to `pip install` if the library is not installed. Imports nothing."""
        return None if importlib.util.find_spec(cls.module) else cls.pip_name

    @property
    def settings(self) -> str:
        """Describe the configuration in a few words for the table."""
        return f"{self.workload.num_envs} workers"

    @abstractmethod
    def load(self) -> None:
        """Import the library, so that the time of `open` holds no imports."""

    @abstractmethod
    def open(self) -> None:
        """Make the environments and reset them."""

    @abstractmethod
    def step(self) -> int:
        """Make one vector step and return how many calls of an environment's `step` it made."""

    def run(self, seconds: float) -> Slice:
        """Warm up, then make vector steps for `seconds`."""
        run_for(self.step, seconds * WARM_UP_SHARE)
        return run_for(self.step, seconds)

    @abstractmethod
    def close(self) -> None:
        """Close everything that `open` made."""


@dataclass
class VectorEnvRunner(Runner):
    """Runner of a `gymnasium.vector.VectorEnv` in NEXT_STEP autoreset mode.

    In this mode the row after the end of an episode is a reset: its action is ignored and it does not count as a step.
    """

    _envs: VectorEnv[Any, Any, Any] | None = field(default=None, init=False)
    _actions: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)
    _num_resetting: int = field(default=0, init=False)

    @abstractmethod
    def make(self) -> VectorEnv[Any, Any, Any]:
        """Return the vector environment before its first reset."""

    def load(self) -> None:
        pass  # gymnasium is here already

    def open(self) -> None:
        self._actions = itertools.cycle(list(self.workload.batched_actions()))
        self._num_resetting = 0
        self._envs = self.make()
        self._envs.reset(seed=_SEED)

    def step(self) -> int:
        assert self._envs is not None, "open() comes first"
        _, _, terminated, truncated, _ = self._envs.step(next(self._actions))
        steps = self.workload.num_envs - self._num_resetting
        self._num_resetting = int(np.count_nonzero(terminated | truncated))
        return steps

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None


@dataclass
class InProcess(VectorEnvRunner):
    """Plain loop: every environment in the caller's process, one after the other."""

    name = "in-process"
    module = "gymnasium"
    pip_name = "gymnasium"

    @property
    def settings(self) -> str:
        return "SyncVectorEnv"

    def make(self) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv(self.workload.factories)


@dataclass
class Ours(VectorEnvRunner):
    """`ParallelEnvManager`. `num_workers=None` means one worker per environment."""

    name = "parallel_envs"
    module = "parallel_envs"
    pip_name = "parallel-envs"

    num_workers: int | None = None
    backend: FixedBackend = "process"
    context: StartMethod | None = None

    @property
    def settings(self) -> str:
        if self.backend == "serial":
            return "serial"
        workers = self.num_workers or self.workload.num_envs
        return ", ".join([self.backend, *filter(None, [self.context]), f"{workers} workers"])

    def load(self) -> None:
        import parallel_envs

        parallel_envs.ParallelEnvManager  # noqa: B018  # resolved, and so imported, on first use

    def make(self) -> VectorEnv[Any, Any, Any]:
        from parallel_envs import ParallelEnvManager

        chosen = {"num_workers": self.num_workers, "context": self.context}
        given: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
        return ParallelEnvManager(self.workload.factories, backend=self.backend, **given)
