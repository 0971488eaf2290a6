"""The death matrix under `on_failure="restart"`: the call returns, and only what was lost is marked.

Every row is compared with the same env played in this process, before the fault and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, Moment, ScriptedEnv
from tests.faults.courses import Witness
from tests.faults.matrix import (
    EXIT_CODES,
    HARMLESS,
    RAISED,
    SHORT,
    SLACK,
    Make,
    await_idle_fault,
    name,
    within,
)

NUM_ENVS, BROKEN = 4, 2
MODES = [mode.value for mode in AutoresetMode]

Lengths = dict[str, Any]

MOMENTS = (Moment.RESET, Moment.STEP, Moment.AUTORESET, Moment.IDLE)
CASES = [(fault, moment) for moment in MOMENTS for fault in Fault if fault in FAULTS_AT[moment]]
SOME = [
    (fault, moment)
    for fault, moment in CASES
    if fault in (Fault.SIGKILL, Fault.TWO_ARGUMENT_EXCEPTION, Fault.SLEEP)
    or (fault, moment) == (Fault.OS_EXIT, Moment.IDLE)
]
OF_A_PROCESS = [case for case in CASES if case[0] in EXIT_CODES or case[0] is Fault.SIGSTOP]

SHORT_EPISODES: Lengths = {"episode_lengths": (2, 3)}
LONG_EPISODES: Lengths = {"episode_lengths": (100,)}


def scripted(moment: Moment) -> Lengths:
    return SHORT_EPISODES if moment is Moment.AUTORESET else LONG_EPISODES


def envs_for(fault: Fault, moment: Moment, once: Path, at: int = 1) -> list[Callable[[], ScriptedEnv]]:
    """Sound envs, and one among them that breaks once."""
    settings = scripted(moment)
    envs: list[Callable[[], ScriptedEnv]] = [partial(ScriptedEnv, **settings)] * NUM_ENVS
    envs[BROKEN] = partial(FaultyEnv, fault, moment, at=at, once=once, num_bytes=1 << 16, **settings)
    return envs


def lost_with(fault: Fault, moment: Moment, num_workers: int) -> set[int]:
    """Whose episodes end: the env's own if it only raised, all of its worker's otherwise."""
    if (fault, moment) in HARMLESS:
        return set()
    if fault in RAISED or num_workers == NUM_ENVS:
        return {BROKEN}
    return {2, 3}


def play(make: Make, fault: Fault, moment: Moment, folder: Path, *, own_pace: bool = False, **settings: Any) -> Witness:
    """Go through the fault and on, and compare every row."""
    settings = {"on_failure": "restart", "num_workers": 2, **settings}
    envs = make(envs_for(fault, moment, folder / "broken"), **settings)
    lost = lost_with(fault, moment, envs.num_workers)
    witness = Witness(envs, own_pace=own_pace, **scripted(moment))
    with within(SHORT + SLACK):
        witness.reset(lost=lost if moment is Moment.RESET else ())
    step_through(witness, fault, moment, lost)
    restarts = [row["restarts"] for row in envs.stats()]
    assert sum(restarts) == len({env // (NUM_ENVS // envs.num_workers) for env in lost})
    return witness


def step_through(witness: Witness, fault: Fault, moment: Moment, lost: set[int]) -> None:
    """Steps until the fault has happened, and some more."""
    for _ in range(steps_before(witness, moment)):
        witness.step()
    if moment is Moment.IDLE:
        await_idle_fault(witness.envs, fault, BROKEN)
    if moment is not Moment.RESET:
        with within(SHORT + SLACK):
            witness.step(lost=lost)
    for _ in range(6):
        witness.step()


def steps_before(witness: Witness, moment: Moment) -> int:
    """How many steps are well before the one in which it happens."""
    if moment is Moment.IDLE:
        return 1
    if moment is not Moment.AUTORESET:
        return 0
    rehearsal = ScriptedEnv(**SHORT_EPISODES)
    rehearsal.reset(seed=witness.root + BROKEN)
    length = next(n for n in range(1, 9) if any(rehearsal.step(0)[2:4]))
    return length if witness.envs.autoreset_mode is AutoresetMode.NEXT_STEP else length - 1


# ---- the matrix ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "moment"), CASES, ids=name)
def test_a_fault_costs_one_marked_row_of_those_it_hit(make: Make, tmp_path: Path, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path)


@pytest.mark.parametrize(
    ("context", "fault", "moment"),
    [("fork", *case) for case in OF_A_PROCESS] + [("spawn", *case) for case in OF_A_PROCESS[::3]],
    ids=name,
)
def test_whatever_the_start_method(make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path, context=context)


@pytest.mark.parametrize(("fault", "moment"), SOME, ids=name)
def test_with_one_env_a_worker_the_others_lose_nothing(
    make: Make, tmp_path: Path, fault: Fault, moment: Moment
) -> None:
    play(make, fault, moment, tmp_path, num_workers=NUM_ENVS)


@pytest.mark.parametrize(("fault", "moment"), [case for case in SOME if case[1] is not Moment.RESET], ids=name)
def test_with_the_autoreset_in_the_same_step(make: Make, tmp_path: Path, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path, autoreset_mode="SameStep")


@pytest.mark.parametrize(
    ("fault", "moment"), [case for case in SOME if case[1] in (Moment.STEP, Moment.IDLE)], ids=name
)
def test_without_autoreset(make: Make, tmp_path: Path, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path, autoreset_mode="Disabled")


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize(("fault", "moment"), SOME, ids=name)
def test_with_send_and_recv(make: Make, tmp_path: Path, num_workers: int, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path, own_pace=True, num_workers=num_workers)


@pytest.mark.parametrize(("fault", "moment"), SOME, ids=name)
def test_with_views_of_shared_memory(make: Make, tmp_path: Path, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path, copy=False)


@pytest.mark.parametrize("backend", ["serial", "thread"])
@pytest.mark.parametrize(("fault", "moment"), [case for case in CASES if case[0] in RAISED], ids=name)
def test_errors_on_every_backend(make: Make, tmp_path: Path, backend: str, fault: Fault, moment: Moment) -> None:
    play(make, fault, moment, tmp_path, backend=backend)
