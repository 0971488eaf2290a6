"""How requests reach workers, and how answers come back: through a worker's mailbox, or as messages.

A worker that was asked has the use of its mailbox until its answers have been read. After a Ctrl-C nobody knows what
it still does there, so until it has answered something else it is sent messages. So is what it is asked meanwhile, and
what is too long for the memory.
"""

from __future__ import annotations

import contextlib
import pickle
import weakref
from collections.abc import Mapping
from typing import Any

from parallel_envs.engine import Failure, PendingRequest, Reply, WorkerPool, dump_request
from parallel_envs.errors import EnvError, RemoteTraceback
from parallel_envs.groups.deadlines import Asked
from parallel_envs.groups.jobs import Answers
from parallel_envs.groups.mailbox import Mailbox


class Unreadable(Exception):
    """Answers hold something that can be made into bytes, and not be made of them again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Post:
    """The mailboxes of a pool's workers, each of which hosts a `Shelf` under `key`.

    Attributes:
        num_bytes: What has passed through mailboxes so far, both ways.
    """

    def __init__(self, pool: WorkerPool, key: int, boxes: Mapping[int, Mailbox]) -> None:
        self._pool, self._key, self._boxes = pool, key, boxes
        self._busy: set[int] = set()  # who was asked and has not answered anything since
        self._in_boxes: dict[int, weakref.ref[Asked]] = {}  # what each was asked there, till the answers are read
        self.num_bytes = 0

    @property
    def is_any_busy(self) -> bool:
        """Whether somebody was asked whose answers have not been read."""
        return bool(self._busy)

    def send(self, worker: int, asked: Asked, data: bytes) -> PendingRequest:
        """Ask a worker its part of this. Nobody is waited for."""
        self._busy.add(worker)
        if worker not in self._in_boxes:
            self._in_boxes[worker] = weakref.ref(asked)  # before it is used: from now on nobody else does
            if self._boxes[worker].ask(asked.number, data):
                self.num_bytes += len(data)
                return self._pool.ring(self._key, 0, (worker,))
            del self._in_boxes[worker]
        return self._pool.call(worker, self._key, "work", data)

    def early(self, worker: int, asked: Asked) -> Answers | None:
        """A part of what a worker answers, if there is one yet that has not been read; it may still be at work."""
        if not self._is_in_box(worker, asked) or (data := self._boxes[worker].early()) is None:
            return None
        try:
            return self._taken(worker, data)
        except Exception:  # noqa: BLE001  # whatever user code raises when it is unpickled: `read` comes to it again
            return None

    def read(self, worker: int, asked: Asked, reply: Reply | None) -> Answers:
        """All that has not been read of what a worker has answered, and it is done. Raises `Unreadable`."""
        try:
            if reply is not None:
                check(reply)
            return self._rest(worker, asked, reply)
        finally:
            self._busy.discard(worker)
            if self._is_in_box(worker, asked) or not self._is_box_waited_for(worker):
                self.forget(worker)

    def _rest(self, worker: int, asked: Asked, reply: Reply | None) -> Answers:
        answers = Answers()
        try:
            while self._is_in_box(worker, asked) and (data := self._boxes[worker].next()) is not None:
                answers = answers.joined(self._taken(worker, data))
            for data in () if reply is None else reply.value:
                answers = answers.joined(Answers(*pickle.loads(data)))
        except Exception as error:  # the same
            raise Unreadable(Failure.of(error)) from error
        return answers

    def _is_in_box(self, worker: int, asked: Asked) -> bool:
        return worker in self._in_boxes and self._in_boxes[worker]() is asked

    def _is_box_waited_for(self, worker: int) -> bool:
        """Whether somebody is going to read what is in a worker's mailbox: who asks while another request is under way,
        from a signal handler, say, has its answers first.
        """
        asked = self._in_boxes[worker]() if worker in self._in_boxes else None
        return asked is not None and not asked.given_up

    def _taken(self, worker: int, data: memoryview) -> Answers:
        answers = Answers(*pickle.loads(data))
        self._boxes[worker].take(data)
        self.num_bytes += len(data)
        return answers

    def forget(self, worker: int) -> None:
        """It is done, or gone. It does not use its mailbox any more."""
        self._busy.discard(worker)
        self._in_boxes.pop(worker, None)


def as_bytes(orders: tuple[Any, ...], *, has_values: bool = False) -> bytes:
    """Plain pickle is several times as quick as what sends functions and classes by value.

    It will do for text and numbers. With `has_values`, the values of actions are among the orders: these may be of a
    class of the main script's, which plain pickle sends by a name that no worker knows.
    """
    if not has_values:
        with contextlib.suppress(Exception):
            return pickle.dumps(orders, pickle.HIGHEST_PROTOCOL)
    data, _ = dump_request(orders)
    return data


def check(reply: Reply) -> None:
    """Raise what a worker reports that concerns none of its environments in particular."""
    if reply.failure is not None:
        failure = reply.failure
        text = f"A worker could not do its part: {failure.type_name}: {failure.message}"
        kind = EnvError.named(failure.type_name)
        raise kind(text, type_name=failure.type_name, remote_message=failure.message) from RemoteTraceback(
            failure.traceback
        )
