"""A guide to `EnvStateManager` with multiprocessing: each of its configurations and examples, as it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from parallel_envs.groups import EnvStateManager
from parallel_envs.testing import assert_same_batch

CONFIGURATION = """
es_manager:
  use_multiprocessing: true          # Enable/disable multiprocessing
  max_workers: 8                     # Number of worker processes (default: min(8, cpu_count()))
  sequential_env_types: []           # Environment types to force sequential processing
  format_penalty: 0.1               # Existing penalty for invalid actions
"""

OF_ONE_TYPE = """
# Force WebShop to use sequential processing
es_manager:
  use_multiprocessing: true
  sequential_env_types: ['webshop']
"""


SMALL: dict[str, Any] = {
    "es_manager": {
        "max_workers": 2,
        "train": {"env_groups": 2, "group_size": 2, "env_configs": {"tags": ["Room", "Shop"], "n_groups": [1, 1]}},
    },
    "custom_envs": {
        "Room": {"env_type": "sokoban", "env_config": {"num_boxes": 1}, "where": "process"},
        "Shop": {"env_type": "webshop", "where": "auto"},
    },
}
"""A small configuration with two env types. The default configuration has 128 envs, which is slow."""


def given(text: str, **changes: Any) -> dict[str, Any]:
    """A block of the guide as a dict, with few environments."""
    content = yaml.safe_load(text)
    block = {**content["es_manager"], **SMALL["es_manager"], **changes}
    return {"es_manager": block, "custom_envs": SMALL["custom_envs"]}


pytestmark = pytest.mark.filterwarnings("ignore:es_manager.format_penalty=0.1 is positive:UserWarning")
"""The guide's own value is positive, which the manager takes and warns of."""


def inputs(entries: Any, *actions: str) -> list[dict[str, Any]]:
    """The same answer to every entry."""
    said = {"llm_response": "", "llm_raw_response": "", "actions": list(actions)}
    return [{"env_id": entry["env_id"], **said} for entry in entries]


@pytest.mark.parametrize("text", [CONFIGURATION, OF_ONE_TYPE])
@pytest.mark.parametrize("as_file", [False, True])
def test_the_block_alone_is_a_configuration(text: str, as_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    config: Any = path if as_file else yaml.safe_load(text)
    with EnvStateManager(config, mode="train") as es_manager:
        said = es_manager.settings.es_manager
        assert (es_manager.num_envs, es_manager.group_size) == (128, 16)
        assert {seat.tag for seat in es_manager.envs} == {"CoordSokoban"}
        assert {name: getattr(said, name) for name in yaml.safe_load(text)["es_manager"]} == (
            yaml.safe_load(text)["es_manager"]
        )
    with EnvStateManager(config, mode="val") as es_manager:
        assert es_manager.num_envs == 512


@pytest.mark.slow
def test_basic_usage() -> None:
    config = yaml.safe_load(CONFIGURATION)
    # Automatic configuration-based behavior
    es_manager = EnvStateManager(config, mode="train")
    with es_manager:
        rollout_cache = es_manager.reset(seed=42)
        all_env_inputs = inputs(rollout_cache, "Up", "Left")
        env_outputs = es_manager.step(all_env_inputs)
        going = [env for env, status in enumerate(es_manager.statuses) if not (status.terminated or status.truncated)]
        assert [entry["env_id"] for entry in env_outputs] == going  # members of a group whose room is solved are over
        assert 0 < len(going) <= len(rollout_cache) == 128


@pytest.mark.parametrize(("text", "in_caller"), [(CONFIGURATION, ()), (OF_ONE_TYPE, ("Shop",))])
def test_sequential_processing_can_be_forced_and_changes_nothing(text: str, in_caller: tuple[str, ...]) -> None:
    told = []
    for is_switched in (False, True):
        with EnvStateManager(given(text), mode="train") as es_manager:
            entries = es_manager.reset(seed=42)
            assert es_manager.stats().num_workers == 2
            assert {*in_caller} <= {*es_manager.stats().in_caller}
            if is_switched:
                es_manager.use_multiprocessing = False
            told.append([entries, es_manager.step(inputs(entries, "Up", "Right")), es_manager.reset(seed=1)])
            assert (es_manager.stats().num_workers == 0) == is_switched
    assert_same_batch(told[1], told[0])
