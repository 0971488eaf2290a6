"""What cannot be collected, and answers and states of policies that do not fit, are refused in words that help."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs import ParallelEnvManager, collect
from parallel_envs.policies import AgentPolicy, BatchPolicy
from parallel_envs.tasks import KEEP, RESAMPLE, FixedTasks, Task
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.rollouts.players import Acting, Counting, Remembering, by_observation, content, scripted, zeros
from tests.vector.conftest import Make
from tests.vector.task_envs import ByResetTask, Modern, Playing

UNSENDABLE = threading.Lock()


ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no rollouts": ({"num_rollouts": 0}, ValueError, "num_rollouts=0"),
    "fewer than none": ({"num_rollouts": -1}, ValueError, "num_rollouts=-1"),
    "a fraction": ({"num_rollouts": 1.5}, TypeError, "num_rollouts=1.5"),
    "a truth": ({"num_rollouts": True}, TypeError, "num_rollouts=True"),
    "text": ({"num_rollouts": "3"}, TypeError, "num_rollouts='3'"),
    "too few tasks": ({"tasks": [1, 2]}, ValueError, "2 tasks.*num_rollouts=3"),
    "too many tasks": ({"tasks": [1, 2, 3, 4]}, ValueError, "4 tasks.*num_rollouts=3"),
    "no tasks": ({"tasks": []}, ValueError, "0 tasks"),
    "a string of tasks": ({"tasks": "abc"}, TypeError, "tasks='abc'"),
    "bytes of tasks": ({"tasks": b"abc"}, TypeError, "tasks=b'abc'"),
    "a set of tasks": ({"tasks": {1, 2, 3}}, TypeError, "tasks="),
    "a source class": ({"tasks": FixedTasks}, TypeError, "task source"),
    "KEEP": ({"tasks": [1, KEEP, 2]}, ValueError, "KEEP"),
    "RESAMPLE": ({"tasks": [1, 2, RESAMPLE]}, ValueError, "RESAMPLE"),
    "a task that cannot travel": ({"tasks": [1, 2, UNSENDABLE]}, TypeError, "lock.*cannot be pickled"),
    "a Task that cannot travel": ({"tasks": [Task(n and UNSENDABLE, n) for n in range(3)]}, TypeError, "pickled"),
    "a source of such": ({"tasks": FixedTasks([1, 2, UNSENDABLE])}, TypeError, "source.*cannot be copied"),
    "unlike tasks that cannot travel": ({"tasks": [UNSENDABLE, threading.Lock(), 1]}, TypeError, "pickled"),
    "a task's number": ({"tasks": [1, 2, Task(3, "x")]}, ValueError, "number 'x'"),  # type: ignore[arg-type]
    "a negative seed": ({"seed": -1}, ValueError, "seed=-1"),
    "no seed": ({"seed": None}, TypeError, "seed=None"),
    "a seed that is a fraction": ({"seed": 0.5}, TypeError, "seed=0.5"),
    "a negative id": ({"first_id": -1}, ValueError, "first_id=-1"),
    "an id that is a fraction": ({"first_id": 1.5}, TypeError, "first_id=1.5"),
    "an id that is a truth": ({"first_id": True}, TypeError, "first_id=True"),
    "no steps": ({"max_steps": 0}, ValueError, "max_steps=0"),
    "half a step": ({"max_steps": 0.5}, TypeError, "max_steps=0.5"),
    "a name for names": ({"info_keys": "done_mdp"}, TypeError, r"info_keys='done_mdp'.*\['done_mdp'\]"),
    "a number for a choice": ({"exact": 1}, TypeError, "exact=1"),
    "a word for a choice": ({"progress": "yes"}, TypeError, "progress='yes'"),
    "None for a choice": ({"random_actions": None}, TypeError, "random_actions=None"),
    "no policy": ({"policy": None}, TypeError, "None is not a policy"),
    "a number for a policy": ({"policy": 3}, TypeError, "3 is not a policy"),
    "a class of policies": ({"policy": Counting}, TypeError, "Counting.*is not a policy"),
    "a class of agents": ({"policy": Remembering}, TypeError, "Remembering.*is not a policy"),
}


def test_arguments_are_checked_before_anything_runs() -> None:
    with ParallelEnvManager([ByResetTask] * 2, backend="serial") as envs:
        for changed, kind, words in ARGUMENTS.values():
            arguments: dict[str, Any] = {"policy": by_observation, "num_rollouts": 3, **changed}
            for given in (envs, ByResetTask()):
                with pytest.raises(kind, match=words):
                    collect(given, **arguments)
        assert envs.get_attr("episode") == (-1, -1)


class Odd(Acting):
    """Named in errors."""


BAD_ACTIONS: dict[str, tuple[Callable[[int], Any], str]] = {
    "nothing": (lambda num_rows: None, "object"),
    "too few": (lambda num_rows: np.zeros(num_rows - 1, np.int64), "shape"),
    "too many": (lambda num_rows: np.zeros(num_rows + 1, np.int64), "shape"),
    "one for all": (lambda num_rows: 0, "shape"),
    "an axis more": (lambda num_rows: np.zeros((num_rows, 1), np.int64), "shape"),
    "an empty list": (lambda num_rows: [], "shape"),
    "a list that is too long": (lambda num_rows: [0] * (num_rows + 1), "shape"),
    "a list of unlike things": (lambda num_rows: [np.zeros(2), *[0] * num_rows], "shape"),
    "a dict": (lambda num_rows: {"a": np.zeros(num_rows)}, "object"),
    "halves": (lambda num_rows: np.full(num_rows, 0.5), "not whole numbers"),
    "no numbers": (lambda num_rows: np.full(num_rows, np.nan), "not whole numbers"),
    "words": (lambda num_rows: ["left"] * num_rows, "numbers are wanted"),
}


@pytest.mark.parametrize("exact", [False, True])
def test_actions_that_do_not_fit_name_the_policy(exact: bool) -> None:
    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        for answer, words in BAD_ACTIONS.values():
            policy = Odd(lambda observations, state, resets, rows, answer=answer: answer(len(rows)))
            with pytest.raises(ValueError, match=f"Odd.*rows.*{words}"):
                collect(envs, policy, 4, exact=exact)
            assert not any(envs.is_away(env) for env in range(3))
        assert len(collect(envs, Acting(zeros), 4)) == 4


COMPOSED = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "say": spaces.Text(3)})


def test_composed_actions_that_do_not_fit_name_the_policy() -> None:
    answers: list[Callable[[int], Any]] = [
        np.zeros,
        lambda num_rows: {"move": np.zeros((num_rows, 2))},
        lambda num_rows: {"move": np.zeros((num_rows, 2)), "say": ["a"] * (num_rows + 1)},
        lambda num_rows: {"move": np.zeros((num_rows, 3)), "say": ["a"] * num_rows},
        lambda num_rows: {"move": np.zeros((num_rows, 2)), "say": "a" * num_rows},
        lambda num_rows: [{"move": np.zeros(2)}] * num_rows,
        lambda num_rows: [3] * num_rows,
    ]
    for answer in answers:
        policy = Odd(lambda observations, state, resets, rows, answer=answer: answer(len(rows)))
        with pytest.raises(ValueError, match=r"Odd.*rows"):
            collect(ScriptedEnv(action_space=COMPOSED), policy, 1)


def test_a_batch_policy_needs_no_state_and_may_return_what_it_likes_for_none() -> None:
    class Stateless(BatchPolicy):
        def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> tuple[Any, Any]:
            return zeros(observations, state, resets, rows), None

    assert_same_batch(content(collect(scripted(), Stateless(), 2)), content(collect(scripted(), Acting(zeros), 2)))


def test_envs_of_another_kind_and_misspelt_arguments_are_refused() -> None:
    for made in (ScriptedEnv, "CartPole-v1", [ScriptedEnv()], gymnasium.vector.SyncVectorEnv([ScriptedEnv] * 2)):
        wrong: Any = made
        with pytest.raises(TypeError, match=r"^envs=.* neither a ParallelEnvManager nor a gymnasium.Env"):
            collect(wrong, by_observation, 2)
    given: list[tuple[dict[str, Any], str]] = [
        ({"info_key": ["success"]}, r"info_key=\['success'\] is no argument of collect. Did you mean info_keys=\?"),
        ({"info_keys": 3}, "info_keys=3 is no list of names"),
    ]
    for arguments, words in given:
        with pytest.raises(TypeError, match=words):
            collect(ScriptedEnv(), by_observation, 2, **arguments)


def test_envs_and_tasks_that_do_not_go_together_are_refused_before_anything_runs(make: Make) -> None:
    envs = make([ByResetTask, Playing, ByResetTask])
    with pytest.raises(TypeError, match=r"Env 1.*task_setter"):
        collect(envs, by_observation, 4, tasks=[1, 2, 3, 4])
    assert envs.get_attr("episode") == (-1, -1, -1)
    with pytest.raises(TypeError, match="no way to take a task"):
        collect(Playing(), by_observation, 1, tasks=[1])
    envs = make([Modern] * 2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        collect(envs, by_observation, 5, tasks=[1, 2, 3, 4, {"lock": UNSENDABLE}])
    assert envs.get_attr("episode") == (-1, -1)


class Clueless(AgentPolicy):
    def __init__(self, attribute: Any = None) -> None:
        self.attribute = attribute

    def step(self, observation: Any) -> Any:
        return None


class OddPair(Acting):
    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        return self._act


def test_policies_that_answer_wrongly_or_cannot_be_copied_are_named() -> None:
    def clueless(observation: Any) -> Any:
        return np.zeros(2)

    with pytest.raises(ValueError, match=r"clueless.*shape"):
        collect(scripted(), clueless, 1)
    with pytest.raises(ValueError, match="Clueless"):
        collect(scripted(), Clueless(), 1)
    with pytest.raises(TypeError, match=r"Clueless.*cannot be copied.*each episode gets a copy"):
        collect(scripted(), Clueless(threading.Lock()), 1)
    for answer in (np.zeros(3), np.zeros((2, 1)), [0], (0,), (0, 0, 0), None):
        pair: Any = answer
        with pytest.raises(TypeError, match=r"(?s)OddPair.*\(actions, state\)"):
            collect(scripted(), OddPair(pair), 1)


def test_records_without_a_row_for_each_or_that_come_and_go_are_refused() -> None:
    def act(observations: Any, state: Any, resets: Any, rows: Any, column: Any = None) -> Any:
        if column is not None or resets[0]:
            rows.record(value=np.zeros(len(rows)) if column is None else column)
        return zeros(observations, state, resets, rows)

    for column in (np.zeros(7), np.zeros(()), 1.0):
        with pytest.raises(ValueError, match=r"Odd.*'value'"):
            collect(scripted(), Odd(partial(act, column=column)), 1)
    with pytest.raises(ValueError, match=r"Odd.*recorded \[\].*\['value'\]"):
        collect(scripted(), Odd(act), 2)
