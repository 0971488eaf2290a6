"""Settings, records and results of an evaluation, and the result as JSON, YAML, CSV, text and HTML.

A JSON or YAML document holds the episodes and, for readers, their statistics. Reading takes the episodes alone and
computes the statistics anew. Numbers are read back bit by bit. NaN and infinity are written as text, because JSON has
no words for them. Agents are text in all files.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from parallel_envs.checks import hint, is_number, is_one_of, is_whole, similar_path
from parallel_envs.choices import Strategy, words
from parallel_envs.devices import CPU
from parallel_envs.evaluation.statistics import Summary, per_mission, per_mission_and_policy, per_policy
from parallel_envs.files import write_whole

Agent = Any
"""Any hashable object."""

_CSV_COLUMNS = (
    *("mission", "episode", "seed", "score", "success", "length", "late", "attempts", "seconds"),
    *("failure", "error", "policy"),
)

EpisodeKey = tuple[str, int] | tuple[str, int, str]
"""The mission's name and the number of the episode; and the policy, where each policy plays on its own."""

FailureKind = Literal["policy", "env", "nonsense", "timeout", "death", "run"]
"""The cause of a failure: a policy that raised or could not be made; an environment that did; a policy whose action is
not in its space; an episode that took too long; a worker that died; the evaluation itself."""


# ---- settings -------------------------------------------------------------------------------------------------------


class BadEvaluation(ValueError):
    """The evaluation cannot be done as asked: an unknown mission, a policy that does not fit, a number out of range."""


def check_whole(name: str, value: Any, *, least: int, other: str = "") -> int:
    """Return a whole number that is at least `least`, or raise BadEvaluation. `other`: words for what else fits."""
    if not is_whole(value) or value < least:
        raise BadEvaluation(" ".join(f"{name}={value!r} is not a whole number from {least} up {other}".split()) + ".")
    return int(value)


def check_word(what: str, value: Any, known: Sequence[str]) -> None:
    """Raise BadEvaluation for a value that is none of the known words. `what` names the argument and the value."""
    if not is_one_of(value, known):
        raise BadEvaluation(f"{what} is unknown. Choose one of {', '.join(known)}.{hint(value, known)}")


def check_names_differ(what: str, names: Sequence[str]) -> None:
    """Raise BadEvaluation for a name that is there twice, or for no name."""
    if not names:
        raise BadEvaluation(f"No {what} was given. Give at least one.")
    if twice := [name for name in names if names.count(name) > 1]:
        plural = f"{what.removesuffix('y')}ies" if what.endswith("y") else f"{what}s"
        raise BadEvaluation(
            f"Two {plural} are called {twice[0]!r}, and results could not tell them apart. Leave one out, or give a "
            f"dict {{name: {what}}}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Settings that every worker gets. They are arguments of `evaluate`, and are explained there."""

    strategy: Strategy = "sequential"
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    action_timeout: float | None = None
    lateness_budget: float | None = 5.0
    episode_timeout: float | None = None
    max_steps: int = 1000
    info_keys: tuple[str, ...] = ()
    trajectories: bool = False
    device: str = CPU

    def __post_init__(self) -> None:
        for name in ("action_timeout", "lateness_budget", "episode_timeout"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise BadEvaluation(f"{name}={value!r} is not a number of seconds above 0, nor None for no limit.")
        check_word(f"parallel_policy={self.strategy!r}", self.strategy, words(Strategy))
        for agent, name in self.strategies.items():
            check_word(f"strategy={name!r} of the agent {agent!r}", name, words(Strategy))

    def strategy_of(self, agent: Any) -> Strategy:
        """Return the strategy that was requested for one agent."""
        return self.strategies.get(str(agent), self.strategy)

    @property
    def all_strategies(self) -> frozenset[Strategy]:
        """All strategies that were requested."""
        return frozenset({self.strategy, *self.strategies.values()})

    def described(self) -> Mapping[str, Any]:
        """Return the settings that the numbers depend on, as values that JSON can hold."""
        names = ("action_timeout", "lateness_budget", "episode_timeout", "max_steps")
        return {
            "parallel_policy": self.strategy,
            "strategy": dict(sorted(self.strategies.items())) or None,
            **{name: getattr(self, name) for name in names},
            "info_keys": list(self.info_keys),
            **({} if self.device == CPU else {"device": self.device}),  # as earlier versions wrote it
        }


# ---- records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why an episode has no result."""

    kind: FailureKind
    error_type: str  # the name of the exception, such as `ValueError` or `WorkerDied`
    message: str
    traceback: str = ""
    """The remote traceback, or the last output or stack of a worker that died or hung, if it is known."""
    where: str = ""
    """The part of the episode: `making policies`, `making the env`, `reset`, `step 17`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The observations, actions and rewards of an episode: a dict by agent for each step.

    `observations` has one entry more than the others, the observations of the reset.
    """

    observations: Sequence[Mapping[Agent, Any]]
    actions: Sequence[Mapping[Agent, Any]]
    rewards: Sequence[Mapping[Agent, float]]
    terminations: Sequence[Mapping[Agent, bool]]
    truncations: Sequence[Mapping[Agent, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """The result of an episode. If the episode failed, its returns and length up to the failure do not count.

    Args:
        mission: The mission's name.
        episode: The number of the episode in the mission, from 0.
        seed: The seed of the environment's reset.
        assignment: The name of each agent's policy.
        returns: The sum of each agent's rewards.
        length: The number of steps.
        success: Whether the mission was accomplished, if the environment tells.
        infos: The last values of the requested infos, each a dict by agent.
        timeouts: The number of late actions of each agent that was late.
        failure: The reason why there is no result, or None.
        attempts: How often the episode was played.
        seconds: The duration of the last attempt. It is not compared when records are.
        trajectory: The observations, actions and rewards, if they were requested.
        alone: The policy of all agents, where each policy was evaluated on its own (`versus=False`), else empty.
    """

    mission: str
    episode: int
    seed: int
    assignment: Mapping[Agent, str] = field(default_factory=dict)
    returns: Mapping[Agent, float] = field(default_factory=dict)
    length: int = 0
    success: bool | None = None
    infos: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Mapping[Agent, int] = field(default_factory=dict)
    failure: Failure | None = None
    attempts: int = 1
    seconds: float = field(default=0.0, compare=False)
    trajectory: Trajectory | None = None
    alone: str = ""

    @property
    def key(self) -> EpisodeKey:
        """The mission and the number; and the policy, where each policy played on its own."""
        return (self.mission, self.episode, self.alone) if self.alone else (self.mission, self.episode)

    @property
    def mixed(self) -> bool:
        """True if agents of several policies played in the episode."""
        return len(set(self.assignment.values())) > 1

    @property
    def late(self) -> int:
        """The number of late actions of all agents together. 0 unless there was an `action_timeout`."""
        return sum(self.timeouts.values())

    @property
    def score(self) -> float | None:
        """The mean of the agents' returns, or None if the episode failed."""
        return self._mean_return(self.returns)

    def late_of(self, policy: str) -> int:
        """Return the number of late actions of the agents that had this policy."""
        return sum(count for agent, count in self.timeouts.items() if self.assignment.get(agent) == policy)

    def score_of(self, policy: str) -> float | None:
        """Return the mean return of the agents that had this policy. None: no agent had it, or the episode failed."""
        return self._mean_return([agent for agent in self.returns if self.assignment.get(agent) == policy])

    def _mean_return(self, agents: Iterable[Agent]) -> float | None:
        numbers = [float(self.returns[agent]) for agent in agents]
        return sum(numbers) / len(numbers) if numbers and self.failure is None else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvaluationResult:
    """All episodes, mission by mission in the given order, each from episode 0 up.

    `print(result)` shows a table as wide as the terminal; a notebook shows the table, too.

    Args:
        episodes: The episodes that were played.
        settings: The arguments that the numbers depend on, as values that JSON can hold.
        interrupted: Whether a Ctrl-C ended the evaluation.
        missing: The episodes that were not played then, each by its `EpisodeRecord.key`.
        worker_bytes: The most memory that each worker had, as far as it is known; empty with `jobs=0`.
        options: The arguments that no number depends on, and the texts in which missions and policies were given, as
            values that JSON can hold. `parallel-envs eval --resume FILE` uses them.
        strategies: The strategy by which each agent acted, by mission and agent (by "mission (policy)" and agent where
            each policy played on its own): the requested one, the one that "auto" chose, or "sequential" where a
            policy cannot be pickled and so cannot act in a process. Missions of which nothing was played are not in
            it. If the evaluation was resumed, the strategies are those of the last part.
        why: The measurements of "auto" in each mission, and which policies could not be pickled, in words.
    """

    episodes: tuple[EpisodeRecord, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    missing: tuple[EpisodeKey, ...] = ()
    worker_bytes: tuple[int, ...] = field(default=(), compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    strategies: Mapping[str, Mapping[Agent, str]] = field(default_factory=dict, compare=False)
    why: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.to_table(width=shutil.get_terminal_size().columns).rstrip("\n")

    def __repr__(self) -> str:
        parts = [f"{len(self.episodes)} episodes", f"{len(self.missions)} missions", f"{len(self.policies)} policies"]
        counts = ("failed", len(self.failures)), ("missing", len(self.missing))
        parts += [f"{number} {what}" for what, number in counts if number]
        return f"<EvaluationResult: {', '.join(parts)}{', interrupted' if self.interrupted else ''}>"

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return f"<pre>{html.escape(self.to_table())}</pre>"

    @property
    def failures(self) -> tuple[EpisodeRecord, ...]:
        """The episodes that failed."""
        return tuple(record for record in self.episodes if record.failure is not None)

    @property
    def missions(self) -> tuple[str, ...]:
        """The names of the missions, in order."""
        played, missing = [record.mission for record in self.episodes], [key[0] for key in self.missing]
        return tuple(dict.fromkeys([*played, *missing]))

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies, in the order in which they were given if that is known."""
        met = [name for record in self.episodes for name in record.assignment.values()]
        return tuple(dict.fromkeys([*map(str, self.settings.get("policies", ())), *met]))

    def per_mission(self) -> dict[str, Summary]:
        """Return the statistics of each mission."""
        return per_mission(self)

    def per_policy(self) -> dict[str, Summary]:
        """Return the statistics of each policy over all missions; intervals are stratified by mission.

        Missions of different environments have no common mean: see `statistics.comparable_missions`.
        """
        return per_policy(self)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything except trajectories as JSON, and write it to `path`, if one is given."""
        return write_text(json.dumps(to_document(self), indent=2, allow_nan=False) + "\n", path)

    def to_yaml(self) -> str:
        """Return everything except trajectories as YAML."""
        import yaml

        text: str = yaml.safe_dump(to_document(self), sort_keys=False, allow_unicode=True, width=120)
        return text

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return a row for each episode as CSV, and write it to `path`, if one is given.

        A row has the figures of the episode, then policy, return and late actions of each agent. The column `policy`
        has the policy that all agents had, or "mixed".
        """
        agents_of = [dict.fromkeys([*record.assignment, *record.returns]) for record in self.episodes]
        agents = dict.fromkeys(str(agent) for own in agents_of for agent in own)
        columns = [*_CSV_COLUMNS, *(f"{what}:{agent}" for agent in agents for what in ("policy", "return", "timeouts"))]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for record, own in zip(self.episodes, agents_of, strict=True):
            failure = record.failure
            row = {name: getattr(record, name) for name in _CSV_COLUMNS if hasattr(record, name)}
            row["failure"] = failure and failure.kind
            row["error"] = failure and f"{failure.error_type}: {failure.message}"
            row["policy"] = "mixed" if record.mixed else record.alone or next(iter(record.assignment.values()), "")
            for agent in own:
                row |= {
                    f"policy:{agent}": record.assignment.get(agent),
                    f"return:{agent}": None if failure else record.returns.get(agent),
                    f"timeouts:{agent}": record.timeouts.get(agent, 0),
                }
            writer.writerow({name: "" if value is None else plain(value) for name, value in row.items()})
        return write_text(text.getvalue(), path)

    def to_table(self, width: int = 120) -> str:
        """Return tables of missions and policies as text of at most `width` columns."""
        from parallel_envs.evaluation.tables import text_table

        return text_table(self, width)

    @classmethod
    def from_json(cls, path: str | Path) -> EvaluationResult:
        """Return the result in a file that `to_json` wrote. Raise BadDocument, naming the file, for another file."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            meant = similar_path(path, lambda one: one.suffix == ".json")
            raise BadDocument(f"{path} cannot be read: {error.strerror}.{meant}") from error
        except (ValueError, RecursionError) as error:
            raise BadDocument(f"{path} is not JSON ({error}). {_ADVICE}") from error
        if not isinstance(document, Mapping) or document.get("kind") != KIND:
            raise BadDocument(f"{path} is not an evaluation. {_ADVICE}")
        if document.get("schema") != SCHEMA:
            raise BadDocument(f"{path} has schema {document.get('schema')!r}, and this version reads {SCHEMA}.")
        found = read_as(EvaluationResult, document, str(path))
        _check_settings(found.settings, str(path))
        return found


def write_text(text: str, path: str | Path | None) -> str:
    """Return the text, and write it to `path`, if one is given: readers see the old file or the whole new one."""
    if path is not None:
        write_whole(Path(path), lambda file: file.write(text.encode()))
    return text


# ---- documents: JSON and YAML ---------------------------------------------------------------------------------------

SCHEMA = 1
KIND = "parallel_envs evaluation"
_ADVICE = "Give a file that `parallel-envs eval --output` wrote."

Kind = TypeVar("Kind")


class BadDocument(ValueError):
    """A document that is not an evaluation. The text says what is wrong with it, and where."""


def to_document(result: EvaluationResult) -> dict[str, Any]:
    """Return an evaluation, except trajectories, as values that JSON and YAML can hold."""
    missions = {name: plain(dataclasses.asdict(one)) for name, one in per_mission(result).items()}
    for name in missions:
        missions[name]["policies"] = {}
    for (name, policy), cell in per_mission_and_policy(result).items():
        missions[name]["policies"][policy] = plain(dataclasses.asdict(cell))
    named = {name: plain(getattr(result, name)) for name in ("strategies", "why") if getattr(result, name)}
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "settings": plain(result.settings),
        "options": plain(result.options),
        **named,
        "interrupted": result.interrupted,
        "missing": [list(key) for key in result.missing],
        "worker_bytes": list(result.worker_bytes),
        "missions": missions,
        "policies": {name: plain(dataclasses.asdict(one)) for name, one in per_policy(result).items()},
        "episodes": [record_values(record) for record in result.episodes],
    }


def record_values(record: EpisodeRecord) -> dict[str, Any]:
    """Return an episode, except its trajectory, as values that JSON can hold."""
    values = {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}
    del values["trajectory"]
    if not record.alone:
        del values["alone"]  # earlier versions do not know this field, and can read the record without it
    failure = dataclasses.asdict(record.failure) if record.failure else None
    return {**plain(values), "late": record.late, "failure": failure}


def _check_settings(settings: Mapping[str, Any], where: str) -> None:
    """Raise BadDocument for settings that statistics and tables could not use."""
    from pydantic import BaseModel  # late: workers do not need it

    class KnownSettings(BaseModel, strict=True):  # strict: True is no seed
        missions: Mapping[str, Mapping[str, Any]] = {}
        policies: Mapping[str, Mapping[str, Any]] | Sequence[Any] = ()
        strategy: Mapping[str, Any] | None = None
        seed: int = 0
        max_steps: int = 1
        episodes: int = 1

    read_as(KnownSettings, settings, where, "settings")


def read_as(kind: type[Kind], values: Any, where: str, block: str = "") -> Kind:
    """Return the dataclass of this kind that a document holds, in its part `block`. Raise BadDocument."""
    from pydantic import TypeAdapter, ValidationError  # late: workers do not need them

    from parallel_envs.checks import explain

    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise BadDocument(f"{where} is damaged: {explain(error.errors()[0], str, block)}") from None


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: arrays as lists, keys as text, objects of other types as their `repr`."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() | np.floating():
            return float(value) if math.isfinite(value) else str(float(value))
        case np.bool_() | np.integer() | np.ndarray():
            return plain(value.tolist())
        case Mapping():
            names = names_of(value)
            return {names[key]: plain(inner) for key, inner in value.items()}
        case Sequence() | set() | frozenset() if not isinstance(value, bytes):
            return [plain(inner) for inner in value]
        case _:
            return repr(value)


def names_of(keys: Iterable[Any]) -> dict[Any, str]:
    """Return keys as text: by `str`, or by `repr` if two keys would have the same text."""
    shown = {key: str(key) for key in keys}
    return shown if len(set(shown.values())) == len(shown) else {key: repr(key) for key in shown}
