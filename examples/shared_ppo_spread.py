"""One network for all agents of many PettingZoo environments: proximal policy optimisation in one file.

    pip install "parallel-envs[learn,zoo]"
    python examples/shared_ppo_spread.py --total-steps 1000000 --num-envs 16 --num-workers 2

`as_vector_env()` turns every agent into a row of one Gymnasium vector environment, so this is the single-file loop for
one agent, with one thing to mind: `infos["alive"]` says which rows act next. The others are agents that have ended
before the rest of their environment, and environments that are only being reset. They are stepped along, and neither
learn nor count.

In mpe2's simple_spread three agents are to cover three landmarks in 25 steps without touching each other. Shown are
the rewards of an episode, of all agents together. Random play comes to about -81. The command above was at -55 after
208,000 steps and ended at -43; with `--total-steps 500000`, where the learning rate falls sooner, it ended at -54, at
about 4,800 steps a second on two busy cores.

Agents of equal spaces, discrete actions and flat observations only.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parallel_envs.multiagent import MultiAgentEnvManager


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run, and how. Each field is an option of the command line: `--env`, `--num-envs`, ..."""

    env: str = "mpe2.simple_spread_v3"  # the path of a PettingZoo module
    num_envs: int = 16
    num_workers: int = 2
    total_steps: int = 1_000_000  # of environments: all agents act in each of them
    seed: int = 1
    learning_rate: float = 1e-3  # at the start; it falls to nothing along a straight line
    num_steps: int = 104  # of every environment between two updates: four episodes of 25, each with its reset
    num_epochs: int = 6  # passes over what was collected, in each update
    num_minibatches: int = 4
    gamma: float = 0.95
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def num_updates(self) -> int:
        return max(1, self.total_steps // (self.num_envs * self.num_steps))


def parse_config() -> Config:
    parser = argparse.ArgumentParser(description="One network for all agents, taught by PPO.")
    for field in fields(Config):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    return Config(**vars(parser.parse_args()))


# ---- the network that all agents share -----------------------------------------------------------


def layers(num_in: int, num_out: int, last_scale: float) -> nn.Sequential:
    sizes, scales = (num_in, 64, 64, num_out), (2**0.5, 2**0.5, last_scale)
    parts: list[nn.Module] = []
    for one, following, scale in zip(sizes, sizes[1:], scales, strict=False):
        linear = nn.Linear(one, following)
        nn.init.orthogonal_(linear.weight, scale)
        nn.init.zeros_(linear.bias)
        parts += [linear, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


class Network:
    """What an agent does and what it expects, from what it sees and who it is."""

    def __init__(self, rows: Any) -> None:
        space, self.num_agents = rows.single_action_space, len(rows.agents)
        if not isinstance(space, gym.spaces.Discrete):
            raise SystemExit(f"Discrete actions are needed, not {space}.")
        self.num_inputs = int(np.prod(rows.single_observation_space.shape)) + self.num_agents
        self.actor = layers(self.num_inputs, int(space.n), last_scale=0.01)
        self.critic = layers(self.num_inputs, 1, last_scale=1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]

    def inputs(self, observations: npt.NDArray[Any], infos: dict[str, Any]) -> Tensor:
        """A shared network does not know whose eyes it sees with, unless it is told."""
        seen = observations.reshape(len(observations), -1).astype(np.float32)
        return torch.from_numpy(np.hstack([seen, np.eye(self.num_agents, dtype=np.float32)[infos["agent"]]]))

    def log_probs(self, inputs: Tensor) -> Tensor:
        """Of every action, for every row."""
        return nn.functional.log_softmax(self.actor(inputs), dim=-1)

    def values(self, inputs: Tensor) -> Tensor:
        return torch.flatten(self.critic(inputs))


# ---- experience ----------------------------------------------------------------------------------


class Rollout:
    """What every row went through between two updates: arrays of (step, row). `alive` marks those that acted."""

    def __init__(self, num_steps: int, num_rows: int, num_inputs: int) -> None:
        shape = num_steps, num_rows
        self.inputs = torch.zeros(*shape, num_inputs)
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs, self.values, self.rewards = (torch.zeros(shape) for _ in range(3))
        self.alive, self.terminated, self.ended = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))

    def advantages(self, last_values: Tensor, gamma: float, gae_lambda: float) -> Tensor:
        """Generalised advantage estimates.

        The row after an agent's end holds the last thing it saw: what a truncated agent would still have got is the
        value of that. Rows that did not act have no advantage, and pass none on.
        """
        advantages = torch.zeros_like(self.rewards)
        following = torch.zeros_like(last_values)
        next_values = torch.cat([self.values[1:], last_values[None]])
        for step in reversed(range(len(self.rewards))):
            ahead = gamma * next_values[step] * ~self.terminated[step]
            error = self.rewards[step] + ahead - self.values[step]
            advantage = error + gamma * gae_lambda * following * ~self.ended[step]
            following = advantages[step] = torch.where(self.alive[step], advantage, 0.0)
        return advantages


class Collector:
    """Steps the rows with the network's actions. It knows where each of them stands, from rollout to rollout."""

    def __init__(self, rows: Any, network: Network, seed: int) -> None:
        self.rows, self.network = rows, network
        observations, infos = rows.reset(seed=seed)
        self.inputs, self.alive = network.inputs(observations, infos), infos["alive"]
        self.running = np.zeros(rows.num_envs)
        self.returns: deque[float] = deque(maxlen=200)
        self.num_steps = 0

    def collect(self, num_steps: int) -> Rollout:
        rollout = Rollout(num_steps, self.rows.num_envs, self.network.num_inputs)
        for step in range(num_steps):
            with torch.no_grad():
                log_probs = self.network.log_probs(self.inputs)
                actions = torch.multinomial(log_probs.exp(), num_samples=1)
                rollout.values[step] = self.network.values(self.inputs)
            rollout.inputs[step], rollout.actions[step] = self.inputs, actions[:, 0]
            rollout.log_probs[step] = log_probs.gather(1, actions)[:, 0]
            rollout.alive[step] = torch.from_numpy(self.alive)
            observations, rewards, terminated, truncated, infos = self.rows.step(actions[:, 0].numpy())
            rollout.rewards[step] = torch.from_numpy(rewards)
            rollout.terminated[step] = torch.from_numpy(terminated)
            rollout.ended[step] = torch.from_numpy(terminated | truncated)
            self.count(rewards, infos["alive"])
            self.inputs, self.alive = self.network.inputs(observations, infos), infos["alive"]
        return rollout

    def count(self, rewards: npt.NDArray[np.float64], alive_now: npt.NDArray[np.bool_]) -> None:
        """Add up rewards. An environment's episode is over when nobody is left in it."""
        self.running += rewards * self.alive
        before, now = (self.by_env(alive).any(1) for alive in (self.alive, alive_now))
        over = before & ~now
        self.num_steps += int(before.sum())
        self.returns.extend(self.by_env(self.running)[over].sum(1).tolist())
        self.by_env(self.running)[over] = 0.0

    def by_env(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rows as (environment, agent)."""
        return values.reshape(-1, self.network.num_agents)


# ---- learning ------------------------------------------------------------------------------------


def loss(network: Network, config: Config, batch: dict[str, Tensor]) -> Tensor:
    """The clipped surrogate, the error of the value function, and a reward for staying undecided."""
    log_probs = network.log_probs(batch["inputs"])
    ratio = (log_probs.gather(1, batch["actions"][:, None])[:, 0] - batch["log_probs"]).exp()
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    value_loss = 0.5 * (network.values(batch["inputs"]) - batch["returns"]).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy


def update(network: Network, optimiser: torch.optim.Adam, config: Config, rollout: Rollout, last: Tensor) -> None:
    with torch.no_grad():
        advantages = rollout.advantages(network.values(last), config.gamma, config.gae_lambda)
    acted = rollout.alive
    experience = {
        "inputs": rollout.inputs[acted],
        "actions": rollout.actions[acted],
        "log_probs": rollout.log_probs[acted],
        "advantages": advantages[acted],
        "returns": (advantages + rollout.values)[acted],
    }
    for _ in range(config.num_epochs):
        for picked in torch.randperm(int(acted.sum())).chunk(config.num_minibatches):
            optimiser.zero_grad()
            torch.autograd.backward(loss(network, config, {name: them[picked] for name, them in experience.items()}))
            nn.utils.clip_grad_norm_(network.parameters, config.max_grad_norm)
            optimiser.step()


def train(config: Config) -> None:
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # the network is too small to gain from more
    with MultiAgentEnvManager(config.env, num_envs=config.num_envs, num_workers=config.num_workers) as envs:
        rows = envs.as_vector_env()
        network = Network(rows)
        optimiser = torch.optim.Adam(network.parameters, lr=config.learning_rate, eps=1e-5)
        collector = Collector(rows, network, config.seed)
        began = time.perf_counter()
        for index in range(config.num_updates):
            optimiser.param_groups[0]["lr"] = config.learning_rate * (1 - index / config.num_updates)
            rollout = collector.collect(config.num_steps)
            update(network, optimiser, config, rollout, collector.inputs)
            if (index + 1) % 10 == 0 or index + 1 == config.num_updates:
                report(collector, time.perf_counter() - began)


def report(collector: Collector, seconds: float) -> None:
    steps, returns = collector.num_steps, collector.returns
    mean = f"{np.mean(returns):6.1f}" if returns else "  none"
    rate = f"{steps / seconds:,.0f} steps/s"
    print(f"{steps:9,} steps   mean return of the last {len(returns):3} episodes {mean}   {rate}", flush=True)


if __name__ == "__main__":
    train(parse_config())
