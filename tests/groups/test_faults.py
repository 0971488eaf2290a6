"""Ways to break x moments to break: the broken one is told, all others are as if nothing had happened."""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.engine.messages import Failure
from parallel_envs.engine.worker_group import WorkerGroup
from parallel_envs.errors import EnvError, ParallelEnvsError, WorkerDied
from parallel_envs.groups import EnvStateManager, env_workers, placement, register
from parallel_envs.testing.conformance import assert_same_batch
from tests.engine.asking import in_fork, refusal
from tests.engine.scripts import run_script
from tests.groups.walks import (
    TAGS,
    WAYS,
    Breaking,
    TwoWords,
    Walk,
    WalkConfig,
    configured,
    inputs,
    kill_all,
    of_kind,
    workers,
)

SOON = 1.0
"""Beyond it an environment is late. All others answer far sooner."""


# ---- during a turn --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("action", "num_workers", "kind", "text"),
    [
        ("raise", 0, "error", "Env 1 (Breaking) raised RuntimeError during its turn: it raised"),
        ("locked", 1, "error", "during sending its answer: "),
        ("bad", 2, "error", "step() of 'Breaking' returned 3 values. Return (state, reward, terminated"),
        ("die", 1, "death", "(env 1, pid"),
    ],
)
def test_the_broken_one_is_told_and_the_others_go_on(action: str, num_workers: int, kind: str, text: str) -> None:
    in_caller = {"use_multiprocessing": False}
    _, unbroken = broken(configured({"Breaking": 2}, **in_caller), "right")
    said: dict[str, Any] = {"max_workers": num_workers} if num_workers else in_caller
    entries, told = broken(configured({"Breaking": 2}, **said), action)
    assert [entry["env_id"] for entry in entries] == [0, 1, 2, 3]
    failure = entries[1]["failure"]
    assert (failure.kind, failure.env_id) == (kind, 1)
    assert text in str(failure)
    assert entries[1]["history"][-1]["failure"] is failure
    assert "reward" not in entries[1]["history"][-1]
    assert told[1]["metrics"] == {"Breaking/failed": 1.0, "Breaking/pass@2": 0.0}
    assert_same_batch([told[0], *told[2:]], [unbroken[0], *unbroken[2:]])


class NoStart(Walk):  # cannot begin
    def reset(self, seed: int, mode: str) -> Any:
        raise OSError("no data")


def test_an_env_that_cannot_begin_has_no_history_and_nothing_to_show() -> None:
    with of_kind(NoStart, use_multiprocessing=False) as manager:
        assert [(one["history"], one["failure"].doing) for one in manager.reset(seed=0)] == [([], "its reset")] * 2
        assert manager.render() == [None, None]


def test_of_several_at_work_in_threads_the_guilty_one_is_found() -> None:
    config = configured({"Breaking": 2}, max_workers=1)
    config["custom_envs"]["Breaking"] = {**TAGS["Breaking"], "parallel_friendly": True}
    entries, _ = broken(config, "kill")
    assert ["failure" in entry for entry in entries] == [False, True, False, False]


def test_an_env_that_kills_its_worker_once_is_asked_again(tmp_path: Path) -> None:
    with of_kind(Breaking, tmp_path / "fuse") as manager:
        manager.reset(seed=5)
        entries = manager.step(inputs({env: ["right", "dies-once"] for env in range(2)}))
        assert [len(entry["history"][0]["actions"]) for entry in entries] == [2] * 2
        assert manager.stats().restarts == 1


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


# ---- workers that are lost between turns ----------------------------------------------------------------------------


def test_a_worker_killed_between_turns_costs_no_env_anything() -> None:
    told = []
    for kills in (False, True):
        with EnvStateManager(configured({"Walk": 1, "Dice": 1}, max_workers=2)) as manager:
            manager.reset(seed=2)
            if kills:
                kill_all(manager)
                manager.reset(seed=2)
            manager.step(inputs({env: ["right", "throw"] for env in range(4)}))
            if kills:
                kill_all(manager)
            told.append([manager.render(), manager.get_rollout_states()])
            assert manager.stats().restarts == (4 if kills else 0)
    assert_same_batch(told[1], told[0])


def test_a_stopped_worker_is_replaced() -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1, step_timeout=SOON)) as manager:
        first = manager.reset(seed=2)
        os.kill(workers(manager).pool.pid(0), signal.SIGSTOP)
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [first_states(one, 1) for one in entries] == [first_states(one, 1) for one in first]
        assert manager.stats().restarts == 1


def test_an_env_that_comes_to_another_state_in_replay_has_failed() -> None:
    with EnvStateManager(configured({"Forgetful": 1}, max_workers=1)) as manager:
        manager.reset(seed=2)
        manager.step(inputs({0: ["left"], 1: ["left"]}))
        kill_all(manager)
        entries = manager.step(inputs({0: ["left"]}))
        assert entries[0]["failure"].kind == "diverged"
        assert "uses_global_random" in str(entries[0]["failure"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *[({"text": "a", "images": [np.zeros(2)]}, {"text": "a", "images": [np.full(2, n)]}, n == 0) for n in (0, 1)],
        ({"text": "a"}, {"text": "a", "images": []}, False),
        (np.array([np.nan]), np.array([np.nan]), True),
        (float("nan"), float("nan"), True),
        *[(Walk(WalkConfig(3)), Walk(WalkConfig(goal)), goal == 3) for goal in (3, 4)],
        ((1, 2), (1, 2, 3), False),
    ],
)
def test_whether_states_are_the_same(one: Any, other: Any, same: bool) -> None:
    assert placement.is_same_state(one, other) is same


def test_an_env_that_hangs_on_after_a_ctrl_c_is_ended_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with EnvStateManager(configured({"Breaking": 1}, max_workers=1, step_timeout=SOON)) as manager:
        manager.reset(seed=1)
        with monkeypatch.context() as patch:
            patch.setattr(env_workers.EnvWorkers, "_end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.step(inputs({1: ["hang"]}))
        for _ in range(2):
            entries = manager.step(inputs({0: ["right"], 1: ["right"]}))
        assert [len(entry["history"]) for entry in entries] == [3, 3]
        assert manager.stats().restarts == 1


def test_a_ctrl_c_before_a_fresh_worker_has_its_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["right"], 1: ["right"]}))
        kill_all(manager)
        with monkeypatch.context() as patch:
            patch.setattr(WorkerGroup, "build", interrupted)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    manager.step(inputs({0: ["right"], 1: ["right"]}))
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


def interrupted(*arguments: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_actions_of_a_class_of_the_main_script_are_replayed(context: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import enum
        from parallel_envs.groups import EnvStateManager, register
        from tests.groups.walks import inputs

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
        rows = inputs(dict.fromkeys(range(4), ["Right"]))
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


# ---- while it is made, reset, replayed, sends -----------------------------------------------------------------------

LATE = 3.0
"""As SOON, where a worker is started meanwhile."""


class Lit(Walk):  # breaks in its construction, or when its steps are replayed, once its file says how
    def __init__(self, config: WalkConfig) -> None:
        super().__init__(config)
        self.burn("made")

    def step(self, action: int) -> Any:
        self.burn("stepped")
        return super().step(action)

    def burn(self, moment: str) -> None:
        fuse = Path(self.config.fuse)
        when, how = fuse.read_text(encoding="utf-8").split() if fuse.exists() else ["", ""]
        if when == moment:
            WAYS[how]()


def with_one(fuse: Path, **said: Any) -> EnvStateManager:
    """A walk, one that can be lit, and another walk, in a worker."""
    register("kind", Lit, WalkConfig)
    config = configured({"Walk": 1, "Breaking": 1, "Pictures": 1}, 1, max_workers=1, **said)
    config["custom_envs"]["Breaking"] = {"env_type": "kind", "env_config": {"fuse": str(fuse)}}
    return EnvStateManager(config)


ALL_LEFT = inputs({env: ["left"] for env in range(3)})


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raises", EnvError, "Env 1 (Breaking) raised OSError during its construction: no data"),
        ("dies", WorkerDied, "ended with exit code 5 during its construction (Breaking)"),
    ],
)
def test_a_reset_that_cannot_make_an_env_raises_and_leaves_the_episodes_before_it(
    how: str, kind: type[ParallelEnvsError], text: str, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    with with_one(fuse) as manager:
        manager.reset(seed=1)
        before = manager.step(ALL_LEFT)
        kill_all(manager)
        fuse.write_text(f"made {how}", encoding="utf-8")
        with pytest.raises(kind) as caught:
            manager.reset()
        assert text in str(caught.value)
        fuse.unlink()
        after = manager.step(ALL_LEFT)
        assert [first_states(one, 2) for one in after[:2]] == [first_states(one, 2) for one in before[:2]]
        assert manager.get_rollout_states()[0]["history"][0] == before[0]["history"][0]


def first_states(entry: dict[str, Any], number: int) -> list[Any]:
    return [item["state"] for item in entry["history"]][:number]


@pytest.mark.parametrize(
    ("burning", "kind", "doing"),
    [
        ("made dies", "death", "its construction"),
        ("stepped raises", "error", "its replay"),
        ("stepped dies", "death", "its replay"),
        ("stepped hangs", "timeout", "its replay"),
    ],
)
def test_what_breaks_on_its_way_back_is_told_and_the_others_go_on(
    burning: str, kind: str, doing: str, tmp_path: Path
) -> None:
    fuse, soon = tmp_path / "fuse", LATE if "hangs" in burning else 30.0
    with with_one(fuse, step_timeout=soon, reset_timeout=soon) as manager:
        manager.reset(seed=1)
        expected = [manager.step(ALL_LEFT), manager.step(ALL_LEFT)][1]
        manager.reset(seed=1)
        manager.step(ALL_LEFT)
        kill_all(manager)
        fuse.write_text(burning, encoding="utf-8")
        one, found, other = manager.step(ALL_LEFT)
        assert_same_batch([one, other], [expected[0], expected[2]])
        assert (found["failure"].kind, found["failure"].doing) == (kind, doing)
        assert f"during {doing}" in str(found["failure"])


# ---- answers that cannot travel, and processes that are forked ------------------------------------------------------


@pytest.mark.parametrize(("shown", "text"), [(threading.Lock, ": .*_thread.lock"), (lambda: TwoWords("a", "b"), "")])
def test_what_is_shown_and_cannot_travel_costs_no_episode(shown: Callable[[], Any], text: str) -> None:
    class Unshowable(Walk):  # shows what cannot be sent, or cannot be read
        def render(self, mode: str = "text") -> Any:
            return shown()

    with of_kind(Unshowable) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["left"], 1: ["left"]}))
        with pytest.raises(EnvError, match=f"during sending its answer{text}"):
            manager.render()
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


def test_a_failure_that_concerns_no_environment_in_particular_is_raised() -> None:
    with pytest.raises(EnvError, match="A worker could not do its part: ValueError: no room"):
        env_workers.raise_worker_failure(Failure("ValueError", "no room", ""))


def test_in_a_forked_process_a_manager_refuses_and_its_copy_has_workers_of_its_own() -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        turn = inputs({0: ["left"]})
        operations: list[Callable[[], object]] = [lambda: manager.step(turn), manager.reset, manager.render]
        for operation in (*operations, manager.stats):
            assert refusal(operation).startswith("ClosedError")
        assert in_fork(manager.close) is None

        def step_a_copy() -> str:
            with copy.deepcopy(manager) as own:
                return str(own.step(turn)[0]["history"][-1]["state"])

        assert in_fork(step_a_copy) == str(manager.step(turn)[0]["history"][-1]["state"])
        assert manager.stats().restarts == 0
