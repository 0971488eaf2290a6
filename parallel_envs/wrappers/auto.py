"""The strategy that measures the others and keeps the fastest."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.spelling import suggests_keywords
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, policy_error
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.batch import PerAgentBatchWrapper
from parallel_envs.wrappers.local import LocalWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.rules import Rules
from parallel_envs.wrappers.sequential import PerAgentSequentialWrapper
from parallel_envs.wrappers.sharing import sharers
from parallel_envs.wrappers.split import SplitWrapper
from parallel_envs.wrappers.thread import PerAgentThreadWrapper

_WORTH = 0.95  # a strategy must take less than this share of the sequential time to be worth leaving it
_LEAST_SECONDS = {"batch": 0.0, "thread": 200e-6, "process": 1e-3}
"""How long a sequential turn must take for a strategy to be worth a try: less than this its own cost is."""
_KEEP_DEADLINES = ("process",)
"""What is tried beside threads where there is a deadline: the others find out afterwards that it is over."""
_PATIENCE, _LEAST_PATIENCE = 10, 1.0
"""How many times longer than the sequential strategy a trial may take before it is given up; and the least seconds."""


class PerAgentAutoWrapper(LocalWrapper):
    """Measures the strategies on the first turns, with copies of the policies, and keeps the fastest.

    While it measures, the policies themselves are asked one by one, so what they say and remember is what they would
    say and remember anyway; what they do to the world outside, their copies do too. `chosen` says what it took, `why`
    in words; `measure_again()` starts over. Policies with `load_state_dict` are kept here when the others are tried in
    processes: their networks may be trained here, in place, and a process would not see that.

    Measuring costs the first turns: each takes as long as with all strategies together. With `Rules(action_timeout=)`
    no turn takes longer than that. Then only threads and processes are compared, which can leave a late policy behind:
    workers are started when this is made, the policies act in threads from the first turn on, processes are tried in
    what a turn has left, and taken where they are faster, or where threads were late in most turns.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    @suggests_keywords
    def __init__(
        self,
        policies: Mapping[Agent, Any],
        rules: Rules | None = None,
        *,
        pool: PolicyPool | None = None,
        num_turns: int = 5,
    ) -> None:
        if num_turns < 1:
            raise ValueError(f"num_turns={num_turns!r} is not a number of turns. Give a whole number from 1 up.")
        super().__init__(policies, rules)
        self._kept_here = {agent for group in sharers(self.policies) for agent in group if self._may_be_trained(group)}
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._guard = self._pool.guard  # as `PerAgentProcessWrapper`, which is asked through this one
        self._num_turns = num_turns
        self._within = self.rules.action_timeout is not None
        self._first = "thread" if self._within else "sequential"
        self._true: PerAgentWrapper = self._seated(self._made(self._first, self.policies))
        self._trials: dict[str, PerAgentWrapper] = {}
        self._given_up: list[PerAgentWrapper] = []  # trials that may still be busy
        self._times: dict[str, list[float]] = {}
        self._left_out: dict[str, str] = {}
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Nothing has been measured."""
        self._times.clear()
        self._left_out.clear()
        self.chosen, self._turns_left = self._first, self._num_turns + 1  # the first warms up
        self._num_late = 0
        self._next: str | None = None  # what is to be moved to as soon as nobody is busy
        self.why = "Nothing has been measured yet."
        self.goes_on = self._true.goes_on
        if self._within and (copies := self._copied()) is not None:
            self._start_trials(copies, float("inf"))  # now, since it takes longer than a turn may

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, asks: Mapping[Agent, Ask]) -> Any:
        if self._given_up or self._next is not None:
            self._go_on_when_free()
        if self._turns_left:
            return _Unmeasured(asks, time.perf_counter(), self._true._begin(asks) if self._within else None)
        if not self._open and not self._given_up and self._next is None:
            self._step_aside()
        return self._true._begin(asks)  # a strategy made of strategies

    def _end(self, token: Any, deadline: float | None) -> Answers:
        if type(token) is not _Unmeasured:
            return self._true._end(token, deadline)
        if self._within:
            return self._measured_within(token, deadline)
        if self._turns_left:
            return self._measured_turn(token.asks)
        return _turn(self._true, token.asks, deadline)  # another turn was the last to be measured

    def _step_aside(self) -> None:
        """Turns go straight to what was chosen: beside policies that do next to nothing, a call more would show."""
        self._deputy = self._true

    def _step_in(self) -> None:
        """Turns come here again."""
        self._deputy = None

    def _measured_turn(self, asks: Mapping[Agent, Ask]) -> Answers:
        first = "sequential" not in self._times
        copies = self._copied() if first else None
        began = time.perf_counter()
        answers = _turn(self._true, asks)
        seconds = time.perf_counter() - began
        self._times.setdefault("sequential", []).append(seconds)
        with _generators_untouched():
            if copies is not None:
                self._start_trials(copies, seconds)
            for name in list(self._trials):
                self._try(name, asks, answers, max(_PATIENCE * seconds, _LEAST_PATIENCE))
        self._turns_left -= 1
        if not self._turns_left:
            self._choose()
        return answers

    def _measured_within(self, token: _Unmeasured, deadline: float | None) -> Answers:
        """As it is, with a deadline: the policies have been asked in threads; a trial has what is left of the turn."""
        answers = self._true._end(token.own, deadline)
        if not self._turns_left or deadline is None:
            return answers  # another turn was the last to be measured
        self._times.setdefault(self._first, []).append(time.perf_counter() - token.began)
        if self._is_late(answers, token.asks):
            self._num_late += 1
        else:
            with _generators_untouched():
                for name in list(self._trials):
                    self._try(name, token.asks, answers, max(deadline - time.monotonic(), 0.0))
        self._turns_left -= 1
        if not self._turns_left:
            self._choose()
        return answers

    def _is_late(self, answers: Answers, asks: Mapping[Agent, Ask]) -> bool:
        """Whether somebody has not answered, or not in time."""
        limit = self.rules.action_timeout or 0.0
        told = [answers.of(agent) for agent in asks if agent in answers.actions or agent in answers.others]
        return len(told) < len(asks) or any(one.late or one.seconds > limit for one in told)

    def _go_on_when_free(self) -> None:
        """Between turns: close trials that were given up, and move on, where that waits for nobody."""
        for trial in [one for one in self._given_up if not one._is_anybody_busy()]:  # a strategy made of strategies
            self._given_up.remove(trial)
            trial.close()
        if self._next is not None and not self._open and not self._true._is_anybody_busy():  # as above
            name, self._next = self._next, None
            self._try_to_move(name)

    def _try(self, name: str, asks: Mapping[Agent, Ask], true: Answers, patience: float) -> None:
        """Measure a strategy. One that fails where the policies themselves did not is out."""
        began = time.perf_counter()
        try:
            answers = _turn(self._trials[name], asks, time.monotonic() + patience)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends the trial and nothing else
            self._drop(name, f"it failed: {error!r}")
            return
        self._times.setdefault(name, []).append(time.perf_counter() - began)
        failed = [one.failure for one in answers.others.values() if one.failure is not None]
        if answers.actions.keys() | answers.others.keys() < asks.keys():
            self._drop(name, f"it did not answer within {patience:.3g} seconds")
        elif failed and not any(one.failure is not None for one in true.others.values()):
            self._drop(name, f"it failed: {failed[0].message}")

    def _may_be_trained(self, agents: Sequence[Agent]) -> bool:
        return any(hasattr(self.policies[agent], "load_state_dict") for agent in agents)

    def _copied(self) -> Callable[[], dict[Agent, Any]] | None:
        """Makes copies of the policies as they are now, before they are asked."""
        try:
            kept = copy.deepcopy(self.policies)
        except Exception as error:  # noqa: BLE001  # user code
            self._left_out["all others"] = f"the policies cannot be copied to try them ({error!r})"
            return None
        return lambda: copy.deepcopy(kept)

    def _start_trials(self, copies: Callable[[], dict[Agent, Any]], seconds: float) -> None:
        for name, least in _LEAST_SECONDS.items():
            if self._within and name not in _KEEP_DEADLINES:
                continue
            if seconds < least:
                self._left_out[name] = f"a turn of {seconds * 1e6:.0f} us is too short for it"
            elif name == "process" and self._kept_here == self.policies.keys():
                self._left_out[name] = "it would not see networks that are trained in place"
            else:
                try:
                    self._trials[name] = self._made(name, copies())
                except Exception as error:  # noqa: BLE001  # they cannot be pickled, no process can be started, ...
                    self._left_out[name] = f"it cannot be made ({error})"

    def _made(self, name: str, policies: Mapping[Agent, Any]) -> PerAgentWrapper:
        if name == "sequential":
            return PerAgentSequentialWrapper(policies, self.rules)
        if name == "batch":
            return PerAgentBatchWrapper(policies, self.rules)
        if name == "thread":
            return PerAgentThreadWrapper(policies, self.rules, pool=self._pool)
        here = {agent: policy for agent, policy in policies.items() if agent in self._kept_here}
        away = {agent: policy for agent, policy in policies.items() if agent not in here}
        workers = PerAgentProcessWrapper(away, self.rules, pool=self._pool)
        if not here:
            return workers
        return SplitWrapper(policies, [workers, self._made("thread" if self._within else "batch", here)], self.rules)

    def _seated(self, wrapper: PerAgentWrapper) -> PerAgentWrapper:
        """A wrapper with the seats of this one, where it has any: the policies themselves, and what rows remember."""
        for part in _parts(wrapper):
            if isinstance(part, LocalWrapper):
                part._seats = {agent: self._seats[agent] for agent in part.policies}  # a strategy made of strategies
        return wrapper

    def _drop(self, name: str, reason: str) -> None:
        self._left_out[name] = reason
        self._give_up(self._trials.pop(name))

    def _give_up(self, trial: PerAgentWrapper) -> None:
        """Close a trial; where a deadline may not be missed for that, as soon as nobody in it is busy."""
        if self._within and trial._is_anybody_busy():  # a strategy made of strategies
            self._given_up.append(trial)
        else:
            trial.close()

    def _choose(self) -> None:
        enough = self._num_turns + 1 - self._num_late
        usual = {name: _usual(times[1:] or times) for name, times in self._times.items() if len(times) >= enough}
        best = min(usual, key=lambda name: usual[name])
        if usual[best] > _WORTH * usual[self._first]:
            best = self._first
        if self._num_late > self._num_turns / 2 and "process" in self._trials:
            best = "process"
        others = ", ".join(
            f"{name} {seconds * 1e6:.0f} us"
            for name, seconds in sorted(usual.items(), key=lambda one: one[1])
            if name != best
        )
        told = [f"{usual[best] * 1e6:.0f} us a turn"] if best in usual else []
        told += [others] if others else []
        told += [f"not {name}: {reason}" for name, reason in self._left_out.items()]
        told += [f"threads were late in {self._num_late} turns"] if self._num_late else []
        here = f", with {sorted(self._kept_here, key=str)} here, to be trained" if self._kept_here else ""
        self.chosen = best
        self.why = f"{best}{here if best == 'process' else ''} ({'; '.join(told)})."
        self._end_trials()
        if best != self._first and self._within:
            self._next = best  # between turns
        elif best != self._first:
            self._move_to(self._seated(self._made(best, self.policies)))

    def _try_to_move(self, name: str) -> None:
        try:
            self._move_to(self._seated(self._made(name, self.policies)))
        except Exception as error:  # noqa: BLE001  # user code, or no process can be started any more
            self.chosen = self._first
            self.why = f"{self._first}; not {name}: it failed when the policies were to move there ({error})."

    def _move_to(self, wrapper: PerAgentWrapper) -> None:
        """Go on with another strategy from where this one is: what lives in workers comes home, or goes there."""
        try:
            for part in _parts_away(self._true):
                states = part.get_states()
                super()._ask_seats("set_state", {agent: (state,) for agent, state in states.items()})
            for part in _parts_away(wrapper):
                seated = self._true._ask_seats("get_state", dict.fromkeys(part.policies, ()))  # as above
                failures = {agent: one.failure for agent, one in seated.items() if one.failure is not None}
                if failures:
                    raise policy_error(failures, {})
                part.set_states({agent: one.action for agent, one in seated.items()})
        except BaseException:
            wrapper.close()
            raise
        self._true.close()
        self._true = wrapper
        self.goes_on = wrapper.goes_on

    def _end_trials(self) -> None:
        while self._trials:
            self._give_up(self._trials.popitem()[1])

    def measure_again(self) -> None:
        """Measure anew from the next turn on: the load may have changed."""
        if self.closed or self._open:
            raise RuntimeError("measure_again was called between send and recv, or after close. Call it before send.")
        if self._within and self._true._is_anybody_busy():  # a strategy made of strategies
            raise RuntimeError("measure_again was called while policies are late. Call it when they have answered.")
        self._step_in()
        self._end_trials()
        if self.chosen != self._first and self._next is None:
            self._move_to(self._seated(self._made(self._first, self.policies)))
        self._begin_anew()

    # ---- seats ------------------------------------------------------------------------------------------------------

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        if self._trials:
            with _generators_untouched():
                for name, trial in list(self._trials.items()):
                    try:
                        trial._ask_seats(method, copy.deepcopy(dict(arguments)))  # as above
                    except Exception as error:  # noqa: BLE001  # as above
                        self._drop(name, f"it failed: {error!r}")
        return self._true._ask_seats(method, arguments, later=later)  # as above

    def _revived(self, agents: Iterable[Agent] | None) -> list[Agent]:
        return self._true._revived(agents)  # as above

    def _back_at(self, agent: Agent) -> float | None:
        return self._true._back_at(agent)  # as above

    def _is_anybody_busy(self) -> bool:
        return self._true._is_anybody_busy()  # as above

    def sync(self) -> None:
        super().sync()
        self._true.sync()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._end_trials()
        for trial in self._given_up:
            trial.close()
        self._true.close()
        if self._own_pool:
            self._pool.close()


def _usual(seconds: Sequence[float]) -> float:
    """The lower quartile: what disturbs single turns, here and elsewhere on the machine, makes them longer only."""
    return sorted(seconds)[len(seconds) // 4]


def _parts(wrapper: PerAgentWrapper) -> Sequence[PerAgentWrapper]:
    return wrapper.parts if isinstance(wrapper, SplitWrapper) else [wrapper]


def _parts_away(wrapper: PerAgentWrapper) -> list[PerAgentWrapper]:
    """Those whose policies live elsewhere."""
    return [part for part in _parts(wrapper) if not isinstance(part, LocalWrapper)]


@contextlib.contextmanager
def _generators_untouched() -> Iterator[None]:
    """The generators that belong to nobody are afterwards as they were: trials draw from them too."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)


@dataclass(frozen=True, slots=True)
class _Unmeasured:
    """A turn that was begun while there was still something to measure."""

    asks: Mapping[Agent, Ask]
    began: float
    own: Any = None
    """With a deadline, the turn of those who have been asked already."""


def _turn(wrapper: PerAgentWrapper, asks: Mapping[Agent, Ask], deadline: float | None = None) -> Answers:
    return wrapper._end(wrapper._begin(asks), deadline)  # a strategy made of strategies
