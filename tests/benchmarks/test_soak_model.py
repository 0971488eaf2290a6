"""The soak's env, plan of faults and tally, and its model, which lets right rows pass and catches planted wrong ones.

Rows come from Gymnasium's own in-process vector env: another hand wrote its autoreset. What a restart makes of a row is
written down here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.memory import Holdings, num_descriptors
from benchmarks.soak.env import (
    FIRST_FRESH_SEED,
    FLOOD,
    INSIDE,
    LINGER,
    NUM_ORDERS,
    NUM_VALUES,
    Course,
    Form,
    SoakEnv,
    curse,
    meaning,
    order,
)
from benchmarks.soak.faults import OUTSIDE, Planner, Strike, landing
from benchmarks.soak.model import Disturbance, Model, Row, Where, WorkerState, rows_of_reset, rows_of_step, shown
from benchmarks.soak.tally import RSS_BYTES_ALLOWED, Tally, TimedCall
from parallel_envs.seeding import SeedTree
from parallel_envs.testing.scripted import Fault, Moment


def test_every_order_means_what_it_was_made_of() -> None:
    orders = {order(fault, moment): (moment, fault) for fault in INSIDE for moment in (Moment.STEP, Moment.RESET)}
    assert len(orders) == 2 * len(INSIDE)
    assert {number: meaning(number) for number in range(3, NUM_ORDERS)} == orders
    assert meaning(0) is meaning(LINGER) is meaning(FLOOD) is None


@pytest.mark.parametrize("seed", [None, 4])
def test_an_env_breaks_at_the_reset_after_it_was_ordered(seed: int | None) -> None:
    course = Course(0)
    course.reset(1)
    course.step((3, order(Fault.SLEEP, Moment.RESET)))
    assert course.fault_of_step((3, 0)) is None
    assert course.fault_of_reset(seed) is Fault.SLEEP


def test_some_fresh_seeds_are_cursed_and_none_of_the_soaks_own() -> None:
    fresh = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + 1000)
    cursed = [seed for seed in fresh if curse(seed) is not None]
    assert 50 < len(cursed) < 200
    assert {curse(seed) for seed in cursed} == {Fault.EXCEPTION, Fault.SIGKILL, Fault.OS_EXIT}
    assert all(curse(seed) is None for seed in (None, *range(FIRST_FRESH_SEED)))
    assert Course(0).fault_of_reset(cursed[0]) is curse(cursed[0])


KILL = (Where.IDLE, Fault.SIGKILL)


def planner(per_minute: float = 60.0, at_once: int = 1000) -> Planner:
    return Planner(np.random.default_rng(0), per_minute, at_once, now=100.0)


def test_so_many_faults_a_minute_come_due() -> None:
    assert planner(per_minute=100.0).due(100.0) == []
    assert 850 < len(planner(per_minute=100.0).due(100.0 + 600.0)) < 1150


def test_what_was_not_done_stays_due_and_comes_in_small_lots() -> None:
    all_due, plan, done = len(planner().due(700.0)), planner(at_once=3), 0
    while due := plan.due(700.0):
        assert len(due) <= 3
        done += len(due)
        due.clear()
    assert done == all_due
    plan = planner()
    plan.make_up()  # for what has come to nothing
    assert len(plan.due(100.0)) == 1


def test_signals_come_from_outside_and_every_kind_of_fault_comes_everywhere() -> None:
    plan = planner()
    drawn = Counter(plan.draw() for _ in range(5000))
    outside = {(where, fault) for where in (Where.WAITING, Where.IDLE) for fault in OUTSIDE}
    inside = {(where, fault) for where in (Where.STEP, Where.RESET, Where.AUTORESET) for fault in INSIDE}
    around = {(Where.AROUND, disturbance) for disturbance in Disturbance}
    assert set(drawn) == outside | inside | around


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_strike_hits_the_process_it_was_aimed_at(child: subprocess.Popen[bytes], has_ended: bool) -> None:
    strike = Strike(3, child.pid, KILL)
    if has_ended:
        child.kill()
        child.wait()
    strike.land()
    strike.close()
    assert strike.has_landed is not has_ended
    assert child.wait() == -signal.SIGKILL


def test_no_strike_is_aimed_at_a_process_that_is_no_worker() -> None:
    before = num_descriptors()
    with pytest.raises(ProcessLookupError):
        Strike(0, os.getppid(), KILL)
    assert num_descriptors() == before


def test_strikes_land_while_the_block_runs_and_no_later(child: subprocess.Popen[bytes]) -> None:
    late = Strike(0, child.pid, KILL)
    with landing([late], [3600.0]):
        pass
    assert not late.has_landed
    soon = Strike(0, child.pid, KILL)
    with landing([soon], [0.0]):
        child.wait()
    assert soon.has_landed
    late.close()
    soon.close()


HELD = Holdings(processes=0, threads=1, descriptors=9, mappings=0, rss_bytes=50_000_000)


@pytest.fixture
def tally() -> Tally:
    """A soak in which two faults were survived and nothing was wrong."""
    tally = Tally(HELD, after=HELD, warm_rss_bytes=HELD.rss_bytes, survived=2)
    tally.injected.update([(Where.STEP, Fault.SIGKILL), (Where.IDLE, Fault.SIGSTOP)])
    return tally


SPOILERS: dict[str, Callable[[Tally], object]] = {
    "a wrong row": lambda tally: setattr(tally, "wrong", 1),
    "a call that raised": lambda tally: setattr(tally, "errors", 1),
    "a call that came too late": lambda tally: tally.time(TimedCall("step", 2.0, 1.9)),
    "a fault that was not survived": lambda tally: tally.injected.update([(Where.STEP, Fault.SLEEP)]),
    "a process": lambda tally: setattr(tally, "after", replace(HELD, processes=1)),
    "a thread": lambda tally: setattr(tally, "after", replace(HELD, threads=2)),
    "a descriptor": lambda tally: setattr(tally, "after", replace(HELD, descriptors=10)),
    "a mapping": lambda tally: setattr(tally, "after", replace(HELD, mappings=1)),
    "memory": lambda tally: setattr(tally, "after", replace(HELD, rss_bytes=HELD.rss_bytes + RSS_BYTES_ALLOWED + 1)),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_anything_wrong_is_not_good(tally: Tally, spoiler: str) -> None:
    assert tally.outcome()["good"]
    SPOILERS[spoiler](tally)
    assert not tally.outcome()["good"]
    tally.interrupted = True  # then faults may be left that no call has answered
    assert tally.good is (spoiler == "a fault that was not survived")


def test_the_call_nearest_to_its_deadline_and_the_first_complaints_are_kept(tally: Tally) -> None:
    for call in (TimedCall("step", 1.0, 4.0), TimedCall("close", 3.0, 6.0), TimedCall("recv", 2.0, 9.0)):
        tally.time(call)
    assert (tally.slowest.name, tally.calls, tally.overdue) == ("close", 3, 0)
    for number in range(100):
        tally.complain(f"complaint {number}")
    assert (len(tally.complaints), tally.complaints[0]) == (20, "complaint 0")


SLICES = ((0, 1), (2, 3))
SEED = 7
KILLED = order(Fault.SIGKILL, Moment.STEP)
RAISES = order(Fault.EXCEPTION, Moment.STEP)
Rows = dict[int, Row]


class Stage:
    """A right manager of four envs in two workers, and a model that is told of all it does."""

    def __init__(self, mode: AutoresetMode = AutoresetMode.SAME_STEP, form: Form = "array") -> None:
        self.mode, self.form = mode, form
        self.envs = SyncVectorEnv([partial(SoakEnv, env, form) for env in range(4)], autoreset_mode=mode)
        self.model = Model(SLICES, mode, form)
        self.model.seeds = SeedTree(SEED)
        self.states = [WorkerState(100, 0), WorkerState(200, 0)]
        self.model.begin(self.states)
        self._generator = np.random.default_rng(0)

    def reset(self, envs: Sequence[int] = range(4), seeds: Sequence[int | None] | None = None) -> Rows:
        """The rows of a reset of these, with seeds 10, 11, ... unless others are given."""
        seeds = seeds if seeds is not None else [10 + env for env in range(4)]
        for env in envs:
            self.model.ask_reset(env, seeds[env])
        mask = np.isin(np.arange(4), envs)
        rows = rows_of_reset(*self.envs.reset(seed=seeds, options={"reset_mask": mask}))  # type: ignore[arg-type]
        return {env: rows[env] for env in envs}

    def step(self, orders: Mapping[int, int] | None = None) -> Rows:
        """The rows of a step, for those that an order breaks as if it did not."""
        values = self._generator.integers(NUM_VALUES, size=4).tolist()
        for env, value in enumerate(values):
            self.model.ask_step(env, (value, (orders or {}).get(env, 0)))
        return dict(enumerate(rows_of_step(*self.envs.step(np.array([[value, 0] for value in values])))))

    def restart(self, worker: int, attempts: int = 1) -> None:
        """Another process in the place of a worker's."""
        state = self.states[worker]
        self.states[worker] = WorkerState(state.pid + 1, state.restarts + attempts)

    def check(self, rows: Rows, *, together: bool = True) -> list[str]:
        return self.model.check(rows, self.states, together=together)

    def lost(self, env: int, number: int = 1) -> Row:
        """The row with which a new env tells of a lost episode."""
        course = Course(env)
        info = course.reset(fresh_seed(env, number))
        seen = shown(course.numbers(), self.form)
        final = {"final_info": {}, "final_obs": seen} if self.mode is AutoresetMode.SAME_STEP else {}
        return Row(seen, {**final, **info, "worker_restarted": True}, 0.0, False, True)


def fresh_seed(env: int, number: int) -> int:
    return SeedTree(SEED).child("restart", env, number).seed()


@pytest.fixture(params=[AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(request.param)
    assert made.check(made.reset()) == []
    yield made
    made.envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("form", ["array", "dict"])
def test_rows_of_gymnasiums_vector_env_are_right(mode: AutoresetMode, form: Form) -> None:
    stage = Stage(mode, form)
    assert stage.check(stage.reset()) == []
    for step in range(200):
        if step % 20 == 10:
            assert stage.check(stage.reset([0, 2], [None, None, 5, None])) == []
        assert stage.check(stage.step()) == []
    stage.envs.close()


def test_the_fault_that_an_action_orders_is_told(stage: Stage) -> None:
    assert stage.model.ask_step(0, (3, KILLED)) == (Where.STEP, Fault.SIGKILL)
    assert stage.model.ask_step(1, (3, LINGER)) is None
    assert stage.model.ask_step(2, (3, order(Fault.SLEEP, Moment.RESET))) is None
    assert stage.model.ask_reset(2, 5) == (Where.RESET, Fault.SLEEP)


RIGHT: list[str] = []
NOT_TOLD = "it does not tell that the episode was lost"


@pytest.mark.parametrize(
    ("orders", "struck", "states", "lost", "texts"),
    [
        # right
        ({0: KILLED}, None, {0: (101, 1)}, {0: 1, 1: 1}, RIGHT),
        ({0: RAISES}, None, {0: (100, 1)}, {0: 1}, RIGHT),  # an env that raises is lost alone
        ({}, 199, {}, {}, RIGHT),  # a signal for a process that had been replaced changes nothing
        # wrong
        ({0: KILLED}, None, {0: (101, 1)}, {1: 1}, [f"env 0: {NOT_TOLD} (sigkill in step)"]),
        ({0: KILLED}, None, {0: (101, 1)}, {0: 1}, [f"env 1: {NOT_TOLD}"]),
        ({}, 200, {}, {}, ["env 2", "env 3"]),  # rows of a worker that was hit before it was asked
        (
            {0: KILLED},
            None,
            {0: (101, 1)},
            {0: 1, 1: 1, 2: 1},
            ["env 2: it tells of a lost episode, though nothing was done"],
        ),
        ({2: RAISES}, None, {1: (200, 2)}, {2: 1, 3: 1}, ["env 3"]),
        ({}, None, {1: (201, 1)}, {}, ["worker 1 was replaced, though nothing had been done to it"]),
        ({0: RAISES}, None, {0: (100, 1)}, {0: 2}, ["env 0"]),  # a fresh seed out of turn
        ({0: RAISES}, None, {0: (100, 1)}, {0: 3}, ["env 0"]),
    ],
)
def test_an_episode_is_lost_where_one_was_to_be_lost_and_nowhere_else(
    stage: Stage,
    orders: dict[int, int],
    struck: int | None,
    states: dict[int, tuple[int, int]],
    lost: dict[int, int],
    texts: list[str],
) -> None:
    if struck is not None:
        stage.model.struck(1, struck)
    rows = stage.step(orders)
    for worker, (pid, restarts) in states.items():
        stage.states[worker] = WorkerState(pid, restarts)
    wrong = stage.check({**rows, **{env: stage.lost(env, number) for env, number in lost.items()}})
    assert len(wrong) == len(texts)
    assert [part for part, text in zip(texts, wrong, strict=True) if part not in text] == []
    assert not (lost.keys() == {0} and lost[0] > 1) or "none of the fresh seeds" in wrong[0]


def test_a_row_that_is_swapped_stale_or_not_asked_for_is_caught(stage: Stage) -> None:
    before = stage.step()
    assert stage.check(before) == []
    (wrong,) = stage.check({1: before[1]})
    assert "nobody had asked for" in wrong
    rows = stage.step()
    wrongs = stage.check({**rows, 0: rows[1], 1: rows[0], 3: before[3]})
    assert [text.split(":")[0] for text in wrongs] == ["env 0", "env 1", "env 3"]
    assert "came instead of" in wrongs[0]


@pytest.mark.parametrize(
    "change",
    [{"reward": -1.0}, {"terminated": True}, {"truncated": True}, {"info": {"digest": 0}}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_anything_is_caught(stage: Stage, change: dict[str, Any]) -> None:
    rows = stage.step()
    (wrong,) = stage.check({**rows, 2: replace(rows[2], **change)})
    assert wrong.startswith("env 2")


@pytest.mark.parametrize("is_told", [True, False])
def test_a_loss_that_is_told_in_the_next_call_is_right_and_one_that_is_never_told_is_caught(
    stage: Stage, is_told: bool
) -> None:
    rows = stage.step()
    stage.model.struck(1, 200)
    if not is_told:
        stage.restart(1)
    assert stage.check(rows) == []
    rows = stage.step()
    if is_told:
        stage.restart(1)
        rows |= {2: stage.lost(2), 3: stage.lost(3)}
    assert len(stage.check(rows)) == (0 if is_told else 2)


def test_the_new_env_goes_on_from_its_own_seed_and_one_that_was_used_before_is_caught(stage: Stage) -> None:
    rows = stage.step({0: RAISES})
    stage.states[0] = WorkerState(100, 1)
    assert stage.check({**rows, 0: stage.lost(0)}) == []
    assert stage.model.envs[0].course is not None
    assert stage.model.envs[0].course.seed == fresh_seed(0, 1)
    stage.model.ask_reset(0, 5)
    stage.model.envs[0].asked = None
    for env in range(4):
        stage.model.ask_step(env, (3, RAISES if env == 0 else 0))
    stage.states[0] = WorkerState(100, 2)
    (wrong,) = stage.check({0: stage.lost(0)})
    assert "none of the fresh seeds" in wrong


def next_sound(env: int, number: int = 1) -> int:
    """The number of the first fresh seed from `number` on that is not cursed."""
    return next(one for one in range(number, 100) if curse(fresh_seed(env, one)) is None)


def test_siblings_that_answered_before_the_end_tell_at_their_next_row(stage: Stage) -> None:
    values = [(5, 0), (6, KILLED)]
    for env, action in enumerate(values):
        stage.model.ask_step(env, action)
    first = Stage(stage.mode)
    first.reset()
    answered = rows_of_step(*first.envs.step(np.array([[5, 0]] * 4)))[0]
    first.envs.close()
    stage.restart(0)
    assert stage.check({0: answered, 1: stage.lost(1)}, together=False) == []
    stage.model.ask_step(0, (5, 0))
    assert stage.check({0: stage.lost(0)}, together=False) == []


def test_a_loss_told_just_before_the_worker_is_replaced_again_is_followed_by_another(stage: Stage) -> None:
    stage.model.ask_step(1, (6, KILLED))
    stage.restart(0)
    assert stage.check({1: stage.lost(1)}, together=False) == []
    stage.model.ask_step(0, (5, 0))
    stage.model.ask_step(1, (6, 0))
    stage.model.struck(0, stage.states[0].pid)
    stage.restart(0)
    assert stage.check({1: stage.lost(1, 2)}, together=False) == []
    assert stage.check({0: stage.lost(0, 1)}, together=False) == []
    stage.model.ask_step(0, (5, 0))
    assert stage.check({0: stage.lost(0, 2)}, together=False) == []


def test_a_reset_with_a_seed_makes_up_for_a_loss_that_was_not_told(stage: Stage) -> None:
    stage.model.ask_step(0, (5, KILLED))
    stage.restart(0)
    assert stage.check({0: stage.lost(0)}, together=False) == []
    assert stage.check(stage.reset([1]), together=False) == []


def test_a_cursed_seed_may_cost_the_siblings_their_worker() -> None:
    env = next(env for env in range(400) if curse(fresh_seed(env, 1)) in (Fault.SIGKILL, Fault.OS_EXIT))
    number = next_sound(env, 2)
    model = Model([tuple(range(env + 1))], AutoresetMode.SAME_STEP, "array")
    model.seeds = SeedTree(SEED)
    model.begin([WorkerState(100, 0)])
    model.ask_reset(env, 3)
    course = Course(env)
    first = Row(info=course.reset(3), observation=course.numbers())
    assert model.check({env: first}, [WorkerState(100, 0)], together=True) == []
    model.ask_step(env, (3, RAISES))
    told = Stage().lost(env, number)
    assert model.check({env: told}, [WorkerState(101, number)], together=True) == []


@pytest.mark.parametrize("fault", [Fault.EXCEPTION, Fault.UNPICKLABLE_EXCEPTION, Fault.TWO_ARGUMENT_EXCEPTION])
def test_an_env_breaks_in_the_step_that_orders_it(fault: Fault) -> None:
    env = SoakEnv(0, "array")
    env.reset(seed=1)
    with pytest.raises(Exception, match="injected fault"):
        env.step(np.array([3, order(fault, Moment.STEP)]))
