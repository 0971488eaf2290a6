"""What a manager of `SoakEnv`s has to answer: a replay of every env, and who may have lost what with its worker.

The model is told what is asked of the manager, what is done to its workers, and what comes back; it says what of that
is wrong. It has no process and no clock in it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gymnasium.vector import AutoresetMode

from benchmarks.soak_env import ENDS_THE_WORKER, Form, Numbers, curse
from benchmarks.soak_replay import RESTARTED, EnvReplay, Injection, Row
from parallel_envs.seeding import SeedTree


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What `stats` tells of a worker."""

    pid: int
    restarts: int


@dataclass(slots=True)
class _Worker:
    envs: tuple[int, ...]
    before: WorkerState
    """How it was when the last call ended."""
    now: WorkerState
    blamed: bool = False
    """Something was done that may end this process."""
    doomed: bool = False
    """Something was done that has ended it for certain: no env that is asked from now on can answer."""
    breaking: bool = False
    """A fault that ends it was ordered in the call that is going on."""

    @property
    def is_new(self) -> bool:
        return self.now.pid != self.before.pid

    @property
    def num_attempts(self) -> int:
        return self.now.restarts - self.before.restarts


class Model:
    """All envs of a manager, and its workers."""

    def __init__(self, slices: Sequence[Sequence[int]], mode: AutoresetMode, form: Form) -> None:
        nothing = WorkerState(0, 0)
        self._workers = [_Worker(tuple(envs), nothing, nothing) for envs in slices]
        self.envs = [EnvReplay(env, mode, form) for envs in slices for env in envs]
        self._owner = [worker for worker in self._workers for _ in worker.envs]
        self.seeds = SeedTree(0)

    # ---- what is asked and done -------------------------------------------------------------------------------------

    def begin(self, states: Sequence[WorkerState]) -> None:
        """How the workers are before anything has been asked."""
        for worker, state in zip(self._workers, states, strict=True):
            worker.before = worker.now = state

    def begin_seeds(self, seeds: SeedTree) -> None:
        """Fresh seeds come from this tree from now on, and are counted anew."""
        self.seeds = seeds
        for replay, worker in zip(self.envs, self._owner, strict=True):
            replay.last_fresh, replay.restarts_then = 0, worker.now.restarts

    def ask_step(self, env: int, action: Numbers) -> Injection | None:
        """An env is asked to step. Returns the fault that this brings about."""
        return self._ask(env, self.envs[env].ask_step(action))

    def ask_reset(self, env: int, seed: int | None) -> Injection | None:
        """The same for a reset."""
        return self._ask(env, self.envs[env].ask_reset(seed))

    def _ask(self, env: int, due: Injection | None) -> Injection | None:
        worker, asked = self._owner[env], self.envs[env].asked
        if worker.doomed and asked is not None:
            asked.loss = "its worker had been hit by a signal"
        if due is not None and due[1] in ENDS_THE_WORKER:
            worker.blamed = worker.breaking = True
        return due

    def blame(self, worker: int) -> bool:
        """This worker's process may end from now on. Whether that is news."""
        known, self._workers[worker].blamed = self._workers[worker].blamed, True
        return not known

    def struck(self, worker: int, pid: int) -> None:
        """A signal has reached this process, which was this worker's when the last call ended.

        Unless it has been replaced since, it does not answer any more, but for what is on its way already.
        """
        if self._workers[worker].before.pid == pid:
            self._workers[worker].blamed = self._workers[worker].doomed = True

    def can_break(self, env: int) -> bool:
        """Whether a fault can be ordered: what this env does next is known, and its worker is to live on."""
        replay, worker = self.envs[env], self._owner[env]
        return replay.is_sure and not replay.is_resetting and not worker.blamed

    # ---- what comes back --------------------------------------------------------------------------------------------

    def check(self, rows: Mapping[int, Row], states: Sequence[WorkerState], *, together: bool) -> list[str]:
        """What is wrong with the rows that a call brought, and with the workers as they are after it.

        `together`: all envs of a worker answer at once (`step`, `reset`), and not each by itself (`recv`).
        """
        told = {env for env, row in rows.items() if RESTARTED in row.info}
        wrong = []
        for number, (worker, state) in enumerate(zip(self._workers, states, strict=True)):
            worker.now = state
            if worker.is_new and not worker.blamed and not self._curse_ends(worker, told):
                wrong.append(f"worker {number} was replaced, though nothing had been done to it")
            if together and worker.breaking:
                self._lose_asked(worker.envs)
        wrong += [f"env {env}: {text}" for env, row in rows.items() if (text := self._answer(env, row, together))]
        for worker in self._workers:
            self._follow(worker, told)
        return wrong

    def _answer(self, env: int, row: Row, together: bool) -> str:
        replay, worker = self.envs[env], self._owner[env]
        before, shaken, was_sure = replay.last_fresh, replay.shaken, replay.is_sure
        text = replay.answer(row, self._fresh(env), may_tell=worker.blamed or worker.is_new)
        if replay.last_fresh != before:
            replay.restarts_then = replay.restarts_then + 1 if shaken else worker.before.restarts
        elif shaken and RESTARTED not in row.info:
            replay.lose()
        replay.shaken = False
        # What it told may have been an earlier loss: envs that `recv` mends after it can cost it the new episode, too.
        replay.may_be_new = worker.is_new and not together and not (was_sure and worker.num_attempts == 1)
        if (
            shaken and RESTARTED in row.info
        ):  # it may have answered before its worker was replaced: told of another loss
            replay.may_be_new = True
        return text

    def _fresh(self, env: int) -> dict[int, int]:
        """The seeds that this env may have been given since its last one showed, going by its worker's restarts."""
        replay = self.envs[env]
        first, count = replay.last_fresh + 1, self._owner[env].now.restarts - replay.restarts_then
        return {self.seeds.child("restart", env, number).seed(): number for number in range(first, first + count)}

    def _lose_asked(self, envs: Iterable[int]) -> None:
        for asked in (self.envs[env].asked for env in envs):
            if asked is not None and not asked.loss:
                asked.loss = "its worker was ended by a fault in this call"

    def _curse_ends(self, worker: _Worker, told: Container[int]) -> bool:
        """Whether an env that was to be replaced by itself may have met a seed that ends the worker."""
        return any(curse(seed) in ENDS_THE_WORKER for env in worker.envs if env in told for seed in self._fresh(env))

    def _follow(self, worker: _Worker, told: Container[int]) -> None:
        """Where a worker has been replaced, those of its envs that have not told so yet will do it next."""
        if worker.is_new:
            for replay in (self.envs[env] for env in worker.envs if env not in told):
                if replay.asked is None:
                    replay.lose()
                else:
                    replay.shaken = True
            worker.blamed = worker.doomed = worker.breaking = False
        worker.before = worker.now
