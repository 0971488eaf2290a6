"""The strategy that measures the others and keeps the fastest."""

from __future__ import annotations

import contextlib
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from parallel_envs.wrappers.base import Agent, Answer, Ask, LocalWrapper, PerAgentWrapper, Rules
from parallel_envs.wrappers.batch import PerAgentBatchWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.sequential import PerAgentSequentialWrapper
from parallel_envs.wrappers.thread import PerAgentThreadWrapper

_WORTH = 0.95  # a strategy must take less than this share of the sequential time to be worth leaving it
_LEAST_SECONDS = {"batch": 0.0, "thread": 200e-6, "process": 1e-3}
"""How long a sequential turn must take for a strategy to be worth a try: less than this its own cost is."""
_PATIENCE, _LEAST_PATIENCE = 10, 1.0
"""How many times longer than the sequential strategy a trial may take before it is given up; and the least seconds."""


class PerAgentAutoWrapper(LocalWrapper):
    """Measures the strategies on the first turns, with copies of the policies, and keeps the fastest.

    While it measures, the policies themselves are asked one by one, so what they say and remember is what they would
    say and remember anyway; what they do to the world outside, their copies do too. `chosen` says what it took, `why`
    in words; `measure_again()` starts over. Policies with `load_state_dict` are not tried in processes: their networks
    may be trained here, in place, and a process would not see that.
    """

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
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._num_turns = num_turns
        self._true: PerAgentWrapper = self._seated(PerAgentSequentialWrapper(self.policies, self.rules))
        self._trials: dict[str, PerAgentWrapper] = {}
        self._times: dict[str, list[float]] = {}
        self._left_out: dict[str, str] = {}
        self.chosen = "sequential"
        self.why = "Nothing has been measured yet."
        self._turns_left = num_turns + 1  # the first warms up
        self._asks: Mapping[Agent, Ask] = {}

    @property
    def goes_on(self) -> bool:  # type: ignore[override]  # it depends
        return not self._turns_left and self._true.goes_on

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
        with _generators_untouched():
            if copies is not None:
                self._start_trials(copies, seconds)
            for name in list(self._trials):
                self._try(name, asks, answers, max(_PATIENCE * seconds, _LEAST_PATIENCE))
        self._turns_left -= 1
        if not self._turns_left:
            self._choose()
        return answers

    def _try(self, name: str, asks: Mapping[Agent, Ask], true: Mapping[Agent, Answer], patience: float) -> None:
        """Measure a strategy. One that fails where the policies themselves did not is out."""
        began = time.perf_counter()
        try:
            answers = _turn(self._trials[name], asks, time.monotonic() + patience)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends the trial and nothing else
            self._drop(name, f"it failed: {error!r}")
            return
        self._times.setdefault(name, []).append(time.perf_counter() - began)
        failed = [one.failure for one in answers.values() if one.failure is not None]
        if answers.keys() < asks.keys():
            self._drop(name, f"it did not answer within {patience:.3g} seconds")
        elif failed and not any(one.failure is not None for one in true.values()):
            self._drop(name, f"it failed: {failed[0].message}")

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
            if seconds < least:
                self._left_out[name] = f"a turn takes only {seconds * 1e6:.0f} us"
            elif name == "process" and any(hasattr(policy, "load_state_dict") for policy in self.policies.values()):
                self._left_out[name] = "it would not see networks that are trained in place"
            else:
                try:
                    self._trials[name] = self._made(name, copies())
                except Exception as error:  # noqa: BLE001  # they cannot be pickled, no process can be started, ...
                    self._left_out[name] = f"it cannot be made ({error})"

    def _made(self, name: str, policies: Mapping[Agent, Any]) -> PerAgentWrapper:
        if name == "batch":
            return PerAgentBatchWrapper(policies, self.rules)
        kind = PerAgentThreadWrapper if name == "thread" else PerAgentProcessWrapper
        return kind(policies, self.rules, pool=self._pool)

    def _seated(self, wrapper: LocalWrapper) -> LocalWrapper:
        """A wrapper with the seats of this one: the policies themselves, and what their rows remember."""
        wrapper._seats = self._seats  # a strategy made of strategies
        return wrapper

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
        self._end_trials()
        if best != "sequential":
            self._move_to(self._made(best, self.policies))

    def _move_to(self, wrapper: PerAgentWrapper) -> None:
        """Go on with another strategy from where this one is."""
        if isinstance(wrapper, LocalWrapper) and isinstance(self._true, LocalWrapper):
            self._seated(wrapper)
        else:
            wrapper.set_states(self._true.get_states())
        self._true.close()
        self._true = wrapper

    def _end_trials(self) -> None:
        for trial in self._trials.values():
            trial.close()
        self._trials.clear()

    def measure_again(self) -> None:
        """Measure anew from the next turn on: the load may have changed."""
        if self.closed or self._asked is not None:
            raise RuntimeError("measure_again was called between send and recv, or after close. Call it before send.")
        self._end_trials()
        if self.chosen != "sequential":
            self._move_to(self._seated(PerAgentSequentialWrapper(self.policies, self.rules)))
        self._times.clear()
        self._left_out.clear()
        self.chosen, self._turns_left = "sequential", self._num_turns + 1
        self.why = "Nothing has been measured yet."

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

    def sync(self) -> None:
        self._true.sync()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._end_trials()
        self._true.close()
        if self._own_pool:
            self._pool.close()


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


def _turn(wrapper: PerAgentWrapper, asks: Mapping[Agent, Ask], deadline: float | None = None) -> dict[Agent, Answer]:
    wrapper._begin(asks)  # a strategy made of strategies
    return wrapper._end(deadline)  # as above
