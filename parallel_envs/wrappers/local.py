"""What the strategies share whose policies are seated in the caller's process."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from parallel_envs.engine import Failure
from parallel_envs.spelling import suggests_keywords
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, ask_in_turn, policy_error, told
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.rules import Rules
from parallel_envs.wrappers.seats import Seat, is_spec


class LocalWrapper(PerAgentWrapper):
    """Policies that are seated in the caller's process. Those that it made from specs it closes, if they can be."""

    @suggests_keywords
    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._made_here: list[Agent] = []
        self._seats: dict[Agent, Seat] = {}
        try:
            for agent, policy in self.policies.items():
                self._seats[agent] = self._seat(agent, policy)
        except BaseException:
            self._close_made()
            raise
        self.policies = {agent: seat.policy for agent, seat in self._seats.items()}

    def _seat(self, agent: Agent, policy: Any) -> Seat:
        """The policy in its seat, made here if it was given as a spec."""
        if not is_spec(policy):
            return Seat(policy)
        try:
            made = policy.make()
        except Exception as error:  # user code
            raise policy_error({agent: Failure.of(error)}, {}) from error
        self._made_here.append(agent)
        return Seat(made)

    def _answers(self, asks: Mapping[Agent, Ask]) -> Answers:
        """What these agents say, asked one after another."""
        return ask_in_turn(self._seats, asks, Answers.none(), timed=self.rules.action_timeout is not None)

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        return {agent: told(self._seats[agent], method, own) for agent, own in arguments.items()}

    def close(self) -> None:
        super().close()
        self._close_made()

    def _close_made(self) -> None:
        """Close all of them, also where one raises."""
        made, self._made_here = self._made_here, []
        with contextlib.ExitStack() as closing:
            for agent in made:
                closing.callback(self._seats[agent].close)
