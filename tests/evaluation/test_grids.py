"""MettaGrid's configurations as missions: with what they are asked for, and the real thing where it is installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from parallel_envs.evaluation import Mission, evaluate
from parallel_envs.evaluation.missions import MettaGridEnv, is_mettagrid_config
from parallel_envs.testing import assert_same_batch
from tests.evaluation.stages import Course


def named(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


class MettaGridConfig:
    """Stands for MettaGrid's."""

    map_seed: int | None = None


MettaGridConfig.__module__ = "mettagrid.config.mettagrid_config"


class Simulator:
    """Stands for MettaGrid's: counts the maps that it has made, and adds their number to the seed."""

    def __init__(self) -> None:
        self.maps = 0

    def next_map_seed(self, base_seed: int) -> int:
        self.maps += 1
        return base_seed + self.maps - 1


class Env:
    """Stands for MettaGrid's environment: makes a map when it is constructed, and another when it is reset."""

    made = 0
    closed = 0

    def __init__(self, simulator: Any, config: Any) -> None:
        type(self).made += 1
        self.course, self.config, self.simulator = Course(agents=(0, 1)), config, simulator
        self.map_seed = simulator.next_map_seed(config.map_seed)

    @property
    def agents(self) -> list[Any]:
        return self.course.agents

    def reset(self, seed: int) -> Any:
        self.map_seed = self.simulator.next_map_seed(self.config.map_seed)
        return self.course.reset(seed=1000 * self.map_seed + seed)

    def step(self, actions: Any) -> Any:
        return self.course.step(actions)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def mettagrid(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(agents=(0, 1))
    about = SimpleNamespace(
        observation_space=course.observation_space(0), action_space=course.action_space(0), num_agents=2
    )
    interface = SimpleNamespace(from_mg_cfg=lambda config: about)
    for module in (
        named("mettagrid"),
        named("mettagrid.policy"),
        named("mettagrid.policy.policy_env_interface", PolicyEnvInterface=interface),
        named("mettagrid.envs"),
        named("mettagrid.envs.pettingzoo_env", MettaGridPettingZooEnv=Env),
        named("mettagrid.runner"),
        named("mettagrid.runner.rollout", resolve_env_for_seed=lambda config, seed: SimpleNamespace(map_seed=seed)),
        named("mettagrid.simulator", Simulator=Simulator),
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    Env.made = Env.closed = 0


def test_a_configuration_is_known_without_mettagrid() -> None:
    assert is_mettagrid_config(MettaGridConfig())
    assert not is_mettagrid_config(SimpleNamespace())


def test_every_reset_with_a_seed_is_the_same_episode(mettagrid: None) -> None:
    grid = MettaGridEnv(MettaGridConfig())
    assert (grid.agents, grid.possible_agents) == ([], [0, 1])
    first, again, other = (grid.reset(seed=seed)[0] for seed in (3, 3, 4))
    assert {agent: seen.tolist() for agent, seen in first.items()} == {a: seen.tolist() for a, seen in again.items()}
    assert first[0].tolist() != other[0].tolist()
    grid.close()
    assert Env.made == Env.closed == 3


def test_the_map_is_the_first_one_of_the_seed(mettagrid: None) -> None:
    grid = MettaGridEnv(MettaGridConfig())
    seen, _ = grid.reset(seed=3)
    first_map, _ = Course(agents=(0, 1)).reset(seed=1000 * 3 + 3)
    assert seen[0].tolist() == first_map[0].tolist()
    grid.close()


def test_a_configuration_can_be_a_mission(mettagrid: None) -> None:
    found = evaluate(Mission(name="arena", env=MettaGridConfig), ["random", "noop"], 3)
    assert found.failures == ()
    assert [set(record.returns) for record in found.episodes] == [{0, 1}] * 3
    assert found.episodes == evaluate(Mission(name="arena", env=MettaGridConfig), ["random", "noop"], 3).episodes


def test_an_arena_plays_the_same_in_workers() -> None:
    pytest.importorskip("mettagrid")
    arena = "mettagrid.builder.envs:make_arena?num_agents=4"
    found = [evaluate(arena, ["random", "noop"], 3, jobs=jobs, max_steps=50, trajectories=True) for jobs in (0, 2)]
    for here, away in zip(found[0].episodes, found[1].episodes, strict=True):
        assert here.trajectory is not None
        assert away.trajectory is not None
        assert_same_batch(list(here.trajectory.observations), list(away.trajectory.observations))
    assert found[0].failures == ()
    assert [record.length for record in found[0].episodes] == [50] * 3


# ---- beside MettaGrid's own episodes ------------------------------------------------------------------------------

STEPS, NUM_AGENTS = 60, 4


class _Scripted:
    """Chooses an action by all tokens that it has seen, so a map of another seed leads to other rewards."""

    def __init__(self, agent: int, num_actions: int) -> None:
        self.agent, self.num_actions = agent, num_actions
        self.reset()

    def reset(self) -> None:
        self.state = self.agent * 7919 + 1

    def act(self, values: list[int]) -> int:
        self.state = (1103515245 * self.state + 12345 + sum(values)) % 2**31
        return (self.state >> 8) % self.num_actions


def scripted(agent: int, action_space: Any) -> Any:
    """The policy for `evaluate`, which sees arrays of tokens: a row is (place, feature, value), 255 as feature ends."""
    policy = _Scripted(agent, int(action_space.n))

    class Reader:
        def reset(self) -> None:
            policy.reset()

        def step(self, seen: Any) -> int:
            rows = seen.tolist()
            end = next((number for number, row in enumerate(rows) if row[1] == 0xFF), len(rows))
            return policy.act([row[2] for row in rows[:end]])

    return Reader()


def rewarded(builder: str) -> Any:
    """A configuration of MettaGrid's in which every move that succeeds or fails shows in the rewards."""
    from mettagrid.builder import envs
    from mettagrid.config.game_value import Scope, StatValue
    from mettagrid.config.reward_config import reward

    config = getattr(envs, builder)(num_agents=NUM_AGENTS)
    config.game.max_steps = STEPS
    config.game.agent.rewards = {
        name: reward(StatValue(name=f"action.move.{name}", scope=Scope.AGENT), weight=weight)
        for name, weight in (("success", 0.013), ("failed", -0.007))
    }
    return config


class Telling(MettaGridEnv):
    """Gives MettaGrid's own account of the episode as an info."""

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        infos = {agent: {"stats": self._env._sim.episode_stats} for agent in rewards}
        return seen, rewards, terminated, truncated, infos


@pytest.mark.parametrize("builder", ["make_navigation", "make_arena"])
def test_episodes_are_those_that_mettagrid_plays(builder: str) -> None:
    pytest.importorskip("mettagrid")
    from mettagrid.policy.policy import AgentPolicy, MultiAgentPolicy, PolicySpec
    from mettagrid.runner.rollout import run_episode_local
    from mettagrid.simulator import Action

    class Agent(AgentPolicy):  # type: ignore[misc]  # mettagrid need not be installed
        def __init__(self, info: Any, agent_id: int) -> None:
            super().__init__(info)
            self.names = info.action_names
            self.own = _Scripted(agent_id, len(self.names))

        def reset(self, *args: Any, **kwargs: Any) -> None:
            self.own.reset()

        def step(self, obs: Any) -> Any:
            return Action(name=self.names[self.own.act([int(token.value) for token in obs.tokens])])

    class Everyone(MultiAgentPolicy):  # type: ignore[misc]  # as above
        def agent_policy(self, agent_id: int) -> Any:
            return Agent(self._policy_env_info, agent_id)

    vars(sys.modules[__name__])["Everyone"] = Everyone
    mission = Mission(name="grid", env=lambda: Telling(rewarded(builder)))
    policy = {"scripted": f"{__name__}:scripted"}
    found = evaluate(mission, policy, 8, info_keys=("stats",))
    assert found.failures == ()
    for record in found.episodes:
        theirs, _ = run_episode_local(
            policy_specs=[PolicySpec(class_path=f"{__name__}.Everyone")],
            assignments=[0] * NUM_AGENTS,
            env=rewarded(builder),
            seed=record.seed,
        )
        assert record.length == theirs.steps
        assert [record.returns[agent] for agent in range(NUM_AGENTS)] == pytest.approx(theirs.rewards, abs=1e-4)
        assert record.infos["stats"][0] == theirs.stats
    assert len({record.score for record in found.episodes}) > 1, "maps differ"
