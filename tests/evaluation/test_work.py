"""The list of episodes: seeds depend on nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.evaluation.episode import episode_specs

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True)


@given(NAMES, st.integers(1, 5), st.integers(0, 1 << 40))
def test_the_list_goes_mission_by_mission(names: list[str], episodes: int, seed: int) -> None:
    assert [order.key for order in episode_specs(names, episodes, seed)] == [
        (name, episode) for name in names for episode in range(episodes)
    ]


@given(NAMES, st.integers(1, 4), st.integers(0, 1 << 40))
def test_other_missions_and_more_episodes_change_no_seed(names: list[str], episodes: int, seed: int) -> None:
    alone = {order.key: order for order in episode_specs(names[:1], episodes, seed)}
    among = {order.key: order for order in episode_specs(reversed(names), episodes + 3, seed)}
    for key, order in alone.items():
        other = among[key]
        assert (order.env_seed, order.global_seed, order.agent_seed(2)) == (
            other.env_seed,
            other.global_seed,
            other.agent_seed(2),
        )
        assert order.dealing().random() == other.dealing().random()


def test_all_seeds_differ() -> None:
    orders = [*episode_specs(["a", "b", "ab"], 20, 0), *episode_specs(["a"], 20, 1)]
    seeds = [seed for one in orders for seed in (one.env_seed, one.global_seed, one.agent_seed(0), one.agent_seed(1))]
    assert len(set(seeds)) == len(seeds)
