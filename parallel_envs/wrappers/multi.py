"""`WrappedMultiAgentPolicy`: all agents' policies at once, each by the strategy that suits it."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_envs.choices import Strategy, words
from parallel_envs.closing import ClosedAtExit
from parallel_envs.engine import Unpicklable, user_stacklevel
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.policies import AgentPolicy, MultiAgentPolicy
from parallel_envs.spelling import hint, is_one_of, suggests_keywords
from parallel_envs.threads import CallGuard, in_turn
from parallel_envs.wrappers.answers import Agent
from parallel_envs.wrappers.auto import PerAgentAutoWrapper
from parallel_envs.wrappers.base import CLOSE_SECONDS, PerAgentWrapper, check_by_agent, check_names
from parallel_envs.wrappers.batch import PerAgentBatchWrapper
from parallel_envs.wrappers.gpu import PerAgentGPUWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.rows import Mask, row_numbers
from parallel_envs.wrappers.rules import Rules, Tally
from parallel_envs.wrappers.seats import reset_policy
from parallel_envs.wrappers.sequential import PerAgentSequentialWrapper
from parallel_envs.wrappers.sharing import check_together, stuck
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


class WrappedMultiAgentPolicy(ClosedAtExit, MultiAgentPolicy):
    """`step({agent: observation})` gives `{agent: action}`, all computed at once.

        with WrappedMultiAgentPolicy({"red": red, "blue": blue}, strategy={"red": "thread", "blue": "batch"}) as policy:
            actions = policy.step(observations)

    With `alive`, observations are batches with a row for each environment, as `MultiAgentEnvManager` gives them, and
    rows where an agent is not alive are not asked. Policies that are to live in processes and cannot be pickled stay
    here, with a warning.

    Threads: any thread may call any method; calls wait for one another, so that each `step` is whole. A second `send`
    before `recv` is an error, from whichever thread it comes. `close` may be called meanwhile: it waits a few seconds
    for a call of another thread, which gets a `ClosedError` if it waits for worker processes.

    Args:
        policy: A policy for each agent in a dict, or a `MultiAgentPolicy`, which is asked for an agent's when it is
            first met. A policy has `step(observation)`, or is a function of the observation; it must not write into
            what it observes.
        strategy: A name (see `STRATEGIES`), or one for each agent in a dict; agents that are not in the dict are asked
            one after another ("sequential"), as all are by default. "batch" and "gpu" compute networks in one pass,
            which rounds differently: continuous actions may differ in their last digits. "auto" measures and chooses,
            so which rounding there is depends on the clock.
        workers: How many threads and processes at most, if no `budget` is given.
        budget: A pool to share with other wrappers. Whoever made it closes it.
        rules: Deadlines and failures.
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
    ) -> None:
        if not isinstance(policy, Mapping) and not callable(getattr(policy, "agent_policy", None)):
            raise TypeError(f"policy={policy!r} is neither a dict of policies by agent nor a MultiAgentPolicy.")
        _check_strategy(strategy, policy)
        self._guard = CallGuard("WrappedMultiAgentPolicy")
        if not isinstance(budget, PolicyPool | None):
            raise TypeError(f"budget={budget!r} is not a PolicyPool. Give one, or say workers={budget!r}.")
        self.policy, self.strategy, self.rules = policy, strategy, rules
        self._own_pool = budget is None
        self._pool = PolicyPool(workers) if budget is None else budget
        self._wrappers: list[PerAgentWrapper] = []
        self._wrapper_of: dict[Agent, PerAgentWrapper] = {}
        self._given: dict[Agent, Any] = {}
        self._sent: list[PerAgentWrapper] | None = None
        self.closed = False
        if isinstance(policy, Mapping):
            try:
                self._meet(list(policy))
            except BaseException:
                self.close()
                raise

    # ---- a turn -----------------------------------------------------------------------------------------------------

    @in_turn
    def send(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None = None) -> None:
        """Ask all these agents, before anybody is waited for."""
        self._send(observations, alive)

    def _send(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None) -> None:
        if self.closed:
            raise ClosedError("Policies were asked after their wrapper was closed. Make a new one.")
        if self._sent is not None:
            raise RuntimeError("send was called twice without recv in between. Call recv first.")
        check_by_agent("observations", observations)
        self._meet([agent for agent in observations if agent not in self._wrapper_of])
        if alive is not None and len(self._wrappers) > 1:  # one that does not fit is found before anybody is asked
            for wrapper, part in self._parts(observations):
                wrapper.check_masks(part, alive)
        self._sent = []
        try:
            for wrapper, part in self._parts(observations):
                wrapper.send(part, alive)
                self._sent.append(wrapper)
        except BaseException:
            self._abandon()
            raise

    def _parts(self, observations: Mapping[Agent, Any]) -> list[tuple[PerAgentWrapper, Mapping[Agent, Any]]]:
        """Each wrapper's own part of the observations."""
        if len(self._wrappers) == 1:
            return [(self._wrappers[0], observations)] if observations else []
        parts: dict[PerAgentWrapper, dict[Agent, Any]] = {wrapper: {} for wrapper in self._wrappers}
        for agent, observation in observations.items():
            parts[self._wrapper_of[agent]][agent] = observation
        return [(wrapper, part) for wrapper, part in parts.items() if part]

    @in_turn
    def recv(self) -> dict[Agent, Any]:
        """The actions of all who were asked.

        Raises:
            PolicyError: Policies raised. `agents` says whose; `actions` of the error holds those of the others.
        """
        return self._recv()

    def _recv(self) -> dict[Agent, Any]:
        if self._sent is None:
            raise RuntimeError("recv was called without send. Call send first.")
        actions: dict[Agent, Any] = {}
        errors: list[PolicyError] = []
        try:
            for wrapper in sorted(self._sent, key=lambda wrapper: wrapper.goes_on):  # meanwhile the others go on
                try:
                    actions |= wrapper.recv()
                except PolicyError as error:  # the others are to be received all the same
                    actions |= error.actions
                    errors.append(error)
        finally:
            self._abandon()
        if errors:
            raise _joined(errors, actions)
        return actions

    def _abandon(self) -> None:
        """The turn is over; whoever has not been received is not waited for any more."""
        for wrapper in self._sent or ():
            wrapper.abandon()
        self._sent = None

    @in_turn
    def step(self, observations: Mapping[Agent, Any], alive: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        self._send(observations, alive)
        return self._recv()

    def _meet(self, agents: Sequence[Agent]) -> None:
        """Seat agents who have not been met before."""
        if not agents:
            return
        if self.closed or self._sent is not None:
            raise ClosedError("It has been closed.") if self.closed else RuntimeError("Call recv first.")
        policies = {agent: self._policy_of(agent) for agent in agents}
        check_together({**self._given, **policies}, self._strategy_of, policies)
        by_strategy: dict[str, dict[Agent, Any]] = {}
        for agent, policy in policies.items():
            by_strategy.setdefault(self._strategy_of(agent), {})[agent] = policy
        for name, mine in by_strategy.items():
            self._seat(name, mine)
        self._given |= policies

    def _seat(self, name: str, policies: dict[Agent, Any]) -> None:
        try:
            wrapper = STRATEGIES[name](policies, self.rules, self._pool)
        except Unpicklable:
            here = stuck(policies)
            if not here:
                raise
            warnings.warn(
                f"The policies of {list(here)} cannot be pickled, so they are computed in this process. Give a spec "
                "(parallel_envs.policies.PolicySpec) to have them made in the worker.",
                RuntimeWarning,
                stacklevel=user_stacklevel(),
            )
            self._seat("sequential", here)
            if others := {agent: policy for agent, policy in policies.items() if agent not in here}:
                self._seat(name, others)
            return
        self._wrappers.append(wrapper)
        self._wrapper_of |= dict.fromkeys(policies, wrapper)

    def _policy_of(self, agent: Agent) -> Any:
        if not isinstance(self.policy, Mapping):
            return self.policy.agent_policy(agent)
        if agent not in self.policy:
            raise KeyError(f"There is no policy for {agent!r}. There are policies for {list(self.policy)}.")
        return self.policy[agent]

    def _strategy_of(self, agent: Agent) -> str:
        return self.strategy if isinstance(self.strategy, str) else self.strategy.get(agent, "sequential")

    # ---- agents and state -------------------------------------------------------------------------------------------

    @in_turn
    def agent_policy(self, agent: Agent) -> AgentPolicy:
        """One agent by itself."""
        self._meet([] if agent in self._wrapper_of else [agent])
        return self._wrapper_of[agent].agent_policy(agent)

    @in_turn
    def reset(self, rows: Sequence[int] | Mask | None = None, *, agents: Collection[Agent] | None = None) -> None:
        """Episodes begin: in all rows, or in some (their numbers, or a mask); of all agents, or of these only.

        First in what agents have in common (`MultiAgentPolicy.reset`), then in each agent's policy. Where only some
        rows begin anew, the former is told so if it takes `rows`, and else is not asked.
        """
        numbers = row_numbers(rows, max((wrapper.num_rows for wrapper in self._wrappers), default=0))
        if agents is not None:
            self._each(lambda wrapper: wrapper.reset([one for one in agents if one in wrapper.policies], rows=numbers))
            return
        try:
            self._reset_common(numbers)
        finally:  # the agents' policies in any case
            self._each(lambda wrapper: wrapper.reset(rows=numbers))

    def _reset_common(self, rows: Sequence[int] | None) -> None:
        if self.closed or self._sent is not None or isinstance(self.policy, Mapping):
            return
        if rows is None:
            reset_policy(self.policy)
        elif callable(reset := getattr(self.policy, "reset", None)) and "rows" in inspect.signature(reset).parameters:
            reset(rows=np.asarray(rows, np.intp))

    @in_turn
    def get_state(self) -> dict[Agent, Any]:
        """What each policy remembers."""
        states: dict[Agent, Any] = {}
        self._each(lambda wrapper: states.update(wrapper.get_states()))
        return states

    @in_turn
    def set_state(self, states: Mapping[Agent, Any]) -> None:
        """Put back what `get_state` has told."""
        self._meet([agent for agent in states if agent not in self._wrapper_of])
        self._each(lambda wrapper: wrapper.set_states(_of_these(wrapper, states)))

    @in_turn
    def load_state_dict(self, weights: Mapping[Agent, Any]) -> None:
        """New weights for some agents, from their next turns on.

        All agents or none, where a policy can tell which weights fit (`check_weights(weights)`, which raises: as a
        `TorchPolicy` has it). Where one cannot, weights that it refuses leave its own as they were, and the others
        have theirs.
        """
        self._meet([agent for agent in weights if agent not in self._wrapper_of])
        if len(weights) > 1:
            self._each(lambda wrapper: wrapper.check_weights(_of_these(wrapper, weights)))
        self._each(lambda wrapper: wrapper.load_state_dicts(_of_these(wrapper, weights)))

    @in_turn
    def sync(self) -> None:
        """Bring the policies that were given up to date with those that run."""
        self._each(lambda wrapper: wrapper.sync())

    @in_turn
    def revive(self, agents: Iterable[Agent] | None = None) -> list[Agent]:
        """Start anew the policies whose worker has died or is still late: all of them, or where some `agents` live.

        A fresh worker gets them as they were given (a spec is made again) or as `sync` has last brought them home, with
        the weights that `load_state_dict` has loaded last. Lost is what they have learnt, remembered and drawn since,
        and what they remember of each row: call `set_state` with what you have kept. Other workers go on as they are.

        Returns:
            The agents whose policies have begun anew: all of such a worker, also those not asked for.
        """
        if self._sent is not None:
            raise RuntimeError("revive was called between send and recv. Call recv first.")
        check_names(agents)
        chosen = None if agents is None else list(agents)
        self._meet([agent for agent in chosen or () if agent not in self._wrapper_of])
        anew: list[Agent] = []

        def revive(wrapper: PerAgentWrapper) -> None:
            mine = None if chosen is None else [agent for agent in chosen if agent in wrapper.policies]
            anew.extend(wrapper.revive(mine))

        self._each(revive)
        return anew

    @property
    def versions(self) -> dict[Agent, int]:
        """Which weights of each agent act: those it was given (0), or those that were loaded first, second, ..."""
        return {agent: wrapper.versions[agent] for agent, wrapper in self._wrapper_of.copy().items()}

    def _each(self, ask: Callable[[PerAgentWrapper], Any]) -> None:
        """Ask all wrappers, also where one of them fails."""
        if self.closed:
            raise ClosedError("Policies were asked after their wrapper was closed. Make a new one.")
        errors: list[PolicyError] = []
        for wrapper in self._wrappers:
            try:
                ask(wrapper)
            except PolicyError as error:
                errors.append(error)
        if errors:
            raise _joined(errors, {})

    @property
    def tallies(self) -> dict[Agent, Tally]:
        """Turns, late answers, failures and default actions of each agent."""
        return {agent: wrapper.tallies[agent] for agent, wrapper in self._wrapper_of.copy().items()}

    @property
    def choices(self) -> dict[Agent, str]:
        """The strategy of each agent, and why, where it was measured."""
        return {
            agent: getattr(wrapper, "why", type(wrapper).__name__) for agent, wrapper in self._wrapper_of.copy().items()
        }

    def close(self) -> None:
        """Let go of everything that was made here."""
        if self.closed:
            return
        self.closed = True
        if self._own_pool and self._guard.is_taken:
            self._pool.close()  # another thread that waits for its processes is told so
        self._guard.wait_until_free(CLOSE_SECONDS)
        with contextlib.ExitStack() as closing:
            if self._own_pool:
                closing.callback(self._pool.close)
            for wrapper in self._wrappers:
                closing.callback(wrapper.close)

    def __repr__(self) -> str:
        return f"WrappedMultiAgentPolicy({len(self._wrapper_of)} agents, strategy={self.strategy!r})"


def _of_these(wrapper: PerAgentWrapper, told: Mapping[Agent, Any]) -> dict[Agent, Any]:
    """The part of it that concerns this wrapper's agents."""
    return {agent: own for agent, own in told.items() if agent in wrapper.policies}


def _check_strategy(strategy: Any, policy: Any) -> None:
    for name in strategy.values() if isinstance(strategy, Mapping) else (strategy,):
        if not is_one_of(name, words(Strategy)):
            raise ValueError(
                f"strategy={name!r} is unknown. Choose one of {', '.join(map(repr, words(Strategy)))}."
                f"{hint(name, words(Strategy))}"
            )
    named = strategy if isinstance(strategy, Mapping) and isinstance(policy, Mapping) else ()
    if unknown := [agent for agent in named if agent not in policy]:
        raise ValueError(f"strategy names {unknown[0]!r}, for whom there is no policy among {list(policy)}.")


def _joined(errors: Sequence[PolicyError], actions: dict[Agent, Any]) -> PolicyError:
    """The first error, which tells of the others too."""
    first, *others = errors
    first.actions = actions
    for other in others:
        first.agents += other.agents
        for note in (str(other), *getattr(other, "__notes__", ())):
            first.add_note(note)
    return first
