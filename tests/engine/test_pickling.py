"""What travels, how, and how a part that cannot travel is named."""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from parallel_envs.engine import Call, Failure, Inherited, SharedBlock, Unpicklable, picklable, unpicklable_part
from parallel_envs.engine.messages import dump_reply, dump_request, load_reply, load_request
from tests.engine.asking import in_fork
from tests.engine.hosted import ERRORS, TOLD

LOCK = threading.Lock()


def test_functions_and_classes_of_a_function_travel_by_value() -> None:
    number = 5

    class Local:
        def double(self) -> int:
            return 2 * number

    made = load_request(*dump_request(lambda: Local().double()))
    assert made() == 10
    assert load_reply(dump_reply(Local())).double() == 10


def test_a_block_cannot_travel_in_a_reply() -> None:
    block = SharedBlock.create(8)
    with pytest.raises(Unpicklable, match=r"value\.buffer \(a mmap\.mmap\) cannot be pickled"):
        dump_reply(block)
    block.close()


@dataclass
class Holder:
    held: Any
    name: str = "holder"


class Slotted:
    __slots__ = ("held", "never_set")

    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> None:
        """Nothing, with `self` at hand."""


class OneSlot:
    __slots__ = "held"  # a single name may stand alone

    def __init__(self, held: Any) -> None:
        self.held = held


def closing_over(held: Any) -> Callable[[], Any]:
    return lambda: held


def with_default() -> Callable[[], Any]:
    def function(held: Any = LOCK) -> Any:
        return held

    return function


def with_keyword_default() -> Callable[[], Any]:
    def function(*, held: Any = LOCK) -> Any:
        return held

    return function


def using_global() -> Callable[[], Any]:
    return lambda: LOCK.locked()  # noqa: PLW0108  # the function itself is what travels


PARTS: list[Any] = [
    pytest.param(lambda: LOCK, "value", id="itself"),
    pytest.param(lambda: [0, LOCK], "value[1]", id="in a list"),
    pytest.param(lambda: (LOCK,), "value[0]", id="in a tuple"),
    pytest.param(lambda: {LOCK}, "value[0]", id="in a set"),
    pytest.param(lambda: {"a b": {3: LOCK}}, "value['a b'][3]", id="in dicts"),
    pytest.param(lambda: Holder(LOCK), "value.held", id="an attribute"),
    pytest.param(lambda: Holder([Holder(LOCK)]), "value.held[0].held", id="an attribute of an item"),
    pytest.param(lambda: Slotted(LOCK), "value.held", id="a slot"),
    pytest.param(lambda: OneSlot(LOCK), "value.held", id="a single slot"),
    pytest.param(lambda: Slotted(LOCK).method, "value.__self__.held", id="a method's owner"),
    pytest.param(lambda: closing_over(LOCK), "value -> variable 'held'", id="a closure"),
    pytest.param(lambda: closing_over({"a": LOCK}), "value -> variable 'held'['a']", id="inside a closure"),
    pytest.param(with_default, "value -> default argument 0", id="a default"),
    pytest.param(with_keyword_default, "value -> default argument 'held'", id="a keyword's"),
    pytest.param(lambda: functools.partial(print, LOCK), "value.args[0]", id="a partial's argument"),
    pytest.param(lambda: functools.partial(print, end=LOCK), "value.keywords['end']", id="a partial's keyword"),
    pytest.param(lambda: functools.partial(closing_over(LOCK)), "value.func -> variable 'held'", id="a partial's own"),
    pytest.param(lambda: Call(1, "m", (0, LOCK)), "value.args[1]", id="a call's argument"),
    pytest.param(lambda: Call(1, "m", (), {"k": LOCK}), "value.kwargs['k']", id="a call's keyword"),
]


@pytest.mark.parametrize(("make", "name"), PARTS)
def test_the_part_that_cannot_travel_is_named(make: Callable[[], Any], name: str) -> None:
    value = make()
    assert not picklable(value)
    assert unpicklable_part(value) == f"{name} (a _thread.lock)"


def test_a_global_of_a_script_is_named() -> None:
    function = using_global()
    function.__module__ = "__main__"
    assert unpicklable_part(function, "env_fns[3]") == "env_fns[3] -> global 'LOCK' (a _thread.lock)"

    def outer(*, given: bool) -> Callable[[], Any]:
        if given:
            variable = 1  # never given a value here, which is no obstacle
        return lambda: (variable, LOCK)

    function = outer(given=False)
    function.__module__ = "__main__"
    assert unpicklable_part(function) == "value -> global 'LOCK' (a _thread.lock)"


def test_an_error_of_a_class_of_its_own_is_told() -> None:
    class Refusing:
        def __reduce__(self) -> Any:
            raise RuntimeError("stays at home")

    words = r"value\[0\] \(a .*Refusing\) cannot be pickled \(RuntimeError: stays"
    with pytest.raises(Unpicklable, match=words) as caught:
        dump_request([Refusing()])
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(Unpicklable, match="stays at home"):
        dump_reply([Refusing()])


def test_an_inherited_value_travels_as_a_number_to_processes_forked_after_it_was_made() -> None:
    value = [LOCK, 3]
    inherited = Inherited(value)
    data, _ = dump_request([inherited, inherited])
    assert in_fork(lambda: [one[1] for one in load_request(data, [])]) == [3, 3]
    assert load_request(data, [])[0] is value
    number, pid = inherited._key[1], os.getpid()
    del inherited
    with pytest.raises(RuntimeError, match=f"was not forked from process {pid} after value {number} was made there"):
        load_request(data, [])


@pytest.mark.parametrize("name", ERRORS)
def test_a_failure_travels_as_text_and_its_cause_stays_behind(name: str) -> None:
    failure = Failure.of(ERRORS[name]())
    assert (failure.type_name, failure.message) == TOLD[name]
    arrived = pickle.loads(pickle.dumps(failure))
    assert failure.cause is not None
    assert arrived == Failure(failure.type_name, failure.message, failure.traceback)


def test_a_failure_tells_the_whole_chain() -> None:
    class LocalError(Exception):
        pass

    def fail() -> None:
        try:
            raise KeyError("the first trouble")
        except KeyError as error:
            raise LocalError("the second trouble") from error

    with pytest.raises(LocalError) as caught:
        fail()
    caught.value.add_note("and a note")
    failure = Failure.of(caught.value)
    assert failure.type_name.endswith("test_a_failure_tells_the_whole_chain.<locals>.LocalError")
    for part in ("the first trouble", "the second trouble", "and a note", "in fail"):
        assert part in failure.traceback
