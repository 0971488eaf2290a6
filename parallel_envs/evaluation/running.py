"""What a crew does in an evaluation: first a rehearsal of each mission, then the episodes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.candidates import Candidate, shares
from parallel_envs.evaluation.crew import Done, Task, Work
from parallel_envs.evaluation.episode import assignment
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.records import EpisodeRecord
from parallel_envs.evaluation.rehearsal import Rehearsal
from parallel_envs.evaluation.settings import PlaySettings
from parallel_envs.evaluation.work import Key, Order, Part, next_mission
from parallel_envs.spelling import hint

MOST_ATTEMPTS = 2
"""An episode that failed is tried once more."""

Note = Callable[[EpisodeRecord], None]


class Rehearsals(Work):
    """A rehearsal of each mission that is to be played; of policies that play one by one, with each.

    One that is not answered, since its worker died or hangs, says nothing: the episodes are to tell what happens.
    With more workers than missions some rehearse the same ones, to have loaded by then what they need.
    """

    def __init__(self, orders: Sequence[Order], settings: PlaySettings, num_workers: int) -> None:
        firsts = {order.part: order for order in reversed(orders)}
        once = [firsts[part] for part in dict.fromkeys(order.part for order in orders)]
        self._share = not any(order.alone for order in orders)
        self._waiting = (once * num_workers)[: max(len(once), num_workers)]
        self._settings = settings
        plain = "sequential" if settings.strategy == "auto" else settings.strategy
        single = {agent: "sequential" if name == "auto" else name for agent, name in settings.strategies.items()}
        self.found: dict[Part, Rehearsal] = {
            order.part: Rehearsal(mission=order.mission, strategy=single or plain) for order in once
        }
        self._heard: set[Part] = set()

    def next(self) -> Task | None:
        return Task("rehearse", (order := self._waiting.pop(0),), order) if self._waiting else None

    def settle(self, done: Done) -> bool:
        part = done.task.label.part
        if isinstance(done.value, Rehearsal) and part not in self._heard:
            self._heard.add(part)
            self.found[part] = done.value
        return done.failure is not None

    def check(self, candidates: Sequence[Candidate], num_agents: int | None = None) -> None:
        """Raise BadEvaluation with all that does not fit."""
        problems = [one.problem for one in self.found.values() if one.problem]
        problems += [
            f"The mission {name!r} has {len(one.agents)} agents ({', '.join(map(str, one.agents))}), and {num_agents} "
            "are asked for. Give the keywords that make agents in the mission itself: name?keyword=value."
            for name, one in self.found.items()
            if num_agents is not None and one.agents and len(one.agents) != num_agents
        ]
        problems += self._strangers()
        if problems:
            raise BadEvaluation("\n".join(problems))
        numbers = {len(one.agents) for one in self.found.values()}
        if self._share and 0 not in numbers and (idle := _idle(candidates, numbers)):
            raise BadEvaluation(
                f"{len(candidates)} policies are to share at most {max(numbers)} agents, so {idle[0]!r} would never "
                "play. Give it a larger proportion, or evaluate each on its own: versus=False (on the command line, "
                "leave out --versus and proportions)."
            )

    def idle(self, candidates: Sequence[Candidate]) -> list[str]:
        """Return a text for each mission in which some of the policies that share its agents get none."""
        if not self._share:
            return []
        told = []
        for one in self.found.values():
            number = len(one.agents)
            if number and not one.is_open and (names := _idle(candidates, [number])):
                told.append(
                    f"In the mission {one.mission!r} {' and '.join(map(repr, names))} never "
                    f"{'plays' if len(names) == 1 else 'play'}: {len(candidates)} policies share its {number} "
                    f"agent{'' if number == 1 else 's'}. Evaluate this mission apart, with each policy on its own: "
                    "versus=False (on the command line, leave out --versus and proportions)."
                )
        return told

    def _strangers(self) -> list[str]:
        """Return what is wrong with the names of agents that were given a strategy of their own."""
        if any(one.is_open or not one.agents for one in self.found.values()):
            return []  # others may join, or nothing is known of the agents
        known = list(dict.fromkeys(str(agent) for one in self.found.values() for agent in one.agents))
        return [
            f"strategy names the agent {agent!r}, and there are only {', '.join(map(repr, known))}.{hint(agent, known)}"
            for agent in self._settings.strategies
            if agent not in known
        ]


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
        rehearsals: Mapping[Part, Rehearsal],
        candidates: Sequence[Candidate],
        note: Note,
        *,
        strict: bool,
        side_by_side: bool,
    ) -> None:
        self._waiting: defaultdict[Part, deque[Order]] = defaultdict(deque)
        for order in orders:
            self._waiting[order.part].append(order)
        self._again: list[tuple[Order, int]] = []
        self._rehearsals, self._candidates = rehearsals, candidates
        self._note, self._strict, self._side_by_side = note, strict, side_by_side
        self._seconds: dict[Part, float] = {}
        self._num_settled: Counter[Part] = Counter()
        self.records: dict[Key, EpisodeRecord] = {}

    def next(self) -> Task | None:
        if self._again:
            order, attempt = self._again.pop(0)
        elif self._waiting:
            order, attempt = self._choose(), 1
        else:
            return None
        return Task("play", (order, self._rehearsals[order.part].strategy, attempt), (order, attempt))

    def _choose(self) -> Order:
        part = next_mission(self._waiting, self._seconds) if self._side_by_side else next(iter(self._waiting))
        order = self._waiting[part].popleft()
        if not self._waiting[part]:
            del self._waiting[part]
        self._seconds.setdefault(part, 0.0)
        return order

    def _note_seconds(self, part: Part, seconds: float) -> None:
        """The mean of a part's episodes; of one whose episodes have begun and not ended, no time at all."""
        self._num_settled[part] += 1
        self._seconds[part] += (seconds - self._seconds[part]) / self._num_settled[part]

    def settle(self, done: Done) -> bool:
        order, attempt = done.task.label
        record = done.value if isinstance(done.value, EpisodeRecord) else self._lost(order, attempt, done)
        self._note_seconds(order.part, record.seconds)
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
        agents = self._rehearsals[order.part].agents
        return EpisodeRecord(
            mission=order.mission,
            episode=order.episode,
            alone=order.alone,
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
