"""On a device: the batch strategy with weights that live there, and one transfer each way a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallel_envs.wrappers.base import Agent, Rules
from parallel_envs.wrappers.batch import PerAgentBatchWrapper


class PerAgentGPUWrapper(PerAgentBatchWrapper):
    """As `PerAgentBatchWrapper`, with stacked networks on `device`.

    `"auto"` is the first CUDA device if there is one, else the CPU. Observations of a turn are gathered in a pinned
    staging buffer, which grows to the largest turn and stays, and go over in one transfer that does not block.
    """

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, device: str = "auto") -> None:
        super().__init__(policies, rules)
        self.device = _checked(device)

    def _new_stack(self, modules: Sequence[Any]) -> Callable[[Any], Any]:
        from parallel_envs.wrappers.stacked import DeviceStack

        return DeviceStack(modules, self.device)


def _checked(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is unknown. Give 'auto', 'cpu' or such as 'cuda:0'.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} was asked for, but torch sees no CUDA device here. Give 'auto' or 'cpu'.")
    return device
