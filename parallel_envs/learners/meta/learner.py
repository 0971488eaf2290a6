"""`Learner`: trains an agent that adapts to tasks that it has not seen.

    learner = Learner("examples/results/meta/bandits.yaml")
    learner.train("runs/bandits")
    print(learner.evaluate().curve)                        # return by inner episode, on tasks kept for evaluation

`agent.py` has the agent, `envs.py` its tasks and environments. The learner collects rollouts, learns from them, and
measures how well the agent adapts; it trains in a run with metrics and checkpoints.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from gymnasium import Env

from parallel_envs import trace
from parallel_envs.devices import described_device, find_device
from parallel_envs.engine.interrupts import Interrupts
from parallel_envs.errors import ClosedError
from parallel_envs.learners.algorithm import Diverged
from parallel_envs.learners.checkpoint import BadCheckpoint, check_fits, load_agent, load_checkpoint, save_checkpoint
from parallel_envs.learners.config import BadSettings, FailureSettings
from parallel_envs.learners.meta.agent import (
    AGENT,
    AGENT_ARCHS,
    MetaAgent,
    described_policy,
    observed_extras,
    read_algorithm,
    read_memory,
)
from parallel_envs.learners.meta.config import EnvBlock, MetaSettings, load_settings
from parallel_envs.learners.meta.envs import LearnerEnvs
from parallel_envs.learners.meta.memory import RolloutToBatch
from parallel_envs.learners.outcomes import STATUS, Ended, RunOutcome, check_learnt, outcome_of
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.progress import Display, Progress
from parallel_envs.learners.run_folder import (
    CheckpointNotSaved,
    Run,
    new_folder_in_runs,
    newest_checkpoint,
    settings_of,
)
from parallel_envs.learners.writers import Writer, make_writers
from parallel_envs.meta.making import KNOWN
from parallel_envs.rollouts import Rollouts, collect
from parallel_envs.seeding import SeedTree
from parallel_envs.settings import settings_in
from parallel_envs.threads import CallGuard, ClosedAtExit, one_thread
from parallel_envs.trust import check_env, check_writer
from parallel_envs.vector import ParallelEnvManager

Floats = npt.NDArray[np.float64]

_DEFAULT_ITERS = 100
"""Number of iterations if the settings do not say when training ends."""
_INNER = "inner_episode"
"""Info with the number of the inner episode that a step belongs to."""

_log = logging.getLogger(__name__)

MAY_CHANGE = {f"env.{name}" for name in FailureSettings.model_fields} | {
    "checkpoint_every",
    "device",
    "env.backend",
    "env.manager_options",
    "env.num_envs",
    "env.num_parallel_workers",
    "eval.interval",
    "eval.num_rollouts_per_task",
    "folder",
    "keep_checkpoints",
    "tensorboard",
    "train.n_env_steps_total",
    "train.num_iters",
    "train.on_divergence",
    "writers",
}
"""Settings that may change when a run is resumed; of `writers`, all parts."""


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """Returns of evaluation rollouts by inner episode: how returns grow from one episode on a task to the next."""

    returns: Floats
    """`[rollouts, inner episodes]`; NaN for episodes after the end of a rollout."""
    task_ids: npt.NDArray[np.int64]
    """`[rollouts]`."""

    @classmethod
    def of(cls, rollouts: Rollouts, num_episodes: int) -> Adaptation:
        """Compute the returns of rollouts that were collected with `info_keys=[_INNER]`."""
        returns = np.full((len(rollouts), num_episodes), np.nan)
        for row, rollout in zip(returns, rollouts, strict=True):
            episodes = np.array(rollout.infos[_INNER], np.int64)
            last = int(episodes[-1]) + 1
            row[:last] = np.bincount(episodes, rollout.rewards, num_episodes)[:last]
        return cls(returns, np.array([rollout.task_id for rollout in rollouts], np.int64))

    @property
    def curve(self) -> Floats:
        """Return the mean return of each inner episode over all rollouts."""
        return np.asarray(np.nanmean(self.returns, 0))

    @property
    def total(self) -> float:
        """Return the mean return of a whole rollout."""
        return float(np.nansum(self.returns, 1).mean())

    @property
    def error(self) -> float:
        """Return the standard error of `total`."""
        totals = np.nansum(self.returns, 1)
        return float(totals.std(ddof=1) / np.sqrt(len(totals))) if len(totals) > 1 else float("nan")

    def __repr__(self) -> str:
        described = ", ".join(f"{value:.3g}" for value in self.curve)
        return f"Adaptation({len(self.returns)} rollouts, total {self.total:.4g}, by episode [{described}])"

    def told(self) -> dict[str, Any]:
        """Return the figures as plain values, for a line of metrics."""
        curve = [float(value) if np.isfinite(value) else None for value in self.curve]
        return {"total": self.total, "by_episode": curve, "rollouts": len(self.returns)}


def _envs_of(name: str, purpose: str) -> Any:
    """Return a property for environments of a learner, which may be set: `name` is "single_env" or "parallel_envs"."""

    def get(learner: Learner) -> Any:
        return getattr(learner._envs, name)(purpose)

    def use(learner: Learner, envs: Any) -> None:
        if learner._env_factory is None:  # the `init_env` of a subclass has made them
            learner._env_factory = LearnerEnvs(learner._tree, None, {})
            learner.max_rollouts_per_task = learner.settings.env.max_rollouts_per_task
        factory = learner._env_factory
        held: dict[str, Any] = factory.many if name == "parallel_envs" else factory.singles
        old, held[purpose] = held.get(purpose), envs
        if old is not None and old is not envs:
            old.close()

    return property(get, use)


class Learner(ClosedAtExit):
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
    train_folder: Path | None = None
    """Folder of the newest run: the run that `train` or `resume` opened last."""

    # Set here, because `close` reads them if `__init__` fails.
    _env_factory: LearnerEnvs | None = None
    _open_run: Run | None = None

    # These environments may be set. The learner closes the environments that are set, and those that they replace.
    train_env_parallel: ParallelEnvManager | None = _envs_of("parallel_envs", "train")
    """Environments for parallel rollouts. None: rollouts are collected one after another in `train_env`."""
    eval_env_parallel: ParallelEnvManager | None = _envs_of("parallel_envs", "eval")
    """Separate environments for evaluation, if there are several for training; made on first use."""
    train_env: Env[Any, Any] = _envs_of("single_env", "train")
    """Environment for training, made on first use."""
    eval_env: Env[Any, Any] = _envs_of("single_env", "eval")
    """Environment for evaluation, which is never trained in; made on first use."""

    def __init__(self, config: Mapping[str, Any] | str | Path | MetaSettings, **overrides: Any) -> None:
        self._guard = CallGuard(type(self).__name__)
        self.settings = load_settings(config, overrides)
        train, policy = self.settings.train, self.settings.policy
        self.seed = self.settings.seed
        try:
            self.device = find_device(self.settings.device)
        except ValueError as error:
            raise BadSettings(str(error)) from error
        self.num_init_rollouts_pool = train.num_init_rollouts_pool
        self.num_rollouts_per_iter = train.num_rollouts_per_iter
        self.num_iters = train.num_iters or _DEFAULT_ITERS
        self.agent_arch = AGENT_ARCHS(policy.arch)
        self._config = read_algorithm(policy.algorithm, self.agent_arch)
        self._memory = read_memory(policy.memory.model_dump(), self.agent_arch)
        self._tree = SeedTree(self.seed).child("meta")
        self.num_iters_done = self._num_rollouts = self._n_env_steps_total = 0
        self._learnt_from = 0  # number of rollouts when it learnt last
        self._is_whole = True  # False while an iteration is half done
        self._kept_at: int | None = None  # number of steps at the last checkpoint
        self.last_rollouts = Rollouts()
        """The rollouts that were collected last."""
        self.seconds = {"collect": 0.0, "learn": 0.0, "evaluate": 0.0}
        """Seconds spent so far."""
        try:
            self.init_env(**self._init_env_arguments())
            self.init_agent()
        except BaseException:
            self.close()
            raise

    # ---- environments and agent -------------------------------------------------------------------------------------

    def _init_env_arguments(self) -> dict[str, Any]:
        """Return the arguments for `init_env`: all that it names, those with other values than by default, `env_type`.

        An `init_env` of a subclass that does not name `env_kwargs` is likely to pass its `**kwargs` on to `make_env`.
        So it gets the contents of `env_kwargs`, and the keywords that say what the agent is to see.
        """
        words, fields = self.settings.env.model_dump(), EnvBlock.model_fields
        names = inspect.signature(self.init_env).parameters
        heeded = {*names, "env_type"}
        words = {name: value for name, value in words.items() if name in heeded or value != fields[name].default}
        if "env_kwargs" in names:
            return words
        env_kwargs = words.pop("env_kwargs", {})
        extras = {name: value for name, value in observed_extras(self.agent_arch).items() if value}
        return {**words, **extras, **env_kwargs}

    @one_thread
    def init_env(
        self,
        env_type: str,
        env_name: str,
        max_rollouts_per_task: int,
        num_train_tasks: int | None,
        num_eval_tasks: int,
        num_parallel_workers: int = 4,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Draw the tasks and start the workers. Previous environments are closed.

        The arguments are all those of the settings' block `env`. Any others are added to `env_kwargs`.

        A subclass may define its own `init_env`, which sets `train_env`, `eval_env` and, for parallel rollouts,
        `train_env_parallel`. These environments name the tasks: see `num_train_tasks` of `make_env`.
        """
        fields = EnvBlock.model_fields
        words = {name: field.default for name, field in fields.items()}
        words |= {name: value for name, value in {**locals(), **kwargs}.items() if name in fields}
        extras = observed_extras(self.agent_arch)
        more = kwargs.keys() - fields.keys() - extras.keys()  # a subclass may pass extras on
        words["env_kwargs"] = {**(env_kwargs or {}), **{name: kwargs[name] for name in more}}
        failures = {name: words[name] for name in FailureSettings.model_fields}
        words["manager_options"] = {**failures, **(words["manager_options"] or {})}
        if self._env_factory is not None:
            self._env_factory.close()
        self._env_factory = LearnerEnvs(self._tree, words, extras)
        self.max_rollouts_per_task = max_rollouts_per_task
        self.observation_space, self.action_space = self._envs.spaces

    @property
    def _envs(self) -> LearnerEnvs:
        if self._env_factory is None:
            raise ClosedError(
                "The learner has been closed. Make another, or go on with its run: Learner.resume(folder)."
            )
        return self._env_factory

    @property
    def train_tasks(self) -> list[Any] | None:
        """Return the tasks for training; None if each rollout has a new task."""
        tasks = self._envs.tasks.train_tasks
        return None if tasks is None else [task.value for task in tasks]

    @property
    def eval_tasks(self) -> list[Any]:
        """Return the tasks that are kept for evaluation."""
        return [task.value for task in self._envs.tasks.eval_tasks]

    @property
    def max_trajectory_len(self) -> int:
        """Return the largest number of steps in a rollout."""
        return self._envs.most_steps

    @property
    def devices(self) -> dict[str, str]:
        """Return the devices on which the network learns and acts, with the names of their hardware."""
        return dict.fromkeys(("learning", "acting"), described_device(self.device))

    @property
    def num_env_steps(self) -> int:
        """Return the number of environment steps in training so far."""
        return self._n_env_steps_total

    @one_thread
    def init_agent(self) -> None:
        """Make an untrained agent, or one with the network that `policy.begin_with` names."""
        self.observation_space, self.action_space = self._envs.spaces
        train, policy, longest = self.settings.train, self.settings.policy, self._envs.most_steps
        most = train.num_rollouts_per_iter * longest
        if isinstance(self._config, PPOConfig) and self._config.minibatch_size > most:
            raise BadSettings(
                f"`policy.algorithm.minibatch_size: {self._config.minibatch_size}` is more than the {most} steps that "
                "the rollouts of an iteration have at most. Give fewer, or a larger `train.num_rollouts_per_iter`."
            )
        self.agent = MetaAgent(
            self._config,
            self.agent_arch,
            self._memory,
            self.observation_space,
            self.action_space,
            RolloutToBatch(train.reward_scale, train.end_is_final),
            policy.memory_span or longest,
            self._tree.child("agent"),
        )
        self.agent.parameters.to(self.device)
        if policy.begin_with is not None:
            try:
                stored = load_agent(newest_checkpoint(policy.begin_with) or policy.begin_with, AGENT)
                check_fits(stored, self.agent.state(), AGENT, policy.begin_with)
            except (BadCheckpoint, FileNotFoundError) as error:
                raise BadSettings(f"`policy.begin_with: {policy.begin_with}` cannot be taken. {error}") from error
            self.agent.parameters.load(dict(stored["arrays"]))

    # ---- collecting and learning ------------------------------------------------------------------------------------

    @one_thread
    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        """Play so many rollouts one after another. Returns the number of environment steps."""
        return self._collect(self.train_env, num_rollouts, random_actions)

    @one_thread
    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: ParallelEnvManager | None = None
    ) -> int:
        """Play the same rollouts in parallel in `parallel_env`; None: one after another, as `collect_rollouts`."""
        return self._collect(self.train_env if parallel_env is None else parallel_env, num_rollouts, random_actions)

    def _collect(self, envs: Any, num_rollouts: int, random_actions: bool) -> int:
        began = time.perf_counter()
        self.last_rollouts = collect(
            envs,
            None if random_actions else self.agent.policy(),
            num_rollouts,
            self._envs.tasks.for_rollouts(self._num_rollouts, num_rollouts),
            random_actions,
            seed=self._tree.child("rollouts").seed(),
            first_id=self._num_rollouts,
            exact=self.settings.train.exact,
        )
        with Interrupts():  # Ctrl-C strikes before or after all of this
            self.agent.lived(self.last_rollouts)
            self._num_rollouts += num_rollouts
            self._n_env_steps_total += self.last_rollouts.num_steps
            self.seconds["collect"] += time.perf_counter() - began
            trace.record("collect", began, rollouts=num_rollouts)
        return self.last_rollouts.num_steps

    @one_thread
    def evaluate(self, num_rollouts_per_task: int | None = None, deterministic: bool | None = None) -> Adaptation:
        """Play the evaluation tasks (None: as the settings say). Every call uses the same random numbers."""
        began, wanted = time.perf_counter(), self.settings.eval
        times = wanted.num_rollouts_per_task if num_rollouts_per_task is None else num_rollouts_per_task
        best = wanted.deterministic if deterministic is None else deterministic
        tasks = [task for task in self._envs.tasks.eval_tasks for _ in range(times)]
        rollouts = collect(
            self.eval_env_parallel or self.eval_env,
            self.agent.policy(deterministic=best),
            len(tasks),
            tasks,
            seed=self._tree.child("evaluation").seed(),
            exact=self.settings.train.exact,
            info_keys=[_INNER],
        )
        self.seconds["evaluate"] += time.perf_counter() - began
        trace.record("evaluate", began, rollouts=len(rollouts))
        return Adaptation.of(rollouts, self.max_rollouts_per_task)

    @one_thread
    def update(self, num_updates: int | EllipsisType | None = None) -> dict[str, float]:
        """Let the agent learn from the collected rollouts (None or `...`: as the settings say). Returns its metrics."""
        began = time.perf_counter()
        if num_updates is None or isinstance(num_updates, EllipsisType):
            num_updates = self.settings.train.num_updates_per_iter or 1
        left = 1.0 - self.progress * (1.0 - self.settings.train.last_learning_rate)
        stats = self.agent.update(num_updates, rate=max(left, 1e-6))
        self.seconds["learn"] += time.perf_counter() - began
        trace.record("update", began, updates=num_updates)
        return stats

    @one_thread
    def train(self, folder: str | Path | None = None, *, writers: Sequence[Writer] = ()) -> Path:
        """Collect and learn until the settings' end. Returns the run's folder, with metrics and checkpoints.

        However training ends, `outcome.json` in the folder says how, and `parallel-envs report` reads it. Ctrl-C leaves
        a checkpoint of the last complete iteration. A learner that was interrupted, or that `resume` has made, goes on
        in its own folder. `writers` get the metrics, besides those of the settings.

        Raises:
            EnvError, WorkerDied, StepTimeout: With `env.on_failure: raise`, or if an environment fails more often than
                `env.max_restarts` allows. A note says how to go on, as with any other error.
            Diverged: An update was not finite, with `train.on_divergence: raise`.
            NothingLearnt: At the end: every update was undone. If only some were, a warning says how many.
            CheckpointNotSaved: See `Run.save_if_possible`.
        """
        run, wanted = self._start_training(folder, writers=writers), self.settings.train
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
            self.outcome = outcome_of(
                run.folder,
                {AGENT: self.agent.algorithm.name},
                ended=ended,
                reason=reason,
                steps=self._n_env_steps_total,
                began=began,
                seconds=time.perf_counter() - since,
            )
            self.outcome.write()
            self._open_run, run.status = None, STATUS[ended]
            run.close()
        number, last = self._envs.restarts
        if number:
            _log.warning("Restarts of environments: %d. The last was of %s", number, last)
        check_learnt({AGENT: self.agent.counters})
        return run.folder

    @one_thread
    def _start_training(self, folder: str | Path | None = None, *, writers: Sequence[Writer] = ()) -> Run:
        """Open the run's folder, unless it is open.

        A subclass may define its own `train`, which calls this once, then `collect_rollouts_parallel` and
        `log_train_stats(self.update())` until `n_env_steps_total` is reached. `close` closes the folder.
        """
        if self._open_run is not None:
            return self._open_run
        settings = self.settings
        made = make_writers(settings.writers, writers)
        board = settings.tensorboard or settings.writers.tensorboard is not None
        options: dict[str, Any] = {"keep_checkpoints": settings.keep_checkpoints, "tensorboard": board}
        if self.train_folder is None:
            described = settings.described()  # with all defaults, so that later defaults do not change the run
            algorithm = self.agent.algorithm.name
            described["policy"] |= described_policy(self._config, self._memory, algorithm)
            if settings.train.n_env_steps_total is None:
                described["train"]["num_iters"] = self.num_iters
            chosen = folder or settings.folder
            chosen = chosen or new_folder_in_runs(settings.env.env_name, [f"meta-{algorithm}"], self.seed)
            run = Run.create(chosen, described, seed=self.seed, **options)
        else:
            if folder is not None and Path(folder) != self.train_folder:
                raise ValueError(f"The run goes on in {self.train_folder}, and folder={str(folder)!r} was given.")
            run, newest = Run.resume(self.train_folder, **options)
            if not self._is_whole or int(newest.name) != self._n_env_steps_total:
                self.load(newest)  # the run has gone back to this checkpoint, and so does the learner
        run.begin_writers(made, settings_in(settings_of(run.folder), BadSettings))
        self._open_run, self.train_folder = run, run.folder
        run.describe(devices=self.devices)
        return run

    @one_thread
    def close(self) -> None:
        """End the workers, close the environments and the run's files. Calling it twice does nothing."""
        run, self._open_run = self._open_run, None
        if run is not None:
            run.close()
        factory, self._env_factory = self._env_factory, None
        if factory is not None:
            factory.close()

    @property
    def n_env_steps_total(self) -> int:
        """Return the number of steps after which training ends, or the most that all iterations can have."""
        said = self.settings.train
        if said.n_env_steps_total is not None:
            return said.n_env_steps_total
        rollouts = said.num_init_rollouts_pool + said.num_rollouts_per_iter * self.num_iters
        return rollouts * self.max_trajectory_len

    @property
    def progress(self) -> float:
        """Return the share of the training that is done, from 0 to 1."""
        wanted = self.settings.train
        if wanted.n_env_steps_total is not None:
            return min(self._n_env_steps_total / wanted.n_env_steps_total, 1.0)
        return min(self.num_iters_done / self.num_iters, 1.0)

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
        """Count an iteration and write its metrics. Evaluate and save a checkpoint if these are due."""
        self.num_iters_done += 1
        returns = float(self.last_rollouts.total_rewards.mean())
        counts: dict[str, Any] = {
            "update": self.num_iters_done,
            "steps": self._n_env_steps_total,
            "rollouts": self._num_rollouts,
            "restarts": self._envs.restarts[0],
        }
        if self.finished or self.num_iters_done % self._tenth(self.settings.eval.interval) == 0:
            counts["evaluation"] = self.evaluate().told()
        counts["seconds"] = {name: round(value, 3) for name, value in self.seconds.items()}
        run.log(counts, {AGENT: {"return": returns, **stats, "skipped": float(self.agent.counters["skipped"])}})
        if self.display is not None:
            now = Progress(self.num_env_steps, self.num_iters_done, {AGENT: returns}, dict(self.seconds))
            self.display.show(now, last=self.finished)
        self._is_whole = True
        if self.finished or self.num_iters_done % self._tenth(self.settings.checkpoint_every) == 0:
            self._keep(run, is_last=self.finished)

    @one_thread
    def log_train_stats(self, stats: Mapping[str, float]) -> None:
        """End an iteration in the `train` of a subclass: count it, write its metrics, save a checkpoint if due."""
        with Interrupts():
            self._learnt_from = self._num_rollouts
            self._end_iteration(self._start_training(), stats)

    def _keep(self, run: Run, *, is_last: bool) -> None:
        """Save a checkpoint, unless there is one at this step or an iteration is half done."""
        if self._is_whole and self._n_env_steps_total != self._kept_at:
            with trace.span("checkpoint", steps=self._n_env_steps_total):
                saved = run.save_if_possible(self._n_env_steps_total, self.save, is_last=is_last)
            self._kept_at = self._kept_at if saved is None else self._n_env_steps_total

    def _tenth(self, wanted: int | None) -> int:
        """Return an interval in iterations: `wanted`, or a tenth of all iterations."""
        if wanted is not None:
            return wanted
        total, done = self.settings.train.n_env_steps_total, self._n_env_steps_total
        if total is None:
            return math.ceil(self.num_iters / 10)
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
            trust: Modules of environments that the run's settings.yaml may name: see `parallel_envs.trust`.
            **overrides: Settings to change, as far as the results do not depend on them.
        """
        if odd := sorted(name for name in overrides if not {name, name.partition(".")[0]} & MAY_CHANGE):
            raise BadSettings(
                f"`{odd[0]}` is what the run in {folder} depends on. Begin a run of its own with it; one that goes on "
                f"may change {', '.join(f'`{name}`' for name in sorted(MAY_CHANGE))}."
            )
        settings = load_settings(settings_of(folder))
        stored = settings.env
        check_env(KNOWN.get(stored.env_name, stored.env_name), stored.env_kwargs, settings_of(folder), trust)
        for name in settings.writers.own if "writers" not in overrides else ():
            check_writer(name, settings_of(folder), trust)
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
