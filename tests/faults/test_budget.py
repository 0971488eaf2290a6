"""How often a part may break before its failure is raised after all; envs that cannot be made anew; and replies of
which a part is bad.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import ScriptedEnv
from parallel_envs.vector.recovery import RestartBudget
from tests.engine.asking import ends_within
from tests.faults.broken_envs import LONG, AnnouncingEnv, BreakingEnv, LockInfoEnv, always, lives
from tests.faults.courses import Witness
from tests.faults.matrix import CLOSE_SECONDS, SHORT, SLACK, Make, reset, step, within
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv

BACKENDS = ["serial", "thread", "process"]
TWO = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("limit", "window", "moments", "granted"),
    [
        pytest.param(3, 10.0, (0, 1, 2, 3), (1, 1, 1, 0), id="spent one by one"),
        pytest.param(2, 10.0, (0, 5, 9, 10.5, 11, 15.5), (1, 1, 0, 1, 0, 1), id="older than the window"),
        pytest.param(1, 10.0, (0, 10, 10.1), (1, 0, 1), id="at the edge of the window"),
        pytest.param(1, 10.0, (0, 6, 9, 11), (1, 0, 0, 1), id="a refusal costs nothing"),
        pytest.param(1, math.inf, (0, 1e9), (1, 0), id="endless"),
    ],
)
def test_a_budget_is_spent_and_given_back(
    limit: int, window: float, moments: tuple[float, ...], granted: tuple[int, ...]
) -> None:
    budget = RestartBudget(limit=limit, window=window)
    assert tuple(budget.spend(0, now) for now in moments) == tuple(map(bool, granted))


def test_each_worker_has_a_budget_of_its_own() -> None:
    budget = RestartBudget(limit=1, window=10.0)
    assert [budget.spend(worker, 0.0) for worker in (0, 1, 0, 1, 2)] == [True, True, False, False, True]


def test_the_time_in_which_a_worker_hung_does_not_count() -> None:
    """A deadline of 300 seconds leaves room for two hangs in a window of 600, and for any number of them in a row."""
    budget = RestartBudget(limit=3, window=600.0)
    assert [budget.spend(0, 301.0 * hang, waited=300.0) for hang in range(1, 5)] == [True, True, True, False]
    assert budget.spend(0, 301.0 * 4 + 601.0)
    assert budget.spend(1, 301.0 * 4)


# ---- parts that break again and again ------------------------------------------------------------


def beside(make: Make, broken: Callable[[], Any], **settings: Any) -> Any:
    """A manager whose second env is the broken one."""
    settings = {"on_failure": "restart", "max_restarts": 2, **settings}
    return make([partial(ScriptedEnv, **LONG), broken], **settings)


SPENT = "Worker 1 was restarted 2 times within 600 seconds, which is as often as max_restarts allows."
IN_ITS_RESET = "Env 1 raised LookupError during the reset after a restart: reset of life 3"
UNMADE = "during its construction"

MADE_IN_VAIN = {"raise": (EnvError, "Env 1 raised LookupError"), "exit": (WorkerDied, "exit code")}
GIVEN_UP: list[Any] = [
    # first life, later lives, settings, error, texts
    *(
        pytest.param("raise", "raise", {"backend": one}, EnvError, ("step of life 3", SPENT), id=f"fails, {one}")
        for one in BACKENDS
    ),
    pytest.param("exit", "exit", {}, WorkerDied, ("exit code 3", SPENT), id="dies"),
    pytest.param("hang", "hang", {"step_timeout": 0.05}, StepTimeout, ("in arrive", SPENT), id="hangs"),
    pytest.param("hang", "hang", {"step_timeout": 1.0, "restart_window": 2.0}, StepTimeout, (), id="hangs for long"),
    *(
        pytest.param(way, {"construction": way}, {"num_workers": num}, kind, (text, UNMADE), id=f"{way}, {num} workers")
        for way, (kind, text) in MADE_IN_VAIN.items()
        for num in (1, 2)
    ),
    pytest.param(
        "hang",
        {"construction": "hang"},
        {"step_timeout": 0.05, "start_timeout": SHORT, "max_restarts": 1},
        StepTimeout,
        (UNMADE,),
        id="hangs whenever it is made",
    ),
    *(
        pytest.param("raise", {"reset": "raise"}, {"backend": one}, EnvError, (IN_ITS_RESET,), id=f"no reset, {one}")
        for one in BACKENDS
    ),
    pytest.param(
        "raise",
        {"reset": "hang"},
        {"reset_timeout": 0.05, "start_timeout": 2.0, "max_restarts": 1},
        (EnvError, WorkerDied, StepTimeout),
        ("reset after a restart",),
        id="hangs in its reset",
    ),
]


@pytest.mark.parametrize(("first", "later", "settings", "kind", "texts"), GIVEN_UP)
def test_a_part_that_breaks_too_often_is_given_up(
    make: Make, tmp_path: Path, first: str, later: Any, settings: dict[str, Any], kind: Any, texts: tuple[str, ...]
) -> None:
    ways = {"step": later} if isinstance(later, str) else later
    envs = beside(make, partial(BreakingEnv, tmp_path / "lives", {"step": first}, ways), **settings)
    with within(20.0), pytest.raises(kind) as caught:
        reset_and_step(envs, 10)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert all(text in told for text in texts), told


def reset_and_step(envs: Any, count: int) -> None:
    reset(envs)
    for _ in range(count):
        step(envs)


def test_after_giving_up_the_others_are_as_they_were_and_a_restart_by_hand_is_possible(
    make: Make, tmp_path: Path
) -> None:
    envs = beside(make, always("raise", tmp_path / "lives"), max_restarts=1)
    with pytest.raises(EnvError):
        reset_and_step(envs, 3)
    assert envs.get_attr("elapsed", env_ids=0) == (3,)
    envs.restart(1)
    assert step(envs)[3].tolist() == [False, True]


def test_restarts_long_ago_do_not_count(make: Make, tmp_path: Path) -> None:
    envs = beside(make, always("raise", tmp_path / "lives"), max_restarts=1, restart_window=1e-9)
    reset_and_step(envs, 8)
    assert envs.stats()[1]["restarts"] == 4


def test_two_faults_in_one_worker_are_two_of_its_restarts(make: Make, tmp_path: Path) -> None:
    broken = [always("raise", tmp_path / f"lives {env}") for env in range(2)]
    envs = make(broken, on_failure="restart", num_workers=1, max_restarts=2)
    reset(envs)
    assert step(envs)[4]["worker_restarted"].tolist() == [True, True]
    assert envs.stats()[0]["restarts"] == 2
    assert np.array_equal(step(envs)[3], [False, False])
    with pytest.raises(EnvError, match=r"max_restarts|step of life 2"):
        step(envs)


@pytest.mark.parametrize("way", ["raise", "leave", "hang"])
def test_an_old_env_that_closes_badly_does_not_matter(make: Make, tmp_path: Path, way: str) -> None:
    """One that hangs costs its worker."""
    broken = partial(BreakingEnv, tmp_path / "lives", {"step": "raise", "close": way}, {})
    witness = Witness(beside(make, broken, num_workers=1, start_timeout=SHORT if way == "hang" else 20.0), **LONG)
    witness.reset()
    with within(3 * SHORT + SLACK):
        if way == "hang":
            assert step(witness.envs)[4]["worker_restarted"][1]
            return
        witness.step(lost={1})
    witness.step()


# ---- envs that cannot be made anew, or whose making is cut short ---------------------------------

DIES = partial(os._exit, 3)
REASON = "the licence server is down"
AS_IT_WAS_MADE = r"during its construction, while it was made anew \(envs\.restart\(env_ids\) tries again\)"
PATIENT = {"step_timeout": 60.0, "reset_timeout": 60.0}


class Fragile(gym.Env[Any, Any]):
    """Counts its steps. With `notes` it breaks in step 2 of its first life, and `second_life` is called in the next
    life's constructor.
    """

    observation_space = gym.spaces.Discrete(100)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, notes: Path | None, second_life: Any = None, breaks: Any = DIES) -> None:
        self.breaks = None
        if notes is not None:
            life = lives(notes)
            if life == 1:
                self.breaks = breaks
            elif life == 2 or second_life is refuse:
                second_life(notes)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 2 and self.breaks is not None:
            self.breaks()
        return self.steps, 1.0, False, False, {"x": 1.0, **({"y": 2.0} if self.steps == 2 else {})}


def refuse(notes: Path) -> None:
    """Fails until somebody helps."""
    if not notes.with_suffix(".up").exists():
        raise RuntimeError(REASON)


def fail() -> None:
    """Raises, and leaves the worker alone."""
    raise ValueError("broken")


def strike_and_hang(pid: int, notes: Path) -> None:
    """Ctrl-C for the asker, who is waiting for this env just now."""
    os.kill(pid, signal.SIGINT)
    threading.Event().wait()


def struck(make: Make, notes: Path, **settings: Any) -> Any:
    """A manager whose second env breaks in step 2, and whose repair Ctrl-C will cut short."""
    second = partial(Fragile, notes, partial(strike_and_hang, os.getpid()))
    envs = make([partial(Fragile, None), second], autoreset_mode="Disabled", **PATIENT, **settings)
    envs.reset()
    envs.step(TWO)
    return envs


def test_a_repair_that_ctrl_c_cut_short_is_taken_up_again(make: Make, tmp_path: Path) -> None:
    envs = struck(make, tmp_path / "lives", on_failure="restart")
    with pytest.raises(KeyboardInterrupt):
        envs.step(TWO)
    assert "waiting for step" in repr(envs)
    observations, _, _, truncated, infos = envs.step_wait(60.0)
    assert observations.tolist() == [2, 0]
    assert truncated.tolist() == [False, True]
    assert infos["worker_restarted"].tolist() == [False, True]
    assert infos["y"].tolist() == [2.0, 0.0]
    assert envs.step(TWO)[0].tolist() == [3, 1]
    assert envs.step(TWO)[4]["y"].tolist() == [0.0, 2.0]


def test_a_restart_by_hand_that_was_cut_short_may_be_asked_for_again(make: Make, tmp_path: Path) -> None:
    envs = struck(make, tmp_path / "lives")
    with pytest.raises(WorkerDied):
        envs.step(TWO)
    with pytest.raises(KeyboardInterrupt):
        envs.restart([1])
    with pytest.raises(WorkerDied, match="Worker 1"):
        envs.step(TWO)
    envs.restart([1])
    assert envs.step(TWO)[3].tolist() == [False, True]


def test_what_has_been_asked_again_is_not_asked_twice(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = partial(Fragile, tmp_path / "lives", lambda notes: None)
    envs = make([partial(Fragile, None), second], **PATIENT, on_failure="restart")
    envs.reset()
    envs.step(TWO)
    ask = envs._batch.report_lost
    asked: list[Any] = []

    def ask_and_strike(*arguments: Any) -> Any:
        asked.append(ask(*arguments))
        signal.raise_signal(signal.SIGINT)
        return asked[-1]

    monkeypatch.setattr(envs._batch, "report_lost", ask_and_strike)
    with pytest.raises(KeyboardInterrupt):
        envs.step(TWO)
    observations, _, _, truncated, infos = envs.step_wait(60.0)
    assert observations.tolist() == [2, 0]
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, True]
    assert len(asked) == 1


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("breaks", [DIES, fail], ids=["dies", "raises"])
def test_the_reason_is_told_each_time(make: Make, tmp_path: Path, num_workers: int, breaks: Any) -> None:
    second = partial(Fragile, tmp_path / "lives", refuse, breaks)
    settings = {"num_workers": num_workers, "on_failure": "restart", "max_restarts": 1}
    envs = make([partial(Fragile, None), second], **PATIENT, **settings)
    envs.reset()
    envs.step(TWO)
    for ask in (lambda: envs.step(TWO), lambda: envs.step(TWO), envs.reset):
        with pytest.raises(EnvError, match=f"Env 1 .*{AS_IT_WAS_MADE}: {REASON}"):
            ask()
    (tmp_path / "lives.up").touch()
    envs.restart([1])
    envs.reset()
    assert envs.step(TWO)[0].tolist() == [1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_reason_is_told_after_a_restart_by_hand(make: Make, tmp_path: Path, backend: str) -> None:
    second = partial(Fragile, tmp_path / "lives", refuse, fail)
    envs = make([partial(Fragile, None), second], backend=backend, **PATIENT)
    envs.reset()
    for _ in range(2):
        with pytest.raises(EnvError, match=REASON):
            envs.restart([1])
    with pytest.raises(EnvError, match=f"Env 1 .*{AS_IT_WAS_MADE}: {REASON}"):
        envs.step(TWO)
    with pytest.raises(EnvError, match=REASON):
        envs.get_attr("steps")
    (tmp_path / "lives.up").touch()
    envs.restart([1])
    assert envs.step(TWO)[3].tolist() == [False, True]


# ---- replies of which a part is bad: the rest is heard, and the right env is blamed --------------


def test_after_an_info_that_cannot_travel_its_env_is_blamed_and_the_infos_are_right(make: Make) -> None:
    for num_workers in (1, 2):
        fns = [partial(AnnouncingEnv, since=1), partial(LockInfoEnv, at=1)]
        envs = make(fns, num_workers=num_workers)
        reset(envs)
        with pytest.raises(EnvError, match=r"^Env 1 raised"):
            step(envs)
        if num_workers == 1:
            assert [step(envs)[4]["elapsed"].tolist() for _ in range(2)] == [[2, 0], [3, 0]]


def test_the_env_whose_info_cannot_travel_is_the_one_that_is_replaced(make: Make) -> None:
    fns = [partial(AnnouncingEnv, since=1), partial(LockInfoEnv, at=1)]
    envs = make(fns, num_workers=1, on_failure="restart", max_restarts=1)
    reset(envs)
    assert step(envs)[3].tolist() == [False, True]


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_was_told_beside_an_error_that_is_raised_is_not_lost(
    make: Make, tmp_path: Path, num_workers: int, on_failure: str
) -> None:
    """The sibling says something new in the very step that is one failure too many."""
    fns = [partial(AnnouncingEnv, since=3), always("raise", tmp_path / "lives")]
    envs = make(fns, num_workers=num_workers, on_failure=on_failure, max_restarts=1)
    reset(envs)
    for _ in range(3):
        with suppress(EnvError):
            step(envs)
    envs.restart(1)
    assert step(envs)[4]["elapsed"].tolist() == [4, 0]


def test_a_loss_that_was_mended_beside_an_error_is_still_told(make: Make, tmp_path: Path, gate: Gate) -> None:
    """Env 0 is lost and mended; env 1, which answers after it, has no restart left."""
    fns = [partial(BreakingEnv, tmp_path / "lives", {"step": "exit"}, {}), partial(GatedFailingEnv, gate.path)]
    envs = make(fns, on_failure="restart", max_restarts=1, step_timeout=None)
    reset(envs)
    gate.let_through()
    for _ in range(2):  # the row of a loss, and the reset that follows it
        envs.send(TWO[:1], env_ids=1)
        envs.recv()
    dying = envs.stats()[0]["pid"]
    envs.send(TWO)
    assert ends_within(dying, 20.0)
    with pytest.raises(StepTimeout):
        envs.recv(min_envs=2, timeout=0.05)
    gate.let_through()
    with pytest.raises(EnvError):
        envs.recv(min_envs=2)
    assert envs.recv()[5]["worker_restarted"].tolist() == [True]
    envs.close(timeout=CLOSE_SECONDS)


class GatedFailingEnv(GatedEnv):
    """Waits at a gate before each step, and raises. Its observations are those of a `ScriptedEnv`."""

    def __init__(self, gate: Path) -> None:
        super().__init__(gate, waits_at=tuple(range(100)))
        self.observation_space = ScriptedEnv.default_observation_space
        self.action_space = ScriptedEnv.default_action_space

    def observed(self) -> Any:
        return np.zeros(3, np.float32)

    def step(self, action: Any) -> Any:
        super().step(action)
        raise LookupError("always")


def test_a_result_of_a_call_that_cannot_travel_is_an_error_of_its_env_and_touches_nothing_else(make: Make) -> None:
    envs = make([CountingEnv] * 2, num_workers=1)
    reset(envs)
    step(envs)
    with pytest.raises(EnvError, match=r"lock.* cannot be pickled") as caught:
        envs.call("lock", env_ids=1)
    assert caught.value.env_ids == (1,)
    assert envs.get_attr("elapsed") == (1, 1)
    assert step(envs)[1].tolist() == [2.0, 2.0]
