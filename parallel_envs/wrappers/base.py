"""What all strategies share: the two halves of a turn, deadlines, failures, and one agent by itself.

    wrapper.send({agent: observation, ...})      everybody is asked
    actions = wrapper.recv()                     everybody has answered, or has run out of time

A strategy says where policies live and how they are asked: `_begin` starts a turn and returns at once where it can,
`_end` brings the answers home. Everything else is here, so all strategies agree on it.
"""

from __future__ import annotations

import copy
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from parallel_envs.closing import ClosedAtExit
from parallel_envs.engine import Failure
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, in_turn
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, Turn, policy_error
from parallel_envs.wrappers.rows import Mask, check_mask, row_numbers
from parallel_envs.wrappers.rules import Rules, Tally
from parallel_envs.wrappers.seats import as_policy

if TYPE_CHECKING:
    from parallel_envs.wrappers.agent import WrappedAgent

_log = logging.getLogger(__name__)
_NOT_YET = Answer(late=True)
CLOSE_SECONDS = 5.0  # that `close` waits for a call of another thread to end
_TWICE = "send was called twice without recv in between. Call recv first."


@dataclass(slots=True)
class _Overdue:
    """An answer that is still to come: by when it was due, and the seconds of its lateness that have been counted."""

    due: float
    counted: float = 0.0

    def more(self, now: float) -> float:
        """By how much more it is late than has been counted, if it came now. That is counted then."""
        before, self.counted = self.counted, max(now - self.due, self.counted)
        return self.counted - before


class PerAgentWrapper(ClosedAtExit, ABC):
    """Some agents' policies, asked all at once, in the order in which `policies` names them.

    Every strategy also wraps the policy of a single agent: `PerAgentProcessWrapper(policy)` returns a
    `StandaloneAgent`, which has `step(observation)`, `send` and `recv`.

    Threads: any thread may call any method, and so may handles of single agents (`agent_policy`); calls wait for one
    another. Use `step`, or have one thread `send` and `recv`: whoever calls `recv` gets the turn that was sent first.
    """

    goes_on = False
    """Whether policies compute by themselves after `send`; else they do in `recv`, in the caller."""
    gathers = False
    """Whether all open turns of single agents are computed as one. If so, `_begin` returns what it was given."""
    most_turns = 1
    """How many turns an agent may have been asked in that have not been received yet."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.__signature__ = inspect.signature(cls.__init__.__get__(cls))  # type: ignore[attr-defined]  # not `__new__`'s

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        given = arguments[0] if arguments else named.get("policies", {})
        if isinstance(given, Mapping) or next(iter(inspect.signature(cls).parameters), "") != "policies":
            return super().__new__(cls)
        from parallel_envs.wrappers.agent import standalone

        others = {name: value for name, value in named.items() if name != "policies"}
        return cast(Self, standalone(cls, given, *arguments[1:], **others))  # `__init__` is not called then

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        self._guard = CallGuard(type(self).__name__)
        self.policies = {agent: as_policy(agent, policy) for agent, policy in policies.items()}
        if not isinstance(rules, Rules | None):
            raise TypeError(f"rules={rules!r} are not Rules. Give parallel_envs.wrappers.Rules(...), or None.")
        self.rules = rules or Rules()
        self.tallies = {agent: Tally() for agent in self.policies}
        self.versions = dict.fromkeys(self.policies, 0)
        """Which weights of each agent act: those it was given (0), or those that were loaded first, second, ..."""
        self.closed = False
        self.num_rows = 0
        """How many rows there are, as far as turns have told."""
        self._logged: set[tuple[Agent, str]] = set()  # failures in whose place the default action was taken
        self._sent: deque[Turn] = deque()  # by `send`
        self._open: list[Turn] = []  # these, and those of single agents
        self._deputy: PerAgentWrapper | None = None  # who takes the turns in the place of this one
        self._overdue: dict[Agent, _Overdue] = {}  # who still owes an answer

    # ---- a turn -----------------------------------------------------------------------------------------------------

    @in_turn
    def send(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> None:
        """Ask these agents. With `wanted`, observations are batches, and it says which rows want an action."""
        if len(self._sent) >= self.most_turns and not self.closed:
            raise RuntimeError(_TWICE)
        self._sent.append(self._asked(observations, wanted))

    @in_turn
    def recv(self) -> dict[Agent, Any]:
        """The actions of all who were asked, in the first turn that has not been received yet.

        Raises:
            PolicyError: A policy raised, and `on_error` is "raise". `actions` of the error holds those of the others.
        """
        if not self._sent:
            raise RuntimeError("recv was called without send. Call send first.")
        return self._heard(self._sent.popleft())

    @in_turn
    def step(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        if self._sent:
            raise RuntimeError(_TWICE)
        return self._heard(self._asked(observations, wanted))

    @in_turn
    def ask(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> Turn:
        """`send` for a turn of one's own: it may go on beside others in which other agents are asked."""
        return self._asked(observations, wanted)

    def _asked(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None) -> Turn:
        if self.closed:
            raise ClosedError("Policies were asked after their wrapper was closed. Make a new one.")
        check_by_agent("observations", observations)
        self._check_known(observations)
        if wanted is not None:
            self.check_masks(observations, wanted)
        if self._open and any(self._turns_of(agent) >= self.most_turns for agent in observations):
            raise RuntimeError(_TWICE)
        asks: dict[Agent, Ask] = {
            agent: (observations[agent], None if wanted is None else wanted[agent])
            for agent in self.policies
            if agent in observations
        }
        if self._overdue:
            self._welcome()
        turn = Turn(asks, time.monotonic())
        acting = self if self._deputy is None else self._deputy
        turn.token = acting._begin(asks if self.rules.lateness_budget is None else self._still_in(asks))
        self._open.append(turn)
        return turn

    def check_masks(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask]) -> None:
        """Raise where something is missing or of the wrong length."""
        check_by_agent("masks of rows that are alive", wanted)
        for agent, batch in observations.items():
            if agent not in wanted:
                raise KeyError(f"Nothing says which rows of {agent!r} are alive. Give a mask for each agent.")
            self.num_rows = max(self.num_rows, check_mask(agent, wanted[agent], batch))

    @in_turn
    def hear(self, turn: Turn) -> dict[Agent, Any]:
        """`recv` for a turn of one's own."""
        return self._heard(turn)

    def _heard(self, turn: Turn) -> dict[Agent, Any]:
        self._open.remove(turn)
        if self.closed:
            raise ClosedError("Actions were waited for after their wrapper was closed. Make a new one.")
        limit = self.rules.action_timeout
        acting = self if self._deputy is None else self._deputy
        until = None if limit is None else turn.began + limit
        if turn.answers is None and self._open and acting.gathers:
            self._compute_together(acting, turn, until)
        answers = acting._end(turn.token, until) if turn.answers is None else turn.answers
        actions = answers.actions
        if answers.others or len(actions) < len(turn.asks) or not self.rules.are_plain:
            return self._judged(turn, answers)
        for agent in actions:
            self.tallies[agent].turns += 1
        return {agent: actions[agent] for agent in turn.asks}

    def _compute_together(self, acting: PerAgentWrapper, turn: Turn, until: float | None) -> None:
        """Compute a turn and all others that are open, in the order in which their agents were asked."""
        waiting = sorted((turn, *(one for one in self._open if one.answers is None)), key=lambda one: one.began)
        answers = acting._end({agent: ask for one in waiting for agent, ask in one.token.items()}, until)
        for one in waiting:
            one.answers = answers.part(one.token)

    @in_turn
    def abandon(self) -> None:
        """Wait no more for those who were asked: there will be no `recv`. Their policies have acted all the same."""
        while self._sent:
            self._open.remove(self._sent.popleft())

    def _turns_of(self, agent: Agent) -> int:
        return sum(agent in turn.asks for turn in self._open)

    # ---- what is made of the answers --------------------------------------------------------------------------------

    def _judged(self, turn: Turn, answers: Answers) -> dict[Agent, Any]:
        """The actions of a turn in which something is to be looked at."""
        actions: dict[Agent, Any] = {}
        failures: dict[Agent, Failure] = {}
        for agent, (_, wanted) in turn.asks.items():
            known = agent in answers.actions or agent in answers.others
            answer = self._counted(turn, agent, answers.of(agent) if known else _NOT_YET, wanted)
            if answer.failure is not None and self.rules.on_error == "raise":
                failures[agent] = answer.failure
            elif answer.failure is not None or answer.late:
                self.tallies[agent].defaults += 1
                if answer.failure is not None:
                    self._log_once(agent, answer.failure)
                actions[agent] = self.rules.default(agent, wanted)
            else:
                actions[agent] = answer.action
        if failures:
            raise policy_error(failures, actions)
        return actions

    def _counted(self, turn: Turn, agent: Agent, answer: Answer, wanted: Mask | None) -> Answer:
        """The answer, counted; late if it took longer than allowed, a failure if the action is outside its space."""
        tally, limit = self.tallies[agent], self.rules.action_timeout
        tally.turns += 1
        if answer.failure is None and limit is not None and (answer.late or answer.seconds > limit):
            if not self._is_out(agent):
                tally.late += 1
                tally.late_seconds += self._lateness(turn, agent, answer, limit)
            return _NOT_YET
        if (overdue := self._overdue.pop(agent, None)) is not None:  # it came back just when it was to be asked
            tally.late_seconds += overdue.more(turn.began)
        if answer.failure is None:
            answer = Answer(answer.action, self.rules.objection(agent, self.policies[agent], answer.action, wanted))
        if answer.failure is not None:
            tally.failed += 1
        return answer

    def _log_once(self, agent: Agent, failure: Failure) -> None:
        """Default actions may go on for long: say once why, for each agent and kind of failure."""
        if (agent, failure.type_name) not in self._logged:
            self._logged.add((agent, failure.type_name))
            text = "The policy of %r raised %s: %s. It gets default actions where it fails; this is told once."
            _log.warning(text, agent, failure.type_name, failure.message)

    def _lateness(self, turn: Turn, agent: Agent, answer: Answer, limit: float) -> float:
        """By how much more an agent is late than has been counted: until now, if its answer is still to come."""
        if not answer.late:
            return answer.seconds - limit
        overdue = self._overdue.setdefault(agent, _Overdue(turn.began + limit))
        return overdue.more(time.monotonic())

    def _welcome(self) -> None:
        """Count to its end the lateness of those who have come back, with an answer that nobody waits for any more."""
        acting = self if self._deputy is None else self._deputy
        for agent, overdue in list(self._overdue.items()):
            if (back := acting._back_at(agent)) is not None:
                self.tallies[agent].late_seconds += overdue.more(back)
                del self._overdue[agent]

    def _still_in(self, asks: dict[Agent, Ask]) -> dict[Agent, Ask]:
        return {agent: ask for agent, ask in asks.items() if not self._is_out(agent)}

    def _is_out(self, agent: Agent) -> bool:
        budget = self.rules.lateness_budget
        return budget is not None and self.tallies[agent].late_seconds > budget

    # ---- what a strategy must do ------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, asks: Mapping[Agent, Ask]) -> Any:
        """Ask these agents. Whatever can go on by itself goes on from here. What is returned, `_end` is given.

        Turns of other agents may be begun before this one is ended.
        """

    @abstractmethod
    def _end(self, token: Any, deadline: float | None) -> Answers:
        """The answers that have come by `deadline` (of the monotonic clock; None: all of them)."""

    @abstractmethod
    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        """Call a method of these agents' `Seat`s, wherever they are, and wait for what they return.

        With `later`, a policy that is still busy with a turn is not waited for: it does this when it comes back.
        """

    def _back_at(self, agent: Agent) -> float | None:
        """When a policy that was late has come back, by the monotonic clock; None: it has not. 0.0: nobody knows when.

        Only for strategies whose `_end` leaves late ones behind.
        """
        return 0.0

    # ---- episodes and state -----------------------------------------------------------------------------------------

    @in_turn
    def reset(self, agents: Sequence[Agent] | None = None, rows: Sequence[int] | Mask | None = None) -> None:
        """Episodes begin: of all agents or some, in all rows or some (their numbers, or a mask)."""
        chosen = list(self.policies if agents is None else agents)
        self._ask("reset", dict.fromkeys(chosen, (row_numbers(rows, self.num_rows),)), later=True)
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

    @in_turn
    def get_states(self, agents: Sequence[Agent] | None = None) -> dict[Agent, Any]:
        """What the policies of all agents remember, or of some. What they share is shared in the states too."""
        chosen = self.policies if agents is None else agents
        return _copies(self._ask("get_state", dict.fromkeys(chosen, ())))

    @in_turn
    def set_states(self, states: Mapping[Agent, Any]) -> None:
        """Put back what `get_states` has told."""
        self._ask("set_state", {agent: (state,) for agent, state in copy.deepcopy(dict(states)).items()})

    def load_state_dict(self, agent: Agent, weights: Any) -> None:
        """New weights for an agent's policy, from its next turn on."""
        self.load_state_dicts({agent: weights})

    @in_turn
    def load_state_dicts(self, weights: Mapping[Agent, Any]) -> None:
        """The same for several agents, all at once. Those that take theirs have them, also where others raise."""
        self._check_known(weights)
        numbered = {agent: (own, self.versions[agent] + 1) for agent, own in weights.items()}
        try:
            self._ask("load_state_dict", numbered)
        except PolicyError as error:
            self._note_versions(numbered.keys() - set(error.agents))
            raise
        self._note_versions(numbered)

    def _note_versions(self, agents: Iterable[Agent]) -> None:
        for agent in agents:
            self.versions[agent] += 1

    @in_turn
    def check_weights(self, weights: Mapping[Agent, Any]) -> None:
        """Raise if weights do not fit, for those policies that can tell without taking them."""
        self._ask("check_weights", {agent: (own,) for agent, own in weights.items()})

    def _ask(self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False) -> dict[Agent, Any]:
        """What the seats return. Who fails does not keep the others from being asked."""
        if self.closed:
            raise ClosedError(f"{method} was called after the wrapper was closed. Make a new one.")
        self._check_known(arguments)
        if self._open and any(map(self._turns_of, arguments)):
            raise RuntimeError(f"{method} was called between send and recv. Call recv first.")
        answers = self._ask_seats(method, arguments, later=later)
        failures = {agent: one.failure for agent, one in answers.items() if one.failure is not None}
        if failures:
            raise policy_error(failures, {})
        return {agent: one.action for agent, one in answers.items()}

    @in_turn
    def revive(self, agents: Iterable[Agent] | None = None) -> list[Agent]:
        """Start anew those policies whose worker has died or is late: of all agents, or where some of these live.

        Returns those who begin anew: all agents of such a worker. In the caller's process nobody has to.
        """
        if self.closed:
            raise ClosedError("revive was called after the wrapper was closed. Make a new one.")
        check_names(agents)
        self._check_known(agents or ())
        return self._forgiven(self._revived(agents))

    def _revived(self, agents: Iterable[Agent] | None) -> list[Agent]:
        """`revive`, where policies live in workers."""
        return []

    def _forgiven(self, agents: list[Agent]) -> list[Agent]:
        """The same; what these do wrong from now on is told again."""
        self._logged = {told for told in self._logged if told[0] not in agents}
        for agent in agents:
            self._overdue.pop(agent, None)
        return agents

    def _is_anybody_busy(self) -> bool:
        """Whether a policy still works on a turn that has ended without it."""
        return False

    @in_turn
    def sync(self) -> None:
        """Bring the policies that were given up to date with those that run, so that they can be saved.

        Nothing is to be done where they run as they were given.
        """
        if self._open:
            raise RuntimeError("sync was called between send and recv. Call recv first.")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what this wrapper has made. A pool that was given to it stays open."""
        self.closed = True
        self._guard.wait_until_free(CLOSE_SECONDS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.policies)} agents{', closed' if self.closed else ''})"

    def agent_policy(self, agent: Agent) -> WrappedAgent:
        """One agent by itself. Several of them may be asked at once."""
        from parallel_envs.wrappers.agent import WrappedAgent

        self._check_known([agent])
        return WrappedAgent(self, agent)

    def _check_known(self, agents: Iterable[Agent]) -> None:
        if unknown := [agent for agent in agents if agent not in self.policies]:
            raise KeyError(f"There is no policy for {unknown[0]!r}. There are policies for {list(self.policies)}.")


def check_by_agent(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"The {what}, of type {type(given).__name__}, are no dict. Give one by agent: {{agent: ...}}.")


def check_names(agents: Any) -> None:
    if isinstance(agents, str):  # which would be gone through letter by letter
        raise TypeError(f"agents={agents!r} is a single name. Give a list of names: [{agents!r}].")


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
