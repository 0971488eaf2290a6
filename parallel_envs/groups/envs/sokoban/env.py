"""The game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_envs.groups.envs.facts import Step, StepCount, facts, number_of
from parallel_envs.groups.envs.sokoban.config import SokobanConfig
from parallel_envs.groups.envs.sokoban.drawing import Grid
from parallel_envs.groups.envs.sokoban.rooms import Room, after, make_room
from parallel_envs.groups.envs.tiles import render_mode, with_picture
from parallel_envs.seeding import SeedTree


class SokobanEnv:
    """Push the boxes onto the targets.

    Actions 1 to 4 go up, down, left, right, and push a box that is in the way if the tile behind it is free. What
    cannot be done is a step in vain (`action_is_effective` False).

    Rewards are those of gym-sokoban: -0.1 a step, 1 for a box that comes onto a target, -1 for one that leaves it, and
    10 more when all boxes are there, which terminates the episode.

    Rooms are made here, not with gym-sokoban's code, so that a seed gives another room than there. `room.solution`
    holds actions that solve the room, for oracles; no state tells them.
    """

    uses_global_random = False
    room: Room

    def __init__(self, config: SokobanConfig | None = None) -> None:
        self.config = config or SokobanConfig()
        self.action_lookup: Mapping[Any, str] | None = dict(self.config.action_lookup)
        self._count = StepCount(self.config.max_steps)

    def reset(self, seed: int, mode: str = "train") -> Any:
        self.room = make_room(self.config, SeedTree(seed).child("sokoban").generator())
        self._moves = self.room.moves
        self._position = (self.room.player, self.room.boxes)
        self._on_target = 0  # no box begins there
        self._grid = Grid(self.room, self.config.grid_lookup)
        self._count.start()
        return self._state()

    def step(self, action: Any) -> Step:
        self._count.tick()
        number = number_of(action)
        move = None if number is None else self._moves.get(number)
        effective = move is not None and self._go(move)
        on_target = len(self._position[1] & self.room.targets) if effective else self._on_target
        won = on_target == self.config.num_boxes
        reward = self.config.step_reward + self.config.box_reward * (on_target - self._on_target)
        self._on_target = on_target
        truncated = self._count.close(won)
        info = facts(success=won, valid=move is not None, effective=effective, boxes_on_target=on_target)
        return self._state(), reward + (self.config.success_reward if won else 0.0), won, truncated, info

    def _go(self, move: int) -> bool:
        """Do a move; False where it is in vain."""
        before = self._position
        self._position = player, boxes = after(self.room.floor, before, move)
        if player == before[0]:
            return False
        self._grid.redraw(
            (before[0], player, player + move) if boxes is not before[1] else (before[0], player), player, boxes
        )
        return True

    def _state(self) -> Any:
        if self.config.render_mode == "rgb_array":
            return with_picture(self._grid.picture())
        return self._grid.described(self.config.observation_format)

    def render(self, mode: str | None = None) -> Any:
        """The room as text or as an RGB array; by default as states show it."""
        if render_mode(mode, self.config.render_mode) == "rgb_array":
            return self._grid.picture()
        return self._grid.described(self.config.observation_format)

    def metrics(self) -> Mapping[str, float]:
        """Boxes on targets, and the moves of the solution that is known."""
        return {"boxes_on_target": self._on_target, "solution_steps": len(self.room.solution)}

    def close(self) -> None:
        """Nothing is held."""
