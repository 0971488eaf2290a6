"""In one pass: for policies that can act for many at once, or are networks of equal shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_envs.engine import Failure
from parallel_envs.wrappers.base import Agent, Answer, Ask, LocalWrapper, Rules, answered
from parallel_envs.wrappers.seats import Seat, spread, take_rows
from parallel_envs.wrappers.sharing import sharers

_MOST_CREWS = 32  # sets of agents whose passes are kept: each may hold copies of weights


class PerAgentBatchWrapper(LocalWrapper):
    """Gathers all agents, and all their rows, and computes in as few passes as can be.

    Agents that share one policy with a `step_batch` become rows of one call. Torch policies (`TorchPolicy`) whose
    networks have one shape are stacked and computed in one pass, each with its own weights, and each draws its action
    from its own generator. All others are asked one by one. A stack sees what an optimiser or `load_state_dict` does to
    a network; what is written to `parameter.data` it cannot see.
    """

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._groups = sharers(self.policies)
        self._asks: Mapping[Agent, Ask] = {}
        self._passes: dict[tuple[Agent, ...], list[Pass]] = {}

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._asks = asks

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        asks, self._asks = self._asks, {}
        answers: dict[Agent, Answer] = {}
        for one in self._passes_for(tuple(asks)):
            answers |= one.answers({agent: asks[agent] for agent in one.agents})
        return answers

    def _passes_for(self, agents: tuple[Agent, ...]) -> list[Pass]:
        """Who is computed together, when these agents are asked."""
        if agents not in self._passes:
            kinds = self._kinds(agents)
            crews: dict[Any, list[Agent]] = {}
            for agent in agents:
                crews.setdefault(kinds[agent], []).append(agent)
            while len(self._passes) >= _MOST_CREWS:
                del self._passes[next(iter(self._passes))]
            self._passes[agents] = [self._pass(kind, crew) for kind, crew in crews.items()]
        return self._passes[agents]

    def _kinds(self, agents: tuple[Agent, ...]) -> dict[Agent, Any]:
        """Agents of equal kinds are computed together. Those who share something keep their order: all, or none."""
        kinds = {agent: self._kind(agent) for agent in agents}
        for group in self._groups:
            here = [agent for agent in group if agent in kinds]
            if len({kinds[agent] for agent in here}) > 1:
                kinds |= {agent: ("alone", agent) for agent in here}
        return kinds

    def _kind(self, agent: Agent) -> Any:
        policy = self.policies[agent]
        told = getattr(policy, "stack_signature", None)
        if told is not None and (signature := told()) is not None:
            return "stacked", signature
        if self._seats[agent].batches and not self._seats[agent].remembers_rows:
            return "shared", id(policy)
        return "alone", agent

    def _pass(self, kind: Any, agents: list[Agent]) -> Pass:
        seats = {agent: self._seats[agent] for agent in agents}
        if kind[0] == "stacked" and len(agents) > 1:
            return StackedPass(seats, self._new_stack)
        if kind[0] == "shared" and len(agents) > 1:
            return SharedPass(seats)
        return Pass(seats)

    def _new_stack(self, modules: Sequence[Any]) -> Callable[[Any], Any]:
        from parallel_envs.wrappers.stacked import Stack

        return Stack(modules)


class Pass:
    """Some agents who are computed together: here, one by one."""

    def __init__(self, seats: Mapping[Agent, Seat]) -> None:
        self.seats = dict(seats)
        self.agents = tuple(seats)

    def answers(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        """The answers of all of them. What fails for all fails each."""
        try:
            return self._answers(asks)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
            return dict.fromkeys(asks, Answer(failure=Failure.of(error)))

    def _answers(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        return {agent: answered(self.seats[agent], ask) for agent, ask in asks.items()}


class SharedPass(Pass):
    """Agents of one policy, which is asked once for all their rows."""

    def _answers(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        parts = [_rows_of(*ask) for ask in asks.values()]
        counts = [count for _, count in parts]
        if not sum(counts):
            return dict.fromkeys(asks, Answer())
        wanted = [part for part, count in parts if count]
        if not all(_fit(wanted[0], part) for part in wanted):
            return super()._answers(asks)
        actions = next(iter(self.seats.values())).policy.step_batch(_joined(wanted))
        if _count(actions) != sum(counts):
            raise ValueError(
                f"{_count(actions)} actions were returned for {sum(counts)} observations. Return one for each."
            )
        answers, start = {}, 0
        for (agent, (_, mask)), count in zip(asks.items(), counts, strict=True):
            own = take_rows(actions, slice(start, start + count))
            answers[agent] = Answer(_given_back(own, mask))
            start += count
        return answers


class StackedPass(Pass):
    """Torch policies of one shape: one forward pass over stacked weights.

    Where that fails they are asked one by one; where it has failed time and again, while one by one went well, it is
    not tried any more.
    """

    _MOST_MISSES = 3

    def __init__(self, seats: Mapping[Agent, Seat], new_stack: Callable[[Sequence[Any]], Callable[[Any], Any]]) -> None:
        super().__init__(seats)
        self._policies = [seat.policy for seat in self.seats.values()]
        self._modules: list[Any] = []
        self._new_stack = new_stack
        self._misses = 0

    def _answers(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        if self._misses >= self._MOST_MISSES:
            return super()._answers(asks)
        leader = self._policies[0]
        batches = [_as_row(observation) if wanted is None else observation for observation, wanted in asks.values()]
        if any(policy.deterministic is not leader.deterministic for policy in self._policies):
            return super()._answers(asks)
        try:
            outputs, mask = leader.compute_stacked(self._current_stack(), batches)
        except Exception:  # noqa: BLE001  # nothing has been drawn yet: one by one it turns out whose fault it was
            answers = super()._answers(asks)
            self._misses += not any(one.failure is not None for one in answers.values())
            return answers
        self._misses = 0
        wanted_by = [wanted for _, wanted in asks.values()]
        rows = [_ONE if wanted is None else np.flatnonzero(wanted) for wanted in wanted_by]
        actions = leader.choose_stacked(outputs, mask, rows, self._policies)
        return {
            agent: Answer(_plain(action) if wanted is None else _spread(action, row, wanted))
            for agent, action, row, wanted in zip(asks, actions, rows, wanted_by, strict=True)
        }

    def _current_stack(self) -> Callable[[Any], Any]:
        """The stack of the networks that the policies have now."""
        modules = [policy.module for policy in self._policies]
        if modules != self._modules:
            self._modules, self._stack = modules, self._new_stack(modules)
        return self._stack


_ONE = np.zeros(1, np.intp)


def _plain(action: Any) -> Any:
    """The action of a single row, as the policy's own `step` gives it."""
    return action[0] if action.ndim > 1 else action[0].item()


def _spread(actions: Any, rows: Any, wanted: Any) -> Any:
    return spread(actions, rows, len(wanted)) if len(rows) else None


def _rows_of(observation: Any, wanted: Any) -> tuple[Any, int]:
    """The rows that want an action, and how many there are."""
    if wanted is None:
        return _as_row(observation), 1
    rows = np.flatnonzero(wanted)
    return take_rows(observation, rows), len(rows)


def _as_row(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _as_row(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_as_row(part) for part in observation)
    return np.asarray(observation)[None]


def _joined(batches: Sequence[Any]) -> Any:
    first = batches[0]
    if isinstance(first, dict):
        return {key: _joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined([batch[place] for batch in batches]) for place in range(len(first)))
    return np.concatenate(batches)


def _fit(one: Any, other: Any) -> bool:
    """Whether two batches can be joined without becoming anything else."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_fit(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_fit, one, other))
    return (
        isinstance(one, np.ndarray)
        and isinstance(other, np.ndarray)
        and (one.dtype, one.shape[1:]) == (other.dtype, other.shape[1:])
    )


def _count(actions: Any) -> int:
    """For how many rows these are actions."""
    while isinstance(actions, dict | tuple):
        actions = next(iter(actions.values())) if isinstance(actions, dict) else actions[0]
    return len(actions)


def _given_back(actions: Any, wanted: Any) -> Any:
    return take_rows(actions, 0) if wanted is None else _spread(actions, np.flatnonzero(wanted), wanted)
