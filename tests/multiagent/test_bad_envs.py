"""Environments that do not keep PettingZoo's rules: the error names the environment, the step and the agent."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo.utils import BaseParallelWrapper
from pettingzoo.utils.conversions import parallel_to_aec

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import EnvError
from parallel_envs.testing import ScriptedAgentsEnv
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, Results, UnrulyEnv, noop, of_both_kinds, scripted, together


def swaps_agents(env: UnrulyEnv, results: Results) -> None:
    env.agents.remove("b")
    env.agents.append("c")


def answers_for_a_dead_agent(env: UnrulyEnv, results: Results) -> None:
    env.agents.remove("b")
    results[0].pop("b")
    results[2]["b"] = True
    env.change, env.elapsed = lambda env, results: results[0].update(b=results[0]["a"]), 1


def ends_all(env: UnrulyEnv, results: Results) -> None:
    env.agents.clear()
    results[0] = {"a": results[0]["a"]}
    results[2]["a"] = True


def changes_space(which: str) -> Any:
    return lambda env, results: setattr(env.sources["b"], which, Box(0.0, 1.0, (7,)))


def set_b(place: int, value: Any) -> Any:
    return lambda env, results: results[place].update(b=value)


def shows_nothing(env: UnrulyEnv, results: Results) -> None:
    del results[0]["b"]


def shows_a_stranger(env: UnrulyEnv, results: Results) -> None:
    results[0]["stranger"] = results[0]["a"]


KNOWN = ("a", "b", "c")
NO_B = "In {} the environment returned no observation for 'b', which is among its agents"
STRANGER = r"observation for 'stranger', which is not among its possible_agents \['a', 'b', 'c'\]"
AT_A_STEP: list[tuple[Any, str]] = [
    (lambda env, results: results[2].update(a=True), "In step 2 the environment ended 'a' and kept it in its agents"),
    (shows_nothing, NO_B.format("step 2")),
    (set_b(0, np.zeros(4, np.float32)), r"observation of shape \(4,\) for 'b', but its observation space says \(3,\)"),
    (set_b(0, np.float32(1.0)), r"observation of shape \(\) for 'b', but its observation space says \(3,\)"),
    (set_b(1, "much"), "returned the reward 'much' of type str"),
    (set_b(1, None), "returned the reward None of type NoneType"),
    (set_b(1, np.zeros(2)), "A reward is a single number"),
]
CASES = [(*case, agents) for case in AT_A_STEP for agents in (KNOWN, None)]
CASES += [(shows_a_stranger, STRANGER, KNOWN), (swaps_agents, NO_B.format("step 2").replace("'b'", "'c'"), KNOWN)]


@pytest.mark.parametrize(("change", "text", "possible_agents"), CASES, ids=range(len(CASES)))
@pytest.mark.slow(sample=True)
def test_what_a_step_must_not_return(make_both: Make, change: Any, text: str, possible_agents: Any) -> None:
    unruly = partial(UnrulyEnv, change, possible_agents=possible_agents)
    envs = make_both([scripted(together(9), possible_agents=possible_agents), unruly])
    envs.reset(seed=0)
    envs.step(noop(envs))
    with pytest.raises(EnvError, match=rf"^Env 1 raised \w+ during step 2: .*{text}"):
        envs.step(noop(envs))
    observations, _ = envs.reset(seed=0)  # it goes on
    assert observations["a"].shape == (2, 3)
    envs.step(noop(envs))


@of_both_kinds
def test_an_agent_that_has_ended_is_not_spoken_of(make_both: Make, possible_agents: Any) -> None:
    envs = make_both([partial(UnrulyEnv, answers_for_a_dead_agent, possible_agents=possible_agents)])
    envs.reset(seed=0)
    envs.step(noop(envs))
    assert envs.step(noop(envs))[2]["b"].tolist() == [True]
    with pytest.raises(EnvError, match=r"observation for 'b', which was not alive before it and\s+is not after it"):
        envs.step(noop(envs))


def test_an_agent_that_ends_unseen_has_its_reward_and_info(make_both: Make) -> None:
    envs = make_both([partial(UnrulyEnv, answers_for_a_dead_agent)])
    envs.reset(seed=0)
    envs.step(noop(envs))
    _, rewards, *_ = envs.step(noop(envs))
    envs.set_attr("change", [ends_all])
    told = envs.step(noop(envs))[4]["b"]
    assert told["final_reward"].tolist() == rewards["b"].tolist()
    assert (told["_final_reward"].tolist(), told["_final_obs"].tolist()) == ([True], [False])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (shows_nothing, "In reset the environment returned no observation for 'b'"),
        (shows_a_stranger, "The environment returned an observation for 'stranger', which is not among its possible"),
    ],
    ids=range(2),
)
def test_what_a_reset_must_not_do(make_both: Make, change: Any, text: str) -> None:
    envs = make_both([scripted(together(9)), partial(UnrulyEnv, change, at_reset=True)])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=f"^Env 1 raised ValueError during reset: {text}"):
        envs.reset()


def test_open_environments_may_change_their_spaces(make_both: Make) -> None:
    def grow(env: UnrulyEnv, results: Any) -> None:
        changes_space("observation_space")(env, results)
        results[0]["b"] = np.ones(7, np.float32)

    envs = make_both([partial(UnrulyEnv, grow, at_reset=True, possible_agents=None)] * 2)
    envs.reset(seed=0)
    assert [one.shape for one in envs.reset()[0]["b"]] == [(7,), (7,)]


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


PARTS = {"observation_spaces": {"a": Dict({"seen": Box(0.0, 1.0, (2,)), "mask": Discrete(2)})}}
ODD: list[tuple[str, Any, str]] = [
    ("reset", lambda told: told[0], r"TypeError during reset: In reset .* returned one dict: .* returns 2 dicts by ag"),
    ("reset", lambda told: (told[0], None), "TypeError during reset: .* returned None as its infos. Return a dict by"),
    ("reset", lambda told: (*told, 1), "TypeError during reset: In reset the environment returned 3 values"),
    ("step", lambda told: told[:4], "TypeError during step 1: .* returned 4 values.* returns 5 dicts by agent here"),
    ("step", lambda told: (*told[:4], None), "TypeError during step 1: In step 1 .* returned None as its infos"),
    ("step", lambda told: (*told[:4], {"a": {}, "b": "word"}), "TypeError .* returned 'word' as the info of 'b'. Ret"),
    ("step", lambda told: (told[0], 1.0, *told[2:]), "TypeError during step 1: .* returned 1.0 as its rewards"),
    (
        "reset",
        lambda told: ({**told[0], "a": {"seen": told[0]["a"]["seen"]}}, told[1]),
        r".*without \['mask'\] for 'a'",
    ),
]


def begin_and_step(envs: MultiAgentEnvManager) -> None:
    envs.reset(seed=0)
    envs.step(noop(envs))


@of_both_kinds
@pytest.mark.parametrize(("at", "change", "text"), ODD, ids=range(len(ODD)))
def test_what_are_not_so_many_dicts_or_lacks_a_part(
    make_serial: Make, at: str, change: Any, text: str, possible_agents: Any
) -> None:
    how: dict[str, Any] = PARTS if "mask" in text else {}
    envs = make_serial([partial(OddlyReturning, at, change, possible_agents=possible_agents, **how)])
    with pytest.raises(EnvError, match=rf"^Env 0 raised {text}"):
        begin_and_step(envs)


def test_observations_that_are_no_numbers(make_serial: Make) -> None:
    speaks = partial(OddlyReturning, "step", lambda told: (told[0] | {"b": ["x", "y", "z"]}, *told[1:]))
    envs = make_serial([speaks])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"an observation for 'b' that is no float32: \['x', 'y', 'z'\]"):
        envs.step(noop(envs))


@of_both_kinds
def test_an_agent_may_have_no_info(make_both: Make, possible_agents: Any) -> None:
    says_nothing = partial(OddlyReturning, "step", lambda told: (*told[:4], {"a": None, "all": 3}))
    envs = make_both([partial(says_nothing, possible_agents=possible_agents)])
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    assert infos == {"a": {}, "b": {}}
    assert infos.common["all"].tolist() == [3]


# ---- construction --------------------------------------------------------------------------------


class PlainGymEnv(gymnasium.Env[Any, Any]):
    observation_space = action_space = Discrete(2)


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
    ("other", "text"),
    [
        (scripted(together(2, "a", "b", "d")), ""),
        (scripted(observation_spaces={"b": Discrete(2)}), ""),
        (
            scripted(action_spaces={"b": Discrete(2)}),
            r"'b': Box\(.*\) to Discrete\(2\).*env 0 .*'b': Box.* to Discrete\(3",
        ),
        (scripted(possible_agents=None), ""),
    ],
    ids=["agents", "observations", "actions", "open"],
)
def test_environments_that_differ(make_both: Make, other: Any, text: str) -> None:
    with pytest.raises(RuntimeError, match=r"^Env 1 has the observation space .*, env 0 has \{'a': Box") as raised:
        make_both([scripted(), other])
    assert raised.match(text)
    assert "observation_mode" not in str(raised.value)
    assert "must have the same agents with equal spaces: open one manager for each kind" in str(raised.value)


@pytest.mark.parametrize(
    ("convert", "wrap", "turns"),
    [
        (lambda env: env, lambda env: env, "simultaneous"),
        (parallel_to_aec, lambda env: env, "sequential"),
        (lambda env: env, BaseParallelWrapper, "simultaneous"),
    ],
    ids=["parallel", "aec", "wrappers"],
)
def test_factories_that_return_one_env(make: Make, convert: Any, wrap: Any, turns: str) -> None:
    """As PettingZoo's tutorial for AgileRL writes it."""
    env = convert(ScriptedAgentsEnv(EARLY_AND_LATE))
    with pytest.raises(EnvError, match=r"The factories of envs \d and \d returned the same object, or wrappers aro"):
        make([lambda: wrap(env) for _ in range(4)], num_workers=2, turns=turns)
    make([lambda: wrap(convert(ScriptedAgentsEnv(EARLY_AND_LATE))) for _ in range(4)], num_workers=2, turns=turns)
