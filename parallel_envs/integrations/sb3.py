"""stable-baselines3: `to_sb3` makes a `VecEnv` of our environments, `from_sb3` a Gymnasium vector env of a `VecEnv`.

    venv = to_sb3([make_env] * 8)                                        instead of SubprocVecEnv([make_env] * 8)
    venv = make_vec_env("CartPole-v1", 8, vec_env_cls=ParallelVecEnv)    with SB3's monitors
    venv = to_sb3(manager)                                               a ParallelEnvManager with SAME_STEP

The results are those of SB3's `DummyVecEnv` to the bit, whatever the backend: rewards of float32, `dones`, infos as a
list with `terminal_observation` and `TimeLimit.truncated`, `reset_infos`, and seeds and options that hold for one
reset.

What SB3 has to know of an environment in a worker is asked by closures, which travel by value. A worker therefore never
imports this module, and so neither SB3 nor torch on its account.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.vec_env import VecEnv

from parallel_envs.choices import StartMethod, words
from parallel_envs.errors import StepTimeout
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.agent_arrays import info_of, row_of
from parallel_envs.multiagent.views import AgentRows
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import EnvFactory, PlainOptions
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.manager import VectorOptions
from parallel_envs.vector.remotes import RemoteMethod
from parallel_envs.vector.shared_arrays import snapshot
from parallel_envs.vector.step_loop import RESTARTED
from parallel_envs.vector.worker_envs import Method

Indices = int | Iterable[int] | None
"""One row, several, or None for all. Negative numbers count from the end."""

FINAL_OBS, FINAL_INFO, TERMINAL_OBS, CUT = "final_obs", "final_info", "terminal_observation", "TimeLimit.truncated"

_OF_THE_ROW = ("episode", "env_id", "agent", RESTARTED)
"""Infos that Gymnasium's layout has beside the info of the new episode, and SB3 in the info of the one that ended."""


class ManagedSettings(VectorOptions, total=False):
    """Settings of the manager that `to_sb3` makes: those of `ParallelEnvManager`."""

    num_envs: int | None
    env_kwargs: dict[str, Any] | None


def to_sb3(envs: VectorEnv[Any, Any, Any] | Sequence[EnvFactory] | str, **settings: Unpack[ManagedSettings]) -> Any:
    """Return environments as a `VecEnv` of stable-baselines3.

    Args:
        envs: A list of functions that make environments, or an id with `num_envs=`: a `ParallelEnvManager` with
            `settings` is made. Or a manager, the rows of `MultiAgentEnvManager.as_vector_env()`, or any other Gymnasium
            vector env, all with `autoreset_mode="SameStep"`. Closing the `VecEnv` closes them.
        **settings: Keyword arguments of `ParallelEnvManager`, such as `num_workers=` and `on_failure=`.

    With `on_failure="restart"` a lost episode has done, reward 0, `TimeLimit.truncated` and `worker_restarted` in its
    info; its `terminal_observation` is the last observation that was returned of it.

    Agents as rows: an agent that ends before the others is done, and its row is zeros with `info["alive"]` False until
    the environment is reset; the reset ends the row once more. Learners of SB3 cannot leave out such rows.
    """
    if isinstance(envs, VectorEnv):
        if settings:
            raise TypeError(
                f"{', '.join(settings)} was given with {type(envs).__name__}, which exists already. Give settings to "
                "its own constructor, or give functions that make environments."
            )
        return VectorEnvAsVecEnv(envs)
    if isinstance(envs, MultiAgentEnvManager):
        raise TypeError(
            "to_sb3 needs rows, and MultiAgentEnvManager has dicts by agent. Give "
            "envs.as_vector_env(autoreset_mode='SameStep'), where all agents have equal spaces."
        )
    return ParallelVecEnv(envs, **settings)


class VectorEnvAsVecEnv(VecEnv):  # type: ignore[misc]  # the gate does not install SB3
    """A Gymnasium vector env as a `VecEnv`: see `to_sb3`.

    A `StepTimeout` leaves the step as it is: `step_wait` may be called again. A reset drops a step that is under way.
    `get_attr` returns a method as a callable that runs in the worker, and no copy of the environment. An environment
    whose index is given twice is called once.

    Threads: as its vector env, one thread at a time.

    Attributes:
        vector_env: The Gymnasium vector env.
        waiting: Whether a step was begun and not ended.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any]) -> None:
        mode = vector_env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            shown = "none" if mode is None else repr(mode.value)
            raise ValueError(
                f"The autoreset_mode of {type(vector_env).__name__} is {shown}, and stable-baselines3 needs "
                "'SameStep', where the step that ends an episode returns the first observation of the next. Make it "
                "(or its as_vector_env) with autoreset_mode='SameStep', or give to_sb3 functions that make them."
            )
        self.vector_env, self.waiting = vector_env, False
        base: Any = vector_env.unwrapped
        self._manager = vector_env if isinstance(vector_env, ParallelEnvManager) else None
        """The manager, if no wrapper is around it: steps can then begin and end apart."""
        self._holder = base.envs.envs if isinstance(base, AgentRows) else base
        """What can be asked about single environments: a manager or a `SyncVectorEnv`."""
        self._actions: Any = None
        self._unended: tuple[Any, Any] | None = None
        """The seeds and options of a reset that was begun and not ended: it was late, or there was a Ctrl-C."""
        self._latest: Any = None
        self._keeps_arrays = bool(getattr(base, "copy", True))
        super().__init__(vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space)
        self.metadata = {key: value for key, value in vector_env.metadata.items() if key != "autoreset_mode"}

    # ---- reset and step -------------------------------------------------------------------------------------------

    def reset(self) -> Any:
        """Reset every environment, with the seeds of `seed` and the options of `set_options`, which hold once.

        After a `StepTimeout`, call it again: it waits for the same reset, and makes another one only if seeds or
        options have been given since, or if a wrapper is around the manager.
        """
        if self.waiting:
            self.step_wait()
        results = None
        if self._unended is not None:
            with contextlib.suppress(NoAsyncCallError):  # it has ended meanwhile
                results = self._holder.reset_wait()
            seeds, options = self._unended
            if self._manager is None or seeds is not self._seeds or options is not self._options:
                results = None
            self._unended = None
        try:
            observations, infos = results or self.vector_env.reset(
                seed=self._reset_seed(), options=self._reset_options_given()
            )
        except (StepTimeout, KeyboardInterrupt):
            if isinstance(self._holder, ParallelEnvManager):
                self._unended = self._seeds, self._options
            raise
        self.reset_infos = self._by_row(infos)
        self._reset_seeds()
        self._reset_options()
        return self._observed(observations)

    def _reset_seed(self) -> Any:
        """Return the seeds: one number where they count up. Seeds of replaced environments then follow from it."""
        first, *_ = seeds = list(self._seeds)
        return first if first is None or seeds == list(range(first, first + len(seeds))) else seeds

    def _reset_options_given(self) -> Any:
        options = [one or None for one in self._options]
        if not any(options):
            return None
        if self._manager is not None:
            return PlainOptions(options)
        if any(one != options[0] for one in options):
            raise ValueError(
                f"set_options was given different options for environments of {type(self.vector_env).__name__}, which "
                "takes one dict for all. Give one dict."
            )
        return options[0]

    def step_async(self, actions: Any) -> None:
        if self._manager is None:
            self._actions = actions
        else:
            self._manager.step_async(actions)
        self.waiting = True

    def step_wait(self) -> tuple[Any, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]]:
        self.waiting = False
        try:
            results = self.vector_env.step(self._actions) if self._manager is None else self._manager.step_wait()
        except StepTimeout:
            self.waiting = True
            raise
        observations, rewards, terminations, truncations, infos = results
        by_row, dones = self._by_row(infos), terminations | truncations
        for row, is_done in enumerate(dones.tolist()):
            if is_done or FINAL_OBS in by_row[row]:  # the second alone: an agent whose row waited for the others
                by_row[row] = self._end_episode(row, by_row[row], observations)
                dones[row] = True
            by_row[row][CUT] = bool(truncations[row] and not terminations[row])
        return self._observed(observations), rewards.astype(np.float32), dones, by_row

    def _end_episode(self, row: int, info: dict[str, Any], observations: Any) -> dict[str, Any]:
        """Return the info of an episode that has ended, and store that of the reset. `info` has both."""
        ended = {**info.pop(FINAL_INFO, {}), **{key: info[key] for key in _OF_THE_ROW if key in info}}
        if FINAL_OBS not in info:  # an agent that ended before the others: its row is not reset yet
            final = row_of(self.observation_space, observations, row)
            ended = {**info, **ended}
        else:
            final = info.pop(FINAL_OBS)
            self.reset_infos[row] = info
        if RESTARTED in ended and self._latest is not None:  # final_obs is the first observation of the new episode
            final = row_of(self.observation_space, self._latest, row)
        return {**ended, TERMINAL_OBS: snapshot(final)}

    def _by_row(self, infos: Any) -> list[dict[str, Any]]:
        return infos if isinstance(infos, list) else [info_of(infos, row) for row in range(self.num_envs)]

    def _observed(self, observations: Any) -> Any:
        """Return observations that nothing writes to later. SB3 keeps them without copying."""
        self._latest = observations if self._keeps_arrays else snapshot(observations)
        return self._latest

    # ---- attributes and methods of the environments ---------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        def look_up(env: Any) -> Any:
            value = env.get_wrapper_attr(attr_name)
            return Method() if callable(value) and not isinstance(value, type) else value

        if isinstance(self._holder, SyncVectorEnv):
            return self._asked(lambda env: env.get_wrapper_attr(attr_name), indices)
        found = zip(self._envs_of(indices), self._asked(look_up, indices), strict=True)
        return [RemoteMethod(self._holder, env, attr_name) if isinstance(one, Method) else one for env, one in found]

    def has_attr(self, attr_name: str) -> bool:
        def has(env: Any) -> bool:
            try:
                env.get_wrapper_attr(attr_name)
            except AttributeError:
                return False
            return True

        return all(self._asked(has, None))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the outermost wrapper, as `DummyVecEnv` does. For agents as rows: of the environment."""

        def put(env: Any) -> None:
            if isinstance(env, gymnasium.Env):
                setattr(env, attr_name, value)
            else:
                env.set_wrapper_attr(attr_name, value)

        self._asked(put, indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        def called(env: Any) -> Any:
            return env.get_wrapper_attr(method_name)(*method_args, **method_kwargs)

        return self._asked(called, indices)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        wanted = wrapper_class.__module__, wrapper_class.__qualname__  # by name: SB3's wrappers would import torch

        def is_wrapped(env: Any) -> bool:
            while isinstance(env, gymnasium.Wrapper):
                if any((one.__module__, one.__qualname__) == wanted for one in type(env).__mro__):
                    return True
                env = env.env
            return False

        return self._asked(is_wrapped, indices)

    def get_images(self) -> Sequence[Any]:
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return list(self.vector_env.render() or ())

    def _envs_of(self, indices: Indices) -> list[int]:
        """Return the environment of each row that is named."""
        rows = [indices] if isinstance(indices, int | np.integer) else self._get_indices(indices)
        numbers = range(self.num_envs)
        return [numbers[int(row)] * self._holder.num_envs // self.num_envs for row in rows]

    def _asked(self, function: Callable[[Any], Any], indices: Indices) -> list[Any]:
        """Return `function(env)` for the environments of some rows."""
        envs = self._envs_of(indices)
        each = list(dict.fromkeys(envs))
        if isinstance(self._holder, SyncVectorEnv):
            answers = [function(self._holder.envs[env]) for env in each]
        elif isinstance(self._holder, ParallelEnvManager):
            answers = self._holder.apply(function, env_ids=each) if each else []
        else:
            raise NotImplementedError(
                f"{type(self._holder).__name__} cannot be asked about single environments. Use ParallelEnvManager."
            )
        by_env = dict(zip(each, answers, strict=True))
        return [by_env[env] for env in envs]

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the vector env. A second call does nothing."""
        self.vector_env.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vector_env!r})"


class ParallelVecEnv(VectorEnvAsVecEnv):
    """A `VecEnv` on a `ParallelEnvManager`, with the arguments of `SubprocVecEnv`, for `make_vec_env(vec_env_cls=...)`.

    Args:
        env_fns: Functions that make environments, or an id with `num_envs=`.
        start_method: `"forkserver"` (default on Linux), `"spawn"` or `"fork"`, as the manager's `context=`.
        **settings: Keyword arguments of `ParallelEnvManager`.

    Functions of `make_vec_env` need SB3 in the workers. It is then imported once for all of them (`preload`).

    Threads: one thread at a time.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory] | str,
        start_method: StartMethod | None = None,
        **settings: Unpack[ManagedSettings],
    ) -> None:
        if start_method is not None:
            if start_method not in words(StartMethod):
                known = ", ".join(map(repr, words(StartMethod)))
                raise ValueError(f"cannot find context for {start_method!r}: start_method is one of {known}.")
            settings["context"] = start_method
        given: Any = env_fns  # a wrong type is refused by the manager
        if isinstance(given, Sequence) and any(map(_is_of_sb3, given)):
            settings["preload"] = (*settings.get("preload", ()), "stable_baselines3.common.env_util")
        wanted: Any = {"autoreset_mode": "SameStep", "infos_list": True, **settings}
        manager = ParallelEnvManager(env_fns, **wanted)
        try:
            super().__init__(manager)
        except BaseException:
            manager.close()
            raise


def _is_of_sb3(factory: Any) -> bool:
    """Return whether a function comes from `make_vec_env`: its workers need SB3, whose import takes seconds."""
    return str(getattr(factory, "__module__", "")).startswith("stable_baselines3.")


# ---- the other way -----------------------------------------------------------------------------------------------


def from_sb3(venv: Any) -> VecEnvAsVectorEnv:
    """Return a `VecEnv`, with its SB3 wrappers such as `VecNormalize` and `VecFrameStack`, as a Gymnasium vector env.

    Its `autoreset_mode` is SAME_STEP. A step in which an episode is terminated and truncated at once counts as
    terminated only, because SB3 does not tell the difference.
    """
    if not isinstance(venv, VecEnv):
        raise TypeError(f"from_sb3 was given {venv!r}, which is not a VecEnv of stable-baselines3.")
    return VecEnvAsVectorEnv(venv)


class VecEnvAsVectorEnv(VectorEnv[Any, Any, npt.NDArray[Any]]):
    """A `VecEnv` as a Gymnasium vector env: see `from_sb3`. `venv` is the `VecEnv`.

    Threads: as its `VecEnv`, one thread at a time.
    """

    def __init__(self, venv: Any) -> None:
        self.venv, self.num_envs = venv, venv.num_envs
        self.single_observation_space, self.single_action_space = venv.observation_space, venv.action_space
        self.observation_space = batch_space(venv.observation_space, venv.num_envs)
        self.action_space = batch_space(venv.action_space, venv.num_envs)
        self.metadata = {**venv.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = venv.render_mode

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset every environment. `seed` is a number, from which environment `i` has `seed + i`, or None."""
        if seed is not None and not isinstance(seed, int | np.integer):
            raise TypeError(f"seed={seed!r} was given, and a VecEnv takes one number: environment i has seed + i.")
        if options is not None and "reset_mask" in options:
            raise ValueError("options['reset_mask'] was given, and a VecEnv resets all environments at once.")
        if seed is not None:
            self.venv.seed(int(seed))
        self.venv.set_options(options)
        observations, infos = self.venv.reset(), dict[str, Any]()
        for row, info in enumerate(self.venv.unwrapped.reset_infos):
            add_info(infos, info, row, self.num_envs)
        return observations, infos

    def step(
        self, actions: Any
    ) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        observations, rewards, dones, given = self.venv.step(actions)
        dones, infos = np.asarray(dones, np.bool_), dict[str, Any]()
        truncations = np.zeros(self.num_envs, np.bool_)
        for row, one in enumerate(given):
            info = dict(one)
            truncations[row] = info.pop(CUT, False) and dones[row]
            if dones[row]:
                final = {FINAL_OBS: info.pop(TERMINAL_OBS), FINAL_INFO: info}
                info = {**final, **self.venv.unwrapped.reset_infos[row]}
            add_info(infos, info, row, self.num_envs)
        return observations, np.asarray(rewards, np.float64), dones & ~truncations, truncations, infos

    def render(self) -> tuple[Any, ...]:
        return tuple(self.venv.get_images())

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute."""
        found = self.venv.get_attr(name)
        return tuple(self.venv.env_method(name, *args, **kwargs) if callable(found[0]) else found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        return self.call(name)

    def close_extras(self, **kwargs: Any) -> None:
        self.venv.close()
