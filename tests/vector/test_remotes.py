"""`remotes`: one env at a time, in the wire words of the meta-RL pipeline, and never a wait without end."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import ClosedError
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.faults.processes import all_end_within
from tests.gates import Gate
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv
from tests.vector.task_envs import RAISE, UNSET, ByOptions, ByResetTask, Gated, Playing

STEP: Any = ("step", {"action": 0})


def asked(remote: Any, word: str, data: Any) -> Any:
    """Send a request and receive its answer."""
    remote.send((word, data))
    return remote.recv()


# ---- the words -----------------------------------------------------------------------------------


def test_a_reset_is_answered_with_an_observation(make: Make) -> None:
    envs = make([ByResetTask] * 3, num_workers=2)
    word, observation = asked(envs.remotes[2], "reset", {"task": 17})
    assert word == "obs"
    assert_same_batch(observation, np.array([17, 0, 0]))
    assert envs.call("played") == (UNSET, UNSET, 17)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(move=spaces.Discrete(3), force=spaces.Box(-1.0, 1.0, (2,))),
        spaces.Tuple([spaces.Discrete(3), spaces.Text(4)]),
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Text(4),
        spaces.Discrete(3),
        spaces.Dict(action=spaces.Discrete(3)),
    ],
    ids=["dict", "tuple", "box", "text", "discrete", "called-action"],
)
def test_actions_of_any_space_reach_the_env(make: Make, space: spaces.Space[Any]) -> None:
    envs, reference = make([partial(ScriptedEnv, action_space=space)] * 2), ScriptedEnv(action_space=space)
    asked(envs.remotes[1], "seed", np.int64(3))
    assert_same_batch(asked(envs.remotes[1], "reset", {})[1], reference.reset(seed=3)[0])
    space.seed(5)
    for action in [space.sample() for _ in range(2)]:
        observation, reward, *_ = reference.step(action)
        assert_same_batch(asked(envs.remotes[1], "step", {"action": action})[1][:2], (observation, reward))
    observation, reward, *_ = reference.step(action)  # by itself it is the same action
    assert_same_batch(asked(envs.remotes[1], "step", action)[1][:2], (observation, reward))


def test_a_step_is_answered_with_a_transition(make: Make) -> None:
    envs = make([ByResetTask, partial(ByResetTask, 1)])
    for remote, done in zip(envs.remotes, (False, True), strict=True):
        asked(remote, "reset", {"task": 7})
        word, (observation, *rest) = asked(remote, "step", {"action": 1})
        assert word == "transition"
        assert_same_batch(observation, np.array([7, 0, 1]))
        assert rest == [1.0, done, {"task_id": 7, "episode_index": 0, "elapsed": 1}]
        assert [type(value) for value in rest] == [float, bool, dict]


def test_a_truncated_episode_is_done_too(make: Make) -> None:
    class Truncating(Playing):
        def step(self, action: Any) -> Any:
            return self.observed(), 0.0, False, True, {}

    (remote,) = make([Truncating]).remotes
    assert asked(remote, "step", {"action": 0})[1][2] is True


def test_the_action_reaches_the_env(make: Make) -> None:
    class Echoing(Playing):
        def step(self, action: Any) -> Any:
            return self.observed(), float(action), False, False, {"dtype": action.dtype.name}

    envs = make([Echoing] * 2)
    assert asked(envs.remotes[1], "step", {"action": np.int8(2)})[1][1::2] == (2.0, {"dtype": "int8"})


def test_other_data_of_a_reset_are_its_options(make: Make) -> None:
    envs = make([ByOptions] * 2)
    data = {"task": 5, "level": 3}
    asked(envs.remotes[0], "reset", data)
    assert envs.get_attr("options") == ({"level": 3, "task": 5}, None)
    assert data == {"task": 5, "level": 3}


@pytest.mark.parametrize("data", [None, {}])
def test_a_reset_without_a_task_keeps_the_one_there_is(make: Make, data: Any) -> None:
    (remote,) = make([ByOptions]).remotes
    asked(remote, "reset", {"task": 5})
    assert asked(remote, "reset", data)[1].tolist() == [5, 1, 0]


def test_a_seed_is_for_the_next_reset_alone(make: Make) -> None:
    envs = make([Playing, ByOptions], num_workers=1)
    remote = envs.remotes[1]
    assert asked(remote, "seed", 40) == ("seed", 40)
    seeds = [(asked(remote, "reset", data), envs.get_attr("seed")[1])[1] for data in ({}, {}, {"seed": 41}, {})]
    assert seeds == [40, None, 41, None]


def test_an_attribute(make: Make) -> None:
    envs = make([partial(ByResetTask, length) for length in (4, 9)])
    assert asked(envs.remotes[1], "get_attr", {"name": "length"}) == ("get_attr", 9)


def test_a_method_is_answered_with_a_callable_and_not_run(make: Make) -> None:
    envs = make([CountingEnv] * 2, num_workers=1)
    _, add = asked(envs.remotes[1], "get_attr", {"name": "add"})
    assert add(5, times=2) == 10
    _, fail = asked(envs.remotes[1], "get_attr", {"name": "fail"})
    with pytest.raises(ValueError, match=r"^Env 1 raised ValueError during call of 'fail': bad$"):
        fail("bad")


def test_closing_is_left_to_the_manager(make: Make) -> None:
    envs = make([ByResetTask] * 2)
    assert asked(envs.remotes[0], "close", None) == ("close", None)
    assert asked(envs.remotes[0], "reset", {})[0] == "obs"


def test_there_is_a_remote_for_each_env_and_what_it_was_asked_is_kept(make: Make) -> None:
    envs = make([ByResetTask] * 3)
    assert len(envs.remotes) == len(list(envs.remotes)) == len(envs.remotes[:]) == 3
    envs.remotes[-1].send(("reset", {"task": 4}))
    with pytest.raises(AlreadyPendingCallError, match="remote 2"):
        envs.remotes[2].send(STEP)
    assert envs.remotes[1:][1].recv()[1].tolist() == [4, 0, 0]
    with pytest.raises(IndexError):
        envs.remotes[3]


def test_the_task_stays_through_autoresets(make: Make) -> None:
    (remote,) = make([partial(ByOptions, 2)]).remotes
    asked(remote, "reset", {"task": 7})
    course = [asked(remote, "step", {"action": 0})[1][0].tolist() for _ in range(5)]
    assert course == [[7, 0, 1], [7, 0, 2], [7, 1, 0], [7, 1, 1], [7, 1, 2]]


# ---- several at once -----------------------------------------------------------------------------


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


def test_a_slow_env_does_not_hold_up_the_others(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(Gated, gate.path, 100), partial(ByResetTask, 100)])
    slow, quick = envs.remotes
    slow.send(STEP)
    assert [asked(quick, "step", {"action": 0})[1][1] for _ in range(3)] == [1.0, 2.0, 3.0]
    gate.let_through()
    assert slow.recv()[1][1] == 1.0


def test_each_waits_for_its_own_answer_with_a_time_limit(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(Gated, gate.path)] * 2)
    for remote in envs.remotes:
        remote.send(STEP)
    with pytest.raises(TimeoutError):
        envs.remotes[0].recv(timeout=0.02)
    gate.let_through(2)
    assert [remote.recv()[1][1] for remote in envs.remotes] == [1.0, 1.0]


def test_a_request_that_needs_all_to_be_still_is_refused_at_once(make: Make) -> None:
    first, second = make([ByResetTask] * 2).remotes
    first.send(STEP)
    with pytest.raises(AlreadyPendingCallError):
        second.send(("get_attr", {"name": "length"}))
    assert asked(second, "step", {"action": 0})[0] == first.recv()[0] == "transition"


def test_the_manager_goes_on_with_all_when_the_last_has_been_received(make: Make) -> None:
    envs = make([ByResetTask] * 2)
    envs.reset(tasks=[5, 6])
    asked(envs.remotes[1], "step", {"action": 0})
    assert envs.step(np.zeros(2, int))[0].tolist() == [[5, 0, 1], [6, 0, 2]]


# ---- what does not match -------------------------------------------------------------------------


def test_recv_without_send_is_an_error_at_once(make: Make) -> None:
    first, second = make([ByResetTask] * 2).remotes
    with pytest.raises(NoAsyncCallError, match="remote 1"):
        second.recv()
    first.send(STEP)
    with pytest.raises(NoAsyncCallError, match="remote 1"):
        second.recv()
    first.recv()
    with pytest.raises(NoAsyncCallError, match="remote 0"):
        first.recv()


@pytest.mark.parametrize("word", ["reset", "step", "get_attr", "seed", "close"])
def test_a_second_send_is_an_error_at_once_and_loses_nothing(make: Make, word: str) -> None:
    (remote,) = make([ByResetTask]).remotes
    data = {"reset": {}, "step": {"action": 0}, "get_attr": {"name": "length"}, "seed": 4, "close": None}
    remote.send((word, data[word]))
    with pytest.raises(AlreadyPendingCallError, match=f"remote 0.*'{word}'"):
        remote.send(STEP)
    answer, _ = remote.recv()
    assert answer == {"reset": "obs", "step": "transition"}.get(word, word)
    assert asked(remote, "reset", {"task": 3})[1].tolist()[0] == 3


BAD_REQUESTS: list[tuple[Any, str]] = [
    ("reset", "'reset'"),
    (("reset",), "'reset'"),
    (("reset", {}, 3), "'reset'"),
    (["reset", {}], "'reset'"),
    (("rest", {}), "'rest'"),
    ((None, {}), "None"),
    (("step", None), "'action'"),
    (("step", {"actions": 1}), "'action'"),
    (("get_attr", "length"), "'name'"),
]


@pytest.mark.parametrize(("request_", "word"), BAD_REQUESTS, ids=repr)
def test_wrong_words_are_refused_at_once_and_nothing_is_pending(make_process: Make, request_: Any, word: str) -> None:
    (remote,) = make_process([ByResetTask]).remotes
    with pytest.raises(ValueError, match=rf"(?s)remote 0.*{word}|{word}.*remote 0"):
        remote.send(request_)
    assert asked(remote, "reset", {"task": 3})[1].tolist() == [3, 0, 0]


@pytest.mark.parametrize(("request_", "word"), [(("reset", 5), "5"), (("seed", "x"), "'x'"), (("seed", None), "None")])
def test_wrong_data_are_refused_in_the_same_words(make_process: Make, request_: Any, word: str) -> None:
    (remote,) = make_process([ByResetTask]).remotes
    with pytest.raises(ValueError, match=rf"{word}.* remote 0"):
        remote.send(request_)


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (("reset", {"task": 3}), TypeError, "Env 0 .*Playing"),
        (("step", {"action": "up"}), (TypeError, ValueError), "up|U2"),
        (("get_attr", {"name": "lenght"}), AttributeError, "lenght"),
    ],
)
def test_a_refused_request_leaves_nothing_pending(make: Make, request_: Any, error: Any, words: str) -> None:
    (remote,) = make([Playing]).remotes
    with pytest.raises(error, match=words):
        remote.send(request_)
    assert asked(remote, "step", {"action": 0})[1][1] == 1.0


def test_a_refused_reset_leaves_the_seed_for_the_next(make_process: Make) -> None:
    envs = make_process([ByResetTask])
    (remote,) = envs.remotes
    asked(remote, "seed", 40)
    with pytest.raises(TypeError):
        remote.send(("reset", {"task": threading.Lock()}))
    asked(remote, "reset", {})
    assert envs.get_attr("seed") == (40,)


def test_a_remote_works_on_after_its_env_has_raised(make_process: Make) -> None:
    (remote,) = make_process([ByResetTask]).remotes
    remote.send(("step", {"action": RAISE}))
    with pytest.raises(ZeroDivisionError, match="Env 0"):
        remote.recv()
    assert asked(remote, "reset", {"task": 3})[1].tolist() == [3, 0, 0]


def test_a_remote_works_on_after_the_manager_has_received_for_it(make_process: Make) -> None:
    envs = make_process([ByResetTask])
    (remote,) = envs.remotes
    remote.send(STEP)
    envs.recv()
    assert asked(remote, "reset", {"task": 3})[1].tolist() == [3, 0, 0]


def test_a_closed_manager_says_so(make: Make) -> None:
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
