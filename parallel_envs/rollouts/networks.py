"""Torch networks that act in collections: Markov, Memory and Memory-Markov.

    markov_policy(...)           feed-forward actor and critic: they see one observation at a time
    memory_policy(...)           recurrent actor and critic, which also see the previous action and reward
    memory_markov_policy(...)    feed-forward actor, recurrent critic

Each is a `NetworkPolicy` over two networks; give it networks of your own where these are too small. Random numbers come
from the rows' own generators, so samples do not depend on the other rows of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from parallel_envs.choices import RecurrentCell, words
from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.policies.torch_policy import choose_by_logits, forward_from_cpu
from parallel_envs.threads import one_torch_thread

__all__ = ["Mlp", "NetworkPolicy", "Recurrent", "markov_policy", "memory_markov_policy", "memory_policy"]


class Mlp(nn.Module):
    """Feed-forward network. `forward(features)`."""

    def __init__(self, num_in: int, num_out: int, hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        sizes = [num_in, *hidden]
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_out))

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.layers(features)
        return out


class Recurrent(nn.Module):
    """Recurrent network. `forward(features, state)` returns the output and the next state: arrays with rows first."""

    def __init__(self, num_in: int, num_out: int, hidden: int = 64, cell: RecurrentCell = "gru") -> None:
        super().__init__()
        if cell not in words(RecurrentCell):
            raise ValueError(f"cell={cell!r} is unknown. Use 'gru' or 'lstm'.")
        self.cell = (nn.GRUCell if cell == "gru" else nn.LSTMCell)(num_in, hidden)
        self.head = nn.Linear(hidden, num_out)
        self.hidden, self.num_parts = hidden, 1 if cell == "gru" else 2

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        return tuple(torch.zeros(num_rows, self.hidden) for _ in range(self.num_parts))

    def forward(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        state = (self.cell(features, state[0]),) if self.num_parts == 1 else self.cell(features, state)
        return self.head(state[0]), state


class NetworkPolicy(BatchPolicy):
    """Samples actions from the actor's output, and records `log_prob` and, if there is a critic, `value`. For Discrete
    actions the actor's outputs are logits; for Box they are the mean of a normal distribution with the parameter
    `log_std` of this policy. Box actions are clipped to their bounds; `raw_action` is the action before that. A network
    with `initial_state` counts as recurrent and sees observation, previous action and previous reward. Each network is
    computed on the device where it is; states and actions stay in the memory of the caller.

    Threads: any number may call `act` at once, with rows of their own. Training the networks meanwhile is not detected.
    """

    def __init__(
        self, action_space: Space[Any], actor: nn.Module, critic: nn.Module | None = None, deterministic: bool = False
    ) -> None:
        if not isinstance(action_space, Box | Discrete):
            raise TypeError(f"{action_space} was given: this policy acts in Box and Discrete spaces only.")
        self.action_space, self.actor, self.critic, self.deterministic = action_space, actor, critic, deterministic
        self.log_std = nn.Parameter(torch.zeros(num_actions(action_space)))

    def act_on(self, device: torch.device | str) -> None:
        """Move the networks to a device."""
        for network in (self.actor, self.critic):
            if network is not None:
                network.to(device)

    def initial_state(self, num_rows: int) -> Any:
        networks: tuple[Any, Any] = self.actor, self.critic
        return tuple(
            tree_map(Tensor.cpu, one.initial_state(num_rows)) if _is_recurrent(one) else () for one in networks
        )

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        space, size = self.action_space, num_actions(self.action_space)
        with torch.inference_mode(), one_torch_thread():
            seen = torch.as_tensor(observations, dtype=torch.float32).reshape(len(rows), -1)
            with_previous = None
            if _is_recurrent(self.actor) or _is_recurrent(self.critic):
                if rows.previous_actions is None:
                    raise ValueError(f"{self!r} remembers previous actions and rewards, and was called without them.")
                rewards = torch.as_tensor(rows.previous_rewards, dtype=torch.float32)[:, None]
                if isinstance(space, Discrete):  # one-hot; all zeros where an episode begins
                    before = np.zeros((len(rows), size), np.float32)
                    chosen = np.asarray(rows.previous_actions) - space.start
                    before[np.flatnonzero(~resets), chosen[~resets]] = 1.0
                else:
                    before = np.asarray(rows.previous_actions, np.float32).reshape(len(rows), -1)
                with_previous = torch.cat([seen, torch.as_tensor(before), rewards], 1)
            inputs: Any = with_previous if _is_recurrent(self.actor) else seen
            out, actor_state = forward_from_cpu(self.actor, inputs, state[0])
            if out.shape != (len(rows), size):
                raise ValueError(
                    f"The actor, {type(self.actor).__name__}, gave an output of shape {tuple(out.shape)} for "
                    f"{len(rows)} rows, and {space} needs {size} numbers a row."
                )
            critic_state = state[1]
            if self.critic is not None:
                inputs = with_previous if _is_recurrent(self.critic) else seen
                value, critic_state = forward_from_cpu(self.critic, inputs, state[1])
                rows.record(value=value[:, 0].numpy())
            if isinstance(space, Discrete):
                log_probs = torch.log_softmax(out, 1).numpy()
                chosen = choose_by_logits(log_probs, None, None if self.deterministic else rows.uniform(1))
                rows.record(log_prob=log_probs[np.arange(len(rows)), chosen])
                return chosen + space.start, (actor_state, critic_state)
            mean, log_std = out.numpy(), self.log_std.numpy()
            noise = np.zeros_like(mean) if self.deterministic else rows.normal(size).astype(np.float32)
            raw = mean + np.exp(log_std) * noise
            rows.record(raw_action=raw, log_prob=(-0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1))
            actions = np.clip(raw.reshape(len(rows), *space.shape), space.low, space.high)
            return actions, (actor_state, critic_state)


def markov_policy(
    observation_space: Space[Any], action_space: Space[Any], hidden: Sequence[int] = (64, 64), seed: int = 0
) -> NetworkPolicy:
    """Return a policy with a feed-forward actor and critic."""
    return _policy(observation_space, action_space, seed, hidden, hidden)


def memory_policy(
    observation_space: Space[Any],
    action_space: Space[Any],
    hidden: int = 64,
    cell: RecurrentCell = "gru",
    seed: int = 0,
) -> NetworkPolicy:
    """Return a policy with a recurrent actor and a recurrent critic."""
    return _policy(observation_space, action_space, seed, hidden, hidden, cell)


def memory_markov_policy(
    observation_space: Space[Any],
    action_space: Space[Any],
    hidden: Sequence[int] = (64, 64),
    memory: int = 64,
    cell: RecurrentCell = "gru",
    seed: int = 0,
) -> NetworkPolicy:
    """Return a policy with a feed-forward actor and a recurrent critic."""
    return _policy(observation_space, action_space, seed, hidden, memory, cell)


def _policy(
    seen: Space[Any],
    acted: Space[Any],
    seed: int,
    actor: Sequence[int] | int,
    critic: Sequence[int] | int,
    cell: RecurrentCell = "gru",
) -> NetworkPolicy:
    """Return a policy of two networks, given by their hidden layers, or by the size of their memory if recurrent.

    Torch's own random numbers are left as they are.
    """
    if not isinstance(seen, Box):
        raise TypeError(
            f"These networks see Box observations only, and {seen} was given. Flatten it with "
            "gymnasium.wrappers.FlattenObservation."
        )
    num_in, num_out = int(np.prod(seen.shape)), num_actions(acted)

    def network(hidden: Sequence[int] | int, num_out: int) -> nn.Module:
        if isinstance(hidden, int):
            return Recurrent(num_in + num_actions(acted) + 1, num_out, hidden, cell)
        return Mlp(num_in, num_out, hidden)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NetworkPolicy(acted, network(actor, num_out), network(critic, 1))


def num_actions(space: Space[Any]) -> int:
    """Return how many numbers the actor outputs for one action."""
    return int(space.n) if isinstance(space, Discrete) else int(np.prod(space.shape or ()))


def _is_recurrent(network: nn.Module | None) -> bool:
    return hasattr(network, "initial_state")
