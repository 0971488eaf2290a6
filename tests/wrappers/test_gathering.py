"""What waits for a device is computed together: over agents, over successive turns, up to a deadline."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from parallel_envs.errors import PolicyError  # noqa: E402  # needs torch
from parallel_envs.testing import assert_same_batch  # noqa: E402  # as above
from parallel_envs.wrappers import PerAgentGPUWrapper, PerAgentSequentialWrapper, Rules  # noqa: E402  # as above
from parallel_envs.wrappers.torch_policy import Stack  # noqa: E402  # as above
from tests.wrappers.agents import Drawing  # noqa: E402  # as above
from tests.wrappers.networks import mixed, observed, several  # noqa: E402  # as above

AGENTS = "abcdefghi"

Monkey = pytest.MonkeyPatch


@pytest.fixture
def passes(monkeypatch: Monkey) -> list[tuple[int, ...]]:
    """The shapes of what went through a stack of networks."""
    shapes: list[tuple[int, ...]] = []
    compute = Stack.__call__

    def noted(stack: Any, features: Any) -> Any:
        shapes.append(tuple(features.shape))
        return compute(stack, features)

    monkeypatch.setattr(Stack, "__call__", noted)
    return shapes


def gpu(policies: Any, rules: Any = None, **settings: Any) -> PerAgentGPUWrapper:
    return PerAgentGPUWrapper(policies, rules, device="cpu", **settings)


def seen_at(turn: int, agents: str = "abc") -> dict[str, Any]:
    return {agent: observed("b", turn * 100 + ord(agent)) for agent in agents}


def test_agents_that_are_asked_one_by_one_share_a_pass(passes: list[Any]) -> None:
    with gpu(several()) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        for turn in range(4):
            seen = seen_at(turn)
            agents = {agent: wrapper.agent_policy(agent) for agent in seen}
            for agent, one in agents.items():
                one.send(seen[agent])
            assert {agent: one.recv() for agent, one in agents.items()} == reference.step(seen)
    assert passes == [(3, 1, 6)] * 4


def test_successive_turns_share_a_pass_and_are_received_in_their_order(passes: list[Any]) -> None:
    with gpu(several(), most_turns=3) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        for first in range(0, 12, 3):
            for turn in range(first, first + 3):
                wrapper.send(seen_at(turn))
            with pytest.raises(RuntimeError, match="Call recv first"):
                wrapper.send(seen_at(0))
            told = [wrapper.recv() for _ in range(3)]
            assert told == [reference.step(seen_at(turn)) for turn in range(first, first + 3)]
        assert_same_batch(wrapper.get_states(), reference.get_states())
    assert passes == [(3, 3, 6)] * 4


@pytest.mark.parametrize("seed", range(3))
def test_whatever_waits_all_is_as_if_one_turn_came_after_another(seed: int) -> None:
    generator = np.random.default_rng(seed)
    with gpu(mixed() | {"x": Drawing(1)}, most_turns=4) as wrapper:
        reference = PerAgentSequentialWrapper(mixed() | {"x": Drawing(1)})
        for _ in range(6):
            turns = [_drawn_turn(generator) for _ in range(4)]
            for turn in turns:
                wrapper.send(*turn)
            for turn in turns:
                _assert_close(wrapper.recv(), reference.step(*turn))
        states = [{a: own for a, own in one.get_states().items() if a not in "dx"} for one in (wrapper, reference)]
        assert_same_batch(*states)


def _drawn_turn(generator: Any) -> Any:
    """Some agents, with one observation each or with rows of which some are alive."""
    agents = [agent for agent in AGENTS + "x" if generator.random() < 0.7] or ["a"]
    rows = None if generator.random() < 0.5 else int(generator.integers(1, 4))
    seed = int(generator.integers(1 << 30))
    alive = None if rows is None else {agent: generator.random(rows) < 0.6 for agent in agents}
    return {agent: observed(agent, seed, rows) for agent in agents}, alive


def _assert_close(said: Any, expected: Any) -> None:
    assert said.keys() == expected.keys()
    for agent, action in said.items():
        if agent in "gh" and action is not None:
            np.testing.assert_allclose(action, expected[agent], atol=1e-5)
        else:
            assert_same_batch(action, expected[agent])


@pytest.mark.parametrize("rows", [1, 3])
def test_one_observation_and_rows_share_a_pass(passes: list[Any], rows: int) -> None:
    seen, alive = {"a": observed("b", 1, rows)}, {"a": np.ones(rows, bool)}
    with gpu(several()) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        other = wrapper.agent_policy("b")
        for _ in range(3):
            wrapper.send(seen, alive)
            other.send(observed("b", 2))
            assert_same_batch(wrapper.recv(), reference.step(seen, alive))
            assert_same_batch(other.recv(), reference.agent_policy("b").step(observed("b", 2)))
    assert passes == [(2, rows, 6)] * 3


def test_a_bad_observation_is_an_error_of_its_agent_and_its_turn() -> None:
    with gpu(several(), most_turns=2) as wrapper, PerAgentSequentialWrapper(several()) as reference:
        good, bad = seen_at(0), {**seen_at(1), "b": np.zeros(5, np.float32)}
        wrapper.send(good)
        wrapper.send(bad)
        assert wrapper.recv() == reference.step(good)
        with pytest.raises(RuntimeError, match="policy of 'b' raised RuntimeError: mat1 and mat2") as caught:
            wrapper.recv()
        assert set(caught.value.actions) == {"a", "c"}  # type: ignore[attr-defined]  # a PolicyError


def test_a_turn_waits_for_others_until_all_have_been_asked(passes: list[Any]) -> None:
    """From three threads: each waits for the other two, and none until the time is up."""
    with gpu(several(), gather_seconds=60.0) as wrapper:
        said: dict[str, Any] = {}
        began = time.monotonic()
        threads = [threading.Thread(target=_stepped, args=(wrapper, agent, said)) for agent in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        assert time.monotonic() - began < 30.0
        with PerAgentSequentialWrapper(several()) as reference:
            assert said == reference.step(seen_at(0))
    assert passes == [(3, 1, 6)]


def _stepped(wrapper: PerAgentGPUWrapper, agent: str, said: dict[str, Any]) -> None:
    said[agent] = wrapper.agent_policy(agent).step(seen_at(0)[agent])


def test_a_turn_waits_for_others_so_long_and_no_longer() -> None:
    with gpu(several(), gather_seconds=0.05) as wrapper:
        began = time.monotonic()
        wrapper.step(seen_at(0, "a"))
        assert 0.05 <= time.monotonic() - began < 5.0
    rules = Rules(action_timeout=0.05, default_action=0)
    with gpu(several(), rules, gather_seconds=60.0) as wrapper:
        began = time.monotonic()
        wrapper.step(seen_at(0, "a"))
        assert time.monotonic() - began < 5.0


def test_a_turn_that_is_given_up_is_not_computed_and_ctrl_c_leaves_none_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gpu({"x": Drawing(1), "y": Drawing(2)}) as wrapper:
        one, other = wrapper.agent_policy("x"), wrapper.agent_policy("y")
        wrapper.send({"x": np.zeros(2)})
        wrapper.abandon()  # a turn that is given up is not computed
        assert wrapper.step({"x": np.zeros(2)})["x"] // 1000 == 1
        one.send(np.zeros(2))
        other.send(np.zeros(2))
        monkeypatch.setattr(wrapper.policies["y"], "step", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.recv()
        with pytest.raises(PolicyError, match="policy of 'y' raised KeyboardInterrupt"):
            other.recv()


def _interrupted(_: Any) -> Any:
    raise KeyboardInterrupt


def test_settings_that_make_no_sense_are_refused() -> None:
    settings: dict[str, Any]
    for settings, text in (
        ({"most_turns": 0}, "most_turns=0 is not a number of turns"),
        ({"most_turns": True}, "most_turns=True"),
        ({"gather_seconds": -1.0}, "gather_seconds=-1.0 is not a number of seconds"),
        ({"gather_seconds": float("inf")}, "gather_seconds=inf"),
    ):
        with pytest.raises(ValueError, match=text):
            gpu(several(), **settings)
