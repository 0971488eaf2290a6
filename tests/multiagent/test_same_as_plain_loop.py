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

SHORT = {"max_cycles": 5}
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "listener": ("mpe2.simple_speaker_listener_v4", SHORT),
    "tag": ("mpe2.simple_tag_v3", SHORT),
    "world": ("mpe2.simple_world_comm_v3", SHORT),
    "adversary": ("mpe2.simple_adversary_v3", SHORT),
    "spread": ("mpe2.simple_spread_v3", SHORT),
    "spread, continuous": ("mpe2.simple_spread_v3", {**SHORT, "continuous_actions": True}),
    "knights": ("pettingzoo.butterfly.knights_archers_zombies_v11", {"spawn_delay": 3, "max_cycles": 15}),
    "pistonball": ("pettingzoo.butterfly.pistonball_v6", {**SHORT, "n_pistons": 4}),
    "pong": ("pettingzoo.butterfly.cooperative_pong_v6", SHORT),
    "multiwalker": ("pettingzoo.sisl.multiwalker_v9", SHORT),
    "pursuit": ("pettingzoo.sisl.pursuit_v5", {**SHORT, "n_pursuers": 3}),
    "generated": ("pettingzoo.test.example_envs.generated_agents_parallel_v0", {"max_cycles": 20}),
    "own ids": ("pettingzoo.test.example_envs.generated_agents_parallel_cust_agentid_v0", {"max_cycles": 20}),
}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo imports


def maker(path: str, **kwargs: Any) -> Callable[[], Any]:
    return partial(pytest.importorskip(path, exc_type=ImportError).parallel_env, **kwargs)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REAL)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_any_family_with_any_number_of_workers(make_process: Make, name: str, mode: str) -> None:
    """All at once and at their own pace in turns."""
    (path, kwargs), place = REAL[name], list(REAL).index(name) + MODES.index(mode)
    made = maker(path, **kwargs)
    num_workers = (1, 2, 5)[place % 3]
    envs = make_process([made] * 5, num_workers=num_workers, autoreset_mode=mode, context="fork")
    Witness(envs, [made] * 5, own_pace=place % 2 == 1).play(8 if kwargs["max_cycles"] == 5 else 24)


WAYS: list[dict[str, Any]] = [{"context": "fork"}, {"context": "spawn"}, {"copy": False}, {"shared_memory": False}]


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_any_start_method_and_way_of_reading(make_process: Make, settings: dict[str, Any]) -> None:
    assert_same_rows(make_process, maker("mpe2.simple_tag_v3", max_cycles=5), 12, num_workers=2, **settings)


@pytest.mark.parametrize("copy", [True, False])
def test_pictures_that_two_players_see_are_in_shared_memory(make_process: Make, copy: bool) -> None:
    envs = make_process([Screens] * 3, num_workers=2, shared_memory=True, context="fork", copy=copy)
    Witness(envs, [Screens] * 3).play(9)
    assert envs.envs.stats()[0]["bytes"] < 9 * np.prod(SCREEN)  # else pictures would have come by pipe


SCREEN = (210, 160, 3)


class Screens(ScriptedAgentsEnv):
    """As an Atari game for two: each sees the screen, which depends on all that was done, in bytes."""

    metadata: Any = None  # PettingZoo does not look at it either

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


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_every_backend(backend: str, mode: Any, possible_agents: Any) -> None:
    how: dict[str, Any] = {"infos": list(InfoKind)[:4], "rewards": list(RewardKind), "reuse_buffers": True}
    maker = scripted(possible_agents=possible_agents, **how)
    for make in opened(MultiAgentEnvManager, backend):
        Witness(make([maker] * 3, num_workers=2, autoreset_mode=mode), [maker] * 3).play(15)


@examples(max_examples=40)
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


def test_every_kind_of_observation_and_action_through_workers(make_process: Make) -> None:
    for number, seen in enumerate(scripts.OBSERVATIONS):
        acted = scripts.ACTIONS[number % len(scripts.ACTIONS)]
        how: dict[str, Any] = {"action_spaces": {"a": acted, "c": acted}}
        maker = scripted(observation_spaces=dict.fromkeys("abc", seen), infos=[InfoKind.NESTED], **how)
        Witness(make_process([maker] * 2, num_workers=1), [maker] * 2).play(8)
