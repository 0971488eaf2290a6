"""Anonymous shared memory. It has no name, so nothing has to be unlinked and nothing is left behind.

The kernel frees a block when the last process that holds it ends. A block reaches a worker as a file descriptor that
travels with a message (see `messages`), so a block can be given to a worker at any time.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine.interrupts import delay_ctrl_c


class SharedBlock:
    """Memory that is the same in every process that has the block.

    Arrays made by `array` keep the memory mapped for as long as they live. `close` only gives up the descriptor; after
    that the block cannot be sent to another process. A block that is garbage-collected is closed.
    """

    fd = -1

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.buffer = mmap.mmap(fd, max(num_bytes, 1))
        self.fd = fd  # last: if anything above fails, the descriptor is still the caller's to close

    @classmethod
    def create(cls, num_bytes: int) -> SharedBlock:
        """Create a block of zeros."""
        if sys.platform == "win32":
            return cls(-1, num_bytes)  # memory of this process alone: Windows has no worker processes here
        with delay_ctrl_c():  # a Ctrl-C before the block has the descriptor would leave the descriptor open
            if hasattr(os, "memfd_create"):
                fd = os.memfd_create("parallel_envs", os.MFD_CLOEXEC)
            else:  # where the system has no memfd: a file without a name
                fd, path = tempfile.mkstemp(prefix="parallel_envs-")
                os.unlink(path)
            try:
                os.ftruncate(fd, max(num_bytes, 1))
                return cls(fd, num_bytes)
            except BaseException:
                os.close(fd)
                raise

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
        """Return a view of `shape` items of `dtype` that starts `offset` bytes into the block."""
        return np.ndarray(shape, dtype, self.buffer, offset)

    def close(self) -> None:
        """Close the descriptor. Arrays stay valid. A second call does nothing."""
        fd, self.fd = self.fd, -1  # first: after a second close the number could belong to another open file
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
