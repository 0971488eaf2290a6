"""The progress bar: where it is drawn, what it tells, and that it changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import CollectionInterrupted, collect
from parallel_envs.rollouts import collector
from parallel_envs.testing import assert_same_batch
from tests.rollouts.players import Acting, Counting, content, scripted, zeros
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv

ROOT = Path(__file__).parents[2]


def test_a_bar_changes_nothing(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    envs = make([scripted] * 3, num_workers=2)
    shown = collect(envs, Counting(), 7, seed=1, progress=True)
    assert "7/7" in capsys.readouterr().err
    silent = collect(envs, Counting(), 7, seed=1)
    assert_same_batch(content(shown), content(silent))
    assert capsys.readouterr() == ("", "")


def test_it_is_drawn_on_stderr_and_complete_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    collect(scripted(), Counting(), 4, progress=True)
    out, drawn = capsys.readouterr()
    assert out == ""
    for words in ("rollouts", "4/4", "steps/s", "0 busy"):
        assert words in drawn


def test_it_stays_when_a_collection_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    def act(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(CollectionInterrupted):
        collect(scripted(), Acting(act), 4, progress=True)
    assert "0/4" in capsys.readouterr().err


def test_it_tells_rollouts_steps_and_envs_at_work(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(collector._ProgressBar, "show", lambda self, *numbers: told.append(numbers))
    collect(make([partial(CountingEnv, 3)] * 2), Acting(zeros), 4, progress=True)
    assert told[-1] == (4, 12, 0)
    assert told == sorted(told, key=lambda numbers: numbers[:2])
    assert {busy for *_, busy in told} <= {0, 1, 2}


def test_rich_is_brought_in_by_a_bar_only() -> None:
    program = (
        "import sys\nfrom parallel_envs import collect\nfrom tests.rollouts.players import by_observation, scripted\n"
        "collect(scripted(), by_observation, 2)\nassert 'rich' not in sys.modules\n"
        "collect(scripted(), by_observation, 2, progress=True)\nassert 'rich' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "2/2" in done.stderr
