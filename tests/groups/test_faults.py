"""Ways to break x moments to break: who broke is told, all others are as if nothing had happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.errors import EnvError, WorkerDied
from parallel_envs.groups import EnvStateManager, crew
from parallel_envs.testing.equality import assert_same_batch
from tests.groups.walks import TAGS, configured, inputs, register_all

SOON = 0.5
"""Beyond it an environment is late. All others answer far sooner."""


def broken(config: dict[str, Any], action: str) -> tuple[list[Any], list[Any]]:
    """What is said of all when env 1 does this in its third turn; and by the others without env 1."""
    with EnvStateManager(config) as manager:
        manager.reset(seed=5)
        everybody = range(manager.num_envs)
        for _ in range(2):
            manager.step(inputs({env: ["right", "right"] for env in everybody}))
        entries = manager.step(inputs({env: [action if env == 1 else "right"] for env in everybody}))
        manager.step(inputs({env: ["right"] for env in everybody if env != 1}))
        return entries, manager.get_rollout_states()


@pytest.fixture(scope="module")
def unbroken() -> list[Any]:
    register_all()
    config = configured({"Breaking": 2}, use_multiprocessing=False)
    with EnvStateManager(config) as manager:
        manager.reset(seed=5)
        everybody = range(manager.num_envs)
        for actions in (["right", "right"], ["right", "right"], ["right"], ["right"]):
            manager.step(inputs({env: actions for env in everybody if env != 1 or len(actions) == 2}))
        return manager.get_rollout_states()


@pytest.mark.parametrize(
    ("action", "kind", "text"),
    [
        ("raise", "error", "Env 1 (Breaking) raised RuntimeError during its turn: it raised"),
        ("exit", "error", "raised SystemExit during its turn: 3"),
        ("locked", "error", "during sending its answer: "),
        ("bad", "error", "step() of 'Breaking' returned 3 values. Return (state, reward, terminated, truncated, info)"),
        ("die", "death", "(env 1, pid"),
        ("kill", "death", "was killed by signal 9 (SIGKILL) during its turn (Breaking)"),
        ("hang", "timeout", "Env 1 did not answer within 0.5 seconds during its turn."),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_broken_one_is_told_and_the_others_go_on(
    action: str, kind: str, text: str, num_workers: int, unbroken: list[Any]
) -> None:
    config = configured({"Breaking": 2}, max_workers=num_workers, step_timeout=SOON if action == "hang" else 30.0)
    entries, states = broken(config, action)
    assert [entry["env_id"] for entry in entries] == [0, 1, 2, 3]
    failure = entries[1]["failure"]
    assert (failure.kind, failure.env_id) == (kind, 1)
    assert text in str(failure)
    assert entries[1]["history"][-1]["failure"] is failure
    assert "reward" not in entries[1]["history"][-1]
    assert states[1]["metrics"] == {"Breaking/failed": 1.0, "Breaking/pass@2": 0.0}
    assert_same_batch([states[0], *states[2:]], [unbroken[0], *unbroken[2:]])


def test_in_the_caller_what_raises_is_told_as_well(unbroken: list[Any]) -> None:
    entries, states = broken(configured({"Breaking": 2}, use_multiprocessing=False), "raise")
    assert "raised RuntimeError" in str(entries[1]["failure"])
    assert_same_batch([states[0], *states[2:]], [unbroken[0], *unbroken[2:]])


def test_a_stack_tells_where_it_hangs() -> None:
    entries, _ = broken(configured({"Breaking": 1}, step_timeout=SOON), "hang")
    assert "walks.py" in str(entries[1]["failure"])
    assert "If 'Breaking' needs longer, give it more: es_manager.step_timeout." in str(entries[1]["failure"])


def test_who_kills_a_worker_once_is_asked_again(tmp_path: Path) -> None:
    config = configured({"Breaking": 2}, max_workers=1)
    config["custom_envs"]["Breaking"] = {**TAGS["Breaking"], "env_config": {"fuse": str(tmp_path / "fuse")}}
    with EnvStateManager(config) as manager:
        manager.reset(seed=5)
        entries = manager.step(inputs({env: ["right", "dies-once"] for env in range(4)}))
        assert [len(entry["history"][0]["actions"]) for entry in entries] == [2] * 4
        assert manager.stats().restarts == 1


@pytest.mark.parametrize("during", ["reset", "play"])
def test_a_worker_killed_between_turns_costs_nobody_anything(during: str) -> None:
    config = configured({"Walk": 2, "Dice": 1}, max_workers=2)
    told = []
    for kills in (False, True):
        with EnvStateManager(config) as manager:
            manager.reset(seed=2)
            if kills and during == "reset":
                kill_all(manager)
                manager.reset(seed=2)
            manager.step(inputs({env: ["right", "throw"] for env in range(6)}))
            if kills and during == "play":
                kill_all(manager)
            manager.step(inputs({env: ["left", "throw"] for env in range(0, 6, 2)}))
            told.append([manager.render(), manager.get_rollout_states()])
            assert manager.stats().restarts == (2 if kills else 0)
    assert_same_batch(told[1], told[0])


def kill_all(manager: EnvStateManager) -> None:
    pool = workers(manager).pool
    for worker in pool.all_workers:
        os.kill(pool.pid(worker), signal.SIGKILL)


def workers(manager: EnvStateManager) -> crew.Crew:
    assert manager._homes is not None
    assert manager._homes.crew is not None
    return manager._homes.crew


def test_a_stopped_worker_is_replaced() -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1, step_timeout=SOON)) as manager:
        first = manager.reset(seed=2)
        os.kill(workers(manager).pool.pid(0), signal.SIGSTOP)
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [entry["history"][0]["state"] for entry in entries] == [entry["history"][0]["state"] for entry in first]
        assert manager.stats().restarts == 1


def test_of_several_at_work_in_threads_the_guilty_one_is_found() -> None:
    config = configured({"Breaking": 2}, max_workers=1)
    config["custom_envs"]["Breaking"] = {**TAGS["Breaking"], "parallel_friendly": True}
    entries, _ = broken(config, "kill")
    assert ["failure" in entry for entry in entries] == [False, True, False, False]


def test_who_comes_to_another_state_in_replay_has_failed() -> None:
    with EnvStateManager(configured({"Forgetful": 1}, max_workers=1)) as manager:
        manager.reset(seed=2)
        manager.step(inputs({0: ["left"], 1: ["left"]}))
        kill_all(manager)
        entries = manager.step(inputs({0: ["left"]}))
        assert entries[0]["failure"].kind == "diverged"
        assert "uses_global_random" in str(entries[0]["failure"])


def test_after_a_failure_the_next_episode_is_as_good_as_new() -> None:
    with EnvStateManager(configured({"Breaking": 1}, max_workers=1)) as manager:
        expected = manager.reset(seed=4)
        manager.step(inputs({0: ["raise"], 1: ["kill"]}))
        assert [status.done for status in manager.statuses] == [True, True]
        assert_same_batch(manager.reset(seed=4), expected)
        assert [status.failure for status in manager.statuses] == [None, None]


@pytest.mark.parametrize(("action", "kind"), [("raise", EnvError), ("kill", WorkerDied)])
def test_failures_are_exceptions_if_wanted(action: str, kind: type[Exception]) -> None:
    with EnvStateManager(configured({"Breaking": 1}, max_workers=1, on_failure="raise")) as manager:
        manager.reset(seed=4)
        with pytest.raises(kind) as caught:
            manager.step(inputs({0: [action], 1: ["right"]}))
        assert getattr(caught.value, "env_ids", None) == (0,)
        assert manager.statuses[1].num_actions == 1


def test_an_env_that_cannot_be_made_is_an_error_of_reset() -> None:
    config = configured({"Lake": 1}, max_workers=1)
    config["custom_envs"]["Lake"] = {"env_type": "gymnasium", "env_config": {"id": "FrozenLake-v1", "kwargs": {"x": 1}}}
    with (
        EnvStateManager(config) as manager,
        pytest.raises(EnvError, match=r"\(Lake\) raised TypeError during its const"),
    ):
        manager.reset(seed=0)


def test_what_is_done_to_pictures_that_were_returned_has_no_say_in_replays() -> None:
    with EnvStateManager(configured({"Pictures": 1}, max_workers=1)) as manager:
        [entry, _] = manager.reset(seed=2)
        entry["history"][0]["images"][0][:] = 7
        kill_all(manager)
        assert "failure" not in manager.step(inputs({0: ["left"]}))[0]
