"""What a failure tells, and that it can travel."""

from __future__ import annotations

import pickle

import pytest

from parallel_envs.engine import Failure
from tests.engine.hosted import ERRORS, TOLD


@pytest.mark.parametrize("name", ERRORS)
def test_a_failure_tells_type_and_message(name: str) -> None:
    failure = Failure.of(ERRORS[name]())
    assert (failure.type_name, failure.message) == TOLD[name]


@pytest.mark.parametrize("name", ERRORS)
def test_a_failure_travels_as_text_and_its_cause_stays_behind(name: str) -> None:
    failure = Failure.of(ERRORS[name]())
    arrived = pickle.loads(pickle.dumps(failure))
    assert failure.cause is not None
    assert arrived == Failure(failure.type_name, failure.message, failure.traceback)


def raised() -> Failure:
    try:
        try:
            raise KeyError("the first trouble")
        except KeyError as error:
            raise RuntimeError("the second trouble") from error
    except RuntimeError as error:
        error.add_note("and a note")
        return Failure.of(error)


def test_a_failure_tells_the_whole_chain() -> None:
    failure = raised()
    assert failure.type_name == "RuntimeError"
    for part in ("the first trouble", "the second trouble", "and a note", "in raised"):
        assert part in failure.traceback


def test_a_class_inside_a_function_is_named_in_full() -> None:
    class LocalError(Exception):
        pass

    assert Failure.of(LocalError()).type_name.endswith(
        "test_a_class_inside_a_function_is_named_in_full.<locals>.LocalError"
    )
