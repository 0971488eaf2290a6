"""What goes wrong in an episode is told in its record, and changes no other (every kind of fault: `tests/faults`)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation import BadEvaluation, EvaluationResult, Mission, evaluate, running
from parallel_envs.evaluation.episode import EpisodeSpec
from parallel_envs.policies import AgentPolicy, PolicySpec
from tests.evaluation.stages import Counting, Course, Failing

FATAL, SEED = 7, 42


def course(fault: str, **kwargs: Any) -> Mission:
    """A mission whose episode 7 breaks."""
    seed = EpisodeSpec("course", FATAL, SEED).env_seed
    return Mission(name="course", env=Course, kwargs={"fault": fault, "fatal_seed": seed, **kwargs})


def twenty(fault: str, jobs: int, **kwargs: Any) -> EvaluationResult:
    return evaluate(course(fault, **kwargs), {"it": Counting()}, 20, jobs=jobs, seed=SEED)


@pytest.fixture(scope="module")
def unharmed() -> EvaluationResult:
    return twenty("", 0)


@pytest.mark.parametrize(("fault", "error"), [("raise", "ValueError: injected"), ("system_exit", "SystemExit: 3")])
def test_an_env_that_breaks_in_episode_7_of_20(unharmed: EvaluationResult, fault: str, error: str) -> None:
    found = twenty(fault, 0)
    (broken,) = found.failures
    assert (broken.key, broken.attempts, broken.score) == (("course", FATAL), 2, None)
    assert broken.failure is not None
    assert (broken.failure.kind, f"{broken.failure.error_type}: {broken.failure.message}") == ("env", error)
    expected = unharmed.episodes[FATAL]
    assert (broken.seed, broken.assignment) == (expected.seed, expected.assignment)
    assert found.episodes[:FATAL] + found.episodes[FATAL + 1 :] == (
        unharmed.episodes[:FATAL] + unharmed.episodes[FATAL + 1 :]
    )


@pytest.mark.parametrize(("fault", "jobs"), [("raise", 0), ("kill", 2)])
def test_the_second_try_counts(unharmed: EvaluationResult, tmp_path: Path, fault: str, jobs: int) -> None:
    found = twenty(fault, jobs, once=str(tmp_path / "once"))
    assert found.failures == ()
    assert [record.attempts for record in found.episodes] == [2 if episode == FATAL else 1 for episode in range(20)]
    assert [record.returns for record in found.episodes] == [record.returns for record in unharmed.episodes]


@pytest.mark.parametrize(
    ("how", "jobs", "strategy", "kind", "error"),
    [
        ("raise", 0, "sequential", "policy", "ValueError"),
        ("raise", 0, "thread", "policy", "ValueError"),
        ("system_exit", 0, "sequential", "policy", "SystemExit"),
        ("system_exit", 0, "thread", "policy", "SystemExit"),
        ("nonsense", 0, "thread", "nonsense", "ValueError"),
        ("nonsense", 1, "sequential", "nonsense", "ValueError"),
        ("exit", 1, "sequential", "death", "WorkerDied"),
        ("exit", 2, "process", "policy", "WorkerDied"),
    ],
)
def test_a_policy_that_fails_fails_all_its_episodes(how: str, jobs: int, strategy: Any, kind: str, error: str) -> None:
    mission = Mission(name="m", env=Course, kwargs={"agents": ("blue",)})
    spec = PolicySpec("tests.evaluation.stages:Failing", kwargs={"how": how, "at": 4 if strategy == "process" else 3})
    found = evaluate(mission, {"bad": spec}, 1 if strategy == "process" else 2, jobs=jobs, strategy=strategy)
    for record in found.episodes:
        assert record.failure is not None
        assert (record.attempts, record.failure.kind, record.failure.error_type) == (2, kind, error)
        assert "revive" not in record.failure.message + record.failure.traceback, "advice for users of wrappers"
        if error != "WorkerDied":
            assert "step 2" in record.failure.where
            assert "blue" in record.failure.where + record.failure.message
            assert kind == "nonsense" or "in fail" in record.failure.traceback
        elif strategy == "process":
            assert "ended with exit code" in record.failure.message


class Poisonous(Course):
    """What goes wrong once in a process goes wrong in it for ever."""

    def step(self, actions: Any) -> Any:
        if not Path(str(self.once)).exists():
            Path(str(self.once)).touch()
            os.environ["POISONED"] = "yes"
        if "POISONED" in os.environ:
            raise ValueError("injected")
        return super().step(actions)


def test_the_second_try_is_made_in_a_fresh_worker(tmp_path: Path) -> None:
    mission = Mission(name="m", env=Poisonous, kwargs={"once": str(tmp_path / "once")})
    found = evaluate(mission, "noop", 3, jobs=1)
    assert [(record.attempts, record.failure) for record in found.episodes] == [(2, None), (1, None), (1, None)]


@pytest.mark.parametrize("hanging", ["policy, once", "env, twice"])
def test_what_hangs_is_ended_and_told_with_the_place(
    tmp_path: Path, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(running, "_FRESH_GRACE_SECONDS", 1.0)
    once = str(tmp_path / "once") if "once" in hanging else None
    mission = Mission(name="m", env=Course, kwargs={} if once else {"fault": "hang"})
    policy = Failing("hang", at=4, once=once) if once else "noop"
    found = evaluate(mission, policy, 3 if once else 1, jobs=1, episode_timeout=1.0 if once else 0.3)
    assert sorted(record.attempts for record in found.episodes) == ([1, 1, 2] if once else [2])
    failures = [record.failure for record in found.failures]
    assert len(failures) == (0 if once else 1)
    for failure in failures:
        assert failure is not None
        assert "stages.py" in failure.traceback
        assert "/engine/" not in failure.traceback


def test_strict_raises_with_what_is_complete_and_has_saved_it(tmp_path: Path) -> None:
    text, file = "Episode 7 of 'course' failed 2 times, by the fault of its env", tmp_path / "r.json"
    with pytest.raises(EpisodeFailed, match=text) as raised:
        evaluate(course("raise"), "noop", 20, seed=SEED, strict=True, save=file)
    assert raised.value.record.key == ("course", FATAL)
    assert [record.episode for record in raised.value.result.episodes] == list(range(FATAL + 1))
    assert len(raised.value.result.missing) == 12
    assert EvaluationResult.from_json(file).episodes == raised.value.result.episodes


class Leaking(AgentPolicy):
    """Starts what does not end, and fills what everybody shares."""

    everything: list[Any] = []  # noqa: RUF012  # what is wrong with it is the point

    def step(self, observation: Any) -> int:
        self.everything.append(observation)
        if len(self.everything) == 1 and os.fork() == 0:
            time.sleep(3600)
        os.open(os.devnull, os.O_RDONLY)
        return len(self.everything) % 5


def test_what_a_policy_leaves_behind_ends_with_its_worker() -> None:
    found = evaluate(Course, Leaking(), 4, jobs=2)  # the check around every test sees processes and descriptors
    assert found.failures == ()


def fatal_arrival(folder: str, deaths: int) -> Any:
    """End the process, as often as is asked for in all; later return a policy. Each death leaves a file."""
    for number in range(deaths):
        if not (place := Path(folder) / str(number)).exists():
            place.touch()
            os._exit(23)
    return Counting()


class Fatal(Counting):
    """A policy that ends the worker in which it arrives."""

    def __init__(self, folder: Path, deaths: int) -> None:
        super().__init__()
        self._arguments = str(folder), deaths

    def __reduce__(self) -> Any:
        return fatal_arrival, self._arguments


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_that_dies_as_it_begins_is_replaced_once(tmp_path: Path, jobs: int) -> None:
    result = evaluate(Course, {"it": Fatal(tmp_path, 1)}, 4, jobs=jobs)
    assert [one.score for one in result.episodes] == [one.score for one in evaluate(Course, Counting(), 4).episodes]
    assert (tmp_path / "0").exists()
    with pytest.raises(BadEvaluation, match=r"Workers cannot start \(WorkerDied.*exit code 23"):
        evaluate(Course, {"it": Fatal(tmp_path, 1000)}, 4, jobs=jobs)


def dawdling(observation: Any) -> int:
    time.sleep(0.3)
    return 0


def test_a_long_episode_is_warned_of_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_LONG_SECONDS", "_GRACE_SECONDS", "_FRESH_GRACE_SECONDS"):
        monkeypatch.setattr(running, name, 0.25)
    mission = Mission(name="m", env=Course, kwargs={"agents": ("one",), "length": 3})
    found = evaluate(mission, {"it": dawdling}, 1, jobs=1)
    assert found.failures == ()
    assert caplog.text.count("Episode 0 of 'm' has been running in worker 0") == 1
    assert "give episode_timeout (--episode-timeout)" in caplog.text
