"""`get_state`, `set_state` and `fork`: envs go on from a saved state as they would have gone on."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager, ParallelEnvManager, ReplayableEnv
from parallel_envs.errors import EnvError, StepTimeout
from parallel_envs.tasks import CycleTasks
from parallel_envs.testing import assert_same_batch
from parallel_envs.testing.families import GridNaviEnv
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv


def atari(sticky: float = 0.0) -> gym.Env[Any, Any]:
    import ale_py

    gym.register_envs(ale_py)
    return gym.make("ALE/Pong-v5", repeat_action_probability=sticky, max_episode_steps=40)


class ViewEnv(CountingEnv):
    """Observes a view of an array in which it counts. It has an attribute in a slot, and links back to itself."""

    __slots__ = ("steps_in_all",)

    def __init__(self, order: Any = "C") -> None:
        super().__init__(50)
        self.table = np.zeros((2, 2), np.int64, order=order)
        self.row = self.table[1]
        self.steps_in_all = 0
        self.env = self

    def observed(self) -> Any:
        self.steps_in_all += 1
        self.table[1] = self.episode, self.elapsed
        return self.row + 10 * self.steps_in_all


class HookedEnv(CountingEnv):
    """Has an attribute that cannot be pickled, and saves itself."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length)
        self.mutex = threading.Lock()

    def get_env_state(self) -> tuple[int, int]:
        return self.episode, self.elapsed

    def set_env_state(self, state: tuple[int, int]) -> None:
        self.episode, self.elapsed = state


class LockedEnv(CountingEnv):
    def __init__(self, length: int = 3) -> None:
        super().__init__(length)
        self.mutex = threading.Lock()


class SeededEnv(LockedEnv):
    """Counts episodes since the latest seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode = self.episode if seed is None else 0
        return super().reset(seed=seed, options=options)


def steps(envs: Any, actions: list[Any]) -> list[Any]:
    return [pickle.loads(pickle.dumps(envs.step(action))) for action in actions]


def check_goes_on_equally(envs: ParallelEnvManager, before: int = 30, after: int = 40) -> None:
    """Check that steps after `set_state` equal the steps that were taken after `get_state`, pickled and unpickled."""
    envs.reset(seed=3)
    envs.action_space.seed(1)
    actions = [envs.action_space.sample() for _ in range(before + after)]
    steps(envs, actions[:before])
    envs.set_state(envs.get_state())  # a restored env can be saved again
    ((latest, *_),) = steps(envs, actions[:1])
    states = pickle.loads(pickle.dumps(envs.get_state()))
    first = steps(envs, actions[before:])
    shown, infos = envs.set_state(states)
    assert_same_batch(shown, latest)
    assert not [key for key in infos if not key.endswith(("task_id", "episode_index"))]
    assert_same_batch(steps(envs, actions[before:]), first)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "Blackjack-v1",
        "Ant-v5",
        atari,
        ViewEnv,
        partial(ViewEnv, "F"),
        partial(CountingEnv, 4),
        partial(HookedEnv, 7),
        lambda: ReplayableEnv(atari(0.25)),
        lambda: gym.wrappers.TimeLimit(ReplayableEnv(SeededEnv(9)), 5),
    ],
)
def test_steps_after_a_state_are_the_same(make_process: Make, env: Any, mode: Any) -> None:
    factories = [partial(gym.make, env) if isinstance(env, str) else env] * 3
    check_goes_on_equally(make_process(factories, num_workers=2, autoreset_mode=mode, copy=mode == "NextStep"))


@pytest.mark.parametrize("settings", [{"copy": False}, {"infos_list": True}, {"shared_memory": False}])
def test_every_backend_and_layout_keeps_states(make: Make, settings: dict[str, Any]) -> None:
    if settings.get("infos_list"):
        envs = opened(make, [partial(CountingEnv, 4)] * 2, **settings)
        assert envs.set_state(envs.get_state())[1] == [{}, {}]
        return
    check_goes_on_equally(make("CartPole-v1", num_envs=2, **settings))


def test_tasks_and_episodes_are_part_of_the_state(make: Make) -> None:
    source = CycleTasks(GridNaviEnv.sample_tasks(5, seed=0), seed=7)
    envs = make([GridNaviEnv] * 3, num_workers=2, task_source=source)
    check_goes_on_equally(envs)
    states, tasks = envs.get_state(), envs.get_tasks()
    envs.reset()
    assert envs.get_tasks() != tasks
    envs.set_state(states[:1], env_ids=[0])
    assert envs.get_tasks()[0] == tasks[0]


def test_fork_makes_other_envs_continue_equally(make: Make) -> None:
    envs = opened(make, "CartPole-v1", num_envs=4, num_workers=3)
    steps(envs, [np.array([0, 1, 0, 1])] * 3)
    observations, _ = envs.fork(1, [0, -1])
    assert_same_batch(observations[[0, 3]], observations[[1, 1]])
    assert np.any(observations[2] != observations[1])
    for _ in range(6):
        observations, *_ = envs.step(np.array([1, 1, 0, 1]))
        assert_same_batch(observations[[0, 3]], observations[[1, 1]])
    observations, _ = envs.fork(2)
    assert_same_batch(observations, observations[[2, 2, 2, 2]])


def test_an_autoreset_that_is_pending_stays_so(make: Make) -> None:
    envs = opened(make, [partial(CountingEnv, 2)] * 2)
    steps(envs, [[0, 0]] * 2)
    states = envs.get_state()  # both episodes have ended
    fresh = opened(make, [partial(CountingEnv, 2)] * 2)
    fresh.set_state(states)
    assert_same_batch(fresh.step([0, 0]), envs.step([0, 0]))
    assert fresh.get_attr("episode") == (1, 1)


def test_functions_of_the_caller_save_and_load(make: Make) -> None:
    def load(env: Any, state: tuple[int, int]) -> None:
        env.episode, env.elapsed = state

    envs = opened(make, [partial(LockedEnv, 9)] * 2)
    steps(envs, [[0, 0]] * 4)
    states = envs.get_state(save=lambda env: (env.episode, env.elapsed))
    after = steps(envs, [[0, 0]] * 3)
    envs.set_state(states, load=load)
    assert_same_batch(steps(envs, [[0, 0]] * 3), after)
    assert {state.way for state in states} == {"function"}
    with pytest.raises(ValueError, match=r"saved with save=, so it needs load="):
        envs.set_state(states)


def test_an_attribute_that_cannot_be_saved_is_named(make: Make) -> None:
    envs = opened(make, [LockedEnv, CountingEnv])
    with pytest.raises(EnvError, match="Env 0") as raised:
        envs.get_state()
    assert "LockedEnv.mutex (a lock) cannot be saved" in str(raised.value.__cause__)
    assert "ReplayableEnv" in str(raised.value.__cause__)
    assert envs.get_state([1])[0].way == "copy"
    envs.step([0, 0])


def test_sticky_actions_of_ale_are_refused(make_process: Make) -> None:
    envs = opened(make_process, [partial(atari, 0.25)])
    with pytest.raises(EnvError) as raised:
        envs.get_state()
    assert "repeat_action_probability=0" in str(raised.value.__cause__)


def test_bad_states_are_refused_and_change_nothing(make: Make) -> None:
    envs = opened(make, [CountingEnv, lambda: gym.wrappers.TimeLimit(CountingEnv(), 5)])
    states = envs.get_state()
    steps(envs, [[0, 0]])
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: envs.set_state(states[:1]), ValueError, "1 states were given for 2 environments"),
        (lambda: envs.set_state("no"), TypeError, "not a list of states"),  # type: ignore[arg-type]
        (
            lambda: envs.set_state(states[::-1]),
            ValueError,
            "saved from TimeLimit of CountingEnv, and the",
        ),
        (lambda: envs.fork(0), ValueError, "made in the same way"),
        (lambda: envs.fork(5), ValueError, "5 is not an environment"),
        (lambda: envs.fork(0, [0]), ValueError, "no environment beside env 0"),
        (lambda: envs.set_state(states, load=print), ValueError, "no save="),
    ]
    for call, error, text in calls:
        with pytest.raises(error, match=text):
            call()
    assert_same_batch(envs.step([0, 0])[0], np.array([[0, 2], [0, 2]]))


def test_a_history_that_does_not_repeat_is_an_error(make_process: Make) -> None:
    class Random(LockedEnv):
        def observed(self) -> Any:
            return np.array([np.random.default_rng().integers(1000), self.elapsed])

    unseeded = make_process([lambda: ReplayableEnv(Random())])
    unseeded.reset()
    with pytest.raises(EnvError) as raised:
        unseeded.get_state()
    assert "has not been reset with a seed" in str(raised.value.__cause__)
    unseeded.reset(seed=1)
    states = unseeded.get_state()
    with pytest.raises(EnvError) as raised:
        unseeded.set_state(states)
    assert "not deterministic" in str(raised.value.__cause__)


def test_another_mujoco_model_is_refused(make_process: Make) -> None:
    envs = opened(make_process, "Ant-v5", num_envs=1)
    states = envs.get_state()
    envs.apply(lambda env: env.unwrapped.model.body_mass.__setitem__(1, 99.0))
    with pytest.raises(EnvError) as raised:
        envs.set_state(states)
    assert "another MuJoCo model" in str(raised.value.__cause__)


def test_a_worker_that_dies_while_it_loads_is_replaced_and_loads_again(make_process: Make, tmp_path: Path) -> None:
    mark = tmp_path / "died"

    def save(env: Any) -> Any:
        return env.episode, env.elapsed

    def load(env: Any, state: Any) -> None:
        if not mark.exists():
            mark.touch()
            os._exit(3)
        env.episode, env.elapsed = state

    envs = opened(make_process, [partial(CountingEnv, 9)] * 2, on_failure="restart")
    steps(envs, [[0, 0]] * 4)
    states = envs.get_state([0], save=save)
    after = envs.step([0, 0])
    envs.set_state(states, [0], load=load)
    assert envs.num_restarts == 1
    observations, *_ = envs.step([0, 0])
    assert_same_batch(observations[0], after[0][0])


def test_a_load_that_raises_is_raised_once_and_the_env_goes_on(make: Make) -> None:
    def load(env: Any, state: Any) -> None:
        raise OSError("gone")

    envs = opened(make, [partial(CountingEnv, 9)] * 2, on_failure="restart")
    envs.restart([0])
    states = envs.get_state(save=lambda env: None)
    with pytest.raises(EnvError, match="OSError during the setting of a state: gone"):
        envs.set_state(states, load=load)
    assert envs.num_restarts == 1
    assert envs.step([0, 0])[3].tolist() == [True, False]  # the lost episode is reported all the same


def test_functions_and_classes_of_a_script_stay_shared(make: Make) -> None:
    """A class in a function is pickled by value, as one of `__main__` is."""

    class Shared:
        total = 0

    class Counts(CountingEnv):
        def step(self, action: Any) -> Any:
            Shared.total += 1
            return super().step(action)

    envs = opened(make, [Counts] * 2, num_workers=1)
    states = envs.get_state()
    steps(envs, [[0, 0]] * 2)
    envs.set_state(states[:1], [0])
    steps(envs, [[0, 0]])
    assert envs.apply(lambda env: type(env).step.__closure__[0].cell_contents.total, env_ids=[0, 1]) == [6, 6]


def test_a_refused_hook_leaves_the_wrappers_as_they_are(make: Make) -> None:
    class Refusing(HookedEnv):
        def set_env_state(self, state: Any) -> None:
            raise ValueError("not today")

    envs = opened(make, [lambda: gym.wrappers.TimeLimit(Refusing(9), 3)])
    states = envs.get_state()
    steps(envs, [[0]] * 2)
    with pytest.raises(EnvError, match="not today"):
        envs.set_state(states)
    assert envs.step([0])[3].tolist() == [True]


def test_a_restart_has_the_tasks_of_the_state(make: Make) -> None:
    envs = make([GridNaviEnv] * 2)
    envs.reset(seed=0, tasks=[(3, 1), (2, 2)])
    states = envs.get_state()
    envs.set_tasks([(3, 3), (4, 4)])
    envs.set_state(states)
    envs.restart()
    envs.step([0, 0])
    assert envs.get_tasks() == [(3, 1), (2, 2)]


def test_a_saving_that_takes_too_long_may_be_waited_for(make_process: Make) -> None:
    def save(env: Any) -> int:
        time.sleep(0.4)
        return int(env.elapsed)

    def load(env: Any, elapsed: int) -> None:
        env.elapsed = elapsed

    envs = opened(make_process, [partial(CountingEnv, 9)])
    with pytest.raises(StepTimeout):
        envs.get_state(save=save, timeout=0.05)
    states = list(envs.call_wait())
    steps(envs, [[0]] * 2)
    assert envs.set_state(states, load=load)[0].tolist() == [[0, 0]]


def test_a_step_that_raised_cannot_be_replayed(make_process: Make) -> None:
    envs = opened(make_process, [lambda: ReplayableEnv(atari(0.25))])
    with pytest.raises(EnvError):
        envs.apply(lambda env: env.step("nowhere"))
    with pytest.raises(EnvError) as raised:
        envs.get_state()
    assert "has raised an error since the latest reset" in str(raised.value.__cause__)


def test_agents_that_have_ended_and_views_are_part_of_the_state(make: Make) -> None:
    from tests.multiagent.scripts import EARLY_AND_LATE, scripted

    with MultiAgentEnvManager([scripted(EARLY_AND_LATE)] * 2, autoreset_mode="SameStep", backend="serial") as envs:
        single = envs.single_env(1)
        envs.reset(seed=0)
        single.reset(seed=0)
        actions = {agent: np.zeros(2, int) for agent in envs.possible_agents}
        results: list[Any] = []
        while not (results and "final_reward" in results[-1][4][envs.possible_agents[0]]):
            states = envs.get_state()
            results.append(pickle.loads(pickle.dumps(envs.step(actions))))
        envs.set_state(states)
        assert_same_batch(envs.step(actions)[4], results[-1][4])
        while single.agents:
            single.step(dict.fromkeys(single.agents, 0))
        envs.set_state(states)
        assert single.agents == envs.agents(1)


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", "pettingzoo.classic.tictactoe_v3"])
def test_agents_go_on_equally(backend: Any, name: str) -> None:
    module = pytest.importorskip(name)
    turns: Any = "sequential" if "classic" in name else "simultaneous"
    make = module.env if turns == "sequential" else module.parallel_env
    with MultiAgentEnvManager([make] * 2, backend=backend, turns=turns) as envs:
        latest, _ = envs.reset(seed=2)

        def action(seen: Any, step: int) -> Any:
            """Choose the allowed actions in turn."""
            masks = seen["action_mask"] if isinstance(seen, dict) else np.ones((2, 5))
            allowed = [np.flatnonzero(mask) for mask in masks]
            return np.array([moves[step % len(moves)] if len(moves) else 0 for moves in allowed])

        def played(count: int, observations: Any) -> tuple[list[Any], Any]:
            results = []
            for step in range(count):
                actions = {agent: action(observations.get(agent), step) for agent in envs.possible_agents}
                observations, *rest = envs.step(actions)
                results.append(pickle.loads(pickle.dumps((observations, *rest[:3]))))
            return results, observations

        _, latest = played(3, latest)
        envs.set_state(envs.get_state())  # a restored env can be saved again
        states = envs.get_state()
        first, _ = played(15, latest)
        shown, _ = envs.set_state(states)
        assert_same_batch(shown, latest)
        assert_same_batch(played(15, shown)[0], first)
        shown, _ = envs.fork(1)
        for rows in shown.values():
            values = rows.values() if isinstance(rows, dict) else [rows]
            assert all((value[0] == value[1]).all() for value in values)
