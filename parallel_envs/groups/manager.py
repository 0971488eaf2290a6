"""`EnvStateManager`: groups of environments, stepped with lists of actions.

    manager = EnvStateManager("groups.yaml", mode="train")
    entries = manager.reset(seed=7)
    while entries:
        entries = manager.step([answer(entry) for entry in entries if "failure" not in entry])
    figures = manager.metrics()

histories, statuses, actions ── in the caller (`episode`)
environments ───────────────── in workers (`placement`, `env_workers`, `env_host`), or in the caller, where that is
                               quicker

A turn: `episode` reads the inputs, `placement` sends the actions to workers and to the caller's own `env_host`, and
`episode` records the results while other environments still play.
"""

from __future__ import annotations

import copy
import functools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parallel_envs.checks import suggests_keywords
from parallel_envs.choices import GroupMode
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.errors import ClosedError
from parallel_envs.groups.episode import (
    FAILED,
    Entry,
    EnvStatus,
    Episode,
    EpisodeMetrics,
    RecordedTurn,
    means_by_tag,
    read_turns,
    with_pass_at_k,
)
from parallel_envs.groups.failures import BadTurn, EnvFailure
from parallel_envs.groups.placement import EnvPlacement, Results
from parallel_envs.groups.registry import EnvSpec, read_env_specs
from parallel_envs.groups.transport import MAKING, REPLAYING, Job, Played
from parallel_envs.seeding import SeedTree
from parallel_envs.threads import CallGuard, ClosedAtExit, in_turn

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_envs.groups.config import GroupsSettings

_CLOSE_SECONDS = 5.0  # how long `close` waits for a call of another thread to end
_CLOSED = "This EnvStateManager has been closed. Make another one."

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Figures of a manager at work.

    Attributes:
        num_workers: Worker processes. The caller may be one more (`where: both`).
        restarts: How often a worker was lost and replaced.
        num_bytes: Bytes that have travelled to the workers and back.
        in_caller: The tags whose environments all live in the caller.
    """

    num_workers: int
    restarts: int
    num_bytes: int
    in_caller: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupSeeds:
    """Source of the seeds of groups: equal for all members, different between groups, resets and modes."""

    mode: str
    root: int | None
    num_resets: int = 0

    def drawn(self, seed: int | None, num_groups: int) -> tuple[GroupSeeds, list[int]]:
        """Return the source for the next reset, and the seed of each group. `seed` is a new root, if it is given."""
        if seed is not None:
            root, count = seed, 0
        else:
            root, count = secrets.randbits(31) if self.root is None else self.root, self.num_resets
        seeds = SeedTree(root).child("groups", self.mode, count).seeds(num_groups)
        return self if self.mode == "val" else GroupSeeds(self.mode, root, count + 1), seeds


def _one_after_another(method: _Method) -> _Method:
    """Make calls of a method wait for those of other threads. The last call in a closed manager frees everything."""
    waiting = in_turn(method)

    @functools.wraps(method)
    def call(self: EnvStateManager, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return waiting(self, *args, **kwargs)
        except ClosedError as error:
            if error.args == (_CLOSED,) or not self._closed:
                raise
            raise ClosedError(f"This EnvStateManager was closed while {method.__name__}() was under way.") from error
        finally:
            if self._closed and not self._guard.thread:  # `close` may have given up waiting for this call
                self._close_placement()

    return cast("_Method", call)


class EnvStateManager(ClosedAtExit):
    """Environments in groups, of several kinds at once.

    Each environment lives in one worker process, or in the caller where that is quicker. Actions go to it; its state,
    reward and info come back; histories stay here. The results do not depend on where environments live and on the
    number of workers.

    A worker that dies or hangs is replaced, and its environments are brought back to the state of their episodes, by
    replay of their actions from their seeds. An environment that raises, hangs or kills its worker has failed: its
    entry, which `step` returns this once, has a `failure`. If no worker process can be started, the first reset warns
    and keeps all environments in the caller; there they cannot be interrupted, and deadlines do not apply.

    A copy (`copy.deepcopy`, `pickle`) continues from the present state of the episodes, with environments and workers
    of its own, which replay the episodes when the copy is first used.

    Threads: any thread may call any method; calls wait for one another, so results are those of the same calls made one
    after another. `close` may be called meanwhile: it ends the workers at once, and a call that waits for them raises
    `ClosedError`.

    Args:
        config: A dict, the path of a YAML file, or `GroupsSettings`; see the module `config` for its contents. A file
            is trusted like your own code: an `id: package:Env-v0` in it imports that package.
        mode: `train` or `val`: which groups, and which seeds.
    """

    @suggests_keywords
    def __init__(self, config: Mapping[str, Any] | str | Path | GroupsSettings, mode: GroupMode = "train") -> None:
        from parallel_envs.groups.config import read_settings

        self._closed = False
        self._guard = CallGuard("EnvStateManager")
        self._placement: EnvPlacement | None = None
        self.settings = read_settings(config)
        self.mode: str = mode
        self._specs = read_env_specs(self.settings, mode)
        self.envs: tuple[EnvSpec, ...] = self._specs.envs  # by `env_id`
        self.num_envs, self.group_size = len(self.envs), self._specs.group_size
        self._use_multiprocessing = self.settings.es_manager.use_multiprocessing
        self._seeds = GroupSeeds(mode, self.settings.root_seed(mode))
        self._episodes: list[Episode] = []

    @property
    @_one_after_another
    def statuses(self) -> tuple[EnvStatus, ...]:
        """The status of each episode, by `env_id`."""
        return tuple(episode.status for episode in self._episodes)

    @property
    def use_multiprocessing(self) -> bool:
        """True if environments live in workers. May be set at any time: episodes continue."""
        return self._use_multiprocessing

    @use_multiprocessing.setter
    @_one_after_another
    def use_multiprocessing(self, wanted: bool) -> None:
        if not isinstance(wanted, bool):
            raise TypeError(f"use_multiprocessing={wanted!r} is neither True nor False.")
        if wanted != self._use_multiprocessing:
            self._use_multiprocessing = wanted
            self._close_placement()

    @_one_after_another
    def stats(self) -> GroupStats:
        """Return the present number of workers, and what they have done so far."""
        workers = self._placement.workers if self._placement else None
        in_workers = {self.envs[env].tag for env in workers.worker_of} if workers else set()
        in_caller = tuple(tag for tag in self._specs.tag_specs if tag not in in_workers)
        if workers is None:
            return GroupStats(0, 0, 0, in_caller)
        return GroupStats(workers.pool.num_workers, workers.restarts, workers.num_bytes(), in_caller)

    # ---- episodes ---------------------------------------------------------------------------------------------------

    @_one_after_another
    def reset(self, seed: int | None = None) -> list[Entry]:
        """Begin an episode in every environment.

        Args:
            seed: The seed of the groups' seeds. None: `train` goes on to the next seeds; `val` begins with the same
                ones each time.

        Returns:
            An entry for each environment. `history` has one item: `{state, actions_left}`, and `images`
            where the state has some. The list is yours; its items are in later entries too, so write into copies of
            them. What you write changes no turn, no replay and no metric.
        """
        next_seeds, seeds = self._seeds.drawn(seed, self.envs[-1].group_id + 1)
        placement = self._open_placement()

        def begun(firsts: Mapping[int, Any]) -> dict[int, Episode]:
            specs = {env: self.envs[env] for env in firsts}
            return {env: Episode(spec, seeds[spec.group_id], self.mode, firsts[env]) for env, spec in specs.items()}

        try:
            arguments = {spec.env_id: (seeds[spec.group_id], self.mode) for spec in self.envs}
            results = placement.do(Job.RESET, arguments, begun)
            for _, failure in sorted(results.failures.items()):
                if failure.doing == MAKING:  # the configuration is at fault, not the episode
                    raise failure.exception()
            episodes = {**results.values, **begun(results.failures)}
            with delay_ctrl_c():  # a Ctrl-C comes before all of it, or after
                self._episodes, self._seeds = [episodes[env] for env in range(self.num_envs)], next_seeds
        except BaseException:
            placement.stale.update(range(self.num_envs))  # the previous episodes go on, or those that have just begun
            raise
        self._raise_if_wanted(results)
        return [episode.entry() for episode in self._episodes]

    @_one_after_another
    def step(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[Entry]:
        """Play one turn in each environment that is given an input: as many or as few as you like.

        Args:
            all_env_inputs: `{env_id, llm_response, llm_raw_response, actions}` each; `actions` is a list of strings.
                Invalid actions are dropped, and `format_penalty` is added to the entry's penalty, as it is for a turn
                without any action. Actions beyond the ones that are left are dropped, too.

        Returns:
            The entries of environments that are not over, in the order of the inputs, and of those that broke in this
            turn, with a `failure`.
        """
        placement = self._open_placement("step")
        turns, given = read_turns(all_env_inputs, self._episodes)
        episodes, penalty = self._episodes, self.settings.es_manager.format_penalty

        def recorded(played: Mapping[int, Played]) -> dict[int, RecordedTurn]:
            return {env: episodes[env].record_turn(one, given[env], penalty) for env, one in played.items()}

        entries = list[Entry]()
        try:
            results = placement.do(Job.PLAY, turns, recorded)
            with delay_ctrl_c():  # a Ctrl-C comes before all of it, or after
                if episodes is not self._episodes:
                    raise BadTurn(
                        "reset() was called in the midst of step(), by an environment, say. The turn is not kept."
                    )
                values, failures = results.values, results.failures
                for env in given:
                    entry: Entry | None
                    if env in failures:
                        entry = episodes[env].fail(failures[env], given[env])
                    else:
                        episodes[env].state, entry = values[env]
                    if entry is not None:
                        entries.append(entry)
        except BaseException:
            placement.stale.update(turns)  # the episodes are as before the turn, or as after it
            raise
        self._raise_if_wanted(results)
        return entries

    # ---- metrics and pictures ---------------------------------------------------------------------------------------

    @_one_after_another
    def get_rollout_states(self) -> list[Entry]:
        """Return the entries of all environments, each with its `metrics`, as `tag/name`.

        `success` (if an environment of the tag reports it), `num_actions`, the mean over turns of each number in the
        infos, the environment's own metrics, and, with `success`, `pass@group_size`: whether a member of its group
        succeeded. If an environment's own metrics raise, it has a `failure` in the place of all these; its episode goes
        on.
        """
        episodes, failures = self._episode_metrics("get_rollout_states")
        named = with_pass_at_k(episodes, self.group_size)
        entries = [{**episode.entry(), "metrics": own} for episode, own in zip(self._episodes, named, strict=True)]
        for env, failure in failures.items():
            entries[env]["failure"] = failure
        return entries

    @_one_after_another
    def metrics(self) -> dict[str, float]:
        """Return the means of all metrics by tag, as `tag/name`; `tag/failed` is the share of failed environments."""
        episodes, _ = self._episode_metrics("metrics")
        return means_by_tag(episodes, with_pass_at_k(episodes, self.group_size))

    def _episode_metrics(self, method: str) -> tuple[list[EpisodeMetrics], dict[int, EnvFailure]]:
        """Return the metrics of all episodes, and the failures of environments whose own metrics raised."""
        placement = self._open_placement(method)
        going = [env for env, episode in enumerate(self._episodes) if not episode.done]
        results = self._query(placement, Job.MEASURE, dict.fromkeys(going))
        for env, own in results.values.items():
            self._episodes[env].set_metrics(own)
        self._raise_if_wanted(results)
        episodes = []
        for env, episode in enumerate(self._episodes):
            known = {FAILED: 1.0} if env in results.failures else episode.metrics()
            episodes.append(EpisodeMetrics(episode.spec.tag, episode.spec.group_id, known, episode.turn_metrics))
        return episodes, results.failures

    @_one_after_another
    def render(self, mode: str = "text", env_ids: Iterable[int] | None = None) -> list[Any]:
        """Return what environments show, as `text` or as `rgb_array`: all, or these; None for those that failed.

        If one of them raises, its error is raised here; its episode goes on.
        """
        placement = self._open_placement("render")
        chosen = list[int]()
        for env in range(self.num_envs) if env_ids is None else env_ids:
            if isinstance(env, bool) or not hasattr(env, "__index__") or not 0 <= int(env) < self.num_envs:
                raise BadTurn(f"render() was asked for env {env!r}, and there are envs 0 to {self.num_envs - 1}.")
            chosen.append(int(env))
        well = [env for env in chosen if self._episodes[env].failure is None]
        results = self._query(placement, Job.RENDER, dict.fromkeys(well, mode))
        for _, failure in sorted(results.failures.items()):
            raise failure.exception()
        return [results.values.get(env) for env in chosen]

    def _query(self, placement: EnvPlacement, job: Job, arguments: Mapping[int, Any]) -> Results:
        """Do a read-only job. An environment that raises in the job itself goes on, and a finished episode stays so."""
        results = placement.do(job, arguments)
        for env, failure in results.failures.items():
            is_harmless = failure.doing == MAKING or (failure.kind == "error" and failure.doing != REPLAYING)
            if not is_harmless and not self._episodes[env].done:
                self._episodes[env].fail(failure)
        return results

    def _raise_if_wanted(self, results: Results) -> None:
        """With `on_failure: raise`, raise the first failure, now that everything has been recorded."""
        if results.failures and self.settings.es_manager.on_failure == "raise":
            first, *others = (failure for _, failure in sorted(results.failures.items()))
            error = first.exception()
            for other in others:
                error.add_note(str(other))
            raise error

    # ---- opening and closing ----------------------------------------------------------------------------------------

    def _open_placement(self, method: str = "") -> EnvPlacement:
        """Return the placement of the environments, which is made when it is first needed."""
        if self._closed:
            raise ClosedError(_CLOSED)
        placement = self._placement
        if placement is None:
            placement = self._placement = EnvPlacement(
                self._specs,
                self.settings.es_manager,
                use_workers=self._use_multiprocessing,
                replay_target=lambda env: self._episodes[env].replay_target,
            )
            placement.stale.update(range(len(self._episodes)))
            if self._closed:  # meanwhile: these workers are ended when this call leaves
                raise ClosedError(_CLOSED)
        if method and not self._episodes:
            raise BadTurn(f"{method}() was called before there was any episode. Call reset() first.")
        return placement

    def close(self) -> None:
        """End all workers and close all environments. May be called again, by any thread and at any time.

        If another thread is inside a call that does not end, because an environment in the caller hangs, `close`
        returns after a few seconds; the rest is freed when that call ends.
        """
        self._closed = True
        placement = self._placement
        if placement is not None and placement.workers is not None and self._guard.is_taken:
            placement.workers.end_workers()
        if self._guard.wait_until_free(_CLOSE_SECONDS):
            self._close_placement()

    def _close_placement(self) -> None:
        placement, self._placement = self._placement, None
        if placement is not None:
            placement.close()

    @_one_after_another
    def __getstate__(self) -> dict[str, Any]:
        episodes = copy.deepcopy(self._episodes)
        return {**self.__dict__, "_guard": CallGuard("EnvStateManager"), "_placement": None, "_episodes": episodes}

    def __repr__(self) -> str:
        groups = self.envs[-1].group_id + 1
        state = "closed" if self._closed else f"{sum(not episode.done for episode in self._episodes)} unfinished"
        return f"EnvStateManager({self.mode}, {groups} groups of {self.group_size}, {state})"
