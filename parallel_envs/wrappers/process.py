"""In worker processes: for policies that compute in Python. They live there; observations go out, actions come back."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from parallel_envs.engine import HOST, Call, Failure, Reply, SharedBlock, Ticket, Unpicklable, picklable
from parallel_envs.wrappers.base import Agent, Answer, Ask, PerAgentWrapper, Rules, policy_error
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process_host import IN_BLOCK, Place, PolicyHost
from parallel_envs.wrappers.seats import Seat
from parallel_envs.wrappers.sharing import sharers
from parallel_envs.wrappers.thread import still_busy

_ALIGNMENT = 64


class PerAgentProcessWrapper(PerAgentWrapper):
    """Policies live in the workers of a shared pool, several in one if there are more agents than workers.

    Agents that share something live in the same worker. Arrays travel through shared memory, anything else by pipe. A
    worker that dies is an error that names its agents; `revive` puts a fresh one in its place, with the policies as
    they were given or last `sync`ed.
    """

    goes_on = True

    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._policy_pool = PolicyPool() if pool is None else pool
        self._block: SharedBlock | None = None
        self._places: dict[Agent, Place] = {}
        self._views: dict[Agent, Any] = {}
        self._tickets: dict[int, Ticket] = {}
        self._late: dict[int, Ticket] = {}
        self._refused: dict[Agent, Answer] = {}
        self._pids: dict[int, int] = {}
        try:
            self._workers = self._policy_pool.processes()
            self._key = self._workers.new_key()
            self._held = _shared_out(sharers(self.policies), self._workers.num_workers)
            self._home = {agent: worker for worker, agents in self._held.items() for agent in agents}
            for worker in self._held:
                if self._workers.death(worker) is not None:  # it has died on another wrapper
                    self._workers.restart(worker)
            self._settle_in(self._held)
        except BaseException:
            self.close()
            raise

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
        if failures:
            raise policy_error(failures, {})

    def _loss(self, worker: int) -> Failure | None:
        """How a worker was lost, if it was."""
        death = self._workers.death(worker)
        if death is not None:
            return _of_death(death)
        if self._workers.pid(worker) != self._pids[worker]:
            text = "its worker was replaced by another wrapper of the pool; call revive() to start the policy anew"
            return Failure("WorkerDied", text, text)
        return None

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._forget_answered()
        self._lay_out(asks)
        calls: dict[int, dict[Agent, Ask]] = {}
        for agent, (observation, wanted) in asks.items():
            worker = self._home[agent]
            if worker in self._late:
                continue  # it is still busy with an earlier turn: its agents are late again
            calls.setdefault(worker, {})[agent] = self._placed(agent, observation), wanted
        self._tickets, self._refused = {}, {}
        for worker, mine in calls.items():
            if self._loss(worker) is not None:
                continue
            if len(mine) == len(self._held[worker]) and all(
                one is IN_BLOCK and wanted is None for one, wanted in mine.values()
            ):
                self._tickets[worker] = self._workers.ring(self._key, 0, (worker,))
            else:
                self._tickets[worker] = self._call_to_act(worker, mine)

    def _call_to_act(self, worker: int, asks: dict[Agent, Ask]) -> Ticket:
        try:
            return self._workers.call(worker, self._key, "act", asks)
        except Unpicklable:
            sendable = {agent: ask for agent, ask in asks.items() if picklable(ask)}
        for agent in asks.keys() - sendable.keys():
            text = f"its observation, {asks[agent][0]!r}, cannot be pickled, so it cannot be sent to a worker"
            self._refused[agent] = Answer(failure=Failure("TypeError", text, text))
        return self._workers.call(worker, self._key, "act", sendable)

    def _placed(self, agent: Agent, observation: Any) -> Any:
        """The observation if it must go by pipe; any other lies in shared memory now."""
        if agent not in self._places:
            return observation
        self._views[agent][...] = observation
        return IN_BLOCK

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        answers, self._refused = self._refused, {}
        tickets, self._tickets = self._tickets, {}
        for worker, ticket in tickets.items():
            if self._workers.wait(ticket, None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                answers |= self._answers_in(worker, ticket)
            else:
                self._late[worker] = ticket
        for worker in self._held.keys() - tickets.keys():
            if (loss := self._loss(worker)) is not None:
                answers |= dict.fromkeys(self._held[worker], Answer(failure=loss))
        return answers

    def _answers_in(self, worker: int, ticket: Ticket) -> dict[Agent, Answer]:
        """What a worker has answered for its agents."""
        reply = ticket.replies[worker]
        failure = _failure_in(reply)
        if failure is None:
            told: dict[Agent, Answer] = reply.value
            return told
        if failure.type_name.endswith(f".{Unpicklable.__name__}"):  # of one agent: what did the others say?
            again = self._workers.call(worker, self._key, "said")
            self._workers.wait(again)
            if _failure_in(again.replies[worker]) is None:
                return dict(again.replies[worker].value)
        return dict.fromkeys(self._held[worker], Answer(failure=failure))

    def _forget_answered(self) -> None:
        while self._late and self._workers.pump(0.0):
            pass
        self._late = {worker: ticket for worker, ticket in self._late.items() if not ticket.done}

    # ---- shared memory ----------------------------------------------------------------------------------------------

    def _lay_out(self, asks: Mapping[Agent, Ask]) -> None:
        """Have a place for every array, laid out anew when one comes that fits no place."""
        wanting = {
            agent: observation
            for agent, (observation, _) in asks.items()
            if type(observation) is np.ndarray and not observation.dtype.hasobject and observation.size
        }
        odd = [agent for agent in asks if agent not in wanting and agent in self._places]
        if not odd and all(_fits(self._places.get(agent), array) for agent, array in wanting.items()):
            return
        if self._late:  # they may still read where they have been told to: let everything go by pipe for this turn
            self._places = {}
            return
        arrays = {agent: (place.dtype, place.shape) for agent, place in self._places.items() if agent not in odd}
        arrays |= {agent: (array.dtype, array.shape) for agent, array in wanting.items()}
        places, end = {}, 0
        for agent, (dtype, shape) in arrays.items():
            places[agent] = Place(dtype, shape, end)
            end += -(-dtype.itemsize * int(np.prod(shape)) // _ALIGNMENT) * _ALIGNMENT
        before, block = self._block, SharedBlock.create(max(end, 1))
        self._block, self._places = block, places
        self._views = {agent: place.view(block) for agent, place in places.items()}
        here = [worker for worker in self._held if self._loss(worker) is None]
        self._workers.wait(self._workers.send(dict.fromkeys(here, Call(self._key, "attach", (block, places)))))
        if before is not None:
            before.close()

    # ---- seats ------------------------------------------------------------------------------------------------------

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        self._forget_answered()
        answers: dict[Agent, Answer] = {}
        tickets: dict[int, Ticket] = {}
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
                tickets[worker] = self._workers.call(worker, self._key, "tell", method, mine)
        self._forget_answered()
        for worker, ticket in tickets.items():
            if worker in self._late:
                self._late[worker] = ticket  # requests are answered in order: it is back when this has been answered
            else:
                self._workers.wait(ticket)
                answers |= self._answers_in(worker, ticket)
        return answers

    def sync(self) -> None:
        given = [agent for agent, policy in self.policies.items() if not callable(getattr(policy, "make", None))]
        for agent, (own, _) in self.get_states(given).items():
            Seat(self.policies[agent]).set_state((own, []))

    def revive(self) -> list[Agent]:
        """Replace workers that have died or are late. Returns the agents that begin anew."""
        self._forget_answered()
        lost = [worker for worker in self._held if worker in self._late or self._loss(worker) is not None]
        for worker in lost:
            if worker in self._late or self._workers.death(worker) is not None:
                self._workers.restart(worker)
            self._late.pop(worker, None)
        self._places = {}
        self._settle_in(lost)
        return [agent for worker in lost for agent in self._held[worker]]

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._own_pool:
            self._policy_pool.close()
        elif not self._policy_pool.closed and hasattr(self, "_held"):
            self._leave()
        if self._block is not None:
            self._block.close()
            self._block, self._places, self._views = None, {}, {}

    def _leave(self) -> None:
        """Leave a pool that goes on. A worker that hangs on a policy of this wrapper is of no use to any other."""
        self._forget_answered()
        for worker in self._late:
            self._workers.restart(worker)
        here = [worker for worker in self._pids if worker not in self._late and self._loss(worker) is None]
        self._workers.forget(self._workers.send(dict.fromkeys(here, Call(HOST, "drop", (self._key,)))))


PerAgentSubprocessWrapper = PerAgentProcessWrapper
"""The first name of `PerAgentProcessWrapper`."""


def _shared_out(groups: list[list[Agent]], num_workers: int) -> dict[int, list[Agent]]:
    """The agents of each worker: large groups first, each to the worker that has the fewest agents."""
    held: dict[int, list[Agent]] = {worker: [] for worker in range(num_workers)}
    for group in sorted(groups, key=len, reverse=True):
        held[min(held, key=lambda worker: len(held[worker]))].extend(group)
    return {worker: agents for worker, agents in held.items() if agents}


def _fits(place: Place | None, array: Any) -> bool:
    return place is not None and place.shape == array.shape and place.dtype == array.dtype


def _failure_in(reply: Reply) -> Failure | None:
    return reply.failure if reply.death is None else _of_death(reply.death)


def _of_death(death: Any) -> Failure:
    how = (
        f"was killed by signal {-death.exitcode}" if (death.exitcode or 0) < 0 else f"exited with code {death.exitcode}"
    )
    last = "".join(f"\n  {line}" for line in death.last_output)
    text = f"its worker (pid {death.pid}) {how}; call revive() to start it anew" + (
        f". Its last output:{last}" if last else ""
    )
    return Failure("WorkerDied", text, text)
