"""How a manager works, in figures."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_envs.groups.crew import Crew
from parallel_envs.groups.roster import Roster


@dataclass(frozen=True, slots=True)
class GroupStats:
    """How a manager works.

    Attributes:
        num_workers: Worker processes. The caller may be one more (`where: both`).
        restarts: How often one of them was lost, and replaced.
        num_bytes: What has travelled to them and back.
        in_caller: The tags whose environments all live in the caller.
    """

    num_workers: int
    restarts: int
    num_bytes: int
    in_caller: tuple[str, ...]


def stats_of(crew: Crew | None, roster: Roster) -> GroupStats:
    """How environments are stepped just now: by these workers, or none."""
    away = set() if crew is None else {roster.seats[env].tag for env in crew.homes}
    in_caller = tuple(tag for tag in roster.recipes if tag not in away)
    if crew is None:
        return GroupStats(0, 0, 0, in_caller)
    return GroupStats(crew.pool.num_workers, crew.restarts, crew.num_bytes(), in_caller)
