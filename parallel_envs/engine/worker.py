"""The loop of a worker process.

A worker blocks on its bell pipe. A bell is answered by one completion on the pipe that all workers share; where the
answer does not fit there, the completion goes first and the payload follows on the channel, so that the parent knows
whom to listen to and neither side ever waits for the other to read.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
import traceback
from dataclasses import dataclass

from parallel_envs.engine.channel import ChannelClosed, receive_frame, send_frame
from parallel_envs.engine.forks import begin_to_serve, forked, leave_if_forked
from parallel_envs.engine.host import BELL_SECONDS, MESSAGE_SECONDS, Host, Outcome
from parallel_envs.engine.messages import BELL, COMPLETION, DONE, FAILED, MESSAGE, PAYLOAD, Failure
from parallel_envs.engine.pickling import dump_reply, load_request

_MOST_BYTES = BELL.size * 16  # more would only cost: what is left over is read next time


@dataclass(frozen=True, slots=True)
class Lines:
    """A worker's ends: bells come in, completions go out, the channel carries messages and payloads."""

    bell: int
    completion: int
    channel: int

    @property
    def fds(self) -> tuple[int, int, int]:
        return self.bell, self.completion, self.channel


def serve(index: int, lines: Lines) -> None:
    """Answer requests until the bell pipe ends or the host has been asked to stop.

    Nobody waits for what is raised at the end: it goes to stderr, as short as it can be, and the exit status is 1.
    """
    begin_to_serve()
    worker = _Worker(index, lines)
    with contextlib.suppress(BrokenPipeError, ConnectionError):  # the parent has gone: nobody is left to tell
        worker.serve()
    try:
        worker.close()
    except Exception as error:  # whatever the objects raise
        traceback.print_exception(error, limit=-1)  # where it was raised; the way there is ours
        raise SystemExit(1) from None


class _Worker:
    def __init__(self, index: int, lines: Lines) -> None:
        self.index = index
        self.host = Host(index)
        self._bell, self._completion = lines.bell, lines.completion
        self._channel = socket.socket(fileno=lines.channel)
        self._stopping = False
        self._looker = select.poll()
        self._looker.register(lines.bell, select.POLLIN)
        self._was_prompt = False  # the last bell came while a worker that stays awake would have been looking for it

    def close(self) -> None:
        """Close the hosted objects, then the channel.

        A forked worker has the warning filters of the user's program, and a socket that is left open would be a
        ResourceWarning there.
        """
        try:
            self.host.close()
        finally:
            self._channel.close()

    def serve(self) -> None:
        """The loop. A bell that leaves nothing to say is answered right here: most are, and it is to cost little."""
        host, index, bell, completion = self.host, self.index, self._bell, self._completion
        objects, read, write, pack = host.objects, os.read, os.write, COMPLETION.pack
        clock = time.perf_counter
        while not self._stopping:
            bells = self._looked_for() if host.awake_seconds else read(bell, _MOST_BYTES)
            if not bells:
                return
            began = clock()
            for key, argument, number in BELL.iter_unpack(bells):
                if key == MESSAGE:
                    self._complete(number, self._answer_message())
                    continue
                try:
                    value = objects[key].ring(argument)
                except BaseException as error:
                    leave_if_forked(error)
                    self._complete(number, Outcome(failure=Failure.of(error)))
                    continue
                if forked:
                    leave_if_forked()
                if value is None:
                    write(completion, pack(index, DONE, number))
                else:
                    self._complete(number, Outcome(value))
            host.worked(MESSAGE_SECONDS if key == MESSAGE else BELL_SECONDS, began)

    def _looked_for(self) -> bytes:
        """The next bells, which are looked for again and again for a while, if the last ones came as soon as that.

        To be woken takes some 30 microseconds, of which the waker loses a third.
        """
        look, clock = self._looker.poll, time.perf_counter
        began, seconds = clock(), self.host.awake_seconds
        until = began + seconds if self._was_prompt else began
        while clock() < until and not look(0):
            pass
        bells = os.read(self._bell, _MOST_BYTES)
        self._was_prompt = clock() - began < seconds
        return bells

    def _complete(self, number: int, outcome: Outcome | None) -> None:
        if outcome is None:
            os.write(self._completion, COMPLETION.pack(self.index, DONE, number))
            return
        status, data = _pack(outcome)
        os.write(self._completion, COMPLETION.pack(self.index, status, number))
        send_frame(self._channel, data)

    def _answer_message(self) -> Outcome | None:
        data, fds = receive_frame(self._channel)
        try:
            call = load_request(data, fds)
        except ChannelClosed:
            raise
        except BaseException as error:  # a module that cannot be imported here, a class that has changed, ...
            return Outcome(failure=Failure.of(error))
        if call is None:
            self._stopping = True
            return None
        outcome = self.host.execute(call)
        leave_if_forked()
        return None if outcome.value is None and outcome.failure is None else outcome


def _pack(outcome: Outcome) -> tuple[int, bytes]:
    if outcome.failure is not None:
        return FAILED, dump_reply(outcome.failure)
    try:
        return PAYLOAD, dump_reply(outcome.value)
    except BaseException as error:
        return FAILED, dump_reply(Failure.of(error))
