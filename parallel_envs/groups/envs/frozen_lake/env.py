"""The game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Env
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

from parallel_envs.groups.envs.facts import Step, StepCount, facts, number_of
from parallel_envs.groups.envs.frozen_lake.config import ACTIONS, FrozenLakeConfig
from parallel_envs.groups.envs.frozen_lake.drawing import as_picture, as_text, tiles_of
from parallel_envs.groups.envs.frozen_lake.maps import make_map
from parallel_envs.groups.envs.tiles import render_mode, with_picture
from parallel_envs.seeding import SeedTree


class FrozenLakeEnv:
    """Cross the ice to the goal without falling into a hole.

    Gymnasium's own FrozenLake lies underneath: reward 1 at the goal and 0 elsewhere; the goal and the holes terminate
    the episode. Actions 1 to 4 go left, down, right, up; on slippery ice, where they want to or to either side of that.

    Each reset makes a map: the start is at the top left, the goal at the bottom right, and there is a way over ice. The
    seed decides the map and where one slips. An action is in vain (`action_is_effective` False) if it ends where it
    began.
    """

    uses_global_random = False

    def __init__(self, config: FrozenLakeConfig | None = None) -> None:
        self.config = config or FrozenLakeConfig()
        self.action_lookup: Mapping[Any, str] | None = dict(self.config.action_lookup)
        self._count = StepCount(self.config.max_steps)

    def reset(self, seed: int, mode: str = "train") -> Any:
        tree = SeedTree(seed).child("frozen lake")
        self._map = make_map(self.config.size, self.config.p, tree.child("map").generator())
        slippery, rate = self.config.is_slippery, self.config.success_rate
        self._lake: Env[Any, Any] = Lake(desc=self._map, is_slippery=slippery, success_rate=rate)
        self._place, _ = self._lake.reset(seed=tree.child("ice").seed())
        self._success = False
        self._count.start()
        return self._state()

    def step(self, action: Any) -> Step:
        self._count.tick()
        way = number_of(action)
        if way is None or way not in ACTIONS:
            return self._outcome(0, terminated=False, valid=False, effective=False)
        before = self._place
        self._place, reward, terminated, _, _ = self._lake.step(way - 1)
        self._success = self._tile(*divmod(self._place, self.config.size)) == "G"
        return self._outcome(int(float(reward)), terminated, valid=True, effective=self._place != before)

    def _outcome(self, reward: float, terminated: bool, *, valid: bool, effective: bool) -> Step:
        info = facts(success=self._success, valid=valid, effective=effective)
        return self._state(), reward, terminated, self._count.close(terminated), info

    def _tile(self, row: int, column: int) -> str:
        return self._map[row][column]

    def _state(self) -> Any:
        rendered = self.render()
        return rendered if self.config.render_mode == "text" else with_picture(rendered)

    def render(self, mode: str | None = None) -> Any:
        """The lake as text or as an RGB array; by default as states show it."""
        tiles = tiles_of(self._map, self._place)
        if render_mode(mode, self.config.render_mode) == "rgb_array":
            return as_picture(tiles)
        return as_text(tiles, self.config.grid_lookup, self.config.observation_format)

    def metrics(self) -> Mapping[str, float]:
        """How far the goal is, in tiles."""
        row, column = divmod(self._place, self.config.size)
        return {"tiles_to_goal": 2 * (self.config.size - 1) - row - column}

    def close(self) -> None:
        self._lake = Lake(desc=["SG"])  # the tables of large maps are large
