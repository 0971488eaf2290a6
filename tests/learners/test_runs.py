"""A run's folder: what it holds, how one goes on, and its lines of metrics."""

from __future__ import annotations

import errno
import importlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from parallel_envs.learners.checkpoint import load_checkpoint, save_checkpoint
from parallel_envs.learners.run_folder import (
    BadRun,
    CheckpointNotSaved,
    MetricMeans,
    MetricsFile,
    Run,
    newest_checkpoint,
    read_choice,
    read_metrics,
)  # fmt: skip
from parallel_envs.testing import assert_same_batch
from tests.learners.command_lines import DQN, Train, learnt, newest
from tests.learners.full_disk import full_disk

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


def test_the_newest_checkpoints_are_kept_and_what_was_moved_behind_a_link_is_not_removed(
    folder: Path, tmp_path: Path
) -> None:
    with a_run(folder, keep_checkpoints=2) as run:
        assert newest_checkpoint(folder) is None
        for steps in (9, 10, 100):
            assert run.save(steps, saving(steps)) == newest_checkpoint(folder)
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000000010", "000000100"]
        first = folder / "checkpoints" / "000000010"
        first.rename(tmp_path / "moved")
        first.symlink_to(tmp_path / "moved")
        run.save(200, saving(2))
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["000000100", "000000200"]
    assert_same_batch(load_checkpoint(tmp_path / "moved").agents, states(10))


def test_a_run_goes_on_from_its_newest_checkpoint_without_what_a_killed_process_left(folder: Path) -> None:
    with a_run(folder) as run:
        log(run, 1, 2)
        run.save(200, saving(2))
        log(run, 3, 4)
    (folder / "checkpoints" / ".000000300.new").mkdir()
    (folder / "checkpoints" / ".000000100.old").symlink_to(folder)
    again, path = Run.resume(folder, tensorboard=False)
    with again:
        assert_same_batch(load_checkpoint(path).agents, states(2))
        log(again, 3)
    assert [line["update"] for line in read_metrics(folder)] == [1, 2, 3]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000200"]
    assert (folder / "run.json").is_file()


def test_updates_share_a_line_if_they_are_close_and_each_agent_is_averaged_over_its_own() -> None:
    lines: list[Any] = []
    made = MetricMeans(10, lambda steps, means: lines.append((steps, means)), begins=100)
    for steps in (104, 108, 112):
        made.add(steps, {"red": {"loss": float(steps)}})
    made.add(116, {"red": {"loss": 1.0}, 7: {"loss": 5.0}})
    made.add(117, {"red": {"loss": 2.0, "kl": 4.0}})
    made.flush(118)
    made.flush(119)
    assert lines == [(112, {"red": {"loss": 108.0}}), (118, {"red": {"loss": 1.5, "kl": 4.0}, 7: {"loss": 5.0}})]
    made.add(120, {"red": {"loss": 1.0}})
    made.add(150, {"red": {"loss": math.inf}})
    assert math.isnan(lines[-1][1]["red"]["loss"])  # it is not hidden by the rest


def test_a_run_knows_what_auto_had_chosen_by_the_checkpoint_that_it_goes_on_from(folder: Path) -> None:
    with a_run(folder) as run:
        for number, chosen in ((1, None), (2, "fused"), (3, "fused")):
            run.save(number * 100, saving(number), chosen)
            assert run.chosen == chosen
            assert (folder / "chosen.json").exists() is (chosen is not None)
    assert json.loads((folder / "chosen.json").read_text()) == {"update_mode": "fused", "since_steps": 200}
    for last, expected in ((300, "fused"), (200, "fused"), (100, None)):
        again, path = Run.resume(folder, tensorboard=False)
        again.close()
        assert (int(path.name), again.chosen) == (last, expected)
        shutil.rmtree(path)
    with Run(folder, tensorboard=False) as run:
        run.save(300, saving(3), "thread")  # one that went back may choose otherwise
    assert read_choice(folder, 300) == "thread"
    (folder / "chosen.json").write_text('{"update_mode": 3, "since_steps": 3}')
    with pytest.raises(BadRun, match=r"chosen\.json does not say which .* Remove it"):
        read_choice(folder, 300)


def test_a_checkpoint_that_lost_its_table_is_not_passed_over(folder: Path) -> None:
    """A run that went on from the one before could not write its next in that place."""
    with a_run(folder) as run:
        run.save(100, saving(1))
        run.save(200, saving(2))
    (folder / "checkpoints" / "000000200" / "checkpoint.json").unlink()
    with pytest.raises(
        BadRun, match=r"000000200 is not a complete checkpoint.*Remove .*000000200 to go on .*000000100"
    ):
        Run.resume(folder)
    (folder / "checkpoints" / "000000100" / "checkpoint.json").unlink()
    with pytest.raises(BadRun, match="no older one"):
        Run.resume(folder)


ODD = [b'{"x": 1}', b"rubbish", b"[1]", b'{"steps": "1"}', b"\xff\xfe", b"[" * 9999]


def test_metrics_are_lines_of_json_of_which_a_half_last_one_is_left_out_and_a_damaged_one_is_named(
    tmp_path: Path,
) -> None:
    assert read_metrics(tmp_path) == []
    path, lines = tmp_path / "metrics.jsonl", MetricsFile(tmp_path)
    for steps in (100, 200, 300):
        lines.add({"steps": steps, "share": 1 / steps}, {"red": {"loss": 1 / 3}, 7: {"loss": float("nan")}})
    agents = {"red": {"loss": 1 / 3}, "7": {"loss": None}}
    assert read_metrics(tmp_path)[0] == {"steps": 100, "share": 0.01, "agents": agents}
    own = path.read_bytes()
    for half in (b"", b'{"steps": 400', b"{}"):
        path.write_bytes(own + half)  # it was cut off
        assert len(read_metrics(tmp_path)) == 3
        lines.drop_after(200)
        assert [line["steps"] for line in read_metrics(tmp_path)] == [100, 200]
        lines.add({"steps": 300, "share": 1 / 300}, {"red": {"loss": 1 / 3}, 7: {"loss": float("inf")}})
        assert path.read_bytes() == own
    for odd in ODD:
        path.write_bytes(before := own + odd + b'\n{"steps": 400}\n')
        with pytest.raises(BadRun, match=r"Line 4 of .*metrics\.jsonl is not a line of metrics: '.*\. Remove it"):
            lines.drop_after(100)
        assert path.read_bytes() == before
    lines.close()


def test_a_full_disk_ends_a_run_at_its_end_and_after_three_checkpoints_and_metrics_wait(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = r"the disk is broken.*holds no checkpoint yet\. Begin the run anew"
    with full_disk(folder) as disk, a_run(folder) as run:
        with pytest.raises(CheckpointNotSaved, match=told):  # no lack of room ends a run at once
            run.save_if_possible(50, Mock(side_effect=OSError(errno.EIO, "the disk is broken")))
        log(run, 1)
        first = run.save(100, saving(1))
        disk.fill()
        log(run, 2, 3)
        assert [line["update"] for line in read_metrics(folder)] == [1]
        assert caplog.text.count("wait in memory") == 1
        for steps in (200, 300):
            assert run.save_if_possible(steps, saving(2)) is None
        assert caplog.text.count("The run goes on; make room") == 2
        for is_last in (False, True):
            with pytest.raises(CheckpointNotSaved, match="No space left on device") as caught:
                run.save_if_possible(400, saving(4), is_last=is_last)
            assert f"The newest whole checkpoint is {first}. To go on from it: " in str(caught.value)
            assert str(caught.value).endswith(f" train --resume {folder}")
        disk.free()
        log(run, 4)
        assert [line["update"] for line in read_metrics(folder)] == [1, 2, 3, 4]
        assert run.save_if_possible(500, saving(5)) is not None
        disk.fill()
        assert run.save_if_possible(600, saving(6)) is None  # counted from the last one that was saved


def test_tensorboard_has_the_same_numbers_with_a_gap_while_the_disk_is_full_and_may_be_missing(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    add, is_full = writer.add_scalar, [True]

    def added(*given: Any) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(*given)

    monkeypatch.setattr(writer, "add_scalar", added)
    with a_run(folder, tensorboard=True) as run:
        log(run, 1, 2)
        assert caplog.text.count("TensorBoard has a gap from step 100 on") == 1
        is_full[0] = False
        log(run, 3)
        run.save(300, saving(3))
        log(run, 4)
    board: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    shown = board.EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    assert [(scalar.step, scalar.value) for scalar in shown.Scalars("loss/red")] == [(400, 0.25)]
    assert len(read_metrics(folder)) == 4
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with a_run(folder.with_name("without"), tensorboard=True) as run:
        log(run, 1, 2)
    assert len(read_metrics(folder.with_name("without"))) == 2
    assert "TensorBoard is not installed: metrics go to metrics.jsonl only." in caplog.text


def scene(folder: Path, first: int, times: int | None) -> tuple[int, int, list[int]]:
    """A run on a disk that is full for some operations between its first checkpoint and its last.

    Returns how many operations there were by then, how many failed, and which checkpoints were saved.
    """
    saved = []
    with full_disk(folder) as disk, a_run(folder) as run:
        log(run, 1)
        run.save(100, saving(1))
        disk.fill(first, times)
        for update in (2, 3):
            log(run, update)
            if run.save_if_possible(update * 100, saving(update)) is not None:
                saved.append(update * 100)
        counts = disk.num_operations, disk.num_failed
        disk.free()
        log(run, 4)
        assert run.save_if_possible(400, saving(4), is_last=True) == folder / "checkpoints" / "000000400"
    return *counts, saved


def check_kept(folder: Path, saved: list[int]) -> None:
    """All checkpoints that are there can be read, all lines of metrics are there, and nothing else is."""
    whole = sorted((folder / "checkpoints").glob("*"))
    assert {int(path.name) for path in whole} >= {*saved, 400}
    for path in whole:
        number = int(path.name) // 100
        assert load_checkpoint(path).agents["red"]["counters"] == {"updates": number}
    assert [line["update"] for line in read_metrics(folder)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "share", [3, *(pytest.param(share, marks=pytest.mark.slow) for share in (0, 1, 2, 4, 5, 6, 7))]
)
@pytest.mark.parametrize("times", [1, None], ids=["once", "from then on"])
def test_whatever_cannot_be_written_for_lack_of_room_nothing_is_half_there(
    times: int | None, share: int, tmp_path: Path
) -> None:
    """Each write, rename and so on fails in turn, once or from there to the end of the next two checkpoints."""
    num_operations, _, saved = scene(tmp_path / "clean", 1, 0)
    assert num_operations > 20
    assert saved == [200, 300]
    for first in range(1 + share, num_operations + 1, 8):
        folder = tmp_path / str(first)
        _, num_failed, saved = scene(folder, first, times)
        assert num_failed >= 1
        check_kept(folder, saved)
        if times == 1:
            assert len(saved) >= 1
        run, newest = Run.resume(folder, tensorboard=False)
        run.close()
        assert newest.name == "000000400"


def test_a_run_on_a_full_disk_fails_and_goes_on_to_the_bit_when_there_is_room(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, given = Run.save, [f"algorithm={json.dumps(DQN)}", "log_every=10", "keep_checkpoints=2", "total_steps=240"]
    assert train(*given, f"folder={tmp_path / 'clean'}").exit_code == 0
    folder = tmp_path / "run"
    with full_disk(folder) as disk, monkeypatch.context() as patch:

        def saved(run: Run, steps: int, *how: Any) -> Path:
            path = save(run, steps, *how)
            disk.fill(20)  # while the next one is written
            return path

        patch.setattr(Run, "save", saved)
        done = train(*given, f"folder={folder}")
    told = " ".join(done.output.split())
    assert done.exit_code == 1, done.output
    assert "No space left on device" in told
    assert f"The newest whole checkpoint is {newest(folder)}. To go on from it: " in told
    assert "parallel_envs train --resume" in told
    assert newest(folder).name != "000000240"
    done = train(resume=folder)
    assert done.exit_code == 0, done.output
    assert_same_batch(learnt(folder), learnt(tmp_path / "clean"))
    lines, others = read_metrics(folder), read_metrics(tmp_path / "clean")
    assert [(line["steps"], line["agents"]) for line in lines] == [(one["steps"], one["agents"]) for one in others]


def test_the_last_checkpoint_must_be_saved_also_where_a_rollout_passes_its_mark(train: Train, tmp_path: Path) -> None:
    """The first checkpoint is due at step 40, and is saved at the end of the rollout, where the run is done."""
    sizes = ["total_steps=50", "checkpoint_every=40", "algorithm.rollout_length=32"]
    folder = tmp_path / "run"
    with full_disk(folder / "checkpoints") as disk:
        disk.fill()
        done = train(*sizes, f"folder={folder}")
    assert done.exit_code == 1
    assert "holds no checkpoint yet. Begin the run anew" in " ".join(done.output.split())


def test_only_one_is_at_a_run_which_is_not_begun_twice_nor_resumed_without_a_checkpoint(folder: Path) -> None:
    """Another changes nothing, and the lines of the first arrive."""
    with pytest.raises(FileNotFoundError, match="holds no run"):
        Run.resume(folder)
    with a_run(folder) as run:
        before = (folder / "run.json").read_bytes()
        log(run, 1, 2)
        with pytest.raises(BadRun, match=r"Another process is using the run in"):
            Run.resume(folder)
    with pytest.raises(FileNotFoundError, match="no checkpoint yet"):
        Run.resume(folder)
    with pytest.raises(FileExistsError, match="--resume"):
        a_run(folder)
    with Run(folder, tensorboard=False) as run:
        run.save(200, saving(1))
        log(run, 3)
        assert [line["update"] for line in read_metrics(folder)] == [1, 2, 3]
    Run.resume(folder, tensorboard=False)[0].close()
    assert [line["update"] for line in read_metrics(folder)] == [1, 2]
    assert (folder / "run.json").read_bytes() == before
