"""Inspection of environments: their wrappers, and the part that takes a task."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from parallel_envs.multiagent.by_name import EnvInspector, env_factory, inspect_env
from parallel_envs.tasks import TaskWay


class LevelEnv(gymnasium.Env[Any, Any]):
    """Plays the level that its reset's options name."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.level = int((options or {}).get("task", 0))  # fails for what is no number
        return 0, {}


class GoalEnv(LevelEnv):
    """The same with a setter."""

    def set_task(self, task: int) -> None:
        self.level = task


class Offspring(GoalEnv):
    """Inherits it."""


class OldEnv(LevelEnv):
    """Takes no options."""

    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]  # as environments once were
        return 0, {}


def test_an_env_that_looks_at_its_options_is_known() -> None:
    found = inspect_env(LevelEnv())
    assert (found.way, found.looks, found.method) == (TaskWay.OPTIONS, True, None)


def test_one_that_does_not_look_is_known_too() -> None:
    found = inspect_env(gymnasium.make("CartPole-v1"))
    assert (found.way, found.looks) == (TaskWay.OPTIONS, False)


def test_one_that_takes_no_options_has_no_way() -> None:
    found = inspect_env(OldEnv())
    assert (found.way, found.looks) == (None, None)


@pytest.mark.parametrize("kind", [GoalEnv, Offspring])
def test_a_method_is_named_with_the_layer_that_has_it(kind: type[GoalEnv]) -> None:
    found = inspect_env(gymnasium.wrappers.TimeLimit(kind(), 5))
    assert (found.way, found.method) == (TaskWay.SET_TASK, "set_task(task: 'int') -> 'None'")
    assert found.owner == f"{__name__}.{kind.__name__}"
    assert [layer.rpartition(".")[2] for layer in found.layers] == ["TimeLimit", kind.__name__]


def test_a_sample_is_drawn_where_the_env_can() -> None:
    found = EnvInspector().look(env_factory("parallel_envs.testing.families:GridNaviEnv", {}))
    assert found.sample is not None
    assert found.others == ("get_task", "sample_tasks")


def test_wrappers_of_pettingzoo_are_layers() -> None:
    env = pytest.importorskip("mpe2.simple_spread_v3").parallel_env()
    found = inspect_env(env)
    env.close()
    assert not found.is_gymnasium
    assert found.layers[0].endswith("aec_to_parallel_wrapper")
    assert found.layers[-1] == "mpe2.simple_spread.simple_spread.raw_env"
