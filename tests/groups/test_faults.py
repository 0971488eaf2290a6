"""Ways to break x moments to break: who broke is told, all others are as if nothing had happened."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import EnvError, WorkerDied
from parallel_envs.groups import EnvStateManager, placement, register, worker_group
from parallel_envs.groups.transport import InFlightRequest
from parallel_envs.testing.conformance import assert_same_batch
from tests.engine.scripts import run_script
from tests.groups.walks import TAGS, Walk, WalkConfig, configured, inputs, kill_all, register_all, workers

SOON = 1.0
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
    ("action", "num_workers", "kind", "text"),
    [
        ("raise", 1, "error", "Env 1 (Breaking) raised RuntimeError during its turn: it raised"),
        ("exit", 2, "error", "raised SystemExit during its turn: 3"),
        ("locked", 1, "error", "during sending its answer: "),
        (
            "bad",
            2,
            "error",
            "step() of 'Breaking' returned 3 values. Return (state, reward, terminated",
        ),
        ("die", 1, "death", "(env 1, pid"),
        ("kill", 2, "death", "was killed by signal 9 (SIGKILL) during its turn (Breaking)"),
        ("hang", 1, "timeout", "Env 1 did not answer within 1.0 seconds during its turn."),
    ],
)
def test_the_broken_one_is_told_and_the_others_go_on(
    action: str, num_workers: int, kind: str, text: str, unbroken: list[Any]
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


class Locked(Walk):
    """Cannot be made while there is a file."""

    def __init__(self, config: WalkConfig) -> None:
        if Path(config.fuse).exists():
            raise OSError("the data is locked")
        super().__init__(config)


def test_a_reset_that_cannot_make_an_env_leaves_the_episodes_before_it(tmp_path: Path) -> None:
    register("locked", Locked, WalkConfig)
    config, lock = configured({"Walk": 1, "Talk": 1}, 1, max_workers=1), tmp_path / "lock"
    config["custom_envs"]["Talk"] = {"env_type": "locked", "env_config": {"fuse": str(lock)}}
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        before = manager.step(inputs({0: ["left"], 1: ["left"]}))
        kill_all(manager)
        lock.touch()
        with pytest.raises(OSError, match=r"Env 1 .* the data is locked"):
            manager.reset()
        lock.unlink()
        entries = manager.step(inputs({0: ["right"], 1: ["right"]}))
        for entry, earlier in zip(entries, before, strict=True):
            assert entry["history"][1]["state"] == earlier["history"][1]["state"]
            assert entry["history"][2]["state"].startswith(earlier["history"][1]["state"])
        assert manager.get_rollout_states()[0]["history"][0] == before[0]["history"][0]


def test_an_env_that_hangs_on_after_a_ctrl_c_is_ended_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with EnvStateManager(configured({"Breaking": 1}, max_workers=1, step_timeout=SOON)) as manager:
        manager.reset(seed=1)
        with monkeypatch.context() as patch:
            patch.setattr(worker_group.WorkerGroup, "_replies", struck)
            with pytest.raises(KeyboardInterrupt):
                manager.step(inputs({1: ["hang"]}))
        for _ in range(2):
            entries = manager.step(inputs({0: ["right"], 1: ["right"]}))
        assert [len(entry["history"]) for entry in entries] == [3, 3]
        assert manager.stats().restarts == 1


def struck(self: worker_group.WorkerGroup, asked: InFlightRequest, late: Any, read: Any) -> Any:
    raise KeyboardInterrupt


def test_a_ctrl_c_before_a_fresh_worker_has_its_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["right"], 1: ["right"]}))
        kill_all(manager)
        with monkeypatch.context() as patch:
            patch.setattr(worker_group.WorkerGroup, "_host_envs", interrupted)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    manager.step(inputs({0: ["right"], 1: ["right"]}))
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


def interrupted(self: worker_group.WorkerGroup, held: Any) -> Any:
    raise KeyboardInterrupt


class SlowStart(Walk):
    """Never begins."""

    def reset(self, seed: int, mode: str) -> Any:
        threading.Event().wait(60.0)


def test_who_does_not_begin_in_time_is_told_by_reset() -> None:
    register("slow_start", SlowStart, WalkConfig)
    config = configured({"Walk": 1, "Talk": 1}, 1, max_workers=1, reset_timeout=SOON)
    config["custom_envs"]["Talk"] = {"env_type": "slow_start"}
    with EnvStateManager(config) as manager:
        well, late = manager.reset(seed=0)
        assert (late["history"], late["failure"].kind, late["failure"].doing) == ([], "timeout", "its reset")
        assert "es_manager.reset_timeout" in str(late["failure"])
        assert manager.step(inputs({0: ["left"]}))[0]["history"][0]["state"] == well["history"][0]["state"]
        assert manager.render()[1] is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ({"text": "a", "images": [np.zeros(2)]}, {"text": "a", "images": [np.zeros(2)]}, True),
        ({"text": "a", "images": [np.zeros(2)]}, {"text": "a", "images": [np.ones(2)]}, False),
        ({"text": "a"}, {"text": "a", "images": []}, False),
        (np.array([np.nan]), np.array([np.nan]), True),
        (np.array(["a"]), np.array(["a"]), True),
        (float("nan"), float("nan"), True),
        (Walk(WalkConfig(3)), Walk(WalkConfig(3)), True),
        (Walk(WalkConfig(3)), Walk(WalkConfig(4)), False),
        ((1, 2), (1, 2, 3), False),
    ],
)
def test_whether_states_are_the_same(one: Any, other: Any, same: bool) -> None:
    assert placement.is_same_state(one, other) is same


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_actions_of_a_class_of_the_main_script_are_replayed(context: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import enum
        from parallel_envs.groups import EnvStateManager, register

        class Move(enum.Enum):
            RIGHT = 1

        class Env:
            action_lookup = {Move.RIGHT: "Right"}

            def __init__(self, config):
                self.at = 0

            def reset(self, seed, mode):
                self.at = 0
                return "0"

            def step(self, action):
                self.at += action is Move.RIGHT
                return str(self.at), 1.0, False, False, {}

        register("env", Env)
        groups = {"env_groups": 1, "group_size": 4, "env_configs": {"tags": ["T"], "n_groups": [1]}}
        manager = {"train": groups, "max_workers": 2, "context": sys.argv[1]}
        rows = [{"env_id": env, "llm_response": "", "llm_raw_response": "", "actions": ["Right"]} for env in range(4)]
        with EnvStateManager({"es_manager": manager, "custom_envs": {"T": {"env_type": "env"}}}) as manager:
            manager.reset(1)
            manager.step(rows)
            os.kill(manager._placement.workers.pool.pid(0), signal.SIGKILL)
            manager.step(rows)
            for wanted in (False, True):
                manager.use_multiprocessing = wanted
                entries = manager.step(rows)
            print([entry["history"][-1]["state"] for entry in entries], manager.metrics()["T/num_actions"])
        """,
        context,
    )
    assert done.stdout == "['4', '4', '4', '4'] 4.0\n", done.stderr
