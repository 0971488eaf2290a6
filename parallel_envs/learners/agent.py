"""Learning agent (`AgentLearner`), its policy (`LearnerPolicy`), and the episodes of all agents (`EpisodeTracker`)."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space
from torch import nn

from parallel_envs.learners.algorithm import Agent, Algorithm, AlgorithmConfig, Plan, UpdateReport
from parallel_envs.learners.checkpoint import CARRY, STAMPS, BadCheckpoint, check_whole, form_of
from parallel_envs.learners.distributions import Head
from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.networks import ObservationEncoder
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.ppo import PPO, PPOConfig
from parallel_envs.learners.sac import SAC, SACConfig
from parallel_envs.policies.torch_policy import NetworkActor, mark_changed
from parallel_envs.rollouts.replay import PrioritizedReplayBuffer, ReplayBuffer
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.seeding import SeedTree

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

ALGORITHMS: dict[type[AlgorithmConfig], type[Algorithm]] = {PPOConfig: PPO, DQNConfig: DQN, SACConfig: SAC}
"""Algorithms by the type of their config. Add your own here."""


def configs_by_name() -> dict[str, type[AlgorithmConfig]]:
    """Return the types of configs by the algorithms' names, which settings and checkpoints contain."""
    by_name: dict[str, type[AlgorithmConfig]] = {}
    for config, kind in ALGORITHMS.items():
        if by_name.setdefault(kind.name, config) is not config:
            raise ValueError(
                f"{kind.__name__} and {ALGORITHMS[by_name[kind.name]].__name__} are both named {kind.name!r} in "
                "ALGORITHMS, and checkpoints tell algorithms by their names. Give each a `name` of its own."
            )
    return by_name


class AgentLearner:
    """Network, optimiser, memory, random generator and counters of one agent. No other agent's learning changes them.

    `memory` holds the agent's experience: a `TrajectoryStore` for PPO, a `ReplayBuffer` for DQN and SAC. `counters`:
    `steps` that the agent took, `rounds` (steps of all environments), `updates`, and updates that were `skipped`
    because they diverged or raised.

    Threads: one thread at a time, the one that uses the `IndependentLearners` of this agent. This is not checked here.

    Args:
        agent: The agent's name, for errors.
        config: `PPOConfig`, `DQNConfig` or `SACConfig`.
        observation_space, action_space: The agent's spaces in one environment.
        num_rows: Number of environments.
        seed: Source of all random numbers of the agent.
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
                f"Agent {agent!r}: {config!r} is not a config of an algorithm in "
                f"parallel_envs.learners.agent.ALGORITHMS. Give one of {known}, or add your own there."
            )
        self.agent = agent
        self.config: Any = config  # with the fields of its algorithm
        own = copy.deepcopy((observation_space, action_space))  # agents with one shared space may act differently
        self.algorithm = ALGORITHMS[type(config)](config, *own, agent=agent)
        self.parameters = AgentParameters(self.algorithm, seed.child("network").seed())
        self.generator = seed.child("draws").generator()
        self.counters: dict[str, Any] = {"steps": 0, "rounds": 0, "updates": 0, "skipped": 0, "frozen": False}
        spaces = self.algorithm.observation_space, self.algorithm.action_space
        fields: Any = config
        self.memory: TrajectoryStore | ReplayBuffer
        if self.algorithm.on_policy:
            size, length = getattr(fields, "minibatch_size", 0), fields.rollout_length
            if size > length * num_rows:
                raise ValueError(
                    f"Agent {agent!r}: minibatch_size={size} is larger than its batch of {length} steps in {num_rows} "
                    "environments. Give a smaller minibatch or a longer rollout."
                )
            self.memory = TrajectoryStore(*spaces, length, num_rows)
        else:
            sizes: Any = max(fields.buffer_size, num_rows), num_rows
            how: dict[str, Any] = {"num_steps": fields.num_steps, "discount": fields.discount}
            if alpha := getattr(fields, "prioritized", 0.0):
                how |= {"alpha": alpha, "beta": fields.prioritized_correction, "sampler": fields.sampler}
            self.memory = (PrioritizedReplayBuffer if alpha else ReplayBuffer)(*spaces, *sizes, **how)
        self.acting_version = 0
        """Version of the weights that act: the number of updates attempted before these weights were made."""
        places = self.memory.horizon if isinstance(self.memory, TrajectoryStore) else self.memory.capacity
        self.stamps = np.zeros(places, np.int64)
        """Version of the weights that acted, for every place in the memory."""
        self.metrics: dict[str, float] = {}
        """Metrics of the last update."""
        self.carry: Array | None = None
        """A recurrent network's memory at the beginning of the next trajectory."""
        self._acting_seed = seed.child("acting").seed()
        self._missed = False  # whether steps were not stored since the last stored one
        self._drawn: Any = None  # places in the replay buffer of the last plan's steps

    @property
    def model(self) -> AgentLearner:
        """This learner: `learners.agents[agent].model.memory` is the agent's experience."""
        return self

    # ---- experience -------------------------------------------------------------------------------------------------

    def begin(self, observations: Any, begins: Flags | None = None) -> None:
        """Start new episodes after a reset of all environments. On-policy experience without an update is dropped."""
        self._check_mask(observations)
        self.carry, self._missed = None, False
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
        """Store a step of all environments. `before`: the observations before the step; `valid`: where it counts."""
        self._check_mask(observations)
        self.counters["rounds"] += 1
        self.counters["steps"] += int(valid.sum())
        if self.counters["frozen"]:
            self._missed = True
            return
        if self._missed:
            self.begin(before, begins_before)
        step = actions, rewards, terminated, truncated, observations, valid
        memory = self.memory
        if isinstance(memory, TrajectoryStore):
            if memory.full:
                text = f"Agent {self.agent!r} has filled its rollout of {memory.horizon} steps. Call update() first."
                raise RuntimeError(text)
            self.stamps[memory.num_steps] = self.acting_version
            memory.add(*step, begins)
        else:
            self.stamps[memory.add(before, *step, begins_before & valid)] = self.acting_version

    def _check_mask(self, observations: Any) -> None:
        """Raise ValueError, naming the agent, for a mask with values other than 0 and 1, such as an added one."""
        if not self.algorithm.encoder.masked:
            return
        mask = np.asarray(observations["action_mask"])
        if mask.dtype != np.bool_ and (odd := mask[mask.astype(bool) != mask]).size:
            raise ValueError(
                f"Agent {self.agent!r}: its action_mask holds {odd.flat[0]}. Give 1 for what is allowed and 0 for what "
                "is not: of a mask that is added to logits, `mask == 0`."
            )

    # ---- learning ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if an update is due."""
        if self.counters["frozen"]:
            return False
        if isinstance(self.memory, TrajectoryStore):
            return self.memory.full
        enough = self.counters["steps"] >= self.config.learning_starts and len(self.memory) > 0
        return enough and self.counters["rounds"] % self.config.train_interval == 0

    @property
    def version(self) -> int:
        """The number of updates attempted so far."""
        return int(self.counters["updates"] + self.counters["skipped"])

    @property
    def most_rows(self) -> int:
        """The largest possible number of rows of a minibatch."""
        memory = self.memory
        return memory.horizon * memory.num_rows if isinstance(memory, TrajectoryStore) else memory.capacity

    def plan(self) -> Plan | None:
        """Sample the next update. None if the agent took no step since the last one."""
        experience: Any = self.memory
        if isinstance(self.memory, TrajectoryStore):
            experience = self.memory.trajectory(self.memory.finish())
            if not experience.valid.any():
                self.carry = None
                return None
            if experience.memory is None and self.carry is not None:
                experience = dataclasses.replace(experience, memory=(self.carry,))
        plan = self.algorithm.draw(experience, self.generator, self.counters["updates"])
        self._drawn = plan.arrays.get("indices")
        return dataclasses.replace(plan, learning_rate=self.config.learning_rate_after(self.counters["updates"]))

    def finish(self, report: UpdateReport, plan: Plan | None = None) -> None:
        """Take the report of an update. `plan`: its plan, if others were made since."""
        drawn: Any = self._drawn if plan is None else plan.arrays.get("indices")
        self.counters["updates" if report.learnt else "skipped"] += 1
        self.metrics = dict(report.metrics)
        if report.carry is not None or report.failure is not None:  # after an exception the memory is empty
            self.carry = report.carry
        if report.taught is not None and isinstance(self.memory, PrioritizedReplayBuffer):
            self.memory.update_priorities(drawn, report.taught)

    def policy(self, *, shared: bool = False) -> LearnerPolicy:
        """Return a policy with its own generator, and with a copy of the network on the CPU.

        `shared`: with the network that learns itself, where it is. `mark_changed` tells the policy of an update.
        """
        actor = self.actor()
        if not shared:
            actor = copy.deepcopy(actor).cpu().requires_grad_(False)
        how: dict[str, Any] = {"seed": self._acting_seed, "is_shared": shared}
        return LearnerPolicy(actor, self.algorithm.encoder, self.algorithm.head, **how)

    def actor(self) -> Any:
        """Return the part of the network that acts, with exploration as it is due. Updates change it in place."""
        self.algorithm.explore(self.parameters.module, self.counters["steps"])
        return self.parameters.module.actor

    def acting_weights(self) -> dict[str, Any]:
        """Return the newest weights, for policies with a copy. They share memory with the network that learns."""
        weights: dict[str, Any] = self.actor().state_dict()
        return weights

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self, *, with_memory: bool = True) -> dict[str, Any]:
        """Return a copy of the agent's state as plain dicts and arrays.

        Its keys are `config`, `form`, `arrays`, `counters`, `generator` and, for a replay buffer, `memory`.
        `with_memory=False` leaves out the buffer, which may be large.
        """
        arrays = {name: array.copy() for name, array in self.parameters.arrays().items()}
        if self.carry is not None:
            arrays[CARRY] = self.carry.copy()
        state: dict[str, Any] = {
            "config": {"name": self.algorithm.name, **dataclasses.asdict(self.config)},
            "form": form_of(self.parameters),
            "arrays": arrays,
            "counters": dict(self.counters),
            "generator": {"draws": copy.deepcopy(self.generator.bit_generator.state)},
        }
        if with_memory and isinstance(self.memory, ReplayBuffer):
            state["memory"] = self.memory.state()
            state["memory"]["arrays"][STAMPS] = self.stamps[: len(self.memory)].copy()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises BadCheckpoint, naming the agent, and changes nothing if it does not fit."""
        self.check_state(state)
        arrays = dict(state["arrays"])
        carry = arrays.pop(CARRY, None)
        self.parameters.load(arrays)
        self.carry = None if carry is None else np.array(carry)
        self.counters |= state["counters"]
        self.acting_version = self.version
        self.generator.bit_generator.state = copy.deepcopy(state["generator"]["draws"])
        if isinstance(self.memory, ReplayBuffer) and state.get("memory") is not None:
            buffer, stamps = _without_stamps(state["memory"])
            self.memory.load_state(buffer)
            self.stamps[: len(self.memory)] = stamps

    def check_state(self, state: Any, where: str | Path = "The given state") -> None:
        """Raise BadCheckpoint, naming the agent and the source of the state, for a state that does not fit."""
        check_whole(state, self.state(with_memory=False), self.agent, where)
        if isinstance(self.memory, ReplayBuffer) and state.get("memory") is not None:
            try:
                buffer, stamps = _without_stamps(state["memory"])
                self.memory.check_state(buffer)
                size = buffer["counters"]["size"]
                if np.shape(stamps) not in ((), (size,)):
                    raise ValueError(f"{STAMPS} is of the shape {np.shape(stamps)}, and {size} steps are stored.")
            except ValueError as error:
                text = f"{where} does not fit agent {self.agent!r}: {error} Nothing was loaded."
                raise BadCheckpoint(text) from error

    def close(self) -> None:
        """Release shared memory of the experience, which can still be read and written."""
        if isinstance(self.memory, TrajectoryStore):
            self.memory.close()

    def __repr__(self) -> str:
        return f"AgentLearner({self.agent!r}, {self.algorithm.name}, {self.counters['updates']} updates)"


def _without_stamps(memory: Any) -> tuple[dict[str, Any], Any]:
    """Return a replay buffer's own state, and the versions of the weights that acted in its places."""
    if not isinstance(memory, dict) or not all(isinstance(memory.get(name), dict) for name in ("counters", "arrays")):
        raise ValueError("its memory has no counters and arrays.")
    arrays = dict(memory["arrays"])
    stamps = arrays.pop(STAMPS, 0)
    return {**memory, "arrays": arrays}, stamps


# ---- the policy that acts ------------------------------------------------------------------------------------------


class LearnerPolicy(NetworkActor):
    """Policy with a learner's network. A recurrent network has a memory for each row.

    `deterministic`: take the most likely action, without random numbers. `is_shared`: the network is a learner's, which
    this policy never writes to: `load_state_dict` makes a copy first.
    """

    def __init__(
        self,
        module: nn.Module,
        encoder: ObservationEncoder,
        head: Head,
        *,
        seed: int = 0,
        deterministic: bool = False,
        is_shared: bool = False,
    ) -> None:
        super().__init__(module, seed, deterministic)
        self.encoder, self.head, self._is_shared = encoder, head, is_shared

    def act_with(self, module: nn.Module) -> None:
        """Act with this network of a learner from now on, or with its newest values if it is the same."""
        self.module, self._is_shared = module, True
        self.version += 1
        mark_changed(module)

    def load_state_dict(self, weights: Any) -> None:
        self.check_weights(weights)
        if self._is_shared:
            self.module, self._is_shared = copy.deepcopy(self.module), False
        super().load_state_dict(weights)

    def encode(self, observations: Any) -> tuple[Array, Array | None]:
        return self.encoder.numbers(observations)

    def noise(self, num_rows: int) -> Array:
        return self.head.noise(self.generator, num_rows)

    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        return self.head.choose(outputs, mask, noise)

    def stack_signature(self) -> Any:
        own = super().stack_signature()
        return None if own is None else (*own, repr(self.encoder.space), repr(self.head.space), type(self.head))


# ---- episodes ---------------------------------------------------------------------------------------------------

_EPISODES = 100  # the returns of so many last episodes are kept
_MOST_EMPTY = 1000  # steps without any agent, before this is an error


class StepFacts(NamedTuple):
    """Facts about one step of all environments. Of `unseen` and `returned`, only agents with any."""

    anew: Flags
    """Environments in which a new episode began."""
    num_steps: int
    """Number of environments that took a real step."""
    lived: Mapping[Agent, Flags]
    """Environments in which the agent acted and the outcome is known."""
    unseen: Mapping[Agent, Flags]
    """Environments in which the agent acted and is absent now, without an end of its episode."""
    returned: Mapping[Agent, Flags]
    """Environments in which the agent is back in an episode that had ended for it."""


class EpisodeTracker:
    """Follows the agents of all environments through their episodes.

    An environment without any agent that is alive is reset by its next step (NEXT_STEP). An agent's episode begins with
    its first observation in an episode of the environment, also if it joins later than others. It begins again if the
    agent comes back after it was terminated or truncated. An agent that is absent without either continues its episode.
    """

    def __init__(self, agents: Sequence[Agent], num_rows: int) -> None:
        self._nowhere = np.zeros(num_rows, np.bool_)
        self.begins: dict[Agent, Flags] = {agent: self._nowhere.copy() for agent in agents}
        """Environments in which the agent's newest observation is the first of an episode."""
        self.returns: dict[Agent, deque[float]] = {agent: deque(maxlen=_EPISODES) for agent in agents}
        """Returns of the agent's last episodes."""
        self.num_episodes: dict[Agent, int] = dict.fromkeys(agents, 0)
        """Number of finished episodes."""
        self._num_empty = 0  # steps since any agent acted
        self._steady: tuple[object, object] | None = None
        self.begin(self.begins)

    def begin(self, present: Mapping[Agent, Flags]) -> None:
        """Start new episodes after a reset of all environments."""
        self._seen = {agent: present[agent].copy() for agent in self.begins}
        self._ended = {agent: self._nowhere.copy() for agent in self.begins}
        self._running = {agent: np.zeros(len(self._nowhere)) for agent in self.begins}
        self.begins = {agent: present[agent].copy() for agent in self.begins}
        self._steady = None

    def step(
        self,
        alive_before: Mapping[Agent, Flags],
        alive: Mapping[Agent, Flags],
        present: Mapping[Agent, Flags],
        rewards: Mapping[Agent, Any],
        terminations: Mapping[Agent, Flags],
        truncations: Mapping[Agent, Flags],
        lost: Flags,
    ) -> StepFacts:
        """Take a step of all environments. `lost`: environments with a restarted worker; their episodes do not count.

        While the manager returns the very same dicts `alive` and `present`, with everybody in them, nothing is
        computed anew.
        """
        if self._steady is not None and self._steady[0] is alive and self._steady[1] is present and not lost.any():
            for agent in self._running:
                self._running[agent] += rewards[agent]
            self.begins = dict.fromkeys(self.begins, self._nowhere)
            return StepFacts(self._nowhere, len(lost), alive_before, {}, {})
        before = np.logical_or.reduce([alive_before[agent] for agent in self.begins])
        now = np.logical_or.reduce([alive[agent] for agent in self.begins])
        anew, over = ~before, before & ~now
        self._num_empty = 0 if before.any() else self._num_empty + 1
        if self._num_empty >= _MOST_EMPTY:
            raise RuntimeError(
                f"No agent took a step in {self._num_empty} rounds: episodes begin without agents. Make `reset` of "
                "the environments leave some in `agents`."
            )
        begins, lived, unseen, returned = {}, {}, {}, {}
        for agent, seen in self._seen.items():
            acted, ended = alive_before[agent] & ~lost, self._ended[agent]
            away = acted & ~present[agent] & ~terminations[agent]
            back = ended & present[agent] & alive[agent] & ~anew
            self._ended[agent] = (ended & ~back & ~anew) | (acted & (terminations[agent] | truncations[agent]))
            lived[agent], unseen[agent], returned[agent] = acted & ~away, away, back
            begins[agent] = (present[agent] & (anew | ~seen)) | back
            self._running[agent] += np.where(acted, rewards[agent], 0.0)
            finished = self._running[agent][over & seen & ~lost].tolist()
            self.returns[agent].extend(finished)
            self.num_episodes[agent] += len(finished)
            self._running[agent][over] = 0.0
            self._seen[agent] = present[agent] | (seen & ~anew)
        self.begins = begins
        everyone = all((alive[agent] & present[agent] & seen).all() for agent, seen in self._seen.items())
        self._steady = (alive, present) if everyone else None
        unseen, returned = ({agent: own for agent, own in each.items() if own.any()} for each in (unseen, returned))
        return StepFacts(anew, int((before & ~lost).sum()), lived, unseen, returned)
