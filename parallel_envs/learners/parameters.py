"""Parameters of learning agents in flat memory, and Adam for many agents at once.

    layout = Layout.of(module)                    # the position of each parameter in a flat vector
    matrix = ParameterMatrix.of(module, layout)   # parameters, targets, and Adam's moments
    layout.bind(module, matrix)                   # from here on the module's parameters are views of the matrix

A `ParameterMatrix` has a row for each agent. The numbers of one agent and those of many stacked agents therefore have
one form: clipping, Adam, targets, copies and checkpoints are written once. The rows of a stack are views
(`matrix.row(k)`). `AgentParameters` holds one agent's network, bound to a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

if TYPE_CHECKING:
    from parallel_envs.learners.algorithm import Algorithm

LANES = 16
"""The length of a row of trained parameters is a multiple of this: whole registers of any processor. Code that computes
with full registers then does the same to each number of a row, for one row or for all rows at once."""

BETAS = 0.9, 0.999


class ParameterPlace(NamedTuple):
    """Position of a parameter in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of a module's parameters, in the order of `named_parameters`: the trained ones, and their slow copies.

    The slow copies (`targets`) are the parameters that do not require gradients. They follow the first trained
    parameters, in order.
    """

    trained: tuple[ParameterPlace, ...]
    targets: tuple[ParameterPlace, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Return the layout of a module."""
        parts: dict[bool, list[ParameterPlace]] = {True: [], False: []}
        for name, tensor in module.named_parameters():
            own = parts[tensor.requires_grad]
            start = own[-1].stop if own else 0
            own.append(ParameterPlace(name, tuple(tensor.shape), start, start + tensor.numel()))
        return cls(tuple(parts[True]), tuple(parts[False]))

    @property
    def num_spare(self) -> int:
        """The number of zeros behind the trained parameters."""
        return -self.trained[-1].stop % LANES if self.trained else 0

    def bind(self, module: nn.Module, matrix: ParameterMatrix) -> None:
        """Make the module's parameters views of the only row of `matrix`."""
        parameters = dict(module.named_parameters())
        for name, view in (views(self.trained, matrix.weights) | views(self.targets, matrix.targets)).items():
            parameters[name].data = view[0]

    def bind_gradients(self, module: nn.Module, gradient: Tensor) -> None:
        """Make the module's gradients views of a row, to which `backward` adds."""
        parameters = dict(module.named_parameters())
        for name, view in views(self.trained, gradient).items():
            parameters[name].grad = view[0]


def views(parts: Sequence[ParameterPlace], matrix: Tensor) -> dict[str, Tensor]:
    """Return the parameters in a matrix, each with a leading axis of agents."""
    return {part.name: matrix[:, part.start : part.stop].view(len(matrix), *part.shape) for part in parts}


class ParameterMatrix(NamedTuple):
    """Flat numbers of some agents, a row for each (`steps` has a number for each)."""

    weights: Tensor
    targets: Tensor
    first: Tensor
    """Adam's running mean of gradients."""
    second: Tensor
    """Adam's running mean of squared gradients."""
    steps: Tensor
    """Number of Adam's steps."""

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> ParameterMatrix:
        """Return one row with a copy of the module's parameters."""
        parameters = dict(module.named_parameters())
        weights, targets = (
            torch.cat([*(parameters[part.name].detach().flatten() for part in parts), torch.zeros(num_spare)])[None]
            for parts, num_spare in ((layout.trained, layout.num_spare), (layout.targets, 0))
        )
        return cls(weights, targets, torch.zeros_like(weights), torch.zeros_like(weights), torch.zeros(1))

    @classmethod
    def stacked(cls, matrices: Sequence[ParameterMatrix]) -> ParameterMatrix:
        """Return a copy of the rows of several matrices as one."""
        return cls(*map(torch.cat, zip(*matrices, strict=True)))

    def row(self, index: int) -> ParameterMatrix:
        """Return a view of one agent's row."""
        return ParameterMatrix(*(tensor[index : index + 1] for tensor in self))

    def finite(self) -> Tensor:
        """Return the rows that hold only finite numbers. A row with an infinite sum counts as not finite."""
        return torch.stack([tensor.sum(1) for tensor in self[:-1]]).isfinite().all(0)

    def clone(self) -> ParameterMatrix:
        """Return a copy."""
        return ParameterMatrix(*(tensor.clone() for tensor in self))

    def copy_from(self, other: ParameterMatrix) -> None:
        """Copy the numbers of another matrix into this one's memory."""
        for mine, theirs in zip(self, other, strict=True):
            mine.copy_(theirs)


# ---- Adam ---------------------------------------------------------------------------------------------------------


def clip_rows(gradient: Tensor, norms: Tensor, limits: Tensor) -> None:
    """Shorten each row whose norm is above its own limit, in place."""
    gradient.mul_((limits / (norms + 1e-6)).clamp(max=1.0)[:, None])


@torch.no_grad()
def step_rows(
    matrix: ParameterMatrix, gradient: Tensor, active: Sequence[bool], rates: Sequence[float], epsilon: float = 1e-8
) -> None:
    """Make one step of Adam in the active rows, each with its own learning rate.

    Adam works number by number, so agents in one matrix do not influence each other. A row that is not active keeps
    everything, including its step count.
    """
    constants: dict[str, Any] = {"beta1": BETAS[0], "beta2": BETAS[1], "eps": epsilon, "weight_decay": 0.0}
    constants |= {"fused": True, "amsgrad": False, "maximize": False}
    if all(active) and len(set(rates)) == 1 and len(set(matrix.steps.tolist())) == 1 and gradient.shape[1] % LANES == 0:
        # the usual case: all rows as if they were one, with results that are equal to the bit
        counts = [matrix.steps[0].clone()]
        adam([matrix.weights], [gradient], [matrix.first], [matrix.second], [], counts, lr=rates[0], **constants)
        matrix.steps.add_(1)
        return
    for rate in dict.fromkeys(rate for rate, is_active in zip(rates, active, strict=True) if is_active):
        rows = [row for row, is_active in enumerate(active) if is_active and rates[row] == rate]
        weights, gradients, first, second, counts = (
            [each[row] for row in rows]
            for each in (
                tensor.unbind() for tensor in (matrix.weights, gradient, matrix.first, matrix.second, matrix.steps)
            )
        )
        adam(weights, gradients, first, second, [], counts, lr=rate, **constants)  # counts `steps` up as well


# ---- one agent ----------------------------------------------------------------------------------------------------


class AgentParameters:
    """An agent's network, with parameters that are views of a `ParameterMatrix`, and its statistics."""

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self.algorithm = algorithm
        self.module: Any = algorithm.make_module(torch.Generator().manual_seed(seed))
        self.layout = Layout.of(self.module)
        self.matrix = ParameterMatrix.of(self.module, self.layout)
        self.layout.bind(self.module, self.matrix)
        self.statistics: dict[str, Tensor] = dict(self.module.named_buffers())
        """The module's buffers, which learning changes in place."""

    def move_to(self, matrix: ParameterMatrix) -> None:
        """Copy the numbers into another matrix, and use that one from now on."""
        matrix.copy_from(self.matrix)
        self.matrix = matrix
        self.layout.bind(self.module, matrix)

    def to(self, device: str) -> None:
        """Move all numbers to a device. A module that acts with these parameters moves along."""
        self.module.to(device)
        self.algorithm.head.move_to(device)
        self.matrix = ParameterMatrix(*(tensor.to(device) for tensor in self.matrix))
        self.layout.bind(self.module, self.matrix)
        self.statistics = dict(self.module.named_buffers())

    def tensors(self) -> dict[str, Tensor]:
        """Return all numbers by name: the matrix and the statistics. The tensors share memory with the network."""
        return self.matrix._asdict() | {f"statistics.{name}": own for name, own in self.statistics.items()}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors as NumPy arrays, which share their memory if it is the CPU's."""
        return {name: tensor.cpu().numpy() for name, tensor in self.tensors().items()}

    def load(self, arrays: dict[str, Any]) -> None:
        """Replace all numbers. Raises ValueError, naming the agent, and changes nothing if some do not fit."""
        own = self.tensors()
        odd = {name for name in {*own, *arrays} if name not in own or name not in arrays}
        odd |= {name for name in own.keys() - odd if own[name].shape != np.shape(arrays[name])}
        if odd:
            raise ValueError(
                f"Agent {self.algorithm.agent!r}: {sorted(odd)} are missing, unknown, or of another shape than those "
                "of its network. Load what an agent with this config has learnt."
            )
        for name, array in arrays.items():
            own[name].copy_(torch.tensor(np.asarray(array)))
