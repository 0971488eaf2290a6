"""One agent as it learns: its brain, its random generator, its memory of what it lived, its counters."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.learners.acting import LearnerPolicy
from parallel_envs.learners.algorithm import Agent, Algorithm, AlgorithmConfig, Plan
from parallel_envs.learners.brain import Brain, Report
from parallel_envs.learners.checkpoints import BadCheckpoint, check_whole
from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.forms import CARRY, STAMPS, form_of
from parallel_envs.learners.masks import check_flags
from parallel_envs.learners.ppo import PPO, PPOConfig
from parallel_envs.learners.sac import SAC, SACConfig
from parallel_envs.rollouts.priorities import PrioritizedReplayBuffer
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.seeding import SeedTree

Flags = npt.NDArray[np.bool_]

ALGORITHMS: dict[type[AlgorithmConfig], type[Algorithm]] = {PPOConfig: PPO, DQNConfig: DQN, SACConfig: SAC}
"""By the type of their config."""


def configs_by_name() -> dict[str, type[AlgorithmConfig]]:
    """The types of configs, by the algorithms' names: as settings and checkpoints tell them."""
    by_name: dict[str, type[AlgorithmConfig]] = {}
    for config, kind in ALGORITHMS.items():
        if by_name.setdefault(kind.name, config) is not config:
            raise ValueError(
                f"{kind.__name__} and {ALGORITHMS[by_name[kind.name]].__name__} are both named {kind.name!r} in "
                "ALGORITHMS, and checkpoints tell algorithms by their names. Give each a `name` of its own."
            )
    return by_name


class AgentLearner:
    """One agent's network, optimiser, buffer, generator and counters. No other agent's learning touches any of it.

    `memory` is what it lived: a `TrajectoryStore` for PPO, a `ReplayBuffer` for DQN and SAC. `counters` are numbers:
    `steps` that the agent has lived, `rounds` in which it was asked, `updates`, and updates that were `skipped`
    because they diverged or raised.

    Threads: one thread at a time, the one that uses the `IndependentLearners` it belongs to. This is not checked here.

    Args:
        agent: Its name, for errors.
        config: `PPOConfig`, `DQNConfig` or `SACConfig`.
        observation_space: Of one environment.
        action_space: The same.
        num_rows: In how many environments it lives.
        seed: All that is random about it is a child of this.
    """

    def __init__(
        self,
        agent: Agent,
        config: AlgorithmConfig,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        num_rows: int,
        seed: SeedTree,
    ) -> None:
        if type(config) not in ALGORITHMS:
            known = ", ".join(kind.__name__ for kind in ALGORITHMS)
            raise TypeError(
                f"Agent {agent!r}: {config!r} is no config of an algorithm. Give one of {known}, or "
                "register your own: parallel_envs.learners.learner.ALGORITHMS[its type] = the algorithm's class."
            )
        self.agent, self.config = agent, config
        own = copy.deepcopy((observation_space, action_space))  # agents who share nothing may act in different ways
        self.algorithm = ALGORITHMS[type(config)](config, *own, agent=agent)
        self.brain = Brain(self.algorithm, seed.child("network").seed())
        self.generator = seed.child("draws").generator()
        self.counters: dict[str, Any] = {"steps": 0, "rounds": 0, "updates": 0, "skipped": 0, "frozen": False}
        self.memory = self._new_memory(num_rows)
        self.acting_version = 0
        """Which version of its weights acts: how many updates had been attempted when it was made."""
        places = self.memory.horizon if isinstance(self.memory, TrajectoryStore) else self.memory.capacity
        self.stamps = np.zeros(places, np.int64)
        """Which version acted, for every place in the memory: of a rollout's steps, or of a replay buffer's."""
        self.metrics: dict[str, float] = {}
        """Of its last update."""
        self._acting_seed = seed.child("acting").seed()
        self._missed = False  # whether steps have not been stored since the last that was
        self._drawn: Any = None  # where the steps of the last plan lie in a replay buffer
        self._carry: npt.NDArray[Any] | None = None  # what a recurrent network remembers where a trajectory begins

    def _new_memory(self, num_rows: int) -> TrajectoryStore | ReplayBuffer:
        spaces, config = (self.algorithm.observation_space, self.algorithm.action_space), self._settings
        if self.algorithm.on_policy:
            size = getattr(config, "minibatch_size", 0)
            if size > config.rollout_length * num_rows:
                raise ValueError(
                    f"Agent {self.agent!r}: minibatch_size={size} is larger than its batch of "
                    f"{config.rollout_length} steps in {num_rows} environments. Give a smaller minibatch or a longer "
                    "rollout."
                )
            return TrajectoryStore(*spaces, config.rollout_length, num_rows)
        sizes = (max(config.buffer_size, num_rows), num_rows)
        returns = {"num_steps": config.num_steps, "discount": config.discount}
        if not getattr(config, "prioritized", 0.0):
            return ReplayBuffer(*spaces, *sizes, **returns)
        drawn: dict[str, Any] = {
            "alpha": config.prioritized,
            "beta": config.prioritized_correction,
            "sampler": config.sampler,
        }
        return PrioritizedReplayBuffer(spaces[0], spaces[1], sizes[0], sizes[1], **drawn, **returns)

    @property
    def _settings(self) -> Any:
        """The config, whose fields are those of its algorithm."""
        return self.config

    @property
    def model(self) -> AgentLearner:
        """This learner: `learners.agents[agent].model.memory` is where an agent's experience is."""
        return self

    # ---- living -----------------------------------------------------------------------------------------------------

    def begin(self, observations: Any, begins: Flags | None = None) -> None:
        """All environments have been reset. What was lived and not learnt from on-policy is dropped."""
        self._check_mask(observations)
        self._carry, self._missed = None, False
        if isinstance(self.memory, TrajectoryStore):
            self.memory.begin(observations, begins)
        else:
            self.memory.cut()

    def observe(
        self,
        before: Any,
        begins_before: Flags,
        actions: Any,
        rewards: Any,
        terminated: Flags,
        truncated: Flags,
        observations: Any,
        valid: Flags,
        begins: Flags,
    ) -> None:
        """A step of all environments: what it saw `before`, did, got, and sees now. `valid`: where it lived it."""
        self._check_mask(observations)
        self.counters["rounds"] += 1
        self.counters["steps"] += int(valid.sum())
        if self.counters["frozen"]:
            self._missed = True
            return
        if self._missed:
            self.begin(before, begins_before)
        lived = actions, rewards, terminated, truncated, observations, valid
        if isinstance(self.memory, TrajectoryStore):
            self._check_room(self.memory)
            self.stamps[self.memory.num_steps] = self.acting_version
            self.memory.add(*lived, begins)
        else:
            self.stamps[self.memory.add(before, *lived, begins_before & valid)] = self.acting_version

    def _check_room(self, memory: TrajectoryStore) -> None:
        if memory.full:
            raise RuntimeError(
                f"Agent {self.agent!r} has lived the {memory.horizon} steps of its rollout and is to learn from them. "
                "Call update() before the next step; train() does so."
            )

    def _check_mask(self, observations: Any) -> None:
        """Raise ValueError, naming the agent, for a mask that is none."""
        if not self.algorithm.sight.masked:
            return
        try:
            check_flags(observations["action_mask"])
        except ValueError as error:
            raise ValueError(f"Agent {self.agent!r}: {error}") from None

    @property
    def ready(self) -> bool:
        """Whether an update is due."""
        if self.counters["frozen"]:
            return False
        if isinstance(self.memory, TrajectoryStore):
            return self.memory.full
        config = self._settings
        enough = self.counters["steps"] >= config.learning_starts and len(self.memory) > 0
        return enough and self.counters["rounds"] % config.train_interval == 0

    # ---- learning ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """How many updates it has attempted."""
        return int(self.counters["updates"] + self.counters["skipped"])

    @property
    def most_rows(self) -> int:
        """How many rows a minibatch can have at most."""
        memory = self.memory
        return memory.horizon * memory.num_rows if isinstance(memory, TrajectoryStore) else memory.capacity

    def plan(self) -> Plan | None:
        """Draw the next update. None if the agent has not lived since the last one."""
        experience: Any = self.memory
        if isinstance(self.memory, TrajectoryStore):
            experience = self.memory.trajectory(self.memory.finish())
            if not experience.valid.any():
                self._carry = None
                return None
            if experience.memory is None and self._carry is not None:
                experience = dataclasses.replace(experience, memory=(self._carry,))
        plan = self.algorithm.draw(experience, self.generator, self.counters["updates"])
        self._drawn = plan.arrays.get("indices")
        return dataclasses.replace(plan, learning_rate=self.config.learning_rate_after(self.counters["updates"]))

    def finish(self, report: Report, plan: Plan | None = None) -> None:
        """The update has been made, or was undone. `plan`: which one it was, if there have been others since."""
        drawn: Any = self._drawn if plan is None else plan.arrays.get("indices")
        self.counters["updates" if report.learnt else "skipped"] += 1
        self.metrics = dict(report.metrics)
        if report.carry is not None or report.failure is not None:  # behind what raised, nothing is remembered
            self._carry = report.carry
        if report.taught is not None and isinstance(self.memory, PrioritizedReplayBuffer):
            self.memory.update_priorities(drawn, report.taught)

    def carry_on(self, carry: npt.NDArray[Any] | None) -> None:
        """What a recurrent network remembers where the next trajectory begins, for those who know it better."""
        self._carry = carry

    def policy(self) -> LearnerPolicy:
        """A policy that acts as this agent does now, with a network and a generator of its own."""
        self.algorithm.explore(self.brain.module, self.counters["steps"])
        actor = copy.deepcopy(self.brain.module.actor)
        return LearnerPolicy(actor, self.algorithm.sight, self.algorithm.head, seed=self._acting_seed)

    def acting_weights(self) -> dict[str, Any]:
        """What that policy is to load when the agent has learnt: a copy."""
        self.algorithm.explore(self.brain.module, self.counters["steps"])
        weights = self.brain.module.actor.state_dict()
        return {name: tensor.clone() for name, tensor in weights.items()}

    # ---- keeping ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that it is, as plain dicts and arrays, copied: `config`, `form`, `arrays`, `counters`, `generator`, and
        `memory` where it has a replay buffer.
        """
        state = self._state()
        if isinstance(self.memory, ReplayBuffer):
            state["memory"] = self.memory.state()
            state["memory"]["arrays"][STAMPS] = self.stamps[: len(self.memory)].copy()
        return state

    def _state(self) -> dict[str, Any]:
        """The same without memory, which may be large."""
        arrays = {name: array.copy() for name, array in self.brain.arrays().items()}
        if self._carry is not None:
            arrays[CARRY] = self._carry.copy()
        return {
            "config": {"name": self.algorithm.name, **dataclasses.asdict(self.config)},
            "form": form_of(self.brain),
            "arrays": arrays,
            "counters": dict(self.counters),
            "generator": {"draws": copy.deepcopy(self.generator.bit_generator.state)},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what `state` told. ValueError, naming the agent, if it does not fit; then nothing has changed."""
        self.check_state(state)
        arrays = dict(state["arrays"])
        carry = arrays.pop(CARRY, None)
        self.brain.load(arrays)
        self._carry = None if carry is None else np.array(carry)
        self.counters |= state["counters"]
        self.acting_version = self.version
        self.generator.bit_generator.state = copy.deepcopy(state["generator"]["draws"])
        if isinstance(self.memory, ReplayBuffer) and state.get("memory") is not None:
            lived, stamps = _parted(state["memory"])
            self.memory.load_state(lived)
            self.stamps[: len(self.memory)] = stamps

    def check_state(self, state: Any, where: str | Path = "The given state") -> None:
        """Raise BadCheckpoint, naming the agent and where the state comes from, for one that cannot be taken over."""
        check_whole(state, self._state(), self.agent, where)
        if isinstance(self.memory, ReplayBuffer) and state.get("memory") is not None:
            try:
                lived, stamps = _parted(state["memory"])
                self.memory.check_state(lived)
                _check_stamps(stamps, lived["counters"]["size"])
            except ValueError as error:
                raise BadCheckpoint(
                    f"{where} does not fit agent {self.agent!r}: {error} Nothing was loaded."
                ) from error

    def close(self) -> None:
        """Give up what the memory holds of the system. It can still be read and written."""
        if isinstance(self.memory, TrajectoryStore):
            self.memory.close()

    def __repr__(self) -> str:
        return f"AgentLearner({self.agent!r}, {self.algorithm.name}, {self.counters['updates']} updates)"


def _parted(memory: Any) -> tuple[dict[str, Any], Any]:
    """A replay buffer's own state, and which version acted in each of its places."""
    if not isinstance(memory, dict) or not all(isinstance(memory.get(name), dict) for name in ("counters", "arrays")):
        raise ValueError("its memory has no counters and arrays.")
    arrays = dict(memory["arrays"])
    stamps = arrays.pop(STAMPS, 0)
    return {**memory, "arrays": arrays}, stamps


def _check_stamps(stamps: Any, size: int) -> None:
    if np.shape(stamps) not in ((), (size,)):
        raise ValueError(f"{STAMPS} is of the shape {np.shape(stamps)}, and {size} steps are stored.")
