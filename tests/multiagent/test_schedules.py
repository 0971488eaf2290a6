"""Whatever agents do: whoever comes, stays, ends and returns, each row is that of the environment played by hand."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from parallel_envs import MultiAgentEnvManager
from parallel_envs.choices import Autoreset
from parallel_envs.testing import InfoKind, RewardKind, Stay
from tests.multiagent import scripts
from tests.multiagent.conftest import Make
from tests.multiagent.plain import Witness
from tests.multiagent.scripts import EARLY_AND_LATE, EVERYONE, MODES, scripted

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


@pytest.mark.parametrize("open_", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("mode", MODES)
def test_every_backend(make: Make, mode: str, open_: bool) -> None:
    everyone = None if open_ else "all"
    maker = scripted(possible_agents=everyone, infos=list(InfoKind)[:4], rewards=list(RewardKind), reuse_buffers=True)
    Witness(make([maker] * 3, num_workers=2, autoreset_mode=mode), [maker] * 3).play(15)


@pytest.mark.parametrize("space", scripts.OBSERVATIONS, ids=lambda space: type(space).__name__)
def test_every_kind_of_observation_through_workers(make_process: Make, space: Any) -> None:
    maker = scripted(observation_spaces=dict.fromkeys("abc", space), infos=[InfoKind.NESTED])
    Witness(make_process([maker] * 2), [maker] * 2).play(8)


@pytest.mark.parametrize("space", scripts.ACTIONS, ids=lambda space: type(space).__name__)
def test_every_kind_of_action_through_workers(make_process: Make, space: Any) -> None:
    maker = scripted(action_spaces={"a": space, "c": space})
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
