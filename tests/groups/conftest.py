"""The environments of these tests are known by name while they run."""

from __future__ import annotations

import pytest

from parallel_envs.groups import registry
from tests.groups.walks import register_all


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_all()
