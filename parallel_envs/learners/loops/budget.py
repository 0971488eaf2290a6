"""One budget of workers for environments and learning: shared out, or refused, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_envs.engine import cores_here

_OF_THEIR_OWN = (
    "thread",
    "process",
    "auto",
    "fused_or_process",
    "fused_or_thread",
)  # update modes that have workers also where nothing is beside


@dataclass(frozen=True, slots=True)
class Shares:
    """How many workers each side has. A thread counts as a worker."""

    envs: int
    learning: int


def needed(mode: str, learn_in: str, update_mode: str) -> int:
    """The fewest workers that learning can do with."""
    if mode == "sync" or learn_in == "serial":
        return 1 if update_mode in _OF_THEIR_OWN else 0
    return 1


def wanted(mode: str, learn_in: str, update_mode: str, num_agents: int, workers: int | None = None) -> int:
    """How many workers learning has if nothing else bounds them. `workers`: what the user has said."""
    least = needed(mode, learn_in, update_mode)
    beside = mode != "sync" and learn_in == "process"
    if update_mode not in (("process",) if beside else _OF_THEIR_OWN):
        return least
    cores = len(cores_here()) - beside  # one is for the side that collects
    return max(min(workers or max(cores, 1), num_agents), least)


def shared_out(budget: int, num_envs: int, least: int, *, env_workers: int | None = None) -> Shares:
    """Shares of a budget: learning gets what it needs at least, environments as many of the rest as there are.

    What is left over is for learning, if it wants more. Raises ValueError, naming the numbers, if it cannot be.

    Args:
        budget: Workers, all together.
        num_envs: The most workers that environments have use for; 0: they are stepped in the caller.
        least: The fewest for learning.
        env_workers: How many workers the environments have, if that is settled.
    """
    envs = min(num_envs, max(budget - least, 1)) if env_workers is None else env_workers
    envs = envs if num_envs else 0
    if envs + least > budget:
        raise ValueError(
            f"A budget of {budget} workers was given; environments hold {envs} and learning needs at least {least}, "
            f"which makes {envs + least}. Give a larger budget, or environments fewer workers."
        )
    return Shares(envs, budget - envs if least else 0)
