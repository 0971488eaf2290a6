"""How requests reach workers, and how answers come back: through a worker's mailbox, or as messages.

A worker that was asked has the use of its mailbox until its answers have been read. After a Ctrl-C nobody knows what
it still does there, so until it has answered something else it is sent messages. So is what is too long for the memory.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping

from parallel_envs.engine import Failure, Reply, Ticket, WorkerPool, dump_request
from parallel_envs.errors import EnvError, RemoteTraceback
from parallel_envs.groups.jobs import Answers, Told
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
        self._busy: set[int] = set()  # who may still be using its mailbox
        self._in_boxes: set[int] = set()  # who was asked there last, and not by a message
        self.num_bytes = 0

    @property
    def is_any_busy(self) -> bool:
        """Whether somebody was asked whose answers have not been read."""
        return bool(self._busy)

    def send(self, worker: int, number: int, data: bytes) -> Ticket:
        """Ask a worker, in the request of this number. Nobody is waited for."""
        fits = worker not in self._busy and self._boxes[worker].ask(number, data)
        self._busy.add(worker)
        if not fits:
            self._in_boxes.discard(worker)  # what may still come to be there answers something else
            return self._pool.call(worker, self._key, "work", data)
        self.num_bytes += len(data)
        self._in_boxes.add(worker)
        return self._pool.ring(self._key, 0, (worker,))

    def early(self, worker: int) -> Answers | None:
        """A part of what a worker answers, if there is one yet that has not been read; it may still be at work."""
        if worker not in self._in_boxes or (data := self._boxes[worker].early()) is None:
            return None
        try:
            return self._taken(worker, data)
        except Exception:  # noqa: BLE001  # whatever user code raises when it is unpickled: `read` comes to it again
            return None

    def read(self, worker: int, reply: Reply | None) -> Answers:
        """All that has not been read of what a worker has answered, and it is done. Raises `Unreadable`."""
        try:
            if reply is not None:
                check(reply)
            return self._rest(worker, reply)
        finally:
            self.forget(worker)

    def _rest(self, worker: int, reply: Reply | None) -> Answers:
        answers = Answers()
        try:
            while worker in self._in_boxes and (data := self._boxes[worker].next()) is not None:
                answers.add(self._taken(worker, data))
            if reply is not None:
                answers.add(Answers(*pickle.loads(reply.value)))
        except Exception as error:  # the same
            raise Unreadable(Failure.of(error)) from error
        return answers

    def _taken(self, worker: int, data: memoryview) -> Answers:
        answers = Answers(*pickle.loads(data))
        self._boxes[worker].take(data)
        self.num_bytes += len(data)
        return answers

    def forget(self, worker: int) -> None:
        """It is done, or gone. It does not use its mailbox any more."""
        self._busy.discard(worker)
        self._in_boxes.discard(worker)


def as_bytes(orders: Told) -> bytes:
    """Plain pickle is several times as quick as what sends functions by value, which orders hardly ever hold."""
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
