"""The descriptors that belong to the user's side of the engine.

A child forked from the user's process inherits all of them and must let go of them at once: a sibling's pipe end kept
open there would keep that sibling from seeing that its parent has gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator

from parallel_envs.errors import WorkerStartError

TOO_MANY_FILES = os.strerror(errno.EMFILE)
"""The system's words for it, in every message about it."""

owned: set[int] = set()
"""Open descriptors of all pools and of the keeper in this process."""


def close_in_child(kept: Collection[int]) -> None:
    """Close all of them but those that the child is to keep."""
    for fd in owned.difference(kept):
        with contextlib.suppress(OSError):
            os.close(fd)
    owned.clear()


@contextlib.contextmanager
def advice_on_too_many_files() -> Iterator[None]:
    """Raise `WorkerStartError` with what to do if the system has no room for another open file, here or in the keeper.

    The keeper's errors arrive as text, so the text is what is looked at.
    """
    try:
        yield
    except (OSError, WorkerStartError) as error:
        if TOO_MANY_FILES not in str(error):
            raise
        import resource  # only systems that have worker processes have it

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise WorkerStartError(
            f"{str(error).removesuffix('.')}. Each worker process takes several, and `ulimit -n` allows {limit} in "
            "each process: give a smaller num_workers, or raise the limit (`ulimit -n 4096`) before you start your "
            "program."
        ) from error


_lifeline: list[int] = []
"""The writing end of a pipe to which nobody writes. The kernel closes it when this process ends, however it ends."""


def hold_lifeline() -> None:
    """Begin to hold the lifeline of this process, if it is not held yet."""
    if not _lifeline:
        read, write = os.pipe()
        os.close(read)
        _lifeline.append(write)
        owned.add(write)


def open_lifeline() -> int:
    """Return a reading end of this process's lifeline, opened for one worker only. See `child.die_with_writer`."""
    hold_lifeline()
    return os.open(f"/proc/self/fd/{_lifeline[0]}", os.O_RDONLY | os.O_NONBLOCK)


def _let_go_of_lifeline() -> None:
    """In any forked process: the lifeline is to end with the process that it belongs to, and with no other."""
    while _lifeline:
        owned.discard(_lifeline[0])
        os.close(_lifeline.pop())


os.register_at_fork(after_in_child=_let_go_of_lifeline)
