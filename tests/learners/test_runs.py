"""A run's folder: what it holds, and how one goes on."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from parallel_envs.learners.checkpoints import load_checkpoint, save_checkpoint
from parallel_envs.learners.runs import BadRun, Run, newest_checkpoint, read_metrics
from parallel_envs.testing import assert_same_batch

pytest.importorskip("safetensors")

SETTINGS = {"env": "CartPole-v1", "seed": 3, "algorithm": {"name": "ppo", "hidden": [64, 64]}}


def states(number: int) -> dict[Any, Any]:
    arrays = {"weights": np.full(3, number, np.float32)}
    return {"red": {"config": {}, "arrays": arrays, "counters": {"updates": number}, "generator": {}}}


def saving(number: int) -> Callable[[Path], None]:
    return lambda path: save_checkpoint(path, states(number))


def a_run(folder: Path, **options: Any) -> Run:
    return Run.create(folder, SETTINGS, seed=3, **{"tensorboard": False, **options})


def log(run: Run, *updates: int) -> None:
    for update in updates:
        run.log({"update": update, "steps": update * 100}, {"red": {"loss": 1 / update}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


# ---- what it holds -------------------------------------------------------------------------------


def test_a_run_says_what_it_is(folder: Path) -> None:
    a_run(folder).close()
    assert yaml.safe_load((folder / "settings.yaml").read_text()) == SETTINGS
    told = json.loads((folder / "run.json").read_text())
    assert told["seed"] == 3
    assert told["packages"]["numpy"] == np.__version__
    assert told["python"] == sys.version.split()[0]


def test_the_newest_checkpoints_are_kept(folder: Path) -> None:
    with a_run(folder, keep_checkpoints=2) as run:
        assert newest_checkpoint(folder) is None
        for steps in (9, 10, 100):
            assert run.save(steps, saving(steps)) == newest_checkpoint(folder)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000000010", "000000100"]


def test_a_checkpoint_that_was_moved_behind_a_link_is_forgotten_and_not_removed(folder: Path, tmp_path: Path) -> None:
    with a_run(folder, keep_checkpoints=1) as run:
        first = run.save(100, saving(1))
        first.rename(tmp_path / "moved")
        first.symlink_to(tmp_path / "moved")
        run.save(200, saving(2))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000200"]
    assert_same_batch(load_checkpoint(tmp_path / "moved").agents, states(1))


def test_tensorboard_has_the_same_numbers(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    accumulator: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    with a_run(folder, tensorboard=True) as run:
        log(run, 1, 2)
    read = accumulator.EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    assert [(each.step, each.value) for each in read.Scalars("loss/red")] == [(100, 1.0), (200, 0.5)]


def test_a_run_goes_on_without_tensorboard_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with a_run(folder, tensorboard=True) as run:
        log(run, 1, 2)
    assert len(read_metrics(folder)) == 2
    assert [record.message for record in caplog.records] == [
        "TensorBoard is not installed: metrics go to metrics.jsonl only."
    ]


# ---- going on ------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_newest_checkpoint(folder: Path) -> None:
    with a_run(folder) as run:
        log(run, 1, 2)
        run.save(200, saving(2))
        log(run, 3, 4)
    again, path = Run.resume(folder, tensorboard=False)
    with again:
        assert_same_batch(load_checkpoint(path).agents, states(2))
        log(again, 3)
    assert [line["update"] for line in read_metrics(folder)] == [1, 2, 3]


def test_what_a_killed_process_left_is_swept_away(folder: Path) -> None:
    with a_run(folder) as run:
        run.save(200, saving(2))
    (folder / "checkpoints" / ".000000300.new").mkdir()
    (folder / "checkpoints" / ".000000100.old").symlink_to(folder)
    Run.resume(folder, tensorboard=False)[0].close()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000200"]
    assert (folder / "run.json").is_file()


def test_a_folder_that_holds_something_is_not_begun_in(folder: Path) -> None:
    a_run(folder).close()
    before = (folder / "run.json").read_bytes()
    with pytest.raises(FileExistsError, match="--resume"):
        a_run(folder)
    assert (folder / "run.json").read_bytes() == before


@pytest.mark.parametrize("made", [True, False])
def test_what_cannot_be_resumed_says_why(folder: Path, made: bool) -> None:
    if made:
        a_run(folder).close()
    with pytest.raises(FileNotFoundError, match="no checkpoint yet" if made else "holds no run"):
        Run.resume(folder)


def test_only_one_is_at_a_run(folder: Path) -> None:
    """The second changes nothing, and the lines of the first arrive."""
    with a_run(folder) as run:
        log(run, 1, 2)
        run.save(100, saving(1))
        for another in (lambda: Run.resume(folder), lambda: Run(folder)):
            with pytest.raises(BadRun, match=r"A process is at the run in .* already"):
                another()
        log(run, 3)
        assert [line["update"] for line in read_metrics(folder)] == [1, 2, 3]
    Run.resume(folder, tensorboard=False)[0].close()
    assert [line["update"] for line in read_metrics(folder)] == [1]


def test_a_foreign_line_of_metrics_is_named(folder: Path) -> None:
    with a_run(folder) as run:
        log(run, 1)
        run.save(100, saving(1))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    for _ in range(2):  # and the run is let go of
        with pytest.raises(BadRun, match=r"Line 2 of .*metrics\.jsonl is no line of metrics"):
            Run.resume(folder)


def test_a_run_knows_what_had_been_chosen_by_the_checkpoint_that_it_goes_on_from(folder: Path) -> None:
    with a_run(folder) as run:
        for number, chosen in ((1, None), (2, "fused"), (3, "fused")):
            run.save(number * 100, saving(number), chosen)
            assert run.chosen == chosen
    for last, expected in ((300, "fused"), (200, "fused"), (100, None)):
        again, path = Run.resume(folder, tensorboard=False)
        again.close()
        assert (int(path.name), again.chosen) == (last, expected)
        shutil.rmtree(path)


def test_a_checkpoint_that_lost_its_table_is_not_passed_over(folder: Path) -> None:
    """A run that went on from the one before could not write its next in that place."""
    with a_run(folder) as run:
        run.save(100, saving(1))
        run.save(200, saving(2))
    (folder / "checkpoints" / "000000200" / "checkpoint.json").unlink()
    with pytest.raises(BadRun, match=r"000000200 is no whole checkpoint.*Remove .*000000200 to go on .*000000100"):
        Run.resume(folder)
    (folder / "checkpoints" / "000000100" / "checkpoint.json").unlink()
    with pytest.raises(BadRun, match="no older one"):
        Run.resume(folder)
