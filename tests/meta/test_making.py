"""`make_env` and `make_parallel_env`: what goes where, which seeds are whose, and what is refused before it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs import ParallelEnvManager, SeedTree, env_seeds, make_env, make_parallel_env
from parallel_envs.meta import MultiEpisodeWrapper
from parallel_envs.testing import assert_same_batch
from tests.meta.counting_envs import Counting, Endless, FirstDraw

OURS = "tests/FirstDraw-v0"
SERIAL = {"backend": "serial"}


def make_first_draw(**keywords: Any) -> FirstDraw:
    return FirstDraw(**keywords)


@pytest.fixture
def registered() -> Iterator[str]:
    """An id that this process alone knows."""
    gym.register(OURS, entry_point=make_first_draw, max_episode_steps=5)
    yield OURS
    del gym.registry[OURS]


class Closing(Endless):
    """Notes that it was closed."""

    closed = False

    def close(self) -> None:
        type(self).closed = True


def first_draws(envs: ParallelEnvManager, **reset: Any) -> list[float]:
    return [float(one) for one in envs.reset(**reset)[0][:, 0]]


def test_an_env_of_an_id_or_a_spec() -> None:
    env = make_env("CartPole-v1", 3, render_mode="rgb_array", add_time=True)
    assert isinstance(env, MultiEpisodeWrapper)
    assert (env.episodes_per_task, env.horizon, env.render_mode) == (3, 500, "rgb_array")
    assert env.observation_space.shape == (4 + 1 + 1,)
    assert make_env(gym.spec("CartPole-v1"), 2).horizon_bamdp == 1000
    assert make_env(Counting, 2, None, True).observation_space.shape == (2 + 1 + 1,), "an oracle, by place"


def test_an_env_of_a_callable_gets_what_is_not_the_wrappers() -> None:
    kinds: list[Any] = [FirstDraw, make_first_draw, partial(FirstDraw, length=3)]
    for env_id in kinds:
        env = make_env(env_id, 2, horizon=4, add_previous_reward=True, length=3)
        assert env.unwrapped.keywords == {"length": 3}  # type: ignore[attr-defined]  # it is a FirstDraw
        assert env.horizon == 4
        assert env.observation_space.shape == (1 + 1 + 1,)


def test_the_seed_is_that_of_the_first_reset_and_of_the_actions() -> None:
    env, same, other = (make_env(FirstDraw, 2, seed=seed, horizon=5) for seed in (3, 3, 4))
    drawn = env.reset()[0]
    assert_same_batch(same.reset()[0], drawn)
    assert_same_batch(FirstDraw().reset(seed=3)[0], drawn[:1])
    assert other.reset()[0][0] != drawn[0]
    actions = [[one.action_space.sample() for _ in range(50)] for one in (env, same, other)]
    assert actions[0] == actions[1] != actions[2]
    env = make_env("Pendulum-v1", 1, seed=3)
    env.reset()
    assert env.action_space.np_random.random() != np.random.default_rng(3).random(), "a stream of their own"


def test_an_id_that_only_this_process_knows_and_functions_on_the_spot_work_in_workers(registered: str) -> None:
    for env_id in (registered, gym.spec(registered)):
        with make_parallel_env(env_id, 2, 2, seed=3, add_time=True, length=3) as envs:
            assert (envs.num_envs, envs.num_workers) == (2, 2)
            assert envs.call("keywords") == ({"length": 3},) * 2
            assert envs.call("horizon_bamdp") == (10, 10)
            assert first_draws(envs) == [float(FirstDraw().reset(seed=seed)[0][0]) for seed in env_seeds(3, 2)]
    vector = [10.0, 20.0]
    settings: dict[str, Any] = {"oracle": True, "task_vector": lambda task: vector, "horizon": 5}
    with make_parallel_env(lambda **keywords: FirstDraw(**keywords, vector=vector), 2, 1, **settings) as envs:
        assert envs.call("keywords") == ({"vector": vector},)
        assert envs.reset()[0][0, 1:].tolist() == [10, 20, 0]


SCRIPT = """
import gymnasium
from parallel_envs import make_parallel_env
from tests.meta.counting_envs import Counting

class Mine(Counting):
    pass

gymnasium.register("Mine-v0", entry_point="__main__:Mine")
with make_parallel_env("Mine-v0", 3, 2, oracle=True) as envs:
    print(envs.reset(tasks=[7, 8])[0].tolist())
"""


def test_an_env_that_is_written_in_the_users_script_works_in_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[[0.0, 0.0, 7.0, 0.0], [0.0, 0.0, 8.0, 0.0]]", run.stderr


def never() -> Any:
    raise AssertionError("something was made before the error")


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"episodes_per_task": 0}, ValueError, "episodes_per_task=0"),
    ({"seed": "three"}, TypeError, "seed='three'"),
    ({"oracle": 1}, TypeError, "oracle=1"),
    ({"add_time": None}, TypeError, "add_time=None"),
    ({"horizon": -1}, ValueError, "horizon=-1"),
    ({"env_id": Counting()}, TypeError, "neither an id, nor a spec, nor a callable"),
    ({"env_id": 3}, TypeError, "env_id=3"),
    ({"env_id": "Nowhere-v0"}, gym.error.NameNotFound, "Nowhere"),
    ({"env_id": "CartPol-v1"}, gym.error.NameNotFound, "Did you mean: `CartPole`"),
]
BAD_MANY: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_workers": 0}, ValueError, "num_workers=0"),
    ({"num_envs": 0}, ValueError, "num_envs=0"),
    ({"num_workers": 3, "num_envs": 2}, ValueError, "num_workers=3 is more"),
    ({"manager_options": ["serial"]}, TypeError, "manager_options="),
    ({"manager_options": {"num_envs": 2, "env_kwargs": {}}}, ValueError, "env_kwargs, num_e"),
    ({"manager_options": {"backnd": "serial"}}, TypeError, "backnd"),
    ({"manager_options": {"backend": "swift"}}, ValueError, "backend='swift'"),
]


def test_bad_input_is_told_before_an_env_is_made() -> None:
    for settings, error, text in BAD + BAD_MANY:
        given: dict[str, Any] = {"env_id": never, "episodes_per_task": 2, **settings}
        if settings.keys().isdisjoint({"num_workers", "num_envs", "manager_options"}):
            with pytest.raises(error, match=text):
                make_env(**given)
        with pytest.raises(error, match=text):
            make_parallel_env(**{"num_workers": 2, **given})


def test_mistakes_of_an_env_are_told_and_a_keyword_that_nothing_takes_is_named() -> None:
    def strict() -> Any:
        raise TypeError("no such wall")

    many: Any = partial(make_parallel_env, manager_options=SERIAL)
    one: Any = make_env
    bad: list[tuple[Any, Any, type[Exception], str]] = [
        (one, (strict, 2), TypeError, r"^no such wall$"),
        (partial(one, walls=3), (Counting, 2), TypeError, r"argument 'walls'$"),
        (partial(one, horizno=3), (Counting, 2), TypeError, r"'horizno'\. Did you mean horizon=, which is make_env's"),
        (partial(many, num_env=3), (Counting, 2, 1), TypeError, r"'num_env'\. Did you mean num_envs=, which is"),
        (make_env, (lambda: 3, 2), TypeError, "returned 3, which is not an environment"),
        (make_parallel_env, (Endless, 2, 1), ValueError, "Give horizon="),
        (make_env, (Closing, 2), ValueError, "Give horizon="),
    ]
    for make, arguments, error, text in bad:
        with pytest.raises(error, match=text):
            make(*arguments)
    assert Closing.closed


def test_each_env_has_its_seed_whatever_the_workers_and_none_that_of_a_single_one() -> None:
    wanted = [float(FirstDraw().reset(seed=seed)[0][0]) for seed in env_seeds(3, 4)]
    assert wanted[1] == FirstDraw().reset(seed=SeedTree(3).child("env", 1).seed())[0][0]
    for num_workers in (1, 3):
        with make_parallel_env(FirstDraw, 2, num_workers, 3, num_envs=4, manager_options=SERIAL, horizon=5) as envs:
            assert first_draws(envs) == wanted
            seeds = list(range(7, 11))  # the manager's own take the place
            assert first_draws(envs, seed=seeds) == [float(FirstDraw().reset(seed=seed)[0][0]) for seed in seeds]
    singles = {float(make_env(FirstDraw, 2, seed=seed, horizon=5).reset()[0][0]) for seed in range(3, 12)}
    assert len({*wanted, *singles}) == 4 + 9
