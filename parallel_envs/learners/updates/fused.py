"""Agents of one kind in one pass: parameters stacked in a matrix, losses computed for all rows at once.

The loss is the agent's own function, unchanged: `torch.func` differentiates it, `torch.vmap` runs it for all rows, and
(where it is short) its operations are written down once (`operations.py`), so that a step is a list of calls into torch
with nothing between them. Agents whose losses are different functions, or whose minibatches have other shapes, form
other groups; those that learn from pictures learn one after another (`Algorithm.stackable`).

No operation looks from one row to another: gradients are clipped, and Adam steps, row by row (`steps.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parallel_envs.engine import Failure
from parallel_envs.learners.algorithm import Agent, Algorithm, Batch, Metrics, Plan, UpdateReport, plan_tensors
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix, views
from parallel_envs.learners.updates.fused import traced
from parallel_envs.learners.updates.mode import UpdateMode, take_steps
from parallel_envs.learners.updates.sequential import finish_update, tensors_of, try_update, undo_on_error
from parallel_envs.threads import one_torch_thread

_MOST_CREWS = 32  # sets of agents that are remembered: each holds matrices of all their numbers
_MOST_WORK = 6_000_000  # multiplications of a step of one agent up to which one pass for all is quicker
_USUAL_ROWS = 256  # of a minibatch, where an algorithm of the user's own does not say it
_WORTH_WRITING = 3  # updates of a crew before its operations are written down, which takes as long as many of them

Gradients = Callable[..., tuple[Tensor, list[Tensor], Metrics]]


class FusedUpdates(UpdateMode):
    """Every group of agents of one signature in one pass."""

    name = "fused"

    def __init__(self, brains: Mapping[Agent, AgentParameters]) -> None:
        super().__init__(brains)
        self._crews: dict[tuple[Agent, ...], Crew] = {}

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        reports: dict[Agent, UpdateReport] = {}
        with one_torch_thread():
            for agents in groups(self.brains, plans):
                reports |= zip(agents, self._attempted(agents, [plans[agent] for agent in agents]), strict=True)
        return {agent: reports[agent] for agent in plans}

    def _attempted(self, agents: tuple[Agent, ...], plans: Sequence[Plan]) -> list[UpdateReport]:
        """What is raised while agents are computed together concerns all of them, and nobody else."""
        if not self.brains[agents[0]].algorithm.stackable:
            return [try_update(self.brains[agent], plan) for agent, plan in zip(agents, plans, strict=True)]
        try:
            return self._crew(agents).update(plans)
        except Exception as error:  # noqa: BLE001  # whatever it is: it is raised when the others have learnt
            return [UpdateReport.of_nothing(failure=Failure.of(error))] * len(agents)

    def _crew(self, agents: tuple[Agent, ...]) -> Crew:
        if agents not in self._crews:
            while len(self._crews) >= _MOST_CREWS:
                del self._crews[next(iter(self._crews))]
            self._crews[agents] = Crew([self.brains[agent] for agent in agents])
        return self._crews[agents]


def pays(brains: Mapping[Agent, AgentParameters]) -> bool:
    """Return whether one pass for all is likely to be quicker than workers that learn side by side.

    It is for agents of one kind whose steps are so small that most of their time is what a call into torch costs. This
    follows from the networks and the minibatches alone and nothing is measured, so it is the same in every run.
    """
    algorithms = [brain.algorithm for brain in brains.values()]
    alike = len(brains) > 1 and len({algorithm.signature for algorithm in algorithms}) == 1 and algorithms[0].stackable
    return alike and max(_work_of(brain) for brain in brains.values()) <= _MOST_WORK


def _work_of(brain: AgentParameters) -> int:
    """Multiplications of a step, about: parameters times rows."""
    config: Any = brain.algorithm.config
    rows: int = getattr(config, "minibatch_size", 0) or getattr(config, "batch_size", _USUAL_ROWS)
    return int(brain.matrix.weights.numel() * rows)


def groups(brains: Mapping[Agent, AgentParameters], plans: Mapping[Agent, Plan]) -> list[tuple[Agent, ...]]:
    """Agents whose losses are one function, of arguments of one form. Who is not to be stacked is alone."""
    together: dict[Any, list[Agent]] = {}
    for agent, plan in plans.items():
        arrays = {**plan.arrays, **plan.noise, "picks": plan.picks, "weights": plan.weights}
        forms = tuple(sorted((name, array.shape, array.dtype.str) for name, array in arrays.items()))
        algorithm = brains[agent].algorithm
        apart = None if algorithm.stackable else agent
        together.setdefault((algorithm.signature, forms, apart), []).append(agent)
    return [tuple(agents) for agents in together.values()]


class Crew:
    """Brains of one kind, whose numbers are rows of one strip while they are together."""

    def __init__(self, brains: Sequence[AgentParameters]) -> None:
        self.brains = list(brains)
        self.leader = self.brains[0]
        self.matrix = ParameterMatrix.stacked([brain.matrix for brain in self.brains])
        self._buffers = [dict(brain.module.named_buffers(remove_duplicate=False)) for brain in self.brains]
        self._num_updates = 0
        self._see = stacked(self.leader, "see")
        self._gradients = stacked_gradients(self.leader)
        self._is_written = not self.leader.algorithm.traceable
        self._gradient = torch.zeros_like(self.matrix.weights)
        self._spare = self._gradient[:, : self.leader.layout.num_spare].clone()

    def update(self, plans: Sequence[Plan]) -> list[UpdateReport]:
        """All of it for all brains; if it raises, for none."""
        self._gather()
        self._num_updates += 1
        arrays = [tensors_of(plan) for plan in plans]
        with undo_on_error(self.brains, self.matrix) as before:
            reports, carries = self._stepped(plans, arrays, before)
            return [finish_update(*each) for each in zip(self.brains, reports, arrays, carries, strict=True)]

    def _stepped(
        self, plans: Sequence[Plan], arrays: Sequence[Batch], before: ParameterMatrix
    ) -> tuple[list[UpdateReport], Any]:
        """Reports, and what each remembers at the end."""
        fixed = self._fixed()
        data = self._prepared({name: torch.stack([own[name] for own in arrays]) for name in arrays[0]}, fixed)
        carries = data.pop(CARRY, [None] * len(plans))
        evaluate = self._evaluation(data, [plan_tensors(plan) for plan in plans], fixed)
        algorithms = [brain.algorithm for brain in self.brains]
        return take_steps(algorithms, plans, self.matrix, before, evaluate), carries

    def _fixed(self) -> Batch:
        """What is not trained: targets (views of the strip) and statistics."""
        targets = views(self.leader.layout.targets, self.matrix.targets)
        return targets | {name: torch.stack([own[name] for own in self._buffers]) for name in self._buffers[0]}

    @torch.no_grad()
    def _prepared(self, arrays: Batch, fixed: Batch) -> dict[str, Any]:
        """The data of all agents, behind an axis of agents."""
        tensors = {**views(self.leader.layout.trained, self.matrix.weights), **fixed}
        seen = self._see(tensors, arrays)
        return self.leader.algorithm.prepare(seen, arrays)

    def _gather(self) -> None:
        """Have every brain live in its row; it may have lived in another crew's since."""
        for index, brain in enumerate(self.brains):
            row = self.matrix.row(index)
            if brain.matrix.weights.data_ptr() != row.weights.data_ptr():
                brain.move_to(row)

    def _evaluation(self, data: Batch, plans: Sequence[Batch], fixed: Batch) -> Callable[[int], Any]:
        """Losses, metrics and gradients of step after step."""
        num_rows = data[next(iter(data))].shape[1]
        stacked = {name: tensor.flatten(0, 1) for name, tensor in data.items()}
        starts = torch.arange(len(plans))[:, None] * num_rows
        picks = torch.stack([plan["picks"] for plan in plans], 1) + starts  # (steps, agents, rows)
        others = {name: torch.stack([plan[name] for plan in plans], 1) for name in plans[0] if name != "picks"}
        weights = views(self.leader.layout.trained, self.matrix.weights)

        def evaluate(step: int) -> tuple[Tensor, Metrics, Tensor]:
            flat = picks[step].flatten()
            batch = {
                name: tensor.index_select(0, flat).view(*picks.shape[1:], *tensor.shape[1:])
                for name, tensor in stacked.items()
            }
            batch |= {name: tensor[step] for name, tensor in others.items()}
            with torch.no_grad():
                losses, parts, metrics = self._compute(weights, fixed, batch)
                torch.cat([*parts, self._spare], 1, out=self._gradient)
            return losses, metrics, self._gradient

        return evaluate

    def _compute(self, weights: Batch, fixed: Batch, batch: Batch) -> tuple[Tensor, list[Tensor], Metrics]:
        if not self._is_written and self._num_updates >= _WORTH_WRITING:
            self._gradients = traced(self._gradients, weights, fixed, batch)
            self._is_written = True
        return self._gradients(weights, fixed, batch)


def stacked(brain: AgentParameters, method: str) -> Callable[[Batch, Batch], Any]:
    """A method of an algorithm that takes a module, for stacked parameters and arguments."""
    return torch.vmap(_called(brain, method))


def _called(brain: AgentParameters, method: str) -> Callable[[Batch, Batch], Any]:
    whole = _Method(brain.algorithm, method, copy.deepcopy(brain.module))  # its tensors are swapped in and out

    def call(tensors: Batch, arguments: Batch) -> Any:
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        return torch.func.functional_call(whole, named, (arguments,), tie_weights=False)

    return call


def stacked_gradients(brain: AgentParameters) -> Gradients:
    """From stacked parameters and minibatches to losses, gradients and metrics, a row for each agent."""
    call = _called(brain, "loss")

    def loss(weights: Batch, fixed: Batch, batch: Batch) -> tuple[Tensor, tuple[Tensor, Metrics]]:
        value, metrics = call({**weights, **fixed}, batch)
        return value, (value.detach(), metrics)

    one = torch.func.grad(loss, has_aux=True)

    def all_rows(weights: Batch, fixed: Batch, batch: Batch) -> tuple[Tensor, list[Tensor], Metrics]:
        gradients, (losses, metrics) = torch.vmap(one)(weights, fixed, batch)
        return losses, [gradients[name].flatten(1) for name in weights], metrics

    return all_rows


class _Method(nn.Module):
    """A method of an algorithm as a module, so that `functional_call` can put other parameters in."""

    def __init__(self, algorithm: Algorithm, method: str, module: nn.Module) -> None:
        super().__init__()
        self.algorithm, self.method, self.module = algorithm, method, module

    def forward(self, arguments: Batch) -> Any:
        return getattr(self.algorithm, self.method)(self.module, arguments)
