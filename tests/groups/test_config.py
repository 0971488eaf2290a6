"""Every mistake in a configuration is told, with where it is; every way to give one means the same."""

from __future__ import annotations

import copy
import functools
import operator
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from parallel_envs.groups import BadSettings, EnvStateManager, GroupsSettings, known_env_types, register
from parallel_envs.groups.config import read_settings
from parallel_envs.groups.registry import env_type_named
from tests.groups.walks import Walk, of_block

GUIDE = """
trainer: {project: somebody else reads this}
seed: {train: 10000, val: 123}
es_manager:
  use_multiprocessing: true
  max_workers: 8
  sequential_env_types: ['webshop']
  format_penalty: -0.1
  train: {env_groups: 3, group_size: 2, env_configs: {tags: [Walk, Talk], n_groups: [1, 2]}}
  val: {env_groups: 1, group_size: 1, env_configs: {tags: [Walk], n_groups: [1]}}
custom_envs:
  Walk:
    env_type: walk
    max_actions_per_traj: 7
    env_instruction: Walk to the goal.
    max_tokens: 100
    parallel_friendly: false
    max_workers: 32
    env_config: {goal: 3}
  Talk: {env_type: talk, env_config: null}
"""


def test_a_file_a_dict_and_settings_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(GUIDE)
    from_file = EnvStateManager(path)
    content = yaml.safe_load(GUIDE)
    for given in (str(path), content):
        assert EnvStateManager(given).settings == from_file.settings
    made = GroupsSettings.model_validate({name: content[name] for name in content if name != "trainer"})
    assert EnvStateManager(made).num_envs == 6
    assert from_file.settings == EnvStateManager(from_file.settings, "val").settings
    seat = from_file.envs[1]
    assert (seat.env_id, seat.group_id, seat.tag, seat.env_type) == (1, 0, "Walk", "walk")
    assert (seat.max_actions_per_traj, seat.env_instruction, seat.max_tokens) == (7, "Walk to the goal.", 100)
    assert seat.config.goal == 3
    assert [seat.tag for seat in from_file.envs] == ["Walk"] * 2 + ["Talk"] * 4
    assert EnvStateManager(path, "val").num_envs == 1


class Wrapped(UserDict[str, Any]):  # a mapping that is no dict, as those of configuration libraries are
    def __getitem__(self, key: str) -> Any:
        value = self.data[key]
        return Wrapped(value) if isinstance(value, dict) else value


def test_any_mapping_will_do_and_is_left_alone_and_numbers_may_be_spelt_as_yaml_has_them() -> None:
    places = ("es_manager.max_workers", 2.0, "es_manager.format_penalty", "-1e-3", "es_manager.step_timeout", 5)
    content = changed(*places)
    before = copy.deepcopy(content)
    assert read_settings(Wrapped(content)) == read_settings(content)
    assert content == before
    said = read_settings(content).es_manager
    assert (said.max_workers, type(said.max_workers), said.format_penalty, said.step_timeout) == (2, int, -0.001, 5.0)


@dataclass(frozen=True)
class BareConfig:
    """No fields."""


GONE = object()


def changed(*changes: Any) -> dict[str, Any]:
    """The guide's configuration with other values: the place of each in dots, and the value."""
    content: Any = yaml.safe_load(GUIDE)
    for place, value in zip(changes[::2], changes[1::2], strict=True):
        *path, name = place.split(".")
        block = functools.reduce(operator.getitem, path, content)
        block.pop(name, None)
        if value is not GONE:
            block[name] = value
    return dict(content)


LATE = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["Late"], "n_groups": [1]}}
MANAGER, TRAIN, TAGS, WALK = "es_manager", "es_manager.train", "es_manager.train.env_configs", "custom_envs.Walk"
UNUSED, AT_LEAST = "custom_envs.Unused", "Input should be greater than or equal to"


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("custom_env", {}, "`custom_env` is unknown. Did you mean `custom_envs`?"),
        ("custom_envs", GONE, "`custom_envs` is missing."),
        ("custom_envs", {}, "`custom_envs` is empty. Give it a block for each tag"),
        (TRAIN, GONE, "`es_manager.train` is missing, and mode='train' was asked for."),
        (TRAIN, 5, "In the configuration:\n  `es_manager.train: 5`: Input should be a block of settings"),
        (WALK, "walk", "settings. Did you mean `custom_envs.Walk: {env_type: walk}`?"),
        (f"{WALK}.env_config", "big", "`custom_envs.Walk.env_config: 'big'`: Input should be a block of settings."),
        (TAGS, "Walk", "settings. Did you mean `es_manager.train.env_configs: {tags: [Walk]}`?"),
        (f"{MANAGER}.max_worker", 2, "`es_manager.max_worker` is unknown. Did you mean `max_workers`?"),
        (f"{MANAGER}.max_workers", 0, "`es_manager.max_workers: 0`: Input should be greater than 0"),
        (f"{MANAGER}.context", "thread", "`es_manager.context: 'thread'`: Input should be 'forkserver', 'spawn' or"),
        (f"{MANAGER}.format_penalty", float("nan"), "`es_manager.format_penalty: nan`: Input should be a finite"),
        (f"{MANAGER}.sequential_env_types", ["web_shop"], "'web_shop', which is no env_type. Did you mean `webshop`?"),
        (f"{TRAIN}.groupsize", 2, "`es_manager.train.groupsize` is unknown. Did you mean `group_size`?"),
        (f"{TAGS}.tag", [], "`es_manager.train.env_configs.tag` is unknown. Did you mean `tags`?"),
        (f"{TRAIN}.env_groups", 4, "train` has env_groups=4, tags=['Walk', 'Talk'] and n_groups=[1, 2]."),
        ("es_manager.val.env_configs.n_groups", [1, 1], "tags=['Walk'] and n_groups=[1, 1]. Give"),
        (f"{TAGS}.tags", ["Walk", "Tolk"], "tags` is not in `custom_envs`. Did you mean `Talk`?"),
        (f"{WALK}.env_type", "wolk", "In `custom_envs.Walk`: env_type='wolk' is unknown. Did you mean `walk`?"),
        (f"{WALK}.max_actions", 3, "`custom_envs.Walk.max_actions` is unknown. Did you mean `max_actions_per_traj`?"),
        (f"{WALK}.where", "proces", "'auto', 'process', 'caller' or 'both'. Did you mean 'process'?"),
        (f"{WALK}.env_config", {"gaol": 3}, "`custom_envs.Walk.env_config.gaol` is unknown. Did you mean `goal`?"),
        (f"{WALK}.env_config", {"goal": "far"}, "Walk.env_config.goal: 'far'`: Input should be a valid integer"),
        (WALK, {"env_type": "bare", "env_config": {"goal": 3}}, "env_config.goal` is unknown. 'bare' takes nothing. L"),
        (WALK, {"env_type": "bandit", "env_config": {"split": "tset"}}, "Did you mean 'test'?"),
        (UNUSED, {"env_type": "sokobn"}, "In `custom_envs.Unused`: env_type='sokobn' is unknown. Did yo"),
        (UNUSED, {"env_type": "sokoban", "env_config": {"num_boxes": 0}}, f"env_config.num_boxes: 0`: {AT_LEAST} 1."),
        ("seed", {"trian": 1}, "In the configuration:\n  `seed.trian` is unknown. Did you mean `train`?"),
        ("seed", -1, f"In the configuration:\n  `seed.train: -1`: {AT_LEAST} 0."),
        ("seed", {"val": -1}, f"\n  `seed.val: -1`: {AT_LEAST} 0."),
        # fields of other blocks
        ("es_manager.seed", 3, "`es_manager.seed` is unknown. It is `seed`."),
        (f"{TRAIN}.n_groups", [3], "It is `es_manager.train.env_configs.n_groups`."),
        (f"{TAGS}.group_size", 3, "It is `es_manager.train.group_size`."),
        (f"{WALK}.step_timeout", 1.0, "It is `es_manager.step_timeout`."),
        (f"{WALK}.goal", 3, "What the environment is made with stands in `custom_envs.Walk.env_config`."),
        ("step_timeot", 1, "`step_timeot` does not stand at the top. Write it as `es_manager.step_timeout`"),
        ("env_type", 1, "`env_type` does not stand at the top. Write it as `custom_envs.TAG.env_type`"),
        ("n_groups", 1, f"does not stand at the top. Write it as `{TAGS}.n_groups`"),
    ],
)
def test_mistakes_are_told(place: str, value: Any, text: str) -> None:
    register("bare", lambda config: config, BareConfig)
    with pytest.raises(BadSettings) as caught:
        EnvStateManager(changed(place, value))
    assert text in str(caught.value)


def test_a_tag_of_an_unknown_type_is_told_once_a_mode_names_it() -> None:
    later = changed("custom_envs.Later", {"env_type": "quidditch", "env_config": {"any": 1}})
    others: dict[Any, Any] = {3: "three", None: {"a": 1}, "train": {"learning_rate": 0.1}, "tags": ["a run"]}
    # another script may register it, and other names at the top may be anything
    assert EnvStateManager({**later, **others}).num_envs == 6
    with pytest.raises(BadSettings, match=r"In `custom_envs.Late`: env_type='xyz' is unknown. Known are"):
        EnvStateManager(changed("custom_envs.Late", {"env_type": "xyz"}, "es_manager.val", LATE))


def test_files_and_arguments_that_cannot_be_read_or_registered_are_told(tmp_path: Path) -> None:
    broken, listed = tmp_path / "broken.yaml", tmp_path / "listed.yaml"
    broken.write_text("a: [")
    listed.write_text("[1]")
    content = yaml.safe_load(GUIDE)
    make: Any = EnvStateManager
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: make(tmp_path / "none.yaml"), BadSettings, "cannot be read"),
        (lambda: make(broken), BadSettings, "is not YAML"),
        (lambda: make(listed), BadSettings, "holds list"),
        (lambda: make(3), BadSettings, "The configuration is a int"),
        (lambda: make(content, "test"), BadSettings, "mode='test' is unknown"),
        (lambda: make({}, mod="val"), TypeError, r"mod='val' is no argument of EnvStateManager. Did you mean mode=\?"),
        (lambda: register("sokoban", Walk), BadSettings, "this one comes with the package"),
        (lambda: register("", Walk), BadSettings, "env_type='' cannot be registered. Give a word"),
        (lambda: register("mine", Walk({})), BadSettings, "Give a class or"),  # type: ignore[arg-type]  # any object
        (lambda: register("mine", Walk, dict), BadSettings, "Give a frozen dataclass"),
        (lambda: register("mine", dict, lihgt=True), TypeError, "Did you mean light="),  # type: ignore[call-arg]  # that
    ]
    for call, kind, text in calls:
        with pytest.raises(kind, match=text):
            call()
    register("walk", dict)  # a name of the user's may be given anew
    assert env_type_named("walk").factory is dict
    assert known_env_types().count("walk") == 1


# ---- configs of one's own -------------------------------------------------------------------------------------------


class Own:
    """A type that no checker knows."""


@dataclass(frozen=True)
class DeepConfig:
    flags: list[bool] = field(default_factory=list)
    sizes: dict[int, tuple[int, float]] = field(default_factory=dict)
    level: int = 1

    def __post_init__(self) -> None:
        if self.level > 5:
            raise TypeError(f"level={self.level} is too high. Give at most 5.")


@dataclass(frozen=True)
class OwnConfig(DeepConfig):
    own: Own = field(default_factory=Own)


def test_configs_of_ones_own_are_held_to_their_types_and_checks() -> None:
    def of_type(name: str, config: dict[str, Any]) -> Any:
        return EnvStateManager(of_block({"env_type": name, "env_config": config})).envs[0].config

    register("deep", lambda config: config, DeepConfig)
    register("own", lambda config: config, OwnConfig)
    good = {"flags": [False], "sizes": {"1": [2.0, 3]}, "level": 2}
    assert of_type("deep", good) == DeepConfig([False], {1: (2, 3.0)}, 2)
    assert of_type("own", {"level": 2}).level == 2
    bad: list[tuple[str, Any, str]] = [
        ("deep", {"flags": [True, "x"]}, "`custom_envs.Walk.env_config.flags.1: 'x'`: Input"),
        ("deep", {"sizes": {1: [2.5, 2]}}, r"`custom_envs.Walk.env_config.sizes.1.0: 2.5`: Input"),
        *[(name, {"level": 6}, "`custom_envs.Walk.env_config`: level=6 is too high") for name in ("deep", "own")],
    ]
    for name, given, text in bad:
        with pytest.raises(BadSettings, match=text):
            of_type(name, given)
