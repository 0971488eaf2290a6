"""`evaluate` itself: what is asked, what is told, and what it leaves as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from threadpoolctl import threadpool_info

import parallel_envs
from parallel_envs.choices import Strategy
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult, evaluate
from parallel_envs.evaluation.config import check_jobs, split_jobs, strategies_of
from parallel_envs.evaluation.determinism import one_thread
from parallel_envs.policies import AgentPolicy, MultiAgentPolicy, PolicySpec
from tests.evaluation.stages import Counting, Course


def test_it_is_a_name_of_the_package() -> None:
    assert parallel_envs.evaluate is evaluate


def test_settings_tell_what_the_numbers_depend_on() -> None:
    found = evaluate("CartPole-v1?sutton_barto_reward=true", ["random"], 2, seed=3, max_steps=20, info_keys=["a"])
    assert found.settings == {
        "missions": {
            "CartPole-v1?sutton_barto_reward=true": {
                "env": "CartPole-v1",
                "kwargs": {"sutton_barto_reward": True},
                "turns": "simultaneous",
            }
        },
        "policies": {
            "random": {
                "class": "parallel_envs.policies:RandomAgent",
                "data": None,
                "kwargs": {},
                "proportion": 1.0,
            }
        },
        "parallel_policy": "sequential",
        "strategy": None,
        "action_timeout": None,
        "lateness_budget": 5.0,
        "episode_timeout": None,
        "max_steps": 20,
        "info_keys": ["a"],
        "episodes": 2,
        "seed": 3,
    }
    assert found.policies == ("random",)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"episodes": 0}, "episodes=0 is not a whole number from 1 up"),
        ({"episodes": 1.5}, "episodes=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"jobs": -1}, "jobs=-1"),
        ({"jobs": "all"}, "jobs='all' is neither"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"action_timeout": 0}, "action_timeout=0 is not a number of seconds"),
        ({"lateness_budget": float("nan")}, "lateness_budget=nan"),
        ({"episode_timeout": "soon"}, "episode_timeout='soon'"),
        ({"parallel_policy": "proces"}, "parallel_policy='proces' is unknown"),
        ({"parallel_policy": 3}, "parallel_policy=3"),
        ({"parallel_policy": "process", "jobs": 1}, "jobs=1 is one process, .* Give jobs=2 or more, or jobs=0"),
        ({"strategy": {"red": "process"}, "jobs": 1}, "jobs=1 is one process"),
        ({"parallel_policy": True, "strategy": "batch"}, "both name a strategy for all agents"),
        ({"strategy": 3}, "strategy=3 is neither a name nor a dict"),
        ({"strategy": {"red": "proces"}}, "strategy='proces' of the agent 'red' is unknown.*Did you mean 'process'"),
        (
            {"strategy": {"rde": "thread"}},
            "strategy names the agent 'rde'.* the agents are 'red', 'blue', 'green'. Did you mean 'red'",
        ),
        ({"num_agents": 0}, "num_agents=0 is not a whole number from 1 up"),
        ({"info_keys": "score"}, "Give a list of names"),
        ({"proportions": [1, 1]}, "2 proportions were given for 1 policies"),
    ],
)
def test_what_cannot_be_asked(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        evaluate(Course, "noop", **settings)


@pytest.mark.parametrize("jobs", [0, 1])
def test_trajectories_can_be_handed_on_as_episodes_end(jobs: int) -> None:
    handed: list[EpisodeRecord] = []
    found = evaluate({"m": Course}, Counting(), 3, jobs=jobs, trajectories=handed.append)
    assert found == evaluate({"m": Course}, Counting(), 3), "nothing stays in memory"
    whole = evaluate({"m": Course}, Counting(), 3, trajectories=True)
    assert [one.returns for one in handed] == [one.returns for one in whole.episodes]
    assert [one.trajectory and one.trajectory.rewards for one in handed] == [
        one.trajectory and one.trajectory.rewards for one in whole.episodes
    ]
    assert all(one.trajectory is not None for one in handed)


def test_a_mission_without_agents_is_refused() -> None:
    with pytest.raises(BadEvaluation, match="The mission 'empty' begins without agents"):
        evaluate({"empty": lambda: Course(agents=())}, "random", 1)


def test_what_a_user_takes_from_the_environments_variables_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with one_thread():
        del os.environ["OMP_NUM_THREADS"]
    assert "OMP_NUM_THREADS" not in os.environ


def test_what_cannot_travel_is_named() -> None:
    class Locked(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(BadEvaluation, match=r"policy 'mine' cannot be sent to workers: policy\.lock"):
        evaluate(Course, {"mine": Locked()}, jobs=1)
    lock = threading.Lock()
    with pytest.raises(BadEvaluation, match="mission 'm' cannot be sent to workers"):
        evaluate({"m": lambda: Course(length=id(lock))}, "noop", jobs=1)


@pytest.mark.parametrize(
    ("jobs", "num_episodes", "num_cores", "expected"),
    [
        (0, 9, 4, 0),
        (3, 9, 4, 3),
        (16, 9, 4, 16),
        ("auto", 9, 4, 4),
        ("auto", 3, 4, 3),
        ("auto", 1, 4, 0),
        ("auto", 9, 1, 0),
    ],
)
def test_how_many_workers(jobs: Any, num_episodes: int, num_cores: int, expected: int) -> None:
    assert check_jobs(jobs, num_episodes, num_cores) == expected


def test_no_more_workers_than_episodes() -> None:
    found = evaluate(Course, "noop", 2, jobs=16)
    assert len(found.worker_bytes) == 2
    assert all(10 << 20 < num_bytes < 10 << 30 for num_bytes in found.worker_bytes)
    assert evaluate(Course, "noop", 2).worker_bytes == ()


@pytest.mark.parametrize(
    ("given", "expected"), [(False, "sequential"), (True, "auto"), ("thread", "thread"), ("process", "process")]
)
def test_strategies_by_name(given: Any, expected: str) -> None:
    assert strategies_of(given, None) == (expected, {})


@pytest.mark.parametrize(
    ("strategies", "jobs", "num_episodes", "expected"),
    [
        (["sequential", "thread"], 4, 10, (4, 0)),
        (["sequential"], 16, 3, (3, 0)),
        (["auto"], 4, 10, (4, 0)),  # episodes come first
        (["auto"], 4, 2, (2, 1)),  # and agents share what is left
        (["auto", "batch"], 8, 3, (3, 1)),
        (["process"], 4, 10, (2, 1)),
        (["process", "auto"], 2, 10, (1, 1)),
        (["process"], 9, 2, (2, 3)),
        (["process"], 9, 0, (0, 0)),
        (["process"], 0, 10, (0, 0)),
    ],
)
def test_episodes_and_agents_share_the_jobs(
    strategies: list[str], jobs: int, num_episodes: int, expected: tuple[int, int]
) -> None:
    workers, own = split_jobs(strategies, jobs, num_episodes)
    assert (workers, own) == expected
    assert workers * (1 + own) <= jobs


@pytest.mark.parametrize(("jobs", "episodes", "strategy"), [(4, 5, "process"), (4, 1, "process"), (3, 5, "auto")])
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


@pytest.mark.parametrize("jobs", [0, 4])
def test_each_agent_has_a_strategy_of_its_own(jobs: int, tmp_path: Path) -> None:
    plain = evaluate({"m": Course}, Counting(), 3)
    asked: dict[str, Strategy] = {"red": "process", "green": "auto", "blue": "thread"}
    policies = PolicySpec("tests.evaluation.stages:Counting")
    found = evaluate({"m": Course}, {"Counting": policies}, 3, jobs=jobs, strategy=asked, save=tmp_path / "r.json")
    assert [one.returns for one in found.episodes] == [one.returns for one in plain.episodes]
    assert found.settings["strategy"] == asked
    named = found.strategies["m"]
    assert (named["red"], named["blue"]) == ("process", "thread")
    assert named["green"] in ("sequential", "batch")
    assert f"{named['green']} (" in found.why["m"]
    read = EvaluationResult.from_json(tmp_path / "r.json")
    assert (read.strategies, read.why) == (found.strategies, found.why)
    table = " ".join(found.to_table().split())
    assert "Strategies in m: process: red; " in table
    assert found.why["m"] in table
    assert "Strategies" not in plain.to_table()
    assert plain.strategies == {"m": dict.fromkeys(("red", "blue", "green"), "sequential")}
    again = evaluate({"m": Course}, {"Counting": policies}, 4, strategy=asked, resume=tmp_path / "r.json")
    assert again.episodes[:3] == found.episodes
    with pytest.raises(BadEvaluation, match="was made with strategy="):
        evaluate({"m": Course}, {"Counting": policies}, 4, resume=tmp_path / "r.json")


def test_a_policy_that_cannot_be_pickled_is_told_to_act_here() -> None:
    with pytest.warns(RuntimeWarning, match="cannot be pickled"):
        found = evaluate(
            {"m": Course},
            {"locked": PolicySpec("tests.evaluation.test_evaluating:Unpicklable")},
            1,
            parallel_policy="process",
        )
    assert set(found.strategies["m"].values()) == {"sequential"}
    assert found.why["m"] == "Not in processes, since their policies cannot be pickled: red, blue, green."


class Unpicklable(AgentPolicy):
    def __init__(self) -> None:
        self.events = (one for one in "abc")

    def __deepcopy__(self, memo: Any) -> Unpicklable:
        return Unpicklable()

    def step(self, observation: Any) -> int:
        return 1


def test_agents_that_share_something_have_one_strategy() -> None:
    with pytest.raises(BadEvaluation, match=r"share an object, but their strategies are \['process', 'sequential'\]"):
        evaluate({"m": Course}, SharedMemory(), 1, strategy={"red": "process"})


class SharedMemory(MultiAgentPolicy):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def agent_policy(self, agent: Any) -> AgentPolicy:
        return Remembering(self.seen)


class Remembering(AgentPolicy):
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def step(self, observation: Any) -> int:
        return 0


def test_the_caller_has_as_many_threads_afterwards_as_before() -> None:
    during: list[set[int]] = []
    variables: list[str | None] = []

    def looking(observation: Any) -> int:
        during.append({one["num_threads"] for one in threadpool_info()})
        variables.append(os.environ.get("OMP_NUM_THREADS"))
        return 0

    np.ones((2, 2)) @ np.ones((2, 2))
    before, environment = threadpool_info(), dict(os.environ)
    evaluate({"m": lambda: Course(length=2)}, {"it": Looking(looking)}, 1)
    assert during
    assert all(found <= {1} for found in during)
    assert set(variables) == {"1"}
    assert threadpool_info() == before
    assert dict(os.environ) == environment


class Looking:
    """Cannot be copied to what is another function: the list is to be the test's."""

    def __init__(self, look: Callable[[Any], int]) -> None:
        self.look = look

    def step(self, observation: Any) -> int:
        return self.look(observation)


def test_torch_has_as_many_threads_afterwards_as_before() -> None:
    torch = pytest.importorskip("torch")
    own = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(own)


class Cart(CartPoleEnv):
    """Registered by this script, and by no package."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class ManyThreads(AgentPolicy):
    """Wants torch to use as many threads as it likes."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(3)

    def step(self, observation: Any) -> int:
        import torch

        return int(torch.get_num_threads())


def test_no_policy_has_torch_use_more_threads() -> None:
    torch = pytest.importorskip("torch")
    own = torch.get_num_threads()
    spec = PolicySpec("tests.evaluation.test_evaluating:ManyThreads")
    found = evaluate({"m": lambda: Course(agents=("red",))}, spec, 1, trajectories=True)
    (record,) = found.episodes
    assert record.trajectory is not None
    assert {action["red"] for action in record.trajectory.actions} == {1}
    assert torch.get_num_threads() == own


def test_workers_know_what_the_script_has_registered() -> None:
    gymnasium.register("evaluation_tests/Cart-v0", Cart)
    try:
        found = [evaluate("evaluation_tests/Cart-v0", "random", 3, jobs=jobs).episodes for jobs in (0, 1)]
        assert found[0] == found[1]
        assert all(record.failure is None for record in found[0])
    finally:
        del gymnasium.registry["evaluation_tests/Cart-v0"]


def test_results_come_in_the_order_of_the_list_and_progress_as_they_end() -> None:
    class Noting:
        def __init__(self) -> None:
            self.keys: list[Any] = []

        def begin(self, work: Any, done: Any) -> None:
            self.work = list(work)

        def note(self, record: Any) -> None:
            self.keys.append(record.key)

    progress = Noting()
    missions = {"long": lambda: Course(length=400), "short": lambda: Course(length=2)}
    found = evaluate(missions, "noop", 4, jobs=2, progress=progress)
    assert [record.key for record in found.episodes] == progress.work
    assert sorted(progress.keys) == sorted(progress.work)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"info_keys": 3}, "info_keys=3 is not a list of names"),
        ({"info_keys": [3]}, "info_keys=.3. is not a list"),
        ({"preload": "torch"}, "preload='torch' is a string"),
        ({"preload": ["no_such_module"]}, "cannot be found"),
        ({"preload": ["no_such_package.module"]}, "cannot be found"),
    ],
    ids=repr,
)
def test_names_that_are_none_are_refused(asked: dict[str, Any], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        evaluate("CartPole-v1", "random", 1, **asked)


def test_whole_numbers_may_be_numpys() -> None:
    numbers: dict[str, Any] = {
        "episodes": np.int64(2),
        "seed": np.int32(3),
        "max_steps": np.int64(20),
        "jobs": np.int8(0),
    }
    found = evaluate("CartPole-v1", "random", **numbers)
    assert found == evaluate("CartPole-v1", "random", 2, seed=3, max_steps=20)
