"""What goes wrong x when, with agents in the place of a single player."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager, SeedTree
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedAgentsEnv, Stay, assert_same_batch
from tests.engine.asking import in_fork, refusal
from tests.faults.broken_envs import FaultyAgentsEnv
from tests.faults.matrix import CLOSE_SECONDS, DEADLINES, SHORT, SLACK, error_of, name, text_of, within
from tests.gates import Gate, wait_at
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import noop, of_both_kinds, scripted, together

FAULTS = [Fault.SIGKILL, Fault.EXCEPTION, Fault.SLEEP, Fault.SYSTEM_EXIT]

STARTED = 6.0
"""Seconds within which a worker is started, also on a busy machine."""

MOMENTS = [Moment.RESET, Moment.STEP, Moment.AUTORESET, Moment.CALL]
LENGTH = {Moment.AUTORESET: 1}


@pytest.fixture
def make(caplog: pytest.LogCaptureFixture) -> Iterator[Make]:
    """`MultiAgentEnvManager` with short deadlines, closed quickly whatever became of its workers."""
    with ExitStack() as managers:
        managers.callback(lambda: caplog.get_records("call").clear())

        def make(*arguments: Any, **settings: Any) -> MultiAgentEnvManager:
            envs = MultiAgentEnvManager(*arguments, **{**DEADLINES, **settings})
            managers.callback(envs.close, timeout=CLOSE_SECONDS)
            return envs

        yield make


def approach(envs: MultiAgentEnvManager, moment: Moment) -> None:
    if moment is not Moment.RESET:
        envs.reset(seed=0)
    if moment is Moment.AUTORESET:
        envs.step(noop(envs))


def ask(envs: MultiAgentEnvManager, moment: Moment) -> Any:
    if moment is Moment.CALL:
        return envs.call("poke", env_ids=1)
    return envs.reset(seed=0) if moment is Moment.RESET else envs.step(noop(envs))


@pytest.fixture
def gate(tmp_path: Path, make: Make) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as gate:
        yield gate


def neighbours(fault: Fault, moment: Moment, folder: Path, possible_agents: Any = "all") -> list[Any]:
    length = LENGTH.get(moment, 20)
    broken = partial(FaultyAgents, fault, moment, folder / "broken", length, possible_agents)
    return [scripted(together(length), possible_agents=possible_agents), broken]


@of_both_kinds
def test_a_fault_in_an_autoreset_or_of_agents_that_are_not_known_is_told_and_the_manager_goes_on(
    make: Make, tmp_path: Path, possible_agents: Any
) -> None:
    """`tests/faults/test_matrix` has all other moments and faults."""
    for fault in (Fault.SIGKILL, Fault.EXCEPTION):
        folder = tmp_path / fault.value
        folder.mkdir()
        envs = make(neighbours(fault, Moment.AUTORESET, folder, possible_agents))
        approach(envs, Moment.AUTORESET)
        with within(SHORT + SLACK), pytest.raises(error_of(fault), match=text_of(fault, Moment.AUTORESET)):
            envs.step(noop(envs))
        if fault is Fault.SIGKILL:
            envs.restart(1)
        assert envs.reset(seed=0)[0]["a"].shape == (2, 3)
        assert envs.agents_now == ("a", "b")
        envs.step(noop(envs))


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("fault", FAULTS, ids=name)
@pytest.mark.parametrize(
    ("moment", "mode"), [*((one, "NextStep") for one in MOMENTS[:3]), (Moment.STEP, "SameStep")], ids=name
)
def test_a_fault_costs_one_row_in_which_all_its_agents_are_truncated(
    make: Make, tmp_path: Path, fault: Fault, moment: Moment, mode: str, possible_agents: Any
) -> None:
    envs = make(neighbours(fault, moment, tmp_path, possible_agents), on_failure="restart", autoreset_mode=mode)
    approach(envs, moment)
    alive = {agent: there.copy() for agent, there in envs.alive.items()}
    with within(SHORT + SLACK + STARTED):
        *told, infos = ask(envs, moment)
    assert infos.common["worker_restarted"].tolist() == [False, True]
    if moment is Moment.RESET:
        assert envs.agents_now == ("a", "b")
        return
    observations, rewards, terminations, truncations = told
    for agent in ("a", "b"):
        assert truncations[agent].tolist() == [False, alive[agent][1]]
        assert (rewards[agent][1], terminations[agent][1]) == (0.0, False)
        assert "_final_obs" not in infos[agent]
        assert envs.alive[agent].tolist() == [True, mode == "SameStep"]
    expected, _ = scripted(together(LENGTH.get(moment, 20)))().reset(seed=SeedTree(0).child("restart", 1, 1).seed())
    assert_same_batch(observations["b"][1], expected["b"])
    for _ in range(3):  # the steps after the loss are like any others
        *_, truncations, infos = envs.step(noop(envs))
        assert "worker_restarted" not in infos.common
        assert not truncations["a"].any()


@pytest.mark.parametrize("mode", ["NextStep", pytest.param("SameStep", marks=pytest.mark.slow)])
def test_a_single_env_that_is_lost_is_over(make: Make, tmp_path: Path, mode: str) -> None:
    both = neighbours(Fault.SIGKILL, Moment.STEP, tmp_path)
    env = make(both, on_failure="restart", autoreset_mode=mode).single_env(1)
    env.reset(seed=0)
    assert env.step({"a": 0, "b": 0})[3] == {"a": True, "b": True}
    assert env.agents == []
    env.reset(seed=1)
    assert env.agents == ["a", "b"]


def test_a_fault_at_its_own_pace(make: Make, tmp_path: Path) -> None:
    envs = make(neighbours(Fault.SIGKILL, Moment.STEP, tmp_path), on_failure="restart")
    envs.reset(seed=0)
    envs.send(noop(envs))
    order, *_, truncations, infos = envs.recv(min_envs=2)
    place = order.tolist().index(1)
    assert infos.common["worker_restarted"][place]
    assert truncations["a"].tolist() == (np.arange(2) == place).tolist()


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_an_error_is_told_by_every_backend(make: Make, tmp_path: Path, backend: str) -> None:
    for moment in MOMENTS:
        folder = tmp_path / moment.value
        folder.mkdir()
        envs = make(neighbours(Fault.EXCEPTION, moment, folder), backend=backend)
        approach(envs, moment)
        with pytest.raises(EnvError, match=text_of(Fault.EXCEPTION, moment)):
            ask(envs, moment)
        envs.reset(seed=0)
        envs.step(noop(envs))


def test_a_call_may_have_a_deadline_of_its_own(make: Make, tmp_path: Path) -> None:
    envs = make(neighbours(Fault.SLEEP, Moment.STEP, tmp_path), step_timeout=None)
    envs.reset(seed=0)
    with within(SHORT + SLACK), pytest.raises(StepTimeout):
        envs.step(noop(envs), timeout=SHORT)


@of_both_kinds
def test_a_forked_process_is_refused_what_agents_do(make: Make, possible_agents: Any) -> None:
    envs = make([scripted(together(20), possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    given: list[Callable[[], object]] = [partial(act, noop(envs)) for act in (envs.step, envs.step_async, envs.send)]
    for operation in (*given, envs.reset, envs.step_wait, envs.recv, envs.stats, envs.restart, envs.render):
        assert refusal(operation).startswith("ClosedManager: Trying to operate on `MultiAgentEnvManager`")
    assert in_fork(envs.close) is None
    envs.step(noop(envs))


class FaultyAgents(FaultyAgentsEnv):
    def __init__(self, fault: Fault, moment: Moment, once: Path, length: int, possible_agents: Any = "all") -> None:
        self.fuse = FaultyEnv(fault, moment, once=once, episode_lengths=(length,), num_bytes=1 << 16)
        ScriptedAgentsEnv.__init__(self, together(length), possible_agents=possible_agents)


class GatedAgentsEnv(ScriptedAgentsEnv):
    """Waits at a gate in its first step, in which agent "a" ends."""

    def __init__(self, gate: Path, possible_agents: Any = "all") -> None:
        super().__init__([{"a": Stay(1), "b": Stay(9)}], possible_agents=possible_agents)
        self.gate = gate

    def step(self, actions: Any) -> Any:
        if not self.elapsed:
            wait_at(self.gate)
        return super().step(actions)


def test_agents_that_the_new_episode_does_not_have_are_truncated(make: Make) -> None:
    envs = make([scripted([*together(9, "a"), *together(9, "b")], possible_agents=None)] * 2, num_workers=2)
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(noop(envs))
    assert envs.agents_now == ("b",)
    envs.restart()
    observations, rewards, _, truncations, infos = envs.step(noop(envs))
    assert set(observations) == set(rewards) == set(truncations) == set(infos) == {"a", "b"}
    assert truncations["b"].tolist() == [True, True]
    assert observations["a"].any()
    assert not observations["b"].any()


@of_both_kinds
def test_without_autoreset_a_lost_environment_and_its_rows_wait_for_their_reset(
    make: Make, tmp_path: Path, possible_agents: Any
) -> None:
    both = neighbours(Fault.SIGKILL, Moment.STEP, tmp_path, possible_agents)
    envs = make(both, on_failure="restart", autoreset_mode="Disabled")
    envs.reset(seed=0)
    assert envs.step(noop(envs))[3]["a"].tolist() == [False, True]
    for _ in range(2):
        *told, infos = envs.step(noop(envs))
        assert not any(values["a"][1].any() for values in told)
        assert "_final_obs" not in infos["a"]
        assert envs.alive["a"].tolist() == envs.present["a"].tolist() == [True, False]
        assert envs.agents(1) == []
    envs.reset(env_ids=1, seed=3)
    assert envs.alive["a"].tolist() == [True, True]
    assert envs.agents(1) == ["a", "b"]
    assert envs.step(noop(envs))[0]["a"][1].any()
    if possible_agents is None:  # they cannot be rows
        return
    (tmp_path / "rows").mkdir()
    both = neighbours(Fault.SIGKILL, Moment.STEP, tmp_path / "rows")
    rows = make(both, on_failure="restart").as_vector_env(autoreset_mode="Disabled")
    rows.reset(seed=0)
    assert rows.step(np.zeros(4, int))[3].tolist() == [False, False, True, True]
    observations, rewards, _, truncations, infos = rows.step(np.zeros(4, int))
    assert not any(values.any() for values in (observations[2:], rewards[2:], truncations))
    assert infos["alive"].tolist() == [True, True, False, False]
    assert rows.reset(options={"reset_mask": np.array([False, False, True, True])})[1]["alive"].all()


def test_last_words_of_a_lost_episode_are_forgotten(make: Make) -> None:
    envs = make([scripted([{"a": Stay(1), "b": Stay(3)}])] * 2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    envs.step(noop(envs))
    envs.restart(1)
    for _ in range(3):
        *_, infos = envs.step(noop(envs))
        if "b" in infos and "_final_obs" in infos["b"]:
            assert infos["a"]["_final_obs"].tolist() == infos["b"]["_final_obs"].tolist()


@of_both_kinds
def test_after_an_error_agents_that_came_elsewhere_are_known(make: Make, tmp_path: Path, possible_agents: Any) -> None:
    _, broken = neighbours(Fault.EXCEPTION, Moment.STEP, tmp_path, possible_agents and ["a", "b", "c"])
    coming = scripted([{"a": Stay(9), "b": Stay(1), "c": Stay(9, first=1)}], possible_agents=possible_agents)
    envs = make([coming, broken])
    envs.reset(seed=0)
    with pytest.raises(EnvError):
        envs.step(noop(envs))
    alive = {agent: there.tolist() for agent, there in envs.alive.items()}
    assert alive == {"a": [True, True], "b": [False, True], "c": [True, False]}
    assert envs.step(noop(envs))[0]["c"].shape == (2, 3)


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_what_others_did_beside_a_death_is_told_by_waiting_and_known_to_the_next_request(
    make: Make, gate: Gate, tmp_path: Path, possible_agents: Any, copy: bool, waits: bool
) -> None:
    died = partial(FaultyAgents, Fault.SIGKILL, Moment.STEP, tmp_path / "broken", 20, possible_agents)
    fns = [partial(GatedAgentsEnv, gate.path, possible_agents), died]
    envs = make(fns, step_timeout=60.0, reset_timeout=60.0, copy=copy)  # no test here should wait so long
    envs.reset(seed=0)
    with pytest.raises(WorkerDied, match=r"^Worker 1 .*Still at work: env 0\."):
        envs.step(noop(envs))
    envs.restart(1)
    gate.let_through()
    if waits:
        _, _, terminations, truncations, infos = envs.step_wait()
        assert terminations["a"].tolist() == [True, False]
        assert truncations["b"].tolist() == [False, True]
        assert infos.common["worker_restarted"].tolist() == [False, True]
    else:
        envs.step({"a": np.zeros(2, int), "b": np.zeros(2, int)})
    assert (envs.alive["a"][0], envs.alive["b"][0]) == (False, True)  # it ended in the step that was given up
    if not waits:
        assert envs.call("state")[0][0] == 2
        assert envs.reset(seed=0)[0]["a"].shape[0] == 2
        assert envs.agents_now == ("a", "b")
