"""`call`, `get_attr`, `set_attr`, `render`, and what the manager says about itself."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from parallel_envs import ParallelEnvManager
from parallel_envs.choices import Backend
from parallel_envs.engine import Unpicklable
from parallel_envs.errors import ClosedError, EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv, GatedEnv

ACTIONS = np.zeros(3, int)


def test_call_passes_arguments_and_returns_a_tuple(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    envs.reset(seed=0)
    assert envs.call("add", 4, times=2) == (8, 8, 8)


def test_call_of_some_envs(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in (1, 2, 3, 4)], num_workers=2)
    assert envs.call("length", env_ids=[3, 1]) == (4, 2)
    assert envs.get_attr("length", env_ids=[2]) == envs.get_attr("length", env_ids=np.array(2)) == (3,)


def test_get_attr_reads_a_value(make: Make) -> None:
    assert make([partial(CountingEnv, length) for length in (5, 6)]).get_attr("length") == (5, 6)


def test_get_attr_calls_a_method_as_gymnasium_does(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    assert_same_batch(envs.get_attr("observed"), (np.array([0, 0]), np.array([0, 0])))


def test_attributes_are_found_through_wrappers(make: Make) -> None:
    factories = [lambda: gym.wrappers.TimeLimit(CountingEnv(), 2)] * 2
    envs = make(factories)
    assert envs.get_attr("label") == ("plain", "plain")
    envs.set_attr("label", ["a", "b"])
    assert envs.get_attr("label") == ("a", "b")


@pytest.mark.parametrize("values", [["a", "b", "c"], ("a", "b", "c")])
def test_set_attr_gives_each_env_its_value(make: Make, values: Any) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    envs.set_attr("label", values)
    assert envs.get_attr("label") == ("a", "b", "c")


@pytest.mark.parametrize("value", ["one", 3, None, {"a": 1}])
def test_set_attr_gives_all_envs_one_value(make: Make, value: Any) -> None:
    envs = make([CountingEnv] * 2)
    envs.set_attr("label", value)
    assert envs.get_attr("label") == (value, value)


def test_set_attr_takes_an_array_as_one_value(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.set_attr("label", np.arange(2))
    assert_same_batch(envs.get_attr("label"), (np.arange(2), np.arange(2)))


def test_set_attr_of_some_envs(make: Make) -> None:
    envs = make([CountingEnv] * 4, num_workers=2)
    envs.set_attr("label", ["b", "d"], env_ids=[1, 3])
    envs.set_attr("label", "a", env_ids=[0])
    assert envs.get_attr("label") == ("a", "b", "plain", "d")


@pytest.mark.parametrize("values", [["a"], ["a", "b", "c", "d"], ()])
def test_a_wrong_number_of_values_is_refused(make: Make, values: Any) -> None:
    envs = make([CountingEnv] * 3)
    with pytest.raises(ValueError, match=f"{len(values)}.*3"):
        envs.set_attr("label", values)
    assert envs.get_attr("label") == ("plain",) * 3


def test_a_name_no_env_has_is_an_error_of_that_call(make: Make) -> None:
    envs = make([CountingEnv] * 3)
    envs.reset(seed=0)
    for ask in (envs.get_attr, envs.call):
        with pytest.raises(AttributeError, match="lenght"):
            ask("lenght")
    assert envs.step(ACTIONS)[0].tolist() == [[0, 1]] * 3


def test_an_error_in_a_method_is_an_error_of_that_call(make: Make) -> None:
    envs = make([CountingEnv] * 3)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="no such level") as caught:
        envs.call("fail", "no such level")
    assert isinstance(caught.value, ValueError)
    assert envs.step(ACTIONS)[0].tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_call_does_not_reach_behind_the_managers_back(make: Make, name: str) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises(ValueError, match=name):
        envs.call(name)
    assert envs.get_attr("label") == ("plain", "plain")


@pytest.mark.parametrize("env_ids", [[3], [-4], [0, 0], [0, -3], []], ids=repr)
def test_env_ids_that_no_env_has_are_refused(make: Make, env_ids: list[int]) -> None:
    envs = make([CountingEnv] * 3)
    with pytest.raises(ValueError, match=f"env_ids.*{env_ids[-1] if env_ids else 'empty'}"):
        envs.call("label", env_ids=env_ids)
    assert envs.get_attr("label") == ("plain",) * 3


def test_render_returns_a_tuple_of_frames(make: Make) -> None:
    factories = [partial(ScriptedEnv, render_mode="rgb_array")] * 2
    envs, reference = make(factories), SyncVectorEnv(factories)
    for each in (envs, reference):
        each.reset(seed=1)
    assert envs.render_mode == "rgb_array"
    assert_same_batch(envs.render(), reference.render())


def test_render_without_a_mode(make: Make) -> None:
    envs = make([ScriptedEnv] * 2)
    envs.reset(seed=1)
    assert (envs.render_mode, envs.render()) == (None, (None, None))


def test_metadata_is_the_envs_and_its_own(make: Make) -> None:
    envs = make([ScriptedEnv] * 2)
    assert envs.metadata == {**ScriptedEnv.metadata, "autoreset_mode": envs.metadata["autoreset_mode"]}
    assert "autoreset_mode" not in ScriptedEnv.metadata


def test_envs_of_factories_have_no_spec_as_in_gymnasium(make: Make) -> None:
    assert make([lambda: gym.make("CartPole-v1")] * 2).spec is None


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_repr_tells_the_state(backend: Backend) -> None:
    envs = ParallelEnvManager([CountingEnv] * 4, num_workers=2, backend=backend)
    assert all(word in repr(envs) for word in ("ParallelEnvManager", "4", "2", backend))
    envs.close()
    assert "closed" in repr(envs)


def test_repr_names_a_pending_call(make_parallel: Make) -> None:
    envs = make_parallel([CountingEnv] * 2)
    idle = repr(envs)
    envs.reset_async(seed=0)
    assert "reset" in repr(envs)
    assert repr(envs) != idle
    envs.reset_wait()
    assert repr(envs) == idle


def test_stats_has_a_row_for_each_worker(make: Make) -> None:
    envs = make([CountingEnv] * 5, num_workers=2)
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(np.zeros(5, int))
    rows = envs.stats()
    keys = {"worker", "pid", "env_ids", "steps", "step_seconds", "reset_seconds", "wait_seconds"}
    assert all(keys | {"idle_seconds", "restarts", "bytes"} <= set(row) for row in rows)
    assert [row["worker"] for row in rows] == [0, 1]
    assert sorted(env for row in rows for env in row["env_ids"]) == [0, 1, 2, 3, 4]


def test_stats_count_the_steps_of_envs_and_not_their_resets(make: Make) -> None:
    envs = make([partial(CountingEnv, 3)] * 4, num_workers=2)
    envs.reset(seed=0)
    for _ in range(8):
        envs.step(np.zeros(4, int))
    assert sum(row["steps"] for row in envs.stats()) == 4 * 6
    for row in envs.stats():
        assert row["step_seconds"] > 0
        assert row["reset_seconds"] > 0
        assert row["restarts"] == 0
        assert min(row["wait_seconds"], row["idle_seconds"], row["bytes"]) >= 0


def test_negative_env_ids_count_from_the_end(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in (1, 2, 3, 4)], num_workers=2)
    assert envs.call("length", env_ids=[-1, 0]) == (4, 1)
    assert envs.get_attr("length", env_ids=-2) == (3,)
    envs.reset(seed=0)
    envs.reset(env_ids=[-2, -4])
    assert envs.get_attr("episode") == (1, 0, 1, 0)
    envs.set_attr("label", ["last", "first"], env_ids=[-1, -4])
    assert envs.get_attr("label") == ("first", "plain", "plain", "last")
    envs.send([0, 0], env_ids=[-1, -3])
    assert sorted(envs.recv(min_envs=2)[0].tolist()) == [1, 3]
    envs.send_reset([-4])
    assert (envs.is_away(-4), envs.is_away(0), envs.is_away(-1)) == (True, True, False)
    assert envs.recv_env(-4)[0].tolist() == [2, 0]


def test_what_was_given_can_be_read_as_from_gymnasiums(make: Make) -> None:
    def first() -> CountingEnv:
        return CountingEnv()

    envs = make([first, CountingEnv], observation_mode="different", shared_memory=False)
    assert list(envs.env_fns) == [first, CountingEnv]
    assert (envs.observation_mode, envs.shared_memory, envs.copy) == ("different", False, True)
    assert (envs.context, envs.daemon) == (None, True)
    named = make("CartPole-v1", num_envs=2)
    assert [str(made().unwrapped) for made in named.env_fns] == [str(gym.make("CartPole-v1").unwrapped)] * 2


# ---- functions of envs ---------------------------------------------------------------------------


def test_apply_runs_a_function_on_each_wrapped_env(make: Make) -> None:
    envs = make([lambda: gym.wrappers.TimeLimit(CountingEnv(), 7)] * 3, num_workers=2)
    envs.reset(seed=0)
    envs.step(ACTIONS)
    factor = 10

    def told(env: Any, *more: int) -> Any:
        assert isinstance(env.unwrapped, CountingEnv)
        return type(env).__name__, env._max_episode_steps, env.unwrapped.elapsed * factor, more

    assert envs.apply(told, 1, 2) == [("TimeLimit", 7, 10, (1, 2))] * 3
    assert envs.apply(lambda env: setattr(env.unwrapped, "label", "set"), env_ids=[2, 0]) == [None, None]
    assert envs.apply(lambda env: env.unwrapped.label) == ["set", "plain", "set"]
    assert envs.apply(lambda env: env.unwrapped.label, env_ids=[1, 0]) == ["plain", "set"]
    assert envs.step(ACTIONS)[0].tolist() == [[0, 2]] * 3


def test_what_apply_returns_is_a_copy(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.apply(lambda env: env.__dict__.update(kept=[1]))
    (kept, _) = envs.apply(lambda env: env.kept)
    kept.append(2)
    assert envs.apply(lambda env: env.kept) == [[1], [1]]


def test_an_error_in_a_function_is_an_error_of_that_apply(make: Make) -> None:
    envs = make([CountingEnv] * 3)
    envs.reset(seed=0)

    def fail(env: Any) -> None:
        raise gym.error.InvalidAction("not like this")

    with pytest.raises(
        gym.error.InvalidAction, match=r"Env 1 raised .* during apply of 'fail': not like this"
    ) as caught:
        envs.apply(fail, env_ids=[2, 1])
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (1, 2)
    assert envs.step(ACTIONS)[0].tolist() == [[0, 1]] * 3


def test_bad_calls_of_apply_are_refused(make: Make) -> None:
    envs = make([CountingEnv] * 3)
    with pytest.raises(TypeError, match="fn='label' cannot be called"):
        envs.apply("label")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        envs.apply(id, timeout=-1)
    with pytest.raises(ValueError, match="7 is not an environment"):
        envs.apply(id, env_ids=7)
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.raises(gym.error.AlreadyPendingCallError, match="`apply`"):
        envs.apply(id)
    envs.step_wait()
    envs.close()
    with pytest.raises(ClosedError, match="`apply`"):
        envs.apply(id)


def test_functions_and_results_that_cannot_travel_are_named(make_process: Make) -> None:
    envs, lock = make_process([CountingEnv] * 2), threading.Lock()
    with pytest.raises(Unpicklable, match=r"fn -> variable 'lock' \(a _thread.lock\) cannot be pickled"):
        envs.apply(lambda env: lock)
    with pytest.raises(Unpicklable, match=r"args\[1\] \(a _thread.lock\) cannot be pickled"):
        envs.apply(print, 1, lock)
    with pytest.raises(EnvError, match=r"Env 0 raised .*cannot be pickled"):
        envs.apply(lambda env: env.lock())
    assert envs.apply(lambda env: env.label) == ["plain"] * 2


def test_apply_that_is_late_is_brought_by_call_wait(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path)] * 2)
    with pytest.raises(StepTimeout, match="apply of 'slow_call'"):
        envs.apply(GatedEnv.slow_call, timeout=0.0)
    gate.let_through(2)
    assert envs.call_wait() == ("answered",) * 2
    assert envs.apply(lambda env: env.num_steps, timeout=60) == [0, 0]


def test_a_worker_that_dies_of_apply_is_raised_as_for_call(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 2, on_failure="restart")
    with pytest.raises(WorkerDied, match="during apply of '_exit'") as caught:
        envs.apply(_exit, env_ids=1)
    assert caught.value.exitcode == 5
    envs.restart(1)
    assert envs.apply(lambda env: env.label) == ["plain"] * 2


def _exit(env: Any) -> None:
    os._exit(5)
