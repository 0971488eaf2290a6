"""A module that registers an environment with PettingZoo when it is imported, as packages do."""

from __future__ import annotations

import pettingzoo

from parallel_envs.testing import ScriptedAgentsEnv
from tests.multiagent.scripts import scripted, together


def make_together() -> ScriptedAgentsEnv:
    return scripted(together(2))()


if hasattr(pettingzoo, "register"):
    pettingzoo.register("parallel", "tests/registered-v1", make_together)
