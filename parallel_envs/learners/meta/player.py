"""An agent, and where it plays: tasks, environments, rollouts of them, and how well it adapts.

Every rollout has a number, and from the seed and that number follow its task, its environment's seed and its draws. So
the sequential path and the parallel one collect the same rollouts, for any number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import Env

from parallel_envs.choices import Backend, OnFailure
from parallel_envs.closing import ClosedAtExit
from parallel_envs.errors import ClosedError
from parallel_envs.learners.checkpoints import BadCheckpoint, check_fits, load_agent
from parallel_envs.learners.meta.agent import MetaAgent
from parallel_envs.learners.meta.architectures import AGENT, AGENT_ARCHS, read_algorithm, read_memory, shown_to
from parallel_envs.learners.meta.curves import INNER, Adaptation
from parallel_envs.learners.meta.experience import Lesson
from parallel_envs.learners.meta.settings import MetaSettings, load_settings
from parallel_envs.learners.meta.stage import Stage
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.runs import newest_checkpoint
from parallel_envs.learners.settings import RESET_TIMEOUT, START_TIMEOUT, STEP_TIMEOUT, BadSettings
from parallel_envs.rollouts import Rollouts, collect
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import Task
from parallel_envs.threads import CallGuard, one_thread
from parallel_envs.vector import ParallelEnvManager


class Player(ClosedAtExit):
    """Plays with one agent on many tasks, several episodes on each, as settings say. It learns in `Learner`.

    A context manager; `close` ends the workers.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method, such as `train`,
    raises `ConcurrentCall` and does nothing; so does `close`.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path | MetaSettings, **overrides: Any) -> None:
        self._guard = CallGuard(type(self).__name__)
        self.settings = load_settings(config, overrides)
        self.seed = self.settings.seed
        self.agent_arch = AGENT_ARCHS(self.settings.policy.arch)
        self._config = read_algorithm(self.settings.policy.algorithm, self.agent_arch)
        self._memory = read_memory(self.settings.policy.memory.model_dump(), self.agent_arch)
        self._tree = SeedTree(self.seed).child("meta")
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
        num_envs: int | None = None,
        backend: Backend = "process",
        share_tasks: bool = False,
        on_failure: OnFailure = "restart",
        step_timeout: float | None = STEP_TIMEOUT,
        reset_timeout: float | None = RESET_TIMEOUT,
        start_timeout: float | None = START_TIMEOUT,
        max_restarts: int = 10,
        restart_window: float = 600.0,
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
            "manager_options": {
                "on_failure": on_failure,
                "step_timeout": step_timeout,
                "reset_timeout": reset_timeout,
                "start_timeout": start_timeout,
                "max_restarts": max_restarts,
                "restart_window": restart_window,
                **(manager_options or {}),
            },
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

    @one_thread
    def init_agent(self) -> None:
        """Make an agent that has learnt nothing, or what one has learnt that it is to begin with."""
        lesson = Lesson(self.settings.train.reward_scale, self.settings.train.end_is_final)
        spaces = self.observation_space, self.action_space
        self._check_minibatch()
        span = self.settings.policy.memory_span or self._stage.most_steps
        form = self.agent_arch, self._memory
        self.agent = MetaAgent(self._config, *form, *spaces, lesson, span, self._tree.child("agent"))
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

    @one_thread
    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        """Play so many rollouts one after another. Returns how many steps of the environment that took."""
        return self._collect(self.train_env, num_rollouts, random_actions)

    @one_thread
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
        with Interrupts():  # nothing of it has been lived, or all of it
            self.agent.lived(self.last_rollouts)
            self._num_rollouts += num_rollouts
            self._n_env_steps_total += self.last_rollouts.num_steps
            self.seconds["collect"] += time.perf_counter() - began
        return self.last_rollouts.num_steps

    # ---- measuring --------------------------------------------------------------------------------------------------

    @one_thread
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

    @one_thread
    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        if self.stage is not None:
            self.stage.close()
        self.stage = None
