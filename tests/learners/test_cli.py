"""`parallel-envs train`: what a run leaves behind, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.learners.agent import configs_by_name
from parallel_envs.learners.config import TrainSettings, algorithm_configs, load_settings
from parallel_envs.learners.run_folder import read_metrics
from parallel_envs.learners.train import build_learners
from parallel_envs.learners.updates import UPDATE_TIMEOUT
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import CHECKPOINT_STEPS, DQN, PLAIN, Train, command, learnt
from tests.learners.meta.families import settings as meta_settings
from tests.learners.test_independent import Poisoned, Pressing
from tests.vector.test_tracing import Timeline

EXAMPLE = Path(__file__).parents[2] / "examples" / "simple_spread.yaml"


class Unnamed(Pressing):
    """An agent that no file can be named for."""

    possible_agents = [("a", 1)]  # type: ignore[list-item]  # noqa: RUF012  # what this is about; PettingZoo's form


class PoisonedAtFirst(Poisoned):
    """Red's pay is not finite in its first three episodes."""

    num_episodes = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.num_episodes += 1
        if self.num_episodes == 4:
            self.poison = 1.0
        return super().reset(seed, options)


def test_a_run_leaves_its_settings_metrics_and_checkpoints_and_its_settings_make_the_same_run(
    train: Train, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    dqn = "agents={agent_0: {name: dqn, learning_starts: 8}}"
    done = train(dqn, "seed=7", "algorithm.num_epochs=2", "train_interval=3", f"folder={first}")
    assert done.exit_code == 0, done.output
    assert str(first) in done.output.splitlines()
    assert "steps/s" in done.output
    assert json.loads((first / "run.json").read_text())["seed"] == 7
    lines = read_metrics(first)
    assert lines[-1]["update"] == learnt(first)[1]["updates"]
    assert {"loss", "return"} <= lines[-1]["agents"]["agent_0"].keys()
    assert lines[-1]["seconds"].keys() == {"collect", "act", "update"}
    assert len(list((first / "checkpoints").iterdir())) == 2
    said = yaml.safe_load((first / "settings.yaml").read_text())
    assert said.keys() == TrainSettings.model_fields.keys() - {"parallel"}
    assert said["algorithm"].keys() == {"name", *(field.name for field in dataclasses.fields(PPOConfig))}
    assert said["agents"]["agent_0"].keys() == {"name", *(field.name for field in dataclasses.fields(DQNConfig))}
    assert (said["seed"], said["algorithm"]["num_epochs"], said["agents"]["agent_0"]["train_interval"]) == (7, 2, 3)
    assert None not in (said["checkpoint_every"], said["log_every"])
    again = command(first / "settings.yaml", f"folder={second}")
    assert again.exit_code == 0, again.output
    assert yaml.safe_load((second / "settings.yaml").read_text()) == {**said, "folder": str(second)}
    assert_same_batch(learnt(second)[0], learnt(first)[0])
    assert json.loads((first / "run.json").read_text())["devices"] == {"learning": "cpu", "acting": "cpu"}
    assert "Networks learn and act on cpu." in done.output
    moved = train("device=cpu:0", f"total_steps={2 * learnt(first)[1]['steps']}", resume=first)  # another one to torch
    assert moved.exit_code == 0, moved.output
    assert json.loads((first / "run.json").read_text())["devices"] == {"learning": "cpu:0", "acting": "cpu:0"}
    assert yaml.safe_load((first / "settings.yaml").read_text())["device"] == "cpu:0"


def test_agents_of_different_algorithms_learn_in_an_env_named_by_its_path_or_by_pettingzoos_id(
    train: Train, tmp_path: Path
) -> None:
    pytest.importorskip("mpe2")
    agents, found = yaml.safe_dump({"agent_1": DQN}, default_flow_style=True).strip(), []
    for number, name in enumerate(("mpe2/simple_spread-v3", "mpe2.simple_spread_v3")):
        folder = tmp_path / str(number)
        done = train(f"env={name}", "env_kwargs={N: 2}", f"agents={agents}", f"folder={folder}")
        assert done.exit_code == 0, done.output
        states, _ = learnt(folder)
        found.append({agent: (state["config"]["name"], state["counters"]) for agent, state in states.items()})
    assert found[0] == found[1]
    assert [name for name, _ in found[0].values()] == ["ppo", "dqn"]
    assert all(counters["updates"] > 0 for _, counters in found[0].values())


def test_the_plans_block_runs_with_the_same_outcome_as_without(train: Train, tmp_path: Path) -> None:
    plan: dict[str, Any] = dict.fromkeys(("parallel_actions", "parallel_training", "async_learning"), True)
    for enabled in (True, False):
        block = json.dumps({**plan, "num_workers": None, "use_threads": True, "enabled": enabled})
        done = train(f"folder={tmp_path / str(enabled)}", f"parallel={block}")
        assert done.exit_code == 0, done.output
        assert "overlap: lag 0 / " in done.output
    one, other = learnt(tmp_path / "True"), learnt(tmp_path / "False")
    assert one[1] == other[1]
    assert_same_batch(one[0]["agent_0"]["arrays"], other[0]["agent_0"]["arrays"])


def test_a_settings_file_may_lie_anywhere_or_be_left_out_and_folders_in_use_are_told(
    config: Path, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "lr=1"
    odd.mkdir()
    shutil.copy(config, odd / "config.yaml")
    done = command(odd / "config.yaml", *PLAIN, "total_steps=8", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 0, done.output
    small = ["total_steps=16", "algorithm.rollout_length=8", "algorithm.minibatch_size=8", "num_envs=1", *PLAIN]
    monkeypatch.chdir(odd)
    done = command("env=CartPole-v1", *small)
    assert done.exit_code == 0, done.output
    (folder,) = (odd / "runs").iterdir()
    assert folder.name.startswith("CartPole-v1_ppo_seed")
    done = command("env=CartPole-v1", "sed=3", f"folder={tmp_path / 'other'}")
    assert done.exit_code == 2
    for words in ("In env=CartPole-v1 sed=3 folder=", "`total_steps` is missing.", "is unknown. Did you mean `seed`?"):
        assert words in done.output
    done = command()
    assert (done.exit_code, "Give a settings file" in done.output) == (2, True)
    for taken, words in ((odd, "Choose another folder"), (config / "run", "Not a directory")):
        done = train(f"folder={taken}")
        assert (done.exit_code, words in done.output) == (2, True)
    assert "holds no run" in train(resume=config).output


def test_the_example_and_the_time_for_updates_reach_the_learners(config: Path) -> None:
    example = load_settings(EXAMPLE)
    assert algorithm_configs(example, ["agent_0"], configs_by_name())["agent_0"].rollout_length == 128
    said = inspect.signature(IndependentLearners).parameters["update_timeout"].default
    assert said == TrainSettings.model_fields["update_timeout"].default == UPDATE_TIMEOUT
    with build_learners(load_settings(config, ["update_timeout=7.5", *PLAIN])) as made:
        assert made.update_timeout == 7.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parallel={num_workers: 1}"], "`worker_budget` (in the block `parallel`: `num_workers`): "),
        (["env=tests.learners.test_cli:Unnamed"], "Agent ('a', 1) cannot be named in a file"),
        (["mode=free"], "needs a bound of its queue"),
        (["mode=overlap", "queue=3"], "queue=3 contradicts mode='overlap'"),
        (["algorithm.minibatch_size=99"], "Agent 'agent_0': minibatch_size=99"),
        (["env=Pendulum-v1", 'algorithm={"name": "dqn"}'], "Agent 'agent_0' cannot learn with dqn"),
        (["env=CartPol-v1"], "Give the path of a PettingZoo module"),
        (["train_interval=4"], "`train_interval: 4` (maybe in the block `parallel`), and no agent learns from"),
        (["algorithm.name=a2c"], "a2c` is unknown. Did you mean `sac`?"),
        (["env=mpe2/simple_spred-v3"], "'mpe2/simple_spred-v3' is unknown. Did you mean 'mpe2/simple_spread-v3'?"),
        (["env=CartPole"], "Did you mean 'CartPole-v1'?"),
        (["device=cudaa"], "device='cudaa' is unknown. Torch has here: cpu"),
        (["device=meta"], "torch finds no META device here"),
        (["mode=overlap", "device=meta"], "Give learn_in='thread' or 'serial'"),
        (["other.yaml"], "two settings files"),
        (["env=CartPole-v1", "env_kwargs={lenght: 3}"], "lenght"),
        (["env=pettingzoo.classic.tictactoe_v3"], "Choose another: learners need all agents' actions at once"),
    ],
)
def test_mistakes_are_told_in_plain_words(
    words: list[str], message: str, train: Train, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if words[1:] == ["device=meta"]:
        request.getfixturevalue("meta_device")
    if "tictactoe" in words[0]:
        pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    done = train(*words, f"folder={tmp_path / 'run'}")
    assert done.exit_code == 2, done.output
    told = " ".join(done.output.replace("│", " ").split())
    assert message in told
    assert "Traceback" not in told
    assert "Give turns" not in told
    assert not (tmp_path / "run").exists()


def test_a_run_whose_agent_diverges_ends_or_goes_on_and_fails_if_it_has_learnt_nothing(
    train: Train, tmp_path: Path
) -> None:
    always = "env=tests.learners.test_independent:Poisoned"
    done = train(always, "agents={blue: {name: sac}}", "on_divergence=raise", f"folder={tmp_path / 'ended'}")
    assert (done.exit_code, "Agent 'red' has not learnt" in done.output) == (2, True)
    done = train("env=tests.learners.test_cli:PoisonedAtFirst", f"folder={tmp_path / 'on'}")
    assert done.exit_code == 0, done.output
    states, _ = learnt(tmp_path / "on")
    skipped = states["red"]["counters"]["skipped"]
    assert 1 <= skipped < 10
    assert states["red"]["counters"]["updates"] > 0
    assert f"Updates that were not finite, and undone: red {skipped} of" in done.output
    assert read_metrics(tmp_path / "on")[-1]["agents"]["red"]["skipped"] == skipped
    folder = tmp_path / "run"
    done = train(always, "agents={blue: {learning_rate: 0.01}}", f"folder={folder}")
    assert done.exit_code == 1
    states, about = learnt(folder)  # what blue has learnt is saved all the same
    counters = states["red"]["counters"]
    assert (counters["updates"], counters["skipped"] > 1) == (0, True)
    assert done.output.count("Agent 'red' has not learnt") == 1
    assert f"Nothing was learnt by 'red' ({counters['skipped']} of {counters['skipped']})" in done.output
    assert "Give a lower learning_rate" in done.output
    assert states["blue"]["counters"]["updates"] > 1
    assert about["steps"] >= 2 * CHECKPOINT_STEPS
    done = train(resume=folder)
    assert (done.exit_code, "Nothing was learnt by 'red'" in done.output) == (1, True)


@pytest.mark.parametrize(
    "how",
    [
        [],
        pytest.param(["mode=overlap", "learn_in=process"], marks=pytest.mark.slow),
        ["mode=overlap", "learn_in=thread"],
    ],
)
def test_a_traced_run_has_a_timeline_of_workers_learners_and_checkpoints(
    train: Train, tmp_path: Path, how: list[str]
) -> None:
    folders = tmp_path / "plain", tmp_path / "traced"
    for folder, words in zip(folders, ([], ["--trace"]), strict=True):
        done = train(*how, *words, f"folder={folder}")
        assert done.exit_code == 0, done.output
    assert not (folders[0] / "trace.json").exists()
    (plain, _), (states, about) = map(learnt, folders)
    assert_same_batch(states, plain)
    rows = Timeline(folders[1] / "trace.json").rows
    assert (
        sum(one["name"] == "step" for name in rows if name.startswith("worker ") for one in rows[name])
        == (about["steps"])
    )
    updates = [one["args"]["steps"] for one in rows["learner agent_0"]]
    assert (len(updates), {one["name"] for one in rows["learner agent_0"]}) == (about["updates"], {"update"})
    assert min(updates) > 0
    caller = Counter(one["name"] for one in rows["caller"])
    assert caller["checkpoint"] == 2
    assert caller["collect"] == caller["act"] >= about["steps"] / 2
    assert ("learning" in rows, caller["update"] > 0) == (bool(how), not how)


def test_a_traced_meta_run_shows_collecting_learning_and_evaluation(tmp_path: Path) -> None:
    given = meta_settings(workers=2, backend="thread")
    (path := tmp_path / "meta.yaml").write_text(yaml.safe_dump(given))
    done = command(path, "--trace", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 0, done.output
    timeline = Timeline(tmp_path / "run" / "trace.json")
    assert {"collect", "act", "update", "evaluate", "checkpoint"} <= timeline.names("caller").keys()
    assert {name.partition(" (")[0] for name, events in timeline.rows.items() if events} >= {
        *("worker 0", "worker 1", "evaluation worker 0", "evaluation worker 1")
    }
