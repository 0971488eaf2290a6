"""Loops: ways to combine collecting and learning.

    sync      collect, then learn: the reference
    overlap   collect the next rollout while all learn from the last one: one update behind, the same in every run
    free      each as fast as it can, within bounds

`sync.py`, `overlap.py` and `free.py` are the loops, `loop.py` is what they share, and `options.py` the options of a
loop. In `overlap` and `free` updates run in a thread (`learner_thread.py`), and a copy of the actor acts meanwhile
(`behavior_policy.py`).
"""

from parallel_envs.learners.loops.loop import Lag, Loop, LoopReport, open_loop, run_loop
from parallel_envs.learners.loops.options import LoopOptions

__all__ = ["Lag", "Loop", "LoopOptions", "LoopReport", "open_loop", "run_loop"]
