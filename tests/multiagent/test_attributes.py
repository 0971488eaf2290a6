"""What else a manager offers: calls, attributes, pictures, figures, halves of a step, and its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs.errors import ClosedError
from parallel_envs.testing import ScriptedAgentsEnv
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, noop, scripted, together


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
def test_an_attribute_is_set_where_it_is(make_serial: Make, turns: str) -> None:
    envs = make_serial([wrapped], turns=turns)
    envs.set_attr("elapsed", 5)
    assert envs.call("seen_elapsed") == (5,)
    envs.set_attr("new", "here")
    assert envs.get_attr("new") == ("here",)


def test_attributes_behind_conversions_are_found(make_serial: Make) -> None:
    pytest.importorskip("mpe2")
    envs = make_serial("mpe2.simple_spread_v3", num_envs=2, env_kwargs={"max_cycles": 9})
    assert envs.get_attr("max_cycles") == (9, 9)
    envs.set_attr("max_cycles", [1, 2])
    assert envs.get_attr("max_cycles") == (1, 2)


class SeenEnv(ScriptedAgentsEnv):
    def seen_elapsed(self) -> int:
        return self.elapsed


def wrapped() -> Any:
    from pettingzoo.utils.conversions import parallel_to_aec

    aec = parallel_to_aec(SeenEnv(together(3)))
    aec.metadata["is_parallelizable"] = True
    return aec


def test_both_halves_of_a_step(make: Make) -> None:
    envs = make([scripted(together(9))] * 2)
    envs.reset_async(seed=0)
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async({})
    envs.reset_wait()
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.step_async(noop(envs))
    observations, *_ = envs.step_wait(timeout=20.0)
    assert observations["a"].shape == (2, 3)


def test_send_and_receive_some(make: Make) -> None:
    envs = make([scripted(together(9))] * 3)
    envs.send_reset(seed=0)
    numbers, observations, *_ = envs.recv(min_envs=3)
    assert sorted(numbers) == [0, 1, 2]
    envs.send({agent: np.array([1]) for agent in envs.agents_now}, 2)
    numbers, observations, rewards, *_, infos = envs.recv()
    assert numbers.tolist() == [2]
    assert observations["a"].shape == (1, 3)
    assert rewards["a"].shape == (1,)
    assert envs.alive["a"].shape == (3,)
    assert set(infos) == {"a", "b"}
    assert [row[0] for row in envs.call("state")] == [0, 0, 1]


def test_agents_that_have_gone_are_not_kept_at_their_own_pace(make_serial: Make) -> None:
    schedules = [together(1, number)[0] for number in range(6)]
    envs = make_serial([scripted(schedules, possible_agents=None)])
    envs.send_reset(seed=0)
    envs.recv()
    for _ in range(9):
        envs.send({agent: [0] for agent in envs.agents_now})
        envs.recv()
        assert len(envs.alive) == 1


def test_calls_attributes_and_functions_reach_the_environments(make: Make) -> None:
    envs = make([scripted()] * 3, num_workers=2)
    assert envs.call("echo", 1, two=2) == (((1,), {"two": 2}),) * 3
    assert envs.call("echo", env_ids=[2]) == (((), {}),)
    envs.call_async("echo", env_ids=0)
    assert envs.call_wait() == (((), {}),)
    envs.set_attr("elapsed", [5], env_ids=1)
    assert envs.get_attr("elapsed") == (0, 5, 0)
    assert envs.get_attr("elapsed", env_ids=[1, 0]) == (5, 0)
    assert envs.apply(lambda env, more: (type(env).__name__, more), 5) == [("ScriptedAgentsEnv", 5)] * 3
    assert envs.apply(lambda env: setattr(env, "elapsed", 2), env_ids=1) == [None]
    assert envs.get_attr("elapsed") == (0, 2, 0)
    with pytest.raises(TypeError, match="fn=3"):
        envs.apply(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="nothing_like_this"):
        envs.get_attr("nothing_like_this")
    envs.reset(seed=0)
    assert envs.agents_now == ("a", "b", "c")


def test_agents_states_pictures_and_figures_are_those_of_each_environment(make: Make) -> None:
    envs = make(
        [scripted(one, possible_agents="abc", render_mode="rgb_array") for one in ([EARLY_AND_LATE[1]], EARLY_AND_LATE)]
        + [scripted(EARLY_AND_LATE, render_mode="rgb_array")],
        num_workers=2,
    )
    envs.reset(seed=0)
    assert [envs.agents(env) for env in range(2)] == [["b", "c"], ["a", "b", "c"]]
    envs.step(noop(envs))
    assert envs.agents(1) == ["b", "c"]
    assert envs.state().tolist() == [[1, 2]] * 3
    assert envs.render_mode == "rgb_array"
    assert [picture.shape for picture in envs.render() or ()] == [(8, 8, 3)] * 3
    assert [(row["env_ids"], row["steps"]) for row in envs.stats()] == [((0, 1), 2), ((2,), 1)]


def test_a_manager_tells_what_it_is_and_closes_after_its_with_block(make: Make, backend: str) -> None:
    envs = make([scripted()] * 2)
    inner = f"ParallelEnvManager(num_envs=2, num_workers=2, backend={backend!r}, state='idle')"
    assert repr(envs) == f"MultiAgentEnvManager(3 agents, {inner})"
    assert repr(make([scripted(possible_agents=None)])).startswith("MultiAgentEnvManager(0 agents so far, ")
    with envs as same:
        assert same is envs
    assert envs.closed
    envs.close()
    assert "state='closed'" in repr(envs)
    asks: list[Any] = [envs.reset, envs.recv, lambda: envs.call("echo"), lambda: envs.step({})]
    for ask in asks:
        with pytest.raises(ClosedError):
            ask()
