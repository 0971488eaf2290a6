"""Shared memory without a name, and the places of named arrays in it.

layout = ArrayLayout({"rewards": ("f4", (8,)), ("agent_0", "weight"): ("f4", (64, 2))})
block = SharedBlock.create(layout.num_bytes)
arrays = layout.views(block)                 # in the caller, and in each worker that got the layout and the block
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine.interrupts import delay_ctrl_c

_ALIGNMENT = 64  # a cache line, so that no two arrays share one


class ArrayLayout:
    """The places in one block for arrays of these dtypes and shapes, by key. A layout can travel in any request."""

    def __init__(self, arrays: Mapping[Any, tuple[npt.DTypeLike, tuple[int, ...]]]) -> None:
        self.places: dict[Any, tuple[np.dtype[Any], tuple[int, ...], int]] = {}
        """By key, the dtype and the shape of an array and the offset at which it starts."""
        self.num_bytes = 0
        for key, (given, shape) in arrays.items():
            dtype = np.dtype(given)
            self.places[key] = dtype, shape, self.num_bytes
            self.num_bytes += -(-dtype.itemsize * math.prod(shape) // _ALIGNMENT) * _ALIGNMENT

    @classmethod
    def of(cls, arrays: Mapping[Any, npt.NDArray[Any]]) -> ArrayLayout:
        """Return the layout for copies of these arrays."""
        return cls({key: (array.dtype, array.shape) for key, array in arrays.items()})

    def views(self, block: SharedBlock) -> dict[Any, npt.NDArray[Any]]:
        """Return the arrays in a block of at least `num_bytes`, by key."""
        return {key: block.array(*place) for key, place in self.places.items()}


class SharedBlock:
    """Memory that is the same in every process that has the block.

    The memory has no name, so nothing has to be unlinked and nothing is left behind: the kernel frees a block when the
    last process that holds it ends. It reaches a worker as a descriptor that travels with a message, at any time.

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
