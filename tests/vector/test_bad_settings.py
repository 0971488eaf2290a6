"""Wrong settings and broken factories: a clear error at once that names the value, and nothing left."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs import ParallelEnvManager
from parallel_envs.choices import Backend
from parallel_envs.errors import EnvError
from parallel_envs.testing import ScriptedEnv
from tests.vector.conftest import Make
from tests.vector.small_envs import ClosingEnv, CountingEnv, NotAnEnv, SpacesEnv
from tests.word_space import WordSpace

TWO = [CountingEnv] * 2


@pytest.mark.parametrize(
    ("settings", "error", "word"),
    [
        ({"num_workers": 0}, ValueError, "num_workers=0"),
        ({"num_workers": -3}, ValueError, "num_workers=-3"),
        ({"num_workers": 3}, ValueError, "num_workers=3.*2"),
        ({"num_workers": 1.5}, TypeError, r"num_workers=1\.5"),
        ({"num_workers": True}, TypeError, "num_workers=True"),
        ({"backend": "proces"}, ValueError, "'proces'.*'process'"),
        ({"context": "forksrv"}, ValueError, "'forksrv'.*'forkserver'"),
        ({"autoreset_mode": "next"}, ValueError, "'next'.*'NextStep'"),
        ({"observation_mode": "other"}, ValueError, "'other'.*'different'"),
        ({"observation_mode": 3}, (TypeError, ValueError), "3"),
        ({"observation_mode": (1, 2)}, TypeError, "1"),
        ({"threads_per_worker": 0}, ValueError, "threads_per_worker=0"),
        ({"cpu_affinity": [-1]}, ValueError, r"cpu_affinity=\[-1\]"),
        ({"cpu_affinity": []}, ValueError, r"cpu_affinity=\[\]"),
        ({"cpu_affinity": [100_000]}, (ValueError, OSError), "100000"),
        ({"num_envs": 3}, ValueError, "num_envs=3"),
        ({"env_kwargs": {"length": 3}}, ValueError, "length"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: Any, word: str) -> None:
    with pytest.raises(error, match=word):
        ParallelEnvManager(TWO, **settings)


@pytest.mark.parametrize(
    ("env_fns", "settings", "error", "word"),
    [
        ([], {}, ValueError, "empty"),
        (3, {}, TypeError, "3"),
        (CountingEnv, {}, TypeError, "CountingEnv"),
        ([CountingEnv, 7], {}, TypeError, r"\[1\].*7"),
        ([CountingEnv, CountingEnv()], {}, TypeError, r"\[1\].*CountingEnv"),
        ("CartPole-v1", {}, ValueError, "num_envs.*CartPole-v1"),
        ("CartPole-v1", {"num_envs": 0}, ValueError, "num_envs=0"),
        ("NoSuchEnv-v0", {"num_envs": 2}, gym.error.Error, "NoSuchEnv"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),  # the same in every process
)
def test_what_makes_no_envs_is_refused(env_fns: Any, settings: dict[str, Any], error: Any, word: str) -> None:
    with pytest.raises(error, match=word):
        ParallelEnvManager(env_fns, **settings)


class BrokenFactory:
    """Raises when called."""

    def __call__(self) -> CountingEnv:
        raise FileNotFoundError("no licence at hand")


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_factory_that_raises(make: Make, num_workers: int) -> None:
    with pytest.raises(EnvError, match="no licence at hand") as caught:
        make([CountingEnv, CountingEnv, BrokenFactory()], num_workers=num_workers)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.env_ids == (2,)


def test_all_factories_raise(make: Make) -> None:
    with pytest.raises(EnvError, match="no licence at hand"):
        make([BrokenFactory()] * 3)


@pytest.mark.parametrize(("factory", "word"), [(lambda: None, "None"), (NotAnEnv, "NotAnEnv"), (lambda: 3, "3")])
def test_a_factory_that_makes_no_env(make: Make, factory: Any, word: str) -> None:
    with pytest.raises(TypeError, match=f"(?s)env 1.*{word}"):
        make([CountingEnv, factory])


def test_a_factory_that_takes_arguments(make: Make) -> None:
    def needs_one(level: int) -> CountingEnv:
        return CountingEnv(level)

    with pytest.raises(TypeError, match="level"):
        make([needs_one])


SHARED = (
    r"(?s)The factories of envs \d and \d returned the same object, or wrappers around it: a CountingEnv\..*make_env"
)


@pytest.mark.parametrize("wrap", [lambda env: env, gym.Wrapper, lambda env: gym.Wrapper(gym.Wrapper(env))])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_factories_that_return_one_env(make: Make, num_workers: int, wrap: Callable[[Any], Any]) -> None:
    env = CountingEnv()
    with pytest.raises(EnvError, match=SHARED) as caught:
        make([lambda: wrap(env) for _ in range(4)], num_workers=num_workers)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_factories_that_return_one_env_to_several_workers_of_one_process(backend: Backend) -> None:
    env = CountingEnv()
    with pytest.raises(ValueError, match=SHARED):
        ParallelEnvManager([lambda: env for _ in range(3)], backend=backend, num_workers=3)


def test_an_env_that_travels_to_several_processes_is_several(make_process: Make) -> None:
    env = CountingEnv(100)
    envs = make_process([lambda: env for _ in range(2)])
    envs.reset(seed=0)
    envs.send([0], [1])
    envs.recv()
    assert envs.get_attr("elapsed") == (0, 1)


class RemembersFactory:
    """Makes an env of its own at first. Afterwards it returns the first env of all."""

    def __init__(self, index: int, made: list[CountingEnv]) -> None:
        self.index, self.made = index, made

    def __call__(self) -> CountingEnv:
        if len(self.made) >= 2:
            return self.made[0]
        self.made.append(CountingEnv())
        return self.made[-1]


def test_a_restart_that_returns_the_env_of_another(make: Make) -> None:
    made: list[CountingEnv] = []
    envs = make([RemembersFactory(index, made) for index in range(2)], num_workers=1)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=SHARED):
        envs.restart(1)


def itself(env: CountingEnv) -> CountingEnv:
    return env


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_an_env_of_its_own_may_come_back_after_a_restart(backend: Backend) -> None:
    own = [CountingEnv(), CountingEnv()]
    with ParallelEnvManager([partial(itself, env) for env in own], backend=backend) as envs:
        for which in (0, None, 1):
            envs.restart(which)
        assert envs.reset(seed=0)[0].shape == (2, 2)


class SharesSimulator(CountingEnv):
    """Is no wrapper, whatever the simulator that it shares is called."""

    simulator = CountingEnv()

    def __init__(self) -> None:
        super().__init__()
        self.env = self.simulator


class NotUnwrapped(CountingEnv):
    @property
    def unwrapped(self) -> Any:
        raise RuntimeError("not to be seen")


@pytest.mark.parametrize("kind", [SharesSimulator, NotUnwrapped])
def test_envs_that_share_something_else_are_envs_of_their_own(make: Make, kind: type[CountingEnv]) -> None:
    assert make([kind] * 2, num_workers=1).reset(seed=0)[0].tolist() == [[0, 0], [0, 0]]


def test_the_env_whose_description_raises_is_named(make: Make) -> None:
    class ShyEnv(CountingEnv):
        asked = 0

        @property
        def action_space(self) -> Any:
            self.asked += 1
            if self.asked > 1:
                raise LookupError("asked too often")
            return spaces.Discrete(2)

        @action_space.setter
        def action_space(self, space: Any) -> None:
            """It keeps its own."""

    with pytest.raises(EnvError, match=r"^Env 1 raised LookupError during its construction: asked too often") as caught:
        make([CountingEnv, ShyEnv], num_workers=1)
    assert caught.value.env_ids == (1,)


def test_a_factory_that_cannot_be_pickled_names_the_part() -> None:
    lock = threading.Lock()

    def make_locked() -> CountingEnv:
        with lock:
            return CountingEnv()

    with pytest.raises(TypeError, match=r"env_fns\[1\].*'lock'"):
        ParallelEnvManager([CountingEnv, make_locked])


def test_a_partial_that_cannot_be_pickled_names_the_part() -> None:
    broken = partial(CountingEnv, length=threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"env_fns\[0\].*length.*lock"):
        ParallelEnvManager([broken])


def test_what_cannot_be_pickled_works_where_nothing_is() -> None:
    lock = threading.Lock()

    def make_locked() -> CountingEnv:
        with lock:
            return CountingEnv()

    for backend in ("serial", "thread"):
        with ParallelEnvManager([make_locked] * 2, backend=backend) as envs:
            assert envs.reset(seed=0)[0].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_envs_whose_observation_spaces_differ(make: Make, num_workers: int) -> None:
    action = spaces.Discrete(2)
    factories = [partial(SpacesEnv, spaces.Box(0, high, (2,)), action) for high in (1, 7)]
    with pytest.raises(RuntimeError, match=r"(?s)7\.0.*observation_mode='different'|'different'.*7\.0"):
        make(factories, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_envs_whose_action_spaces_differ(make: Make, num_workers: int) -> None:
    observation = spaces.Box(0, 1, (2,))
    factories = [partial(SpacesEnv, observation, spaces.Discrete(num)) for num in (2, 5)]
    with pytest.raises(RuntimeError, match=r"Discrete\(5\)"):
        make(factories, num_workers=num_workers)


def test_envs_of_different_shapes_even_where_they_may_differ(make: Make) -> None:
    factories = [partial(SpacesEnv, spaces.Box(0, 1, (num,)), spaces.Discrete(2)) for num in (2, 5)]
    with pytest.raises((RuntimeError, ValueError), match=r"\(5,\)"):
        make(factories, observation_mode="different")


@pytest.mark.parametrize("space", [WordSpace(), spaces.Dict(a=spaces.Discrete(2), b=WordSpace())], ids=repr)
def test_shared_memory_asked_for_with_a_space_nobody_knows(space: spaces.Space[Any]) -> None:
    with pytest.raises(ValueError, match="WordSpace"):
        ParallelEnvManager([partial(ScriptedEnv, space)] * 2, shared_memory=True)


def test_a_failed_start_closes_the_envs_that_were_made(make: Make, tmp_path: Any) -> None:
    factories: list[Any] = [partial(ClosingEnv, tmp_path, name) for name in ("a", "b")]
    with pytest.raises(EnvError):
        make([*factories, BrokenFactory()], num_workers=1)
    assert [(tmp_path / name).read_text() for name in ("a", "b")] == ["closed\n"] * 2


def test_close_closes_every_env_once(make: Make, tmp_path: Any) -> None:
    envs = make([partial(ClosingEnv, tmp_path, name) for name in ("a", "b", "c")], num_workers=2)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    assert [(tmp_path / name).read_text() for name in ("a", "b", "c")] == ["closed\n"] * 3


def test_the_factories_are_called_once_each_and_not_in_the_callers_process(tmp_path: Any) -> None:
    class CountedFactory:
        def __init__(self, name: str) -> None:
            self.file = tmp_path / name

        def __call__(self) -> CountingEnv:
            with self.file.open("a") as file:
                file.write("made\n")
            return CountingEnv()

    with ParallelEnvManager([CountedFactory("a"), CountedFactory("b")]):
        assert [(tmp_path / name).read_text() for name in ("a", "b")] == ["made\n"] * 2


def test_the_callers_list_of_factories_stays_as_it_is(make: Make) -> None:
    factories = [CountingEnv] * 2
    envs = make(factories)
    factories.clear()
    assert envs.num_envs == 2
    assert envs.reset(seed=0)[0].shape == (2, 2)


def test_any_sequence_of_factories_will_do(make: Make) -> None:
    assert make((CountingEnv,) * 2).reset(seed=0)[0].shape == (2, 2)


def test_classes_and_functions_of_a_script_need_no_main_guard(make_process: Make) -> None:
    class LocalEnv(CountingEnv):
        def observed(self) -> Any:
            return np.array([7, 7])

    for context in ("fork", "forkserver", "spawn"):
        envs = make_process([lambda: LocalEnv()] * 2, context=context, num_workers=1)  # noqa: PLW0108  a lambda it must be
        assert envs.reset(seed=0)[0].tolist() == [[7, 7], [7, 7]]


def test_gymnasiums_words_about_observation_modes_are_among_ours(make: Make) -> None:
    words = "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation space"
    with pytest.raises(ValueError, match=re.escape(f"{words}, actual got other")):
        make([CountingEnv] * 2, observation_mode="other")
    factories = [partial(ScriptedEnv, spaces.Box(0, high, (2,))) for high in (1, 2)]
    theirs = "the sub-environments observation spaces are not equivalent. .*If this is intentional, use "
    with pytest.raises(RuntimeError, match=theirs + "`observation_mode='different'` instead."):
        make(factories)
