"""What the update of one agent raises is undone and told with its name; the others learn, in every mode."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import LearnIn, UpdateModeName
from parallel_envs.errors import RemoteTraceback
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, UpdateFailed
from parallel_envs.learners.loops import LoopOptions, open_loop
from parallel_envs.learners.updates import MODES
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import CASES, learners, live, mode_of, plans, updated
from tests.learners.test_independent import Poisoned, pressing

CONFIG, *SPACES = CASES["ppo-box"]  # which has statistics, too
OTHER = DQNConfig(batch_size=16, learning_starts=10, hidden=(8,), gradient_steps=3), *CASES["dqn-small"][1:]
ALONE: Any = {"before": CASES["ppo-small"], "fails": (CONFIG, *SPACES), "behind": OTHER}


def fail_while(flag: Path, countdown: list[int], method: Any, *given: Any) -> Any:
    """Do what the method does, and raise at the end of the second time."""
    result = method(*given)
    countdown[0] -= 1
    if flag.exists() and countdown[0] <= 0:
        raise OSError("not now")
    return result


def break_(one: Any, moment: str, flag: Path, times: int = 2) -> None:
    """Have an algorithm raise while the flag is there, the second time it comes to this moment (or the first)."""
    flag.touch()
    setattr(one.algorithm, moment, partial(fail_while, flag, [times], getattr(one.algorithm, moment)))


def everything(agents: Any) -> dict[str, Any]:
    return {agent: one.state() for agent, one in agents.items()}


def pair(kinds: Any) -> tuple[Any, Any]:
    """The same agents twice, all of which have lived: those that have learnt, and those that are to learn."""
    well, ill = learners(kinds), learners(kinds)
    for agents in (well, ill):
        live(agents, 0)
    with mode_of("sequential", well) as mode:
        updated(mode, well, plans(well))
    return well, ill


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("moment", ["should_stop", "see", "loss", "after_step", "after_update"])
@pytest.mark.parametrize("name", ["sequential", "thread", "fused", "process"])
def test_an_update_that_raises_is_undone_and_the_others_learn(name: str, moment: str, tmp_path: Path) -> None:
    """Whenever it raises. Then it is made again, as if nothing had been. A worker has all agents."""
    well, ill = pair(ALONE)
    if name == "fused":
        well = learners(ALONE)
        live(well, 0)
        with mode_of(name, well) as mode:
            updated(mode, well, plans(well))
    break_(ill["fails"], moment, tmp_path / "flag", 1 if moment in ("see", "after_update") else 2)
    before, drawn = ill["fails"].state(), plans(ill)
    with mode_of(name, ill, 1 if name == "process" else 2) as mode:
        reports = mode.update(drawn)
        learnt = {agent: report.learnt for agent, report in reports.items()}
        assert learnt == {"before": True, "fails": False, "behind": True}
        assert_same_batch(ill["fails"].state()["arrays"], before["arrays"])
        (tmp_path / "flag").unlink()
        reports |= mode.update({"fails": drawn["fails"]})
    for agent, report in reports.items():
        ill[agent].finish(report)
    assert_same_batch(everything(ill), everything(well))


def test_agents_that_are_computed_together_fail_together(tmp_path: Path) -> None:
    agents = learners({"one": CASES["ppo-small"], "alone": OTHER, "two": CASES["ppo-small"]})
    live(agents, 0)
    break_(agents["one"], "loss", tmp_path / "flag", 1)
    before = everything(agents)
    with mode_of("fused", agents) as mode:
        reports = updated(mode, agents, plans(agents))
    failures = {agent: report.failure for agent, report in reports.items() if report.failure is not None}
    error = UpdateFailed.of(failures)
    assert error.agents == ("one", "two")
    assert "Agents 'one', 'two', which learn together, have not learnt: the update raised OSError: not now." in str(
        error
    )
    for agent in failures:
        assert_same_batch(agents[agent].state()["arrays"], before[agent]["arrays"])
    assert [one.counters["skipped"] for one in agents.values()] == [1, 0, 1]
    assert not np.array_equal(agents["alone"].state()["arrays"]["weights"], before["alone"]["arrays"]["weights"])


PPO = PPOConfig(rollout_length=10, minibatch_size=20, num_epochs=2, hidden=(8,), learning_rate=1e-2)


@pytest.mark.parametrize("mode", MODES)
def test_learners_name_the_agent_and_count_the_others(mode: UpdateModeName, tmp_path: Path) -> None:
    """And go on when the reason is gone."""
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode=mode, workers=1) as made:
        red, blue = made.agents.values()
        break_(red, "should_stop", tmp_path / "flag")
        before = made.states()
        with pytest.raises(OSError, match=r"^Agent 'red' has not learnt: the update raised OSError: not now\.") as told:
            made.train(100)
        error: Any = told.value
        assert isinstance(error, UpdateFailed)
        assert error.agents == ("red",)
        assert isinstance(error.__cause__, RemoteTraceback if mode == "process" else OSError)
        assert (red.counters["updates"], red.counters["skipped"]) == (0, 1)
        assert (blue.counters["updates"], blue.acting_version, made.updates) == (1, 1, 1)
        after = made.states()
        assert_same_batch(after["red"]["arrays"], before["red"]["arrays"])
        assert not np.array_equal(after["blue"]["arrays"]["weights"], before["blue"]["arrays"]["weights"])
        (tmp_path / "flag").unlink()
        made.train(40)
        assert [one.counters["updates"] for one in (red, blue)] == [1, 2]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("how", [{"mode": "overlap"}, {"mode": "free", "queue": 2}], ids=["overlap", "free"])
@pytest.mark.parametrize("place", ["serial", "thread", "process"])
def test_learners_name_the_agent_while_collecting(how: Any, place: LearnIn, tmp_path: Path) -> None:
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode="sequential", workers=1) as made:
        red, blue = made.agents.values()
        break_(red, "should_stop", tmp_path / "flag")
        before = red.state()["arrays"]
        with pytest.raises(UpdateFailed, match=r"^Agent 'red' has not learnt"):
            made.train(400, learn_in=place, **how)
        assert red.counters["updates"] == 0
        assert blue.counters["updates"] >= (how["mode"] == "overlap")  # "free" may not have come to its turn
        assert_same_batch(red.state()["arrays"], before)
        (tmp_path / "flag").unlink()
        with open_loop(made, LoopOptions(learn_in=place, **how)) as loop:
            for _ in range(30):
                loop.advance()
            loop.settle()
        assert red.counters["updates"] >= 1


def test_an_agent_that_has_diverged_beside_it_is_told_too(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with pressing(Poisoned) as envs, IndependentLearners(envs, PPO, update_mode="sequential") as made:
        break_(made.agents["blue"], "loss", tmp_path / "flag", 1)
        with caplog.at_level(logging.WARNING), pytest.raises(UpdateFailed, match="'blue'"):
            made.train(100)
        assert "Agent 'red' has not learnt: its loss or its gradient was not finite" in caplog.text
        assert [one.counters["skipped"] for one in made.agents.values()] == [1, 1]


def test_ctrl_c_in_the_middle_of_an_update_undoes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one, which is not waited with."""
    for name in ("sequential", "fused"):
        agents = learners("ppo-small", 2)
        live(agents, 0)
        before, drawn = everything(agents), plans(agents)
        for one in agents.values():
            monkeypatch.setattr(one.algorithm, "after_step", interrupted)
        with mode_of(name, agents) as mode, pytest.raises(KeyboardInterrupt):
            mode.update(drawn)
        for agent, one in agents.items():
            assert_same_batch(one.state()["arrays"], before[agent]["arrays"])


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_is_remembered_behind_an_update_that_raised_is_nothing(tmp_path: Path) -> None:
    agents = learners("ppo-gru", 1)
    (learner,) = agents.values()
    for number in range(2):
        live(agents, number)
        if number:
            break_(learner, "loss", tmp_path / "flag", 1)
        with mode_of("sequential", agents) as mode:
            updated(mode, agents, plans(agents))
        assert ("carry" in learner.state()["arrays"]) is (number == 0)
