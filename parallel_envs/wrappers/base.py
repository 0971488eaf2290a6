"""`PerAgentWrapper`: the base class of all dispatch strategies. It has everything but the dispatch itself; and `Rules`.

    wrapper.send({agent: observation, ...})      all policies are called
    actions = wrapper.recv()                     all policies have answered, or their time is over

How to add a strategy:

1. Subclass `PerAgentWrapper`, or `LocalWrapper` (`local.py`) if policies live in the caller's process. Override
   `_begin`, `_end` and `_call_handles`; `LocalWrapper` has `_call_handles` already. `PerAgentSequentialWrapper` is the
   shortest example, `PerAgentThreadWrapper` one that works in the background.
2. Turns of other agents may begin before a turn ends, so keep the data of a turn in the token that `_begin` returns.
3. Call agents whose policies share an object (`sharing.sharers`) one after another, in the order of `policies`.
4. If `_end` may return before a late policy does, do not call that policy again until it has returned, and override
   `_returned_at`. One whose policies live in workers also overrides `_revive`.
5. Give it a name in `STRATEGIES` (`multi.py`) and in `Strategy` (`choices.py`). If it computes in the caller's thread,
   add the name to `IN_ONE_THREAD` (`sharing.py`). Add it to the lists in `tests/wrappers/test_parity.py` and
   `conftest.py`: these tests compare it with the sequential strategy.
"""

from __future__ import annotations

import copy
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.checks import choice, optional_seconds, suggests_keywords
from parallel_envs.choices import OnError, words
from parallel_envs.engine import Failure
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.policies import AgentPolicy
from parallel_envs.threads import CallGuard, ClosedAtExit, in_turn
from parallel_envs.wrappers.policy_handle import (
    Agent,
    Answer,
    Answers,
    Arguments,
    Inputs,
    Mask,
    PolicyInput,
    as_policy,
    check_mask,
    row_numbers,
    scatter_rows,
    take_rows,
)

_log = logging.getLogger(__name__)
_NOT_YET = Answer(late=True)
CLOSE_SECONDS = 5.0  # that `close` waits for a call of another thread to end
SENT_TWICE = "send was called twice without recv in between. Call recv first."
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
            object.__setattr__(self, name, optional_seconds(name, getattr(self, name)))
        choice("on_error", self.on_error, words(OnError))
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


@dataclass(slots=True, eq=False)
class Turn:
    """Agents whose policies were called and whose answers have not been received. `token` is the strategy's own."""

    inputs: Inputs = field(default_factory=dict)
    began: float = 0.0
    token: Any = None


class PerAgentWrapper(ClosedAtExit, ABC):
    """Calls the policies of several agents in one turn.

    Every strategy also wraps the policy of a single agent: `PerAgentProcessWrapper(policy)` returns a
    `StandaloneAgent`, which has `step(observation)`, `send` and `recv`.

    Threads: any thread may call any method, also of handles of single agents (`agent_policy`); calls wait for one
    another. Use `step`, or have one thread `send` and `recv`: any call of `recv` returns the turn that was sent first.
    """

    acts_in_background = False
    """True if policies compute in the background after `send`. If False, they compute in `recv`, in the caller."""
    most_turns = 1
    """How many turns of an agent may be sent before the first of them is received."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.__signature__ = inspect.signature(cls.__init__.__get__(cls))  # type: ignore[attr-defined]  # not `__new__`'s

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        given = arguments[0] if arguments else named.get("policies", {})
        if isinstance(given, Mapping) or next(iter(inspect.signature(cls).parameters), "") != "policies":
            return super().__new__(cls)
        from parallel_envs.wrappers.pool import standalone

        others = {name: value for name, value in named.items() if name != "policies"}
        return cast(Self, standalone(cls, given, *arguments[1:], **others))  # then Python does not call `__init__`

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        self._guard = CallGuard(type(self).__name__)
        self.policies = {agent: as_policy(agent, policy) for agent, policy in policies.items()}
        if not isinstance(rules, Rules | None):
            raise TypeError(f"rules={rules!r} are not Rules. Give parallel_envs.wrappers.Rules(...), or None.")
        self.rules = rules or Rules()
        self.tallies = {agent: Tally() for agent in self.policies}
        self.versions = dict.fromkeys(self.policies, 0)
        """Version of the weights with which each agent acts: 0 at first, plus one with each load."""
        self.closed = False
        self.num_rows = 0
        """The largest number of rows of any turn so far."""
        self._logged: set[tuple[Agent, str]] = set()  # failures that were replaced by the default action
        self._sent: deque[Turn] = deque()  # turns begun by `send`
        self._open: list[Turn] = []  # all open turns: those of `send` and those of single agents
        self._delegate: PerAgentWrapper | None = None  # if set, takes the turns instead of this wrapper (see `auto.py`)
        self._overdue: dict[Agent, float] = {}
        """By agent whose late answer has not come yet: the time up to which its lateness has been counted."""

    # ---- a turn -----------------------------------------------------------------------------------------------------

    @in_turn
    def send(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> None:
        """Call these agents' policies. With `wanted`, observations are batches, and masks say which rows to act in."""
        if len(self._sent) >= self.most_turns and not self.closed:
            raise RuntimeError(SENT_TWICE)
        self._sent.append(self._start(observations, wanted, Turn()))

    @in_turn
    def recv(self) -> dict[Agent, Any]:
        """Wait for the first turn that has not been received yet, and return its actions.

        Raises:
            PolicyError: A policy raised, and `on_error` is "raise". `actions` of the error holds those of the others.
        """
        if not self._sent:
            raise RuntimeError("recv was called without send. Call send first.")
        return self._finish(self._sent.popleft())

    @in_turn
    def step(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> dict[Agent, Any]:
        """`send` and `recv`."""
        if self._sent:
            raise RuntimeError(SENT_TWICE)
        return self._step(observations, wanted)

    @in_turn
    def step_turn(self, observations: Mapping[Agent, Any]) -> dict[Agent, Any]:
        """`send_turn` and `recv_turn`."""
        return self._step(observations, None)

    def _step(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None) -> dict[Agent, Any]:
        turn = Turn()  # known here before it is open, so that a Ctrl-C between the two halves cannot leave it open
        try:
            self._start(observations, wanted, turn)
            return self._finish(turn)
        except BaseException:
            if turn in self._open:
                self._drop_turn(turn)
            raise

    @in_turn
    def send_turn(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None = None) -> Turn:
        """Send a turn and return it, for `recv_turn`. Turns of other agents may be open at the same time."""
        return self._start(observations, wanted, Turn())

    @in_turn
    def recv_turn(self, turn: Turn) -> dict[Agent, Any]:
        """Receive the turn that `send_turn` returned."""
        return self._finish(turn)

    @in_turn
    def abandon(self) -> None:
        """Drop all turns that were sent: there will be no `recv`. Their policies have acted all the same."""
        while self._sent:
            self._drop_turn(self._sent.popleft())

    def _drop_turn(self, turn: Turn) -> None:
        self._open.remove(turn)
        (self if self._delegate is None else self._delegate)._forget(turn.token)

    def _start(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None, turn: Turn) -> Turn:
        self._check_open()
        check_by_agent("observations", observations)
        self._check_known(observations)
        if wanted is not None:
            self.check_masks(observations, wanted)
        if self._open:
            for agent in observations:
                if sum(agent in turn.inputs for turn in self._open) >= self.most_turns:
                    raise RuntimeError(SENT_TWICE)
        inputs: dict[Agent, PolicyInput] = {
            agent: (observations[agent], None if wanted is None else wanted[agent])
            for agent in self.policies
            if agent in observations
        }
        strategy = self if self._delegate is None else self._delegate
        if self._overdue:  # count the rest of the lateness of policies that have returned from a late turn
            for agent in list(self._overdue):
                if (returned := strategy._returned_at(agent)) is not None:
                    self._count_lateness(agent, returned)
                    del self._overdue[agent]
        turn.inputs, turn.began = inputs, time.monotonic()
        if self.rules.lateness_budget is not None:
            inputs = {agent: one for agent, one in inputs.items() if not self._is_over_budget(agent)}
        turn.token = strategy._begin(inputs)
        self._open.append(turn)
        return turn

    def check_masks(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask]) -> None:
        """Raise if the mask of an agent is missing or has the wrong length."""
        check_by_agent("masks of rows that are alive", wanted)
        for agent, batch in observations.items():
            if agent not in wanted:
                raise KeyError(f"Nothing says which rows of {agent!r} are alive. Give a mask for each agent.")
            self.num_rows = max(self.num_rows, check_mask(agent, wanted[agent], batch))

    def _finish(self, turn: Turn) -> dict[Agent, Any]:
        self._open.remove(turn)
        self._check_open()
        limit = self.rules.action_timeout
        strategy = self if self._delegate is None else self._delegate
        answers = strategy._end(turn.token, None if limit is None else turn.began + limit)
        actions = answers.actions
        if answers.others or len(actions) < len(turn.inputs) or not self.rules.accept_any_action:
            return self._apply_rules(turn, answers)
        for agent in actions:
            self.tallies[agent].turns += 1
        return {agent: actions[agent] for agent in turn.inputs}

    def _apply_rules(self, turn: Turn, answers: Answers) -> dict[Agent, Any]:
        """Return the actions of a turn, with default actions for answers that are late, have failed or are invalid.

        Raises PolicyError for failures if `on_error` is "raise".
        """
        actions: dict[Agent, Any] = {}
        failures: dict[Agent, Failure] = {}
        rules, limit = self.rules, self.rules.action_timeout
        for agent, (_, wanted) in turn.inputs.items():
            has_come = agent in answers.actions or agent in answers.others
            answer, tally = answers.of(agent) if has_come else _NOT_YET, self.tallies[agent]
            failure, is_late = answer.failure, False
            tally.turns += 1
            if failure is None and limit is not None and (answer.late or answer.seconds > limit):
                is_late = True
                if not self._is_over_budget(agent):
                    tally.late += 1
                    if answer.late:  # and still to come: its lateness grows until it comes
                        self._overdue.setdefault(agent, turn.began + limit)
                        self._count_lateness(agent, time.monotonic())
                    else:
                        tally.late_seconds += answer.seconds - limit
            else:
                if agent in self._overdue:  # it returned just when its turn began
                    self._count_lateness(agent, turn.began)
                    del self._overdue[agent]
                if failure is None:
                    failure = rules.objection(agent, self.policies[agent], answer.action, wanted)
                tally.failed += failure is not None
            if failure is not None and rules.on_error == "raise":
                failures[agent] = failure
            elif failure is None and not is_late:
                actions[agent] = answer.action
            else:
                tally.defaults += 1
                actions[agent] = rules.default(agent, wanted)
                if failure is not None and (agent, failure.type_name) not in self._logged:
                    self._logged.add((agent, failure.type_name))  # default actions may go on for long: log each once
                    text = "%s. It gets default actions where it fails. Failures of this type are not logged again."
                    _log.warning(text, failure_text(agent, failure).removesuffix("."))
        if failures:
            raise policy_error(failures, actions)
        return actions

    def _count_lateness(self, agent: Agent, until: float) -> None:
        """Add the lateness of an overdue answer to the agent's tally, from where it was last counted."""
        self.tallies[agent].late_seconds += max(until - self._overdue[agent], 0.0)
        self._overdue[agent] = max(until, self._overdue[agent])

    def _is_over_budget(self, agent: Agent) -> bool:
        budget = self.rules.lateness_budget
        return budget is not None and self.tallies[agent].late_seconds > budget

    # ---- methods of a strategy --------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, inputs: Inputs) -> Any:
        """Start a turn of these agents, and return a token for `_end`. Work in the background begins here."""

    @abstractmethod
    def _end(self, token: Any, deadline: float | None) -> Answers:
        """Return the answers that come by `deadline` (of the monotonic clock; None: wait for all of them)."""

    @abstractmethod
    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        """Call a method of these agents' `PolicyHandle`s in the process that has them, and return their answers.

        With `later`, do not wait for a policy that is busy with a turn: it does this when that turn is over.
        """

    def _forget(self, token: Any) -> None:
        """Drop a turn that has begun and will not be ended."""

    def _returned_at(self, agent: Agent) -> float | None:
        """Return when a late policy ended its turn (monotonic clock), 0.0 if unknown, None if it is still busy.

        Only for strategies whose `_end` leaves late policies behind.
        """
        return 0.0

    def _revive(self, agents: Iterable[Agent] | None) -> list[Agent]:
        """Restart the workers of these agents (None: of all) that are dead or late, and return the agents in them."""
        return []

    # ---- episodes and state -----------------------------------------------------------------------------------------

    @in_turn
    def reset(self, agents: Sequence[Agent] | None = None, rows: Sequence[int] | Mask | None = None) -> None:
        """Begin episodes: of all agents or some, in all rows or some (their numbers, or a mask)."""
        chosen = list(self.policies if agents is None else agents)
        self._call("reset", dict.fromkeys(chosen, (row_numbers(rows, self.num_rows),)), later=True)
        if rows is None:
            for agent in chosen:
                self.tallies[agent].late_seconds = 0.0
                self._overdue.pop(agent, None)

    def get_state(self, agent: Agent) -> Any:
        return self.get_states([agent])[agent]

    def set_state(self, agent: Agent, state: Any) -> None:
        self.set_states({agent: state})

    @in_turn
    def get_states(self, agents: Sequence[Agent] | None = None) -> dict[Agent, Any]:
        """Return the states of all agents' policies, or of some. Shared objects are shared in the states too."""
        states = self._call("get_state", dict.fromkeys(self.policies if agents is None else agents, ()))
        try:
            return copy.deepcopy(states)  # in one go, so that shared objects stay shared
        except Exception:  # noqa: BLE001  # user code
            failures: dict[Agent, Failure] = {}
            for agent, state in states.items():
                try:
                    copy.deepcopy(state)
                except Exception as error:  # noqa: BLE001  # user code
                    failures[agent] = Failure.of(error)
        raise policy_error(failures, {})

    @in_turn
    def set_states(self, states: Mapping[Agent, Any]) -> None:
        """Restore states that `get_states` returned."""
        self._call("set_state", {agent: (state,) for agent, state in copy.deepcopy(dict(states)).items()})

    def load_state_dict(self, agent: Agent, weights: Any) -> None:
        self.load_state_dicts({agent: weights})

    @in_turn
    def load_state_dicts(self, weights: Mapping[Agent, Any]) -> None:
        """Load new weights for several agents. If some policies raise, the others have their new weights."""
        self._check_known(weights)
        numbered = {agent: (own, self.versions[agent] + 1) for agent, own in weights.items()}
        error: PolicyError | None = None
        try:
            self._call("load_state_dict", numbered)
        except PolicyError as raised:
            error = raised
        for agent in numbered.keys() - set(error.agents if error else ()):
            self.versions[agent] += 1
        if error is not None:
            raise error

    @in_turn
    def check_weights(self, weights: Mapping[Agent, Any]) -> None:
        """Raise if weights do not fit a policy that has `check_weights`. No policy changes."""
        self._call("check_weights", {agent: (own,) for agent, own in weights.items()})

    def _call(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Any]:
        """Call a method of these agents' handles and return the results. Raise only after all have been called."""
        self._check_open()
        self._check_known(arguments)
        if any(agent in turn.inputs for turn in self._open for agent in arguments):
            raise RuntimeError(f"{method} was called between send and recv. Call recv first.")
        answers = self._call_handles(method, arguments, later=later)
        failures = {agent: one.failure for agent, one in answers.items() if one.failure is not None}
        if failures:
            raise policy_error(failures, {})
        return {agent: one.action for agent, one in answers.items()}

    @in_turn
    def revive(self, agents: Iterable[Agent] | None = None) -> list[Agent]:
        """Restart the workers that have died or are late: all of them, or those of some agents.

        Returns all agents of these workers: their policies begin anew. In the caller's process there are none.
        """
        self._check_open()
        self._check_known(agents or ())
        revived = self._revive(agents)
        self._logged = {logged for logged in self._logged if logged[0] not in revived}
        for agent in revived:
            self._overdue.pop(agent, None)
        return revived

    @in_turn
    def sync(self) -> None:
        """Copy the state of policies in workers into the policies that were given, so that these can be saved."""
        if self._open:
            raise RuntimeError("sync was called between send and recv. Call recv first.")

    def close(self) -> None:
        """Release everything that this wrapper made. A pool that was given stays open."""
        self.closed = True
        self._guard.wait_until_free(CLOSE_SECONDS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.policies)} agents{', closed' if self.closed else ''})"

    def agent_policy(self, agent: Agent) -> WrappedAgent:
        """Return one agent as a policy. Several agents may be called at once."""
        self._check_known([agent])
        return WrappedAgent(self, agent)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("Policies were called after their wrapper was closed. Make a new one.")

    def _check_known(self, agents: Iterable[Agent]) -> None:
        if unknown := [agent for agent in agents if agent not in self.policies]:
            raise KeyError(f"There is no policy for {unknown[0]!r}. There are policies for {list(self.policies)}.")


@dataclass
class WrappedAgent(AgentPolicy):
    """A single agent of a wrapper, as a policy. Call `send` of several agents before `recv`: they act at once."""

    wrapper: PerAgentWrapper
    agent: Agent
    tally: Tally = field(init=False)
    _turns: deque[Turn] = field(default_factory=deque, init=False, repr=False)

    def __post_init__(self) -> None:
        self.tally = self.wrapper.tallies[self.agent]

    def send(self, observation: Any) -> None:
        """Call this agent's policy."""
        self._turns.append(self.wrapper.send_turn({self.agent: observation}))

    def recv(self) -> Any:
        """Return its action of the first turn that has not been received yet."""
        if not self._turns:
            raise RuntimeError("recv was called without send. Call send first.")
        return self.wrapper.recv_turn(self._turns.popleft())[self.agent]

    def step(self, observation: Any) -> Any:
        if self._turns:
            raise RuntimeError("step was called between send and recv. Call recv first.")
        return self.wrapper.step_turn({self.agent: observation})[self.agent]

    def reset(self) -> None:
        self.wrapper.reset([self.agent])

    def get_state(self) -> Any:
        return self.wrapper.get_state(self.agent)

    def set_state(self, state: Any) -> None:
        self.wrapper.set_state(self.agent, state)

    def load_state_dict(self, weights: Any) -> None:
        self.wrapper.load_state_dict(self.agent, weights)


def check_by_agent(what: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"The {what}, of type {type(given).__name__}, are no dict. Give one by agent: {{agent: ...}}.")


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
