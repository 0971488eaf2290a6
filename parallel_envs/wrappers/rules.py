"""The inputs and answers of a turn, and the rules for late, failed and invalid answers.

`Rules` are set by the user. `Answer` and `Answers` come back from a strategy. `step_one_by_one` and `call_handle` call
policies in the current process, on behalf of all strategies.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.checks import hint, is_one_of, suggests_keywords
from parallel_envs.choices import OnError, words
from parallel_envs.engine import Failure
from parallel_envs.errors import PolicyError
from parallel_envs.wrappers.policy_handle import Mask, PolicyHandle, scatter_rows, take_rows

Agent = Any
"""Any hashable value. (A `dict[str, ...]` is no `Mapping[Hashable, ...]` to a type checker.)"""
PolicyInput = tuple[Any, Mask | None]
"""An observation and None; or a batch of observations and the mask of the rows that want an action."""
Inputs = Mapping[Agent, PolicyInput]
Arguments = Mapping[Agent, tuple[Any, ...]]
"""Arguments of a method of `PolicyHandle`, by agent."""

WORKER_DIED = "WorkerDied"


@dataclass(slots=True)
class Tally:
    """Counts of an agent's turns, and of its late and failed answers."""

    turns: int = 0
    late: int = 0
    failed: int = 0
    defaults: int = 0
    late_seconds: float = 0.0
    """Sum of the lateness of its answers in this episode."""


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Rules:
    """Deadlines, failures and checks.

    Threads: any number of threads may use one object at once, since it never changes.

    Args:
        action_timeout: Seconds that a turn may take. An agent that has not answered by then gets the default action; a
            late answer is dropped. A policy in the caller's process cannot be interrupted: its lateness is found
            afterwards.
        default_action: Replaces an action that is late or missing: a value, or a function of the agent.
        lateness_budget: Seconds that an agent may be late by in all, in an episode. After that the agent gets default
            actions and its policy is not called.
        on_error: `"raise"`, or `"default"`: take the default action and count the failure. Calls that return no action
            (`reset`, `get_state`, ...) raise in any case.
        action_spaces: For debugging: the action space of each agent, in a dict or as a function of the agent (an
            env's `action_space`). An action outside of it is an error of its policy. Every action is checked, which
            takes a few microseconds each.
    """

    action_timeout: float | None = None
    default_action: Any = None
    lateness_budget: float | None = None
    on_error: OnError = "raise"
    action_spaces: Mapping[Agent, Space[Any]] | Callable[[Any], Space[Any]] | None = None

    def __post_init__(self) -> None:
        for name in ("action_timeout", "lateness_budget"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0.0 < value < float("inf")):
                raise ValueError(f"{name}={value!r} is not a number of seconds. Give one above 0, or None.")
        if not is_one_of(self.on_error, words(OnError)):
            close = hint(self.on_error, words(OnError))
            raise ValueError(f"on_error={self.on_error!r} is unknown. Choose 'raise' or 'default'.{close}")
        if self.lateness_budget is not None and self.action_timeout is None:
            raise ValueError(f"lateness_budget={self.lateness_budget!r} was given without action_timeout. Give both.")
        if self.default_action is None and (self.action_timeout is not None or self.on_error == "default"):
            raise ValueError(
                "default_action is missing: with action_timeout or on_error='default' an agent may need one. Give an "
                "action, or a function of the agent."
            )
        if not (self.action_spaces is None or isinstance(self.action_spaces, Mapping) or callable(self.action_spaces)):
            raise TypeError(f"action_spaces={self.action_spaces!r} is neither a dict nor a function of the agent.")

    @property
    def accept_any_action(self) -> bool:
        """True if actions are neither timed nor checked."""
        return self.action_timeout is None and self.action_spaces is None

    def default(self, agent: Agent, wanted: Mask | None) -> Any:
        """Return the default action, or for a batch one default action for each row that wants an action."""
        chosen = self.default_action(agent) if callable(self.default_action) else copy.deepcopy(self.default_action)
        if wanted is None:
            return chosen
        rows = np.flatnonzero(wanted)
        return scatter_rows([chosen] * len(rows), rows, len(wanted)) if len(rows) else None

    def objection(self, agent: Agent, policy: Any, action: Any, wanted: Mask | None) -> Failure | None:
        """Return a failure if an action is outside of the agent's action space, else None."""
        spaces = self.action_spaces
        space = spaces.get(agent) if isinstance(spaces, Mapping) else None if spaces is None else spaces(agent)
        if space is None:
            return None
        for row in (None,) if wanted is None else np.flatnonzero(wanted).tolist():
            single = action if row is None else take_rows(action, row)
            try:
                is_inside = bool(space.contains(single))
            except Exception:  # noqa: BLE001  # some spaces raise at values that they cannot interpret
                is_inside = False
            if not is_inside:
                name = getattr(policy, "class_path", type(policy).__name__)  # of a spec: the class that it makes
                kind = f" ({single.dtype}, shape {single.shape})" if isinstance(single, np.ndarray) else ""
                where = "" if row is None else f" in row {row}"
                text = f"{name} returned {single!r}{kind}{where}, which is outside of its space, {space}"
                return Failure("ValueError", text, text)
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """An action, or a failure, or a late answer. `seconds` is the time the policy took, if known."""

    action: Any = None
    failure: Failure | None = None
    late: bool = False
    seconds: float = 0.0


class Answers(NamedTuple):
    """The answers of several agents: plain actions by agent, and an `Answer` for each agent with more to report.

    Most turns have plain actions only. An `Answer` for each agent would cost more than a small policy does.
    """

    actions: dict[Agent, Any]
    others: dict[Agent, Answer]
    ended: float = 0.0
    """When a worker ended the turn, by the monotonic clock that all processes share. 0.0: unknown."""

    @classmethod
    def none(cls) -> Answers:
        return cls({}, {})

    @classmethod
    def failed(cls, agents: Collection[Agent], error: BaseException) -> Answers:
        """Return answers in which all of these agents failed with one error."""
        return cls({}, dict.fromkeys(agents, Answer(failure=Failure.of(error))))

    def of(self, agent: Agent) -> Answer:
        """Return the answer of one agent."""
        return self.others[agent] if agent in self.others else Answer(self.actions[agent])

    def part(self, agents: Collection[Agent]) -> Answers:
        """Return the answers of some agents."""
        return Answers(
            {agent: self.actions[agent] for agent in agents if agent in self.actions},
            {agent: self.others[agent] for agent in agents if agent in self.others},
        )

    def add(self, more: Answers) -> None:
        self.actions.update(more.actions)
        self.others.update(more.others)


@dataclass(slots=True, eq=False)
class Turn:
    """Agents whose policies were called and whose answers have not been received. `token` is the strategy's own."""

    inputs: Inputs
    began: float
    token: Any = None


def step_one_by_one(
    handles: Mapping[Agent, PolicyHandle], inputs: Inputs, answers: Answers, *, timed: bool = False
) -> Answers:
    """Call one policy after another, in this process. Each answer is added to `answers` as soon as it is there."""
    for agent, (observation, wanted) in inputs.items():
        began, failure, action = time.monotonic() if timed else 0.0, None, None
        try:
            action = handles[agent].act(observation, wanted)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
            failure = Failure.of(error)
        if timed or failure is not None:
            answers.others[agent] = Answer(action, failure, seconds=time.monotonic() - began if timed else 0.0)
        else:
            answers.actions[agent] = action
    return answers


def call_handle(handle: PolicyHandle, method: str, arguments: tuple[Any, ...]) -> Answer:
    """Call a method of a handle, in this process. `action` of the answer is the return value."""
    try:
        return Answer(getattr(handle, method)(*arguments))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
        return Answer(failure=Failure.of(error))


def still_busy(method: str) -> Failure:
    """Return the failure of a call to a policy that is still computing an earlier turn."""
    text = f"{method} was not answered within action_timeout: it is still busy with an earlier turn."
    return Failure("TimeoutError", text, text)


def policy_error(failures: Mapping[Agent, Failure], actions: dict[Agent, Any]) -> PolicyError:
    """Return the error of the first agent whose policy raised. Its notes name the errors of the others."""
    (agent, failure), *others = failures.items()
    kind = PolicyError.named(failure.type_name)
    error = kind(failure_text(agent, failure), type_name=failure.type_name, remote_message=failure.message)
    assert isinstance(error, PolicyError)
    error.agents, error.actions = tuple(failures), actions
    error.__cause__ = failure.origin()
    for other, other_failure in others:
        error.add_note(failure_text(other, other_failure))
    return error


def failure_text(agent: Agent, failure: Failure) -> str:
    """Return the sentence that reports an agent's failure. If its worker has died, add the advice to call `revive`."""
    text = f"The policy of {agent!r} raised {failure.type_name}: {failure.message}"
    if failure.type_name != WORKER_DIED:
        return text
    end = "\n" if "\n" in failure.message else ". "  # the last output of the worker stands on lines of its own
    return f"{text}{end}Call revive() to start it anew."
