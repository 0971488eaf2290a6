"""What an environment is at beside its jobs: it is made, replayed, sends. Each may break, and is told by its name."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.errors import EnvError, ParallelEnvsError, StepTimeout, WorkerDied
from parallel_envs.groups import EnvStateManager, register, transport
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import Walk, WalkConfig, configured, inputs

SOON = 3.0
"""Beyond it an environment is late. All others answer far sooner."""


def hang() -> None:
    threading.Event().wait(60.0)


def die() -> None:
    os._exit(5)


def fail() -> None:
    raise OSError("no data")


BREAKING = {"raises": fail, "hangs": hang, "dies": die}


class Lit(Walk):
    """Breaks in its construction, or when its steps are replayed, once its file says how."""

    def __init__(self, config: WalkConfig) -> None:
        self.burn(config, "made")
        super().__init__(config)

    def step(self, action: int) -> Any:
        self.burn(self.config, "stepped")
        return super().step(action)

    def burn(self, config: WalkConfig, moment: str) -> None:
        fuse = Path(config.fuse)
        if fuse.exists():
            when, how = fuse.read_text(encoding="utf-8").split()
            if when == moment:
                BREAKING[how]()


def with_one(kind: type, fuse: Path, **said: Any) -> EnvStateManager:
    """A walk, one of this kind, and another walk, in a worker."""
    register("kind", kind, WalkConfig)
    config = configured({"Walk": 1, "Breaking": 1, "Pictures": 1}, 1, max_workers=1, **said)
    config["custom_envs"]["Breaking"] = {"env_type": "kind", "env_config": {"fuse": str(fuse)}}
    return EnvStateManager(config)


def kill_worker(manager: EnvStateManager) -> None:
    assert manager._placement is not None
    assert manager._placement.workers is not None
    os.kill(manager._placement.workers.pool.pid(0), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("raises", EnvError, "Env 1 (Breaking) raised OSError during its construction: no data"),
        ("hangs", StepTimeout, "Env 1 did not answer within 3.0 seconds during its construction."),
        ("dies", WorkerDied, "ended with exit code 5 during its construction (Breaking)"),
    ],
)
def test_in_whichever_way_it_cannot_be_made_the_reset_raises(
    how: str, kind: type[ParallelEnvsError], text: str, tmp_path: Path
) -> None:
    fuse = tmp_path / "fuse"
    with with_one(Lit, fuse, start_timeout=SOON if how == "hangs" else 600.0) as manager:
        manager.reset(seed=1)
        before = manager.step(inputs({env: ["left"] for env in range(3)}))
        kill_worker(manager)
        fuse.write_text(f"made {how}", encoding="utf-8")
        with pytest.raises(kind) as caught:
            manager.reset()
        assert text in str(caught.value)
        assert ("es_manager.start_timeout" in str(caught.value)) is (how == "hangs")
        fuse.unlink()
        after = manager.step(inputs({env: ["left"] for env in range(3)}))  # the episodes before it go on
        assert [entry["history"][1]["state"] for entry in after[:2]] == [
            entry["history"][1]["state"] for entry in before[:2]
        ]


@pytest.mark.parametrize(("how", "restarts"), [("hangs", 1), ("dies", 2)])
def test_the_first_that_cannot_be_made_ends_the_reset(how: str, restarts: int, tmp_path: Path) -> None:
    register("kind", Lit, WalkConfig)
    config = configured({"Breaking": 1}, 16, max_workers=1, start_timeout=SOON if how == "hangs" else 600.0)
    config["custom_envs"]["Breaking"] = {"env_type": "kind", "env_config": {"fuse": str(tmp_path / "fuse")}}
    (tmp_path / "fuse").write_text(f"made {how}", encoding="utf-8")
    with EnvStateManager(config) as manager:
        with pytest.raises(ParallelEnvsError, match=r"(?i)env 0\b"):
            manager.reset()
        assert manager.stats().restarts == restarts


@pytest.mark.parametrize(
    ("burning", "kind", "doing"),
    [
        ("made dies", "death", "its construction"),
        ("stepped raises", "error", "its replay"),
        ("stepped dies", "death", "its replay"),
        ("stepped hangs", "timeout", "its replay"),
    ],
)
def test_what_breaks_on_its_way_back_is_told_by_its_name(burning: str, kind: str, doing: str, tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    soon = SOON if "hangs" in burning else 30.0
    with with_one(Lit, fuse, step_timeout=soon, reset_timeout=soon) as manager:
        manager.reset(seed=1)
        manager.step(inputs({env: ["left"] for env in range(3)}))
        kill_worker(manager)
        fuse.write_text(burning, encoding="utf-8")
        one, broken, other = manager.step(inputs({env: ["left"] for env in range(3)}))
        assert (broken["failure"].kind, broken["failure"].doing) == (kind, doing)
        assert f"during {doing}" in str(broken["failure"])
        assert "failure" not in one
        assert "failure" not in other


class Heavy:
    """A state that breaks whoever sends it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        BREAKING[self.how]()
        return Heavy, (self.how,)


class Sender(Walk):
    """Answers with such a state once its file says how that breaks."""

    def step(self, action: int) -> Any:
        state, *rest = super().step(action)
        fuse = Path(self.config.fuse)
        return (Heavy(fuse.read_text(encoding="utf-8")) if fuse.exists() else state), *rest


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("hangs", "timeout", "let its states be smaller, or give it more: es_manager.step_timeout."),
        ("dies", "death", "ended with exit code 5 during sending its answer (Breaking)"),
    ],
)
def test_who_cannot_send_has_failed_and_the_others_go_on(
    how: str, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_SENDING_SECONDS", SOON)
    fuse, turn = tmp_path / "fuse", inputs({env: ["left"] for env in range(3)})
    with with_one(Sender, fuse, step_timeout=SOON if how == "hangs" else 30.0) as manager:
        manager.reset(seed=1)
        one, _, other = manager.step(turn)
        manager.reset(seed=1)
        fuse.write_text(how, encoding="utf-8")
        again, broken, another = manager.step(turn)
        assert_same_batch([again, another], [one, other])
        assert (broken["failure"].kind, broken["failure"].doing) == (kind, "sending its answer")
        assert text in str(broken["failure"])
