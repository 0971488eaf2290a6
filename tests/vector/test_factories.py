"""Where envs come from: factories, ids, specs and `gymnasium.make_vec`; which worker holds which env."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs import EnvError, ParallelEnvManager, vector_entry_point
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ClosingEnv, CountingEnv, SpacesEnv


class BrokenFactory:
    """Raises when called."""

    def __call__(self) -> CountingEnv:
        raise FileNotFoundError("no licence at hand")


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_factory_that_raises_is_named_and_the_envs_made_are_closed(
    make: Make, num_workers: int, tmp_path: Path
) -> None:
    factories: list[Any] = [partial(ClosingEnv, tmp_path, name) for name in ("a", "b")]
    with pytest.raises(EnvError, match="no licence at hand") as caught:
        make([*factories, BrokenFactory()], num_workers=num_workers)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.env_ids == (2,)
    if num_workers == 1:
        assert [(tmp_path / name).read_text() for name in ("a", "b")] == ["closed\n"] * 2


def test_factories_that_make_no_env(make: Make) -> None:
    def needs_one(level: int) -> CountingEnv:
        return CountingEnv(level)

    wrong: list[tuple[Any, str]] = [(lambda: None, "None"), (dict, r"returned {}"), (lambda: 3, "3")]
    for factory, words in wrong:
        with pytest.raises(TypeError, match=f"(?s)env 1.*{words}"):
            make([CountingEnv, factory])
    with pytest.raises(TypeError, match="level"):
        make([needs_one])


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


@pytest.mark.parametrize("num_workers", [1, 2])
def test_envs_whose_spaces_differ(make: Make, num_workers: int) -> None:
    box, discrete = spaces.Box(0, 1, (2,)), spaces.Discrete(2)
    bounds = [partial(SpacesEnv, spaces.Box(0, high, (2,)), discrete) for high in (1, 7)]
    theirs = r"the sub-environments observation spaces are not equivalent. .*If this is intentional, use "
    with pytest.raises(RuntimeError, match=theirs + r"`observation_mode='different'` instead.") as caught:
        make(bounds, num_workers=num_workers)
    assert "7.0" in str(caught.value)
    with pytest.raises(RuntimeError, match=r"Discrete\(5\)"):
        make([partial(SpacesEnv, box, spaces.Discrete(num)) for num in (2, 5)], num_workers=num_workers)
    shapes = [partial(SpacesEnv, spaces.Box(0, 1, (num,)), discrete) for num in (2, 5)]
    with pytest.raises((RuntimeError, ValueError), match=r"\(5,\)"):
        make(shapes, observation_mode="different", num_workers=num_workers)


SHARED = (
    r"(?s)The factories of envs \d and \d returned the same object, or wrappers around it: a CountingEnv\..*make_env"
)


@pytest.mark.parametrize("wrap", [lambda env: env, gym.Wrapper, lambda env: gym.Wrapper(gym.Wrapper(env))])
def test_factories_that_return_one_env_are_refused(make: Make, backend: str, wrap: Any) -> None:
    env = CountingEnv()
    for workers in (2,) if backend == "process" else (1, 2, 4):
        with pytest.raises(EnvError, match=SHARED) as caught:
            make([lambda: wrap(env) for _ in range(4)], num_workers=workers)
        assert isinstance(caught.value, ValueError)


def test_an_env_that_travels_to_several_processes_is_several(make_process: Make) -> None:
    env = CountingEnv(100)
    envs = opened(make_process, [lambda: env for _ in range(2)])
    envs.send([0], [1])
    envs.recv()
    assert envs.get_attr("elapsed") == (0, 1)


def test_a_restart_that_returns_the_env_of_another_is_refused(make: Make) -> None:
    made: list[CountingEnv] = []

    def first_of_all_afterwards() -> CountingEnv:
        if len(made) >= 2:
            return made[0]
        made.append(CountingEnv())
        return made[-1]

    envs = opened(make, [first_of_all_afterwards] * 2, num_workers=1)
    with pytest.raises(EnvError, match=SHARED):
        envs.restart(1)


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_an_env_may_come_back_after_its_own_restart(make: Make) -> None:
    envs = make([partial(lambda env: env, CountingEnv()) for _ in range(2)])
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


def test_each_factory_is_called_once_and_each_env_closed_once(make: Make, tmp_path: Path) -> None:
    class CountedFactory:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self) -> CountingEnv:
            with (tmp_path / self.name).open("a") as file:
                file.write("made\n")
            return ClosingEnv(tmp_path, self.name)

    factories = [CountedFactory(name) for name in ("a", "b", "c")]
    envs = make(tuple(factories), num_workers=2)  # any sequence will do
    envs.reset(seed=0)
    assert [(tmp_path / name).read_text() for name in ("a", "b", "c")] == ["made\n"] * 3
    envs.close()
    envs.close()
    assert [(tmp_path / name).read_text() for name in ("a", "b", "c")] == ["made\nclosed\n"] * 3


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_classes_and_functions_of_a_script_need_no_main_guard(make_process: Make, context: str) -> None:
    class LocalEnv(CountingEnv):
        def observed(self) -> Any:
            return np.array([7, 7])

    envs = make_process([lambda: LocalEnv()] * 2, context=context, num_workers=1)  # noqa: PLW0108  a lambda it must be
    assert envs.reset(seed=0)[0].tolist() == [[7, 7], [7, 7]]


class PlacedEnv(CountingEnv):
    """Knows which process it lives in."""

    def process(self) -> int:
        return os.getpid()


@pytest.mark.parametrize(
    ("num_workers", "sizes", "backend"),
    [
        *((1, [5], "serial"), (2, [3, 2], "serial"), (3, [2, 2, 2], "serial"), (3, [3, 2, 2], "serial")),
        *((None, [1, 1, 1], "thread"), (None, [3], "serial")),  # by default one for each env, or one place for all
    ],
)
def test_workers_hold_contiguous_slices(
    make_process: Make, num_workers: int | None, sizes: list[int], backend: str
) -> None:
    envs = make_process([CountingEnv] * sum(sizes), num_workers=num_workers, backend=backend)
    held = [row["env_ids"] for row in envs.stats()]
    assert [len(own) for own in held] == sizes
    assert [env for own in held for env in own] == list(range(sum(sizes)))


def test_factories_make_their_own_env_in_order(make: Make, backend: str) -> None:
    factories = [*(partial(CountingEnv, length) for length in range(1, 6)), PlacedEnv, PlacedEnv]
    envs = make(factories, num_workers=3)
    factories.clear()  # the list stays the caller's
    assert envs.get_attr("length") == (1, 2, 3, 4, 5, 3, 3)
    envs.set_attr("label", list("abcdefg"))
    assert envs.get_attr("label") == tuple("abcdefg")  # one factory that is used twice makes two envs
    places = envs.call("process", env_ids=[5, 6]), envs.apply(lambda env: os.getpid())
    assert (os.getpid() in places[0]) == (backend != "process")
    assert places[1] == [row["pid"] for row in envs.stats() for _ in row["env_ids"]]


OURS = "tests/Counting-v0"


def make_counting(**arguments: Any) -> CountingEnv:
    return CountingEnv(**arguments)


@pytest.fixture
def registered() -> Iterator[str]:
    """An id that this process alone knows."""
    gym.register(OURS, entry_point=make_counting, vector_entry_point=vector_entry_point(OURS, num_workers=1))
    yield OURS
    del gym.registry[OURS]


@pytest.fixture
def unpicklable() -> Iterator[dict[str, str]]:
    """Registrations that cannot go to a worker. For each id, the part that the error is to name."""
    lock = threading.Lock()

    def make_locked(**arguments: Any) -> CountingEnv:
        with lock:
            return CountingEnv(**arguments)

    gym.register("tests/Locked-v0", entry_point=make_locked)
    gym.register("tests/LockInKwargs-v0", entry_point=make_counting, kwargs={"lock": lock})
    gym.register("tests/Missing-v0", entry_point="__main__:NoSuchEnv")
    parts = {
        "tests/Locked-v0": "entry_point -> variable 'lock'",
        "tests/LockInKwargs-v0": "kwargs['lock']",
        "tests/Missing-v0": "NoSuchEnv",
    }
    yield parts
    for name in parts:
        del gym.registry[name]


def test_envs_of_an_id_are_those_of_gymnasium(make: Make) -> None:
    envs = make("CartPole-v1", num_envs=3, env_kwargs={"render_mode": "rgb_array"})
    assert envs.spec is not None
    assert (envs.spec.id, envs.render_mode, "CartPole-v1" in repr(envs)) == ("CartPole-v1", "rgb_array", True)
    reference = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    assert_same_batch(envs.reset(seed=3), reference.reset(seed=3))
    reference.action_space.seed(0)
    for _ in range(60):
        actions = reference.action_space.sample()
        assert_same_batch(envs.step(actions), reference.step(actions))
    spec = gym.spec("CartPole-v1")
    assert make(spec, num_envs=2).reset(seed=0)[0].shape == (2, 4)
    assert spec == gym.spec("CartPole-v1")


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_know_what_this_process_has_registered(make_process: Make, registered: str, context: str) -> None:
    envs = make_process(registered, num_envs=2, num_workers=1, context=context, env_kwargs={"length": 5})
    assert envs.reset(seed=0)[0].tolist() == [[0, 0], [0, 0]]
    assert envs.get_attr("length") == (5, 5)
    assert make_process([partial(gym.make, registered, length=4)], context=context).get_attr("length") == (4,)


def test_make_vec_makes_a_manager(registered: str) -> None:
    made: Any = gym.make_vec(registered, num_envs=3, vectorization_mode="vector_entry_point", length=2)
    with closing(made) as envs:
        assert isinstance(envs.unwrapped, ParallelEnvManager)
        assert (envs.unwrapped.num_workers, envs.spec.id) == (1, registered)
        envs.reset(seed=0)
        assert [envs.step(np.zeros(3, int))[2].tolist() for _ in range(2)] == [[False] * 3, [True] * 3]


def test_only_the_env_whose_registration_cannot_be_pickled_says_so(
    make_process: Make, unpicklable: dict[str, str]
) -> None:
    assert make_process("CartPole-v1", num_envs=1).reset()[0].shape == (1, 4)
    for name, part in unpicklable.items():
        for envs in ([partial(gym.make, name)], name):
            with pytest.raises((EnvError, TypeError, AttributeError), match=re.escape(name)) as caught:
                make_process(envs, num_envs=1)
            assert part in str(caught.value)
