"""Real environments: to the bit what a plain PettingZoo loop gives, whoever plays them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from parallel_envs import MultiAgentEnvManager
from tests.multiagent.conftest import Make
from tests.multiagent.plain import Witness, assert_same_rows

MPE = ["simple_spread_v3", "simple_speaker_listener_v4", "simple_tag_v3", "simple_world_comm_v3", "simple_adversary_v3"]
ZOO = {
    "pettingzoo.butterfly.knights_archers_zombies_v11": {"spawn_delay": 3, "max_cycles": 60},
    "pettingzoo.butterfly.pistonball_v6": {"n_pistons": 4, "max_cycles": 20},
    "pettingzoo.butterfly.cooperative_pong_v6": {"max_cycles": 20},
    "pettingzoo.sisl.multiwalker_v9": {"max_cycles": 20},
    "pettingzoo.sisl.pursuit_v5": {"max_cycles": 20, "n_pursuers": 3},
}
GENERATED = "pettingzoo.test.example_envs."


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo imports


def maker(path: str, **kwargs: Any) -> Callable[[], Any]:
    """What makes the environment of a module, or a skipped test where it is not installed."""
    return partial(pytest.importorskip(path, exc_type=ImportError).parallel_env, **kwargs)


@pytest.mark.parametrize("name", MPE)
def test_mpe(make: Make, name: str) -> None:
    assert_same_rows(make, maker(f"mpe2.{name}", max_cycles=7), 20, num_workers=2 if name == MPE[0] else 1)


@pytest.mark.parametrize("continuous_actions", [False, True])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_mpe_under_every_autoreset_mode(make_serial: Make, mode: str, continuous_actions: bool) -> None:
    spread = maker("mpe2.simple_spread_v3", max_cycles=4, continuous_actions=continuous_actions)
    assert_same_rows(make_serial, spread, 14, autoreset_mode=mode)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_any_number_of_workers(make_process: Make, num_workers: int) -> None:
    spread = maker("mpe2.simple_spread_v3", max_cycles=5)
    assert_same_rows(make_process, spread, 12, num_envs=5, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [2, 5])
@pytest.mark.parametrize(
    "path", [*(f"mpe2.{name}" for name in MPE[1:]), *ZOO, GENERATED + "generated_agents_parallel_v0"]
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_any_family_with_any_number_of_workers(make_process: Make, path: str, num_workers: int) -> None:
    made = maker(path, **ZOO.get(path, {"max_cycles": 5}))
    assert_same_rows(make_process, made, 8, num_envs=5, num_workers=num_workers, context="fork")


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_pictures_that_two_players_see_in_shared_memory(make_process: Make, num_workers: int, copy: bool) -> None:
    made: list[MultiAgentEnvManager] = []

    def make(*arguments: Any, **settings: Any) -> MultiAgentEnvManager:
        made.append(make_process(*arguments, **settings))
        return made[-1]

    assert_same_rows(make, Screens, 30, num_workers=num_workers, shared_memory=True, context="fork", copy=copy)
    assert made[0].envs.stats()[0]["bytes"] < 30 * np.prod(SCREEN)  # else pictures would have come by pipe


SCREEN = (210, 160, 3)


class Screens(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo may be missing
    """As an Atari game for two: each sees the screen, which depends on all that was done, in bytes."""

    metadata: ClassVar[dict[str, Any]] = {"name": "screens"}

    def __init__(self) -> None:
        self.possible_agents = ["first_0", "second_0"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 255, SCREEN, np.uint8)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(18)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or not hasattr(self, "generator"):
            self.generator = np.random.default_rng(seed)
        self.agents, self.steps, self.screen = list(self.possible_agents), 0, np.zeros(SCREEN, np.uint8)
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        self.screen[:] = self.generator.integers(0, 256, SCREEN, np.uint8)  # the same memory, as emulators do
        for row, agent in enumerate(self.agents):
            self.screen[row] = actions[agent]
        flags = dict.fromkeys(self.agents, self.steps == 7)
        rewards = {agent: float(sign) for agent, sign in zip(self.agents, (1, -1), strict=True)}
        told: Any = self.seen(), rewards, flags, dict.fromkeys(self.agents, False), {agent: {} for agent in self.agents}
        self.agents = [] if self.steps == 7 else self.agents
        return told

    def seen(self) -> Any:
        return dict.fromkeys(self.agents, self.screen)


class Nameless(Screens):
    metadata = None  # type: ignore[assignment]  # PettingZoo does not look either


def test_an_environment_without_metadata_is_one_all_the_same(make_serial: Make) -> None:
    assert_same_rows(make_serial, Nameless, 3)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_any_start_method(make_process: Make, context: str) -> None:
    assert_same_rows(make_process, maker("mpe2.simple_tag_v3", max_cycles=5), 12, num_workers=2, context=context)


@pytest.mark.parametrize("settings", [{"copy": False}, {"shared_memory": False}], ids=str)
def test_any_way_of_reading(make_process: Make, settings: dict[str, Any]) -> None:
    assert_same_rows(make_process, maker("mpe2.simple_tag_v3", max_cycles=5), 12, num_workers=2, **settings)


def test_a_module_path_makes_the_same_environments(make_process: Make) -> None:
    spread = maker("mpe2.simple_spread_v3", N=2, max_cycles=5)
    envs = make_process("mpe2.simple_spread_v3", num_envs=3, num_workers=2, env_kwargs={"N": 2, "max_cycles": 5})
    Witness(envs, [spread] * 3).play(12)


@pytest.mark.parametrize("path", ZOO)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::RuntimeWarning")
def test_butterfly_and_sisl(make_both: Make, path: str) -> None:
    assert_same_rows(make_both, maker(path, **ZOO[path]), 30, num_envs=2, num_workers=1)


@pytest.mark.parametrize("name", ["generated_agents_parallel_v0", "generated_agents_parallel_cust_agentid_v0"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_agents_that_come_and_go_for_many_steps(make_serial: Make, mode: str, name: str) -> None:
    assert_same_rows(make_serial, maker(GENERATED + name, max_cycles=40), 150, autoreset_mode=mode)


@pytest.mark.parametrize(
    ("name", "num_envs"),
    [("generated_agents_parallel_v0", 2), ("generated_agents_parallel_cust_agentid_v0", 1)],
)
def test_agents_that_come_and_go_in_workers(make_process: Make, name: str, num_envs: int) -> None:
    assert_same_rows(make_process, maker(GENERATED + name), 2000, num_envs=num_envs)


@pytest.mark.parametrize("name", ["generated_agents_parallel_v0", "mpe"])
def test_at_their_own_pace(make: Make, name: str) -> None:
    make_env = maker("mpe2.simple_tag_v3", max_cycles=5) if name == "mpe" else maker(GENERATED + name, max_cycles=9)
    envs: MultiAgentEnvManager = make([make_env] * 3, num_workers=2)
    Witness(envs, [make_env] * 3, own_pace=True).play(30)
