"""Envs that use their arrays again, and callers that write into what they are given, change nothing."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.plain import assert_same_rows
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, noop, of_both_kinds, scripted, together


class SameDictsEnv(ScriptedAgentsEnv):
    """Returns the same dicts and arrays each time, with new values, and empties them on the way."""

    def _kept(self, results: Any) -> Any:
        self.kept: list[dict[Any, Any]] = getattr(self, "kept", None) or [{} for _ in range(5)]
        for own, new in zip(self.kept, results, strict=False):
            own.clear()
            own.update(new)
        return tuple(self.kept[: len(results)])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed, options)
        observations, _, _, _, infos = self._kept((observations, {}, {}, {}, infos))
        return observations, infos

    def step(self, actions: Any) -> Any:
        return self._kept(super().step(actions))


class TurnedEnv(ScriptedAgentsEnv):
    """Names its agents in another order at each step, and in a tuple."""

    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        self.agents = self.agents[::-1]
        return tuple(dict(reversed(one.items())) for one in results)


@of_both_kinds
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SameDictsEnv, TurnedEnv])
@pytest.mark.slow(sample=True)
def test_careless_environments(make_both: Make, kind: Any, mode: str, possible_agents: Any) -> None:
    how: dict[str, Any] = {"possible_agents": possible_agents, "reuse_buffers": True, "rewards": list(RewardKind)}
    assert_same_rows(make_both, partial(kind, EARLY_AND_LATE, **how), 12, autoreset_mode=mode)


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("copy_", [True, False], ids=["copied", "in place"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_a_user_writes_into_results_is_not_seen_again(
    make_both: Make, mode: str, copy_: bool, possible_agents: Any
) -> None:
    makers = [scripted(EARLY_AND_LATE, possible_agents=possible_agents)] * 2
    rude, polite = (make_both(makers, autoreset_mode=mode, copy=copy_) for _ in range(2))
    assert told(rude, spoil=True) == told(polite, spoil=False)


def told(envs: MultiAgentEnvManager, *, spoil: bool) -> list[str]:
    results: tuple[Any, ...] = envs.reset(seed=0)
    seen = [repr(results)]
    for _ in range(9):
        if spoil:
            spoiled(results)
        actions = noop(envs)
        results = envs.step(actions)
        seen.append(repr((results, results[-1].common, envs.alive, envs.present)))
        if spoil:
            spoiled(actions)
    return seen


def spoiled(value: Any) -> None:
    """Overwrite all arrays that can be written to, and empty all dicts."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = copy.copy(value) * 0 + 1 if value.dtype != object else None
    elif isinstance(value, dict | tuple | list):
        for one in value.values() if isinstance(value, dict) else value:
            spoiled(one)
        if isinstance(value, dict):
            value.clear()


@of_both_kinds
def test_flags_cannot_be_written_to(make: Make, possible_agents: Any) -> None:
    envs = make([scripted(EARLY_AND_LATE, possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    for _ in range(6):  # somebody ends in some of them, and nobody in others
        envs.send(noop(envs))
        _, _, _, terminations, truncations, _ = envs.recv(2)
        flags = [*envs.alive.values(), *envs.present.values(), *terminations.values(), *truncations.values()]
        assert flags
        for each in flags:
            with pytest.raises(ValueError, match="read-only"):
                each[:] = True


@pytest.mark.parametrize("mode", MODES)
def test_last_words_are_not_changed_by_what_the_caller_does_to_infos(make_serial: Make, mode: str) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE[:1], infos=[InfoKind.ARRAYS])], autoreset_mode=mode)
    envs.reset(seed=0)
    observations, _, _, _, infos = envs.step(noop(envs))
    kept = observations["a"].copy(), infos["a"]["table"].copy()
    observations["a"][:], infos["a"]["table"][:] = 7, 7
    for _ in range(2):
        *_, infos = envs.step(noop(envs))
    assert_same_batch(infos["a"]["final_obs"], kept[0])
    assert_same_batch(infos["a"]["final_info"]["table"], kept[1])


@pytest.mark.parametrize("copy", [True, False])
def test_what_the_caller_holds_stays_as_it_is(make: Make, copy: bool) -> None:
    """Actions too. Without copies, this is said of rewards and actions."""
    envs = make([scripted(together(9))] * 2, copy=copy)
    observations, _ = envs.reset(seed=0)
    actions: dict[Any, Any] = {agent: np.array([1, 2]) for agent in ("a", "b")}
    told = envs.step(actions)
    held: list[Any] = [told[1], actions]
    if copy:
        held += [observations, *told[:4], envs.alive, envs.present]
    before = [{agent: values.copy() for agent, values in one.items()} for one in held]
    assert_same_batch(actions, {agent: np.array([1, 2]) for agent in ("a", "b")})
    for _ in range(3):
        envs.step(noop(envs))
        envs.send({agent: values[:1] for agent, values in noop(envs).items()}, 0)
        envs.recv()
    assert_same_batch(held, before)


def test_what_a_step_returns_is_the_callers_own(make: Make) -> None:
    envs, others = (make([scripted(together(9))] * 2) for _ in range(2))
    for one in (envs, others):
        one.reset(seed=0)
    for _ in range(3):
        returned = envs.step(noop(envs))
        assert_same_batch(returned[:4], others.step(noop(others))[:4])
        for values in returned[:2]:
            values["a"][...] = 1
            assert not (values["b"] == 1).all()
        for flags in returned[2:4]:  # cannot be written to; the dict is the caller's
            flags["a"] = np.ones(2, np.bool_)
        returned[4]["a"]["mine"] = 1
        assert "mine" not in returned[4]["b"]


def test_batched_spaces_are_the_same_objects_each_time(make_serial: Make) -> None:
    envs = make_serial([scripted()] * 3)
    envs.action_space("a").seed(3)
    drawn = envs.action_space("a").sample()
    envs.action_space("a").seed(3)
    assert_same_batch(envs.action_space("a").sample(), drawn)
    assert drawn.shape == (3,)
    assert envs.observation_space("a").shape == (3, 3)


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SameDictsEnv, TurnedEnv])
def test_careless_environments_change_nothing(make_both: Make, kind: Any, mode: str, possible_agents: Any) -> None:
    how: dict[str, Any] = {"possible_agents": possible_agents, "reuse_buffers": True, "rewards": list(RewardKind)}
    assert_same_rows(make_both, partial(kind, EARLY_AND_LATE, **how), 12, autoreset_mode=mode)
