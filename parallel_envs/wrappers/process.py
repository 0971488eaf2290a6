"""In worker processes: for policies that compute in Python. They live there; observations go out, actions come back."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parallel_envs.engine import HOST, Call, Failure, PendingRequest, Reply, Unpicklable, picklable
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import in_turn
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, policy_error, still_busy, told
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.desk import Desk
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process_host import IN_BLOCK, PolicyHost
from parallel_envs.wrappers.rules import Rules
from parallel_envs.wrappers.seats import Seat, is_spec
from parallel_envs.wrappers.sharing import sharers

_STATE_SECONDS = 30.0


@dataclass(slots=True)
class _Asked:
    """A turn on its way: the request to each worker, and who was not asked because it cannot be."""

    tickets: dict[int, tuple[PendingRequest, list[Agent]]]
    refused: dict[Agent, Answer]


class PerAgentProcessWrapper(PerAgentWrapper):
    """Policies live in the workers of a shared pool, several in one if there are more agents than workers.

    Agents that share something live in the same worker. Arrays travel through shared memory, anything else by pipe. A
    worker that dies is an error that names its agents; `revive` puts a fresh one in its place, with the policies as
    they were given or last `sync`ed, and with the weights that were loaded last.

    `PerAgentSubprocessWrapper(policy)`, with the policy of a single agent instead of a dict, returns a
    `StandaloneAgent`: that policy in a worker of a pool that all such agents share.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    goes_on = True

    @suggests_keywords
    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._policy_pool = PolicyPool() if pool is None else pool
        self._guard = self._policy_pool.guard  # its processes belong to one thread at a time, whichever wrapper asks
        self._desk = Desk()
        self._last: dict[int, PendingRequest] = {}  # of each worker, what it was asked last
        self._late: dict[int, PendingRequest] = {}  # whose turn has ended without them
        self._pids: dict[int, int] = {}
        self._unmade_in: dict[int, Failure] = {}  # workers in which policies could not be made again
        self._weights: dict[Agent, tuple[Any, int]] = {}  # that were loaded last, the latest last, and their versions
        self._abroad: set[Agent] = set()  # whose weights have not been brought home yet
        try:
            self._workers = self._policy_pool.processes()
            self._move_in()
        except BaseException:
            self.close()
            raise

    @in_turn
    def _move_in(self) -> None:
        """Put the policies into the workers, while no other wrapper of the pool asks these for anything."""
        self._key = self._workers.new_key()
        self._held = _shared_out(sharers(self.policies), self._workers.num_workers, self._policy_pool.num_seated)
        self._policy_pool.num_seated.update({worker: len(agents) for worker, agents in self._held.items()})
        self._home = {agent: worker for worker, agents in self._held.items() for agent in agents}
        for worker in self._held:
            if self._workers.death(worker) is not None:  # it has died on another wrapper
                self._workers.restart(worker)
        self._settle_in(self._held)

    def _settle_in(self, workers: Collection[int]) -> None:
        calls = {
            worker: Call(
                HOST, "build", (self._key, PolicyHost, {agent: self.policies[agent] for agent in self._held[worker]})
            )
            for worker in workers
        }
        ticket = self._workers.send(calls)
        self._workers.wait(ticket)
        self._pids |= {worker: self._workers.pid(worker) for worker in workers}
        failures = {
            agent: failure
            for worker, reply in ticket.replies.items()
            if (failure := _failure_in(reply)) is not None
            for agent in self._held[worker]
        }
        if not failures and any(map(is_spec, self.policies.values())):
            failures = self._unmade(workers)
        self._unmade_in |= {self._home[agent]: failure for agent, failure in failures.items()}
        if failures:
            raise policy_error(failures, {})

    def _unmade(self, workers: Collection[int]) -> dict[Agent, Failure]:
        """How those failed whose specs made no policy."""
        ticket = self._workers.send(dict.fromkeys(workers, Call(self._key, "unmade")))
        self._workers.wait(ticket)
        answers = [self._answers_in(worker, ticket, self._held[worker]) for worker in workers]
        return {agent: one.failure for said in answers for agent, one in said.others.items() if one.failure is not None}

    def _loss(self, worker: int) -> Failure | None:
        """How a worker was lost, if it was."""
        death = self._workers.death(worker)
        if death is not None:
            return _of_death(death)
        if worker in self._unmade_in:
            return self._unmade_in[worker]
        if self._workers.pid(worker) != self._pids[worker]:
            text = "its worker was replaced by another wrapper of the pool; call revive() to start the policy anew"
            return Failure("WorkerDied", text, text)
        return None

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, asks: Mapping[Agent, Ask]) -> _Asked:
        self._policy_pool.check_open()
        self._forget_answered()
        if not self._desk.suits(asks) and not self._is_any_busy():
            self._lay_out(asks)
        calls: dict[int, dict[Agent, Ask]] = {}
        for agent, (observation, wanted) in asks.items():
            worker = self._home[agent]
            if worker not in self._late:  # else it is still busy with an earlier turn: its agents are late again
                in_block = not self._is_busy(worker) and self._desk.put(agent, observation)
                calls.setdefault(worker, {})[agent] = (IN_BLOCK if in_block else observation), wanted
        asked = _Asked({}, {})
        for worker, mine in calls.items():
            if self._loss(worker) is None:
                ticket = self._last[worker] = self._call_to_act(worker, mine, asked.refused)
                asked.tickets[worker] = ticket, list(mine)
        return asked

    def _call_to_act(self, worker: int, asks: dict[Agent, Ask], refused: dict[Agent, Answer]) -> PendingRequest:
        everybody = len(asks) == len(self._held[worker])
        if everybody and all(seen is IN_BLOCK and wanted is None for seen, wanted in asks.values()):
            return self._workers.ring(self._key, 0, (worker,))
        try:
            return self._workers.call(worker, self._key, "act", asks)
        except Unpicklable:
            sendable = {agent: ask for agent, ask in asks.items() if picklable(ask)}
        for agent in asks.keys() - sendable.keys():
            text = f"its observation, {asks[agent][0]!r}, cannot be pickled, so it cannot be sent to a worker"
            refused[agent] = Answer(failure=Failure("TypeError", text, text))
        return self._workers.call(worker, self._key, "act", sendable)

    def _end(self, token: _Asked, deadline: float | None) -> Answers:
        self._policy_pool.check_owner()
        answers = Answers({}, token.refused)
        for worker, (ticket, agents) in token.tickets.items():
            if self._workers.wait(ticket, None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                answers.add(self._answers_in(worker, ticket, agents))
            else:
                self._late[worker] = ticket
        for worker in self._held.keys() - token.tickets.keys():
            if (loss := self._loss(worker)) is not None:
                answers.add(Answers({}, dict.fromkeys(self._held[worker], Answer(failure=loss))))
        return answers

    def _answers_in(self, worker: int, ticket: PendingRequest, agents: Collection[Agent]) -> Answers:
        """What a worker has answered for these of its agents."""
        reply = ticket.replies[worker]
        failure = _failure_in(reply)
        if failure is None:
            value: Answers = reply.value
            return value
        if failure.type_name.endswith(f".{Unpicklable.__name__}"):  # of one agent: what did the others say?
            again = self._workers.call(worker, self._key, "said", agents)
            self._workers.wait(again)
            if _failure_in(again.replies[worker]) is None:
                said: Answers = again.replies[worker].value
                return said
        return Answers({}, dict.fromkeys(agents, Answer(failure=failure)))

    def _back_at(self, agent: Agent) -> float | None:
        self._policy_pool.check_open()
        self._forget_answered()
        worker = self._home[agent]
        if worker in self._late:
            return None
        if self._loss(worker) is not None:
            return 0.0  # which is told when it is asked
        ticket = self._last[worker] = self._workers.call(worker, self._key, "acted_at")
        if not self._workers.wait(ticket, self.rules.action_timeout):
            self._late[worker] = ticket
            return None
        reply = ticket.replies[worker]
        return 0.0 if _failure_in(reply) is not None else float(reply.value)

    def _forget_answered(self) -> None:
        """Know who has answered by now, of those who are late or whom Ctrl-C has left unheard."""
        while any(map(self._is_busy, self._last)) and self._workers.pump(0.0):
            pass
        self._late = {worker: ticket for worker, ticket in self._late.items() if not ticket.done}

    def _is_busy(self, worker: int) -> bool:
        """Whether it may still read from the block."""
        return worker in self._last and not self._last[worker].done

    def _is_any_busy(self) -> bool:
        return any(map(self._is_busy, self._last))

    def _lay_out(self, asks: Mapping[Agent, Ask]) -> None:
        """Have a place for every array."""
        block, places, before = self._desk.lay_out(asks)
        here = [worker for worker in self._held if self._loss(worker) is None]
        self._workers.wait(self._workers.send(dict.fromkeys(here, Call(self._key, "attach", (block, places)))))
        if before is not None:
            before.close()

    # ---- seats ------------------------------------------------------------------------------------------------------

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        if method != "check_weights":
            return self._ask_workers(method, arguments, later=later)
        # Where the policy is here too, weights need not travel to be looked at.
        here = [agent for agent in arguments if not is_spec(self.policies[agent])]
        there = {agent: own for agent, own in arguments.items() if agent not in here}
        answers = {agent: told(Seat(self.policies[agent]), method, arguments[agent]) for agent in here}
        return answers | self._ask_workers(method, there)

    def _ask_workers(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        self._policy_pool.check_open()
        self._forget_answered()
        answers: dict[Agent, Answer] = {}
        tickets: dict[int, tuple[PendingRequest, list[Agent]]] = {}
        for worker, held in self._held.items():
            mine = {agent: arguments[agent] for agent in held if agent in arguments}
            if not mine:
                continue
            if (
                not later
                and worker in self._late
                and not self._workers.wait(self._late[worker], self.rules.action_timeout)
            ):
                answers |= dict.fromkeys(mine, Answer(failure=still_busy(method)))
            elif (loss := self._loss(worker)) is not None:
                answers |= dict.fromkeys(mine, Answer(failure=loss))
            else:
                ticket = self._last[worker] = self._workers.call(worker, self._key, "tell", method, mine)
                tickets[worker] = ticket, list(mine)
        self._forget_answered()
        for worker, (ticket, agents) in tickets.items():
            if worker in self._late:
                self._late[worker] = ticket  # requests are answered in order: it is back when this has been answered
            elif self._workers.wait(ticket, self._patience(later)):
                said = self._answers_in(worker, ticket, agents)
                answers |= {agent: said.of(agent) for agent in agents}
            else:
                self._late[worker] = ticket
                answers |= {} if later else dict.fromkeys(agents, Answer(failure=still_busy(method)))
        if method == "load_state_dict":
            for agent in [agent for agent in arguments if agent in answers and answers[agent].failure is None]:
                self._note_weights(agent, *arguments[agent])
        return answers

    def _note_weights(self, agent: Agent, weights: Any, version: int) -> None:
        """These act now. What is noted is in the order of loading: agents may share what was loaded."""
        self._weights.pop(agent, None)
        self._weights[agent] = _kept(weights), version
        self._abroad.add(agent)

    def _patience(self, later: bool) -> float | None:
        """How long a worker may take that is not asked to act. A state may be large: longer than an action."""
        limit = self.rules.action_timeout
        return limit if limit is None or later else max(limit, _STATE_SECONDS)

    def sync(self) -> None:
        super().sync()
        given = [agent for agent, policy in self.policies.items() if not is_spec(policy)]
        states = self.get_states(given)
        for agent in [agent for agent in self._weights if agent in self._abroad and agent in states]:
            weights, version = self._weights[agent]
            Seat(self.policies[agent]).load_state_dict(_kept(weights), version)
            self._abroad.discard(agent)
        for agent, (own, _) in states.items():
            Seat(self.policies[agent]).set_state((own, []))

    def _revived(self, agents: Iterable[Agent] | None) -> list[Agent]:
        """Replace workers that have died or are late, and fill them as the first ones were, with the last weights."""
        self._policy_pool.check_open()
        self._forget_answered()
        asked = self._held if agents is None else {self._home[agent] for agent in agents}
        lost = [w for w in self._held if w in asked and (w in self._late or self._loss(w) is not None)]
        for worker in lost:
            if worker in self._late or self._workers.death(worker) is not None:
                self._workers.restart(worker)
            self._unmade_in.pop(worker, None)
            self._late.pop(worker, None)
            self._last.pop(worker, None)
        self._desk.clear()
        self._settle_in(lost)
        anew = [agent for worker in lost for agent in self._held[worker]]
        weights = {agent: own for agent, own in self._weights.items() if agent in anew}
        answers = self._ask_seats("load_state_dict", weights)
        if failures := {agent: one.failure for agent, one in answers.items() if one.failure is not None}:
            raise policy_error(failures, {})
        return anew

    def _is_anybody_busy(self) -> bool:
        self._forget_answered()
        return self._is_any_busy()

    def close(self) -> None:
        if self.closed:
            return
        if self._own_pool:
            self._policy_pool.close()  # first: another thread that waits for these workers is told so
        super().close()
        if hasattr(self, "_held"):
            self._policy_pool.num_seated.subtract({worker: len(agents) for worker, agents in self._held.items()})
        is_gone = self._policy_pool.closed or not hasattr(self, "_held") or self._workers.closed
        if not is_gone and not self._guard.is_taken:
            self._leave()
        self._desk.close()

    @in_turn
    def _leave(self) -> None:
        """Leave a pool that goes on. A worker that hangs on a policy of this wrapper is of no use to any other."""
        self._forget_answered()
        for worker in self._late:
            self._workers.restart(worker)
        here = [worker for worker in self._pids if worker not in self._late and self._loss(worker) is None]
        self._workers.forget(self._workers.send(dict.fromkeys(here, Call(HOST, "drop", (self._key,)))))


PerAgentSubprocessWrapper = PerAgentProcessWrapper
"""The first name of `PerAgentProcessWrapper`."""


def _shared_out(groups: list[list[Agent]], num_workers: int, others: Mapping[int, int]) -> dict[int, list[Agent]]:
    """Return the agents of each worker. Large groups are placed first, each in the worker with the fewest agents.

    `others`: how many agents of other wrappers live in each worker.
    """
    held: dict[int, list[Agent]] = {worker: [] for worker in range(num_workers)}
    for group in sorted(groups, key=len, reverse=True):
        held[min(held, key=lambda worker: len(held[worker]) + others.get(worker, 0))].extend(group)
    return {worker: agents for worker, agents in held.items() if agents}


def _kept(weights: Any) -> Any:
    """A copy, where one can be made: whoever gave the weights may train on, in place."""
    try:
        return copy.deepcopy(weights)
    except Exception:  # noqa: BLE001  # user code
        return weights


REVIVE_ADVICE = "; call revive() to start it anew"
"""In the failure of a worker that has died. It is of no use to a caller who has no wrapper."""


def _failure_in(reply: Reply) -> Failure | None:
    return reply.failure if reply.death is None else _of_death(reply.death)


def _of_death(death: Any) -> Failure:
    how = (
        f"was killed by signal {-death.exitcode}" if (death.exitcode or 0) < 0 else f"exited with code {death.exitcode}"
    )
    last = "".join(f"\n  {line}" for line in death.last_output)
    text = f"its worker (pid {death.pid}) {how}{REVIVE_ADVICE}" + (f". Its last output:{last}" if last else "")
    return Failure("WorkerDied", text, text)
