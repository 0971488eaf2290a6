"""What lives in a worker: it makes policies once, and plays whatever episode it is told to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

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


class Player:
    """Plays episodes, one at a time.

    Args:
        missions: Those that orders may name.
        candidates: The policies.
        seed: The evaluation's.
        settings: How episodes are played.
        registrations: Environments that the caller has registered with Gymnasium.
        in_worker: Whether this is a worker process, which starts no others.
    """

    def __init__(
        self,
        missions: Sequence[Mission],
        candidates: Sequence[Candidate],
        seed: int,
        settings: PlaySettings,
        registrations: Registrations,
        *,
        in_worker: bool,
    ) -> None:
        registrations.install()
        self._originals = Originals(candidates, seed)
        self._settings = settings
        self._pool = NoProcesses() if in_worker else PolicyPool()
        self._makers = {mission.name: EnvMaker(mission) for mission in missions}

    def rehearse(self, order: Order) -> Rehearsal:
        """Whether the mission of this order can be played."""
        return rehearse(order, self._stage(order, self._settings.strategy))

    def play(self, order: Order, strategy: Strategy, attempt: int) -> EpisodeRecord:
        """Play an episode, with the actions of all agents computed by this strategy."""
        return play(order, self._stage(order, strategy), attempt)

    def _stage(self, order: Order, strategy: Strategy) -> Stage:
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
    """Threads only: a worker of an evaluation starts no workers."""

    def processes(self) -> NoReturn:
        raise WorkerStartError("A worker that plays whole episodes starts no others for their policies.")
