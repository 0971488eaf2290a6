"""AEC environments with all agents at once, as PettingZoo converts them, without what nobody sees.

PettingZoo's `aec_to_parallel` asks every agent for an observation before it acts, and drops it. Where observing is a
mere look, as the API means it to be, that is left out here: a quarter of a step of the mpe2 environments. Whether it
is, is tried once for each class of environments, on a copy; where it is not (an env that draws its observations at
random) PettingZoo's own conversion stays.
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

_looks_only: dict[type, bool] = {}
"""By class of env: whether observing changes nothing."""


def quicker(env: Any) -> Any:
    """The env itself, or the same without needless observations if it is PettingZoo's conversion."""
    from pettingzoo.utils.conversions import aec_to_parallel_wrapper

    if type(env) is not aec_to_parallel_wrapper:
        return env
    kind = type(env.unwrapped)
    if kind not in _looks_only:
        _looks_only[kind] = _observing_changes_nothing(env.aec_env)
    return QuickerConversion(env) if _looks_only[kind] else env


class QuickerConversion:
    """PettingZoo's conversion of an AEC env with a step of its own. All else is the conversion's."""

    def __init__(self, conversion: Any) -> None:
        self._conversion, self._aec = conversion, conversion.aec_env
        self.agents: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("_conversion", "_aec"):  # while it is being unpickled or copied there is none yet
            raise AttributeError(name)
        return getattr(self._conversion, name)

    @property
    def unwrapped(self) -> Any:
        return self._conversion.unwrapped

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        observations, infos = self._conversion.reset(seed=seed, options=options)
        self.agents = self._conversion.agents
        return observations, infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[Named, Named, Named, Named, Named]:
        aec = self._aec
        rewards: Named = defaultdict(int)
        for agent in aec.agents:
            if agent != aec.agent_selection:
                raise AssertionError(
                    f"It should be the turn of {agent!r}, and it is that of {aec.agent_selection!r}: agents that act "
                    "all at once must take turns in the order of `agents`, and end at the end of a cycle only."
                )
            aec.step(actions[agent])
            earned = aec.rewards
            for other in aec.agents:
                rewards[other] += earned[other]
        terminations, truncations, infos = dict(aec.terminations), dict(aec.truncations), dict(aec.infos)
        observations = {agent: aec.observe(agent) for agent in aec.agents}
        while aec.agents and (aec.terminations[aec.agent_selection] or aec.truncations[aec.agent_selection]):
            aec.step(None)
        self.agents = self._conversion.agents = aec.agents
        return observations, rewards, terminations, truncations, infos


def _observing_changes_nothing(aec: Any) -> bool:
    """Try it on a copy: two looks show the same, and no random numbers are drawn."""
    everywhere = np.random.get_state(), random.getstate()
    try:
        twin = copy.deepcopy(aec)
        twin.reset(seed=0)
        before = _random_states(twin)
        looks = [[twin.observe(agent) for agent in twin.agents] for _ in range(2)]
        return before == _random_states(twin) and pickle.dumps(looks[0]) == pickle.dumps(looks[1])
    except Exception:  # noqa: BLE001  # user code: what cannot be tried is left as it is
        return False
    finally:
        np.random.set_state(everywhere[0])
        random.setstate(everywhere[1])


def _random_states(env: Any) -> bytes:
    own = getattr(env.unwrapped, "np_random", None)
    state = getattr(getattr(own, "bit_generator", None), "state", None)
    return pickle.dumps((state, np.random.get_state(), random.getstate()))
