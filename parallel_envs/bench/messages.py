"""Messages between `turns.Driver` and the `host` process of a runner: one request, one reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_envs.bench.measure import Slice

if TYPE_CHECKING:
    from parallel_envs.bench.runners import Hosted


@dataclass(frozen=True, slots=True)
class Load:
    """Request: take this runner and import what it needs. The reply is `Took`."""

    runner: Hosted


@dataclass(frozen=True, slots=True)
class Open:
    """Request: make and reset the environments. The reply is `Took`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Request: warm up, then step for `seconds`. The reply is a `Slice`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """Request: call this method of the runner. The reply is `Returned`."""

    method: str


@dataclass(frozen=True, slots=True)
class Close:
    """Request: close the environments. The reply is `Took`."""


@dataclass(frozen=True, slots=True)
class Took:
    """Reply: the request is done; it took `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Returned:
    """Reply: the return value of the method."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """Reply: the runner raised."""

    text: str


Request = Load | Open | Run | Call | Close
Reply = Took | Slice | Returned | Failure
