"""Agents of equal spaces as rows of a Gymnasium vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers

from parallel_envs.testing import InfoKind, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, scripted, together

MIXED = Dict({"seen": Box(0.0, 1.0, (2,), np.float64), "word": Text(3)})


def test_rows_are_the_agents_of_the_environments_in_turn(make: Make) -> None:
    maker = scripted(together(4, "a", "b"), infos=[InfoKind.SCALARS])
    rows, envs = make([maker] * 3, num_workers=2).as_vector_env(), make([maker] * 3)
    assert isinstance(rows, VectorEnv)
    assert (rows.num_envs, rows.single_action_space) == (6, Discrete(3))
    assert rows.observation_space.shape == (6, 3)
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


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_under_gymnasiums_statistics_agents_may_end_early(make: Make, mode: str) -> None:
    """Returns are each agent's own, in every episode. Lengths count the rows in which it waited for the others."""
    maker = scripted(EARLY_AND_LATE[:1])
    recorded = wrappers.RecordEpisodeStatistics(make([maker] * 2, autoreset_mode=mode).as_vector_env())
    recorded.reset(seed=0)
    told: list[list[tuple[float, int]]] = [[] for _ in range(6)]
    for _ in range(8):
        *_, infos = recorded.step(np.ones(6, np.int64))
        for row in np.flatnonzero(infos.get("_episode", ())).tolist():
            told[row].append((infos["episode"]["r"][row], int(infos["episode"]["l"][row])))
    for env, plain in enumerate([maker(), maker()]):
        episodes = [returns_by_hand(plain, seed) for seed in (env, None)]
        for place, agent in enumerate("abc"):
            returns = [earned for earned, _ in told[3 * env + place][:2]]
            np.testing.assert_allclose(returns, [episode[agent] for episode in episodes])
    assert [lengths[0][1] for lengths in told] == [1, 3, 3] * 2
    assert told[0][1][1] > 1


def returns_by_hand(env: Any, seed: int | None) -> dict[Any, float]:
    """What each agent earns in an episode."""
    env.reset(seed=seed)
    earned = dict.fromkeys("abc", 0.0)
    while env.agents:
        for agent, reward in env.step(dict.fromkeys(env.agents, np.int64(1)))[1].items():
            earned[agent] += float(reward)
    return earned


def test_under_gymnasiums_observation_wrappers(make_both: Make) -> None:
    tables = dict.fromkeys("ab", Box(0.0, 1.0, (2, 3)))
    flat = wrappers.FlattenObservation(
        make_both([scripted(together(2), observation_spaces=tables)] * 2).as_vector_env()
    )
    flat.reset(seed=0)
    for _ in range(2):
        observations, *_, infos = flat.step(ZEROS[4])
    assert observations.shape == (4, 6)
    assert infos["alive"].tolist() == [False] * 4


def test_what_is_common_is_in_all_rows_of_an_environment(make: Make) -> None:
    envs = make([scripted(together(4))] * 2)
    rows = envs.as_vector_env()
    rows.reset(seed=0)
    envs.restart(1)
    *_, truncated, infos = rows.step(np.zeros(4, np.int64))
    assert infos["worker_restarted"].tolist() == [False, False, True, True]
    assert truncated.tolist() == [False, False, True, True]


def test_closing_it_closes_the_manager(make: Make) -> None:
    envs = make([scripted()] * 2)
    rows = envs.as_vector_env()
    rows.close()
    assert envs.closed
    rows.close(terminate=True)


def test_actions_that_are_no_rows(make_serial: Make) -> None:
    rows = make_serial([scripted(together(9))] * 2).as_vector_env()
    rows.reset(seed=0)
    for actions, text in (
        (
            np.zeros(3, np.int64),
            r"shape \(3,\) were given for 4 rows \(2 agents in each of 2 env.*array of shape \(4,\)",
        ),
        (np.zeros((4, 1), np.int64), r"shape \(4, 1\) were given for 4 rows.* have shape \(\): .*of shape \(4,\)"),
        (None, r"Actions of shape \(\) were given for 4 rows .*: None\. Give an array of shape \(4,\)"),
        ([1, 1, 1], r"shape \(3,\) were given for 4 rows"),
        (["x"] * 4, "Actions of dtype <U1 were given: .*Give numbers, such as int64"),
        ([0, None, 0, 0], "Actions of dtype object were given: .*Give numbers, such as int64"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            rows.step(actions)
    rows.step([0, 1, 2, 0])
    parts = Dict({"move": Discrete(2), "word": Text(3)})
    rows = make_serial([scripted(together(9), action_spaces=dict.fromkeys("ab", parts))] * 2).as_vector_env()
    rows.reset(seed=0)
    with pytest.raises(ValueError, match=r"is no batch of actions: its part\['word'\] is missing"):
        rows.step({"move": ZEROS[4]})
    with pytest.raises(ValueError, match=r"Actions\['word'\] of shape \(3,\) were given for 4 rows"):
        rows.step({"move": ZEROS[4], "word": ["a", "b", "c"]})
    rows.step({"move": ZEROS[4], "word": ["a", "b", "c", "d"]})


ZEROS = {count: np.zeros(count, np.int64) for count in (4, 6)}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
def test_observations_with_parts_and_final_ones_are_in_gymnasiums_layout(make: Make, mode: str) -> None:
    maker = scripted(EARLY_AND_LATE[:1], observation_spaces=dict.fromkeys("abc", MIXED))
    rows, plain = make([maker] * 2, autoreset_mode=mode).as_vector_env(["c", "b", "a"]), maker()
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


def test_masks_say_which_act_next(make: Make) -> None:
    rows = make([scripted(EARLY_AND_LATE[:1])] * 2).as_vector_env()
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


def test_a_mask_resets_an_environment_when_all_its_agents_have_ended(make: Make) -> None:
    rows = disabled_rows(make)
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
    rows.reset(options={"reset_mask": np.array([True] * 3 + [False] * 3)})
    assert [row[0] for row in rows.call("state")] == [0, 1]


def test_masks_that_are_refused(make: Make) -> None:
    rows = disabled_rows(make)
    with pytest.raises(ValueError, match="marks 'b' of env 1 while other agents there play on"):
        rows.reset(options={"reset_mask": np.array([False] * 4 + [True, False])})
    with pytest.raises(ValueError, match=r"must be a bool array of shape \(6,\)"):
        rows.reset(options={"reset_mask": np.array([True, False])})


def test_the_statistics_wrapper_passes_masks_on(make: Make) -> None:
    recorded = wrappers.RecordEpisodeStatistics(disabled_rows(make))
    recorded.reset(seed=0)
    for _ in range(3):
        _, _, terminated, truncated, infos = recorded.step(ZEROS[6])
        if (terminated | truncated).any():
            recorded.reset(options={"reset_mask": terminated | truncated})
    assert infos["episode"]["l"][[1, 2]].tolist() == [3, 3]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
def test_a_chosen_mode_is_as_if_the_manager_had_been_told(make: Make, mode: Any) -> None:
    maker = [scripted(EARLY_AND_LATE)] * 3
    told = make(maker, num_workers=2, autoreset_mode=mode).as_vector_env()
    envs = make(maker, num_workers=2, autoreset_mode="NextStep" if mode != "NextStep" else "SameStep")
    chosen = envs.as_vector_env(autoreset_mode=mode)
    assert chosen.metadata["autoreset_mode"] is envs.metadata["autoreset_mode"] is AutoresetMode(mode)
    assert_same_batch(chosen.reset(seed=1), told.reset(seed=1))
    for step in range(12):
        actions = (np.arange(9) + step) % 3
        one, other = chosen.step(actions), told.step(actions)
        assert_same_batch(one, other)
        mask = ~one[4]["alive"].reshape(3, 3).any(1).repeat(3)
        if mode == "Disabled" and mask.any():
            options = {"reset_mask": mask}
            assert_same_batch(chosen.reset(options=options), told.reset(options=options))


def test_a_chosen_mode_holds_in_workers_that_are_replaced(make_process: Make) -> None:
    envs = make_process([scripted(together(2))] * 2)
    rows = envs.as_vector_env(autoreset_mode=AutoresetMode.SAME_STEP)
    envs.restart()
    rows.reset(seed=0)
    rows.step(ZEROS[4])
    *_, infos = rows.step(ZEROS[4])
    assert infos["alive"].all()
    assert infos["_final_obs"].all()


def test_rows_that_are_over_stay_zero_without_autoreset(make: Make) -> None:
    rows = make([scripted(together(1))] * 2).as_vector_env(autoreset_mode="Disabled")
    rows.reset(seed=0)
    rows.step(ZEROS[4])
    *told, infos = rows.step(ZEROS[4])
    assert not any(array.any() for array in (*told, infos["alive"]))


SEEDS: list[tuple[Any, list[int]]] = [
    (4, [4, 5, 6]),
    ([7, 8, 9, 10, 11, 12], [7, 9, 11]),
    ([None, 8, 9, None, 9, 9], [8, 9, 9]),
    (np.arange(6), [0, 2, 4]),
    ([1, 2, 3], [1, 2, 3]),
]


def test_an_environment_has_the_first_seed_of_its_rows(make: Make) -> None:
    rows, envs = (make([scripted(together(4))] * 3) for _ in range(2))
    view = rows.as_vector_env()
    for seed, of_envs in SEEDS:
        observations, _ = view.reset(seed=seed)
        assert_same_batch(observations[::2], envs.reset(seed=of_envs)[0]["a"].copy())
    observations, _ = view.reset(seed=[None, None, 3, 3, None, None])  # rows without a seed go on
    assert_same_batch(observations[::2], envs.reset(seed=[None, 3, None])[0]["a"].copy())


def test_with_a_mask_only_marked_environments_are_seeded(make: Make) -> None:
    view = make([scripted(together(1))] * 2).as_vector_env(autoreset_mode="Disabled")
    view.reset(seed=1)
    view.step(ZEROS[4])
    mask = np.array([False, False, True, True])
    observations, _ = view.reset(seed=[7, 7, 8, 8], options={"reset_mask": mask})
    assert_same_batch(observations[2], scripted(together(1))().reset(seed=8)[0]["a"])


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


@pytest.mark.parametrize(("how", "agents", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_agents_that_cannot_be_rows(make_serial: Make, how: Any, agents: Any, error: Any, text: str) -> None:
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
        ([1, "x", 3, 4], TypeError, "neither an integer nor None"),
        ("four", TypeError, "neither an integer nor a list"),
        (True, TypeError, "neither an integer nor a list"),
    ]
    for seed, error, text in seeds:
        with pytest.raises(error, match=text):
            rows.reset(seed=seed)
