"""The model lets right rows pass and catches planted wrong ones.

Rows come from Gymnasium's own in-process vector env: another hand wrote its autoreset. What a restart makes of a row is
written down here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.soak.env import LINGER, NUM_VALUES, Course, Form, SoakEnv, curse, order
from benchmarks.soak.model import Model, Row, Where, WorkerState, rows_of_reset, rows_of_step, shown
from parallel_envs.seeding import SeedTree
from parallel_envs.testing.scripted import Fault, Moment

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


def next_sound(env: int, number: int = 1) -> int:
    """The number of the first fresh seed from `number` on that is not cursed."""
    return next(one for one in range(number, 100) if curse(fresh_seed(env, one)) is None)


@pytest.fixture(params=[AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(request.param)
    assert made.check(made.reset()) == []
    yield made
    made.envs.close()


# ---- right rows ------------------------------------------------------------------------------------------------------


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


def test_an_armed_env_breaks_at_its_next_reset(stage: Stage) -> None:
    armed = order(Fault.SLEEP, Moment.RESET)
    assert stage.model.ask_step(0, (3, armed)) is None
    assert stage.model.ask_reset(0, 5) == (Where.RESET, Fault.SLEEP)


def test_a_lost_episode_is_right_where_one_was_to_be_lost(stage: Stage) -> None:
    rows = stage.step({0: KILLED})
    stage.restart(0)
    assert stage.check({**rows, 0: stage.lost(0), 1: stage.lost(1)}) == []


def test_an_env_that_raises_is_lost_alone(stage: Stage) -> None:
    rows = stage.step({0: RAISES})
    stage.states[0] = WorkerState(100, 1)
    assert stage.check({**rows, 0: stage.lost(0)}) == []


def test_the_new_env_goes_on_from_its_own_seed(stage: Stage) -> None:
    rows = stage.step({2: RAISES})
    stage.states[1] = WorkerState(200, 1)
    assert stage.check({**rows, 2: stage.lost(2)}) == []
    assert stage.model.envs[2].course is not None
    assert stage.model.envs[2].course.seed == fresh_seed(2, 1)


def test_a_worker_that_was_hit_is_lost_in_this_call_or_the_next(stage: Stage) -> None:
    rows = stage.step()
    stage.model.struck(1, 200)
    assert stage.check(rows) == []
    rows = stage.step()
    stage.restart(1)
    assert stage.check({**rows, 2: stage.lost(2), 3: stage.lost(3)}) == []


def test_a_signal_for_a_process_that_had_been_replaced_changes_nothing(stage: Stage) -> None:
    stage.model.struck(1, 199)
    assert stage.check(stage.step()) == []


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


# ---- planted wrong rows ----------------------------------------------------------------------------------------------


def test_a_row_swapped_with_another_envs_is_caught(stage: Stage) -> None:
    rows = stage.step()
    wrong = stage.check({**rows, 0: rows[1], 1: rows[0]})
    assert [text.split(":")[0] for text in wrong] == ["env 0", "env 1"]
    assert "came instead of" in wrong[0]


def test_a_stale_row_is_caught(stage: Stage) -> None:
    before = stage.step()
    assert stage.check(before) == []
    rows = stage.step()
    (wrong,) = stage.check({**rows, 3: before[3]})
    assert wrong.startswith("env 3")


@pytest.mark.parametrize(
    "change",
    [{"reward": -1.0}, {"terminated": True}, {"truncated": True}, {"info": {"digest": 0}}],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_anything_is_caught(stage: Stage, change: dict[str, Any]) -> None:
    rows = stage.step()
    (wrong,) = stage.check({**rows, 2: replace(rows[2], **change)})
    assert wrong.startswith("env 2")


def test_a_missing_mark_is_caught(stage: Stage) -> None:
    rows = stage.step({0: KILLED})
    stage.restart(0)
    wrong = stage.check({**rows, 1: stage.lost(1)})
    assert len(wrong) == 1
    assert "env 0: it does not tell that the episode was lost (sigkill in step)" in wrong[0]


def test_a_sibling_that_should_have_gone_with_its_worker_is_caught(stage: Stage) -> None:
    rows = stage.step({0: KILLED})
    stage.restart(0)
    (wrong,) = stage.check({**rows, 0: stage.lost(0)})
    assert "env 1: it does not tell that the episode was lost" in wrong


def test_a_row_of_a_worker_that_was_hit_before_it_was_asked_is_caught(stage: Stage) -> None:
    stage.model.struck(1, 200)
    assert len(stage.check(stage.step())) == 2


def test_a_mark_without_a_cause_is_caught(stage: Stage) -> None:
    rows = stage.step({0: KILLED})
    stage.restart(0)
    (wrong,) = stage.check({**rows, 0: stage.lost(0), 1: stage.lost(1), 2: stage.lost(2)})
    assert wrong.startswith("env 2: it tells of a lost episode, though nothing was done")


def test_a_sibling_that_is_lost_with_an_env_that_raised_is_caught(stage: Stage) -> None:
    rows = stage.step({2: RAISES})
    stage.states[1] = WorkerState(200, 2)
    (wrong,) = stage.check({**rows, 2: stage.lost(2), 3: stage.lost(3)})
    assert wrong.startswith("env 3")


def test_a_worker_that_is_replaced_without_a_cause_is_caught(stage: Stage) -> None:
    rows = stage.step()
    stage.restart(1)
    assert stage.check(rows) == ["worker 1 was replaced, though nothing had been done to it"]


def test_a_loss_that_is_never_told_is_caught(stage: Stage) -> None:
    rows = stage.step()
    stage.model.struck(1, 200)
    stage.restart(1)
    assert stage.check(rows) == []
    assert len(stage.check(stage.step())) == 2


@pytest.mark.parametrize("number", [2, 3])
def test_a_fresh_seed_out_of_turn_is_caught(stage: Stage, number: int) -> None:
    rows = stage.step({0: RAISES})
    stage.states[0] = WorkerState(100, 1)
    (wrong,) = stage.check({**rows, 0: stage.lost(0, number)})
    assert "none of the fresh seeds" in wrong


def test_a_fresh_seed_that_was_used_before_is_caught(stage: Stage) -> None:
    rows = stage.step({0: RAISES})
    stage.states[0] = WorkerState(100, 1)
    assert stage.check({**rows, 0: stage.lost(0)}) == []
    stage.model.ask_reset(0, 5)
    stage.model.envs[0].asked = None
    for env in range(4):
        stage.model.ask_step(env, (3, RAISES if env == 0 else 0))
    stage.states[0] = WorkerState(100, 2)
    (wrong,) = stage.check({0: stage.lost(0)})
    assert "none of the fresh seeds" in wrong


def test_a_row_that_nobody_asked_for_is_caught(stage: Stage) -> None:
    rows = stage.step()
    assert stage.check(rows) == []
    (wrong,) = stage.check({1: rows[1]})
    assert "nobody had asked for" in wrong
