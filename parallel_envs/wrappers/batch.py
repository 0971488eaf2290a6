"""In one pass: for policies that can act for many at once, or are networks of equal shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parallel_envs.spelling import suggests_keywords
from parallel_envs.wrappers.answers import Agent, Answers, Ask
from parallel_envs.wrappers.local import LocalWrapper
from parallel_envs.wrappers.passes import Pass, SharedPass, StackedPass
from parallel_envs.wrappers.rules import Rules
from parallel_envs.wrappers.sharing import sharers

_MOST_CREWS = 32  # sets of agents whose passes are kept: each may hold copies of weights


class PerAgentBatchWrapper(LocalWrapper):
    """Gathers all agents, and all their rows, and computes in as few passes as can be.

    Agents that share one policy with a `step_batch` become rows of one call. Torch policies (`TorchPolicy`) whose
    networks have one shape are stacked and computed in one pass, each with its own weights, and each draws its action
    from its own generator. All others are asked one by one. A stack sees what an optimiser or `load_state_dict` does to
    a network; what is written to `parameter.data` it cannot see.

    Handles of single agents (`agent_policy`) are computed together, too: `send` to all of them, and the first `recv`
    computes all that were asked.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    gathers = True

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._groups = sharers(self.policies)
        self._timed = self.rules.action_timeout is not None
        self._passes: dict[tuple[Agent, ...], list[Pass]] = {}

    def _begin(self, asks: Mapping[Agent, Ask]) -> Any:
        return asks

    def _end(self, token: Any, deadline: float | None) -> Answers:
        return self._computed(token)

    def _computed(self, asks: Mapping[Agent, Ask]) -> Answers:
        """What these agents say, in as few passes as can be."""
        passes = self._passes_for(tuple(asks))
        if len(passes) == 1:
            answers = self._through(passes[0], asks)
        else:
            answers = Answers.none()
            for one in passes:
                answers.add(self._through(one, {agent: asks[agent] for agent in one.agents}))
        if any(one.is_outdated for one in passes):
            self._passes.clear()
        return answers

    def _through(self, one: Pass, asks: Mapping[Agent, Ask]) -> Answers:
        """What a pass says; each agent of it is charged with all of the time that it took."""
        if not self._timed:
            return one.answers(asks)
        began = time.monotonic()
        answers = one.answers(asks)
        return answers.timed(time.monotonic() - began)

    # ---- who is computed with whom ----------------------------------------------------------------------------------

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
            return StackedPass(seats, self._new_stack, timed=self._timed)
        if kind[0] == "shared" and len(agents) > 1:
            return SharedPass(seats, timed=self._timed)
        return Pass(seats, timed=self._timed)

    def _new_stack(self, modules: Sequence[Any]) -> Callable[[Any], Any]:
        from parallel_envs.wrappers.stacked import Stack

        return Stack(modules)
