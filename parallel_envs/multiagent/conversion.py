"""AEC environments with all agents at once, as PettingZoo converts them, without what nobody sees.

PettingZoo's `aec_to_parallel` asks every agent for an observation before it acts, and drops it; and it reads each
attribute through every wrapper around the env. Where observing is a mere look, as the API means it to be, both are left
out here: two fifths of a step of the mpe2 environments. Whether it is, is tried once for each environment, on a copy;
where it is not (an env that draws its observations at random, or notes who has looked) PettingZoo's own conversion
stays.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

Named = dict[Any, Any]


def quicker(env: Any) -> Any:
    """The env itself, or the same without needless observations if it is PettingZoo's conversion."""
    from pettingzoo.utils.conversions import aec_to_parallel_wrapper

    if type(env) is not aec_to_parallel_wrapper or not _observing_changes_nothing(env.aec_env):
        return env
    return QuickerConversion(env)


class QuickerConversion:
    """PettingZoo's conversion of an AEC env with a step of its own. All else is the conversion's."""

    def __init__(self, conversion: Any) -> None:
        self._conversion = conversion
        self._find_way_in()
        self.agents: list[Any] = []

    def _find_way_in(self) -> None:
        self._core, self._entry, self._is_bounded = _way_in(self._conversion.aec_env)

    def __getattr__(self, name: str) -> Any:
        if name == "_conversion":  # while it is being unpickled or copied there is none yet
            raise AttributeError(name)
        return getattr(self._conversion, name)

    @property
    def unwrapped(self) -> Any:
        return self._conversion.unwrapped

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        self._find_way_in()  # a task may have changed what the env is made of
        observations, infos = self._conversion.reset(seed=seed, options=options)
        self.agents = self._conversion.agents
        return observations, infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[Named, Named, Named, Named, Named]:
        core = self._core
        rewards = self._act(actions)
        terminations, truncations, infos = dict(core.terminations), dict(core.truncations), dict(core.infos)
        observations = {agent: core.observe(agent) for agent in core.agents}
        while core.agents and (core.terminations[core.agent_selection] or core.truncations[core.agent_selection]):
            self._entry.step(None)
        self.agents = self._conversion.agents = core.agents
        return observations, rewards, terminations, truncations, infos

    def _act(self, actions: Mapping[Any, Any]) -> Named:
        """Everybody's turn. Returns what all of them earned in it."""
        core, entry, is_bounded = self._core, self._entry, self._is_bounded
        rewards: Named = defaultdict(int)
        for agent in core.agents:
            if agent != core.agent_selection:
                raise _out_of_turn(agent, core.agent_selection)
            if is_bounded and not core.action_space(agent).contains(actions[agent]):
                raise AssertionError("action is not in action space")  # in PettingZoo's words
            entry.step(actions[agent])
            earned = core.rewards
            for other in core.agents:
                rewards[other] += earned[other]
        return rewards


def _way_in(aec: Any) -> tuple[Any, Any, bool]:
    """Past the wrappers that are PettingZoo's own and do nothing but pass on, as far as a step of all agents can tell.

    Returns the env behind them, of which attributes may be read; what is to be stepped, which is the same unless a
    wrapper changes actions; and whether an action that is not in its space is an error.
    """
    from pettingzoo.utils import wrappers

    idle = wrappers.BaseWrapper, wrappers.OrderEnforcingWrapper  # once it has been reset, and while agents are there
    core = entry = _behind(aec, idle)
    if type(entry) is wrappers.AssertOutOfBoundsWrapper:
        core = _behind(entry.env, idle)
        return core, core, True
    if type(entry) is wrappers.ClipOutOfBoundsWrapper:
        core = _behind(entry.env, idle)
    return core, entry, False


def _behind(env: Any, kinds: tuple[type, ...]) -> Any:
    """What lies behind wrappers of exactly these kinds: one derived from them may do something."""
    while type(env) in kinds:
        env = env.env
    return env


def _out_of_turn(agent: Any, selected: Any) -> AssertionError:
    return AssertionError(
        f"It should be the turn of {agent!r}, and it is that of {selected!r}: agents that act all at once must take "
        "turns in the order of `agents`, and end at the end of a cycle only."
    )


def _observing_changes_nothing(aec: Any) -> bool:
    """Try it on a copy, before and after everybody has acted once: two looks show the same, and leave all as it was."""
    everywhere = np.random.get_state(), random.getstate()
    try:
        twin = copy.deepcopy(aec)
        twin.reset(seed=0)
        if not _mere_looks(twin):
            return False
        for agent in list(twin.agents):
            actions = copy.deepcopy(twin.action_space(agent))
            actions.seed(0)
            twin.step(actions.sample())
        return _mere_looks(twin)
    except Exception:  # noqa: BLE001  # user code: what cannot be tried is left as it is
        return False
    finally:
        np.random.set_state(everywhere[0])
        random.setstate(everywhere[1])


def _mere_looks(env: Any) -> bool:
    before = _state_of(env)
    looks = [pickle.dumps([env.observe(agent) for agent in env.agents]) for _ in range(2)]
    return looks[0] == looks[1] and before == _state_of(env)


def _state_of(env: Any) -> list[bytes]:
    """The random numbers to come, and all that the env holds, as far as that can be told."""
    own = getattr(env.unwrapped, "np_random", None)
    state = getattr(getattr(own, "bit_generator", None), "state", None)
    return [pickle.dumps((state, np.random.get_state(), random.getstate())), *map(_told, vars(env.unwrapped).values())]


def _told(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # a window, a lock: what cannot be told is left out
        return b""
