"""Policies that the wrappers are tested with. Workers import this module by its name."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.policies import AgentPolicy, MultiAgentPolicy
from tests.gates import wait_at


def digest(observation: Any) -> int:
    """A number that follows from an observation, to the bit."""
    if isinstance(observation, dict):
        return sum(digest(part) * (place + 2) for place, part in enumerate(observation.values()))
    if isinstance(observation, tuple):
        return sum(digest(part) * (place + 3) for place, part in enumerate(observation))
    array = np.ascontiguousarray(observation)
    return int(np.frombuffer(array.tobytes(), np.uint8).astype(np.int64).sum()) + array.ndim


class Drawing:
    """Counts its steps and draws from a generator of its own, which no reset brings back."""

    def __init__(self, seed: int = 0) -> None:
        self.count, self.generator = 0, np.random.default_rng(seed)

    def step(self, observation: Any) -> Any:
        self.count += 1
        return int(self.generator.integers(1000)) + 1000 * self.count + digest(observation)

    def reset(self) -> None:
        self.count = 0


class Exploring(Drawing):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.epsilon = 1.0

    def step(self, observation: Any) -> Any:
        action = super().step(observation)
        return action if self.generator.random() < self.epsilon else -1

    def reset(self) -> None:
        super().reset()
        self.epsilon *= 0.6


class Telling(AgentPolicy):
    def __init__(self, seed: int = 0) -> None:
        self._seen = seed

    def step(self, observation: Any) -> Any:
        self._seen = (self._seen * 31 + digest(observation)) % 100_003
        return self._seen

    def get_state(self) -> Any:
        return {"seen": self._seen}

    def set_state(self, state: Any) -> None:
        self._seen = state["seen"]


class Slotted:
    __slots__ = ("count",)

    def __init__(self, seed: int = 0) -> None:
        self.count = seed

    def step(self, observation: Any) -> Any:
        self.count += digest(observation)
        return self.count


class Boxed(Drawing):
    def step(self, observation: Any) -> Any:
        number = super().step(observation)
        return np.array([number, number / 3], np.float32)


class Composed(Drawing):
    def step(self, observation: Any) -> Any:
        number = super().step(observation)
        return {"move": np.array([number, 1.0], np.float32), "say": (number % 7, np.int8(number % 5))}


class Batched:
    def __init__(self, seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.calls: list[int] = []

    def step(self, observation: Any) -> Any:
        return self.step_batch(np.asarray(observation)[None])[0]

    def step_batch(self, observations: Any) -> Any:
        self.calls.append(len(observations))
        sums = np.array([digest(one) for one in observations])
        return sums + self.generator.integers(1000, size=len(observations))

    def get_state(self) -> Any:
        return self.generator.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.generator.bit_generator.state = state


class ByRow:
    def __init__(self, seed: int = 0) -> None:
        self.seen = np.full(16, seed, np.int64)

    def step(self, observation: Any) -> Any:
        return int(self.step_batch(np.asarray(observation)[None], rows=np.zeros(1, np.intp))[0])

    def step_batch(self, observations: Any, rows: Any) -> Any:
        self.seen[rows] = self.seen[rows] * 3 + [digest(one) for one in observations]
        return self.seen[rows] % 1009

    def reset(self, rows: Any = None) -> None:
        self.seen[slice(None) if rows is None else rows] = 0


class Sharing:
    def __init__(self, name: str, notes: list[str], generator: np.random.Generator) -> None:
        self.name, self.notes, self.generator = name, notes, generator

    def step(self, observation: Any) -> Any:
        self.notes.append(self.name)
        return int(self.generator.integers(1000)) + len(self.notes)


class Constant:
    def __init__(self, action: Any = 0) -> None:
        self.action = action

    def step(self, observation: Any) -> Any:
        return self.action


class Doing:
    """Does what it is told to, with the observation: in `step`, and in its other methods too."""

    def __init__(self, step: Callable[[Any], Any], **others: Callable[[], Any]) -> None:
        self._step, self._others = step, others

    def step(self, observation: Any) -> Any:
        return self._step(observation)

    def reset(self) -> None:
        self._others.get("reset", int)()

    def get_state(self) -> Any:
        return self._others.get("get_state", int)()


class Waiting:
    def __init__(self, gate: Path) -> None:
        self.gate, self.count, self.resets = gate, 0, 0

    def step(self, observation: Any) -> Any:
        if np.any(observation):
            wait_at(self.gate)
        self.count += 1
        return self.count

    def reset(self) -> None:
        self.resets += 1


class Meeting:
    """Opens the next one's gate and waits at its own: alone it never answers."""

    def __init__(self, mine: Path, next_one: Path) -> None:
        self.mine, self.next_one = mine, next_one

    def step(self, observation: Any) -> Any:
        with self.next_one.open("wb", buffering=0) as gate:
            gate.write(b".")
        wait_at(self.mine)
        return "met"


class Loaded:
    """Has weights, which can be loaded: all or none."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def step(self, observation: Any) -> Any:
        return self.weight

    def load_state_dict(self, weights: Any) -> None:
        self.weight = float(weights["weight"])


class Counting(AgentPolicy):
    def __init__(self, start: int = 0) -> None:
        self.count = self.start = start

    def step(self, observation: Any) -> tuple[int, int]:
        if observation is None:
            raise ValueError("nothing was seen")
        self.count += 1
        return os.getpid(), self.count

    def reset(self) -> None:
        self.count = self.start


class Locked(Counting):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Held:
    def __init__(self, notes: list[Any] | None = None) -> None:
        self.lock, self.count, self.notes = threading.Lock(), 0, notes

    def step(self, observation: Any) -> Any:
        with self.lock:
            self.count += 1
            return self.count


class OneByOne(MultiAgentPolicy):
    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def agent_policy(self, agent: Any) -> Any:
        return self.make(agent)


# ---- eleven agents -------------------------------------------------------------------------------


AGENTS = tuple("abcdefghijk")


def mixed() -> dict[str, Any]:
    """Policies of every kind. Some share: `f` and `g` a policy that batches, `h` and `i` a list and a generator."""
    notes: list[str] = []
    generator, batched = np.random.default_rng(9), Batched(6)
    return {
        "a": Drawing(1),
        "b": Exploring(2),
        "c": Telling(3),
        "d": Boxed(4),
        "e": Slotted(5),
        "f": batched,
        "h": Sharing("h", notes, generator),
        "g": batched,
        "j": ByRow(7),
        "i": Sharing("i", notes, generator),
        "k": Composed(8),
    }


def observed(agent: str, seed: int, rows: int | None) -> Any:
    generator = np.random.default_rng([seed, ord(agent)])
    shape = () if rows is None else (rows,)
    array = generator.standard_normal((*shape, 3)).astype(np.float32)
    if agent == "k":
        return {"seen": array, "pair": (generator.integers(5, size=(*shape, 2)), array * 2)}
    return (array, generator.integers(9, size=(*shape, 1))) if agent == "c" else array


def comparable(state: Any) -> Any:
    """A state with plain values in the place of generators."""
    if isinstance(state, np.random.Generator):
        return state.bit_generator.state
    if isinstance(state, Mapping):
        return {key: comparable(part) for key, part in state.items()}
    return [comparable(part) for part in state] if isinstance(state, list | tuple) else state


# ---- ways to fail --------------------------------------------------------------------------------


def raising(_: Any = None) -> Any:
    raise ZeroDivisionError("by nothing")


def exiting(_: Any = None) -> Any:
    raise SystemExit(3)


def unpicklable(_: Any = None) -> Any:
    return threading.Lock()


def killed(_: Any = None) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def ended(_: Any = None) -> Any:
    os._exit(17)


def told(what: Any, log: Path) -> Any:
    with log.open("a") as file:
        print(what, file=file)


def pid(_: Any = None) -> int:
    return os.getpid()


class Logging(Drawing):
    def __init__(self, log: Path, agent: str, *, opens: bool = False, fails: bool = False) -> None:
        super().__init__()
        self.log, self.agent, self.fails = log, agent, fails
        self.file = Path(__file__).open(encoding="utf-8") if opens else None  # noqa: SIM115  # cannot be pickled

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        told(f"{self.agent} closed", self.log)
        if self.fails:
            raising()
