"""The examples of learners run as their docstrings say, in short."""

from __future__ import annotations

import pytest

from tests.test_examples import output_of


def test_mixed_algorithms_trains_every_agent() -> None:
    shown = output_of("mixed_algorithms.py", "--total-steps", "1000").splitlines()
    assert [line.split()[0] for line in shown[:5]] == ["200", "400", "600", "800", "1,000"]
    told = [line.partition(" updates")[0] for line in shown[5:]]
    assert told == ["thermostat: ppo, 6", "fan: sac, 106", "guard: dqn, 53"]


@pytest.mark.slow
def test_independent_ppo_trains() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("independent_ppo.py", "--total-steps", "800", "--num-envs", "4", "--update-mode", "sequential")
    assert "together" in shown
    assert shown.splitlines()[-1] == "sequential"
