"""Environments and checks for tests: this project's own and those of its users.

- `ScriptedEnv`: an env for any spaces; every observation, reward, info and end follows from the seed and the actions.
- `FaultyEnv`: a `ScriptedEnv` that breaks in one chosen way at one chosen moment.
- `check_vector_env`: a comparison of a vector env with Gymnasium's `SyncVectorEnv`, step by step, to the bit.
- `assert_same_batch`: deep equality that includes dtype, shape, NaN and nesting.
- `BanditEnv`, `TabularMDPEnv`, `GridNaviEnv`, `PointRobotEnv`: small families of tasks for meta-RL.
- `ScriptedAgentsEnv`: a `ScriptedEnv` for PettingZoo, with agents that come and go by a schedule.
- `MatrixGame`: two agents and one payoff; the climbing and the penalty game.
- `AntDirection`: Gymnasium's Ant with a direction as its task; needs MuJoCo, so it is loaded on first use.

A test of your own environment is then three lines:

    def test_my_env_is_the_same_in_workers() -> None:
        check_vector_env(MyEnv, seed=0, num_steps=200, num_envs=4, num_workers=2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use
from parallel_envs.testing.conformance import Difference as Difference
from parallel_envs.testing.conformance import assert_same_batch as assert_same_batch
from parallel_envs.testing.conformance import check_vector_env as check_vector_env
from parallel_envs.testing.conformance import first_difference as first_difference
from parallel_envs.testing.families import BanditEnv as BanditEnv
from parallel_envs.testing.families import GridNaviEnv as GridNaviEnv
from parallel_envs.testing.families import PointRobotEnv as PointRobotEnv
from parallel_envs.testing.families import TabularMDP as TabularMDP
from parallel_envs.testing.families import TabularMDPEnv as TabularMDPEnv
from parallel_envs.testing.scripted import FAULTS_AT as FAULTS_AT
from parallel_envs.testing.scripted import Fault as Fault
from parallel_envs.testing.scripted import FaultyEnv as FaultyEnv
from parallel_envs.testing.scripted import InfoKind as InfoKind
from parallel_envs.testing.scripted import Moment as Moment
from parallel_envs.testing.scripted import RewardKind as RewardKind
from parallel_envs.testing.scripted import ScriptedEnv as ScriptedEnv

if TYPE_CHECKING:
    from parallel_envs.testing.ant_direction import AntDirection as AntDirection
    from parallel_envs.testing.matrix_games import MatrixGame as MatrixGame
    from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv as ScriptedAgentsEnv
    from parallel_envs.testing.scripted_agents import Stay as Stay

_HOMES = {  # modules that load MuJoCo or PettingZoo
    "AntDirection": "ant_direction",
    "MatrixGame": "matrix_games",
    "ScriptedAgentsEnv": "scripted_agents",
    "Stay": "scripted_agents",
    "TupleAgents": "tuple_agents",  # deprecated: it is in parallel_envs.multiagent
}

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
