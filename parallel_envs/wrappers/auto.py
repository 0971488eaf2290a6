"""The strategy that measures the others and keeps the fastest."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from parallel_envs.engine import picklable
from parallel_envs.wrappers.base import Agent, Answer, Ask, PerAgentWrapper, Rules
from parallel_envs.wrappers.batch import PerAgentBatchWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.sequential import PerAgentSequentialWrapper
from parallel_envs.wrappers.thread import PerAgentThreadWrapper

_WORTH = 0.95  # a strategy must take less than this share of the sequential time to be worth leaving it
_LEAST_SECONDS = {"batch": 0.0, "thread": 200e-6, "process": 1e-3}
"""How long a sequential turn must take for a strategy to be worth a try: less than this its own cost is."""


class PerAgentAutoWrapper(PerAgentWrapper):
    """Measures the strategies on the first turns, with copies of the policies, and keeps the fastest.

    While it measures, the policies themselves are asked one by one, so what they say and remember is what they would
    say and remember anyway. `chosen` says what it took, `why` in words; `measure_again()` starts over.
    """

    def __init__(
        self,
        policies: Mapping[Agent, Any],
        rules: Rules | None = None,
        *,
        pool: PolicyPool | None = None,
        num_turns: int = 5,
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._num_turns = num_turns
        self._true: PerAgentWrapper = PerAgentSequentialWrapper(self.policies)
        self._trials: dict[str, PerAgentWrapper] = {}
        self._times: dict[str, list[float]] = {}
        self._left_out: dict[str, str] = {}
        self.chosen = "sequential"
        self.why = "Nothing has been measured yet."
        self._turns_left = num_turns + 1  # the first warms up
        self._asks: Mapping[Agent, Ask] = {}

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._asks = asks
        if not self._turns_left:
            self._true._begin(asks)  # a strategy made of strategies

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        if not self._turns_left:
            return self._true._end(deadline)  # as above
        return self._measured_turn(self._asks)

    def _measured_turn(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        first = "sequential" not in self._times
        copies = self._copied() if first else None
        began = time.perf_counter()
        answers = _turn(self._true, asks)
        seconds = time.perf_counter() - began
        self._times.setdefault("sequential", []).append(seconds)
        if copies is not None:
            self._start_trials(copies, seconds)
        for name, trial in list(self._trials.items()):
            began = time.perf_counter()
            failed = [one for one in _turn(trial, asks).values() if one.failure is not None]
            self._times.setdefault(name, []).append(time.perf_counter() - began)
            if failed and not any(one.failure is not None for one in answers.values()):
                self._drop(name, f"it failed: {failed[0].failure.message}" if failed[0].failure else "")
        self._turns_left -= 1
        if not self._turns_left:
            self._choose()
        return answers

    def _copied(self) -> Callable[[], dict[Agent, Any]] | None:
        """Makes copies of the policies as they are now, before they are asked."""
        try:
            kept = copy.deepcopy(self.policies)
        except Exception as error:  # noqa: BLE001  # user code
            self._left_out["all others"] = f"the policies cannot be copied to try them ({error!r})"
            return None
        return lambda: copy.deepcopy(kept)

    def _start_trials(self, copies: Callable[[], dict[Agent, Any]], seconds: float) -> None:
        makers: dict[str, Callable[[dict[Agent, Any]], PerAgentWrapper]] = {
            "batch": PerAgentBatchWrapper,
            "thread": lambda policies: PerAgentThreadWrapper(policies, pool=self._pool),
            "process": lambda policies: PerAgentProcessWrapper(policies, pool=self._pool),
        }
        for name, make in makers.items():
            if seconds < _LEAST_SECONDS[name]:
                self._left_out[name] = f"a turn takes only {seconds * 1e6:.0f} us"
            elif name == "process" and not picklable(self.policies):
                self._left_out[name] = "the policies cannot be pickled"
            else:
                self._trials[name] = make(copies())

    def _drop(self, name: str, reason: str) -> None:
        self._left_out[name] = reason
        self._trials.pop(name).close()

    def _choose(self) -> None:
        medians = {
            name: statistics.median(times[1:])
            for name, times in self._times.items()
            if len(times) == self._num_turns + 1
        }
        best = min(medians, key=lambda name: medians[name])
        if medians[best] > _WORTH * medians["sequential"]:
            best = "sequential"
        measured = ", ".join(
            f"{name} {seconds * 1e6:.0f} us" for name, seconds in sorted(medians.items(), key=lambda one: one[1])
        )
        reasons = "".join(f"; not {name}: {reason}" for name, reason in self._left_out.items())
        self.chosen, self.why = best, f"{best} of {measured} a turn{reasons}."
        kept = self._trials.pop(best, None)
        for trial in self._trials.values():
            trial.close()
        self._trials.clear()
        if kept is not None:
            for agent in self.policies:
                kept.set_state(agent, self._true.get_state(agent))
            self._move_to(kept)

    def _move_to(self, wrapper: PerAgentWrapper) -> None:
        self._true.close()
        self._true = wrapper

    def measure_again(self) -> None:
        """Measure anew from the next turn on: the load may have changed."""
        if self.chosen != "sequential":
            self.sync()
            states = {agent: self._true.get_state(agent) for agent in self.policies}
            self._move_to(PerAgentSequentialWrapper(self.policies))
            for agent, state in states.items():
                self._true.set_state(agent, state)
        self._times.clear()
        self._left_out.clear()
        self.chosen, self._turns_left = "sequential", self._num_turns + 1

    # ---- seats ------------------------------------------------------------------------------------------------------

    def _ask_seat(self, agent: Agent, method: str, *args: Any) -> Any:
        if method in ("reset", "set_state", "load_state_dict"):
            for trial in self._trials.values():
                trial._ask_seat(agent, method, *args)  # as above
        return self._true._ask_seat(agent, method, *args)  # as above

    def sync(self) -> None:
        for agent, policy in self.policies.items():
            if self._true.policies[agent] is not policy:
                own, _ = self._true.get_state(agent)
                PerAgentSequentialWrapper({agent: policy}).set_state(agent, (own, []))

    def close(self) -> None:
        super().close()
        for wrapper in (self._true, *self._trials.values()):
            wrapper.close()
        if self._own_pool:
            self._pool.close()


def _turn(wrapper: PerAgentWrapper, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
    wrapper._begin(asks)  # a strategy made of strategies
    return wrapper._end(None)  # as above
