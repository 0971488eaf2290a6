"""Loops: ways to combine collecting and learning.

    sync      collect, then learn: the reference
    overlap   collect the next rollout while all learn from the last one: one update behind, the same in every run
    free      each as fast as it can, within bounds

`loop.py` has the options of a loop, what all loops share, and the first; `asynchronous.py` the other two. In these,
updates run in a thread, and a copy of the actor acts meanwhile (`learner_thread.py`).
"""

from parallel_envs.learners.loops.loop import Lag, Loop, LoopOptions, LoopReport, open_loop

__all__ = ["Lag", "Loop", "LoopOptions", "LoopReport", "open_loop"]
