"""Batched forward: networks of equal shape and separate weights, computed in one pass.

    stack = Stack([policy.module for policy in policies])
    outputs = stack(features)                      # (networks, rows, numbers) in, (networks, rows, outputs) out

A chain of linear layers and activations becomes one batched matrix product a layer. Any other module goes through
`torch.func`, which supports most of torch but costs more for each call.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parallel_envs.threads import one_torch_thread
from parallel_envs.wrappers.local import NetworkReplaced

_ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Identity)
_OUR_MLP = ("parallel_envs.rollouts.networks", "Mlp")  # its forward is that of its only child
_VERSION = operator.attrgetter("_version")
_OF_EVERY_MODULE = vars(nn.Module()).keys() - {"training"}
_PLAIN = (int, float, str, bytes, bool, type(None), type, torch.dtype, torch.device)


def signature(module: nn.Module) -> Any:
    """Return a value that is equal for modules that may be stacked.

    Such modules have the same structure and attributes, and parameters of the same shapes.
    """
    layers = tuple((name, type(part), _attributes(part)) for name, part in module.named_modules())
    tensors = (*module.named_parameters(), *module.named_buffers())
    return layers, tuple((name, tuple(one.shape), one.dtype, one.device) for name, one in tensors)


def _attributes(module: nn.Module) -> Any:
    """Return everything that a module's `forward` may depend on, apart from its tensors and parts."""
    own = tuple((name, _comparable(value)) for name, value in vars(module).items() if name not in _OF_EVERY_MODULE)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return module.extra_repr(), own, tuple(map(id, hooks))


def _comparable(value: Any) -> Any:
    """Return a value that can be compared, or the id of any other object."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return type(value), tuple(_comparable(part) for part in value)
    if isinstance(value, dict):
        return tuple((key, _comparable(part)) for key, part in value.items())
    return id(value)


class ChangeDetector:
    """Detects changes of modules: of their parts, of their tensors, and of the values in these.

    Changes of values are found by the version that torch counts for each tensor: optimisers, `load_state_dict` and
    everything else that writes to a parameter in place raise it. Writing to `parameter.data` does not.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        parts = [part for module in modules for part in module.modules()]
        tensors = [kept for part in parts for kept in (part._parameters, part._buffers) if kept]
        self._without_none = [kept for kept in tensors if all(one is not None for one in kept.values())]
        self._with_none = [kept for kept in tensors if any(one is None for one in kept.values())]  # such as no bias
        self._modules = [part._modules for part in parts if part._modules]
        self._parts = _values(self._modules)
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []

    def has_changed(self) -> bool:
        """Return True if a tensor has changed since the last call, and at first. Raise if a layer was replaced."""
        if _values(self._modules) != self._parts:
            raise NetworkReplaced("A part of a network was replaced, so it may compute something else.")
        tensors = _values(self._without_none)
        if self._with_none:
            tensors += [one for one in _values(self._with_none) if one is not None]
        versions = list(map(_VERSION, tensors))
        if versions == self._versions and all(map(operator.is_, tensors, self._tensors)):
            return False
        self._tensors, self._versions = tensors, versions
        return True


def _values(dicts: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the values of all dicts. Every turn calls this: for 64 small networks these are some hundred tensors."""
    return list(itertools.chain.from_iterable(map(dict.values, dicts)))


class Stack:
    """Stack of modules with one signature. It copies their weights on first use and after each change."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | None = None) -> None:
        self.modules, self._device = list(modules), device
        self._changes = ChangeDetector(self.modules)
        self._compute: Callable[[Tensor], Tensor]  # set by the first call: everything has changed then

    def __call__(self, features: Tensor) -> Tensor:
        with torch.inference_mode(), one_torch_thread():
            if self._changes.has_changed():
                modules = self.modules
                if self._device is not None:
                    modules = [copy.deepcopy(module).to(self._device) for module in modules]
                self._compute = _stack_chains(modules) or _stack_any(modules)
            return self._compute(features)


def _stack_chains(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor] | None:
    """Return the modules as batched matrix products. None if they are no chains of linear layers and activations."""
    chains = [_layers(module) for module in modules]
    if any(chain is None for chain in chains):
        return None
    steps: list[Callable[[Tensor], Tensor]] = []
    layers: Sequence[Any]
    for layers in zip(*[chain for chain in chains if chain is not None], strict=True):
        if isinstance(layers[0], nn.Linear):
            weights = torch.stack([layer.weight.detach() for layer in layers]).transpose(1, 2).contiguous()
            biases = None
            if layers[0].bias is not None:
                biases = torch.stack([layer.bias.detach() for layer in layers])[:, None]
            steps.append(_linear(weights, biases))
        else:
            steps.append(layers[0].forward)

    def compute(features: Tensor) -> Tensor:
        for step in steps:
            features = step(features)
        return features

    return compute


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a chain, or None for any other module."""
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    kind = type(module)  # exactly: a subclass may compute something else
    if kind is nn.Linear or kind in _ACTIVATIONS:
        return [module]
    if kind is nn.Sequential or (kind.__module__, kind.__name__) == _OUR_MLP:
        parts = [_layers(part) for part in module.children()]
        chain = [one for part in parts if part is not None for one in part]
        return None if any(part is None for part in parts) else chain
    return None


def _linear(weights: Tensor, biases: Tensor | None) -> Callable[[Tensor], Tensor]:
    if biases is None:
        return lambda features: torch.bmm(features, weights)
    return lambda features: torch.baddbmm(biases, features, weights)


def _stack_any(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return the modules as one function made by `torch.vmap`."""
    parameters, buffers = torch.func.stack_module_state(list(modules))
    template = modules[0]

    def one(own: Any, kept: Any, features: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(template, (own, kept), (features,))
        return out

    mapped = torch.vmap(one, in_dims=(0, 0, 0), randomness="different")
    own_parts = [
        [part for part in module.modules() if not type(part).__module__.startswith("torch.")] for module in modules
    ]

    def compute(features: Tensor) -> Tensor:
        first, *others = ([_attributes(part) for part in parts] for parts in own_parts)
        if any(other != first for other in others):
            raise ValueError("The attributes of the networks differ by now, so they cannot be computed in one pass.")
        out: Tensor = mapped(parameters, buffers, features)
        return out

    return compute


class StagingBuffer:
    """A buffer for transfers to a device. It grows to the largest turn and stays. If pinned, copies do not block."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._buffer = torch.empty(0, pin_memory=pinned)

    def __call__(self, features: Tensor) -> Tensor:
        """Return the features, copied into the buffer."""
        if self._buffer.numel() < features.numel():
            self._buffer = torch.empty(features.numel(), pin_memory=self._pinned)
        return self._buffer[: features.numel()].view(features.shape).copy_(features)


class DeviceStack:
    """A stack whose weights are on a device. Features go there through a staging buffer, and outputs come back."""

    def __init__(self, modules: Sequence[nn.Module], device: str) -> None:
        self._device = torch.device(device)
        self._stack = Stack(modules, self._device)
        self._staging = StagingBuffer(pinned=self._device.type == "cuda")

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Tensor:
        return self._stack(self._staging(features).to(self._device, non_blocking=True)).cpu()
