"""`parallel-envs train` on a disk that is full, for a while or for good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs.learners import run_folder
from parallel_envs.learners.run_folder import read_metrics
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import DQN, Train, learnt, newest
from tests.learners.full_disk import FullDisk, full_disk

AGENT = f"algorithm={json.dumps(DQN)}"
STEPS, EVERY = 240, 40


def filled_after_the_first_checkpoint(
    disk: FullDisk, first: int, times: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the disk be full for some operations, counted from the end of the first checkpoint."""
    save = run_folder.Run.save

    def saved(run: run_folder.Run, steps: int, *how: Any) -> Path:
        folder = save(run, steps, *how)
        if steps < 2 * EVERY:
            disk.fill(first, times)
        return folder

    monkeypatch.setattr(run_folder.Run, "save", saved)


def run_on_a_full_disk(
    train: Train, folder: Path, first: int, times: int | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, FullDisk]:
    sizes = [f"total_steps={STEPS}", f"checkpoint_every={EVERY}", "log_every=10", "keep_checkpoints=2"]
    with full_disk(folder) as disk, monkeypatch.context() as patch:
        filled_after_the_first_checkpoint(disk, first, times, patch)
        done = train(AGENT, *sizes, f"folder={folder}")
    return done, disk


def outcome(folder: Path) -> Any:
    agents, about = learnt(folder)
    steps = [(line["steps"], line["agents"]) for line in read_metrics(folder)]
    return agents, {name: about[name] for name in ("steps", "updates", "returns")}, steps


@pytest.mark.parametrize(
    "share", [0.0, 0.5, 1.0, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.15, 0.3, 0.7, 0.85))]
)
def test_whenever_the_disk_is_full_what_was_learnt_is_kept(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """For good: the run fails, and goes on to the bit when there is room. For a while: nobody sees it later."""
    done, disk = run_on_a_full_disk(train, tmp_path / "clean", 1, 0, monkeypatch)
    assert done.exit_code == 0, done.output
    expected, num_operations = outcome(tmp_path / "clean"), disk.num_operations
    first = max(1, round(share * num_operations))

    done, _ = run_on_a_full_disk(train, tmp_path / "for good", first, None, monkeypatch)
    told, kept = " ".join(done.output.split()), newest(tmp_path / "for good")
    assert "No space left on device" in told
    if share < 1.0:  # the very last operation removes an old checkpoint, which may stay
        assert done.exit_code == 1, done.output
        assert f"The newest whole checkpoint is {kept}. To go on from it: " in told
        assert "parallel_envs train --resume" in told
        done = train(resume=tmp_path / "for good")
    assert done.exit_code == 0, done.output
    assert_same_batch(outcome(tmp_path / "for good"), expected)

    done, disk = run_on_a_full_disk(train, tmp_path / "for a while", first, 3, monkeypatch)
    assert disk.num_failed >= 1
    if done.exit_code == 0:
        assert_same_batch(outcome(tmp_path / "for a while"), expected)
    else:  # it was the last checkpoint for which there was no room
        assert share > 0.7


def test_the_last_checkpoint_must_be_saved_also_where_a_rollout_passes_its_mark(train: Train, tmp_path: Path) -> None:
    """The first checkpoint is due at step 40, and is saved at the end of the rollout, where the run is done."""
    sizes = ["total_steps=50", "checkpoint_every=40", "algorithm.rollout_length=32"]
    folder = tmp_path / "run"
    with full_disk(folder / "checkpoints") as disk:
        disk.fill()
        done = train(*sizes, f"folder={folder}")
    assert done.exit_code == 1
    assert "holds no checkpoint yet. Begin the run anew" in " ".join(done.output.split())
