"""Policies of an evaluation: their names and shares of the agents, and the copies of them that play an episode.

    candidates_of(["random", "runs/spread"])    in the caller: each policy under the name that results give to it
    PolicyTemplates(candidates, seed)           in a worker: makes each policy once
    EpisodePolicies(templates, env, seed_of)    in an episode: a copy for each agent

No two episodes play with one object, and no episode begins with the state that another one has left. So a policy that
learns, counts or remembers gives the same numbers in every worker, in whatever order episodes are played.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.spaces import Space

from parallel_envs.errors import UntrustedName
from parallel_envs.evaluation.checkpoints import CHECKPOINT, DIGEST, HeldCheckpoint, fingerprint, named_as_given
from parallel_envs.evaluation.config import BadEvaluation
from parallel_envs.evaluation.determinism import limit_torch, seeded_globally
from parallel_envs.policies import MultiAgentPolicy, PolicySpec, SingleRow
from parallel_envs.policies.base import BatchPolicy, is_network
from parallel_envs.policies.specs import located
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import suggests_keywords
from parallel_envs.wrappers.policy_handle import as_policy, close_policy, reset_policy

Agent = Any


# ---- names and shares -----------------------------------------------------------------------------------------------


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy under the name that results give to it.

    Args:
        name: Unique among the policies that are evaluated together.
        source: A `PolicySpec`, from which each worker makes the policy; or the policy itself, which is copied for each
            episode: an `AgentPolicy`, a `BatchPolicy`, a `MultiAgentPolicy`, a function of the observation.
        proportion: How many agents this policy gets, relative to the other policies.
        held: The copy of its checkpoint, set by `evaluate` where `source` names a folder of learners.
    """

    name: str
    source: Any
    proportion: float = 1.0
    held: HeldCheckpoint | None = None

    def spec(self) -> PolicySpec:
        """Return the spec from which workers make the policy: `source`, with the copy of its checkpoint as data."""
        spec: PolicySpec = self.source
        return spec if self.held is None else dataclasses.replace(spec, data_path=self.held.copy)

    def described(self, apart_from: Collection[Path] = ()) -> dict[str, Any]:
        """Return what identifies the policy, as values that JSON can hold, with its fingerprint (see `fingerprint`)."""
        spec = self.source
        if isinstance(spec, PolicySpec):
            data = None if spec.data_path is None else located(spec.data_path)
            kwargs = {
                key: value if isinstance(value, str | int | float | bool | None) else repr(value)
                for key, value in spec.kwargs.items()
            }
            found = {"class": spec.class_path, "data": data, "kwargs": kwargs, "proportion": self.proportion}
        else:
            found = {"object": type(spec).__name__, "proportion": self.proportion}
        if self.held is not None:
            return {**found, CHECKPOINT: located(self.held.path), DIGEST: self.held.digest}
        digest = fingerprint(spec, apart_from)
        return found if digest is None else {**found, DIGEST: digest}


@suggests_keywords
def candidates_of(
    policies: Any, proportions: Sequence[float] | Mapping[str, float] | None = None, trust: Sequence[str] = ()
) -> list[Candidate]:
    """Return the policies that share the agents. Raises BadEvaluation, UntrustedName.

    Args:
        policies: One policy, a sequence of them, or a dict by name. Text is a spec (see `PolicySpec`); a `Candidate`
            has a name already.
        proportions: A number for each policy, in order or by name. None: the numbers of the specs, which are 1 if not
            given.
        trust: Modules whose classes the files of policy folders may name: see `parallel_envs.trust`.
    """
    if isinstance(policies, Mapping):
        named = [(str(name), given) for name, given in policies.items()]
    else:
        several = isinstance(policies, Sequence) and not isinstance(policies, str)
        taken: dict[str, int] = {}
        named = []
        for given in policies if several else [policies]:
            name = _default_name(given)
            taken[name] = taken.get(name, 0) + 1
            named.append((name if taken[name] == 1 else f"{name} #{taken[name]}", given))
    names = [name for name, _ in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadEvaluation(
            f"Two policies are called {twice[0]!r}, and results could not tell them apart. Give a dict "
            "{name: policy}."
        )
    if not named:
        raise BadEvaluation("No policy was given. Give at least one, such as 'random'.")
    found = [_candidate(name, given, trust) for name, given in named]
    return found if proportions is None else _with_proportions(found, proportions)


def _default_name(given: Any) -> str:
    if isinstance(given, Candidate):
        return given.name
    if isinstance(given, str):
        parts = dict(part.partition("=")[::2] for part in given.split(",")) if "=" in given else {}
        return parts.get("data") or parts.get("class") or given
    if isinstance(given, PolicySpec):
        return given.data_path or given.class_path
    return str(getattr(given, "__name__", type(given).__name__))


def _candidate(name: str, given: Any, trust: Sequence[str]) -> Candidate:
    if isinstance(given, Candidate):
        return dataclasses.replace(given, name=name)
    if isinstance(given, str | PolicySpec):
        try:
            spec = PolicySpec.parse(given, trust)
        except UntrustedName:
            raise
        except (TypeError, ValueError) as error:
            raise BadEvaluation(str(error)) from error
        return Candidate(name=name, source=spec, proportion=spec.proportion)
    can_act = isinstance(given, MultiAgentPolicy | BatchPolicy) or any(
        callable(getattr(given, method, None)) for method in ("agent_policy", "step")
    )
    if isinstance(given, type) or not (can_act or (callable(given) and not is_network(given))):
        is_module = not isinstance(given, type) and is_network(given)
        advice = " Wrap a network: parallel_envs.wrappers.TorchPolicy(module, action_space)." if is_module else ""
        raise BadEvaluation(
            f"{given!r} is not a policy. Give a spec ('random', package.module:Class, a folder), an object with "
            f"step(observation), a MultiAgentPolicy, a BatchPolicy or a function of the observation.{advice}"
        )
    return Candidate(name=name, source=given)


def _with_proportions(found: list[Candidate], given: Any) -> list[Candidate]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadEvaluation(f"proportions={given!r} are not numbers. Give one for each policy, in a list or by name.")
    names = [candidate.name for candidate in found]
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in names]:
            raise BadEvaluation(f"A proportion was given for {unknown[0]!r}, and the policies are {names}.")
        numbers = [given.get(candidate.name, candidate.proportion) for candidate in found]
    else:
        numbers = list(given)
    if len(numbers) != len(found):
        raise BadEvaluation(f"{len(numbers)} proportions were given for {len(found)} policies. Give one for each.")
    for name, number in zip(names, numbers, strict=True):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not (is_number and math.isfinite(number) and number > 0):
            raise BadEvaluation(
                f"The proportion {number!r} of {name!r} is not a number above 0. Leave out a policy that shall not "
                "play."
            )
    if all(number < 1 for number in numbers) and not math.isclose(sum(numbers), 1.0, rel_tol=1e-3):
        raise BadEvaluation(
            f"The proportions {numbers} look like shares of a whole and sum to {sum(numbers):g}. Give shares that sum "
            "to 1, or whole numbers."
        )
    return [dataclasses.replace(one, proportion=float(number)) for one, number in zip(found, numbers, strict=True)]


def shares(proportions: Sequence[float], num_agents: int) -> list[int]:
    """Return how many agents each policy gets: whole numbers as near to the proportions as possible.

    By largest remainder: each policy gets its quota rounded down. The remaining agents go to the policies whose quotas
    lost most by rounding, and among equals to the first.
    """
    quotas = [num_agents * proportion / sum(proportions) for proportion in proportions]
    counts = [math.floor(quota + 1e-9) for quota in quotas]
    by_loss = sorted(range(len(quotas)), key=lambda place: (round(counts[place] - quotas[place], 9), place))
    for place in by_loss[: num_agents - sum(counts)]:
        counts[place] += 1
    return counts


def deal(candidates: Sequence[Candidate], agents: Sequence[Agent], generator: np.random.Generator) -> dict[Agent, int]:
    """Return which candidate each agent gets, shuffled by the generator."""
    counts = shares([candidate.proportion for candidate in candidates], len(agents))
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    order = generator.permutation(len(places)).tolist()
    return {agent: places[place] for agent, place in zip(agents, order, strict=True)}


# ---- templates, in a worker -----------------------------------------------------------------------------------------


class PolicyTemplate:
    """A policy in the state before it played. The template itself never plays; `copied` gives policies that do.

    `make` makes the policy anew, if it cannot be copied.
    """

    def __init__(self, policy: Any, make: Callable[[], Any]) -> None:
        self._copy = make
        if not callable(getattr(policy, "function", None)):  # the deep copy of a function is the function itself
            with contextlib.suppress(Exception):  # user code: the policy may hold what cannot be copied
                kept = copy.deepcopy(policy)
                self._copy = lambda: copy.deepcopy(kept)
                return
        with contextlib.suppress(Exception):  # as above
            data = cloudpickle.dumps(policy)
            pickle.loads(data)
            self._copy = lambda: pickle.loads(data)

    def copied(self, seed: int) -> Any:
        """Return a policy in the state of the template, with its generators seeded."""
        policy = self._copy()
        reseed(policy, seed)
        return policy


class PolicyTemplates:
    """The policies that a worker has made so far. Missions whose agents have equal names and spaces share them.

    What a policy samples while it is made, such as the weights of an untrained network, follows from the evaluation's
    seed, its place among the candidates, and the agent's name. With `alone`, each policy plays on its own and counts
    as the first candidate of its own evaluation.
    """

    def __init__(self, candidates: Sequence[Candidate], seed: int, *, alone: bool = False) -> None:
        self.candidates, self._alone = candidates, alone
        self._seeds = SeedTree(seed).child("making")
        self._made: dict[tuple[int, Agent], list[tuple[tuple[Any, Any], PolicyTemplate]]] = {}
        self._common: dict[int, PolicyTemplate] = {}
        self._to_close: list[Any] = []

    def of_agent(self, place: int, agent: Agent, spaces: tuple[Any, Any]) -> PolicyTemplate:
        """Return the template of a candidate for an agent with this observation space and this action space."""
        known = self._made.setdefault((place, agent), [])
        for own, template in known:
            if own == spaces:
                return template
        seed = self._seeds.child(0 if self._alone else place, str(agent)).seed()
        candidate, (observation_space, action_space) = self.candidates[place], spaces
        source = candidate.source
        if isinstance(source, PolicySpec):
            arguments = {"observation_space": observation_space, "action_space": action_space, "seed": seed}
            make = partial(_make, candidate.spec().for_agent(agent, **arguments), seed, candidate.held)
            self._to_close.append(made := make())
            template = PolicyTemplate(made, make)
        else:
            policy = (
                SingleRow(source, observation_space) if isinstance(source, BatchPolicy) else as_policy(agent, source)
            )
            template = PolicyTemplate(policy, partial(_refuse_to_copy, candidate.name))
        known.append((spaces, template))
        return template

    def is_common(self, place: int) -> bool:
        """Return whether one object of this candidate has the policies of all agents."""
        source = self.candidates[place].source
        return not isinstance(source, PolicySpec) and callable(getattr(source, "agent_policy", None))

    def common(self, place: int) -> PolicyTemplate:
        """Return the template of a candidate that has the policies of all agents."""
        if place not in self._common:
            candidate = self.candidates[place]
            self._common[place] = PolicyTemplate(candidate.source, partial(_refuse_to_copy, candidate.name))
        return self._common[place]

    def close(self) -> None:
        """Close the policies that were made from specs. The policies of the caller stay open."""
        made, self._to_close = self._to_close, []
        with contextlib.ExitStack() as closing:  # closes the others, too, if one raises
            for policy in made:
                closing.callback(close_policy, policy)


def _make(spec: PolicySpec, seed: int, held: HeldCheckpoint | None) -> Any:
    """Make a policy. If that imported torch, whose generator had not been seeded before, make the policy again."""
    had_torch = "torch" in sys.modules
    with seeded_globally(seed), named_as_given(held):
        policy = spec.make()
    limit_torch()  # the policy may have set another number of threads
    if had_torch or "torch" not in sys.modules:
        return policy
    close_policy(policy)
    return _make(spec, seed, held)


def _refuse_to_copy(name: str) -> Any:
    raise TypeError(
        f"The policy {name!r} can be neither copied nor pickled, and each episode plays with a copy of its own. Give a "
        "spec (parallel_envs.policies.PolicySpec), from which the policy is made."
    )


# ---- the seeds of a copy --------------------------------------------------------------------------------------------

_MAX_DEPTH, _MAX_PARTS = 4, 100  # how far a policy is searched for generators


def reseed(policy: Any, seed: int) -> None:
    """Seed a policy by its method `seed`, or else seed the generators among its attributes.

    These are the generators of NumPy, Python and torch and the spaces of Gymnasium, each with a stream of its own, in
    the policy, in its lists, tuples and dicts, and in policies that it holds.
    """
    if callable(method := getattr(policy, "seed", None)):
        method(seed)
        return
    for number, (name, generator) in enumerate(_generators(policy, "", set(), 0)):
        own = SeedTree(seed).child(name, number)
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(own.sequence()).state
        elif isinstance(generator, np.random.RandomState | random.Random | Space):
            generator.seed(own.seed())
        else:
            generator.manual_seed(own.seed())


def _generators(thing: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the generators in a policy, each with its attribute's name, in the order of attributes."""
    if id(thing) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(thing))
    is_torch = type(thing).__module__.partition(".")[0] == "torch" and callable(getattr(thing, "manual_seed", None))
    if is_torch or isinstance(thing, np.random.Generator | np.random.RandomState | random.Random | Space):
        yield name, thing
        return
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(thing, list | tuple):
        parts = [("", part) for part in thing[:_MAX_PARTS]]
    elif isinstance(thing, dict):
        parts = [("", part) for part in list(thing.values())[:_MAX_PARTS]]
    elif not depth or callable(getattr(thing, "step", None)) or callable(getattr(thing, "act", None)):
        parts = list(getattr(thing, "__dict__", {}).items())
    for key, part in parts:
        yield from _generators(part, key or name, seen, depth + 1)


# ---- copies, in an episode ------------------------------------------------------------------------------------------


class EpisodePolicies:
    """The policies of one episode. `seed_of(n)` gives the seed of the n-th agent that joins, counted from 0."""

    def __init__(self, templates: PolicyTemplates, env: Any, seed_of: Callable[[int], int]) -> None:
        self._templates, self._env, self._seed_of = templates, env, seed_of
        self._common: dict[int, Any] = {}
        self._policies: dict[Agent, Any] = {}

    def add(self, agent: Agent, place: int) -> Any:
        """Return the policy of a new agent, a copy of the candidate at `place`, and reset it."""
        templates, seed = self._templates, self._seed_of(len(self._policies))
        if templates.is_common(place):
            if place not in self._common:
                self._common[place] = templates.common(place).copied(seed)
                reset_policy(self._common[place])
            policy = as_policy(agent, self._common[place].agent_policy(agent))
            reseed(policy, seed)
        else:
            spaces = self._env.observation_space(agent), self._env.action_space(agent)
            policy = templates.of_agent(place, agent, spaces).copied(seed)
        self._policies[agent] = policy
        reset_policy(policy)
        return policy

    def close(self) -> None:
        """Close the copies that can be closed."""
        with contextlib.ExitStack() as closing:
            for policy in [*self._common.values(), *self._policies.values()]:
                closing.callback(close_policy, policy)
