"""Errors for wrong calls, and for environments that break PettingZoo's rules, with the words of each error."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Dict, Discrete, Text
from pettingzoo.utils import BaseParallelWrapper
from pettingzoo.utils.conversions import parallel_to_aec

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import EnvError
from parallel_envs.testing import ScriptedAgentsEnv
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, Results, UnrulyEnv, noop, of_both_kinds, scripted, together

ZEROS = np.zeros(2, np.int64)


def begun(make: Make, possible_agents: Any) -> MultiAgentEnvManager:
    envs = make([scripted(together(9), possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    return envs


NO_ACTIONS: list[tuple[Any, str]] = [
    ({"a": ZEROS}, "No actions were given for 'b', which is alive in envs 0, 1. Give actions"),
    ({}, "No actions were given for 'a'"),
    ({"a": ZEROS, "b": ZEROS, "x": ZEROS}, r"given for 'x', which is no agent here: \['a', 'b'\]"),
    (ZEROS, "is not a dict. Give a batch of actions for each agent"),
    ({"a": np.zeros(3, np.int64), "b": ZEROS}, "given for 'a' in 2 environments"),
    ({"a": ZEROS, "b": None}, "No actions were given for 'b', which is alive in envs 0, 1"),
    ({"a": ZEROS, "b": 1}, "given for 'b' in 2 environments"),
    ({"a": ZEROS, "b": (x for x in ZEROS)}, "given for 'b' in 2 environments"),
]
OF_ANOTHER_SHAPE: list[tuple[Any, str]] = [
    ({"a": np.zeros(3), "b": [1]}, r"shape \(3,\) were given for 'a'"),  # and are not shared out
    ({"a": ZEROS, "b": np.zeros((2, 1))}, r"'b' in 2 environments, whose actions have shape \(\)"),
]


@of_both_kinds
def test_actions_that_cannot_be_are_told_and_nothing_happens(make_serial: Make, possible_agents: Any) -> None:
    envs = begun(make_serial, possible_agents)
    for actions, text in NO_ACTIONS + (OF_ANOTHER_SHAPE if possible_agents else []):
        for give in (envs.step, envs.send):
            with pytest.raises((TypeError, ValueError), match=text):
                give(actions)
    with pytest.raises(TypeError, match="is not a dict"):
        envs.step(None)  # type: ignore[arg-type]
    assert [row[0] for row in envs.call("state")] == [0, 0]
    envs.step(noop(envs))


def test_actions_that_are_no_numbers_name_the_agent_and_the_part(make_serial: Make) -> None:
    for spaces in ({}, {"b": Discrete(5)}):  # one group of agents, two groups
        envs = make_serial([scripted(together(9), action_spaces=spaces)] * 2)
        envs.reset(seed=0)
        for bad, dtype in (([None, 0], "object"), (["x", "y"], "<U1"), ([1j, 0], "complex128")):
            told = f"^Actions of dtype {dtype} were given for 'b': .*Give numbers, such as"
            with pytest.raises(TypeError, match=told):
                envs.step({"a": ZEROS, "b": bad})
        with pytest.raises(ValueError, match=r"The actions of 'b' are not an array: \[\[1\], \[2, 3\]\]"):
            envs.step({"a": ZEROS, "b": [[1], [2, 3]]})
        envs.step({"a": ZEROS.astype(">i8"), "b": ZEROS.astype(">i8")})
    parts = Dict({"move": Discrete(2), "word": Text(3)})
    envs = make_serial([scripted(together(9), action_spaces={"a": parts})] * 2)
    envs.reset(seed=0)
    right = {"move": ZEROS, "word": ["a", "b"]}
    for wrong, text in (
        ({"move": ZEROS}, r"The actions of 'a' lack the part\['word'\]"),
        (ZEROS, r"The actions of 'a' lack the part\['move'\]"),
        (right | {"word": "ab"}, r"Actions\['word'\] were given for 'a' in 2 envir.* no sequence of 2 items: 'ab'"),
        (right | {"word": ["a"]}, r"Actions\['word'\] were given for 'a' in 2 environments that are no sequence of 2"),
        (right | {"word": 3}, r"Actions\['word'\] were given for 'a' in 2 environments that are no sequence of 2"),
        (right | {"move": [None, 1]}, r"Actions\['move'\] of dtype object were given for 'a'"),
        (right | {"move": np.zeros((2, 1))}, r"Actions\['move'\] of shape \(2, 1\) were given for 'a'"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            envs.step({"a": wrong, "b": ZEROS})
    envs.step({"a": right, "b": ZEROS})


def test_missing_actions_name_the_environments_where_the_agent_is_alive(make_serial: Make) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE[:1]), scripted(EARLY_AND_LATE[1:2], possible_agents="abc")])
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="'a', which is alive in env 0"):
        envs.step({"b": ZEROS, "c": ZEROS})
    envs.send({"b": ZEROS[:1], "c": ZEROS[:1]}, 1)
    envs.recv()
    with pytest.raises(ValueError, match="'c', which is alive in env 1"):
        envs.send({"b": ZEROS[:1]}, 1)


def test_a_step_before_the_first_reset(make_serial: Make) -> None:
    for possible_agents in ("all", None):
        envs = make_serial([scripted(possible_agents=possible_agents)] * 2)
        with pytest.raises(ResetNeeded, match="Call reset first"):
            envs.step({"a": ZEROS})
        with pytest.raises(ResetNeeded, match="Call reset first"):
            envs.send({}, 1)
        envs.reset(seed=0)
        envs.step(noop(envs))


@of_both_kinds
def test_timeouts_agents_and_environments_that_are_none_begin_nothing(make_serial: Make, possible_agents: Any) -> None:
    envs = begun(make_serial, possible_agents)
    calls: list[tuple[Any, Any, str]] = [
        (lambda: envs.step(noop(envs), timeout=-1), ValueError, "timeout=-1"),
        (lambda: envs.reset(timeout=-1), ValueError, "timeout=-1"),
        (lambda: envs.reset(env_ids=2), ValueError, "2 is not an environment"),
        (lambda: envs.agents(2), ValueError, "2 is not an environment"),
        (lambda: envs.send(noop(envs), [0, 2]), ValueError, "2 is not an environment"),
    ]
    asks = (envs.single_observation_space, envs.single_action_space, envs.observation_space, envs.action_space)
    calls += [(partial(ask, "x"), KeyError, r"'x' .*'a', 'b'") for ask in asks]
    for call, error, text in calls:
        with pytest.raises(error, match=text):
            call()
    envs.step(noop(envs), timeout=20)


BY_NAME = {"env_fns": "mpe2.simple_spread_v3", "num_envs": 2}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"env_fns": "mpe2.simple_spread_v3"}, "without num_envs. Say how many"),
    ({**BY_NAME, "num_envs": 0}, "num_envs=0 is too small"),
    ({**BY_NAME, "num_envs": 2.0}, "num_envs=2.0 is not a whole number"),
    ({**BY_NAME, "env_kwargs": "N"}, "is not a dict of keyword"),
    ({**BY_NAME, "env_fns": ""}, "'' is not the path of a module. Give one such as"),
    ({**BY_NAME, "env_fns": ".spread"}, "'.spread' is not the path of a module"),
    ({"env_fns": []}, "env_fns is empty"),
    ({"env_fns": [3]}, r"env_fns\[0\] is 3, which cannot be called. Give functions"),
    ({"env_fns": [scripted()()]}, "Give functions that make an environment, .*, not environments"),
    ({"env_fns": scripted()}, "is not a sequence of callables"),
    ({"num_envs": 2}, "num_envs=2 was given with 1 callables"),
    ({"env_kwargs": {}}, "env_kwargs={} was given with callables"),
    ({"num_worker": 1}, "num_worker=1 is no option of MultiAgentEnvManager"),
    ({"turns": "both"}, "turns='both' is unknown. Choose 'simultaneous'"),
    ({"turns": "sequental"}, r"turns='sequental' is unknown.*mean 'sequential'"),
    ({"turns": None}, "turns=None is unknown"),
    ({"backend": "fast"}, "backend='fast' is unknown"),
    ({"task_setter": 3}, "task_setter=3 cannot be called"),
]


def test_arguments_that_cannot_be() -> None:
    for arguments, text in BAD:
        with pytest.raises((TypeError, ValueError), match=text):
            MultiAgentEnvManager(**{"backend": "serial", "env_fns": [scripted()], **arguments})


NOWHERE = [
    ("no_such_package.no_such_env", {}, "Env 0 raised ModuleNotFoundError .* No module named 'no_such_package'"),
    ("mpe2.no_such_env_v0", {}, r"ModuleNotFoundError .*no_such_env_v0.*'mpe2' has .*simple_spread_v3, "),
    ("mpe2.simple_spred_v3", {}, r"No module named 'mpe2.simple_spred_v3' .* mean 'mpe2.simple_spread_v3'\?"),
    ("mpe2/simple_spread_v2", {}, r"Did you mean 'mpe2/simple_spread-v3'\?"),
    ("mpe3.simple_spread_v3", {}, r"No module named 'mpe3' .* Did you mean 'mpe2.simple_spread_v3'\?"),
    ("simple_spread_v3", {}, r"Did you mean 'mpe2.simple_spread_v3'\?"),
    ("json", {}, "'json' has neither parallel_env nor env: it is no PettingZoo module"),
    ("mpe2.simple_spread_v3", {"env_kwargs": {"size": 3}}, "Env 0 raised TypeError .* argument 'size'"),
    ("Foraging-8x8-2p-2f-v3", {}, "the id of a Gymnasium env.* its agents are in tuples, so give"),
    ("lbforaging:Foraging-8x8-2p-2f-v3", {}, "its agents are in tuples"),
    ("Nowhere-v0", {}, "looks like the id of a Gymnasium environment: give that to ParallelEnvManager"),
    ("package.module:factory", {}, r"Give the factory itself: MultiAgentEnvManager\(\[factory\]"),
]


def test_names_that_lead_nowhere(make_serial: Make, make_process: Make) -> None:
    pytest.importorskip("mpe2")
    for number, (path, settings, text) in enumerate(NOWHERE):
        with pytest.raises(EnvError, match=text):
            (make_serial if number else make_process)(path, num_envs=2, **settings)


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


def put(place: int, value: Any) -> Any:
    """A change that returns this in one place of the results, or drops that place."""
    return lambda env, results: (*results[:place], *value, *results[place + 1 :])


def shows_nothing(env: UnrulyEnv, results: Results) -> None:
    del results[0]["b"]


def set_b(place: int, value: Any) -> Any:
    return lambda env, results: results[place].update(b=value)


NO_B = "In {} the environment returned no observation for 'b', which is among its agents"
STRANGER = r"observation for 'stranger', which is not among its possible_agents \['a', 'b', 'c'\]"
ENDED = "In step 2 the environment ended 'a' and kept it in its agents"
ANY, KNOWN = ("abc", None), ("abc",)
WRONG: list[tuple[str, Any, str, tuple[Any, ...]]] = [
    ("step", lambda env, told: told[2].update(a=True), ENDED, ANY),
    ("step", shows_nothing, NO_B.format("step 2"), ANY),
    ("step", set_b(0, np.zeros(4, np.float32)), r"of shape \(4,\) for 'b', but its observation space says \(3,\)", ANY),
    ("step", set_b(0, np.float32(1.0)), r"of shape \(\) for 'b', but its observation space says \(3,\)", ANY),
    ("step", set_b(0, ["x"] * 3), "for 'b' that is no float32: ", KNOWN),
    ("step", set_b(1, "much"), "returned the reward 'much' of type str", ANY),
    ("step", set_b(1, None), "returned the reward None of type NoneType", ANY),
    ("step", set_b(1, np.zeros(2)), "A reward is a single number", ANY),
    ("step", lambda env, told: told[0].update(stranger=told[0]["a"]), STRANGER, KNOWN),
    ("reset", lambda env, told: told[0].update(stranger=told[0]["a"]), STRANGER, KNOWN),
    ("step", swaps_agents, NO_B.format("step 2").replace("'b'", "'c'"), KNOWN),
    ("reset", shows_nothing, NO_B.format("reset"), ANY),
    ("reset", lambda env, told: told[0], "In reset .* returned one dict: .* returns 2 dicts by agent", ANY),
    ("reset", put(1, [None]), "returned None as its infos. Return a dict by agent", ANY),
    ("reset", put(2, [1]), "In reset the environment returned 3 values", ANY),
    ("reset", set_b(0, {"seen": 0}), r"without \['mask'\] for 'b'", ANY),
    ("step", put(4, []), "returned 4 values.* returns 5 dicts by agent here", ANY),
    ("step", put(4, [None]), "In step 2 .* returned None as its infos", ANY),
    ("step", set_b(4, "word"), "returned 'word' as the info of 'b'. Return", ANY),
    ("step", put(1, [1.0]), "returned 1.0 as its rewards", ANY),
]
PARTS = Dict({"seen": Discrete(2), "mask": Discrete(2)})


def test_what_an_environment_must_not_return(make_serial: Make, make_process: Make) -> None:
    for number, (at, change, text, kinds) in enumerate(WRONG):
        for agents in kinds:
            how: dict[str, Any] = {"possible_agents": agents}
            if "mask" in text:
                how["observation_spaces"] = {"b": PARTS}
            make = make_process if number < 2 else make_serial
            envs = make([scripted(together(9), **how), partial(UnrulyEnv, change, at_reset=at == "reset", **how)])
            begin_and_step(envs)
            with pytest.raises(EnvError, match=rf"^Env 1 raised \w+ during {at}.*{text}"):
                envs.reset() if at == "reset" else envs.step(noop(envs))
            observations, _ = envs.reset(seed=0)  # it goes on
            assert observations["a"].shape == (2, 3)
            envs.step(noop(envs))


def begin_and_step(envs: MultiAgentEnvManager) -> None:
    envs.reset(seed=0)
    envs.step(noop(envs))


def test_an_agent_that_has_ended_is_not_spoken_of(make_serial: Make) -> None:
    for possible_agents in ("all", None):
        envs = make_serial([partial(UnrulyEnv, answers_for_a_dead_agent, possible_agents=possible_agents)])
        begin_and_step(envs)
        assert envs.step(noop(envs))[2]["b"].tolist() == [True]
        with pytest.raises(EnvError, match=r"observation for 'b', which was not alive before it and\s+is not after it"):
            envs.step(noop(envs))


def test_an_agent_that_ends_unseen_has_its_reward_and_info(make_serial: Make) -> None:
    envs = make_serial([partial(UnrulyEnv, answers_for_a_dead_agent)])
    begin_and_step(envs)
    _, rewards, *_ = envs.step(noop(envs))
    envs.set_attr("change", [ends_all])
    told = envs.step(noop(envs))[4]["b"]
    assert told["final_reward"].tolist() == rewards["b"].tolist()
    assert (told["_final_reward"].tolist(), told["_final_obs"].tolist()) == ([True], [False])


@of_both_kinds
def test_an_agent_may_have_no_info(make_serial: Make, possible_agents: Any) -> None:
    envs = make_serial([partial(UnrulyEnv, put(4, [{"a": None, "all": 3}]), possible_agents=possible_agents)])
    begin_and_step(envs)
    *_, infos = envs.step(noop(envs))
    assert infos == {"a": {}, "b": {}}
    assert infos.common["all"].tolist() == [3]


FACTORIES: list[tuple[Any, str]] = [
    (lambda: None, "The factory returned None, which is not a PettingZoo environment"),
    (gymnasium.Env, "The factory returned .*Env.*, which is not a PettingZoo environment"),
    (scripted(possible_agents=[]), "has an empty list possible_agents"),
    (scripted(possible_agents=["a", "a"]), "name an agent twice"),
    (lambda: 1 // 0, "modulo by zero"),
]


def test_what_a_factory_must_not_return(make_both: Make) -> None:
    for factory, text in FACTORIES:
        with pytest.raises(EnvError, match=rf"^Env 1 raised \w+ during its construction: (?s:.*){text}"):
            make_both([scripted(), factory])


def test_environments_that_differ(make_serial: Make) -> None:
    for other, text in (
        (scripted(together(2, "a", "b", "d")), ""),
        (scripted(observation_spaces={"b": Discrete(2)}), ""),
        (
            scripted(action_spaces={"b": Discrete(2)}),
            r"'b': Box\(.*\) to Discrete\(2\).*env 0 .*'b': Box.* to Discrete\(3",
        ),
        (scripted(possible_agents=None), ""),
    ):
        with pytest.raises(RuntimeError, match=r"^Env 1 has the observation space .*, env 0 has \{'a': Box") as raised:
            make_serial([scripted(), other])
        assert raised.match(text)
        assert "observation_mode" not in str(raised.value)
        assert "must have the same agents with equal spaces: open one manager for each kind" in str(raised.value)


def the_same(env: Any) -> Any:
    return env


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(
    ("convert", "wrap", "turns"),
    [
        (the_same, the_same, "simultaneous"),
        (parallel_to_aec, the_same, "sequential"),
        (the_same, BaseParallelWrapper, "simultaneous"),
    ],
    ids=["parallel", "aec", "wrappers"],
)
def test_factories_that_return_one_env(make_both: Make, convert: Any, wrap: Any, turns: str) -> None:
    """As PettingZoo's tutorial for AgileRL writes it."""
    env = convert(ScriptedAgentsEnv(EARLY_AND_LATE))
    with pytest.raises(EnvError, match=r"The factories of envs \d and \d returned the same object, or wrappers aro"):
        make_both([lambda: wrap(env) for _ in range(4)], num_workers=2, turns=turns)
    make_both([lambda: wrap(convert(ScriptedAgentsEnv(EARLY_AND_LATE))) for _ in range(4)], num_workers=2, turns=turns)
