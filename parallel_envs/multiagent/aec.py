"""AEC envs as parallel envs: with all agents acting at once (`FastConversion`) or one turn at a time (`TurnEnv`).

PettingZoo's `aec_to_parallel` asks every agent for an observation before it acts, and drops it; and it reads each
attribute through every wrapper around the env. Where observing changes nothing, as the API means it, `FastConversion`
leaves out both: two fifths of a step of the mpe2 environments. `faster_conversion` tests that once for each env, on a
copy. An env that draws its observations at random, or records who has observed, keeps PettingZoo's own conversion.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from parallel_envs.choices import Turns, words
from parallel_envs.seeding import GlobalStates

TURNS: tuple[Turns, ...] = words(Turns)

Agent = Any
ByAgent = dict[Agent, Any]
Results = tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]


def faster_conversion(env: Any) -> Any:
    """Return a `FastConversion` if the env is PettingZoo's conversion and observing changes nothing, else the env."""
    from pettingzoo.utils.conversions import aec_to_parallel_wrapper

    is_slow = type(env) is aec_to_parallel_wrapper and _observing_changes_nothing(env.aec_env)
    return FastConversion(env) if is_slow else env


def as_parallel(env: Any, turns: str, quicken: Callable[[Any], Any] = faster_conversion) -> Any:
    """Return an env with a parallel interface. `quicken` is applied to parallel envs and to PettingZoo's conversion."""
    from pettingzoo import AECEnv

    if hasattr(env, "agent_selection") or isinstance(env, AECEnv):
        if turns == "sequential":
            return TurnEnv(env)
        if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
            raise ValueError(
                f"{env} is an AEC environment whose agents cannot act all at once (its metadata does not say "
                "is_parallelizable). Give turns='sequential'."
            )
        from pettingzoo.utils.conversions import aec_to_parallel

        return quicken(aec_to_parallel(env))
    if not callable(getattr(env, "step", None)) or not callable(getattr(env, "observation_space", None)):
        raise TypeError(f"The factory returned {env!r}, which is not a PettingZoo environment.")
    if turns == "sequential":
        raise ValueError(f"{env} is a parallel environment: all its agents act at once. Give turns='simultaneous'.")
    return quicken(env)


class _Delegating:
    """Env that passes on to the env inside it what it does not have itself."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # `env` is not set yet while this object is unpickled or copied
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped


# ---- all agents at once ---------------------------------------------------------------------------------------------


class FastConversion(_Delegating):
    """PettingZoo's conversion of an AEC env with a faster step. Everything else is passed on to the conversion."""

    def __init__(self, conversion: Any) -> None:
        super().__init__(conversion)
        self._find_core()
        self.agents: list[Any] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        self._find_core()  # a task may have changed the wrappers of the env
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = self.env.agents
        return observations, infos

    def step(self, actions: Mapping[Agent, Any]) -> Results:
        core, entry, is_bounded = self._core, self._entry, self._is_bounded
        rewards: ByAgent = defaultdict(int)
        for agent in core.agents:
            if agent != core.agent_selection:
                raise AssertionError(
                    f"It should be the turn of {agent!r}, and it is that of {core.agent_selection!r}: agents that act "
                    "all at once must take turns in the order of `agents`, and end at the end of a cycle only."
                )
            if is_bounded and not core.action_space(agent).contains(actions[agent]):
                raise AssertionError("action is not in action space")  # PettingZoo's own text
            entry.step(actions[agent])
            earned = core.rewards
            for other in core.agents:
                rewards[other] += earned[other]
        terminations, truncations, infos = dict(core.terminations), dict(core.truncations), dict(core.infos)
        observations = {agent: core.observe(agent) for agent in core.agents}
        while core.agents and (core.terminations[core.agent_selection] or core.truncations[core.agent_selection]):
            entry.step(None)
        self.agents = self.env.agents = core.agents
        return observations, rewards, terminations, truncations, infos

    def _find_core(self) -> None:
        """Find the env behind PettingZoo's own wrappers that only pass calls on during a step of all agents.

        `_core` is the env to read attributes from. `_entry` is the env to step: `_core` itself, unless a wrapper
        changes actions. `_is_bounded` is True if an action outside its space is an error.
        """
        from pettingzoo.utils import wrappers

        def behind_passive(env: Any) -> Any:  # a subclass of these wrappers may do something, hence the exact types
            while type(env) in (wrappers.BaseWrapper, wrappers.OrderEnforcingWrapper):
                env = env.env
            return env

        entry = core = behind_passive(self.env.aec_env)
        is_bounded = type(entry) is wrappers.AssertOutOfBoundsWrapper
        if is_bounded or type(entry) is wrappers.ClipOutOfBoundsWrapper:
            core = behind_passive(entry.env)
        self._core, self._entry, self._is_bounded = core, core if is_bounded else entry, is_bounded


def _observing_changes_nothing(aec: Any) -> bool:
    """Test on a copy, before and after every agent has acted once, whether `observe` changes nothing."""
    outside = GlobalStates.now()
    try:
        twin = copy.deepcopy(aec)
        twin.reset(seed=0)
        for acts in (True, False):
            before = _state_of(twin)
            rounds = [pickle.dumps([twin.observe(agent) for agent in twin.agents]) for _ in range(2)]
            if rounds[0] != rounds[1] or before != _state_of(twin):
                return False
            for agent in list(twin.agents) if acts else ():
                actions = copy.deepcopy(twin.action_space(agent))
                actions.seed(0)
                twin.step(actions.sample())
        return True
    except Exception:  # noqa: BLE001  # user code: an env that cannot be tested keeps PettingZoo's conversion
        return False
    finally:
        outside.restore()


def _state_of(env: Any) -> list[bytes]:
    """Return the states of all random generators and the env's attributes, as far as they can be pickled."""
    own = getattr(env.unwrapped, "np_random", None)
    state = getattr(getattr(own, "bit_generator", None), "state", None)
    pickled = [pickle.dumps((state, GlobalStates.now()))]
    for value in vars(env.unwrapped).values():
        with contextlib.suppress(Exception):  # a window or a lock is left out
            pickled.append(pickle.dumps(value))
    return pickled


# ---- one turn at a time ---------------------------------------------------------------------------------------------


class TurnEnv(_Delegating):
    """An AEC env with a parallel interface in which a step is one agent's turn.

    Only the agent to move has an observation, and only its action is used. The rewards are those of all agents in this
    turn. An agent that has ended when its turn comes gets its last observation and its flags, and is removed.
    """

    takes_turns = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        if hasattr(env, "possible_agents"):
            self.possible_agents = env.possible_agents

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        self.env.reset(seed=seed, options=options)
        return self._next_observation(), self._infos()

    def step(self, actions: Mapping[Agent, Any]) -> Results:
        env = self.env
        env.step(actions[env.agent_selection])
        rewards, infos = dict(env.rewards), self._infos()
        observations: ByAgent = {}
        terminations: ByAgent = {}
        truncations: ByAgent = {}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            agent = env.agent_selection
            observations[agent] = env.observe(agent)
            terminations[agent], truncations[agent] = env.terminations[agent], env.truncations[agent]
            env.step(None)
        return observations | self._next_observation(), rewards, terminations, truncations, infos

    def _next_observation(self) -> ByAgent:
        env = self.env
        return {env.agent_selection: env.observe(env.agent_selection)} if env.agents else {}

    def _infos(self) -> ByAgent:
        return {agent: info for agent, info in self.env.infos.items() if info}
