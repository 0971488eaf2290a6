"""An env that forks has one worker still, and the arrays are written by nobody else."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


class Forking(CountingEnv):
    """Forks in each step; the other process raises, or goes on. The reward tells with which status that one ended."""

    def __init__(self, status: int | None) -> None:
        super().__init__(100)
        self.status = status

    def step(self, action: Any) -> Any:
        pid = os.fork()
        if pid == 0:
            if self.status is not None:
                sys.exit(self.status)
            return np.array([9, 9]), 9.0, False, False, {"astray": 1}
        result = super().step(action)
        return result[0], float(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), *result[2:]


@pytest.mark.parametrize("status", [0, 5, None])
def test_what_it_forked_ends_as_it_wished_and_answers_nothing(make_process: Make, status: int | None) -> None:
    envs = make_process([partial(Forking, status), partial(CountingEnv, 100)], num_workers=1)
    envs.reset()
    for number in range(1, 4):
        observations, rewards, _, _, infos = envs.step(np.zeros(2, int))
        assert observations[:, 1].tolist() == [number] * 2
        assert rewards[0] == (1.0 if status is None else float(status))
        assert "astray" not in infos
