"""What a crew does in an evaluation: first a rehearsal of each mission, then the episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.candidates import Candidate
from parallel_envs.evaluation.crew import Done, Task, Work
from parallel_envs.evaluation.episode import assignment
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.records import EpisodeRecord
from parallel_envs.evaluation.rehearsal import Rehearsal
from parallel_envs.evaluation.work import Key, Order, next_order

MOST_ATTEMPTS = 2
"""An episode that failed is tried once more."""

Note = Callable[[EpisodeRecord], None]


class Rehearsals(Work):
    """A rehearsal of each mission that is to be played.

    One that is not answered, since its worker died or hangs, says nothing: the episodes are to tell what happens.
    With more workers than missions some rehearse the same ones, to have loaded by then what they need.
    """

    def __init__(self, orders: Sequence[Order], strategy: str, num_workers: int) -> None:
        firsts = {order.mission: order for order in reversed(orders)}
        once = [firsts[mission] for mission in dict.fromkeys(order.mission for order in orders)]
        self._waiting = (once * num_workers)[: max(len(once), num_workers)]
        plain = "sequential" if strategy == "auto" else strategy
        self.found = {order.mission: Rehearsal(mission=order.mission, strategy=plain) for order in once}
        self._heard: set[str] = set()

    def next(self) -> Task | None:
        return Task("rehearse", (order := self._waiting.pop(0),), order) if self._waiting else None

    def settle(self, done: Done) -> bool:
        if isinstance(done.value, Rehearsal) and done.value.mission not in self._heard:
            self._heard.add(done.value.mission)
            self.found[done.value.mission] = done.value
        return done.failure is not None

    def check(self, candidates: Sequence[Candidate]) -> None:
        """Raise BadEvaluation with all that does not fit."""
        problems = [one.problem for one in self.found.values() if one.problem]
        if problems:
            raise BadEvaluation("\n".join(problems))
        most = max((len(one.agents) for one in self.found.values()), default=0)
        if 0 < most < len(candidates):
            raise BadEvaluation(
                f"{len(candidates)} policies are to share at most {most} agents, so some would never play. Evaluate "
                "them one after another, and compare the results."
            )


class Episodes(Work):
    """The episodes themselves.

    Args:
        orders: What is to be played.
        rehearsals: What is known of the missions.
        candidates: The policies.
        note: Is told of each record, as it comes.
        strict: Raise EpisodeFailed where an episode fails for good.
        side_by_side: Several are played at once. Otherwise they are played in the order of the list.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        rehearsals: Mapping[str, Rehearsal],
        candidates: Sequence[Candidate],
        note: Note,
        *,
        strict: bool,
        side_by_side: bool,
    ) -> None:
        self._waiting = list(orders)
        self._again: list[tuple[Order, int]] = []
        self._rehearsals, self._candidates = rehearsals, candidates
        self._note, self._strict, self._side_by_side = note, strict, side_by_side
        self._times: dict[str, list[float]] = {}
        self.records: dict[Key, EpisodeRecord] = {}

    def next(self) -> Task | None:
        if self._again:
            order, attempt = self._again.pop(0)
        elif self._waiting:
            order, attempt = self._choose(), 1
            self._waiting.remove(order)
            self._times.setdefault(order.mission, [])
        else:
            return None
        return Task("play", (order, self._rehearsals[order.mission].strategy, attempt), (order, attempt))

    def _choose(self) -> Order:
        return next_order(self._waiting, self._usual_seconds()) if self._side_by_side else self._waiting[0]

    def _usual_seconds(self) -> dict[str, float]:
        """How long an episode takes, by mission; of those that have begun and not ended, no time at all."""
        return {mission: sum(times) / max(len(times), 1) for mission, times in self._times.items()}

    def settle(self, done: Done) -> bool:
        order, attempt = done.task.label
        record = done.value if isinstance(done.value, EpisodeRecord) else self._lost(order, attempt, done)
        self._times.setdefault(order.mission, []).append(record.seconds)
        if record.failure is not None and attempt < MOST_ATTEMPTS:
            self._again.append((order, attempt + 1))
            return True
        self.records[order.key] = record
        self._note(record)
        if record.failure is not None and self._strict:
            raise EpisodeFailed(_told(record), record=record)
        return False

    def _lost(self, order: Order, attempt: int, done: Done) -> EpisodeRecord:
        """The record of an episode of which the worker told nothing."""
        agents = self._rehearsals[order.mission].agents
        return EpisodeRecord(
            mission=order.mission,
            episode=order.episode,
            seed=order.env_seed,
            assignment=assignment(order, self._candidates, agents),
            failure=done.failure,
            attempts=attempt,
        )


def _told(record: EpisodeRecord) -> str:
    failure = record.failure
    assert failure is not None, "asked of failures only"
    where = f" at {failure.where}" if failure.where else ""
    return (
        f"Episode {record.episode} of {record.mission!r} failed {record.attempts} times, by the fault of its "
        f"{failure.kind}{where}: {failure.error_type}: {failure.message}"
    )
