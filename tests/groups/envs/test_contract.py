"""What all the environments have in common."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.interface import GroupEnv

ROOT = Path(__file__).parents[3]
NAMES = {
    "bandit": "Bandit",
    "countdown": "Countdown",
    "frozen_lake": "FrozenLake",
    "metamathqa": "MetaMathQA",
    "sokoban": "Sokoban",
    "webshop": "WebShop",
}
NONSENSE: list[Any] = ["", "\x00", "[" * 400, "search[", "click[]", "search[]", "9**9**9", "__import__('os').abort()"]
NONSENSE += ["The answer is:", "9" * 100_000, None, -1, 10**30, True, 3.5, float("nan"), (), [], {}, np.zeros(3), b"Up"]

every_env = pytest.mark.parametrize("env_type", sorted(NAMES))


def made(env_type: str, **fields: Any) -> Any:
    module = importlib.import_module(f"parallel_envs.groups.envs.{env_type}")
    return getattr(module, f"{NAMES[env_type]}Env")(config_of(env_type)(**fields))


def config_of(env_type: str) -> Any:
    return getattr(importlib.import_module(f"parallel_envs.groups.envs.{env_type}"), f"{NAMES[env_type]}Config")


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
    env = made(env_type)
    is_one = isinstance(env, GroupEnv)
    assert is_one
    assert env.uses_global_random is False
    state = env.reset(3, "train")
    assert isinstance(state, str)
    assert state == env.render("text") == env.render()
    assert all(isinstance(value, float | int) for value in env.metrics().values())
    action = actions_for(env, 0)[0]
    state, reward, terminated, truncated, info = told = env.step(action)
    assert isinstance(state, str)
    assert type(reward) in (int, float)
    assert (type(terminated), type(truncated)) == (bool, bool)
    assert {"success", "action_is_valid", "action_is_effective"} <= info.keys()
    assert all(isinstance(value, bool) for value in info.values() if not isinstance(value, int))
    env.reset(3, "train")
    assert env.step(np.int64(action) if env.action_lookup is not None else action) == told
    env.close()


@every_env
def test_an_episode_follows_from_its_seed_alone_and_leaves_global_generators_alone(env_type: str) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # the legacy tuple
    used, fresh = made(env_type), made(env_type)
    assert len({str(episode(used, seed)) for seed in range(12)}) >= 6
    assert episode(used, 11) == episode(fresh, 11) == episode(used, 11)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # the legacy tuple


def test_environments_bring_in_no_more_than_they_need() -> None:
    modules = ", ".join(f"parallel_envs.groups.envs.{name}" for name in sorted(NAMES) if name != "frozen_lake")
    program = f"import json, sys, {modules}\nprint(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    heavy = {"torch", "pydantic", "typer", "rich", "pettingzoo", "gymnasium"}
    assert set(json.loads(ran.stdout)) & heavy == set()


def test_other_processes_come_to_the_same_episodes() -> None:
    program = (
        "import json; from tests.groups.envs.test_contract import NAMES, episodes\n"
        "print(json.dumps({name: episodes(name) for name in reversed(sorted(NAMES))}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == json.loads(json.dumps({name: episodes(name) for name in NAMES}))


@every_env
def test_nonsense_is_an_invalid_action_and_no_error(env_type: str) -> None:
    env = made(env_type)
    for action in NONSENSE:
        before = env.reset(1, "train")
        state, reward, _, _, info = env.step(action)
        if info["action_is_valid"]:  # to MetaMathQA any words are an answer, if a wrong one
            assert (env_type, type(action)) == ("metamathqa", str)
        assert info["success"] is False
        assert reward <= 0.0
        if env_type in ("sokoban", "frozen_lake", "webshop"):
            assert (state, info["action_is_effective"]) == (before, False)


@every_env
def test_steps_outside_an_episode_are_errors(env_type: str) -> None:
    env = made(env_type)
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step(1)
    env.reset(0, "train")
    for _ in range(1000):
        if env.step(1 if env.action_lookup else "click[buy now]")[2:4] != (False, False):
            break
        if env_type == "webshop":
            for action in ("search[cable]", "click[b0cabl0001]"):
                env.step(action)
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step(1)


@every_env
def test_every_field_of_a_config_is_explained(env_type: str) -> None:
    kind = config_of(env_type)
    source = Path(sys.modules[kind.__module__].__file__ or "").read_text(encoding="utf-8")
    for name in (field.name for field in dataclasses.fields(kind)):
        where = source.index(f"    {name}:")
        assert source[where:].split("\n")[1].lstrip().startswith('"""'), name


@every_env
def test_unknown_ways_to_render_are_named(env_type: str) -> None:
    env = made(env_type)
    env.reset(0, "train")
    with pytest.raises(ValueError, match="mode='rgb_arrays' is unknown"):
        env.render("rgb_arrays")
    if env_type not in ("sokoban", "frozen_lake"):
        with pytest.raises(ValueError, match=r"mode=.rgb_array. is unknown\. Give one of .text."):
            env.render("rgb_array")
