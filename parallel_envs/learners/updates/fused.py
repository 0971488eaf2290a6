"""Updates of alike agents in one pass: parameters are stacked in a matrix, losses are computed for all rows at once.

The loss is the agent's own function, unchanged: `torch.func` differentiates the loss and `torch.vmap` runs it for all
rows. A short loss is also traced once (`traced`), so that a step becomes a list of calls into torch with no Python
between them. Agents with different loss functions or minibatch shapes form separate groups. Agents that learn from
pictures learn one after another (`Algorithm.stackable`).

No operation mixes rows: gradients are clipped and Adam steps are taken row by row (`take_steps`).
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from parallel_envs.engine import Failure
from parallel_envs.learners.algorithm import (
    Agent,
    Batch,
    Metrics,
    Plan,
    UpdateReport,
    finish_update,
    minibatch,
    plan_tensors,
    take_steps,
    tensors_of,
    undo_on_error,
)
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix, views
from parallel_envs.learners.updates.mode import UpdateMode, try_update
from parallel_envs.threads import one_torch_thread

_MOST_GROUPS = 32  # groups that are kept: each holds matrices with all numbers of its agents
_MOST_WORK = 6_000_000  # multiplications in one agent's step, up to which one pass for all agents is quicker
_USUAL_ROWS = 256  # rows of a minibatch, if the config of a user's own algorithm does not name them
_UPDATES_BEFORE_TRACING = 3  # tracing a loss takes as long as several updates
_MOST_CONSTANT = 65_536  # numbers in a constant of a traced loss: a larger one is not worth its memory


class FusedUpdates(UpdateMode):
    """Updates each group of alike agents in one pass."""

    name = "fused"

    def __init__(self, all_parameters: Mapping[Agent, AgentParameters]) -> None:
        super().__init__(all_parameters)
        self._groups: dict[tuple[Agent, ...], FusedGroup] = {}

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        reports: dict[Agent, UpdateReport] = {}
        with one_torch_thread():
            for agents in alike_agents(self.all_parameters, plans):
                all_own = [self.all_parameters[agent] for agent in agents]
                if not all_own[0].algorithm.stackable:  # such an agent is alone
                    reports[agents[0]] = try_update(all_own[0], plans[agents[0]])
                    continue
                began = time.perf_counter()
                try:
                    if agents not in self._groups:
                        while len(self._groups) >= _MOST_GROUPS:
                            del self._groups[next(iter(self._groups))]
                        self._groups[agents] = FusedGroup(all_own)
                    made = self._groups[agents].update([plans[agent] for agent in agents])
                except Exception as error:  # noqa: BLE001  # any error: it is raised after the others have learnt
                    made = [UpdateReport.of_nothing(failure=Failure.of(error))] * len(agents)
                times = began, time.perf_counter()
                reports |= {
                    agent: dataclasses.replace(report, times=times) for agent, report in zip(agents, made, strict=True)
                }
        return {agent: reports[agent] for agent in plans}


def is_worth_fusing(all_parameters: Mapping[Agent, AgentParameters]) -> bool:
    """Return whether one pass for all agents is likely to be quicker than workers that learn side by side: agents are
    alike, and most of the time of their steps is the overhead of calls into torch. The same in every run.
    """
    algorithms = [parameters.algorithm for parameters in all_parameters.values()]
    if len(all_parameters) < 2 or len({one.signature for one in algorithms}) > 1 or not algorithms[0].stackable:
        return False
    work = []
    for parameters in all_parameters.values():
        config: Any = parameters.algorithm.config
        rows: int = getattr(config, "minibatch_size", 0) or getattr(config, "batch_size", _USUAL_ROWS)
        work.append(parameters.matrix.weights.numel() * rows)  # about the multiplications of a step
    return max(work) <= _MOST_WORK


def alike_agents(
    all_parameters: Mapping[Agent, AgentParameters], plans: Mapping[Agent, Plan]
) -> list[tuple[Agent, ...]]:
    """Group agents with the same loss function and the same shapes of data. Agents that cannot be stacked are alone."""
    together: dict[Any, list[Agent]] = {}
    for agent, plan in plans.items():
        arrays = {**plan.arrays, **plan.noise, "picks": plan.picks, "weights": plan.weights}
        shapes = tuple(sorted((name, array.shape, array.dtype.str) for name, array in arrays.items()))
        algorithm = all_parameters[agent].algorithm
        apart = None if algorithm.stackable else agent
        together.setdefault((algorithm.signature, shapes, apart), []).append(agent)
    return [tuple(agents) for agents in together.values()]


class FusedGroup:
    """Agents with equal networks, whose parameters are the rows of one matrix while the group learns together."""

    def __init__(self, all_parameters: Sequence[AgentParameters]) -> None:
        self.all_parameters = list(all_parameters)
        self.leader = self.all_parameters[0]
        self.matrix = ParameterMatrix.stacked([parameters.matrix for parameters in self.all_parameters])
        modules = [parameters.module for parameters in self.all_parameters]
        self._buffers = [dict(module.named_buffers(remove_duplicate=False)) for module in modules]
        self._num_updates = 0
        self._is_traced = not self.leader.algorithm.traceable
        self._see = torch.vmap(_functional(self.leader, "see"))
        self._gradient = torch.zeros_like(self.matrix.weights)
        loss = _functional(self.leader, "loss")

        def loss_and_metrics(weights: Batch, fixed: Batch, batch: Batch) -> tuple[Tensor, tuple[Tensor, Metrics]]:
            value, metrics = loss({**weights, **fixed}, batch)
            return value, (value.detach(), metrics)

        stacked = torch.vmap(torch.func.grad(loss_and_metrics, has_aux=True))

        def gradients(weights: Batch, fixed: Batch, batch: Batch) -> tuple[Tensor, list[Tensor], Metrics]:
            by_name, (losses, metrics) = stacked(weights, fixed, batch)
            return losses, [by_name[name].flatten(1) for name in weights], metrics

        self._gradients: Callable[..., tuple[Tensor, list[Tensor], Metrics]] = gradients

    def update(self, plans: Sequence[Plan]) -> list[UpdateReport]:
        """Update all agents of the group. If this raises, the numbers of all agents are unchanged."""
        for index, parameters in enumerate(self.all_parameters):
            row = self.matrix.row(index)
            if parameters.matrix.weights.data_ptr() != row.weights.data_ptr():  # another group has moved them since
                parameters.move_to(row)
        self._num_updates += 1
        device = self.matrix.weights.device
        arrays = [tensors_of(plan, device) for plan in plans]
        with undo_on_error(self.all_parameters, self.matrix) as before:
            algorithms, layout = [parameters.algorithm for parameters in self.all_parameters], self.leader.layout
            weights = views(layout.trained, self.matrix.weights)
            fixed = views(layout.targets, self.matrix.targets)
            fixed |= _stacked(self._buffers)
            together = _stacked(arrays)
            with torch.no_grad():
                data = algorithms[0].prepare(self._see({**weights, **fixed}, together), together)
            del together  # the steps need the prepared data only
            carries: Any = data.pop(CARRY, [None] * len(plans))
            num_rows = data[next(iter(data))].shape[1]
            data = {name: tensor.flatten(0, 1) for name, tensor in data.items()}  # agents one below another
            drawn = _stacked([plan_tensors(plan, device) for plan in plans], 1)  # (steps, agents, rows)
            drawn["picks"] += torch.arange(len(plans), device=device)[:, None] * num_rows
            spare = torch.zeros(len(plans), layout.num_spare, device=device)

            def evaluate(step: int) -> tuple[Tensor, Metrics, Tensor]:
                batch = minibatch(data, drawn, step)
                with torch.no_grad():
                    if not self._is_traced and self._num_updates >= _UPDATES_BEFORE_TRACING:
                        self._gradients = traced(self._gradients, weights, fixed, batch)
                        self._is_traced = True
                    losses, parts, metrics = self._gradients(weights, fixed, batch)
                    torch.cat([*parts, spare], 1, out=self._gradient)
                return losses, metrics, self._gradient

            reports = take_steps(algorithms, plans, self.matrix, before, evaluate)
            return [finish_update(*each) for each in zip(self.all_parameters, reports, arrays, carries, strict=True)]


def _stacked(each: Sequence[Mapping[str, Tensor]], axis: int = 0) -> Batch:
    return {name: torch.stack([own[name] for own in each], axis) for name in each[0]}


def _functional(parameters: AgentParameters, method: str) -> Callable[[Batch, Batch], Any]:
    """Return a method of the algorithm as a function of the module's tensors and the method's arguments."""

    class MethodCall(nn.Module):
        """Computes the method when it is called, so that `functional_call` can put in other tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.module = copy.deepcopy(parameters.module)  # its tensors are swapped in and out

        def forward(self, arguments: Batch) -> Any:
            return getattr(parameters.algorithm, method)(self.module, arguments)

    whole = MethodCall()

    def call(tensors: Batch, arguments: Batch) -> Any:
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        return torch.func.functional_call(whole, named, (arguments,), tie_weights=False)

    return call


# ---- tracing ---------------------------------------------------------------------------------------------------------


def traced(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Return the function as a graph of torch operations for arguments of these shapes. It must not branch on data.

    `make_fx` records the operations of one call. Many of them do nothing (views of a tensor in the shape that it has,
    factors of 1), are repeated, or give the same result each time. They are removed; the rest computes the same
    numbers, to the bit.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it imports symbolic algebra, which takes a second

    module = make_fx(function)(*arguments)
    # Run each operation and hold all results, so that no two of them share memory by chance. `Interpreter.run` would
    # show a progress bar and leave a thread behind.
    run = fx.Interpreter(module)
    run.args_iter = iter(module.graph.process_inputs(*arguments))
    for node in module.graph.nodes:
        run.env[node] = run.run_node(node)
    _remove_needless(module, run.env)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _remove_needless(module: fx.GraphModule, values: dict[fx.Node, Any]) -> None:
    """Let users of a needless operation use the operation's input, an equal operation, or a constant instead.

    Values that are written to after their creation are left alone, and so are their views.
    """
    aten = torch.ops.aten
    blanks = aten.ones_like.default, aten.zeros_like.default, aten.new_zeros.default  # they look at shapes only
    unchanging = aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default
    operations = [node for node in module.graph.nodes if node.op == "call_function"]

    def memory(value: Any) -> int:
        return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0

    def form(value: Tensor) -> Any:
        return value.shape, value.stride(), value.dtype

    written = set()
    for node in operations:
        schema = getattr(node.target, "_schema", None)  # picking one of several results has no schema
        if schema is not None and schema.is_mutable:
            written.add(memory(values[node.args[0]]))
    done: dict[Any, fx.Node] = {}
    fixed = {node for node in module.graph.nodes if node.op == "get_attr"}
    for node in operations:
        value, first = values[node], node.args[0] if node.args else None
        read = [value, *(values[other] for other in node.all_input_nodes)]
        is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if not isinstance(value, Tensor) or is_random or not written.isdisjoint(map(memory, read)):
            continue
        by_one = node.target in (aten.mul.Scalar, aten.mul.Tensor) and node.args[1] == 1
        may_be_input = by_one or node.target in unchanging
        if may_be_input and isinstance(first, fx.Node) and form(values[first]) == form(value):
            node.replace_all_uses_with(first)
            continue
        key = node.target, str(node.args), str(node.kwargs)  # other operations appear in these texts by name
        is_constant = node.target in blanks or fixed.issuperset(node.all_input_nodes)
        if key not in done and is_constant and value.numel() <= _MOST_CONSTANT:
            name = f"constant_{node.name}"
            module.register_buffer(name, value.clone())
            with module.graph.inserting_before(node):
                done[key] = module.graph.get_attr(name)
            values[done[key]] = value
            fixed.add(done[key])
        if done.setdefault(key, node) is not node:
            node.replace_all_uses_with(done[key])
