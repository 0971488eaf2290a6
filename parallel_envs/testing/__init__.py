"""Environments and checks for tests: this project's own and those of its users.

- `ScriptedEnv`: every observation, reward, info and end follows from the seed and the actions, for any space.
- `FaultyEnv`: a `ScriptedEnv` that breaks in one chosen way at one chosen moment.
- `check_vector_env`: a vector env against Gymnasium's in-process one, step by step, to the bit.
- `assert_same_batch`: deep equality that minds dtype, shape, NaN and nesting.

A test of your own environment is then three lines:

    def test_my_env_is_the_same_in_workers() -> None:
        check_vector_env(MyEnv, seed=0, num_steps=200, num_envs=4, num_workers=2)
"""

from parallel_envs.testing.conformance import check_vector_env
from parallel_envs.testing.equality import Difference, assert_same_batch, first_difference
from parallel_envs.testing.faults import FAULTS_AT, Fault, FaultyEnv, Moment
from parallel_envs.testing.scripted import InfoKind, RewardKind, ScriptedEnv

__all__ = [
    "FAULTS_AT",
    "Difference",
    "Fault",
    "FaultyEnv",
    "InfoKind",
    "Moment",
    "RewardKind",
    "ScriptedEnv",
    "assert_same_batch",
    "check_vector_env",
    "first_difference",
]
