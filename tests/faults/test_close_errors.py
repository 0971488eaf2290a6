"""An environment that cannot be closed is named, once and shortly."""

from __future__ import annotations

from pathlib import Path

from tests.engine.scripts import run_script

SCRIPT = """
import gymnasium as gym
from parallel_envs import ParallelEnvManager

class Unclosable(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def close(self):
        raise RuntimeError("the door is stuck")

ParallelEnvManager([Unclosable] * 3, num_workers=2).close()
"""


def test_it_is_told_which_could_not_be_closed(tmp_path: Path) -> None:
    told = run_script(tmp_path, SCRIPT, "forkserver").stderr
    assert told.count("] RuntimeError: the door is stuck") == 2  # the first of each worker
    assert "[env worker 0] This is what env 0 raised when it was closed." in told
    assert "[env worker 1] This is what env 2 raised when it was closed." in told
    assert "host.py" not in told  # the way there is ours, and nobody's business
