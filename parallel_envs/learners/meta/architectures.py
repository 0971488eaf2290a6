"""What acts and learns: Markov, Memory and Memory-Markov agents on PPO, DQN and SAC.

    Markov          sees one observation at a time
    Memory          remembers all it has seen, done and got on its task: recurrent, fed with the environment's
                    observation, the previous action, the previous reward, and whether an inner episode has just ended
    Memory_Markov   its policy sees one observation, the value that it learns by remembers

The algorithms are those of `parallel_envs.learners`. What remembers is a GRU or fast weights (`memories.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Space

from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig
from parallel_envs.learners.config import BadSettings, described_config, read_config
from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.meta.memory import GRU, MemoryConfig
from parallel_envs.learners.meta.sequences import MemoryDQN, MemoryMarkovPPO, MemoryMarkovSAC, MemoryPPO, MemorySAC
from parallel_envs.learners.ppo import PPO, PPOConfig
from parallel_envs.learners.sac import SAC, SACConfig


class AGENT_ARCHS(enum.StrEnum):  # noqa: N801  # its first name, in the original guide
    """What an agent remembers."""

    Markov = "markov"
    Memory = "memory"
    Memory_Markov = "memory_markov"


_NAMED: dict[str, type[AlgorithmConfig]] = {"ppo": PPOConfig, "dqn": DQNConfig, "sac": SACConfig}
_SAID_ELSEWHERE = {
    "rollout_length": "train.num_rollouts_per_iter",
    "learning_starts": "train.num_init_rollouts_pool",
    "train_interval": "train.num_rollouts_per_iter",
}


def shown_to(arch: AGENT_ARCHS) -> dict[str, bool]:
    """What `MultiEpisodeWrapper` is to add to observations for such an agent."""
    remembers = arch is not AGENT_ARCHS.Markov
    return {"add_previous_action": remembers, "add_previous_reward": remembers}


def read_memory(given: Mapping[str, Any], arch: AGENT_ARCHS) -> MemoryConfig:
    """What remembers. Raises BadSettings for what does not go together. None in `given` is what was not said."""
    told = {name: value for name, value in given.items() if value is not None}
    form = MemoryConfig(**told)
    sizes = sorted(told.keys() - {"name"})
    if form.name == "gru" and sizes:
        raise BadSettings(
            f"`policy.memory.{sizes[0]}: {told[sizes[0]]}` means nothing to a GRU, whose size the algorithm's settings "
            "say. Leave it out, or choose `policy.memory.name: fast_weights`."
        )
    if form.name != "gru" and arch is AGENT_ARCHS.Markov:
        raise BadSettings(
            f"`policy.memory.name: {form.name}` remembers, and `policy.arch: markov` does not. Say `arch: memory`."
        )
    return form


def read_algorithm(given: Mapping[str, Any], arch: AGENT_ARCHS) -> AlgorithmConfig:
    """The algorithm's config. Raises BadSettings for what is unknown, or does not go together with the architecture."""
    where = "policy.algorithm"
    for name, place in _SAID_ELSEWHERE.items():
        if name in given:
            raise BadSettings(f"`{where}.{name}` means nothing here: whole rollouts are learnt from. Say `{place}`.")
    wanted = _network(given, arch)
    config: AlgorithmConfig = read_config({**wanted, **given}, where, _NAMED)
    network = getattr(config, "network", None)
    if wanted.get("network", network) != network:
        raise BadSettings(
            f"`{where}.network: {network}` does not go together with `policy.arch: {arch}`, which needs "
            f"`{wanted['network']}`. Leave the network out, or choose another arch."
        )
    if network == "gru" and arch is AGENT_ARCHS.Markov:
        raise BadSettings(f"`{where}.network: gru` remembers, and `policy.arch: markov` does not. Say `arch: memory`.")
    if arch is AGENT_ARCHS.Memory_Markov and isinstance(config, DQNConfig):
        raise BadSettings(
            f"`policy.arch: {arch}` wants a policy apart from the values, and `{where}.name: dqn` has none. Choose ppo "
            "or sac, or `arch: memory`."
        )
    if arch is not AGENT_ARCHS.Markov:
        _check_whole_rollouts(config, where)
    return config


def described_policy(config: AlgorithmConfig, memory: MemoryConfig, name: str) -> dict[str, Any]:
    """The words of `policy` that `read_algorithm` and `read_memory` make the same of, defaults as well."""
    algorithm = described_config(config, name)
    sizes = {} if memory.name == "gru" else {"num_places": memory.num_places, "num_values": memory.num_values}
    return {
        "algorithm": {word: value for word, value in algorithm.items() if word not in _SAID_ELSEWHERE},
        "memory": {"name": memory.name, "num_places": None, "num_values": None, **sizes},
    }


def _check_whole_rollouts(config: Any, where: str) -> None:
    """Who remembers learns from whole rollouts, step by step."""
    for name, least in (("num_steps", 1), ("prioritized", 0.0), ("dueling", False)):
        if getattr(config, name, least) != least:
            raise BadSettings(
                f"`{where}.{name}: {getattr(config, name)}` does not go together with an agent that remembers: it "
                "learns from whole rollouts. Leave it out, or choose `arch: markov`."
            )


def _network(given: Mapping[str, Any], arch: AGENT_ARCHS) -> dict[str, str]:
    remembers = arch is not AGENT_ARCHS.Markov and given.get("name") == "ppo"
    return {"network": "gru"} if remembers else {}


def make_algorithm(
    config: AlgorithmConfig,
    arch: AGENT_ARCHS,
    observation_space: Space[Any],
    action_space: Space[Any],
    memory: MemoryConfig = GRU,
) -> Algorithm:
    """The algorithm for these spaces. Raises BadSettings for spaces that it cannot take."""
    options = {} if arch is AGENT_ARCHS.Markov else {"memory": memory}
    try:
        made: Algorithm = _KINDS[type(config), arch](config, observation_space, action_space, agent=AGENT, **options)
    except TypeError as error:
        raise BadSettings(f"`policy.algorithm.name` does not suit the environment. {error}") from error
    return made


AGENT = "meta"
"""The agent's name in errors and files: there is one."""


_KINDS: dict[tuple[type[AlgorithmConfig], AGENT_ARCHS], Any] = {
    (PPOConfig, AGENT_ARCHS.Markov): PPO,
    (PPOConfig, AGENT_ARCHS.Memory): MemoryPPO,
    (PPOConfig, AGENT_ARCHS.Memory_Markov): MemoryMarkovPPO,
    (DQNConfig, AGENT_ARCHS.Markov): DQN,
    (DQNConfig, AGENT_ARCHS.Memory): MemoryDQN,
    (SACConfig, AGENT_ARCHS.Markov): SAC,
    (SACConfig, AGENT_ARCHS.Memory): MemorySAC,
    (SACConfig, AGENT_ARCHS.Memory_Markov): MemoryMarkovSAC,
}
