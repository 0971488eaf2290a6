from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from parallel_envs.bench import machine


@dataclass
class Stat:
    """A file that says something else each time it is read."""

    looks: Iterator[str]

    def exists(self) -> bool:
        return True

    def read_text(self) -> str:
        return next(self.looks)


def test_facts_hold_no_name_and_no_path() -> None:
    facts = machine.facts()
    assert facts.keys() == {"cores", "busy_cores_beside", "processor", "system", "python", "versions"}
    assert "/" not in repr(facts)


def test_busy_cores_are_the_busy_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice; guest time is within user time
    looks = iter(["cpu 100 0 100 800 0 0 0 0 7 7\ncpu0", "cpu 130 10 110 840 0 5 5 0 9 9\ncpu0"])
    monkeypatch.setattr(machine, "_STAT", Stat(looks))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.busy_cores(0.0) == pytest.approx(60 / 100 * 4)


def test_where_the_system_does_not_tell_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_STAT", tmp_path / "stat")
    assert machine.busy_cores() is None
