"""A worker: a host of named objects, and the loop of a worker process.

`Host` is the same on every backend; only the way in which requests reach the host differs. Hosted objects are ordinary
objects. An object that answers bells has `ring(argument) -> payload or None` as well.

A worker process (`serve`) blocks on its bell pipe. It answers a bell by one completion on the pipe that all workers
share. If the answer does not fit there, the completion goes first and the payload follows on the channel. So the parent
knows which worker to listen to, and neither side ever waits for the other to read.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from parallel_envs.engine.channel import ChannelClosed, receive_frame, send_frame
from parallel_envs.engine.interrupts import forked, leave_if_forked, mark_as_worker, reraise_ctrl_c
from parallel_envs.engine.messages import (
    BELL,
    COMPLETION,
    DONE,
    FAILED,
    HOST,
    MESSAGE,
    PAYLOAD,
    Call,
    Failure,
    Reply,
    dump_reply,
    load_request,
)
from parallel_envs.engine.shared_arrays import SharedBlock

if TYPE_CHECKING:
    from parallel_envs.trace import SpanBuffer

# ---- the host -------------------------------------------------------------------------------------------------------

BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE, METERS = 0, 1, 2, 8
"""Columns of a worker's meters, all doubles: seconds spent on bells, seconds spent on messages, start of the count by
the clock that all processes share; and the number of columns. 8 columns fill a cache line, so that no two workers write
to the same one."""

_METERS = struct.Struct("=3d")


class Host:
    """Hosted objects of one worker, the seconds that the worker has worked, and the number of the newest request."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.number = 0
        self.objects: dict[int, Any] = {HOST: self}
        self.seconds = [0.0, 0.0, time.perf_counter()]  # the columns of the meters
        self._meters: mmap.mmap | bytearray = bytearray(METERS * 8)
        self._offset = 0

    def build(self, key: int, factory: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Host `factory(*args, **kwargs)` under `key`. The object that was there before is dropped first."""
        self.objects.pop(key, None)
        self.objects[key] = factory(*args, **kwargs)

    def load(self, modules: Iterable[str]) -> tuple[str, Failure] | None:
        """Import modules (see `load_modules`)."""
        return load_modules(modules)

    def drop(self, key: int) -> None:
        """Stop hosting an object. Call its `close()` if it has one."""
        close = getattr(self.objects.pop(key, None), "close", None)
        if callable(close):
            close()

    def close(self) -> None:
        """Drop every object. The first error is raised after all objects have been dropped."""
        errors: list[BaseException] = []
        for key in [key for key in self.objects if key != HOST]:
            try:
                self.drop(key)
            except BaseException as error:  # SystemExit too: the other objects are to be closed as well
                reraise_ctrl_c(error)
                errors.append(error)
        if errors:
            raise errors[0]

    def meter(self, block: SharedBlock, offset: int) -> None:
        """Write the meters to `block` from now on, `offset` doubles from its start. Count on from the values there."""
        self._meters, self._offset = block.buffer, offset * 8
        bells, messages, since = _METERS.unpack_from(block.buffer, offset * 8)
        self.seconds = [bells, messages, since or self.seconds[METERED_SINCE]]

    def trace(self, key: int, spans: SpanBuffer | None) -> None:
        """Have a hosted object record its work in `spans` from now on (None: no more). `number` is the request's."""
        self.objects[key].trace(spans, self)

    def count(self, column: int, began: float) -> None:
        """Add the seconds since `began` to a column of the meters."""
        seconds = self.seconds
        seconds[column] += time.perf_counter() - began
        _METERS.pack_into(self._meters, self._offset, *seconds)

    def execute(self, call: Call) -> Reply:
        """Answer a message. Every exception becomes a reply, so that the worker goes on."""
        try:
            target = self.objects[call.key]
            return Reply(self.index, getattr(target, call.method)(*call.args, **call.kwargs))
        except BaseException as error:  # SystemExit too: an object may not end its worker by raising
            leave_if_forked(error)
            return Reply(self.index, failure=Failure.of(error))

    def ring(self, key: int, argument: int) -> Reply | None:
        """Answer a bell. Return None if the object returned None."""
        try:
            value = self.objects[key].ring(argument)
        except BaseException as error:
            return Reply(self.index, failure=Failure.of(error))
        return None if value is None else Reply(self.index, value)


def load_modules(modules: Iterable[str]) -> tuple[str, Failure] | None:
    """Import modules. Return the first module that cannot be imported, with the failure, or None."""
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # SystemExit too: some modules end the program that imports them
            reraise_ctrl_c(error)
            return module, Failure.of(error)
    return None


# ---- the worker process ---------------------------------------------------------------------------------------------

_MOST_BYTES = BELL.size * 16  # more would cost time: bells that are left over are read next time


def serve(index: int, bell: int, completion: int, channel: int) -> None:
    """Answer requests until the bell pipe ends or a stop request arrives. Then close the hosted objects."""
    mark_as_worker()
    worker = _WorkerProcess(index, bell, completion, channel)
    with contextlib.suppress(BrokenPipeError, ConnectionError):  # the parent has ended
        worker.serve()
    try:
        worker.host.close()
    except Exception as error:  # no process waits for an error of `close`: stderr and the exit status show it
        traceback.print_exception(error, limit=-1)  # the line that raised; the frames above are ours
        raise SystemExit(1) from None
    finally:
        worker.channel.close()  # a forked worker has the user's warning filters, which would report it as left open


class _WorkerProcess:
    def __init__(self, index: int, bell: int, completion: int, channel: int) -> None:
        self.index = index
        self.host = Host(index)
        self._bell, self._completion = bell, completion
        self.channel = socket.socket(fileno=channel)
        self._stopping = False

    def serve(self) -> None:
        """Run the loop. A bell without a payload is answered right here: most bells are, and have to cost little."""
        host, index, bell, completion = self.host, self.index, self._bell, self._completion
        objects, read, write, pack = host.objects, os.read, os.write, COMPLETION.pack
        clock = time.perf_counter
        while not self._stopping:
            if not (bells := read(bell, _MOST_BYTES)):
                return
            began = clock()
            for key, argument, number in BELL.iter_unpack(bells):
                host.number = number
                if key == MESSAGE:
                    self._complete(number, self._answer_message())
                    continue
                try:
                    value = objects[key].ring(argument)
                except BaseException as error:
                    leave_if_forked(error)
                    self._complete(number, Reply(index, failure=Failure.of(error)))
                    continue
                if forked:
                    leave_if_forked()
                if value is None:
                    write(completion, pack(index, DONE, number))
                else:
                    self._complete(number, Reply(index, value))
            host.count(MESSAGE_SECONDS if key == MESSAGE else BELL_SECONDS, began)

    def _answer_message(self) -> Reply:
        """Receive a message and answer it. None in the place of a `Call` asks the worker to stop."""
        data, fds = receive_frame(self.channel)
        try:
            call = load_request(data, fds)
        except ChannelClosed:
            raise
        except BaseException as error:  # a module that cannot be imported here, a class that has changed, ...
            return Reply(self.index, failure=Failure.of(error))
        if call is None:
            self._stopping = True
            return Reply(self.index)
        reply = self.host.execute(call)
        leave_if_forked()
        return reply

    def _complete(self, number: int, reply: Reply) -> None:
        """Answer a request: write the completion, then send the payload if there is one."""
        if reply.value is None and reply.failure is None:
            os.write(self._completion, COMPLETION.pack(self.index, DONE, number))
            return
        status = PAYLOAD if reply.failure is None else FAILED
        try:
            data = dump_reply(reply.value if reply.failure is None else reply.failure)
        except BaseException as error:
            if reply.failure is not None:
                raise
            status, data = FAILED, dump_reply(Failure.of(error))
        os.write(self._completion, COMPLETION.pack(self.index, status, number))
        send_frame(self.channel, data)
