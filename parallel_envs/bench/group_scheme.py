"""What ours is measured beside: the plain loop, and a process pool that ships each environment's history to any worker.

The second is how group managers are often built: each worker makes every environment, a turn of one goes to whichever
worker is free, with its history, and comes back with it; a reset throws the pool away and makes another. What such a
pool answers is wrong for environments that remember anything, since a turn is played on a copy that has missed others.
"""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from parallel_envs.bench.group_works import GroupWork
from parallel_envs.groups.manager import GroupSeeds
from parallel_envs.groups.registry import env_type_named, register

Entry = dict[str, Any]


def made_envs(work: GroupWork) -> list[Any]:
    """The environments of a work, made here."""
    if work.factory is not None:
        register(work.env_type, work.factory)
    kind = env_type_named(work.env_type)
    config = work.env_config if kind.config is None else kind.config(**work.env_config)
    return [kind.factory(config) for _ in range(work.num_envs)]


def seeds_of(work: GroupWork, seed: int) -> list[int]:
    """The seed of each environment: that of its group, as ours has it."""
    _, seeds = GroupSeeds("train", None).drawn(seed, work.num_groups)
    return [seeds[env // work.group_size] for env in range(work.num_envs)]


def play(env: Any, entry: Entry, given: Entry) -> Entry:
    """A turn of one environment, noted in its entry. What every manager of groups does."""
    lookup = getattr(env, "action_lookup", None)
    names = None if lookup is None else {name.lower(): value for value, name in lookup.items()}
    actions = [names[one.lower()] for one in given["actions"] if one.lower() in names] if names else given["actions"]
    reward, info, executed, done = 0.0, dict[str, Any](), [], False
    for action in actions:
        state, one, terminated, truncated, told = env.step(action)
        reward += one
        info.update(told)
        executed.append(action)
        entry["state"], done = state, terminated or truncated
        if done:
            break
    entry["history"][-1].update(
        actions=executed,
        reward=reward,
        info=info,
        llm_response=given["llm_response"],
        llm_raw_response=given["llm_raw_response"],
    )
    entry["history"].append({"state": entry["state"], "actions_left": 0})
    entry["done"] = done
    return entry


class PlainLoop:
    """One environment after the other, in the caller."""

    name = "plain loop"

    def __init__(self, work: GroupWork) -> None:
        self._envs = made_envs(work)
        self._work = work
        self.entries: list[Entry] = []

    def reset(self, seed: int) -> None:
        """Begin an episode in each."""
        seeds = seeds_of(self._work, seed)
        states = [env.reset(seed, "train") for env, seed in zip(self._envs, seeds, strict=True)]
        self.entries = [
            {"env_id": env, "state": state, "done": False, "history": [{"state": state}]}
            for env, state in enumerate(states)
        ]

    def step(self, inputs: list[Entry]) -> list[Entry]:
        """A turn of each; the entries of those that are not over."""
        told = [play(self._envs[one["env_id"]], self.entries[one["env_id"]], one) for one in inputs]
        return [entry for entry in told if not entry["done"]]

    def close(self) -> None:
        """There is nothing to be closed."""


class ShippedPool(PlainLoop):
    """The process pool that is described above."""

    def __init__(self, work: GroupWork, num_workers: int, context: str = "fork") -> None:
        super().__init__(work)
        self._num_workers, self._context = num_workers, get_context(context)
        self._executor: ProcessPoolExecutor | None = None

    def reset(self, seed: int) -> None:
        """Begin anew here, and with other workers. It is over when one of them answers."""
        super().reset(seed)
        self.close()
        self._executor = ProcessPoolExecutor(
            self._num_workers, self._context, initializer=_fill, initargs=(self._work, seed)
        )
        self._executor.submit(int).result()

    def step(self, inputs: list[Entry]) -> list[Entry]:
        assert self._executor is not None
        futures: list[Future[Entry]] = [
            self._executor.submit(_play_anywhere, self.entries[one["env_id"]], one) for one in inputs
        ]
        told = [future.result() for future in futures]
        for entry in told:
            self.entries[entry["env_id"]] = entry
        return [entry for entry in told if not entry["done"]]

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


_replicas: list[Any] = []
"""In a worker of such a pool: all environments."""


def _fill(work: GroupWork, seed: int) -> None:
    _replicas[:] = made_envs(work)
    for env, own in zip(_replicas, seeds_of(work, seed), strict=True):
        env.reset(own, "train")


def _play_anywhere(entry: Entry, given: Entry) -> Entry:
    env = _replicas[entry["env_id"]]
    try:
        return play(env, entry, given)
    except RuntimeError:  # this replica's episode is over, whatever the entry says
        env.reset(0, "train")
        return play(env, entry, given)
