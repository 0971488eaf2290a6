"""Torch on one thread where more would only spin, on cores that environments need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["one_torch_thread"]


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch's own parallelism off within the context. It is the whole process's, and is put back as it was."""
    import torch

    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
