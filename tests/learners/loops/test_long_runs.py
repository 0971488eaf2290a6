"""`parallel-envs train` with learning beside collecting: runs that are ended in the middle go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from parallel_envs.learners.loops import learner_thread
from parallel_envs.learners.outcomes import outcome_in
from parallel_envs.learners.run_folder import read_metrics
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import CHECKPOINT_STEPS, PPO, REPLAY, Train, command, learnt
from tests.learners.test_independent import Pressing

AGENTS = {
    "gru and sac": {"red": {"network": "gru", "memory_size": 4}, "blue": {"name": "sac", **REPLAY}},
    "dqn and ppo": {"red": {"name": "dqn", **REPLAY, "prioritized": 0.5}},
}


class Interrupting(Pressing):
    """Ctrl-C comes once, in the fifteenth episode: a second one would not wait for the end of the step."""

    episodes, struck = 0, False

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        if self.episodes == 15 and not Interrupting.struck:
            Interrupting.struck = True
            signal.raise_signal(signal.SIGINT)
        return super().reset(seed, options)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    settings: dict[str, Any] = {"env": "tests.learners.test_independent:Pressing", "num_envs": 2, "backend": "serial"}
    settings |= {"total_steps": 2 * CHECKPOINT_STEPS, "checkpoint_every": CHECKPOINT_STEPS, "seed": 5}
    settings |= {"update_mode": "sequential", "mode": "overlap", "learn_in": "thread", "tensorboard": False}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**settings, "algorithm": PPO}))
    return path


@pytest.fixture
def train(config: Path) -> Train:
    def run(*words: Any, resume: Path | None = None) -> Any:
        return command(*(["--resume", resume, "--trust", "tests"] if resume else [config]), *words)

    return run


@pytest.mark.parametrize(
    ("agents", "how"),
    [
        ("gru and sac", []),
        ("dqn and ppo", []),
        ("dqn and ppo", ["mode=free", "queue=2", "updates_per_step=0.3", "learn_in=serial"]),
    ],
)
def test_a_resumed_run_is_the_one_that_was_never_ended(
    agents: str, how: list[str], train: Train, tmp_path: Path
) -> None:
    own = [f"agents={json.dumps(AGENTS[agents])}", *how]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    done = train(*own, f"folder={straight}")
    assert done.exit_code == 0, done.output
    assert train(*own, f"folder={resumed}", f"total_steps={CHECKPOINT_STEPS}").exit_code == 0
    half = learnt(resumed)[1]
    assert train(f"total_steps={2 * CHECKPOINT_STEPS}", "learn_in=serial", resume=resumed).exit_code == 0
    assert_same_batch(learnt(resumed), learnt(straight))
    assert 0 < half["updates"] < learnt(straight)[1]["updates"]


def test_lags_and_waits_are_logged_and_shown_and_for_sync_what_could_be_saved(train: Train, tmp_path: Path) -> None:
    done = train(f"folder={tmp_path / 'run'}", "log_every=1")
    assert done.exit_code == 0, done.output
    assert "overlap: lag 0 / " in done.output
    line = read_metrics(tmp_path / "run")[-1]
    last = line["loop"]
    assert line["agents"]["red"]["lag"] == pytest.approx(last["lag"]["red"]["mean"])
    assert last["lag"]["red"] == {"min": 0, "mean": pytest.approx(last["lag"]["red"]["mean"]), "max": 1}
    assert last["collect_seconds"] > 0
    assert last["learn_seconds"] > 0
    assert 0 < last["bound"] <= 0.5
    done = train(f"folder={tmp_path / 'other'}", "mode=sync")
    assert "nothing learnt yet" not in done.output
    assert done.output.count("learning while collecting could save") == 1  # at the end


@pytest.mark.parametrize("how", [["mode=overlap"], ["mode=free", "queue=2"], ["mode=sync"]])
def test_ctrl_c_leaves_a_checkpoint_from_which_it_goes_on(
    how: list[str], train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a live display, which is drawn once more in the end
    Interrupting.struck, folder = False, tmp_path / "run"
    words = [*how, f"folder={folder}", "total_steps=400", "checkpoint_every=400"]
    done = train("env=tests.learners.loops.test_long_runs:Interrupting", *words)
    assert done.exit_code != 0, done.output
    states, about = learnt(folder)
    assert 0 < about["steps"] < 400
    told = f"Ended by Ctrl-C after {about['steps']} steps, which are kept: "
    assert done.output.index(told) > done.output.rindex("steps/s, "), done.output
    assert f"train --resume {tmp_path / 'run'} --trust tests.learners.loops.test_long_runs" in done.output
    assert f"Ended by Ctrl-C after {about['steps']} of 400 steps" in done.output
    assert outcome_in(folder).ended == "ctrl-c"
    assert states["red"]["counters"]["updates"] > 0
    shutil.copy(folder / "settings.yaml", tmp_path / "settings.yaml")
    settings = (
        (folder / "settings.yaml").read_text().replace("loops.test_long_runs:Interrupting", "test_independent:Pressing")
    )
    (folder / "settings.yaml").write_text(settings)
    done = train("total_steps=200", resume=folder)
    assert done.exit_code == 0, done.output
    assert learnt(folder)[1]["updates"] > about["updates"]
    assert all(np.isfinite(state["arrays"]["weights"]).all() for state in learnt(folder)[0].values())


def test_ctrl_c_is_heard_while_a_learner_hangs(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C strikes while the caller waits for the learning worker."""
    monkeypatch.setattr(learner_thread, "_GRACE_SECONDS", 0.05)
    submitted: list[Any] = []
    submit, wait = learner_thread.LearnerThread.submit, learner_thread.LearnerThread.wait_until

    def hanging(updates: Any, jobs: Any) -> None:
        submitted.append(jobs)
        if len(submitted) == 2:
            os.kill(updates.mode._pool.pid(0), signal.SIGSTOP)
        submit(updates, jobs)

    def struck(updates: Any, is_so: Any) -> None:
        if len(submitted) == 2:
            wait(updates, lambda updates: not updates.num_waiting)  # it has been begun
            signal.raise_signal(signal.SIGINT)
        wait(updates, is_so)

    monkeypatch.setattr(learner_thread.LearnerThread, "submit", hanging)
    monkeypatch.setattr(learner_thread.LearnerThread, "wait_until", struck)
    done = train("learn_in=process", f"folder={tmp_path / 'run'}", "total_steps=400", "checkpoint_every=400")
    assert done.exit_code != 0
    states, about = learnt(tmp_path / "run")
    assert 0 < about["steps"] < 400
    assert states["red"]["counters"]["updates"] == 1
