"""Policies that a wrapper made are closed by it; what agents have in common is reset; what is closed too early."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import ClosedError, PolicyError
from parallel_envs.policies import MultiAgentPolicy, PolicySpec
from parallel_envs.wrappers import Rules, WrappedMultiAgentPolicy
from tests.gates import Gate
from tests.wrappers.agents import Drawing, Waiting, raising, told
from tests.wrappers.conftest import Wrap

SEEN = np.zeros(2)
HERE = __name__


class Logging(Drawing):
    """Tells when it is closed. Cannot be pickled."""

    def __init__(self, log: str, agent: str = "") -> None:
        super().__init__()
        self.log, self.agent, self.file = log, agent, Path(__file__).open(encoding="utf-8")  # noqa: SIM115

    def close(self) -> None:
        self.file.close()
        told(f"{self.agent} closed", Path(self.log))


class Failing(Logging):
    def close(self) -> None:
        super().close()
        raising()


def spec(log: Path, agent: str, kind: str = "Logging") -> PolicySpec:
    return PolicySpec(f"{HERE}:{kind}", kwargs={"log": str(log), "agent": agent})


def told_in(log: Path) -> list[str]:
    return sorted(log.read_text().splitlines()) if log.exists() else []


def test_a_policy_that_was_made_from_a_spec_is_closed(tmp_path: Path, strategy: Strategy) -> None:
    log = tmp_path / "log"
    with WrappedMultiAgentPolicy({agent: spec(log, agent) for agent in "ab"}, strategy, workers=1) as policy:
        for count in range(1, 10):
            assert {a // 1000 for a in policy.step({"a": SEEN, "b": SEEN}).values()} == {count}
        assert told_in(log) == []
    assert told_in(log) == ["a closed", "b closed"]
    policy.close()
    assert told_in(log) == ["a closed", "b closed"]


def test_a_policy_that_was_given_is_not_closed_here(wrap: Wrap, tmp_path: Path) -> None:
    given = Logging(str(tmp_path / "log"))
    for strategy in ("sequential", "thread", "batch", "auto"):
        with wrap({"a": given}, strategy) as policy:
            policy.step({"a": SEEN})
    assert told_in(tmp_path / "log") == []
    given.close()


def test_all_are_closed_where_one_raises(tmp_path: Path) -> None:
    log = tmp_path / "log"
    policies = {"a": spec(log, "a"), "b": spec(log, "b", "Failing"), "c": spec(log, "c")}
    with pytest.raises(ZeroDivisionError):
        WrappedMultiAgentPolicy(policies, "sequential").close()
    assert told_in(log) == ["a closed", "b closed", "c closed"]


def test_a_spec_that_makes_no_policy_names_its_agent_and_the_others_are_closed(
    wrap: Wrap, tmp_path: Path, strategy: str
) -> None:
    log = tmp_path / "log"
    text = "policy of 'b' raised ImportError: The module of the policy 'no_such:Thing' cannot be imported"
    with pytest.raises(ImportError, match=text) as caught:
        wrap({"a": spec(log, "a"), "b": PolicySpec("no_such:Thing"), "c": spec(log, "c")}, strategy)
    assert isinstance(caught.value, PolicyError)
    assert caught.value.agents == ("b",)
    if strategy != "process":
        assert told_in(log) == ["a closed"]


# ---- what agents have in common ------------------------------------------------------------------


class Team(MultiAgentPolicy):
    """Counts how often it is reset, and in which rows."""

    def __init__(self) -> None:
        self.resets: list[Any] = []
        self.policies = {agent: Drawing() for agent in "ab"}

    def agent_policy(self, agent: Any) -> Any:
        return self.policies[agent]

    def reset(self, rows: Any = None) -> None:
        self.resets.append(None if rows is None else rows.tolist())


class Whole(Team):
    """Knows nothing of rows."""

    def reset(self) -> None:  # type: ignore[override]  # that is the point
        self.resets.append("all")


def test_what_agents_have_in_common_is_reset_once_an_episode(wrap: Wrap, strategy: str) -> None:
    team, whole = Team(), Whole()
    for common in (team, whole):
        policy = wrap(common, strategy)
        policy.reset()
        for _ in range(2):
            policy.step({"a": SEEN, "b": SEEN})
        policy.reset()
        assert {said // 1000 for said in policy.step({"a": SEEN, "b": SEEN}).values()} == {1}
        policy.reset(rows=np.array([False, True]))
    assert team.resets == [None, None, [1]]
    assert whole.resets == ["all", "all"]


def test_agents_are_reset_where_what_they_have_in_common_cannot_be(
    wrap: Wrap, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = Team()
    policy = wrap(team, strategy)
    policy.step({"a": SEEN, "b": SEEN})
    monkeypatch.setattr(team, "reset", raising)
    with pytest.raises(ZeroDivisionError):
        policy.reset()
    assert policy.step({"a": SEEN})["a"] // 1000 == 1


# ---- too early -----------------------------------------------------------------------------------


def test_a_wrapper_may_be_closed_between_send_and_recv(wrap: Wrap, strategy: str) -> None:
    for rules in (None, Rules(action_timeout=5.0, default_action=0)):
        policy = wrap({"a": Drawing(), "b": Drawing()}, strategy, rules=rules)
        agent: Any = policy.agent_policy("b")
        policy.send({"a": SEEN})
        agent.send(SEEN)
        policy.close()
        for recv in (policy.recv, agent.recv):
            with pytest.raises(ClosedError):
                recv()


def test_ctrl_c_while_policies_compute_ends_the_turn_and_nothing_else(wrap: Wrap, gate: Gate, parallel: str) -> None:
    policy = wrap({"a": Waiting(gate.path), "b": Drawing()}, parallel)
    policy.send({"a": np.ones(2), "b": np.zeros(2)})
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            policy.recv()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    gate.let_through()
    said = policy.step({"a": np.zeros(2), "b": np.zeros(2)})
    assert (said["a"], said["b"] // 1000) == (2, 2)
    policy.reset()
    assert policy.step({"b": np.zeros(2)})["b"] // 1000 == 1
