"""Going on with a run: a resumed run is the one that was never ended, and what cannot be resumed is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from parallel_envs.learners.checkpoint import export_agent, frozen, load_agent, replace_agent
from parallel_envs.learners.run_folder import read_metrics
from parallel_envs.learners.updates import AutoUpdates
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import CHECKPOINT_STEPS, KINDS, PLAIN, Train, command, killed_run, learnt, newest
from tests.learners.test_checkpoints import as_earlier_versions_wrote_it
from tests.learners.test_independent import Pressing


class Pair(Pressing):
    """Two agents who are alike, so that their updates can be fused."""

    possible_agents = ["red", "green"]  # noqa: RUF012  # PettingZoo's form

    def observation_space(self, agent: Any) -> Any:
        return super().observation_space("red")

    def action_space(self, agent: Any) -> Any:
        return super().action_space("red")

    def step(self, actions: Any) -> Any:
        seen, _, *rest = super().step({**actions, "blue": [0.5]})
        return seen, {agent: float(actions[agent]) for agent in seen}, *rest


def said(done: Any) -> str:
    return " ".join(done.output.split())


def parted(train: Train, tmp_path: Path, words: list[str]) -> tuple[Path, Path]:
    """A run of two checkpoints, and one that was ended at the first and resumed: both have learnt the same."""
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for folder, more in ((straight, []), (resumed, [f"total_steps={CHECKPOINT_STEPS}"])):
        done = train(*words, f"folder={folder}", *more, plain=False)
        assert done.exit_code == 0, done.output
    half = learnt(resumed)[1]
    done = train(f"total_steps={2 * CHECKPOINT_STEPS}", resume=resumed)
    assert done.exit_code == 0, done.output
    assert_same_batch(learnt(resumed), learnt(straight))
    assert 0 < half["updates"] < learnt(straight)[1]["updates"]
    return straight, resumed


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_one_that_was_never_ended(kind: str, train: Train, tmp_path: Path) -> None:
    env, algorithm = KINDS[kind]
    straight, resumed = parted(train, tmp_path, [f"env={env}", f"algorithm={json.dumps(algorithm)}", *PLAIN])
    lines, others = read_metrics(resumed), read_metrics(straight)
    assert [line["update"] for line in lines] == list(range(1, learnt(straight)[1]["updates"] + 1))
    assert [line["agents"] for line in lines] == [line["agents"] for line in others]


MODES = [("ppo", "fused"), ("dqn", "thread"), ("dqn", "fused"), ("ppo", "thread"), ("dqn", "process")]


@pytest.mark.parametrize(
    ("kind", "mode"), [*MODES[:2], *(pytest.param(*one, marks=pytest.mark.slow) for one in MODES[2:])]
)
def test_a_run_is_resumed_to_the_bit_in_each_way_to_run_updates(
    kind: str, mode: str, train: Train, tmp_path: Path
) -> None:
    words = [f"algorithm={json.dumps(KINDS[kind][1])}", f"update_mode={mode}"]
    parted(train, tmp_path, [f"env={__name__}:Pair", "backend=serial", "num_workers=1", *words])


def test_what_auto_has_chosen_stays_when_the_run_is_resumed(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its measurements are made up here, and other ones when the run is resumed."""
    every, seconds = 15 * 16, {"sequential": 0.001, "fused": 0.0}
    monkeypatch.setattr(AutoUpdates, "_typical", lambda mode, name: seconds[name])
    sizes = [f"checkpoint_every={every}", f"total_steps={2 * every}"]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    words = [f"env={__name__}:Pair", "backend=serial", "update_mode=auto", *sizes, f"folder={straight}"]
    done = train(*words, plain=False)
    assert "Updates were run by auto: fused (sequential" in done.output
    shutil.copytree(straight, resumed)
    shutil.rmtree(newest(resumed))
    assert json.loads((resumed / "chosen.json").read_text())["update_mode"] == "fused"
    seconds["fused"] = 0.002
    done = train(resume=resumed)
    assert "Updates were run by auto: fused (as it was chosen before)" in done.output
    assert_same_batch(learnt(resumed), learnt(straight))
    assert learnt(resumed)[1]["updates"] > 15
    (resumed / "chosen.json").write_text('{"update_mode": "fusd", "since_steps": 3}')
    done = train(f"total_steps={3 * every}", resume=resumed)
    assert done.exit_code == 2
    assert "has chosen 'fusd', which is not an update mode" in said(done)


def test_a_run_that_has_made_its_steps_is_left_as_it_is(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}", f"total_steps={CHECKPOINT_STEPS}")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = train(f"total_steps={CHECKPOINT_STEPS // 2}", resume=folder)
    assert done.exit_code == 0, done.output
    assert f" steps, and total_steps is {CHECKPOINT_STEPS // 2}: nothing is left to do" in said(done)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_killed_run_goes_on_as_if_nothing_had_happened(train: Train, config: Path, tmp_path: Path) -> None:
    """Its learning worker ends with it."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    words = ["total_steps=400", f"checkpoint_every={CHECKPOINT_STEPS}", "mode=overlap"]
    killed_run(killed, config, *PLAIN, *words[1:], "learn_in=process")
    assert train(*words, "learn_in=thread", resume=killed).exit_code == 0
    assert train(*words, f"folder={straight}").exit_code == 0
    assert_same_batch(learnt(killed), learnt(straight))


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


def test_a_run_that_was_damaged_or_changed_by_hand_is_told_with_the_way_back(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(f"folder={folder}")
    first, last = sorted((folder / "checkpoints").iterdir())
    (last / "agent_0" / "arrays.safetensors").write_bytes(b"")
    done = train("total_steps=99", resume=folder)
    assert done.exit_code == 2
    assert "agent 'agent_0' cannot be read from" in said(done)
    assert f"Remove {last} to go on from the one before, {first.name}" in said(done)
    shutil.rmtree(last)
    metrics = folder / "metrics.jsonl"
    own = metrics.read_bytes()
    metrics.write_bytes(b"\xff\xfe\n")
    done = train("total_steps=99", resume=folder)
    assert (done.exit_code, "is not a line of metrics" in said(done)) == (2, True)
    metrics.write_bytes(own)
    for path in (first / "checkpoint.json", first / "agent_0" / "agent.json"):
        as_earlier_versions_wrote_it(path)  # with its checksum it would be refused for that
        path.write_text(path.read_text().replace('"agent": "agent_0"', '"agent": "somebody"'))
    done = train("total_steps=99", resume=folder)
    assert done.exit_code == 2
    assert "differ in the agents ['agent_0', 'somebody']" in said(done)


def test_settings_on_which_learning_depends_stay_and_what_was_given_on_the_way_is_remembered(
    train: Train, config: Path, tmp_path: Path
) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    train(f"folder={folder}", f"total_steps={CHECKPOINT_STEPS}", "checkpoint_every=null")
    before, every = newest(folder), yaml.safe_load((folder / "settings.yaml").read_text())["checkpoint_every"]
    for words, told in (
        (["seed=6", "algorithm.hidden=[9]"], "has other settings: `algorithm`, `seed`"),
        (["total_steps=99", f"folder={other}"], "is not"),
    ):
        done = train(*words, resume=folder)
        assert (done.exit_code, told in done.output) == (2, True)
        assert newest(folder) == before
    assert not other.exists()
    done = train(f"total_steps={CHECKPOINT_STEPS + 10}", "on_divergence=raise", resume=folder)
    assert done.exit_code == 0, done.output
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    assert (settings["total_steps"], settings["on_divergence"]) == (CHECKPOINT_STEPS + 10, "raise")
    assert (settings["checkpoint_every"], settings["folder"]) == (every, str(folder))
    for part in (newest(folder), folder / "checkpoints"):
        assert f"The run that it is part of is {folder}." in said(train(resume=part))
    assert "is a folder. Give a settings file, or resume a run: --resume" in said(command(folder)).replace("│ ", "")
    done = train(resume=tmp_path / "nowhere")
    assert (done.exit_code, "holds no run" in done.output) == (2, True)
