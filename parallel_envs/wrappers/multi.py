"""`WrappedMultiAgentPolicy`: the policies of all agents at once, each by its own strategy."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_envs import trace
from parallel_envs.checks import choice, suggests_keywords
from parallel_envs.choices import Strategy, words
from parallel_envs.engine import Unpicklable
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.policies import AgentPolicy, MultiAgentPolicy
from parallel_envs.threads import CallGuard, ClosedAtExit, in_turn
from parallel_envs.wrappers.auto import PerAgentAutoWrapper
from parallel_envs.wrappers.base import (
    CLOSE_SECONDS,
    SENT_TWICE,
    PerAgentWrapper,
    Rules,
    Tally,
    check_by_agent,
)
from parallel_envs.wrappers.local import PerAgentBatchWrapper, PerAgentGPUWrapper, PerAgentSequentialWrapper
from parallel_envs.wrappers.policy_handle import Agent, Mask, row_numbers
from parallel_envs.wrappers.pool import PerAgentThreadWrapper, PolicyPool, warn_of_unpicklable
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.sharing import check_together, stuck

STRATEGIES: dict[str, Callable[..., PerAgentWrapper]] = {
    "sequential": lambda policies, rules, pool: PerAgentSequentialWrapper(policies, rules),
    "thread": lambda policies, rules, pool: PerAgentThreadWrapper(policies, rules, pool=pool),
    "process": lambda policies, rules, pool: PerAgentProcessWrapper(policies, rules, pool=pool),
    "batch": lambda policies, rules, pool: PerAgentBatchWrapper(policies, rules),
    "gpu": lambda policies, rules, pool, device="auto": PerAgentGPUWrapper(policies, rules, device=device),
    "auto": lambda policies, rules, pool: PerAgentAutoWrapper(policies, rules, pool=pool),
}
"""Strategies by name. `base.py` says how to add one."""


class WrappedMultiAgentPolicy(ClosedAtExit, MultiAgentPolicy):
    """`step({agent: observation})` returns `{agent: action}`, all computed at once.

        with WrappedMultiAgentPolicy({"red": red, "blue": blue}, strategy={"red": "thread", "blue": "batch"}) as policy:
            actions = policy.step(observations)

    With `alive`, observations are batches with a row for each environment, as `MultiAgentEnvManager` gives them, and no
    action is computed in rows where an agent is not alive. A policy for the strategy "process" that cannot be pickled
    stays in this process, with a warning.

    Threads: any thread may call any method; calls wait for one another, so that each `step` is whole. A second `send`
    before `recv` is an error in any thread. `close` may be called meanwhile: it waits a few seconds for a call of
    another thread, which gets a `ClosedError` if it waits for worker processes.

    Args:
        policy: A policy for each agent in a dict, or a `MultiAgentPolicy`, whose `agent_policy` is called when an agent
            first appears. A policy has `step(observation)`, or is a function of the observation; it must not write into
            its observations.
        strategy: A name (see `STRATEGIES`), or one for each agent in a dict; agents that are not in the dict use
            "sequential", which is the default. "batch" and "gpu" compute networks in one pass, which rounds
            differently: continuous actions may differ in their last digits. "auto" measures and chooses, so the
            rounding depends on the clock.
        workers: How many worker processes at most, if no `budget` is given.
        budget: A pool to share with other wrappers. The code that made it closes it.
        rules: Deadlines and failures.
        device: Where the strategy "gpu" computes networks: "auto" (the first CUDA device, else MPS, or with a warning
            the CPU), or a device of torch such as "cuda:1".
    """

    @suggests_keywords
    def __init__(
        self,
        policy: MultiAgentPolicy | Mapping[Agent, Any],
        strategy: Strategy | Mapping[Agent, Strategy] = "sequential",
        *,
        workers: int | None = None,
        budget: PolicyPool | None = None,
        rules: Rules | None = None,
        device: str = "auto",
    ) -> None:
        if not isinstance(policy, Mapping) and not callable(getattr(policy, "agent_policy", None)):
            raise TypeError(f"policy={policy!r} is neither a dict of policies by agent nor a MultiAgentPolicy.")
        names = strategy.values() if isinstance(strategy, Mapping) else (strategy,)
        for name in names:
            choice("strategy", name, words(Strategy))
        if device != "auto" and "gpu" not in names:
            raise ValueError(f"device={device!r} was given, and no agent has the strategy 'gpu', which alone uses it.")
        if isinstance(policy, Mapping) and isinstance(strategy, Mapping) and (unknown := strategy.keys() - policy):
            raise ValueError(
                f"strategy names {min(unknown, key=str)!r}, for which there is no policy among {list(policy)}."
            )
        self._guard = CallGuard("WrappedMultiAgentPolicy")
        if not isinstance(budget, PolicyPool | None):
            raise TypeError(f"budget={budget!r} is not a PolicyPool. Give one, or say workers={budget!r}.")
        self.policy, self.strategy, self.rules, self.device = policy, strategy, rules, device
        self._own_pool = budget is None
        self._pool = PolicyPool(workers) if budget is None else budget
        self._wrappers: list[PerAgentWrapper] = []
        self._wrapper_of: dict[Agent, PerAgentWrapper] = {}
        self._given: dict[Agent, Any] = {}
        self._sent: list[PerAgentWrapper] | None = None
        self.closed = False
        if isinstance(policy, Mapping):
            try:
                self._add_agents(policy)
            except BaseException:
                self.close()
                raise

    # ---- a turn -----------------------------------------------------------------------------------------------------

    @in_turn
    def send(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None = None) -> None:
        """Call the policies of all these agents, before waiting for any of them."""
        self._send(observations, alive)

    def _send(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None) -> None:
        self._check_open()
        if self._sent is not None:
            raise RuntimeError(SENT_TWICE)
        check_by_agent("observations", observations)
        self._add_agents(observations)
        if len(self._wrappers) == 1:
            parts = [(self._wrappers[0], observations)] if observations else []
        else:
            own: dict[PerAgentWrapper, dict[Agent, Any]] = {wrapper: {} for wrapper in self._wrappers}
            for agent, observation in observations.items():
                own[self._wrapper_of[agent]][agent] = observation
            parts = [(wrapper, part) for wrapper, part in own.items() if part]
            if alive is not None:  # raise for a wrong mask before any policy is called
                for wrapper, part in parts:
                    wrapper.check_masks(part, alive)
        self._sent = []
        try:
            for wrapper, part in parts:
                wrapper.send(part, alive)
                self._sent.append(wrapper)
        except BaseException:
            self._abandon()
            raise

    @in_turn
    def recv(self) -> dict[Agent, Any]:
        """Wait for all agents that were sent to, and return their actions.

        Raises:
            PolicyError: Policies raised. `agents` of the error names them; `actions` holds those of the others.
        """
        return self._recv()

    def _recv(self) -> dict[Agent, Any]:
        if self._sent is None:
            raise RuntimeError("recv was called without send. Call send first.")
        actions: dict[Agent, Any] = {}
        errors: list[PolicyError] = []
        try:
            for wrapper in sorted(self._sent, key=lambda wrapper: wrapper.acts_in_background):
                try:
                    actions |= wrapper.recv()
                except PolicyError as error:  # the other wrappers are received all the same
                    actions |= error.actions
                    errors.append(error)
        finally:
            self._abandon()
        if errors:
            raise _join_errors(errors, actions)
        return actions

    def _abandon(self) -> None:
        """End the turn. Wrappers that have not been received drop it."""
        for wrapper in self._sent or ():
            wrapper.abandon()
        self._sent = None

    @in_turn
    def step(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        began = time.perf_counter()
        self._send(observations, alive)
        try:
            actions = self._recv()
        except BaseException:
            self._abandon()  # a Ctrl-C before `_recv` began leaves no open turn
            raise
        trace.record("act", began, agents=len(observations))
        return actions

    # ---- agents -----------------------------------------------------------------------------------------------------

    def _add_agents(self, agents: Iterable[Agent]) -> None:
        """Wrap the policies of agents that have not appeared before."""
        if not (agents := [agent for agent in agents if agent not in self._wrapper_of]):
            return
        self._check_open()
        if self._sent is not None:
            raise RuntimeError("Policies were added between send and recv. Call recv first.")
        if not isinstance(self.policy, Mapping):
            policies = {agent: self.policy.agent_policy(agent) for agent in agents}
        elif unknown := [agent for agent in agents if agent not in self.policy]:
            raise KeyError(f"There is no policy for {unknown[0]!r}. There are policies for {list(self.policy)}.")
        else:
            policies = {agent: self.policy[agent] for agent in agents}
        check_together({**self._given, **policies}, self._strategy_of, policies)
        by_strategy: dict[str, dict[Agent, Any]] = {}
        for agent, policy in policies.items():
            by_strategy.setdefault(self._strategy_of(agent), {})[agent] = policy
        for name, own in by_strategy.items():
            self._wrap(name, own)
        self._given |= policies

    def _wrap(self, name: str, policies: dict[Agent, Any]) -> None:
        try:
            settings = {"device": self.device} if name == "gpu" else {}
            wrapper = STRATEGIES[name](policies, self.rules, self._pool, **settings)
        except Unpicklable:
            here = stuck(policies)
            if not here:
                raise
            warn_of_unpicklable(f"A policy of {list(here)}")
            self._wrap("sequential", here)
            if others := {agent: policy for agent, policy in policies.items() if agent not in here}:
                self._wrap(name, others)
            return
        self._wrappers.append(wrapper)
        self._wrapper_of |= dict.fromkeys(policies, wrapper)

    def _strategy_of(self, agent: Agent) -> str:
        return self.strategy if isinstance(self.strategy, str) else self.strategy.get(agent, "sequential")

    @in_turn
    def agent_policy(self, agent: Agent) -> AgentPolicy:
        """Return one agent as a policy."""
        self._add_agents([agent])
        return self._wrapper_of[agent].agent_policy(agent)

    # ---- episodes and state -----------------------------------------------------------------------------------------

    @in_turn
    def reset(self, rows: Sequence[int] | Mask | None = None, *, agents: Collection[Agent] | None = None) -> None:
        """Begin episodes: in all rows, or in some (their numbers, or a mask); of all agents, or of these only.

        First resets the `MultiAgentPolicy` if one was given, then each agent's policy. If only some rows begin
        episodes, the former is reset only if its `reset` takes `rows`.
        """
        numbers = row_numbers(rows, max((wrapper.num_rows for wrapper in self._wrappers), default=0))
        if agents is not None:
            self._each(lambda wrapper: wrapper.reset([one for one in agents if one in wrapper.policies], rows=numbers))
            return
        try:
            reset = getattr(self.policy, "reset", None)
            if callable(reset) and not (self.closed or self._sent is not None or isinstance(self.policy, Mapping)):
                if numbers is None:
                    reset()
                elif "rows" in inspect.signature(reset).parameters:
                    reset(rows=np.asarray(numbers, np.intp))
        finally:  # the agents' policies in any case
            self._each(lambda wrapper: wrapper.reset(rows=numbers))

    @in_turn
    def get_state(self) -> dict[Agent, Any]:
        """Return the state of each agent's policy."""
        states: dict[Agent, Any] = {}
        self._each(lambda wrapper: states.update(wrapper.get_states()))
        return states

    @in_turn
    def set_state(self, states: Mapping[Agent, Any]) -> None:
        """Restore states that `get_state` returned."""
        self._add_agents(states)
        self._each(lambda wrapper: wrapper.set_states(_select(wrapper, states)))

    @in_turn
    def load_state_dict(self, weights: Mapping[Agent, Any]) -> None:
        """Load new weights for some agents. They act from their next turns on.

        All agents get their weights or none does, if the policies have `check_weights(weights)`, which raises for
        weights that do not fit: `TorchPolicy` has it. A policy without it that refuses its weights keeps its old ones,
        and the other agents have their new ones.
        """
        self._add_agents(weights)
        if len(weights) > 1:
            self._each(lambda wrapper: wrapper.check_weights(_select(wrapper, weights)))
        self._each(lambda wrapper: wrapper.load_state_dicts(_select(wrapper, weights)))

    @in_turn
    def sync(self) -> None:
        """Copy the state of policies in workers into the policies that were given."""
        self._each(lambda wrapper: wrapper.sync())

    @in_turn
    def revive(self, agents: Iterable[Agent] | None = None) -> list[Agent]:
        """Restart the workers that have died or are still late: all of them, or those of some `agents`.

        A fresh worker gets its policies as they were given (a spec is made again) or as `sync` has last copied them
        back, with the weights that `load_state_dict` has loaded last. Lost is everything that they have learnt,
        remembered and sampled since, and their state of each row: call `set_state` with a state that you have kept.
        Other workers are not touched.

        Returns:
            The agents whose policies have begun anew: all agents of such a worker, also those not in `agents`.
        """
        if self._sent is not None:
            raise RuntimeError("revive was called between send and recv. Call recv first.")
        if isinstance(agents, str):  # which would be iterated letter by letter
            raise TypeError(f"agents={agents!r} is a single name. Give a list of names: [{agents!r}].")
        chosen = None if agents is None else dict.fromkeys(agents)
        self._add_agents(chosen or ())
        revived: list[Agent] = []
        self._each(lambda one: revived.extend(one.revive(None if chosen is None else _select(one, chosen))))
        return revived

    def _each(self, call: Callable[[PerAgentWrapper], Any]) -> None:
        """Call a function with each wrapper, also if one raises PolicyError."""
        self._check_open()
        errors: list[PolicyError] = []
        for wrapper in self._wrappers:
            try:
                call(wrapper)
            except PolicyError as error:
                errors.append(error)
        if errors:
            raise _join_errors(errors, {})

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("Policies were called after their wrapper was closed. Make a new one.")

    @property
    def versions(self) -> dict[Agent, int]:
        """The weights with which each agent acts: 0 for the first ones, then counted up by each load."""
        return {agent: wrapper.versions[agent] for agent, wrapper in self._wrapper_of.copy().items()}

    @property
    def tallies(self) -> dict[Agent, Tally]:
        """Turns, late answers, failures and default actions of each agent."""
        return {agent: wrapper.tallies[agent] for agent, wrapper in self._wrapper_of.copy().items()}

    @property
    def choices(self) -> dict[Agent, str]:
        """The strategy of each agent, and for "auto" the reason of its choice."""
        return {agent: getattr(one, "why", type(one).__name__) for agent, one in self._wrapper_of.copy().items()}

    def close(self) -> None:
        """Close all wrappers, and the pool if it was made here."""
        if self.closed:
            return
        self.closed = True
        if self._own_pool and self._guard.is_taken:
            self._pool.close()  # this ends the wait of another thread for its processes
        self._guard.wait_until_free(CLOSE_SECONDS)
        with contextlib.ExitStack() as closing:
            if self._own_pool:
                closing.callback(self._pool.close)
            for wrapper in self._wrappers:
                closing.callback(wrapper.close)

    def __repr__(self) -> str:
        return f"WrappedMultiAgentPolicy({len(self._wrapper_of)} agents, strategy={self.strategy!r})"


def _select(wrapper: PerAgentWrapper, values: Mapping[Agent, Any]) -> dict[Agent, Any]:
    """Return the values of this wrapper's agents."""
    return {agent: own for agent, own in values.items() if agent in wrapper.policies}


def _join_errors(errors: Sequence[PolicyError], actions: dict[Agent, Any]) -> PolicyError:
    """Return the first error, with the agents and notes of the others."""
    first, *others = errors
    first.actions = actions
    for other in others:
        first.agents += other.agents
        for note in (str(other), *getattr(other, "__notes__", ())):
            first.add_note(note)
    return first
