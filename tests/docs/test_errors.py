"""The page of errors by their text: what users see is found there, and nothing else is on it."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import parallel_envs.errors
from parallel_envs import (
    EnvStateManager,
    MultiAgentEnvManager,
    ParallelEnvManager,
    WrappedMultiAgentPolicy,
    collect,
    evaluate,
)
from parallel_envs.groups import register

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| (`[^|]+`) [^|`]*\|", PAGE, re.MULTILINE)
SOURCE = " ".join(
    re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")).replace("`", "")
    for path in (ROOT / "parallel_envs").rglob("*.py")
)


def parts(message: str) -> list[str]:
    """The parts of a message on the page between its dots."""
    return [part for part in re.split(r"\.\.\.", re.sub(r"`(?: [a-z]+ `)?", "...", message)) if part.strip()]


def is_on_page(text: str) -> bool:
    """Whether a row of the page has a text that was raised."""
    plain = re.sub(r"\s+", " ", text.replace("`", ""))
    return any(re.search(".*".join(map(re.escape, map(str.strip, parts(one)))), plain) for one in MESSAGES)


# ---- what users do wrong, or what goes wrong ------------------------------------------------------------------------


class Faulty(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose step does something bad."""

    def __init__(self, fault: Callable[[], Any]) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.fault = fault

    def step(self, action: Any) -> Any:
        self.fault()
        return super().step(action)


def stepping(fault: Callable[[], Any], **options: Any) -> None:
    with ParallelEnvManager([functools.partial(Faulty, fault)] * 2, **options) as envs:
        envs.reset(seed=1)
        for _ in range(4):
            envs.step([0, 0])


def using(act: Callable[[Any], Any], *, reset: bool = True, **options: Any) -> None:
    with ParallelEnvManager("CartPole-v1", num_envs=2, **{"backend": "serial", **options}) as envs:
        if reset:
            envs.reset(seed=1)
        act(envs)


def agents(act: Callable[[Any], Any]) -> None:
    with MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, backend="serial") as envs:
        envs.reset(seed=1)
        act(envs)


def policy(given: Any) -> None:
    with WrappedMultiAgentPolicy({"a": given}) as wrapped:
        wrapped.step({"a": 0})


class FourTimesNothing:
    """An environment of a group that returns too little."""

    def __init__(self, config: Any) -> None:
        pass

    def reset(self, seed: int, mode: str) -> str:
        return "?"

    def step(self, action: Any) -> Any:
        return "?", 0.0


def groups(env_type: str, act: Callable[[Any], Any]) -> None:
    config = {
        "es_manager": {
            "train": {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["A"]}},
            "max_workers": 1,
            "on_failure": "raise",
        },
        "custom_envs": {"A": {"env_type": env_type, "max_actions_per_traj": 2, "where": "caller"}},
    }
    register("four_times_nothing", FourTimesNothing)
    with EnvStateManager(config, mode="train") as manager:
        act(manager)


def answered(manager: Any) -> None:
    entries = manager.reset(seed=1)
    says = {"llm_response": "", "llm_raw_response": "", "actions": ["x"]}
    manager.step([{"env_id": entry["env_id"], **says} for entry in entries])


def learners(**settings: Any) -> None:
    from parallel_envs import PPOConfig

    PPOConfig(**settings)


def no_level() -> None:
    raise ValueError("no such level")


def twice(envs: Any) -> None:
    envs.send([0, 0])
    try:
        envs.send([0, 0])
    finally:
        envs.recv(min_envs=2)


def pending(envs: Any) -> None:
    envs.step_async([0, 0])
    try:
        envs.step([0, 0])
    finally:
        envs.step_wait()


def closed(envs: Any) -> None:
    envs.close()
    envs.step([0, 0])


lock = __import__("threading").Lock()

RAISED: dict[str, Callable[[], Any]] = {
    "EnvError raises": lambda: stepping(no_level, backend="serial"),
    "EnvError no reset": lambda: using(lambda envs: envs.step([0, 0]), reset=False),
    "EnvError action": lambda: using(lambda envs: envs.step([0, 7])),
    "EnvError attribute": lambda: using(lambda envs: envs.get_attr("gravty")),
    "EnvError breakpoint": lambda: stepping(breakpoint),
    "WorkerDied killed": lambda: stepping(lambda: os.kill(os.getpid(), 9)),
    "WorkerDied exits": lambda: stepping(lambda: os._exit(3)),
    "StepTimeout": lambda: stepping(lambda: time.sleep(60), step_timeout=0.3),
    "ValueError num_envs": lambda: ParallelEnvManager("CartPole-v1"),
    "TypeError env_fns": lambda: ParallelEnvManager([gym.make("CartPole-v1")]),  # type: ignore[list-item]
    "NameNotFound": lambda: ParallelEnvManager("CartPol-v1", num_envs=2),
    "ValueError no file": lambda: ParallelEnvManager("./nofile.py:MyEnv", num_envs=2),
    "EnvError zoo name": lambda: MultiAgentEnvManager("mpe2.simple_sprea_v3", num_envs=2, backend="serial"),
    "EnvError zoo id": lambda: MultiAgentEnvManager("CartPole-v1", num_envs=2, backend="serial"),
    "Unpicklable": lambda: ParallelEnvManager([lambda: (lock, gym.make("CartPole-v1"))[1]]),
    "RuntimeError spaces": lambda: ParallelEnvManager(
        [lambda: gym.make("CartPole-v1"), lambda: gym.make("Acrobot-v1")], backend="serial"
    ),
    "ValueError num_workers": lambda: using(lambda envs: None, num_workers=5),
    "ValueError actions": lambda: using(lambda envs: envs.step([0])),
    "TypeError actions": lambda: using(lambda envs: envs.step(0)),
    "AlreadyPendingCallError": lambda: using(pending),
    "AlreadyPendingCallError send": lambda: using(twice),
    "NoAsyncCallError": lambda: using(lambda envs: envs.step_wait()),
    "ValueError env_ids": lambda: using(lambda envs: envs.get_attr("gravity", env_ids=[5])),
    "ValueError seeds": lambda: using(lambda envs: envs.reset(seed=[1, 2, 3])),
    "ClosedManager": lambda: using(closed),
    "ValueError agent": lambda: agents(lambda envs: envs.step({"agent_0": [0, 0]})),
    "ValueError no agent": lambda: agents(lambda envs: envs.step({"agent_9": [0, 0]})),
    "TypeError policy": lambda: policy(3),
    "TypeError collect": lambda: using(lambda envs: collect(envs, None, num_rollouts=2)),
    "PolicyError": lambda: policy(lambda seen: 1 / 0),
    "BadEvaluation policy": lambda: evaluate("CartPole-v1", "randm", episodes=1, jobs=0),
    "BadEvaluation mission": lambda: evaluate("CartPol-v1", "random", episodes=1, jobs=0),
    "TypeError argument": lambda: using(lambda envs: None, num_worker=2),
    "TypeError other name": lambda: learners(gamma=0.9),
    "ValueError bounds": lambda: learners(discount=2.0),
    "ValueError choice": lambda: using(lambda envs: None, backend="procss"),
    "BadSettings": lambda: groups("sokban", lambda manager: None),
    "BadTurn before": lambda: groups("bandit", lambda manager: manager.step([])),
    "BadTurn list": lambda: groups("bandit", lambda manager: (manager.reset(seed=1), manager.step("x"))),
    "EnvError group": lambda: groups("four_times_nothing", answered),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RAISED)
def test_an_error_is_found_on_the_page_by_its_text(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    if name in ("TypeError other name", "ValueError bounds"):
        pytest.importorskip("torch")
    with pytest.raises(Exception) as raised:  # which one, is asserted below
        RAISED[name]()
    assert type(raised.value).__name__ == name.partition(" ")[0]
    assert is_on_page(str(raised.value)), raised.value
    capfd.readouterr()


IN_PARTS = (
    *("raised gymnasium.error.ResetNeeded", "raised AssertionError", "raised AttributeError", "doesn't exist"),
    *("during its construction", "(SIGSEGV", "It is the id of a Gymnasium", "is alive in envs"),
)
"""Words of messages that Gymnasium writes, or that the code puts together: the test above raises them."""


@pytest.mark.parametrize("message", MESSAGES)
def test_the_words_of_a_message_are_in_the_source(message: str) -> None:
    words = [part.strip(" .,:()") for part in parts(message) if len(part.strip()) > 5]
    assert words
    for part in words:
        assert part in SOURCE or any(other in part for other in IN_PARTS), part


BASES = {"ParallelEnvsError", "RemoteError", "RemoteTraceback"}


def test_every_exception_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE for name in set(parallel_envs.errors.__all__) - BASES)
