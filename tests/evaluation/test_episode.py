"""One episode: its seeds, its turns, its actions, its record, and what its failures are blamed on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.evaluation import episode as episode_module
from parallel_envs.evaluation.episode import (
    Actions,
    EpisodeContext,
    EpisodeSpec,
    action_problem,
    episode_specs,
    places,
    play_episode,
)
from parallel_envs.evaluation.missions import EnvMaker, Mission
from parallel_envs.evaluation.policies import PolicyTemplates, candidates_of
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationConfig
from parallel_envs.policies import PolicySpec
from parallel_envs.testing import ScriptedAgentsEnv, Stay
from parallel_envs.wrappers import PolicyPool
from tests.evaluation.stages import AGENTS, Course, Drawing, Failing, NoReset, Unmakeable
from tests.gates import Gate, wait_at

SPEC = EpisodeSpec("course", 0, 42)


def played(
    make: Callable[..., Any] = Course,
    policies: Any = "random",
    spec: EpisodeSpec = SPEC,
    watch: Callable[[Any], None] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> EpisodeRecord:
    context = EpisodeContext(
        maker=EnvMaker(Mission(name=spec.mission, env=make, kwargs=kwargs or {})),
        templates=PolicyTemplates(candidates_of(policies), spec.root),
        config=EvaluationConfig(**settings),
        watch=watch,
    )
    return play_episode(spec, context)


# ---- the list of episodes --------------------------------------------------------------------------------------------

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True)


@settings(max_examples=20)
@given(NAMES, st.integers(1, 4), st.integers(0, 1 << 40))
def test_seeds_do_not_depend_on_what_else_is_played(names: list[str], episodes: int, seed: int) -> None:
    def drawn(spec: EpisodeSpec) -> list[Any]:
        return [spec.env_seed, spec.global_seed, spec.agent_seed(0), spec.agent_seed(1), spec.dealing().random()]

    among = {spec.key: spec for spec in episode_specs(names[::-1], episodes + 3, seed)}
    assert list(among) == [(name, number) for name in names[::-1] for number in range(episodes + 3)]
    for spec in episode_specs(names[:1], episodes, seed):
        assert drawn(spec) == drawn(among[spec.key])
    everything = [one for spec in (*among.values(), *episode_specs(names, 1, seed + 1)) for one in drawn(spec)]
    assert len(set(everything)) == len(everything), "all differ"


# ---- actions ---------------------------------------------------------------------------------------------------------

BOX = Box(-1.0, 1.0, (2,), np.float32)
HERE = np.zeros(2)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (Discrete(3), [2, np.int64(0)], [3, 1.5, None, "left"]),
        # float64, and beyond its bounds, which environments clip or do not
        (BOX, [HERE, [0.5, 7]], [np.zeros(3), [0.0, np.nan], [0.0, np.inf], ["a", "b"], None, [[1], [1, 2]]]),
        (MultiDiscrete([2, 3]), [np.array([1, 2])], []),
        (MultiBinary(2), [], [np.array([0, 2])]),
        (Dict(at=BOX, say=Discrete(2)), [{"say": 1, "at": HERE}], [{"say": 2, "at": HERE}, {"say": 1}, {"at": HERE}]),
        (Dict(at=BOX), [{"at": HERE}], [{"at": [0.0, np.nan]}]),
        (Tuple([Discrete(2), Tuple([BOX])]), [(1, (HERE,))], [(1,), 1]),
    ],
)
def test_what_is_an_action_of_a_space(space: Space[Any], good: list[Any], bad: list[Any]) -> None:
    assert [action_problem(space, action) for action in good] == [None] * len(good)
    assert None not in [action_problem(space, action) for action in bad]


@pytest.mark.parametrize(
    ("space", "mask", "noop"),
    [
        (Discrete(4), None, 0),
        (Discrete(4), [0, 0, 1, 1], 2),
        (Discrete(4), [0, 0, 0, 0], 0),
        (Discrete(4, start=2), [0, 1, 0, 0], 3),
        (BOX, None, [0.0, 0.0]),
        (Box(1.0, 3.0, (2,)), None, [1.0, 1.0]),
    ],
)
def test_a_noop_is_the_action_nearest_to_zero_that_is_allowed(space: Any, mask: Any, noop: Any) -> None:
    observation = None if mask is None else {"action_mask": np.array(mask, np.int8)}
    action = episode_module.noop(space, observation, 0)
    assert np.asarray(action).tolist() == noop
    assert action_problem(space, action) is None
    first, again, other = (episode_module.noop(Text(30), None, seed) for seed in (1, 1, 2))  # which has no zero
    assert first == again != other


# ---- turns, by a clock that stands still unless a policy moves it ----------------------------------------------------

SEEN = {agent: np.zeros(3, np.float32) for agent in ("red", "blue")}


class Clock:
    """The module `time`; `tick` passes each time it is looked at."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now


class Slow:
    """Takes these times, one after another, then none."""

    def __init__(self, clock: Clock, *seconds: float) -> None:
        self.clock, self.seconds, self.asked = clock, list(seconds), 0

    def step(self, observation: Any) -> int:
        self.asked += 1
        self.clock.now += self.seconds.pop(0) if self.seconds else 0.0
        return 4


@pytest.mark.parametrize(
    ("seconds", "settings", "actions", "num_late", "num_asked"),
    [
        ([0.0, 0.3, 0.2], {}, [4, 0, 4], 1, 3),
        ([1000.0], {}, [4], 0, 1),  # the first action may take its time
        ([0.0, *[1.25] * 10], {"lateness_budget": 2.5}, [4, *[0] * 7], 7, 4),  # late by 1.0, 3 times: asked no more
        ([0.0, *[1.25] * 7], {"lateness_budget": None}, [4, *[0] * 7], 7, 8),
        ([1e6] * 5, {"action_timeout": None}, [4] * 5, 0, 5),
    ],
)
def test_a_late_action_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, seconds: Any, settings: Any, actions: list[int], num_late: int, num_asked: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(episode_module, "time", clock)
    policies = {"red": Slow(clock, *seconds), "blue": Slow(clock)}
    turns = Actions(policies.__getitem__, Course(), EvaluationConfig(**{"action_timeout": 0.25, **settings}), 0)
    found = [turns.act(SEEN, step) for step in range(len(actions))]
    assert found == [{"red": action, "blue": 4} for action in actions]
    assert turns.timeouts == ({"red": num_late} if num_late else {})
    assert policies["red"].asked == num_asked
    turns.close()


def test_a_policy_that_hangs_in_a_thread_is_not_waited_for(tmp_path: Path) -> None:
    class Waiting(Failing):
        def step(self, observation: Any) -> int:
            self.asked += 1
            if self.asked == 2:
                wait_at(tmp_path / "gate")
            return 4

    policies: dict[Any, Any] = {"red": Waiting(), "blue": Failing(at=99)}
    with Gate(tmp_path / "gate"), PolicyPool(1) as pool:
        turns = Actions(policies.__getitem__, Course(), EvaluationConfig(action_timeout=0.5), 0, "thread", pool)
        found = [turns.act(SEEN, step) for step in range(3)]
        assert found == [{"red": 4, "blue": 1}, {"red": 0, "blue": 1}, {"red": 0, "blue": 1}]
        assert turns.timeouts == {"red": 2}
        turns.close()


# ---- the record ------------------------------------------------------------------------------------------------------


def test_a_record_holds_what_a_plain_loop_finds() -> None:
    record = played(policies=lambda seen: int(seen[0] * 5), kwargs={"length": 9})
    env, returns = Course(9), dict.fromkeys(AGENTS, 0.0)
    seen, _ = env.reset(seed=SPEC.env_seed)
    while env.agents:
        seen, rewards, _, _, infos = env.step({agent: int(seen[agent][0] * 5) for agent in env.agents})
        returns = {agent: returns[agent] + rewards[agent] for agent in AGENTS}
    assert (record.mission, record.episode, record.seed) == ("course", 0, SPEC.env_seed)
    assert (record.returns, record.length, record.failure) == (returns, 9, None)
    assert record.success == infos["red"]["is_success"]
    assert record.score == pytest.approx(sum(returns.values()) / 3)
    assert record.seconds > 0


def test_infos_are_kept_on_request_and_named_where_they_cannot_be() -> None:
    class Locked(Course):
        def step(self, actions: Any) -> Any:
            *results, infos = super().step(actions)
            return *results, {agent: {"lock": threading.Lock()} for agent in infos}

    record = played(info_keys=("level", "no such info"), max_steps=4)
    assert (record.length, record.failure, record.success) == (4, None, None)
    assert record.infos == {"level": dict.fromkeys(AGENTS, 4), "no such info": {}}
    assert (played(Locked).failure, played(Locked).infos) == (None, {})
    failure = played(Locked, info_keys=["lock"]).failure
    assert failure is not None
    assert "The info 'lock' cannot be kept" in failure.message


def test_a_trajectory_holds_every_step() -> None:
    shown: list[int] = []
    record = played(trajectories=True, watch=lambda env: shown.append(env.elapsed))
    assert shown == list(range(7))
    found = record.trajectory
    assert found is not None
    parts = found.observations, found.actions, found.rewards, found.terminations
    assert [len(part) for part in parts] == [7, 6, 6, 6]
    assert {agent: sum(step[agent] for step in found.rewards) for agent in AGENTS} == pytest.approx(record.returns)
    assert (all(found.terminations[-1].values()), any(found.truncations[-1].values())) == (True, False)
    assert played().trajectory is None


def test_policies_are_shared_out_by_proportion_and_seed() -> None:
    policies = {"a": "random", "b": "noop"}
    dealt = [played(policies=policies, spec=EpisodeSpec("course", episode, 1)).assignment for episode in range(12)]
    assert {tuple(sorted(one.values())) for one in dealt} == {("a", "a", "b")}
    assert {agent for one in dealt for agent, name in one.items() if name == "b"} == set(AGENTS)
    found = places(EpisodeSpec("course", 3, 1), candidates_of(policies), AGENTS)
    assert dealt[3] == {agent: "ab"[place] for agent, place in found.items()}


@pytest.mark.parametrize("known", ["all", None])
def test_agents_come_and_go_with_any_names(known: Any) -> None:
    schedule = {0: Stay(last=9), ("a", 1): Stay(last=3), "late": Stay(first=4, last=9), 7: Stay(first=5, last=6)}
    record = played(lambda: ScriptedAgentsEnv([schedule], possible_agents=known), ["random", "noop"])
    assert (record.failure, record.length) == (None, 9)
    assert set(record.returns) == set(schedule) == set(record.assignment)
    assert set(record.assignment.values()) == {"random", "noop"}


def test_all_that_is_random_follows_from_the_seed_and_the_callers_generators_stay_as_they_were() -> None:
    def drawn(between: Callable[[], object] = int) -> tuple[float, float]:
        random.seed(5)
        np.random.seed(5)
        between()
        return random.random(), np.random.random()

    assert drawn(lambda: played(policies={"it": Drawing()})) == drawn()
    record = played(policies={"it": Drawing()})
    assert played(policies={"it": PolicySpec("tests.evaluation.stages:Drawing")}) == record
    assert played(policies={"it": Drawing()}, spec=EpisodeSpec("course", 1, 42)).returns != record.returns


# ---- failures --------------------------------------------------------------------------------------------------------


class Odd(Course):
    """Its rewards are not numbers, or one of its results is missing."""

    def __init__(self, few: bool) -> None:
        super().__init__()
        self.few = few

    def step(self, actions: Any) -> Any:
        seen, _, *rest = super().step(actions)
        return (seen, *rest) if self.few else (seen, dict.fromkeys(seen, np.nan), *rest)


@pytest.mark.parametrize(
    ("make", "kwargs", "where", "error", "length"),
    [
        (Unmakeable, {}, "making the env", "RuntimeError: no license", 0),
        (NoReset, {}, "reset", "KeyError: 'level'", 0),
        (Course, {"agents": ()}, "reset", "began without agents", 0),
        (Course, {"fault": "raise"}, "step 2", "ValueError: injected", 2),
        (Course, {"fault": "system_exit"}, "step 2", "SystemExit: 3", 2),
        (Odd, {"few": False}, "step 0", "ValueError: ", 0),
        (Odd, {"few": True}, "step 0", "ValueError: ", 0),
    ],
)
def test_an_environments_fault_is_told_and_its_returns_count_for_nothing(
    make: Any, kwargs: Any, where: str, error: str, length: int
) -> None:
    record = played(make, kwargs=kwargs)
    failure = record.failure
    assert failure is not None
    assert (failure.kind, failure.where, record.length) == ("env", where, length)
    assert error in f"{failure.error_type}: {failure.message}"
    assert failure.traceback.count("/parallel_envs/evaluation/") <= 1
    assert bool(record.returns) >= (length > 0)
    assert (record.score, record.score_of("random")) == (None, None)


def test_an_episode_that_takes_too_long_is_ended_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_module, "time", Clock(tick=1.0))
    record = played(episode_timeout=3.5, kwargs={"length": 100})
    assert record.failure is not None
    assert (record.failure.kind, record.failure.error_type) == ("timeout", "TimeoutError")
    assert 0 < record.length < 5


def test_the_environment_is_closed_whatever_happens_and_a_ctrl_c_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []

    class DoesNotClose(Course):
        def close(self) -> None:
            closed.append(self.fault)
            raise OSError("no window")

    def interrupted(observation: Any) -> int:
        raise KeyboardInterrupt

    record = played(DoesNotClose)
    assert (record.failure, record.length) == (None, 6), "it has been played all the same"
    assert "Closing an environment raised OSError: no window" in caplog.text
    played(DoesNotClose, kwargs={"fault": "raise"})
    played(DoesNotClose, policies=Failing(at=2))
    with pytest.raises(KeyboardInterrupt):
        played(DoesNotClose, policies=interrupted)
    assert closed == ["", "raise", "", ""]
