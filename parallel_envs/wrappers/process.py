"""In worker processes: for policies that compute in Python. They live there; observations go out, actions come back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_envs.engine import HOST, Call, Failure, SharedBlock, Ticket
from parallel_envs.wrappers.base import Agent, Answer, Ask, PerAgentWrapper, Rules, policy_error
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process_host import Place, PolicyHost
from parallel_envs.wrappers.sharing import sharers

_ALIGNMENT = 64


class PerAgentProcessWrapper(PerAgentWrapper):
    """Policies live in the workers of a shared pool, several in one if there are more agents than workers.

    Agents that share something live in the same worker. Arrays travel through shared memory, anything else by pipe. A
    worker that dies is an error that names its agents; `revive` puts a fresh one in its place, with the policies as
    they were given or last `sync`ed.
    """

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
        try:
            self._workers = self._policy_pool.processes()
            self._key = self._workers.new_key()
            self._held = _shared_out(sharers(self.policies), self._workers.num_workers)
            self._home = {agent: worker for worker, agents in self._held.items() for agent in agents}
            self._settle_in(list(self._held))
        except BaseException:
            self.close()
            raise

    def _settle_in(self, workers: list[int]) -> None:
        calls = {
            worker: Call(
                HOST, "build", (self._key, PolicyHost, {agent: self.policies[agent] for agent in self._held[worker]})
            )
            for worker in workers
        }
        ticket = self._workers.send(calls)
        self._workers.wait(ticket)
        self._raise_failures(ticket)

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
        self._tickets = {}
        for worker, mine in calls.items():
            if self._workers.death(worker) is not None:
                continue
            if len(mine) == len(self._held[worker]) and all(one is wanted is None for one, wanted in mine.values()):
                self._tickets[worker] = self._workers.ring(self._key, 0, (worker,))
            else:
                self._tickets[worker] = self._workers.call(worker, self._key, "act", mine)

    def _placed(self, agent: Agent, observation: Any) -> Any:
        """None: the observation lies in shared memory now; else what must go by pipe."""
        if agent not in self._places:
            return observation
        self._views[agent][...] = observation
        return None

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        answers: dict[Agent, Answer] = {}
        tickets, self._tickets = self._tickets, {}
        for worker, ticket in tickets.items():
            if not self._workers.wait(ticket, None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                self._late[worker] = ticket
                continue
            (reply,) = ticket.replies.values()
            if reply.failure is not None or reply.death is not None:
                failure = reply.failure or _of_death(reply.death)
                answers |= {agent: Answer(failure=failure) for agent in self._held[worker]}
            else:
                answers |= reply.value
        for agent, worker in self._home.items():
            if agent not in answers and self._workers.death(worker) is not None:
                answers[agent] = Answer(failure=_of_death(self._workers.death(worker)))
        return answers

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
            if isinstance(observation, np.ndarray) and observation.dtype != object and observation.size
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
        ticket = self._workers.send(dict.fromkeys(self._held, Call(self._key, "attach", (block, places))))
        self._workers.wait(ticket)
        if before is not None:
            before.close()
        self._raise_failures(ticket)

    # ---- seats ------------------------------------------------------------------------------------------------------

    def _ask_seat(self, agent: Agent, method: str, *args: Any) -> Any:
        worker = self._home[agent]
        ticket = self._workers.call(worker, self._key, "seat", agent, method, *args)
        self._workers.wait(ticket)
        self._raise_failures(ticket)
        return ticket.replies[worker].value if worker in ticket.replies else None

    def sync(self) -> None:
        from parallel_envs.wrappers.seats import Seat

        for agent, policy in self.policies.items():
            if not callable(getattr(policy, "make", None)):
                own, _ = self.get_state(agent)
                Seat(policy).set_state((own, []))

    def revive(self) -> list[Agent]:
        """Replace workers that have died or are late. Returns the agents that begin anew."""
        lost = [worker for worker in self._held if self._workers.death(worker) is not None or worker in self._late]
        for worker in lost:
            self._workers.restart(worker)
            self._late.pop(worker, None)
        self._places = {}
        self._settle_in(lost)
        return [agent for worker in lost for agent in self._held[worker]]

    def _raise_failures(self, ticket: Ticket) -> None:
        failures = {}
        for worker, reply in ticket.replies.items():
            if reply.failure is not None or reply.death is not None:
                failures[self._held[worker][0]] = reply.failure or _of_death(reply.death)
        if failures:
            raise policy_error(failures, {})

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._own_pool:
            self._policy_pool.close()
        elif not self._policy_pool.closed and hasattr(self, "_held"):
            alive = [worker for worker in self._held if self._workers.death(worker) is None]
            self._workers.forget(self._workers.send(dict.fromkeys(alive, Call(HOST, "drop", (self._key,)))))
        if self._block is not None:
            self._block.close()


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


def _of_death(death: Any) -> Failure:
    how = (
        f"was killed by signal {-death.exitcode}" if (death.exitcode or 0) < 0 else f"exited with code {death.exitcode}"
    )
    last = "".join(f"\n  {line}" for line in death.last_output)
    text = f"its worker (pid {death.pid}) {how}; call revive() to start it anew" + (
        f". Its last output:{last}" if last else ""
    )
    return Failure("WorkerDied", text, text)
