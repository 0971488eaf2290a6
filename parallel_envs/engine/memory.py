"""Anonymous shared memory: no name, so nothing to unlink and nothing to leave behind.

The kernel frees a block with the last process that holds it. A block reaches a worker as a file descriptor that
travels with a message (see `pickling`), so a worker may be given one at any time of its life.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine.completions import undisturbed


class SharedBlock:
    """A piece of memory that every process it was given to sees alike.

    Arrays made by `array` keep the memory mapped for as long as they live; `close` only gives up the descriptor,
    after which the block can be given to nobody else. A block that is dropped is closed.
    """

    fd = -1

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.buffer = mmap.mmap(fd, max(num_bytes, 1))
        self.fd = fd  # last: if anything fails before, the descriptor is still the caller's to close

    @classmethod
    def create(cls, num_bytes: int) -> SharedBlock:
        """New memory, all zeros."""
        if sys.platform == "win32":
            return cls(-1, num_bytes)  # memory of this process alone: there are no worker processes
        with undisturbed():  # until the block has the descriptor, a Ctrl-C would leave it open
            fd = _anonymous_file()
            try:
                os.ftruncate(fd, max(num_bytes, 1))
                block = cls(fd, num_bytes)
            except BaseException:
                os.close(fd)
                raise
        return block

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
        """A view of `shape` items of `dtype` that starts `offset` bytes into the block."""
        return np.ndarray(shape, dtype, self.buffer, offset)

    def close(self) -> None:
        """Give up the descriptor. Arrays stay valid; calling it twice does nothing."""
        fd, self.fd = self.fd, -1  # first: a descriptor that is closed twice may be somebody else's the second time
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("parallel_envs", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="parallel_envs-")  # where the system has no memfd: a file without a name
    os.unlink(path)
    return fd
