"""Environments that use their dicts again, and users who write into what they are given: no value changes by it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager
from parallel_envs.testing import RewardKind, ScriptedAgentsEnv
from tests.multiagent.conftest import Make
from tests.multiagent.plain import assert_same_rows
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, scripted
from tests.multiagent.test_resets import noop

of_both_kinds = pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])


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
def test_careless_environments(make_both: Make, kind: Any, mode: str, possible_agents: Any) -> None:
    how: dict[str, Any] = {"possible_agents": possible_agents, "reuse_buffers": True, "rewards": list(RewardKind)}
    assert_same_rows(make_both, partial(kind, EARLY_AND_LATE, **how), 12, autoreset_mode=mode)


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
def test_flags_cannot_be_written_to(make_serial: Make, possible_agents: Any) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE, possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    for _ in range(6):  # somebody ends in some of them, and nobody in others
        envs.send(noop(envs))
        _, _, _, terminations, truncations, _ = envs.recv(2)
        flags = [*envs.alive.values(), *envs.present.values(), *terminations.values(), *truncations.values()]
        assert flags
        for each in flags:
            with pytest.raises(ValueError, match="read-only"):
                each[:] = True
