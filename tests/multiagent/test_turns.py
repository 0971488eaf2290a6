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
from parallel_envs.testing import ScriptedAgentsEnv
from tests.multiagent.conftest import Make
from tests.multiagent.plain import Witness, assert_same_rows, number
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, of_both_kinds, scripted

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

    return OrderEnforcingWrapper(SeededEnv(max_cycles=20))


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
        """A legal action for the agent whose turn it is."""
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
    for env, table in enumerate(tables):
        check_turn(envs, env, table, observations)
    for _ in range(num_turns):
        movers = {env: (table.env.agent_selection, table.choose()) for env, table in enumerate(tables) if not over[env]}
        observations, rewards, terminations, truncations, _ = envs.step(batch(envs, movers))
        for env, table in enumerate(tables):
            if over[env]:  # this was the reset
                table.env.reset()
                begin(envs, env, table, observations)
                earned[env].clear()
                over[env] = False
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
                table.env.reset(seed=num_ended + env)
                begin(envs, env, table, observations)
                earned[env].clear()
                over[env] = False
    return num_ended


def begin(envs: MultiAgentEnvManager, env: int, table: Table, observations: Any) -> None:
    table.look()
    check_turn(envs, env, table, observations)


def check_turn(envs: MultiAgentEnvManager, env: int, table: Table, observations: Any) -> None:
    present = {agent for agent in observations if envs.present[agent][env]}
    assert present == set(table.seen)
    assert {agent for agent in envs.alive if envs.alive[agent][env]} == set(table.env.agents)
    for agent in present:
        assert_same_parts(observations[agent], table.seen[agent], env)


def assert_same_parts(batch_: Any, expected: Any, env: int) -> None:
    if isinstance(expected, dict):
        for key in expected:
            assert_same_parts(batch_[key], expected[key], env)
    else:
        np.testing.assert_array_equal(batch_[env], expected)


def batch(envs: MultiAgentEnvManager, movers: dict[int, tuple[Any, Any]]) -> dict[Any, Any]:
    """The movers' actions. Nobody else's need be there."""
    actions: dict[Any, Any] = {}
    for env, (agent, action) in movers.items():
        if envs.is_open:
            actions.setdefault(agent, [None] * envs.num_envs)[env] = action
        else:
            space = envs.single_action_space(agent)
            actions.setdefault(agent, np.zeros((envs.num_envs, *(space.shape or ())), space.dtype))[env] = action
    return actions


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", CLASSIC)
def test_classic_games_turn_by_turn(make_both: Make, name: str) -> None:
    make_env = aec_maker(f"pettingzoo.classic.{name}")
    envs = make_both([make_env] * 2, turns="sequential", num_workers=1)
    assert play_turns(envs, make_env, 60) > 0


def test_a_game_by_its_module_path(make_process: Make) -> None:
    make_env = aec_maker("pettingzoo.classic.tictactoe_v3")
    envs = make_process("pettingzoo.classic.tictactoe_v3", num_envs=3, num_workers=2, turns="sequential")
    assert play_turns(envs, make_env, 40) > 6


def test_agents_that_come_and_go_turn_by_turn(make_serial: Make) -> None:
    envs = make_serial([generated], turns="sequential", autoreset_mode="Disabled")  # only a seed makes it the same
    assert envs.is_open
    assert play_turns(envs, generated, 800) > 0
    assert len(envs.possible_agents) > 20


def test_agents_that_come_and_go_turn_by_turn_in_workers(make_process: Make) -> None:
    play_turns(make_process([generated] * 2, turns="sequential"), generated, 300)


def scripted_aec(**settings: Any) -> Any:
    from pettingzoo.utils.conversions import parallel_to_aec

    return parallel_to_aec(ScriptedAgentsEnv(EARLY_AND_LATE[:2], **settings))


@of_both_kinds
def test_scripted_agents_turn_by_turn(make: Make, possible_agents: Any) -> None:
    make_env = partial(scripted_aec, possible_agents=possible_agents)
    assert play_turns(make([make_env] * 2, turns="sequential"), make_env, 30) > 3


def test_only_the_agent_to_move_is_asked_for_an_action(make: Make) -> None:
    envs = make([scripted_aec] * 2, turns="sequential")
    envs.reset(seed=0)
    assert envs.agents_now == ("a", "b", "c")
    assert [agent for agent in envs.present if envs.present[agent].any()] == ["a"]
    with pytest.raises(ValueError, match="No actions were given for 'a', which is alive in envs 0, 1"):
        envs.step({"b": np.zeros(2, np.int64)})
    envs.step({"a": np.zeros(2, np.int64)})
    assert [agent for agent in envs.present if envs.present[agent].any()] == ["b"]


@pytest.mark.parametrize("mode", MODES)
def test_last_words_of_a_game(make: Make, mode: str) -> None:
    make_env = aec_maker("pettingzoo.classic.tictactoe_v3")
    envs = make([make_env], turns="sequential", autoreset_mode=mode)
    envs.reset(seed=0)
    for move in (0, 3, 1, 4, 2):  # the first player takes a column
        (agent,) = (agent for agent in envs.present if envs.present[agent].any())
        *_, infos = envs.step({agent: np.array([move])})
    assert infos["player_1"]["final_reward"].tolist() == [1.0]
    assert infos["player_2"]["final_reward"].tolist() == [-1.0]
    assert infos["player_1"]["final_obs"]["observation"].sum() == 5


def test_one_game_behind_petting_zoos_interface(make_serial: Make) -> None:
    make_env = aec_maker("pettingzoo.classic.tictactoe_v3")
    env = make_serial([make_env] * 2, turns="sequential").single_env(1)
    observations, _ = env.reset(seed=0)
    assert set(observations) == {"player_1"}
    for move in (0, 3, 1, 4, 2):
        (agent,) = observations
        observations, rewards, terminations, _, _ = env.step({agent: move})
    assert rewards == {"player_1": 1.0, "player_2": -1.0}
    assert terminations == {"player_1": True, "player_2": True}
    assert env.agents == []


# ---- all at once ---------------------------------------------------------------------------------


def test_a_parallelizable_game_all_at_once(make: Make) -> None:
    from pettingzoo.utils.conversions import aec_to_parallel

    make_env = aec_maker("pettingzoo.classic.rps_v2", max_cycles=5)
    makers = [make_env] * 2
    Witness(make(makers), [lambda: aec_to_parallel(make_env())] * 2).play(14)


def test_an_aec_environment_that_was_made_from_a_parallel_one(make_both: Make) -> None:
    envs = make_both([scripted_aec] * 2)
    maker = scripted(EARLY_AND_LATE[:2])
    Witness(envs, [maker] * 2).play(12)


def test_mpe_all_at_once_from_its_aec_side(make_serial: Make) -> None:
    make_env = aec_maker("mpe2.simple_spread_v3", max_cycles=4)
    envs = make_serial([make_env] * 2)
    parallel = partial(importlib.import_module("mpe2.simple_spread_v3").parallel_env, max_cycles=4)
    Witness(envs, [parallel] * 2).play(10)
    assert_same_rows(make_serial, parallel, 5)


def test_a_game_that_cannot_be_played_all_at_once_says_how_it_can(make_both: Make) -> None:
    aec_maker("pettingzoo.classic.tictactoe_v3")
    with pytest.raises(EnvError, match=r"Env 0 .*cannot act all at once.*Give turns='sequential'"):
        make_both("pettingzoo.classic.tictactoe_v3", num_envs=2)


def test_a_parallel_environment_has_no_turns(make_both: Make) -> None:
    with pytest.raises(EnvError, match=r"is a parallel environment: .* Give turns='simultaneous'"):
        make_both([scripted()], turns="sequential")


def test_an_agent_that_waits_for_its_turn_is_alive_and_not_present(make_both: Make) -> None:
    envs = make_both([raw_env_of_connect_four] * 2, turns="sequential")
    envs.reset(seed=0)
    for turn in range(4):
        mover, other = (f"player_{(turn + k) % 2}" for k in range(2))
        assert envs.agents_now == ("player_0", "player_1")
        assert (envs.alive[mover] & envs.present[mover]).all()
        assert envs.alive[other].all()
        assert not envs.present[other].any()
        with pytest.raises(ValueError, match=f"No actions were given for '{mover}'"):
            envs.step({mover: None, other: [0, 0]})
        envs.step({mover: [turn, 0], other: None})


def raw_env_of_connect_four() -> Any:
    from pettingzoo.classic.connect_four_v3 import raw_env

    return raw_env()
