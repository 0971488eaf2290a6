"""Agents whose spaces differ between environments: each one's own can be asked for, sampled from and acted in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple

from parallel_envs import MultiAgentEnvManager
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import Results, UnrulyEnv, of_both_kinds, scripted, together

GENERATED = "pettingzoo.test.example_envs.generated_agents_"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo's test package imports

PARTS = Dict({"move": Discrete(2), "say": Box(0.0, 1.0, (2,), np.float32)})


def one_of(action_space: Space[Any], observation_space: Space[Any] | None = None) -> Callable[[], Any]:
    sees = {} if observation_space is None else {"a": observation_space}
    return scripted(together(9), possible_agents=None, action_spaces={"a": action_space}, observation_spaces=sees)


def begun(make: Make, *makers: Callable[[], Any]) -> MultiAgentEnvManager:
    envs = make(list(makers))
    envs.reset(seed=0)
    return envs


def sampled(envs: MultiAgentEnvManager) -> dict[Any, Any]:
    return {agent: envs.action_space(agent).sample() for agent in envs.agents_now}


@pytest.mark.parametrize(
    ("module", "turns"),
    [("parallel_v0", "simultaneous"), ("env_v0", "sequential"), ("env_cust_agentid_v0", "sequential")],
)
def test_what_is_sampled_is_valid_in_each_environment(make_both: Make, module: str, turns: str) -> None:
    envs = make_both(GENERATED + module, num_envs=3, turns=turns)
    envs.reset(seed=0)
    for agent in envs.possible_agents:
        envs.action_space(agent).seed(1)
    differing = 0
    for _ in range(60):  # these environments raise if an action is not in its space
        actions = sampled(envs)
        differing += any(isinstance(envs.action_space(agent), Tuple) for agent in actions)
        envs.step(actions)
    assert differing


def test_each_environment_has_its_own(make_both: Make) -> None:
    envs = begun(make_both, one_of(Discrete(3)), one_of(Discrete(5)), one_of(Discrete(3)))
    assert [envs.single_action_space("a", env).n for env in range(3)] == [3, 5, 3]  # type: ignore[attr-defined]
    assert envs.action_space("a") == Tuple((Discrete(3), Discrete(5), Discrete(3)))
    assert envs.action_space("a") is envs.action_space("a")
    with pytest.raises(
        ValueError, match=r"'a' has no one action space: Discrete\(3\) in envs 0, 2, Discrete\(5\) in env"
    ):
        envs.single_action_space("a")
    assert envs.single_observation_space("a") == envs.single_observation_space("a", 1)
    assert envs.single_action_space("b") == envs.single_action_space("b", 2) == Discrete(3)
    assert isinstance(envs.action_space("b"), MultiDiscrete)


def test_rows_are_drawn_from_streams_of_their_own(make_serial: Make) -> None:
    makers = [one_of(Box(0.0, high, (2,), np.float64)) for high in (1.0, 1.0, 1.0, 2.0)]
    first, second, third, _ = begun(make_serial, *makers).action_space("a").sample()
    assert len({first[0], second[0], third[0]}) == 3


def test_observations_that_differ_are_in_the_space_of_all(make_both: Make) -> None:
    envs = begun(make_both, one_of(Discrete(3), Box(0.0, 1.0, (2,))), one_of(Discrete(3), Box(0.0, 1.0, (5,))))
    observations, *_ = envs.step(sampled(envs))
    assert [one.shape for one in observations["a"]] == [(2,), (5,)]
    assert observations["a"] in envs.observation_space("a")
    assert envs.single_observation_space("a", 1).shape == (5,)
    with pytest.raises(ValueError, match="'a' has no one observation space"):
        envs.single_observation_space("a")
    assert envs.single_action_space("a") == Discrete(3)
    assert isinstance(envs.action_space("a"), MultiDiscrete)


@pytest.mark.parametrize("others", [PARTS, Tuple((Discrete(2), Discrete(3)))], ids=["parts", "tuples"])
def test_batches_of_actions_with_parts_where_only_observations_differ(make_both: Make, others: Space[Any]) -> None:
    envs = begun(make_both, one_of(others, Box(0.0, 1.0, (2,))), one_of(others, Box(0.0, 1.0, (5,))))
    for _ in range(3):
        envs.step(sampled(envs))


def test_each_environments_own_at_its_own_pace(make_both: Make) -> None:
    envs = make_both([one_of(Discrete(n)) for n in (3, 5)])
    envs.send_reset(1, seed=0)
    envs.recv()
    assert envs.single_action_space("a") == Discrete(5)
    with pytest.raises(KeyError, match=r"'a' has not been met in env 0 yet\. So far it was in env 1"):
        envs.single_action_space("a", 0)
    envs.send_reset(0, seed=0)
    envs.recv()
    assert envs.single_action_space("a", 0) == Discrete(3)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_the_latest_counts(make_both: Make, mode: str) -> None:
    def changes(env: UnrulyEnv, results: Results) -> None:
        env.sources["b"].action_space = Discrete(7)

    envs = make_both(
        [scripted(together(2), possible_agents=None), partial(UnrulyEnv, changes, possible_agents=None)],
        autoreset_mode=mode,
    )
    envs.reset(seed=0)
    for _ in range(2):
        assert envs.single_action_space("b") == Discrete(3)
        envs.step(sampled(envs))
    assert envs.single_action_space("b", 1) == Discrete(7)
    assert envs.action_space("b") == Tuple((Discrete(3), Discrete(7)))


@of_both_kinds
def test_an_environment_that_is_not_there_has_none(make_serial: Make, possible_agents: Any) -> None:
    envs = begun(make_serial, scripted(together(9), possible_agents=possible_agents))
    assert envs.single_action_space("a", 0) == envs.single_action_space("a")
    for ask in (envs.single_action_space, envs.single_observation_space):
        with pytest.raises(ValueError, match="1 is not an environment"):
            ask("a", 1)
        with pytest.raises(KeyError, match="'x'"):
            ask("x", 0)


def test_one_environment_alone_sees_its_own(make_both: Make) -> None:
    envs = begun(make_both, one_of(Discrete(3), Box(0.0, 1.0, (2,))), one_of(Discrete(5), Box(0.0, 1.0, (5,))))
    single = envs.single_env(1)
    observations, _ = single.reset(seed=0)
    assert observations["a"].shape == (5,)
    assert single.step({"a": 4, "b": 0})[0]["a"].shape == (5,)
