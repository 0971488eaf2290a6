"""Policies that are to be evaluated: their names, and how the agents of an episode are shared out among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.errors import UntrustedName
from parallel_envs.evaluation.checkpoints import CHECKPOINT, DIGEST, HeldCheckpoint
from parallel_envs.evaluation.digests import digest_of
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.policies import MultiAgentPolicy, PolicySpec
from parallel_envs.policies.base import BatchPolicy, is_network
from parallel_envs.policies.specs import located
from parallel_envs.spelling import suggests_keywords

Agent = Any


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A policy by the name that it has in results.

    Args:
        name: Unique among those that are evaluated together.
        source: A `PolicySpec`, from which each worker makes the policy; or the policy itself, of which each episode
            plays with copies: an `AgentPolicy`, a `BatchPolicy`, a `MultiAgentPolicy`, a function of the observation.
        proportion: How many agents are to have it, relative to the others.
        held: The checkpoint that it is made from, set by `evaluate` where `source` names a folder of learners.
    """

    name: str
    source: Any
    proportion: float = 1.0
    held: HeldCheckpoint | None = None

    def spec(self) -> PolicySpec:
        """Return what workers make the policy from: `source`, with the copy of its checkpoint as data."""
        spec: PolicySpec = self.source
        return spec if self.held is None else dataclasses.replace(spec, data_path=self.held.copy)

    def described(self, apart_from: Collection[Path] = ()) -> dict[str, Any]:
        """What it is, as JSON can say it, with a digest of what it is made of (see `digest_of`)."""
        if self.held is not None:
            return {**self._named(), CHECKPOINT: located(self.held.path), DIGEST: self.held.digest}
        digest = digest_of(self.source, apart_from)
        return {**self._named(), **({} if digest is None else {DIGEST: digest})}

    def _named(self) -> dict[str, Any]:
        if not isinstance(self.source, PolicySpec):
            return {"object": type(self.source).__name__, "proportion": self.proportion}
        spec = self.source
        kwargs = {key: value if _is_plain(value) else repr(value) for key, value in spec.kwargs.items()}
        data = None if spec.data_path is None else located(spec.data_path)
        return {"class": spec.class_path, "data": data, "kwargs": kwargs, "proportion": self.proportion}


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)


@suggests_keywords
def candidates_of(
    policies: Any,
    proportions: Sequence[float] | Mapping[str, float] | None = None,
    trust: Sequence[str] = (),
) -> list[Candidate]:
    """The candidates among which agents are shared out. Raises BadEvaluation, UntrustedName.

    Args:
        policies: One policy, a sequence of them, or a dict by name. Text is a spec (see `PolicySpec`); a `Candidate`
            brings its own name.
        proportions: A number for each, in order or by name. None: those of the specs, 1 unless they say otherwise.
        trust: Modules whose classes the files of policy folders may name: see `parallel_envs.trust`.
    """
    named = _named(policies)
    if not named:
        raise BadEvaluation("No policy was given. Give at least one, such as 'random'.")
    found = [_candidate(name, given, trust) for name, given in named]
    return found if proportions is None else _with_proportions(found, proportions)


def _named(policies: Any) -> list[tuple[str, Any]]:
    if isinstance(policies, Mapping):
        return _told_apart([(str(name), given) for name, given in policies.items()])
    several = isinstance(policies, Sequence) and not isinstance(policies, str)
    taken: dict[str, int] = {}
    named = []
    for given in policies if several else [policies]:
        name = _name(given)
        taken[name] = taken.get(name, 0) + 1
        named.append((name if taken[name] == 1 else f"{name} #{taken[name]}", given))
    return _told_apart(named)


def _told_apart(named: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    names = [name for name, _ in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadEvaluation(
            f"Two policies are called {twice[0]!r}, and results could not tell them apart. Give a dict "
            "{name: policy}."
        )
    return named


def _name(given: Any) -> str:
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
    if isinstance(given, type) or not _acts(given):
        raise BadEvaluation(
            f"The policy {given!r} is none. Give a spec ('random', package.module:Class, a folder), an object with "
            f"step(observation), a MultiAgentPolicy, a BatchPolicy or a function of the observation.{_hint(given)}"
        )
    return Candidate(name=name, source=given)


def _acts(given: Any) -> bool:
    if isinstance(given, MultiAgentPolicy | BatchPolicy) or callable(getattr(given, "agent_policy", None)):
        return True
    return callable(getattr(given, "step", None)) or (callable(given) and not is_network(given))


def _hint(given: Any) -> str:
    if not isinstance(given, type) and is_network(given):
        return " Of a network make parallel_envs.wrappers.TorchPolicy(module, action_space)."
    return ""


# ---- proportions ----------------------------------------------------------------------------------------------------


def _with_proportions(found: list[Candidate], given: Any) -> list[Candidate]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadEvaluation(f"proportions={given!r} are not numbers. Give one for each policy, in a list or by name.")
    numbers = _by_name(found, given) if isinstance(given, Mapping) else list(given)
    if len(numbers) != len(found):
        raise BadEvaluation(f"{len(numbers)} proportions were given for {len(found)} policies. Give one for each.")
    for number, candidate in zip(numbers, found, strict=True):
        if not _is_share(number):
            raise BadEvaluation(
                f"The proportion {number!r} of {candidate.name!r} is not a number above 0. Leave a policy out that no "
                "agent is to have."
            )
    if all(number < 1 for number in numbers) and not math.isclose(sum(numbers), 1.0, rel_tol=1e-3):
        raise BadEvaluation(
            f"The proportions {numbers} look like shares of a whole and sum to {sum(numbers):g}. Give shares that sum "
            "to 1, or whole numbers."
        )
    return [dataclasses.replace(one, proportion=float(number)) for one, number in zip(found, numbers, strict=True)]


def _is_share(number: Any) -> bool:
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return is_number and math.isfinite(number) and number > 0


def _by_name(found: list[Candidate], given: Mapping[str, float]) -> list[float]:
    names = [candidate.name for candidate in found]
    if unknown := [name for name in given if name not in names]:
        raise BadEvaluation(f"A proportion was given for {unknown[0]!r}, and the policies are {names}.")
    return [given.get(name, candidate.proportion) for name, candidate in zip(names, found, strict=True)]


def shares(proportions: Sequence[float], num_agents: int) -> list[int]:
    """How many agents each policy gets: whole numbers as near to the proportions as can be.

    By largest remainder: each gets its quota rounded down, and what is left goes to those whose quotas lost most, the
    first of equals first.
    """
    quotas = [num_agents * proportion / sum(proportions) for proportion in proportions]
    counts = [math.floor(quota + 1e-9) for quota in quotas]
    by_loss = sorted(range(len(quotas)), key=lambda place: (round(counts[place] - quotas[place], 9), place))
    for place in by_loss[: num_agents - sum(counts)]:
        counts[place] += 1
    return counts


def deal(candidates: Sequence[Candidate], agents: Sequence[Agent], generator: np.random.Generator) -> dict[Agent, int]:
    """Which candidate each agent gets, shuffled by the generator."""
    counts = shares([candidate.proportion for candidate in candidates], len(agents))
    hands = [place for place, count in enumerate(counts) for _ in range(count)]
    order = generator.permutation(len(hands)).tolist()
    return {agent: hands[place] for agent, place in zip(agents, order, strict=True)}
