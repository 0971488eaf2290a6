"""`parallel-envs train`: what a run leaves behind, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.learners.agent import configs_by_name
from parallel_envs.learners.config import BadSettings, TrainSettings, algorithm_configs, load_settings
from parallel_envs.learners.run_folder import newest_checkpoint, read_metrics
from parallel_envs.learners.train import build_learners
from parallel_envs.learners.updates import UPDATE_TIMEOUT
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import CHECKPOINT_STEPS, DQN, PLAIN, SAC, Train, command, learnt
from tests.learners.test_independent import Poisoned, Pressing

EXAMPLE = Path(__file__).parents[2] / "examples" / "simple_spread.yaml"


class Unnamed(Pressing):
    """An agent that no file can be named for."""

    possible_agents = [("a", 1)]  # type: ignore[list-item]  # noqa: RUF012  # what this is about; PettingZoo's form


class Halved(Pressing):
    """An agent with half a character in its name."""

    possible_agents = ["a\ud800"]  # noqa: RUF012  # PettingZoo's form


class PoisonedAtFirst(Poisoned):
    """Red's pay is not finite in its first three episodes."""

    num_episodes = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.num_episodes += 1
        if self.num_episodes == 4:
            self.poison = 1.0
        return super().reset(seed, options)


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


def test_the_settings_of_a_run_say_everything_and_make_the_same_run(train: Train, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    dqn = "agents={agent_0: {name: dqn, learning_starts: 8}}"
    assert train(dqn, "algorithm.num_epochs=2", "train_interval=3", f"folder={first}").exit_code == 0
    said = yaml.safe_load((first / "settings.yaml").read_text())
    assert said.keys() == TrainSettings.model_fields.keys() - {"parallel"}
    assert said["algorithm"].keys() == {"name", *(field.name for field in dataclasses.fields(PPOConfig))}
    assert said["agents"]["agent_0"].keys() == {"name", *(field.name for field in dataclasses.fields(DQNConfig))}
    assert said["agents"]["agent_0"]["train_interval"] == 3
    assert None not in (said["checkpoint_every"], said["log_every"])
    again = command(first / "settings.yaml", f"folder={second}")
    assert again.exit_code == 0, again.output
    assert yaml.safe_load((second / "settings.yaml").read_text()) == {**said, "folder": str(second)}
    (states, _), (others, _) = learnt(first), learnt(second)
    assert_same_batch(others, states)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Later(PPOConfig):
    """PPO's config in a later version."""

    num_epochs: int = 99
    discount: float = 0.5
    hidden: tuple[int, ...] = (3,)


def test_defaults_that_change_later_do_not_change_a_run_that_is_there(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(f"folder={folder}").exit_code == 0
    settings = load_settings(folder / "settings.yaml")
    config = algorithm_configs(settings, ["agent_0"], {"ppo": Later})["agent_0"]
    first = algorithm_configs(settings, ["agent_0"], configs_by_name())["agent_0"]
    assert dataclasses.asdict(config) == dataclasses.asdict(first)
    assert config.hidden != (3,)


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
    assert re.fullmatch(r"CartPole-v1_ppo_seed5_\d{8}-\d{6}", folder.name)
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


def test_an_environment_may_be_named_by_pettingzoos_id(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    folders = [tmp_path / "id", tmp_path / "path"]
    for name, folder in zip(("mpe2/simple_spread-v3", "mpe2.simple_spread_v3"), folders, strict=True):
        done = train(f"env={name}", "env_kwargs={N: 2}", f"folder={folder}")
        assert done.exit_code == 0, done.output
    by_id, by_path = (learnt(folder)[0]["agent_0"]["counters"] for folder in folders)
    assert by_id == by_path
    done = train("env=mpe2/simple_sprad-v3")
    assert done.exit_code == 2
    assert "Did you mean 'mpe2/simple_spread-v3'?" in " ".join(done.stderr.split())


def test_the_plans_block_runs_with_the_same_outcome_as_without(train: Train, tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "enabled": True,
        "parallel_actions": True,
        "parallel_training": True,
        "async_learning": True,
    }
    plan |= {"num_workers": None, "use_threads": True}
    for name, block in (("beside", plan), ("alone", {**plan, "enabled": False})):
        done = train(f"folder={tmp_path / name}", f"parallel={json.dumps(block)}")
        assert done.exit_code == 0, done.output
        assert "overlap: lag 0 / " in done.output
    one, other = learnt(tmp_path / "beside"), learnt(tmp_path / "alone")
    assert one[1] == other[1]
    assert_same_batch(one[0]["agent_0"]["arrays"], other[0]["agent_0"]["arrays"])


def test_the_example_can_be_run_as_it_stands() -> None:
    settings = load_settings(EXAMPLE)
    assert algorithm_configs(settings, ["agent_0"], configs_by_name())["agent_0"].rollout_length == 128


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sed=3"], "`sed` is unknown. Did you mean `seed`?"),
        (["algorithm.name=[ppo]"], "`algorithm.name: ['ppo']` is unknown"),
        (["parallel={num_workers: 1}"], "`worker_budget` (in the block `parallel`: `num_workers`): "),
        (["env=tests.learners.test_cli:Unnamed"], "Agent ('a', 1) cannot be named in a file"),
        (["env=tests.learners.test_cli:Halved"], "cannot be named in a file: half a character has no UTF-8"),
        (["algorithm.hiden=[3]"], "`algorithm.hiden` is unknown. Did you mean `hidden`?"),
        (["algorithm.minibatch_size=99"], "Agent 'agent_0': minibatch_size=99"),
        (["env=Pendulum-v1", 'algorithm={"name": "dqn"}'], "Agent 'agent_0' cannot learn with dqn"),
        (["env=CartPol-v1"], "Give the path of a PettingZoo module"),
        (["learning_rate=0.001"], "`learning_rate` is unknown. It is a setting of dqn, ppo, sac: write it as `algo"),
        (["algorithm.hidden=32"], "Give a list, as [32]."),
        (["seed=3", "seed=4"], "The override 'seed=4' would undo 'seed=3'"),
        (["train_interval=4"], "`train_interval: 4` (maybe in the block `parallel`), and no agent learns from"),
        (["agents={agent_1: {}}"], "`agents.agent_1` is unknown. Did you mean `agent_0`?"),
        (
            ["algorithm.name=a2c"],
            "`algorithm.name: a2c` is unknown. Did you mean `sac`? Known are `dqn`, `ppo`, `sac`.",
        ),
        (["env=mpe2/simple_spred-v3"], "'mpe2/simple_spred-v3' is unknown. Did you mean 'mpe2/simple_spread-v3'?"),
        (["env=CartPole"], "Did you mean 'CartPole-v1'?"),
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


def test_a_folder_that_is_in_use_is_not_begun_in(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("words")
    done = train(f"folder={tmp_path / 'run'}")
    assert done.exit_code == 2
    assert "Choose another folder" in done.output


def test_a_run_that_is_to_end_when_an_agent_diverges_does(train: Train, tmp_path: Path) -> None:
    poisoned = [f"agents={{blue: {json.dumps(SAC)}}}"]
    always = "env=tests.learners.test_independent:Poisoned"
    done = train(*poisoned, always, "on_divergence=raise", f"folder={tmp_path / 'ended'}")
    assert done.exit_code == 2
    assert "Agent 'red' has not learnt" in done.output
    done = train(*poisoned, "env=tests.learners.test_cli:PoisonedAtFirst", f"folder={tmp_path / 'on'}")
    assert done.exit_code == 0, done.output
    states, about = learnt(tmp_path / "on")
    skipped = states["red"]["counters"]["skipped"]
    assert 1 < skipped < 10
    assert done.output.count("Agent 'red' has not learnt") == 1
    assert states["red"]["counters"]["updates"] > 0
    assert f"Updates that were not finite, and undone: red {skipped} of" in done.output
    assert read_metrics(tmp_path / "on")[-1]["agents"]["red"]["skipped"] == skipped
    assert len(about["returns"]) == 2


def test_a_run_in_which_an_agent_has_learnt_nothing_at_all_fails(train: Train, tmp_path: Path) -> None:
    """Each of red's rollouts holds a reward that is not finite. What blue has learnt is saved all the same."""
    folder = tmp_path / "run"
    poisoned = ["env=tests.learners.test_independent:Poisoned", "agents={blue: {learning_rate: 0.01}}"]
    done = train(*poisoned, f"folder={folder}")
    assert done.exit_code == 1
    states, about = learnt(folder)
    counters = states["red"]["counters"]
    assert (counters["updates"], counters["skipped"] > 1) == (0, True)
    assert f"Nothing was learnt by 'red' ({counters['skipped']} of {counters['skipped']})" in done.output
    assert "Give a lower learning_rate" in done.output
    assert states["blue"]["counters"]["updates"] > 1
    assert about["steps"] >= 2 * CHECKPOINT_STEPS
    done = train(resume=folder)
    assert done.exit_code == 1
    assert "nothing is left to do" in done.output
    assert "Nothing was learnt by 'red'" in done.output


def test_environments_that_take_turns_are_refused_with_the_reason(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    done = train("env=pettingzoo.classic.tictactoe_v3", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 2
    told = " ".join(done.output.split())
    assert "Choose another: learners need all agents' actions at once" in told
    assert "Give turns" not in told


def test_what_an_environment_raises_is_told_with_its_own_traceback(train: Train, tmp_path: Path) -> None:
    done = train("env=tests.learners.test_cli:Failing", "on_failure=raise", f"folder={tmp_path / 'run'}")
    assert done.exit_code == 1
    assert "in step\n    raise LookupError" in done.output
    assert "during step 9: no way" in done.output
    assert "Begin the run anew in another folder." in done.output
    assert "learners/train.py" not in done.output


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


def test_settings_need_no_file(tmp_path: Path) -> None:
    small = ["total_steps=16", "algorithm.rollout_length=8", "algorithm.minibatch_size=8", "num_envs=1", *PLAIN]
    done = command("env=CartPole-v1", *small, f"folder={tmp_path / 'run'}")
    assert done.exit_code == 0, done.output
    done = command("env=CartPole-v1", "sed=3", f"folder={tmp_path / 'other'}")
    assert done.exit_code == 2
    assert "In env=CartPole-v1 sed=3 folder=" in done.output
    assert "`total_steps` is missing." in done.output
    assert "`sed` is unknown. Did you mean `seed`?" in done.output


def test_nothing_to_do_is_told() -> None:
    done = command()
    assert done.exit_code == 2
    assert "Give a settings file" in done.output


def test_what_a_worker_has_for_updates_is_said_in_one_way_and_reaches_the_learners(config: Path) -> None:
    said = inspect.signature(IndependentLearners).parameters["update_timeout"].default
    assert said == TrainSettings.model_fields["update_timeout"].default == UPDATE_TIMEOUT
    for given, meant in (("7.5", 7.5), ("null", None)):
        with build_learners(load_settings(config, [f"update_timeout={given}", *PLAIN])) as made:
            assert made.update_timeout == meant
    with pytest.raises(BadSettings, match="update_timeout"):
        load_settings(config, ["update_timeout=0"])
