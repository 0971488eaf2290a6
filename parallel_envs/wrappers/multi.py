"""`WrappedMultiAgentPolicy`: all agents' policies at once, each by the strategy that suits it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from parallel_envs.engine import picklable
from parallel_envs.errors import ClosedError
from parallel_envs.policies import AgentPolicy, MultiAgentPolicy
from parallel_envs.wrappers.auto import PerAgentAutoWrapper
from parallel_envs.wrappers.base import Agent, PerAgentWrapper, Rules, Tally
from parallel_envs.wrappers.batch import PerAgentBatchWrapper
from parallel_envs.wrappers.gpu import PerAgentGPUWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.seats import Mask
from parallel_envs.wrappers.sequential import PerAgentSequentialWrapper
from parallel_envs.wrappers.sharing import sharers
from parallel_envs.wrappers.thread import PerAgentThreadWrapper

STRATEGIES: dict[str, Callable[..., PerAgentWrapper]] = {
    "sequential": lambda policies, rules, pool: PerAgentSequentialWrapper(policies, rules),
    "thread": lambda policies, rules, pool: PerAgentThreadWrapper(policies, rules, pool=pool),
    "process": lambda policies, rules, pool: PerAgentProcessWrapper(policies, rules, pool=pool),
    "batch": lambda policies, rules, pool: PerAgentBatchWrapper(policies, rules),
    "gpu": lambda policies, rules, pool: PerAgentGPUWrapper(policies, rules),
    "auto": lambda policies, rules, pool: PerAgentAutoWrapper(policies, rules, pool=pool),
}
"""By name. A new strategy is a subclass of `PerAgentWrapper` and a line here."""


class WrappedMultiAgentPolicy(MultiAgentPolicy):
    """`step({agent: observation})` gives `{agent: action}`, all computed at once.

        with WrappedMultiAgentPolicy({"red": red, "blue": blue}, strategy={"red": "thread", "blue": "batch"}) as policy:
            actions = policy.step(observations)

    With `alive`, observations are batches with a row for each environment, as `MultiAgentEnvManager` gives them, and
    rows where an agent is not alive are not asked.

    Args:
        policy: A policy for each agent in a dict, or a `MultiAgentPolicy`, which is asked for an agent's when it is
            first met.
        strategy: A name (see `STRATEGIES`), or one for each agent in a dict.
        workers: How many threads and processes at most, if no `budget` is given.
        budget: A pool to share with other wrappers. Whoever made it closes it.
        rules: Deadlines and failures.
    """

    def __init__(
        self,
        policy: MultiAgentPolicy | Mapping[Agent, Any],
        strategy: str | Mapping[Agent, str] = "auto",
        *,
        workers: int | None = None,
        budget: PolicyPool | None = None,
        rules: Rules | None = None,
    ) -> None:
        if not isinstance(policy, Mapping) and not callable(getattr(policy, "agent_policy", None)):
            raise TypeError(f"{policy!r} is neither a dict of policies by agent nor a MultiAgentPolicy.")
        for name in (strategy,) if isinstance(strategy, str) else strategy.values():
            if name not in STRATEGIES:
                raise ValueError(f"strategy={name!r} is unknown. Choose one of {', '.join(map(repr, STRATEGIES))}.")
        self.policy, self.strategy, self.rules = policy, strategy, rules
        self._own_pool = budget is None
        self._pool = PolicyPool(workers) if budget is None else budget
        self._wrappers: list[PerAgentWrapper] = []
        self._wrapper_of: dict[Agent, PerAgentWrapper] = {}
        self._sent: list[PerAgentWrapper] = []
        self.closed = False
        if isinstance(policy, Mapping):
            self._meet(list(policy))

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def send(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None = None) -> None:
        """Ask all these agents, before anybody is waited for."""
        if self.closed:
            raise ClosedError("Policies were asked after their wrapper was closed. Make a new one.")
        self._meet([agent for agent in observations if agent not in self._wrapper_of])
        parts: dict[int, dict[Agent, Any]] = {}
        for agent, observation in observations.items():
            parts.setdefault(id(self._wrapper_of[agent]), {})[agent] = observation
        for wrapper in self._wrappers:
            if id(wrapper) in parts:
                wrapper.send(parts[id(wrapper)], alive)
                self._sent.append(wrapper)

    def recv(self) -> dict[Agent, Any]:
        """The actions of all who were asked."""
        sent, self._sent = self._sent, []
        actions: dict[Agent, Any] = {}
        error: Exception | None = None
        for wrapper in sent:
            try:
                actions |= wrapper.recv()
            except Exception as first:  # noqa: BLE001  # the others are to be received all the same
                error = error or first
        if error is not None:
            if hasattr(error, "actions"):
                error.actions = actions | error.actions
            raise error
        return actions

    def step(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        self.send(observations, alive)
        return self.recv()

    def _meet(self, agents: Sequence[Agent]) -> None:
        """Seat agents who have not been met before."""
        if not agents:
            return
        policies = {agent: self._policy_of(agent) for agent in agents}
        _check_together(policies, self._strategy_of)
        by_strategy: dict[str, dict[Agent, Any]] = {}
        for agent, policy in policies.items():
            by_strategy.setdefault(self._strategy_for(agent, policy), {})[agent] = policy
        for name, mine in by_strategy.items():
            wrapper = STRATEGIES[name](mine, self.rules, self._pool)
            self._wrappers.append(wrapper)
            self._wrapper_of |= dict.fromkeys(mine, wrapper)

    def _policy_of(self, agent: Agent) -> Any:
        if not isinstance(self.policy, Mapping):
            return self.policy.agent_policy(agent)
        if agent not in self.policy:
            raise KeyError(f"There is no policy for {agent!r}. There are policies for {list(self.policy)}.")
        return self.policy[agent]

    def _strategy_of(self, agent: Agent) -> str:
        return self.strategy if isinstance(self.strategy, str) else self.strategy.get(agent, "auto")

    def _strategy_for(self, agent: Agent, policy: Any) -> str:
        """The strategy of an agent; one that was to live in a process and cannot stays here."""
        name = self._strategy_of(agent)
        if name == "process" and not callable(getattr(policy, "make", None)) and not picklable(policy):
            warnings.warn(
                f"The policy of {agent!r} cannot be pickled, so it is computed in this process. Give a spec "
                "(parallel_envs.policies.PolicySpec) to have it made in the worker.",
                RuntimeWarning,
                stacklevel=4,
            )
            return "sequential"
        return name

    # ---- agents and state -------------------------------------------------------------------------------------------

    def agent_policy(self, agent: Agent) -> AgentPolicy:
        """One agent by itself."""
        self._meet([] if agent in self._wrapper_of else [agent])
        return self._wrapper_of[agent].agent_policy(agent)

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Episodes begin: in all rows, or in some."""
        for wrapper in self._wrappers:
            wrapper.reset(rows=rows)

    def get_state(self) -> dict[Agent, Any]:
        """What each policy remembers."""
        return {agent: wrapper.get_state(agent) for agent, wrapper in self._wrapper_of.items()}

    def set_state(self, states: Mapping[Agent, Any]) -> None:
        """Put back what `get_state` has told."""
        self._meet([agent for agent in states if agent not in self._wrapper_of])
        for agent, state in states.items():
            self._wrapper_of[agent].set_state(agent, state)

    def load_state_dict(self, weights: Mapping[Agent, Any]) -> None:
        """New weights for some agents, from their next turns on."""
        for agent, own in weights.items():
            self._wrapper_of[agent].load_state_dict(agent, own)

    def sync(self) -> None:
        """Bring the policies that were given up to date with those that run."""
        for wrapper in self._wrappers:
            wrapper.sync()

    @property
    def tallies(self) -> dict[Agent, Tally]:
        """Turns, late answers, failures and default actions of each agent."""
        return {agent: wrapper.tallies[agent] for agent, wrapper in self._wrapper_of.items()}

    @property
    def choices(self) -> dict[Agent, str]:
        """The strategy of each agent, and why, where it was measured."""
        return {agent: getattr(wrapper, "why", type(wrapper).__name__) for agent, wrapper in self._wrapper_of.items()}

    def close(self) -> None:
        """Let go of everything that was made here."""
        if self.closed:
            return
        self.closed = True
        for wrapper in self._wrappers:
            wrapper.close()
        if self._own_pool:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"WrappedMultiAgentPolicy({len(self._wrapper_of)} agents, strategy={self.strategy!r})"


def _check_together(policies: Mapping[Agent, Any], strategy_of: Callable[[Agent], str]) -> None:
    """Agents that share something must have one strategy: apart they would stop sharing."""
    for group in sharers(policies):
        names = {strategy_of(agent) for agent in group}
        if len(names) > 1:
            raise ValueError(
                f"The policies of {group} share an object, but their strategies are {sorted(names)}: apart they would "
                "stop sharing it. Give them one strategy, or policies of their own."
            )
