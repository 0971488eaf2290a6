"""Small families of tasks for meta-RL: bandits, tabular MDPs, a grid and a point to navigate.

    tasks = GridNaviEnv.sample_tasks(8, seed=7)
    envs = ParallelEnvManager([GridNaviEnv] * 8)
    envs.reset(seed=0, tasks=tasks)

In addition to Gymnasium's interface, each env has:

- `reset_task(task)` sets the task; call `reset` after it. A task that is not of the family raises ValueError.
  `get_task()` returns the task. The first task of an env is that of `sample_tasks(1)`.
- `sample_tasks(num_tasks, seed=0)` samples tasks. They depend on the seed alone, and task `i` of a seed is the same
  however many are sampled. Arguments that set the shape of a task are keywords, with the defaults of the constructor.
- `horizon` is the number of steps after which an episode is over.

Random events within episodes are sampled from `np_random`, so they follow from the seed of `reset`, not from the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from parallel_envs.checks import check_count
from parallel_envs.seeding import SeedTree

Floats = NDArray[np.float64]
Observation = NDArray[np.float32]
Info = dict[str, Any]
Step = tuple[Observation, float, bool, bool, Info]
Options = dict[str, Any] | None

Cell = tuple[int, int]
Point = tuple[float, float]


class _Family(gym.Env[Observation, Any]):
    """Env whose episodes begin with `_start()` and are truncated after `horizon` steps. It observes nothing."""

    horizon: int
    _elapsed = 0

    def _start(self) -> None:
        pass

    def _observation(self) -> Observation:
        return np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self._elapsed = 0
        self._start()
        return self._observation(), {}

    def _results(self, reward: float, *, terminated: bool = False) -> Step:
        self._elapsed += 1
        return self._observation(), reward, terminated, self._elapsed >= self.horizon and not terminated, {}


class BanditEnv(_Family):
    """Bernoulli arms. An episode is one pull, after which it is terminated.

    Task: the arms' success probabilities, a tuple of floats; sampled uniformly from 0 to 1.
    Reward: 1.0 with the probability of the arm `action`, else 0.0.
    Observation: always 0. The agent itself has to remember earlier actions and rewards.
    """

    horizon = 1

    def __init__(self, num_arms: int = 5) -> None:
        check_count("num_arms", num_arms)
        self.num_arms = num_arms
        self.observation_space = spaces.Box(0.0, 0.0, (1,), np.float32)
        self.action_space = spaces.Discrete(num_arms)
        self.reset_task(self.sample_tasks(1, num_arms=num_arms)[0])

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0, *, num_arms: int = 5) -> list[tuple[float, ...]]:
        return [tuple(stream.random(num_arms).tolist()) for stream in task_streams("bandit", num_tasks, seed)]

    def reset_task(self, task: Any) -> None:
        chances = _floats(task, (self.num_arms,))
        if chances is None or not ((chances >= 0.0) & (chances <= 1.0)).all():
            raise ValueError(
                f"task={task!r} is not the success probabilities of {self.num_arms} arms. Give {self.num_arms} numbers "
                f"from 0 to 1, such as one of BanditEnv.sample_tasks(1, num_arms={self.num_arms})."
            )
        self._chances = tuple(chances.tolist())

    def get_task(self) -> tuple[float, ...]:
        return self._chances

    def step(self, action: Any) -> Step:
        return self._results(float(self.np_random.random() < self._chances[action]), terminated=True)


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A task of `TabularMDPEnv`. The axes of both arrays are state, action.

    Attributes:
        transitions: Probability of each next state (third axis).
        rewards: Mean reward.
    """

    transitions: Floats
    rewards: Floats

    def __eq__(self, other: object) -> bool:
        """Compare all numbers. A dataclass cannot do this, since arrays have no truth value."""
        if not isinstance(other, TabularMDP):
            return NotImplemented
        return np.array_equal(self.transitions, other.transitions) and np.array_equal(self.rewards, other.rewards)

    def __hash__(self) -> int:
        return hash(tuple(np.ravel(self.rewards).tolist()))


class TabularMDPEnv(_Family):
    """Random MDPs as in Duan et al. 2016, "RL^2". An episode starts in state 0 and is truncated at the horizon.

    Task: a `TabularMDP`; its transitions are sampled from Dirichlet(1), its mean rewards from Normal(1, 1).
    Reward: sampled from Normal(mean, 1), with the mean of the state before the step and the action.
    Observation: the state, one-hot.
    """

    def __init__(self, num_states: int = 10, num_actions: int = 5, horizon: int = 10) -> None:
        for name, value in {"num_states": num_states, "num_actions": num_actions, "horizon": horizon}.items():
            check_count(name, value)
        self.num_states, self.num_actions, self.horizon = num_states, num_actions, horizon
        self.observation_space = spaces.Box(0.0, 1.0, (num_states,), np.float32)
        self.action_space = spaces.Discrete(num_actions)
        self._state = 0
        self.reset_task(self.sample_tasks(1, num_states=num_states, num_actions=num_actions)[0])

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0, *, num_states: int = 10, num_actions: int = 5) -> list[TabularMDP]:
        def task(stream: np.random.Generator) -> TabularMDP:
            transitions = stream.dirichlet(np.ones(num_states), (num_states, num_actions))
            return TabularMDP(transitions, stream.normal(1.0, 1.0, (num_states, num_actions)))

        return [task(stream) for stream in task_streams("tabular MDP", num_tasks, seed)]

    def reset_task(self, task: Any) -> None:
        advice = f"TabularMDPEnv.sample_tasks(1, num_states={self.num_states}, num_actions={self.num_actions})"
        if not isinstance(task, TabularMDP):
            raise ValueError(f"task={task!r} is not a TabularMDP. Give one, such as of {advice}.")
        shape = (self.num_states, self.num_actions)
        transitions, rewards = _floats(task.transitions, (*shape, self.num_states)), _floats(task.rewards, shape)
        if transitions is None or rewards is None:
            raise ValueError(
                f"The task's transitions and rewards are not finite numbers of the shapes {(*shape, self.num_states)} "
                f"and {shape}: {task!r}. Give a task of this size, such as of {advice}."
            )
        sums = transitions.sum(axis=-1)  # they may differ from 1 by the error of single precision
        wrong = np.argwhere((transitions < 0.0).any(axis=-1) | ~np.isclose(sums, 1.0, atol=1e-5))
        if len(wrong):
            raise ValueError(
                f"The task's transitions{wrong[0].tolist()} are {transitions[tuple(wrong[0])].tolist()}, which are not "
                "probabilities. Give numbers from 0 to 1 whose sum is 1."
            )
        transitions.flags.writeable = rewards.flags.writeable = False
        self._task = TabularMDP(transitions, rewards)
        summed = self._task.transitions.cumsum(axis=-1)
        self._summed = summed / summed[..., -1:]  # ends with exactly 1.0, so that every random number finds a state

    def get_task(self) -> TabularMDP:
        return self._task

    def _start(self) -> None:
        self._state = 0

    def step(self, action: Any) -> Step:
        reward = float(self.np_random.normal(self._task.rewards[self._state, action], 1.0))
        chances = self._summed[self._state, action]
        self._state = int(chances.searchsorted(self.np_random.random(), side="right"))
        return self._results(reward)

    def _observation(self) -> Observation:
        observation = np.zeros(self.num_states, np.float32)
        observation[self._state] = 1.0
        return observation


class GridNaviEnv(_Family):
    """A grid with a hidden goal, as in Zintgraf et al. 2020, "VariBAD". Starts at (0, 0); truncated at the horizon.

    Task: the goal, a cell (x, y) other than the start and its 3 neighbours; sampled uniformly.
    Reward: 1.0 for each step that ends on the goal, else -0.1. The goal does not end the episode.
    Observation: (x, y).
    Actions: stay, up (y grows), right (x grows), down, left. The point stays inside the grid.
    """

    _MOVES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))

    def __init__(self, size: int = 5, horizon: int = 15) -> None:
        check_count("horizon", horizon)
        self.size, self.horizon = size, horizon
        self.observation_space = spaces.Box(0.0, size - 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(len(self._MOVES))
        self._cell: Cell = (0, 0)
        self.reset_task(self.sample_tasks(1, size=size)[0])

    @classmethod
    def all_tasks(cls, size: int = 5) -> list[Cell]:
        """Return all goals: 21 on the grid of 5 by 5."""
        check_count("size", size, at_least=3)
        return [(x, y) for x in range(size) for y in range(size) if max(x, y) > 1]

    @classmethod
    def sample_tasks(cls, num_tasks: int, seed: int = 0, *, size: int = 5) -> list[Cell]:
        goals = cls.all_tasks(size)
        return [goals[int(stream.integers(len(goals)))] for stream in task_streams("grid", num_tasks, seed)]

    def reset_task(self, task: Any) -> None:
        goal = _floats(task, (2,))
        if goal is None or tuple(goal.tolist()) not in self.all_tasks(self.size):
            raise ValueError(
                f"task={task!r} is not a goal on this grid. Give one of GridNaviEnv.all_tasks({self.size}): whole "
                f"numbers (x, y) from 0 to {self.size - 1}, but not the start (0, 0) or a cell next to it."
            )
        self._goal: Cell = (int(goal[0]), int(goal[1]))

    def get_task(self) -> Cell:
        return self._goal

    def is_goal_state(self) -> bool:
        """Return whether the agent stands on the goal now."""
        return self._cell == self._goal

    def _start(self) -> None:
        self._cell = (0, 0)

    def step(self, action: Any) -> Step:
        (x, y), (right, up), last = self._cell, self._MOVES[action], self.size - 1
        self._cell = (min(max(x + right, 0), last), min(max(y + up, 0), last))
        return self._results(1.0 if self.is_goal_state() else -0.1)

    def _observation(self) -> Observation:
        return np.array(self._cell, np.float32)


class PointRobotEnv(_Family):
    """A point in the plane that searches a hidden goal. Starts at (0, 0); truncated at the horizon.

    Task: the goal (x, y), any point; sampled uniformly from the half of the unit circle with y from 0 up.
    Reward: 1 - distance to the goal within `goal_radius` of it, else 0; minus the distance anywhere if not `sparse`.
    Observation: (x, y).
    Actions: numbers to add to (x, y), each clipped to -0.1 ... 0.1.
    """

    _MOST_MOVE = 0.1

    def __init__(self, horizon: int = 20, sparse: bool = True, goal_radius: float = 0.2) -> None:
        check_count("horizon", horizon)
        if not 0.0 < goal_radius < np.inf:
            raise ValueError(f"goal_radius={goal_radius} is not the radius of a goal. Give a number above 0.")
        self.horizon, self.sparse, self.goal_radius = horizon, sparse, goal_radius
        self._reach = horizon * self._MOST_MOVE  # no episode gets further
        self.observation_space = spaces.Box(-self._reach, self._reach, (2,), np.float32)
        self.action_space = spaces.Box(-self._MOST_MOVE, self._MOST_MOVE, (2,), np.float32)
        self._position = np.zeros(2)
        self.reset_task(self.sample_tasks(1)[0])

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0) -> list[Point]:
        angles = [stream.uniform(0.0, np.pi) for stream in task_streams("point robot", num_tasks, seed)]
        return [(float(np.cos(angle)), float(np.sin(angle))) for angle in angles]

    def reset_task(self, task: Any) -> None:
        goal = _floats(task, (2,))
        if goal is None:
            raise ValueError(f"task={task!r} is not a goal in the plane. Give two finite numbers, (x, y).")
        self._goal = goal

    def get_task(self) -> Point:
        return float(self._goal[0]), float(self._goal[1])

    def is_goal_state(self) -> bool:
        """Return whether the point is within the goal's radius now."""
        return self._distance() <= self.goal_radius

    def _start(self) -> None:
        self._position = np.zeros(2)

    def step(self, action: Any) -> Step:
        move = np.clip(np.asarray(action, np.float64), -self._MOST_MOVE, self._MOST_MOVE)
        self._position = np.clip(self._position + move, -self._reach, self._reach)  # a rounding may lead beyond
        distance = self._distance()
        return self._results((1.0 - distance if distance <= self.goal_radius else 0.0) if self.sparse else -distance)

    def _distance(self) -> float:
        return float(np.hypot(*(self._position - self._goal)))

    def _observation(self) -> Observation:
        return self._position.astype(np.float32)


def task_streams(family: str, num_tasks: int, seed: int) -> list[np.random.Generator]:
    """Return an independent random generator for each task."""
    check_count("num_tasks", num_tasks, at_least=0)
    tree = SeedTree(seed).child("family", family)
    return [tree.child(index).generator() for index in range(num_tasks)]


def _floats(value: Any, shape: tuple[int, ...]) -> Floats | None:
    """Return `value` as a new array, or None unless it is finite numbers of this shape."""
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError):  # text, or rows of several lengths
        return None
    return array if array.shape == shape and np.isfinite(array).all() else None
