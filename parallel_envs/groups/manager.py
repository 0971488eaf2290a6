"""`EnvStateManager`: groups of environments, stepped with lists of actions.

    manager = EnvStateManager("groups.yaml", mode="train")
    entries = manager.reset(seed=7)
    while entries:
        entries = manager.step([answer(entry) for entry in entries if "failure" not in entry])
    figures = manager.metrics()

histories, statuses, action logs ── here, in the caller (`episodes`)
environments ────────────────────── in workers, for good (`homes`, `crew`, `shelf`), or here, where that is quicker
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parallel_envs.choices import GroupMode
from parallel_envs.closing import ClosedAtExit
from parallel_envs.engine import cores_here
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.errors import ClosedError
from parallel_envs.groups.clock import Limits
from parallel_envs.groups.episodes import Entry, EnvStatus, Episode, Note
from parallel_envs.groups.failures import BadTurn, EnvFailure
from parallel_envs.groups.homes import Homes, Results
from parallel_envs.groups.inputs import Said, read_turns
from parallel_envs.groups.jobs import MAKING, REPLAYING, Job, Played
from parallel_envs.groups.metrics import FAILED, Figures, by_tag, with_passes
from parallel_envs.groups.roster import Seat, read_roster
from parallel_envs.groups.seeds import GroupSeeds
from parallel_envs.groups.stats import GroupStats, stats_of
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, in_turn

if TYPE_CHECKING:
    from pathlib import Path

    from parallel_envs.groups.settings import GroupsSettings

_MOST_WORKERS = 8
_CLOSE_SECONDS = 5.0  # that `close` waits for a call of another thread to end
_CLOSED = "This EnvStateManager has been closed. Make another one."

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _one_after_another(method: _Method) -> _Method:
    """Make calls of a method wait for those of other threads. The last to leave a closed manager lets go of all."""
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
                self._leave_home()

    return cast("_Method", call)


class EnvStateManager(ClosedAtExit):
    """Environments in groups, of several kinds at once.

    Each lives in one worker process for good, or in the caller where that is quicker. Actions go to it; its state,
    reward and info come back; histories stay here. Whether and on how many workers changes nothing in what comes of it.

    A worker that dies or hangs is replaced, and its environments are brought to where they stood, by replay of their
    actions from their seeds. An environment that raises, hangs or kills its worker has failed: its entry, which
    `step` returns this once, has a `failure`. Where no worker process can be started, the first reset warns and keeps
    all environments in the caller; there nobody can be interrupted, and deadlines do not apply.

    A copy (`copy.deepcopy`, `pickle`) goes on from where the episodes stand, with environments and workers of its own:
    they play what has been played so far when it is first used.

    Threads: any thread may call any method; calls wait for one another, so each is whole and its results are those of
    the same calls made one after another. `close` may be called meanwhile: it ends the workers at once, and a call that
    waits for them raises `ClosedError`.

    Args:
        config: A dict, the path of a YAML file, or `GroupsSettings`; see `settings` for what is in it. A file is taken
            for your own word: an `id: package:Env-v0` in it imports that package.
        mode: `train` or `val`: which groups, and which seeds.
    """

    @suggests_keywords
    def __init__(self, config: Mapping[str, Any] | str | Path | GroupsSettings, mode: GroupMode = "train") -> None:
        from parallel_envs.groups.settings import read_settings

        self._closed = False
        self._guard = CallGuard("EnvStateManager")
        self._homes: Homes | None = None
        self.settings = read_settings(config)
        self._mode = mode
        self._roster = read_roster(self.settings, mode)
        self._use_multiprocessing = self.settings.es_manager.use_multiprocessing
        self._seeds = GroupSeeds(mode, self.settings.root_seed(mode))
        self._episodes: list[Episode] = []

    # ---- what it is -------------------------------------------------------------------------------------------------

    @property
    def envs(self) -> tuple[Seat, ...]:
        """Who takes part, by `env_id`."""
        return self._roster.seats

    @property
    def mode(self) -> str:
        """`train` or `val`, as it was made for."""
        return self._mode

    @property
    def num_envs(self) -> int:
        return len(self._roster.seats)

    @property
    def group_size(self) -> int:
        return self._roster.group_size

    @property
    @_one_after_another
    def statuses(self) -> tuple[EnvStatus, ...]:
        """Where the episodes stand, by `env_id`."""
        return tuple(episode.status for episode in self._episodes)

    @property
    def use_multiprocessing(self) -> bool:
        """Whether environments live in workers. May be set at any time: episodes go on where they stand."""
        return self._use_multiprocessing

    @use_multiprocessing.setter
    @_one_after_another
    def use_multiprocessing(self, wanted: bool) -> None:
        if not isinstance(wanted, bool):
            raise TypeError(f"use_multiprocessing={wanted!r} is neither True nor False.")
        if wanted != self._use_multiprocessing:
            self._use_multiprocessing = wanted
            self._leave_home()

    @_one_after_another
    def stats(self) -> GroupStats:
        """How it works just now."""
        homes = self._homes
        return stats_of(homes.crew if homes else None, self._roster)

    # ---- episodes ---------------------------------------------------------------------------------------------------

    @_one_after_another
    def reset(self, seed: int | None = None) -> list[Entry]:
        """Begin an episode in every environment.

        Args:
            seed: What seeds of groups are drawn from. None: `train` goes on to the next seeds; `val` begins with the
                same ones each time.

        Returns:
            An entry for each environment. `history` has one item: `{state, actions_left}`, and `images`
            where the state has some. The list is yours; its items are in later entries too, so write into copies of
            them. What you write changes no turn, no replay and no metric.
        """
        following, seeds = self._seeds.drawn(seed, self.envs[-1].group_id + 1)
        homes = self._at_home()
        try:
            begun = partial(self._begun, seeds)
            results = homes.do(Job.RESET, {seat.env_id: (seeds[seat.group_id], self.mode) for seat in self.envs}, begun)
            self._raise_unmade(results)
            firsts = {**results.told, **begun(results.failures)}
            with delay_ctrl_c():  # a Ctrl-C comes before all of it, or after
                self._episodes, self._seeds = [firsts[env] for env in range(self.num_envs)], following
        except BaseException:
            homes.all_astray(range(self.num_envs))  # the episodes before this go on, or those that have just begun
            raise
        self._raise_if_wanted(results)
        return [episode.entry() for episode in self._episodes]

    def _begun(self, seeds: Sequence[int], firsts: Mapping[int, Any]) -> dict[int, Episode]:
        """Environments' episodes, from what their resets told."""
        seats = {env: self.envs[env] for env in firsts}
        return {env: Episode(seat, seeds[seat.group_id], self.mode, firsts[env]) for env, seat in seats.items()}

    @_one_after_another
    def step(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[Entry]:
        """Let environments play a turn each: those that are given an input, as many or as few as you like.

        Args:
            all_env_inputs: `{env_id, llm_response, llm_raw_response, actions}` each; `actions` is a list of strings.
                Those without a meaning are dropped, and `format_penalty` is added to the entry's penalty, as it is
                for a turn without any. What exceeds the actions that are left is cut off.

        Returns:
            The entries of those that are not over, in the order of the inputs; and of those that broke in this turn,
            with a `failure`.
        """
        homes = self._at_home()
        self._check_begun("step")
        turns, said = read_turns(all_env_inputs, self._episodes)
        episodes, penalty = self._episodes, self.settings.es_manager.format_penalty

        def noted(told: Mapping[int, Played]) -> dict[int, Note]:
            return {env: episodes[env].noted(one, said[env], penalty) for env, one in told.items()}

        try:
            results = homes.do(Job.PLAY, turns, noted)
            with delay_ctrl_c():  # a Ctrl-C comes before all of it, or after
                entries = self._kept(episodes, said, results)
        except BaseException:
            homes.all_astray(turns)  # the episodes stand where they stood, or where the turn has brought all
            raise
        self._raise_if_wanted(results)
        return entries

    def _kept(self, episodes: Sequence[Episode], said: Mapping[int, Said], results: Results) -> list[Entry]:
        """Keep what came of turns. The entries of those that are not over, or broke, in the order of the inputs."""
        if episodes is not self._episodes:
            raise BadTurn("reset() was called in the midst of step(), by an environment, say. The turn is not kept.")
        told, failures, entries = results.told, results.failures, list[Entry]()
        for env in said:
            entry: Entry | None
            if env in failures:
                entry = episodes[env].broke(failures[env], said[env])
            else:
                episodes[env].stand, entry = told[env]
            if entry is not None:
                entries.append(entry)
        return entries

    # ---- what came of them ------------------------------------------------------------------------------------------

    @_one_after_another
    def get_rollout_states(self) -> list[Entry]:
        """The entries of all environments, each with its `metrics`, as `tag/name`.

        `success` (where anybody of the tag tells it), `num_actions`, the mean over turns of each number in the infos,
        what the environment tells of its own, and, with `success`, `pass@group_size`: whether anybody in its group
        succeeded. One that could not tell its own has a `failure` in the place of all these; its episode goes on.
        """
        figures, failures = self._figures("get_rollout_states")
        named = with_passes(figures, self.group_size)
        entries = [{**episode.entry(), "metrics": own} for episode, own in zip(self._episodes, named, strict=True)]
        for env, failure in failures.items():
            entries[env]["failure"] = failure
        return entries

    @_one_after_another
    def metrics(self) -> dict[str, float]:
        """The means of all metrics by tag, as `tag/name`; `tag/failed` is the share of environments that broke."""
        figures, _ = self._figures("metrics")
        return by_tag(figures, with_passes(figures, self.group_size))

    def _figures(self, asking: str) -> tuple[list[Figures], dict[int, EnvFailure]]:
        """The figures of all episodes, and who could not tell its own."""
        homes = self._at_home()
        self._check_begun(asking)
        going = [env for env, episode in enumerate(self._episodes) if not episode.done]
        results = self._asked(homes, Job.MEASURE, dict.fromkeys(going))
        for env, own in results.told.items():
            self._episodes[env].measured(own)
        self._raise_if_wanted(results)
        figures = []
        for env, episode in enumerate(self._episodes):
            known = {FAILED: 1.0} if env in results.failures else episode.metrics()
            figures.append(Figures(episode.seat.tag, episode.seat.group_id, known, episode.told_in_turns))
        return figures, results.failures

    @_one_after_another
    def render(self, mode: str = "text", env_ids: Iterable[int] | None = None) -> list[Any]:
        """What environments show, as `text` or as `rgb_array`: all, or these; None for those that failed.

        If one of them cannot be shown, why not is raised; its episode goes on.
        """
        homes = self._at_home()
        self._check_begun("render")
        chosen = range(self.num_envs) if env_ids is None else [self._checked(env) for env in env_ids]
        well = [env for env in chosen if self._episodes[env].failure is None]
        results = self._asked(homes, Job.RENDER, dict.fromkeys(well, mode))
        for _, failure in sorted(results.failures.items()):
            raise failure.exception()
        return [results.told.get(env) for env in chosen]

    def _checked(self, env: Any) -> int:
        if isinstance(env, bool) or not hasattr(env, "__index__") or not 0 <= int(env) < self.num_envs:
            raise BadTurn(f"render() was asked for env {env!r}, and there are envs 0 to {self.num_envs - 1}.")
        return int(env)

    def _asked(self, homes: Homes, job: Job, asked: Mapping[int, Any]) -> Results:
        """What came of a mere question. Who only could not answer it goes on, and an episode that is over stays so."""
        results = homes.do(job, asked)
        for env, failure in results.failures.items():
            only_asked = failure.doing == MAKING or (failure.kind == "error" and failure.doing != REPLAYING)
            if not only_asked and not self._episodes[env].done:
                self._episodes[env].broke(failure)
        return results

    # ---- its life ---------------------------------------------------------------------------------------------------

    def _at_home(self) -> Homes:
        """The environments in their places, which they are given when first needed."""
        self._check_open()
        homes = self._homes
        if homes is None:
            homes = self._homes = self._new_homes()
            homes.all_astray(range(len(self._episodes)))
            self._check_open()  # if it was closed meanwhile, these workers are ended when this call leaves
        return homes

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(_CLOSED)

    def _new_homes(self) -> Homes:
        said, roster = self.settings.es_manager, self._roster
        return Homes(
            roster.tags,
            roster.kinds,
            roster.recipes,
            in_workers=roster.away if self._use_multiprocessing else (),
            num_workers=said.max_workers or min(_MOST_WORKERS, len(cores_here())),
            caller_works=roster.caller_works,
            limits=Limits(said.step_timeout, said.reset_timeout, said.start_timeout),
            context=said.context,
            standing=lambda env: self._episodes[env].standing,
        )

    def _check_begun(self, what: str) -> None:
        if not self._episodes:
            raise BadTurn(f"{what}() was called before there was any episode. Call reset() first.")

    def _raise_unmade(self, results: Results) -> None:
        """Raise what kept an environment from being made: that is the configuration's fault, and no episode's."""
        for _, failure in sorted(results.failures.items()):
            if failure.doing == MAKING:
                raise failure.exception()

    def _raise_if_wanted(self, results: Results) -> None:
        """With `on_failure: raise`, raise the first failure; everything else has been noted."""
        if results.failures and self.settings.es_manager.on_failure == "raise":
            first, *others = (failure for _, failure in sorted(results.failures.items()))
            error = first.exception()
            for other in others:
                error.add_note(str(other))
            raise error

    def close(self) -> None:
        """End all workers and close all environments. May be called again, by any thread and at any time.

        If another thread is inside a call that does not end, because an environment in the caller hangs, `close`
        returns after a few seconds; what that environment holds is let go of when the call ends.
        """
        self._closed = True
        homes = self._homes
        if homes is not None and self._guard.is_taken:
            homes.end_workers()
        if self._guard.wait_until_free(_CLOSE_SECONDS):
            self._leave_home()

    def _leave_home(self) -> None:
        homes, self._homes = self._homes, None
        if homes is not None:
            homes.close()

    @_one_after_another
    def __getstate__(self) -> dict[str, Any]:
        episodes = copy.deepcopy(self._episodes)
        return {**self.__dict__, "_guard": CallGuard("EnvStateManager"), "_homes": None, "_episodes": episodes}

    def __repr__(self) -> str:
        groups = self.envs[-1].group_id + 1
        state = "closed" if self._closed else f"{sum(not episode.done for episode in self._episodes)} unfinished"
        return f"EnvStateManager({self.mode}, {groups} groups of {self.group_size}, {state})"
