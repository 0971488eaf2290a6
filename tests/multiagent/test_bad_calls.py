"""What a caller gets wrong: told at once, with the agent and the environments, and nothing has happened."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Dict, Discrete, Text

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import ClosedError, EnvError
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, noop, of_both_kinds, scripted, together

ZEROS = np.zeros(2, np.int64)


def begun(make: Make, possible_agents: Any) -> MultiAgentEnvManager:
    """Two environments that have been reset."""
    envs = make([scripted(together(9), possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    return envs


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize(
    ("actions", "error", "text"),
    [
        ({"a": ZEROS}, ValueError, "No actions were given for 'b', which is alive in envs 0, 1. Give actions"),
        ({}, ValueError, "No actions were given for 'a'"),
        ({"a": ZEROS, "b": ZEROS, "x": ZEROS}, ValueError, r"given for 'x', which is no agent here: \['a', 'b'\]"),
        ([ZEROS, ZEROS], TypeError, "is not a dict. Give a batch of actions for each agent"),
        (ZEROS, TypeError, "is not a dict"),
        (None, TypeError, "is not a dict"),
        ({"a": np.zeros(3, np.int64), "b": ZEROS}, ValueError, "given for 'a' in 2 environments"),
        ({"a": ZEROS, "b": [1]}, ValueError, "given for 'b' in 2 environments"),
        ({"a": ZEROS, "b": None}, ValueError, "No actions were given for 'b', which is alive in envs 0, 1"),
        ({"a": ZEROS, "b": 1}, ValueError, "given for 'b' in 2 environments"),
        ({"a": ZEROS, "b": (x for x in ZEROS)}, ValueError, "given for 'b' in 2 environments"),
    ],
    ids=range(11),
)
def test_actions_that_cannot_be(make_both: Make, possible_agents: Any, actions: Any, error: Any, text: str) -> None:
    envs = begun(make_both, possible_agents)
    with pytest.raises(error, match=text):
        envs.step(actions)
    with pytest.raises(error):
        envs.send(actions)
    assert [row[0] for row in envs.call("state")] == [0, 0]
    envs.step(noop(envs))


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ({"a": np.zeros(3), "b": [1]}, r"shape \(3,\) were given for 'a'"),  # and are not shared out
        ({"a": ZEROS, "b": np.zeros((2, 1))}, r"'b' in 2 environments, whose actions have shape \(\)"),
    ],
    ids=["3 for 2 envs", "a column"],
)
def test_actions_of_another_shape_name_the_agent(make_serial: Make, actions: Any, text: str) -> None:
    envs = begun(make_serial, ["a", "b"])
    with pytest.raises(ValueError, match=text):
        envs.step(actions)
    envs.step(noop(envs))


@pytest.mark.parametrize("spaces", [{}, {"b": Discrete(5)}], ids=["one group", "two groups"])
def test_actions_that_are_no_numbers_name_the_agent(make_both: Make, spaces: dict[str, Any]) -> None:
    envs = make_both([scripted(together(9), action_spaces=spaces)] * 2)
    envs.reset(seed=0)
    for wrong, dtype in (([None, 0], "object"), (["x", "y"], "<U1"), ([1j, 0], "complex128")):
        with pytest.raises(TypeError, match=f"^Actions of dtype {dtype} were given for 'b': .*Give numbers, such as"):
            envs.step({"a": ZEROS, "b": wrong})
    with pytest.raises(ValueError, match=r"The actions of 'b' are not an array: \[\[1\], \[2, 3\]\]"):
        envs.step({"a": ZEROS, "b": [[1], [2, 3]]})
    envs.step({"a": ZEROS.astype(">i8"), "b": ZEROS.astype(">i8")})


def test_actions_with_parts_name_the_agent_and_the_part(make_both: Make) -> None:
    parts = Dict({"move": Discrete(2), "word": Text(3)})
    envs = make_both([scripted(together(9), action_spaces={"a": parts})] * 2)
    envs.reset(seed=0)
    right = {"move": ZEROS, "word": ["a", "b"]}
    for wrong, text in (
        ({"move": ZEROS}, r"The actions of 'a' have no part\['word'\]"),
        (ZEROS, r"The actions of 'a' have no part\['move'\]"),
        (right | {"word": "ab"}, r"Actions\['word'\] were given for 'a' in 2 envir.* no sequence of 2 items: 'ab'"),
        (right | {"word": ["a"]}, r"Actions\['word'\] were given for 'a' in 2 environments that are no sequence of 2"),
        (right | {"word": 3}, r"Actions\['word'\] were given for 'a' in 2 environments that are no sequence of 2"),
        (right | {"move": [None, 1]}, r"Actions\['move'\] of dtype object were given for 'a'"),
        (right | {"move": np.zeros((2, 1))}, r"Actions\['move'\] of shape \(2, 1\) were given for 'a'"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            envs.step({"a": wrong, "b": ZEROS})
    envs.step({"a": right, "b": ZEROS})


def test_after_its_end_the_manager_is_named(make_serial: Make) -> None:
    envs = begun(make_serial, "all")
    single, rows, actions = envs.single_env(0), envs.as_vector_env(), noop(envs)
    envs.close()
    asks: list[Any] = [envs.reset, lambda: envs.step(actions), envs.recv, lambda: envs.get_attr("agents"), envs.render]
    for ask in (*asks, envs.stats, single.reset, rows.reset):
        with pytest.raises(
            ClosedError, match=r"^Trying to operate on `MultiAgentEnvManager` \(`\w+`\), after a call to"
        ):
            ask()


def test_missing_actions_name_the_environments_where_the_agent_is_alive(make_serial: Make) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE[:1]), scripted(EARLY_AND_LATE[1:2], possible_agents="abc")])
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="'a', which is alive in env 0"):
        envs.step({"b": ZEROS, "c": ZEROS})
    envs.send({"b": ZEROS[:1], "c": ZEROS[:1]}, 1)
    envs.recv()
    with pytest.raises(ValueError, match="'c', which is alive in env 1"):
        envs.send({"b": ZEROS[:1]}, 1)


def test_a_step_before_the_first_reset(make_both: Make) -> None:
    for possible_agents in ("all", None):
        envs = make_both([scripted(possible_agents=possible_agents)] * 2)
        with pytest.raises(ResetNeeded, match="Call reset first"):
            envs.step({"a": ZEROS})
        with pytest.raises(ResetNeeded, match="Call reset first"):
            envs.send({}, 1)
        envs.reset(seed=0)
        envs.step(noop(envs))


@of_both_kinds
def test_timeouts_agents_and_environments_that_are_none_begin_nothing(make_both: Make, possible_agents: Any) -> None:
    envs = begun(make_both, possible_agents)
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


# ---- construction --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"env_fns": "mpe2.simple_spread_v3"}, ValueError, "without num_envs. Say how many"),
        ({"env_fns": "mpe2.simple_spread_v3", "num_envs": 0}, ValueError, "num_envs=0 is too small"),
        ({"env_fns": "mpe2.simple_spread_v3", "num_envs": 2.0}, TypeError, "num_envs=2.0 is not a whole number"),
        ({"env_fns": "mpe2.simple_spread_v3", "num_envs": 2, "env_kwargs": "N"}, TypeError, "is not a dict of keyword"),
        ({"env_fns": "", "num_envs": 2}, ValueError, "'' is not the path of a module. Give one such as"),
        ({"env_fns": ".spread", "num_envs": 2}, ValueError, "'.spread' is not the path of a module"),
        ({"env_fns": []}, ValueError, "env_fns is empty"),
        ({"env_fns": [3]}, TypeError, r"env_fns\[0\]=3 is not callable. Give functions"),
        ({"env_fns": [scripted()()]}, TypeError, "Give functions that make environments, not environments"),
        ({"env_fns": scripted()}, TypeError, "is neither a sequence of callables nor the path"),
        ({"env_fns": [scripted()], "num_envs": 1}, ValueError, "num_envs and env_kwargs go with a module path"),
        ({"env_fns": [scripted()], "env_kwargs": {}}, ValueError, "num_envs and env_kwargs go with a module path"),
        ({"env_fns": [scripted()], "num_worker": 1}, TypeError, "num_worker=1 is no option of MultiAgentEnvManager"),
        ({"env_fns": [scripted()], "observation_mode": "same"}, TypeError, "observation_mode='same' is no option"),
        ({"env_fns": [scripted()], "turns": "both"}, ValueError, "turns='both' is unknown. Choose 'simultaneous'"),
        (
            {"env_fns": [scripted()], "turns": "sequental"},
            ValueError,
            r"turns='sequental' is unknown.*mean 'sequential'",
        ),
        ({"env_fns": 3, "num_envs": 2}, TypeError, "env_fns=3 is neither a sequence of callables nor the path"),
        ({"env_fns": [scripted()], "turns": None}, ValueError, "turns=None is unknown"),
        ({"env_fns": [scripted()], "backend": "fast"}, ValueError, "backend='fast' is unknown"),
        ({"env_fns": [scripted()], "task_setter": 3}, TypeError, "task_setter=3 cannot be called"),
    ],
    ids=range(20),
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        MultiAgentEnvManager(**{"backend": "serial", **arguments})


@pytest.mark.parametrize(
    ("path", "settings", "text"),
    [
        ("no_such_package.no_such_env", {}, "Env 0 raised ModuleNotFoundError .* No module named 'no_such_package'"),
        ("mpe2.no_such_env_v0", {}, r"ModuleNotFoundError .*no_such_env_v0.*'mpe2' has .*simple_spread_v3, "),
        ("mpe2.simple_spred_v3", {}, r"No module named 'mpe2.simple_spred_v3' .* mean 'mpe2.simple_spread_v3'\?"),
        ("mpe2.simple_spread_v2", {}, r"Did you mean 'mpe2.simple_spread_v3'\?"),
        ("mpe2/simple_spread_v2", {}, r"Did you mean 'mpe2/simple_spread-v3'\?"),
        ("mpe3.simple_spread_v3", {}, r"No module named 'mpe3' .* Did you mean 'mpe2.simple_spread_v3'\?"),
        ("simple_spread_v3", {}, r"Did you mean 'mpe2.simple_spread_v3'\?"),
        ("CartPole-v1", {}, "is the id of a Gymnasium environment: give that to ParallelEnvManager"),
        ("json", {}, "'json' has neither parallel_env nor env: it is no PettingZoo module"),
        ("mpe2.simple_spread_v3", {"env_kwargs": {"size": 3}}, "Env 0 raised TypeError .* argument 'size'"),
        ("Foraging-8x8-2p-2f-v3", {}, "the id of a Gymnasium env.* its agents are in tuples, so give"),
        ("lbforaging:Foraging-8x8-2p-2f-v3", {}, "its agents are in tuples"),
        ("Nowhere-v0", {}, "looks like the id of a Gymnasium environment: give that to ParallelEnvManager"),
        ("package.module:factory", {}, r"Give the factory itself: MultiAgentEnvManager\(\[factory\]"),
    ],
)
def test_names_that_lead_nowhere(make_both: Make, path: str, settings: dict[str, Any], text: str) -> None:
    pytest.importorskip("mpe2")
    with pytest.raises(EnvError, match=text):
        make_both(path, num_envs=2, **settings)
