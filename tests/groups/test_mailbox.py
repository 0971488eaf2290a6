"""Requests and answers in memory that two processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups import EnvStateManager, crew, mailbox, register
from parallel_envs.groups.deadlines import Asked
from parallel_envs.groups.mailbox import Mailbox
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import configured, inputs


@contextmanager
def boxes() -> Iterator[tuple[Mailbox, Mailbox]]:
    """The asker's, and the worker's."""
    block = Mailbox.room()
    with closing(block):
        yield Mailbox(block), Mailbox(block)


def taken(part: memoryview | None, box: Mailbox) -> bytes | None:
    if part is None:
        return None
    box.take(part)
    return bytes(part)


def rest(box: Mailbox) -> list[bytes]:
    """All parts that have not been taken."""
    return [*iter(lambda: taken(box.next(), box) or b"", b"")]


def test_what_one_side_puts_there_the_other_reads() -> None:
    with boxes() as (here, there):
        for number, (asked, *answered) in enumerate(
            ((b"a long question", b"yes"), (b"why?", b"a long", b"answer"), (b"",))
        ):
            assert here.ask(number + 1, asked)
            assert bytes(there.asked()) == asked
            assert all(map(there.answer, answered))
            assert (rest(here), bytes(there.asked())) == (answered, asked)


def test_parts_may_be_read_as_soon_as_they_are_there() -> None:
    with boxes() as (here, there):
        for number in (1, 2):  # the second finds the parts of the first in its place
            here.ask(number, b"what?")
            assert here.early() is None
            there.asked()
            there.answer(b"this")
            assert taken(here.early(), here) == b"this"
            assert here.early() is None
            there.answer(b"and that")
            there.answer(b"")
            assert (taken(here.early(), here), taken(here.next(), here), here.next()) == (b"and that", b"", None)


@given(parts=st.lists(st.binary(max_size=80), max_size=6), number=st.integers(1, 2**63), data=st.data())
def test_of_what_has_come_in_pieces_nothing_is_read_early(parts: list[bytes], number: int, data: st.DataObject) -> None:
    """Whatever bytes of the memory are still as they were: what is read is a beginning of what was answered."""
    before = data.draw(st.binary(max_size=400), label="what was there")
    come = data.draw(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700))), label="what has come")
    with boxes() as (here, there):
        here._answers[: len(before)] = before
        memory = bytearray(here._answers[:1000])
        here.ask(number, b"what?")
        there.asked()
        assert all(map(there.answer, parts))
        whole = bytes(here._answers[:1000])
        for begin, end in come:
            memory[begin:end] = whole[begin:end]
        here._answers[:1000] = bytes(memory)
        read = [*iter(lambda: taken(here.early(), here), None)]
    assert read == parts[: len(read)]


def test_what_takes_long_to_check_is_read_when_all_is_there() -> None:
    with boxes() as (here, there):
        here.ask(1, b"what?")
        there.asked()
        long = b"x" * (mailbox._CHECKED_BYTES + 1)
        there.answer(long)
        there.answer(b"and more")
        assert here.early() is None
        assert rest(here) == [long, b"and more"]


def test_what_is_too_long_is_refused_and_changes_nothing() -> None:
    with boxes() as (here, there):
        assert here.ask(1, b"x" * (mailbox._ORDERS_BYTES - 16))
        assert not here.ask(2, b"x" * (mailbox._ORDERS_BYTES - 15))
        assert bytes(there.asked()[:2]) == b"xx"
        assert there.answer(b"")
        assert there.answer(b"y" * (mailbox._ANSWERS_BYTES - 2 * 24))
        assert not there.answer(b"")
        assert taken(here.next(), here) == b""
        assert [len(part) for part in rest(here)] == [mailbox._ANSWERS_BYTES - 2 * 24]
        there.asked()
        assert not there.answer(b"y" * (mailbox._ANSWERS_BYTES - 24 + 1))
        assert there.answer(b"y" * (mailbox._ANSWERS_BYTES - 24))


class Parrot:
    """Says what it hears, as often as it has heard anything."""

    def __init__(self, config: Any) -> None:
        self.times = 0

    def reset(self, seed: int, mode: str) -> str:
        self.times = 0
        return "talk"

    def step(self, action: str) -> Any:
        self.times += 1
        return action * self.times, 0.0, False, False, {}


def test_what_is_too_long_travels_as_a_message() -> None:
    register("parrot", Parrot)
    config, said = configured({"Talk": 1}, max_workers=1), []
    config["custom_envs"]["Talk"] = {"env_type": "parrot"}
    long, longer = "x" * (mailbox._ORDERS_BYTES // 2), "y" * (mailbox._ANSWERS_BYTES // 2)
    for use_multiprocessing in (False, True):
        with EnvStateManager(config) as manager:
            manager.use_multiprocessing = use_multiprocessing
            manager.reset(seed=1)
            said.append([manager.step(inputs({0: [word], 1: [word, "b"]})) for word in ("a", long, "c", longer, "d")])
            if use_multiprocessing:
                assert manager.stats().num_bytes > 2 * (len(long) + len(longer))
    assert_same_batch(said[1], said[0])


def test_a_mailbox_that_may_be_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a Ctrl-C nobody knows whether the worker has read what was asked, so what is asked next must not be put
    in its place."""
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        puts, put = list[bytes](), Mailbox.ask

        def noted(box: Mailbox, number: int, data: bytes) -> bool:
            puts.append(data)
            return put(box, number, data)

        monkeypatch.setattr(Mailbox, "ask", noted)
        with monkeypatch.context() as patch:
            patch.setattr(crew.Crew, "end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.step(inputs({0: ["right"], 1: ["right"]}))
        assert len(puts) == 1
        for expected in (1, 2):  # once as a message; its answer says that the mailbox is free again
            entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
            assert [len(entry["history"]) for entry in entries] == [expected + 1] * 2
            assert len(puts) == expected


def interrupted(self: crew.Crew, asked: Asked, read: Any) -> Any:
    raise KeyboardInterrupt
