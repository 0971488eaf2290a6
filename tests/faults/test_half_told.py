"""What a worker says in one reply, of which a part is bad: the rest is heard, and the right env is blamed."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import EnvError, ParallelEnvsError, StepTimeout
from tests.engine.asking import ends_within
from tests.faults.broken_envs import AlwaysFailingEnv, AnnouncingEnv, LockInfoEnv, lives
from tests.faults.matrix import CLOSE_SECONDS, Make, reset, step
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv


def told(make: Make, fns: list[Any], num_steps: int, **settings: Any) -> list[Any]:
    """For each step its rows of marks and infos, or the error."""
    envs = make(fns, **settings)
    reset(envs)
    heard: list[Any] = []
    for _ in range(num_steps):
        try:
            _, _, _, truncated, infos = step(envs)
            heard.append((truncated.tolist(), {key: value.tolist() for key, value in infos.items() if key[0] != "_"}))
        except (ParallelEnvsError, KeyError) as error:
            heard.append(str(error))
    envs.close(timeout=CLOSE_SECONDS)
    return heard


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_info_that_cannot_travel_is_an_error_of_its_env(make: Make, num_workers: int) -> None:
    heard = told(make, [partial(AnnouncingEnv, since=1), partial(LockInfoEnv, at=1)], 1, num_workers=num_workers)
    assert heard[0].startswith("Env 1 raised")


def test_the_infos_of_the_others_are_right_afterwards(make: Make) -> None:
    heard = told(make, [partial(AnnouncingEnv, since=1), partial(LockInfoEnv, at=1)], 3, num_workers=1)
    assert heard[1:] == [([False, False], {"elapsed": [2, 0]}), ([False, False], {"elapsed": [3, 0]})]


def test_the_env_whose_info_cannot_travel_is_the_one_that_is_replaced(make: Make) -> None:
    fns = [partial(AnnouncingEnv, since=1), partial(LockInfoEnv, at=1)]
    heard = told(make, fns, 1, num_workers=1, on_failure="restart", max_restarts=1)
    assert heard[0][0] == [False, True]


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_was_told_beside_an_error_that_is_raised_is_not_lost(
    make: Make, tmp_path: Path, num_workers: int, on_failure: str
) -> None:
    """The sibling says something new in the very step that is one failure too many."""
    fns = [partial(AnnouncingEnv, since=3), partial(AlwaysFailingEnv, tmp_path / "lives")]
    envs = make(fns, num_workers=num_workers, on_failure=on_failure, max_restarts=1)
    reset(envs)
    for _ in range(3):
        with suppress(EnvError):
            step(envs)
    envs.restart(1)
    assert step(envs)[4]["elapsed"].tolist() == [4, 0]


def test_a_loss_that_was_mended_beside_an_error_is_still_told(make: Make, tmp_path: Path, gate: Gate) -> None:
    assert marks_received_beside_an_error(make, tmp_path, gate) == [True]


def marks_received_beside_an_error(make: Make, folder: Path, gate: Gate) -> list[bool]:
    """Env 0 is lost and mended; env 1, which answers after it, has no restart left."""
    fns = [partial(DyingOnceEnv, folder / "lives"), partial(GatedFailingEnv, gate.path)]
    envs = make(fns, on_failure="restart", max_restarts=1, step_timeout=None)
    reset(envs)
    gate.let_through()
    for _ in range(2):  # the row of a loss, and the reset that follows it
        envs.send(np.zeros(1, int), env_ids=1)
        envs.recv()
    dying = envs.stats()[0]["pid"]
    envs.send(np.zeros(2, int))
    assert ends_within(dying, 20.0)
    with pytest.raises(StepTimeout):
        envs.recv(min_envs=2, timeout=0.05)
    gate.let_through()
    with pytest.raises(EnvError):
        envs.recv(min_envs=2)
    infos = envs.recv()[5]
    envs.close(timeout=CLOSE_SECONDS)
    return [bool(mark) for mark in infos.get("worker_restarted", [])]


class DyingOnceEnv(CountingEnv):
    """Ends its worker at the first step of its first life."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.life = lives(notes)

    def step(self, action: Any) -> Any:
        if self.life == 1:
            os._exit(7)
        return super().step(action)


class GatedFailingEnv(GatedEnv):
    """Waits at a gate before each step, and raises."""

    def __init__(self, gate: Path) -> None:
        super().__init__(gate, waits_at=tuple(range(100)))

    def step(self, action: Any) -> Any:
        super().step(action)
        raise LookupError("always")


def test_a_result_of_a_call_that_cannot_travel_touches_nothing_else(make: Make) -> None:
    envs = make([CountingEnv] * 2, num_workers=1)
    reset(envs)
    step(envs)
    with pytest.raises(EnvError, match=r"lock.* cannot be pickled"):
        envs.call("lock", env_ids=1)
    assert envs.get_attr("elapsed") == (1, 1)
    assert step(envs)[1].tolist() == [2.0, 2.0]


def test_the_env_whose_result_cannot_travel_is_named(make: Make) -> None:
    assert blamed_for_a_lock(make) == (1,)


def blamed_for_a_lock(make: Make) -> tuple[int, ...]:
    envs = make([CountingEnv] * 2, num_workers=1)
    try:
        envs.call("lock", env_ids=1)
    except EnvError as error:
        return error.env_ids
    finally:
        envs.close()
    return ()
