"""MettaGrid missions: a configuration as an environment whose every episode follows from its seed.

    parallel-envs eval -m "mettagrid.builder.envs:make_arena?num_agents=4" -p random

Wherever a mission is made and comes out as a `MettaGridConfig`, a `Grid` is made of it. Needs mettagrid (extra
`mettagrid`), which is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Named = dict[int, Any]


class Grid:
    """MettaGrid's own PettingZoo environment, one for each episode: agents are numbers, actions are discrete.

    An environment that is reset again plays another map, since its simulator counts maps; and a map that has no seed
    of its own is drawn anew. Here the map follows from the seed of the reset, as in MettaGrid's evaluations.
    """

    metadata: Mapping[str, Any] = {"name": "mettagrid"}
    render_mode = None

    def __init__(self, config: Any) -> None:
        from mettagrid.policy.policy_env_interface import PolicyEnvInterface

        self.config = config
        about = PolicyEnvInterface.from_mg_cfg(config)
        self._spaces = about.observation_space, about.action_space
        self.possible_agents = list(range(about.num_agents))
        self._env: Any = None

    @property
    def agents(self) -> list[int]:
        return [] if self._env is None else list(self._env.agents)

    def observation_space(self, agent: int) -> Any:
        return self._spaces[0]

    def action_space(self, agent: int) -> Any:
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        from mettagrid.envs.pettingzoo_env import MettaGridPettingZooEnv
        from mettagrid.runner.rollout import resolve_env_for_seed
        from mettagrid.simulator import Simulator

        self.close()
        number = 0 if seed is None else seed
        self._env = MettaGridPettingZooEnv(Simulator(), resolve_env_for_seed(self.config, number))
        told: tuple[Named, Named] = self._env.reset(seed=number)
        return told

    def step(self, actions: Mapping[int, Any]) -> tuple[Named, Named, Named, Named, Named]:
        told: tuple[Named, Named, Named, Named, Named] = self._env.step(actions)
        return told

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


def is_config(made: Any) -> bool:
    """Whether something is a configuration of MettaGrid's, found out without mettagrid."""
    kinds = type(made).__mro__
    return any((kind.__module__.split(".")[0], kind.__name__) == ("mettagrid", "MettaGridConfig") for kind in kinds)
