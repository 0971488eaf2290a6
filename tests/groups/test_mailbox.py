"""Requests and answers in memory that two processes share."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_envs.groups import EnvStateManager, crew, mailbox, register
from parallel_envs.groups.deadlines import Asked
from parallel_envs.groups.mailbox import Mailbox
from parallel_envs.testing.equality import assert_same_batch
from tests.groups.walks import configured, inputs


def test_what_one_side_puts_there_the_other_reads() -> None:
    block = Mailbox.room()
    here, there = Mailbox(block), Mailbox(block)
    block.close()
    for asked, answered in ((b"a long question", b"yes"), (b"why?", b"a long answer"), (b"", b"")):
        assert here.ask(asked)
        assert bytes(there.asked()) == asked
        assert there.answer(answered)
        assert (bytes(here.answered()), bytes(there.asked())) == (answered, asked)


def test_what_is_too_long_is_refused_and_changes_nothing() -> None:
    block = Mailbox.room()
    box = Mailbox(block)
    block.close()
    assert box.ask(b"x" * (mailbox._ORDERS_BYTES - 8))
    assert box.answer(b"y" * (mailbox._ANSWERS_BYTES - 8))
    assert not box.ask(b"x" * (mailbox._ORDERS_BYTES - 7))
    assert not box.answer(b"y" * (mailbox._ANSWERS_BYTES - 7))
    assert (bytes(box.asked()[:2]), len(box.answered())) == (b"xx", mailbox._ANSWERS_BYTES - 8)


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

        def noted(box: Mailbox, data: bytes) -> bool:
            puts.append(data)
            return put(box, data)

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


def interrupted(self: crew.Crew, asked: Asked) -> Any:
    raise KeyboardInterrupt
