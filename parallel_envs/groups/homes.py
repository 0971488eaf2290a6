"""Where environments live: the caller, and workers. What is asked of them goes out together, and comes back as one.

An environment whose worker was lost, or whose turn nobody took note of (Ctrl-C), is *astray*: before it is asked for
anything else it is brought to where its episode stands, by replay. It is then checked to be in the state in which it
was seen last.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from parallel_envs.engine import Unpicklable, dump_reply, picklable, unpicklable_part
from parallel_envs.errors import WorkerStartError
from parallel_envs.groups.clock import Limits
from parallel_envs.groups.crew import Crew
from parallel_envs.groups.failures import EnvFailure, of_divergence, of_error
from parallel_envs.groups.jobs import Broken, Job, Orders, Reset, Standing
from parallel_envs.groups.placement import placed
from parallel_envs.groups.player import Recipe
from parallel_envs.groups.shelf import Shelf

Results = dict[int, "list[Any] | EnvFailure"]
"""By environment, an answer for each of its jobs, or how it broke."""


class Homes:
    """The environments, each in its place for good.

    Args:
        tags: The tag of each environment.
        kinds: The type of each.
        recipes: How those of a tag are made.
        in_workers: The environments that are to live in workers.
        num_workers: At most so many workers.
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
        limits: Limits,
        context: str | None,
        standing: Callable[[int], Standing],
    ) -> None:
        self._tags, self._standing = tags, standing
        self._astray: set[int] = set()
        self.crew: Crew | None = None
        if in_workers:
            homes = placed({env: kinds[env] for env in in_workers}, min(num_workers, len(in_workers)))
            self.crew = self._crew_if_it_starts(homes, recipes, limits, context)
        away = self.crew.homes if self.crew else {}
        self._shelf = Shelf({env: tag for env, tag in tags.items() if env not in away}, recipes, copies=True)

    def _crew_if_it_starts(
        self, homes: Mapping[int, int], recipes: Mapping[str, Recipe], limits: Limits, context: str | None
    ) -> Crew | None:
        """Workers; None where the system has none to give. Nothing has been stepped yet, so nothing is lost by that."""
        astray = self._astray
        try:
            return Crew(homes, self._tags, recipes, limits, context, found=astray.difference_update, lost=astray.update)
        except Unpicklable as error:
            raise _unpicklable_recipe(recipes, error) from error
        except (WorkerStartError, OSError, MemoryError) as error:
            warnings.warn(
                f"Worker processes could not be started ({error}); all environments are stepped in the caller instead. "
                "Say use_multiprocessing: false if that is what you want.",
                RuntimeWarning,
                stacklevel=6,
            )
            return None

    def all_astray(self, envs: Collection[int]) -> None:
        """They are not where their episodes stand."""
        self._astray.update(envs)

    def do(self, orders: Orders) -> Results:
        """Have everything done, by all at once. Whatever breaks is a result."""
        try:
            results = self._do(orders)
        except BaseException:
            self._astray.update(orders)
            raise
        return results

    def _do(self, orders: Orders) -> Results:
        sent = self._with_replays(orders)
        told = self._do_here(sent) if self.crew is None else self._do_everywhere(self.crew, orders, sent)
        return {env: self._result(env, told[env], len(jobs)) for env, jobs in orders.items()}

    def _do_here(self, sent: Orders) -> dict[int, Any]:
        told = self._shelf.do(sent)
        self._astray.difference_update(sent)
        return told

    def _do_everywhere(self, crew: Crew, orders: Orders, sent: Orders) -> dict[int, Any]:
        """Ask the workers, do what is to be done here meanwhile, and wait for them."""
        away = {env: jobs for env, jobs in sent.items() if env in crew.homes}
        if not away:
            return self._do_here(sent)
        asked = crew.begin(away)
        try:
            here = self._do_here({env: jobs for env, jobs in sent.items() if env not in away})
        except BaseException:
            crew.forget(asked)
            raise
        return here | crew.do(asked, lambda envs: self._with_replays({env: orders[env] for env in envs}))

    def _with_replays(self, orders: Orders) -> Orders:
        if self._astray.isdisjoint(orders):
            return orders
        return {env: self._replay(env, jobs) for env, jobs in orders.items()}

    def _replay(self, env: int, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """What it is to do, beginning from where its episode stands."""
        if env not in self._astray or isinstance(jobs[0], Reset):
            return jobs
        return (self._standing(env).restore, *jobs)

    def _result(self, env: int, told: list[Any] | EnvFailure, num_jobs: int) -> list[Any] | EnvFailure:
        if isinstance(told, EnvFailure):
            return told
        if isinstance(told[-1], Broken):
            return of_error(env, self._tags[env], told[-1].doing, told[-1].failure)
        if len(told) > num_jobs and not _same(told[0], self._standing(env).state):
            return of_divergence(env, self._tags[env])
        return told[-num_jobs:]

    def close(self) -> None:
        """End the workers, and close the environments in the caller."""
        if self.crew is not None:
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
