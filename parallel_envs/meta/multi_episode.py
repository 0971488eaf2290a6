"""`MultiEpisodeWrapper`: several episodes of an env on one task, played as one; and its settings.

An *inner* episode is one of the env's, an *outer* episode is everything that is played on one task:

    reset ─▶ inner episode 0 ─▶ inner episode 1 ─▶ ... ─▶ inner episode k - 1 ─▶ terminated or truncated
             the last step of each but the last returns the first observation of the next, on the same task
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Space
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.utils import RecordConstructorArgs

from parallel_envs.checks import check_count, is_whole, suggests_keywords, yes_or_no
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskWay, offers, part_of
from parallel_envs.vector.shared_arrays import as_float, snapshot
from parallel_envs.vector.step_loop import WatchedOptions, warn_unseen

TaskVector = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiEpisodeConfig:
    """Settings of a `MultiEpisodeWrapper`, whose docstring explains each of them."""

    episodes_per_task: int
    oracle: bool = False
    horizon: int | None = None
    task_vector: TaskVector | None = None
    add_time: bool = False
    add_previous_action: bool = False
    add_previous_reward: bool = False
    rescale_actions: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        check_count("episodes_per_task", self.episodes_per_task)
        if self.horizon is not None:
            check_count("horizon", self.horizon)
        if self.task_vector is not None and not callable(self.task_vector):
            raise TypeError(
                f"task_vector={self.task_vector!r} cannot be called. Give a function of a task that returns numbers."
            )
        for name in ("oracle", "add_time", "add_previous_action", "add_previous_reward", "rescale_actions"):
            yes_or_no(name, getattr(self, name))
        if self.seed is not None:
            SeedTree(self.seed)  # raises for an invalid seed


WRAPPER_KEYWORDS = {field.name for field in fields(MultiEpisodeConfig)}

Array = npt.NDArray[Any]
AnyEnv = gymnasium.Env[Any, Any]
Info = dict[str, Any]

_HORIZON_NAMES = ("horizon", "max_episode_steps", "_max_episode_steps")


class MultiEpisodeWrapper(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """`episodes_per_task` episodes of `env` on one task as one episode, for agents that learn within it.

    Observations are flat Boxes: the env's observation, then in this order the parts that are switched on: the task
    (`oracle`); the done flag (if there are several inner episodes), 1 if an inner episode has just ended and 0
    elsewhere; the time (`add_time`); the previous action (`add_previous_action`); the previous reward
    (`add_previous_reward`). Without any part, observations stay as they are.

    A step that ends an inner episode resets the env, on the same task and without a seed, and returns the *first
    observation of the next one*, with done flag 1: no action is ever computed from an episode that is over. Reward and
    info belong to the step that was taken. The end of the last inner episode is the end of the outer one: it returns
    its last observation, with done flag 1, and its own `terminated` and `truncated`.

    Infos of steps gain these entries:

    - `done_mdp`: True if an inner episode ended; `inner_episode`: the number, from 0, of the one the step belonged to.
    - `is_goal_state`: the result of the env's method of this name, called before the env is reset. Only if it has one.
    - if an inner episode ended: `inner_terminated`, `inner_truncated`, and `inner_final_obs`, its last observation,
      with done flag 1. If another one follows: `start_state`, a copy of the observation returned, and
      `inner_reset_info`, the info of the reset, unless that was empty.

    A task stays until another one is given, by `reset` or by the env's own `reset_task` or `set_task`, through this
    wrapper. The oracle shows the task that the env returns (`get_task` or `get_current_task`), else the one that was
    given. A task that a method of the unwrapped env sets is shown only if the env returns it.

    Threads: one thread at a time, as any Gymnasium environment. This is not checked: a step is too short for that.

    Args:
        env: The env. It keeps its task through resets; one that takes tasks by `options` gets it at each reset.
        episodes_per_task: Inner episodes to an outer one, k.
        oracle: Show the task in every observation.
        horizon: The most steps of an inner episode: it is truncated there if it has not ended. By default the limit
            in the env's spec, or its attribute `horizon`, `max_episode_steps` or `_max_episode_steps`; the env then
            ends its episodes itself.
        task_vector: With `oracle`: a function of the task that returns numbers, always as many. It is called with None
            while no task has been given. By default the task is numbers itself.
        add_time: Show the part of the outer horizon that has passed, from 0 to 1.
        add_previous_action: Show the last action, flat (one-hot if discrete), clipped to its space. At first, zeros.
        add_previous_reward: Show the last reward. At first, 0.
        rescale_actions: Box actions go from -1 to 1, are clipped, and are rescaled to the env's bounds. Other action
            spaces stay as they are.
        seed: For the first reset, unless that one gives another.
    """

    train_tasks: list[Any]
    """Only if `make_env` got `num_train_tasks`: these tasks of the env's family."""
    eval_tasks: list[Any]
    """Only if `make_env` got `num_eval_tasks`; none of them is in `train_tasks`."""

    _is_task_option_checked = False
    """True once it is known if the env reads the task in its options."""

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
        settings = {name: value for name, value in locals().items() if name in WRAPPER_KEYWORDS}
        RecordConstructorArgs.__init__(self, **settings)
        gymnasium.Wrapper.__init__(self, env)
        self._config = MultiEpisodeConfig(**settings)
        self._horizon = _horizon_of(env) if horizon is None else int(horizon)
        self._task = CurrentTask(env, task_vector)
        self._rescaling: ActionRescaling | None = None
        if rescale_actions and isinstance(env.action_space, Box):
            self._rescaling = ActionRescaling(env.action_space)
            self.action_space = self._rescaling.space
        parts: dict[str, Box] = {}
        number_from_0_to_1 = Box(0.0, 1.0, (1,), np.float64)
        if oracle:
            try:
                parts["task"] = Box(-np.inf, np.inf, self._task.vector().shape, np.float64)
            except Exception as error:
                raise ValueError(
                    f"oracle=True, but the task of {env} is not known as numbers before the first task is given "
                    f"({error}). Give task_vector=, a function of the task that returns numbers, always as many, for "
                    "None too (no task has been given yet); or give the env a get_task that returns numbers from the "
                    "beginning."
                ) from error
        if self.episodes_per_task > 1:
            parts["done"] = number_from_0_to_1
        if add_time:
            parts["time"] = number_from_0_to_1
        if add_previous_action:  # zeros until there is one
            flat = flat_box(self.action_space, "The action space")
            low, high = flat.low.astype(np.float64), flat.high.astype(np.float64)
            parts["action"] = Box(np.minimum(low, 0.0), np.maximum(high, 0.0), dtype=np.float64)
        if add_previous_reward:
            parts["reward"] = Box(-np.inf, np.inf, (1,), np.float64)
        self._extended = ExtendedObservations(env.observation_space, parts)
        self.observation_space = self._extended.space
        self._has_goal_states = offers(env, "is_goal_state") and callable(part_of(env, "is_goal_state"))
        self._first_seed = seed
        self._inner_episode = self._inner_steps = self._steps = 0
        self._reset_needed = "The env has not been reset yet."  # the reason; empty while the env can be stepped

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
        """The current or last inner episode, from 0 to k - 1."""
        return self._inner_episode

    @property
    def reset_task(self) -> Callable[..., Any]:
        """The env's method `reset_task`. AttributeError if the env has none."""
        return self._task.recording("reset_task")

    @property
    def set_task(self) -> Callable[..., Any]:
        """The env's method `set_task`. AttributeError if the env has none."""
        return self._task.recording("set_task")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, task: Any = KEEP
    ) -> tuple[Any, Info]:
        """Begin an outer episode.

        Args:
            seed: For the env.
            options: For the env. Its entry `"task"` is taken as `task`; the rest holds for this reset alone.
            task: The task from now on; `KEEP` is the one that the env has.
        """
        if options is not None:
            if not isinstance(options, Mapping):
                raise TypeError(f"options={options!r} is a {type(options).__name__}. Give a dict, or None.")
            options = dict(options)  # the caller's dict stays as it is
            if "task" in options:
                if task is not KEEP:
                    raise ValueError("A task was given twice. Give either task= or options with 'task'.")
                task, options = options.pop("task"), options or None
        if task is not KEEP:
            self._task.give(task)
        seed, self._first_seed = self._first_seed if seed is None else seed, None
        self._inner_episode = self._steps = 0
        self._extended.clear()
        observation, info = self._reset_inner(seed, options)
        return self._extended.extend(observation), info

    def _reset_inner(self, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an inner episode on the current task. After a reset that fails, the env cannot be stepped."""
        self._reset_needed = "The last reset of the env failed."
        task_options = self._task.reset_options
        all_options = {**(options or {}), **task_options}
        watched = WatchedOptions(all_options) if task_options and not self._is_task_option_checked else None
        arguments: Info = {"seed": seed, "options": watched or all_options or options}
        # None is left out: the reset of some envs takes no arguments.
        observation, info = self.env.reset(**{name: value for name, value in arguments.items() if value is not None})
        if watched is not None:
            self._is_task_option_checked = True
            if not watched.seen:
                warn_unseen(self.env)
        if self._config.oracle:
            self._extended.set("task", self._task.vector())
        self._reset_needed = ""
        self._inner_steps = 0
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env. At the end of an inner episode that is not the last, begin the next."""
        if self._reset_needed:
            raise ResetNeeded(f"step({action!r}) was called, but there is no episode. {self._reset_needed} Call reset.")
        if self._config.add_previous_action:
            self._extended.set("action", flatten(self.action_space, action))
        inner_action = action if self._rescaling is None else self._rescaling(action)
        observation, reward, terminated, truncated, info = self.env.step(inner_action)
        self._inner_steps += 1
        self._steps += 1
        self._extended.set("done", 0.0)
        self._extended.set("time", self._steps / self.horizon_bamdp)
        if self._config.add_previous_reward:
            self._extended.set("reward", as_float(reward))
        horizon = self._config.horizon
        truncated = truncated or (horizon is not None and self._inner_steps >= horizon and not terminated)
        ended = bool(terminated or truncated)
        info = {**info, "done_mdp": ended, "inner_episode": self._inner_episode}
        if self._has_goal_states:
            info["is_goal_state"] = bool(part_of(self.env, "is_goal_state")())
        if not ended:
            return self._extended.extend(observation), reward, False, False, info
        terminated, truncated = bool(terminated), bool(truncated)
        self._extended.set("done", 1.0)
        final = self._extended.extend(observation)
        info |= {"inner_terminated": terminated, "inner_truncated": truncated, "inner_final_obs": snapshot(final)}
        if self._inner_episode + 1 == self.episodes_per_task:
            self._reset_needed = f"All inner episodes of the last one ({self.episodes_per_task}) have ended."
            return final, reward, terminated, truncated, info
        reward, info = snapshot(reward), snapshot(info)  # the reset may write to the arrays in them
        observation, reset_info = self._reset_inner()
        self._inner_episode += 1
        start = self._extended.extend(observation)
        info["start_state"] = start.copy()
        if reset_info:
            info["inner_reset_info"] = snapshot(reset_info)
        return start, reward, False, False, info


VariBadWrapper = MultiEpisodeWrapper
"""Older name of `MultiEpisodeWrapper`."""


def _horizon_of(env: AnyEnv) -> int:
    """Return the most steps of an episode, from the env's spec or its attributes."""
    limits = [getattr(env.spec, "max_episode_steps", None)]
    limits += [part_of(env, name) for name in _HORIZON_NAMES if offers(env, name)]
    for steps in limits:
        if steps is not None and is_whole(steps) and steps > 0:
            return int(steps)
    raise ValueError(
        f"The horizon of {env} is unknown: neither its spec nor {', '.join(_HORIZON_NAMES)} says how many steps its "
        "episodes have at most. Give horizon=, and episodes are truncated there."
    )


class CurrentTask:
    """The task of a wrapped env.

    An env that takes tasks by a method keeps its task itself. One that takes tasks by the options of a reset must get
    its task at each reset: see `reset_options`. The env always gets a copy.
    """

    def __init__(self, env: AnyEnv, to_vector: TaskVector | None) -> None:
        self._env, self._to_vector = env, to_vector
        self._given: Any = None
        self._by_options = False
        self._size = -1  # of the vector; unknown yet

    def give(self, task: Any) -> None:
        """Give the env a task, in the way that it takes tasks."""
        if task is RESAMPLE:
            raise ValueError("RESAMPLE was given as a task, but an env alone has no task_source. Give a task.")
        value = snapshot(task.value if isinstance(task, Task) else task)
        way = TaskWay.of(self._env, None)
        way.apply(self._env, snapshot(value), None)
        self._given, self._by_options = value, way is TaskWay.OPTIONS

    @property
    def reset_options(self) -> dict[str, Any]:
        """Options that every reset of the env must get so that the task stays."""
        return {"task": snapshot(self._given)} if self._by_options else {}

    def recording(self, method: str) -> Callable[..., Any]:
        """Return the env's own method that takes a task, in a wrapper that records this task.

        Raises AttributeError if the env has no such method.
        """
        give = part_of(self._env, method)

        def give_and_record(*args: Any, **kwargs: Any) -> Any:
            answer = give(*args, **kwargs)
            self._given = snapshot(next(iter((*args, *kwargs.values())), None))
            return answer

        return give_and_record

    def get(self) -> Any:
        """Return the task that the env returns if it can, else the task as it was given, or None."""
        for name in ("get_task", "get_current_task"):
            if offers(self._env, name):
                return part_of(self._env, name)()
        return self._given

    def vector(self) -> npt.NDArray[np.float64]:
        """Return the task as a vector. Its size never changes."""
        task = self.get()
        vector = np.array(task if self._to_vector is None else self._to_vector(task), np.float64).ravel()
        if np.isnan(vector).any():  # NumPy makes NaN of None
            raise ValueError(f"the task {task!r} does not turn into numbers")
        if self._size not in (-1, vector.size):
            raise ValueError(
                f"The task {task!r} has {vector.size} numbers as a vector, where there were {self._size} at first. Let "
                "task_vector= (or the env's get_task) return always as many."
            )
        self._size = vector.size
        return vector


class ExtendedObservations:
    """Observations of the space `inner` with the values of `parts` behind them, in one flat array.

    Without parts, observations stay as they are, whatever their space. The value of a part is zeros until it is set.
    """

    def __init__(self, inner: Space[Any], parts: Mapping[str, Box]) -> None:
        self._inner = inner
        self.space: Space[Any] = inner
        self._bounds: Box | None = None
        self._values = np.zeros(sum(part.shape[0] for part in parts.values()))
        self._part_values: dict[str, Array] = {}
        if parts:
            flat = flat_box(inner, "The observation space")
            dtype = flat.dtype if np.issubdtype(flat.dtype, np.floating) else np.float32  # it must hold fractions
            self._bounds = _concatenate(list(parts.values()), np.float64)
            self.space = _concatenate([flat, self._bounds], dtype)
            ends = np.cumsum([part.shape[0] for part in parts.values()])[:-1]
            self._part_values = dict(zip(parts, np.split(self._values, ends), strict=True))  # each is a view
        self._dtype: Any = self.space.dtype

    def clear(self) -> None:
        """Set every part to zeros."""
        self._values[:] = 0.0

    def set(self, name: str, value: Any) -> None:
        """Set the value of a part. Do nothing if there is no such part."""
        if name in self._part_values:
            self._part_values[name][:] = value

    def extend(self, observation: Any) -> Any:
        """Return an observation with the values of the parts, clipped to their bounds. With parts it is a new array."""
        if self._bounds is None:
            return observation
        values = np.minimum(np.maximum(self._values, self._bounds.low), self._bounds.high)
        extended: Array = np.concatenate([flatten(self._inner, observation), values], dtype=self._dtype)
        return extended


def flat_box(space: Space[Any], what: str) -> Box:
    """Return the space of a space's flattened values."""
    try:
        flat = flatten_space(space)
    except NotImplementedError:  # a class that Gymnasium does not know
        flat = None
    if isinstance(flat, Box):
        return flat
    raise TypeError(
        f"{what} is {space}, whose values have no fixed number of numbers, so nothing can be put behind or among them. "
        "Wrap the env first so that it is made of Box, Discrete, MultiDiscrete, MultiBinary, Tuple or Dict."
    )


def _concatenate(boxes: list[Box], dtype: npt.DTypeLike) -> Box:
    with np.errstate(over="ignore"):  # a bound beyond the range of the dtype is no bound
        low = np.concatenate([box.low for box in boxes], dtype=np.dtype(dtype), casting="same_kind")
        high = np.concatenate([box.high for box in boxes], dtype=np.dtype(dtype), casting="same_kind")
    return Box(low, high, dtype=low.dtype.type)


class ActionRescaling:
    """Maps actions from -1 to 1 to the bounds of `target`. Values outside of -1 to 1 are clipped."""

    def __init__(self, target: Box) -> None:
        if not np.issubdtype(target.dtype, np.floating):
            raise ValueError(f"rescale_actions=True, but actions are whole numbers: {target}. Leave it out.")
        if not target.is_bounded():
            raise ValueError(
                f"rescale_actions=True, but {target} has no bounds to rescale to. Leave it out, or bound the actions "
                "first, for example with gymnasium.wrappers.TransformAction."
            )
        self.space = Box(-1.0, 1.0, target.shape, target.dtype.type)
        self._target = target
        low, high = target.low.astype(np.float64), target.high.astype(np.float64)
        self._middle, self._reach = low / 2 + high / 2, high / 2 - low / 2

    def __call__(self, action: Any) -> Array:
        """Return the env's action for this action."""
        given = np.asarray(action, np.float64)
        if given.shape != self.space.shape:
            raise ValueError(f"The action {action!r} has shape {given.shape}. Give one of shape {self.space.shape}.")
        exact = np.asarray(self._middle + given * self._reach).astype(self.space.dtype)
        return np.asarray(np.clip(exact, self._target.low, self._target.high))
