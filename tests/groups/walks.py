"""Environments for the tests of groups, and configurations of them. They are plain, and tell what was done to them."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.groups import EnvStateManager, env_workers, register


@dataclass(frozen=True)
class WalkConfig:
    goal: int = 5
    images: bool = False
    fuse: str = ""
    """A file, by which a test and an environment tell one another something."""


class Walk:  # right leads to the goal, left away from it. The state tells every step since the reset
    action_lookup: Mapping[Any, str] | None = {1: "Right", -1: "Left", 7: "Jump"}

    def __init__(self, config: WalkConfig) -> None:
        self.config = config

    def reset(self, seed: int, mode: str) -> Any:
        self.rng = np.random.default_rng([seed, mode == "val"])
        self.place, self.track = int(self.rng.integers(3)), [f"{mode}{self.rng.integers(1000)}"]
        return self.state()

    def step(self, action: int) -> Any:
        self.place += int(self.rng.integers(1, 4)) if action == 7 else action
        self.track.append(str(self.place))
        info = {"success": self.place >= self.config.goal, "action_is_valid": True, "place": self.place, "who": "walk"}
        return self.state(), self.rng.random(), self.place >= self.config.goal, self.place < -3, info

    def state(self) -> Any:
        text = " ".join(self.track)
        if not self.config.images:
            return text
        return {"text": "", "images": [np.full((2, 2, 3), self.place % 256, np.uint8)] * 2}

    def render(self, mode: str = "text") -> Any:
        return self.state() if mode == "text" else np.full((2, 2, 3), self.place % 256, np.uint8)

    def metrics(self) -> dict[str, float]:
        return {"far": float(self.place)}


class Talk:  # free text; returns Gym's older four
    def __init__(self, config: dict[str, Any]) -> None:
        self.word = config.get("word", "please")

    def reset(self, seed: int, mode: str) -> str:
        self.heard: list[str] = []
        return f"{seed} in {mode}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.heard.append(action)
        done = action == self.word
        return " ".join(self.heard), len(action), done, {"success": done, "length": len(action)}


class Dice:  # draws from the generators that all share
    uses_global_random = True
    action_lookup: Mapping[Any, str] = {"throw": "throw"}

    def __init__(self, config: Any) -> None:
        self.offset = random.random()

    def reset(self, seed: int, mode: str) -> str:
        self.sum = self.offset + random.random()
        return str(self.sum)

    def step(self, action: str) -> Any:
        self.sum += random.random() + float(np.random.random())
        return str(self.sum), self.sum, self.sum > 9, False, {}


def fail() -> None:
    raise OSError("no data")


WAYS: dict[str, Callable[[], Any]] = {
    "raises": fail,
    "hangs": functools.partial(threading.Event().wait, 60.0),
    "dies": functools.partial(os._exit, 5),
}


class Breaking(Walk):  # A walk with actions that break it
    action_lookup: Mapping[Any, str] | None = {1: "Right"} | {
        name: name for name in ("raise", "exit", "die", "kill", "dies-once", "hang", "locked", "bad")
    }

    def step(self, action: Any) -> Any:
        fuse = Path(self.config.fuse)
        match action:
            case "raise":
                raise RuntimeError("it raised")
            case "exit":
                raise SystemExit(3)
            case "die":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "dies-once" if not fuse.exists():
                fuse.touch()
                os._exit(9)
            case "hang":
                WAYS["hangs"]()
            case "locked":
                return threading.Lock(), 0.0, False, False, {}
            case "bad":
                return "no", "such", "thing"
        return super().step(1)


class Heavy:  # A state that breaks its worker while it is sent
    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        WAYS[self.how]()
        return Heavy, (self.how,)


class TwoWords(Exception):  # cannot be read: like many exceptions, it is pickled with one argument and made with two
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


class Forgetful(Walk):  # not to be replayed: the state depends on the process it lives in
    def state(self) -> Any:
        return f"{os.getpid()} {super().state()}"


def register_all() -> None:
    register("walk", Walk, WalkConfig)
    register("talk", Talk)
    register("dice", Dice)
    register("breaking", Breaking, WalkConfig)
    register("forgetful", Forgetful, WalkConfig)


TAGS: dict[str, Any] = {
    "Walk": {"env_type": "walk", "max_actions_per_traj": 8},
    "Pictures": {"env_type": "walk", "env_config": {"images": True}},
    "Talk": {"env_type": "talk", "max_actions_per_traj": 6},
    "Dice": {"env_type": "dice"},
    "Breaking": {"env_type": "breaking", "max_actions_per_traj": 20, "env_config": {"goal": 100}},
    "Forgetful": {"env_type": "forgetful"},
    "Lake": {"env_type": "gymnasium", "env_config": {"id": "FrozenLake-v1", "actions": {0: "left", 1: "down"}}},
}


def configured(groups: Mapping[str, int], group_size: int = 2, **said: Any) -> dict[str, Any]:
    """A configuration with so many groups of each tag; `said` are words of `es_manager`."""
    tags = {tag: TAGS[tag] for tag in groups}
    block = {
        "env_groups": sum(groups.values()),
        "group_size": group_size,
        "env_configs": {"tags": list(groups), "n_groups": list(groups.values())},
    }
    return {"es_manager": {"train": block, "val": block, **said}, "custom_envs": tags}


def of_block(block: Mapping[str, Any], group_size: int = 2, **said: Any) -> dict[str, Any]:
    """A configuration with one group of the environments of this block."""
    return {**configured({"Walk": 1}, group_size, **said), "custom_envs": {"Walk": dict(block)}}


def of_kind(kind: Any, fuse: Path | str = "", group_size: int = 2, **said: Any) -> EnvStateManager:
    """One group of walks of this kind, in one worker unless something else is said."""
    register("kind", kind, WalkConfig)
    block = {"env_type": "kind", "env_config": {"fuse": str(fuse)}}
    return EnvStateManager(of_block(block, group_size, **{"max_workers": 1, **said}))


def inputs(actions: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
    """Inputs with these actions, by environment."""
    return [
        {"env_id": env, "llm_response": f"says {env}", "llm_raw_response": f"raw {env}", "actions": list(own)}
        for env, own in actions.items()
    ]


def play(manager: EnvStateManager, actions: Sequence[str], seed: int | None = None) -> list[dict[str, Any]]:
    """All play the same actions, one a turn, as long as they can. The rollout states."""
    entries = manager.reset(seed)
    for action in actions:
        entries = manager.step(inputs({entry["env_id"]: [action] for entry in entries if "failure" not in entry}))
    return manager.get_rollout_states()


def kill_all(manager: EnvStateManager) -> None:
    pool = workers(manager).pool
    for worker in pool.all_workers:
        os.kill(pool.pid(worker), signal.SIGKILL)


def workers(manager: EnvStateManager) -> env_workers.EnvWorkers:
    assert manager._placement is not None
    assert manager._placement.workers is not None
    return manager._placement.workers


@contextmanager
def begun(groups: Mapping[str, int], seed: int = 1, **said: Any) -> Iterator[EnvStateManager]:
    """Episodes that have begun: in the caller, or in as many workers as are said."""
    with EnvStateManager(configured(groups, **{"use_multiprocessing": "max_workers" in said, **said})) as manager:
        manager.reset(seed)
        yield manager
