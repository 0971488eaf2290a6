"""Whatever agents do, scripted or real: to the bit what a plain PettingZoo loop gives, whatever plays them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from parallel_envs import MultiAgentEnvManager
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv
from tests.managers import opened
from tests.multiagent import scripts
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EVERYONE, MODES, Witness, assert_same_rows, of_both_kinds, scripted, together

MPE = {
    f"mpe2.simple_{name}": {"max_cycles": 5}
    for name in ("spread_v3", "speaker_listener_v4", "tag_v3", "world_comm_v3", "adversary_v3")
}
ZOO = {
    "pettingzoo.butterfly.knights_archers_zombies_v11": {"spawn_delay": 3, "max_cycles": 15},
    "pettingzoo.butterfly.pistonball_v6": {"n_pistons": 4, "max_cycles": 5},
    "pettingzoo.butterfly.cooperative_pong_v6": {"max_cycles": 5},
    "pettingzoo.sisl.multiwalker_v9": {"max_cycles": 5},
    "pettingzoo.sisl.pursuit_v5": {"max_cycles": 5, "n_pursuers": 3},
}


GENERATED = "pettingzoo.test.example_envs."


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo imports


def maker(path: str, **kwargs: Any) -> Callable[[], Any]:
    return partial(pytest.importorskip(path, exc_type=ImportError).parallel_env, **kwargs)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("continuous_actions", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_mpe_under_every_autoreset_mode(make_serial: Make, mode: str, continuous_actions: bool) -> None:
    spread = maker("mpe2.simple_spread_v3", max_cycles=4, continuous_actions=continuous_actions)
    assert_same_rows(make_serial, spread, 14, autoreset_mode=mode)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("path", [*MPE, *ZOO, GENERATED + "generated_agents_parallel_v0"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_any_family_with_any_number_of_workers(make_process: Make, path: str, num_workers: int) -> None:
    made = maker(path, **{**MPE, **ZOO}.get(path, {"max_cycles": 5}))
    num_steps = 20 if "knights" in path else 8
    assert_same_rows(make_process, made, num_steps, num_envs=5, num_workers=num_workers, context="fork")


WAYS: list[dict[str, Any]] = [{"context": "fork"}, {"context": "spawn"}, {"copy": False}, {"shared_memory": False}]


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_any_start_method_and_way_of_reading(make_process: Make, settings: dict[str, Any]) -> None:
    assert_same_rows(make_process, maker("mpe2.simple_tag_v3", max_cycles=5), 12, num_workers=2, **settings)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_pictures_that_two_players_see_are_in_shared_memory(make_process: Make, num_workers: int, copy: bool) -> None:
    envs = make_process([Screens] * 3, num_workers=num_workers, shared_memory=True, context="fork", copy=copy)
    Witness(envs, [Screens] * 3).play(16)
    assert envs.envs.stats()[0]["bytes"] < 16 * np.prod(SCREEN)  # else pictures would have come by pipe


SCREEN = (210, 160, 3)


class Screens(ScriptedAgentsEnv):
    """As an Atari game for two: each sees the screen, which depends on all that was done, in bytes."""

    def __init__(self) -> None:
        seen: Any = dict.fromkeys("ab", spaces.Box(0, 255, SCREEN, np.uint8))
        super().__init__(together(7), possible_agents="ab", observation_spaces=seen)
        self.screen = np.zeros(SCREEN, np.uint8)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, infos = super().reset(seed, options)
        self.screen[:] = 0
        return dict.fromkeys("ab", self.screen), infos

    def step(self, actions: Any) -> Any:
        _, *others = super().step(actions)
        self.screen[:] = self.elapsed  # the same memory, as emulators do
        for row, agent in enumerate("ab"):
            self.screen[row] = actions[agent]
        return dict.fromkeys("ab", self.screen), *others


def test_an_environment_without_metadata_is_one_all_the_same(make_serial: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(Screens, "metadata", None)  # PettingZoo does not look either
    assert_same_rows(make_serial, Screens, 3)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", ["generated_agents_parallel_v0", "generated_agents_parallel_cust_agentid_v0"])
@pytest.mark.parametrize("mode", MODES)
def test_agents_that_come_and_go_for_many_steps(make_both: Make, mode: str, name: str) -> None:
    assert_same_rows(make_both, maker(GENERATED + name, max_cycles=25), 60, num_envs=2, autoreset_mode=mode)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("path", ["mpe2.simple_tag_v3", GENERATED + "generated_agents_parallel_v0"])
def test_at_their_own_pace(make: Make, path: str) -> None:
    make_env = maker(path, max_cycles=5)
    Witness(make([make_env] * 3, num_workers=2), [make_env] * 3, own_pace=True).play(15)


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_every_backend(backend: str, mode: Any, possible_agents: Any) -> None:
    how: dict[str, Any] = {"infos": list(InfoKind)[:4], "rewards": list(RewardKind), "reuse_buffers": True}
    maker = scripted(possible_agents=possible_agents, **how)
    for make in opened(MultiAgentEnvManager, backend):
        Witness(make([maker] * 3, num_workers=2, autoreset_mode=mode), [maker] * 3).play(15)


@examples(max_examples=60)
@given(
    schedules=st.tuples(scripts.schedules(), scripts.schedules()),
    settings=st.tuples(scripts.settings(), scripts.settings()),
    known=st.booleans(),
    mode=st.sampled_from(MODES),
    own_pace=st.booleans(),
    copy=st.booleans(),
)
def test_agents_that_are_known_and_agents_that_are_not(
    schedules: Any, settings: Any, known: bool, mode: Any, own_pace: bool, copy: bool
) -> None:
    first, other = settings
    other = first if known else other | {"infos": first["infos"]}
    agents = EVERYONE if known else None
    makers = [scripted(one, possible_agents=agents, **how) for one, how in zip(schedules, (first, other), strict=True)]
    with MultiAgentEnvManager(makers, backend="serial", num_workers=1, autoreset_mode=mode, copy=copy) as envs:
        assert envs.is_open is not known
        Witness(envs, makers, own_pace=own_pace).play(8)


@pytest.mark.parametrize("number", range(len(scripts.OBSERVATIONS)))
def test_every_kind_of_observation_and_action_through_workers(make_process: Make, number: int) -> None:
    seen, acted = scripts.OBSERVATIONS[number], scripts.ACTIONS[number % len(scripts.ACTIONS)]
    spaces_: dict[str, Any] = {
        "observation_spaces": dict.fromkeys("abc", seen),
        "action_spaces": {"a": acted, "c": acted},
    }
    maker = scripted(**spaces_, infos=[InfoKind.NESTED])
    Witness(make_process([maker] * 2), [maker] * 2).play(8)
