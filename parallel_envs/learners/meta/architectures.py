"""What acts and learns: Markov, Memory and Memory-Markov agents on PPO, DQN and SAC.

    Markov          sees one observation at a time
    Memory          remembers all it has seen, done and got on its task: recurrent, fed with the environment's
                    observation, the previous action, the previous reward, and whether an inner episode has just ended
    Memory_Markov   its policy sees one observation, the value that it learns by remembers

The algorithms are those of `parallel_envs.learners`; here stands only what remembers, and where.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from gymnasium.spaces import Space
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig, Batch
from parallel_envs.learners.algorithm_settings import read_config
from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.meta.sequences import First, MemoryDQN, MemorySAC
from parallel_envs.learners.networks import GruCell, Normaliser, Recurrent, Scale, linear, mlp
from parallel_envs.learners.ppo import PPO, PPOConfig
from parallel_envs.learners.sac import SAC, SACConfig
from parallel_envs.learners.settings import BadSettings


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
    config: AlgorithmConfig, arch: AGENT_ARCHS, observation_space: Space[Any], action_space: Space[Any]
) -> Algorithm:
    """The algorithm for these spaces. Raises BadSettings for spaces that it cannot take."""
    try:
        made: Algorithm = _KINDS[type(config), arch](config, observation_space, action_space, agent=AGENT)
    except TypeError as error:
        raise BadSettings(f"`policy.algorithm.name` does not suit the environment. {error}") from error
    return made


AGENT = "meta"
"""The agent's name in errors and files: there is one."""


# ---- Memory-Markov --------------------------------------------------------------------------------------------------


class MemoryMarkovActorCritic(nn.Module):
    """A policy that sees one observation, and a value function that remembers."""

    def __init__(self, actor: nn.Module, critic: Recurrent, normaliser: Normaliser | None, scale: Scale | None) -> None:
        super().__init__()
        self.actor, self.critic, self.normaliser, self.scale = actor, critic, normaliser, scale

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, values, _ = self.all_three(batch)
        return outputs, values

    def all_three(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, values, and what is remembered."""
        remembered = self.critic.unroll(batch["features"], batch["begins"], batch["memory"])
        values = self.critic.head(remembered).squeeze(-1)
        if self.scale is not None:
            values = self.scale.mean.float() + self.scale.deviation() * values
        return self.actor(batch["features"]), values, remembered


class MemoryMarkovPPO(PPO):
    """PPO whose policy does not see what `MultiEpisodeWrapper` tells of the step before."""

    name: ClassVar[str] = "ppo"

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        config, num_numbers = self.config, self.sight.num_numbers
        num_seen = num_numbers - _num_told(self.action_space)
        layers = mlp(num_seen, config.hidden, self._num_means, generator, last_gain=config.policy_gain)
        actor = self._wide(nn.Sequential(*before, First(num_seen), *layers))
        encoder = mlp(num_numbers, config.hidden[:-1], config.hidden[-1], generator)
        cell = GruCell(config.hidden[-1], config.memory_size, generator)
        value = linear(config.memory_size, 1, generator, 1.0)
        critic = Recurrent(nn.Sequential(*before, *encoder, nn.Tanh()), cell, value, config.memory_size)
        return MemoryMarkovActorCritic(actor, critic, normaliser, scale)

    def see(self, module: Any, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        turned = {name: arrays[name].transpose(0, 1) for name in ("features", "begins")}
        outputs, values, remembered = module.all_three({**turned, "memory": arrays["memory"]})
        return outputs, values, remembered[..., -2, :]


class MemoryMarkovSAC(MemorySAC):
    """The same with SAC."""

    def __init__(
        self, config: SACConfig, observation_space: Space[Any], action_space: Space[Any], **named: Any
    ) -> None:
        super().__init__(config, observation_space, action_space, **named)
        self._num_seen = self.sight.num_numbers - _num_told(action_space)


def _num_told(action_space: Space[Any]) -> int:
    """How many numbers the previous action and the previous reward are."""
    return int(flatdim(action_space)) + 1


_KINDS: dict[tuple[type[AlgorithmConfig], AGENT_ARCHS], Any] = {
    (PPOConfig, AGENT_ARCHS.Markov): PPO,
    (PPOConfig, AGENT_ARCHS.Memory): PPO,
    (PPOConfig, AGENT_ARCHS.Memory_Markov): MemoryMarkovPPO,
    (DQNConfig, AGENT_ARCHS.Markov): DQN,
    (DQNConfig, AGENT_ARCHS.Memory): MemoryDQN,
    (SACConfig, AGENT_ARCHS.Markov): SAC,
    (SACConfig, AGENT_ARCHS.Memory): MemorySAC,
    (SACConfig, AGENT_ARCHS.Memory_Markov): MemoryMarkovSAC,
}
