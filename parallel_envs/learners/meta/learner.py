"""`Learner`: from settings to an agent that adapts to tasks that it has not seen.

    learner = Learner("examples/results/meta/bandits.yaml")
    learner.train("runs/bandits")
    print(learner.evaluate().curve)                        # return by inner episode, on tasks kept for evaluation

What is played, and where, is in `player.py`. Here it learns, in a run with metrics and checkpoints; one that is resumed
at a checkpoint goes on as the one that was never ended.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Self, overload

from parallel_envs.learners.algorithm import Diverged, NothingLearnt
from parallel_envs.learners.checkpoint import load_checkpoint, save_checkpoint
from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.meta.agent import AGENT, described_policy
from parallel_envs.learners.meta.config import MetaSettings, load_settings
from parallel_envs.learners.meta.player import Player
from parallel_envs.learners.outcomes import Ended, RunOutcome, outcome_of_meta
from parallel_envs.learners.run_folder import CheckpointNotSaved, Run, new_folder_in_runs, settings_of
from parallel_envs.meta.families import KNOWN
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.threads import one_thread
from parallel_envs.trust import check_env

DEFAULT_ITERS = 100
"""Iterations of a training whose settings do not say when it ends."""

_log = logging.getLogger(__name__)

MAY_CHANGE = frozenset(
    (
        "checkpoint_every",
        "env.backend",
        "env.manager_options",
        "env.max_restarts",
        "env.num_envs",
        "env.num_parallel_workers",
        "env.on_failure",
        "env.reset_timeout",
        "env.restart_window",
        "env.start_timeout",
        "env.step_timeout",
        "eval.interval",
        "eval.num_rollouts_per_task",
        "folder",
        "keep_checkpoints",
        "tensorboard",
        "train.n_env_steps_total",
        "train.num_iters",
        "train.on_divergence",
    )
)
"""Settings that may be others when a run is resumed."""


class Learner(Player):
    """Trains one agent on many tasks, several episodes on each, and measures how it adapts to others.

    A context manager; `close` ends the workers.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method, such as `train`,
    raises `ConcurrentCall` and does nothing; so does `close`.

    Args:
        config: A dict, the path of a YAML file, or `MetaSettings`. See `settings.py` for the words.
        **overrides: Words that are to take the place of others; give those of blocks as a dict:
            `Learner(config, **{"seed": 3, "train.num_iters": 10})`.

    Raises:
        BadSettings: Before anything has started.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path | MetaSettings, **overrides: Any) -> None:
        super().__init__(config, **overrides)
        self.num_iters_done = 0

    # ---- learning ---------------------------------------------------------------------------------------------------

    @one_thread
    def update(self, num_updates: int | EllipsisType | None = None) -> dict[str, float]:
        """Have the agent learn from what was collected. Returns its metrics.

        Args:
            num_updates: None or `...`: as the settings say.
        """
        began = time.perf_counter()
        said = self.settings.train.num_updates_per_iter
        wanted = said if num_updates is None or isinstance(num_updates, EllipsisType) else num_updates
        left = 1.0 - self.progress * (1.0 - self.settings.train.last_learning_rate)
        stats = self.agent.update(1 if wanted is None else wanted, rate=max(left, 1e-6))
        self.seconds["learn"] += time.perf_counter() - began
        return stats

    # ---- training ---------------------------------------------------------------------------------------------------

    @one_thread
    def train(self, folder: str | Path | None = None) -> Path:
        """Collect and learn until the settings' end, with metrics and checkpoints in a run's folder, which is returned.

        However it ends, `outcome.json` in the folder says how, and `parallel-envs report` reads it. Ctrl-C leaves a
        checkpoint of the last whole iteration. A learner that was interrupted, or that `resume` has
        made, goes on in its own folder.

        Raises:
            EnvError, WorkerDied, StepTimeout: With `env.on_failure: raise`, or once an environment fails more often
                than `env.max_restarts` allows. A note says how to go on, as with any other error.
            Diverged: An update was not finite, with `train.on_divergence: raise`.
            NothingLearnt: At the end: every update was undone. Where only some were, a warning says how many.
            CheckpointNotSaved: See `Run.save_if_possible`.
        """
        run = self._start_training(folder)
        with self._closing_run(), self._telling_end(run):
            try:
                self._fill_pool()
                while not self.finished:
                    self.collect_rollouts_parallel(
                        self.settings.train.num_rollouts_per_iter, parallel_env=self.train_env_parallel
                    )
                    self._learn(run)
            except KeyboardInterrupt:
                try:
                    if self._has_news:  # it struck just before they were to be learnt from
                        self._learn(run)
                finally:  # also if it strikes once more meanwhile
                    self._keep(run, is_last=True)
                raise
            except CheckpointNotSaved:  # its text says how to go on
                raise
            except Exception as error:
                error.add_note(f"{run.kept()} Learner.resume({str(run.folder)!r}).train() goes on from a checkpoint.")
                raise
        self._tell_of_losses()
        return run.folder

    @one_thread
    def _start_training(self, folder: str | Path | None = None) -> Run:
        """Open the run's folder, unless it is open. For a `train` that a subclass has written itself.

            self._start_training()
            while self._n_env_steps_total < self.n_env_steps_total:
                self.collect_rollouts_parallel(self.num_rollouts_per_iter, parallel_env=self.train_env_parallel)
                self.log_train_stats(self.update())

        `close` closes it, and `train_folder` is where it is.
        """
        if self._open_run is None:
            self._open_run = self._run(folder)
            self._resumed = self._open_run.folder
        return self._open_run

    _open_run: Run | None = None

    @contextlib.contextmanager
    def _closing_run(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._close_run()

    @contextlib.contextmanager
    def _telling_end(self, run: Run) -> Iterator[None]:
        """Have the run's folder say how the training within has ended."""
        began, since = self._n_env_steps_total, time.perf_counter()

        def tell(ended: Ended, reason: str = "") -> None:
            seconds, steps = time.perf_counter() - since, self._n_env_steps_total
            name = self.settings.policy.algorithm.get("name", "ppo")
            counts: dict[str, Any] = {"steps": steps, "began": began, "seconds": seconds}
            self._end_with(outcome_of_meta(run.folder, name, ended=ended, reason=reason, **counts))

        try:
            yield
        except KeyboardInterrupt:
            tell("ctrl-c")
            raise
        except Exception as error:
            tell("error", type(error).__name__)
            raise
        tell("budget")

    def _end_with(self, outcome: RunOutcome) -> None:
        outcome.write()

    def _close_run(self) -> None:
        run, self._open_run = self._open_run, None
        if run is not None:
            run.close()

    @one_thread
    def close(self) -> None:
        """End the workers, close the environments and the run's files. Calling it twice does nothing."""
        self._close_run()
        super().close()

    @property
    def train_folder(self) -> Path | None:
        """The folder of the run that was begun or resumed last."""
        return self._resumed

    @property
    def num_init_rollouts_pool(self) -> int:
        """As `train.num_init_rollouts_pool` of the settings."""
        return self.settings.train.num_init_rollouts_pool

    @property
    def num_rollouts_per_iter(self) -> int:
        """As `train.num_rollouts_per_iter` of the settings."""
        return self.settings.train.num_rollouts_per_iter

    @property
    def n_env_steps_total(self) -> int:
        """Steps of environments after which training ends: `train.n_env_steps_total` of the settings, or as many as the
        rollouts of all iterations have at most.
        """
        said = self.settings.train
        if said.n_env_steps_total is not None:
            return said.n_env_steps_total
        rollouts = said.num_init_rollouts_pool + said.num_rollouts_per_iter * (said.num_iters or DEFAULT_ITERS)
        return rollouts * self.max_trajectory_len

    def _tell_of_losses(self) -> None:
        """Say what went wrong on the way. Raises NothingLearnt if every update was undone."""
        number, last = self._stage.restarts
        if number:
            _log.warning("Restarts of environments: %d. The last was of %s", number, last)
        undone, learnt = self.agent.counters["skipped"], self.agent.counters["updates"]
        if undone and not learnt:
            raise NothingLearnt.of_counts({AGENT: undone})
        if undone:
            _log.warning("Updates that were not finite, and undone: %d of %d.", undone, undone + learnt)

    _resumed: Path | None = None

    def _run(self, folder: str | Path | None) -> Run:
        """A new run, or the one to go on with."""
        options = {"keep_checkpoints": self.settings.keep_checkpoints, "tensorboard": self.settings.tensorboard}
        if self._resumed is None:
            algorithm = f"meta-{self.settings.policy.algorithm.get('name', 'ppo')}"
            chosen = folder or self.settings.folder
            chosen = chosen or new_folder_in_runs(self.settings.env.env_name, [algorithm], self.seed)
            return Run.create(chosen, self._described(), seed=self.seed, **options)
        if folder is not None and Path(folder) != self._resumed:
            raise ValueError(f"The run goes on in {self._resumed}, and folder={str(folder)!r} was given.")
        run, newest = Run.resume(self._resumed, **options)
        if not self._is_whole or int(newest.name) != self._n_env_steps_total:
            self.load(newest)  # the run has gone back to there, and so does the learner
        return run

    def _described(self) -> dict[str, Any]:
        """Everything that the run's folder is to tell, so that defaults that are others later do not change it."""
        told = self.settings.described()
        told["policy"] |= described_policy(self._config, self._memory, self.settings.policy.algorithm["name"])
        if self.settings.train.num_iters is None and self.settings.train.n_env_steps_total is None:
            told["train"]["num_iters"] = DEFAULT_ITERS
        return told

    @property
    def progress(self) -> float:
        """How much of the training is done, from 0 to 1."""
        wanted = self.settings.train
        if wanted.n_env_steps_total is not None:
            return min(self._n_env_steps_total / wanted.n_env_steps_total, 1.0)
        return min(self.num_iters_done / (wanted.num_iters or DEFAULT_ITERS), 1.0)

    @property
    def finished(self) -> bool:
        """Whether training has come to its end."""
        return self.progress >= 1.0

    def _fill_pool(self) -> None:
        missing = self.settings.train.num_init_rollouts_pool - self._num_rollouts
        if missing > 0:
            self._learnt_from = self.settings.train.num_init_rollouts_pool  # these wait in the buffer
            self.collect_rollouts_parallel(missing, random_actions=True, parallel_env=self.train_env_parallel)

    def _learn(self, run: Run) -> None:
        """Learn from what was collected, and write down what came of it."""
        with Interrupts():  # a Ctrl-C waits until that is done; a second one does not
            self._learnt_from, self._is_whole = self._num_rollouts, False
            stats: dict[str, float] = {}
            try:
                stats = self.update()
            except Diverged as error:
                if self.settings.train.on_divergence == "raise":
                    raise
                _log.warning("%s", str(error))
            self._end_iteration(run, stats)

    def _end_iteration(self, run: Run, stats: Mapping[str, float]) -> None:
        """Count an iteration, write down what came of it, and save a checkpoint where one is due."""
        self.num_iters_done += 1
        told = {"return": float(self.last_rollouts.total_rewards.mean()), **stats}
        self.log_train_stats(run, {**told, "skipped": float(self.agent.counters["skipped"])})
        self._is_whole = True
        if self.finished or self.num_iters_done % self._tenth(self.settings.checkpoint_every) == 0:
            self._keep(run, is_last=self.finished)

    def _keep(self, run: Run, *, is_last: bool) -> None:
        """Save a checkpoint, if there is none of this moment, and nothing is half learnt."""
        if self._is_whole and self._n_env_steps_total != self._kept_at:
            saved = run.save_if_possible(self._n_env_steps_total, self.save, is_last=is_last)
            self._kept_at = self._kept_at if saved is None else self._n_env_steps_total

    _learnt_from = 0
    """How many rollouts there were when it learnt last."""
    _is_whole = True
    """Whether no iteration was cut short while it learnt."""
    _kept_at: int | None = None
    """How many steps had been made when a checkpoint was saved last."""

    @property
    def _has_news(self) -> bool:
        """Whether rollouts wait to be learnt from."""
        return self._is_whole and self._num_rollouts > self._learnt_from

    @overload
    def log_train_stats(self, run: Mapping[str, float], /) -> None: ...

    @overload
    def log_train_stats(self, run: Run, stats: Mapping[str, float]) -> None: ...

    @one_thread
    def log_train_stats(self, run: Run | Mapping[str, float], stats: Mapping[str, float] | None = None) -> None:
        """Write a line of metrics, with an evaluation where one is due.

        `log_train_stats(stats)`, in a `train` of a subclass's own, ends an iteration: it is counted, and a checkpoint
        is saved where one is due.
        """
        if not isinstance(run, Run):
            with Interrupts():
                self._learnt_from = self._num_rollouts
                self._end_iteration(self._start_training(), run)
            return
        stats = {} if stats is None else stats
        counts: dict[str, Any] = {
            "update": self.num_iters_done,
            "steps": self._n_env_steps_total,
            "rollouts": self._num_rollouts,
            "restarts": self._stage.restarts[0],
        }
        if self.finished or self.num_iters_done % self._tenth(self.settings.eval.interval) == 0:
            counts["evaluation"] = self.evaluate().told()
        counts["seconds"] = {name: round(value, 3) for name, value in self.seconds.items()}
        run.log(counts, {AGENT: stats})

    def _tenth(self, wanted: int | None) -> int:
        """An interval in iterations: as wanted, or a tenth of all."""
        if wanted is not None:
            return wanted
        total, done = self.settings.train.n_env_steps_total, self._n_env_steps_total
        if total is None:
            return math.ceil((self.settings.train.num_iters or DEFAULT_ITERS) / 10)
        return max(math.ceil(total / max(done / self.num_iters_done, 1) / 10), 1)

    # ---- keeping ----------------------------------------------------------------------------------------------------

    @one_thread
    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: the agent, and how far the run is."""
        about = {
            "num_iters_done": self.num_iters_done,
            "num_rollouts": self._num_rollouts,
            "num_env_steps": self._n_env_steps_total,
            "seed": self.seed,
        }
        save_checkpoint(folder, {AGENT: self.agent.state()}, about)

    @one_thread
    def load(self, folder: str | Path) -> None:
        """Become what was saved."""
        stored = load_checkpoint(folder)
        self.agent.load_state(stored.agents[AGENT])
        self.num_iters_done = stored.about["num_iters_done"]
        self._num_rollouts = stored.about["num_rollouts"]
        self._n_env_steps_total = self._kept_at = stored.about["num_env_steps"]
        self._learnt_from, self._is_whole = self._num_rollouts, True

    @classmethod
    def resume(cls, folder: str | Path, *, trust: Sequence[str] = (), **overrides: Any) -> Self:
        """A learner that goes on from the newest checkpoint of a run. `train` does so in the same folder.

        Args:
            folder: The run's.
            trust: Modules whose environments the run's settings.yaml may name. UntrustedName for others: see
                `parallel_envs.trust`.
            **overrides: Settings that are to be others, as far as what is learnt does not depend on them.
        """
        if odd := sorted(overrides.keys() - MAY_CHANGE):
            raise BadSettings(
                f"`{odd[0]}` is what the run in {folder} depends on. Begin a run of its own with it; one that goes on "
                f"may change {', '.join(f'`{name}`' for name in sorted(MAY_CHANGE))}."
            )
        stored = load_settings(settings_of(folder)).env
        check_env(KNOWN.get(stored.env_name, stored.env_name), stored.env_kwargs, settings_of(folder), trust)
        run, newest = Run.resume(folder, tensorboard=False)
        run.close()
        learner = cls(settings_of(folder), **{**overrides, "policy.begin_with": None})  # it has begun
        try:
            learner.load(newest)
        except BaseException:
            learner.close()
            raise
        learner._resumed = Path(folder)
        return learner
