"""From what was asked for to a pool of the right kind."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from parallel_envs.choices import Backend
from parallel_envs.engine import BACKENDS, START_METHODS, PoolSettings, open_pool
from tests.engine.asking import host, run, value_of
from tests.engine.hosted import Echo


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "processes"}, r"backend='processes' is unknown\. Choose one of 'process'"),
        ({"context": "forkserve"}, r"context='forkserve' is not a start method\. Choose one of 'forkserver'"),
        ({"threads": 0}, r"threads=0 is not a number of threads\. Give at least 1, or None"),
        ({"threads": -2}, r"threads=-2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PoolSettings(**settings)


def test_no_cores_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="affinity"):
        open_pool(1, PoolSettings(affinity=[]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pool_tells_its_backend(backend: Backend) -> None:
    pool = open_pool(1, PoolSettings(backend=backend))
    assert pool.backend == ("process" if backend == "auto" else backend)
    assert value_of(pool, pool.ring(host(pool, Echo), 7)) == 7
    pool.close()


@pytest.mark.parametrize(("platform", "method"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn")])
def test_the_start_method_is_the_quickest_that_is_safe(
    monkeypatch: pytest.MonkeyPatch, platform: str, method: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert PoolSettings().start_method == method
    assert [PoolSettings(context=one).start_method for one in START_METHODS] == list(START_METHODS)


def test_processes_are_the_default_and_what_cannot_be_preloaded_is_no_obstacle() -> None:
    pool = open_pool(1, PoolSettings(preload=("no_such_module_anywhere",)))
    assert run(pool, os.getpid) == pool.pid(0) != os.getpid()
    pool.close()
