"""Whatever agents do, scripted or real: to the bit what a plain PettingZoo loop gives, whatever plays them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from parallel_envs import MultiAgentEnvManager
from parallel_envs.choices import Autoreset
from parallel_envs.testing import InfoKind, RewardKind, Stay
from tests.managers import opened
from tests.multiagent import scripts
from tests.multiagent.conftest import Make
from tests.multiagent.plain import Witness, assert_same_rows
from tests.multiagent.scripts import EARLY_AND_LATE, EVERYONE, MODES, of_both_kinds, scripted

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


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", MPE)
def test_mpe(make: Make, name: str) -> None:
    assert_same_rows(make, maker(f"mpe2.{name}", max_cycles=7), 20, num_workers=2 if name == MPE[0] else 1)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("continuous_actions", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_mpe_under_every_autoreset_mode(make_serial: Make, mode: str, continuous_actions: bool) -> None:
    spread = maker("mpe2.simple_spread_v3", max_cycles=4, continuous_actions=continuous_actions)
    assert_same_rows(make_serial, spread, 14, autoreset_mode=mode)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("num_workers", [2, 5])
@pytest.mark.parametrize(
    "path", [*(f"mpe2.{name}" for name in MPE[1:]), *ZOO, GENERATED + "generated_agents_parallel_v0"]
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_any_family_with_any_number_of_workers(make_process: Make, path: str, num_workers: int) -> None:
    made = maker(path, **ZOO.get(path, {"max_cycles": 5}))
    assert_same_rows(make_process, made, 8, num_envs=5, num_workers=num_workers, context="fork")


@pytest.mark.slow(sample=True)
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


def test_an_environment_without_metadata_is_one_all_the_same(make_serial: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(Screens, "metadata", None)  # PettingZoo does not look either
    assert_same_rows(make_serial, Screens, 3)


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


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("path", ZOO)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::RuntimeWarning")
def test_butterfly_and_sisl(make_both: Make, path: str) -> None:
    assert_same_rows(make_both, maker(path, **ZOO[path]), 30, num_envs=2, num_workers=1)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", ["generated_agents_parallel_v0", "generated_agents_parallel_cust_agentid_v0"])
@pytest.mark.parametrize("mode", MODES)
def test_agents_that_come_and_go_for_many_steps(make_serial: Make, mode: str, name: str) -> None:
    assert_same_rows(make_serial, maker(GENERATED + name, max_cycles=40), 150, autoreset_mode=mode)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(
    ("name", "num_envs"), [("generated_agents_parallel_v0", 2), ("generated_agents_parallel_cust_agentid_v0", 1)]
)
def test_agents_that_come_and_go_in_workers(make_process: Make, name: str, num_envs: int) -> None:
    assert_same_rows(make_process, maker(GENERATED + name), 500, num_envs=num_envs)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", ["generated_agents_parallel_v0", "mpe"])
def test_at_their_own_pace(make: Make, name: str) -> None:
    make_env = maker("mpe2.simple_tag_v3", max_cycles=5) if name == "mpe" else maker(GENERATED + name, max_cycles=9)
    envs: MultiAgentEnvManager = make([make_env] * 3, num_workers=2)
    Witness(envs, [make_env] * 3, own_pace=True).play(30)


Schedules = list[dict[Hashable, Stay]]


@examples(max_examples=60)
@given(
    first=scripts.schedules(),
    second=scripts.schedules(),
    settings=scripts.settings(),
    mode=st.sampled_from(MODES),
    own_pace=st.booleans(),
    copy=st.booleans(),
)
def test_agents_that_are_known(
    first: Schedules, second: Schedules, settings: dict[str, Any], mode: Autoreset, own_pace: bool, copy: bool
) -> None:
    makers = [scripted(one, possible_agents=EVERYONE, **settings) for one in (first, second)]
    with MultiAgentEnvManager(makers, backend="serial", num_workers=1, autoreset_mode=mode, copy=copy) as envs:
        assert not envs.is_open
        Witness(envs, makers, own_pace=own_pace).play(8)


@examples(max_examples=60)
@given(
    first=scripts.schedules(),
    second=scripts.schedules(),
    settings=scripts.settings(),
    others=scripts.settings(),
    mode=st.sampled_from(MODES),
    own_pace=st.booleans(),
)
def test_agents_that_are_not_known_beforehand(
    first: Schedules,
    second: Schedules,
    settings: dict[str, Any],
    others: dict[str, Any],
    mode: Autoreset,
    own_pace: bool,
) -> None:
    others |= {key: settings[key] for key in ("infos",)}
    makers = [scripted(one, possible_agents=None, **how) for one, how in ((first, settings), (second, others))]
    with MultiAgentEnvManager(makers, backend="serial", num_workers=1, autoreset_mode=mode) as envs:
        assert envs.is_open
        Witness(envs, makers, own_pace=own_pace).play(8)


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("mode", MODES)
def test_every_backend(make_any: Make, mode: str, possible_agents: Any) -> None:
    how: dict[str, Any] = {"infos": list(InfoKind)[:4], "rewards": list(RewardKind), "reuse_buffers": True}
    maker = scripted(possible_agents=possible_agents, **how)
    Witness(make_any([maker] * 3, num_workers=2, autoreset_mode=mode), [maker] * 3).play(15)


@pytest.mark.parametrize("space", scripts.OBSERVATIONS, ids=lambda space: type(space).__name__)
def test_every_kind_of_observation_through_workers(make_process: Make, space: Any) -> None:
    maker = scripted(observation_spaces=dict.fromkeys("abc", space), infos=[InfoKind.NESTED])
    Witness(make_process([maker] * 2), [maker] * 2).play(8)


def test_an_agent_that_comes_in_the_step_in_which_another_ends(make_serial: Make) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE[2:])])
    envs.reset(seed=0)
    assert envs.agents_now == ("c",)
    _, _, terminations, _, _ = envs.step({"c": [1]})
    assert terminations["c"].tolist() == [True]
    assert envs.present["c"].tolist() == [True]
    assert envs.present["a"].tolist() == [True]
    assert envs.agents_now == ("a",)
    assert envs.agents(0) == ["a"]


@pytest.fixture(params=["serial", "thread", "process"])
def make_any(request: pytest.FixtureRequest) -> Iterator[Make]:
    yield from opened(MultiAgentEnvManager, request.param)


@pytest.mark.parametrize("number", range(len(scripts.OBSERVATIONS)))
def test_every_kind_of_observation_and_action_through_workers(make_process: Make, number: int) -> None:
    seen, acted = scripts.OBSERVATIONS[number], scripts.ACTIONS[number % len(scripts.ACTIONS)]
    spaces_: dict[str, Any] = {
        "observation_spaces": dict.fromkeys("abc", seen),
        "action_spaces": {"a": acted, "c": acted},
    }
    maker = scripted(**spaces_, infos=[InfoKind.NESTED])
    Witness(make_process([maker] * 2), [maker] * 2).play(8)
