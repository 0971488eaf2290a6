"""The groups and environments of a configuration that names none of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

TAG = "CoordSokoban"

CUSTOM_ENVS: Mapping[str, Any] = {
    TAG: {
        "env_type": "sokoban",
        "max_actions_per_traj": 10,
        "env_instruction": "You are solving the Sokoban puzzle. You are the player and push all boxes onto targets.",
        "max_tokens": 100,
        "env_config": {"observation_format": "grid_coord", "dim_room": [6, 6], "num_boxes": 1, "max_steps": 100},
    }
}
MODES: Mapping[str, Any] = {
    "train": {"env_groups": 8, "group_size": 16, "env_configs": {"tags": [TAG], "n_groups": [8]}},
    "val": {"env_groups": 32, "group_size": 16, "env_configs": {"tags": [TAG], "n_groups": [32]}},
}


def with_default_groups(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with these, if it has no groups in `es_manager` and no `custom_envs`.

    A configuration that has one of the two is returned as it is, since the other one's defaults would not fit to it.
    """
    block = content.get("es_manager")
    if "custom_envs" in content or not isinstance(block, Mapping) or MODES.keys() & block.keys():
        return dict(content)
    return copy.deepcopy({**content, "custom_envs": CUSTOM_ENVS, "es_manager": {**block, **MODES}})
