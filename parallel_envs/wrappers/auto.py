"""The auto strategy: measures the other strategies on the first turns and keeps the fastest."""

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
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.local import LocalWrapper, PerAgentBatchWrapper, PerAgentSequentialWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper
from parallel_envs.wrappers.rules import Agent, Answer, Answers, Arguments, Inputs, Rules, policy_error
from parallel_envs.wrappers.sharing import sharers
from parallel_envs.wrappers.thread import PerAgentThreadWrapper

# This module calls the private methods of other strategies: it is a strategy that is made of strategies.

_WORTH = 0.95  # a strategy must take less than this share of the sequential time to be chosen instead
_LEAST_SECONDS = {"batch": 0.0, "thread": 200e-6, "process": 1e-3}
"""The least seconds of a sequential turn with which a strategy is tried: its own overhead is as long."""
_KEEP_DEADLINES = ("process",)
"""Strategies that are tried beside threads if there is a deadline. All others notice too late that it is over."""
_PATIENCE, _LEAST_PATIENCE = 10, 1.0
"""How many times longer than the sequential strategy a trial may take; and the least seconds."""


class PerAgentAutoWrapper(LocalWrapper):
    """Measures the strategies on the first turns, with copies of the policies, and keeps the fastest.

    During the measurement the policies themselves are called one by one, so their actions and states are those of the
    sequential strategy. Their effects on the world outside happen once more for each copy. `chosen` is the name of the
    chosen strategy, `why` the reason in words; `measure_again()` starts over. Policies with `load_state_dict` stay in
    this process if the others move to workers: they may be trained here, in place, and a worker would not notice.

    Each turn of the measurement takes as long as that turn with all strategies together. With `Rules(action_timeout=)`
    no turn takes longer than that. Then only threads and processes are compared, since only these can leave a late
    policy behind: workers are started when this wrapper is made, the policies act in threads from the first turn on,
    and processes are tried in the remaining time of each turn. They are chosen if they are faster, or if threads were
    late in most turns.

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
        self._kept_here: set[Agent] = set()  # policies that may be trained, and those that share an object with them
        for group in sharers(self.policies):
            if any(hasattr(self.policies[agent], "load_state_dict") for agent in group):
                self._kept_here.update(group)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._guard = self._pool.guard  # as in `PerAgentProcessWrapper`, which is called through this wrapper
        self._num_turns = num_turns
        self._within = self.rules.action_timeout is not None
        self._first = "thread" if self._within else "sequential"
        self._current = self._make_own(self._first)
        self._trials: dict[str, PerAgentWrapper] = {}
        self._given_up: list[PerAgentWrapper] = []  # trials that may still be busy
        self._times: dict[str, list[float]] = {}
        self._left_out: dict[str, str] = {}
        self._start_measuring()

    def _start_measuring(self) -> None:
        self._times.clear()
        self._left_out.clear()
        self.chosen, self._turns_left = self._first, self._num_turns + 1  # the first one is for warming up
        self._num_late = 0
        self._next: str | None = None  # the strategy to move to as soon as no policy is busy
        self.why = "Nothing has been measured yet."
        self.goes_on = self._current.goes_on
        if self._within and (copies := self._copier()) is not None:
            self._start_trials(copies, float("inf"))  # now, since it takes longer than a turn may

    def measure_again(self) -> None:
        """Measure anew from the next turn on, for example if the load has changed."""
        if self.closed or self._open:
            raise RuntimeError("measure_again was called between send and recv, or after close. Call it before send.")
        if self._within and self._current._has_late_turns():
            raise RuntimeError("measure_again was called while policies are late. Call it when they have answered.")
        self._delegate = None
        self._end_trials()
        if self.chosen != self._first and self._next is None:
            self._move_to(self._first)
        self._start_measuring()

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, inputs: Inputs) -> Any:
        if self._given_up or self._next is not None:
            self._finish_moving()
        if self._turns_left:
            return _MeasuredTurn(inputs, time.perf_counter(), self._current._begin(inputs) if self._within else None)
        if not self._open and not self._given_up and self._next is None:
            self._delegate = self._current  # from the next turn on: one call more would show beside tiny policies
        return self._current._begin(inputs)

    def _finish_moving(self) -> None:
        """Between turns: close trials that were given up, and move to the next strategy, if that needs no waiting."""
        for trial in [one for one in self._given_up if not one._has_late_turns()]:
            self._given_up.remove(trial)
            trial.close()
        if self._next is not None and not self._open and not self._current._has_late_turns():
            name, self._next = self._next, None
            try:
                self._move_to(name)
            except Exception as error:  # noqa: BLE001  # user code, or no process can be started any more
                self.chosen = self._first
                self.why = f"{self._first}; not {name}: it failed when the policies were to move there ({error})."

    def _end(self, token: Any, deadline: float | None) -> Answers:
        if type(token) is not _MeasuredTurn:
            return self._current._end(token, deadline)
        if self._turns_left:
            return self._measure(token, deadline)
        if self._within:  # another turn was the last to be measured
            return self._current._end(token.own, deadline)
        return _run_turn(self._current, token.inputs, deadline)

    def _measure(self, token: _MeasuredTurn, deadline: float | None) -> Answers:
        """Compute a turn with the current strategy, then with every trial.

        If there is a deadline, the current strategy is threads. They have begun, and trials get the remaining time.
        """
        copies = None if self._within or self._times else self._copier()
        began = token.began if self._within else time.perf_counter()
        answers = self._current._end(token.own, deadline) if self._within else _run_turn(self._current, token.inputs)
        seconds = time.perf_counter() - began
        self._times.setdefault(self._first, []).append(seconds)
        limit = self.rules.action_timeout
        given = [answers.of(agent) for agent in token.inputs if agent in answers.actions or agent in answers.others]
        if limit is not None and (
            len(given) < len(token.inputs) or any(one.late or one.seconds > limit for one in given)
        ):
            self._num_late += 1
        else:
            with _global_generators_restored():
                if copies is not None:
                    self._start_trials(copies, seconds)
                for name in list(self._trials):
                    patience = max(_PATIENCE * seconds, _LEAST_PATIENCE)
                    if deadline is not None:
                        patience = max(deadline - time.monotonic(), 0.0)
                    self._try(name, token.inputs, answers, patience)
        self._turns_left -= 1
        if not self._turns_left:
            self._choose()
        return answers

    def _choose(self) -> None:
        enough = self._num_turns + 1 - self._num_late
        usual: dict[str, float] = {}
        for name, times in self._times.items():
            if len(times) >= enough:
                # The lower quartile: disturbances, here and elsewhere on the machine, only make turns longer.
                warm = sorted(times[1:] or times)
                usual[name] = warm[len(warm) // 4]
        best = min(usual, key=lambda name: usual[name])
        if usual[best] > _WORTH * usual[self._first]:
            best = self._first
        if self._num_late > self._num_turns / 2 and "process" in self._trials:
            best = "process"
        ranked = sorted(usual.items(), key=lambda one: one[1])
        others = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in ranked if name != best)
        reasons = [f"{usual[best] * 1e6:.0f} us a turn"] if best in usual else []
        reasons += [others] if others else []
        reasons += [f"not {name}: {reason}" for name, reason in self._left_out.items()]
        reasons += [f"threads were late in {self._num_late} turns"] if self._num_late else []
        here = f", with {sorted(self._kept_here, key=str)} here, to be trained" if self._kept_here else ""
        self.chosen = best
        self.why = f"{best}{here if best == 'process' else ''} ({'; '.join(reasons)})."
        self._end_trials()
        if best != self._first and self._within:
            self._next = best  # it moves between turns
        elif best != self._first:
            self._move_to(best)

    # ---- trials -----------------------------------------------------------------------------------------------------

    def _copier(self) -> Callable[[], dict[Agent, Any]] | None:
        """Return a function that makes copies of the policies in their present state. None if they cannot be copied."""
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
                    self._trials[name] = self._make(name, copies())
                except Exception as error:  # noqa: BLE001  # they cannot be pickled, no process can be started, ...
                    self._left_out[name] = f"it cannot be made ({error})"

    def _try(self, name: str, inputs: Inputs, expected: Answers, patience: float) -> None:
        """Measure a trial. End it if it fails where the policies themselves did not."""
        began = time.perf_counter()
        try:
            answers = _run_turn(self._trials[name], inputs, time.monotonic() + patience)
        except Exception as error:  # noqa: BLE001  # any error ends the trial and nothing else
            self._drop(name, f"it failed: {error!r}")
            return
        self._times.setdefault(name, []).append(time.perf_counter() - began)
        failed = [one.failure for one in answers.others.values() if one.failure is not None]
        if answers.actions.keys() | answers.others.keys() < inputs.keys():
            self._drop(name, f"it did not answer within {patience:.3g} seconds")
        elif failed and not any(one.failure is not None for one in expected.others.values()):
            self._drop(name, f"it failed: {failed[0].message}")

    def _drop(self, name: str, reason: str) -> None:
        self._left_out[name] = reason
        self._give_up(self._trials.pop(name))

    def _give_up(self, trial: PerAgentWrapper) -> None:
        """Close a trial. If there is a deadline and a policy in it is busy, leave that to a later turn."""
        if self._within and trial._has_late_turns():
            self._given_up.append(trial)
        else:
            trial.close()

    def _end_trials(self) -> None:
        while self._trials:
            self._give_up(self._trials.popitem()[1])

    # ---- moving to another strategy ---------------------------------------------------------------------------------

    def _make(self, name: str, policies: Mapping[Agent, Any]) -> PerAgentWrapper:
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
        local = self._make("thread" if self._within else "batch", here)
        return CombinedWrapper(policies, [workers, local], self.rules)

    def _make_own(self, name: str) -> PerAgentWrapper:
        """Make a wrapper of the policies themselves. It shares the handles, and so the policy copies for rows."""
        wrapper = self._make(name, self.policies)
        for part in _parts(wrapper):
            if isinstance(part, LocalWrapper):
                part._handles = {agent: self._handles[agent] for agent in part.policies}
        return wrapper

    def _move_to(self, name: str) -> None:
        """Continue with another strategy. The states of policies come back from old workers and go to new ones."""
        wrapper = self._make_own(name)
        try:
            for part in _remote_parts(self._current):
                states = part.get_states()
                super()._call_handles("set_state", {agent: (state,) for agent, state in states.items()})
            for part in _remote_parts(wrapper):
                answers = self._current._call_handles("get_state", dict.fromkeys(part.policies, ()))
                failures = {agent: one.failure for agent, one in answers.items() if one.failure is not None}
                if failures:
                    raise policy_error(failures, {})
                part.set_states({agent: one.action for agent, one in answers.items()})
        except BaseException:
            wrapper.close()
            raise
        self._current.close()
        self._current = wrapper
        self.goes_on = wrapper.goes_on

    # ---- calls to the current strategy ------------------------------------------------------------------------------

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        if self._trials:
            with _global_generators_restored():
                for name, trial in list(self._trials.items()):
                    try:
                        trial._call_handles(method, copy.deepcopy(dict(arguments)))
                    except Exception as error:  # noqa: BLE001  # any error ends the trial and nothing else
                        self._drop(name, f"it failed: {error!r}")
        return self._current._call_handles(method, arguments, later=later)

    def _revive(self, agents: Iterable[Agent] | None) -> list[Agent]:
        return self._current._revive(agents)

    def _returned_at(self, agent: Agent) -> float | None:
        return self._current._returned_at(agent)

    def _has_late_turns(self) -> bool:
        return self._current._has_late_turns()

    def sync(self) -> None:
        super().sync()
        self._current.sync()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._end_trials()
        for trial in self._given_up:
            trial.close()
        self._current.close()
        if self._own_pool:
            self._pool.close()


class CombinedWrapper(PerAgentWrapper):
    """Combines wrappers of some agents each into one wrapper. Those with background work begin first and end last."""

    goes_on = True

    def __init__(
        self, policies: Mapping[Agent, Any], parts: Sequence[PerAgentWrapper], rules: Rules | None = None
    ) -> None:
        super().__init__(policies, rules)
        self.parts = sorted(parts, key=lambda part: part.goes_on)

    def _begin(self, inputs: Inputs) -> list[tuple[PerAgentWrapper, Any]]:
        split = [(part, _select(part, inputs)) for part in self.parts]
        return [(part, part._begin(own)) for part, own in reversed(split) if own]

    def _end(self, token: list[tuple[PerAgentWrapper, Any]], deadline: float | None) -> Answers:
        answers = Answers.none()
        for part, own in reversed(token):
            answers.add(part._end(own, deadline))
        return answers

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        answers: dict[Agent, Answer] = {}
        for part in self.parts:
            answers |= part._call_handles(method, _select(part, arguments), later=later)
        return answers

    def _revive(self, agents: Iterable[Agent] | None) -> list[Agent]:
        chosen = None if agents is None else dict.fromkeys(agents)
        return [one for part in self.parts for one in part._revive(None if chosen is None else _select(part, chosen))]

    def _returned_at(self, agent: Agent) -> float | None:
        return next(part._returned_at(agent) for part in self.parts if agent in part.policies)

    def _has_late_turns(self) -> bool:
        return any(part._has_late_turns() for part in self.parts)

    def sync(self) -> None:
        super().sync()
        for part in self.parts:
            part.sync()

    def close(self) -> None:
        super().close()
        with contextlib.ExitStack() as closing:
            for part in self.parts:
                closing.callback(part.close)


@dataclass(frozen=True, slots=True)
class _MeasuredTurn:
    """A turn that began during the measurement. With a deadline, `own` is the token of the thread strategy."""

    inputs: Inputs
    began: float
    own: Any = None


def _run_turn(wrapper: PerAgentWrapper, inputs: Inputs, deadline: float | None = None) -> Answers:
    return wrapper._end(wrapper._begin(inputs), deadline)


def _select(part: PerAgentWrapper, values: Mapping[Agent, Any]) -> dict[Agent, Any]:
    """Return the values of the agents of one part."""
    return {agent: values[agent] for agent in part.policies if agent in values}


def _parts(wrapper: PerAgentWrapper) -> Sequence[PerAgentWrapper]:
    return wrapper.parts if isinstance(wrapper, CombinedWrapper) else [wrapper]


def _remote_parts(wrapper: PerAgentWrapper) -> list[PerAgentWrapper]:
    """Return the parts whose policies live in workers."""
    return [part for part in _parts(wrapper) if not isinstance(part, LocalWrapper)]


@contextlib.contextmanager
def _global_generators_restored() -> Iterator[None]:
    """Restore the global random generators of Python, NumPy and torch at the end: trials use them too."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(torch_state)
