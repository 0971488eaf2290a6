"""`evaluate` itself: its queues and processes, its settings, and what it leaves as it was."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from threadpoolctl import threadpool_info

import parallel_envs
from parallel_envs.choices import Strategy
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult, Failure, candidates_of, evaluate
from parallel_envs.evaluation.determinism import one_thread
from parallel_envs.evaluation.episode import MissionKey, episode_specs
from parallel_envs.evaluation.evaluate import check_jobs, split_jobs
from parallel_envs.evaluation.records import EvaluationConfig
from parallel_envs.evaluation.running import EpisodeQueue, Rehearsal, RehearsalQueue
from parallel_envs.policies import AgentPolicy, PolicySpec
from tests.evaluation.stages import Counting, Course
from tests.test_examples import output_of


def test_settings_are_what_the_numbers_depend_on() -> None:
    assert parallel_envs.evaluate is evaluate
    name = "CartPole-v1?sutton_barto_reward=true"
    found = evaluate(name, ["random"], 2, seed=3, max_steps=20, info_keys=["a"])
    mission = {"env": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}, "turns": "simultaneous"}
    policy: Any = {"class": "parallel_envs.policies:RandomAgent", "data": None, "kwargs": {}, "proportion": 1.0}
    assert found.settings == {
        "missions": {name: mission},
        "policies": {"random": policy},
        "parallel_policy": "sequential",
        "strategy": None,
        "info_keys": ["a"],
        "action_timeout": None,
        "lateness_budget": 5.0,
        "episode_timeout": None,
        "max_steps": 20,
        "episodes": 2,
        "seed": 3,
    }
    assert found.policies == ("random",)
    numpys: Any = {"episodes": np.int64(2), "seed": np.int32(3), "max_steps": np.int64(20), "jobs": np.int8(0)}
    assert found == evaluate(name, "random", info_keys=["a"], **numpys)


@pytest.mark.parametrize("jobs", [0, 1])
def test_trajectories_can_be_handed_on_as_episodes_end(jobs: int) -> None:
    handed: list[EpisodeRecord] = []
    found = evaluate({"m": Course}, Counting(), 3, jobs=jobs, trajectories=handed.append)
    assert found == evaluate({"m": Course}, Counting(), 3), "nothing stays in memory"
    whole = evaluate({"m": Course}, Counting(), 3, trajectories=True)
    for one, other in zip(handed, whole.episodes, strict=True):
        assert one.returns == other.returns
        assert one.trajectory is not None
        assert other.trajectory is not None
        assert one.trajectory.rewards == other.trajectory.rewards


def test_results_come_in_the_order_of_the_list_and_progress_as_they_end() -> None:
    progress = Mock()
    missions = {"long": lambda: Course(length=400), "short": lambda: Course(length=2)}
    found = evaluate(missions, "noop", 4, jobs=2, progress=progress)
    ((work, _),) = [call.args for call in progress.begin.call_args_list]
    assert [record.key for record in found.episodes] == list(work)
    assert sorted(call.args[0].key for call in progress.note.call_args_list) == sorted(work)


# ---- the queues of work: no worker is needed for that ----------------------------------------------------------------


def taken(work: Any) -> tuple[Any, ...]:
    task = work.next()
    assert task is not None
    return task  # type: ignore[no-any-return]  # of either kind of work


def test_each_mission_is_rehearsed_no_worker_is_idle_and_the_first_answer_counts() -> None:
    for num_workers, expected in ((1, "ab"), (2, "ab"), (3, "aba"), (5, "ababa")):
        work = RehearsalQueue(episode_specs("ab", 2, 0), EvaluationConfig(), num_workers)
        assert [taken(work)[0].key for _ in expected] == [(name, 0) for name in expected]
        assert work.next() is None
    work = RehearsalQueue(episode_specs("a", 2, 0), EvaluationConfig(strategy="auto"), 2)
    first, second = taken(work), taken(work)
    assert not work.finish(second, Rehearsal(mission="a", strategy="batch"))
    assert not work.finish(first, Rehearsal(mission="a", strategy="thread"))
    assert work.results["a"].strategy == "batch"
    choices: list[tuple[Strategy, Strategy]] = [("auto", "sequential"), ("thread", "thread")]
    for asked, left in choices:  # a worker that dies says nothing
        work = RehearsalQueue(episode_specs("a", 2, 0), EvaluationConfig(strategy=asked), 1)
        dead = Failure(kind="death", error_type="WorkerDied", message="killed")
        assert work.finish(taken(work), None, dead), "the worker is not to be trusted"
        assert work.results["a"].strategy == left
        work.check(candidates_of("random"))


def queue(names: str, *, side_by_side: bool) -> EpisodeQueue:
    rehearsals: dict[MissionKey, Rehearsal] = {name: Rehearsal(mission=name, agents=("red", "blue")) for name in names}
    specs, candidates = episode_specs(names, 2, 0), candidates_of(["random", "noop"])
    return EpisodeQueue(specs, rehearsals, candidates, lambda record: None, strict=False, side_by_side=side_by_side)


def test_episodes_are_begun_one_of_each_mission_then_the_longest_and_what_failed_at_once() -> None:
    work = queue("abc", side_by_side=True)
    first = [taken(work) for _ in range(3)]
    assert [task[0].key for task in first] == [("a", 0), ("b", 0), ("c", 0)]
    for task, seconds in zip(first, (1.0, 9.0, 5.0), strict=True):
        work.finish(task, EpisodeRecord(mission=task[0].mission, episode=0, seed=0, seconds=seconds))
    task = taken(work)
    failure = Failure(kind="env", error_type="ValueError", message="injected", where="step 2")
    broken = EpisodeRecord(mission="b", episode=1, seed=0, failure=failure)
    assert work.finish(task, broken), "the second try wants a fresh worker"
    assert taken(work) == (*task[:2], 2)
    assert [task[0].key, *(taken(work)[0].key for _ in range(2))] == [("b", 1), ("c", 1), ("a", 1)]
    assert work.next() is None
    work = queue("ab", side_by_side=False)
    assert [taken(work)[0].key for _ in range(4)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


# ---- processes -------------------------------------------------------------------------------------------------------


def test_episodes_and_agents_share_the_jobs() -> None:
    for jobs, num_episodes, num_cores, num_workers in (
        *((0, 9, 4, 0), (16, 9, 4, 16), ("auto", 9, 4, 4)),
        *(("auto", 3, 4, 3), ("auto", 1, 4, 0), ("auto", 9, 1, 0)),
    ):
        assert check_jobs(jobs, num_episodes, num_cores) == num_workers
    for strategy, num_jobs, num_episodes, expected in (
        *(("thread", 4, 10, (4, 0)), ("sequential", 16, 3, (3, 0))),
        *(("auto", 4, 10, (4, 0)), ("auto", 4, 2, (2, 1))),  # episodes come first, and agents share what is left
        *(("process", 4, 10, (2, 1)), ("process", 9, 2, (2, 3)), ("process", 9, 0, (0, 0)), ("process", 0, 10, (0, 0))),
    ):
        assert split_jobs([strategy, "sequential"], num_jobs, num_episodes) == expected
    num_bytes = evaluate(Course, "noop", 2, jobs=16).worker_bytes
    assert [10 << 20 < one < 10 << 30 for one in num_bytes] == [True, True]
    assert evaluate(Course, "noop", 2).worker_bytes == ()


@pytest.mark.parametrize(("jobs", "episodes", "strategy"), [(4, 5, "process"), (3, 5, "auto")])
def test_no_more_processes_work_than_there_are_jobs(
    jobs: int, episodes: int, strategy: Strategy, tmp_path: Path
) -> None:
    def act(observation: Any) -> int:
        (tmp_path / f"policy {os.getpid()}").touch()
        return 0

    class Noting(Course):
        def step(self, actions: Any) -> Any:
            (tmp_path / f"env {os.getpid()}").touch()
            return super().step(actions)

    found = evaluate({"m": Noting}, {"it": act}, episodes, jobs=jobs, parallel_policy=strategy)
    assert found.failures == ()
    seen = [path.name.split() for path in tmp_path.iterdir()]
    assert len({pid for _, pid in seen} - {str(os.getpid())}) <= jobs
    if strategy == "process":
        envs, policies = ({pid for kind, pid in seen if kind == wanted} for wanted in ("env", "policy"))
        assert policies - envs, "agents acted in processes of their own"


def test_a_process_of_agents_that_dies_costs_its_episode_one_attempt(tmp_path: Path) -> None:
    class Noting(Course):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            (tmp_path / f"env {os.getpid()}").touch()
            return super().reset(seed, options)

    def dying_once(observation: Any) -> int:
        if not (tmp_path / f"env {os.getpid()}").exists():
            with contextlib.suppress(FileExistsError):
                (tmp_path / "burnt").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return 0

    found = evaluate({"m": Noting}, {"it": dying_once}, 4, jobs=4, parallel_policy="process")
    assert found.failures == ()
    assert sorted(record.attempts for record in found.episodes) == [1, 1, 1, 2]


@pytest.mark.parametrize("jobs", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_each_agent_has_a_strategy_of_its_own(jobs: int, tmp_path: Path) -> None:
    plain, file = evaluate({"m": Course}, Counting(), 3), tmp_path / "r.json"
    asked: dict[str, Strategy] = {"red": "process", "green": "auto", "blue": "thread"}
    policies = {"Counting": PolicySpec("tests.evaluation.stages:Counting")}
    found = evaluate({"m": Course}, policies, 3, jobs=jobs, strategy=asked, save=file)
    assert [one.returns for one in found.episodes] == [one.returns for one in plain.episodes]
    named = found.strategies["m"]
    assert (named["red"], named["blue"]) == ("process", "thread")
    assert f"{named['green']} (" in found.why["m"]
    read = EvaluationResult.from_json(file)
    assert (read.strategies, read.why, read.settings["strategy"]) == (found.strategies, found.why, asked)
    table = " ".join(found.to_table().split())
    assert "Strategies in m: process: red; " in table
    assert found.why["m"] in table
    assert "Strategies" not in plain.to_table()
    assert plain.strategies == {"m": dict.fromkeys(("red", "blue", "green"), "sequential")}
    with pytest.raises(BadEvaluation, match="was made with strategy="):
        evaluate({"m": Course}, policies, 4, resume=file)


class Unpicklable(AgentPolicy):
    def __init__(self) -> None:
        self.events = (one for one in "abc")

    def __deepcopy__(self, memo: Any) -> Unpicklable:
        return Unpicklable()

    def step(self, observation: Any) -> int:
        return 1


def test_a_policy_that_cannot_be_pickled_acts_in_the_process_of_its_env() -> None:
    policies = {"locked": PolicySpec(f"{__name__}:Unpicklable")}
    with pytest.warns(RuntimeWarning, match="cannot be pickled"):
        found = evaluate({"m": Course}, policies, 1, parallel_policy="process")
    assert set(found.strategies["m"].values()) == {"sequential"}
    assert found.why["m"] == "Not in processes, since their policies cannot be pickled: red, blue, green."


class Cart(CartPoleEnv):
    """Registered by this script, and by no package."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


def test_workers_know_what_the_script_has_registered() -> None:
    gymnasium.register("evaluation_tests/Cart-v0", Cart)
    try:
        found = [evaluate("evaluation_tests/Cart-v0", "random", 3, jobs=jobs) for jobs in (0, 1)]
        assert found[0] == found[1]
        assert found[0].failures == ()
    finally:
        del gymnasium.registry["evaluation_tests/Cart-v0"]


# ---- threads ---------------------------------------------------------------------------------------------------------


class Threads(AgentPolicy):
    """Wants torch to use 3 threads; acts by how many there are in torch and elsewhere, and by OMP_NUM_THREADS."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(3)

    def step(self, observation: Any) -> int:
        import torch

        np.ones((2, 2)) @ np.ones((2, 2))
        elsewhere = {one["num_threads"] for one in threadpool_info()} <= {1}
        return int(elsewhere and os.environ["OMP_NUM_THREADS"] == "1" and torch.get_num_threads() == 1)


def test_policies_have_one_thread_and_the_caller_as_many_afterwards_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    own = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        np.ones((2, 2)) @ np.ones((2, 2))
        before, environment = threadpool_info(), dict(os.environ)
        mission = {"m": lambda: Course(agents=("red",))}
        (record,) = evaluate(mission, PolicySpec(f"{__name__}:Threads"), 1, trajectories=True).episodes
        assert record.trajectory is not None
        assert {action["red"] for action in record.trajectory.actions} == {1}
        assert torch.get_num_threads() == 2
        assert threadpool_info() == before
        assert dict(os.environ) == environment
    finally:
        torch.set_num_threads(own)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with one_thread():
        del os.environ["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in os.environ, "a variable that a user removed stays removed"


@pytest.mark.slow
def test_the_example_compares_policies_and_has_the_same_numbers_without_workers() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("evaluate_policies.py", "--episodes", "3")
    assert "the same numbers without workers: yes" in shown
    assert (found := re.search(r"nearest - random, episode by episode: \+(\d+\.\d+)", shown)) is not None
    assert float(found[1]) > 5.0
    assert all(f"'{name}'" in shown for name in ("nearest", "own", "random"))
