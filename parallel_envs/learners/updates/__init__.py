"""Ways to run the updates of many agents: equal numbers, different speeds.

    sequential   one agent after another: the reference
    thread       each in a thread
    process      in workers that own the learners
    fused        agents of one kind in one pass
    auto         measures these, and keeps the fastest

`fused_or_process`, `fused_or_thread` and `fused_or_sequential` stand for one of two: see `mode_for`.

To add one, subclass `UpdateMode` (`mode.py`) and add a line to `MODES`.
"""

from collections.abc import Callable, Mapping

from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.auto import AutoUpdates
from parallel_envs.learners.updates.fused import FusedUpdates, is_worth_fusing
from parallel_envs.learners.updates.mode import UpdateMode
from parallel_envs.learners.updates.process import UPDATE_TIMEOUT, ProcessUpdates
from parallel_envs.learners.updates.sequential import SequentialUpdates, ThreadUpdates

MODES: dict[str, Callable[..., UpdateMode]] = {
    "sequential": lambda brains, workers=None, timeout=None: SequentialUpdates(brains),
    "thread": lambda brains, workers=None, timeout=None: ThreadUpdates(brains, workers),
    "process": ProcessUpdates,
    "fused": lambda brains, workers=None, timeout=None: FusedUpdates(brains),
    "auto": AutoUpdates,
}
"""By name: called with brains by agent, the number of workers or None, and the seconds that a worker process has for a
round of updates or None. What runs in the caller's own process cannot be ended, and has no such limit."""
EITHER = {f"fused_or_{mode}": mode for mode in ("sequential", "process", "thread")}
"""Words for "fused" where that pays, and for this mode elsewhere."""


def mode_for(word: str, brains: Mapping[Agent, AgentParameters]) -> str:
    """Return the mode that an `update_mode` stands for with these brains: the same in every run."""
    if word not in EITHER:
        return word
    return "fused" if is_worth_fusing(brains) else EITHER[word]


__all__ = [
    "EITHER",
    "MODES",
    "UPDATE_TIMEOUT",
    "AutoUpdates",
    "FusedUpdates",
    "ProcessUpdates",
    "SequentialUpdates",
    "ThreadUpdates",
    "UpdateMode",
    "mode_for",
]
