"""Every mistake in a configuration is told, with where it is; every way to give one means the same."""

from __future__ import annotations

import copy
from collections import UserDict
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


def test_any_mapping_will_do_and_is_left_alone() -> None:
    content = yaml.safe_load(GUIDE)
    before = copy.deepcopy(content)
    assert read_settings(Wrapped(content)) == read_settings(content)
    assert content == before


@dataclass(frozen=True)
class BareConfig:
    """Nothing to be said."""


GONE = object()


def changed(*changes: Any) -> dict[str, Any]:
    """The guide's configuration with other values: the place of each in dots, and the value."""
    content: Any = yaml.safe_load(GUIDE)
    for place, value in zip(changes[::2], changes[1::2], strict=True):
        *path, name = place.split(".")
        block = content
        for step in path:
            block = block[step]
        if value is GONE:
            del block[name]
        else:
            block[name] = value
    return dict(content)


LATE = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["Late"], "n_groups": [1]}}
TRAIN, WALK = "es_manager.train", "custom_envs.Walk"
NUMBERED = {"env_type": "gymnasium", "env_config": {"id": "FrozenLake-v1", "actions": ["left", "down"]}}
BOXLESS = {"env_type": "sokoban", "env_config": {"num_boxes": 0}}
WHOLE = ["seed.train", "es_manager.max_workers", f"{TRAIN}.group_size", f"{WALK}.max_actions_per_traj"]


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("custom_env", {}, "`custom_env` is unknown. Did you mean `custom_envs`?"),
        ("custom_envs", GONE, "`custom_envs` is missing."),
        ("custom_envs", {}, "`custom_envs` is empty. Give it a block for each tag"),
        (TRAIN, GONE, "`es_manager.train` is missing, and mode='train' was asked for."),
        (TRAIN, 5, "\n  `es_manager.train: 5`: Input should be a valid dictionary."),
        ("es_manager.max_worker", 2, "`es_manager.max_worker` is unknown. Did you mean `max_workers`?"),
        ("es_manager.max_workers", 0, "`es_manager.max_workers: 0`: Input should be greater than 0"),
        ("es_manager.context", "thread", "context: 'thread'` is unknown. Known are `fork`, `forkserver`, `spawn`."),
        ("es_manager.format_penalty", float("nan"), "`es_manager.format_penalty: nan`: Input should be a finite"),
        ("es_manager.sequential_env_types", ["web_shop"], "'web_shop', which is no env_type. Did you mean `webshop`?"),
        (f"{TRAIN}.groupsize", 2, "`es_manager.train.groupsize` is unknown. Did you mean `group_size`?"),
        (f"{TRAIN}.env_configs.tag", [], "`es_manager.train.env_configs.tag` is unknown. Did you mean `tags`?"),
        (f"{TRAIN}.env_groups", 4, "train` has env_groups=4, tags=['Walk', 'Talk'] and n_groups=[1, 2]."),
        ("es_manager.val.env_configs.n_groups", [1, 1], "tags=['Walk'] and n_groups=[1, 1]. Give"),
        (f"{TRAIN}.env_configs.tags", ["Walk", "Tolk"], "tags` is not in `custom_envs`. Did you mean `Talk`?"),
        (f"{WALK}.env_type", "wolk", "In `custom_envs.Walk`: env_type='wolk' is unknown. Did you mean `walk`?"),
        (f"{WALK}.max_actions", 3, "`custom_envs.Walk.max_actions` is unknown. Did you mean `max_actions_per_traj`?"),
        (f"{WALK}.where", "proces", "`custom_envs.Walk.where: 'proces'` is unknown. Did you mean `process`?"),
        (f"{WALK}.env_config", {"gaol": 3}, "`custom_envs.Walk.env_config.gaol` is unknown. Did you mean `goal`?"),
        (f"{WALK}.env_config", {"goal": "far"}, "Walk.env_config`:\n  `goal: 'far'`: Input should be a valid integer"),
        (WALK, {"env_type": "bare", "env_config": {"goal": 3}}, "env_config.goal` is unknown. 'bare' takes nothing. L"),
        (WALK, {"env_type": "bandit", "env_config": {"render_mode": "txt"}}, "'txt'` is unknown. Did you mean `text`?"),
        (WALK, NUMBERED, "`: Input should be a valid dictionary. Did you mean `{0: 'left', 1: 'down'}`?"),
        ("custom_envs.Unused", {"env_type": "sokobn"}, "In `custom_envs.Unused`: env_type='sokobn' is unknown. Did yo"),
        ("custom_envs.Unused", BOXLESS, "In `custom_envs.Unused.env_config`:\n  num_boxes=0 is out of range"),
        ("seed", {"trian": 1}, "In the configuration:\n  `seed.trian` is unknown. Did you mean `train`?"),
        ("seed", -1, "In the configuration:\n  `seed.train: -1`: Input should be greater than or equal to 0."),
        ("seed", {"val": -1}, "\n  `seed.val: -1`: Input should be greater than or equal to 0."),
        # what stands elsewhere
        ("es_manager.seed", 3, "`es_manager.seed` is unknown. It stands elsewhere: write it as `seed`."),
        (f"{TRAIN}.n_groups", [3], "write it as `es_manager.train.env_configs.n_groups`."),
        (f"{TRAIN}.env_configs.group_size", 3, "It stands elsewhere: write it as `es_manager.train.group_size`."),
        (f"{WALK}.step_timeout", 1.0, "It stands elsewhere: write it as `es_manager.step_timeout`."),
        (f"{WALK}.goal", 3, "What the environment is made with stands in `custom_envs.Walk.env_config`."),
        ("step_timeot", 1, "`step_timeot` does not stand at the top. Write it as `es_manager.step_timeout`"),
        ("env_type", 1, "`env_type` does not stand at the top. Write it as `custom_envs.TAG.env_type`"),
        ("group_size", 1, f"`group_size` does not stand at the top. Write it as `{TRAIN}.group_size`"),
        ("n_groups", 1, f"does not stand at the top. Write it as `{TRAIN}.env_configs.n_groups`"),
        # truths, numbers and text are not one another
        *[(place, True, f"`{place}: True`: Input should be a valid integer") for place in WHOLE],
        ("es_manager.max_workers", "8", "`es_manager.max_workers: '8'`: Input should be a valid integer"),
        ("es_manager.use_multiprocessing", 1, "`es_manager.use_multiprocessing: 1`: Input should be a valid boolean"),
        (f"{WALK}.parallel_friendly", "true", "friendly: 'true'`: Input should be a valid boolean"),
        ("es_manager.format_penalty", True, "`es_manager.format_penalty: True`: Input should be a valid number"),
        ("es_manager.step_timeout", False, "`es_manager.step_timeout: False`: Input should be a valid number"),
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


def test_files_and_arguments_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    broken, listed = tmp_path / "broken.yaml", tmp_path / "listed.yaml"
    broken.write_text("a: [")
    listed.write_text("[1]")
    calls: list[Any] = [(tmp_path / "none.yaml", "cannot be read"), (broken, "is not YAML"), (listed, "holds list")]
    for given, text in [*calls, (3, "The configuration is a int")]:
        with pytest.raises(BadSettings, match=text):
            EnvStateManager(given)
    with pytest.raises(BadSettings, match="mode='test' is unknown"):
        EnvStateManager(yaml.safe_load(GUIDE), "test")  # type: ignore[arg-type]  # what this is about
    with pytest.raises(TypeError, match=r"mod='val' is no argument of EnvStateManager. Did you mean mode=\?"):
        EnvStateManager({}, mod="val")  # type: ignore[call-arg]  # the mistake


def test_numbers_may_be_spelt_as_yaml_has_them() -> None:
    places = ("es_manager.max_workers", 2.0, "es_manager.format_penalty", "-1e-3", "es_manager.step_timeout", 5)
    said = read_settings(changed(*places)).es_manager
    assert (said.max_workers, type(said.max_workers), said.format_penalty, said.step_timeout) == (2, int, -0.001, 5.0)


# ---- configs of one's own -------------------------------------------------------------------------------------------


class Own:
    """A type that no checker knows."""


@dataclass(frozen=True)
class DeepConfig:  # truths and numbers wherever they may stand, a type of its own, and a check of its own
    either: int | str = 0
    flags: list[bool] = field(default_factory=list)
    sizes: dict[int, tuple[int, float]] = field(default_factory=dict)
    default: int | None = None
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
    good = {"either": "4", "flags": [False], "sizes": {"1": [2.0, 3]}, "default": None, "level": 2}
    assert of_type("deep", good) == DeepConfig("4", [False], {1: (2, 3.0)}, None, 2)
    assert of_type("own", {"level": 2}).level == 2
    bad: list[tuple[Any, str]] = [
        ({"either": True}, "`either[.:]"),
        ({"flags": [True, 1]}, "`flags.1[.:]"),
        ({"default": True}, "`default[.:]"),
        ({"sizes": {1: [True, 2]}}, "`sizes.1.0[.:]"),
        ({"sizes": {1: [1, False]}}, "`sizes.1.1[.:]"),
        ({"level": 6}, "level=6 is too high"),
    ]
    for given, text in bad:
        with pytest.raises(BadSettings, match=text):
            of_type("deep", given)
    with pytest.raises(BadSettings, match=r"In `custom_envs.Walk.env_config`: level=6 is too high"):
        of_type("own", {"level": 6})


# ---- environments by name -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        (("sokoban", Walk), {}, BadSettings, "comes with this package"),
        (("", Walk), {}, BadSettings, "is not a name"),
        ((3, Walk), {}, BadSettings, "is not a name"),
        (("mine", Walk({})), {}, BadSettings, "does not fit. Give a class or"),  # type: ignore[arg-type]  # any object
        (("mine", Walk, dict), {}, BadSettings, "Give a frozen dataclass"),
        (("walk", dict), {"light": "yes"}, BadSettings, "light='yes' of 'walk' does not fit. Give True or False"),
        (("mine", dict), {"lihgt": True}, TypeError, r"lihgt=True is no argument of register. Did you mean light=\?"),
    ],
)
def test_what_cannot_be_registered(arguments: Any, options: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        register(*arguments, **options)


def test_a_name_of_the_users_may_be_given_anew_and_unknown_ones_are_told_with_the_nearest() -> None:
    register("walk", dict)
    assert env_type_named("walk").factory is dict
    assert known_env_types().count("walk") == 1
