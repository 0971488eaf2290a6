"""What a driver and its host say to each other: one request, one reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_envs.bench.measure import Slice

if TYPE_CHECKING:
    from parallel_envs.bench.contestants import Hosted


@dataclass(frozen=True, slots=True)
class Load:
    """Take this contestant and import what it needs. Answered by `Took`."""

    contestant: Hosted


@dataclass(frozen=True, slots=True)
class Open:
    """Make and reset the environments. Answered by `Took`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Warm up, then step for so long. Answered by a `Slice`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Call this method of the contestant's. Answered by `Told`."""

    method: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the environments. Answered by `Took`."""


@dataclass(frozen=True, slots=True)
class Took:
    """It is done, and this is how long it took."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Told:
    """What the method returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """The contestant raised."""

    text: str


Request = Load | Open | Run | Ask | Close
Reply = Took | Slice | Told | Failure
