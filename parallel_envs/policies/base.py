"""What a policy is: for one agent, for many rows at once, and for many agents.

    AgentPolicy        step(observation) -> action                 one episode at a time, keeps its own memory
    BatchPolicy        act(observations, state, resets, rows)      many episodes in one call, memory handed in and out
    MultiAgentPolicy   agent_policy(agent) -> AgentPolicy          one of the first for each agent

Collectors call `BatchPolicy`; `as_batch_policy` makes one of anything that acts. Every episode has a random generator
of its own, in `rows`: a policy that draws from it, and from nothing else, does the same whatever else is being played
beside it.
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

__all__ = [
    "AgentPolicy",
    "BatchPolicy",
    "FunctionPolicy",
    "LiftedPolicy",
    "MultiAgentPolicy",
    "RandomPolicy",
    "Rows",
    "SingleRow",
    "as_batch_policy",
]

Array = npt.NDArray[Any]


class Rows:
    """What a policy may know of the rows it acts for, beside their batched observations.

    Threads: one thread at a time; those of one call belong to it.

    Args:
        generators: One random generator for each row; `uniform` and `normal` draw from each its own share.
        singles: Gives the observations one by one, as the environments returned them.
        previous_actions: Those of the step before, zeros where an episode has just begun. None where actions are not of
            one fixed shape.
        previous_rewards: The same for rewards.
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
        """Numbers from 0 to 1, an array of `shape` for each row."""
        return np.stack([generator.random(shape) for generator in self.generators])

    def normal(self, *shape: int) -> Array:
        """Standard normal numbers, an array of `shape` for each row."""
        return np.stack([generator.standard_normal(shape) for generator in self.generators])

    def record(self, **columns: Array) -> None:
        """Have these arrays, a row for each, stored beside the actions: log probabilities, values."""
        self.records.update(columns)


class BatchPolicy(ABC):
    """Acts for many rows in one call. A row is an episode that is being played.

    Which rows share a call is up to the caller and may change from step to step: what a row's episode needs to remember
    travels in `state`, a tree (dicts, tuples, lists) of arrays with the rows along the first axis.

    Threads: what a row remembers is in `state`, so several threads may call `act` at once, unless a policy of your own
    keeps something in itself.
    """

    def initial_state(self, num_rows: int) -> Any:
        """The state of rows whose episodes are about to begin. By default there is none."""
        return ()

    @abstractmethod
    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        """The actions for these rows, batched or as a list of one for each, and the state of the rows afterwards.

        Args:
            observations: Batched as a vector env batches them.
            state: As returned last time; rows that `resets` marks have their initial state already.
            resets: Which rows are at the first observation of an episode.
            rows: Their generators, previous actions and rewards.
        """


class AgentPolicy(ABC):
    """Acts for one agent, one observation at a time, and may remember what it has seen since `reset`.

    Threads: one thread at a time, since it remembers. This is not checked.
    """

    @abstractmethod
    def step(self, observation: Any) -> Any:
        """The action for this observation."""

    def reset(self) -> None:  # noqa: B027  # most policies have nothing to forget
        """An episode begins."""


class MultiAgentPolicy(ABC):
    """A policy for each agent.

    Threads: one thread at a time, unless a policy says more.
    """

    @abstractmethod
    def agent_policy(self, agent: Hashable) -> AgentPolicy:
        """The policy of this agent."""

    def reset(self) -> None:  # noqa: B027  # see AgentPolicy.reset
        """An episode begins for all agents: what they have in common begins anew.

        Each agent's policy has a `reset` of its own, which is called by whoever runs it: leave it out here.
        """


class RandomPolicy(BatchPolicy):
    """Samples the action space, each row from its own generator.

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
    """A function from an observation to an action, for each row by itself.

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
    """An `AgentPolicy` for each row: each episode has a copy of its own, so that none learns from another's memory.

    Threads: any number may call it at once, with rows of their own.
    """

    def __init__(self, policy: AgentPolicy) -> None:
        self.policy = policy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy!r})"

    def initial_state(self, num_rows: int) -> Array:
        copies = np.full(num_rows, None, object)
        for row in range(num_rows):
            copies[row] = self._copy()
            copies[row].reset()
        return copies

    def _copy(self) -> AgentPolicy:
        try:
            return copy.deepcopy(self.policy)
        except Exception as error:
            raise TypeError(
                f"{self.policy!r} cannot be copied ({error}), and each episode gets a copy of it, so that none learns "
                "from another's memory. Leave out what cannot be copied (or give it __deepcopy__), or give a "
                "BatchPolicy or a function, which are not copied."
            ) from error

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        pairs = zip(state, rows.singles(), strict=True)
        return [policy.step(observation) for policy, observation in pairs], state


class SingleRow(AgentPolicy):
    """A `BatchPolicy` that acts for one agent. Its random draws start from `seed` and go on from episode to episode.

    Threads: one thread at a time, since it remembers. This is not checked.
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
    """Whether a thing is a torch module, found out without torch."""
    return any(
        (kind.__module__, kind.__name__) == ("torch.nn.modules.module", "Module") for kind in type(thing).__mro__
    )


def as_batch_policy(policy: Any) -> BatchPolicy:
    """A `BatchPolicy` of anything that acts: one of these, an `AgentPolicy`, a function from observation to action."""
    if isinstance(policy, BatchPolicy):
        return policy
    is_class = isinstance(policy, type)  # has step and reset too, but nothing to call them on
    if not is_class and callable(getattr(policy, "step", None)) and callable(getattr(policy, "reset", None)):
        return LiftedPolicy(policy)
    if is_class or not callable(policy):
        raise TypeError(
            f"{policy!r} is not a policy. Give a BatchPolicy, an AgentPolicy (with step and reset), or a function from "
            "an observation to an action."
        )
    return FunctionPolicy(policy)
