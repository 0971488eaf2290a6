"""An agent with its tasks and environments: collecting rollouts, and measuring how well the agent adapts.

Every rollout has a number. Its task, its environment's seed and its random draws follow from that number and the
learner's seed. So sequential and parallel collection give the same rollouts, for any number of workers.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import Env
from gymnasium.spaces import Space

from parallel_envs.checks import advice
from parallel_envs.choices import Backend, OnFailure
from parallel_envs.engine.interrupts import Interrupts
from parallel_envs.errors import ClosedError
from parallel_envs.learners.checkpoint import BadCheckpoint, check_fits, load_agent
from parallel_envs.learners.config import RESET_TIMEOUT, START_TIMEOUT, STEP_TIMEOUT, BadSettings, FailureSettings
from parallel_envs.learners.meta.agent import (
    AGENT,
    AGENT_ARCHS,
    MetaAgent,
    observed_extras,
    read_algorithm,
    read_memory,
)
from parallel_envs.learners.meta.config import EnvBlock, MetaSettings, load_settings
from parallel_envs.learners.meta.memory import RolloutToBatch
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.run_folder import newest_checkpoint
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.meta.making import TaskSplit, family_of, find_family, split, split_of
from parallel_envs.rollouts import Rollouts, collect
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import Task, offers, part_of
from parallel_envs.threads import CallGuard, ClosedAtExit, one_thread
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.env_errors import env_names

Floats = npt.NDArray[np.float64]

INNER = "inner_episode"
"""Info with the number of the inner episode that a step belongs to."""


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """Returns of evaluation rollouts by inner episode: how returns grow from one episode on a task to the next."""

    returns: Floats
    """`[rollouts, inner episodes]`; NaN for episodes after the end of a rollout."""
    task_ids: npt.NDArray[np.int64]
    """`[rollouts]`."""

    @classmethod
    def of(cls, rollouts: Rollouts, num_episodes: int) -> Adaptation:
        """Compute the returns of rollouts that were collected with `info_keys=[INNER]`."""
        returns = np.full((len(rollouts), num_episodes), np.nan)
        for row, rollout in zip(returns, rollouts, strict=True):
            episodes = np.array(rollout.infos[INNER], np.int64)
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


_DECIDED_ELSEWHERE = {
    *("add_previous_action", "add_previous_reward", "env_id", "episodes_per_task"),
    *("manager_options", "num_envs", "num_workers", "seed"),
}
"""Keywords that other settings decide, so that `env_kwargs` may not hold them."""


class LearnerEnvs:
    """The tasks and environments of one learner: made on first use as settings say, or set by a subclass of `Learner`.

    `purpose` is "train" or "eval". Training and evaluation have separate environments.

    `env` is the settings' block of this name; None: the `init_env` of a subclass makes the environments, and they name
    the tasks. `extras` are keywords for `MultiEpisodeWrapper` that say what to add to observations.
    """

    def __init__(self, seed: SeedTree, env: Mapping[str, Any] | None, extras: Mapping[str, bool]) -> None:
        self._seed = seed
        self._singles: dict[str, Env[Any, Any]] = {}
        self._many: dict[str, ParallelEnvManager | None] = {}
        self._tasks: TaskSplit | None = None
        self._making: dict[str, Any] | None = None
        if env is None:
            return
        given, options = env["env_kwargs"], env["manager_options"]
        if twice := sorted(_DECIDED_ELSEWHERE & given.keys()):
            raise BadSettings(
                f"`env.env_kwargs.{twice[0]}` is decided by other settings (the architecture, the seed, the numbers of "
                "rollouts, environments and workers). Leave it out."
            )
        family = find_family(env["env_name"], given)
        sizes = env["num_train_tasks"], env["num_eval_tasks"]
        self._tasks = split(family, *sizes, seed.child("tasks"), share=env["share_tasks"])
        self._making = {"env_id": family.env_id, "episodes_per_task": env["max_rollouts_per_task"], **extras, **given}
        # Options are checked here, because a single environment has no manager that would check them.
        known = [name for name in inspect.signature(ParallelEnvManager).parameters if name not in ("env_fns", "self")]
        if unknown := sorted(options.keys() - set(known)):
            raise BadSettings(f"`env.manager_options.{unknown[0]}` is unknown. {advice(unknown[0], known)}")
        num_envs: int = env["num_envs"] or env["num_parallel_workers"]
        self._of_many = {
            "num_envs": num_envs,
            "num_workers": min(env["num_parallel_workers"], num_envs),
            "manager_options": {"backend": env["backend"], **options},
        }

    @property
    def tasks(self) -> TaskSplit:
        """Return the tasks for training and the tasks that are kept for evaluation."""
        if self._tasks is None:
            envs = {f"{purpose}_tasks": self.single(purpose) for purpose in ("train", "eval")}
            train, kept = (list(part_of(env, name)) if offers(env, name) else None for name, env in envs.items())
            if not kept:
                raise BadSettings(
                    "The environments do not tell their tasks. Make them by `make_env(..., num_train_tasks=, "
                    "num_eval_tasks=)`, or give them attributes `train_tasks` and `eval_tasks`, which are lists."
                )
            env = self.single("train")
            self._tasks = split_of(lambda: family_of(str(env), None, env, {}), train, kept, self._seed.child("tasks"))
        return self._tasks

    def single(self, purpose: str) -> Env[Any, Any]:
        """Return the single environment for this purpose."""
        if purpose not in self._singles:
            if self._making is None:
                raise BadSettings(f"`init_env` has not set `self.{purpose}_env`. Set it to what `make_env` returns.")
            self._singles[purpose] = make_env(**self._making, seed=self._seed.child(purpose, "single").seed())
        return self._singles[purpose]

    def many(self, purpose: str) -> ParallelEnvManager | None:
        """Return the parallel environments for this purpose, or None if there is only the single one."""
        if purpose not in self._many and self._making is not None and self._of_many["num_envs"] > 1:
            seed = self._seed.child(purpose).seed()
            self._many[purpose] = make_parallel_env(**self._making, **self._of_many, seed=seed)
        return self._many.get(purpose)

    def use(self, kind: str, purpose: str, envs: Any) -> None:
        """Use this environment ("single") or these parallel ones ("many") from now on, and close the previous."""
        held: dict[str, Any] = self._many if kind == "many" else self._singles
        old, held[purpose] = held.get(purpose), envs
        if old is not None and old is not envs:
            old.close()

    @property
    def restarts(self) -> tuple[int, str]:
        """Return the number of environment restarts, and the last restart's environments and reason."""
        number, last = 0, ""
        for envs in self._many.values():
            if envs is not None and envs.last_restart is not None:
                number += envs.num_restarts
                last = f"{env_names(envs.last_restart[0])}: {envs.last_restart[1]}"
        return number, last

    @property
    def spaces(self) -> tuple[Space[Any], Space[Any]]:
        """Return the observation space and the action space."""
        if (many := self.many("train")) is not None:
            return many.single_observation_space, many.single_action_space
        return self.single("train").observation_space, self.single("train").action_space

    @property
    def most_steps(self) -> int:
        """Return the largest number of steps in a rollout."""
        many, name = self.many("train"), "horizon_bamdp"
        return int(self.single("train").get_wrapper_attr(name) if many is None else many.get_attr(name)[0])

    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        for envs in (*self._many.values(), *self._singles.values()):
            if envs is not None:
                envs.close()
        self._many.clear()
        self._singles.clear()


def _envs_of(kind: Literal["single", "many"], purpose: str) -> Any:
    """Return a property for environments of a player, which may be set."""

    def get(player: Player) -> Any:
        return getattr(player._envs, kind)(purpose)

    def use(player: Player, envs: Any) -> None:
        if player._env_factory is None:  # the `init_env` of a subclass has made them
            player._env_factory = LearnerEnvs(player._tree, None, {})
            player.max_rollouts_per_task = player.settings.env.max_rollouts_per_task
        player._env_factory.use(kind, purpose, envs)

    return property(get, use)


class Player(ClosedAtExit):
    """Plays with one agent on many tasks, several episodes on each, as settings say. `Learner` adds training.

    A context manager; `close` ends the workers.

    Threads: one thread at a time. A call from a second thread while a first one is inside a method, such as `train`,
    raises `ConcurrentCall` and does nothing; so does `close`.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path | MetaSettings, **overrides: Any) -> None:
        self._guard = CallGuard(type(self).__name__)
        self.settings = load_settings(config, overrides)
        self.seed = self.settings.seed
        self.num_init_rollouts_pool = self.settings.train.num_init_rollouts_pool
        self.num_rollouts_per_iter = self.settings.train.num_rollouts_per_iter
        self.agent_arch = AGENT_ARCHS(self.settings.policy.arch)
        self._config = read_algorithm(self.settings.policy.algorithm, self.agent_arch)
        self._memory = read_memory(self.settings.policy.memory.model_dump(), self.agent_arch)
        self._tree = SeedTree(self.seed).child("meta")
        self._num_rollouts = 0
        self._n_env_steps_total = 0
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

    def _init_env_arguments(self) -> dict[str, Any]:
        """Return the arguments for `init_env`: all that it names, those with other values than by default, `env_type`.

        If a subclass's `init_env` does not name `env_kwargs`, it is likely to pass its `**kwargs` on to `make_env`.
        Then the contents of `env_kwargs` are arguments, and the keywords that say what the agent is to see.
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
        """Draw the tasks and start the workers. Previous environments are closed.

        The arguments are those of the settings' block `env`; `kwargs` are added to `env_kwargs`.

        A subclass may define its own `init_env`, which sets `train_env`, `eval_env` and, for parallel rollouts,
        `train_env_parallel`. These environments name the tasks: see `num_train_tasks` of `make_env`.
        """
        words = {name: value for name, value in locals().items() if name in EnvBlock.model_fields}  # all but `kwargs`
        if env_type != "meta":
            raise BadSettings(f"env_type={env_type!r} is unknown. Only 'meta' is.")
        extras = observed_extras(self.agent_arch)
        more = {name: one for name, one in kwargs.items() if name not in extras}  # a subclass may pass extras on
        words["env_kwargs"] = {**(env_kwargs or {}), **more}
        words["manager_options"] = {
            **{name: words[name] for name in FailureSettings.model_fields},
            **(manager_options or {}),
        }
        self._close_envs()
        self._env_factory = LearnerEnvs(self._tree, words, extras)
        self.max_rollouts_per_task = max_rollouts_per_task
        self.observation_space, self.action_space = self._envs.spaces

    _env_factory: LearnerEnvs | None = None

    @property
    def _envs(self) -> LearnerEnvs:
        if self._env_factory is None:
            raise ClosedError(
                "The learner has been closed. Make another, or go on with its run: Learner.resume(folder)."
            )
        return self._env_factory

    # These environments may be set. The learner closes the environments that are set, and those that they replace.
    train_env_parallel: ParallelEnvManager | None = _envs_of("many", "train")
    """Environments for parallel rollouts. None: rollouts are collected one after another in `train_env`."""
    eval_env_parallel: ParallelEnvManager | None = _envs_of("many", "eval")
    """Separate environments for evaluation, if there are several for training; made on first use."""
    train_env: Env[Any, Any] = _envs_of("single", "train")
    """Environment for training, made on first use."""
    eval_env: Env[Any, Any] = _envs_of("single", "eval")
    """Environment for evaluation, which is never trained in; made on first use."""

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
        if policy.begin_with is not None:
            try:
                stored = load_agent(newest_checkpoint(policy.begin_with) or policy.begin_with, AGENT)
                check_fits(stored, self.agent.state(), AGENT, policy.begin_with)
            except (BadCheckpoint, FileNotFoundError) as error:
                raise BadSettings(f"`policy.begin_with: {policy.begin_with}` cannot be taken. {error}") from error
            self.agent.parameters.load(dict(stored["arrays"]))

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
        tasks: list[Task] = self._envs.tasks.for_rollouts(self._num_rollouts, num_rollouts)
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
        with Interrupts():  # Ctrl-C strikes before or after all of this
            self.agent.lived(self.last_rollouts)
            self._num_rollouts += num_rollouts
            self._n_env_steps_total += self.last_rollouts.num_steps
            self.seconds["collect"] += time.perf_counter() - began
        return self.last_rollouts.num_steps

    @one_thread
    def evaluate(self, num_rollouts_per_task: int | None = None, deterministic: bool | None = None) -> Adaptation:
        """Play rollouts of the evaluation tasks. Every call uses the same random numbers.

        Args:
            num_rollouts_per_task: None: as the settings say.
            deterministic: None: as the settings say.
        """
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
            info_keys=[INNER],
        )
        self.seconds["evaluate"] += time.perf_counter() - began
        return Adaptation.of(rollouts, self.max_rollouts_per_task)

    @one_thread
    def close(self) -> None:
        """End the workers and close the environments. Calling it twice does nothing."""
        self._close_envs()

    def _close_envs(self) -> None:
        if self._env_factory is not None:
            self._env_factory.close()
        self._env_factory = None
