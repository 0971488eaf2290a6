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

    MettaGrid's simulator counts the maps that it has made and adds their number to the map's seed, and MettaGrid's
    environment makes one map when it is constructed and another when it is reset. A map without a seed is drawn anew.
    Here the map follows from the seed of the reset alone, so an episode is the one that MettaGrid's
    `run_episode_local` plays with this seed.
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

        self.close()
        number = 0 if seed is None else seed
        self._env = MettaGridPettingZooEnv(_simulator_of_one_map(), resolve_env_for_seed(self.config, number))
        told: tuple[Named, Named] = self._env.reset(seed=number)
        return told

    def step(self, actions: Mapping[int, Any]) -> tuple[Named, Named, Named, Named, Named]:
        told: tuple[Named, Named, Named, Named, Named] = self._env.step(actions)
        return told

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _simulator_of_one_map() -> Any:
    """Return a simulator whose maps all have the seed of their configuration, however many it has made."""
    from mettagrid.simulator import Simulator

    class SimulatorOfOneMap(Simulator):  # type: ignore[misc]  # mettagrid need not be installed
        def next_map_seed(self, base_seed: int) -> int:
            return base_seed

    return SimulatorOfOneMap()


def is_config(made: Any) -> bool:
    """Whether something is a configuration of MettaGrid's, found out without mettagrid."""
    kinds = type(made).__mro__
    return any((kind.__module__.split(".")[0], kind.__name__) == ("mettagrid", "MettaGridConfig") for kind in kinds)
