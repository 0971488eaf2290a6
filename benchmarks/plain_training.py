"""Reference of `python -m benchmarks iteration`: a loop that steps, acts and trains one agent after another.

It uses nothing of parallel_envs, so its cost is that of a script: PettingZoo environments stepped in turn, and a torch
network and optimiser for each agent. Each agent's network gets the observations of all environments at once, as in a
good script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class PlainSettings:
    """Settings of the plain loop, with the names that they have in `PPOConfig`."""

    rollout_length: int = 128
    minibatch_size: int = 256
    num_epochs: int = 4
    hidden: int = 64
    learning_rate: float = 3e-4
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    max_grad_norm: float = 0.5


class PlainAgent:
    """Agent of the plain loop: two networks, an optimiser, and the experience since its last update."""

    def __init__(self, num_seen: int, num_actions: int, settings: PlainSettings) -> None:
        self.settings = settings
        self.actor = _network(num_seen, settings.hidden, num_actions)
        self.critic = _network(num_seen, settings.hidden, 1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=settings.learning_rate, eps=1e-5)
        self.lived: list[tuple[Any, ...]] = []

    def act(self, observations: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions for all environments, their log probabilities, and values."""
        with torch.no_grad():
            seen = torch.from_numpy(observations)
            log_probs = self.actor(seen).log_softmax(-1)
            actions = log_probs.exp().multinomial(1)
            return actions[:, 0], log_probs.gather(1, actions)[:, 0], self.critic(seen).squeeze(-1)

    def learn(self, last: np.ndarray[Any, Any]) -> None:
        """Update the networks from the experience. `last` holds the current observations of the agent."""
        settings = self.settings
        observations, actions, log_probs, values, rewards, ends = (
            torch.stack(list(column)) for column in zip(*self.lived, strict=True)
        )
        with torch.no_grad():
            ahead = self.critic(torch.from_numpy(last)).squeeze(-1)
        advantages, following = torch.zeros_like(rewards), torch.zeros_like(ahead)
        for step in reversed(range(len(rewards))):
            going_on = 1.0 - ends[step]
            error = rewards[step] + settings.discount * ahead * going_on - values[step]
            following = error + settings.discount * settings.gae_lambda * going_on * following
            advantages[step], ahead = following, values[step]
        flat = [part.flatten(0, 1) for part in (observations, actions, log_probs, advantages, advantages + values)]
        flat[3] = (flat[3] - flat[3].mean()) / (flat[3].std() + 1e-8)
        for _ in range(settings.num_epochs):
            order = torch.randperm(len(flat[0]))
            for start in range(0, len(order), settings.minibatch_size):
                self._step(*(part[order[start : start + settings.minibatch_size]] for part in flat))
        self.lived.clear()

    def _step(self, seen: Tensor, actions: Tensor, log_probs: Tensor, advantages: Tensor, returns: Tensor) -> None:
        settings = self.settings
        policy = self.actor(seen).log_softmax(-1)
        ratio = (policy.gather(1, actions[:, None])[:, 0] - log_probs).exp()
        entropy = -(policy.exp() * policy).sum(-1).mean()
        clipped = ratio.clamp(1 - settings.clip_range, 1 + settings.clip_range)
        policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        value_loss = 0.5 * (self.critic(seen).squeeze(-1) - returns).square().mean()
        loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, settings.max_grad_norm)
        self.optimiser.step()


class PlainTraining:
    """Plain training loop: environments in a list and agents in a dict."""

    def __init__(self, makers: Sequence[Callable[[], Any]], settings: PlainSettings) -> None:
        self.envs, self.settings = [make() for make in makers], settings
        self._now = [env.reset(seed=seed)[0] for seed, env in enumerate(self.envs)]
        first = self.envs[0]
        self.agents = {
            agent: PlainAgent(first.observation_space(agent).shape[0], first.action_space(agent).n, settings)
            for agent in first.possible_agents
        }

    def iterate(self) -> int:
        """Collect a rollout and update every agent. Return the number of joint steps of the environments."""
        for _ in range(self.settings.rollout_length):
            self._step()
        for agent, one in self.agents.items():
            one.learn(self._seen(agent))
        return self.settings.rollout_length * len(self.envs)

    def _seen(self, agent: Any) -> np.ndarray[Any, Any]:
        return np.stack([observations[agent] for observations in self._now])

    def _step(self) -> None:
        seen = {agent: self._seen(agent) for agent in self.agents}
        acted = {agent: one.act(seen[agent]) for agent, one in self.agents.items()}
        chosen = {agent: actions.tolist() for agent, (actions, _, _) in acted.items()}
        results = [env.step({agent: chosen[agent][row] for agent in chosen}) for row, env in enumerate(self.envs)]
        for agent, one in self.agents.items():
            rewards = torch.tensor([result[1][agent] for result in results], dtype=torch.float32)
            ends = torch.tensor([float(result[2][agent] or result[3][agent]) for result in results])
            one.lived.append((torch.from_numpy(seen[agent]), *acted[agent], rewards, ends))
        self._now = [
            result[0] if env.agents else env.reset()[0] for env, result in zip(self.envs, results, strict=True)
        ]

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _network(num_in: int, hidden: int, num_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(num_in, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, num_out)
    )
