"""The interfaces of policies: for one agent, for many rows at once, and for many agents.

    AgentPolicy        step(observation) -> action                 one episode at a time, keeps its own memory
    BatchPolicy        act(observations, state, resets, rows)      many episodes in one call, memory passed in and out
    MultiAgentPolicy   agent_policy(agent) -> AgentPolicy          an `AgentPolicy` for each agent

Collectors call `BatchPolicy`; `as_batch_policy` makes one from any policy or function. Every episode has a random
generator of its own, in `rows`. A policy that takes random numbers only from these generators acts the same in an
episode whichever other episodes are played at the same time.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space
from gymnasium.vector.utils import concatenate, create_empty_array

Array = npt.NDArray[Any]


class Rows:
    """Facts about the rows that a policy acts for, besides their batched observations.

    Threads: one thread at a time; the rows of one call belong to it.

    Args:
        generators: One random generator for each row; `uniform` and `normal` sample from each generator.
        singles: A function that returns the observations one by one, as the environments returned them.
        previous_actions: The actions of the step before, zeros where an episode has just begun. None if actions have no
            fixed shape.
        previous_rewards: The rewards of the step before, zeros where an episode has just begun.
    """

    __slots__ = ("generators", "previous_actions", "previous_rewards", "records", "singles")

    def __init__(
        self,
        generators: Sequence[np.random.Generator],
        singles: Callable[[], list[Any]],
        previous_actions: Array | None = None,
        previous_rewards: Array | None = None,
    ) -> None:
        self.generators, self.singles = generators, singles
        self.previous_actions = previous_actions
        self.previous_rewards = np.zeros(len(generators)) if previous_rewards is None else previous_rewards
        self.records: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self.generators)

    def uniform(self, *shape: int) -> Array:
        """Return random numbers from 0 to 1, an array of `shape` for each row."""
        return np.stack([generator.random(shape) for generator in self.generators])

    def normal(self, *shape: int) -> Array:
        """Return standard normal random numbers, an array of `shape` for each row."""
        return np.stack([generator.standard_normal(shape) for generator in self.generators])

    def record(self, **columns: Array) -> None:
        """Store arrays with one row for each row beside the actions, such as log probabilities and values."""
        self.records.update(columns)


class BatchPolicy(ABC):
    """A policy that acts for many rows in one call. A row is an episode that is being played.

    The caller decides which rows share a call, and may change this from step to step. The memory of each row is
    therefore in `state`, a tree (dicts, tuples, lists) of arrays with the rows along the first axis.

    Threads: the memory is in `state`, so several threads may call `act` at once, unless a policy of your own keeps
    memory in itself.
    """

    def initial_state(self, num_rows: int) -> Any:
        """Return the state of rows whose episodes are about to begin. By default it is empty."""
        return ()

    @abstractmethod
    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        """Return the actions for these rows, batched or as a list with one for each, and the new state of the rows.

        Args:
            observations: A batch, as a vector env returns it.
            state: The state that the last call returned; rows that `resets` marks have their initial state already.
            resets: A mask of the rows that are at the first observation of an episode.
            rows: The generators, previous actions and previous rewards of the rows.
        """


class AgentPolicy(ABC):
    """A policy that acts for one agent, one observation at a time. It may keep a memory from `reset` on.

    Threads: one thread at a time, since it has a memory. This is not checked.
    """

    @abstractmethod
    def step(self, observation: Any) -> Any:
        """Return the action for this observation."""

    def reset(self) -> None:  # noqa: B027  # most policies have no memory
        """Begin an episode: clear the memory."""


class MultiAgentPolicy(ABC):
    """A set of policies, one for each agent.

    Threads: one thread at a time, unless a policy says more.
    """

    @abstractmethod
    def agent_policy(self, agent: Hashable) -> AgentPolicy:
        """Return the policy of this agent."""

    def reset(self) -> None:  # noqa: B027  # see AgentPolicy.reset
        """Begin an episode for all agents: clear the memory that they share.

        Do not call the `reset` of each agent's policy here: the caller that runs the policy calls it.
        """


class RandomPolicy(BatchPolicy):
    """A policy that samples the action space, each row with its own generator.

    Threads: any number may call it at once, with rows of their own.
    """

    def __init__(self, action_space: Space[Any]) -> None:
        self.action_space = action_space

    def initial_state(self, num_rows: int) -> Array:
        return np.full(num_rows, None, object)

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        for row in np.flatnonzero(resets).tolist():
            state[row] = copy.deepcopy(self.action_space)
            state[row].seed(int(rows.generators[row].integers(1 << 31)))
        return [space.sample() for space in state], state


class FunctionPolicy(BatchPolicy):
    """A policy that calls a function from an observation to an action, for each row.

    Threads: any number may call it at once, with rows of their own, if they may call the function.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.function!r})"

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        try:
            return [self.function(observation) for observation in rows.singles()], state
        except Exception as error:
            if is_network(self.function):
                raise TypeError(
                    f"The policy is a torch module, {type(self.function).__name__}, and cannot take an observation as "
                    f"it comes ({error}). {NETWORK_HINT}"
                ) from error
            raise


class LiftedPolicy(BatchPolicy):
    """A policy that acts with a copy of an `AgentPolicy` for each episode, so that episodes do not share a memory.

    Threads: any number may call it at once, with rows of their own.
    """

    def __init__(self, policy: AgentPolicy) -> None:
        self.policy = policy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy!r})"

    def initial_state(self, num_rows: int) -> Array:
        copies = np.full(num_rows, None, object)
        for row in range(num_rows):
            try:
                copies[row] = copy.deepcopy(self.policy)
            except Exception as error:
                raise TypeError(
                    f"{self.policy!r} cannot be copied ({error}), and each episode gets a copy of it. Leave out what "
                    "cannot be copied (or give it __deepcopy__), or give a BatchPolicy or a function."
                ) from error
            copies[row].reset()
        return copies

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        pairs = zip(state, rows.singles(), strict=True)
        return [policy.step(observation) for policy, observation in pairs], state


class SingleRow(AgentPolicy):
    """An agent policy that acts with a `BatchPolicy`, one row at a time.

    Its random generator starts from `seed` and goes on from episode to episode.

    Threads: one thread at a time, since it has a memory. This is not checked.
    """

    def __init__(self, policy: BatchPolicy, observation_space: Space[Any], seed: int = 0) -> None:
        self.policy, self.observation_space = policy, observation_space
        self._generators = [np.random.default_rng(seed)]
        self.reset()

    def reset(self) -> None:
        self._state, self._begins = self.policy.initial_state(1), True

    def step(self, observation: Any) -> Any:
        space = self.observation_space
        batch = concatenate(space, [observation], cast(Any, create_empty_array(space, 1)))
        rows = Rows(self._generators, lambda: [observation])
        actions, self._state = self.policy.act(batch, self._state, np.array([self._begins]), rows)
        self._begins = False
        return actions[0]


NETWORK_HINT = "Give parallel_envs.rollouts.networks.NetworkPolicy(action_space, module), which does what it says."


def is_network(thing: Any) -> bool:
    """Return whether a thing is a torch module. Torch is not imported."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(thing).__mro__]
    return "torch.nn.modules.module.Module" in names


def as_batch_policy(policy: Any) -> BatchPolicy:
    """Return a `BatchPolicy` that acts as `policy`: a BatchPolicy, an AgentPolicy, or a function of an observation."""
    if isinstance(policy, BatchPolicy):
        return policy
    is_class = isinstance(policy, type)  # has step and reset too, but nothing to call them on
    if not is_class and callable(getattr(policy, "step", None)) and callable(getattr(policy, "reset", None)):
        return LiftedPolicy(policy)
    if is_class or not callable(policy):
        raise TypeError(f"{policy!r} is not a policy: a BatchPolicy, an AgentPolicy, or a function of an observation.")
    return FunctionPolicy(policy)
