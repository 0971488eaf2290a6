"""Environments of agents in tuples, as PettingZoo has them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.testing.tuple_agents import TupleAgents, tuple_agents


class Pair(gymnasium.Env[Any, Any]):
    """Two agents; each is rewarded with its own action, and the third step ends it all."""

    observation_space = spaces.Tuple([spaces.Box(0.0, 3.0, (1,)), spaces.Box(0.0, 3.0, (2,))])
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(5)])

    def _seen(self) -> Any:
        return np.full(1, self.elapsed, np.float32), np.full(2, self.elapsed, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.elapsed = 0
        return self._seen(), {"told": seed}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self.elapsed += 1
        return self._seen(), list(map(float, action)), self.elapsed == 3, False, {}


def test_each_agent_has_its_own_part() -> None:
    env = TupleAgents(Pair())
    assert [env.action_space(agent) for agent in env.possible_agents] == [spaces.Discrete(2), spaces.Discrete(5)]
    observations, infos = env.reset(seed=4)
    assert {agent: seen.shape for agent, seen in observations.items()} == {"agent_0": (1,), "agent_1": (2,)}
    assert infos == {"agent_0": {"told": 4}, "agent_1": {"told": 4}}
    observations, rewards, terminations, truncations, _ = env.step({"agent_1": 3, "agent_0": 1})
    assert rewards == {"agent_0": 1.0, "agent_1": 3.0}
    assert observations["agent_1"].tolist() == [1.0, 1.0]
    assert not any((*terminations.values(), *truncations.values()))


def test_all_end_at_once() -> None:
    env = TupleAgents(Pair())
    env.reset()
    ends = [env.step({"agent_0": 0, "agent_1": 0})[2] for _ in range(3)]
    assert ends == [{"agent_0": over, "agent_1": over} for over in (False, False, True)]
    assert env.agents == []


def test_infos_are_not_shared() -> None:
    env = TupleAgents(Pair())
    _, infos = env.reset(seed=1)
    infos["agent_0"]["told"] = 2
    assert infos["agent_1"] == {"told": 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_it_is_a_pettingzoo_environment() -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    parallel_api_test(TupleAgents(Pair()), num_cycles=10)


def test_an_environment_of_one_agent_is_refused() -> None:
    with pytest.raises(TypeError, match="Tuple spaces"):
        tuple_agents("CartPole-v1")


def test_foraging_has_two_agents() -> None:
    pytest.importorskip("lbforaging")
    env = tuple_agents("lbforaging:Foraging-8x8-2p-2f-coop-v3")
    observations, _ = env.reset(seed=0)
    assert set(observations) == {"agent_0", "agent_1"}
    _, rewards, *_ = env.step(dict.fromkeys(env.agents, 0))
    assert rewards == {"agent_0": 0.0, "agent_1": 0.0}
    env.close()
