"""Some agents by one strategy, others by another, in one turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.rules import Rules


class SplitWrapper(PerAgentWrapper):
    """Wrappers of some agents each, as one of all. Those that go on by themselves are asked first and heard last."""

    goes_on = True

    def __init__(
        self, policies: Mapping[Agent, Any], parts: Sequence[PerAgentWrapper], rules: Rules | None = None
    ) -> None:
        super().__init__(policies, rules)
        self.parts = sorted(parts, key=lambda part: part.goes_on)

    def _begin(self, asks: Mapping[Agent, Ask]) -> list[tuple[PerAgentWrapper, Any]]:
        mine = [(part, _own(part, asks)) for part in self.parts]
        return [(part, part._begin(own)) for part, own in reversed(mine) if own]  # a strategy made of strategies

    def _end(self, token: list[tuple[PerAgentWrapper, Any]], deadline: float | None) -> Answers:
        answers = Answers.none()
        for part, own in reversed(token):
            answers.add(part._end(own, deadline))  # as above
        return answers

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        answers: dict[Agent, Answer] = {}
        for part in self.parts:
            answers |= part._ask_seats(method, _own(part, arguments), later=later)  # as above
        return answers

    def _revived(self, agents: Iterable[Agent] | None) -> list[Agent]:
        chosen = None if agents is None else dict.fromkeys(agents)
        return [one for part in self.parts for one in part._revived(None if chosen is None else _own(part, chosen))]

    def _back_at(self, agent: Agent) -> float | None:
        return next(part._back_at(agent) for part in self.parts if agent in part.policies)  # as above

    def _is_anybody_busy(self) -> bool:
        return any(part._is_anybody_busy() for part in self.parts)  # as above

    def sync(self) -> None:
        super().sync()
        for part in self.parts:
            part.sync()

    def close(self) -> None:
        super().close()
        with contextlib.ExitStack() as closing:
            for part in self.parts:
                closing.callback(part.close)


def _own(part: PerAgentWrapper, told: Mapping[Agent, Any]) -> dict[Agent, Any]:
    return {agent: told[agent] for agent in part.policies if agent in told}
