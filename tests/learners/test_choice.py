"""What "auto" has chosen is known to a run that goes on from a checkpoint at which it had been."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallel_envs.learners.run_folder import AutoMode, BadRun


def gone_back(folder: Path, steps: int) -> str | None:
    choice = AutoMode(folder)
    choice.go_back(steps)
    return choice.mode


def test_it_counts_from_the_checkpoint_on_at_which_it_was_noted(tmp_path: Path) -> None:
    choice = AutoMode(tmp_path)
    for steps, mode in ((10, None), (20, "fused"), (30, "fused")):
        choice.note(mode, steps)
    assert json.loads((tmp_path / "chosen.json").read_text()) == {"update_mode": "fused", "since_steps": 20}
    assert [gone_back(tmp_path, steps) for steps in (30, 20, 19, 30)] == ["fused", "fused", None, None]


def test_a_run_that_went_back_may_choose_otherwise(tmp_path: Path) -> None:
    AutoMode(tmp_path).note("fused", 20)
    choice = AutoMode(tmp_path)
    choice.go_back(10)
    choice.note(None, 20)
    assert gone_back(tmp_path, 20) is None
    choice.note("thread", 30)
    assert gone_back(tmp_path, 30) == "thread"


def test_where_nothing_was_chosen_nothing_is_written(tmp_path: Path) -> None:
    AutoMode(tmp_path).note(None, 10)
    assert gone_back(tmp_path, 10) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"update_mode": 3, "since_steps": 3}', "\ud800"])
def test_a_note_that_says_nothing_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "chosen.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(BadRun, match=r"chosen\.json does not say which .* Remove it"):
        gone_back(tmp_path, 10)
