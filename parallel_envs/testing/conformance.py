"""A vector env beside Gymnasium's in-process one, step by step: they must be the same to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from parallel_envs.testing.equality import Difference, first_difference

EnvFactory = Callable[[], gym.Env[Any, Any]]
VectorFactory = Callable[..., VectorEnv[Any, Any, Any]]

_DEFINITION_NAMES = (
    "num_envs",
    "single_observation_space",
    "observation_space",
    "single_action_space",
    "action_space",
    "metadata",
    "render_mode",
)
_LOOKED_AT = 10
"""How many steps of an episode are compared with those of another that ought to be the same."""
_RESET_NAMES = ("observations", "infos")
_STEP_NAMES = ("observations", "rewards", "terminations", "truncations", "infos")


def check_vector_env(
    make: EnvFactory | Sequence[EnvFactory],
    seed: int = 0,
    num_steps: int = 100,
    *,
    num_envs: int = 3,
    make_vector: VectorFactory | None = None,
    **settings: Any,
) -> None:
    """Raise AssertionError, naming step, env and key, where a vector env departs from `SyncVectorEnv`.

    Both get the same seed and the same random actions. Compared are spaces, metadata, observations, rewards,
    flags and infos with their masks, types and dtypes. On the way the first env that ends is also reset by
    hand, one env is reset in the midst of an episode, and later all are without a seed; in the mode DISABLED
    ended envs are reset after each step. Unless `copy=False`, results must also still be what they were when
    all steps are done.

    The env must be deterministic: the same seed and actions, the same results. One that plays another episode when it
    is reset a second time with the same seed gets a warning: its episodes depend on how it was used before.

    Args:
        make: a factory of your env, or one factory for each env.
        seed: seed of the first reset and of the actions.
        num_steps: steps of the whole vector.
        num_envs: how many envs, where `make` is a single factory.
        make_vector: takes the list of factories and the settings; `ParallelEnvManager` by default.
        settings: for `make_vector`; `autoreset_mode` and `observation_mode` go to the reference as well.
    """
    factories = _factories(make, num_envs)
    modes = {key: settings[key] for key in ("autoreset_mode", "observation_mode") if key in settings}
    with (
        closing((make_vector or _manager())(factories, **settings)) as subject,
        closing(SyncVectorEnv([partial(_Snapshots, each) for each in factories], **modes)) as reference,
    ):
        _Walk(subject, reference, are_copies=settings.get("copy", True)).go(seed, num_steps)
    _check_second_reset(factories[0], seed)


def _factories(make: Any, num_envs: Any) -> list[EnvFactory]:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ValueError(f"num_envs={num_envs!r} is not a number of envs. Give a whole number from 1 up.")
    factories = [make] * num_envs if callable(make) or not isinstance(make, Sequence) else list(make)
    is_name = isinstance(make, str)
    if is_name or not factories or not all(map(callable, factories)):
        name = f"lambda: gymnasium.make({make!r})" if is_name else "your env's class"
        raise TypeError(f"make={make!r} makes no env. Give a function that does, such as {name}, or a list of them.")
    return factories


def _manager() -> VectorFactory:
    # Only when asked for: workers import the envs of this package without the front.
    from parallel_envs import ParallelEnvManager

    return ParallelEnvManager


class _Snapshots(gym.Wrapper[Any, Any, Any, Any]):
    """What an env meant when it returned: copies of observation and info, and the reward as one number.

    `SyncVectorEnv` keeps references over the reset of an ended env, and cannot take rewards of shape (1,).
    """

    def __init__(self, factory: EnvFactory) -> None:
        super().__init__(factory())

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return deepcopy(self.env.reset(**arguments))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return deepcopy(observation), np.asarray(reward).item(), terminated, truncated, deepcopy(info)


def _check_second_reset(factory: EnvFactory, seed: int) -> None:
    """Warn if an env plays another episode when it is reset once more with the same seed."""
    with closing(_Snapshots(factory)) as env:
        actions = deepcopy(env.action_space)
        first, second = ([env.reset(seed=seed), *_steps(env, actions, seed)] for _ in range(2))
    difference = first_difference(second, first)
    if difference is not None:
        warnings.warn(
            f"{env!r} plays another episode when it is reset a second time with seed {seed}: at [number of calls]"
            f"{difference}. Its episodes depend on how it was used before. Have `reset` begin anew whatever is random "
            "or counted, or make the env anew for each seed.",
            stacklevel=3,
        )


def _steps(env: gym.Env[Any, Any], actions: gym.Space[Any], seed: int) -> Iterator[Any]:
    """The first steps of an episode."""
    actions.seed(seed)
    for _ in range(_LOOKED_AT):
        told = env.step(actions.sample())
        yield told
        if told[2] or told[3]:
            return


class _Walk:
    """One course of both vector envs."""

    def __init__(
        self, subject: VectorEnv[Any, Any, Any], reference: VectorEnv[Any, Any, Any], *, are_copies: bool
    ) -> None:
        self.subject = subject
        self.reference = reference
        self.are_copies = are_copies
        self.has_reset_an_ended_env = False
        self.kept: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = []

    def go(self, seed: int, num_steps: int) -> None:
        """Check everything over a reset and that many steps."""
        self.check_definition()
        self.reference.action_space.seed(seed)
        self.reset("the first reset", seed=seed)
        for step in range(num_steps):
            self.reset_on_the_way(step, num_steps)
            self.step(f"step {step}")
        self.check_kept()

    def check_definition(self) -> None:
        actual = tuple(getattr(self.subject, name) for name in _DEFINITION_NAMES)
        expected = tuple(getattr(self.reference, name) for name in _DEFINITION_NAMES)
        self.compare("the definition", _DEFINITION_NAMES, actual, expected)

    def reset_on_the_way(self, step: int, num_steps: int) -> None:
        if step == num_steps // 3:
            mask = np.arange(self.reference.num_envs) == step % self.reference.num_envs
            self.reset(f"the reset of one env before step {step}", mask=mask)
        if step == 2 * num_steps // 3:
            self.reset(f"the reset before step {step}")

    def reset(self, moment: str, *, seed: int | None = None, mask: Any = None) -> None:
        options = None if mask is None else {"reset_mask": mask}
        actual = self.subject.reset(seed=seed, options=deepcopy(options))
        expected = self.reference.reset(seed=seed, options=deepcopy(options))  # pops the mask from what it gets
        self.compare(moment, _RESET_NAMES, actual, expected)

    def step(self, moment: str) -> None:
        actions = self.reference.action_space.sample()
        actual = self.subject.step(deepcopy(actions))
        expected = self.reference.step(actions)
        self.compare(moment, _STEP_NAMES, actual, expected)
        self.reset_ended(moment, expected[2] | expected[3])

    def reset_ended(self, moment: str, ended: NDArray[np.bool_]) -> None:
        is_needed = self.reference.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        if ended.any() and (is_needed or not self.has_reset_an_ended_env):
            self.reset(f"the reset after {moment}", mask=ended)
            self.has_reset_an_ended_env = True

    def compare(self, moment: str, names: Sequence[str], actual: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
        assert len(actual) == len(names), f"At {moment} {len(actual)} values came back instead of {names}."
        for name, one, other in zip(names, actual, expected, strict=True):
            difference = first_difference(one, other)
            if difference is not None:
                raise AssertionError(f"At {moment}, {self.place(name, one, other, difference)}")
        self.kept.append((moment, actual, expected))

    def check_kept(self) -> None:
        for moment, actual, expected in self.kept if self.are_copies else ():
            difference = first_difference(actual, expected)
            if difference is not None:
                raise AssertionError(f"What {moment} returned was overwritten later, at {difference}")

    def place(self, name: str, actual: Any, expected: Any, difference: Difference) -> str:
        """Say which env's part of a batch is wrong, where that can be told."""
        env = self.env_of(name, actual, expected, difference)
        return f"{name}{difference}" if env is None else f"env {env}: {name}{difference}"

    def env_of(self, name: str, actual: Any, expected: Any, difference: Difference) -> int | None:
        if name != "observations":
            return next((step for step in difference.path if isinstance(step, int)), None)
        space = self.reference.observation_space
        try:
            rows = zip(iterate(space, actual), iterate(space, expected), strict=True)
            return next((env for env, (one, other) in enumerate(rows) if first_difference(one, other)), None)
        except (CustomSpaceError, TypeError, ValueError, LookupError):  # not even of the batch's form
            return None
