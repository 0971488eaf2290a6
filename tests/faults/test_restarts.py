"""The death matrix under `on_failure="restart"`, restarts by hand, and the seeds of what was replaced.

Every row is compared with the same env played in this process, before the fault and after it.
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
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied, WorkerStartError
from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv
from parallel_envs.vector.recovery import RestartBudget
from tests.engine.asking import ends_within
from tests.faults.broken_envs import LONG, AnnouncingEnv, BreakingEnv, LockInfoEnv, always, lives
from tests.faults.courses import Witness
from tests.faults.matrix import (
    CLOSE_SECONDS,
    EXIT_CODES,
    HARMLESS,
    RAISED,
    SHORT,
    SLACK,
    Make,
    await_idle_fault,
    name,
    reset,
    step,
    within,
)
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv

BACKENDS = ["serial", "thread", "process"]
NUM_ENVS, BROKEN = 4, 2
SHORT_EPISODES: dict[str, Any] = {"episode_lengths": (2, 3)}

CASES = [
    (fault, moment)
    for moment in (Moment.RESET, Moment.STEP, Moment.AUTORESET, Moment.IDLE)
    for fault in Fault
    if fault in FAULTS_AT[moment]
]
SOME = [
    (fault, moment)
    for fault, moment in CASES
    if fault in (Fault.SIGKILL, Fault.TWO_ARGUMENT_EXCEPTION, Fault.SLEEP)
    or (fault, moment) == (Fault.OS_EXIT, Moment.IDLE)
]
OF_A_PROCESS = [case for case in CASES if case[0] in EXIT_CODES or case[0] is Fault.SIGSTOP]

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fork": {"context": "fork"},
    "spawn": {"context": "spawn"},
    "one env a worker": {"num_workers": NUM_ENVS},
    "same step": {"autoreset_mode": "SameStep"},
    "disabled": {"autoreset_mode": "Disabled"},
    "send": {"own_pace": True},
    "send, one env a worker": {"own_pace": True, "num_workers": NUM_ENVS},
    "views": {"copy": False},
    "serial": {"backend": "serial"},
    "thread": {"backend": "thread"},
}
CASES_OF: dict[str, list[Any]] = {
    "fork": OF_A_PROCESS,
    "plain": CASES,
    "spawn": OF_A_PROCESS[::3],
    "one env a worker": SOME,
    "same step": [case for case in SOME if case[1] is not Moment.RESET],
    "disabled": [case for case in SOME if case[1] in (Moment.STEP, Moment.IDLE)],
    "send": SOME,
    "send, one env a worker": SOME,
    "views": SOME,
    "serial": [case for case in CASES if case[0] in RAISED],
    "thread": [case for case in CASES if case[0] in RAISED],
}


def lost_with(fault: Fault, moment: Moment, num_workers: int) -> set[int]:
    """Whose episodes end: the env's own if it only raised, all of its worker's otherwise."""
    if (fault, moment) in HARMLESS:
        return set()
    if fault in RAISED or num_workers == NUM_ENVS:
        return {BROKEN}
    return {2, 3}


def steps_before(witness: Witness, moment: Moment) -> int:
    """How many steps are well before the one in which it happens."""
    if moment is not Moment.AUTORESET:
        return int(moment is Moment.IDLE)
    rehearsal = ScriptedEnv(**SHORT_EPISODES)
    rehearsal.reset(seed=witness.root + BROKEN)
    length = next(n for n in range(1, 9) if any(rehearsal.step(0)[2:4]))
    return length if witness.envs.autoreset_mode is AutoresetMode.NEXT_STEP else length - 1


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(
    ("settings", "fault", "moment"),
    [(settings, *case) for settings, cases in CASES_OF.items() for case in cases],
    ids=name,
)
def test_a_fault_costs_one_marked_row(make: Make, tmp_path: Path, settings: str, fault: Fault, moment: Moment) -> None:
    options = {"on_failure": "restart", "num_workers": 2, **SETTINGS[settings]}
    own_pace = options.pop("own_pace", False)
    scripted = SHORT_EPISODES if moment is Moment.AUTORESET else LONG
    fns: list[Callable[[], ScriptedEnv]] = [partial(ScriptedEnv, **scripted)] * NUM_ENVS
    fns[BROKEN] = partial(FaultyEnv, fault, moment, once=tmp_path / "broken", num_bytes=1 << 16, **scripted)
    envs = make(fns, **options)
    lost = lost_with(fault, moment, envs.num_workers)
    witness = Witness(envs, own_pace=own_pace, infos_as_told=fault is Fault.HUGE_REPLY, **scripted)
    with within(SHORT + SLACK):
        witness.reset(lost=lost if moment is Moment.RESET else ())
    for _ in range(steps_before(witness, moment)):
        witness.step()
    if moment is Moment.IDLE:
        await_idle_fault(envs, fault, BROKEN)
    if moment is not Moment.RESET:
        with within(SHORT + SLACK):
            witness.step(lost=lost)
    for _ in range(6):
        witness.step()
    restarts = [row["restarts"] for row in envs.stats()]
    assert sum(restarts) == len({env // (NUM_ENVS // envs.num_workers) for env in lost})


OBSERVATIONS = spaces.Dict(
    box=spaces.Box(-1.0, 1.0, (2,), np.float32), text=spaces.Text(5), some=spaces.Sequence(spaces.Discrete(5))
)
ACTIONS = spaces.Dict(number=spaces.Discrete(3), text=spaces.Text(3))
KINDS: dict[str, dict[str, Any]] = {
    "odd observations, all infos": {"observation_space": OBSERVATIONS, "infos": tuple(InfoKind)},
    "odd actions, numeric infos": {"action_space": ACTIONS, "infos": (InfoKind.SCALARS,)},
    "odd both, infos that come and go": {
        "observation_space": OBSERVATIONS,
        "action_space": ACTIONS,
        "infos": (InfoKind.FLICKERING,),
    },
}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("fault", [Fault.SIGKILL, Fault.EXCEPTION], ids=name)
@pytest.mark.parametrize("kind", KINDS)
def test_restart_keeps_rows_right(
    make: Make, tmp_path: Path, kind: str, fault: Fault, num_workers: int, mode: str
) -> None:
    scripted = {"episode_lengths": (3, 2), **KINDS[kind]}
    broken = partial(FaultyEnv, fault, Moment.STEP, at=2, once=tmp_path / "broken", **scripted)
    sound = partial(ScriptedEnv, **scripted)
    envs = make([sound, broken, sound], num_workers=num_workers, on_failure="restart", autoreset_mode=mode)
    witness = Witness(envs, **scripted)
    witness.reset(seed=3)
    for _ in range(9):
        witness.step(lost=None)
    num_lost = sum(course.num_lost for course in witness.courses)
    assert num_lost == (1 if fault is Fault.EXCEPTION or num_workers == 3 else len(envs.stats()[0]["env_ids"]))


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize(
    ("backend", "num_workers"), [("process", 1), ("process", 2), ("process", 4), ("serial", 2), ("thread", 2)]
)
@pytest.mark.parametrize("chosen", [[2], [0, 1, 3]], ids=str)
def test_the_step_after_a_restart_tells_it(
    make: Make, backend: str, num_workers: int, mode: str, chosen: list[int]
) -> None:
    envs = make(
        [partial(ScriptedEnv, **SHORT_EPISODES)] * 4, num_workers=num_workers, backend=backend, autoreset_mode=mode
    )
    witness = Witness(envs, **SHORT_EPISODES)
    witness.reset(seed=5)
    witness.step()
    witness.reset_ended()
    envs.restart(chosen)
    witness.step(lost=chosen)
    for _ in range(5):
        witness.step()


def test_a_reset_takes_back_what_the_next_step_would_have_said(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2)
    reset(envs)
    envs.restart(0)
    assert "worker_restarted" not in envs.reset(seed=1)[1]
    assert not step(envs)[3].any()
    envs.restart()
    assert step(envs)[3].all()


def test_restarting_twice_is_one_loss_and_costs_nothing_of_the_budget(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2, on_failure="restart", max_restarts=1)
    reset(envs)
    envs.restart(0)
    envs.restart(0)
    assert step(envs)[3].tolist() == [True, False]
    assert step(envs)[3].tolist() == [False, False]
    assert envs.stats()[0]["restarts"] == 2


def test_the_process_of_the_worker_is_another_and_the_old_one_is_gone(make: Make, method: str) -> None:
    envs = make([ScriptedEnv] * 2, context=method)
    before = [row["pid"] for row in envs.stats()]
    envs.restart(1)
    after = [row["pid"] for row in envs.stats()]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert ends_within(before[1], 0.0)


def test_one_of_several_envs_is_replaced_within_its_worker(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=1)
    reset(envs)
    step(envs)
    before = envs.stats()[0]["pid"]
    envs.restart(1)
    assert envs.stats()[0]["pid"] == before
    assert envs.get_attr("elapsed") == (1, 0, 1)


def test_idle_workers_are_restarted_while_others_are_busy(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv], step_timeout=None)
    reset(envs)
    envs.send(np.zeros(1, int), env_ids=0)
    envs.restart(1)
    envs.send(np.zeros(1, int), env_ids=1)
    order, _, _, _, truncated, infos = envs.recv()
    assert (order.tolist(), truncated.tolist(), infos["worker_restarted"].tolist()) == ([1], [True], [True])
    gate.let_through()
    order, observations, *_ = envs.recv(timeout=20.0)
    assert (order.tolist(), observations.tolist()) == ([0], [[0, 1]])


def test_a_busy_worker_of_several_envs_is_replaced_as_a_whole(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv, CountingEnv], num_workers=2, step_timeout=None)
    reset(envs)
    envs.step_async(np.zeros(3, int))
    envs.restart(1)
    assert envs.step_wait()[3].tolist() == [True, True, False]


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_a_busy_worker_that_is_no_process_cannot_be_restarted(make: Make, gate: Gate, backend: str) -> None:
    envs = make([partial(GatedEnv, gate.path)], backend=backend, step_timeout=None)
    reset(envs)
    envs.step_async(np.zeros(1, int))
    with pytest.raises(WorkerStartError, match="Worker 0 is busy"):
        envs.restart()
    gate.let_through()
    assert envs.step_wait()[1].tolist() == [1.0]


class SeedNotingEnv(ScriptedEnv):
    """Tells the seeds of its resets."""

    def __init__(self) -> None:
        super().__init__(**LONG)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


def seeds_of(envs: ParallelEnvManager) -> list[Any]:
    return [seeds[0] for seeds in envs.get_attr("seeds")]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [7, None, [4, None, 6], [4, 5, 6]], ids=str)
def test_every_new_life_has_a_seed_of_its_own(make: Make, backend: str, seed: Any) -> None:
    envs = make([SeedNotingEnv] * 3, backend=backend, context="fork")
    envs.reset(seed=seed)
    seen = set(seeds_of(envs)) if seed == 7 else set()
    for _ in range(2):
        envs.restart()
        seen |= set(seeds_of(envs))
    assert len(seen) == (3 if seed == 7 else 0) + 2 * 3


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
def test_a_budget_is_spent_and_back(
    limit: int, window: float, moments: tuple[float, ...], granted: tuple[int, ...]
) -> None:
    budget = RestartBudget(limit=limit, window=window)
    assert tuple(budget.spend(0, now) for now in moments) == tuple(map(bool, granted))


def test_the_time_in_which_a_worker_hung_does_not_count() -> None:
    """A deadline of 300 seconds leaves room for two hangs in a window of 600, and for any number of them in a row."""
    budget = RestartBudget(limit=3, window=600.0)
    assert [budget.spend(0, 301.0 * hang, waited=300.0) for hang in range(1, 5)] == [True, True, True, False]
    assert budget.spend(0, 301.0 * 4 + 601.0)
    assert budget.spend(1, 301.0 * 4)


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
        {"step_timeout": 0.05, "start_timeout": 1.0, "max_restarts": 1},
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


def test_after_giving_up_the_others_go_on_and_a_restart_is_possible(make: Make, tmp_path: Path) -> None:
    envs = beside(make, always("raise", tmp_path / "lives"), max_restarts=1)
    with pytest.raises(EnvError):
        reset_and_step(envs, 3)
    assert envs.get_attr("elapsed", env_ids=0) == (3,)
    envs.restart(1)
    assert step(envs)[3].tolist() == [False, True]


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
    witness = Witness(beside(make, broken, num_workers=1, start_timeout=1.0 if way == "hang" else 20.0), **LONG)
    witness.reset()
    with within(2.0 + SLACK):
        if way == "hang":
            assert step(witness.envs)[4]["worker_restarted"][1]
            return
        witness.step(lost={1})
    witness.step()


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


@pytest.mark.slow(sample=True)
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


def test_after_an_info_that_cannot_travel_its_env_is_blamed_and_the_infos_are_right(make: Make) -> None:
    for num_workers in (1, 2):
        fns = [partial(AnnouncingEnv, since=1), partial(LockInfoEnv, at=1)]
        envs = make(fns, num_workers=num_workers)
        reset(envs)
        with pytest.raises(EnvError, match=r"^Env 1 raised"):
            step(envs)
        if num_workers == 1:
            assert [step(envs)[4]["elapsed"].tolist() for _ in range(2)] == [[2, 0], [3, 0]]
    envs = make(fns, num_workers=1, on_failure="restart", max_restarts=1)
    reset(envs)
    assert step(envs)[3].tolist() == [False, True]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("on_failure", ["raise", "restart"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_is_told_beside_an_error_is_kept(make: Make, tmp_path: Path, num_workers: int, on_failure: str) -> None:
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
