"""The environments of one place: a worker, or the caller.

In a worker, requests and answers are bytes: plain pickle of small values, and whatever cannot be pickled is the failure
of the one environment that gave it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from parallel_envs.engine import Failure, SharedBlock, dump_reply, reraise_ctrl_c
from parallel_envs.engine.interrupts import forked, leave_if_forked
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.jobs import HARMLESS, MAKING, REPLAYING, SENDING, Answers, Broken, Pairs, Request, Restore
from parallel_envs.groups.mailbox import Mailbox
from parallel_envs.groups.player import WORK, Player, Recipe, drop_quietly
from parallel_envs.vector.registry import OwnedEnvs

if TYPE_CHECKING:
    from parallel_envs.groups.waiting import Waiting
    from parallel_envs.vector.registry import Registrations


class Shelf:
    """Environments by number, each of a recipe."""

    def __init__(self, tags: Mapping[int, str], recipes: Mapping[str, Recipe], *, copies: bool) -> None:
        self._recipes = {env: recipes[tag] for env, tag in tags.items()}
        owned = OwnedEnvs()
        self._players = {
            env: Player(recipe, copies=copies, number=env, owned=owned) for env, recipe in self._recipes.items()
        }
        self._limits = Limits()
        self._clock: Clock | None = None
        self._box: Mailbox | None = None
        self._waiting: Waiting | None = None

    @classmethod
    def in_worker(
        cls,
        tags: Mapping[int, str],
        recipes: Mapping[str, Recipe],
        limits: Limits,
        clocks: SharedBlock,
        num_envs: int,
        worker: int,
        box: SharedBlock,
        registrations: Registrations | None,
    ) -> Shelf:
        """The environments of a worker: their times are kept in `clocks`, and `box` is the worker's mailbox."""
        shelf = cls(tags, recipes, copies=False)
        shelf._limits, shelf._clock, shelf._box = limits, Clock(clocks, num_envs, worker), Mailbox(box)
        if any(recipe.threads > 1 for recipe in recipes.values()):  # in the caller, one after the other
            from parallel_envs.groups.waiting import Waiting

            shelf._waiting = Waiting(shelf._recipes, shelf._do_each, lambda env: shelf._players[env].takes_turns)
        if registrations is not None:
            registrations.install()
        return shelf

    # ---- asked from another process ---------------------------------------------------------------------------------

    def ring(self, argument: int) -> list[bytes] | None:
        """Do what is asked for in the mailbox, and answer there, part by part. Parts that do not fit are returned."""
        box = self._box
        assert box is not None
        request, begin, unsent = self._read(box.asked()), 0, list[bytes]()
        for part in (request,) if self._waiting is not None else request.parts():
            if begin and self._clock is not None:  # not before: who is not needed any more may do harm, too
                self._clock.sent()
            data = self._answered(part, begin)
            begin += len(part.asked)
            if unsent or not box.answer(data):
                unsent.append(data)
        return unsent or None

    def work(self, orders: bytes) -> list[bytes]:
        """The same for what is asked for in a message."""
        return [self._answered(self._read(orders))]

    def _read(self, orders: bytes | memoryview) -> Request:
        number, *plain = pickle.loads(orders)
        request = Request.from_plain(tuple(plain))
        if self._clock is not None:
            self._clock.start(number)
        return request

    def _answered(self, request: Request, begin: int = 0) -> bytes:
        """What comes of a request, or of the part of one that begins in this place of it."""
        answers = self.do(request)
        if self._clock is not None:
            self._clock.send(begin, begin + len(request.asked))
        try:
            return pickle.dumps((answers.told, answers.broken, answers.met), pickle.HIGHEST_PROTOCOL)
        except BaseException:  # noqa: BLE001  # whatever user code raises when it is pickled
            self._keep_sendable(answers)
            return dump_reply((answers.told, answers.broken, answers.met))

    def _keep_sendable(self, answers: Answers) -> None:
        """Who answers what cannot be pickled has broken."""
        for env in list(answers.told):
            try:
                dump_reply((answers.told[env], answers.met.get(env)))
            except BaseException as error:  # noqa: BLE001  # the same
                drop_quietly(self._players[env])
                answers.told.pop(env)
                answers.met.pop(env, None)
                answers.broken[env] = Broken(SENDING, Failure.of(error))

    # ---- at work ----------------------------------------------------------------------------------------------------

    def do(self, request: Request) -> Answers:
        """Have it done. An environment that raises is among the broken."""
        answers = Answers()
        if self._waiting is None:
            self._do_each(request, iter(request.asked.items()), answers)
        else:
            self._waiting.do(self._of_those_made(request, answers), answers)
        return answers

    def _of_those_made(self, request: Request, answers: Answers) -> Request:
        """The part of a request that concerns those that could be made.

        They are made before any thread is called: constructors take turns in any case (`seeded`), and who waits for
        its turn in a thread would be late by what others need.
        """
        if all(self._players[env].made for env in request.asked):
            return request
        return request.of([env for env in request.asked if self._made(env, answers)])

    def _do_each(self, request: Request, pairs: Pairs, answers: Answers) -> None:
        """One after the other. In a worker the clock tells who is at work, and by when it is to be done."""
        job, players, restores, told = request.job, self._players, request.restores, answers.told
        work, seconds, now = WORK[job], self._limits.of(job), time.monotonic
        due, ended = (None, None) if self._clock is None else (self._clock.due, self._clock.ended)
        for env, what in pairs:
            player = players[env]
            if (restores or not player.made) and not self._brought_there(env, restores.get(env), answers):
                continue
            if due is not None:
                due[env] = now() + seconds
            try:
                told[env] = work(player, what)
                if forked:
                    leave_if_forked()  # before it writes where the worker will
            except BaseException as error:  # noqa: BLE001  # SystemExit too: it may not end its worker by raising
                self._note_broken(env, job.value, error, answers, drops=job not in HARMLESS)
            if due is not None and ended is not None:
                ended[env] = now()
                due[env] = 0.0

    def _brought_there(self, env: int, restore: Restore | None, answers: Answers) -> bool:
        """Make the environment if there is none, and bring it to where it is to be. False: it broke on the way."""
        if not self._made(env, answers):
            return False
        if restore is None:
            return True

        def bring() -> None:
            answers.met[env] = self._players[env].restore(restore)

        return self._tried(env, REPLAYING, self._limits.of_replay(restore), bring, answers)

    def _made(self, env: int, answers: Answers) -> bool:
        player = self._players[env]
        return player.made or self._tried(env, MAKING, self._limits.of_making(), player.make, answers)

    def _tried(self, env: int, doing: str, seconds: float, work: Callable[[], None], answers: Answers) -> bool:
        if self._clock is not None:
            self._clock.begin(env, seconds, doing)
        try:
            work()
            leave_if_forked()
        except BaseException as error:  # noqa: BLE001  # the same
            self._note_broken(env, doing, error, answers, drops=True)
            return False
        finally:
            if self._clock is not None:
                self._clock.end(env)
        return True

    def _note_broken(self, env: int, doing: str, error: BaseException, answers: Answers, *, drops: bool) -> None:
        try:
            reraise_ctrl_c(error)
        except KeyboardInterrupt:
            drop_quietly(self._players[env])  # it was struck in the midst of its own code: who knows what that left
            raise
        if drops:
            drop_quietly(self._players[env])
        answers.broken[env] = Broken(doing, Failure.of(error))

    def close(self) -> None:
        """Close all environments. What they raise is of no interest any more."""
        for player in self._players.values():
            drop_quietly(player)
        if self._waiting is not None:
            self._waiting.close()
