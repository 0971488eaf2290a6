"""The ways to collect the same rollouts: one small class for each, hosted and measured like any other contestant.

`step` collects everything once, and is an error if that is not as many environment steps as it should be. What is
collected is the same for all of them: task, seed and random generator of each rollout are those of its order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from parallel_envs import ParallelEnvManager
from parallel_envs.bench.contestants import Contestant
from parallel_envs.bench.works import Work
from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.rollouts.collector import PlannedRollout, collect

Transition = tuple[Any, Any, float, bool, bool, Any]
"""Observation, action, reward, terminated, truncated, next observation."""


@dataclass
class Collector(Contestant):
    """One way to collect the rollouts of a work."""

    module = "parallel_envs"
    pip_name = "parallel-envs"

    workload: Work
    _policy: BatchPolicy = field(init=False)
    _orders: list[PlannedRollout] = field(default_factory=list, init=False)

    @abstractmethod
    def collect(self) -> int:
        """Collect all rollouts; returns how many steps they have."""

    def load(self) -> None:
        pass  # it is here already, and a policy's library comes with the policy

    def step(self) -> int:
        steps, wanted = self.collect(), self.workload.num_steps
        if steps != wanted:
            raise RuntimeError(f"{steps} steps were collected, where the rollouts have {wanted}.")
        return steps

    def _prepare(self, env: Any) -> None:
        """The policy for these spaces, and what is to be played."""
        self._policy = self.workload.make_policy(env.observation_space, env.action_space)
        self._orders = self.workload.orders


@dataclass
class Sequential(Collector):
    """The plain loop: one environment, one rollout after the other, the policy asked about one row at a time."""

    name = "sequential"

    _env: gymnasium.Env[Any, Any] | None = field(default=None, init=False)

    @property
    def settings(self) -> str:
        return "one env, no workers"

    def open(self) -> None:
        self._env = self.workload.factory()
        self._prepare(self._env)

    def collect(self) -> int:
        return sum(map(len, self.rollouts()))

    def rollouts(self) -> list[list[Transition]]:
        return [self._play(order) for order in self._orders]

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _play(self, order: PlannedRollout) -> list[Transition]:
        env, policy, generators = self._env, self._policy, [order.generator()]
        assert env is not None, "open() comes first"
        assert order.task is not None, "a work has tasks"
        env.get_wrapper_attr("reset_task")(order.task.value)
        observation, _ = env.reset(seed=order.seed)
        state = policy.initial_state(1)
        actions, rewards = np.zeros((1, *(env.action_space.shape or ())), env.action_space.dtype), np.zeros(1)
        played: list[Transition] = []
        over = False
        while not over:
            rows = Rows(generators, lambda seen=observation: [seen], actions, rewards)  # type: ignore[misc]
            actions, state = policy.act(observation[None], state, np.array([not played]), rows)
            following, reward, terminated, truncated, _ = env.step(actions[0])
            played.append((observation, actions[0], float(reward), terminated, truncated, following))
            observation, rewards = following, np.array([reward], np.float64)
            over = terminated or truncated or len(played) == self.workload.max_steps
        return played


@dataclass
class OnWorkers(Collector):
    """Whoever plays on a `ParallelEnvManager`."""

    num_workers: int = 1
    _envs: ParallelEnvManager | None = field(default=None, init=False)

    @property
    def settings(self) -> str:
        return f"{self.num_workers} workers, {self.workload.num_envs} envs"

    def open(self) -> None:
        self._envs = ParallelEnvManager(self.workload.factories, num_workers=self.num_workers)
        self._prepare(_Single(self._envs.single_observation_space, self._envs.single_action_space))

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None


@dataclass(frozen=True)
class _Single:
    """The spaces of one environment."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@dataclass
class OursCollecting(OnWorkers):
    """`parallel_envs.rollouts.collect`."""

    name = "collect"

    def collect(self) -> int:
        work = self.workload
        assert self._envs is not None, "open() comes first"
        found = collect(self._envs, self._policy, len(work.tasks), tasks=work.tasks, max_steps=work.max_steps)
        return found.num_steps


@dataclass
class LockStep(OnWorkers):
    """Every environment has its share of the rollouts from the start, and all step together: as the slowest does.

    An environment begins its next rollout while the others step, and rests when its share is done. For policies
    that remember nothing.
    """

    name = "lock-step"

    @property
    def settings(self) -> str:
        return f"{super().settings}, a fixed share each"

    def collect(self) -> int:
        return sum(map(len, self.rollouts()))

    def rollouts(self) -> list[list[Transition]]:
        num_envs = self.workload.num_envs
        shares = [deque(self._orders[env::num_envs]) for env in range(num_envs)]
        done: list[list[Transition]] = []
        seats: dict[int, _Seat] = {}
        while any(shares) or seats:
            begun = self._begin([env for env in range(num_envs) if env not in seats and shares[env]], shares)
            self._step(seats)
            seats |= begun
            self._land(seats)
            done += [seat.played for seat in seats.values() if seat.over]
            seats = {env: seat for env, seat in seats.items() if not seat.over}
        return done

    def _begin(self, envs: Sequence[int], shares: Sequence[deque[PlannedRollout]]) -> dict[int, _Seat]:
        """Have these environments begin the next rollout of their share."""
        assert self._envs is not None, "open() comes first"
        seats = {env: _Seat(shares[env].popleft()) for env in envs}
        if seats:
            seeds = [seats[env].order.seed if env in seats else None for env in range(self.workload.num_envs)]
            self._envs.send_reset(envs, seed=seeds, tasks=[seat.order.task for seat in seats.values()])
        return seats

    def _step(self, seats: dict[int, _Seat]) -> None:
        """One call of the policy for everyone who is in the middle of a rollout."""
        if not seats:
            return
        assert self._envs is not None, "open() comes first"
        taken = list(seats.values())
        rows = Rows([seat.generator for seat in taken], lambda: [seat.observation for seat in taken])
        resets = np.array([not seat.played for seat in taken])
        actions, _ = self._policy.act(np.stack([seat.observation for seat in taken]), (), resets, rows)
        for seat, action in zip(taken, actions, strict=True):
            seat.action = action
        self._envs.send(actions, list(seats))

    def _land(self, seats: dict[int, _Seat]) -> None:
        """Wait for everyone, and note what they answered."""
        assert self._envs is not None, "open() comes first"
        envs, observations, rewards, terminated, truncated, _ = self._envs.recv(len(seats))
        for row, env in enumerate(envs.tolist()):
            flags = bool(terminated[row]), bool(truncated[row])
            seats[env].note(observations[row], float(rewards[row]), *flags, self.workload.max_steps)


class _Seat:
    """A rollout while it is being played in lock-step."""

    def __init__(self, order: PlannedRollout) -> None:
        self.order, self.generator = order, order.generator()
        self.observation: Any = None
        self.action: Any = None
        self.played: list[Transition] = []
        self.over = False

    def note(self, observation: Any, reward: float, terminated: bool, truncated: bool, max_steps: int) -> None:
        """What a step came to, or a reset if it is the first."""
        if self.observation is not None:
            self.played.append((self.observation, self.action, reward, terminated, truncated, observation))
            self.over = terminated or truncated or len(self.played) == max_steps
        self.observation = observation
