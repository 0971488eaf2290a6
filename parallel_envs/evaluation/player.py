"""What lives in a worker: it makes policies once, and plays whatever episode it is told to."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from parallel_envs.choices import Strategy
from parallel_envs.errors import WorkerStartError
from parallel_envs.evaluation.candidates import Candidate
from parallel_envs.evaluation.episode import Stage, play
from parallel_envs.evaluation.missions import EnvMaker, Mission
from parallel_envs.evaluation.records import EpisodeRecord
from parallel_envs.evaluation.rehearsal import Rehearsal, rehearse
from parallel_envs.evaluation.settings import PlaySettings
from parallel_envs.evaluation.team import Originals
from parallel_envs.evaluation.work import Order
from parallel_envs.vector.registry import Registrations
from parallel_envs.wrappers import PolicyPool

Agent = Any


class Player:
    """Plays episodes, one at a time.

    Args:
        missions: Those that orders may name.
        candidates: The policies.
        seed: The evaluation's.
        settings: How episodes are played.
        registrations: Environments that the caller has registered with Gymnasium or PettingZoo.
        num_processes: How many processes it may start for agents' actions. None: one for each core.
        alone: Whether the policies play one by one.
    """

    def __init__(
        self,
        missions: Sequence[Mission],
        candidates: Sequence[Candidate],
        seed: int,
        settings: PlaySettings,
        registrations: Registrations,
        *,
        num_processes: int | None,
        alone: bool = False,
    ) -> None:
        registrations.install()
        self._originals = Originals(candidates, seed, alone=alone)
        self._settings = settings
        self._pool = NoProcesses() if num_processes == 0 else PolicyPool(num_processes)
        self._makers = {mission.name: EnvMaker(mission) for mission in missions}

    def rehearse(self, order: Order) -> Rehearsal:
        """Whether the mission of this order can be played."""
        return rehearse(order, self._stage(order, self._settings.strategy))

    def play(self, order: Order, strategy: Strategy | Mapping[Agent, Strategy], attempt: int) -> EpisodeRecord:
        """Play an episode, with the actions of all agents computed by this strategy, or each by its own."""
        return play(order, self._stage(order, strategy), attempt)

    def _stage(self, order: Order, strategy: Strategy | Mapping[Agent, Strategy]) -> Stage:
        return Stage(
            maker=self._makers[order.mission],
            originals=self._originals,
            settings=self._settings,
            strategy=strategy,
            pool=self._pool,
        )

    def most_bytes(self) -> int:
        """The most memory that this process has had, resident; 0 where nobody can say."""
        if sys.platform == "win32":
            return 0
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        """Close policies that were made here."""
        try:
            self._originals.close()
        finally:
            self._pool.close()


class NoProcesses(PolicyPool):
    """Threads only: a worker for which `jobs` has left no processes."""

    def processes(self) -> NoReturn:
        raise WorkerStartError("all jobs play episodes, and none is left for the agents of an episode")
