"""`remotes`: one env at a time, in the wire words of the meta-RL pipeline, and never a wait without end."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import ClosedError
from parallel_envs.tasks import RESAMPLE
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.faults.matrix import all_end_within
from tests.gates import Gate
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv
from tests.vector.task_envs import RAISE, UNSET, ByOptions, ByResetTask, Gated, Playing

STEP: Any = ("step", {"action": 0})


def asked(remote: Any, word: str, data: Any) -> Any:
    """Send a request and receive its answer."""
    remote.send((word, data))
    return remote.recv()


def test_a_reset_is_answered_with_an_observation_and_a_step_with_a_transition(make: Make) -> None:
    envs = make([ByResetTask, partial(ByResetTask, 1), ByResetTask], num_workers=2)
    for env, done in enumerate((False, True)):
        word, observation = asked(envs.remotes[env], "reset", {"task": 7})
        assert word == "obs"
        assert_same_batch(observation, np.array([7, 0, 0]))
        word, (observation, *rest) = asked(envs.remotes[env], "step", {"action": 1})
        assert word == "transition"
        assert_same_batch(observation, np.array([7, 0, 1]))
        assert rest == [1.0, done, {"task_id": 7, "episode_index": 0, "elapsed": 1}]
        assert [type(value) for value in rest] == [float, bool, dict]
    assert envs.call("played") == (7, 7, UNSET)


SPACES: list[spaces.Space[Any]] = [
    spaces.Dict(move=spaces.Discrete(3), force=spaces.Box(-1.0, 1.0, (2,))),
    spaces.Tuple([spaces.Discrete(3), spaces.Text(4)]),
    *(spaces.Box(-1.0, 1.0, (2, 2)), spaces.Text(4), spaces.Discrete(3)),
    spaces.Dict(action=spaces.Discrete(3)),  # named like the key of the request
]


def test_actions_of_any_space_reach_the_env(make: Make) -> None:
    fns = [partial(ScriptedEnv, action_space=space, episode_lengths=[9]) for space in SPACES]
    for space, factory in zip(SPACES, fns, strict=True):
        envs, reference = make([factory] * 2), factory()
        asked(envs.remotes[1], "seed", np.int64(3))
        assert_same_batch(asked(envs.remotes[1], "reset", {})[1], reference.reset(seed=3)[0])
        space.seed(5)
        for action in [space.sample() for _ in range(2)]:
            for data in ({"action": action}, action):  # by itself it is the same action
                observation, reward, *_ = reference.step(action)
                assert_same_batch(asked(envs.remotes[1], "step", data)[1][:2], (observation, reward))


def test_the_dtype_of_an_action_stays_and_a_truncated_episode_is_done(make: Make) -> None:
    class Echoing(Playing):
        def step(self, action: Any) -> Any:
            return self.observed(), float(action), False, True, {"dtype": action.dtype.name}

    envs = make([Echoing] * 2)
    assert asked(envs.remotes[1], "step", {"action": np.int8(2)})[1][1:] == (2.0, True, {"dtype": "int8"})


def test_data_of_a_reset_are_its_task_and_options(make: Make) -> None:
    envs = make([partial(ByOptions, 2)] * 2)
    data = {"task": 5, "level": 3}
    asked(envs.remotes[0], "reset", data)
    assert envs.get_attr("options") == ({"level": 3, "task": 5}, None)
    assert data == {"task": 5, "level": 3}
    assert asked(envs.remotes[0], "reset", None)[1].tolist() == [5, 1, 0]  # the task there is stays
    assert asked(envs.remotes[0], "reset", {})[1].tolist() == [5, 2, 0]
    course = [asked(envs.remotes[0], "step", {"action": 0})[1][0].tolist() for _ in range(5)]
    assert course == [[5, 2, 1], [5, 2, 2], [5, 3, 0], [5, 3, 1], [5, 3, 2]]


def test_a_seed_is_for_the_next_reset_alone(make: Make) -> None:
    envs = make([Playing, ByOptions], num_workers=1)
    remote = envs.remotes[1]
    assert asked(remote, "seed", 40) == ("seed", 40)
    with pytest.raises(ValueError, match="RESAMPLE"):
        remote.send(("reset", {"task": RESAMPLE}))  # what is refused leaves it
    seeds = [(asked(remote, "reset", data), envs.get_attr("seed")[1])[1] for data in ({}, {}, {"seed": 41}, {})]
    assert seeds == [40, None, 41, None]


def test_an_attribute_is_answered_and_a_method_is_not_run(make: Make) -> None:
    envs = make([CountingEnv, partial(CountingEnv, 9)], num_workers=1)
    assert asked(envs.remotes[1], "get_attr", {"name": "length"}) == ("get_attr", 9)
    _, add = asked(envs.remotes[1], "get_attr", {"name": "add"})
    assert add(5, times=2) == 10
    _, fail = asked(envs.remotes[1], "get_attr", {"name": "fail"})
    with pytest.raises(ValueError, match=r"^Env 1 raised ValueError during call of 'fail': bad$"):
        fail("bad")


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_all_go_at_once_and_may_be_received_in_any_order(make: Make, num_workers: int) -> None:
    envs = make([ByResetTask] * 4, num_workers=num_workers)
    for env, remote in enumerate(envs.remotes):
        remote.send(("reset", {"task": 10 + env}))
    assert [envs.remotes[env].recv()[1].tolist() for env in (2, 0, 3, 1)] == [[10 + env, 0, 0] for env in (2, 0, 3, 1)]
    for _ in range(2):
        for remote in envs.remotes:
            remote.send(STEP)
        rewards = [remote.recv()[1][1] for remote in reversed(envs.remotes)]
    assert rewards == [2.0] * 4
    assert envs.step([0] * 4)[1].tolist() == [3.0] * 4  # the manager goes on with all


def test_each_waits_for_its_own_answer_with_a_time_limit(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(Gated, gate.path, 100), partial(ByResetTask, 100)])
    slow, quick = envs.remotes
    slow.send(STEP)
    assert [asked(quick, "step", {"action": 0})[1][1] for _ in range(3)] == [1.0, 2.0, 3.0]
    with pytest.raises(TimeoutError):
        slow.recv(timeout=0.02)
    gate.let_through()
    assert slow.recv()[1][1] == 1.0


def test_requests_out_of_turn_are_errors_at_once(make: Make) -> None:
    envs = make([ByResetTask] * 3)
    assert len(envs.remotes) == len(list(envs.remotes)) == len(envs.remotes[:]) == 3
    with pytest.raises(IndexError):
        envs.remotes[3]
    first, second, _ = envs.remotes
    for _ in range(2):
        with pytest.raises(NoAsyncCallError, match="remote 1"):
            second.recv()
        first.send(STEP)
        with pytest.raises(NoAsyncCallError, match="remote 1"):
            second.recv()
        with pytest.raises(AlreadyPendingCallError):
            second.send(("get_attr", {"name": "length"}))  # for which all must be still
        assert asked(second, "step", {"action": 0})[0] == first.recv()[0] == "transition"
    envs.remotes[-1].send(("reset", {"task": 4}))
    with pytest.raises(AlreadyPendingCallError, match="remote 2"):
        envs.remotes[2].send(STEP)
    assert envs.remotes[1:][1].recv()[1].tolist() == [4, 0, 0]


def test_a_second_send_is_an_error_at_once_and_loses_nothing(make: Make) -> None:
    (remote,) = make([ByResetTask]).remotes
    data = {"reset": {}, "step": {"action": 0}, "get_attr": {"name": "length"}, "seed": 4, "close": None}
    for word in data:
        remote.send((word, data[word]))
        with pytest.raises(AlreadyPendingCallError, match=f"remote 0.*'{word}'"):
            remote.send(STEP)
        assert remote.recv()[0] == {"reset": "obs", "step": "transition"}.get(word, word)
        assert asked(remote, "reset", {"task": 3})[1].tolist()[0] == 3  # to close is left to the manager
    remote.send(("step", {"action": RAISE}))
    with pytest.raises(ZeroDivisionError, match="Env 0"):
        remote.recv()
    assert asked(remote, "reset", {"task": 3})[1].tolist()[0] == 3  # nor does an error end it


def test_remotes_of_a_closed_manager_say_so(make: Make) -> None:
    envs = make([ByResetTask] * 2)
    first, second = envs.remotes
    first.send(STEP)
    envs.close()
    with pytest.raises(ClosedError):
        first.recv()
    for request in (("reset", {}), STEP, ("get_attr", {"name": "length"})):
        with pytest.raises(ClosedError):
            second.send(request)


def test_a_manager_that_is_no_longer_used_ends_its_workers_at_once() -> None:
    envs = ParallelEnvManager([ByResetTask] * 2)
    pids = {row["pid"] for row in envs.stats()}
    gc.disable()
    try:
        asked(envs.remotes[0], "reset", {"task": 3})
        envs.remotes[1].send(STEP)
        first = envs.remotes[0]
        del envs
        assert asked(first, "step", {"action": 0})[0] == "transition"  # a remote keeps its manager
        del first
        assert all_end_within(pids, 0.0)
    finally:
        gc.enable()
