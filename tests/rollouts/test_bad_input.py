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
from parallel_envs.policies import AgentPolicy
from parallel_envs.tasks import KEEP, RESAMPLE, FixedTasks, Task
from parallel_envs.testing import ScriptedEnv
from tests.rollouts.players import Acting, Counting, Remembering, by_observation, scripted, zeros
from tests.vector.conftest import Make
from tests.vector.task_envs import ByResetTask, Modern, Playing

UNSENDABLE = threading.Lock()


ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"num_rollouts": number}, ValueError, f"num_rollouts={number}") for number in (0, -1)),
    *(({"num_rollouts": number}, TypeError, f"num_rollouts={number!r}") for number in (1.5, True, "3")),
    ({"tasks": [1, 2]}, ValueError, "2 tasks.*num_rollouts=3"),
    ({"tasks": [1, 2, 3, 4]}, ValueError, "4 tasks.*num_rollouts=3"),
    ({"tasks": "abc"}, TypeError, "tasks='abc'"),
    ({"tasks": b"abc"}, TypeError, "tasks=b'abc'"),
    ({"tasks": {1, 2, 3}}, TypeError, "tasks="),
    ({"tasks": FixedTasks}, TypeError, "task source"),
    ({"tasks": [1, KEEP, 2]}, ValueError, "KEEP"),
    ({"tasks": [1, 2, RESAMPLE]}, ValueError, "RESAMPLE"),
    ({"tasks": [1, 2, UNSENDABLE]}, TypeError, "lock.*cannot be pickled"),
    ({"tasks": [Task(n and UNSENDABLE, n) for n in range(3)]}, TypeError, "pickled"),
    ({"tasks": FixedTasks([1, 2, UNSENDABLE])}, TypeError, "source.*cannot be copied"),
    ({"tasks": [1, 2, Task(3, "x")]}, ValueError, "number 'x'"),  # type: ignore[arg-type]
    ({"seed": -1}, ValueError, "seed=-1"),
    *(({"seed": seed}, TypeError, f"seed={seed}") for seed in (None, 0.5)),
    ({"first_id": -1}, ValueError, "first_id=-1"),
    *(({"first_id": number}, TypeError, f"first_id={number}") for number in (1.5, True)),
    ({"max_steps": 0}, ValueError, "max_steps=0"),
    ({"max_steps": 0.5}, TypeError, "max_steps=0.5"),
    ({"info_keys": "done_mdp"}, TypeError, r"info_keys='done_mdp'.*\['done_mdp'\]"),
    ({"info_keys": 3}, TypeError, "info_keys=3 is no list of names"),
    ({"info_key": ["x"]}, TypeError, r"info_key=\['x'\] is no argument of collect. Did you mean info_keys=\?"),
    ({"exact": 1}, TypeError, "exact=1"),
    ({"progress": "yes"}, TypeError, "progress='yes'"),
    ({"random_actions": None}, TypeError, "random_actions=None"),
    *(({"policy": policy}, TypeError, f"{policy} is not a policy") for policy in (None, 3)),
    *(({"policy": kind}, TypeError, f"{kind.__name__}.*is not a policy") for kind in (Counting, Remembering)),
]


def test_arguments_are_checked_before_anything_runs() -> None:
    with ParallelEnvManager([ByResetTask] * 2, backend="serial") as envs:
        for changed, kind, words in ARGUMENTS:
            arguments: dict[str, Any] = {"policy": by_observation, "num_rollouts": 3, **changed}
            for given in (envs, ByResetTask()):
                with pytest.raises(kind, match=words):
                    collect(given, **arguments)
        assert envs.get_attr("episode") == (-1, -1)


class Odd(Acting):
    """Named in errors."""


BAD_ACTIONS: list[tuple[Callable[[int], Any], str]] = [
    (lambda num_rows: None, "object"),
    (lambda num_rows: np.zeros(num_rows - 1, np.int64), "shape"),
    (lambda num_rows: np.zeros(num_rows + 1, np.int64), "shape"),
    (lambda num_rows: 0, "shape"),
    (lambda num_rows: np.zeros((num_rows, 1), np.int64), "shape"),
    (lambda num_rows: [], "shape"),
    (lambda num_rows: [np.zeros(2), *[0] * num_rows], "shape"),
    (lambda num_rows: {"a": np.zeros(num_rows)}, "object"),
    (lambda num_rows: np.full(num_rows, 0.5), "not whole numbers"),
    (lambda num_rows: np.full(num_rows, np.nan), "not whole numbers"),
    (lambda num_rows: ["left"] * num_rows, "numbers are wanted"),
]


@pytest.mark.parametrize("exact", [False, True])
def test_actions_that_do_not_fit_name_the_policy(exact: bool) -> None:
    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        for answer, words in BAD_ACTIONS:
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


def test_envs_of_another_kind_are_refused() -> None:
    for made in (ScriptedEnv, "CartPole-v1", [ScriptedEnv()], gymnasium.vector.SyncVectorEnv([ScriptedEnv] * 2)):
        wrong: Any = made
        with pytest.raises(TypeError, match=r"^envs=.* neither a ParallelEnvManager nor a gymnasium.Env"):
            collect(wrong, by_observation, 2)


def test_envs_and_tasks_that_do_not_go_together_are_refused_before_anything_runs(make_serial: Make) -> None:
    envs = make_serial([ByResetTask, Playing, ByResetTask])
    with pytest.raises(TypeError, match=r"Env 1.*task_setter"):
        collect(envs, by_observation, 4, tasks=[1, 2, 3, 4])
    assert envs.get_attr("episode") == (-1, -1, -1)
    with pytest.raises(TypeError, match="no way to take a task"):
        collect(Playing(), by_observation, 1, tasks=[1])
    envs = make_serial([Modern] * 2)
    with pytest.raises(TypeError, match="cannot be pickled"):
        collect(envs, by_observation, 5, tasks=[1, 2, 3, 4, {"lock": UNSENDABLE}])
    assert envs.get_attr("episode") == (-1, -1)


def test_policies_that_answer_wrongly_or_cannot_be_copied_are_named() -> None:
    class Clueless(AgentPolicy):
        def __init__(self, attribute: Any = None) -> None:
            self.attribute = attribute

        def step(self, observation: Any) -> Any:
            return None

    class OddPair(Acting):
        def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> Any:
            return self._act

    def clueless(observation: Any) -> Any:
        return np.zeros(2)

    wrong: list[tuple[Any, type[Exception], str]] = [
        (clueless, ValueError, r"clueless.*shape"),
        (Clueless(), ValueError, "Clueless"),
        (Clueless(threading.Lock()), TypeError, r"Clueless.*cannot be copied.*each episode gets a copy"),
    ]
    answers: list[Any] = [np.zeros(3), np.zeros((2, 1)), [0], (0,), (0, 0, 0), None]
    wrong += [(OddPair(answer), TypeError, r"(?s)OddPair.*\(actions, state\)") for answer in answers]
    for policy, kind, words in wrong:
        with pytest.raises(kind, match=words):
            collect(scripted(), policy, 1)


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
