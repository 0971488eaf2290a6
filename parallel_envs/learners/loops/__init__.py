"""How collecting and learning go together.

    sync      collect, then learn: the reference
    overlap   collect the next rollout while all learn from the last: one update behind, and the same in every run
    free      each as fast as it can, within bounds

`loop.py` says what a loop is; `overlap.py` and `free.py` are two ways over the same `beside.py`: a side that learns
(`side.py`), and what stands in for the brains meanwhile (`understudy.py`). `options.py` says what may be asked for.
"""

from parallel_envs.learners.loops.accounts import Lag, LoopReport
from parallel_envs.learners.loops.loop import Loop, open_loop, run_loop
from parallel_envs.learners.loops.options import LoopOptions

__all__ = ["Lag", "Loop", "LoopOptions", "LoopReport", "open_loop", "run_loop"]
