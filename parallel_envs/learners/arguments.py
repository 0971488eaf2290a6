"""What `IndependentLearners` is given, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array

from parallel_envs.learners.algorithm import Agent, AlgorithmConfig
from parallel_envs.learners.updates import MODES
from parallel_envs.multiagent import MultiAgentEnvManager


def check_options(envs: MultiAgentEnvManager, update_mode: str, on_divergence: str) -> None:
    """Raise ValueError for what cannot be."""
    if update_mode not in MODES:
        raise ValueError(f"update_mode={update_mode!r} is unknown. Choose one of {', '.join(map(repr, MODES))}.")
    if on_divergence not in ("skip", "raise"):
        raise ValueError(f"on_divergence={on_divergence!r} is unknown. Choose 'skip' or 'raise'.")
    if envs.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP:
        raise ValueError(
            f"The environments have autoreset_mode={envs.metadata.get('autoreset_mode')}, which hides what agents saw "
            "last. Make them with AutoresetMode.NEXT_STEP."
        )
    if envs.turns != "simultaneous":
        raise ValueError(
            f"The environments have turns={envs.turns!r}: rewards for one agent's action come in others' turns. Make "
            "them with turns='simultaneous'."
        )
    if envs.is_open:
        raise ValueError("The environments do not say which agents may come. Learners need `possible_agents`.")


def configs_of(
    envs: MultiAgentEnvManager, config: AlgorithmConfig | Mapping[Agent, AlgorithmConfig]
) -> dict[Agent, AlgorithmConfig]:
    """A config for each agent."""
    agents = envs.possible_agents
    if not isinstance(config, Mapping):
        return dict.fromkeys(agents, config)
    if odd := [agent for agent in config if agent not in agents]:
        raise ValueError(f"There is a config for {odd[0]!r}, who is no agent here: {list(agents)}.")
    if missing := [agent for agent in agents if agent not in config]:
        raise ValueError(f"There is no config for {missing[0]!r}. Give one for each of {list(agents)}.")
    return {agent: config[agent] for agent in agents}


def no_actions(envs: MultiAgentEnvManager, agent: Agent) -> Any:
    """Actions in the place of those of an agent who is alive nowhere."""
    return create_empty_array(envs.single_action_space(agent), envs.num_envs, np.zeros)
