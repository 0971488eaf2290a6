"""One episode: what its record tells, and who is to blame where it fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_envs.evaluation.config import EvaluationConfig
from parallel_envs.evaluation.episode import EpisodeContext, EpisodeSpec, assignment, play_episode
from parallel_envs.evaluation.missions import EnvMaker, Mission
from parallel_envs.evaluation.policies import PolicyTemplates, candidates_of
from parallel_envs.evaluation.records import EpisodeRecord
from parallel_envs.policies import AgentPolicy, PolicySpec
from parallel_envs.testing import ScriptedAgentsEnv, Stay
from tests.evaluation.stages import AGENTS, Course, Drawing, Failing

ORDER = EpisodeSpec("course", 0, 42)


def played(
    make: Callable[..., Any] = Course,
    policies: Any = "random",
    order: EpisodeSpec = ORDER,
    watch: Callable[[Any], None] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> EpisodeRecord:
    stage = EpisodeContext(
        maker=EnvMaker(Mission(name=order.mission, env=make, kwargs=kwargs or {})),
        templates=PolicyTemplates(candidates_of(policies), order.root),
        config=EvaluationConfig(**settings),
        watch=watch,
    )
    return play_episode(order, stage)


# ---- what is told ---------------------------------------------------------------------------------------------------


def test_a_record_tells_what_a_plain_loop_finds() -> None:
    record = played(policies=lambda seen: int(seen[0] * 5), kwargs={"length": 9})
    env, returns = Course(9), dict.fromkeys(AGENTS, 0.0)
    seen, _ = env.reset(seed=ORDER.env_seed)
    while env.agents:
        seen, rewards, _, _, infos = env.step({agent: int(seen[agent][0] * 5) for agent in env.agents})
        returns = {agent: returns[agent] + rewards[agent] for agent in AGENTS}
    assert (record.mission, record.episode, record.seed) == ("course", 0, ORDER.env_seed)
    assert (record.returns, record.length, record.failure) == (returns, 9, None)
    assert record.success == infos["red"]["is_success"]
    assert record.score == pytest.approx(sum(returns.values()) / 3)
    assert record.seconds > 0


def test_max_steps_cuts_an_episode_off() -> None:
    record = played(max_steps=4)
    assert (record.length, record.failure, record.success) == (4, None, None)


def test_infos_that_were_asked_for_are_kept() -> None:
    record = played(info_keys=("level", "no such info"))
    assert record.infos == {"level": dict.fromkeys(AGENTS, 6), "no such info": {}}
    assert played().infos == {}


def test_infos_that_cannot_be_kept_are_named() -> None:
    class Locked(Course):
        def step(self, actions: Any) -> Any:
            *told, infos = super().step(actions)
            return *told, {agent: {"lock": threading.Lock()} for agent in infos}

    assert played(Locked).failure is None
    failure = played(Locked, info_keys=["lock"]).failure
    assert failure is not None
    assert "The info 'lock' cannot be kept" in failure.message


def test_a_trajectory_holds_every_step() -> None:
    shown: list[int] = []
    record = played(trajectories=True, watch=lambda env: shown.append(env.elapsed))
    assert record.trajectory is not None
    assert shown == list(range(7))
    told = record.trajectory
    assert [len(part) for part in (told.observations, told.actions, told.rewards, told.terminations)] == [7, 6, 6, 6]
    assert {agent: sum(step[agent] for step in told.rewards) for agent in AGENTS} == pytest.approx(record.returns)
    assert all(told.terminations[-1].values())
    assert not any(told.truncations[-1].values())
    assert played().trajectory is None


def test_policies_are_shared_out_by_proportion_and_seed() -> None:
    policies = {"a": "random", "b": "noop"}
    dealt = [played(policies=policies, order=EpisodeSpec("course", episode, 1)).assignment for episode in range(12)]
    assert {tuple(sorted(one.values())) for one in dealt} == {("a", "a", "b")}
    assert {agent for one in dealt for agent, name in one.items() if name == "b"} == set(AGENTS)
    assert dealt[3] == assignment(EpisodeSpec("course", 3, 1), candidates_of(policies), AGENTS)


def test_a_gymnasium_env_is_played_by_one_agent() -> None:
    record = played(lambda: gymnasium.make("CartPole-v1"), "noop")
    assert record.returns == {"agent_0": record.length}


def test_agents_come_and_go_with_any_names() -> None:
    schedule = {0: Stay(last=9), ("a", 1): Stay(last=3), "late": Stay(first=4, last=9), 7: Stay(first=5, last=6)}
    for known in ("all", None):
        record = played(lambda known=known: ScriptedAgentsEnv([schedule], possible_agents=known), ["random", "noop"])
        assert record.failure is None
        assert record.length == 9
        assert set(record.returns) == set(schedule) == set(record.assignment)
        assert set(record.assignment.values()) == {"random", "noop"}


# ---- what it does not depend on -------------------------------------------------------------------------------------


def test_all_that_is_random_follows_from_the_order() -> None:
    record = played(policies={"it": Drawing()})
    random.seed(99)
    np.random.seed(99)
    assert played(policies={"it": PolicySpec("tests.evaluation.stages:Drawing")}) == record
    other = played(policies={"it": Drawing()}, order=EpisodeSpec("course", 1, 42))
    assert other.returns != record.returns


def test_generators_that_belong_to_nobody_are_left_as_they_were() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()  # the point
    random.seed(5)
    np.random.seed(5)
    played(policies=Drawing())
    assert (random.random(), np.random.random()) == expected  # the point


# ---- failures -------------------------------------------------------------------------------------------------------


class Unmakeable(Course):
    def __init__(self) -> None:
        raise RuntimeError("no license")


class NoReset(Course):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        raise KeyError("level")


class NotANumber(Course):
    def step(self, actions: Any) -> Any:
        seen, _, *rest = super().step(actions)
        return seen, dict.fromkeys(seen, np.nan), *rest


class FourValues(Course):
    def step(self, actions: Any) -> Any:
        return super().step(actions)[:4]


class DoesNotClose(Course):
    def close(self) -> None:
        raise OSError("no window")


@pytest.mark.parametrize(
    ("make", "kwargs", "where", "error"),
    [
        (Unmakeable, {}, "making the env", "RuntimeError"),
        (NoReset, {}, "reset", "KeyError"),
        (Course, {"fault": "raise"}, "step 2", "ValueError"),
        (Course, {"fault": "system_exit"}, "step 2", "SystemExit"),
        (NotANumber, {}, "step 0", "ValueError"),
        (FourValues, {}, "step 0", "ValueError"),
    ],
)
def test_an_environments_fault_is_told(make: Any, kwargs: Any, where: str, error: str) -> None:
    failure = played(make, kwargs=kwargs).failure
    assert failure is not None
    assert (failure.kind, failure.where, failure.error_type) == ("env", where, error)
    assert failure.traceback.startswith("Traceback")
    assert failure.traceback.count("/parallel_envs/evaluation/") <= 1


def test_an_environment_that_does_not_close_has_been_played_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    record = played(DoesNotClose)
    assert (record.failure, record.length) == (None, 6)
    assert "Closing an environment raised OSError: no window" in caplog.text


def test_what_was_played_before_a_failure_counts_for_nothing() -> None:
    record = played(kwargs={"fault": "raise"})
    assert record.length == 2
    assert record.returns
    assert record.score is None
    assert record.score_of("random") is None


def test_an_environment_without_agents_has_failed() -> None:
    record = played(kwargs={"agents": ()})
    assert record.failure is not None
    assert (record.failure.kind, record.failure.where, record.length) == ("env", "reset", 0)
    assert "began without agents" in record.failure.message


def test_a_policys_fault_is_told() -> None:
    failure = played(policies=Failing(at=3)).failure
    assert failure is not None
    assert (failure.kind, failure.where, failure.message) == ("policy", "step 2, 'red'", "injected")


def test_an_episode_that_takes_too_long_is_ended_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel_envs.evaluation import episode

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            Clock.now += 1.0
            return Clock.now

    monkeypatch.setattr(episode, "time", Clock())
    record = played(episode_timeout=3.5, kwargs={"length": 100})
    assert record.failure is not None
    assert (record.failure.kind, record.failure.error_type) == ("timeout", "TimeoutError")
    assert 0 < record.length < 5


def test_the_environment_is_closed_whatever_happens() -> None:
    closed: list[str] = []

    class Noting(Course):
        def close(self) -> None:
            closed.append(self.fault)

    for fault in ("", "raise"):
        played(Noting, kwargs={"fault": fault})
    played(Noting, policies=Failing(at=2))
    assert closed == ["", "raise", ""]


def test_a_ctrl_c_is_no_failure() -> None:
    class Interrupted(AgentPolicy):
        def step(self, observation: Any) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(policies=Interrupted())
