"""States that are taken over: whole, or not at all; and only by agents to whom their numbers mean the same."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, Space

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs.learners import BadCheckpoint, DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import AlgorithmConfig
from parallel_envs.learners.checkpoint import load_agent, replace_agent, save_agent, save_checkpoint
from parallel_envs.learners.trained import TrainedAgent
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.seeding import SeedTree
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import DQN, learners, live
from tests.learners.test_checkpoints import as_earlier_versions_wrote_it
from tests.learners.test_independent import Pressing

PPO = PPOConfig(rollout_length=8, minibatch_size=8, hidden=(8,))
SEEN, CHOICE = Box(-1.0, 1.0, (2,)), Discrete(2)
SMALL = DQNConfig(batch_size=8, learning_starts=4, hidden=(8,), buffer_size=60)
Kind = tuple[AlgorithmConfig, Space[Any], Space[Any]]


def agent(config: AlgorithmConfig = PPO, seen: Space[Any] = SEEN, choice: Space[Any] = CHOICE) -> AgentLearner:
    return AgentLearner("red", config, seen, choice, num_rows=2, seed=SeedTree(0))


# ---- what numbers mean ----------------------------------------------------------------------------------------------

OTHERS: dict[str, tuple[Kind, Kind, str]] = {
    "layers": (
        (PPOConfig(rollout_length=8, minibatch_size=8, hidden=(32, 64)), SEEN, Discrete(3)),
        (PPOConfig(rollout_length=8, minibatch_size=8, hidden=(64, 32)), SEEN, Discrete(3)),
        "parameters: ",
    ),
    "activation": (
        (PPO, SEEN, CHOICE),
        (PPOConfig(rollout_length=8, minibatch_size=8, hidden=(8,), activation="relu"), SEEN, CHOICE),
        "activation: tanh stored, relu here",
    ),
    "observations": (
        (PPO, SEEN, CHOICE),
        (PPO, MultiBinary(2), CHOICE),
        r"observation_space: Box\(.* stored, MultiBinary\(2\) here",
    ),
    "actions": ((PPO, SEEN, CHOICE), (PPO, SEEN, Discrete(2, start=5)), r"action_space: .*start=5\) here"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_numbers_that_mean_something_else_are_refused_though_they_are_as_many(other: str, tmp_path: Path) -> None:
    (stored, own, words) = OTHERS[other]
    state, learner = agent(*stored).state(), agent(*own)
    assert state["arrays"]["weights"].shape == learner.state()["arrays"]["weights"].shape
    before = learner.state()
    with pytest.raises(BadCheckpoint, match=rf"agent 'red'.*{words}"):
        learner.load_state(state)
    assert_same_batch(learner.state(), before)
    save_checkpoint(tmp_path, {"red": before})
    with pytest.raises(BadCheckpoint, match=words):
        replace_agent(tmp_path, "red", state)


def test_policies_of_another_space_are_refused(tmp_path: Path) -> None:
    save_agent(tmp_path / "red", "red", agent().state())
    with pytest.raises(BadCheckpoint, match="action_space"):
        TrainedAgent("red", SEEN, Discrete(2, start=5)).load(tmp_path / "red")
    TrainedAgent("red", SEEN, CHOICE).load(tmp_path / "red")


def test_how_it_learnt_may_be_other_than_how_it_is_to_learn() -> None:
    state = agent().state()
    other = PPOConfig(rollout_length=16, minibatch_size=4, hidden=(8,), learning_rate=0.5, discount=0.3)
    learner = agent(other)
    learner.load_state(state)
    assert_same_batch(learner.state()["arrays"], state["arrays"])


def test_agents_of_the_first_format_are_read_without_what_they_do_not_tell(tmp_path: Path) -> None:
    state, path = agent().state(), tmp_path / "red" / "agent.json"
    save_agent(tmp_path / "red", "red", state)
    told = json.loads(path.read_text())
    assert told["format"] == "parallel_envs agent 3"
    del told["form"], told["checksum_of_this_file"]
    path.write_text(json.dumps({**told, "format": "parallel_envs agent 1"}))
    old = load_agent(tmp_path / "red")
    assert "form" not in old
    assert_same_batch(old["arrays"], state["arrays"])
    agent(PPO, MultiBinary(2)).load_state(old)  # nothing says that it does not fit
    TrainedAgent("red", SEEN, CHOICE).load(tmp_path / "red")


# ---- all or nothing -------------------------------------------------------------------------------------------------


class Alike(Pressing):
    """Both agents see and do the same."""

    def observation_space(self, agent: str) -> Any:
        return SEEN

    def action_space(self, agent: str) -> Any:
        return CHOICE

    def seen(self) -> Any:
        return {agent: self.source.uniform(-1, 1, 2).astype(np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        return super().step({"red": actions["red"], "blue": [actions["blue"]]})


def two(num_envs: int, config: AlgorithmConfig = SMALL, seed: int = 1) -> IndependentLearners:
    envs = MultiAgentEnvManager([Alike] * num_envs, backend="serial")
    return IndependentLearners(envs, config, update_mode="sequential", seed=seed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, IndependentLearners]]:
    """A checkpoint of two agents with replay buffers, and learners who may not become what is made of it."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    with two(2) as learned, two(2, seed=2) as own:
        learned.train(40)
        learned.save(folder)
        own.train(12)
        yield folder, own
        learned.envs.close()
        own.envs.close()


def told(change: Callable[[dict[str, Any]], None], file: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / file
        as_earlier_versions_wrote_it(path)  # with its checksum it would be refused for that
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


def set_in(*keys: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return change


BLUE = "blue/agent.json"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "counters that are none": (told(set_in("counters", to=[]), BLUE), r"agent 'blue' \(counters: \[\] stored"),
    "no counters": (told(set_in("counters", to={}), BLUE), "agent 'blue' .*steps is None"),
    "a word for a number": (told(set_in("counters", "steps", to="many"), BLUE), "agent 'blue' .*steps is 'many'"),
    "a number beyond all counting": (
        told(set_in("counters", "updates", to=10**30), BLUE),
        "agent 'blue' .*updates is 1",
    ),
    "no generator": (told(set_in("generator", to={}), BLUE), "agent 'blue' .*generator: draws is no state of PCG64"),
    "another generator": (
        told(set_in("generator", "draws", "bit_generator", to="MT19937"), BLUE),
        "agent 'blue' .*draws is no state of PCG64",
    ),
    "a generator that acts and is none": (told(set_in("generator", "acting", to=3), BLUE), "acting is no state"),
    "no steps": (told(set_in("about", to={"seed": 1, "updates": 2}), "checkpoint.json"), "steps=None"),
    "nothing about all": (told(set_in("about", to=None), "checkpoint.json"), "says None about all agents"),
    "returns of one of two": (told(set_in("about", "returns", to=[[1.0]]), "checkpoint.json"), r"says returns=\[\[1.0"),
    "returns that are words": (told(set_in("about", "returns", to=[[], ["a"]]), "checkpoint.json"), "says returns="),
    "a folder elsewhere": (
        told(set_in("agents", 1, "folder", to="../x"), "checkpoint.json"),
        "does not say which agents there are",
    ),
    "an agent twice": (told(set_in("agents", 1, "agent", to="red"), "checkpoint.json"), "does not say which agents"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_load_that_fails_changes_no_agent(
    damage: str, saved: tuple[Path, IndependentLearners], tmp_path: Path
) -> None:
    """The second agent's part is bad: the first is not loaded either."""
    folder, own = saved
    bad = Path(shutil.copytree(folder, tmp_path / "bad"))
    apply, words = DAMAGES[damage]
    apply(bad)
    before, steps = own.states(), own.steps
    with pytest.raises(BadCheckpoint, match=words):
        own.load(bad)
    assert_same_batch(own.states(), before)
    assert own.steps == steps


def test_a_memory_that_is_none_or_lacks_versions_changes_no_agent(saved: tuple[Path, IndependentLearners]) -> None:
    _, own = saved
    before = own.states()
    short = copy.deepcopy(before["blue"]["memory"])
    short["arrays"]["versions"] = short["arrays"]["versions"][:-1]
    malformed: list[Any] = [{}, {"counters": {}}, [], short]
    for bad in malformed:
        with pytest.raises(BadCheckpoint, match="agent 'blue'"):
            own.load_states({"red": before["red"], "blue": {**before["blue"], "memory": bad}})
        assert_same_batch(own.states(), before)


def test_states_are_taken_over_by_all_or_by_none(saved: tuple[Path, IndependentLearners]) -> None:
    _, own = saved
    before = own.states()
    fits, broken = copy.deepcopy(before["red"]), copy.deepcopy(before["blue"])
    fits["arrays"]["weights"] += 1.0
    broken["arrays"]["weights"] = broken["arrays"]["weights"][:, :-1]
    for bad in (broken, {}, {**before["blue"], "generator": None}):
        with pytest.raises(BadCheckpoint, match="agent 'blue'"):
            own.load_states({"red": fits, "blue": bad})
        assert_same_batch(own.states(), before)


NO_NUMBERS: dict[str, tuple[str, Any, str]] = {
    "weights": ("weights", np.nan, "weights is not finite everywhere"),
    "endless weights": ("weights", np.inf, "weights is not finite everywhere"),
    "adam": ("second", np.nan, "second is not finite everywhere"),
    "adam's steps": ("steps", np.nan, "steps is not finite everywhere"),
    "steps below 0": ("steps", -1.0, "steps is below 0 somewhere"),
    "squares below 0": ("second", -1e-3, "second is below 0 somewhere"),
    "statistics": ("statistics.scale.squares", np.nan, "statistics.scale.squares is not finite everywhere"),
}


@pytest.mark.parametrize("part", NO_NUMBERS)
def test_numbers_that_are_none_are_refused_with_the_agent(part: str) -> None:
    """No update would come to anything after that."""
    name, value, words = NO_NUMBERS[part]
    with two(2, PPOConfig(rollout_length=8, minibatch_size=8, hidden=(8,), normalize_returns=True)) as own:
        before = own.states()
        ill = copy.deepcopy(before["blue"])
        ill["arrays"][name].flat[0] = value
        with pytest.raises(BadCheckpoint, match=rf"agent 'blue' \(arrays: {words}\)\. Nothing was loaded"):
            own.load_states({"red": before["red"], "blue": ill})
        assert_same_batch(own.states(), before)
        own.envs.close()


def test_what_is_remembered_of_an_observation_that_is_no_number_may_be_none() -> None:
    """It is forgotten with the episode."""
    (learner,) = learners("ppo-gru", 1).values()
    learner.carry_on(np.full((3, 6), np.nan, np.float32))
    learner.load_state(learner.state())


def test_what_is_no_state_is_told_before_anything_is_touched(
    saved: tuple[Path, IndependentLearners], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, own = saved
    before, changed = own.states(), list[Any]()
    monkeypatch.setattr(own.mode, "changed", changed.append)
    lists = {name: array.tolist() for name, array in before["blue"]["arrays"].items()}
    bad: list[tuple[Any, type[Exception], str]] = [
        (3, TypeError, "^3 was given as states. Give a dict"),
        ({"green": before["red"]}, KeyError, "no agent 'green'"),
        ({"blue": 3}, BadCheckpoint, "holds 3 for agent 'blue'"),
        ({"blue": {**before["blue"], "arrays": 3}}, BadCheckpoint, "agent 'blue'.*arrays: 3 stored"),
        ({"blue": {**before["blue"], "arrays": lists}}, BadCheckpoint, r"'blue'.*weights: no array but a list stored"),
        (
            {"blue": {**before["blue"], "memory": {"counters": 5, "arrays": 5}}},
            BadCheckpoint,
            "agent 'blue': its memory has no counters and arrays",
        ),
    ]
    for states, kind, words in bad:
        with pytest.raises(kind, match=words):
            own.load_states(states)
    assert changed == []
    assert_same_batch(own.states(), before)


def test_a_replay_buffer_of_other_rows_is_refused_and_may_be_left_out(
    saved: tuple[Path, IndependentLearners], tmp_path: Path
) -> None:
    folder, _ = saved
    with two(4) as wider:
        wider.save(tmp_path / "wide")
        before = wider.states()
        with pytest.raises(BadCheckpoint, match=r"agent 'red'.*num_rows=2.*4"):
            wider.load(folder)
        assert_same_batch(wider.states(), before)
        state = load_agent(folder, "red")
        with pytest.raises(BadCheckpoint, match=r"agent 'red'.*num_rows=2 stored, 4 here.*Leave its `memory` out"):
            replace_agent(tmp_path / "wide", "red", state)
        wider.load(tmp_path / "wide")
        replace_agent(tmp_path / "wide", "red", {name: part for name, part in state.items() if name != "memory"})
        wider.load(tmp_path / "wide")
        assert_same_batch(wider.states()["red"]["arrays"]["weights"], state["arrays"]["weights"])
        wider.envs.close()


def test_a_checkpoint_brings_its_seed(saved: tuple[Path, IndependentLearners]) -> None:
    """Episodes that begin behind it are those that would have begun."""
    folder, _ = saved
    first = []
    with two(2, seed=1) as one, two(2, seed=2) as other:
        for each in (one, other):
            each.load(folder)
            assert each.seed == 1
            each.begin()
            assert each._observations is not None
            first.append(each._observations)
            each.envs.close()
    assert_same_batch(*first)


# ---- snapshots ------------------------------------------------------------------------------------------------------


def test_a_state_stays_as_it_is_while_the_agent_lives_on() -> None:
    agents = learners({"red": (DQN, SEEN, CHOICE)})
    live(agents, 0)
    state = agents["red"].state()
    before = copy.deepcopy(state)
    agents["red"].acting_version = 7
    for number in range(1, 5):
        live(agents, number)
    agents["red"].memory._arrays["rewards"][:] = 9.0  # type: ignore[union-attr]  # a replay buffer, as DQN has
    agents["red"].stamps[:] = 9
    assert_same_batch(state, before)
