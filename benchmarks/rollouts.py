"""`python -m benchmarks rollouts`: collection of the same rollouts, in workers and in a plain loop.

Environments, tasks, seeds and the policy are predetermined. The environments travel into workers, so this module
imports nothing heavy before it is needed.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from benchmarks.plan import BenchPlan, Needs, first_missing
from parallel_envs import ParallelEnvManager
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.measure import (
    Pace,
    Quartiles,
    Series,
    Slice,
    Tell,
    paired_ratio,
    rates_of,
    run_in_turns,
    spread,
)
from parallel_envs.bench.runners import Runner, Workload
from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.rollouts.collector import PlannedRollout, collect, plan_rollouts
from parallel_envs.testing.ant_direction import AntDirection

PolicyMaker = Callable[[Space[Any], Space[Any]], BatchPolicy]

_SEED = 0
_ANT_STEPS = 200
_ANT_ROLLOUTS = 16
_SHORTEST, _LONGEST, _UNEQUAL_ROLLOUTS = 10, 400, 32
_STEP_MICROSECONDS = 150.0
_MUJOCO, _TORCH = ("mujoco", "gymnasium[mujoco]"), ("torch", "torch")


@dataclass(frozen=True, kw_only=True)
class Work(Workload):
    """Rollouts to be collected, one for each task. `num_envs` is the number of environments of a collector.

    Rollouts are truncated after `max_steps`. `num_steps` is the number of steps of all rollouts together.
    """

    make_policy: PolicyMaker
    tasks: tuple[Any, ...]
    max_steps: int
    num_steps: int
    in_lock_step: bool = False
    """True if a lock-step collector is measured, too. It cannot keep the state of a recurrent policy."""

    @property
    def orders(self) -> list[PlannedRollout]:
        """Tasks, seeds and random generators, which make the rollouts of all collectors equal."""
        return plan_rollouts(len(self.tasks), self.tasks, seed=_SEED, first_id=0)


class LastingEnv(SpinEnv):
    """Environment whose task is the length of its episodes. Each step burns some processor time."""

    def __init__(self, microseconds: float = _STEP_MICROSECONDS) -> None:
        super().__init__(microseconds)
        self._length, self._elapsed = _SHORTEST, 0

    def reset_task(self, task: int) -> None:
        self._length = task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        self._elapsed = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, _, _, _, info = super().step(action)
        self._elapsed += 1
        return observation, float(action), self._elapsed >= self._length, False, info


class CoinPolicy(BatchPolicy):
    """Policy that tosses a coin for each row: the cheapest policy with distinguishable rollouts."""

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        return (rows.uniform() < 0.5).astype(np.int64), state


def make_ant() -> gymnasium.Env[Any, Any]:
    return AntDirection(terminate_when_unhealthy=False)


def _markov(observation_space: Space[Any], action_space: Space[Any]) -> BatchPolicy:
    from parallel_envs.rollouts.networks import markov_policy

    return markov_policy(observation_space, action_space)


def _memory(observation_space: Space[Any], action_space: Space[Any]) -> BatchPolicy:
    from parallel_envs.rollouts.networks import memory_policy

    return memory_policy(observation_space, action_space)


def _coin(observation_space: Space[Any], action_space: Space[Any]) -> BatchPolicy:
    return CoinPolicy()


def _ant(num_envs: int, make_policy: PolicyMaker) -> Work:
    return Work(
        factory=make_ant,
        action_space=gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32),
        num_envs=num_envs,
        make_policy=make_policy,
        tasks=tuple(AntDirection.sample_tasks(_ANT_ROLLOUTS, seed=_SEED)),
        max_steps=_ANT_STEPS,
        num_steps=_ANT_ROLLOUTS * _ANT_STEPS,
    )


def unequal_work(
    num_envs: int, num_rollouts: int = _UNEQUAL_ROLLOUTS, microseconds: float = _STEP_MICROSECONDS
) -> Work:
    """Return rollouts of 10 to 400 steps, with every length equally likely."""
    drawn = np.random.default_rng(_SEED).integers(_SHORTEST, _LONGEST + 1, num_rollouts)
    return Work(
        factory=functools.partial(LastingEnv, microseconds),
        action_space=gymnasium.spaces.Discrete(2),
        num_envs=num_envs,
        make_policy=_coin,
        tasks=tuple(drawn.tolist()),
        max_steps=_LONGEST,
        num_steps=int(drawn.sum()),
        in_lock_step=True,
    )


WORKS: dict[str, Callable[[int], Work]] = {
    "ant-mlp": functools.partial(_ant, make_policy=_markov),
    "ant-recurrent": functools.partial(_ant, make_policy=_memory),
    "unequal": unequal_work,
}
"""Functions that make a work for a number of environments, by name."""

NEEDS: dict[str, Needs] = {"ant-mlp": (_MUJOCO, _TORCH), "ant-recurrent": (_MUJOCO, _TORCH), "unequal": ()}
"""Required packages of each work."""


Transition = tuple[Any, Any, float, bool, bool, Any]
"""Observation, action, reward, terminated, truncated, next observation."""


@dataclass
class Collector(Runner):
    """Base class of the ways to collect the rollouts of a work."""

    module = "parallel_envs"
    pip_name = "parallel-envs"

    workload: Work
    _policy: BatchPolicy = field(init=False)
    _orders: list[PlannedRollout] = field(default_factory=list, init=False)

    @abstractmethod
    def collect(self) -> int:
        """Collect all rollouts. Return the number of their steps."""

    def load(self) -> None:
        pass  # already imported; make_policy imports the library of the policy

    def step(self) -> int:
        steps, wanted = self.collect(), self.workload.num_steps
        if steps != wanted:
            raise RuntimeError(f"{steps} steps were collected, where the rollouts have {wanted}.")
        return steps

    def _prepare(self, env: Any) -> None:
        """Make the policy for these spaces and plan the rollouts."""
        self._policy = self.workload.make_policy(env.observation_space, env.action_space)
        self._orders = self.workload.orders


@dataclass
class Sequential(Collector):
    """Plain loop: one environment, one rollout after the other, one policy call for each observation."""

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
        assert order.task is not None, "every rollout of a work has a task"
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
    """Base class of the collectors that play on a `ParallelEnvManager`."""

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
    """Spaces of a single environment."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


@dataclass
class OursCollecting(OnWorkers):
    """Collects with `parallel_envs.rollouts.collect`."""

    name = "collect"

    def collect(self) -> int:
        work = self.workload
        assert self._envs is not None, "open() comes first"
        found = collect(self._envs, self._policy, len(work.tasks), tasks=work.tasks, max_steps=work.max_steps)
        return found.num_steps


@dataclass
class LockStep(OnWorkers):
    """Collects in lock-step: all environments step together, so every step takes as long as the slowest environment.

    Every environment has a fixed share of the rollouts. It begins its next rollout while the others step, and rests
    when its share is done. Only for policies without memory.
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
        """Let these environments begin the next rollout of their share."""
        assert self._envs is not None, "open() comes first"
        seats = {env: _Seat(shares[env].popleft()) for env in envs}
        if seats:
            seeds = [seats[env].order.seed if env in seats else None for env in range(self.workload.num_envs)]
            self._envs.send_reset(envs, seed=seeds, tasks=[seat.order.task for seat in seats.values()])
        return seats

    def _step(self, seats: dict[int, _Seat]) -> None:
        """Call the policy once for all environments that are in a rollout, and send the actions."""
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
        """Wait for all environments and record their results."""
        assert self._envs is not None, "open() comes first"
        envs, observations, rewards, terminated, truncated, _ = self._envs.recv(len(seats))
        for row, env in enumerate(envs.tolist()):
            flags = bool(terminated[row]), bool(truncated[row])
            seats[env].note(observations[row], float(rewards[row]), *flags, self.workload.max_steps)


class _Seat:
    """Rollout that is being played in lock-step."""

    def __init__(self, order: PlannedRollout) -> None:
        self.order, self.generator = order, order.generator()
        self.observation: Any = None
        self.action: Any = None
        self.played: list[Transition] = []
        self.over = False

    def note(self, observation: Any, reward: float, terminated: bool, truncated: bool, max_steps: int) -> None:
        """Record the result of a step, or of the reset if it is the first."""
        if self.observation is not None:
            self.played.append((self.observation, self.action, reward, terminated, truncated, observation))
            self.over = terminated or truncated or len(self.played) == max_steps
        self.observation = observation


MANY_WORKERS = 8
"""Number of workers with one environment each: more than most of our machines have cores."""

_ONE_COLLECTION = 1e-3  # seconds, less than a collection takes: a slice is one collection, after one to warm up


@dataclass(frozen=True, kw_only=True)
class RolloutPlan(BenchPlan):
    """Arguments of `python -m benchmarks rollouts`. `collect` plays on `num_workers` and also on `MANY_WORKERS`."""

    works: tuple[str, ...] = tuple(WORKS)
    num_workers: int = 2
    num_envs: int = 16
    rounds: int = 7


@dataclass(frozen=True, kw_only=True)
class RolloutRow:
    """Figures of one collector on one work, in environment steps per second.

    `to_sequential` is the spread over the rounds of its rate divided by the plain loop's. `missing` is what to pip
    install before the work can be measured, `error` the reason why a collector stopped.
    """

    work: str
    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Quartiles | None = None
    to_sequential: Quartiles | None = None
    missing: str | None = None
    error: str | None = None


def measure_rollouts(plan: RolloutPlan, tell: Tell = lambda text: None) -> tuple[RolloutRow, ...]:
    """Measure each work and return a row for each collector."""
    return tuple(row for name in plan.works for row in _measure_work(name, plan, tell))


def collectors(name: str, num_workers: int, num_envs: int) -> dict[str, Collector]:
    """Return the collectors of a work, by a name that is unique in the work."""
    few, many = WORKS[name](num_envs), WORKS[name](MANY_WORKERS)
    everyone: list[Collector] = [
        OursCollecting(few, num_workers=num_workers),
        OursCollecting(many, num_workers=MANY_WORKERS),
        Sequential(many),
    ]
    if few.in_lock_step:
        everyone += [LockStep(few, num_workers=num_workers), LockStep(many, num_workers=MANY_WORKERS)]
    return {f"{each.name}, {each.settings}": each for each in everyone}


def _measure_work(name: str, plan: RolloutPlan, tell: Tell) -> list[RolloutRow]:
    if (missing := first_missing(NEEDS[name])) is not None:
        return [RolloutRow(work=name, name=OursCollecting.name, missing=missing)]
    contestants = collectors(name, plan.num_workers, plan.num_envs)
    pace = Pace(seconds=_ONE_COLLECTION, rounds=plan.rounds)
    series = run_in_turns(contestants, pace, lambda text: tell(f"{name}: {text}"))
    plain = next(rates_of(series[key]) for key, each in contestants.items() if isinstance(each, Sequential))
    return [_row(name, each, series[key], plain) for key, each in contestants.items()]


def _row(work: str, collector: Collector, series: Series[Slice], plain: tuple[float, ...]) -> RolloutRow:
    rates = rates_of(series)
    return RolloutRow(
        work=work,
        name=collector.name,
        settings=collector.settings,
        rates=rates,
        spread=spread(rates) if rates else None,
        to_sequential=paired_ratio(rates, plain),
        error=series.error,
    )
