"""What learns: an algorithm, its network, and the numbers that learning changes, be it here or in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parallel_envs.engine import Failure
from parallel_envs.errors import ParallelEnvsError
from parallel_envs.learners.algorithm import Algorithm
from parallel_envs.learners.parameters import Strip, lay_out

_STATISTICS = "statistics."


class Diverged(ParallelEnvsError, ArithmeticError):
    """Agents' losses or gradients were not finite. `agents` are they; the others have learnt."""

    def __init__(self, text: str, agents: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.agents = tuple(agents)

    @classmethod
    def of(cls, why: Mapping[Any, str]) -> Self:
        """These agents have not learnt, for these reasons."""
        lines = [f"Agent {agent!r} has not learnt: {reason}." for agent, reason in why.items()]
        hint = (
            " Its numbers are as they were before. Look for rewards or observations that are not finite or very large, "
            "or give a lower learning_rate."
        )
        return cls(" ".join(lines) + hint, tuple(why))


class NothingLearnt(Diverged):
    """At the end of a run: every update of some agents was undone. `agents` are they; the others have learnt."""

    @classmethod
    def of_counts(cls, undone: Mapping[Any, int]) -> Self:
        """Return the error for agents and the numbers of their updates."""
        told = ", ".join(f"{agent!r} ({count:,} of {count:,})" for agent, count in undone.items())
        return cls(
            f"Nothing was learnt by {told}: every update was undone, as a loss, a gradient or a weight was not finite. "
            "The weights are those of the beginning. Give a lower learning_rate or max_grad_norm, and look for rewards "
            "or observations that are not finite or very large (PPO has normalize_observations and normalize_returns).",
            tuple(undone),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What became of an agent's update."""

    metrics: dict[str, float]
    """Means over the steps that were taken, and `steps`, how many these were."""
    diverged: str | None = None
    """Why nothing was learnt, if numbers were not finite: then the agent's are as they were before."""
    failure: Failure | None = field(default=None, repr=False)
    """What the update raised, if it did: the same holds."""
    taught: npt.NDArray[Any] | None = field(default=None, repr=False)
    """How much each of the drawn steps taught, if that decides how often it is drawn again."""
    carry: npt.NDArray[Any] | None = field(default=None, repr=False)
    """What a recurrent agent remembers now."""

    @property
    def learnt(self) -> bool:
        """Whether the update came to anything."""
        return self.diverged is None and self.failure is None

    @classmethod
    def of_nothing(cls, *, diverged: str | None = None, failure: Failure | None = None) -> Self:
        """No step was taken, or all were taken back."""
        return cls({"steps": 0.0}, diverged, failure)


class Brain:
    """An algorithm with a network whose parameters are views of a `Strip`."""

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self.algorithm = algorithm
        self.module: Any = algorithm.make_module(torch.Generator().manual_seed(seed))
        self.layout = lay_out(self.module)
        self.strip = Strip.of(self.module, self.layout)
        self.layout.bind(self.module, self.strip)
        self.statistics: dict[str, Tensor] = dict(self.module.named_buffers())
        """What learning changes beside the strip: written into, never replaced."""

    def move_to(self, strip: Strip) -> None:
        """From now on live in this strip, which gets the numbers of the old one."""
        strip.copy_from(self.strip)
        self.strip = strip
        self.layout.bind(self.module, strip)

    def tensors(self) -> dict[str, Tensor]:
        """Every number there is, by name: the strip's, and statistics. They share memory with the brain."""
        return {**self.strip.arrays(), **{f"{_STATISTICS}{name}": own for name, own in self.statistics.items()}}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The same as NumPy arrays."""
        return {name: tensor.numpy() for name, tensor in self.tensors().items()}

    def load(self, arrays: dict[str, Any]) -> None:
        """Other numbers, all or none: ValueError, naming the agent, if they do not fit."""
        own = self.arrays()
        odd = {name for name in {*own, *arrays} if name not in own or name not in arrays}
        odd |= {name for name in own.keys() - odd if own[name].shape != np.shape(arrays[name])}
        if odd:
            raise ValueError(
                f"Agent {self.algorithm.agent!r}: {sorted(odd)} are missing, unknown, or of another shape than those "
                "of its network. Load what an agent with this config has learnt."
            )
        for name, array in arrays.items():
            own[name][...] = array
