"""Runners of `python -m benchmarks groups`: `EnvStateManager`, a plain loop, and a process pool that ships histories.

Each runner has a process of its own, as in a user's program. Otherwise the objects of one runner would slow down
another: Python's garbage collector visits every object of its process, and histories are many objects.

The pool that ships (`ShippedPool`) sends the history of an environment to any of its workers, which plays the turn in
its own copy of the environment and sends the history back.
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
"""Turns of an episode. After them, all environments are reset."""
_ROLLOUT = 10
"""Turns of a rollout, which begins with a reset."""
_EARLY, _LATE = 2, 50
_MOST_EPISODES = 1_000_000
"""Largest number of episodes in a stretch: the distance between the first seeds of two stretches."""


class Groups(Protocol):
    """Interface of the runners that step groups of environments."""

    def reset(self, seed: int) -> Any:
        """Begin an episode in every environment."""

    def step(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Play one turn of each environment. Return the entries of those that are not done."""

    def close(self) -> None:
        """Release everything that this runner opened."""


class Ours:
    """`EnvStateManager` with default settings, apart from the number of workers."""

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
        """Play one turn. Reset all environments before it if the episode is over."""
        if not self._going or self._turns >= _EPISODE:
            self.begin()
        return self.go_on()

    def go_on(self) -> Slice:
        """Play one turn of the environments that are not done."""
        inputs = self._inputs()
        cpu, began = time.process_time(), time.perf_counter()
        entries = self.groups.step(inputs)
        slice_ = Slice(len(inputs), time.perf_counter() - began, time.process_time() - cpu)
        self._going = [entry["env_id"] for entry in entries]
        self._turns += 1
        return slice_

    def begin(self, seed: int | None = None) -> None:
        """Reset all environments with `seed`, or with the next seed if it is None."""
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
        """Play a number of turns and return them as one slice."""
        turns = [self.turn() for _ in range(num_turns)]
        steps, seconds = sum(one.steps for one in turns), sum(one.seconds for one in turns)
        return Slice(steps, seconds, sum(one.cpu_seconds for one in turns))


@dataclass
class GroupContestant:
    """Runner for one way to step the groups of a work. The object that `open` makes is kept in a private field.

    The n-th stretch begins with the same seed in every runner, and a seed determines the actions of its episode,
    because some episodes take twice as long as others. All runners also play the same number of turns: early turns take
    less time than later ones, and a runner with more turns would also have more rounds of the garbage collector, about
    one in a hundred turns.
    """

    work: GroupWork
    make: Callable[[], Groups]
    _player: Player | None = field(default=None, init=False)
    _num_stretches: int = field(default=0, init=False)

    def load(self) -> None:
        """Do nothing: importing this module has imported everything."""

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
        """Return the seconds of a reset and of a whole rollout."""
        began = time.perf_counter()
        self._begin()
        reset = time.perf_counter() - began
        return reset, reset + sum(self.player.turn().seconds for _ in range(_ROLLOUT))

    def payload(self) -> tuple[int, int]:
        """Return the bytes per environment of an early turn and of a late turn of `EnvStateManager`.

        Both are 0 without workers, because nothing travels.
        """
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
    """Construct the environments of a work in this process."""
    if work.factory is not None:
        register(work.env_type, work.factory)
    kind = env_type_named(work.env_type)
    config = work.env_config if kind.config is None else kind.config(**work.env_config)
    return [kind.factory(config) for _ in range(work.num_envs)]


def seeds_of(work: GroupWork, seed: int) -> list[int]:
    """Return the seed of each environment, which is the seed of its group, as in `EnvStateManager`."""
    _, seeds = GroupSeeds("train", None).drawn(seed, work.num_groups)
    return [seeds[env // work.group_size] for env in range(work.num_envs)]


def play(env: Any, entry: Entry, given: Entry) -> Entry:
    """Play one turn of one environment and record it in its entry, as every manager of groups has to."""
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
    """Plain loop that steps one environment after the other in the calling process."""

    name = "plain loop"

    def __init__(self, work: GroupWork) -> None:
        self._envs = made_envs(work)
        self._work = work
        self.entries: list[Entry] = []

    def reset(self, seed: int) -> None:
        """Begin an episode in each environment."""
        seeds = seeds_of(self._work, seed)
        states = [env.reset(seed, "train") for env, seed in zip(self._envs, seeds, strict=True)]
        self.entries = [
            {"env_id": env, "state": state, "done": False, "history": [{"state": state}]}
            for env, state in enumerate(states)
        ]

    def step(self, inputs: list[Entry]) -> list[Entry]:
        """Play one turn of each environment. Return the entries of those that are not done."""
        told = [play(self._envs[one["env_id"]], self.entries[one["env_id"]], one) for one in inputs]
        return [entry for entry in told if not entry["done"]]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class ShippedPool(PlainLoop):
    """Process pool that ships histories; see the docstring of the module."""

    def __init__(self, work: GroupWork, num_workers: int, context: str = "fork") -> None:
        super().__init__(work)
        self._num_workers, self._context = num_workers, get_context(context)
        self._executor: ProcessPoolExecutor | None = None

    def reset(self, seed: int) -> None:
        """Reset here and start new workers. Return when the first worker has answered."""
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
"""All environments, in a worker process of a `ShippedPool`."""


def _fill(work: GroupWork, seed: int) -> None:
    _replicas[:] = made_envs(work)
    for env, own in zip(_replicas, seeds_of(work, seed), strict=True):
        env.reset(own, "train")


def _play_anywhere(entry: Entry, given: Entry) -> Entry:
    env = _replicas[entry["env_id"]]
    try:
        return play(env, entry, given)
    except RuntimeError:  # the episode of this replica is over, although the entry's episode is not
        env.reset(0, "train")
        return play(env, entry, given)
