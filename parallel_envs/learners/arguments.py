"""What `IndependentLearners` is given, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array

from parallel_envs.choices import OnDivergence, UpdateModeName, words
from parallel_envs.learners.algorithm import Agent, AlgorithmConfig
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.spelling import unknown_keyword
from parallel_envs.vector.checks import check_count, choice


def check_options(envs: MultiAgentEnvManager, update_mode: str, on_divergence: str, workers: int | None) -> None:
    """Raise ValueError for what cannot be, TypeError for a number of workers that is none."""
    if not isinstance(envs, MultiAgentEnvManager):
        raise _not_a_manager(envs)
    choice("update_mode", update_mode, words(UpdateModeName))
    choice("on_divergence", on_divergence, words(OnDivergence))
    if workers is not None:
        check_count("workers", workers)
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


def _not_a_manager(given: object) -> TypeError:
    name = given if isinstance(given, str) else "CartPole-v1"
    return TypeError(
        f"{given!r} was given as environments. Learners live in a MultiAgentEnvManager, also those that are alone: "
        f"MultiAgentEnvManager([env_factory({name!r})] * 8), with env_factory from parallel_envs.multiagent.by_name."
    )


def check_words(how: Mapping[str, Any], options: type) -> None:
    """Raise TypeError for a word that `train` does not know, and name the one most like it."""
    known = ["total_steps", "on_update", *(field.name for field in dataclasses.fields(options))]
    for name, value in how.items():
        if name not in known:
            raise unknown_keyword("train", name, value, known)


def check_said_once(**given: tuple[Any, Any]) -> None:
    """Raise ValueError for an argument that differs from its default, where `parallel` says it too."""
    said = [name for name, (value, default) in given.items() if value != default]
    if said:
        raise ValueError(
            f"{said[0]}={given[said[0]][0]!r} was given beside parallel=, which says the same thing. Give one of them."
        )


def with_train_interval(config: Any, interval: int | None) -> Any:
    """Return the config, or the configs by agent, with this `train_interval` in the place of the default one."""
    if isinstance(config, Mapping):
        return {agent: with_train_interval(own, interval) for agent, own in config.items()}
    default = getattr(type(config), "train_interval", None)
    if interval is None or default is None or config.train_interval != default:
        return config
    return dataclasses.replace(config, train_interval=interval)


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
