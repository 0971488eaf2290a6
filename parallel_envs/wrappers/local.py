"""The strategies whose policies live in the caller's process and thread: sequential, batch and gpu.

PerAgentSequentialWrapper    calls one policy after another: the reference for all other strategies
PerAgentBatchWrapper         splits the agents into groups, and computes each group in one call
PerAgentGPUWrapper           the same on a device, for several turns at once
AgentGroup and subclasses    agents that are computed together, and how
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.checks import check_count, seconds, suggests_keywords
from parallel_envs.devices import AUTO, CPU, find_device
from parallel_envs.engine import Failure
from parallel_envs.extras import explained
from parallel_envs.policies.base import is_network
from parallel_envs.threads import in_turn
from parallel_envs.wrappers.base import PerAgentWrapper, Rules, Turn, policy_error
from parallel_envs.wrappers.policy_handle import (
    Agent,
    Answer,
    Answers,
    Arguments,
    Inputs,
    Mask,
    PolicyHandle,
    PolicyInput,
    call_handle,
    is_spec,
    join_inputs,
    split_actions,
    step_one_by_one,
)
from parallel_envs.wrappers.sharing import sharers

_log = logging.getLogger(__name__)
_MOST_GROUPINGS = 32  # sets of agents whose groups are kept: each may hold copies of weights
_MOST_STACK_FAILURES = 3


class LocalWrapper(PerAgentWrapper):
    """Base of the strategies whose policies live in the caller's process. It closes those that it made from specs."""

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._handles: dict[Agent, PolicyHandle] = {}
        with contextlib.ExitStack() as made_here:  # closes all of them if one cannot be made
            for agent, policy in self.policies.items():
                try:
                    made = policy.make() if is_spec(policy) else policy
                except Exception as error:  # user code
                    raise policy_error({agent: Failure.of(error)}, {}) from error
                self._handles[agent] = PolicyHandle(made)
                if made is not policy:
                    made_here.callback(self._handles[agent].close)
            self._made_here = made_here.pop_all()
        self.policies = {agent: handle.policy for agent, handle in self._handles.items()}

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        return {agent: call_handle(self._handles[agent], method, own) for agent, own in arguments.items()}

    def close(self) -> None:
        super().close()
        self._made_here.close()


class PerAgentSequentialWrapper(LocalWrapper):
    """Calls one policy after another, in the caller's thread. Every other strategy must give the same results.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    def _begin(self, inputs: Inputs) -> Inputs:
        return inputs

    def _end(self, token: Inputs, deadline: float | None) -> Answers:
        return step_one_by_one(self._handles, token, Answers.none(), timed=self.rules.action_timeout is not None)


# ---- batch ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _WaitingTurn:
    """A turn that has begun. `answers` is set when it has been computed."""

    inputs: Inputs
    since: float
    answers: Answers | None = None


class PerAgentBatchWrapper(LocalWrapper):
    """Collects all agents and all their rows, and computes them in as few calls as possible.

    Agents that share one policy with a `step_batch` become rows of one call. Torch policies (`TorchPolicy`) whose
    networks have one shape are stacked and computed in one forward pass, each with its own weights, and each samples
    its action from its own generator. All other policies are called one by one. A stack notices changes by an optimiser
    or by `load_state_dict`; it cannot notice changes that are written to `parameter.data`.

    Handles of single agents (`agent_policy`) are computed together, too: `send` to all of them, and the first `recv`
    computes all that were sent.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    device: str | None = None
    """The device of stacked networks. None: where they are."""

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._sharers = sharers(self.policies)
        self._timed = self.rules.action_timeout is not None
        self._groupings: dict[tuple[Agent, ...], list[AgentGroup]] = {}
        self._waiting: list[_WaitingTurn] = []
        alone = [group[0] for group in self._sharers if len(group) == 1]
        self._mergeable = [agent for agent in alone if getattr(self.policies[agent], "can_be_stacked", False)]

    def _begin(self, inputs: Inputs) -> _WaitingTurn:
        turn = _WaitingTurn(inputs, time.monotonic())
        self._waiting.append(turn)
        return turn

    def _end(self, token: _WaitingTurn, deadline: float | None) -> Answers:
        if token.answers is None:
            turns, self._waiting = self._waiting, []
            self._compute_turns(turns)
        assert token.answers is not None, "the turn was among those that waited"
        return token.answers

    def _forget(self, token: _WaitingTurn) -> None:
        self._waiting = [turn for turn in self._waiting if turn is not token]

    # ---- several turns at once --------------------------------------------------------------------------------------

    def _compute_turns(self, turns: Sequence[_WaitingTurn]) -> None:
        """Answer all of these turns. If Ctrl-C ends that, the remaining agents get the interrupt as their failure."""
        try:
            if len(turns) == 1:
                turns[0].answers = self._compute_groups(turns[0].inputs)
                return
            inputs = {agent: one for turn in turns for agent, one in turn.inputs.items()}
            if len(inputs) < sum(len(turn.inputs) for turn in turns):
                self._compute_successive(turns)
                return
            answers = self._compute_groups(inputs)
            for turn in turns:
                turn.answers = answers.part(turn.inputs)
        except BaseException as error:
            for turn in turns:
                turn.answers = turn.answers or Answers.none()
                missing = turn.inputs.keys() - turn.answers.actions.keys() - turn.answers.others.keys()
                turn.answers.add(Answers.failed(missing, error))
            raise

    def _compute_successive(self, turns: Sequence[_WaitingTurn]) -> None:
        """Compute turns of which some have an agent in common: its turns as one batch if possible, or one by one."""
        merged: dict[Agent, PolicyInput] = {}
        for agent in self._mergeable:
            own = [turn.inputs[agent] for turn in turns if agent in turn.inputs]
            if own and (joined := join_inputs(own)) is not None:
                merged[agent] = joined
        answers = self._compute_groups(merged) if merged else Answers.none()
        parts: dict[Agent, Iterator[Any]] = {}
        for agent in merged:
            own = [turn.inputs[agent] for turn in turns if agent in turn.inputs]
            if (answer := answers.of(agent)).failure is None:
                parts[agent] = iter(split_actions(answer.action, own))
        for turn in turns:
            rest = {agent: one for agent, one in turn.inputs.items() if agent not in merged}
            turn.answers = self._compute_groups(rest) if rest else Answers.none()
            for agent in [agent for agent in merged if agent in turn.inputs]:
                if agent not in parts:  # compute one by one to find which failed: nothing has been sampled yet
                    one = {agent: turn.inputs[agent]}
                    turn.answers.add(step_one_by_one(self._handles, one, Answers.none(), timed=self._timed))
                    continue
                action = next(parts[agent])
                action = action.item() if isinstance(action, np.generic) else action  # as `TorchPolicy.step` returns it
                if self._timed:
                    turn.answers.others[agent] = Answer(action, seconds=answers.of(agent).seconds)
                else:
                    turn.answers.actions[agent] = action

    # ---- groups -----------------------------------------------------------------------------------------------------

    def _compute_groups(self, inputs: Inputs) -> Answers:
        """Compute the answers of these agents, group by group."""
        agents = tuple(inputs)
        groups = self._groupings[agents] if agents in self._groupings else self._new_grouping(agents)
        if len(groups) == 1:
            answers = groups[0].compute(inputs)
        else:
            answers = Answers.none()
            for group in groups:
                answers.add(group.compute({agent: inputs[agent] for agent in group.agents}))
        if any(group.is_outdated for group in groups):
            self._groupings.clear()
        return answers

    def _new_grouping(self, agents: tuple[Agent, ...]) -> list[AgentGroup]:
        """Split the agents into groups: a stack, a shared policy, or one policy alone."""
        kinds: dict[Agent, Any] = {}
        for agent in agents:
            policy, handle = self.policies[agent], self._handles[agent]
            stack_signature = getattr(policy, "stack_signature", None)
            signature = None if stack_signature is None else stack_signature()
            if signature is not None:
                kinds[agent] = "stacked", signature
            elif handle.batches and not handle.remembers_rows:
                kinds[agent] = "shared", id(policy)
            else:
                kinds[agent] = "alone", agent
        for sharing in self._sharers:  # agents that share an object keep their order: all in one group, or all alone
            here = [agent for agent in sharing if agent in kinds]
            if len({kinds[agent] for agent in here}) > 1:
                kinds |= {agent: ("alone", agent) for agent in here}
        members: dict[Any, dict[Agent, PolicyHandle]] = {}
        for agent in agents:
            members.setdefault(kinds[agent], {})[agent] = self._handles[agent]
        groups: list[AgentGroup] = []
        for (kind, _), handles in members.items():
            if kind == "stacked" and len(handles) > 1:
                groups.append(StackedGroup(handles, self.device, timed=self._timed))
            else:
                is_shared = kind == "shared" and len(handles) > 1
                groups.append((SharedPolicyGroup if is_shared else AgentGroup)(handles, timed=self._timed))
        while len(self._groupings) >= _MOST_GROUPINGS:
            del self._groupings[next(iter(self._groupings))]
        self._groupings[agents] = groups
        return groups


class AgentGroup:
    """Agents that are computed together. This base class computes them one by one.

    With `timed`, answers hold the seconds that they took. Each agent is charged with the time of the whole group.
    """

    def __init__(self, handles: Mapping[Agent, PolicyHandle], *, timed: bool = False) -> None:
        self.handles = dict(handles)
        self.agents = tuple(handles)
        self.is_outdated = False
        """True if the agents must be grouped anew."""
        self._timed = timed

    def compute(self, inputs: Inputs) -> Answers:
        """Return the answers of all agents. An error of the whole group is the failure of each agent."""
        began = time.monotonic() if self._timed else 0.0
        try:
            answers = self._compute(inputs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
            answers = Answers.failed(inputs.keys(), error)
        if not self._timed:
            return answers
        seconds = time.monotonic() - began
        timed = {agent: Answer(action, seconds=seconds) for agent, action in answers.actions.items()}
        return Answers({}, {**timed, **answers.others})

    def _compute(self, inputs: Inputs) -> Answers:
        return step_one_by_one(self.handles, inputs, Answers.none(), timed=self._timed)


class SharedPolicyGroup(AgentGroup):
    """Agents of one policy, whose `step_batch` is called once for all their rows."""

    def _compute(self, inputs: Inputs) -> Answers:
        joined = join_inputs(list(inputs.values()))
        if joined is None:
            return super()._compute(inputs)
        action = next(iter(self.handles.values())).act(*joined)
        return Answers(dict(zip(inputs, split_actions(action, inputs.values()), strict=True)), {})


class StackedGroup(AgentGroup):
    """Torch policies of one shape, computed in one forward pass over stacked weights.

    If the pass fails, the policies are called one by one. After three failures in a row in which one by one went well,
    the pass is not tried any more.
    """

    def __init__(self, handles: Mapping[Agent, PolicyHandle], device: str | None, *, timed: bool = False) -> None:
        from parallel_envs.policies.torch_policy import PolicyStack

        super().__init__(handles, timed=timed)
        self._make_stack, self._device = PolicyStack, device
        self._stack = PolicyStack([handle.policy for handle in self.handles.values()], device)
        self._failures = 0

    def _compute(self, inputs: Inputs) -> Answers:
        if self._failures >= _MOST_STACK_FAILURES:
            return super()._compute(inputs)
        if self._stack.is_outdated():
            policies: list[Any] = [handle.policy for handle in self.handles.values()]
            signatures = {policy.stack_signature() for policy in policies}
            if len(signatures) > 1 or None in signatures:
                self.is_outdated = True
                return super()._compute(inputs)
            self._stack = self._make_stack(policies, self._device)
        try:
            outputs, mask = self._stack.compute(inputs.values())
        except Exception:  # noqa: BLE001  # nothing has been sampled yet: one by one shows which policy fails
            answers = super()._compute(inputs)
            self._failures += not any(one.failure is not None for one in answers.others.values())
            if self._failures == _MOST_STACK_FAILURES:
                text = "The networks of %s are computed one by one from now on: in one pass they fail."
                _log.warning(text, list(self.agents), exc_info=True)
            return answers
        self._failures = 0
        actions = self._stack.choose(outputs, mask, [own for _, own in inputs.values()])
        return Answers(dict(zip(inputs, actions, strict=True)), {})


# ---- gpu ------------------------------------------------------------------------------------------------------------


class PerAgentGPUWrapper(PerAgentBatchWrapper):
    """`PerAgentBatchWrapper` whose networks are computed on `device`, for several agents and successive turns at once.

    Networks of one shape are stacked there. Every other `TorchPolicy` (a single one, of another shape, recurrent, or
    with a `step_batch` of its own that calls `compute`) is computed there alone, with a copy of its network that
    follows all changes. Any other policy is told the device if it has a method `act_on(device)`. A warning is logged
    for a policy that has a network and is not computed there, and if "auto" finds no device.

    Everything that was sent is computed together when the first turn is received: the turns of several handles
    (`agent_policy`), and up to `most_turns` turns of one agent, which are received in the order of sending.
    Successive turns of a `TorchPolicy` without memory become rows of one batch; those of any other policy are computed
    one after another. Actions and samples are those of one turn after another.

    With `gather_seconds`, `recv` waits for sends from other threads, until all agents have been sent to or the oldest
    turn has waited so long. Each agent is to be used by one thread at a time.

    Threads: as `PerAgentWrapper`, but calls of `recv` on handles of single agents do not wait for one another: only so
    can they be computed together.

    Memory is bounded: at most `most_turns` observations of each agent wait. Those of one pass are copied in one
    transfer, to CUDA from pinned memory.

    Args:
        policies: By agent.
        rules: Deadlines and failures. Waiting for other threads ends at a turn's deadline.
        device: `"auto"` is the first CUDA device if there is one, else MPS, else the CPU.
        most_turns: How many turns of an agent may be sent before the first of them is received.
        gather_seconds: How long a turn may wait for others when it is received. 0: not at all.
    """

    @suggests_keywords
    def __init__(
        self,
        policies: Mapping[Agent, Any],
        rules: Rules | None = None,
        *,
        device: str = "auto",
        most_turns: int = 1,
        gather_seconds: float = 0.0,
    ) -> None:
        check_count("most_turns", most_turns)
        seconds("gather_seconds", gather_seconds)
        with explained("The strategy 'gpu'"):
            self.device = find_device(device)
        if device == AUTO and self.device == CPU:
            text = "strategy 'gpu': torch finds no CUDA device here, so networks are computed on the CPU. "
            _log.warning("%sSay device='cpu' if that is what you want.", text)
        super().__init__(policies, rules)
        self.most_turns, self.gather_seconds = most_turns, min(gather_seconds, threading.TIMEOUT_MAX)
        self._arrival = threading.Condition()
        self._computing = threading.Lock()  # one pass at a time
        self._unproven: set[Agent] = set()  # compute actions in their own way, and have not acted yet
        for agent, policy in self.policies.items():
            if callable(act_on := getattr(policy, "act_on", None)):
                act_on(self.device)
                if getattr(policy, "has_own_step", False):
                    self._unproven.add(agent)
            elif any(map(is_network, getattr(policy, "__dict__", {}).values())):
                self._warn_of_cpu(agent)

    def _warn_of_cpu(self, agent: Agent) -> None:
        text = "strategy 'gpu': the policy of %r, %s, has a network that is not computed on the device %r. Give a "
        advice = "TorchPolicy (a step_batch of your own calls its `compute`), or give the policy act_on(device)."
        _log.warning(text + advice, agent, type(self.policies[agent]).__name__, self.device)

    def _compute_turns(self, turns: Sequence[_WaitingTurn]) -> None:
        super()._compute_turns(turns)
        for agent in [agent for agent in self._unproven if any(agent in turn.inputs for turn in turns)]:
            self._unproven.discard(agent)
            if not self._handles[agent].uses_device:
                self._warn_of_cpu(agent)

    @in_turn
    def _start(self, observations: Mapping[Agent, Any], wanted: Mapping[Agent, Mask] | None, turn: Turn) -> Turn:
        return super()._start(observations, wanted, turn)

    def _begin(self, inputs: Inputs) -> _WaitingTurn:
        with self._arrival:
            self._arrival.notify_all()
            return super()._begin(inputs)

    def _end(self, token: _WaitingTurn, deadline: float | None) -> Answers:
        if self.gather_seconds:
            with self._arrival:  # wait until all agents were sent to, or another thread takes this turn
                while token in self._waiting:
                    agents = {agent for turn in self._waiting for agent in turn.inputs}
                    until = self._waiting[0].since + self.gather_seconds
                    remaining = min(until, until if deadline is None else deadline) - time.monotonic()
                    if len(agents) >= len(self._handles) or remaining <= 0.0 or not self._arrival.wait(remaining):
                        break
        with self._computing:
            if token.answers is None:  # no other thread has computed this turn with its own
                with self._arrival:
                    turns, self._waiting = self._waiting, []
                    self._arrival.notify_all()
                self._compute_turns(turns)
        assert token.answers is not None, "the turn was among those that waited"
        return token.answers

    # No guard in these two: threads meet here, and `_start` and `_end` have their locks.

    def step_turn(self, observations: Mapping[Agent, Any]) -> dict[Agent, Any]:
        """`send_turn` and `recv_turn`."""
        return self._step(observations, None)

    def recv_turn(self, turn: Turn) -> dict[Agent, Any]:
        """Receive the turn that `send_turn` returned."""
        return self._finish(turn)

    def _forget(self, token: _WaitingTurn) -> None:
        with self._arrival:
            super()._forget(token)
