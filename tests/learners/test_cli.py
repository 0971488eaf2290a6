"""`parallel-envs train`: what a run leaves behind, what is refused, and that a resumed run is the one never ended."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs.learners import IndependentLearners
from parallel_envs.learners.algorithm_settings import algorithm_configs
from parallel_envs.learners.checkpoints import export_agent, frozen, load_agent, replace_agent
from parallel_envs.learners.learner import CONFIGS
from parallel_envs.learners.outfit import learners_of
from parallel_envs.learners.runs import newest_checkpoint, read_metrics
from parallel_envs.learners.settings import BadSettings, TrainSettings, load_settings
from parallel_envs.learners.updates import UPDATE_TIMEOUT
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import CHECKPOINT_STEPS, PPO, REPLAY, Train, command, killed_run, learnt, newest
from tests.learners.test_independent import Pressing

DQN = {"name": "dqn", **REPLAY, "num_steps": 3, "leniency": 0.5}
SAC = {"name": "sac", **REPLAY}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", PPO),
    "gru": ("CartPole-v1", {**PPO, "network": "gru", "memory_size": 4}),
    "dqn": ("CartPole-v1", DQN),
    "prioritized": ("CartPole-v1", {"name": "dqn", **REPLAY, "prioritized": 0.6, "dueling": True}),
    "sac": ("Pendulum-v1", SAC),
}
PLAIN = ["update_mode=sequential", "backend=serial"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "simple_spread.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    settings = {
        "env": "CartPole-v1",
        "num_envs": 2,
        "total_steps": 2 * CHECKPOINT_STEPS,
        "checkpoint_every": CHECKPOINT_STEPS,
        "seed": 5,
        "tensorboard": False,
        "algorithm": PPO,
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def train(config: Path) -> Train:
    """The command, as a user gives it, without the file if it goes on with a run."""

    def run(*words: Any, resume: Path | None = None) -> Any:
        given = [config, *([] if any("parallel=" in str(word) for word in words) else PLAIN)]
        return command(*(["--resume", resume] if resume else given), *words)

    return run


class Unnamed(Pressing):
    """An agent that no file can be named for."""

    possible_agents = [("a", 1)]  # type: ignore[list-item]  # noqa: RUF012  # what this is about; PettingZoo's form


class Failing(Pressing):
    """Cannot go beyond its eighth step."""

    action_space = Pressing.observation_space
    num_steps = 0

    def step(self, actions: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == 8:
            raise LookupError("no way")
        return super().step({"red": 1, "blue": [0.5]})


# ---- what a run leaves behind --------------------------------------------------------------------


def test_a_run_leaves_its_settings_metrics_and_checkpoints(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = train(f"folder={folder}", "seed=7", "algorithm.num_epochs=1")
    assert done.exit_code == 0, done.output
    assert str(folder) in done.output.splitlines()
    assert "steps/s" in done.output
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert (settings["seed"], settings["algorithm"]["num_epochs"], settings["strategy"]) == (7, 1, "batch")
    assert json.loads((folder / "run.json").read_text())["seed"] == 7
    lines = read_metrics(folder)
    assert [line["update"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["steps"] >= 2 * CHECKPOINT_STEPS
    assert {"loss", "entropy", "return"} <= lines[-1]["agents"]["agent_0"].keys()
    assert lines[-1]["seconds"].keys() == {"collect", "act", "update"}
    assert len(list((folder / "checkpoints").iterdir())) == 2


def test_checkpoints_that_are_closer_than_rollouts_lose_none(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["total_steps=80", "checkpoint_every=3", "algorithm.rollout_length=10"]
    done = train(*words, f"folder={folder}")
    assert done.exit_code == 0, done.output
    assert learnt(folder)[1]["updates"] == 4


def test_a_run_finds_a_folder_of_its_own(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert train("total_steps=8").exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("config-")
    assert newest_checkpoint(folder)


def test_agents_of_different_algorithms_learn_side_by_side(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    folder = tmp_path / "run"
    agents = yaml.safe_dump({"agent_1": DQN}, default_flow_style=True).strip()
    done = train("env=mpe2.simple_spread_v3", "env_kwargs={N: 2}", f"agents={agents}", f"folder={folder}")
    assert done.exit_code == 0, done.output
    states, _ = learnt(folder)
    assert {agent: state["config"]["name"] for agent, state in states.items()} == {"agent_0": "ppo", "agent_1": "dqn"}
    assert all(state["counters"]["updates"] > 0 for state in states.values())


def test_the_plans_block_runs_with_the_same_outcome_as_without(train: Train, tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "enabled": True,
        "parallel_actions": True,
        "parallel_training": True,
        "async_learning": True,
    }
    plan |= {"train_interval": 4, "num_workers": None, "use_threads": True}
    for name, block in (("beside", plan), ("alone", {**plan, "enabled": False})):
        done = train(f"folder={tmp_path / name}", f"parallel={json.dumps(block)}")
        assert done.exit_code == 0, done.output
        assert "overlap: lag 0 / " in done.output
    one, other = learnt(tmp_path / "beside"), learnt(tmp_path / "alone")
    assert one[1] == other[1]
    assert_same_batch(one[0]["agent_0"]["arrays"], other[0]["agent_0"]["arrays"])


def test_the_example_can_be_run_as_it_stands() -> None:
    settings = load_settings(EXAMPLE)
    assert algorithm_configs(settings, ["agent_0"], CONFIGS)["agent_0"].rollout_length == 128


# ---- going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_one_that_was_never_ended(kind: str, train: Train, tmp_path: Path) -> None:
    env, algorithm = KINDS[kind]
    words = [f"env={env}", f"algorithm={json.dumps(algorithm)}"]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert train(*words, f"folder={straight}").exit_code == 0
    assert train(*words, f"folder={resumed}", f"total_steps={CHECKPOINT_STEPS}").exit_code == 0
    half = learnt(resumed)[1]
    done = train(f"total_steps={2 * CHECKPOINT_STEPS}", resume=resumed)
    assert done.exit_code == 0, done.output
    assert_same_batch(learnt(resumed), learnt(straight))
    whole = learnt(straight)[1]
    assert 0 < half["updates"] < whole["updates"]
    lines = read_metrics(resumed)
    assert [line["update"] for line in lines] == list(range(1, whole["updates"] + 1))
    assert [line["agents"] for line in lines] == [line["agents"] for line in read_metrics(straight)]


def test_a_killed_run_goes_on_as_if_nothing_had_happened(train: Train, config: Path, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    words = ["total_steps=400", f"checkpoint_every={CHECKPOINT_STEPS}"]
    killed_run(killed, config, *PLAIN, words[1])
    assert train(*words, resume=killed).exit_code == 0
    assert train(*words, f"folder={straight}").exit_code == 0
    assert_same_batch(learnt(killed), learnt(straight))


def test_settings_on_which_learning_depends_stay(train: Train, config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}", f"total_steps={CHECKPOINT_STEPS}")
    before = newest(folder)
    done = train("seed=6", "algorithm.hidden=[9]", resume=folder)
    assert done.exit_code == 2
    assert "has other settings: `algorithm`, `seed`" in done.output
    assert newest(folder) == before
    assert command(config, *PLAIN, "--resume", folder).exit_code == 0
    assert newest(folder) != before


def test_what_a_run_was_given_on_the_way_is_remembered(train: Train, tmp_path: Path) -> None:
    """And what goes with the number of steps stays as it was, also when the file is given again."""
    folder = tmp_path / "run"
    train(f"folder={folder}", f"total_steps={CHECKPOINT_STEPS}", "checkpoint_every=null")
    every = yaml.safe_load((folder / "settings.yaml").read_text())["checkpoint_every"]
    done = train(f"total_steps={CHECKPOINT_STEPS + 10}", "on_divergence=raise", resume=folder)
    assert done.exit_code == 0, done.output
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert (settings["total_steps"], settings["on_divergence"]) == (CHECKPOINT_STEPS + 10, "raise")
    assert (settings["checkpoint_every"], settings["folder"]) == (every, str(folder))
    before = newest(folder)
    assert command("--resume", folder).exit_code == 0
    assert newest(folder) == before


def test_where_episodes_begin_anew_is_not_changed_on_the_way(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}", f"total_steps={CHECKPOINT_STEPS}")
    for words, told in (
        ([f"checkpoint_every={CHECKPOINT_STEPS // 2}"], "has other settings: `checkpoint_every`"),
        ([f"folder={tmp_path / 'other'}"], "is not"),
    ):
        done = train("total_steps=99", *words, resume=folder)
        assert done.exit_code == 2
        assert told in done.output
    assert train(f"folder={folder}", resume=folder).exit_code == 0
    assert not (tmp_path / "other").exists()


def test_an_agent_may_be_frozen_and_take_anothers_place(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    folder = tmp_path / "run"
    train("env=mpe2.simple_spread_v3", "env_kwargs={N: 2}", f"folder={folder}", f"total_steps={CHECKPOINT_STEPS}")
    export_agent(newest(folder), "agent_0", tmp_path / "exported")
    replace_agent(newest(folder), "agent_1", frozen(load_agent(tmp_path / "exported")))
    done = train(f"total_steps={2 * CHECKPOINT_STEPS}", resume=folder)
    assert done.exit_code == 0, done.output
    exported, states = load_agent(tmp_path / "exported"), learnt(folder)[0]
    changed = [
        agent for agent, state in states.items() if np.any(state["arrays"]["weights"] != exported["arrays"]["weights"])
    ]
    assert changed == ["agent_0"]
    assert states["agent_1"]["counters"]["frozen"]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sed=3"], "`sed` is unknown. Did you mean `seed`?"),
        (["algorithm.name=[ppo]"], "`algorithm.name: ['ppo']` is unknown"),
        (["parallel={num_workers: 1}"], "`worker_budget` (in the block `parallel`: `num_workers`): "),
        (["env=tests.learners.test_cli:Unnamed"], "Agent ('a', 1) cannot be named in a file"),
        (["algorithm.hiden=[3]"], "`algorithm.hiden` is unknown. Did you mean `hidden`?"),
        (["algorithm.minibatch_size=99"], "Agent 'agent_0': minibatch_size=99"),
        (["env=Pendulum-v1", 'algorithm={"name": "dqn"}'], "Agent 'agent_0' cannot learn with dqn"),
        (["env=CartPol-v1"], "Give the path of a PettingZoo module"),
        (["agents={agent_1: {}}"], "`agents.agent_1` is unknown. Did you mean `agent_0`?"),
        (["other.yaml"], "two settings files"),
        (["env=CartPole-v1", "env_kwargs={lenght: 3}"], "lenght"),
    ],
)
def test_mistakes_are_told_in_plain_words(words: list[str], message: str, train: Train, tmp_path: Path) -> None:
    done = train(*words, f"folder={tmp_path / 'run'}")
    assert done.exit_code == 2, done.output
    told = " ".join(done.output.replace("│", " ").split())
    assert message in told
    assert "Traceback" not in told
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_resumed_is_told(train: Train, tmp_path: Path) -> None:
    done = train(resume=tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "holds no run" in done.output
    train(f"folder={tmp_path / 'run'}", "total_steps=8")
    for part in (newest(tmp_path / "run"), newest(tmp_path / "run").parent):
        told = " ".join(train(resume=part).output.split())
        assert f"The run that it is part of is {tmp_path / 'run'}." in told
    told = " ".join(command(tmp_path / "run").output.replace("│", " ").split())
    assert "is a folder. Give a settings file; to go on with a run, --resume" in told


def test_a_folder_that_is_in_use_is_not_begun_in(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("words")
    done = train(f"folder={tmp_path / 'run'}")
    assert done.exit_code == 2
    assert "Choose another folder" in done.output


def test_damaged_checkpoints_are_told(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}", "total_steps=8")
    (newest(folder) / "agent_0" / "arrays.safetensors").write_bytes(b"")
    done = train("total_steps=99", resume=folder)
    assert done.exit_code == 2
    assert "agent 'agent_0' cannot be read from" in " ".join(done.output.split())


def test_the_way_back_from_a_damaged_checkpoint_is_told(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}")
    first, last = sorted((folder / "checkpoints").iterdir())
    (last / "agent_0" / "arrays.safetensors").write_bytes(b"")
    done = train("total_steps=99", resume=folder)
    assert done.exit_code == 2
    assert f"Remove {last} to go on from the one before, {first.name}" in done.output
    shutil.rmtree(last)
    assert train("total_steps=99", resume=folder).exit_code == 0


def test_a_run_that_is_to_end_when_an_agent_diverges_does(train: Train, tmp_path: Path) -> None:
    poisoned = ["env=tests.learners.test_independent:Poisoned", f"agents={{blue: {json.dumps(SAC)}}}"]
    done = train(*poisoned, "on_divergence=raise", f"folder={tmp_path / 'ended'}")
    assert done.exit_code == 2
    assert "Agent 'red' has not learnt" in done.output
    done = train(*poisoned, f"folder={tmp_path / 'on'}")
    assert done.exit_code == 0
    states, about = learnt(tmp_path / "on")
    skipped = states["red"]["counters"]["skipped"]
    assert 1 < skipped < 10
    assert done.output.count("Agent 'red' has not learnt") == 1
    assert f"Updates that were not finite, and undone: red {skipped} of" in done.output
    assert read_metrics(tmp_path / "on")[-1]["agents"]["red"]["skipped"] == skipped
    assert len(about["returns"]) == 2


def test_an_environment_whose_agents_changed_is_told(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}", "total_steps=8")
    (newest(folder) / "checkpoint.json").write_text(
        (newest(folder) / "checkpoint.json").read_text().replace('"agent": "agent_0"', '"agent": "somebody"')
    )
    done = train("total_steps=99", resume=folder)
    assert done.exit_code == 2
    assert "differ in the agents ['agent_0', 'somebody']" in " ".join(done.output.split())


def test_environments_that_take_turns_are_refused_with_the_reason(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    done = train("env=pettingzoo.classic.tictactoe_v3", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 2
    told = " ".join(done.output.split())
    assert "Choose another: learners need all agents' actions at once" in told
    assert "Give turns" not in told


def test_what_an_environment_raises_is_told_with_its_own_traceback(train: Train, tmp_path: Path) -> None:
    done = train("env=tests.learners.test_cli:Failing", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 1
    assert "in step\n    raise LookupError" in done.output
    assert "during step 9: no way" in done.output
    assert done.output.rstrip().endswith("is kept: see --resume.")
    assert "learners/training.py" not in done.output


def test_folders_that_cannot_be_are_told(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("words")
    done = train(f"folder={tmp_path / 'file' / 'run'}")
    assert done.exit_code == 2
    assert "Not a directory" in done.output
    assert "holds no run" in train(resume=tmp_path / "file").output


def test_a_settings_file_may_lie_anywhere(config: Path, tmp_path: Path) -> None:
    odd = tmp_path / "lr=1"
    odd.mkdir()
    shutil.copy(config, odd / "config.yaml")
    done = command(odd / "config.yaml", *PLAIN, "total_steps=8", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 0, done.output


def test_nothing_to_do_is_told() -> None:
    done = command()
    assert done.exit_code == 2
    assert "Give a settings file" in done.output


def test_what_a_worker_has_for_updates_is_said_in_one_way_and_reaches_the_learners(config: Path) -> None:
    said = inspect.signature(IndependentLearners).parameters["update_timeout"].default
    assert said == TrainSettings.model_fields["update_timeout"].default == UPDATE_TIMEOUT
    for given, meant in (("7.5", 7.5), ("null", None)):
        with learners_of(load_settings(config, [f"update_timeout={given}", *PLAIN])) as made:
            assert made.update_timeout == meant
    with pytest.raises(BadSettings, match="update_timeout"):
        load_settings(config, ["update_timeout=0"])
