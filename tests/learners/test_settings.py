"""Settings: what is right is understood, what is wrong is named with what was probably meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.learners.config import (
    BadSettings,
    TrainSettings,
    algorithm_configs,
    load_settings,
    read_config,
    read_parallel,
    read_settings,
)

LEAST = {"env": "CartPole-v1", "total_steps": 100}


@dataclass(frozen=True, kw_only=True)
class Network:
    hidden: tuple[int, ...] = (64, 64)


@dataclass(frozen=True, kw_only=True)
class Slow:
    learning_rate: float = 0.1
    kind: str = "plain"
    network: Network = field(default_factory=Network)


@dataclass(frozen=True, kw_only=True)
class Fast:
    speed: int = 3
    train_interval: int = 9

    def __post_init__(self) -> None:
        if self.speed == 7:
            raise ValueError("Fast.speed=7 is bad luck. Give 6.")


KINDS = {"slow": Slow, "fast": Fast}


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def read(**settings: Any) -> TrainSettings:
    return read_settings({**LEAST, **settings})


WHOLE = [
    ("env: [", "is not YAML"),
    ("", "holds NoneType"),
    ("env: a", r"`total_steps` is missing"),
    ("env: a\ntotal_steps: 0", "`total_steps: 0`: Input should be greater than 0"),
    ("env: a\ntotal_steps: true", "`total_steps: True`: .*a number is wanted, not a flag"),
    ("env: a\ntotal_steps: 1.5e0", "`total_steps: 1.5`: Input should be a valid integer"),
]
LINES = [
    ("num_env: 3", r"`num_env` is unknown. Did you mean `num_envs`\?"),
    ("zzz: 3", "`zzz` is unknown. Known are `agents`, `algorithm`"),
    ("learning_rate: 3", r"`learning_rate` is unknown. .*It is `algorithm.learning_rate` \(dqn, ppo, sac\)"),
    ("learning_starts: 3", r"`learning_starts` is unknown. .*It is `algorithm.learning_starts` \(dqn, sac\)"),
    ("name: 3", "`name` is unknown. .*It is `algorithm.name`"),
    ("rollout_lenght: 3", r"`rollout_lenght` is .*Did you mean `algorithm.rollout_length` \(ppo\)\?"),
    ("learn_on: 3", r"`learn_on` is unknown. .*Did you mean `learn_in`\?"),
    ("parallel: {use_thread: 1}", r"`parallel.use_thread` .*mean `use_threads`\?"),
    ("update_mode: fuse", r"`update_mode: 'fuse'`: Input .*\. Did you mean 'fused'\?$"),
    ("parallel: {async_learning: fre}", r":\n  [^\n]* Did you mean 'free'\?$"),
    ("seed: 1\nseed: 2", "`seed` stands twice"),
    ("turns: sequential", "`turns: 'sequential'`: Input should be 'simultaneous'"),
    ("backend: SERIAL", r"`backend: 'SERIAL'`: .* Did you mean 'serial'\?"),
    ("algorithm: ppo", r"`algorithm: 'ppo'`: .* Did you mean `algorithm.name=ppo`\?"),
    ("agents: {red: dqn}", r"`agents.red: 'dqn'`: .* Did you mean `agents.red.name=dqn`\?"),
    ("env_kwargs: fast", r"`env_kwargs: 'fast'`: Input should be a block of settings\.$"),
    ("minibatch: 4", r"`minibatch: 4`: Input .* Give a list, such as \[64, 256\]\."),
    ("sed: 1\nnum_envs: -1", r"(?s)`num_envs: -1`.*`sed` is.*`seed`"),  # all at once
]


@pytest.mark.parametrize(
    ("text", "words"), [*WHOLE, *((f"env: a\ntotal_steps: 9\n{line}", why) for line, why in LINES)]
)
def test_mistakes_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=words) as caught:
        load_settings(written(tmp_path, text))
    assert "config.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed"], "does not have the form key=value"),
        (["env.name=3"], "leads into `env`"),
        (["seed=["], "is not YAML"),
        (["algorithm={name: slow, name: fast}"], "is not YAML: `name` stands twice"),
        (["num_envs=-1"], r"config\.yaml with num_envs=-1:\n  `num_envs: -1`"),
        (["seed=3", "num_envs=2", "seed=3"], "'seed=3' would undo 'seed=3'"),
        (["algorithm.learning_rate=3", "algorithm={name: slow}"], "would undo 'algorithm.learning_rate=3'"),
    ],
)
def test_overrides_that_say_nothing_or_undo_another_are_refused(
    overrides: list[str], words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "env: CartPole-v1\ntotal_steps: 100\nseed: 1\nalgorithm: {name: ppo}\n")
    with pytest.raises(BadSettings, match=words):
        load_settings(path, overrides)
    settings = load_settings(path, ["algorithm={name: slow}", "algorithm.kind=odd"])  # a part may be named after it
    assert settings.algorithm == {"name": "slow", "kind": "odd"}


TRUE = dict.fromkeys(("enabled", "parallel_actions", "parallel_training", "async_learning"), True)
PLAN = {**TRUE, "train_interval": 4, "num_workers": None, "use_threads": False}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"update_mode": "fused_or_process", "strategy": "batch", "backend": "process", "mode": "overlap"}),
        ({"use_threads": True, "num_workers": 3}, {"update_mode": "fused_or_thread", "worker_budget": 3}),
        ({"use_threads": True}, {"learn_in": "thread", "mode": "overlap", "backend": "thread"}),
        ({"async_learning": "free"}, {"learn_in": "process", "mode": "free"}),
        ({"parallel_training": False}, {"update_mode": "sequential", "strategy": "batch", "backend": "process"}),
        ({"parallel_actions": False, "async_learning": False}, {"strategy": "sequential", "mode": "sync"}),
        ({"num_workers": "None", "train_interval": "None"}, {"worker_budget": None, "train_interval": None}),
        ({"train_interval": 2}, {"train_interval": None}),  # of PPO
        ({"enabled": False}, {"strategy": "sequential", "backend": "serial", "mode": "overlap", "learn_in": "serial"}),
    ],
)
def test_the_plans_block_is_understood(change: dict[str, Any], expected: dict[str, Any]) -> None:
    settings = read(parallel={**PLAN, **change})
    assert {name: getattr(settings, name) for name in expected} == expected


def configs(agents: Any = None, **algorithm: Any) -> dict[Any, Any]:
    return algorithm_configs(read(algorithm=algorithm, agents=agents or {}), ["red", 7], KINDS)


def test_agents_take_over_what_they_do_not_say_but_nothing_from_another_algorithm() -> None:
    network = Network(hidden=(8,))
    made = configs({"red": {"learning_rate": 2}}, name="slow", network={"hidden": [8]})
    assert made == {"red": Slow(learning_rate=2.0, network=network), 7: Slow(network=network)}
    made = configs({"7": {"name": "fast"}}, name="slow", learning_rate=2)
    assert made == {"red": Slow(learning_rate=2.0), 7: Fast()}
    agents = {"red": {"name": "fast"}, "7": {"name": "fast", "train_interval": 5}}
    settings = read(algorithm={"name": "slow"}, agents=agents, parallel={"train_interval": 2})
    expected = {"red": Fast(train_interval=2), 7: Fast(train_interval=5), "blue": Slow()}
    assert algorithm_configs(settings, ["red", 7, "blue"], KINDS) == expected


def test_blocks_that_are_none_say_a_thing_twice_or_what_no_agent_has_are_refused() -> None:
    with pytest.raises(BadSettings, match="is not a block of settings"):
        read_parallel("yes")
    with pytest.raises(BadSettings, match="`parallel` and `backend`, `update_mode` say the same thing"):
        read(parallel=PLAN, update_mode="fused", backend="serial")
    given: list[dict[str, Any]] = [{"train_interval": 2}, {"parallel": {"train_interval": 2}}]
    for settings in given:
        with pytest.raises(BadSettings, match=r"`train_interval: 2` .*no agent learns from a replay buffer.*Leave it"):
            algorithm_configs(read(algorithm={"name": "slow"}, **settings), ["red"], KINDS)


@pytest.mark.parametrize(
    ("agents", "algorithm", "words"),
    [
        ({"read": {}}, {}, r"`agents.read` is unknown. Did you mean `red`\?"),
        ({}, {"name": "ppo"}, "`algorithm.name: ppo` is unknown. Known are `fast`, `slow`"),
        ({}, {"name": ["slow"]}, r"`algorithm.name: \['slow'\]` is unknown. Did you mean `slow`\?"),
        ({}, {"name": "SLOW"}, r"`algorithm.name: SLOW` is unknown. Did you mean `slow`\?"),
        ({}, {"seed": 5}, "`algorithm.seed` .* It is `seed` of the run"),
        ({"red": {"num_envs": 5}}, {}, "`agents.red.num_envs` .* `num_envs` of the run, beside"),
        ({}, {"learning_rat": 1}, r"`algorithm.learning_rat` .*mean `learning_rate`\?"),
        ({}, {"learning_rate": "high"}, "`algorithm.learning_rate: 'high'`: Input should be"),
        ({"red": {"speed": 3}}, {}, "`agents.red.speed` is unknown. It is `speed` of fast"),
        ({}, {"learning_rate": True}, "`algorithm.learning_rate: True`: a number is wanted, not a fl"),
        ({}, {"network": {"hidden": 32}}, r"hidden: 32`: Input .* Give a list, such as \[64, 256\]\.$"),
        ({}, {"kind": True}, "`algorithm.kind: True`: Input should be a valid string"),
        ({"red": {"name": "fast", "speed": 7}}, {}, r"^`agents.red`: Fast.speed=7 is bad luck. Give 6\.$"),
    ],
)
def test_mistakes_in_algorithms_are_named(agents: Any, algorithm: Any, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        configs(agents, **{"name": "slow", **algorithm})


def test_an_algorithm_without_a_name_is_the_default_one_and_its_words_are_checked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from parallel_envs.learners.agent import configs_by_name  # brings torch

    path = written(tmp_path, "env: a\ntotal_steps: 9\n")
    told = load_settings(path, ["algorithm.learning_rate=0.25"])
    assert told.algorithm == {"name": "ppo", "learning_rate": 0.25}
    config = algorithm_configs(told, ["agent_0"], configs_by_name())["agent_0"]
    assert (type(config).__name__, config.learning_rate) == ("PPOConfig", 0.25)
    wrong = load_settings(path, ["algorithm.ent_coef=0.1"])
    with pytest.raises(BadSettings, match=r"`algorithm\.ent_coef` is unknown\. It is called `entropy_weight` here"):
        algorithm_configs(wrong, ["agent_0"], configs_by_name())
    for value, words in (
        ("mpl", r"'mpl'`: Input should be .*\. Did you mean 'mlp'\?$"),
        (True, "True`: Input should be"),
    ):
        with pytest.raises(BadSettings, match=words):
            read_config({"name": "ppo", "network": value}, "algorithm", configs_by_name())


def test_a_file_is_read_overrides_replace_what_it_says_and_the_rest_comes_from_elsewhere(tmp_path: Path) -> None:
    """Powers of ten are numbers though YAML takes them for words, and none is too large."""
    path = written(tmp_path, "env: CartPole-v1\ntotal_steps: 2e6\nlog_every: 3\nalgorithm: {name: slow}\n")
    more = ["seed=3", "algorithm.learning_rate=3e-4", "agents={7: {name: fast, speed: 3e2}}", "agents.red.name=fast"]
    settings = load_settings(path, [*more, "folder=null"], {"log_every": 7, "checkpoint_every": 9, "seed": 1})
    assert (settings.seed, settings.folder, settings.total_steps) == (3, None, 2_000_000)
    assert (settings.log_every, settings.checkpoint_every) == (3, 9)
    configs = algorithm_configs(settings, ["red", "blue", 7], KINDS)
    assert configs == {"red": Fast(), "blue": Slow(learning_rate=3e-4), 7: Fast(speed=300)}
    assert [read(total_steps=steps).checkpoint_every for steps in (101, 10**400)] == [11, 10**399]
    assert read(total_steps=101, checkpoint_every=3).checkpoint_every == 3
    assert read(total_steps=5000).log_every == 5
    with pytest.raises(BadSettings, match=r"nowhere\.yaml cannot be read"):
        load_settings(tmp_path / "nowhere.yaml")
