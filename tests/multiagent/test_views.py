"""One environment behind PettingZoo's interface, and agents as rows of a Gymnasium vector environment."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import EnvError
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv, Stay, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import (
    EARLY_AND_LATE,
    MODES,
    OBSERVATIONS,
    draw,
    number,
    of_both_kinds,
    scripted,
    together,
)

GENERATED = "pettingzoo.test.example_envs.generated_agents_parallel_v0"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo's test package imports


def maker(path: str, **kwargs: Any) -> Any:
    pytest.importorskip(path.partition(".")[0])
    return partial(importlib.import_module(path).parallel_env, **kwargs)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # what the test says of generated agents themselves
def test_petting_zoos_own_test_passes(make_process: Make, mode: str) -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    for path in ("mpe2.simple_speaker_listener_v4", GENERATED):
        envs = make_process([maker(path)] * 2, num_workers=1, autoreset_mode=mode)
        parallel_api_test(envs.single_env(1), num_cycles=30)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
@of_both_kinds
def test_it_is_the_plain_environment(make: Make, backend: str, mode: str, possible_agents: Any) -> None:
    """For observations of every kind; two of one manager may be used in turns."""
    for space in OBSERVATIONS if mode == "NextStep" and backend == "serial" else OBSERVATIONS[:1]:
        how: dict[str, Any] = {"rewards": list(RewardKind), "infos": [InfoKind.STRINGS]}
        make_env = scripted(possible_agents=possible_agents, observation_spaces={"a": space}, **how)
        envs = make([make_env] * 3, autoreset_mode=mode, num_workers=2)
        one, other = envs.single_env(0), envs.single_env(1)
        one.reset(seed=1)
        for seed in (4, 5):
            check_episode(other, make_env(), seed)
        own = make_env()
        own.reset(seed=1)
        assert one.agents == own.agents
        actions = dict.fromkeys(own.agents, np.int64(1))
        check_observations(one.step(actions)[0], own.step(actions)[0])


def check_episode(env: Any, plain: Any, seed: int) -> None:
    drawer = np.random.default_rng(seed)
    observations, _ = env.reset(seed=seed, options={"wind": 1})
    expected, _ = plain.reset(seed=seed, options={"wind": 1})
    check_observations(observations, expected)
    for _ in range(25):  # agents that are generated never end all
        assert env.agents == plain.agents
        actions = {agent: draw(plain.action_space(agent), drawer) for agent in plain.agents}
        told, own = env.step(actions), plain.step(actions)
        check_observations(told[0], own[0])
        assert told[1] == {agent: number(reward) for agent, reward in own[1].items()}
        assert told[2:] == own[2:]
        if not plain.agents:
            assert env.agents == []
            assert env.step({}) == ({}, {}, {}, {}, {})
            break


def check_observations(actual: Any, expected: Any) -> None:
    assert set(actual) == set(expected)
    for agent in expected:
        np.testing.assert_equal(actual[agent], expected[agent])


@pytest.mark.parametrize("path", ["mpe2.simple_spread_v3", GENERATED])
def test_it_is_a_real_environment_for_whole_episodes_also_again_with_a_seed(make_process: Make, path: str) -> None:
    """PettingZoo's own seed test compares a single step."""
    env = make_process([maker(path, max_cycles=25)] * 2, num_workers=1).single_env(0)
    for _ in range(2):
        check_episode(env, maker(path, max_cycles=25)(), 11)


def test_others_may_be_on_their_way(make: Make) -> None:
    envs = make([scripted(together(9))] * 2)
    envs.reset(seed=0)
    envs.send({agent: np.array([1]) for agent in envs.agents_now}, 1)
    observations, _ = envs.single_env(0).reset(seed=4)
    check_observations(observations, scripted(together(9))().reset(seed=4)[0])
    assert envs.recv()[0].tolist() == [1]


def test_an_agent_has_the_spaces_of_this_environment(make_serial: Make) -> None:
    spaces: list[Any] = [Box(0.0, 1.0, (2,)), Discrete(4)]
    envs = make_serial(
        [scripted(together(3, "a"), possible_agents=None, observation_spaces={"a": one}) for one in spaces]
    )
    envs.reset(seed=0)
    for place, space in enumerate(spaces):
        env = envs.single_env(place)
        observations, _ = env.reset(seed=1)
        assert env.observation_space("a") is env.observation_space("a") == space
        assert space.contains(observations["a"])
        assert env.step({"a": 0})[0]["a"] in space


def test_attributes_are_those_of_the_environment(make: Make) -> None:
    env = make([scripted(EARLY_AND_LATE, render_mode="rgb_array")] * 2).single_env(1)
    env.reset(seed=0)
    assert env.state().tolist() == [0, 3]
    assert env.render().shape == (8, 8, 3)
    assert (env.render_mode, env.max_num_agents, env.possible_agents) == ("rgb_array", 3, ["a", "b", "c"])
    assert not hasattr(env, "nothing_like_this")
    assert not hasattr(env, "_private")
    env.close()
    assert env.elapsed == 0
    assert not hasattr(make([scripted(possible_agents=None)]).single_env(0), "possible_agents")


class NotedEnv(ScriptedAgentsEnv):
    calls = 0
    kind = complex

    @property
    def doubled(self) -> int:
        return 2 * self.calls

    def note(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return args, kwargs

    def refuse(self, reason: str) -> None:
        raise LookupError(reason)


def test_what_it_does_not_understand(make: Make) -> None:
    envs: MultiAgentEnvManager = make([scripted([{"a": Stay(3), "b": Stay(3)}])] * 2)
    with pytest.raises(IndexError, match="no env 2: the manager has 2"):
        envs.single_env(2)
    env = envs.single_env(1)
    with pytest.raises(EnvError, match="Env 1 raised "):
        env.reset(seed=0, options={"unhashable": object, 3: 4})
    env.reset(seed=0)
    wrong: list[tuple[Any, str]] = [
        ({"a": 0}, "No actions were given for 'b', which is alive in env 1"),
        ({"a": 0, "b": 0, "stranger": 0}, "'stranger', which is no agent here"),
        ({"a": np.zeros(2), "b": 0}, r"of shape \(1, 2\) were given for 'a'"),
    ]
    for actions, text in wrong:
        with pytest.raises(ValueError, match=text):
            env.step(actions)
    env.step({"a": 0, "b": 0})


def test_methods_run_when_they_are_called_with_arguments_of_any_name(make: Make) -> None:
    envs = make([partial(NotedEnv, EARLY_AND_LATE)] * 2, num_workers=1)
    env = envs.single_env(1)
    note, refuse = env.note, env.refuse
    assert callable(note)
    assert callable(refuse)
    assert "'note' of env 1" in repr(note)
    assert env.calls == env.doubled == 0  # a look runs nothing
    assert note() == ((), {})
    assert note(1, "b", name="c", env_ids=[0], timeout=2) == ((1, "b"), {"name": "c", "env_ids": [0], "timeout": 2})
    assert (env.calls, env.doubled, env.kind) == (2, 4, complex)
    assert envs.get_attr("calls") == (0, 2)
    with pytest.raises(LookupError, match=r"^Env 1 raised LookupError during call of 'refuse': no more$") as caught:
        refuse("no more")
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (1,)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'reason'"):
        refuse()


MIXED = Dict({"seen": Box(0.0, 1.0, (2,), np.float64), "word": Text(3)})


SEEDS: list[tuple[Any, list[int]]] = [
    (4, [4, 5, 6]),
    ([7, 8, 9, 10, 11, 12], [7, 9, 11]),
    ([None, 8, 9, None, 9, 9], [8, 9, 9]),
    (np.arange(6), [0, 2, 4]),
    ([1, 2, 3], [1, 2, 3]),
]


def test_rows_are_the_agents_of_the_environments_in_turn_and_have_their_seeds(make: Make) -> None:
    maker = scripted(together(4, "a", "b"), infos=[InfoKind.SCALARS])
    own = make([maker] * 3, num_workers=2)
    rows: Any = own.as_vector_env()
    envs = make([maker] * 3)
    assert issubclass(type(rows), VectorEnv)
    assert (rows.num_envs, rows.single_action_space) == (6, Discrete(3))
    assert rows.observation_space.shape == (6, 3)
    for seed, of_envs in SEEDS:  # an environment has the first seed of its rows
        observations, _ = rows.reset(seed=seed)
        assert_same_batch(observations[::2], envs.reset(seed=of_envs)[0]["a"].copy())
    observations, _ = rows.reset(seed=[None, None, 3, 3, None, None])  # rows without a seed go on
    assert_same_batch(observations[::2], envs.reset(seed=[None, 3, None])[0]["a"].copy())
    observations, infos = rows.reset(seed=4)
    expected, _ = envs.reset(seed=4)
    for step in range(6):
        for env in range(3):
            for place, agent in enumerate("ab"):
                assert_same_batch(observations[2 * env + place], expected[agent][env])
        assert infos["env_id"].tolist() == [0, 0, 1, 1, 2, 2]
        assert infos["agent"].tolist() == [0, 1, 0, 1, 0, 1]
        actions = (np.arange(6) + step) % 3
        observations, rewards, terminated, _, infos = rows.step(actions)
        expected, own_rewards, ends, _, own_infos = envs.step({"a": actions[::2], "b": actions[1::2]})
        assert_same_batch(rewards[::2], own_rewards["a"].copy())
        assert_same_batch(terminated[1::2], ends["b"].copy())
        if "int" in own_infos["b"]:
            assert_same_batch(infos["int"][1::2], own_infos["b"]["int"])
    own.restart(2)  # what is common is in all rows of an environment
    *_, truncated, infos = rows.step(np.zeros(6, np.int64))
    told = infos["worker_restarted"].tolist()
    assert (told[-2:], truncated.tolist()) == ([True, True], told)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_under_gymnasiums_statistics_agents_may_end_early(make_serial: Make, mode: str) -> None:
    """Returns are each agent's own, in every episode. Lengths count the rows in which it waited for the others."""
    rows = make_serial([scripted(EARLY_AND_LATE[:1])] * 2, autoreset_mode=mode).as_vector_env()
    recorded = wrappers.RecordEpisodeStatistics(rows)
    recorded.reset(seed=0)
    earned, lengths = np.zeros(6), [list[int]() for _ in range(6)]
    for _ in range(8):
        _, rewards, *_, infos = recorded.step(np.ones(6, np.int64))
        earned += rewards
        for row in np.flatnonzero(infos.get("_episode", ())).tolist():
            assert infos["episode"]["r"][row] == pytest.approx(earned[row])
            lengths[row].append(int(infos["episode"]["l"][row]))
            earned[row] = 0.0
    assert [own[0] for own in lengths] == [1, 3, 3] * 2
    assert lengths[0][1] > 1


def test_under_gymnasiums_observation_wrappers_and_closed_together(make_serial: Make) -> None:
    tables = dict.fromkeys("ab", Box(0.0, 1.0, (2, 3)))
    envs = make_serial([scripted(together(2), observation_spaces=tables)] * 2)
    flat = wrappers.FlattenObservation(envs.as_vector_env())
    flat.reset(seed=0)
    for _ in range(2):
        observations, *_, infos = flat.step(ZEROS[4])
    assert observations.shape == (4, 6)
    assert infos["alive"].tolist() == [False] * 4
    flat.close()
    assert envs.closed
    flat.close(terminate=True)


def test_actions_that_are_no_rows(make_serial: Make) -> None:
    rows = make_serial([scripted(together(9))] * 2).as_vector_env()
    rows.reset(seed=0)
    for actions, text in (
        (
            np.zeros(3, np.int64),
            r"3 actions were given for 4 rows \(2 agents in each of 2 environments\)",
        ),
        (np.zeros((4, 1), np.int64), r"of shape \(2, 1\) were given for 'a'"),
        (None, "None is no batch of actions"),
        (["x"] * 4, "Actions of dtype <U1 were given for 'a'.*Give numbers, such as int64"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            rows.step(actions)
    rows.step([0, 1, 2, 0])
    parts = Dict({"move": Discrete(2), "word": Text(3)})
    rows = make_serial([scripted(together(9), action_spaces=dict.fromkeys("ab", parts))] * 2).as_vector_env()
    rows.reset(seed=0)
    with pytest.raises(ValueError, match=r"is no batch of actions: its part\['word'\] is missing"):
        rows.step({"move": ZEROS[4]})
    with pytest.raises(ValueError, match=r"3 actions\['word'\] were given for 4 rows"):
        rows.step({"move": ZEROS[4], "word": ["a", "b", "c"]})
    rows.step({"move": ZEROS[4], "word": ["a", "b", "c", "d"]})


ZEROS = {count: np.zeros(count, np.int64) for count in (4, 6)}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
def test_observations_with_parts_and_final_ones_are_in_gymnasiums_layout(make_serial: Make, mode: str) -> None:
    maker = scripted(EARLY_AND_LATE[:1], observation_spaces=dict.fromkeys("abc", MIXED))
    rows, plain = make_serial([maker] * 2, autoreset_mode=mode).as_vector_env(["c", "b", "a"]), maker()
    observations, _ = rows.reset(seed=0)
    last, _ = plain.reset(seed=1)
    assert (observations["seen"].shape, len(observations["word"])) == ((6, 2), 6)
    assert observations["word"][3] == last["c"]["word"]  # agents are in the order that was asked for
    for _ in range(3):
        last |= plain.step(dict.fromkeys(plain.agents, np.int64(1)))[0]
        *_, infos = rows.step(np.ones(6, np.int64))
    assert infos["final_obs"].dtype == object
    for place, agent in enumerate("cba"):
        assert_same_batch(infos["final_obs"][3 + place], last[agent])


def test_masks_say_which_act_next(make_serial: Make) -> None:
    rows = make_serial([scripted(EARLY_AND_LATE[:1])] * 2).as_vector_env()
    _, infos = rows.reset(seed=0)
    assert infos["alive"].all()
    observations, _, terminated, _, infos = rows.step(ZEROS[6])
    assert infos["alive"].tolist() == [False, True, True] * 2
    assert terminated.tolist() == [True, False, False] * 2
    assert observations[0].any()
    observations, _, terminated, _, infos = rows.step(ZEROS[6])
    assert not terminated.any()
    assert not observations[0].any()
    *_, terminated, truncated, infos = rows.step(ZEROS[6])
    assert terminated.tolist() == [False, False, True] * 2
    assert truncated.tolist() == [False, True, False] * 2
    assert infos["_final_obs"].all()


def disabled_rows(make: Make) -> Any:
    rows = make([scripted(EARLY_AND_LATE[:1])] * 2, autoreset_mode="Disabled").as_vector_env()
    rows.reset(seed=0)
    return rows


def test_a_mask_resets_an_environment_when_all_its_agents_have_ended(make_serial: Make) -> None:
    """Also under the statistics wrapper, which passes masks on."""
    rows = disabled_rows(make_serial)
    before, _, terminated, truncated, _ = rows.step(ZEROS[6])
    after, infos = rows.reset(options={"reset_mask": terminated | truncated})
    assert_same_batch(after, before)  # an agent that has ended waits for the others
    assert infos["alive"].tolist() == [False, True, True] * 2
    for _ in range(2):
        _, _, terminated, truncated, _ = rows.step(ZEROS[6])
        observations, infos = rows.reset(options={"reset_mask": terminated | truncated})
    assert infos["alive"].all()
    assert observations[0].any()
    assert [row[0] for row in rows.call("state")] == [0, 0]
    rows.step(ZEROS[6])
    marked = np.array([False] * 3 + [True] * 3)
    observations, _ = rows.reset(seed=[7] * 3 + [8] * 3, options={"reset_mask": marked})  # the others are not seeded
    assert [row[0] for row in rows.call("state")] == [1, 0]
    assert_same_batch(observations[3], scripted(EARLY_AND_LATE[:1])().reset(seed=8)[0]["a"])
    with pytest.raises(ValueError, match="marks 'b' of env 1 while other agents there play on"):
        rows.reset(options={"reset_mask": np.array([False] * 4 + [True, False])})
    with pytest.raises(ValueError, match=r"must be a bool array of shape \(6,\)"):
        rows.reset(options={"reset_mask": np.array([True, False])})
    recorded = wrappers.RecordEpisodeStatistics(disabled_rows(make_serial))
    recorded.reset(seed=0)
    for _ in range(3):
        _, _, terminated, truncated, infos = recorded.step(ZEROS[6])
        if (terminated | truncated).any():
            recorded.reset(options={"reset_mask": terminated | truncated})
    assert infos["episode"]["l"][[1, 2]].tolist() == [3, 3]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
def test_a_chosen_mode_is_as_if_the_manager_had_been_told(make: Make, mode: Any) -> None:
    """Also in workers that are replaced. Without autoreset, rows that are over stay zero."""
    maker = [scripted(EARLY_AND_LATE)] * 3
    told = make(maker, num_workers=2, autoreset_mode=mode).as_vector_env()
    envs = make(maker, num_workers=2, autoreset_mode="NextStep" if mode != "NextStep" else "SameStep")
    chosen = envs.as_vector_env(autoreset_mode=mode)
    envs.restart()
    assert chosen.metadata["autoreset_mode"] is envs.metadata["autoreset_mode"] is AutoresetMode(mode)
    assert_same_batch(chosen.reset(seed=1), told.reset(seed=1))
    for step in range(12):
        actions = (np.arange(9) + step) % 3
        one, other = chosen.step(actions), told.step(actions)
        assert_same_batch(one, other)
        mask = ~one[4]["alive"].reshape(3, 3).any(1).repeat(3)
        if mode == "Disabled" and mask.any():
            *over, infos = chosen.step(actions)
            assert not any(array[mask].any() for array in (*over, infos["alive"]))
            told.step(actions)
            options = {"reset_mask": mask}
            assert_same_batch(chosen.reset(options=options), told.reset(options=options))


REFUSED: list[tuple[Any, Any, Any, str]] = [
    ({}, ["a", "x"], ValueError, r"asked for \['a', 'x'\]\. Rows must be all agents.*: \['a', 'b'\]"),
    ({}, ["a", "b", "b"], ValueError, "all agents, each named once"),
    ({}, "ab", TypeError, "agents='ab' is not a list of agents"),
    ({}, 3, TypeError, "agents=3 is not a list of agents"),
    ({}, ["a"], ValueError, "Rows must be all agents"),
    (
        {"observation_spaces": {"b": Discrete(3)}},
        None,
        ValueError,
        r"space of 'b' is Discrete\(3\), that of 'a' is Box",
    ),
    ({"action_spaces": {"b": Discrete(9)}}, None, ValueError, "action space of 'b'"),
    ({"possible_agents": None}, None, ValueError, "come and go: they cannot be rows"),
]


def test_agents_that_cannot_be_rows(make_serial: Make) -> None:
    for how, agents, error, text in REFUSED:
        with pytest.raises(error, match=text):
            make_serial([scripted(together(2), **how)]).as_vector_env(agents)


def test_modes_and_seeds_that_are_refused(make_serial: Make) -> None:
    envs = make_serial([scripted(together(2))] * 2)
    with pytest.raises(ValueError, match=r"autoreset_mode='Sam.*Did you mean 'SameStep'"):
        envs.as_vector_env(autoreset_mode="Same")  # type: ignore[arg-type]
    envs.reset()
    with pytest.raises(ValueError, match=r"'SameStep' was given after the first reset, .* have 'NextStep'"):
        envs.as_vector_env(autoreset_mode="SameStep")
    rows = envs.as_vector_env(autoreset_mode="NextStep")
    seeds: list[tuple[Any, Any, str]] = [
        ([1, 2, 3], ValueError, r"3 seeds were given for 4 rows \(2 agents in each of 2 environments\)"),
        ([1, "x", 3, 4], TypeError, "neither an integer nor a list"),
        ("four", TypeError, "neither an integer nor a list"),
        (True, TypeError, "neither an integer nor a list"),
    ]
    for seed, error, text in seeds:
        with pytest.raises(error, match=text):
            rows.reset(seed=seed)
