"""In a worker: environments that wait for something outside, done at once, by threads.

To wake a thread for each costs more than many a reset takes. So what was quickly done the last time is done one after
another; if this time it takes longer than `_PATIENCE_SECONDS`, threads come and see to those that are left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from parallel_envs.groups.jobs import Answers, Job, Pairs, Request
from parallel_envs.groups.player import Recipe
from parallel_envs.wrappers.pool import Threads

_PATIENCE_SECONDS = 2e-3

DoEach = Callable[[Request, Pairs, Answers], None]


@dataclass(slots=True)
class _Crowd:
    """The environments of a tag that are asked. Several threads may take from `pairs`: whoever is free the next."""

    tag: str
    pairs: Pairs
    most_threads: int
    seconds: list[float] = field(default_factory=list)
    """What each of those who took from it was busy with it."""


class _Watch:
    """What one thread does alone, and another watches. Neither waits for the other when it is over."""

    def __init__(self) -> None:
        self._working, self._guard = threading.Lock(), threading.Lock()
        self._working.acquire()
        self._over = False
        self._called: list[Future[None]] = []

    def end(self) -> list[Future[None]]:
        """It is done: nobody will be called any more. Who has been."""
        with self._guard:
            self._over = True
        self._working.release()
        return self._called

    def outlasts(self, seconds: float) -> bool:
        """Whether it is still going on after so long; returns as soon as that is known."""
        return not self._working.acquire(timeout=seconds)

    def call(self, call: Callable[[], list[Future[None]]]) -> None:
        """Call others, unless it is over."""
        with self._guard:
            if not self._over:
                self._called = call()


class Waiting:
    """Does requests for environments of which some wait: at most as many at once as the recipe of a tag says.

    `do_each` does the part of a request that concerns the environments of an iterator. `takes_turns` tells of one that
    it uses what the whole process has only once: it is done in the worker's own thread, lest it wait for others there
    while its time runs.
    """

    def __init__(self, recipes: Mapping[int, Recipe], do_each: DoEach, takes_turns: Callable[[int], bool]) -> None:
        self._recipes, self._do_each, self._takes_turns = recipes, do_each, takes_turns
        self._threads = Threads("environment")
        self._slow: set[tuple[str, Job]] = set()

    def do(self, request: Request, answers: Answers) -> None:
        """Have a request done."""
        alone, crowds = self._sorted(request)
        takers, left = list[Future[None]](), list[_Crowd]()
        for crowd in crowds:
            is_slow = (crowd.tag, request.job) in self._slow
            called = self._called(crowd, crowd.most_threads, request, answers) if is_slow else []
            takers += called
            if not called:
                left.append(crowd)
        self._do_each(request, alone, answers)
        for crowd in left:
            takers += self._try_here(crowd, request, answers)
        for taker in takers:
            taker.result()
        for crowd in crowds:
            is_slow = sum(crowd.seconds) > _PATIENCE_SECONDS
            (self._slow.add if is_slow else self._slow.discard)((crowd.tag, request.job))

    def _sorted(self, request: Request) -> tuple[Pairs, list[_Crowd]]:
        """Those that are asked one after the other, and those that may be asked at once."""
        by_tag: dict[str, list[int]] = {}
        for env in request.asked:
            recipe = self._recipes[env]
            is_alone = recipe.threads == 1 or self._takes_turns(env)
            by_tag.setdefault("" if is_alone else recipe.tag, []).append(env)
        alone = by_tag.pop("", [])
        crowds = [
            _Crowd(tag, request.pairs(envs), min(len(envs), self._recipes[envs[0]].threads))
            for tag, envs in by_tag.items()
        ]
        return request.pairs(alone), crowds

    def _called(self, crowd: _Crowd, count: int, request: Request, answers: Answers) -> list[Future[None]]:
        """Let so many threads take from a crowd, or as many as the system has room for."""
        takers: list[Future[None]] = []
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                takers.append(self._threads.submit(self._take, crowd, request, answers))  # noqa: PERF401  # who came stays
        return takers

    def _take(self, crowd: _Crowd, request: Request, answers: Answers) -> None:
        began = time.perf_counter()
        self._do_each(request, crowd.pairs, answers)
        crowd.seconds.append(time.perf_counter() - began)

    def _try_here(self, crowd: _Crowd, request: Request, answers: Answers) -> list[Future[None]]:
        """Take from a crowd in this thread, with another that calls more if this one is not done soon. Those called."""
        watch = _Watch()
        with contextlib.suppress(RuntimeError):  # the system has no room for another thread
            self._threads.submit(self._watch, watch, crowd, request, answers)
        try:
            self._take(crowd, request, answers)
        finally:
            called = watch.end()
        return called

    def _watch(self, watch: _Watch, crowd: _Crowd, request: Request, answers: Answers) -> None:
        if watch.outlasts(_PATIENCE_SECONDS):
            watch.call(lambda: self._called(crowd, crowd.most_threads - 1, request, answers))

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()
