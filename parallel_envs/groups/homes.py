"""Where environments live: the caller, and workers. What is asked of them goes out together, and comes back as one.

An environment whose worker was lost, or whose turn nobody took note of (Ctrl-C), is *astray*: before it is asked for
anything else it is brought to where its episode stands, by replay. It is then checked to be in the state in which it
was seen last.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parallel_envs.choices import StartMethod
from parallel_envs.engine import Unpicklable, dump_reply, picklable, unpicklable_part, user_stacklevel
from parallel_envs.errors import WorkerStartError
from parallel_envs.groups.clock import Limits
from parallel_envs.groups.crew import Crew
from parallel_envs.groups.failures import EnvFailure, of_divergence, of_error
from parallel_envs.groups.jobs import Answers, Job, Read, Request, Standing
from parallel_envs.groups.placement import placed, placed_beside_caller
from parallel_envs.groups.player import Recipe
from parallel_envs.groups.shelf import Shelf

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Results:
    """What came of a request, by environment: its answer in `told`, or how it broke in `failures`."""

    told: dict[int, Any]
    failures: dict[int, EnvFailure]


class Homes:
    """The environments, each in its place for good.

    Args:
        tags: The tag of each environment.
        kinds: The type of each.
        recipes: How those of a tag are made.
        in_workers: The environments that are to live in workers.
        num_workers: At most so many workers.
        caller_works: Whether the caller is to be one of these, unless there is but one.
        limits: How long environments in workers may take.
        context: The start method.
        standing: Tells where the episode of an environment stands.
    """

    def __init__(
        self,
        tags: Mapping[int, str],
        kinds: Mapping[int, str],
        recipes: Mapping[str, Recipe],
        *,
        in_workers: Collection[int],
        num_workers: int,
        caller_works: bool = False,
        limits: Limits,
        context: StartMethod | None,
        standing: Callable[[int], Standing],
    ) -> None:
        self._tags, self._standing = tags, standing
        self._astray: set[int] = set()
        self.crew: Crew | None = None
        if in_workers:
            place = placed_beside_caller if caller_works else placed
            homes = place({env: kinds[env] for env in in_workers}, min(num_workers, len(in_workers)))
            start = partial(Crew, homes, tags, recipes, limits, context, caller_works=len(homes) < len(in_workers))
            self.crew = self._crew_if_it_starts(start, recipes)
        away = self.crew.homes if self.crew else {}
        self._shelf = Shelf({env: tag for env, tag in tags.items() if env not in away}, recipes, copies=True)

    def _crew_if_it_starts(self, start: Callable[..., Crew], recipes: Mapping[str, Recipe]) -> Crew | None:
        """Workers; None where the system has none to give. Nothing has been stepped yet, so nothing is lost by that."""
        try:
            return start(answered=self._answered, lost=self._astray.update)
        except Unpicklable as error:
            raise _unpicklable_recipe(recipes, error) from error
        except (WorkerStartError, OSError, MemoryError) as error:
            warnings.warn(
                f"Worker processes could not be started ({error}); all environments are stepped in the caller instead. "
                "Say use_multiprocessing: false if that is what you want.",
                RuntimeWarning,
                stacklevel=user_stacklevel(),
            )
            return None

    def _answered(self, job: Job, answers: Answers) -> None:
        """Note who is where it was to come, and who is nowhere."""
        if self._astray or answers.broken:  # hardly ever
            self._astray.update(answers.broken)
            self._astray.difference_update(answers.standing(job))

    def all_astray(self, envs: Collection[int]) -> None:
        """They are not where their episodes stand."""
        self._astray.update(envs)

    def do(self, job: Job, asked: Mapping[int, Any], read: Read | None = None) -> Results:
        """Have a job done, by all at once. Whatever breaks is a result. `told` is what `read` makes of the answers."""
        try:
            return self._do(Request(job, asked), read)
        except BaseException:
            self._astray.update(asked)
            raise

    def _do(self, request: Request, read: Read | None) -> Results:
        sent, failed = self._with_restores(request), dict[int, EnvFailure]()
        if self.crew is None:
            answers = self._do_here(sent, read)
        else:
            answers, failed = self._do_everywhere(self.crew, sent, read)
        return self._results(answers, failed)

    def _do_here(self, sent: Request, read: Read | None) -> Answers:
        answers = self._shelf.do(sent)
        self._answered(sent.job, answers)
        return answers.read(read)

    def _do_everywhere(self, crew: Crew, sent: Request, read: Read | None) -> tuple[Answers, dict[int, EnvFailure]]:
        """Ask the workers, do what is to be done here meanwhile, and wait for them."""
        asked = crew.begin(sent)
        try:
            here = crew.elsewhere(sent)  # now that they have something to do
            answers_here = self._do_here(here, read) if here.asked else Answers()
        except BaseException:
            crew.forget(asked)
            raise
        answers, failed = crew.do(asked, lambda envs: self._with_restores(sent.of(envs)), read)
        return answers.joined(answers_here), failed

    def _with_restores(self, request: Request) -> Request:
        """The same, beginning from where episodes stand."""
        if not self._astray or request.job is Job.RESET or self._astray.isdisjoint(request.asked):
            return request
        lost = [env for env in request.asked if env in self._astray]
        return Request(request.job, request.asked, {env: self._standing(env).restore for env in lost})

    def _results(self, answers: Answers, failures: dict[int, EnvFailure]) -> Results:
        for env, broken in answers.broken.items():
            failures[env] = of_error(env, self._tags[env], broken.doing, broken.failure)
            _log.warning("%s", failures[env])
        for env, state in answers.met.items():
            if env in answers.told and not _same(state, self._standing(env).state):
                failures[env] = of_divergence(env, self._tags[env])
                del answers.told[env]
        return Results(answers.told, failures)

    def end_workers(self) -> None:
        """End the workers, also while another thread waits for their answers: it gets a `ClosedError`."""
        if self.crew is not None:
            self.crew.end_workers()

    def close(self) -> None:
        """End the workers, and close the environments in the caller.

        In a process forked from the owner's, nothing is closed: the owner goes on with all of it.
        """
        if self.crew is not None:
            if self.crew.pool.forked_from is not None:
                return
            self.crew.close()
        self._shelf.close()


def _unpicklable_recipe(recipes: Mapping[str, Recipe], error: Unpicklable) -> Unpicklable:
    for tag, recipe in recipes.items():
        for name in ("factory", "config"):
            if not picklable(part := getattr(recipe, name)):
                return Unpicklable(
                    f"{unpicklable_part(part, f'the {name} of {tag!r}')} cannot be pickled, so it cannot travel to a "
                    f"worker process. Make it inside the environment, or say where: caller in `custom_envs.{tag}`. "
                    f"({error.__cause__!r})"
                )
    return error


def _same(one: Any, other: Any) -> bool:
    """Whether two states are equal: arrays by their values, and objects that cannot tell by their content."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(map(_same, one, other))
        case np.ndarray(), np.ndarray():
            return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc")
    try:
        equal = bool(one == other)
    except Exception:  # noqa: BLE001  # user code
        equal = False
    return equal or dump_reply(one) == dump_reply(other)
