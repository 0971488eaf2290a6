"""Policies that a wrapper made are closed by it; what agents have in common is reset; long lives leave nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Strategy
from parallel_envs.errors import PolicyError
from parallel_envs.policies import MultiAgentPolicy, PolicySpec
from parallel_envs.wrappers import STRATEGIES, PolicyPool, WrappedMultiAgentPolicy
from tests.wrappers.agents import Constant, Drawing, raising, told
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
BOTH = {"a": SEEN, "b": SEEN}


class Logging(Drawing):
    """Tells when it is closed."""

    def __init__(self, log: Path, agent: str, *, opens: bool = False, fails: bool = False) -> None:
        super().__init__()
        self.log, self.agent, self.fails = log, agent, fails
        self.file = Path(__file__).open(encoding="utf-8") if opens else None  # noqa: SIM115  # cannot be pickled

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        told(f"{self.agent} closed", self.log)
        if self.fails:
            raising()


def spec(log: Path, agent: str, **more: bool) -> PolicySpec:
    return PolicySpec(f"{__name__}:Logging", kwargs={"log": log, "agent": agent, "opens": True, **more})


def told_in(log: Path) -> list[str]:
    return sorted(log.read_text().splitlines()) if log.exists() else []


def test_a_policy_that_was_made_from_a_spec_is_closed(tmp_path: Path, strategy: Strategy) -> None:
    log = tmp_path / "log"
    with WrappedMultiAgentPolicy({agent: spec(log, agent) for agent in "ab"}, strategy, workers=1) as policy:
        for count in range(1, 10):
            assert {a // 1000 for a in policy.step(BOTH).values()} == {count}
        assert told_in(log) == []
    assert told_in(log) == ["a closed", "b closed"]
    policy.close()
    assert told_in(log) == ["a closed", "b closed"]


def test_a_policy_that_was_given_is_closed_in_a_worker_that_it_leaves_and_not_here(
    wrap: Wrap, tmp_path: Path, strategy: str, pool: PolicyPool
) -> None:
    with wrap({"a": Logging(tmp_path / "log", "a")}, strategy) as policy:
        policy.step({"a": SEEN})
    if strategy == "process":
        workers = pool.processes()
        workers.wait(workers.call_all(0, "build", workers.new_key(), dict))
    assert told_in(tmp_path / "log") == (["a closed"] if strategy == "process" else [])


def test_all_are_closed_where_one_raises(tmp_path: Path) -> None:
    log = tmp_path / "log"
    policies = {"a": spec(log, "a"), "b": spec(log, "b", fails=True), "c": spec(log, "c")}
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


def test_what_agents_have_in_common_is_reset_once_an_episode_and_the_agents_even_if_it_cannot_be(
    wrap: Wrap, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, whole = Team(), Whole()
    for common in (team, whole):
        policy = wrap(common, strategy)
        policy.reset()
        for _ in range(2):
            policy.step(BOTH)
        policy.reset()
        assert {said // 1000 for said in policy.step(BOTH).values()} == {1}
        policy.reset(rows=np.array([False, True]))
    assert team.resets == [None, None, [1]]
    assert whole.resets == ["all", "all"]
    monkeypatch.setattr(whole, "reset", raising)
    policy.step(BOTH)
    with pytest.raises(ZeroDivisionError):
        policy.reset()
    assert policy.step({"a": SEEN})["a"] // 1000 == 1


# ---- long lives ----------------------------------------------------------------------------------

WARM_UP = 500
MOST_BYTES = 4 << 20


def held(pids: list[int]) -> tuple[int, int]:
    """Descriptors of all processes, and threads of this one."""
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids), threading.active_count()


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


many = pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])


@many
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_thousands_of_turns_leave_nothing_behind(seat: Seat, pool: PolicyPool, strategy: str, count: int) -> None:
    if strategy == "gpu":
        pytest.importorskip("torch")
    wrapper = seat(strategy, {"a": Constant(), "b": Constant()})
    pids = [os.getpid()]
    if strategy == "process":
        pids += [pool.processes().pid(worker) for worker in range(2)]
    seen: list[Any] = [{"a": np.zeros(3), "b": np.zeros(3)}, {"b": np.zeros(3)}, {"a": np.zeros(3), "b": 1}]
    for _ in range(WARM_UP):
        wrapper.step(seen[0])
        wrapper.step(seen[1])
    before, bytes_before = held(pids), [resident(pid) for pid in pids]
    for number in range(count):
        wrapper.step(seen[number % 2])
        if number % 1000 == 0:
            wrapper.step(seen[2])
            wrapper.reset()
            wrapper.get_state("a")
            one, other = wrapper.agent_policy("a"), wrapper.agent_policy("b")
            one.send(seen[0]["a"])
            assert (other.step(seen[0]["b"]), one.recv()) == (0, 0)
    assert held(pids) == before
    for pid, earlier in zip(pids, bytes_before, strict=True):
        assert resident(pid) - earlier < MOST_BYTES
    assert wrapper.tallies["b"].turns == 2 * WARM_UP + count + 2 * (count // 1000)


@many
def test_thousands_of_passes_leave_nothing_behind(seat: Seat, count: int) -> None:
    """Of networks that are trained, replaced and asked in ever other company."""
    torch = pytest.importorskip("torch")
    from tests.wrappers.networks import mlp, several

    policies = several("abcd")
    wrapper = seat("batch", policies)
    companies = [{agent: np.zeros(6, np.float32) for agent in agents} for agents in ("abcd", "ab", "bcd", "dcba", "ac")]

    def passes(count: int) -> None:
        for number in range(count):
            wrapper.step(companies[number % 5])
            if number % 50 == 0:
                with torch.no_grad():
                    policies["b"].module[0].weight += 0.001
            if number % 500 == 0:
                policies["c"].module = mlp(number)

    passes(WARM_UP)
    before, bytes_before = held([os.getpid()]), resident(os.getpid())
    passes(count)
    assert held([os.getpid()]) == before
    assert resident(os.getpid()) - bytes_before < MOST_BYTES
