"""Actions joined, and rows picked: at once where that can be, one by one elsewhere, with the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.multiagent.agent_layout import GROUPS, AgentLayout, joint_actions, masked_copy
from parallel_envs.multiagent.fixed_agents import FixedAgents

NUM_ROWS = 3
AGENTS = ("a", "b")
SPACES: list[Space[Any]] = [Discrete(4), MultiDiscrete([3, 4]), Box(-1.0, 1.0, (2, 2), np.float32)]


def rows_of(*action_spaces: Space[Any]) -> FixedAgents:
    return FixedAgents(AgentLayout(AGENTS, (Discrete(2),) * 2, action_spaces))


def joined(rows: FixedAgents, **actions: Any) -> Any:
    by_agent: dict[Any, Any] = actions
    return rows.join_actions(by_agent, NUM_ROWS, {})


@given(st.sampled_from(SPACES), st.lists(st.sampled_from(["i1", "i8", "f4", "f8", "?"]), min_size=2, max_size=2))
def test_actions_are_joined_as_they_were_given(space: Space[Any], kinds: list[str]) -> None:
    shape = (NUM_ROWS, *space.shape)  # type: ignore[misc]  # the spaces here have shapes
    given_ = [np.arange(np.prod(shape)).reshape(shape).astype(kind) for kind in kinds]
    at_once = joined(rows_of(space, space), a=given_[0], b=given_[1])
    assert at_once.shape == (NUM_ROWS, 2, *shape[1:])
    assert at_once.dtype == np.result_type(*kinds)
    for row, values in enumerate(given_):
        np.testing.assert_array_equal(at_once[:, row], values)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_lists_are_taken_too(space: Space[Any]) -> None:
    batch = [space.sample() for _ in range(NUM_ROWS)]
    lists = [one.tolist() for one in np.array(batch)]
    for ours in (lists, tuple(lists)):
        np.testing.assert_array_equal(joined(rows_of(space, space), a=ours, b=np.array(batch))[:, 0], batch)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_missing_agent_has_zeros(space: Space[Any]) -> None:
    batch = np.array([space.sample() for _ in range(NUM_ROWS)])
    together = joined(rows_of(space, space), b=batch)
    assert together.dtype == batch.dtype
    assert not together[:, 0].any()
    np.testing.assert_array_equal(together[:, 1], batch)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 2)), np.zeros((4, 2)), np.zeros((3, 3)), np.zeros(3), np.zeros((3, 2, 1)), np.zeros(()), 5, "ab"],
    ids=repr,
)
def test_any_other_shape_names_the_agent(wrong: Any) -> None:
    rows, right = rows_of(SPACES[1], SPACES[1]), np.zeros((NUM_ROWS, 2))
    for actions in ({"a": right, "b": wrong}, {"b": wrong}):
        with pytest.raises(ValueError, match=r"were given for 'b' in 3 environments, whose actions have shape \(2,\)"):
            joined(rows, **actions)
    with pytest.raises(ValueError, match="were given for 'a' in 3 environments"):
        joined(rows, a=wrong, b=wrong)


def test_rows_too_many_for_one_and_too_few_for_another_are_not_shared_out() -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\) were given for 'a'"):
        joined(rows_of(SPACES[0], SPACES[0]), a=np.zeros(4), b=np.zeros(2))


def test_what_is_joined_is_in_the_action_space() -> None:
    for spaces in ((Discrete(4), Discrete(4)), (Discrete(4), Discrete(5)), (SPACES[2], SPACES[2])):
        space = joint_actions(AgentLayout(AGENTS, (Discrete(2),) * 2, spaces))
        batches = {agent: np.array([one.sample()] * NUM_ROWS) for agent, one in zip(AGENTS, spaces, strict=True)}
        together = joined(rows_of(*spaces), **batches)
        first = (
            together[0]
            if isinstance(together, np.ndarray)
            else {GROUPS: {key: group[0] for key, group in together[GROUPS].items()}}
        )
        assert space.contains(first)


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_rows_that_are_not_wanted_are_empty(wanted: list[bool]) -> None:
    mask, column = np.array(wanted), np.arange(1.0, len(wanted) + 1)
    kept = masked_copy(column, mask)
    np.testing.assert_array_equal(kept, np.where(mask, column, 0.0))
    assert not np.shares_memory(kept, column)
    assert masked_copy(tuple("abcde"[: len(wanted)]), mask) == tuple(
        letter if there else None for letter, there in zip("abcde", wanted, strict=False)
    )
