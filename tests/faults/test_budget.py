"""How often a part may break before its failure is raised after all."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv
from parallel_envs.vector.recovery import RestartBudget
from tests.faults.broken_envs import (
    LONG,
    AlwaysDyingEnv,
    AlwaysFailingEnv,
    ClosingBadlyEnv,
    NoSecondResetEnv,
    OneLifeEnv,
)
from tests.faults.courses import Witness
from tests.faults.matrix import CLOSE_SECONDS, SHORT, SLACK, Make, reset, step, within

# ---- the budget itself ---------------------------------------------------------------------------


def test_a_budget_is_spent_one_by_one() -> None:
    budget = RestartBudget(limit=3, window=10.0)
    assert [budget.spend(0, now) for now in (0.0, 1.0, 2.0, 3.0)] == [True, True, True, False]


def test_what_is_older_than_the_window_is_given_back() -> None:
    budget = RestartBudget(limit=2, window=10.0)
    assert [budget.spend(0, now) for now in (0.0, 5.0, 9.0, 10.5, 11.0, 15.5)] == [True, True, False, True, False, True]


def test_at_the_edge_of_the_window_it_still_counts() -> None:
    budget = RestartBudget(limit=1, window=10.0)
    assert [budget.spend(0, now) for now in (0.0, 10.0, 10.1)] == [True, False, True]


def test_a_refusal_costs_nothing() -> None:
    budget = RestartBudget(limit=1, window=10.0)
    assert [budget.spend(0, now) for now in (0.0, 6.0, 9.0, 11.0)] == [True, False, False, True]


def test_each_worker_has_a_budget_of_its_own() -> None:
    budget = RestartBudget(limit=1, window=10.0)
    assert [budget.spend(worker, 0.0) for worker in (0, 1, 0, 1, 2)] == [True, True, False, False, True]


def test_the_time_in_which_a_worker_hung_does_not_count() -> None:
    """A deadline of 300 seconds leaves room for two hangs in a window of 600, and for any number of them in a row."""
    budget = RestartBudget(limit=3, window=600.0)
    assert [budget.spend(0, 301.0 * hang, waited=300.0) for hang in range(1, 5)] == [True, True, True, False]
    assert budget.spend(0, 301.0 * 4 + 601.0)
    assert budget.spend(1, 301.0 * 4)


def test_an_endless_window_never_forgets() -> None:
    budget = RestartBudget(limit=1, window=math.inf)
    assert [budget.spend(0, now) for now in (0.0, 1e9)] == [True, False]


# ---- parts that break again and again ------------------------------------------------------------


def beside(make: Make, broken: Callable[[], Any], **settings: Any) -> Any:
    """A manager whose second env is the broken one."""
    settings = {"on_failure": "restart", "max_restarts": 2, **settings}
    return make([partial(ScriptedEnv, **LONG), broken], **settings)


def told_when_it_gives_up(make: Make, broken: Callable[[], Any], **settings: Any) -> tuple[type[Exception], str]:
    """The error that is raised in the end, within ten steps, with its notes."""
    envs = beside(make, broken, **settings)
    try:
        reset(envs)
        for _ in range(10):
            step(envs)
    except (EnvError, WorkerDied, StepTimeout) as error:
        return type(error), "\n".join([str(error), *error.__notes__])
    finally:
        envs.close(timeout=CLOSE_SECONDS)
    raise AssertionError("it never gave up")


SPENT = "Worker 1 was restarted 2 times within 600 seconds, which is as often as max_restarts allows."


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_an_env_that_fails_at_every_step_is_given_up(make: Make, tmp_path: Path, backend: str) -> None:
    kind, told = told_when_it_gives_up(make, partial(AlwaysFailingEnv, tmp_path / "lives"), backend=backend)
    assert issubclass(kind, EnvError)
    assert "step of life 3" in told
    assert SPENT in told


def test_a_worker_that_dies_at_every_step_is_given_up(make: Make, tmp_path: Path) -> None:
    kind, told = told_when_it_gives_up(make, partial(AlwaysDyingEnv, tmp_path / "lives"))
    assert kind is WorkerDied
    assert "exit code 3" in told
    assert SPENT in told


def test_an_env_that_hangs_at_every_step_is_given_up(make: Make) -> None:
    broken = partial(FaultyEnv, Fault.SLEEP, Moment.STEP, **LONG)
    kind, told = told_when_it_gives_up(make, broken, step_timeout=0.05)
    assert kind is StepTimeout
    assert "_inflict" in told
    assert SPENT in told


def test_an_env_that_hangs_at_every_step_is_given_up_however_long_its_deadline(make: Make) -> None:
    broken = partial(FaultyEnv, Fault.SLEEP, Moment.STEP, **LONG)
    kind, _ = told_when_it_gives_up(make, broken, step_timeout=1.0, restart_window=2.0)
    assert kind is StepTimeout


WAYS = {"raise": (EnvError, "LookupError"), "exit": (WorkerDied, "exit code 9")}


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_an_env_that_cannot_be_made_again_is_given_up(make: Make, tmp_path: Path, way: str, num_workers: int) -> None:
    broken = partial(OneLifeEnv, tmp_path / "lives", way)
    kind, told = told_when_it_gives_up(make, broken, num_workers=num_workers)
    assert issubclass(kind, WAYS[way][0])
    assert WAYS[way][1] in told
    assert "during its construction" in told


def test_an_env_that_hangs_whenever_it_is_made_again_is_given_up(make: Make, tmp_path: Path) -> None:
    broken = partial(OneLifeEnv, tmp_path / "lives", "hang")
    with within(20.0):
        kind, told = told_when_it_gives_up(make, broken, step_timeout=0.05, start_timeout=SHORT, max_restarts=1)
    assert kind is StepTimeout
    assert "during its construction" in told


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_an_env_whose_new_lives_cannot_be_reset_is_given_up(make: Make, tmp_path: Path, backend: str) -> None:
    kind, told = told_when_it_gives_up(make, partial(NoSecondResetEnv, tmp_path / "lives"), backend=backend)
    assert issubclass(kind, EnvError)
    assert "Env 1 raised LookupError during the reset after a restart: reset of life 3" in told


def test_the_error_names_the_env_that_could_not_be_made_again(make: Make, tmp_path: Path) -> None:
    _, told = told_when_it_gives_up(make, partial(OneLifeEnv, tmp_path / "lives"), num_workers=1)
    assert told.startswith("Env 1 raised LookupError")


def test_an_env_whose_new_lives_hang_in_their_reset_is_given_up_in_time(make: Make, tmp_path: Path) -> None:
    broken = partial(NoSecondResetEnv, tmp_path / "lives", "hang")
    told = told_of_hanging_resets(make, broken)
    assert "reset after a restart" in told


def told_of_hanging_resets(make: Make, broken: Callable[[], Any]) -> str:
    """What is told in the end; a start may take longer than a reset, but is not to hang this test."""
    return told_when_it_gives_up(make, broken, reset_timeout=0.05, start_timeout=2.0, max_restarts=1)[1]


def test_after_giving_up_a_restart_by_hand_is_still_possible(make: Make, tmp_path: Path) -> None:
    envs = beside(make, partial(AlwaysFailingEnv, tmp_path / "lives"), max_restarts=1)
    reset(envs)
    step(envs)
    step(envs)
    with pytest.raises(EnvError):
        step(envs)
    envs.restart(1)
    assert step(envs)[3].tolist() == [False, True]


def test_a_sibling_that_was_told_of_amid_giving_up_is_as_it_was(make: Make, tmp_path: Path) -> None:
    envs = beside(make, partial(AlwaysFailingEnv, tmp_path / "lives"), max_restarts=1)
    reset(envs)
    step(envs)
    step(envs)
    with pytest.raises(EnvError):
        step(envs)
    assert envs.get_attr("elapsed", env_ids=0) == (3,)


def test_restarts_long_ago_do_not_count(make: Make, tmp_path: Path) -> None:
    envs = beside(make, partial(AlwaysFailingEnv, tmp_path / "lives"), max_restarts=1, restart_window=1e-9)
    reset(envs)
    for _ in range(8):
        step(envs)
    assert envs.stats()[1]["restarts"] == 4


# ---- replacing in place --------------------------------------------------------------------------


def test_an_old_env_that_raises_while_it_is_closed_does_not_matter(make: Make, tmp_path: Path) -> None:
    witness = Witness(beside(make, partial(ClosingBadlyEnv, tmp_path / "lives", "raise"), num_workers=1), **LONG)
    witness.reset()
    witness.step(lost={1})
    witness.step()


def test_an_old_env_that_exits_while_it_is_closed_does_not_matter(make: Make, tmp_path: Path) -> None:
    assert marks_with_an_env_that_closes_badly(make, tmp_path, "exit") == [False, True]


def test_an_old_env_that_hangs_while_it_is_closed_costs_its_worker(make: Make, tmp_path: Path) -> None:
    with within(3 * SHORT + SLACK):
        marks = marks_with_an_env_that_closes_badly(make, tmp_path, "hang")
    assert marks == [False, True]


def marks_with_an_env_that_closes_badly(make: Make, folder: Path, way: str) -> list[bool]:
    broken = partial(ClosingBadlyEnv, folder / "lives", way)
    envs = beside(make, broken, num_workers=1, max_restarts=5, start_timeout=SHORT)
    try:
        reset(envs)
        return [bool(mark) for mark in step(envs)[4]["worker_restarted"]]
    except (EnvError, StepTimeout) as error:
        return [] if error.env_ids else [False]
    finally:
        envs.close(timeout=CLOSE_SECONDS)


# ---- the numbers that may be given ---------------------------------------------------------------


@pytest.mark.parametrize(("value", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_limit_that_makes_no_sense_is_refused(make: Make, value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=rf"^max_restarts={value!r} "):
        make([ScriptedEnv], max_restarts=value)


@pytest.mark.parametrize("value", [-1, math.nan, None, "1", True])
def test_a_window_that_makes_no_sense_is_refused(make: Make, value: Any) -> None:
    assert refused_window(make, value)[0].startswith(f"restart_window={value!r} ")


def test_a_refused_window_leaves_nothing(make: Make) -> None:
    assert refused_window(make, -1)[1:] == (0, 0)


def refused_window(make: Make, value: Any) -> tuple[str, int, int]:
    """What is told, how many workers run while it is told, and how many blocks of memory stay open after it."""
    workers, blocks = children_of_the_keeper(), open_blocks()
    try:
        make([ScriptedEnv], restart_window=value)
    except ValueError as error:
        told, running = str(error), children_of_the_keeper() - workers
    gc.collect()
    left = open_blocks() - blocks
    for fd in left:
        os.close(fd)
    return told, len(running), len(left)


def children_of_the_keeper() -> set[int]:
    pid = supervisor_pid()
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def open_blocks() -> set[int]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {int(link.name) for link in links if str(link.readlink()).startswith("/memfd:parallel_envs")}


@pytest.mark.parametrize("value", ["Restart", "", "ignore", None, True, 3])
def test_what_to_do_on_failure_is_one_of_two_words(make: Make, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^on_failure={value!r} is unknown\. Choose one of 'raise', 'restart'\."):
        make([ScriptedEnv], on_failure=value)


def test_two_faults_in_one_worker_are_two_of_its_restarts(make: Make, tmp_path: Path) -> None:
    broken = [partial(AlwaysFailingEnv, tmp_path / f"lives {env}") for env in range(2)]
    envs = make(broken, on_failure="restart", num_workers=1, max_restarts=2)
    reset(envs)
    assert step(envs)[4]["worker_restarted"].tolist() == [True, True]
    assert envs.stats()[0]["restarts"] == 2
    assert np.array_equal(step(envs)[3], [False, False])
    with pytest.raises(EnvError, match=r"max_restarts|step of life 2"):
        step(envs)
