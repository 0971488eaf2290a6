"""The process strategy: for policies that compute in Python. They live in worker processes.

PerAgentProcessWrapper    in the caller: sends observations to the workers and receives actions
ObservationBuffer         shared memory with a place for each agent's observation
PolicyHost                in each worker: the handles of its policies
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.checks import suggests_keywords
from parallel_envs.engine import (
    ArrayLayout,
    Failure,
    PendingRequest,
    Reply,
    SharedBlock,
    Unpicklable,
)
from parallel_envs.engine.worker_group import LostWorker, WorkerGroup
from parallel_envs.threads import in_turn
from parallel_envs.wrappers.base import WORKER_DIED, PerAgentWrapper, Rules, policy_error, still_busy
from parallel_envs.wrappers.policy_handle import (
    Agent,
    Answer,
    Answers,
    Arguments,
    Inputs,
    PolicyHandle,
    PolicyInput,
    call_handle,
    is_spec,
    step_one_by_one,
)
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.sharing import sharers

IN_BUFFER = ...
"""Stands for an observation that is in the observation buffer. (None may be an observation.)"""
_STATE_SECONDS = 30.0


# ---- in a worker ----------------------------------------------------------------------------------------------------


class PolicyHost:
    """The handles of the policies in one worker. `policies` are the policies themselves, or specs that make them."""

    def __init__(self, policies: Mapping[Agent, Any]) -> None:
        self._handles: dict[Agent, PolicyHandle] = {}
        self._not_made: dict[Agent, Failure] = {}
        self._views: dict[Agent, npt.NDArray[Any]] = {}
        self._ended = 0.0
        for agent, policy in policies.items():
            try:
                self._handles[agent] = PolicyHandle(policy.make() if is_spec(policy) else policy)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end its worker by raising
                self._not_made[agent] = Failure.of(error)

    def not_made(self) -> dict[Agent, Failure]:
        """Return the failures of the specs that made no policy."""
        return self._not_made

    def attach(self, block: SharedBlock, layout: ArrayLayout) -> None:
        """Read observations from this buffer from now on."""
        self._views = {agent: view for agent, view in layout.views(block).items() if agent in self._handles}

    def ring(self, argument: int) -> Answers:
        """Let all policies act on the observations in the buffer. The engine calls this for a request without data."""
        return self.act(dict.fromkeys(self._views, (IN_BUFFER, None)))

    def act(self, inputs: Inputs) -> Answers:
        """Let these agents' policies act, each on the observation given here or in the buffer."""
        seen = {
            agent: (self._views[agent].copy() if observation is IN_BUFFER else observation, wanted)
            for agent, (observation, wanted) in inputs.items()
        }
        answers = step_one_by_one(self._handles, seen, Answers.none())
        self._ended = time.monotonic()
        return Answers(answers.actions, answers.others, self._ended)

    def call(self, method: str, arguments: Arguments) -> Answers:
        """Call a method of these agents' handles."""
        others = {agent: call_handle(self._handles[agent], method, own) for agent, own in arguments.items()}
        return Answers({}, others, self._ended)

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for handle in self._handles.values():
                closing.callback(handle.close)


# ---- in the caller --------------------------------------------------------------------------------------------------


class ObservationBuffer:
    """A block of shared memory with a place for each agent's array. Arrays of other shapes need a new layout."""

    def __init__(self) -> None:
        self._block: SharedBlock | None = None
        self._views: dict[Agent, npt.NDArray[Any]] = {}

    def put(self, agent: Agent, observation: Any) -> bool:
        """Copy an observation into its place. Return False if it is no array or does not fit there."""
        if not self._fits(agent, observation):
            return False
        self._views[agent][...] = observation
        return True

    def fits_all(self, inputs: Inputs) -> bool:
        """Return True if every array among the observations has a place."""
        return all(self._fits(agent, seen) or not _is_plain_array(seen) for agent, (seen, _) in inputs.items())

    def lay_out(self, inputs: Inputs) -> tuple[SharedBlock, ArrayLayout, SharedBlock | None]:
        """Make places for the arrays in `inputs` and keep one for each earlier array.

        Returns the new block, its layout, and the old block, which must be closed when no worker reads it any more.
        """
        arrays = {agent: seen for agent, (seen, _) in inputs.items() if _is_plain_array(seen)}
        layout = ArrayLayout.of(self._views | arrays)
        before, self._block = self._block, SharedBlock.create(layout.num_bytes)
        self._views = layout.views(self._block)
        return self._block, layout, before

    def clear(self) -> None:
        """Forget all places: fresh workers are not attached to the block."""
        self._views = {}

    def close(self) -> None:
        self.clear()
        if self._block is not None:
            self._block.close()
            self._block = None

    def _fits(self, agent: Agent, observation: Any) -> bool:
        view = self._views.get(agent)
        return (
            view is not None
            and type(observation) is np.ndarray
            and view.shape == observation.shape
            and view.dtype == observation.dtype
        )


def _is_plain_array(observation: Any) -> bool:
    return type(observation) is np.ndarray and not observation.dtype.hasobject and observation.size > 0


SentTurn = tuple[dict[int, tuple[PendingRequest, list[Agent]]], dict[Agent, Answer]]
"""The request to each worker with its agents, and the failures of agents to which nothing could be sent."""


class PerAgentProcessWrapper(PerAgentWrapper):
    """Policies live in the workers of a shared pool, several in one if there are more agents than workers.

    Agents that share an object live in the same worker. Arrays travel through shared memory, anything else by pipe. The
    death of a worker is an error that names its agents; `revive` starts a new worker with the policies as they were
    given or last `sync`ed, and with the weights that were loaded last.

    `PerAgentSubprocessWrapper(policy)`, with the policy of a single agent instead of a dict, returns a
    `StandaloneAgent`: that policy in a worker of a pool that all such agents share.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    acts_in_background = True

    @suggests_keywords
    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._policy_pool = PolicyPool() if pool is None else pool
        self._guard = self._policy_pool.guard  # its processes belong to one thread at a time, for all wrappers
        self._buffer = ObservationBuffer()
        self._last: dict[int, PendingRequest] = {}  # the last request to each worker
        self._late: dict[int, PendingRequest] = {}  # requests whose turn has ended without their answers
        self._ended: dict[int, float] = {}  # when each worker ended the turn that was late last
        self._weights: dict[Agent, tuple[Any, int]] = {}  # loaded last, in the order of loading, with their versions
        self._unsynced: set[Agent] = set()  # agents whose weights were loaded since the last `sync`
        try:
            self._workers = self._policy_pool.processes()
            self._place_policies()
        except BaseException:
            self.close()
            raise

    @in_turn
    def _place_policies(self) -> None:
        """Assign the agents to workers and build their policies there. No other wrapper uses the workers meanwhile."""
        others = self._policy_pool.num_policies
        held: dict[int, list[Agent]] = {worker: [] for worker in range(self._workers.num_workers)}
        for group in sorted(sharers(self.policies), key=len, reverse=True):  # each to the worker with fewest policies
            held[min(held, key=lambda worker: len(held[worker]) + others.get(worker, 0))].extend(group)
        held = {worker: agents for worker, agents in held.items() if agents}
        self._group = WorkerGroup(self._workers, self._host_of, held)
        self._held = held  # `close` takes it as the sign that the policies have been placed
        others.update({worker: len(agents) for worker, agents in self._held.items()})
        self._home = {agent: worker for worker, agents in self._held.items() for agent in agents}
        for worker in self._held:
            if self._workers.death(worker) is not None:  # it has died while another wrapper used it
                self._workers.restart(worker)
        self._build(self._held)

    def _host_of(self, worker: int) -> tuple[Any, ...]:
        return PolicyHost, {agent: self.policies[agent] for agent in self._held[worker]}

    def _build(self, workers: Collection[int]) -> None:
        """Build the policies in these workers. Raises PolicyError for those that cannot be made."""
        losses = self._group.build(workers)
        failures = {agent: _failure_of(loss) for loss in losses for agent in self._held[loss.worker]}
        if not losses and any(map(is_spec, self.policies.values())):
            request = self._workers.send(dict.fromkeys(workers, self._group.call("not_made")))
            for worker, reply in self._group.replies(request).items():
                if (failure := _failure_in(reply)) is not None:
                    failures |= dict.fromkeys(self._held[worker], failure)
                for agent, failure in (reply.value or {}).items():
                    failures[agent] = failure
                    self._group.give_up(worker, failure)
        if failures:
            raise policy_error(failures, {})

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, inputs: Inputs) -> SentTurn:
        self._policy_pool.check_open()
        self._forget_answered()
        if not self._buffer.fits_all(inputs) and not any(map(self._is_busy, self._last)):
            block, layout, before = self._buffer.lay_out(inputs)
            alive = [worker for worker in self._held if self._loss(worker) is None]
            self._workers.wait(self._workers.send(dict.fromkeys(alive, self._group.call("attach", block, layout))))
            if before is not None:
                before.close()
        by_worker: dict[int, dict[Agent, PolicyInput]] = {}
        for agent, (observation, wanted) in inputs.items():
            worker = self._home[agent]
            if worker not in self._late:  # else it still computes an earlier turn: its agents are late again
                in_buffer = not self._is_busy(worker) and self._buffer.put(agent, observation)
                by_worker.setdefault(worker, {})[agent] = (IN_BUFFER if in_buffer else observation), wanted
        requests: dict[int, tuple[PendingRequest, list[Agent]]] = {}
        failed: dict[Agent, Answer] = {}
        for worker, own in by_worker.items():
            if self._loss(worker) is not None:
                continue
            is_in_buffer = all(seen is IN_BUFFER and wanted is None for seen, wanted in own.values())
            try:
                if is_in_buffer and len(own) == len(self._held[worker]):
                    request = self._workers.ring(self._group.key, 0, (worker,))
                else:
                    request = self._workers.send({worker: self._group.call("act", own)})
            except Unpicklable as error:
                failed |= dict.fromkeys(own, Answer(failure=Failure.of(error)))
                continue
            self._last[worker] = request
            requests[worker] = request, list(own)
        return requests, failed

    def _end(self, token: SentTurn, deadline: float | None) -> Answers:
        self._policy_pool.check_owner()
        requests, failed = token
        answers = Answers({}, failed)
        for worker, (request, agents) in requests.items():
            if self._workers.wait(request, None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                answers.add(self._answers_in(worker, request, agents))
            else:
                self._late[worker] = request
        for worker in self._held.keys() - requests.keys():
            if (loss := self._loss(worker)) is not None:
                answers.add(Answers({}, dict.fromkeys(self._held[worker], Answer(failure=loss))))
        return answers

    def _answers_in(self, worker: int, request: PendingRequest, agents: Collection[Agent]) -> Answers:
        """Return these agents' answers in a worker's reply to a request."""
        reply = request.replies[worker]
        failure = _failure_in(reply)
        if failure is not None:
            return Answers({}, dict.fromkeys(agents, Answer(failure=failure)))
        answers: Answers = reply.value
        return answers

    # ---- late and lost workers --------------------------------------------------------------------------------------

    def _loss(self, worker: int) -> Failure | None:
        """Return the failure of a worker that has no policies of this wrapper any more, else None."""
        loss = self._group.lost(worker)
        return None if loss is None else _failure_of(loss)

    def _forget_answered(self) -> None:
        """Take in replies that have come, also to requests that were late or that Ctrl-C has left without `recv`."""
        while any(map(self._is_busy, self._last)) and self._workers.pump(0.0):
            pass
        for worker, request in list(self._late.items()):
            if request.done:
                del self._late[worker]
                reply = request.replies[worker]
                self._ended[worker] = reply.value.ended if _failure_in(reply) is None else 0.0

    def _is_busy(self, worker: int) -> bool:
        """Return True if a worker may still read from the buffer."""
        return worker in self._last and not self._last[worker].done

    def _returned_at(self, agent: Agent) -> float | None:
        self._policy_pool.check_open()
        self._forget_answered()
        worker = self._home[agent]
        return None if worker in self._late else self._ended.get(worker, 0.0)

    def _revive(self, agents: Iterable[Agent] | None) -> list[Agent]:
        self._policy_pool.check_open()
        self._forget_answered()
        chosen = self._held if agents is None else {self._home[agent] for agent in agents}
        lost = [w for w in self._held if w in chosen and (w in self._late or self._loss(w) is not None)]
        for worker in lost:
            if worker in self._late or self._workers.death(worker) is not None:
                self._group.replace(worker, built=False)
            self._late.pop(worker, None)
            self._last.pop(worker, None)
        self._buffer.clear()
        self._build(lost)
        revived = [agent for worker in lost for agent in self._held[worker]]
        weights = {agent: own for agent, own in self._weights.items() if agent in revived}
        answers = self._call_handles("load_state_dict", weights)
        if failures := {agent: one.failure for agent, one in answers.items() if one.failure is not None}:
            raise policy_error(failures, {})
        return revived

    # ---- state ------------------------------------------------------------------------------------------------------

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        answers: dict[Agent, Answer] = {}
        if method == "check_weights":  # where the policy is here too, weights need not be sent to be checked
            here = [agent for agent in arguments if not is_spec(self.policies[agent])]
            handles = {agent: PolicyHandle(self.policies[agent]) for agent in here}
            answers = {agent: call_handle(handles[agent], method, arguments[agent]) for agent in here}
            arguments = {agent: own for agent, own in arguments.items() if agent not in here}
        self._policy_pool.check_open()
        self._forget_answered()
        limit = self.rules.action_timeout
        requests: dict[int, tuple[PendingRequest, list[Agent]]] = {}
        for worker, held in self._held.items():
            own = {agent: arguments[agent] for agent in held if agent in arguments}
            if not own:
                continue
            if not later and worker in self._late and not self._workers.wait(self._late[worker], limit):
                answers |= dict.fromkeys(own, Answer(failure=still_busy(method)))
            elif (loss := self._loss(worker)) is not None:
                answers |= dict.fromkeys(own, Answer(failure=loss))
            else:
                request = self._last[worker] = self._workers.send({worker: self._group.call("call", method, own)})
                requests[worker] = request, list(own)
        self._forget_answered()
        # A state may be large: it may take longer than an action.
        seconds = limit if limit is None or later else max(limit, _STATE_SECONDS)
        for worker, (request, agents) in requests.items():
            if worker in self._late:
                self._late[worker] = request  # a worker answers in order: its late turn is over when this is answered
            elif self._workers.wait(request, seconds):
                received = self._answers_in(worker, request, agents)
                answers |= {agent: received.of(agent) for agent in agents}
            else:
                self._late[worker] = request
                answers |= {} if later else dict.fromkeys(agents, Answer(failure=still_busy(method)))
        if method == "load_state_dict":
            for agent in [agent for agent in arguments if agent in answers and answers[agent].failure is None]:
                weights, version = arguments[agent]
                self._weights.pop(agent, None)  # to the end: agents may share the network that was loaded last
                self._weights[agent] = _copy_if_possible(weights), version
                self._unsynced.add(agent)
        return answers

    def sync(self) -> None:
        super().sync()
        given = [agent for agent, policy in self.policies.items() if not is_spec(policy)]
        states = self.get_states(given)
        for agent in [agent for agent in self._weights if agent in self._unsynced and agent in states]:
            weights, version = self._weights[agent]
            PolicyHandle(self.policies[agent]).load_state_dict(_copy_if_possible(weights), version)
            self._unsynced.discard(agent)
        for agent, (own, _) in states.items():
            PolicyHandle(self.policies[agent]).set_state((own, []))

    def close(self) -> None:
        if self.closed:
            return
        if self._own_pool:
            self._policy_pool.close()  # first: this ends the wait of another thread for these workers
        super().close()
        if hasattr(self, "_held"):  # else its policies were never placed
            self._policy_pool.num_policies.subtract({worker: len(agents) for worker, agents in self._held.items()})
            if not (self._policy_pool.closed or self._workers.closed or self._guard.is_taken):
                self._remove_policies()
        self._buffer.close()

    @in_turn
    def _remove_policies(self) -> None:
        """Remove the policies from a pool that stays open. Restart workers that hang in one of these policies."""
        self._forget_answered()
        for worker in self._late:
            self._workers.restart(worker)
        self._group.drop([worker for worker in self._held if worker not in self._late])


PerAgentSubprocessWrapper = PerAgentProcessWrapper
"""Older name of `PerAgentProcessWrapper`."""


def _copy_if_possible(weights: Any) -> Any:
    """Return a copy of weights, which their owner may go on training in place. Return them if they cannot be copied."""
    try:
        return copy.deepcopy(weights)
    except Exception:  # noqa: BLE001  # user code
        return weights


def _failure_in(reply: Reply) -> Failure | None:
    return reply.failure if reply.death is None else _failure_of(LostWorker(reply.worker, reply.death.pid, reply.death))


def _failure_of(loss: LostWorker) -> Failure:
    text = loss.text(f"its worker (pid {loss.pid})").removesuffix(".")  # the error goes on with advice
    return loss.failure or Failure(WORKER_DIED, text, text)
