"""RAGEN's configuration, its environments and the fields that its prompts are made of, as its code has them.

The facts were established by running RAGEN's own EnvStateManager and ContextManager beside ours: the prompts were the
same, character by character, for what is played here.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from parallel_envs.groups import BadSettings, EnvStateManager, register
from parallel_envs.groups.registry import _warn_once
from tests.groups.walks import configured, inputs

BASE = """
defaults:
  - ppo_trainer
  - envs
seed: {train: 10000, val: 123}
micro_batch_size_per_gpu: 1
log_prob_micro_batch_size_per_gpu: ${micro_batch_size_per_gpu}
model_path: ???
num_groups: 4
critic: {model: {path: "${model_path}", mini: "${int_div:4,2}", other: "${nowhere.at.all}"}}
agent_proxy: {action_sep: "||", max_actions_per_turn: 2}
es_manager:
  format_penalty: -0.1
  train: {env_groups: "${num_groups}", group_size: 2, env_configs: {tags: [CoordSokoban], n_groups: [4]}}
  val: {env_groups: "${es_manager.train.env_groups}", group_size: "${..train.group_size}",
        env_configs: {tags: [CoordSokoban, Bandit], n_groups: null}}
ctx_manager: {generation: {gen_config: {top_p: "${actor_rollout_ref.rollout.top_p}"}}}
"""
ENVS = """
custom_envs:
  CoordSokoban:
    env_type: sokoban
    max_actions_per_traj: 10
    env_instruction: "You are solving the Sokoban puzzle, ${num_groups} \\\\${x}."
    max_tokens: 120
    parallel_friendly: false
    max_workers: 32
    env_config: {dim_x: 6, dim_y: 6, num_boxes: 1, max_steps: 100, observation_format: grid_coord}
  Bandit: {env_type: bandit, max_actions_per_traj: 1, env_instruction: "", max_tokens: 100, env_config: {split: train}}
  SlipperyLake: {env_type: frozen_lake, env_config: {success_rate: 0.8, observation_format: grid_coord}}
  WebShop: {env_type: webshop, env_config: {dataset: small, server: null}}
  WebShopFull: {env_type: webshop, max_actions_per_traj: 15, max_tokens: 200, env_config: {dataset: full}}
  DeepCoder: {env_type: deepcoder, parallel_friendly: true, env_config: {path: "${nowhere}", other: "???"}}
  game_2048: {env_type: game_2048, max_actions_per_traj: 700, env_config: null, reward_kind: dense}
"""


def written(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content, encoding="utf-8")
    return folder / "base.yaml"


@pytest.mark.parametrize("given", ["file", "dict"])
def test_ragens_configuration_loads_as_it_is(tmp_path: Path, given: str) -> None:
    path: Any = written(tmp_path, base=BASE, envs=ENVS)
    if given == "dict":
        path = yaml.safe_load(ENVS) | yaml.safe_load(BASE)
    train, val = (EnvStateManager(path, mode=mode) for mode in ("train", "val"))
    assert (train.num_envs, train.group_size, {seat.tag for seat in train.envs}) == (8, 2, {"CoordSokoban"})
    assert train.envs[0].env_instruction == "You are solving the Sokoban puzzle, 4 ${x}."
    assert [seat.tag for seat in val.envs] == ["CoordSokoban"] * 4 + ["Bandit"] * 4  # 4 groups, split evenly
    assert (train.settings.root_seed("train"), train.settings.root_seed("val")) == (10000, 123)
    assert {"Bandit", "SlipperyLake", "WebShop"} <= set(train.settings.custom_envs)
    assert not {"DeepCoder", "game_2048"} & set(train.settings.custom_envs)  # they cannot be read
    state = train.reset()[0]["history"][0]["state"]
    assert state.startswith("Coordinates: \nBoard size: 6 rows x 6 cols (zero-indexed).\nTargets: (")
    assert "\nGrid Map: \n######\n" in state


def test_the_full_webshop_is_missed_when_it_is_wanted() -> None:
    config = of_tags({"WebShopFull": yaml.safe_load(ENVS)["custom_envs"]["WebShopFull"]}, use_multiprocessing=False)
    with EnvStateManager(config) as manager, pytest.raises(ValueError, match="dataset='full' was given without prod"):
        manager.reset(seed=1)


def test_an_omegaconf_configuration_is_read_where_it_concerns_groups() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create(yaml.safe_load(ENVS) | yaml.safe_load(BASE))
    assert EnvStateManager(config).num_envs == 8
    config.es_manager.train.env_groups = "${nowhere}"
    with pytest.raises(BadSettings, match="`es_manager` cannot be read: Interpolation"):
        EnvStateManager(config)


def test_files_of_experiments_are_laid_over_their_base(tmp_path: Path) -> None:
    written(tmp_path, base=BASE, envs=ENVS)
    experiment = tmp_path / "lake.yaml"
    experiment.write_text(
        "defaults: [base, _self_, {override hydra/launcher: x}, {optional machine: here}, {/custom_envs: more}]\n"
        "es_manager: {train: {env_configs: {tags: [SlipperyLake]}}}\n"
    )
    (tmp_path / "custom_envs").mkdir()
    (tmp_path / "custom_envs" / "more.yaml").write_text("SlipperyLake: {max_actions_per_traj: 3}\n")
    manager = EnvStateManager(experiment)
    assert {seat.tag for seat in manager.envs} == {"SlipperyLake"}
    assert (manager.envs[0].config.success_rate, manager.envs[0].max_actions_per_traj) == (0.8, 3)
    (tmp_path / "envs.yaml").unlink()
    with pytest.raises(BadSettings, match=r"(?s)`custom_envs.*not beside it: .*ppo_trainer.yaml, envs.yaml"):
        EnvStateManager(tmp_path / "base.yaml")
    written(tmp_path, envs="defaults: [base]\n")
    with pytest.raises(BadSettings, match="The files name one another in their `defaults`"):
        EnvStateManager(tmp_path / "base.yaml")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("${num_groups}", "${int_div:8,2}", r"train.env_groups: \${int_div:8,2}`: the interpolation is more"),
        ("${num_groups}", "${nowhere.x}", "names `nowhere.x`, which is not there"),
        ("${num_groups}", "${es_manager.val.env_groups}", "leads in a circle"),
        ("${num_groups}", "${a${num_groups}}", "is more than the name of another value"),
        ("${num_groups}", "???", r"`es_manager.train.env_groups: \?\?\?`: the value is still to be given"),
        ("n_groups: null", "n_groups: [1, 2]", "env_groups=4"),
        ("n_groups: [4]", "n_groups: [5]", "env_groups=4"),
        ("[CoordSokoban, Bandit]", "[CoordSokoban, WebShop]", "`custom_envs.WebShop.env_config.server` is unknown"),
        ("[CoordSokoban, Bandit]", "[CoordSokoban, DeepCoder]", "names `nowhere`, which is not there"),
    ],
)
def test_mistakes_in_what_is_read_are_told(tmp_path: Path, old: str, new: str, text: str) -> None:
    base = BASE.replace(f'"{old}"', f'"{new}"').replace(old, new)
    with pytest.raises(BadSettings, match=text):
        EnvStateManager(written(tmp_path, base=base, envs=ENVS))


def of_tags(tags: dict[str, Any], **said: Any) -> dict[str, Any]:
    block = {"env_groups": len(tags), "group_size": 1, "env_configs": {"tags": list(tags)}}
    return {"es_manager": {"train": block, **said}, "custom_envs": tags}


def test_a_penalty_that_rewards_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, base=BASE.replace("format_penalty: -0.1", "format_penalty: 0.1"), envs=ENVS)
    with pytest.warns(UserWarning, match=r"format_penalty=0.1 is positive. .* Give -0.1 to punish them") as caught:
        manager = EnvStateManager(path)
    assert caught[0].filename == __file__
    manager.reset(seed=1)
    assert manager.step([said(0, "Fly")])[0]["penalty"] == 0.1


def test_sample_data_is_said_once() -> None:
    _warn_once.cache_clear()
    tags = {"M": {"env_type": "metamathqa"}, "W": {"env_type": "webshop"}, "N": {"env_type": "metamathqa"}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            EnvStateManager(of_tags(tags))
    questions, products = (str(one.message) for one in caught)
    assert ("'metamathqa' plays 180 questions" in questions, "data_path" in questions) == (True, True)
    assert ("'webshop' plays 60 made products" in products, "file_path" in products) == (True, True)


# ---- environments written for RAGEN -----------------------------------------------------------------------------


@dataclasses.dataclass
class LineConfig:  # as RAGEN's are: not frozen, and written into
    size: int = 4
    action_lookup: dict[int, str] | None = None
    map_seed: int | None = None


class Line:  # A `BaseDiscreteActionEnv` in style: one walks along a line. What `reset` and `step` return is not shown
    def __init__(self, config: LineConfig | None = None) -> None:
        self.config = config or LineConfig()
        self.ACTION_SPACE = [1, 2]

    def get_all_actions(self) -> list[int]:
        return self.ACTION_SPACE

    def reset(self, seed: int | None = None) -> str:
        random.seed(seed)
        np.random.seed(seed)  # takes no seed of more than 32 bits
        self.place = random.randint(0, self.config.size - 2)
        self.config.map_seed = seed
        names = ["Left", "Right"] if random.random() < 0.5 else ["Back", "Right"]  # as the bandit's: the episode's own
        self.config.action_lookup = {1: names[0], 2: names[1]}
        return "not shown"

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        self.place = max(0, self.place + (1 if action == 2 else -1))
        done = self.place == self.config.size - 1
        self.luck = random.random()
        info = {"action_is_effective": True, "success": done, "raw_reward": 2}
        return "nor this", (1 if done else 0), done, info

    def render(self, mode: str | None = None) -> Any:
        return "_" * self.place + "P"


class Pictured(Line):  # the same, shown as a picture, with RAGEN's own `reset`
    def reset(self, seed: int | None = None, **others: Any) -> str:
        assert others == {"mode": "train"}
        return super().reset(seed)

    def render(self, mode: str | None = None) -> Any:
        return np.full((2, 2, 3), self.place, np.uint8)


def said(env_id: int, *actions: str) -> dict[str, Any]:
    return inputs({env_id: actions})[0]


def manager_of(env: type[Line], **more: Any) -> EnvStateManager:
    register("ragen_line", env, LineConfig)
    config = {**configured({"Walk": 2}, **more), "custom_envs": {}}
    config["custom_envs"]["Walk"] = {"env_type": "ragen_line", "max_actions_per_traj": 6, "env_config": {"size": 9}}
    return EnvStateManager(config)


def played(manager: EnvStateManager) -> list[Any]:
    with manager:
        entries = [manager.reset(seed=5)]
        for actions in (["Right", "right"], [], ["Jump"], ["right", "Fly"], ["Right", "Right", "Right", "Right"]):
            if entries[-1]:
                entries.append(manager.step([said(entry["env_id"], *actions) for entry in entries[-1]]))
        return [*entries, manager.get_rollout_states(), manager.metrics()]


def test_environments_written_for_ragen_work_as_they_are() -> None:
    state = random.getstate()
    expected = played(manager_of(Line, use_multiprocessing=False))
    assert random.getstate() == state  # theirs are kept apart
    states = [entry["history"][0]["state"] for entry in expected[0]]
    assert [one.strip("_") for one in states] == ["P"] * 4
    assert states[0] == states[1]  # of one group
    assert played(manager_of(Line, max_workers=2)) == expected


def test_the_fields_of_the_rollout_are_ragens() -> None:
    *_, states, means = played(manager_of(Line, use_multiprocessing=False))
    entry = states[0]
    assert set(entry) == {"env_id", "group_id", "tag", "history", "penalty", "metrics"}
    assert entry["penalty"] == pytest.approx(-0.3)
    turn, silent, jumped, flew, _, last = entry["history"]
    assert list(turn) == ["state", "actions_left", "actions", "reward", "info", "llm_response", "llm_raw_response"]
    assert list(jumped) == [*list(turn)[:2], "manager_invalid_action", *list(turn)[2:]]  # after a turn without action
    assert [one.get("manager_invalid_action") for one in entry["history"]] == [None, None, True, True, None, None]
    assert last.keys() == {"state", "actions_left"}
    assert turn["info"] == {"action_is_effective": True, "success": False, "raw_reward": 4.0}
    assert list(silent["info"].items()) == [("raw_reward", 0.0), ("manager_invalid_action", True)]
    assert [f"Reward:\n{one['reward']}\n" for one in (turn, silent, flew)] == ["Reward:\n0\n"] * 3  # a prompt's words
    assert (silent["actions"], flew["actions"]) == ([], [2])
    assert [one["actions_left"] for one in entry["history"]] == [6, 4, 4, 4, 3, 0]
    metrics = {name: entry["metrics"][f"Walk/{name}"] for name in ("episodic_return", "raw_reward")}
    # six actions, 2 each, and the mean over turns
    assert metrics == {"episodic_return": 12.0, "raw_reward": pytest.approx(12 / 5)}
    assert entry["metrics"]["Walk/manager_invalid_action"] == pytest.approx(2 / 5)
    assert {"Walk/success", "Walk/num_actions", "Walk/pass@2"} <= entry["metrics"].keys()
    returns = [one["metrics"]["Walk/episodic_return"] for one in states]
    assert means["Walk/episodic_return"] == pytest.approx(np.mean(returns))
    with manager_of(Line, use_multiprocessing=False) as manager:  # invalid turns are counted over all that played
        manager.reset(seed=5)
        manager.step([said(0), *(said(env, "Right") for env in (1, 2, 3))])
        assert "Walk/manager_invalid_action" not in manager.get_rollout_states()[1]["metrics"]  # as in RAGEN
        assert manager.metrics()["Walk/manager_invalid_action"] == 0.25


def test_each_of_them_has_a_config_of_its_own_and_pictures_are_pictures() -> None:
    with manager_of(Pictured, use_multiprocessing=False) as manager:
        entries = manager.reset(seed=5)
        assert [entry["history"][0]["state"] for entry in entries] == ["<images>"] * 4
        assert entries[0]["history"][0]["images"][0].shape == (2, 2, 3)
        left = manager.step([said(env, "Left") for env in range(4)])
        valid = {one["env_id"]: bool(one["history"][0]["actions"]) for one in left}
        assert (valid[0], valid[2]) == (valid[1], valid[3])
        assert all(isinstance(one, np.ndarray) for one in manager.render())
    assert manager.envs[0].config.map_seed is None  # nobody writes into the manager's
