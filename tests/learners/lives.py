"""What agents have lived, made up: for learners that have no environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent, AlgorithmConfig, Plan, UpdateReport
from parallel_envs.learners.dqn import DQNConfig
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.sac import SACConfig
from parallel_envs.learners.updates import MODES, UpdateMode
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.rollouts.trajectories import Trajectory
from parallel_envs.seeding import SeedTree

SEEN = Box(-1.0, 1.0, (5,))
PICTURES = Box(0, 255, (12, 10, 3), np.uint8)
MASKED = Dict({"observation": SEEN, "action_mask": MultiBinary(3)})
ARM = Box(-2.0, 1.0, (2,))
NUM_ROWS = 3

PPO = PPOConfig(rollout_length=8, minibatch_size=7, num_epochs=2, learning_rate=1e-3)
GRU = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=2, network="gru", hidden=(8,), memory_size=6)
DQN = DQNConfig(activation="tanh", batch_size=16, learning_starts=10, gradient_steps=2, num_steps=2, dueling=True)
SAC = SACConfig(activation="tanh", batch_size=16, learning_starts=10, gradient_steps=2, hidden=(16, 16))

CASES: Mapping[str, tuple[AlgorithmConfig, Space[Any], Space[Any]]] = {
    "ppo": (PPO, SEEN, Discrete(3)),
    "ppo-masked-kl": (PPOConfig(rollout_length=8, minibatch_size=7, target_kl=0.02), MASKED, Discrete(3, start=4)),
    "ppo-multi": (PPO, SEEN, MultiDiscrete([2, 3])),
    "ppo-box": (
        PPOConfig(rollout_length=8, minibatch_size=8, normalize_observations=True, normalize_returns=True),
        SEEN,
        ARM,
    ),
    "ppo-cnn": (PPOConfig(rollout_length=8, minibatch_size=8, network="cnn", hidden=(8,)), PICTURES, Discrete(3)),
    "ppo-gru": (GRU, SEEN, Discrete(3)),
    "ppo-small": (PPOConfig(rollout_length=8, minibatch_size=12, num_epochs=1, hidden=(8,)), SEEN, Discrete(3)),
    "dqn": (DQN, MASKED, Discrete(3)),
    "dqn-prioritized": (DQNConfig(batch_size=16, activation="tanh", prioritized=0.6), SEEN, Discrete(3)),
    "dqn-hysteretic-lenient": (
        DQNConfig(batch_size=16, learning_starts=10, hysteresis=0.2, leniency=0.9),
        SEEN,
        Discrete(3),
    ),
    "dqn-small": (DQNConfig(activation="tanh", batch_size=16, learning_starts=10, hidden=(8,)), SEEN, Discrete(3)),
    "sac": (SAC, SEEN, ARM),
    "sac-small": (SACConfig(activation="tanh", batch_size=16, learning_starts=10, hidden=(8,)), SEEN, ARM),
}
"""Configs, observation and action spaces."""


def learners(
    case: str | Mapping[Agent, tuple[AlgorithmConfig, Space[Any], Space[Any]]], num_agents: int = 3, seed: int = 0
) -> dict[Agent, AgentLearner]:
    """Agents of one kind, or of the given ones."""
    kinds = {f"agent_{index}": CASES[case] for index in range(num_agents)} if isinstance(case, str) else case
    return {
        agent: AgentLearner(agent, *kind, num_rows=NUM_ROWS, seed=SeedTree(seed).child(agent))
        for agent, kind in kinds.items()
    }


def mode_of(name: str, agents: Mapping[Agent, AgentLearner], workers: int = 2) -> UpdateMode:
    """A mode. A worker process takes a second to import torch, so tests have as few as they can."""
    return MODES[name]({agent: one.parameters for agent, one in agents.items()}, workers)


def time_is_up_when(mode: Any, hangs: Callable[[int], bool], worker: int = 0) -> None:
    """Time is up for a worker when its process is known to hang; until then, and for others, there is no hurry."""
    pool = mode._pool

    def is_answered(ticket: Any, seconds: float | None) -> bool:
        while not (ticket.done or (ticket.waiting == {worker} and hangs(pool.pid(worker)))):
            pool.pump(0.01)
        return bool(ticket.done)

    pool.wait = is_answered


def updated(
    mode: UpdateMode, agents: Mapping[Agent, AgentLearner], plans: Mapping[Agent, Plan]
) -> dict[Agent, UpdateReport]:
    reports = mode.update(plans)
    for agent, report in reports.items():
        agents[agent].finish(report)
    return reports


def live(agents: Mapping[Agent, AgentLearner], number: int, num_steps: int = 8) -> None:
    """Have every agent live some steps, which depend on its place and on `number` only."""
    for place, learner in enumerate(agents.values()):
        source = np.random.default_rng([number, place])
        seen = values(learner.algorithm.observation_space, source)
        begins: Any = np.ones(NUM_ROWS, np.bool_)
        if number == 0:
            learner.begin(seen, begins)
        for _ in range(num_steps):
            actions = values(learner.algorithm.action_space, source)
            following = values(learner.algorithm.observation_space, source)
            terminated, truncated = (source.random(NUM_ROWS) < 0.1 for _ in range(2))
            rewards, valid = source.standard_normal(NUM_ROWS), source.random(NUM_ROWS) < 0.9
            actions[~valid] = 0  # as environments that are reset and agents who are away leave them
            begins_next = terminated | truncated
            learner.observe(seen, begins, actions, rewards, terminated, truncated, following, valid, begins_next)
            seen, begins = following, begins_next


def plans(agents: Mapping[Agent, AgentLearner]) -> dict[Agent, Plan]:
    drawn = {agent: learner.plan() for agent, learner in agents.items()}
    return {agent: plan for agent, plan in drawn.items() if plan is not None}


def values(space: Space[Any], source: np.random.Generator, lead: tuple[int, ...] = (NUM_ROWS,)) -> Any:
    """A batch of values of a space."""
    match space:
        case Dict():
            return {name: values(part, source, lead) for name, part in space.spaces.items()}
        case Discrete():
            return source.integers(space.n, size=lead) + space.start
        case MultiDiscrete():
            return source.integers(space.nvec, size=(*lead, len(space.nvec))) + space.start
        case MultiBinary():
            return np.asarray(source.random((*lead, *space.shape)) < 0.7).astype(np.int8)
        case Box(dtype=np.uint8):
            return source.integers(256, size=(*lead, *space.shape), dtype=np.uint8)
        case Box():
            return source.uniform(space.low, space.high, (*lead, *space.shape)).astype(np.float32)
    raise AssertionError(space)


def trajectory(
    observation_space: Space[Any], action_space: Space[Any], source: np.random.Generator, **parts: Any
) -> Any:
    """Eight steps of three rows, all of them valid and of one episode unless `parts` says otherwise."""
    steps, rows = 8, NUM_ROWS
    begins = np.zeros((steps + 1, rows), np.bool_)
    begins[0] = True
    nothing = np.zeros((steps, rows), np.bool_)
    filled = {
        "observations": values(observation_space, source, (steps + 1, rows)),
        "actions": values(action_space, source, (steps, rows)),
        "rewards": source.standard_normal((steps, rows)).astype(np.float32),
        "terminated": nothing,
        "truncated": nothing,
        "valid": ~nothing,
        "begins": begins,
    }
    return Trajectory(**{**filled, **parts})


def buffer_of(observation_space: Space[Any], action_space: Space[Any], source: np.random.Generator) -> ReplayBuffer:
    """A hundred steps of made-up life."""
    memory = ReplayBuffer(observation_space, action_space, 200, 1)
    flags = np.zeros(1, np.bool_)
    for _ in range(100):
        seen, following = (values(observation_space, source, (1,)) for _ in range(2))
        memory.add(seen, values(action_space, source, (1,)), source.standard_normal(1), flags, flags, following, ~flags)
    return memory
