"""Arguments that are refused: by which error, and with which part of its text."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

from parallel_envs.learners import DQNConfig, IndependentLearners, LoopOptions, PPOConfig, SACConfig
from parallel_envs.learners.dqn import DQN
from parallel_envs.learners.ppo import PPO
from parallel_envs.learners.sac import SAC
from parallel_envs.multiagent import MultiAgentEnvManager
from tests.learners.lives import ARM, MASKED, PICTURES, SEEN
from tests.learners.test_independent import Pressing, pressing

NAN, INF, THREE = float("nan"), float("inf"), Discrete(3)
FREE = {"mode": "free", "queue": 2}
SMALL = PPOConfig(rollout_length=8, minibatch_size=8, hidden=(8,))

SETTINGS: list[tuple[type, str, list[Any], dict[str, Any]]] = [
    (PPOConfig, "learning_rate", [0.0, True, "1", [], (), [0.1]], {}),
    (PPOConfig, "learning_rate_end", [-1e-4], {"learning_rate_updates": 10}),
    (PPOConfig, "learning_rate_updates", [0, 2.5], {"learning_rate_end": 0.0}),
    (PPOConfig, "learning_rate_steady", [-1, 3], {}),
    (PPOConfig, "discount", [1.5], {}),
    (PPOConfig, "network", ["lstm"], {}),
    (PPOConfig, "activation", ["gelu"], {}),
    (PPOConfig, "hidden", [(64, 0), 64, (8.5,)], {}),
    (PPOConfig, "hidden", [()], {"network": "gru"}),
    (PPOConfig, "hidden", [()], {"network": "cnn"}),
    (PPOConfig, "target_kl", [-1.0], {}),
    (PPOConfig, "policy_gain", [0.0], {}),
    (PPOConfig, "clip_range", [NAN, [], (), [0.1]], {}),
    (PPOConfig, "minibatch_size", [2.5], {}),
    (PPOConfig, "rollout_length", [2.5, [], (), [0.1]], {}),
    (PPOConfig, "entropy_weight", [NAN], {}),
    (PPOConfig, "value_weight", [-1], {}),
    (PPOConfig, "normalize_returns", ["yes"], {}),
    (PPOConfig, "normalize_advantages", [None], {}),
    (DQNConfig, "batch_size", [100_000, 2.5], {}),
    (DQNConfig, "epsilon_end", [2.0], {}),
    (DQNConfig, "num_steps", [0], {}),
    (DQNConfig, "leniency", [-0.1], {}),
    (DQNConfig, "network", ["gru"], {}),
    (DQNConfig, "hidden", [()], {}),
    (DQNConfig, "learning_starts", [-5], {}),
    (DQNConfig, "exploration_steps", [1.5], {}),
    (DQNConfig, "sampler", ["trie", "cpprb"], {}),  # cpprb draws by priorities only
    (SACConfig, "target_entropy", [NAN], {}),
    (SACConfig, "temperature", [0.0], {}),
    (LoopOptions, "mode", ["overlp", np.zeros(2), "free"], {}),  # free needs a queue
    (LoopOptions, "learn_in", ["gpu"], {}),
    (LoopOptions, "schedule", ["most-data"], {}),
    (LoopOptions, "queue", [0], FREE),
    (LoopOptions, "queue", [2], {"mode": "overlap"}),
    (LoopOptions, "max_lag", [-1, True], FREE),
    (LoopOptions, "max_lag", [2], {"mode": "overlap"}),
    (LoopOptions, "updates_per_step", [0.0, "x", NAN], FREE),
    (LoopOptions, "updates_per_step", [0.5], {}),
    (LoopOptions, "minibatch", [(9, 3), 4, (4, 8, 16), (0, 4)], FREE),
    (LoopOptions, "minibatch", [(4, 8)], {"mode": "overlap"}),
    (LoopOptions, "vtrace", [True, "no"], {}),  # in sync the newest weights act
    (LoopOptions, "worker_budget", [2.0, 0], {}),
]


@pytest.mark.parametrize(("kind", "name", "wrong", "others"), SETTINGS)
def test_a_setting_out_of_range_is_named(kind: Any, name: str, wrong: list[Any], others: dict[str, Any]) -> None:
    for value in wrong:
        with pytest.raises(ValueError, match=rf"^({kind.__name__}\.)?{name}="):
            kind(**{**others, name: value})
    with pytest.raises(ValueError, match=r"^PPOConfig\.hidden=\(8, '9'\) is not a number"):
        PPOConfig(hidden=(8, "9"))  # type: ignore[arg-type]  # that is its point


MASK, CNN = Dict({"observation": SEEN, "action_mask": THREE}), dataclasses.replace(SMALL, network="cnn")
GOAL = Dict({"observation": SEEN, "desired_goal": SEEN})
SPACES: list[tuple[Any, Any, Any, Any, str]] = [
    (PPO, SMALL, Text(3), Discrete(2), "Agent 'red' cannot learn with ppo: .* not supported as an observation"),
    (PPO, SMALL, SEEN, Dict({"a": THREE}), "Agent 'red' cannot learn with ppo: .* not supported as an action"),
    (PPO, CNN, SEEN, Discrete(2), "Agent 'red' .* does not have three axes"),
    (PPO, SMALL, SEEN, Box(0, 5, (1,), np.int32), "Agent 'red'"),
    (PPO, SMALL, SEEN, Box(-1.7e308, 1.7e308, (1,), np.float64), "Agent 'red' .* too wide to act in"),
    (PPO, SMALL, GOAL, THREE, "'red' .* be ignored: 'desired_goal'"),
    (PPO, SMALL, MASKED, Discrete(2), r"'red' .*MultiBinary\(3\) is not a mask for Discrete\(2\)"),
    (PPO, SMALL, MASKED, MultiDiscrete([2, 2]), r"'red' .*MultiBinary\(3\) is not a mask for"),
    (PPO, SMALL, MASK, THREE, r"'red' .*Discrete\(3\) is not a mask for"),
    (PPO, SMALL, MASKED, ARM, "'red' .* cannot be masked"),
    (DQN, DQNConfig(), SEEN, ARM, r"Agent 'red' cannot learn with dqn: .* DQN acts in Discrete spaces only"),
    (SAC, SACConfig(), SEEN, THREE, "Agent 'red' cannot learn with sac: .*SAC acts in floating Box spaces only"),
    (SAC, SACConfig(), SEEN, Box(-np.inf, np.inf, (2,)), "Agent 'red' cannot learn with sac: .*has no bounds"),
    (SAC, SACConfig(), PICTURES, ARM, "Agent 'red' cannot learn with sac: .*flat observations only"),
    (
        SAC,
        SACConfig(),
        SEEN,
        Box(0, 3, (1,), np.int64),
        "Agent 'red' cannot learn with sac: .*floating Box spaces only",
    ),
    *(
        (
            PPO,
            SMALL,
            Dict({"observation": SEEN, "action_mask": mask}),
            THREE,
            "'red' .* is not a mask for .* Give Multi",
        )
        for mask in (Box(-np.inf, 0.0, (3,)), Box(-1.0, 1.0, (3,)), Box(0, 255, (3,), np.uint8), MultiBinary(4))
    ),
    (PPO, SMALL, Dict({"observation": SEEN, "action_mask": MultiDiscrete([2, 3, 2])}), THREE, "'red' .* is not a mask"),
    (PPO, SMALL, SEEN, MultiBinary(2), "Give a Discrete, MultiDiscrete or"),
]


@pytest.mark.parametrize(("algorithm", "config", "seen", "acts", "words"), SPACES)
def test_a_space_that_an_algorithm_cannot_take_is_named_with_the_agent(
    algorithm: Any, config: Any, seen: Any, acts: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        algorithm(config, seen, acts, agent="red")


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"update_mode": "parallel"}, ValueError, "update_mode='parallel' is unknown"),
    ({"update_mode": ["fused"]}, ValueError, r"update_mode=\['fused'\] is unknown"),
    ({"on_divergence": "ignore"}, ValueError, "on_divergence='ignore' is unknown"),
    ({"workers": 0}, ValueError, "workers=0 is too small"),
    ({"workers": 1.5}, TypeError, "workers=1.5 is not a whole number"),
    ({"workers": True}, TypeError, "workers=True is not a whole number"),
    ({"config": {"red": SMALL}}, ValueError, "no config 'blue'"),
    ({"config": dict.fromkeys(("red", "blue", "green"), SMALL)}, ValueError, "no agent or no config 'green'"),
    ({"config": PPOConfig(rollout_length=2, minibatch_size=9)}, ValueError, "Agent 'red': minibatch_size=9 is larger"),
    ({"config": DQNConfig()}, TypeError, "Agent 'blue' cannot learn with dqn"),
    ({"config": 3}, TypeError, "Agent 'red': 3 is no"),
    ({"envs": 3}, TypeError, r"^3 was given as environments\. .*MultiAgentEnvManager\("),
]


def test_learners_refuse_an_option_and_environments_that_hide_last_observations() -> None:
    with pressing() as envs:
        for options, kind, words in OPTIONS:
            with pytest.raises(kind, match=words):
                IndependentLearners(**{"envs": envs, "config": SMALL, **options})
    with (
        MultiAgentEnvManager([Pressing], backend="serial", autoreset_mode="SameStep") as envs,
        pytest.raises(ValueError, match=r"autoreset_mode=.*which hides what agents saw last"),
    ):
        IndependentLearners(envs, SMALL)


TRAIN: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((10,), {"mod": "sync"}, TypeError, r"^mod='sync' is no argument of train. Did you mean mode="),
    ((10,), {"on_updaet": print}, TypeError, r"^on_updaet=.* is no argument of train. Did you mean on_update="),
    ((10, 5), {}, TypeError, r"^on_update=5 cannot be called"),
    *(((steps,), {}, ValueError, f"total_steps={steps}") for steps in (-5, 0)),
    *(((steps,), {}, TypeError, f"total_steps={steps!r}") for steps in (2.5, True, "5")),
]


def test_train_refuses_an_argument_before_any_step() -> None:
    with pressing(num_envs=2) as envs, IndependentLearners(envs, SMALL, update_mode="sequential") as learners:
        for given, named, kind, words in TRAIN:
            with pytest.raises(kind, match=words):
                learners.train(*given, **named)
            assert learners.steps == 0
        learners.train(int(np.int64(4)))
