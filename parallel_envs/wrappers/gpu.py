"""On a device: the batch strategy with weights that live there, and one transfer each way for all that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import in_turn
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, Turn, ask_in_turn
from parallel_envs.wrappers.batch import PerAgentBatchWrapper
from parallel_envs.wrappers.rules import Rules
from parallel_envs.wrappers.successive import apart, as_one


@dataclass(slots=True, eq=False)
class _Waiting:
    """A turn that has been begun. `answers` are there when it has been computed."""

    asks: Mapping[Agent, Ask]
    since: float
    answers: Answers | None = None


class PerAgentGPUWrapper(PerAgentBatchWrapper):
    """As `PerAgentBatchWrapper`, with stacked networks on `device`, over agents and over successive turns.

    All that has been sent and not been computed waits, and is computed together when the first of it is received: what
    several agents were asked by themselves (`agent_policy`), and what one agent was asked in up to `most_turns` turns,
    whose actions are received in the order in which they were sent. Successive turns of a `TorchPolicy` without memory
    become rows of one batch; those of any other policy are computed one after another. Actions and draws are those of
    one turn after another.

    With `gather_seconds`, `recv` waits for others, who send from other threads, until all agents have been asked or the
    oldest of what waits has waited so long. An agent is to be used by one thread at a time.

    Threads: as `PerAgentWrapper`, but calls of `recv` on handles of single agents do not wait for one another: that is
    how they are computed together.

    Memory is bounded: at most `most_turns` observations of each agent wait. Those of a pass are gathered in one pinned
    staging buffer, which grows to the largest pass and stays, and go over in one transfer that does not block.

    Args:
        policies: By agent.
        rules: Deadlines and failures. Waiting for others never goes beyond a turn's deadline.
        device: `"auto"` is the first CUDA device if there is one, else the CPU.
        most_turns: How many turns of an agent may be sent before the first of them is received.
        gather_seconds: How long a turn may wait for others when it is received. 0: not at all.
    """

    gathers = False  # it has a way of its own, for threads too

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
        self.device = _checked(device)
        super().__init__(policies, rules)
        self.most_turns, self.gather_seconds = most_turns, gather_seconds
        self._mergeable = {group[0] for group in self._groups if len(group) == 1 and self._is_stateless(group[0])}
        self._waiting: list[_Waiting] = []
        self._arrival = threading.Condition()
        self._computing = threading.Lock()  # one pass at a time

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, asks: Mapping[Agent, Ask]) -> _Waiting:
        one = _Waiting(asks, time.monotonic())
        with self._arrival:
            self._waiting.append(one)
            self._arrival.notify_all()
        return one

    def _end(self, token: _Waiting, deadline: float | None) -> Answers:
        if self.gather_seconds:
            with self._arrival:
                self._wait_for_others(token, deadline)
        with self._computing:
            if token.answers is None:
                self._compute_all(self._taken())
        assert token.answers is not None, "it was among those that waited"
        return token.answers

    def _wait_for_others(self, token: _Waiting, deadline: float | None) -> None:
        """Until everybody has been asked, somebody else has taken this turn, or it is time."""
        while token in self._waiting and len({agent for one in self._waiting for agent in one.asks}) < len(self._seats):
            until = self._waiting[0].since + self.gather_seconds
            remaining = min(until, until if deadline is None else deadline) - time.monotonic()
            if remaining <= 0.0 or not self._arrival.wait(remaining):
                return

    def _taken(self) -> list[_Waiting]:
        """All that waits, and does so no longer."""
        with self._arrival:
            taken, self._waiting = self._waiting, []
            self._arrival.notify_all()
        return taken

    def hear(self, turn: Turn) -> dict[Agent, Any]:
        """`recv` for a turn of one's own. Threads meet here, so no guard: `_end` has its own locks."""
        return self._heard(turn)

    @in_turn
    def abandon(self) -> None:
        given_up = [turn.token for turn in self._sent]
        super().abandon()
        with self._arrival:
            self._waiting = [one for one in self._waiting if one not in given_up]

    # ---- a pass -----------------------------------------------------------------------------------------------------

    def _compute_all(self, taken: Sequence[_Waiting]) -> None:
        """Answer all of these turns. What ends that (Ctrl-C) is what their agents are told who have no answer."""
        for one in taken:
            one.answers = Answers.none()
        try:
            self._compute(taken)
        except BaseException as error:
            for one in taken:
                assert one.answers is not None, "it has just been set"
                unheard = one.asks.keys() - one.answers.actions.keys() - one.answers.others.keys()
                one.answers.add(Answers.failed(unheard, error))
            raise

    def _compute(self, taken: Sequence[_Waiting]) -> None:
        """As many turns of an agent at once as can be; then the next ones."""
        if len(taken) == 1:
            taken[0].answers = self._computed(taken[0].asks)
            return
        turns: dict[Agent, list[_Waiting]] = {agent: [] for agent in self._seats}
        for one in taken:
            for agent in one.asks:
                turns[agent].append(one)
        place_of = {id(one): place for place, one in enumerate(taken)}
        while any(turns.values()):
            asks = {agent: self._together(agent, turns[agent]) for agent in self._next(turns, place_of)}
            answers = self._computed({agent: ask for agent, (ask, _) in asks.items()})
            for agent, (_, count) in asks.items():
                self._give(agent, turns[agent][:count], answers.of(agent))
                del turns[agent][:count]

    def _next(self, turns: Mapping[Agent, Sequence[_Waiting]], place_of: Mapping[int, int]) -> list[Agent]:
        """Who is to be computed next: of those who share something, who was asked first, for they take turns."""
        chosen: set[Agent] = set()
        for group in self._groups:
            places = {agent: place_of[id(turns[agent][0])] for agent in group if turns[agent]}
            chosen.update(agent for agent, place in places.items() if place == min(places.values()))
        return [agent for agent in self._seats if agent in chosen]

    def _is_stateless(self, agent: Agent) -> bool:
        return bool(getattr(self.policies[agent], "can_be_stacked", False))

    def _together(self, agent: Agent, turns: Sequence[_Waiting]) -> tuple[Ask, int]:
        """As many of an agent's turns as can be computed at once, as one; and how many they are."""
        if len(turns) > 1 and agent in self._mergeable:
            ask = as_one([one.asks[agent] for one in turns])
            if ask is not None:
                return ask, len(turns)
        return turns[0].asks[agent], 1

    def _give(self, agent: Agent, turns: Sequence[_Waiting], answer: Answer) -> None:
        """Each of these turns its part of what an agent has answered for all of them."""
        asks = [one.asks[agent] for one in turns]
        if len(turns) == 1:
            told = [answer]
        elif answer.failure is not None:  # of which of them? Nothing has been drawn yet
            told = [self._alone(agent, ask) for ask in asks]
        else:
            told = [Answer(action, seconds=answer.seconds) for action in apart(answer.action, asks)]
        for one, own in zip(turns, told, strict=True):
            assert one.answers is not None, "it is being computed"
            if own.failure is None and not self._timed:
                one.answers.actions[agent] = own.action
            else:
                one.answers.others[agent] = own

    def _alone(self, agent: Agent, ask: Ask) -> Answer:
        return ask_in_turn(self._seats, {agent: ask}, Answers.none(), timed=self._timed).of(agent)

    def _new_stack(self, modules: Sequence[Any]) -> Callable[[Any], Any]:
        from parallel_envs.wrappers.stacked import DeviceStack

        return DeviceStack(modules, self.device)


def _checked(device: str) -> str:
    import torch

    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is unknown. Give 'auto', 'cpu' or such as 'cuda:0'.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} was asked for, but torch sees no CUDA device here. Give 'auto' or 'cpu'.")
    return device
