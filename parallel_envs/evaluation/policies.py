"""Policies of an evaluation: their names, shares of the agents, checkpoints, and the copies that play an episode.

    candidates_of(["random", "runs/spread"])    in the caller: each policy under the name that results give to it
    held_checkpoints(candidates, settings)      in the caller: a copy of the checkpoint of each trained policy
    PolicyTemplates(candidates, seed)           in a worker: makes each policy once
    EpisodePolicies(templates, env, seed_of)    in an episode: a copy for each agent

No two episodes play with one object, and no episode begins with the state that another one has left. So a policy that
learns, counts or remembers gives the same numbers in every worker, in whatever order episodes are played.

A run that is still training writes new checkpoints and removes old ones, and workers make their policies at different
times. So the caller chooses the checkpoint of each policy once and copies it into a temporary folder before any episode
is played, and all workers read the copy. The result's settings hold the checkpoint's path and the fingerprint of the
copy, and a resumed evaluation takes the same checkpoint.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import math
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, NoReturn

import cloudpickle
import numpy as np

from parallel_envs.checks import hint, is_number, suggests_keywords
from parallel_envs.devices import CPU
from parallel_envs.errors import UntrustedName
from parallel_envs.evaluation.determinism import limit_torch, reseed, seeded_globally
from parallel_envs.evaluation.records import BadEvaluation, check_names_differ
from parallel_envs.extras import require
from parallel_envs.policies import MultiAgentPolicy, PolicySpec, SingleRow
from parallel_envs.policies.base import BatchPolicy, is_network
from parallel_envs.policies.specs import TRAINED, located
from parallel_envs.seeding import SeedTree
from parallel_envs.wrappers.policy_handle import as_policy, close_policy, reset_policy

Agent = Any

CHECKPOINT, DIGEST = "checkpoint", "digest"
"""Keys in the description of a policy: the path of its checkpoint, and its fingerprint."""

# File names that `parallel_envs.learners` writes. They repeat learners/run_folder.py and checkpoints.py, which this
# package may not import; a test compares the two.
_RUN, _RUN_FILES = "run.json", ("run.json", "settings.yaml", "chosen.json")
_CHECKPOINTS, _CHECKPOINT, _AGENT = "checkpoints", "checkpoint.json", "agent.json"
_FORMAT = b'"format": "parallel_envs '
_MEMORY = "memory.npz"  # a replay buffer: large, and not needed to act

_MAX_TRIES = 5  # a run may remove a checkpoint while it is copied


# ---- names and shares -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A copy of a checkpoint."""

    path: str  # the original checkpoint, or the original folder of one agent
    copy: str  # the copy of the folder that the user gave: of `path`, or of a run with only this checkpoint
    digest: str | None  # the fingerprint of the copy and of the policy's class


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

    def described(self, apart_from: Collection[Path] = ()) -> dict[str, Any]:
        """Return what identifies the policy, as values that JSON can hold, with its fingerprint (see `fingerprint`)."""
        spec = self.source
        found: dict[str, Any] = {"object": type(spec).__name__}
        if isinstance(spec, PolicySpec):
            kwargs = {
                key: value if isinstance(value, str | int | float | bool | None) else repr(value)
                for key, value in spec.kwargs.items()
            }
            data = None if spec.data_path is None else located(spec.data_path)
            found = {"class": spec.class_path, "data": data, "kwargs": kwargs}
        found["proportion"] = self.proportion
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
            name = str(getattr(given, "__name__", type(given).__name__))
            if isinstance(given, Candidate):
                name = given.name
            elif isinstance(given, PolicySpec):
                name = given.data_path or given.class_path
            elif isinstance(given, str):
                parts = dict(part.partition("=")[::2] for part in given.split(",") if "=" in given)
                name = parts.get("data") or parts.get("class") or given
            taken[name] = taken.get(name, 0) + 1
            named.append((name if taken[name] == 1 else f"{name} #{taken[name]}", given))
    check_names_differ("policy", [name for name, _ in named])
    found = [_candidate(name, given, trust) for name, given in named]
    return found if proportions is None else _with_proportions(found, proportions)


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
    is_module = is_network(given)
    can_act = isinstance(given, MultiAgentPolicy | BatchPolicy) or (callable(given) and not is_module)
    can_act = can_act or any(callable(getattr(given, method, None)) for method in ("agent_policy", "step"))
    if isinstance(given, type) or not can_act:
        advice = " Wrap a network: parallel_envs.wrappers.TorchPolicy(module, action_space)." if is_module else ""
        raise BadEvaluation(
            f"{given!r} is not a policy. Give a spec ('random', package.module:Class, a folder), an object with "
            f"step(observation), a MultiAgentPolicy, a BatchPolicy or a function of the observation.{advice}"
        )
    return Candidate(name=name, source=given)


def _with_proportions(found: list[Candidate], given: Any) -> list[Candidate]:
    numbers, names = given, [candidate.name for candidate in found]
    if isinstance(given, Mapping):
        if unknown := [name for name in given if name not in names]:
            known = f"the policies are {names}.{hint(unknown[0], names)}"
            raise BadEvaluation(f"A proportion was given for {unknown[0]!r}, and {known}")
        numbers = [given.get(candidate.name, candidate.proportion) for candidate in found]
    if not isinstance(numbers, Sequence) or len(numbers) != len(found):
        raise BadEvaluation(f"proportions={given!r} are not {len(found)} numbers. Give one for each policy.")
    for name, number in zip(names, numbers, strict=True):
        if not (is_number(number) and number > 0):
            raise BadEvaluation(f"The proportion {number!r} of {name!r} is not a number above 0.")
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

    `make` makes the policy anew, if it cannot be copied; without `make`, `copied` raises a TypeError with its name.
    """

    def __init__(self, policy: Any, make: Callable[[], Any] | None, name: str = "") -> None:
        self._copy, self._name = make, name
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
        if self._copy is None:
            raise TypeError(
                f"The policy {self._name!r} can be neither copied nor pickled, and each episode plays with a copy of "
                "its own. Give a spec (parallel_envs.policies.PolicySpec), from which the policy is made."
            )
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
        self._common: dict[int, PolicyTemplate | None] = {}
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
            spec = source.for_agent(agent, observation_space=observation_space, action_space=action_space, seed=seed)
            make: Callable[[], Any] | None = partial(_make, spec, seed, candidate.held)
            self._to_close.append(policy := _make(spec, seed, candidate.held))
        else:
            is_batch = isinstance(source, BatchPolicy)
            policy, make = SingleRow(source, observation_space) if is_batch else as_policy(agent, source), None
        template = PolicyTemplate(policy, make, candidate.name)
        known.append((spaces, template))
        return template

    def common(self, place: int) -> PolicyTemplate | None:
        """Return the template of a candidate, if one object of the candidate has the policies of all agents."""
        if place not in self._common:
            candidate, self._common[place] = self.candidates[place], None
            source = candidate.source
            if not isinstance(source, PolicySpec) and callable(getattr(source, "agent_policy", None)):
                self._common[place] = PolicyTemplate(source, None, candidate.name)
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
    try:
        with seeded_globally(seed):
            policy = (spec if held is None else dataclasses.replace(spec, data_path=held.copy)).make()
    except Exception as error:
        if held is not None:  # errors name the folder that the user gave, and not its copy
            given = str(spec.data_path)
            error.args = tuple(one.replace(held.copy, given) if isinstance(one, str) else one for one in error.args)
        raise
    limit_torch()  # the policy may have set another number of threads
    if had_torch or "torch" not in sys.modules:
        return policy
    close_policy(policy)
    return _make(spec, seed, held)


def _compute_on(policy: Any, device: str, name: str) -> None:
    """Have a policy compute its network on a device. Raise TypeError if it has a network and cannot do so."""
    inner = policy.policy if isinstance(policy, SingleRow) else policy
    if callable(act_on := getattr(inner, "act_on", None)):
        act_on(device)
    elif any(map(is_network, getattr(inner, "__dict__", {}).values())):
        raise TypeError(
            f"The network of {name!r} would not be computed on device={device!r}: {type(inner).__name__} has no method "
            "act_on(device). Give it one, give a parallel_envs.wrappers.TorchPolicy, or device='cpu'."
        )


class EpisodePolicies:
    """The policies of one episode. `seed_of(n)` gives the seed of the n-th agent that joins, counted from 0.

    Their networks are computed on `device`; on "cpu" they are computed where they are.
    """

    def __init__(self, templates: PolicyTemplates, env: Any, seed_of: Callable[[int], int], device: str = CPU) -> None:
        self._templates, self._env, self._seed_of, self._device = templates, env, seed_of, device
        self._common: dict[int, Any] = {}
        self._policies: dict[Agent, Any] = {}

    def add(self, agent: Agent, place: int) -> Any:
        """Return the policy of a new agent, a copy of the candidate at `place`, and reset it."""
        templates, seed = self._templates, self._seed_of(len(self._policies))
        common = templates.common(place)
        if common is not None:
            if place not in self._common:
                self._common[place] = common.copied(seed)
                reset_policy(self._common[place])
            policy = as_policy(agent, self._common[place].agent_policy(agent))
            reseed(policy, seed)
        else:
            spaces = self._env.observation_space(agent), self._env.action_space(agent)
            policy = templates.of_agent(place, agent, spaces).copied(seed)
        if self._device != CPU:
            _compute_on(policy, self._device, templates.candidates[place].name)
        self._policies[agent] = policy
        reset_policy(policy)
        return policy

    def close(self) -> None:
        """Close the copies that can be closed."""
        with contextlib.ExitStack() as closing:
            for policy in [*self._common.values(), *self._policies.values()]:
                closing.callback(close_policy, policy)


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held_checkpoints(
    candidates: Sequence[Candidate], earlier: Mapping[str, Any] | None = None
) -> Iterator[list[Candidate]]:
    """Yield the candidates, each with a copy of its checkpoint. Candidates without one, or with a copy, are unchanged.

    The checkpoints that `earlier` names, the settings of a result to resume, are used again. Raises BadEvaluation if
    there is no checkpoint, if it cannot be copied, or if it has changed since.
    """
    policies = (earlier or {}).get("policies")
    with contextlib.ExitStack() as stack:
        held = []
        for place, candidate in enumerate(candidates):
            source = candidate.source
            if candidate.held is None and isinstance(source, PolicySpec) and _reads_learners_folder(source):
                if is_trained(source):
                    require(f"The policy {candidate.name!r}", "torch", "safetensors")
                temporary = tempfile.TemporaryDirectory(prefix="parallel-envs-", ignore_cleanup_errors=True)
                into = Path(stack.enter_context(temporary)) / str(place)
                before = policies.get(candidate.name) if isinstance(policies, Mapping) else None
                copied = _hold(candidate.name, source, before if isinstance(before, Mapping) else {}, into)
                candidate = dataclasses.replace(candidate, held=copied)  # noqa: PLW2901  # adds the copy
            held.append(candidate)
        yield held


def is_trained(spec: PolicySpec) -> bool:
    """Return whether a policy is of a class of `parallel_envs.learners`."""
    return spec.class_path.partition(":")[0] == TRAINED.partition(":")[0]


def _reads_learners_folder(spec: PolicySpec) -> bool:
    """Return whether a policy, of whatever class, reads a folder that `parallel_envs.learners` wrote."""
    if spec.data_path is None:
        return False
    folder = Path(spec.data_path)
    if (folder / _RUN).is_file():
        newest = _newest_checkpoint(folder)
        if newest is None:
            return is_trained(spec)
        folder = newest
    for file in (folder / _CHECKPOINT, folder / _AGENT):
        with contextlib.suppress(OSError):
            if _FORMAT in file.read_bytes()[:100]:  # the name is not enough: others may write an agent.json, too
                return True
    return False


def _hold(name: str, spec: PolicySpec, before: Mapping[str, Any], into: Path) -> HeldCheckpoint:
    """Copy a policy's checkpoint into a new folder: the one of an earlier result (`before`), or the newest of a run."""
    folder, wanted = Path(str(spec.data_path)), None
    is_run = (folder / _RUN).is_file()
    earlier, data = before.get(CHECKPOINT), before.get("data")
    if isinstance(earlier, str) and isinstance(data, str):
        wanted = Path(earlier)
        if located(data) != located(str(folder)):
            # The run may have been moved, or its path may be relative to another folder: look in the run for a
            # checkpoint of the same name. The digest shows whether its content is the same.
            moved = folder / _CHECKPOINTS / wanted.name
            wanted = moved if moved.is_dir() else None
    so_far = f"The episodes so far were played by the policy {name!r} of the checkpoint {wanted}"
    restore = "New episodes could not be compared with them: restore it, or start a new evaluation."
    for _ in range(_MAX_TRIES if is_run and wanted is None else 1):
        path = wanted or (_newest_checkpoint(folder) if is_run else folder)
        if path is None:
            raise BadEvaluation(f"The run {folder} of the policy {name!r} has no checkpoint yet. Train it first.")
        try:
            if is_run:
                into.mkdir()
                for file in _RUN_FILES:
                    if (folder / file).is_file():
                        shutil.copyfile(folder / file, into / file)
            to = into / _CHECKPOINTS / path.name if is_run else into
            _copy_folder(path, to, (_MEMORY,) if is_trained(spec) else ())
            break
        except FileNotFoundError:
            shutil.rmtree(into, ignore_errors=True)
        except OSError as error:
            raise BadEvaluation(f"The checkpoint {path} of the policy {name!r} cannot be copied: {error}.") from error
    else:
        if wanted is not None:
            raise BadEvaluation(f"{so_far}, which is gone. {restore}")
        raise BadEvaluation(
            f"The checkpoint {path} of the policy {name!r} was removed while it was copied. Make its training keep "
            "more checkpoints (keep_checkpoints), and evaluate again."
        )
    digest = fingerprint(dataclasses.replace(spec, data_path=str(into)))
    if wanted is not None and before.get(DIGEST) not in (None, digest):
        raise BadEvaluation(
            f"{so_far}, and the checkpoint or the code of the policy has changed since ({DIGEST} {before[DIGEST]}, now "
            f"{digest}). {restore}"
        )
    return HeldCheckpoint(str(path), str(into), digest)


def _newest_checkpoint(run: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, or None."""
    found = [path for path in (run / _CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()]
    complete = [path for path in found if (path / _CHECKPOINT).is_file()]
    return max(complete, key=lambda path: int(path.name), default=None)


def _copy_folder(folder: Path, to: Path, skipped: Sequence[str]) -> None:
    """Copy a folder through its descriptor, so that a folder which replaces it meanwhile is not mixed in."""

    def fail(error: OSError) -> NoReturn:
        raise error

    for inside, _, names, descriptor in os.fwalk(folder, onerror=fail, follow_symlinks=True):
        target = to / os.path.relpath(inside, folder)
        target.mkdir(parents=True)
        for name in (name for name in names if name not in skipped):
            source = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            with open(source, "rb") as original, (target / name).open("xb") as copied:  # noqa: PTH123  # a descriptor
                shutil.copyfileobj(original, copied)


# ---- fingerprints ---------------------------------------------------------------------------------------------------


def fingerprint(source: Any, apart_from: Collection[Path] = ()) -> str | None:
    """Return a short hash that is equal for equal policies. Return None if there is nothing to hash.

    The hash of a spec covers the source of its module and its data files; the hash of an object or a function covers
    its code. Modules that these import are not covered, nor is what an object holds: a change of weights in a file is
    noticed, a change of weights in memory is not. Code of this package is never covered, nor are the files
    `apart_from`, because results are written to them.
    """
    parts = list(_parts_of_spec(source, apart_from) if isinstance(source, PolicySpec) else _parts_of_object(source))
    if not parts:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _parts_of_spec(spec: PolicySpec, apart_from: Collection[Path]) -> Iterator[bytes]:
    module = spec.class_path.partition(":")[0]
    if not _is_ours(module):
        with contextlib.suppress(Exception):  # its parent packages are user code; making the policy reports errors
            found = importlib.util.find_spec(module)
            if found is not None and found.origin is not None and Path(found.origin).is_file():
                yield _hash_of_file(Path(found.origin))
    if spec.data_path is None:
        return
    data, skipped = Path(spec.data_path), {path.resolve() for path in apart_from}
    root = data / _CHECKPOINTS if (data / _CHECKPOINTS).is_dir() else data  # other files of a run are its history
    files = [root] if root.is_file() else sorted(Path(at, name) for at, _, names in os.walk(root) for name in names)
    for file in files:
        if file.is_file() and file.resolve() not in skipped:
            yield str(file.relative_to(root)).encode("utf-8", "surrogateescape")
            yield _hash_of_file(file)


def _hash_of_file(file: Path) -> bytes:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").digest()
    return b""  # making the policy reports the error


def _parts_of_object(source: Any) -> Iterator[bytes]:
    thing = source.func if isinstance(source, functools.partial) else source
    codes = list(_codes_of(thing))
    for code in codes:
        yield from _parts_of_code(code)
    package = type(thing).__module__.partition(".")[0]
    for kind in () if codes else type(thing).__mro__:
        if kind.__module__.partition(".")[0] == package and not _is_ours(kind.__module__):
            for name, attribute in sorted(vars(kind).items()):
                for code in _codes_of(attribute):
                    yield name.encode()
                    yield from _parts_of_code(code)


def _codes_of(attribute: Any) -> Iterator[CodeType]:
    parts = (attribute.fget, attribute.fset) if isinstance(attribute, property) else (attribute,)
    for part in parts:
        function = part.__func__ if isinstance(part, classmethod | staticmethod | MethodType) else part
        if isinstance(function, FunctionType):
            yield inspect.unwrap(function).__code__


def _parts_of_code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts_of_code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()  # the order of a set changes from run to run
        else:
            yield repr(constant).encode("utf-8", "backslashreplace")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
