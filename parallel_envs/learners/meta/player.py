"""An agent, and where it plays: tasks, environments, rollouts of them, and how well it adapts.

Every rollout has a number, and from the seed and that number follow its task, its environment's seed and its draws. So
the sequential path and the parallel one collect the same rollouts, for any number of workers.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import Env

from parallel_envs.choices import Backend, OnFailure
from parallel_envs.closing import ClosedAtExit
from parallel_envs.errors import ClosedError
from parallel_envs.learners.checkpoint import BadCheckpoint, check_fits, load_agent
from parallel_envs.learners.config import RESET_TIMEOUT, START_TIMEOUT, STEP_TIMEOUT, BadSettings
from parallel_envs.learners.meta.agent import (
    AGENT,
    AGENT_ARCHS,
    MetaAgent,
    observed_extras,
    read_algorithm,
    read_memory,
)
from parallel_envs.learners.meta.config import MetaSettings, load_settings
from parallel_envs.learners.meta.env_factory import EnvFactory, GivenEnvs, SettingsEnvFactory
from parallel_envs.learners.meta.player import INNER, Adaptation
from parallel_envs.learners.meta.sequences import RolloutToBatch
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.run_folder import newest_checkpoint
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
            self.init_env(**self._env_words())
            self.init_agent()
        except BaseException:
            self.close()
            raise

    # ---- what there is ----------------------------------------------------------------------------------------------

    def _env_words(self) -> dict[str, Any]:
        """The arguments of `init_env`: all that it names, and others that are not as by default, and `env_type`.

        A subclass's `init_env` that passes its `**kwargs` on to `make_env` is given what environments are made with by
        name: `env_kwargs`, and what the agent is to see.
        """
        block, words = self.settings.env, self.settings.env.model_dump()
        names, fields = inspect.signature(self.init_env).parameters, type(block).model_fields
        heeded = {*names, "env_type"}
        words = {name: value for name, value in words.items() if name in heeded or value != fields[name].default}
        if "env_kwargs" in names:
            return words
        env_kwargs = words.pop("env_kwargs", {})
        return {
            **words,
            **{name: value for name, value in observed_extras(self.agent_arch).items() if value},
            **env_kwargs,
        }

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

        A subclass may have an `init_env` of its own, which sets `train_env`, `eval_env` and, for rollouts side by side,
        `train_env_parallel`. What these were made by tells the tasks: see `num_train_tasks` of `make_env`.
        """
        if env_type != "meta":
            raise BadSettings(f"env_type={env_type!r} is unknown. Only 'meta' is.")
        shown = observed_extras(self.agent_arch)  # a subclass may have passed it on
        words = {
            "env_name": env_name,
            "max_rollouts_per_task": max_rollouts_per_task,
            "num_train_tasks": num_train_tasks,
            "num_eval_tasks": num_eval_tasks,
            "num_parallel_workers": num_parallel_workers,
            "num_envs": num_envs,
            "backend": backend,
            "share_tasks": share_tasks,
            "env_kwargs": {**(env_kwargs or {}), **{name: one for name, one in kwargs.items() if name not in shown}},
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
        self._close_stage()
        self.stage = SettingsEnvFactory(words, shown, self._tree)
        self.max_rollouts_per_task = max_rollouts_per_task
        self._look_at_spaces()

    def _look_at_spaces(self) -> None:
        self.observation_space, self.action_space = self._stage.spaces

    stage: EnvFactory | None = None

    @property
    def _stage(self) -> EnvFactory:
        if self.stage is None:
            raise ClosedError(
                "The learner has been closed. Make another, or go on with its run: Learner.resume(folder)."
            )
        return self.stage

    @property
    def _stage_to_fill(self) -> EnvFactory:
        """The stage for environments that a subclass has made."""
        if self.stage is None:
            self.stage = GivenEnvs(self._tree)
            self.max_rollouts_per_task = self.settings.env.max_rollouts_per_task
        return self.stage

    @property
    def train_env_parallel(self) -> ParallelEnvManager | None:
        """Where rollouts are collected side by side. None: one after another, in `train_env`.

        This and the other environments may be set. The learner closes what it has been given, and what it had before.
        """
        return self._stage.many("train")

    @train_env_parallel.setter
    def train_env_parallel(self, envs: ParallelEnvManager | None) -> None:
        self._stage_to_fill.use_many("train", envs)

    @property
    def eval_env_parallel(self) -> ParallelEnvManager | None:
        """Environments of evaluation's own, if there are several for training; made when they are first asked for."""
        return self._stage.many("eval")

    @eval_env_parallel.setter
    def eval_env_parallel(self, envs: ParallelEnvManager | None) -> None:
        self._stage_to_fill.use_many("eval", envs)

    @property
    def train_env(self) -> Env[Any, Any]:
        """One environment for training, made when it is first asked for."""
        return self._stage.single("train")

    @train_env.setter
    def train_env(self, env: Env[Any, Any]) -> None:
        self._stage_to_fill.use_single("train", env)

    @property
    def eval_env(self) -> Env[Any, Any]:
        """One environment for evaluation, which is never trained in; made when it is first asked for."""
        return self._stage.single("eval")

    @eval_env.setter
    def eval_env(self, env: Env[Any, Any]) -> None:
        self._stage_to_fill.use_single("eval", env)

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
    def max_trajectory_len(self) -> int:
        """How many steps a rollout has at most."""
        return self._stage.most_steps

    @property
    def num_env_steps(self) -> int:
        """Steps of environments so far that were trained on."""
        return self._n_env_steps_total

    @one_thread
    def init_agent(self) -> None:
        """Make an agent that has learnt nothing, or what one has learnt that it is to begin with."""
        self._look_at_spaces()
        lesson = RolloutToBatch(self.settings.train.reward_scale, self.settings.train.end_is_final)
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
        self.agent.parameters.load(dict(stored["arrays"]))

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
        self._close_stage()

    def _close_stage(self) -> None:
        if self.stage is not None:
            self.stage.close()
        self.stage = None
