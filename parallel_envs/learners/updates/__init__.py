"""Update modes: ways to run the updates of many agents, with equal numbers and different speeds.

    sequential   one agent after another: the reference
    thread       each agent in a thread
    process      in worker processes that own the learners
    fused        alike agents in one pass
    auto         measures the modes above and keeps the fastest

`fused_or_process`, `fused_or_thread` and `fused_or_sequential` stand for one of two modes: see `mode_for`.

To add a mode, subclass `UpdateMode` (`mode.py`) and add a line to `MODES` (`auto.py`).
"""

from parallel_envs.learners.updates.auto import EITHER, MODES, AutoUpdates, mode_for
from parallel_envs.learners.updates.fused import FusedUpdates
from parallel_envs.learners.updates.mode import SequentialUpdates, ThreadUpdates, UpdateMode
from parallel_envs.learners.updates.process import UPDATE_TIMEOUT, ProcessUpdates, check_learns_here

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
    "check_learns_here",
    "mode_for",
]
