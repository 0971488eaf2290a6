"""Who acts in an episode: for each agent a policy of its own, made from the candidates."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from parallel_envs.evaluation.candidates import Candidate
from parallel_envs.evaluation.checkpoints import HeldCheckpoint, named_as_given
from parallel_envs.evaluation.generators import seeded_globally
from parallel_envs.evaluation.originals import Original, reseed
from parallel_envs.evaluation.threads import limit_torch
from parallel_envs.policies import PolicySpec, SingleRow
from parallel_envs.policies.base import BatchPolicy
from parallel_envs.seeding import SeedTree
from parallel_envs.wrappers.policy_handle import as_policy, close_policy, reset_policy

Agent = Any


class Originals:
    """The policies that a worker has made so far. Missions whose agents have equal names and spaces share them.

    What a policy draws while it is made, such as the weights of a network that nobody has trained, follows from the
    evaluation's seed, its place among the candidates, and the agent's name. Policies that play one by one (`alone`) are
    each the first of its own evaluation.
    """

    def __init__(self, candidates: Sequence[Candidate], seed: int, *, alone: bool = False) -> None:
        self.candidates, self._alone = candidates, alone
        self._seeds = SeedTree(seed).child("making")
        self._made: dict[tuple[int, Agent], list[tuple[tuple[Any, Any], Original]]] = {}
        self._common: dict[int, Original] = {}
        self._to_close: list[Any] = []

    def of(self, place: int, agent: Agent, spaces: tuple[Any, Any]) -> Original:
        """That of a candidate for an agent with this observation space and this action space."""
        known = self._made.setdefault((place, agent), [])
        for own, original in known:
            if own == spaces:
                return original
        seed = self._seeds.child(0 if self._alone else place, str(agent)).seed()
        original = self._make(self.candidates[place], agent, spaces, seed)
        known.append((spaces, original))
        return original

    def _make(self, candidate: Candidate, agent: Agent, spaces: tuple[Any, Any], seed: int) -> Original:
        source, (observation_space, action_space) = candidate.source, spaces
        if isinstance(source, PolicySpec):
            known = {"observation_space": observation_space, "action_space": action_space, "seed": seed}
            make = partial(_made, candidate.spec().for_agent(agent, **known), seed, candidate.held)
            self._to_close.append(made := make())
            return Original(made, make)
        if isinstance(source, BatchPolicy):
            return Original(SingleRow(source, observation_space), _refusal(candidate))
        return Original(as_policy(agent, source), _refusal(candidate))

    def common(self, place: int) -> Original:
        """That of a candidate that has policies for all agents."""
        if place not in self._common:
            candidate = self.candidates[place]
            self._common[place] = Original(candidate.source, _refusal(candidate))
        return self._common[place]

    def has_common(self, place: int) -> bool:
        source = self.candidates[place].source
        return not isinstance(source, PolicySpec) and callable(getattr(source, "agent_policy", None))

    def close(self) -> None:
        """Close those that were made here."""
        made, self._to_close = self._to_close, []
        with contextlib.ExitStack() as closing:  # the others too, where one raises
            for policy in made:
                closing.callback(close_policy, policy)


def _made(spec: PolicySpec, seed: int, held: HeldCheckpoint | None) -> Any:
    """The policy. If it has brought torch along, whose generator had not been seeded then, it is made again."""
    had_torch = "torch" in sys.modules
    with seeded_globally(seed), named_as_given(held):
        policy = spec.make()
    limit_torch()  # whatever the policy thinks of it
    if had_torch or "torch" not in sys.modules:
        return policy
    close_policy(policy)
    return _made(spec, seed, held)


def _refusal(candidate: Candidate) -> Callable[[], Any]:
    def refuse() -> Any:
        raise TypeError(
            f"The policy {candidate.name!r} can be neither copied nor pickled, and each episode plays with a copy of "
            "its own. Give a spec (parallel_envs.policies.PolicySpec), from which it is made."
        )

    return refuse


class Team:
    """The policies of one episode. `seed_of` gives the seed of the agent that is met as number so and so."""

    def __init__(self, originals: Originals, env: Any, seed_of: Callable[[int], int]) -> None:
        self._originals, self._env, self._seed_of = originals, env, seed_of
        self._common: dict[int, Any] = {}
        self._policies: dict[Agent, Any] = {}

    def join(self, agent: Agent, place: int) -> Any:
        """The policy of an agent that has not been met before, told that the episode begins."""
        seed = self._seed_of(len(self._policies))
        if self._originals.has_common(place):
            policy = as_policy(agent, self._shared(place, seed).agent_policy(agent))
            reseed(policy, seed)
        else:
            policy = self._originals.of(place, agent, self._spaces(agent)).copied(seed)
        self._policies[agent] = policy
        reset_policy(policy)
        return policy

    def _shared(self, place: int, seed: int) -> Any:
        """What the agents of a candidate have in common, a copy of this episode's own."""
        if place not in self._common:
            self._common[place] = self._originals.common(place).copied(seed)
            reset_policy(self._common[place])
        return self._common[place]

    def _spaces(self, agent: Agent) -> tuple[Any, Any]:
        return self._env.observation_space(agent), self._env.action_space(agent)

    @property
    def policies(self) -> Mapping[Agent, Any]:
        return self._policies

    def close(self) -> None:
        """Close the copies, those that can be closed."""
        with contextlib.ExitStack() as closing:
            for policy in [*self._common.values(), *self._policies.values()]:
                closing.callback(close_policy, policy)
