"""What all the environments have in common."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import pickle
import random
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.interface import GroupEnv

ROOT = Path(__file__).parents[3]
NAMES = {"bandit": "Bandit", "countdown": "Countdown", "frozen_lake": "FrozenLake"} | {
    "metamathqa": "MetaMathQA",
    "sokoban": "Sokoban",
    "webshop": "WebShop",
}
NONSENSE: list[Any] = ["", "\x00", "[" * 400, "search[", "click[]", "search[]", "9**9**9", "__import__('os').abort()"]
NONSENSE += ["The answer is:", "9" * 100_000, None, -1, 10**30, True, 3.5, float("nan"), (), [], {}, np.zeros(3), b"Up"]

every_env = pytest.mark.parametrize("env_type", sorted(NAMES))


def config_of(env_type: str, suffix: str = "Config") -> Any:
    return getattr(importlib.import_module(f"parallel_envs.groups.envs.{env_type}"), f"{NAMES[env_type]}{suffix}")


def made(env_type: str, **fields: Any) -> Any:
    return config_of(env_type, "Env")(config_of(env_type)(**fields))


def actions_for(env: Any, seed: int, most: int = 12) -> list[Any]:
    draw = random.Random(seed)
    if env.action_lookup is not None:
        return [draw.choice(list(env.action_lookup)) for _ in range(most)]
    words = ["search[gold plated cable]", "click[b0cabl0001]", "click[black]", "click[< prev]", "1 + 1", "42"]
    return [*words[:2], *(draw.choice(words) for _ in range(most - 2))]


def episode(env: Any, seed: int, mode: str = "train") -> list[Any]:
    """All that an episode shows, as JSON can say it."""
    told: list[Any] = [env.reset(seed, mode)]
    for action in actions_for(env, seed):
        state, reward, terminated, truncated, info = env.step(action)
        told.append([state, reward, terminated, truncated, dict(info), dict(env.metrics())])
        if terminated or truncated:
            break
    return told


def episodes(env_type: str) -> list[Any]:
    env = made(env_type)
    return [episode(env, seed, mode) for seed in range(5) for mode in ("train", "val")]


@every_env
def test_it_has_what_an_environment_of_a_group_has(env_type: str) -> None:
    before = random.getstate(), str(np.random.get_state())
    env, used = made(env_type), made(env_type)
    is_one = isinstance(env, GroupEnv)
    assert (is_one, env.uses_global_random) == (True, False)
    state = env.reset(3, "train")
    assert state == env.render("text") == env.render()
    for mode in ("rgb_arrays", *(["rgb_array"] if env_type not in ("sokoban", "frozen_lake") else [])):
        with pytest.raises(ValueError, match=rf"mode='{mode}' is unknown"):
            env.render(mode)
    action = actions_for(env, 0)[0]
    following, reward, terminated, truncated, info = told = env.step(action)
    assert (type(state), type(following), type(terminated), type(truncated)) == (str, str, bool, bool)
    assert type(reward) in (int, float)
    assert {"success", "action_is_valid", "action_is_effective"} <= info.keys()
    env.reset(3, "train")
    assert env.step(np.int64(action) if env.action_lookup is not None else action) == told
    # an episode follows from its seed alone, and global generators are left alone
    assert len({str(episode(used, seed)) for seed in range(12)}) >= 6
    assert episode(used, 11) == episode(env, 11) == episode(used, 11)
    assert (random.getstate(), str(np.random.get_state())) == before
    env.close()


def test_other_processes_come_to_the_same_episodes_and_load_no_more_than_they_need() -> None:
    modules = ", ".join(f"parallel_envs.groups.envs.{name}" for name in sorted(NAMES) if name != "frozen_lake")
    program = (
        f"import json, sys, {modules}\nloaded = sorted(sys.modules)\n"
        "from tests.groups.envs.test_contract import NAMES, episodes\n"
        "print(json.dumps([loaded, {name: episodes(name) for name in reversed(sorted(NAMES))}]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    loaded, played = json.loads(ran.stdout)
    assert not {"torch", "pydantic", "typer", "rich", "pettingzoo", "gymnasium"} & set(loaded)
    assert played == json.loads(json.dumps({name: episodes(name) for name in NAMES}))


@every_env
def test_nonsense_is_an_invalid_action_and_no_error(env_type: str) -> None:
    env = made(env_type)
    for action in NONSENSE:
        before = env.reset(1, "train")
        state, reward, _, _, info = env.step(action)
        # to MetaMathQA any words are an answer, if a wrong one
        assert not info["action_is_valid"] or (env_type, type(action)) == ("metamathqa", str)
        assert (info["success"], reward <= 0.0) == (False, True)
        if env_type in ("sokoban", "frozen_lake", "webshop"):
            assert (state, info["action_is_effective"]) == (before, False)


@every_env
def test_steps_outside_an_episode_are_errors(env_type: str) -> None:
    env = made(env_type)
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step(1)
    env.reset(0, "train")
    ways = ["search[cable]", "click[b0cabl0001]", "click[buy now]"] if env_type == "webshop" else [1]
    while not any(env.step(action)[2:4] != (False, False) for action in ways):
        pass
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step(1)


# ---- configs ----

BAD: dict[str, list[tuple[dict[str, Any], str]]] = {
    "bandit": [
        ({"split": "tset"}, r"`split: 'tset'`: Input should be .* Did you mean 'test'\?"),
        ({"lo_arm_name": "Bond"}, "lo_arm_name='Bond' and hi_arm_name=None are no pair"),
        ({"lo_arm_name": "Bond", "hi_arm_name": "bond "}, "'Bond' and hi_arm_name='bond ' are no pair"),
        ({"hi_arm_hiscore_prob": 0.05}, "pay 0.05 in the mean, no more than lo_arm_score=0.1"),
        ({"noise": -1, "num_pulls": 0}, r"(?s)`noise: -1`: .* equal to 0.*`num_pulls: 0`: .* equal to 1"),
    ],
    "frozen_lake": [
        ({"size": 1}, "`size: 1`: Input should be greater than or equal to 2"),
        ({"p": 1.2}, "`p: 1.2`: Input should be less than or equal to 1"),
        ({"p": "high"}, "`p: 'high'`: Input should be a valid number"),
        ({"is_slippery": 3}, "`is_slippery: 3`: Input should be a valid boolean"),
        ({"action_lookup": {0: "Left"}}, r"has other numbers than \[1, 2, 3, 4\]"),
        ({"action_lookup": {1: " DOWN "}}, "one name for two actions: 1 is ' DOWN ', and 2 is 'Down'"),
    ],
    "sokoban": [
        ({"dim_room": (2, 6)}, "`dim_room.0: 2`: Input should be greater than or equal to 3"),
        ({"dim_room": 6}, "`dim_room: 6`: Input should be a valid tuple. Give a list"),
        ({"dim_room": (7, 7), "dim_y": 9}, r"dim_y=9 and dim_room=\[7, 7\] contradict each other. Give one"),
        ({"dim_x": 5, "dim_y": 3, "num_boxes": 2}, "num_boxes=2: in a room of 5 by 3 there is space for 1 at most"),
        ({"min_solution_steps": (9, 6)}, "ends before it begins"),
        ({"step_reward": float("nan")}, "`step_reward: nan`: Input should be a finite number"),
        ({"grid_lookup": {7: "x"}}, "grid_lookup={7: 'x'} has other numbers than"),
        ({"action_lookup": {1: ""}}, "`action_lookup.1: ''`: String should have at least 1 character"),
    ],
    "countdown": [
        ({"num_numbers": (4, 3)}, "ends before it begins"),
        ({"operators": "+^"}, r"operators='\+\^' has other signs"),
        ({"use": "once"}, "`use: 'once'`: Input should be 'exactly_once'"),
        ({"data_path": 3}, "`data_path: 3`: Input should be a valid string"),
        ({"val_share": 2}, "`val_share: 2`: Input should be less"),
        ({"num_numbers": (2, 2), "number_range": (3, 3), "operators": "*"}, "No puzzle with .*10, 100. and"),
        ({"num_numbers": (1, 4), "number_range": (0, 0)}, "was found in 20000 tries"),
    ],
    "webshop": [
        ({"attributes_path": "a.json"}, "attributes_path='a.json' was given without products"),
        ({"file_path": "items.json"}, "without instructions_path, so nothing is wanted"),
        ({"file_path": "items.json", "human_goals": False}, "without attributes_path, so nothing is wanted"),
        ({"page_size": 0}, "`page_size: 0`: Input should be greater"),
    ],
}


@pytest.mark.parametrize("kind", BAD)
def test_configs_that_cannot_be_are_named(kind: str) -> None:
    for given, words in BAD[kind]:
        with pytest.raises(ValueError, match=words):
            config_of(kind)(**given)


@every_env
def test_configs_are_frozen_values_that_travel_take_names_only_and_are_explained(env_type: str) -> None:
    kind = config_of(env_type)
    config = kind()
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(FrozenInstanceError):
        config.render_mode = "text"
    with pytest.raises(TypeError):
        kind("text")
    with pytest.raises(ValueError, match=r"`render_mode: 'txt'`: Input should be .* Did you mean 'text'\?"):
        kind(render_mode="txt")
    kinds: list[Any] = [one for one in kind.__mro__ if dataclasses.is_dataclass(one)]
    source = "".join(map(inspect.getsource, kinds))
    for name in (field.name for field in dataclasses.fields(kind)):
        where = source.index(f"    {name}:")
        assert source[where:].split("\n")[1].lstrip().startswith('"""'), name


def test_lists_as_yaml_has_them_do_for_pairs_and_a_path_is_a_text() -> None:
    config = config_of("sokoban")
    assert config(dim_room=[5, 7]) == config(dim_room=(5, 7))
    assert config(dim_x=5, dim_y=7).dim_room == config(dim_room=(5, 7), dim_y=7).dim_room == (5, 7)
    assert config_of("metamathqa")(data_path=Path("a.json")).data_path == "a.json"
