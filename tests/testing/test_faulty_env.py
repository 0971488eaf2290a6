"""A faulty env breaks in the way and at the moment it was told to, and not otherwise."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, Moment, ScriptedEnv, assert_same_batch

RAISING: dict[Fault, tuple[type[BaseException], str]] = {
    Fault.EXCEPTION: (ValueError, "injected"),
    Fault.UNPICKLABLE_EXCEPTION: (Exception, "injected"),
    Fault.TWO_ARGUMENT_EXCEPTION: (Exception, "injected"),
    Fault.SYSTEM_EXIT: (SystemExit, "17"),
}
ENDING = {Fault.SIGKILL: -9, Fault.SIGSEGV: -11, Fault.OS_EXIT: 17}
LIVE = [moment for moment in Moment if moment is not Moment.IDLE]


def live_through(env: FaultyEnv) -> None:
    """All moments but the constructor, in order."""
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, terminated, truncated, _ = env.step(0)
        ended = terminated or truncated
    env.poke()
    env.reset()
    env.step(0)
    env.close()


def run(script: str) -> subprocess.CompletedProcess[str]:
    """The end of a fresh interpreter."""
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)


def make_and_live(fault: Fault, moment: Moment, **settings: Any) -> None:
    live_through(FaultyEnv(fault, moment, **settings))


@pytest.mark.parametrize("moment", LIVE)
@pytest.mark.parametrize("fault", RAISING)
def test_errors_are_raised_at_their_moment(fault: Fault, moment: Moment) -> None:
    error, text = RAISING[fault]
    with pytest.raises(error, match=text):
        make_and_live(fault, moment)


STEPPING = """
env.step(0)
print("one step", flush=True)
env.step(0)
print("two steps", flush=True)
"""


@pytest.mark.parametrize(
    ("fault", "arguments", "rest", "printed"),
    [
        *((fault, "'step', at=2", STEPPING, "one step\n") for fault in ENDING),
        (Fault.OS_EXIT, "'idle'", "env.step(0)\nthreading.Event().wait(60)", ""),
    ],
)
def test_a_process_ends_in_its_way(fault: Fault, arguments: str, rest: str, printed: str) -> None:
    opening = "import threading\nfrom parallel_envs.testing import FaultyEnv\n"
    ended = run(f"{opening}env = FaultyEnv({fault.value!r}, {arguments})\nenv.reset(seed=0)\n{rest}")
    assert (ended.returncode, ended.stdout) == (ENDING[fault], printed)


def test_a_huge_reply_is_in_the_info_the_result_or_the_metadata() -> None:
    moments = (Moment.RESET, Moment.STEP, Moment.AUTORESET)
    for moment in moments:
        env = FaultyEnv(Fault.HUGE_REPLY, moment, num_bytes=1000, episode_lengths=[1])
        results: list[tuple[Any, ...]] = [env.reset(seed=0), env.step(0), env.reset()]
        sizes = [len(result[-1].get("huge", b"")) for result in results]
        assert sizes == [1000 * (moment is each) for each in moments]
    assert len(FaultyEnv(Fault.HUGE_REPLY, Moment.CALL, num_bytes=1000).poke()) == 1000
    assert len(FaultyEnv(Fault.HUGE_REPLY, Moment.CONSTRUCTOR, num_bytes=1000).metadata["huge"]) == 1000
    assert "huge" not in FaultyEnv.metadata


@pytest.mark.parametrize("at", [1, 2, 4])
def test_the_occurrence_is_counted_and_before_it_the_env_is_a_scripted_env(at: int) -> None:
    env, sound = (
        FaultyEnv(Fault.EXCEPTION, Moment.STEP, at=at, episode_lengths=[100]),
        ScriptedEnv(episode_lengths=[100]),
    )
    assert_same_batch(env.reset(seed=0), sound.reset(seed=0))
    for _ in range(at - 1):
        assert_same_batch(env.step(1), sound.step(1))
    with pytest.raises(ValueError, match="injected"):
        env.step(0)
    env.step(0)
    make_and_live(Fault.SLEEP, Moment.STEP, seconds=0.0)  # as long as it was told to


def test_a_reset_is_an_autoreset_only_after_an_episodes_end() -> None:
    env = FaultyEnv(Fault.EXCEPTION, Moment.AUTORESET, episode_lengths=[2])
    env.reset(seed=0)
    env.step(0)
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(ValueError, match="autoreset"):
        env.reset()


def test_once_is_once_for_all_envs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"once": tmp_path / "broken"}
    with pytest.raises(ValueError, match="injected"):
        make_and_live(Fault.EXCEPTION, Moment.STEP, **settings)
    make_and_live(Fault.EXCEPTION, Moment.STEP, **settings)


@pytest.mark.parametrize(
    ("fault", "moment"),
    [
        *((fault, moment) for moment in Moment for fault in Fault if fault not in FAULTS_AT[moment]),
        ("sigbus", "step"),
        ("sigkill", "lunch"),
    ],
)
def test_what_cannot_happen_and_unknown_words_are_refused(fault: Any, moment: Any) -> None:
    with pytest.raises(ValueError, match=rf"{fault}.*{moment}|'sigbus'|'lunch'"):
        FaultyEnv(fault, moment)


def test_the_unpicklable_error_cannot_be_pickled_and_the_two_argument_error_not_unpickled() -> None:
    errors = []
    for fault in (Fault.UNPICKLABLE_EXCEPTION, Fault.TWO_ARGUMENT_EXCEPTION):
        with pytest.raises(Exception, match="injected") as caught:
            make_and_live(fault, Moment.STEP)
        errors.append(caught.value)
    with pytest.raises(TypeError):
        pickle.dumps(errors[0])
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(errors[1]))
