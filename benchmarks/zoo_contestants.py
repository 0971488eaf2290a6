"""Who steps many multi-agent environments: ours, the plain loop, and the peers.

What is counted are joint steps: one environment stepped once, by all of its agents. All play the same actions.
"""

from __future__ import annotations

import importlib
import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers import Peer
from parallel_envs.bench.runners import Runner

if TYPE_CHECKING:
    from parallel_envs.multiagent import MultiAgentEnvManager

_SEED = 0


@dataclass
class OursTogether(Runner):
    """`MultiAgentEnvManager` as it comes. `num_workers` None is one environment a worker.

    It resets in the row after an episode's end, and that row is no step.
    """

    name = "parallel_envs"
    module = "parallel_envs"
    pip_name = "parallel-envs"

    num_workers: int | None = None
    _envs: MultiAgentEnvManager | None = field(default=None, init=False)
    _actions: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)

    @property
    def settings(self) -> str:
        return f"{self.num_workers or self.workload.num_envs} workers"

    def load(self) -> None:
        import parallel_envs.multiagent  # noqa: F401

    def open(self) -> None:
        from parallel_envs.multiagent import MultiAgentEnvManager

        self._actions = itertools.cycle(list(self.workload.batched_actions()))
        workers = self.num_workers or self.workload.num_envs
        self._envs = MultiAgentEnvManager(self.workload.factories, num_workers=workers)
        self._envs.reset(seed=_SEED)

    def step(self) -> int:
        assert self._envs is not None, "open() comes first"
        steps = self.workload.num_envs - self._num_resetting(self._envs)
        self._envs.step(next(self._actions))
        return steps

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _num_resetting(self, envs: MultiAgentEnvManager) -> int:
        """In how many environments nobody is alive. One agent that is alive everywhere says that there are none."""
        first = next(iter(envs.alive.values()))
        if np.count_nonzero(first) == len(first):
            return 0
        return int(np.count_nonzero(~np.any(list(envs.alive.values()), axis=0)))


@dataclass
class OursBeneath(OursTogether):
    """The `ParallelEnvManager` that `MultiAgentEnvManager` stands on: the same work without dicts by agent.

    What it takes less of the caller's processor time is what batching by agent costs.
    """

    name = "parallel_envs, agents not told apart"

    _num_ended: int = field(default=0, init=False)

    def open(self) -> None:
        super().open()
        assert self._envs is not None
        envs, rows, num_envs = self._envs, self._envs._rows, self.workload.num_envs
        tape = [rows.join_actions(actions, num_envs, envs.alive) for actions in self.workload.batched_actions()]
        self._actions, self._num_ended = itertools.cycle(tape), 0

    def step(self) -> int:
        assert self._envs is not None, "open() comes first"
        _, _, terminated, truncated, _ = self._envs.envs.step(next(self._actions))
        steps = self.workload.num_envs - self._num_ended
        self._num_ended = int(np.count_nonzero(terminated | truncated))
        return steps


@dataclass
class PlainLoop(Runner):
    """What one writes without a library: every environment here, one after the other, reset when nobody is left."""

    name = "plain loop"
    module = "pettingzoo"
    pip_name = "pettingzoo"

    _envs: list[Any] = field(default_factory=list, init=False)
    _actions: Iterator[list[Any]] = field(default_factory=lambda: iter(()), init=False)

    @property
    def settings(self) -> str:
        return "no workers, nothing batched"

    def load(self) -> None:
        importlib.import_module("pettingzoo")

    def open(self) -> None:
        self._actions = itertools.cycle(list(self.workload.single_actions()))
        self._envs = [make() for make in self.workload.factories]
        for number, env in enumerate(self._envs):
            env.reset(seed=_SEED + number)

    def step(self) -> int:
        steps = 0
        for env, actions in zip(self._envs, next(self._actions), strict=True):
            if env.agents:
                env.step({agent: actions[agent] for agent in env.agents})
                steps += 1
            else:
                env.reset()
        return steps

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()


@dataclass
class ZooPeer(Peer):
    """Another library that resets within the step that ended an episode: each row is a step."""

    def step(self) -> int:
        self._envs.step(next(self._actions))
        return self.workload.num_envs

    def open(self) -> None:
        self._envs = self.make()
        self._envs.reset()

    @abstractmethod
    def make(self) -> Any:
        """Its vector environment, and the actions in the form it takes."""


@dataclass
class SuperSuit(ZooPeer):
    """`pettingzoo_env_to_vec_env_v1` and `concat_vec_envs_v1`, with as many processes as we have workers.

    Agents of one environment are rows side by side. It takes only environments whose agents stay to the end.
    """

    name = "supersuit"
    module = "supersuit"
    pip_name = "supersuit"

    num_workers: int = 2

    @property
    def settings(self) -> str:
        return f"concat_vec_envs_v1, {self.num_workers} workers"

    def load(self) -> None:
        self._library = importlib.import_module("supersuit")

    def make(self) -> Any:
        env: Any = self.workload.factory()
        tape = [
            np.stack([one[agent] for one in actions for agent in env.possible_agents])
            for actions in self.workload.single_actions()
        ]
        self._actions = itertools.cycle(tape)
        rows = self._library.pettingzoo_env_to_vec_env_v1(env)
        return self._library.concat_vec_envs_v1(
            rows, self.workload.num_envs, num_cpus=self.num_workers, base_class="gymnasium"
        )


@dataclass
class AgileRL(ZooPeer):
    """`AsyncPettingZooVecEnv`: always one environment a process."""

    name = "agilerl"
    module = "agilerl"
    pip_name = "agilerl"

    num_workers: int = 2

    @property
    def settings(self) -> str:
        return f"AsyncPettingZooVecEnv, {self.workload.num_envs} workers"

    def load(self) -> None:
        self._library = importlib.import_module("agilerl.vector.pz_async_vec_env")

    def make(self) -> Any:
        self._actions = itertools.cycle(list(self.workload.batched_actions()))
        return self._library.AsyncPettingZooVecEnv(self.workload.factories)


ZOO_PEERS: dict[str, type[SuperSuit] | type[AgileRL]] = {peer.name: peer for peer in (SuperSuit, AgileRL)}
