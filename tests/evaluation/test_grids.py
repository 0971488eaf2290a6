"""MettaGrid's configurations as missions: with what they are asked for, and the real thing where it is installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from parallel_envs.evaluation import Mission, evaluate
from parallel_envs.evaluation.grids import Grid, is_config
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


class Counting:
    """Stands for MettaGrid's environment: what is played depends on its map and on how often it was reset."""

    made = 0
    closed = 0

    def __init__(self, simulator: Any, config: Any) -> None:
        type(self).made += 1
        self.course, self.config, self.resets = Course(agents=(0, 1)), config, 0

    @property
    def agents(self) -> list[Any]:
        return self.course.agents

    def reset(self, seed: int) -> Any:
        self.resets += 1
        return self.course.reset(seed=seed + self.resets * 1000 + self.config.map_seed)

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
        named("mettagrid.envs.pettingzoo_env", MettaGridPettingZooEnv=Counting),
        named("mettagrid.runner"),
        named("mettagrid.runner.rollout", resolve_env_for_seed=lambda config, seed: SimpleNamespace(map_seed=seed)),
        named("mettagrid.simulator", Simulator=object),
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    Counting.made = Counting.closed = 0


def test_a_configuration_is_known_without_mettagrid() -> None:
    assert is_config(MettaGridConfig())
    assert not is_config(SimpleNamespace())


def test_every_reset_with_a_seed_is_the_same_episode(mettagrid: None) -> None:
    grid = Grid(MettaGridConfig())
    assert (grid.agents, grid.possible_agents) == ([], [0, 1])
    first, again, other = (grid.reset(seed=seed)[0] for seed in (3, 3, 4))
    assert {agent: seen.tolist() for agent, seen in first.items()} == {a: seen.tolist() for a, seen in again.items()}
    assert first[0].tolist() != other[0].tolist()
    grid.close()
    assert Counting.made == Counting.closed == 3


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
