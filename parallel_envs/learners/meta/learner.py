"""`Learner`: from settings to an agent that adapts to tasks that it has not seen.

    learner = Learner("examples/results/meta/bandits.yaml")
    learner.train("runs/bandits")
    print(learner.evaluate().curve)                        # return by inner episode, on tasks kept for evaluation

Every rollout has a number, and from the seed and that number follow its task, its environment's seed and its draws. So
the sequential path and the parallel one collect the same rollouts, for any number of workers; and a run that is resumed
at a checkpoint goes on as the one that was never ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from gymnasium import Env

from parallel_envs.closing import ClosedAtExit
from parallel_envs.errors import ClosedError
from parallel_envs.learners.checkpoints import BadCheckpoint, check_fits, load_agent, load_checkpoint, save_checkpoint
from parallel_envs.learners.meta.agent import MetaAgent
from parallel_envs.learners.meta.architectures import AGENT, AGENT_ARCHS, read_algorithm, shown_to
from parallel_envs.learners.meta.curves import INNER, Adaptation
from parallel_envs.learners.meta.experience import Lesson
from parallel_envs.learners.meta.settings import MetaSettings, load_settings
from parallel_envs.learners.meta.stage import Stage
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.runs import Run, newest_checkpoint, settings_of
from parallel_envs.learners.settings import BadSettings
from parallel_envs.rollouts import Rollouts, collect
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import Task
from parallel_envs.vector import ParallelEnvManager

_DEFAULT_ITERS = 100

MAY_CHANGE = frozenset(
    (
        "checkpoint_every",
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
    )
)
"""Settings that may be others when a run is resumed."""


class Learner(ClosedAtExit):
    """Trains one agent on many tasks, several episodes on each, and measures how it adapts to others.

    A context manager; `close` ends the workers.

    Args:
        config: A dict, the path of a YAML file, or `MetaSettings`. See `settings.py` for the words.
        **overrides: Words that are to take the place of others; give those of blocks as a dict:
            `Learner(config, **{"seed": 3, "train.num_iters": 10})`.

    Raises:
        BadSettings: Before anything has started.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path | MetaSettings, **overrides: Any) -> None:
        self.settings = load_settings(config, overrides)
        self.seed = self.settings.seed
        self.agent_arch = AGENT_ARCHS(self.settings.policy.arch)
        self._config = read_algorithm(self.settings.policy.algorithm, self.agent_arch)
        self._tree = SeedTree(self.seed).child("meta")
        self.num_iters_done = 0
        self._num_rollouts = 0
        self._n_env_steps_total = 0
        self.last_rollouts = Rollouts()
        """What was collected last."""
        self.seconds = {"collect": 0.0, "learn": 0.0, "evaluate": 0.0}
        """How long each has taken."""
        try:
            self.init_env(**self.settings.env.model_dump())
            self.init_agent()
        except BaseException:
            self.close()
            raise

    # ---- what there is ----------------------------------------------------------------------------------------------

    def init_env(
        self,
        env_type: str,
        env_name: str,
        max_rollouts_per_task: int,
        num_train_tasks: int | None,
        num_eval_tasks: int,
        num_parallel_workers: int = 4,
        *,
        num_envs: int | None = None,
        backend: str = "process",
        share_tasks: bool = False,
        env_kwargs: Mapping[str, Any] | None = None,
        manager_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Draw the tasks and start the workers. What there was before is closed.

        The arguments are those of the block `env` of the settings; `kwargs` are added to `env_kwargs`.
        """
        if env_type != "meta":
            raise BadSettings(f"env_type={env_type!r} is unknown. Only 'meta' is.")
        words = {
            "env_name": env_name,
            "max_rollouts_per_task": max_rollouts_per_task,
            "num_train_tasks": num_train_tasks,
            "num_eval_tasks": num_eval_tasks,
            "num_parallel_workers": num_parallel_workers,
            "num_envs": num_envs,
            "backend": backend,
            "share_tasks": share_tasks,
            "env_kwargs": {**(env_kwargs or {}), **kwargs},
            "manager_options": dict(manager_options or {}),
        }
        self.close()
        self.stage = Stage(words, shown_to(self.agent_arch), self._tree)
        self.max_rollouts_per_task = max_rollouts_per_task
        self.observation_space, self.action_space = self.stage.spaces

    stage: Stage | None = None

    @property
    def _stage(self) -> Stage:
        if self.stage is None:
            raise ClosedError(
                "The learner has been closed. Make another, or go on with its run: Learner.resume(folder)."
            )
        return self.stage

    @property
    def train_env_parallel(self) -> ParallelEnvManager | None:
        """Where rollouts are collected side by side. None: one after another, in `train_env`."""
        return self._stage.many("train")

    @property
    def eval_env_parallel(self) -> ParallelEnvManager | None:
        """Environments of evaluation's own, if there are several for training; made when they are first asked for."""
        return self._stage.many("eval")

    @property
    def train_env(self) -> Env[Any, Any]:
        """One environment for training, made when it is first asked for."""
        return self._stage.single("train")

    @property
    def eval_env(self) -> Env[Any, Any]:
        """One environment for evaluation, which is never trained in; made when it is first asked for."""
        return self._stage.single("eval")

    @property
    def train_tasks(self) -> list[Any] | None:
        """The tasks that are trained on; None if each rollout has a new one."""
        tasks = self._stage.tasks.train_tasks
        return None if tasks is None else [task.value for task in tasks]

    @property
    def eval_tasks(self) -> list[Any]:
        """The tasks that are kept for evaluation."""
        return [task.value for task in self._stage.tasks.eval_tasks]

    @property
    def num_env_steps(self) -> int:
        """Steps of environments so far that were trained on."""
        return self._n_env_steps_total

    def init_agent(self) -> None:
        """Make an agent that has learnt nothing, or what one has learnt that it is to begin with."""
        lesson = Lesson(self.settings.train.reward_scale, self.settings.train.end_is_final)
        spaces = self.observation_space, self.action_space
        self._check_minibatch()
        span = self.settings.policy.memory_span or self._stage.most_steps
        self.agent = MetaAgent(self._config, self.agent_arch, *spaces, lesson, span, self._tree.child("agent"))
        if self.settings.policy.begin_with is not None:
            self._begin_with(self.settings.policy.begin_with)

    def _check_minibatch(self) -> None:
        most = self.settings.train.num_rollouts_per_iter * self._stage.most_steps
        if isinstance(self._config, PPOConfig) and self._config.minibatch_size > most:
            raise BadSettings(
                f"`policy.algorithm.minibatch_size: {self._config.minibatch_size}` is more than the {most} steps that "
                "the rollouts of an iteration have at most. Give fewer, or a larger `train.num_rollouts_per_iter`."
            )

    def _begin_with(self, given: Path) -> None:
        try:
            stored = load_agent(newest_checkpoint(given) or given, AGENT)
            check_fits(stored, self.agent.state(), AGENT, given)
        except (BadCheckpoint, FileNotFoundError) as error:
            raise BadSettings(f"`policy.begin_with: {given}` cannot be taken. {error}") from error
        self.agent.brain.load(dict(stored["arrays"]))

    # ---- collecting -------------------------------------------------------------------------------------------------

    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        """Play so many rollouts one after another. Returns how many steps of the environment that took."""
        return self._collect(self.train_env, num_rollouts, random_actions)

    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: ParallelEnvManager | None = None
    ) -> int:
        """The same rollouts, in the environments of `parallel_env` side by side; None: as `collect_rollouts`."""
        return self._collect(self.train_env if parallel_env is None else parallel_env, num_rollouts, random_actions)

    def _collect(self, envs: Any, num_rollouts: int, random_actions: bool) -> int:
        began = time.perf_counter()
        tasks: list[Task] = self._stage.tasks.for_rollouts(self._num_rollouts, num_rollouts)
        self.last_rollouts = collect(
            envs,
            None if random_actions else self.agent.policy(),
            num_rollouts,
            tasks,
            random_actions,
            seed=self._tree.child("rollouts").seed(),
            first_id=self._num_rollouts,
            exact=self.settings.train.exact,
        )
        self._whole = False
        self.agent.lived(self.last_rollouts)
        self._num_rollouts += num_rollouts
        self._n_env_steps_total += self.last_rollouts.num_steps
        self.seconds["collect"] += time.perf_counter() - began
        return self.last_rollouts.num_steps

    # ---- learning ---------------------------------------------------------------------------------------------------

    def update(self, num_updates: int | None = None) -> dict[str, float]:
        """Have the agent learn from what was collected. Returns its metrics."""
        began = time.perf_counter()
        wanted = self.settings.train.num_updates_per_iter if num_updates is None else num_updates
        left = 1.0 - self.progress * (1.0 - self.settings.train.last_learning_rate)
        stats = self.agent.update(1 if wanted is None else wanted, rate=max(left, 1e-6))
        self.seconds["learn"] += time.perf_counter() - began
        return stats

    def evaluate(self, num_rollouts_per_task: int | None = None, deterministic: bool | None = None) -> Adaptation:
        """Play the evaluation tasks, each in rollouts of its own. It draws the same each time it is called.

        Args:
            num_rollouts_per_task: None: as the settings say.
            deterministic: The same.
        """
        began, wanted = time.perf_counter(), self.settings.eval
        times = wanted.num_rollouts_per_task if num_rollouts_per_task is None else num_rollouts_per_task
        best = wanted.deterministic if deterministic is None else deterministic
        tasks = [task for task in self._stage.tasks.eval_tasks for _ in range(times)]
        rollouts = collect(
            self.eval_env_parallel or self.eval_env,
            self.agent.policy(deterministic=best),
            len(tasks),
            tasks,
            seed=self._tree.child("evaluation").seed(),
            exact=self.settings.train.exact,
            info_keys=[INNER],
        )
        self.seconds["evaluate"] += time.perf_counter() - began
        return Adaptation.of(rollouts, self.max_rollouts_per_task)

    # ---- training ---------------------------------------------------------------------------------------------------

    def train(self, folder: str | Path | None = None) -> Path:
        """Collect and learn until the settings' end, with metrics and checkpoints in a run's folder, which is returned.

        Ctrl-C leaves a checkpoint of the last whole iteration. A learner that was interrupted, or that `resume` has
        made, goes on in its own folder.
        """
        if self._resumed is not None:
            if folder is not None and Path(folder) != self._resumed:
                raise ValueError(f"The run goes on in {self._resumed}, and folder={str(folder)!r} was given.")
            run, _ = Run.resume(self._resumed, **self._run_options)
        else:
            chosen = (
                folder or self.settings.folder or Path("runs") / f"meta-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
            )
            run = Run.create(chosen, self.settings.described(), seed=self.seed, **self._run_options)
        self._resumed = run.folder
        with run:
            try:
                self._fill_pool()
                while not self.finished:
                    self._iterate(run)
            except KeyboardInterrupt:
                self._keep(run)
                raise
        return run.folder

    _resumed: Path | None = None

    @property
    def _run_options(self) -> dict[str, Any]:
        return {"keep_checkpoints": self.settings.keep_checkpoints, "tensorboard": self.settings.tensorboard}

    @property
    def progress(self) -> float:
        """How much of the training is done, from 0 to 1."""
        wanted = self.settings.train
        if wanted.n_env_steps_total is not None:
            return min(self._n_env_steps_total / wanted.n_env_steps_total, 1.0)
        return min(self.num_iters_done / (wanted.num_iters or _DEFAULT_ITERS), 1.0)

    @property
    def finished(self) -> bool:
        """Whether training has come to its end."""
        return self.progress >= 1.0

    def _fill_pool(self) -> None:
        missing = self.settings.train.num_init_rollouts_pool - self._num_rollouts
        if missing > 0:
            self.collect_rollouts_parallel(missing, random_actions=True, parallel_env=self.train_env_parallel)

    def _iterate(self, run: Run) -> None:
        """Collect, learn, and write down what came of it."""
        self.collect_rollouts_parallel(self.settings.train.num_rollouts_per_iter, parallel_env=self.train_env_parallel)
        with Interrupts():  # what was collected is learnt from: a Ctrl-C waits until that is done
            stats = {"return": float(self.last_rollouts.total_rewards.mean()), **self.update()}
            self.num_iters_done += 1
            self.log_train_stats(run, stats)
            self._whole = True
            if self.finished or self.num_iters_done % self._tenth(self.settings.checkpoint_every) == 0:
                self._keep(run)

    def _keep(self, run: Run) -> None:
        """Save a checkpoint, if there is none of this moment, and nothing waits to be learnt."""
        if self._whole and self._n_env_steps_total != self._kept_at:
            run.save(self._n_env_steps_total, self.save)
            self._kept_at = self._n_env_steps_total

    _whole = False
    """Whether nothing has happened since the end of an iteration."""
    _kept_at = 0

    def log_train_stats(self, run: Run, stats: Mapping[str, float]) -> None:
        """Write a line of metrics, with an evaluation where one is due."""
        counts: dict[str, Any] = {
            "update": self.num_iters_done,
            "steps": self._n_env_steps_total,
            "rollouts": self._num_rollouts,
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
            return math.ceil((self.settings.train.num_iters or _DEFAULT_ITERS) / 10)
        return max(math.ceil(total / max(done / self.num_iters_done, 1) / 10), 1)

    # ---- keeping ----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint: the agent, and how far the run is."""
        about = {
            "num_iters_done": self.num_iters_done,
            "num_rollouts": self._num_rollouts,
            "num_env_steps": self._n_env_steps_total,
            "seed": self.seed,
        }
        save_checkpoint(folder, {AGENT: self.agent.state()}, about)

    def load(self, folder: str | Path) -> None:
        """Become what was saved."""
        stored = load_checkpoint(folder)
        self.agent.load_state(stored.agents[AGENT])
        self.num_iters_done = stored.about["num_iters_done"]
        self._num_rollouts = stored.about["num_rollouts"]
        self._n_env_steps_total = self._kept_at = stored.about["num_env_steps"]

    @classmethod
    def resume(cls, folder: str | Path, **overrides: Any) -> Self:
        """A learner that goes on from the newest checkpoint of a run. `train` does so in the same folder.

        Args:
            folder: The run's.
            **overrides: Settings that are to be others, as far as what is learnt does not depend on them.
        """
        if odd := sorted(overrides.keys() - MAY_CHANGE):
            raise BadSettings(
                f"`{odd[0]}` is what the run in {folder} depends on. Begin a run of its own with it; one that goes on "
                f"may change {', '.join(f'`{name}`' for name in sorted(MAY_CHANGE))}."
            )
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

    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        if self.stage is not None:
            self.stage.close()
        self.stage = None


def _new_folder() -> Path:
    return Path("runs") / f"meta-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
