"""Two ways to play an AEC environment: one after another on the world as it changes, or all at once."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import EnvError
from parallel_envs.testing import ScriptedAgentsEnv, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import (
    EARLY_AND_LATE,
    MODES,
    Witness,
    as_kept,
    number,
    of_both_kinds,
    scripted,
    stack,
    taken,
)

CLASSIC = ["tictactoe_v3", "connect_four_v3", "rps_v2", "leduc_holdem_v4", "texas_holdem_v4"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def aec_maker(path: str, **kwargs: Any) -> Callable[[], Any]:
    pytest.importorskip(path, exc_type=ImportError)
    return partial(importlib.import_module(path).env, **kwargs)


def generated() -> Any:
    """PettingZoo's environment whose agents are not known, with all of its spaces seeded: it forgets some."""
    from pettingzoo.test.example_envs.generated_agents_env_cust_agentid_v0 import raw_env
    from pettingzoo.utils.wrappers import OrderEnforcingWrapper

    class SeededEnv(raw_env):  # type: ignore[misc]  # PettingZoo ships no type information
        def add_type(self) -> Any:
            kind = super().add_type()
            self._obs_spaces[kind].seed(int(self.np_random.integers(1 << 30)))
            return kind

    return OrderEnforcingWrapper(SeededEnv(max_cycles=6))


class Table:
    """An AEC environment played by hand, turn by turn, with `last()`."""

    def __init__(self, make: Callable[[], Any], seed: int) -> None:
        self.env = make()
        self.drawer = np.random.default_rng(seed)
        self.env.reset(seed=seed)
        self.look()

    def look(self) -> None:
        """Let agents that have ended step out, as PettingZoo says, up to the first who has a turn."""
        self.seen: dict[Any, Any] = {}
        self.ends: dict[Any, tuple[bool, bool]] = {}
        self.earned: dict[Any, float] = {}
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, _ = self.env.last()
            self.seen[agent], self.earned[agent] = deepcopy(observation), number(reward)
            if not terminated and not truncated:
                break
            self.ends[agent] = bool(terminated), bool(truncated)
            self.env.step(None)

    def choose(self) -> Any:
        agent = self.env.agent_selection
        space = deepcopy(self.env.action_space(agent))
        space.seed(int(self.drawer.integers(1 << 30)))
        seen = self.seen[agent]
        mask = seen["action_mask"] if isinstance(seen, dict) else None
        return space.sample(None if mask is None else np.asarray(mask, np.int8))


def play_turns(envs: MultiAgentEnvManager, make_env: Callable[[], Any], num_turns: int) -> int:
    """Games side by side with tables; returns how many have ended. Whatever differs is an error."""
    tables = [Table(make_env, seed) for seed in range(envs.num_envs)]
    observations, _ = envs.reset(seed=0)
    earned: list[dict[Any, float]] = [defaultdict(float) for _ in tables]
    over = [False] * len(tables)
    num_ended = 0

    def begin(env: int, seed: int | None = None) -> None:
        tables[env].env.reset(seed=seed)
        tables[env].look()
        check_turn(envs, env, tables[env], observations)
        earned[env].clear()
        over[env] = False

    for env, table in enumerate(tables):
        check_turn(envs, env, table, observations)
    for _ in range(num_turns):
        movers = {env: (table.env.agent_selection, table.choose()) for env, table in enumerate(tables) if not over[env]}
        observations, rewards, terminations, truncations, _ = envs.step(batch(envs, movers))
        for env, table in enumerate(tables):
            if over[env]:  # this was the reset
                begin(env)
                continue
            mover, action = movers[env]
            table.env.step(action)
            table.look()
            earned[env][mover] = 0.0
            for agent in rewards:
                earned[env][agent] += rewards[agent][env]
            check_turn(envs, env, table, observations)
            for agent, cumulated in table.earned.items():
                assert earned[env][agent] == pytest.approx(cumulated), agent
            ended = {agent: (terminations[agent][env], truncations[agent][env]) for agent in terminations}
            assert {agent: ends for agent, ends in ended.items() if any(ends)} == table.ends
            over[env] = not table.env.agents
            num_ended += over[env]
            if over[env] and envs.envs.autoreset_mode is AutoresetMode.DISABLED:
                observations, _ = envs.reset(seed=num_ended, env_ids=env)
                begin(env, num_ended + env)
    return num_ended


def check_turn(envs: MultiAgentEnvManager, env: int, table: Table, observations: Any) -> None:
    present = {agent for agent in observations if envs.present[agent][env]}
    assert present == set(table.seen)
    assert {agent for agent in envs.alive if envs.alive[agent][env]} == set(table.env.agents)
    for agent in present:
        space = table.env.observation_space(agent)
        assert_same_batch(taken(space, observations[agent], env), as_kept(space, table.seen[agent]))


def batch(envs: MultiAgentEnvManager, movers: dict[int, tuple[Any, Any]]) -> dict[Any, Any]:
    actions: dict[Any, list[Any]] = {}
    for env, (agent, action) in movers.items():
        actions.setdefault(agent, [None] * envs.num_envs)[env] = action
    if envs.is_open:
        return actions
    return {agent: stack(envs.single_action_space(agent), values) for agent, values in actions.items()}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", CLASSIC)
def test_classic_games_turn_by_turn(make_both: Make, name: str) -> None:
    """From functions and by the path of their module."""
    make_env = aec_maker(f"pettingzoo.classic.{name}")
    envs = make_both([make_env] * 2, turns="sequential", num_workers=1)
    assert play_turns(envs, make_env, 60) > 0
    by_path = make_both(f"pettingzoo.classic.{name}", num_envs=2, num_workers=2, turns="sequential")
    play_turns(by_path, make_env, 3)


def test_agents_that_come_and_go_turn_by_turn(make_both: Make) -> None:
    envs = make_both([generated], turns="sequential", autoreset_mode="Disabled")  # only a seed makes it the same
    assert envs.is_open
    assert play_turns(envs, generated, 150) > 0
    assert len(envs.possible_agents) > 5


def scripted_aec(**settings: Any) -> Any:
    from pettingzoo.utils.conversions import parallel_to_aec

    return parallel_to_aec(ScriptedAgentsEnv(EARLY_AND_LATE[:2], **settings))


@of_both_kinds
def test_scripted_agents_turn_by_turn(make: Make, possible_agents: Any) -> None:
    make_env = partial(scripted_aec, possible_agents=possible_agents)
    assert play_turns(make([make_env] * 2, turns="sequential"), make_env, 20) > 2


@pytest.mark.parametrize("mode", MODES)
def test_last_words_of_a_game(make_serial: Make, mode: str) -> None:
    make_env = aec_maker("pettingzoo.classic.tictactoe_v3")
    envs = make_serial([make_env], turns="sequential", autoreset_mode=mode)
    envs.reset(seed=0)
    for move in (0, 3, 1, 4, 2):  # the first player takes a column
        (agent,) = (agent for agent in envs.present if envs.present[agent].any())
        *_, infos = envs.step({agent: np.array([move])})
    assert infos["player_1"]["final_reward"].tolist() == [1.0]
    assert infos["player_2"]["final_reward"].tolist() == [-1.0]
    assert infos["player_1"]["final_obs"]["observation"].sum() == 5


# ---- one env as an AECEnv ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of PettingZoo's own test
@pytest.mark.parametrize("game", CLASSIC)
def test_one_env_passes_pettingzoos_test_of_aec_envs(make: Make, game: str) -> None:
    from pettingzoo.test import api_test  # late: it warns of much that is not ours

    envs = make([aec_maker(f"pettingzoo.classic.{game}")] * 2, turns="sequential", num_workers=1)
    api_test(envs.single_env(1), num_cycles=20)


@of_both_kinds
def test_one_env_is_the_plain_game(make: Make, possible_agents: Any) -> None:
    make_env = partial(scripted_aec, possible_agents=possible_agents)
    plain, single = make_env(), make([make_env] * 2, turns="sequential").single_env(1)
    for episode in range(2):
        for env in (plain, single):
            env.reset(seed=episode)
        for agent in plain.agent_iter(60):
            assert single.agent_selection == agent
            assert_same_batch(single.last(), plain.last())
            assert_same_batch(single.rewards, plain.rewards)
            other = plain.agents[-1]
            assert_same_batch(single.observe(other), plain.observe(other))
            _, _, terminated, truncated, _ = plain.last()
            action = None if terminated or truncated else plain.action_space(agent).sample()
            for env in (plain, single):
                env.step(action)
        assert single.agents == plain.agents == []


def test_errors_of_one_env_are_told(make: Make) -> None:
    single = make([aec_maker("pettingzoo.classic.tictactoe_v3")], turns="sequential").single_env(0)
    single.reset(seed=0)
    with pytest.raises(EnvError, match="Env 0 raised"):
        single.step("nowhere")
    single.reset(seed=0)
    single.step(4)
    assert single.agent_selection == "player_2"
    with pytest.raises(IndexError):
        single._envs.single_env(3)


# ---- all at once ---------------------------------------------------------------------------------


def test_parallelizable_games_all_at_once(make_serial: Make) -> None:
    from pettingzoo.utils.conversions import aec_to_parallel

    game = aec_maker("pettingzoo.classic.rps_v2", max_cycles=5)
    spread = aec_maker("mpe2.simple_spread_v3", max_cycles=4)
    parallel = partial(importlib.import_module("mpe2.simple_spread_v3").parallel_env, max_cycles=4)
    pairs: list[Any] = [(game, lambda: aec_to_parallel(game())), (spread, parallel)]
    for make_env, maker in (*pairs, (scripted_aec, scripted(EARLY_AND_LATE[:2]))):
        Witness(make_serial([make_env] * 2), [maker] * 2).play(10)


def test_the_wrong_way_to_play_is_an_error_that_says_the_right_one(make_serial: Make) -> None:
    aec_maker("pettingzoo.classic.tictactoe_v3")
    with pytest.raises(EnvError, match=r"Env 0 .*cannot act all at once.*Give turns='sequential'"):
        make_serial("pettingzoo.classic.tictactoe_v3", num_envs=2)
    with pytest.raises(EnvError, match=r"is a parallel environment: .* Give turns='simultaneous'"):
        make_serial([scripted()], turns="sequential")


def test_only_the_agent_whose_turn_it_is_is_present_and_asked_and_others_are_alive(make_serial: Make) -> None:
    make_env = aec_maker("pettingzoo.classic.connect_four_v3")
    envs = make_serial([make_env] * 2, turns="sequential")
    envs.reset(seed=0)
    for turn in range(4):
        mover, other = (f"player_{(turn + k) % 2}" for k in range(2))
        assert envs.agents_now == ("player_0", "player_1")
        assert (envs.alive[mover] & envs.present[mover]).all()
        assert envs.alive[other].all()
        assert not envs.present[other].any()
        wrongs: list[Any] = [{mover: None, other: [0, 0]}, {other: [0, 0]}]
        for wrong in wrongs:
            with pytest.raises(ValueError, match=f"No actions were given for '{mover}', which is alive in envs 0, 1"):
                envs.step(wrong)
        given: Any = {mover: [turn, 0], **({other: None} if turn else {})}
        envs.step(given)
