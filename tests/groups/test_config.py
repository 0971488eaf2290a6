"""Every mistake in a configuration is told, with where it is; every way to give one means the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from parallel_envs.groups import BadSettings, EnvStateManager, GroupsSettings, register
from parallel_envs.groups.config_reader import read_settings
from tests.groups.walks import TAGS, configured

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
    assert from_file.settings == EnvStateManager(yaml.safe_load(GUIDE)).settings
    assert from_file.settings == EnvStateManager(from_file.settings, "val").settings
    assert EnvStateManager(str(path)).settings == from_file.settings
    seat = from_file.envs[1]
    assert (seat.env_id, seat.group_id, seat.tag, seat.env_type) == (1, 0, "Walk", "walk")
    assert (seat.max_actions_per_traj, seat.env_instruction, seat.max_tokens) == (7, "Walk to the goal.", 100)
    assert seat.config.goal == 3
    assert [seat.tag for seat in from_file.envs] == ["Walk"] * 2 + ["Talk"] * 4
    assert EnvStateManager(path, "val").num_envs == 1


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("step_timeout", "es_manager.step_timeout"),
        ("env_type", "custom_envs.TAG.env_type"),
        ("group_size", "es_manager.train.group_size"),
        ("env_groups", "es_manager.train.env_groups"),
        ("n_groups", "es_manager.train.env_configs.n_groups"),
    ],
)
def test_words_at_the_top_that_belong_further_in_are_told_where(word: str, right: str) -> None:
    with pytest.raises(BadSettings, match=f"`{word}` does not stand at the top. Write it as `{right}`"):
        EnvStateManager({**configured({"Walk": 1}), word: 1})


class Wrapped(Mapping[str, Any]):
    """A mapping that is no dict, as those of configuration libraries are."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def __getitem__(self, key: str) -> Any:
        value = self._content[key]
        return Wrapped(value) if isinstance(value, dict) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)


def test_a_block_of_groups_at_the_top_is_told_where_it_belongs() -> None:
    content = yaml.safe_load(GUIDE)
    with pytest.raises(BadSettings, match=r"`train` does not stand at the top. Write it as `es_manager.train`"):
        EnvStateManager({**content, "train": {"env_groups": 1, "group_size": 2}})
    assert EnvStateManager({**content, "train": {"learning_rate": 0.1}, "tags": ["a run"]}).num_envs == 6


def test_other_names_at_the_top_may_be_anything() -> None:
    others: dict[Any, Any] = {3: "three", None: {"a": 1}, "actor_rollout": {}}
    assert EnvStateManager({**yaml.safe_load(GUIDE), **others}).num_envs == 6


def test_a_misspelt_word_of_the_manager_at_the_top_is_told() -> None:
    with pytest.raises(BadSettings, match=r"`step_timeot` is unknown. Did you mean `es_manager.step_timeout`"):
        EnvStateManager({**yaml.safe_load(GUIDE), "step_timeot": 1})


def test_any_mapping_will_do_and_is_left_alone() -> None:
    content = yaml.safe_load(GUIDE)
    before = copy.deepcopy(content)
    assert read_settings(Wrapped(content)) == read_settings(content)
    assert content == before


@dataclass(frozen=True)
class BareConfig:
    """Nothing to be said."""


@pytest.fixture(autouse=True)
def _bare(_registered: None) -> None:
    register("bare", lambda config: config, BareConfig)


def block_of(tag: str) -> dict[str, Any]:
    return {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}


def put(content: dict[str, Any], *words: Any) -> None:
    """Put the last of the words where the others lead."""
    *path, name, value = words
    for step in path:
        content = content[step]
    content[name] = value


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(GUIDE)
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(custom_env={}), "`custom_env` is unknown. Did you mean `custom_envs`?"),
        (lambda c: c.pop("custom_envs"), "`custom_envs` is missing."),
        (
            lambda c: c["es_manager"].update(max_worker=2),
            "`es_manager.max_worker` is unknown. Did you mean `max_workers`?",
        ),
        (
            lambda c: c["es_manager"].update(max_workers=0),
            "`es_manager.max_workers: 0`: Input should be greater than 0",
        ),
        (
            lambda c: c["es_manager"]["train"].update(groupsize=2),
            "`es_manager.train.groupsize` is unknown. Did you mean `group_size`?",
        ),
        (
            lambda c: c["es_manager"]["train"]["env_configs"].update(tag=[]),
            "`es_manager.train.env_configs.tag` is unknown. Did you mean `tags`?",
        ),
        (
            lambda c: c["es_manager"]["train"].update(env_groups=4),
            "`es_manager.train.env_configs.n_groups` add up to 3, and `env_groups` is 4. Make them agree.",
        ),
        (
            lambda c: c["es_manager"]["val"]["env_configs"].update(n_groups=[1, 1]),
            "`es_manager.val.env_configs` has 1 tags and 2 n_groups.",
        ),
        (
            lambda c: c["es_manager"]["train"]["env_configs"].update(tags=["Walk", "Tolk"]),
            "The tag 'Tolk' of `es_manager.train.env_configs.tags` is not in `custom_envs`. Did you mean `Talk`?",
        ),
        (
            lambda c: c["es_manager"].update(sequential_env_types=["web_shop"]),
            "'web_shop', which is no env_type. Did you mean `webshop`?",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(env_type="wolk"),
            "In `custom_envs.Walk`: env_type='wolk' is unknown. Did you mean `walk`?",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(max_actions_per_trj=3),
            "`custom_envs.Walk.max_actions_per_trj` is unknown. Did you mean `max_actions_per_traj`?",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(env_config={"gaol": 3}),
            "`custom_envs.Walk.env_config.gaol` is unknown. Did you mean `goal`?",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(env_config={"goal": "far"}),
            "In `custom_envs.Walk.env_config`:\n  `goal: 'far'`: Input should be a valid integer",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(where="proces"),
            "`custom_envs.Walk.where: 'proces'` is unknown. Did you mean `process`?",
        ),
        (
            lambda c: c["es_manager"].update(context="thread"),
            "`es_manager.context: 'thread'` is unknown. Known are `fork`, `forkserver`, `spawn`.",
        ),
        (
            lambda c: c["es_manager"].update(format_penalty=float("nan")),
            "`es_manager.format_penalty: nan`: Input should be a finite number.",
        ),
        (
            lambda c: c["es_manager"].update(train=5),
            "\n  `es_manager.train: 5`: Input should be a valid dictionary.",
        ),
        (
            lambda c: c.update(seed={"trian": 1}),
            "In the configuration:\n  `seed.trian` is unknown. Did you mean `train`?",
        ),
        (
            lambda c: c["es_manager"].update(seed=3),
            "`es_manager.seed` is unknown. It stands elsewhere: write it as `seed`.",
        ),
        (
            lambda c: c["es_manager"]["train"].update(n_groups=[3]),
            "n_groups` is unknown. It stands elsewhere: write it as `es_manager.train.env_configs.n_groups`.",
        ),
        (
            lambda c: c["es_manager"]["train"]["env_configs"].update(group_size=3),
            "group_size` is unknown. It stands elsewhere: write it as `es_manager.train.group_size`.",
        ),
        (
            lambda c: c["es_manager"].update(mode="val"),
            "`es_manager.mode` is unknown. It is an argument: EnvStateManager(config, mode='val').",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(step_timeout=1.0),
            "`custom_envs.Walk.step_timeout` is unknown. It stands elsewhere: write it as `es_manager.step_timeout`.",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(goal=3),
            "What the environment is made with stands in `custom_envs.Walk.env_config`.",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(max_actions=3),
            "`custom_envs.Walk.max_actions` is unknown. Did you mean `max_actions_per_traj`?",
        ),
        (
            lambda c: c.update(seed=-1),
            "In the configuration:\n  `seed: -1`: Input should be greater than or equal to 0.",
        ),
        (lambda c: c.update(seed={"val": -1}), "\n  `seed.val: -1`: Input should be greater than or equal to 0."),
        (
            lambda c: c["custom_envs"].update(Walk={"env_type": "bandit", "env_config": {"render_mode": "txt"}}),
            "In `custom_envs.Walk.env_config`:\n  `render_mode: 'txt'` is unknown. Did you mean `text`?",
        ),
        (
            lambda c: c["custom_envs"].update(
                Walk={"env_type": "gymnasium", "env_config": {"id": "FrozenLake-v1", "actions": ["left", "down"]}}
            ),
            "`actions: ['left', 'down']`: Input should be a valid dictionary. Did you mean `{0: 'left', 1: 'down'}`?",
        ),
        (lambda c: c.update(custom_envs={}), "`custom_envs` is empty. Give it a block for each tag"),
        (
            lambda c: c["custom_envs"].update(Unused={"env_type": "sokobn"}),
            "In `custom_envs.Unused`: env_type='sokobn' is unknown. Did you mean `sokoban`?",
        ),
        (
            lambda c: c["custom_envs"].update(Unused={"env_type": "sokoban", "env_config": {"num_boxes": 0}}),
            "In `custom_envs.Unused.env_config`:\n  num_boxes=0 is out of range",
        ),
        (
            lambda c: (c["custom_envs"].update(Late={"env_type": "xyz"}), c["es_manager"].update(val=block_of("Late"))),
            "In `custom_envs.Late`: env_type='xyz' is unknown. Known are",
        ),
        (
            lambda c: c["custom_envs"]["Walk"].update(env_type="bare", env_config={"goal": 3}),
            "`custom_envs.Walk.env_config.goal` is unknown. 'bare' takes nothing. Leave it out.",
        ),
        *[
            (
                lambda c, words=words: put(c, *words),
                f"`{'.'.join(words[:-1])}: {words[-1]!r}`: Input should be a valid {kind}",
            )
            for words, kind in (
                (("es_manager", "max_workers", True), "integer"),
                (("es_manager", "max_workers", "8"), "integer"),
                (("es_manager", "train", "group_size", True), "integer"),
                (("custom_envs", "Walk", "max_actions_per_traj", True), "integer"),
                (("seed", "train", True), "integer"),
                (("es_manager", "use_multiprocessing", "yes"), "boolean"),
                (("es_manager", "use_multiprocessing", 1), "boolean"),
                (("custom_envs", "Walk", "parallel_friendly", "true"), "boolean"),
                (("es_manager", "format_penalty", True), "number"),
                (("es_manager", "step_timeout", False), "number"),
            )
        ],
        (lambda c: c.update(seed=True), "`seed: True`: Input should be a valid integer"),
        (lambda c: c["es_manager"].pop("train"), "`es_manager.train` is missing, and mode='train' was asked for."),
    ],
)
def test_mistakes_are_told(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    with pytest.raises(BadSettings) as caught:
        EnvStateManager(changed(change))
    assert text in str(caught.value)


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    broken, listed = tmp_path / "broken.yaml", tmp_path / "listed.yaml"
    broken.write_text("a: [")
    listed.write_text("[1]")
    for path, text in ((tmp_path / "none.yaml", "cannot be read"), (broken, "is not YAML"), (listed, "holds list")):
        with pytest.raises(BadSettings, match=text):
            EnvStateManager(path)
    with pytest.raises(BadSettings, match="The configuration is a int"):
        EnvStateManager(3)  # type: ignore[arg-type]  # a mistake
    with pytest.raises(BadSettings, match="mode='test' is unknown"):
        EnvStateManager(yaml.safe_load(GUIDE), "test")  # type: ignore[arg-type]  # what this is about


class Own:
    """A type that no checker knows."""


@dataclass(frozen=True)
class OwnConfig:
    """A config with a field of such a type, that checks itself."""

    own: Own = field(default_factory=Own)
    level: int = 1

    def __post_init__(self) -> None:
        if self.level > 5:
            raise TypeError(f"level={self.level} is too high. Give at most 5.")


def test_configs_with_types_of_their_own() -> None:
    register("own", lambda config: config, OwnConfig)
    config = configured({"Walk": 1})
    config["custom_envs"]["Walk"] = {"env_type": "own", "env_config": {"level": 2}}
    assert EnvStateManager(config).envs[0].config.level == 2
    config["custom_envs"]["Walk"] = {"env_type": "own", "env_config": {"level": 6}}
    with pytest.raises(BadSettings, match=r"In `custom_envs.Walk.env_config`: level=6 is too high"):
        EnvStateManager(config)


def test_settings_may_be_made_in_python() -> None:
    block = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["Walk"], "n_groups": [1]}}
    made = GroupsSettings.model_validate({"es_manager": {"train": block}, "custom_envs": {"Walk": TAGS["Walk"]}})
    assert EnvStateManager(made).num_envs == 1


def test_a_tag_that_no_mode_names_may_be_of_a_type_that_another_script_registers() -> None:
    content = changed(lambda c: c["custom_envs"].update(Later={"env_type": "quidditch", "env_config": {"any": 1}}))
    assert EnvStateManager(content).num_envs == 6


def test_numbers_may_be_spelt_as_yaml_has_them() -> None:
    content = changed(lambda c: c["es_manager"].update(max_workers=2.0, format_penalty="-1e-3", step_timeout=5))
    said = read_settings(content).es_manager
    assert (said.max_workers, type(said.max_workers), said.format_penalty, said.step_timeout) == (2, int, -0.001, 5.0)


@dataclass(frozen=True)
class DeepConfig:
    """Truths and numbers wherever they may stand."""

    either: int | str = 0
    flags: list[bool] = field(default_factory=list)
    sizes: dict[int, tuple[int, float]] = field(default_factory=dict)
    default: int | None = None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"either": True}, "either"),
        ({"flags": [True, 1]}, "flags.1"),
        ({"sizes": {1: [True, 2]}}, "sizes.1.0"),
        ({"sizes": {1: [1, False]}}, "sizes.1.1"),
        ({"default": True}, "default"),
    ],
)
def test_configs_of_ones_own_are_held_to_their_types(given: dict[str, Any], names: str) -> None:
    register("deep", lambda config: config, DeepConfig)
    config = configured({"Walk": 1})
    good = {"either": "4", "flags": [False], "sizes": {"1": [2.0, 3]}, "default": None}
    config["custom_envs"]["Walk"] = {"env_type": "deep", "env_config": good}
    assert EnvStateManager(config).envs[0].config == DeepConfig("4", [False], {1: (2, 3.0)}, None)
    config["custom_envs"]["Walk"] = {"env_type": "deep", "env_config": given}
    with pytest.raises(BadSettings, match=rf"`{names}[.:]"):
        EnvStateManager(config)
