"""Who plays in `bench groups`: in a process of its own, as its users have it, with nobody else's objects in its memory.

That matters: Python's collector looks at every object of its process time and again, and histories are many objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Protocol

import numpy as np

from benchmarks.group_workloads import GroupWork
from parallel_envs.bench.measure import WARM_UP_SHARE, Slice
from parallel_envs.groups import EnvStateManager
from parallel_envs.groups.manager import GroupSeeds
from parallel_envs.groups.registry import env_type_named, register

_EPISODE = 40
"""Turns after which all begin anew."""
_ROLLOUT = 10
"""Turns of a rollout, which begins with a reset."""
_EARLY, _LATE = 2, 50
_MOST_EPISODES = 1_000_000
"""Of a stretch: so far apart are the seeds that two of them begin with."""


class Groups(Protocol):
    """Who steps groups."""

    def reset(self, seed: int) -> Any:
        """Begin an episode in every environment."""

    def step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A turn of each; the entries of those that are not over."""

    def close(self) -> None:
        """End what was begun."""


class Ours:
    """An `EnvStateManager` with the settings that it has by default, but for the number of workers."""

    def __init__(self, work: GroupWork, num_workers: int, *, in_caller: bool = False) -> None:
        if work.factory is not None:
            register(work.env_type, work.factory)
        self.manager = EnvStateManager(work.config(num_workers))
        self.manager.use_multiprocessing = not in_caller

    def reset(self, seed: int) -> Any:
        return self.manager.reset(seed)

    def step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return self.manager.step(inputs)

    def close(self) -> None:
        self.manager.close()


class Player:
    """Plays episodes of groups, turn by turn."""

    def __init__(self, groups: Groups, work: GroupWork) -> None:
        self.groups, self._work = groups, work
        self._turns, self._seed, self._generator = 0, 0, np.random.default_rng(0)
        self._going: list[int] = []

    def turn(self) -> Slice:
        """A turn; before it, all begin anew if it is time."""
        if not self._going or self._turns >= _EPISODE:
            self.begin()
        return self.go_on()

    def go_on(self) -> Slice:
        """A turn of those that are not over."""
        inputs = self._inputs()
        cpu, began = time.process_time(), time.perf_counter()
        entries = self.groups.step(inputs)
        slice_ = Slice(len(inputs), time.perf_counter() - began, time.process_time() - cpu)
        self._going = [entry["env_id"] for entry in entries]
        self._turns += 1
        return slice_

    def begin(self, seed: int | None = None) -> None:
        """All begin anew: with the next seed, if none is told."""
        self._seed = self._seed + 1 if seed is None else seed
        self.groups.reset(self._seed)
        self._generator = np.random.default_rng(self._seed)
        self._going, self._turns = list(range(self._work.num_envs)), 0

    def _inputs(self) -> list[dict[str, Any]]:
        actions = self._work.actions(self._generator, self._work.num_envs)
        return [
            {"env_id": env, "llm_response": "", "llm_raw_response": "", "actions": actions[env]} for env in self._going
        ]

    def play(self, num_turns: int) -> Slice:
        """So many turns, all in one."""
        turns = [self.turn() for _ in range(num_turns)]
        steps, seconds = sum(one.steps for one in turns), sum(one.seconds for one in turns)
        return Slice(steps, seconds, sum(one.cpu_seconds for one in turns))


@dataclass
class GroupContestant:
    """One way of stepping the groups of a work. What `open` makes is kept in a field that is no argument.

    The n-th stretch of everybody begins with the same seed, and each episode has the actions of its seed: some take
    twice as long as others. And everybody plays as many turns of it: early turns take longer than later ones, and
    whoever came farther in its time would also have more of the collector's rounds, of which there is one in a hundred.
    """

    work: GroupWork
    make: Callable[[], Groups]
    _player: Player | None = field(default=None, init=False)
    _num_stretches: int = field(default=0, init=False)

    def load(self) -> None:
        """All is imported when this class is."""

    def open(self) -> None:
        self._player = Player(self.make(), self.work)
        self._player.turn()

    @property
    def player(self) -> Player:
        assert self._player is not None, "open() comes first"
        return self._player

    def _begin(self) -> None:
        self._num_stretches += 1
        self.player.begin(seed=_MOST_EPISODES * self._num_stretches)

    def run(self, seconds: float) -> Slice:
        self._begin()
        self.player.play(self.work.turns_in(seconds * WARM_UP_SHARE))
        return self.player.play(self.work.turns_in(seconds))

    def rollout(self) -> tuple[float, float]:
        """The seconds of a reset, and of a rollout as a whole."""
        began = time.perf_counter()
        self._begin()
        reset = time.perf_counter() - began
        return reset, reset + sum(self.player.turn().seconds for _ in range(_ROLLOUT))

    def payload(self) -> tuple[int, int]:
        """The bytes by environment of an early turn of ours and of a late one; zeros where nothing travels."""
        player = self.player
        assert isinstance(player.groups, Ours)
        player.begin()
        sizes = []
        for _ in range(_LATE):
            before = player.groups.manager.stats().num_bytes
            num_envs = player.go_on().steps
            sizes.append((player.groups.manager.stats().num_bytes - before) // num_envs)
        return sizes[_EARLY - 1], sizes[_LATE - 1]

    def close(self) -> None:
        if self._player is not None:
            self._player.groups.close()
            self._player = None


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
