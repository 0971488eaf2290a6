"""What an evaluation has found out: a record for each episode, and all of them together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from parallel_envs.evaluation.statistics import Summary

Agent = Any
"""Whatever is hashable. In files an agent is text."""

FailureKind = Literal["policy", "env", "nonsense", "timeout", "death", "run"]
"""Who is to blame: a policy that raised or could not be made; an environment that did; a policy whose action is not in
its space; an episode that took too long; a worker that ended; the evaluation itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode has no result.

    Args:
        kind: Who is to blame.
        error_type: The name of the exception, such as `ValueError` or `WorkerDied`.
        message: Its text.
        traceback: The remote one, or what a worker that died or hung was doing, as far as it is known.
        where: In which part of the episode: `making policies`, `making the env`, `reset`, `step 17`.
    """

    kind: FailureKind
    error_type: str
    message: str
    traceback: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What was seen and done in an episode, one entry for each step. Observations have one entry more: the first.

    Each entry is a dict by agent, of the agents that were there.
    """

    observations: Sequence[Mapping[Agent, Any]]
    actions: Sequence[Mapping[Agent, Any]]
    rewards: Sequence[Mapping[Agent, float]]
    terminations: Sequence[Mapping[Agent, bool]]
    truncations: Sequence[Mapping[Agent, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One episode. What failed has a `failure`, and returns and length up to there that count for nothing.

    Args:
        mission: The mission's name.
        episode: Its number within the mission, from 0.
        seed: What the env was reset with; it follows from the evaluation's seed, the mission's name and the number.
        assignment: The name of each agent's policy.
        returns: The sum of each agent's rewards.
        length: How many steps were taken.
        success: Whether the mission was accomplished, where the env tells it.
        infos: The last values of those infos that were asked for, each a dict by agent.
        timeouts: How many of each agent's actions were late, for agents who were late at all.
        failure: Why there is no result, or None.
        attempts: How often the episode was tried.
        seconds: How long the last attempt took, by the clock. (It is not the same in every run, so records that differ
            in it only are equal.)
        trajectory: What was seen and done, if it was asked for.
        alone: The policy that all agents had, where several policies were evaluated one by one (`versus=False`). Empty:
            all policies that were evaluated share the agents.
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
    def key(self) -> tuple[str, int] | tuple[str, int, str]:
        """The episode's place in the work: mission and number; and the policy, where policies played one by one."""
        return (self.mission, self.episode, self.alone) if self.alone else (self.mission, self.episode)

    @property
    def mixed(self) -> bool:
        """Whether agents of several policies played in it."""
        return len(set(self.assignment.values())) > 1

    @property
    def late(self) -> int:
        """How many actions were late, of all agents together. 0 unless there was an `action_timeout`."""
        return sum(self.timeouts.values())

    @property
    def score(self) -> float | None:
        """The mean of the agents' returns. None: the episode failed."""
        return None if self.failure is not None or not self.returns else _mean(self.returns.values())

    def late_of(self, policy: str) -> int:
        """How many actions were late, of the agents that had this policy."""
        return sum(count for agent, count in self.timeouts.items() if self.assignment.get(agent) == policy)

    def score_of(self, policy: str) -> float | None:
        """The mean of the returns of the agents that had this policy. None: nobody had it, or the episode failed."""
        mine = [total for agent, total in self.returns.items() if self.assignment.get(agent) == policy]
        return _mean(mine) if mine and self.failure is None else None


def _mean(values: Any) -> float:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvaluationResult:
    """All episodes, in the order of the work: mission by mission as they were given, each from episode 0 up.

    `print(result)` shows its table, as wide as the terminal; so does a notebook.

    Args:
        episodes: Those that were played.
        settings: What was asked for, as values that JSON can hold.
        interrupted: Whether a Ctrl-C ended it.
        missing: The episodes that were not played then, each by its `EpisodeRecord.key`.
        worker_bytes: The most memory that each worker had, as far as it is known; nothing with `jobs=0`.
        options: How it was run, as values that JSON can hold: what no number depends on, and the words in which
            missions and policies were given. `parallel-envs eval --resume FILE` goes on with them.
        strategies: The strategy by which each agent acted, by mission and agent (by "mission (policy)" and agent where
            policies played one by one): what was asked for, what "auto" chose, or "sequential" where a policy
            cannot be pickled and so cannot act in a process. Missions of which nothing was played are not in it. If the
            evaluation was resumed, the strategies are those of the last part.
        why: What "auto" measured in each mission, and which policies could not be pickled, in words.
    """

    episodes: tuple[EpisodeRecord, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    missing: tuple[tuple[str, int] | tuple[str, int, str], ...] = ()
    worker_bytes: tuple[int, ...] = field(default=(), compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    strategies: Mapping[str, Mapping[Agent, str]] = field(default_factory=dict, compare=False)
    why: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.to_table(width=shutil.get_terminal_size().columns).rstrip("\n")

    def __repr__(self) -> str:
        parts = [f"{len(self.episodes)} episodes", f"{len(self.missions)} missions", f"{len(self.policies)} policies"]
        counts = ("failed", len(self.failures)), ("missing", len(self.missing))
        told = [*parts, *(f"{number} {what}" for what, number in counts if number)]
        return f"<EvaluationResult: {', '.join(told)}{', interrupted' if self.interrupted else ''}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from parallel_envs.evaluation.formats import to_html

        return to_html(self)

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
        """The names of the policies, in the order in which they were given as far as that is known."""
        met = [name for record in self.episodes for name in record.assignment.values()]
        return tuple(dict.fromkeys([*map(str, self.settings.get("policies", ())), *met]))

    def per_mission(self) -> dict[str, Summary]:
        """What the episodes of each mission come to."""
        from parallel_envs.evaluation.statistics import per_mission

        return per_mission(self)

    def per_policy(self) -> dict[str, Summary]:
        """What each policy comes to, over all missions: intervals are stratified by mission. Missions of different
        environments have no common mean: see `statistics.like_missions`."""
        from parallel_envs.evaluation.statistics import per_policy

        return per_policy(self)

    def to_json(self, path: str | Path | None = None) -> str:
        """All of it as JSON text, written to a file as well if there is a path."""
        from parallel_envs.evaluation.formats import to_json

        return _written(to_json(self), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """A row for each episode, as CSV text, written to a file as well if there is a path."""
        from parallel_envs.evaluation.formats import to_csv

        return _written(to_csv(self), path)

    def to_table(self, width: int = 120) -> str:
        """Missions and policies as tables to read, at most so many columns wide."""
        from parallel_envs.evaluation.formats import to_table

        return to_table(self, width)

    @classmethod
    def from_json(cls, path: str | Path) -> EvaluationResult:
        """What `to_json` wrote to a file. Agents are text then, as in all files."""
        from parallel_envs.evaluation.formats import from_json

        return from_json(path)


def _written(text: str, path: str | Path | None) -> str:
    """The text, which a file holds afterwards, whole or not at all."""
    if path is not None:
        from parallel_envs.evaluation.formats import write

        write(path, text)
    return text
