"""The agent of a meta-RL run: its architecture, its policy, and its network with generator, memory and counters.

A Markov agent sees one observation at a time. A Memory agent remembers all that it has seen, done and got on its task:
it is recurrent, fed with the environment's observation, the previous action, the previous reward, and a flag for the
start of an inner episode. A Memory-Markov agent has a policy that sees one observation, and learns with a value
function that remembers.

The algorithms are PPO, DQN and SAC, with a GRU or fast weights as memory (`memory.py`).
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Space
from torch import nn

from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig, Diverged, UpdateReport, update_one
from parallel_envs.learners.config import BadSettings, described_config, read_config
from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.meta.memory import (
    GRU,
    MemoryConfig,
    MemoryDQN,
    MemoryMarkovPPO,
    MemoryMarkovSAC,
    MemoryPPO,
    MemorySAC,
    RolloutBuffer,
    RolloutToBatch,
)
from parallel_envs.learners.networks import GruCell
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.ppo import PPO, PPOConfig
from parallel_envs.learners.sac import SAC, SACConfig
from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.policies.torch_policy import forward_from_cpu
from parallel_envs.rollouts import Rollouts
from parallel_envs.rollouts.replay import PrioritizedReplayBuffer, ReplayBuffer
from parallel_envs.seeding import SeedTree
from parallel_envs.threads import one_torch_thread

AGENT = "meta"
"""Name of the only agent, in errors and files."""


class AGENT_ARCHS(enum.StrEnum):  # noqa: N801  # its first name, in the original guide
    """Architectures of an agent: what it remembers."""

    Markov = "markov"
    Memory = "memory"
    Memory_Markov = "memory_markov"


_CONFIGS: dict[str, type[AlgorithmConfig]] = {"ppo": PPOConfig, "dqn": DQNConfig, "sac": SACConfig}
_ALGORITHMS: dict[tuple[type[AlgorithmConfig], AGENT_ARCHS], Any] = {
    (PPOConfig, AGENT_ARCHS.Markov): PPO,
    (PPOConfig, AGENT_ARCHS.Memory): MemoryPPO,
    (PPOConfig, AGENT_ARCHS.Memory_Markov): MemoryMarkovPPO,
    (DQNConfig, AGENT_ARCHS.Markov): DQN,
    (DQNConfig, AGENT_ARCHS.Memory): MemoryDQN,
    (SACConfig, AGENT_ARCHS.Markov): SAC,
    (SACConfig, AGENT_ARCHS.Memory): MemorySAC,
    (SACConfig, AGENT_ARCHS.Memory_Markov): MemoryMarkovSAC,
}
_OTHER_SETTINGS = {
    "rollout_length": "train.num_rollouts_per_iter",
    "learning_starts": "train.num_init_rollouts_pool",
    "train_interval": "train.num_rollouts_per_iter",
}
"""Fields of algorithm configs that other settings of a meta-RL run replace."""


def observed_extras(arch: AGENT_ARCHS) -> dict[str, bool]:
    """Return the keywords for `MultiEpisodeWrapper` that say what to add to observations."""
    remembers = arch is not AGENT_ARCHS.Markov
    return {"add_previous_action": remembers, "add_previous_reward": remembers}


def read_memory(given: Mapping[str, Any], arch: AGENT_ARCHS) -> MemoryConfig:
    """Read the block `policy.memory`; None is a value that was not given. Raises BadSettings for contradictions."""
    described = {name: value for name, value in given.items() if value is not None}
    memory, sizes = MemoryConfig(**described), sorted(described.keys() - {"name"})
    if memory.name == "gru" and sizes:
        raise BadSettings(
            f"`policy.memory.{sizes[0]}: {described[sizes[0]]}` means nothing to a GRU: the algorithm's settings "
            "have its size. Leave it out, or choose `policy.memory.name: fast_weights`."
        )
    if memory.name != "gru" and arch is AGENT_ARCHS.Markov:
        raise BadSettings(
            f"`policy.memory.name: {memory.name}` remembers, and `policy.arch: markov` does not. Say `arch: memory`."
        )
    return memory


def read_algorithm(given: Mapping[str, Any], arch: AGENT_ARCHS) -> AlgorithmConfig:
    """Read the block `policy.algorithm`. Raises BadSettings for unknown settings and contradictions to `arch`."""
    where, remembers = "policy.algorithm", arch is not AGENT_ARCHS.Markov
    for name, place in _OTHER_SETTINGS.items():
        if name in given:
            raise BadSettings(f"`{where}.{name}` means nothing here: whole rollouts are learnt from. Say `{place}`.")
    needs_gru = remembers and given.get("name") == "ppo"
    config: Any = read_config({**({"network": "gru"} if needs_gru else {}), **given}, where, _CONFIGS)
    wrong: dict[str, tuple[Any, str]] = {}
    if needs_gru and config.network != "gru":
        wrong["network"] = config.network, "which needs `gru`"
    elif not remembers and getattr(config, "network", None) == "gru":
        wrong["network"] = "gru", "which remembers nothing. Say `arch: memory`"
    elif arch is AGENT_ARCHS.Memory_Markov and isinstance(config, DQNConfig):
        wrong["name"] = "dqn", "which wants a policy apart from the values. Choose ppo or sac, or `arch: memory`"
    for name, only in (("num_steps", 1), ("prioritized", 0.0), ("dueling", False)):
        if remembers and getattr(config, name, only) != only:
            wrong[name] = getattr(config, name), "which learns from whole rollouts. Leave it out"
    for name, (value, reason) in wrong.items():
        raise BadSettings(f"`{where}.{name}: {value}` does not go together with `policy.arch: {arch}`, {reason}.")
    return config  # type: ignore[no-any-return]  # `Any` for the fields that only some configs have


def described_policy(config: AlgorithmConfig, memory: MemoryConfig, name: str) -> dict[str, Any]:
    """Return the settings that `read_algorithm` and `read_memory` read as these configs, with all defaults."""
    algorithm = described_config(config, name)
    sizes = {} if memory.name == "gru" else {"num_places": memory.num_places, "num_values": memory.num_values}
    return {
        "algorithm": {word: value for word, value in algorithm.items() if word not in _OTHER_SETTINGS},
        "memory": {"name": memory.name, "num_places": None, "num_values": None, **sizes},
    }


def make_algorithm(
    config: AlgorithmConfig,
    arch: AGENT_ARCHS,
    observation_space: Space[Any],
    action_space: Space[Any],
    memory: MemoryConfig = GRU,
) -> Algorithm:
    """Return the algorithm for these spaces. Raises BadSettings for spaces that it cannot take."""
    try:
        made: Any = _ALGORITHMS[type(config), arch](config, observation_space, action_space, agent=AGENT)
    except TypeError as error:
        raise BadSettings(f"`policy.algorithm.name` does not suit the environment. {error}") from error
    if arch is not AGENT_ARCHS.Markov:
        made.memory = memory
    return made  # type: ignore[no-any-return]  # `Any` for the memory, which only some have


class MetaPolicy(BatchPolicy):
    """Acts in many rollouts at once. The memory of each rollout travels with the rollout's row and begins as zeros.

    Each row draws from its own generator, and no operation mixes rows, so a row's actions depend on its own rollout
    only. This holds up to rounding: a matrix product may round a row differently in a batch of another size, or at
    another place in the batch. In batches of one row (`exact`) there is no such difference.

    `module` is the learner's network itself, so the policy changes when the learner learns. It is computed where it is;
    memories are on the CPU between the steps, as they travel with the rows. A `deterministic` policy takes the
    likeliest action and draws nothing.
    """

    def __init__(self, module: nn.Module, algorithm: Algorithm, *, deterministic: bool = False) -> None:
        self.module: Any = module
        self.encoder, self.head, self.deterministic = algorithm.encoder, algorithm.head, deterministic

    def initial_state(self, num_rows: int) -> Any:
        if not hasattr(self.module, "initial_state"):
            return ()
        return tuple(part.cpu().numpy() for part in self.module.initial_state(num_rows))

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        numbers, mask = self.encoder.numbers(observations)
        with torch.inference_mode(), one_torch_thread():
            memory = tuple(torch.as_tensor(part) for part in state)
            outputs, memory = forward_from_cpu(self.module, torch.as_tensor(numbers), memory)
            state = tuple(part.numpy() for part in memory)
        noise = None
        if not self.deterministic:
            noise = np.concatenate([self.head.noise(generator, 1) for generator in rows.generators])
        return self.head.choose(outputs.numpy(), mask, noise), state


_ROWS = 8
"""Number of rollouts that a replay buffer stores side by side."""


class MetaAgent:
    """Agent that learns from whole rollouts in the spaces of `MultiEpisodeWrapper`.

    `memory_span` is the number of steps that memories last at the beginning; see `set_memory_span`.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        arch: AGENT_ARCHS,
        memory_config: MemoryConfig,
        observation_space: Space[Any],
        action_space: Space[Any],
        to_batch: RolloutToBatch,
        memory_span: int,
        seed: SeedTree,
    ) -> None:
        self.config, self.arch, self.memory_config, self.to_batch = config, arch, memory_config, to_batch
        self.algorithm = make_algorithm(config, arch, observation_space, action_space, memory_config)
        self.parameters = AgentParameters(self.algorithm, seed.child("network").seed())
        set_memory_span(self.parameters.module, memory_span)
        self.generator = seed.child("draws").generator()
        self.counters: dict[str, Any] = {"steps": 0, "updates": 0, "skipped": 0, "frozen": False}
        self.memory: ReplayBuffer | None = None
        self._pending: list[Any] = []
        if not self.algorithm.on_policy:
            off: Any = config
            if off.buffer_size < _ROWS:
                raise BadSettings(f"`policy.algorithm.buffer_size: {off.buffer_size}` is below {_ROWS}.")
            kind: Any = RolloutBuffer
            own = {"num_steps": off.num_steps, "discount": off.discount}
            if arch is AGENT_ARCHS.Markov:
                kind = ReplayBuffer
                if getattr(off, "prioritized", 0.0):
                    kind = PrioritizedReplayBuffer
                    own |= {"alpha": off.prioritized, "beta": off.prioritized_correction, "sampler": off.sampler}
            self.memory = kind(observation_space, action_space, off.buffer_size, _ROWS, **own)

    def policy(self, *, deterministic: bool = False) -> MetaPolicy:
        """Return a policy that acts as this agent does, also after it has learnt more."""
        self.algorithm.explore(self.parameters.module, self.counters["steps"])
        return MetaPolicy(self.parameters.module.actor, self.algorithm, deterministic=deterministic)

    def lived(self, rollouts: Rollouts) -> None:
        """Take in collected rollouts for the next update."""
        self.counters["steps"] += rollouts.num_steps
        if self.memory is None:
            self._pending += rollouts
        else:
            self.to_batch.store(rollouts, self.memory)
            if isinstance(self.memory, RolloutBuffer):
                self.memory.longest = max(self.memory.longest, *map(len, rollouts))

    def update(self, num_updates: int = 1, rate: float = 1.0) -> dict[str, float]:
        """Make so many updates from a replay buffer, or one by PPO. Returns means of metrics.

        `rate` is a factor for the learning rate. Raises Diverged, with unchanged numbers, if one was not finite.
        """
        self.algorithm.config, reports = self.config, list[UpdateReport]()
        for _ in range(num_updates if self.memory is not None else 1):
            experience: Any = self.memory
            if self.memory is None:
                experience, self._pending = self.to_batch.trajectory(Rollouts(self._pending)), []
                # Rollouts that ended early may give fewer rows than a minibatch. Then the minibatch is made smaller.
                config: Any = self.config
                size = min(config.minibatch_size, experience.valid.size)
                self.algorithm.config = dataclasses.replace(config, minibatch_size=size)
            plan = self.algorithm.draw(experience, self.generator, self.counters["updates"])
            learning_rate = self.config.learning_rate_after(self.counters["updates"]) * rate
            reports.append(update_one(self.parameters, dataclasses.replace(plan, learning_rate=learning_rate)))
            if reports[-1].diverged is not None:
                self.counters["skipped"] += 1
                raise Diverged(f"The agent has learnt nothing: {reports[-1].diverged}.", [self.algorithm.agent])
            if reports[-1].taught is not None and isinstance(self.memory, PrioritizedReplayBuffer):
                self.memory.update_priorities(plan.arrays["indices"], reports[-1].taught)
            self.counters["updates"] += 1
        return {name: float(np.mean([report.metrics[name] for report in reports])) for name in reports[0].metrics}

    def state(self) -> dict[str, Any]:
        """Return the agent's state for `save_checkpoint`, without collected rollouts that are not learnt from yet."""
        kind = {"name": self.algorithm.name, "arch": str(self.arch), "memory": dataclasses.asdict(self.memory_config)}
        state = {
            "config": {**kind, **dataclasses.asdict(self.config)},
            "arrays": {name: array.copy() for name, array in self.parameters.arrays().items()},
            "counters": dict(self.counters),
            "generator": {"draws": copy.deepcopy(self.generator.bit_generator.state)},
        }
        if self.memory is not None:
            state["memory"] = self.memory.state()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state. Raises ValueError, and changes nothing, if the state does not fit."""
        self.parameters.load(dict(state["arrays"]))
        self.counters |= state["counters"]
        self.generator.bit_generator.state = copy.deepcopy(state["generator"]["draws"])
        self._pending = []
        if self.memory is not None and "memory" in state:
            self.memory.load_state(state["memory"])


def set_memory_span(module: nn.Module, span: int) -> None:
    """Let the memory of untrained GRUs fade over 1 to `span` steps, each number over its own number of steps.

    A gate without a bias forgets half of everything at each step, and forgotten facts cannot be learnt from.
    """
    for part in module.modules():
        if isinstance(part, GruCell):
            size = part.remembered.in_features
            with torch.no_grad():  # the second of three gates keeps: sigmoid(log(n)) is 1 - 1 / (n + 1)
                part.seen.bias[size : 2 * size] = torch.linspace(1.0, float(span), size).log()
