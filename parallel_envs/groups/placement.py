"""Which worker an environment lives in, for good, and which core a worker is kept on. Functions of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

_NOTING = 0.11
"""What it takes to read and to note what came of a turn, beside what it takes to play it."""


def placed(kinds: Mapping[int, str], num_workers: int, last: int | None = None) -> dict[int, int]:
    """The worker of each environment, where `kinds` says what data it needs.

    The last worker holds `last` of them, if that is told, and each other as many as any other, give or take one. Those
    of a kind are in as few workers as that allows, so that their data is loaded no more often than need be. Among these
    they are dealt out one by one, so that the members of a group, which tend to be over at about the same time, are in
    different ones.
    """
    order = sorted(kinds, key=lambda env: (kinds[env], env))
    even, sharing = (len(order), num_workers) if last is None else (len(order) - last, num_workers - 1)
    worker_at = [position * sharing // even if position < even else sharing for position in range(len(order))]
    homes: dict[int, int] = {}
    for kind in sorted(set(kinds.values())):
        positions = [position for position, env in enumerate(order) if kinds[env] == kind]
        workers = _dealt([worker_at[position] for position in positions])
        homes |= {order[position]: worker for position, worker in zip(positions, workers, strict=True)}
    return homes


def placed_beside_caller(kinds: Mapping[int, str], num_workers: int) -> dict[int, int]:
    """The same where the caller plays the part of the last worker, unless that is the only one: its own are left out.

    Its part is a little smaller than theirs, so that all are done at the same time: while they play, it also reads and
    notes what comes of the turns of all.
    """
    share = (1.0 + _NOTING) / num_workers - _NOTING
    if num_workers == 1 or not (own := max(round(share * len(kinds)), 0)):
        return placed(kinds, num_workers)
    homes = placed(kinds, num_workers, own)
    return {env: worker for env, worker in homes.items() if worker < num_workers - 1}


def _dealt(workers: list[int]) -> list[int]:
    """The same workers, each as often as before, in turns: who comes more often does so from beginning to end."""
    often = Counter(workers)
    return [
        worker for _, worker in sorted(((turn + 0.5) / often[one], one) for one in often for turn in range(often[one]))
    ]


def kept_on(num_workers: int, cores: Sequence[int]) -> list[int]:
    """A core for each worker, if they fill these cores evenly; else none: the system finds room for them."""
    if not cores or num_workers % len(cores):
        return []
    return [cores[worker % len(cores)] for worker in range(num_workers)]
