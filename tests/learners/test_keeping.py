"""States that are taken over: whole, or not at all; and only by agents to whom their numbers mean the same."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
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


def sized(*hidden: int, **more: Any) -> PPOConfig:
    return PPOConfig(rollout_length=8, minibatch_size=8, hidden=hidden, **more)


MEANINGS: list[tuple[Kind, Kind, str]] = [
    ((sized(32, 64), SEEN, Discrete(3)), (sized(64, 32), SEEN, Discrete(3)), "parameters: "),
    ((PPO, SEEN, CHOICE), (sized(8, activation="relu"), SEEN, CHOICE), "activation: tanh stored, relu here"),
    ((PPO, SEEN, CHOICE), (PPO, MultiBinary(2), CHOICE), r"observation_space: Box\(.* stored, MultiBinary\(2\) here"),
    ((PPO, SEEN, CHOICE), (PPO, SEEN, Discrete(2, start=5)), r"action_space: .*start=5\) here"),
]


@pytest.mark.parametrize(("stored", "own", "words"), MEANINGS, ids=["layers", "activation", "observations", "actions"])
def test_numbers_that_mean_something_else_are_refused_though_they_are_as_many(
    stored: Kind, own: Kind, words: str, tmp_path: Path
) -> None:
    state, learner = agent(*stored).state(), agent(*own)
    before = learner.state()
    assert state["arrays"]["weights"].shape == before["arrays"]["weights"].shape
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
    learner = agent(PPOConfig(rollout_length=16, minibatch_size=4, hidden=(8,), learning_rate=0.5, discount=0.3))
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


BLUE, ALL = "blue/agent.json", "checkpoint.json"
DAMAGES: dict[str, tuple[str, tuple[Any, ...], Any, str]] = {
    "counters that are none": (BLUE, ("counters",), [], r"agent 'blue' \(counters: \[\] stored"),
    "no counters": (BLUE, ("counters",), {}, "agent 'blue' .*steps is None"),
    "a word for a number": (BLUE, ("counters", "steps"), "many", "agent 'blue' .*steps is 'many'"),
    "a number beyond all counting": (BLUE, ("counters", "updates"), 10**30, "agent 'blue' .*updates is 1"),
    "no generator": (BLUE, ("generator",), {}, "agent 'blue' .*generator: draws is no state of PCG64"),
    "another": (BLUE, ("generator", "draws", "bit_generator"), "MT19937", "agent 'blue' .*draws is no state of PCG64"),
    "a generator that acts and is none": (BLUE, ("generator", "acting"), 3, "acting is no state"),
    "no steps": (ALL, ("about",), {"seed": 1, "updates": 2}, "steps=None"),
    "nothing about all": (ALL, ("about",), None, "says None about all agents"),
    "returns of one of two": (ALL, ("about", "returns"), [[1.0]], r"says returns=\[\[1.0"),
    "returns that are words": (ALL, ("about", "returns"), [[], ["a"]], "says returns="),
    "a folder without a name": (ALL, ("agents", 1, "folder"), "", "does not say which agents there are"),
    "a folder elsewhere": (ALL, ("agents", 1, "folder"), "../x", "does not say which agents there are"),
    "an agent twice": (ALL, ("agents", 1, "agent"), "red", "does not say which agents"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_load_that_fails_changes_no_agent(
    damage: str, saved: tuple[Path, IndependentLearners], tmp_path: Path
) -> None:
    """The second agent's part is bad: the first is not loaded either."""
    folder, own = saved
    bad = Path(shutil.copytree(folder, tmp_path / "bad"))
    file, (*keys, last), value, words = DAMAGES[damage]
    as_earlier_versions_wrote_it(bad / file)  # with its checksum it would be refused for that
    content = part = json.loads((bad / file).read_text())
    for key in keys:
        part = part[key]
    part[last] = value
    (bad / file).write_text(json.dumps(content))
    before, steps = own.states(), own.steps
    with pytest.raises(BadCheckpoint, match=words):
        own.load(bad)
    assert_same_batch(own.states(), before)
    assert own.steps == steps


def test_states_are_taken_over_by_all_or_by_none(saved: tuple[Path, IndependentLearners]) -> None:
    _, own = saved
    before = own.states()
    fits, blue = copy.deepcopy(before["red"]), before["blue"]
    fits["arrays"]["weights"] += 1.0
    broken, short = copy.deepcopy(blue), copy.deepcopy(blue["memory"])
    broken["arrays"]["weights"] = broken["arrays"]["weights"][:, :-1]
    short["arrays"]["versions"] = short["arrays"]["versions"][:-1]
    memories: list[Any] = [{}, {"counters": {}}, [], short]
    bad: list[Any] = [broken, {}, {**blue, "generator": None}, *({**blue, "memory": memory} for memory in memories)]
    for state in bad:
        with pytest.raises(BadCheckpoint, match="agent 'blue'"):
            own.load_states({"red": fits, "blue": state})
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
    learner.carry = np.full((3, 6), np.nan, np.float32)
    learner.load_state(learner.state())


def test_what_is_no_state_is_told_before_anything_is_touched(
    saved: tuple[Path, IndependentLearners], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, own = saved
    before, changed = own.states(), list[Any]()
    monkeypatch.setattr(own.mode, "changed", changed.append)
    blue, memory = before["blue"], {"counters": 5, "arrays": 5}
    lists = {name: array.tolist() for name, array in blue["arrays"].items()}
    bad: list[tuple[Any, type[Exception], str]] = [
        (3, TypeError, "^3 was given as states. Give a dict"),
        ({"green": before["red"]}, KeyError, "no agent 'green'"),
        ({"blue": 3}, BadCheckpoint, "holds 3 for agent 'blue'"),
        ({"blue": {**blue, "arrays": 3}}, BadCheckpoint, "agent 'blue'.*arrays: 3 stored"),
        ({"blue": {**blue, "arrays": lists}}, BadCheckpoint, r"'blue'.*weights: no array but a list stored"),
        ({"blue": {**blue, "memory": memory}}, BadCheckpoint, "'blue': its memory has no counters and arrays"),
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
