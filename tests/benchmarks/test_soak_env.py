from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soak.env import (
    FIRST_FRESH_SEED,
    FLOOD,
    INSIDE,
    LINGER,
    NUM_ORDERS,
    Course,
    Form,
    SoakEnv,
    curse,
    meaning,
    order,
)
from parallel_envs.testing.scripted import Fault, Moment

RAISING = [Fault.EXCEPTION, Fault.UNPICKLABLE_EXCEPTION, Fault.TWO_ARGUMENT_EXCEPTION]


@pytest.mark.parametrize("moment", [Moment.STEP, Moment.RESET])
@pytest.mark.parametrize("fault", INSIDE)
def test_an_order_means_what_it_was_made_of(fault: Fault, moment: Moment) -> None:
    assert meaning(order(fault, moment)) == (moment, fault)


def test_every_number_below_the_bound_has_a_meaning_of_its_own() -> None:
    assert meaning(0) is meaning(LINGER) is meaning(FLOOD) is None
    told = [meaning(number) for number in range(3, NUM_ORDERS)]
    assert len(set(told)) == len(told) == 2 * len(INSIDE)


def test_a_course_follows_from_its_seed_and_its_actions() -> None:
    one, other = Course(3), Course(3)
    for course in (one, other):
        course.reset(5)
    assert one.step((7, 0)) == other.step((7, 0))
    assert one.numbers() == other.numbers()
    one.step((1, 0))
    other.step((2, 0))
    assert one.numbers()[:4] == other.numbers()[:4]
    assert one.numbers() != other.numbers()


def test_courses_of_two_envs_differ_even_with_one_seed() -> None:
    one, other = Course(0), Course(1)
    one.reset(5)
    other.reset(5)
    assert one.numbers()[4] != other.numbers()[4]


def test_a_reset_without_a_seed_goes_on_to_the_next_episode() -> None:
    course = Course(0)
    course.reset(5)
    course.reset(None)
    assert course.numbers()[1:4] == (5, 1, 0)


def test_a_step_after_the_end_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="after the end of episode"):
        Course(0).step((0, 0))


@pytest.mark.parametrize("fault", RAISING)
def test_an_env_breaks_in_the_step_that_orders_it(fault: Fault) -> None:
    env = SoakEnv(0, "array")
    env.reset(seed=1)
    with pytest.raises(Exception, match="injected fault"):
        env.step(np.array([3, order(fault, Moment.STEP)]))


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


@pytest.mark.parametrize("form", ["array", "dict"])
def test_what_it_shows_lies_in_its_space(form: Form) -> None:
    env = SoakEnv(2, form)
    for observation, *_ in (env.reset(seed=1), env.step(np.array([3, 0]))):
        assert env.observation_space.contains(observation)
