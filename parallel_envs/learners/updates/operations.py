"""The operations of a function, written down once: a step is then a list of calls into torch, nothing between them.

`make_fx` notes what a call of the function did. Of that, much does nothing (views of a tensor in the shape that it
has, factors of 1), is done twice, or comes to the same each time; it is left out, and what is left computes the same
numbers, to the bit. Values that are written into after they were made are left alone, and so are their views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

_FEW = 65_536  # numbers: a constant that is larger is not worth its memory


def written_down(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """The function's operations for arguments of these shapes. It must not branch on data."""
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it brings in symbolic algebra, and takes a second

    module = make_fx(function)(*arguments)
    _leave_out(module, _values_of(module, arguments))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _values_of(module: fx.GraphModule, arguments: tuple[Any, ...]) -> dict[fx.Node, Any]:
    """What each operation gives for these arguments; all of it held, so that no two share memory by chance."""
    run = fx.Interpreter(module)  # its own `run` would show progress, and leave a thread behind that does
    run.args_iter = iter(module.graph.process_inputs(*arguments))
    for node in module.graph.nodes:
        run.env[node] = run.run_node(node)
    return run.env


def _leave_out(module: fx.GraphModule, values: dict[fx.Node, Any]) -> None:
    """Have what needs an operation that can be left out use something else."""
    written = {_memory(values[node.args[0]]) for node in _operations(module) if _writes(node)}  # type: ignore[index]
    done: dict[Any, fx.Node] = {}
    fixed = {node for node in module.graph.nodes if node.op == "get_attr"}
    for node in _operations(module):
        value = values[node]
        read = [value, *(values[other] for other in node.all_input_nodes)]
        if not isinstance(value, Tensor) or _is_random(node) or not written.isdisjoint(map(_memory, read)):
            continue
        other = _unchanged(node, values)
        if other is None:
            key = node.target, str(node.args), str(node.kwargs)  # other operations in them stand there by name
            always_the_same = _is_blank(node) or fixed.issuperset(node.all_input_nodes)
            if key not in done and always_the_same and value.numel() <= _FEW:
                done[key] = _keep(module, node, value)
                values[done[key]] = value
                fixed.add(done[key])
            other = done.setdefault(key, node)
        if other is not node:
            node.replace_all_uses_with(other)


def _operations(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def _memory(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)  # what picks one of several results has none
    return schema is not None and bool(schema.is_mutable)


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_blank(node: fx.Node) -> bool:
    """Whether it takes nothing but the form of what it is given."""
    aten = torch.ops.aten
    return node.target in (aten.ones_like.default, aten.zeros_like.default, aten.new_zeros.default)


def _unchanged(node: fx.Node, values: dict[fx.Node, Any]) -> fx.Node | None:
    """The operation's first argument, if the operation makes nothing else of it."""
    aten = torch.ops.aten
    views = aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return None
    by_one = node.target in (aten.mul.Scalar, aten.mul.Tensor) and node.args[1] == 1
    if node.target not in views and not by_one:
        return None
    before, after = values[first], values[node]
    same = (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
    return first if same else None


def _keep(module: fx.GraphModule, node: fx.Node, value: Tensor) -> fx.Node:
    """Put a constant in an operation's place."""
    name = f"constant_{node.name}"
    module.register_buffer(name, value.clone())
    with module.graph.inserting_before(node):
        return module.graph.get_attr(name)
