"""Update modes: ways to run the updates of many agents, with equal numbers and different speeds.

    sequential   one agent after another: the reference
    thread       each agent in a thread
    process      in worker processes that own the learners
    fused        alike agents in one pass
    auto         measures the modes above and keeps the fastest

`fused_or_process`, `fused_or_thread` and `fused_or_sequential` stand for one of two modes: see `mode_for`.

To add a mode, subclass `UpdateMode` (`mode.py`) and add a line to `MODES`.
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
    "sequential": lambda all_parameters, workers=None, timeout=None: SequentialUpdates(all_parameters),
    "thread": lambda all_parameters, workers=None, timeout=None: ThreadUpdates(all_parameters, workers),
    "process": ProcessUpdates,
    "fused": lambda all_parameters, workers=None, timeout=None: FusedUpdates(all_parameters),
    "auto": AutoUpdates,
}
"""Modes by name. Each is called with the parameters by agent, the number of workers or None, and the seconds that a
worker process has for a round of updates or None. Updates in the caller's own process cannot be ended and ignore the
limit."""
EITHER = {f"fused_or_{mode}": mode for mode in ("sequential", "process", "thread")}
"""Names that mean "fused" where fusing is quicker, and this mode elsewhere."""


def mode_for(word: str, all_parameters: Mapping[Agent, AgentParameters]) -> str:
    """Return the mode that an `update_mode` stands for with these parameters. It is the same in every run."""
    if word not in EITHER:
        return word
    return "fused" if is_worth_fusing(all_parameters) else EITHER[word]


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
