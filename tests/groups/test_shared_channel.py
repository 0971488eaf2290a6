"""Requests and answers in memory that two processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups import EnvStateManager, register, transport, worker_group
from parallel_envs.groups.transport import SharedChannel
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import configured, inputs, of_block


@contextmanager
def boxes() -> Iterator[tuple[SharedChannel, SharedChannel]]:
    """The asker's, and the worker's."""
    block = SharedChannel.allocate()
    with closing(block):
        yield SharedChannel(block), SharedChannel(block)


def taken(part: memoryview | None, box: SharedChannel) -> bytes | None:
    if part is None:
        return None
    box.advance(part)
    return bytes(part)


def rest(box: SharedChannel) -> list[bytes]:
    """All parts that have not been taken."""
    return [*iter(lambda: taken(box.next_part(), box) or b"", b"")]


def test_what_one_side_puts_there_the_other_reads_part_by_part_as_soon_as_it_is_there() -> None:
    with boxes() as (here, there):
        for number, (asked, *answered) in enumerate(
            ((b"a long question", b"yes"), (b"why?", b"a long", b"answer"), (b"",))
        ):
            assert here.write_request(number + 1, asked)
            assert bytes(there.read_request()) == asked
            assert all(map(there.write_part, answered))
            assert (rest(here), bytes(there.read_request())) == (answered, asked)
        for number in (4, 5):  # the second finds the parts of the first in its place
            here.write_request(number, b"what?")
            assert here.early_part() is None
            there.read_request()
            there.write_part(b"this")
            assert (taken(here.early_part(), here), here.early_part()) == (b"this", None)
            there.write_part(b"and that")
            there.write_part(b"")
            told = taken(here.early_part(), here), taken(here.next_part(), here), here.next_part()
            assert told == (b"and that", b"", None)


@given(parts=st.lists(st.binary(max_size=80), max_size=6), number=st.integers(1, 2**63), data=st.data())
def test_of_what_has_come_in_pieces_nothing_is_read_early(parts: list[bytes], number: int, data: st.DataObject) -> None:
    """Whatever bytes of the memory are still as they were: what is read is a beginning of what was answered."""
    before = data.draw(st.binary(max_size=400), label="what was there")
    come = data.draw(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700))), label="what has come")
    if hole := data.draw(st.integers(0, 24 * len(parts) + sum(map(len, parts))), label="the only byte that has not"):
        come = [(0, hole), (hole + 1, 1000)]
    with boxes() as (here, there):
        here._answers[: len(before)] = before
        memory = bytearray(here._answers[:1000])
        here.write_request(number, b"what?")
        there.read_request()
        assert all(map(there.write_part, parts))
        whole = bytes(here._answers[:1000])
        for begin, end in come:
            memory[begin:end] = whole[begin:end]
        here._answers[:1000] = bytes(memory)
        read = [*iter(lambda: taken(here.early_part(), here), None)]
    assert read == parts[: len(read)]


def test_what_takes_long_to_check_is_read_when_all_is_there() -> None:
    with boxes() as (here, there):
        here.write_request(1, b"what?")
        there.read_request()
        long = b"x" * (transport._CHECKED_BYTES + 1)
        assert there.write_part(long)
        assert there.write_part(b"and more")
        assert here.early_part() is None
        assert rest(here) == [long, b"and more"]


def test_what_is_too_long_is_refused_and_changes_nothing() -> None:
    with boxes() as (here, there):
        assert here.write_request(1, b"x" * (transport._REQUEST_BYTES - 16))
        assert not here.write_request(2, b"x" * (transport._REQUEST_BYTES - 15))
        assert bytes(there.read_request()[:2]) == b"xx"
        assert there.write_part(b"")
        assert there.write_part(b"y" * (transport._ANSWER_BYTES - 2 * 24))
        assert not there.write_part(b"")
        assert taken(here.next_part(), here) == b""
        assert [len(part) for part in rest(here)] == [transport._ANSWER_BYTES - 2 * 24]
        there.read_request()
        assert not there.write_part(b"y" * (transport._ANSWER_BYTES - 24 + 1))
        assert there.write_part(b"y" * (transport._ANSWER_BYTES - 24))


class Parrot:  # says what it hears, as often as it has heard anything
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
    said = []
    long, longer = "x" * (transport._REQUEST_BYTES // 2), "y" * (transport._ANSWER_BYTES // 2)
    for in_workers in (False, True):
        with EnvStateManager(
            of_block({"env_type": "parrot"}, max_workers=1, use_multiprocessing=in_workers)
        ) as manager:
            manager.reset(seed=1)
            said.append([manager.step(inputs({0: [word], 1: [word, "b"]})) for word in ("a", long, "c", longer, "d")])
            if in_workers:
                assert manager.stats().num_bytes > 2 * (len(long) + len(longer))
    assert_same_batch(said[1], said[0])


def test_after_a_ctrl_c_a_mailbox_that_may_be_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may not have read what was asked, so what is asked next must not be put in its place."""
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        puts, put = list[bytes](), SharedChannel.write_request

        def noted(box: SharedChannel, number: int, data: bytes) -> bool:
            puts.append(data)
            return put(box, number, data)

        def interrupted(*arguments: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(SharedChannel, "write_request", noted)
        with monkeypatch.context() as patch:
            patch.setattr(worker_group.WorkerGroup, "end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.step(inputs({0: ["right"], 1: ["right"]}))
        assert len(puts) == 1
        for expected in (1, 2):  # once as a message; its answer says that the mailbox is free again
            entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
            assert [len(entry["history"]) for entry in entries] == [expected + 1] * 2
            assert len(puts) == expected
