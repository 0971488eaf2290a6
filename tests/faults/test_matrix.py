"""Ways to break x moments x objects: what each tells of it, by type and text, and that all others go on.

Envs of single players, with more moments and start methods, are in `test_deaths` and `test_restarts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from parallel_envs import EnvStateManager, MultiAgentEnvManager
from parallel_envs.errors import PolicyError, WorkerDied
from parallel_envs.evaluation import BadEvaluation, Mission, evaluate, running
from parallel_envs.groups import register, registry
from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, Moment, ScriptedAgentsEnv, ScriptedEnv
from parallel_envs.wrappers import PerAgentProcessWrapper, PolicyPool, Rules, process
from tests.faults.broken_envs import LONG, TOGETHER, FaultyAgentsEnv, FaultyPolicy, FaultyWalk, Fuse
from tests.faults.matrix import (
    CLOSE_SECONDS,
    DEADLINES,
    ENDINGS,
    EXIT_CODES,
    HANGING,
    RAISED,
    SHORT,
    SLACK,
    covering,
    error_of,
    name,
    text_of,
    within,
)

SOON = 1.0
"""A deadline within which a worker is not started."""

LATE = 4.0
"""One within which it is."""

Check = Callable[[Fault, Moment, Path], None]


def kind_of(fault: Fault) -> str:
    """Name the kind of failure, as groups and evaluations do."""
    return "death" if fault in EXIT_CODES else "timeout" if fault in HANGING else "error"


def agents(fault: Fault, moment: Moment, folder: Path) -> None:
    """The manager names the env, and goes on after a restart."""
    fns: list[Any] = [partial(ScriptedAgentsEnv, TOGETHER), partial(FaultyAgentsEnv, fault, moment, folder / "broken")]
    told = pytest.raises(error_of(fault), match=text_of(fault, moment))
    if moment is Moment.CONSTRUCTOR:
        limit = SOON if fault in HANGING else 20.0
        with within(limit + LATE + SLACK), told:
            MultiAgentEnvManager(fns, start_timeout=limit)
        return
    limits: Any = DEADLINES
    envs = MultiAgentEnvManager(fns, **limits)
    try:
        if moment is not Moment.RESET:
            envs.reset(seed=0)
        with within(SHORT + SLACK), told:
            ask_agents(envs, moment)
        if fault not in RAISED:
            envs.restart(1)
        if fault in HANGING:
            with pytest.raises(AlreadyPendingCallError):
                envs.step(still(envs))
            if moment is Moment.CALL:
                with pytest.raises(WorkerDied, match="call of 'poke'"):
                    envs.call_wait()
            else:
                infos = envs.reset_wait()[1] if moment is Moment.RESET else envs.step_wait()[4]
                assert infos.common["worker_restarted"].tolist() == [False, True]
        observations, _ = envs.reset(seed=0)
        assert observations["a"].shape == (2, 3)
        envs.step(still(envs))
    finally:
        envs.close(timeout=CLOSE_SECONDS)


def still(envs: MultiAgentEnvManager) -> dict[Any, Any]:
    return {agent: np.zeros(envs.num_envs, int) for agent in envs.agents_now}


def ask_agents(envs: MultiAgentEnvManager, moment: Moment) -> Any:
    if moment is Moment.RESET:
        return envs.reset(seed=0)
    if moment is Moment.CALL:
        envs.call_async("poke", env_ids=1)
        return envs.call_wait(timeout=SHORT)
    return envs.step(still(envs))


DOING = {Moment.CONSTRUCTOR: "its construction", Moment.RESET: "its reset", Moment.STEP: "its turn"}
ALL_RIGHT = [{"env_id": env, "llm_response": "", "llm_raw_response": "", "actions": ["Right"]} for env in range(3)]


def groups(fault: Fault, moment: Moment, folder: Path) -> None:
    """The failure is an entry of its env, or is raised where there is no episode; the others go on."""
    register("faulty", FaultyWalk, Fuse)
    limits = dict.fromkeys(("step_timeout", "reset_timeout"), SOON if fault in HANGING else 60.0)
    limits["start_timeout"] = LATE if fault in HANGING else 60.0
    train = {"env_groups": 3, "group_size": 1, "env_configs": {"tags": ["One", "Bad", "Other"], "n_groups": [1, 1, 1]}}
    custom: dict[str, Any] = {tag: {"env_type": "faulty", "max_actions_per_traj": 9} for tag in ("One", "Bad", "Other")}
    custom["Bad"]["env_config"] = {"fault": fault.value, "moment": moment.value}
    pattern = {
        "death": rf"\(env 1, pid \d+\) {re.escape(ENDINGS.get(fault, ''))} during {DOING[moment]} \(Bad\)",
        "timeout": rf"^Env 1 did not answer within [\d.]+ seconds during {DOING[moment]}\.",
        "error": rf"^Env 1 \(Bad\) raised {re.escape(RAISED.get(fault, ''))} during {DOING[moment]}: ",
    }[kind_of(fault)]
    with EnvStateManager(
        {"es_manager": {"max_workers": 1, **limits, "train": train}, "custom_envs": custom}
    ) as manager:
        if moment is Moment.CONSTRUCTOR:
            with within(3 * LATE + SLACK), pytest.raises(error_of(fault), match=pattern):
                manager.reset(seed=1)
            return
        entries = manager.reset(seed=1)
        if moment is Moment.STEP:
            assert all("failure" not in entry for entry in entries)
            entries = manager.step(ALL_RIGHT)
        failure = entries[1]["failure"]
        assert (failure.kind, failure.env_id, failure.doing) == (kind_of(fault), 1, DOING[moment])
        assert re.search(pattern, str(failure)), str(failure)
        assert ["failure" in entry for entry in entries] == [False, True, False]
        entries = manager.step([ALL_RIGHT[0], ALL_RIGHT[2]])
        turns = 1 + (moment is Moment.STEP)
        assert [entry["history"][-1]["state"] for entry in entries if entry["env_id"] != 1] == [str(turns)] * 2


def evaluation(fault: Fault, moment: Moment, folder: Path) -> None:
    """The record of the episode tells it, after a second try; the other mission has its scores."""
    broken = Mission(name="broken", env=FaultyEnv, kwargs={"fault": fault.value, "moment": moment.value, **LONG})
    sound = Mission(name="sound", env=ScriptedEnv, kwargs={"episode_lengths": (3,)})
    limits: Any = {"episode_timeout": SOON} if fault in HANGING else {}
    if moment is Moment.RESET and fault in RAISED:  # a mission is tried before its episodes
        with pytest.raises(BadEvaluation, match=f"'broken' cannot begin: its reset raised {RAISED[fault]}"):
            evaluate([sound, broken], "noop", 1, jobs=1)
        return
    found = evaluate([sound, broken], "noop", 1, jobs=1, max_steps=5, **limits)
    (record,) = found.failures
    assert (record.mission, record.attempts, record.score) == ("broken", 2, None)
    assert record.failure is not None
    kind = kind_of(fault)
    assert record.failure.kind == ("env" if kind == "error" else kind)
    told = {"death": ENDINGS.get(fault, ""), "timeout": "episode_timeout=1 seconds", "error": ""}[kind]
    assert told.removeprefix("was ") in record.failure.message, record.failure.message
    assert record.failure.error_type == (
        RAISED[fault] if kind == "error" else {"death": "WorkerDied", "timeout": "TimeoutError"}[kind]
    )
    assert [one.length for one in found.episodes if one.failure is None] == [3]


def policies(fault: Fault, moment: Moment, folder: Path) -> None:
    """The error names the agent and those that are lost with it; one that is late has its default action."""
    ending = ENDINGS.get(fault, "").partition(" (")[0]
    told = pytest.raises(
        PolicyError, match=f"policy of 'dying' raised .*{RAISED.get(fault, f'WorkerDied: .*{ending}')}"
    )
    lost = ["dying"] if fault in RAISED else ["dying", "beside"]
    rules = Rules(action_timeout=SHORT, default_action=-1) if fault in HANGING else None
    given = {"dying": FaultyPolicy(fault.value, moment.value), "apart": FaultyPolicy(), "beside": FaultyPolicy()}
    with closing(PolicyPool(2)) as pool:
        if moment is Moment.CONSTRUCTOR:
            with told as caught:
                PerAgentProcessWrapper(given, rules, pool=pool)
            assert set(caught.value.agents) == set(lost)
            return
        with PerAgentProcessWrapper(given, rules, pool=pool) as wrapper:
            if moment is Moment.STEP:
                wrapper.reset()
            act = wrapper.reset if moment is Moment.RESET else partial(wrapper.step, dict.fromkeys(given, 0))
            if fault in HANGING:
                actions: Any = act()
                assert moment is Moment.RESET or actions["dying"] == -1
            else:
                with told as caught:
                    act()
                assert set(caught.value.agents) == set(lost)
            wrapper.reset(["apart"])
            assert wrapper.step({"apart": 0}) == {"apart": 7}
            assert wrapper.revive() == ([] if fault in RAISED else lost)


OBJECTS: dict[str, tuple[Check, tuple[Moment, ...]]] = {
    "agents": (agents, (Moment.STEP, Moment.RESET, Moment.CALL, Moment.CONSTRUCTOR)),
    "groups": (groups, (Moment.STEP, Moment.RESET, Moment.CONSTRUCTOR)),
    "evaluation": (evaluation, (Moment.STEP, Moment.RESET)),
    "policies": (policies, (Moment.STEP, Moment.RESET, Moment.CONSTRUCTOR)),
}
CASES = [
    (thing, moment, fault)
    for thing, (_, moments) in OBJECTS.items()
    for moment in moments
    for fault in sorted(Fault, key=lambda fault: fault is Fault.SIGSTOP)  # what hangs is mostly one that ends at once
    if fault in FAULTS_AT[moment]
    and fault is not Fault.HUGE_REPLY
    and not (thing == "policies" and moment is Moment.CONSTRUCTOR and fault in HANGING)
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(running, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(running, "_FRESH_GRACE_SECONDS", 2.0)
    monkeypatch.setattr(process, "_STATE_SECONDS", SHORT)


@pytest.mark.parametrize(("thing", "moment", "fault"), covering(CASES), ids=name)
def test_a_fault_is_told_by_every_object(tmp_path: Path, thing: str, moment: Moment, fault: Fault) -> None:
    OBJECTS[thing][0](fault, moment, tmp_path)
