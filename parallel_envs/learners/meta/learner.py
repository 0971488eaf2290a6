"""`Learner`: trains an agent that adapts to tasks that it has not seen.

    learner = Learner("examples/results/meta/bandits.yaml")
    learner.train("runs/bandits")
    print(learner.evaluate().curve)                        # return by inner episode, on tasks kept for evaluation

`player.py` holds the agent, its tasks and its environments. The learner adds training in a run with metrics and
checkpoints.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Self

from parallel_envs.engine.interrupts import Interrupts
from parallel_envs.learners.algorithm import Diverged
from parallel_envs.learners.checkpoint import load_checkpoint, save_checkpoint
from parallel_envs.learners.config import BadSettings, FailureSettings
from parallel_envs.learners.meta.agent import AGENT, described_policy
from parallel_envs.learners.meta.config import MetaSettings, load_settings
from parallel_envs.learners.meta.learner import Player
from parallel_envs.learners.outcomes import Ended, RunOutcome, check_learnt, outcome_of
from parallel_envs.learners.progress import Display, Progress
from parallel_envs.learners.run_folder import CheckpointNotSaved, Run, new_folder_in_runs, settings_of
from parallel_envs.meta.making import KNOWN
from parallel_envs.threads import one_thread
from parallel_envs.trust import check_env

DEFAULT_ITERS = 100
"""Number of iterations if the settings do not say when training ends."""

_log = logging.getLogger(__name__)

MAY_CHANGE = {f"env.{name}" for name in FailureSettings.model_fields} | {
    "checkpoint_every", "env.backend", "env.manager_options", "env.num_envs", "env.num_parallel_workers",
    "eval.interval", "eval.num_rollouts_per_task", "folder", "keep_checkpoints", "tensorboard",
    "train.n_env_steps_total", "train.num_iters", "train.on_divergence",
}  # fmt: skip
"""Settings that may change when a run is resumed."""


class Learner(Player):
    """Trains one agent on many tasks, several episodes on each, and measures how it adapts to other tasks.

    A context manager; `close` ends the workers.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method, such as `train`,
    raises `ConcurrentCall` and does nothing; so does `close`.

    Args:
        config: A dict, the path of a YAML file, or `MetaSettings`. `config.py` lists the settings.
        **overrides: Settings that replace others. Pass names with dots in a dict:
            `Learner(config, **{"seed": 3, "train.num_iters": 10})`.

    Raises:
        BadSettings: A setting is wrong. Nothing has been started.
    """

    display: Display | None = None
    """Display that shows each iteration, or None."""
    outcome: RunOutcome | None = None
    """Results of the training that ended last."""

    # Set here, because `close` reads them if `__init__` of the base class fails.
    _open_run: Run | None = None
    train_folder: Path | None = None
    """Folder of the newest run: the run that `train` or `resume` opened last."""
    _learnt_from = 0  # number of rollouts when it learnt last
    _is_whole = True  # False while an iteration is half done
    _kept_at: int | None = None  # number of steps at the last checkpoint

    def __init__(self, config: Mapping[str, Any] | str | Path | MetaSettings, **overrides: Any) -> None:
        super().__init__(config, **overrides)
        self.num_iters_done = 0

    @one_thread
    def update(self, num_updates: int | EllipsisType | None = None) -> dict[str, float]:
        """Let the agent learn from the collected rollouts. Returns its metrics.

        `num_updates` is a number; None or `...`: as the settings say.
        """
        began = time.perf_counter()
        said = self.settings.train.num_updates_per_iter
        wanted = said if num_updates is None or isinstance(num_updates, EllipsisType) else num_updates
        left = 1.0 - self.progress * (1.0 - self.settings.train.last_learning_rate)
        stats = self.agent.update(1 if wanted is None else wanted, rate=max(left, 1e-6))
        self.seconds["learn"] += time.perf_counter() - began
        return stats

    @one_thread
    def train(self, folder: str | Path | None = None) -> Path:
        """Collect and learn until the settings' end. Returns the run's folder, with metrics and checkpoints.

        However training ends, `outcome.json` in the folder says how, and `parallel-envs report` reads it. Ctrl-C leaves
        a checkpoint of the last complete iteration. A learner that was interrupted, or that `resume` has made, goes on
        in its own folder.

        Raises:
            EnvError, WorkerDied, StepTimeout: With `env.on_failure: raise`, or if an environment fails more often than
                `env.max_restarts` allows. A note says how to go on, as with any other error.
            Diverged: An update was not finite, with `train.on_divergence: raise`.
            NothingLearnt: At the end: every update was undone. If only some were, a warning says how many.
            CheckpointNotSaved: See `Run.save_if_possible`.
        """
        run, wanted = self._start_training(folder), self.settings.train
        began, since = self._n_env_steps_total, time.perf_counter()
        ended: Ended = "error"
        reason = ""
        try:
            missing = wanted.num_init_rollouts_pool - self._num_rollouts
            if missing > 0:
                self._learnt_from = wanted.num_init_rollouts_pool  # these rollouts wait in the buffer
                self.collect_rollouts_parallel(missing, random_actions=True, parallel_env=self.train_env_parallel)
            while not self.finished:
                self.collect_rollouts_parallel(wanted.num_rollouts_per_iter, parallel_env=self.train_env_parallel)
                self._learn(run)
            ended = "budget"
        except KeyboardInterrupt:
            ended = "ctrl-c"
            try:
                if self._is_whole and self._num_rollouts > self._learnt_from:  # collected, not learnt from yet
                    self._learn(run)
            finally:  # also after a second Ctrl-C
                self._keep(run, is_last=True)
            raise
        except Exception as error:
            reason = type(error).__name__
            if not isinstance(error, CheckpointNotSaved):  # its text says how to go on
                way_on = f"Learner.resume({str(run.folder)!r}).train() goes on from a checkpoint."
                error.add_note(f"{run.kept()} {way_on}")
            raise
        finally:
            algorithm = self.settings.policy.algorithm.get("name", "ppo")
            steps, seconds = self._n_env_steps_total, time.perf_counter() - since
            self.outcome = outcome_of(
                run.folder, {AGENT: algorithm}, ended=ended, reason=reason, steps=steps, began=began, seconds=seconds
            )
            self.outcome.write()
            self._close_run()
        number, last = self._envs.restarts
        if number:
            _log.warning("Restarts of environments: %d. The last was of %s", number, last)
        check_learnt({AGENT: self.agent.counters})
        return run.folder

    @one_thread
    def _start_training(self, folder: str | Path | None = None) -> Run:
        """Open the run's folder, unless it is open.

        A subclass may define its own `train`, which calls this once, then `collect_rollouts_parallel` and
        `log_train_stats(self.update())` until `n_env_steps_total` is reached. `close` closes the folder.
        """
        if self._open_run is not None:
            return self._open_run
        settings = self.settings
        options = {"keep_checkpoints": settings.keep_checkpoints, "tensorboard": settings.tensorboard}
        if self.train_folder is None:
            described = settings.described()  # with all defaults, so that later defaults do not change the run
            algorithm = settings.policy.algorithm.get("name", "ppo")
            described["policy"] |= described_policy(self._config, self._memory, settings.policy.algorithm["name"])
            if settings.train.num_iters is None and settings.train.n_env_steps_total is None:
                described["train"]["num_iters"] = DEFAULT_ITERS
            chosen = folder or settings.folder
            chosen = chosen or new_folder_in_runs(settings.env.env_name, [f"meta-{algorithm}"], self.seed)
            run = Run.create(chosen, described, seed=self.seed, **options)
        else:
            if folder is not None and Path(folder) != self.train_folder:
                raise ValueError(f"The run goes on in {self.train_folder}, and folder={str(folder)!r} was given.")
            run, newest = Run.resume(self.train_folder, **options)
            if not self._is_whole or int(newest.name) != self._n_env_steps_total:
                self.load(newest)  # the run has gone back to this checkpoint, and so does the learner
        self._open_run, self.train_folder = run, run.folder
        return run

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
    def n_env_steps_total(self) -> int:
        """Return the number of environment steps after which training ends: `train.n_env_steps_total` of the settings,
        or the most steps that the rollouts of all iterations can have.
        """
        said = self.settings.train
        if said.n_env_steps_total is not None:
            return said.n_env_steps_total
        rollouts = said.num_init_rollouts_pool + said.num_rollouts_per_iter * (said.num_iters or DEFAULT_ITERS)
        return rollouts * self.max_trajectory_len

    @property
    def progress(self) -> float:
        """Return the share of the training that is done, from 0 to 1."""
        wanted = self.settings.train
        if wanted.n_env_steps_total is not None:
            return min(self._n_env_steps_total / wanted.n_env_steps_total, 1.0)
        return min(self.num_iters_done / (wanted.num_iters or DEFAULT_ITERS), 1.0)

    @property
    def finished(self) -> bool:
        """Return whether training has come to its end."""
        return self.progress >= 1.0

    def _learn(self, run: Run) -> None:
        """Learn from the collected rollouts, and end the iteration."""
        with Interrupts():  # Ctrl-C waits until this is done; a second one does not
            self._learnt_from, self._is_whole = self._num_rollouts, False
            stats: Mapping[str, float] = {}
            try:
                stats = self.update()
            except Diverged as error:
                if self.settings.train.on_divergence == "raise":
                    raise
                _log.warning("%s", str(error))
            self._end_iteration(run, stats)

    def _end_iteration(self, run: Run, stats: Mapping[str, float]) -> None:
        """Count an iteration, write its metrics, and save a checkpoint if one is due."""
        self.num_iters_done += 1
        description = {"return": float(self.last_rollouts.total_rewards.mean()), **stats}
        self.log_train_stats(run, {**description, "skipped": float(self.agent.counters["skipped"])})
        self._is_whole = True
        if self.finished or self.num_iters_done % self._tenth(self.settings.checkpoint_every) == 0:
            self._keep(run, is_last=self.finished)

    def _keep(self, run: Run, *, is_last: bool) -> None:
        """Save a checkpoint, unless there is one at this step or an iteration is half done."""
        if self._is_whole and self._n_env_steps_total != self._kept_at:
            saved = run.save_if_possible(self._n_env_steps_total, self.save, is_last=is_last)
            self._kept_at = self._kept_at if saved is None else self._n_env_steps_total

    @one_thread
    def log_train_stats(self, run: Run | Mapping[str, float], stats: Mapping[str, float] | None = None) -> None:
        """Write a line of metrics, with an evaluation if one is due.

        `log_train_stats(stats)`, in the `train` of a subclass, ends an iteration: the iteration is counted, and a
        checkpoint is saved if one is due.
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
            "restarts": self._envs.restarts[0],
        }
        if self.finished or self.num_iters_done % self._tenth(self.settings.eval.interval) == 0:
            counts["evaluation"] = self.evaluate().told()
        counts["seconds"] = {name: round(value, 3) for name, value in self.seconds.items()}
        run.log(counts, {AGENT: stats})
        if self.display is not None:
            now = Progress(self.num_env_steps, self.num_iters_done, {AGENT: stats["return"]}, dict(self.seconds))
            self.display.show(now, last=self.finished)

    def _tenth(self, wanted: int | None) -> int:
        """Return an interval in iterations: `wanted`, or a tenth of all iterations."""
        if wanted is not None:
            return wanted
        total, done = self.settings.train.n_env_steps_total, self._n_env_steps_total
        if total is None:
            return math.ceil((self.settings.train.num_iters or DEFAULT_ITERS) / 10)
        return max(math.ceil(total / max(done / self.num_iters_done, 1) / 10), 1)

    @one_thread
    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: the agent and the progress of the run."""
        about = {
            "num_iters_done": self.num_iters_done,
            "num_rollouts": self._num_rollouts,
            "num_env_steps": self._n_env_steps_total,
            "seed": self.seed,
        }
        save_checkpoint(folder, {AGENT: self.agent.state()}, about)

    @one_thread
    def load(self, folder: str | Path) -> None:
        """Take over a checkpoint."""
        stored = load_checkpoint(folder)
        self.agent.load_state(stored.agents[AGENT])
        self.num_iters_done = stored.about["num_iters_done"]
        self._num_rollouts = stored.about["num_rollouts"]
        self._n_env_steps_total = self._kept_at = stored.about["num_env_steps"]
        self._learnt_from, self._is_whole = self._num_rollouts, True

    @classmethod
    def resume(cls, folder: str | Path, *, trust: Sequence[str] = (), **overrides: Any) -> Self:
        """Return a learner at the newest checkpoint of a run. Its `train` goes on in the same folder.

        Args:
            folder: The run's folder.
            trust: Modules of environments that the run's settings.yaml may name. UntrustedName is raised for others:
                see `parallel_envs.trust`.
            **overrides: Settings to change, as far as the results do not depend on them.
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
        learner.train_folder = Path(folder)
        return learner
