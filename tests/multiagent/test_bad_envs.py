"""Environments that do not keep PettingZoo's rules: the error names the environment, the step and the agent."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import EnvError
from parallel_envs.testing import ScriptedAgentsEnv
from tests.multiagent import broken_envs
from tests.multiagent.broken_envs import UnrulyEnv
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, scripted, together
from tests.multiagent.test_resets import noop

AT_A_STEP = [
    ("keeps_an_ended_agent", "In step 2 the environment ended 'a' and kept it in its agents"),
    ("shows_nothing", "In step 2 the environment returned no observation for 'b', which is among its agents"),
    ("shows_another_shape", r"observation of shape \(4,\) for 'b', but its observation space says \(3,\)"),
    ("shows_one_number", r"observation of shape \(\) for 'b', but its observation space says \(3,\)"),
    ("rewards_with_a_word", "returned the reward 'much' of type str"),
    ("rewards_with_nothing", "returned the reward None of type NoneType"),
    ("rewards_with_two_numbers", "A reward is a single number"),
]
OF_THE_KNOWN = [
    ("shows_a_stranger", r"observation for 'stranger', which is not among its possible_agents \['a', 'b', 'c'\]"),
    ("swaps_without_a_word", "In step 2 the environment returned no observation for 'c', which is among its agents"),
]


@pytest.mark.parametrize("possible_agents", [("a", "b", "c"), None], ids=["known", "open"])
@pytest.mark.parametrize(("change", "text"), AT_A_STEP)
def test_what_a_step_must_not_return(make_both: Make, change: str, text: str, possible_agents: Any) -> None:
    check_step(make_both, change, text, possible_agents)


@pytest.mark.parametrize(("change", "text"), OF_THE_KNOWN)
def test_what_a_step_of_known_agents_must_not_return(make_both: Make, change: str, text: str) -> None:
    check_step(make_both, change, text, ("a", "b", "c"))


def check_step(make: Make, change: str, text: str, possible_agents: Any) -> None:
    unruly = partial(UnrulyEnv, getattr(broken_envs, change), possible_agents=possible_agents)
    envs = make([scripted(together(9), possible_agents=possible_agents), unruly])
    envs.reset(seed=0)
    envs.step(noop(envs))
    with pytest.raises(EnvError, match=rf"^Env 1 raised \w+ during step 2: .*{text}"):
        envs.step(noop(envs))
    observations, _ = envs.reset(seed=0)  # it goes on
    assert observations["a"].shape == (2, 3)
    envs.step(noop(envs))


@pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])
def test_the_dead_are_silent(make_both: Make, possible_agents: Any) -> None:
    envs = make_both([partial(UnrulyEnv, broken_envs.answers_for_a_dead_agent, possible_agents=possible_agents)])
    envs.reset(seed=0)
    envs.step(noop(envs))
    *_, terminations, _, _ = envs.step(noop(envs))
    assert terminations["b"].tolist() == [True]
    with pytest.raises(EnvError, match=r"observation for 'b', which was not alive before it and\s+is not after it"):
        envs.step(noop(envs))


def test_an_agent_that_ends_unseen_has_its_reward_and_info(make_both: Make) -> None:
    envs = make_both([partial(UnrulyEnv, broken_envs.answers_for_a_dead_agent)])
    envs.reset(seed=0)
    envs.step(noop(envs))
    _, rewards, *_ = envs.step(noop(envs))
    envs.call("change_to_end")
    *_, infos = envs.step(noop(envs))
    assert infos["b"]["final_reward"].tolist() == rewards["b"].tolist()
    assert infos["b"]["_final_reward"].tolist() == [True]
    assert infos["b"]["_final_obs"].tolist() == [False]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("sees_more", r"The observation space of 'b' has changed from Box\(.*3,.* to Box\(.*7,"),
        ("does_more", r"The action space of 'b' has changed from Discrete\(3\) to Box"),
        ("shows_nothing", "In reset the environment returned no observation for 'b'"),
        (
            "shows_a_stranger",
            "The environment returned an observation for 'stranger', which is not among its possible_agents",
        ),
    ],
)
def test_what_a_reset_must_not_do(make_both: Make, change: str, text: str) -> None:
    envs = make_both([scripted(together(9)), partial(UnrulyEnv, getattr(broken_envs, change), at_reset=True)])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=f"^Env 1 raised ValueError during reset: {text}"):
        envs.reset()


def test_open_environments_may_change_their_spaces(make_both: Make) -> None:
    def grow(env: UnrulyEnv, results: Any) -> None:
        env.sources["b"].observation_space = Box(0.0, 1.0, (7,))
        results[0]["b"] = np.ones(7, np.float32)

    envs = make_both([partial(UnrulyEnv, grow, at_reset=True, possible_agents=None)] * 2)
    envs.reset(seed=0)
    observations, _ = envs.reset()
    assert [one.shape for one in observations["b"]] == [(7,), (7,)]


def test_an_observation_without_a_part(make_both: Make) -> None:
    class HalfEnv(ScriptedAgentsEnv):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            observations, infos = super().reset(seed, options)
            del observations["a"]["mask"]
            return observations, infos

    space = Dict({"seen": Box(0.0, 1.0, (2,)), "mask": Discrete(2)})
    for possible_agents in ("all", None):
        how: dict[str, Any] = {"observation_spaces": {"a": space}, "possible_agents": possible_agents}
        envs = make_both([partial(HalfEnv, EARLY_AND_LATE, **how)])
        with pytest.raises(EnvError, match=r"Env 0 .* without \['mask'\] for 'a'"):
            envs.reset(seed=0)


class OddlyReturning(ScriptedAgentsEnv):
    """Returns something else than so many dicts: from its reset, or from its steps."""

    def __init__(self, at: str, change: Any, **settings: Any) -> None:
        super().__init__(together(9), **settings)
        self.at, self.change = at, change

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        results = super().reset(seed, options)
        return self.change(results) if self.at == "reset" else results

    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        return self.change(results) if self.at == "step" else results


ODD = [
    (
        "reset",
        lambda told: told[0],
        r"In reset the environment returned one dict: .* returns 2 dicts by agent here: obs",
    ),
    ("reset", lambda told: (told[0], None), "In reset the environment returned None as its infos. Return a dict by ag"),
    ("reset", lambda told: (*told, 1), "In reset the environment returned 3 values"),
    ("step", lambda told: told[:4], "In step 1 the environment returned 4 values.* returns 5 dicts by agent here: obs"),
    ("step", lambda told: (*told[:4], None), "In step 1 the environment returned None as its infos"),
    (
        "step",
        lambda told: (*told[:4], {"a": {}, "b": "word"}),
        "In step 1 .* returned 'word' as the info of 'b'. Return a",
    ),
    ("step", lambda told: (told[0], 1.0, *told[2:]), "In step 1 the environment returned 1.0 as its rewards"),
]


@pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])
@pytest.mark.parametrize(("at", "change", "text"), ODD, ids=range(len(ODD)))
def test_what_are_not_so_many_dicts(make_serial: Make, at: str, change: Any, text: str, possible_agents: Any) -> None:
    envs = make_serial([partial(OddlyReturning, at, change, possible_agents=possible_agents)])
    with pytest.raises(EnvError, match=rf"^Env 0 raised TypeError during (reset|step 1): {text}"):
        begin_and_step(envs)


@pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])
def test_an_agent_may_have_no_info(make_both: Make, possible_agents: Any) -> None:
    def says_nothing(results: Any) -> Any:
        return *results[:4], {"a": None, "all": 3}

    envs = make_both([partial(OddlyReturning, "step", says_nothing, possible_agents=possible_agents)])
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    assert infos == {"a": {}, "b": {}}
    assert infos.common["all"].tolist() == [3]


def begin_and_step(envs: MultiAgentEnvManager) -> None:
    envs.reset(seed=0)
    envs.step(noop(envs))


def test_observations_that_are_no_numbers(make_serial: Make) -> None:
    def speaks(results: Any) -> Any:
        return results[0] | {"b": ["x", "y", "z"]}, *results[1:]

    envs = make_serial([partial(OddlyReturning, "step", speaks)])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"an observation for 'b' that is no float32: \['x', 'y', 'z'\]"):
        envs.step(noop(envs))


# ---- construction --------------------------------------------------------------------------------


class PlainGymEnv(gymnasium.Env[Any, Any]):
    observation_space = Discrete(2)
    action_space = Discrete(2)


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (lambda: None, "The factory returned None, which is not a PettingZoo environment"),
        (PlainGymEnv, "The factory returned .*PlainGymEnv.*, which is not a PettingZoo environment"),
        (scripted(possible_agents=[]), "has an empty list possible_agents"),
        (scripted(possible_agents=["a", "a"]), "name an agent twice"),
        (lambda: 1 // 0, "modulo by zero"),
    ],
)
def test_what_a_factory_must_not_return(make_both: Make, factory: Any, text: str) -> None:
    with pytest.raises(EnvError, match=rf"^Env 1 raised \w+ during its construction: (?s:.*){text}"):
        make_both([scripted(), factory])


@pytest.mark.parametrize(
    "other",
    [
        scripted(together(2, "a", "b", "d")),
        scripted(observation_spaces={"b": Discrete(2)}),
        scripted(action_spaces={"b": Discrete(2)}),
        scripted(possible_agents=None),
    ],
    ids=["agents", "observations", "actions", "open"],
)
def test_environments_that_differ(make_both: Make, other: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^Env 1 has the observation space .*, env 0 has \{'a': Box") as raised:
        make_both([scripted(), other])
    assert "observation_mode" not in str(raised.value)
    assert "must have the same agents with equal spaces: open one manager for each kind" in str(raised.value)


def test_action_spaces_that_differ_are_shown(make_serial: Make) -> None:
    with pytest.raises(
        RuntimeError, match=r"'b': Box\(.*\) to Discrete\(2\).*env 0 has .*'b': Box\(.*\) to Discrete\(3\)"
    ):
        make_serial([scripted(), scripted(action_spaces={"b": Discrete(2)})])


def as_it_is(env: Any) -> Any:
    return env


def as_aec(env: Any) -> Any:
    from pettingzoo.utils.conversions import parallel_to_aec

    return parallel_to_aec(env)


@pytest.mark.parametrize(("convert", "turns"), [(as_it_is, "simultaneous"), (as_aec, "sequential")])
def test_factories_that_return_one_env(make: Make, convert: Any, turns: str) -> None:
    """As PettingZoo's tutorial for AgileRL writes it."""
    env = convert(ScriptedAgentsEnv(EARLY_AND_LATE))
    with pytest.raises(EnvError, match=r"The factories of envs \d and \d returned the same object, or wrappers"):
        make([lambda: env for _ in range(4)], num_workers=2, turns=turns)


def test_different_wrappers_of_one_env(make: Make) -> None:
    from pettingzoo.utils import BaseParallelWrapper

    env = ScriptedAgentsEnv(EARLY_AND_LATE)
    with pytest.raises(EnvError, match="or wrappers around it: a ScriptedAgentsEnv"):
        make([lambda: BaseParallelWrapper(env) for _ in range(4)], num_workers=2)
    make([lambda: BaseParallelWrapper(ScriptedAgentsEnv(EARLY_AND_LATE)) for _ in range(4)], num_workers=2)
