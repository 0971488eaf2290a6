"""A device that counts transfers: torch's `meta` device, which computes shapes and no numbers.

Like any device it refuses operations that mix its tensors with those of the CPU, and `numpy()` of its tensors. Numbers
that come back from it are ones here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_OUT = (
    *(torch.Tensor.cpu, torch.Tensor.to, torch.Tensor.tolist, torch.Tensor.item),
    *(torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__),
)
_IN = torch.Tensor.to, torch.tensor, torch.as_tensor, torch.Tensor.copy_
_INDEXING = torch.Tensor.__getitem__, torch.Tensor.__setitem__


class CountedDevice(TorchFunctionMode):
    """Counts the tensors that this thread copies to the `meta` device and back from it, and answers with ones."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, ...]] = []
        """The shapes of the tensors that were copied to the device."""
        self.returned: list[tuple[int, ...]] = []
        """The shapes of the tensors that came back."""

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.sent), len(self.returned)

    def clear(self) -> None:
        self.sent.clear()
        self.returned.clear()

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        first: Any = given[0] if given else None
        is_meta = isinstance(first, torch.Tensor) and first.is_meta
        if is_meta and function in _OUT:
            where = torch._C._nn._parse_to(*given[1:], **named)[0] if function is torch.Tensor.to else "cpu"
            if str(where).startswith("cpu"):
                self.returned.append(tuple(first.shape))
                return function(torch.ones(first.shape, dtype=first.dtype), *given[1:], **named)
        if is_meta and function in _INDEXING:
            parts = given[1] if isinstance(given[1], tuple) else (given[1],)
            self.sent += [np.shape(part) for part in parts if _is_here(part)]
        result = function(*given, **named)
        if function in _IN and getattr(result, "is_meta", False):
            source = given[1] if function is torch.Tensor.copy_ else first
            if not getattr(source, "is_meta", False):
                self.sent.append(tuple(result.shape))
        return result


def _is_here(part: Any) -> bool:
    return isinstance(part, np.ndarray | list) or (isinstance(part, torch.Tensor) and not part.is_meta)
