"""While rollouts are collected: work goes to whatever is free, and a bar tells how far it is."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import collect
from parallel_envs.progress import ProgressDisplay
from parallel_envs.testing import assert_same_batch
from tests.gates import MANY, Gate
from tests.rollouts.players import Acting, Counting, GatedTask, content, scripted, zeros
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


def test_rich_is_brought_in_by_a_bar_only() -> None:
    program = (
        "import sys\nfrom parallel_envs import collect\nfrom tests.rollouts.players import by_observation, scripted\n"
        "collect(scripted(), by_observation, 2)\nassert 'rich' not in sys.modules\n"
        "collect(scripted(), by_observation, 2, progress=True)\nassert 'rich' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert b"2 of 2 rollouts" in done.stderr


@pytest.mark.parametrize("num_rollouts", [2, 4])
def test_fewer_rollouts_than_envs_are_shared_out_among_all_workers(make_serial: Make, num_rollouts: int) -> None:
    envs = make_serial([CountingEnv] * 8, num_workers=2)
    collect(envs, Acting(zeros), num_rollouts)
    steps = [worker["steps"] for worker in envs.stats()]
    assert steps[0] == steps[1] > 0


class Playing(Acting):
    """Opens the gate once as many rollouts as are not gated have been begun and ended; notes how many act at once."""

    def __init__(self, gate: Gate, num_others: int) -> None:
        super().__init__(zeros)
        self.gate, self.left, self.at_once = gate, num_others, [0]

    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        self.at_once.append(len(rows))
        ending = observations[:, 2] == 1  # each plays two steps: this action is the last
        self.left -= int((ending & (observations[:, 0] != 0)).sum())
        if self.left == 0:
            self.left = -1
            self.gate.let_through(MANY)
        return super().act(observations, state, resets, rows)


def test_envs_without_work_are_left_alone(make_serial: Make) -> None:
    envs = make_serial([partial(GatedTask, "no gate")] * 5)  # type: ignore[arg-type]  # never opened
    collect(envs, Acting(zeros), 2, tasks=[1, 2])
    assert envs.get_attr("num_given") == (1, 1, 0, 0, 0)
    assert sorted(envs.get_attr("episode")) == [-1, -1, -1, 0, 0]


def test_a_bar_changes_nothing_and_tells_on_stderr_how_far_it_is(
    make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    show = ProgressDisplay.show

    def show_and_tell(display: Any, done: int, *, more: str, last: bool) -> None:
        told.append((done, int(more.split()[-2])))
        show(display, done, more=more, last=last)

    monkeypatch.setattr(ProgressDisplay, "show", show_and_tell)
    envs = make([scripted] * 3, num_workers=2)
    shown = collect(envs, Counting(), 7, seed=1, progress=True)
    out, drawn = capsys.readouterr()
    assert out == ""
    assert all(words in drawn for words in ("7 of 7 rollouts (100%)", "steps/s", "0 busy"))
    assert told == sorted(told, key=lambda numbers: numbers[0])
    assert told[-1] == (7, 0)
    assert {busy for _, busy in told} <= {0, 1, 2, 3}
    assert_same_batch(content(shown), content(collect(envs, Counting(), 7, seed=1)))
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("num_envs", [2, 5])
@pytest.mark.parametrize("slow", [[0], [4], [0, 1, 2, 3]])
def test_while_some_envs_are_slow_the_others_play_all_the_rest(
    make_parallel: Make, gate: Gate, num_envs: int, slow: list[int]
) -> None:
    envs = make_parallel([partial(GatedTask, gate.path)] * max(num_envs, len(slow) + 1))
    tasks = [int(place not in slow) for place in range(12)]
    policy = Playing(gate, num_others=sum(tasks))  # the gate stays closed until these have taken their last actions
    rollouts = collect(envs, policy, 12, tasks=tasks)
    assert [rollout.task for rollout in rollouts] == tasks
    assert {len(rollout) for rollout in rollouts} == {2}


def test_a_batch_has_the_shape_of_its_rows_which_are_several(make_serial: Make) -> None:
    num_rows = []

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        num_rows.append(len(rows))
        assert observations.shape == (len(rows), 3)
        assert (len(resets), len(rows.generators), len(rows.previous_rewards)) == (len(rows),) * 3
        assert np.array_equal(np.stack(rows.singles()), observations)
        assert rows.uniform().shape == (len(rows),)
        assert rows.normal(2, 3).shape == (len(rows), 2, 3)
        return zeros(observations, state, resets, rows)

    collect(make_serial([partial(GatedTask, "no gate")] * 4), Acting(act), 16, tasks=[1] * 16)  # type: ignore[arg-type]
    assert max(num_rows) > 1
