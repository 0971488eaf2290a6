"""The death matrix under `on_failure="restart"`, restarts by hand, and the seeds of what was replaced.

Every row is compared with the same env played in this process, before the fault and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parallel_envs import ParallelEnvManager, SeedTree
from parallel_envs.errors import EnvError, WorkerDied, WorkerStartError
from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv, assert_same_batch
from tests.engine.asking import ends_within
from tests.faults.broken_envs import LONG, lives
from tests.faults.courses import Witness
from tests.faults.matrix import (
    EXIT_CODES,
    HARMLESS,
    RAISED,
    SHORT,
    SLACK,
    Make,
    await_idle_fault,
    covering,
    faulty,
    name,
    reset,
    step,
    within,
)
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv

NUM_ENVS, BROKEN = 4, 2
BACKENDS = ["serial", "thread", "process"]
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


@pytest.mark.parametrize(
    ("settings", "fault", "moment"),
    covering((settings, *case) for settings, cases in CASES_OF.items() for case in cases),
    ids=name,
)
def test_a_fault_costs_one_marked_row_of_the_envs_it_hit(
    make: Make, tmp_path: Path, settings: str, fault: Fault, moment: Moment
) -> None:
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
def test_rows_of_any_space_are_right_before_and_after_a_restart(
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


# ---- by hand -------------------------------------------------------------------------------------


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize(
    ("backend", "num_workers"), [("process", 1), ("process", 2), ("process", 4), ("serial", 2), ("thread", 2)]
)
@pytest.mark.parametrize("chosen", [[2], [0, 1, 3]], ids=str)
def test_idle_envs_that_are_restarted_say_so_in_the_next_step(
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_single_number_is_an_env_and_nothing_means_all(make: Make, backend: str) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2, backend=backend)
    witness = Witness(envs, **LONG)
    witness.reset()
    envs.restart(1)
    witness.step(lost={1})
    envs.restart()
    witness.step(lost={0, 1})


def test_a_restart_before_the_first_reset_harms_nothing(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2)
    envs.restart(0)
    witness = Witness(envs, **LONG)
    witness.courses[0].num_lost += 1
    witness.reset()
    witness.step()


def test_a_reset_takes_back_what_the_next_step_would_have_said(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2)
    reset(envs)
    envs.restart(0)
    assert "worker_restarted" not in envs.reset(seed=1)[1]
    assert not step(envs)[3].any()


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


def test_a_dead_worker_is_replaced_as_a_whole(make: Make, tmp_path: Path) -> None:
    fns = [faulty(Fault.OS_EXIT, Moment.STEP, tmp_path / "broken"), *[partial(ScriptedEnv, **LONG)] * 3]
    envs = make(fns, num_workers=2)
    witness = Witness(envs, **LONG)
    witness.reset()
    with pytest.raises(WorkerDied):
        step(envs)
    for course in witness.courses[2:]:
        course.step(np.int64(course.index % 3))
    envs.restart(0)
    witness.step(lost={0, 1})
    witness.step()


def test_a_dead_worker_that_no_call_has_noticed_is_replaced(make: Make, tmp_path: Path) -> None:
    envs = make([faulty(Fault.SIGKILL, Moment.IDLE, tmp_path / "broken"), partial(ScriptedEnv, **LONG)])
    witness = Witness(envs, **LONG)
    witness.reset()
    witness.step()
    assert ends_within(envs.stats()[0]["pid"], 20.0)
    envs.restart(0)
    witness.step(lost={0})
    witness.step()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_env_that_cannot_be_made_again_is_an_error_and_the_others_are_well(
    make: Make, tmp_path: Path, backend: str
) -> None:
    envs = make([CountingEnv, partial(MadeOnceEnv, tmp_path / "lives")], max_restarts=2, backend=backend)
    reset(envs)
    with pytest.raises(EnvError, match="construction 4"):
        envs.restart(1)
    assert envs.get_attr("elapsed", env_ids=0) == (0,)


class MadeOnceEnv(CountingEnv):
    """Can be made once."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        if (life := lives(notes)) > 1:
            raise LookupError(f"construction {life}")


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


# ---- seeds: fresh, from the tree of the last seeded reset, and the same in every run -------------


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


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_seeds_come_from_the_tree_of_the_last_seeded_reset(make: Make, backend: str) -> None:
    envs = make([SeedNotingEnv] * 2, backend=backend)
    for seed in (7, 8):
        envs.reset(seed=seed)
        envs.reset()
        envs.restart(1)
        assert seeds_of(envs)[1] in {SeedTree(seed).child("restart", 1, count).seed() for count in (1, 2)}


def test_seeds_depend_neither_on_other_envs_that_were_replaced_nor_on_faults_before_the_seeded_reset(
    make: Make,
) -> None:
    told = set()
    for earlier, others in ((0, []), (1, []), (2, []), (0, [0]), (0, [0, 2])):
        envs = make([SeedNotingEnv] * 3, context="fork")
        for _ in range(earlier):
            envs.restart(1)
        envs.reset(seed=7)
        for other in others:
            envs.restart(other)
        envs.restart(1)
        told.add(seeds_of(envs)[1])
    assert len(told) == 1


@pytest.mark.parametrize("num_workers", [2, 4])
def test_two_runs_with_the_same_faults_are_the_same_by_any_start_method(
    make: Make, tmp_path: Path, num_workers: int
) -> None:
    """Twelve steps in which two envs break, one of them twice."""
    courses = []
    for context in ("forkserver", "fork"):
        kill = partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=5, once=tmp_path / context, **LONG)
        fails = partial(FaultyEnv, Fault.EXCEPTION, Moment.STEP, at=3, **LONG)
        sound = partial(ScriptedEnv, **LONG)
        envs = make([fails, sound, kill, sound], num_workers=num_workers, on_failure="restart", context=context)
        courses.append([reset(envs), *(step(envs) for _ in range(12))])
        envs.close()
    assert_same_batch(*courses)
    marked = [batch[4].get("worker_restarted", np.zeros(4, bool)) for batch in courses[0][1:]]
    assert np.any(marked, axis=0).tolist() == [True, False, True, num_workers == 2]
