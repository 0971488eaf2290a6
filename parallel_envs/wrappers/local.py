"""The strategies whose policies live in the caller's process and thread: sequential, batch and gpu.

PerAgentSequentialWrapper    calls one policy after another: the reference for all other strategies
PerAgentBatchWrapper         splits the agents into groups, and computes each group in one call
PerAgentGPUWrapper           the same on a device, for several turns at once
AgentGroup and subclasses    agents that are computed together, and how
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.checks import suggests_keywords
from parallel_envs.engine import Failure
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.policy_handle import (
    PolicyHandle,
    as_row,
    can_join,
    check_num_actions,
    is_spec,
    join_rows,
    scatter_rows,
    take_rows,
)
from parallel_envs.wrappers.rules import (
    Agent,
    Answer,
    Answers,
    Arguments,
    Inputs,
    PolicyInput,
    Rules,
    Turn,
    call_handle,
    policy_error,
    step_one_by_one,
)
from parallel_envs.wrappers.sharing import sharers

_MOST_GROUPINGS = 32  # sets of agents whose groups are kept: each may hold copies of weights
_MOST_STACK_FAILURES = 3


class LocalWrapper(PerAgentWrapper):
    """Base of the strategies whose policies live in the caller's process. It closes those that it made from specs."""

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._made_here: list[PolicyHandle] = []
        self._handles: dict[Agent, PolicyHandle] = {}
        try:
            for agent, policy in self.policies.items():
                made = policy.make() if is_spec(policy) else policy
                self._handles[agent] = PolicyHandle(made)
                if made is not policy:
                    self._made_here.append(self._handles[agent])
        except BaseException as error:
            self._close_made()
            if isinstance(error, Exception):  # user code
                raise policy_error({agent: Failure.of(error)}, {}) from error
            raise
        self.policies = {agent: handle.policy for agent, handle in self._handles.items()}

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        return {agent: call_handle(self._handles[agent], method, own) for agent, own in arguments.items()}

    def close(self) -> None:
        super().close()
        self._close_made()

    def _close_made(self) -> None:
        made, self._made_here = self._made_here, []
        with contextlib.ExitStack() as closing:  # closes all of them, also if one raises
            for handle in made:
                closing.callback(handle.close)


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
            batches = [as_row(seen) if wanted is None else seen for seen, wanted in own]
            if own and all(can_join(batches[0], batch) for batch in batches):
                masks = [np.ones(1, bool) if wanted is None else np.asarray(wanted, bool) for _, wanted in own]
                merged[agent] = join_rows(batches), np.concatenate(masks)
        answers = self._compute_groups(merged) if merged else Answers.none()
        starts = dict.fromkeys(merged, 0)
        for turn in turns:
            rest = {agent: one for agent, one in turn.inputs.items() if agent not in merged}
            turn.answers = self._compute_groups(rest) if rest else Answers.none()
            for agent in [agent for agent in merged if agent in turn.inputs]:
                answer, wanted, start = answers.of(agent), turn.inputs[agent][1], starts[agent]
                starts[agent] += 1 if wanted is None else len(wanted)
                if answer.failure is not None:  # compute one by one to find which failed: nothing has been sampled yet
                    one = {agent: turn.inputs[agent]}
                    turn.answers.add(step_one_by_one(self._handles, one, Answers.none(), timed=self._timed))
                    continue
                if wanted is None:
                    action = answer.action[start] if answer.action[start].ndim else answer.action[start].item()
                else:
                    action = take_rows(answer.action, slice(start, starts[agent])) if np.any(wanted) else None
                if self._timed:
                    turn.answers.others[agent] = Answer(action, seconds=answer.seconds)
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
            elif kind == "shared" and len(handles) > 1:
                groups.append(SharedPolicyGroup(handles, timed=self._timed))
            else:
                groups.append(AgentGroup(handles, timed=self._timed))
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
        rows = {agent: None if wanted is None else np.flatnonzero(wanted) for agent, (_, wanted) in inputs.items()}
        counts = {agent: 1 if own is None else len(own) for agent, own in rows.items()}
        if not sum(counts.values()):
            return Answers(dict.fromkeys(inputs), {})
        batches = []
        for agent, (observation, _) in inputs.items():
            if counts[agent]:
                own = rows[agent]
                batches.append(as_row(observation) if own is None else take_rows(observation, own))
        if not all(can_join(batches[0], batch) for batch in batches):
            return super()._compute(inputs)
        policy = next(iter(self.handles.values())).policy
        actions = policy.step_batch(join_rows(batches))
        check_num_actions(actions, sum(counts.values()), policy)
        answers, start = Answers.none(), 0
        for agent, (_, wanted) in inputs.items():
            part = take_rows(actions, slice(start, start + counts[agent]))
            start += counts[agent]
            own = rows[agent]
            if own is None or wanted is None:
                answers.actions[agent] = take_rows(part, 0)
            else:
                answers.actions[agent] = scatter_rows(part, own, len(wanted)) if len(own) else None
        return answers


class NetworkReplaced(Exception):
    """A network of a stack is no longer the one with which the stack was made."""


class StackedGroup(AgentGroup):
    """Torch policies of one shape, computed in one forward pass over stacked weights.

    If the pass fails, the policies are called one by one. After three failures in a row in which one by one went well,
    the pass is not tried any more.
    """

    def __init__(self, handles: Mapping[Agent, PolicyHandle], device: str | None, *, timed: bool = False) -> None:
        super().__init__(handles, timed=timed)
        self._policies = [handle.policy for handle in self.handles.values()]
        self._gather = self._policies[0].new_gathering(len(self._policies))
        self._modules: list[Any] = []
        self._stack: Callable[[Any], Any] | None = None
        self._device = device
        self._failures = 0

    def _compute(self, inputs: Inputs) -> Answers:
        if self._failures >= _MOST_STACK_FAILURES or len({policy.deterministic for policy in self._policies}) > 1:
            return super()._compute(inputs)
        try:
            features, mask = self._gather(inputs.values())
            modules = [policy.module for policy in self._policies]
            if self._stack is None:
                from parallel_envs.wrappers.torch_policy import Stack

                self._modules, self._stack = modules, Stack(modules, self._device)
            if modules != self._modules:
                raise NetworkReplaced("A policy has another network.")
            outputs = self._policies[0].compute_stacked(self._stack, features)
        except NetworkReplaced:
            self.is_outdated = True
            return super()._compute(inputs)
        except Exception:  # noqa: BLE001  # nothing has been sampled yet: one by one shows which policy fails
            answers = super()._compute(inputs)
            self._failures += not any(one.failure is not None for one in answers.others.values())
            return answers
        self._failures = 0
        wanted = [own for _, own in inputs.values()]
        actions = self._policies[0].choose_stacked(outputs, mask, wanted, self._policies)
        return Answers(dict(zip(inputs, actions, strict=True)), {})


# ---- gpu ------------------------------------------------------------------------------------------------------------


class PerAgentGPUWrapper(PerAgentBatchWrapper):
    """`PerAgentBatchWrapper` with stacked networks on `device`, for several agents and successive turns at once.

    Everything that was sent is computed together when the first turn is received: the turns of several handles
    (`agent_policy`), and up to `most_turns` turns of one agent, which are received in the order of sending.
    Successive turns of a `TorchPolicy` without memory become rows of one batch; those of any other policy are computed
    one after another. Actions and samples are those of one turn after another.

    With `gather_seconds`, `recv` waits for sends from other threads, until all agents have been sent to or the oldest
    turn has waited so long. Each agent is to be used by one thread at a time.

    Threads: as `PerAgentWrapper`, but calls of `recv` on handles of single agents do not wait for one another: only so
    can they be computed together.

    Memory is bounded: at most `most_turns` observations of each agent wait. Those of one pass are gathered in one
    pinned staging buffer, which grows to the largest pass and stays, and are copied in one transfer.

    Args:
        policies: By agent.
        rules: Deadlines and failures. Waiting for other threads ends at a turn's deadline.
        device: `"auto"` is the first CUDA device if there is one, else the CPU.
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
        if type(most_turns) is not int or most_turns < 1:
            raise ValueError(f"most_turns={most_turns!r} is not a number of turns. Give a whole number from 1 up.")
        if not 0.0 <= gather_seconds < float("inf"):
            raise ValueError(f"gather_seconds={gather_seconds!r} is not a number of seconds. Give one from 0 up.")
        import torch

        if device == "auto":
            device = "cuda:0" if torch.cuda.is_available() else "cpu"
        try:
            chosen = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device={device!r} is unknown. Give 'auto', 'cpu' or such as 'cuda:0'.") from error
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device={device!r} was requested, but torch finds no CUDA device here. Give 'auto' or 'cpu'."
            )
        self.device = device
        super().__init__(policies, rules)
        self.most_turns, self.gather_seconds = most_turns, gather_seconds
        self._arrival = threading.Condition()
        self._computing = threading.Lock()  # one pass at a time

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

    def recv_turn(self, turn: Turn) -> dict[Agent, Any]:
        """Receive the turn that `send_turn` returned. No guard: threads meet here, and `_end` has its locks."""
        return self._finish(turn)

    def _forget(self, token: _WaitingTurn) -> None:
        with self._arrival:
            super()._forget(token)
