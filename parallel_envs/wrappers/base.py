"""What all strategies share: the two halves of a turn, deadlines, failures, and one agent by itself.

    wrapper.send({agent: observation, ...})      everybody is asked
    actions = wrapper.recv()                     everybody has answered, or has run out of time

A strategy says where policies live and how they are asked: `_begin` starts a turn and returns at once where it can,
`_end` brings the answers home. Everything else is here, so all strategies agree on it.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from parallel_envs.engine import Failure
from parallel_envs.errors import ClosedError, PolicyError, RemoteTraceback
from parallel_envs.policies import AgentPolicy
from parallel_envs.wrappers.seats import Mask, Seat, made, spread

Agent = Any
"""Whatever is hashable. (A `dict[str, ...]` is no `Mapping[Hashable, ...]` to a type checker.)"""
Ask = tuple[Any, Mask | None]
"""An observation; or a batch of them, and which rows want an action."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy said: an action, or how it failed, or nothing in time. `seconds` is how long it took, if known."""

    action: Any = None
    failure: Failure | None = None
    late: bool = False
    seconds: float = 0.0


_NOT_YET = Answer(late=True)


@dataclass(slots=True)
class Tally:
    """What has become of an agent's turns."""

    turns: int = 0
    late: int = 0
    failed: int = 0
    defaults: int = 0
    late_seconds: float = 0.0
    """By how much its answers were late, in this episode."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Deadlines and failures.

    Args:
        action_timeout: Seconds that a turn may take. Who has not answered by then gets the default action; a late
            answer is dropped. A policy in the caller cannot be interrupted: it is found to be late afterwards.
        default_action: In the place of an action that is late or missing: a value, or a function of the agent.
        lateness_budget: Seconds that an agent may be late by in all, in an episode. Then it is not asked any more.
        on_error: `"raise"`, or `"default"`: the default action, and a count. Where no action is wanted (`reset`,
            `get_state`, ...) an error is raised in any case.
    """

    action_timeout: float | None = None
    default_action: Any = None
    lateness_budget: float | None = None
    on_error: str = "raise"

    def __post_init__(self) -> None:
        for name in ("action_timeout", "lateness_budget"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0.0 < value < float("inf")):
                raise ValueError(f"{name}={value!r} is not a number of seconds. Give one above 0, or None.")
        if self.on_error not in ("raise", "default"):
            raise ValueError(f"on_error={self.on_error!r} is unknown. Choose 'raise' or 'default'.")
        if self.lateness_budget is not None and self.action_timeout is None:
            raise ValueError("lateness_budget is never used up without action_timeout: nobody is late. Give both.")
        if self.default_action is None and (self.action_timeout is not None or self.on_error == "default"):
            raise ValueError(
                "default_action is missing: with action_timeout or on_error='default' an agent may need one. Give an "
                "action, or a function of the agent."
            )

    def default(self, agent: Agent, wanted: Mask | None) -> Any:
        """The default action, or for a batch one for each row that wants an action."""
        chosen = self.default_action(agent) if callable(self.default_action) else copy.deepcopy(self.default_action)
        if wanted is None:
            return chosen
        rows = np.flatnonzero(wanted)
        return spread([chosen] * len(rows), rows, len(wanted)) if len(rows) else None


class PerAgentWrapper(ABC):
    """Some agents' policies, asked all at once, in the order in which `policies` names them."""

    goes_on = False
    """Whether policies compute by themselves after `send`; else they do in `recv`, in the caller."""

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        for agent, policy in policies.items():
            if isinstance(policy, type):
                raise TypeError(f"The policy of {agent!r}, {policy!r}, is a class. Give one of its objects.")
            if not any(callable(getattr(policy, name, None)) for name in ("step", "make")):
                raise TypeError(f"The policy of {agent!r}, {policy!r}, has no method step(observation). Give it one.")
        if not isinstance(rules, Rules | None):
            raise TypeError(f"rules={rules!r} are not Rules. Give parallel_envs.wrappers.Rules(...), or None.")
        self.policies = dict(policies)
        self.rules = rules or Rules()
        self.tallies = {agent: Tally() for agent in self.policies}
        self.closed = False
        self._asked: dict[Agent, Ask] | None = None
        self._began = 0.0
        self._overdue: dict[Agent, float] = {}  # who still owes an answer: up to when its lateness has been counted

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def send(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> None:
        """Ask these agents. With `wanted`, observations are batches, and it says which rows want an action."""
        if self.closed:
            raise ClosedError("Policies were asked after their wrapper was closed. Make a new one.")
        if self._asked is not None:
            raise RuntimeError("send was called twice without recv in between. Call recv first.")
        self._check_known(observations)
        if wanted is not None and (missing := [agent for agent in observations if agent not in wanted]):
            raise KeyError(f"Nothing says which rows of {missing[0]!r} are alive. Give a mask for each agent.")
        self._asked = {
            agent: (observations[agent], None if wanted is None else wanted[agent])
            for agent in self.policies
            if agent in observations
        }
        self._began = time.monotonic()
        asks = {agent: ask for agent, ask in self._asked.items() if not self._is_out(agent)}
        try:
            self._begin(asks)
        except BaseException:
            self._asked = None
            raise

    def recv(self) -> dict[Agent, Any]:
        """The actions of all who were asked.

        Raises:
            PolicyError: A policy raised, and `on_error` is "raise". `actions` of the error holds those of the others.
        """
        if self._asked is None:
            raise RuntimeError("recv was called without send. Call send first.")
        asked, self._asked = self._asked, None
        if self.closed:
            raise ClosedError("Actions were waited for after their wrapper was closed. Make a new one.")
        limit = self.rules.action_timeout
        answers = self._end(None if limit is None else self._began + limit)
        actions: dict[Agent, Any] = {}
        failures: dict[Agent, Failure] = {}
        for agent, (_, wanted) in asked.items():
            answer = self._judged(agent, answers.get(agent, _NOT_YET))
            if answer.failure is not None and self.rules.on_error == "raise":
                failures[agent] = answer.failure
            elif answer.failure is not None or answer.late:
                self.tallies[agent].defaults += 1
                actions[agent] = self.rules.default(agent, wanted)
            else:
                actions[agent] = answer.action
        if failures:
            raise policy_error(failures, actions)
        return actions

    def step(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        self.send(observations, wanted)
        return self.recv()

    def abandon(self) -> None:
        """Wait no more for those who were asked: there will be no `recv`. Their policies have acted all the same."""
        self._asked = None

    def _judged(self, agent: Agent, answer: Answer) -> Answer:
        """The answer, counted; late if it took longer than allowed."""
        tally, limit = self.tallies[agent], self.rules.action_timeout
        tally.turns += 1
        if answer.failure is not None:
            tally.failed += 1
            return answer
        if limit is None:
            return answer
        if not (answer.late or answer.seconds > limit):
            self._overdue.pop(agent, None)
            return answer
        if not self._is_out(agent):
            tally.late += 1
            tally.late_seconds += self._lateness(agent, answer, limit)
        return _NOT_YET

    def _lateness(self, agent: Agent, answer: Answer, limit: float) -> float:
        """By how much more an agent is late than has been counted: until now, if its answer is still to come."""
        if not answer.late:
            return answer.seconds - limit
        now = time.monotonic()
        since = self._overdue.get(agent, self._began + limit)
        self._overdue[agent] = now
        return max(now - since, 0.0)

    def _is_out(self, agent: Agent) -> bool:
        budget = self.rules.lateness_budget
        return budget is not None and self.tallies[agent].late_seconds > budget

    # ---- what a strategy must do ------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        """Ask these agents. Whatever can go on by itself goes on from here."""

    @abstractmethod
    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        """The answers that have come by `deadline` (of the monotonic clock; None: all of them)."""

    @abstractmethod
    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        """Call a method of these agents' `Seat`s, wherever they are, and wait for what they return.

        With `later`, a policy that is still busy with a turn is not waited for: it does this when it comes back.
        """

    # ---- episodes and state -----------------------------------------------------------------------------------------

    def reset(self, agents: Sequence[Agent] | None = None, rows: Sequence[int] | Mask | None = None) -> None:
        """Episodes begin: of all agents or some, in all rows or some (their numbers, or a mask)."""
        chosen = list(self.policies if agents is None else agents)
        self._ask("reset", dict.fromkeys(chosen, (row_numbers(rows),)), later=True)
        if rows is None:
            for agent in chosen:
                self.tallies[agent].late_seconds = 0.0
                self._overdue.pop(agent, None)

    def get_state(self, agent: Agent) -> Any:
        """What an agent's policy remembers just now."""
        return self.get_states([agent])[agent]

    def set_state(self, agent: Agent, state: Any) -> None:
        """Put back what `get_state` has told."""
        self.set_states({agent: state})

    def get_states(self, agents: Sequence[Agent] | None = None) -> dict[Agent, Any]:
        """What the policies of all agents remember, or of some. What they share is shared in the states too."""
        chosen = self.policies if agents is None else agents
        return _copies(self._ask("get_state", dict.fromkeys(chosen, ())))

    def set_states(self, states: Mapping[Agent, Any]) -> None:
        """Put back what `get_states` has told."""
        self._ask("set_state", {agent: (state,) for agent, state in copy.deepcopy(dict(states)).items()})

    def load_state_dict(self, agent: Agent, weights: Any) -> None:
        """New weights for an agent's policy, from its next turn on."""
        self._ask("load_state_dict", {agent: (weights,)})

    def _ask(self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False) -> dict[Agent, Any]:
        """What the seats return. Who fails does not keep the others from being asked."""
        if self.closed:
            raise ClosedError(f"{method} was called after the wrapper was closed. Make a new one.")
        if self._asked is not None:
            raise RuntimeError(f"{method} was called between send and recv. Call recv first.")
        self._check_known(arguments)
        answers = self._ask_seats(method, arguments, later=later)
        failures = {agent: one.failure for agent, one in answers.items() if one.failure is not None}
        if failures:
            raise policy_error(failures, {})
        return {agent: one.action for agent, one in answers.items()}

    def sync(self) -> None:  # noqa: B027  # nothing to do where policies run as they were given
        """Bring the policies that were given up to date with those that run, so that they can be saved."""

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what this wrapper has made. A pool that was given to it stays open."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.policies)} agents{', closed' if self.closed else ''})"

    def agent_policy(self, agent: Agent) -> WrappedAgent:
        """One agent by itself."""
        self._check_known([agent])
        return WrappedAgent(self, agent)

    def _check_known(self, agents: Iterable[Agent]) -> None:
        if unknown := [agent for agent in agents if agent not in self.policies]:
            raise KeyError(f"There is no policy for {unknown[0]!r}. There are policies for {list(self.policies)}.")


class LocalWrapper(PerAgentWrapper):
    """Policies that are seated in the caller's process."""

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self.policies = {agent: made(policy) for agent, policy in self.policies.items()}
        self._seats = {agent: Seat(policy) for agent, policy in self.policies.items()}

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        return {agent: told(self._seats[agent], method, own) for agent, own in arguments.items()}


@dataclass
class WrappedAgent(AgentPolicy):
    """One agent of a wrapper, as a policy: `send` and `recv`, or `step` for both."""

    wrapper: PerAgentWrapper
    agent: Agent
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = self.wrapper.tallies[self.agent]

    def send(self, observation: Any) -> None:
        self.wrapper.send({self.agent: observation})

    def recv(self) -> Any:
        return self.wrapper.recv()[self.agent]

    def step(self, observation: Any) -> Any:
        return self.wrapper.step({self.agent: observation})[self.agent]

    def reset(self) -> None:
        self.wrapper.reset([self.agent])

    def get_state(self) -> Any:
        return self.wrapper.get_state(self.agent)

    def set_state(self, state: Any) -> None:
        self.wrapper.set_state(self.agent, state)

    def load_state_dict(self, weights: Any) -> None:
        self.wrapper.load_state_dict(self.agent, weights)


def answered(seat: Seat, ask: Ask) -> Answer:
    """What the policy in a seat says, here and now."""
    began = time.monotonic()
    try:
        action = seat.answer(*ask)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
        return Answer(failure=Failure.of(error), seconds=time.monotonic() - began)
    return Answer(action, seconds=time.monotonic() - began)


def told(seat: Seat, method: str, arguments: tuple[Any, ...]) -> Answer:
    """What a method of a seat returns, here and now."""
    try:
        return Answer(getattr(seat, method)(*arguments))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # as above
        return Answer(failure=Failure.of(error))


def row_numbers(rows: Sequence[int] | Mask | None) -> list[int] | None:
    """Rows by their numbers, whether they were given so or as a mask."""
    if rows is None:
        return None
    given = np.asarray(rows)
    numbers: list[int] = (np.flatnonzero(given) if given.dtype == bool else given).tolist()
    return numbers


def _copies(states: dict[Agent, Any]) -> dict[Agent, Any]:
    """Copies in one go, so that what is shared stays shared. An error names those whose state cannot be copied."""
    try:
        return copy.deepcopy(states)
    except Exception:  # noqa: BLE001  # user code
        failures = {agent: failure for agent, state in states.items() if (failure := _failure_to_copy(state))}
        raise policy_error(failures, {}) from None


def _failure_to_copy(state: Any) -> Failure | None:
    try:
        copy.deepcopy(state)
    except Exception as error:  # noqa: BLE001  # as above
        return Failure.of(error)
    return None


def policy_error(failures: Mapping[Agent, Failure], actions: dict[Agent, Any]) -> PolicyError:
    """The error of the first agent whose policy raised; the others are told in notes."""
    (agent, failure), *others = failures.items()
    kind = PolicyError.named(failure.type_name)
    text = f"The policy of {agent!r} raised {failure.type_name}: {failure.message}"
    error = kind(text, type_name=failure.type_name, remote_message=failure.message)
    assert isinstance(error, PolicyError)
    error.agents, error.actions = tuple(failures), actions
    error.__cause__ = failure.cause or RemoteTraceback(failure.traceback)
    for other, told in others:
        error.add_note(f"The policy of {other!r} raised {told.type_name}: {told.message}")
    return error
