"""What is asked of policies, what they say, and how it is told that one has failed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parallel_envs.engine import Failure
from parallel_envs.errors import PolicyError
from parallel_envs.wrappers.rows import Mask
from parallel_envs.wrappers.seats import Seat

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


class Answers(NamedTuple):
    """What several policies said: the actions of those of whom there is nothing else to be said; the answers of others.

    Two dicts, and no `Answer` for each agent: where policies are small that would cost more than they do.
    """

    actions: dict[Agent, Any]
    others: dict[Agent, Answer]

    @classmethod
    def none(cls) -> Answers:
        return cls({}, {})

    @classmethod
    def failed(cls, agents: Any, error: BaseException) -> Answers:
        """All of these have failed, with one error."""
        return cls({}, dict.fromkeys(agents, Answer(failure=Failure.of(error))))

    def of(self, agent: Agent) -> Answer:
        """What one of them said."""
        return self.others[agent] if agent in self.others else Answer(self.actions[agent])

    def part(self, agents: Collection[Agent]) -> Answers:
        """What these agents said."""
        return Answers(
            {agent: self.actions[agent] for agent in agents if agent in self.actions},
            {agent: self.others[agent] for agent in agents if agent in self.others},
        )

    def add(self, more: Answers) -> None:
        self.actions.update(more.actions)
        self.others.update(more.others)

    def timed(self, seconds: float) -> Answers:
        """The same, where each took so long of whom it is not known yet."""
        own = {agent: Answer(action, seconds=seconds) for agent, action in self.actions.items()}
        return Answers({}, {**own, **self.others})


@dataclass(slots=True, eq=False)
class Turn:
    """Agents who have been asked and not yet heard. `token` is the strategy's own.

    `answers` are there before the turn is heard if they were computed together with those of another turn.
    """

    asks: Mapping[Agent, Ask]
    began: float
    token: Any = None
    answers: Answers | None = None


def ask_in_turn(
    seats: Mapping[Agent, Seat], asks: Mapping[Agent, Ask], answers: Answers, *, timed: bool = False
) -> Answers:
    """Ask one policy after another, here and now; what they say is added to `answers` as it comes."""
    actions = answers.actions
    for agent, (observation, wanted) in asks.items():
        began = time.monotonic() if timed else 0.0
        try:
            action = seats[agent].answer(observation, wanted)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
            seconds = time.monotonic() - began
            answers.others[agent] = Answer(failure=Failure.of(error), seconds=seconds if timed else 0.0)
            continue
        if timed:
            answers.others[agent] = Answer(action, seconds=time.monotonic() - began)
        else:
            actions[agent] = action
    return answers


def told(seat: Seat, method: str, arguments: tuple[Any, ...]) -> Answer:
    """What a method of a seat returns, here and now."""
    try:
        return Answer(getattr(seat, method)(*arguments))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # as above
        return Answer(failure=Failure.of(error))


def still_busy(method: str) -> Failure:
    """What is told of a policy that was asked for something while it is late."""
    text = f"{method} was not answered within action_timeout: it is still busy with an earlier turn."
    return Failure("TimeoutError", text, text)


def policy_error(failures: Mapping[Agent, Failure], actions: dict[Agent, Any]) -> PolicyError:
    """The error of the first agent whose policy raised; the others are told in notes."""
    (agent, failure), *others = failures.items()
    kind = PolicyError.named(failure.type_name)
    text = f"The policy of {agent!r} raised {failure.type_name}: {failure.message}"
    error = kind(text, type_name=failure.type_name, remote_message=failure.message)
    assert isinstance(error, PolicyError)
    error.agents, error.actions = tuple(failures), actions
    error.__cause__ = failure.origin()
    for other, told_of in others:
        error.add_note(f"The policy of {other!r} raised {told_of.type_name}: {told_of.message}")
    return error
