"""`MultiEpisodeWrapper`: several episodes of an env on one task, played as one.

An *inner* episode is one of the env's, an *outer* episode is all that is played on one task:

    reset ─▶ inner episode 0 ─▶ inner episode 1 ─▶ ... ─▶ inner episode k - 1 ─▶ terminated or truncated
             the last step of each but the last returns the first observation of the next, on the same task
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatten
from gymnasium.utils import RecordConstructorArgs

from parallel_envs.meta.actions import Rescaling
from parallel_envs.meta.config import MultiEpisodeConfig, TaskVector
from parallel_envs.meta.inner_task import AnyEnv, InnerTask, OracleVector
from parallel_envs.meta.observations import ShownObservations, numbers, share, values_or_zeros
from parallel_envs.spelling import suggests_keywords
from parallel_envs.tasks import KEEP, offers, part_of
from parallel_envs.vector.shared_arrays import as_float, snapshot
from parallel_envs.vector.worker_tasks import WatchedOptions, warn_unseen

Info = dict[str, Any]

_HORIZON_NAMES = ("horizon", "max_episode_steps", "_max_episode_steps")


class MultiEpisodeWrapper(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """`episodes_per_task` episodes of `env` on one task as one episode, for agents that learn within it.

    Observations are flat Boxes: the env's observation, then in this order what is asked for: the task (`oracle`); the
    done flag (if there are several inner episodes), 1 where an inner episode has just ended and 0 elsewhere; the time
    (`add_time`); the previous action (`add_previous_action`); the previous reward (`add_previous_reward`). Where
    nothing is asked for, observations stay as they are.

    A step that ends an inner episode resets the env, on the same task and without a seed, and returns the *first
    observation of the next one*, with done flag 1: no action is ever computed from an episode that is over. Reward and
    info belong to the step that was taken. The last inner episode's end is the end: its last observation, with done
    flag 1, and its own `terminated` and `truncated`.

    Infos of steps gain these entries:

    - `done_mdp`: whether an inner episode ended; `inner_episode`: the number, from 0, of the one the step belonged to.
    - `is_goal_state`: what the env's method of this name says, asked before the env is reset. Only if it has one.
    - where an inner episode ended: `inner_terminated`, `inner_truncated`, and `inner_final_obs`, its last observation,
      with done flag 1. If another one follows: `start_state`, a copy of the observation returned, and
      `inner_reset_info`, what the reset said, unless that was nothing.

    A task stays until another one is given, by `reset` or by the env's own `reset_task` or `set_task`, through this
    wrapper. The oracle shows the task as the env tells it (`get_task` or `get_current_task`), else as it was given.
    What is given behind the wrapper's back, by a function of the unwrapped env, shows only if the env tells it.

    Threads: one thread at a time, as any Gymnasium environment. This is not checked: a step is too short for that.

    Args:
        env: The env. It keeps its task through resets; one that takes tasks by `options` is told at each reset.
        episodes_per_task: Inner episodes to an outer one, k.
        oracle: Show the task in every observation.
        horizon: The most steps of an inner episode: it is truncated there if it has not ended. By default what the
            env's spec says, or its attribute `horizon`, `max_episode_steps` or `_max_episode_steps`; the env then ends
            its episodes itself.
        task_vector: With `oracle`: a function of the task that returns numbers, always as many. It is asked about None
            while no task has been given. By default the task is numbers itself.
        add_time: Show how much of the outer horizon has gone, from 0 to 1.
        add_previous_action: Show the last action, flat (one-hot if discrete), clipped to its space. At first, zeros.
        add_previous_reward: Show the last reward. At first, 0.
        rescale_actions: Box actions go from -1 to 1, are clipped, and are rescaled to the env's bounds. Other action
            spaces stay as they are.
        seed: For the first reset, unless that one gives another.
    """

    train_tasks: list[Any]
    """Only if `make_env` was asked for `num_train_tasks`: these tasks of the env's family."""
    eval_tasks: list[Any]
    """Likewise for `num_eval_tasks`; none of them is in `train_tasks`."""

    @suggests_keywords
    def __init__(
        self,
        env: AnyEnv,
        episodes_per_task: int,
        oracle: bool = False,
        *,
        horizon: int | None = None,
        task_vector: TaskVector | None = None,
        add_time: bool = False,
        add_previous_action: bool = False,
        add_previous_reward: bool = False,
        rescale_actions: bool = False,
        seed: int | None = None,
    ) -> None:
        settings: dict[str, Any] = {
            "episodes_per_task": episodes_per_task,
            "oracle": oracle,
            "horizon": horizon,
            "task_vector": task_vector,
            "add_time": add_time,
            "add_previous_action": add_previous_action,
            "add_previous_reward": add_previous_reward,
            "rescale_actions": rescale_actions,
            "seed": seed,
        }
        RecordConstructorArgs.__init__(self, **settings)
        gymnasium.Wrapper.__init__(self, env)
        self._config = MultiEpisodeConfig(**settings)
        self._horizon = _horizon_of(env) if horizon is None else int(horizon)
        self._task = InnerTask(env)
        self._oracle = OracleVector(self._task, task_vector, env) if oracle else None
        self._rescaling = Rescaling(env.action_space) if rescale_actions and isinstance(env.action_space, Box) else None
        if self._rescaling is not None:
            self.action_space = self._rescaling.space
        self._shown = ShownObservations(env.observation_space, self._parts())
        self.observation_space = self._shown.space
        self._tells_goal = offers(env, "is_goal_state") and callable(part_of(env, "is_goal_state"))
        self._first_seed = seed
        self._inner_episode = self._inner_steps = self._steps = 0
        self._reset_needed = "The env has not been reset yet."  # why it cannot be stepped; nothing while it can

    def _parts(self) -> dict[str, Box]:
        """What stands behind the env's observation, in order."""
        parts = {}
        if self._oracle is not None:
            parts["task"] = numbers(self._oracle.size)
        if self.episodes_per_task > 1:
            parts["done"] = share()
        if self._config.add_time:
            parts["time"] = share()
        if self._config.add_previous_action:
            parts["action"] = values_or_zeros(self.action_space, "The action space")
        if self._config.add_previous_reward:
            parts["reward"] = numbers(1)
        return parts

    # ---- what it is -----------------------------------------------------------------------------------------------

    @property
    def episodes_per_task(self) -> int:
        """Inner episodes to an outer one, k."""
        return int(self._config.episodes_per_task)

    @property
    def horizon(self) -> int:
        """The most steps of an inner episode, H."""
        return self._horizon

    @property
    def horizon_bamdp(self) -> int:
        """The most steps of an outer episode, k x H."""
        return self.episodes_per_task * self._horizon

    @property
    def inner_episode(self) -> int:
        """The inner episode that is being played, or was the last, from 0 to k - 1."""
        return self._inner_episode

    # ---- tasks ----------------------------------------------------------------------------------------------------

    @property
    def reset_task(self) -> Callable[..., Any]:
        """The env's method `reset_task`; there is none if the env has none."""
        return self._task.overheard("reset_task")

    @property
    def set_task(self) -> Callable[..., Any]:
        """The env's method `set_task`; there is none if the env has none."""
        return self._task.overheard("set_task")

    # ---- episodes -------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, task: Any = KEEP
    ) -> tuple[Any, Info]:
        """Begin an outer episode.

        Args:
            seed: For the env.
            options: For the env. `"task"` in it is taken as `task`; the rest holds for this reset alone.
            task: The task from now on; `KEEP` is the one that the env has.
        """
        task, options = _apart(task, options)
        if task is not KEEP:
            self._task.give(task)
        seed, self._first_seed = self._first_seed if seed is None else seed, None
        self._inner_episode = self._steps = 0
        self._shown.forget()
        observation, info = self._reset_inner(seed, options)
        return self._shown.show(observation), info

    _was_looked_at = False
    """Whether it is known that the env reads the task in its options, or does not."""

    def _reset_inner(self, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an inner episode on the task that there is. An env whose reset fails is not to be stepped."""
        self._reset_needed = "The last reset of the env failed."
        told = {**(options or {}), **self._task.options}
        watched = WatchedOptions(told) if self._task.options and not self._was_looked_at else None
        given: Info = {"seed": seed, "options": watched or told or options}
        # What is None is left out: the reset of some envs takes nothing.
        observation, info = self.env.reset(**{name: value for name, value in given.items() if value is not None})
        if watched is not None:
            self._was_looked_at = True  # or it is told now, once
            if not watched.seen:
                warn_unseen(self.env)
        if self._oracle is not None:
            self._shown.tell("task", self._oracle.now())
        self._reset_needed = ""
        self._inner_steps = 0
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env; at the end of an inner episode that is not the last, begin the next."""
        if self._reset_needed:
            raise ResetNeeded(f"step({action!r}) was called, but there is no episode. {self._reset_needed} Call reset.")
        observation, reward, terminated, truncated, info = self.env.step(self._noted(action))
        self._count(reward)
        truncated = truncated or (self._is_over_time and not terminated)
        ended = bool(terminated or truncated)
        info = {**info, "done_mdp": ended, "inner_episode": self._inner_episode}
        if self._tells_goal:
            info["is_goal_state"] = bool(part_of(self.env, "is_goal_state")())
        if not ended:
            return self._shown.show(observation), reward, False, False, info
        return self._end_inner(observation, reward, bool(terminated), bool(truncated), info)

    def _noted(self, action: Any) -> Any:
        """The env's action for this one, which is now the previous one."""
        if self._config.add_previous_action:
            self._shown.tell("action", flatten(self.action_space, action))
        return action if self._rescaling is None else self._rescaling(action)

    def _count(self, reward: Any) -> None:
        self._inner_steps += 1
        self._steps += 1
        self._shown.tell("done", 0.0)
        self._shown.tell("time", self._steps / self.horizon_bamdp)
        if self._config.add_previous_reward:
            self._shown.tell("reward", as_float(reward))

    @property
    def _is_over_time(self) -> bool:
        """Whether the inner episode has come to where `horizon` ends it."""
        return self._config.horizon is not None and self._inner_steps >= self._config.horizon

    def _end_inner(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Info
    ) -> tuple[Any, Any, bool, bool, Info]:
        self._shown.tell("done", 1.0)
        final = self._shown.show(observation)
        info |= {"inner_terminated": terminated, "inner_truncated": truncated, "inner_final_obs": snapshot(final)}
        if self._inner_episode + 1 == self.episodes_per_task:
            self._reset_needed = f"All inner episodes of the last one ({self.episodes_per_task}) have ended."
            return final, reward, terminated, truncated, info
        reward, info = snapshot(reward), snapshot(info)  # the reset may write to the arrays that they are made of
        observation, reset_info = self._reset_inner()
        self._inner_episode += 1
        start = self._shown.show(observation)
        info["start_state"] = start.copy()
        if reset_info:
            info["inner_reset_info"] = snapshot(reset_info)
        return start, reward, False, False, info


VariBadWrapper = MultiEpisodeWrapper
"""The first name of `MultiEpisodeWrapper`."""


def _apart(task: Any, options: Any) -> tuple[Any, Info | None]:
    """The task, wherever it was said, and the other options. The caller's dict stays as it is."""
    if options is None:
        return task, None
    if not isinstance(options, Mapping):
        raise TypeError(f"options={options!r} is a {type(options).__name__}. Give a dict, or None.")
    others = dict(options)
    if "task" not in others:
        return task, others
    if task is not KEEP:
        raise ValueError("A task was given twice. Give either task= or options with 'task'.")
    return others.pop("task"), others or None


def _horizon_of(env: AnyEnv) -> int:
    """The most steps of an episode, as the env itself tells."""
    told = [getattr(env.spec, "max_episode_steps", None)]
    told += [part_of(env, name) for name in _HORIZON_NAMES if offers(env, name)]
    for steps in told:
        if isinstance(steps, int | np.integer) and not isinstance(steps, bool) and steps > 0:
            return int(steps)
    raise ValueError(
        f"The horizon of {env} is unknown: neither its spec nor an attribute ({', '.join(_HORIZON_NAMES)}) says how "
        "many steps its episodes have at most. Give horizon=, and episodes are truncated there."
    )
