"""What environments are asked, and what they answer: all that travels between the manager and its workers.

A request asks each of some environments for the same job. Histories are not among it: a request holds one turn's
actions, an answer what came of them, so both stay as small in the last turn as in the first. What is there once for
each environment is plain tuples: these are made, pickled and read in a fraction of the time of any class of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from parallel_envs.engine import Failure


class Job(Enum):
    """What an environment can be asked for, and what errors call it. The comments say what it is told for that.

    Answers: to RESET its first state; to PLAY what came of it (`Played`); to RENDER what there is to see; to MEASURE
    metrics of its own.
    """

    RESET = "its reset"  # (seed, mode)
    PLAY = "its turn"  # actions: it does as many of them as it has left
    RENDER = "render"  # mode: `text` or `rgb_array`
    MEASURE = "metrics"  # None


MAKING, REPLAYING, SENDING = "its construction", "its replay", "sending its answer"
"""What an environment is at before its job and after it: it is made, is brought to where it stood, and answers."""

HARMLESS = (Job.RENDER, Job.MEASURE)
"""These leave an environment that raises as it was."""

_SMALLEST_PART = 8

Pairs = Iterator[tuple[int, Any]]
"""Environments, and what each is told."""
Read = Callable[[dict[int, Any]], dict[int, Any]]
"""What an asker makes of environments' answers, while others are still at work. It may be asked for the same once
more, and the last time counts: where it raises, for each environment by itself, and after the loss of a worker."""

Played = tuple[Any, float, bool, bool, dict[str, Any], list[Any], bool, dict[str, float] | None]
"""What came of a turn: `(state, reward, terminated, truncated, info, executed, all_valid, metrics)`.

`executed` are the actions that were done, as values, in a list that is the asker's own; `all_valid`: there were
actions, and each had a meaning; `metrics`: the environment's own, if the turn ended its episode, else None.
"""


class Restore(NamedTuple):
    """How to come to where an episode stood: begin it anew and do what was done, in so many turns."""

    seed: int
    mode: str
    actions: tuple[Any, ...]
    num_turns: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an episode stands: how to come there, and the state that is met there."""

    restore: Restore
    state: Any


@dataclass(frozen=True, slots=True)
class Request:
    """What environments are to do: a job, and what each is told for it.

    Those in `restores` are to be brought to where their episodes stand before that.
    """

    job: Job
    asked: Mapping[int, Any]
    restores: Mapping[int, Restore] = field(default_factory=dict)

    def of(self, envs: Collection[int]) -> Request:
        """The part of it that concerns these."""
        return self.only({env: self.asked[env] for env in envs})

    def only(self, asked: Mapping[int, Any]) -> Request:
        """The same, for a part of those that are asked."""
        restores = {env: one for env, one in self.restores.items() if env in asked} if self.restores else {}
        return Request(self.job, asked, restores)

    def parts(self) -> Iterator[Request]:
        """The same in parts, the later the smaller: whoever reads what came of one while the next is done has little
        to read at the end. The first is large, since whoever reads has its own to do before.
        """
        envs = list(self.asked)
        while len(envs) > 2 * _SMALLEST_PART:
            most = 3 * len(envs) // 4
            yield self.of(envs[:most])
            envs = envs[most:]
        yield self.of(envs) if len(envs) < len(self.asked) else self

    def pairs(self, envs: Collection[int]) -> Pairs:
        """What each of these is told."""
        return iter([(env, self.asked[env]) for env in envs])

    def plain(self) -> tuple[Any, ...]:
        """The same as values that any process can read."""
        return self.job.value, self.asked, {env: tuple(restore) for env, restore in self.restores.items()}

    @classmethod
    def from_plain(cls, told: tuple[Any, ...]) -> Request:
        """From what `plain` made."""
        job, asked, restores = told
        return cls(Job(job), asked, {env: Restore(*restore) for env, restore in restores.items()})


@dataclass(frozen=True, slots=True)
class Broken:
    """The answer of an environment that raised, and what it was doing."""

    doing: str
    failure: Failure


@dataclass(slots=True)
class Answers:
    """What came of a request, by environment: each is in either `told` or `broken`.

    `met` holds the states that were met by those that were restored.
    """

    told: dict[int, Any] = field(default_factory=dict)
    broken: dict[int, Broken] = field(default_factory=dict)
    met: dict[int, Any] = field(default_factory=dict)

    def standing(self, job: Job) -> Iterator[int]:
        """Those that are where they were to come by `job`. Who could not be made, or was dropped, is nowhere."""
        yield from self.told
        if job in HARMLESS:
            yield from [env for env, broken in self.broken.items() if broken.doing == job.value]

    def read(self, read: Read | None) -> Answers:
        """Make of each what its asker makes of it. Who answers what cannot be read has broken."""
        if read is not None:
            try:
                self.told = read(self.told)
            except Exception:  # noqa: BLE001  # user code: a state that cannot be copied, say
                self._read_each(read)
        return self

    def _read_each(self, read: Read) -> None:
        for env, told in [*self.told.items()]:
            try:
                self.told.update(read({env: told}))
            except Exception as error:  # noqa: BLE001  # the same
                del self.told[env]
                self.broken[env] = Broken(SENDING, Failure.of(error))

    def joined(self, others: Answers) -> Answers:
        """These, and those that others gave: one of the two is both from now on, whichever has less to take in."""
        whole, rest = (self, others) if len(self.told) >= len(others.told) else (others, self)
        whole.told.update(rest.told)
        whole.broken.update(rest.broken)
        whole.met.update(rest.met)
        return whole
