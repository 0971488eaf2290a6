"""What all strategies share: the two halves of a turn, deadlines, failures, and one agent by itself.

    wrapper.send({agent: observation, ...})      everybody is asked
    actions = wrapper.recv()                     everybody has answered, or has run out of time

A strategy says where policies live and how they are asked: `_begin` starts a turn and returns at once where it can,
`_end` brings the answers home. Everything else is here, so all strategies agree on it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from parallel_envs.engine import Failure
from parallel_envs.errors import ClosedError, PolicyError, RemoteTraceback
from parallel_envs.policies import AgentPolicy
from parallel_envs.wrappers.seats import Mask, Seat

Agent = Hashable
Ask = tuple[Any, Mask | None]
"""An observation; or a batch of them, and which rows want an action."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy said: an action, or how it failed, or nothing in time. `seconds` is how long it took, if known."""

    action: Any = None
    failure: Failure | None = None
    late: bool = False
    seconds: float = 0.0


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
        on_error: `"raise"`, or `"default"`: the default action, and a count.
    """

    action_timeout: float | None = None
    default_action: Any = None
    lateness_budget: float | None = None
    on_error: str = "raise"

    def __post_init__(self) -> None:
        for name in ("action_timeout", "lateness_budget"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0.0 < value < float("inf")):
                raise ValueError(f"{name}={value!r} is not a number of seconds. Give one above 0, or None.")
        if self.on_error not in ("raise", "default"):
            raise ValueError(f"on_error={self.on_error!r} is unknown. Choose 'raise' or 'default'.")
        if self.default_action is None and (self.action_timeout is not None or self.on_error == "default"):
            raise ValueError(
                "default_action is missing: with action_timeout or on_error='default' an agent may need one. Give an "
                "action, or a function of the agent."
            )

    def default(self, agent: Agent, wanted: Mask | None) -> Any:
        chosen = self.default_action(agent) if callable(self.default_action) else self.default_action
        return chosen if wanted is None else np.stack([np.asarray(chosen)] * len(wanted))


class PerAgentWrapper(ABC):
    """Some agents' policies, asked all at once. `agents` maps each to its policy as it was given."""

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        for agent, policy in policies.items():
            if not callable(getattr(policy, "step", None)):
                raise TypeError(f"The policy of {agent!r}, {policy!r}, has no method step(observation). Give it one.")
        self.policies = dict(policies)
        self.rules = rules or Rules()
        self.tallies = {agent: Tally() for agent in self.policies}
        self.closed = False
        self._asked: dict[Agent, Ask] | None = None
        self._began = 0.0

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def send(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> None:
        """Ask these agents. With `wanted`, observations are batches, and it says which rows want an action."""
        if self.closed:
            raise ClosedError("Policies were asked after their wrapper was closed. Make a new one.")
        if self._asked is not None:
            raise RuntimeError("send was called twice without recv in between. Call recv first.")
        if unknown := [agent for agent in observations if agent not in self.policies]:
            raise KeyError(f"There is no policy for {unknown[0]!r}. There are policies for {list(self.policies)}.")
        self._asked = {
            agent: (observation, None if wanted is None else wanted[agent])
            for agent, observation in observations.items()
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
        limit = self.rules.action_timeout
        answers = self._end(None if limit is None else self._began + limit)
        actions: dict[Agent, Any] = {}
        failures: dict[Agent, Failure] = {}
        for agent, (_, wanted) in asked.items():
            answer = self._judged(agent, answers.get(agent, Answer(late=True)))
            if answer.failure is not None:
                failures[agent] = answer.failure
            if answer.failure is not None or answer.late:
                self.tallies[agent].defaults += self.rules.default_action is not None
                actions[agent] = self.rules.default(agent, wanted) if self.rules.default_action is not None else None
            else:
                actions[agent] = answer.action
        if failures and self.rules.on_error == "raise":
            raise policy_error(failures, {agent: value for agent, value in actions.items() if agent not in failures})
        return actions

    def step(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        self.send(observations, wanted)
        return self.recv()

    def _judged(self, agent: Agent, answer: Answer) -> Answer:
        """The answer, counted; late if it took longer than allowed."""
        tally, limit = self.tallies[agent], self.rules.action_timeout
        tally.turns += 1
        if answer.failure is not None:
            tally.failed += 1
            return answer
        if limit is None or not (answer.late or answer.seconds > limit):
            return answer
        if not self._is_out(agent):
            tally.late += 1
            tally.late_seconds += max(answer.seconds, time.monotonic() - self._began) - limit
        return Answer(late=True)

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
    def _ask_seat(self, agent: Agent, method: str, *args: Any) -> Any:
        """Call a method of an agent's `Seat`, wherever it is, and wait for the result."""

    # ---- episodes and state -----------------------------------------------------------------------------------------

    def reset(self, agents: Sequence[Agent] | None = None, rows: Sequence[int] | None = None) -> None:
        """Episodes begin: of all agents or some, in all rows or some."""
        for agent in self.policies if agents is None else agents:
            self._ask_seat(agent, "reset", rows)
            if rows is None:
                self.tallies[agent].late_seconds = 0.0

    def get_state(self, agent: Agent) -> Any:
        """What an agent's policy remembers just now."""
        return self._ask_seat(agent, "get_state")

    def set_state(self, agent: Agent, state: Any) -> None:
        """Put back what `get_state` has told."""
        self._ask_seat(agent, "set_state", state)

    def load_state_dict(self, agent: Agent, weights: Any) -> None:
        """New weights for an agent's policy, from its next turn on."""
        self._ask_seat(agent, "load_state_dict", weights)

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
        if agent not in self.policies:
            raise KeyError(f"There is no policy for {agent!r}. There are policies for {list(self.policies)}.")
        return WrappedAgent(self, agent)


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
