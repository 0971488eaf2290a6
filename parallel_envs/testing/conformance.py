"""Checks for tests: a vector env against Gymnasium's `SyncVectorEnv`, and deep equality of what envs return."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

# ---- deep equality ---------------------------------------------------------------------------------------------------

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Difference:
    """The first place at which two trees differ: the keys and indices that lead there, and a text."""

    path: Path
    text: str

    def __str__(self) -> str:
        """Write the place as Python would index it."""
        return "".join(f"[{step!r}]" for step in self.path) + f": {self.text}"


def assert_same_batch(actual: Any, expected: Any) -> None:
    """Raise AssertionError at the first difference between two trees of arrays and plain values.

    Dicts, tuples, lists, named tuples (such as `GraphInstance`) and object arrays are walked. Leaves must agree in
    type, dtype, shape and value; NaN equals NaN, and -0.0 is not 0.0. The order of dict keys has no meaning.
    """
    difference = first_difference(actual, expected)
    if difference is not None:
        raise AssertionError(f"The batches differ at {difference}")


def first_difference(actual: Any, expected: Any, path: Path = ()) -> Difference | None:
    """Return the first place at which `actual` differs from `expected`, or None if the two are the same."""
    if type(actual) is not type(expected):
        return Difference(path, f"{_described(actual)} instead of {_described(expected)}")
    if isinstance(expected, np.ndarray):
        if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
            return Difference(path, f"{_described(actual)} instead of {_described(expected)}")
        if expected.dtype != object:
            return _array_difference(actual, expected, path)
        return _first_of(((index, actual[index], expected[index]) for index in np.ndindex(expected.shape)), path)
    if isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            missing = sorted(map(repr, expected.keys() - actual.keys()))
            extra = sorted(map(repr, actual.keys() - expected.keys()))
            return Difference(path, f"missing keys {missing}, unexpected keys {extra}")
        return _first_of((((key,), actual[key], expected[key]) for key in expected), path)
    if isinstance(expected, (tuple, list)):
        if len(actual) != len(expected):
            return Difference(path, f"{len(actual)} items instead of {len(expected)}")
        return _first_of((((index,), actual[index], expected[index]) for index in range(len(expected))), path)
    if isinstance(expected, (float, complex, np.generic)):
        return _array_difference(np.asarray(actual), np.asarray(expected), path)
    return None if actual == expected else Difference(path, f"{actual!r} instead of {expected!r}")


def _first_of(children: Iterable[tuple[Path, Any, Any]], path: Path) -> Difference | None:
    for steps, actual, expected in children:
        difference = first_difference(actual, expected, (*path, *steps))
        if difference is not None:
            return difference
    return None


def _array_difference(actual: NDArray[Any], expected: NDArray[Any], path: Path) -> Difference | None:
    wrong = np.argwhere(~_same_elements(actual, expected))
    if len(wrong) == 0:
        return None
    index = tuple(int(i) for i in wrong[0])
    return Difference((*path, *index), f"{actual[index]!r} instead of {expected[index]!r}")


def _same_elements(actual: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    if expected.dtype.kind == "c":
        return _same_elements(actual.real, expected.real) & _same_elements(actual.imag, expected.imag)
    same = np.asarray(actual == expected)
    if expected.dtype.kind == "f":
        same &= np.signbit(actual) == np.signbit(expected)
    if expected.dtype.kind in "fmM":  # NaN and NaT are the values that do not equal themselves
        same |= (actual != actual) & (expected != expected)
    return same


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"{value!r} ({type(value).__qualname__})"


# ---- vector envs -----------------------------------------------------------------------------------------------------

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
_RESET_NAMES = ("observations", "infos")
_STEP_NAMES = ("observations", "rewards", "terminations", "truncations", "infos")
_SECOND_EPISODE_STEPS = 10
"""Number of steps of an episode that are compared after a second reset with the same seed."""


def check_vector_env(
    make: EnvFactory | Sequence[EnvFactory],
    seed: int = 0,
    num_steps: int = 100,
    *,
    num_envs: int = 3,
    make_vector: VectorFactory | None = None,
    **settings: Any,
) -> None:
    """Raise AssertionError with step, env and key at which a vector env differs from `SyncVectorEnv`.

    Both vector envs get the same seed and the same random actions. Compared are spaces, metadata, observations,
    rewards, flags and infos with their masks, types and dtypes. The check also resets the first env that ends by hand,
    resets one env in the middle of an episode, and later resets all envs without a seed; in the mode DISABLED it resets
    ended envs after each step. Unless `copy=False`, earlier results must not have changed when all steps are done.

    The env must be deterministic: the same seed and actions give the same results. An env that plays another episode
    after a second reset with the same seed gets a warning: its episodes depend on how it was used before.

    Args:
        make: a factory of your env, or one factory for each env.
        seed: seed of the first reset and of the actions.
        num_steps: steps of the whole vector.
        num_envs: number of envs, if `make` is a single factory.
        make_vector: takes the list of factories and the settings; `ParallelEnvManager` by default.
        settings: for `make_vector`; `autoreset_mode` and `observation_mode` go to `SyncVectorEnv` as well.
    """
    given: Any = make
    factories: list[Any] = list(given) if isinstance(given, Sequence) else [given] * num_envs
    if not factories or not all(map(callable, factories)):
        name = f"lambda: gymnasium.make({given!r})" if isinstance(given, str) else "your env's class"
        raise TypeError(f"make={make!r} makes no env. Give a function that does, such as {name}, or a list of them.")
    if make_vector is None:
        from parallel_envs import ParallelEnvManager  # late: workers that import envs from here do not need it

        make_vector = ParallelEnvManager
    modes = {key: settings[key] for key in ("autoreset_mode", "observation_mode") if key in settings}
    with (
        closing(make_vector(factories, **settings)) as subject,
        closing(SyncVectorEnv([partial(_Copying, each) for each in factories], **modes)) as reference,
    ):
        comparison = _Comparison(subject, reference)
        comparison.run(seed, num_steps)
        if settings.get("copy", True):
            comparison.check_unchanged()
    _warn_of_hidden_state(factories[0], seed)


class _Copying(gym.Wrapper[Any, Any, Any, Any]):
    """Env with copied results, plain rewards: `SyncVectorEnv` keeps references and takes no rewards of shape (1,)."""

    def __init__(self, factory: EnvFactory) -> None:
        super().__init__(factory())

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return deepcopy(self.env.reset(**arguments))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return deepcopy(observation), np.asarray(reward).item(), terminated, truncated, deepcopy(info)


def _warn_of_hidden_state(factory: EnvFactory, seed: int) -> None:
    """Warn if an env plays another episode when it is reset once more with the same seed."""
    episodes: list[list[Any]] = []
    with closing(_Copying(factory)) as env:
        actions = deepcopy(env.action_space)
        for _ in range(2):
            episode: list[Any] = [env.reset(seed=seed)]
            actions.seed(seed)
            for _ in range(_SECOND_EPISODE_STEPS):
                result = env.step(actions.sample())
                episode.append(result)
                if result[2] or result[3]:
                    break
            episodes.append(episode)
    difference = first_difference(episodes[1], episodes[0])
    if difference is not None:
        warnings.warn(
            f"{env!r} plays another episode when it is reset a second time with seed {seed}: at [number of calls]"
            f"{difference}. Its episodes depend on how it was used before. Have `reset` begin anew whatever is random "
            "or counted, or make the env anew for each seed.",
            stacklevel=3,
        )


class _Comparison:
    """The same calls on two vector envs, with their results compared."""

    def __init__(self, subject: VectorEnv[Any, Any, Any], reference: VectorEnv[Any, Any, Any]) -> None:
        self.subject = subject
        self.reference = reference
        self.results: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = []

    def run(self, seed: int, num_steps: int) -> None:
        """Compare the definitions, a reset, `num_steps` steps, and resets on the way."""
        subject, reference = self.subject, self.reference
        definitions = [tuple(getattr(envs, name) for name in _DEFINITION_NAMES) for envs in (subject, reference)]
        self.compare("the definition", _DEFINITION_NAMES, *definitions)
        reference.action_space.seed(seed)
        self.reset("the first reset", seed=seed)
        resets_ended = True
        for step in range(num_steps):
            if step == num_steps // 3:
                mask = np.arange(reference.num_envs) == step % reference.num_envs
                self.reset(f"the reset of one env before step {step}", mask=mask)
            if step == 2 * num_steps // 3:
                self.reset(f"the reset before step {step}")
            actions = reference.action_space.sample()
            actual = subject.step(deepcopy(actions))
            expected = reference.step(actions)
            self.compare(f"step {step}", _STEP_NAMES, actual, expected)
            ended = expected[2] | expected[3]
            if ended.any() and resets_ended:
                self.reset(f"the reset after step {step}", mask=ended)
                resets_ended = reference.metadata["autoreset_mode"] is AutoresetMode.DISABLED

    def reset(self, moment: str, *, seed: int | None = None, mask: Any = None) -> None:
        options = None if mask is None else {"reset_mask": mask}
        actual = self.subject.reset(seed=seed, options=deepcopy(options))
        expected = self.reference.reset(seed=seed, options=deepcopy(options))  # pops the mask from what it gets
        self.compare(moment, _RESET_NAMES, actual, expected)

    def compare(self, moment: str, names: Sequence[str], actual: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
        assert len(actual) == len(names), f"At {moment} {len(actual)} values came back instead of {names}."
        for name, one, other in zip(names, actual, expected, strict=True):
            difference = first_difference(one, other)
            if difference is not None:
                env = self.env_of(name, one, other, difference)
                raise AssertionError(f"At {moment}, {'' if env is None else f'env {env}: '}{name}{difference}")
        self.results.append((moment, actual, expected))

    def env_of(self, name: str, actual: Any, expected: Any, difference: Difference) -> int | None:
        """Return the env that the wrong part of a batch belongs to, if that is known."""
        if name != "observations":
            return next((step for step in difference.path if isinstance(step, int)), None)
        space = self.reference.observation_space
        try:
            rows = zip(iterate(space, actual), iterate(space, expected), strict=True)
            return next((env for env, (one, other) in enumerate(rows) if first_difference(one, other)), None)
        except (CustomSpaceError, TypeError, ValueError, LookupError):  # the batch does not even have the right form
            return None

    def check_unchanged(self) -> None:
        """Raise AssertionError if a later call has overwritten an earlier result."""
        for moment, actual, expected in self.results:
            difference = first_difference(actual, expected)
            if difference is not None:
                raise AssertionError(f"What {moment} returned was overwritten later, at {difference}")
