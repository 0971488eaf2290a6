"""The auto strategy: measures the other strategies on the first turns and keeps the fastest."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from parallel_envs.checks import check_count, suggests_keywords
from parallel_envs.seeding import global_states_kept
from parallel_envs.wrappers.base import PerAgentWrapper, Rules, policy_error
from parallel_envs.wrappers.local import LocalWrapper, PerAgentBatchWrapper, PerAgentSequentialWrapper
from parallel_envs.wrappers.policy_handle import Agent, Answer, Answers, Arguments, Inputs
from parallel_envs.wrappers.pool import PerAgentThreadWrapper, PolicyPool
from parallel_envs.wrappers.process import PerAgentProcessWrapper

# This module calls the private methods of other strategies: it is a strategy that is made of strategies.

_log = logging.getLogger(__name__)
_WORTH = 0.95  # a strategy must take less than this share of the sequential time to be chosen instead
_LEAST_SECONDS = {"batch": 0.0, "thread": 200e-6, "process": 1e-3}
"""The least seconds of a sequential turn with which a strategy is tried: its own overhead is as long."""
_PATIENCE, _LEAST_PATIENCE = 10, 1.0
"""How many times longer than the sequential strategy a trial may take; and the least seconds."""


class PerAgentAutoWrapper(LocalWrapper):
    """Measures the strategies on the first turns, with copies of the policies, and keeps the fastest.

    During the measurement the policies themselves are called one by one, so their actions and states are those of the
    sequential strategy. Their effects on the world outside happen once more for each copy. Each turn of the measurement
    takes as long as that turn with all strategies together. `chosen` is the name of the chosen strategy, `why` the
    reason in words; `measure_again()` starts over. Processes are not tried if a policy has `load_state_dict`: it may be
    trained here, in place, and a worker would not notice.

    With `Rules(action_timeout=)` the policies act in threads from the first turn on, and nothing is measured: the
    strategies in the caller's thread notice too late that a deadline is over.

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
        check_count("num_turns", num_turns)
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._guard = self._pool.guard  # as in `PerAgentProcessWrapper`, which is called through this wrapper
        self._num_turns = num_turns
        self._first = "sequential" if self.rules.action_timeout is None else "thread"
        self._current = self._make_own(self._first)
        self._trials: dict[str, PerAgentWrapper] = {}
        self._times: dict[str, list[float]] = {}
        self._left_out: dict[str, str] = {}
        self._start_measuring()

    def _start_measuring(self) -> None:
        self._times, self._left_out = {}, {}
        self.chosen, self._turns_left = self._first, self._num_turns + 1  # the first one is for warming up
        self.why = "Nothing has been measured yet."
        self.acts_in_background = self._current.acts_in_background
        if self._first == "thread":
            self._turns_left, self.why = 0, "thread (there is an action_timeout, so nothing was measured)."

    def measure_again(self) -> None:
        """Measure anew from the next turn on, for example if the load has changed."""
        if self.closed or self._open:
            raise RuntimeError("measure_again was called between send and recv, or after close. Call it before send.")
        self._delegate = None
        self._end_trials()
        if self.chosen != self._first:
            self._move_to(self._first)
        self._start_measuring()

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, inputs: Inputs) -> Any:
        if self._turns_left:
            return inputs
        if not self._open:
            self._delegate = self._current  # from the next turn on: one call more would show beside tiny policies
        return self._current._begin(inputs)

    def _end(self, token: Any, deadline: float | None) -> Answers:
        if self._turns_left:
            return self._measure(token)
        is_from_before = type(token) is dict  # another turn that was open was the last to be measured
        return self._current._end(self._current._begin(token) if is_from_before else token, deadline)

    def _measure(self, inputs: Inputs) -> Answers:
        """Compute a turn one by one, then with every trial. After the last such turn, move to the fastest strategy."""
        kept = None
        if not self._times:
            try:
                kept = copy.deepcopy(self.policies)  # before they act for the first time
            except Exception as error:  # noqa: BLE001  # user code
                self._left_out["all others"] = f"the policies cannot be copied to try them ({error!r})"
        began = time.perf_counter()
        answers = self._current._end(self._current._begin(inputs), None)
        seconds = time.perf_counter() - began
        self._times.setdefault(self._first, []).append(seconds)
        has_failed = any(one.failure is not None for one in answers.others.values())
        with global_states_kept(with_torch=True):  # trials use them, too
            if kept is not None:
                self._start_trials(kept, seconds)
            for name, trial in list(self._trials.items()):
                patience = max(_PATIENCE * seconds, _LEAST_PATIENCE)
                began = time.perf_counter()
                try:
                    tried = trial._end(trial._begin(inputs), time.monotonic() + patience)
                except Exception as error:  # noqa: BLE001  # any error ends the trial and nothing else
                    self._drop(name, f"it failed: {error!r}")
                    continue
                self._times.setdefault(name, []).append(time.perf_counter() - began)
                failed = [one.failure for one in tried.others.values() if one.failure is not None]
                if tried.actions.keys() | tried.others.keys() < inputs.keys():
                    self._drop(name, f"it did not answer within {patience:.3g} seconds")
                elif failed and not has_failed:
                    self._drop(name, f"it failed: {failed[0].message}")
        self._turns_left -= 1
        if not self._turns_left:
            self._choose()
        return answers

    def _start_trials(self, policies: Mapping[Agent, Any], seconds: float) -> None:
        """Make the strategies that are worth a try where a sequential turn takes `seconds`, with copies of policies."""
        for name, least in _LEAST_SECONDS.items():
            if seconds < least:
                self._left_out[name] = f"a turn of {seconds * 1e6:.0f} us is too short for it"
            elif name == "process" and any(hasattr(policy, "load_state_dict") for policy in policies.values()):
                self._left_out[name] = "it would not see networks that are trained in place"
            else:
                try:
                    self._trials[name] = self._make(name, copy.deepcopy(policies))
                except Exception as error:  # noqa: BLE001  # they cannot be pickled, no process can be started, ...
                    self._left_out[name] = f"it cannot be made ({error})"

    def _choose(self) -> None:
        usual: dict[str, float] = {}
        for name, times in self._times.items():
            if len(times) > self._num_turns:
                # The lower quartile: disturbances, here and elsewhere on the machine, only make turns longer.
                usual[name] = sorted(times[1:])[(len(times) - 1) // 4]
        best = min(usual, key=lambda name: usual[name])
        if usual[best] > _WORTH * usual[self._first]:
            best = self._first
        reasons = [f"{usual[best] * 1e6:.0f} us a turn"]
        others = sorted((seconds, name) for name, seconds in usual.items() if name != best)
        if others:
            reasons.append(", ".join(f"{name} {seconds * 1e6:.0f} us" for seconds, name in others))
        reasons += [f"not {name}: {reason}" for name, reason in self._left_out.items()]
        self.chosen, self.why = best, f"{best} ({'; '.join(reasons)})."
        _log.info("Strategy of %d policies: %s", len(self.policies), self.why)
        self._end_trials()
        if best != self._first:
            self._move_to(best)

    def _drop(self, name: str, reason: str) -> None:
        self._left_out[name] = reason
        self._trials.pop(name).close()

    def _end_trials(self) -> None:
        while self._trials:
            self._trials.popitem()[1].close()

    # ---- moving to another strategy ---------------------------------------------------------------------------------

    def _make(self, name: str, policies: Mapping[Agent, Any]) -> PerAgentWrapper:
        if name == "sequential":
            return PerAgentSequentialWrapper(policies, self.rules)
        if name == "batch":
            return PerAgentBatchWrapper(policies, self.rules)
        kind = PerAgentThreadWrapper if name == "thread" else PerAgentProcessWrapper
        return kind(policies, self.rules, pool=self._pool)

    def _make_own(self, name: str) -> PerAgentWrapper:
        """Make a wrapper of the policies themselves. It shares the handles, and so the policy copies for rows."""
        wrapper = self._make(name, self.policies)
        if isinstance(wrapper, LocalWrapper):
            wrapper._handles = self._handles
        return wrapper

    def _move_to(self, name: str) -> None:
        """Continue with another strategy. The states of policies come back from old workers and go to new ones."""
        wrapper = self._make_own(name)
        try:
            if not isinstance(self._current, LocalWrapper):
                states = self._current.get_states()
                super()._call_handles("set_state", {agent: (state,) for agent, state in states.items()})
            if not isinstance(wrapper, LocalWrapper):
                answers = super()._call_handles("get_state", dict.fromkeys(self.policies, ()))
                failures = {agent: one.failure for agent, one in answers.items() if one.failure is not None}
                if failures:
                    raise policy_error(failures, {})
                wrapper.set_states({agent: one.action for agent, one in answers.items()})
        except BaseException:
            wrapper.close()
            raise
        self._current.close()
        self._current = wrapper
        self.acts_in_background = wrapper.acts_in_background

    # ---- calls to the current strategy ------------------------------------------------------------------------------

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        if self._trials:
            with global_states_kept(with_torch=True):  # trials use them, too
                for name, trial in list(self._trials.items()):
                    try:
                        trial._call_handles(method, copy.deepcopy(dict(arguments)))
                    except Exception as error:  # noqa: BLE001  # any error ends the trial and nothing else
                        self._drop(name, f"it failed: {error!r}")
        return self._current._call_handles(method, arguments, later=later)

    def _forget(self, token: Any) -> None:
        if type(token) is not dict:  # else it is of a measured turn, or of a strategy that has nothing to forget
            self._current._forget(token)

    def _revive(self, agents: Iterable[Agent] | None) -> list[Agent]:
        return self._current._revive(agents)

    def _returned_at(self, agent: Agent) -> float | None:
        return self._current._returned_at(agent)

    def sync(self) -> None:
        super().sync()
        self._current.sync()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._end_trials()
        self._current.close()
        if self._own_pool:
            self._pool.close()
