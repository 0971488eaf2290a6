"""Leg of the soak: one manager, the calls and faults that it gets, and the check of each call.

`Leg` makes the calls and injects the faults. `Judge` checks the time of each call, its rows, and the workers after it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from benchmarks.soak.env import (
    FIRST_FRESH_SEED,
    FLOOD,
    LINGER,
    LINGER_SECONDS,
    NUM_VALUES,
    Form,
    Numbers,
    SoakEnv,
    order,
)
from benchmarks.soak.faults import (
    STOP_SECONDS,
    FloodingProgram,
    KeeperStop,
    Planner,
    Strike,
    evaluate_and_kill,
    fork_and_try,
    landing,
)
from benchmarks.soak.model import (
    RESTARTED,
    Disturbance,
    Injection,
    Model,
    Row,
    Where,
    WorkerState,
    row_of,
    rows_of_reset,
    rows_of_step,
)
from benchmarks.soak.tally import Tally, TimedCall
from parallel_envs.choices import StartMethod
from parallel_envs.seeding import SeedTree
from parallel_envs.testing.scripted import Fault, Moment
from parallel_envs.vector import ParallelEnvManager

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""Time that any call may take beyond its deadline."""

_LONGEST_HISTORY = 40
_LOG = logging.getLogger("parallel_envs")


class LegOver(Exception):
    """Raised when something was wrong. The leg ends, because later differences would only be consequences."""


class Judge:
    """Reports all calls and faults of a manager to the model, and the results to the tally.

    A call may take its deadline, GRACE_SECONDS, and `restart_seconds` for each restart that it makes. Call `stop` at
    the end.
    """

    def __init__(self, envs: ParallelEnvManager, model: Model, tally: Tally, restart_seconds: float) -> None:
        self._envs, self.model, self._tally, self._restart_seconds = envs, model, tally, restart_seconds
        self._history: deque[tuple[Any, ...]] = deque(maxlen=_LONGEST_HISTORY)
        self._num_seen = tally.num_injected
        self._late = _LateWorkers()
        self._excused_until = 0.0
        self.states = self._look()
        model.begin(self.states)

    def stop(self) -> None:
        """Stop reading the log. May be called again."""
        self._late.stop()

    # ---- requests, faults -------------------------------------------------------------------------------------------

    def ask_step(self, env: int, action: Numbers) -> None:
        """Record that an env is about to be stepped."""
        self._note(self.model.ask_step(env, action))

    def ask_reset(self, env: int, seed: int | None) -> None:
        """Record that an env is about to be reset."""
        self._note(self.model.ask_reset(env, seed))

    def settle(self, strike: Strike) -> None:
        """Close a strike, and count it as a fault if it has landed."""
        strike.close()
        if strike.has_landed:
            self.model.struck(strike.worker, strike.pid)
            self._note(strike.injection)

    def disturb(self, disturbance: Disturbance) -> None:
        """Count a disturbance as a fault."""
        self._note((Where.AROUND, disturbance))

    def blame(self, wrong: str) -> None:
        """Complain of an error that a disturbance has revealed. Do nothing if the text is empty."""
        if wrong:
            self._tally.errors += 1
            self._tally.complain(wrong)

    def excuse(self, seconds: float) -> None:
        """Allow calls more time for the next `seconds`, because a process that they need is stopped."""
        self._excused_until = time.monotonic() + seconds

    def _note(self, injection: Injection | None) -> None:
        if injection is not None:
            self._tally.injected[injection] += 1
            self._history.append(injection)

    # ---- calls and their rows ---------------------------------------------------------------------------------------

    def call(self, name: str, action: Callable[[], T], deadline: float) -> T:
        """Make a call of the manager and record how long it takes."""
        self._history.append((name, *getattr(action, "args", ()), getattr(action, "keywords", "")))
        before, began = _restarts(self.states), time.monotonic()
        result = action()
        seconds = time.monotonic() - began
        self.states = self.states if self._envs.closed else self._look()
        restarts = _restarts(self.states) - before
        self._tally.restarts += restarts
        excused = max(0.0, self._excused_until - began)
        allowed = deadline + GRACE_SECONDS + restarts * self._restart_seconds + excused
        self._tally.time(TimedCall(name, seconds, allowed))
        return result

    def look_at(self, rows: Mapping[int, Row], *, together: bool) -> None:
        """Compare the rows of the call with the model. Raise `LegOver` if anything is wrong."""
        self._history.append((self.states, "lost:", [env for env, row in rows.items() if RESTARTED in row.info]))
        for worker in self._late.take():
            self._tally.stalls += self.model.blame(worker)
        wrong = self.model.check(rows, self.states, together=together)
        self._tally.steps += len(rows)
        self._tally.wrong += len(wrong)
        if wrong:
            self._tally.complain("\n".join([*wrong, "What went before:", *map(_line, self._history)]))
            raise LegOver
        # All faults before the previous call have been reported by now.
        self._tally.survived, self._num_seen = self._num_seen, self._tally.num_injected

    def _look(self) -> list[WorkerState]:
        return [WorkerState(each["pid"], each["restarts"]) for each in self._envs.stats()]


class _LateWorkers(logging.Handler):
    """Collects the names of late workers from the log. While it is active, the log writes nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._workers: set[int] = set()
        self._propagated, _LOG.propagate = _LOG.propagate, False
        _LOG.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._workers.update(getattr(record, "late_workers", ()))

    def take(self) -> set[int]:
        """Return the workers that were late since the last call of `take`."""
        workers, self._workers = self._workers, set()
        return workers

    def stop(self) -> None:
        _LOG.removeHandler(self)
        _LOG.propagate = self._propagated


def _restarts(states: Sequence[WorkerState]) -> int:
    return sum(state.restarts for state in states)


def _line(event: tuple[Any, ...]) -> str:
    return "    " + " ".join(" ".join(str(part).split()) for part in event)


STEP_SECONDS = 0.5
"""Value of both `step_timeout` and `reset_timeout`."""

START_SECONDS = {"forkserver": 3.0, "fork": 3.0, "spawn": 6.0}
"""Values of `start_timeout`: the longest time of a restart before it is abandoned and tried again."""

AGAIN_SECONDS = 1.5
"""Additional time of a restart: the stack of a stopped worker (0.5 s) and the next request of the new env (0.5 s)."""

CLOSE_SECONDS = 5.0

TROUBLED_CLOSES = 0.3
"""Share of the managers that are closed in the middle of a fault."""

_LONGEST_STRETCH = 30


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Number of envs, number of workers, and start method of the workers."""

    num_envs: int = 8
    num_workers: int = 4
    context: StartMethod = "forkserver"


@dataclass(frozen=True, kw_only=True)
class Flavour:
    """Settings that differ between legs."""

    mode: AutoresetMode
    form: Form
    copy: bool


@dataclass(slots=True)
class _Attack:
    """Faults for the envs and workers in one call."""

    orders: dict[int, int] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)


class Leg:
    """Manager with the calls and faults that it gets. Call `abandon` at the end."""

    def __init__(self, crowd: Crowd, flavour: Flavour, seed: SeedTree, planner: Planner, tally: Tally) -> None:
        self._planner, self._tally, self._generator = planner, tally, seed.generator()
        self._num_envs = crowd.num_envs
        self._reset_wanted: set[int] = set()
        self._on_its_way: set[int] = set()
        self._programs: list[FloodingProgram] = []
        self._keeper_stop: KeeperStop | None = None
        start_seconds = START_SECONDS[crowd.context]
        self._envs = ParallelEnvManager(
            [partial(SoakEnv, env, flavour.form) for env in range(crowd.num_envs)],
            num_workers=crowd.num_workers,
            context=crowd.context,
            copy=flavour.copy,
            autoreset_mode=flavour.mode,
            on_failure="restart",
            step_timeout=STEP_SECONDS,
            reset_timeout=STEP_SECONDS,
            start_timeout=start_seconds,
            max_restarts=1_000_000,
        )
        slices = [each["env_ids"] for each in self._envs.stats()]
        self._owner = [worker for worker, envs in enumerate(slices) for _ in envs]
        self._model = Model(slices, flavour.mode, flavour.form)
        self._judge = Judge(self._envs, self._model, tally, start_seconds + AGAIN_SECONDS)

    def abandon(self) -> None:
        """Close everything that is still open. May be called at any time."""
        self._end_disturbances()
        self._envs.close()
        self._judge.stop()

    # ---- phases of a leg --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Reset all envs with one seed, which is also the root of all fresh seeds."""
        seed = int(self._generator.integers(FIRST_FRESH_SEED - self._num_envs))
        self._model.begin_seeds(SeedTree(seed))
        self._reset(range(self._num_envs), list(range(seed, seed + self._num_envs)), given=seed)

    def stretch(self) -> None:
        """Make several calls of one kind."""
        length = int(self._generator.integers(1, _LONGEST_STRETCH))
        match self._generator.integers(20):
            case 0:
                self.begin() if self._happens(0.2) else self._reset_some()
            case draw if draw < 11:
                for _ in range(length):
                    self._step()
            case _:
                for _ in range(length):
                    self._fly()
                while self._on_its_way:
                    self._receive([])
        if self._reset_wanted:
            self._reset_some()

    def close(self) -> None:
        """Close the manager, sometimes in the middle of a fault that no call reports any more."""
        if self._happens(TROUBLED_CLOSES):
            attack = self._attack(range(self._num_envs), [self._planner.draw()])
            self._send(range(self._num_envs), attack)
            for strike in attack.strikes:
                strike.land()
                self._judge.settle(strike)
        self._judge.call("close", self._envs.close, CLOSE_SECONDS)
        self._end_disturbances()
        self._tally.survived = self._tally.num_injected

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        envs = range(self._num_envs)
        attack = self._attack(envs, self._planner.due(time.monotonic()))
        actions = self._actions(envs, attack)
        batch = self._call_and_strike("step", partial(self._envs.step, actions), attack.strikes)
        self._judge.look_at(dict(enumerate(rows_of_step(*batch))), together=True)

    def _fly(self) -> None:
        """Send some of the free envs, mostly to step, and receive some. Other envs stay in flight for longer."""
        free = self._generator.permutation([env for env in range(self._num_envs) if env not in self._on_its_way])
        if len(free) == 0:
            self._receive([])
            return
        envs = free[: self._generator.integers(1, len(free) + 1)].tolist()
        to_reset = self._happens(0.1)
        attack = self._attack(envs, self._planner.due(time.monotonic()), only_outside=to_reset)
        if to_reset:
            self._send_reset(envs, attack)
        else:
            self._send(envs, attack)
        self._on_its_way.update(envs)
        self._receive(attack.strikes)

    def _send(self, envs: Sequence[int], attack: _Attack) -> None:
        self._judge.call("send", partial(self._envs.send, self._actions(envs, attack), envs), 0.0)

    def _send_reset(self, envs: Sequence[int], attack: _Attack) -> None:
        some = self._some_seeds()
        seeds = [some[env] for env in envs]
        for env, seed in zip(envs, seeds, strict=True):
            self._judge.ask_reset(env, seed)
        options = {"linger": tuple(attack.orders)}
        self._judge.call("send_reset", partial(self._envs.send_reset, envs, seed=seeds, options=options), 0.0)

    def _receive(self, strikes: Sequence[Strike]) -> None:
        if self._happens(0.1):
            env = int(self._generator.choice(sorted(self._on_its_way)))
            rows = {env: row_of(self._call_and_strike("recv_env", partial(self._envs.recv_env, env), strikes))}
        else:
            least = int(self._generator.integers(1, len(self._on_its_way) + 1))
            envs, *batch = self._call_and_strike("recv", partial(self._envs.recv, least), strikes)
            rows = dict(zip(envs.tolist(), rows_of_step(*batch), strict=True))
        self._on_its_way -= rows.keys()
        self._judge.look_at(rows, together=False)

    def _reset_some(self) -> None:
        """Reset the envs that need a reset, and some others."""
        chance = self._generator.random(self._num_envs) < self._generator.random()
        envs = [env for env, is_chosen in enumerate(chance) if is_chosen or env in self._reset_wanted]
        if envs:
            self._reset(envs, self._some_seeds())

    def _reset(self, envs: Sequence[int], seeds: list[int | None], given: int | None = None) -> None:
        """Reset these envs. `given` is a single seed that is passed to `reset` instead of the list."""
        attack = self._attack(envs, self._planner.due(time.monotonic()), only_outside=True)
        self._reset_wanted.difference_update(envs)
        for env in envs:
            self._judge.ask_reset(env, seeds[env])
        options = {"reset_mask": np.isin(np.arange(self._num_envs), envs), "linger": tuple(attack.orders)}
        action = partial(self._envs.reset, seed=seeds if given is None else given, options=options)
        rows = rows_of_reset(*self._call_and_strike("reset", action, attack.strikes))
        self._judge.look_at({env: rows[env] for env in envs}, together=True)

    def _some_seeds(self) -> list[int | None]:
        """Return a seed for each env, or None for every env."""
        if self._happens(0.5):
            return [None] * self._num_envs
        return list(self._generator.integers(FIRST_FRESH_SEED, size=self._num_envs).tolist())

    def _actions(self, envs: Sequence[int], attack: _Attack) -> npt.NDArray[np.int64]:
        """Return random actions for these envs and report them to the model."""
        actions = np.zeros((len(envs), 2), np.int64)
        actions[:, 0] = self._generator.integers(NUM_VALUES, size=len(envs))
        actions[:, 1] = [attack.orders.get(env, 0) for env in envs]
        for env, action in zip(envs, actions.tolist(), strict=True):
            self._judge.ask_step(env, tuple(action))
        return actions

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _attack(self, envs: Sequence[int], due: list[Injection], *, only_outside: bool = False) -> _Attack:
        """Inject the due faults and remove them from the list, at most one for each worker.

        Signals to idle workers are sent at once. Orders are sent with the next actions.
        """
        attack, spared = _Attack(), list(envs)
        for injection in list(due):
            if isinstance(injection[1], Disturbance) and injection[1] is not Disturbance.FLOOD:
                self._disturb(injection[1])
                due.remove(injection)
                continue
            targets = [env for env in spared if self._model.can_break(env)]
            if not targets or (only_outside and injection[0] not in (Where.WAITING, Where.IDLE)):
                continue
            env = targets[self._generator.integers(len(targets))]
            self._begin_fault(injection, env, attack)
            spared = [other for other in spared if self._owner[other] != self._owner[env]]
            due.remove(injection)
        return attack

    def _begin_fault(self, injection: Injection, env: int, attack: _Attack) -> None:
        where, fault = injection
        if not isinstance(fault, Fault):  # a flood: the only disturbance that an env makes
            attack.orders[env] = FLOOD
            self._judge.disturb(fault)
            return
        match where:
            case Where.STEP:
                attack.orders[env] = order(fault, Moment.STEP)
            case Where.RESET:
                attack.orders[env] = order(fault, Moment.RESET)
                self._reset_wanted.add(env)
            case Where.AUTORESET:
                attack.orders[env] = order(fault, Moment.RESET)
            case Where.WAITING:
                attack.orders[env] = LINGER
                attack.strikes.append(self._aim(env, injection))
            case Where.IDLE:
                strike = self._aim(env, injection)
                strike.land()
                self._judge.settle(strike)

    def _disturb(self, disturbance: Disturbance) -> None:
        """Make a disturbance around the workers, and complain of errors that it reveals."""
        self._judge.disturb(disturbance)
        match disturbance:
            case Disturbance.STOPPED_KEEPER:
                self._end_keeper_stop()
                self._keeper_stop = KeeperStop()
                self._judge.excuse(STOP_SECONDS)
            case Disturbance.FORK:
                self._judge.blame(fork_and_try(self._envs, np.zeros((self._num_envs, 2), np.int64)))
            case Disturbance.EVALUATION:
                self._judge.blame(evaluate_and_kill(float(self._generator.uniform(0.0, 0.2))))
            case _:
                is_killed = disturbance is Disturbance.KILLED_PROGRAM
                self._programs.append(FloodingProgram(is_killed=is_killed))

    def _end_disturbances(self) -> None:
        """Wait for everything that still runs beside the manager."""
        self._end_keeper_stop()
        while self._programs:
            self._judge.blame(self._programs.pop().end())

    def _end_keeper_stop(self) -> None:
        if self._keeper_stop is not None:
            self._keeper_stop.end()
            self._keeper_stop = None

    def _aim(self, env: int, injection: Injection) -> Strike:
        worker = self._owner[env]
        return Strike(worker, self._judge.states[worker].pid, injection)

    def _call_and_strike(self, name: str, action: Callable[[], T], strikes: Sequence[Strike]) -> T:
        delays = self._generator.uniform(0.0, LINGER_SECONDS, len(strikes))
        try:
            with landing(strikes, delays.tolist()):
                return self._judge.call(name, action, STEP_SECONDS)
        finally:
            for strike in strikes:
                self._judge.settle(strike)
                if not strike.has_landed:
                    self._planner.make_up()

    def _happens(self, chance: float) -> bool:
        return bool(self._generator.random() < chance)
