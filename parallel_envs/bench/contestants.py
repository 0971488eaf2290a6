"""What is compared: one small class per way of stepping many environments.

A contestant is made unopened and cheap, travels to the process that hosts it (`driver`), and lives there:
`load` imports its library, `open` makes and resets the environments, `step` makes one vector step, `close`
ends it.
All of them play the same prepared random actions, so that drawing actions is no part of what is measured.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from parallel_envs.bench.envs import EnvFactory
from parallel_envs.bench.measure import WARM_UP_SHARE, Slice, run_for
from parallel_envs.choices import FixedBackend, StartMethod

Backend = FixedBackend

_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """So many of these environments, and the random actions that they are given, over and over."""

    factory: EnvFactory
    action_space: gymnasium.Space[Any]
    num_envs: int
    tape_length: int = 256

    @property
    def factories(self) -> list[EnvFactory]:
        return [self.factory] * self.num_envs

    def single_actions(self) -> Iterator[list[Any]]:
        """One list per vector step, one action per environment; the same for everyone who asks."""
        space = copy.deepcopy(self.action_space)
        space.seed(_SEED)
        for _ in range(self.tape_length):
            yield [space.sample() for _ in range(self.num_envs)]

    def batched_actions(self) -> Iterator[Any]:
        """The same actions in the form of a Gymnasium vector environment's `step`."""
        for actions in self.single_actions():
            batch: Any = create_empty_array(self.action_space, self.num_envs, fn=np.zeros)
            yield concatenate(self.action_space, actions, batch)


class Hosted(Protocol):
    """Whatever can live in a process of its own, there to be measured. It travels there unopened."""

    def load(self) -> None:
        """Import the library, so that imports are no part of what `open` takes."""

    def open(self) -> None:
        """Make the environments and reset them."""

    def run(self, seconds: float) -> Slice:
        """Step for so long, warm."""

    def close(self) -> None:
        """End everything that `open` began."""


@dataclass
class Contestant(ABC):
    """One way of stepping many environments. What `open` makes is kept in fields that are no arguments."""

    name: ClassVar[str]
    module: ClassVar[str]
    pip_name: ClassVar[str]

    workload: Workload

    @classmethod
    def missing(cls) -> str | None:
        """What to `pip install` if the library is not here. Imports nothing."""
        return None if importlib.util.find_spec(cls.module) else cls.pip_name

    @property
    def settings(self) -> str:
        """How it was told to work, in a few words, for the table."""
        return f"{self.workload.num_envs} workers"

    @abstractmethod
    def load(self) -> None:
        """Import the library, so that imports are no part of what `open` takes."""

    @abstractmethod
    def open(self) -> None:
        """Make the environments and reset them."""

    @abstractmethod
    def step(self) -> int:
        """One vector step; returns how many calls of an environment's `step` it made."""

    def run(self, seconds: float) -> Slice:
        """Vector steps for so long, warm."""
        run_for(self.step, seconds * WARM_UP_SHARE)
        return run_for(self.step, seconds)

    @abstractmethod
    def close(self) -> None:
        """End everything that `open` began."""


@dataclass
class GymnasiumFront(Contestant):
    """Whatever has the interface of `gymnasium.vector.VectorEnv`, in its NEXT_STEP autoreset mode.

    There the row after an episode's end is that environment's reset: its action is ignored and it is no step.
    """

    _envs: VectorEnv[Any, Any, Any] | None = field(default=None, init=False)
    _actions: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)
    _num_resetting: int = field(default=0, init=False)

    @abstractmethod
    def make(self) -> VectorEnv[Any, Any, Any]:
        """The vector environment, not yet reset."""

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
class InProcess(GymnasiumFront):
    """The plain loop: every environment in the caller's process, one after the other."""

    name = "in-process"
    module = "gymnasium"
    pip_name = "gymnasium"

    @property
    def settings(self) -> str:
        return "SyncVectorEnv"

    def make(self) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv(self.workload.factories)


@dataclass
class GymnasiumAsync(GymnasiumFront):
    """Gymnasium's `AsyncVectorEnv` as it comes; `context` None is its default start method."""

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
class Ours(GymnasiumFront):
    """`ParallelEnvManager`. `num_workers` None is one environment a worker."""

    name = "parallel_envs"
    module = "parallel_envs"
    pip_name = "parallel-envs"

    num_workers: int | None = None
    backend: Backend = "process"
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
