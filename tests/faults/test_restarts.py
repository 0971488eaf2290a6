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

from parallel_envs.engine.restart_budget import RestartBudget
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied, WorkerStartError
from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv
from tests.engine.asking import ends_within
from tests.faults import matrix
from tests.faults.broken_envs import LONG, BreakingEnv, TellingEnv, always, lives
from tests.faults.courses import Witness
from tests.faults.matrix import EXIT_CODES, HARMLESS, RAISED, SHORT, SLACK, Make, name, reset, step, within
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv

BACKENDS = ["serial", "thread", "process"]
NUM_ENVS, BROKEN = 4, 2
SHORT_EPISODES: dict[str, Any] = {"episode_lengths": (2, 3)}
ONE, TWO = np.zeros(1, int), np.zeros(2, int)
PATIENT = {"step_timeout": 60.0, "reset_timeout": 60.0}

CASES = [
    (fault, moment)
    for moment in (Moment.RESET, Moment.STEP, Moment.AUTORESET, Moment.IDLE)
    for fault in Fault
    if fault in FAULTS_AT[moment]
]
KINDS_OF_FAULTS = (Fault.SIGKILL, Fault.TWO_ARGUMENT_EXCEPTION, Fault.SLEEP)
SOME = [case for case in CASES if case[0] in KINDS_OF_FAULTS or case == (Fault.OS_EXIT, Moment.IDLE)]
OF_A_PROCESS = [case for case in CASES if case[0] in EXIT_CODES or case[0] is Fault.SIGSTOP]
OF_ANY = [case for case in CASES if case[0] in RAISED]

SETTINGS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "fork": ({"context": "fork"}, OF_A_PROCESS),
    "plain": ({}, CASES),
    "spawn": ({"context": "spawn"}, OF_A_PROCESS[::3]),
    "one env a worker": ({"num_workers": NUM_ENVS}, SOME),
    "same step": ({"autoreset_mode": "SameStep"}, [case for case in SOME if case[1] is not Moment.RESET]),
    "disabled": ({"autoreset_mode": "Disabled"}, [case for case in SOME if case[1] in (Moment.STEP, Moment.IDLE)]),
    "send": ({"own_pace": True}, SOME),
    "send, one env a worker": ({"own_pace": True, "num_workers": NUM_ENVS}, SOME),
    "views": ({"copy": False}, SOME),
    "serial": ({"backend": "serial"}, OF_ANY),
    "thread": ({"backend": "thread"}, OF_ANY),
}


def lost_with(fault: Fault, moment: Moment, num_workers: int) -> set[int]:
    """Whose episodes end: the env's own if it only raised, all of its worker's otherwise."""
    if (fault, moment) in HARMLESS:
        return set()
    return {BROKEN} if fault in RAISED or num_workers == NUM_ENVS else {2, 3}


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
    [(settings, *case) for settings, (_, cases) in SETTINGS.items() for case in cases],
    ids=name,
)
def test_a_fault_costs_one_marked_row(make: Make, tmp_path: Path, settings: str, fault: Fault, moment: Moment) -> None:
    options = {"on_failure": "restart", "num_workers": 2, **SETTINGS[settings][0]}
    own_pace = options.pop("own_pace", False)
    scripted = SHORT_EPISODES if moment is Moment.AUTORESET else LONG
    fns: list[Callable[[], ScriptedEnv]] = [partial(ScriptedEnv, **scripted)] * NUM_ENVS
    fns[BROKEN] = partial(FaultyEnv, fault, moment, once=tmp_path / "broken", num_bytes=1 << 16, **scripted)
    envs = make(fns, **options)
    lost = lost_with(fault, moment, envs.num_workers)
    witness = Witness(envs, own_pace=own_pace, infos_as_told=fault is Fault.HUGE_REPLY, **scripted)
    soon = SHORT + SLACK * (2 if settings == "spawn" else 1)  # a worker that is spawned takes a second to start
    with within(soon):
        witness.reset(lost=lost if moment is Moment.RESET else ())
    for _ in range(steps_before(witness, moment)):
        witness.step()
    if moment is Moment.IDLE:
        matrix.await_idle_fault(envs, fault, BROKEN)
    if moment is not Moment.RESET:
        with within(soon):
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
    "infos that come and go": {"observation_space": OBSERVATIONS, "infos": (InfoKind.FLICKERING,)},
}


@pytest.mark.parametrize(
    ("fault", "num_workers", "mode"),
    [(Fault.SIGKILL, 2, "NextStep"), pytest.param(Fault.EXCEPTION, 3, "SameStep", marks=pytest.mark.slow)],
    ids=name,
)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_spaces_stay_right(
    make: Make, tmp_path: Path, kind: str, fault: Fault, num_workers: int, mode: str
) -> None:
    scripted = {"episode_lengths": (3, 2), **KINDS[kind]}
    broken = partial(FaultyEnv, fault, Moment.STEP, at=2, once=tmp_path / "broken", **scripted)
    sound = partial(ScriptedEnv, **scripted)
    settings: dict[str, Any] = {"num_workers": num_workers, "on_failure": "restart", "autoreset_mode": mode, **PATIENT}
    envs = make([sound, broken, sound], **settings)
    witness = Witness(envs, **scripted)
    witness.reset(seed=3)
    for _ in range(9):
        witness.step(lost=None)
    num_lost = sum(course.num_lost for course in witness.courses)
    assert num_lost == (1 if fault is Fault.EXCEPTION or num_workers == 3 else len(envs.stats()[0]["env_ids"]))


WORKERS = [("process", 1), ("process", 2), ("process", 4), ("serial", 2), ("thread", 2)]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize(("backend", "num_workers"), WORKERS)
@pytest.mark.parametrize("chosen", [[2], [0, 1, 3]], ids=str)
def test_the_step_after_a_restart_tells_it(
    make: Make, backend: str, num_workers: int, mode: str, chosen: list[int]
) -> None:
    fns = [partial(ScriptedEnv, **SHORT_EPISODES)] * 4
    envs = make(fns, num_workers=num_workers, backend=backend, autoreset_mode=mode)
    witness = Witness(envs, **SHORT_EPISODES)
    witness.reset(seed=5)
    witness.step()
    witness.reset_ended()
    envs.restart(chosen)
    witness.step(lost=chosen)
    for _ in range(5):
        witness.step()


def test_a_reset_takes_back_what_the_next_step_would_have_said_and_two_restarts_are_one_loss(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2, on_failure="restart", max_restarts=1)
    reset(envs)
    envs.restart(0)
    assert "worker_restarted" not in envs.reset(seed=1)[1]
    assert not step(envs)[3].any()
    for _ in range(2):  # which costs nothing of the budget
        envs.restart(0)
    assert [step(envs)[3].tolist() for _ in range(2)] == [[True, False], [False, False]]
    assert envs.stats()[0]["restarts"] == 3
    envs.restart()
    assert step(envs)[3].all()


def test_the_process_is_another_unless_it_has_other_envs_too(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    reset(envs)
    step(envs)
    before = [row["pid"] for row in envs.stats()]
    envs.restart(1)
    assert [row["pid"] for row in envs.stats()] == before
    assert envs.get_attr("elapsed") == (1, 0, 1)
    envs.restart(2)
    first, second = (row["pid"] for row in envs.stats())
    assert (first == before[0], second == before[1]) == (True, False)
    assert ends_within(before[1], 0.0)


def test_idle_workers_are_restarted_while_others_are_busy(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv], step_timeout=None)
    reset(envs)
    envs.send(ONE, env_ids=0)
    envs.restart(1)
    envs.send(ONE, env_ids=1)
    order, _, _, _, truncated, infos = envs.recv()
    assert (order.tolist(), truncated.tolist(), infos["worker_restarted"].tolist()) == ([1], [True], [True])
    gate.let_through()
    order, observations, *_ = envs.recv(timeout=20.0)
    assert (order.tolist(), observations.tolist()) == ([0], [[0, 1]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_busy_worker_is_replaced_as_a_whole_if_it_is_a_process(make: Make, gate: Gate, backend: str) -> None:
    fns = [partial(GatedEnv, gate.path), CountingEnv, CountingEnv]
    envs = make(fns, num_workers=2, step_timeout=None, backend=backend)
    reset(envs)
    envs.step_async(np.zeros(3, int))
    if backend == "process":
        envs.restart(1)
        assert envs.step_wait()[3].tolist() == [True, True, False]
        return
    with pytest.raises(WorkerStartError, match="Worker 0 is busy"):
        envs.restart()
    gate.let_through()
    assert envs.step_wait()[1].tolist() == [1.0] * 3


class SeedNotingEnv(ScriptedEnv):
    """Tells the seeds of its resets."""

    def __init__(self) -> None:
        super().__init__(**LONG)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(("backend", "seed"), [("process", 7), ("thread", None), ("serial", [4, None, 6])])
def test_every_new_life_has_a_seed_of_its_own(make: Make, backend: str, seed: Any) -> None:
    envs = make([SeedNotingEnv] * 3, backend=backend, context="fork")
    envs.reset(seed=seed)
    seen = {seeds[0] for seeds in envs.get_attr("seeds")} if seed == 7 else set()
    for _ in range(2):
        envs.restart()
        seen |= {seeds[0] for seeds in envs.get_attr("seeds")}
    assert len(seen) == (3 if seed == 7 else 0) + 2 * 3


BUDGETS: dict[str, tuple[int, float, tuple[float, ...], tuple[int, ...]]] = {
    "spent one by one": (3, 10.0, (0, 1, 2, 3), (1, 1, 1, 0)),
    "older than the window": (2, 10.0, (0, 5, 9, 10.5, 11, 15.5), (1, 1, 0, 1, 0, 1)),
    "at the edge of the window": (1, 10.0, (0, 10, 10.1), (1, 0, 1)),
    "a refusal costs nothing": (1, 10.0, (0, 6, 9, 11), (1, 0, 0, 1)),
    "endless": (1, math.inf, (0, 1e9), (1, 0)),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_a_budget_is_spent_and_back(case: str) -> None:
    limit, window, moments, granted = BUDGETS[case]
    budget = RestartBudget(limit=limit, window=window)
    assert tuple(budget.spend(0, now) for now in moments) == granted


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


def play(envs: Any, count: int) -> None:
    reset(envs)
    for _ in range(count):
        step(envs)


SPENT = "Worker 1 was restarted 2 times within 600 seconds, which is as often as max_restarts allows."
IN_ITS_RESET = "Env 1 raised LookupError during the reset after a restart: reset of life 3"
UNMADE, RAISES = "during its construction", "Env 1 raised LookupError"
SOON: dict[str, Any] = {"step_timeout": 0.05, "reset_timeout": 0.05, "max_restarts": 1}
ANY_ERROR = (EnvError, WorkerDied, StepTimeout)
GIVEN_UP: dict[str, tuple[str, dict[str, str], dict[str, Any], Any, tuple[str, ...]]] = {
    # in the first life, in later ones, settings, error, texts
    **{
        f"fails, {one}": ("raise", {"step": "raise"}, {"backend": one, "num_workers": 2}, EnvError, (SPENT,))
        for one in BACKENDS
    },
    "no reset": ("raise", {"reset": "raise"}, {}, EnvError, (IN_ITS_RESET,)),
    "dies": ("exit", {"step": "exit"}, {}, WorkerDied, ("exit code 3", SPENT)),
    "hangs": ("hang", {"step": "hang"}, {"step_timeout": 0.05}, StepTimeout, ("in arrive", SPENT)),
    "hangs for long": ("hang", {"step": "hang"}, {"step_timeout": 0.5, "restart_window": 1.0}, StepTimeout, ()),
    "is not made again, with another": ("raise", {UNMADE: "raise"}, {"num_workers": 1}, EnvError, (RAISES, UNMADE)),
    "is not made again": ("raise", {UNMADE: "raise"}, {}, EnvError, (RAISES, UNMADE)),
    "dies as it is made, with another": ("exit", {UNMADE: "exit"}, {"num_workers": 1}, WorkerDied, (UNMADE,)),
    "dies as it is made": ("exit", {UNMADE: "exit"}, {}, WorkerDied, ("exit code", UNMADE)),
    "hangs whenever it is made": ("hang", {UNMADE: "hang"}, {**SOON, "start_timeout": 1.0}, StepTimeout, (UNMADE,)),
    "hangs in its reset": ("raise", {"reset": "hang"}, SOON, ANY_ERROR, ("reset after a restart",)),
}


@pytest.mark.parametrize("case", [pytest.param(one, marks=[pytest.mark.slow] * ("long" in one)) for one in GIVEN_UP])
def test_a_part_that_breaks_too_often_is_given_up(make: Make, tmp_path: Path, case: str) -> None:
    first, later, settings, kind, texts = GIVEN_UP[case]
    later = {moment.removeprefix("during its "): way for moment, way in later.items()}
    envs = beside(make, partial(BreakingEnv, tmp_path / "lives", {"step": first}, later), **settings)
    with within(20.0), pytest.raises(kind) as caught:
        play(envs, 10)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert all(text in told for text in texts), told


def test_after_giving_up_the_others_go_on_and_a_restart_is_possible(make: Make, tmp_path: Path) -> None:
    envs = beside(make, always("raise", tmp_path / "lives"), max_restarts=1)
    with pytest.raises(EnvError):
        play(envs, 3)
    assert envs.get_attr("elapsed", env_ids=0) == (3,)
    envs.restart(1)
    assert step(envs)[3].tolist() == [False, True]


def test_two_faults_in_one_worker_are_two_of_its_restarts(make: Make, tmp_path: Path) -> None:
    broken = [always("raise", tmp_path / f"lives {env}") for env in range(2)]
    envs = make(broken, on_failure="restart", num_workers=1, max_restarts=2)
    reset(envs)
    assert step(envs)[4]["worker_restarted"].tolist() == [True, True]
    assert envs.stats()[0]["restarts"] == 2
    assert step(envs)[3].tolist() == [False, False]
    with pytest.raises(EnvError, match=r"max_restarts|step of life 2"):
        step(envs)


@pytest.mark.parametrize("way", ["leave", "hang"])
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
TOLD_AGAIN = (
    rf"Env 1 .*during its construction, while it was made anew \(envs\.restart\(env_ids\) tries again\): {REASON}"
)


class Fragile(gym.Env[Any, Any]):
    """Counts its steps. With `notes` it breaks in step 2 of its first life, and `born` is called in each later one."""

    observation_space = gym.spaces.Discrete(100)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, notes: Path | None, born: Any = None, breaks: Any = DIES) -> None:
        life = lives(notes) if notes is not None else 0
        self.breaks, self.steps = (breaks if life == 1 else None), 0
        if life > 1:
            born(notes, life)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 2 and self.breaks is not None:
            self.breaks()
        return self.steps, 1.0, False, False, {"x": 1.0, **({"y": 2.0} if self.steps == 2 else {})}


def refuse(notes: Path, life: int) -> None:
    """Fails until somebody helps."""
    if not notes.with_suffix(".up").exists():
        raise RuntimeError(REASON)


def fail() -> None:
    """Raises, and leaves the worker alone."""
    raise ValueError("broken")


def strike_and_hang(pid: int, notes: Path, life: int) -> None:
    """In the second life: Ctrl-C for the asker, who is waiting for this env just now."""
    if life == 2:
        os.kill(pid, signal.SIGINT)
        threading.Event().wait()


def fragile(make: Make, notes: Path, born: Any, breaks: Any = DIES, **settings: Any) -> Any:
    """A manager whose second env breaks in the step that comes next."""
    envs = make([partial(Fragile, None), partial(Fragile, notes, born, breaks)], **PATIENT, **settings)
    envs.reset()
    envs.step(TWO)
    return envs


@pytest.mark.parametrize("on_failure", ["restart", "raise"])
def test_a_repair_that_ctrl_c_cut_short_is_taken_up_again(make: Make, tmp_path: Path, on_failure: str) -> None:
    hangs = partial(strike_and_hang, os.getpid())
    envs = fragile(make, tmp_path / "lives", hangs, autoreset_mode="Disabled", on_failure=on_failure)
    if on_failure == "raise":  # and so is one by hand
        with pytest.raises(WorkerDied):
            envs.step(TWO)
        with pytest.raises(KeyboardInterrupt):
            envs.restart([1])
        with pytest.raises(WorkerDied, match="Worker 1"):
            envs.step(TWO)
        envs.restart([1])
        assert envs.step(TWO)[3].tolist() == [False, True]
        return
    with pytest.raises(KeyboardInterrupt):
        envs.step(TWO)
    assert "waiting for step" in repr(envs)
    observations, _, _, truncated, infos = envs.step_wait(60.0)
    assert observations.tolist() == [2, 0]
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, True]
    assert infos["y"].tolist() == [2.0, 0.0]
    assert envs.step(TWO)[0].tolist() == [3, 1]
    assert envs.step(TWO)[4]["y"].tolist() == [0.0, 2.0]


@pytest.mark.parametrize(("num_workers", "breaks"), [(1, fail), (2, DIES)], ids=["raises", "dies"])
def test_the_reason_is_told_each_time(make: Make, tmp_path: Path, num_workers: int, breaks: Any) -> None:
    settings: dict[str, Any] = {"num_workers": num_workers, "on_failure": "restart", "max_restarts": 1}
    envs = fragile(make, tmp_path / "lives", refuse, breaks, **settings)
    for ask in (lambda: envs.step(TWO), lambda: envs.step(TWO), envs.reset):
        with pytest.raises(EnvError, match=TOLD_AGAIN):
            ask()
    (tmp_path / "lives.up").touch()
    envs.restart([1])
    envs.reset()
    assert envs.step(TWO)[0].tolist() == [1, 1]


@pytest.mark.parametrize("backend", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_the_reason_is_told_after_a_restart_by_hand(make: Make, tmp_path: Path, backend: str) -> None:
    envs = fragile(make, tmp_path / "lives", refuse, fail, backend=backend)
    again = lambda: envs.restart([1])  # noqa: E731  # what is asked
    asks: list[tuple[str, Callable[[], Any]]] = [(REASON, again), (REASON, again), (TOLD_AGAIN, lambda: envs.step(TWO))]
    for text, ask in [*asks, (REASON, lambda: envs.get_attr("steps"))]:
        with pytest.raises(EnvError, match=text):
            ask()
    (tmp_path / "lives.up").touch()
    envs.restart([1])
    assert envs.step(TWO)[3].tolist() == [False, True]


def test_after_an_info_that_cannot_travel_its_env_is_blamed_and_the_infos_are_right(make: Make) -> None:
    fns = [partial(TellingEnv, since=1), partial(TellingEnv, since=100, lock_at=1)]
    for num_workers in (1, 2):
        envs = make(fns, num_workers=num_workers)
        reset(envs)
        with pytest.raises(EnvError, match=r"^Env 1 raised"):
            step(envs)
        if num_workers == 1:
            assert [step(envs)[4]["elapsed"].tolist() for _ in range(2)] == [[2, 0], [3, 0]]
    envs = make(fns, num_workers=1, on_failure="restart", max_restarts=1)
    reset(envs)
    assert step(envs)[3].tolist() == [False, True]


@pytest.mark.parametrize(("on_failure", "num_workers"), [("raise", 2), ("restart", 1)])
def test_what_is_told_beside_an_error_is_kept(make: Make, tmp_path: Path, num_workers: int, on_failure: str) -> None:
    """The sibling says something new in the very step that is one failure too many."""
    fns = [partial(TellingEnv, since=3), always("raise", tmp_path / "lives")]
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
        envs.send(ONE, env_ids=1)
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
    envs.close(timeout=matrix.CLOSE_SECONDS)


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
