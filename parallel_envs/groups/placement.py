"""Which worker an environment lives in, for good, and which core a worker is kept on. Functions of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def placed(kinds: Mapping[int, str], num_workers: int) -> dict[int, int]:
    """The worker of each environment, where `kinds` says what data it needs.

    Each worker holds as many as any other, give or take one. Those of a kind are in as few workers as that allows, so
    that their data is loaded no more often than need be. Among these they are dealt out one by one, so that the
    members of a group, which tend to be over at about the same time, are in different ones.
    """
    order = sorted(kinds, key=lambda env: (kinds[env], env))
    worker_at = [position * num_workers // len(order) for position in range(len(order))]
    homes: dict[int, int] = {}
    for kind in sorted(set(kinds.values())):
        positions = [position for position, env in enumerate(order) if kinds[env] == kind]
        workers = _dealt([worker_at[position] for position in positions])
        homes |= {order[position]: worker for position, worker in zip(positions, workers, strict=True)}
    return homes


def without_last(homes: Mapping[int, int]) -> dict[int, int]:
    """Without the environments of the last worker, whose part somebody else plays, unless it is the only one."""
    last = max(homes.values())
    return {env: worker for env, worker in homes.items() if worker < last or last == 0}


def _dealt(workers: list[int]) -> list[int]:
    """The same workers, each as often as before, in turns."""
    seen: dict[int, int] = {}
    ranked = []
    for worker in workers:
        seen[worker] = seen.get(worker, 0) + 1
        ranked.append((seen[worker], worker))
    return [worker for _, worker in sorted(ranked)]


def kept_on(num_workers: int, cores: Sequence[int]) -> list[int]:
    """A core for each worker, if they fill all cores evenly; else none: the system finds room for them."""
    if len(cores) < 2 or num_workers % len(cores):
        return []
    return [cores[worker % len(cores)] for worker in range(num_workers)]
