"""What a crew does in an evaluation: first a rehearsal of each mission, then the episodes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from parallel_envs.choices import Strategy
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.candidates import Candidate, shares
from parallel_envs.evaluation.crew import Done, Task, Work
from parallel_envs.evaluation.episode import assignment
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.records import EpisodeRecord
from parallel_envs.evaluation.rehearsal import Rehearsal
from parallel_envs.evaluation.work import Key, Order, next_mission

MOST_ATTEMPTS = 2
"""An episode that failed is tried once more."""

Note = Callable[[EpisodeRecord], None]


class Rehearsals(Work):
    """A rehearsal of each mission that is to be played.

    One that is not answered, since its worker died or hangs, says nothing: the episodes are to tell what happens.
    With more workers than missions some rehearse the same ones, to have loaded by then what they need.
    """

    def __init__(self, orders: Sequence[Order], strategy: Strategy, num_workers: int) -> None:
        firsts = {order.mission: order for order in reversed(orders)}
        once = [firsts[mission] for mission in dict.fromkeys(order.mission for order in orders)]
        self._waiting = (once * num_workers)[: max(len(once), num_workers)]
        plain: Strategy = "sequential" if strategy == "auto" else strategy
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
        numbers = {len(one.agents) for one in self.found.values()}
        if 0 not in numbers and (idle := _idle(candidates, numbers)):
            raise BadEvaluation(
                f"{len(candidates)} policies are to share at most {max(numbers)} agents, so {idle[0]!r} would never "
                "play. Give it a larger proportion, or evaluate one after another and compare the results."
            )


def _idle(candidates: Sequence[Candidate], numbers: Iterable[int]) -> list[str]:
    """The names of those that get no agent, whichever of these numbers of agents there are."""
    proportions = [candidate.proportion for candidate in candidates]
    most = [max(counts) for counts in zip(*(shares(proportions, number) for number in numbers), strict=True)]
    return [candidate.name for candidate, count in zip(candidates, most, strict=True) if count == 0]


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
        self._waiting: defaultdict[str, deque[Order]] = defaultdict(deque)
        for order in orders:
            self._waiting[order.mission].append(order)
        self._again: list[tuple[Order, int]] = []
        self._rehearsals, self._candidates = rehearsals, candidates
        self._note, self._strict, self._side_by_side = note, strict, side_by_side
        self._seconds: dict[str, float] = {}
        self._num_settled: Counter[str] = Counter()
        self.records: dict[Key, EpisodeRecord] = {}

    def next(self) -> Task | None:
        if self._again:
            order, attempt = self._again.pop(0)
        elif self._waiting:
            order, attempt = self._choose(), 1
        else:
            return None
        return Task("play", (order, self._rehearsals[order.mission].strategy, attempt), (order, attempt))

    def _choose(self) -> Order:
        mission = next_mission(self._waiting, self._seconds) if self._side_by_side else next(iter(self._waiting))
        order = self._waiting[mission].popleft()
        if not self._waiting[mission]:
            del self._waiting[mission]
        self._seconds.setdefault(mission, 0.0)
        return order

    def _note_seconds(self, mission: str, seconds: float) -> None:
        """The mean of a mission's episodes; of one whose episodes have begun and not ended, no time at all."""
        self._num_settled[mission] += 1
        self._seconds[mission] += (seconds - self._seconds[mission]) / self._num_settled[mission]

    def settle(self, done: Done) -> bool:
        order, attempt = done.task.label
        record = done.value if isinstance(done.value, EpisodeRecord) else self._lost(order, attempt, done)
        self._note_seconds(order.mission, record.seconds)
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
