"""Networks of equal shape and separate weights, computed in one pass.

    stack = Stack([policy.module for policy in policies])
    outputs = stack(features)                      # (networks, rows, numbers) in, (networks, rows, outputs) out

A chain of linear layers and activations becomes one batched matrix product a layer. Any other module goes through
`torch.func`, which knows most of torch but costs more for each call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parallel_envs.torch_threads import one_torch_thread

_ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Identity, nn.Flatten)


def signature(module: nn.Module) -> Any:
    """Equal for modules that may be stacked: the same structure, with parameters of the same shapes and dtypes."""
    layers = tuple((name, type(part), part.extra_repr()) for name, part in module.named_modules())
    tensors = (*module.named_parameters(), *module.named_buffers())
    return layers, tuple((name, tuple(one.shape), one.dtype, one.device) for name, one in tensors)


class Stack:
    """Modules of one signature. Weights are copied when the stack is made, and again when they have changed."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | None = None) -> None:
        self.modules, self._device = list(modules), device
        self._tensors = [one for module in modules for one in (*module.parameters(), *module.buffers())]
        self._versions: list[int] = []
        self._compute: Callable[[Tensor], Tensor] = _not_yet

    def __call__(self, features: Tensor) -> Tensor:
        with torch.inference_mode(), one_torch_thread():
            return self._outputs(features)

    def _outputs(self, features: Tensor) -> Tensor:
        versions = [one._version for one in self._tensors]  # grows with every change in place
        if versions != self._versions:
            self._compute = self._made()
            self._versions = versions
        return self._compute(features)

    def _made(self) -> Callable[[Tensor], Tensor]:
        modules = self.modules
        if self._device is not None:
            modules = [copy.deepcopy(module).to(self._device) for module in modules]
        return _chain(modules) or _general(modules)


def _not_yet(features: Tensor) -> Tensor:
    raise AssertionError("a stack computes only after it has been made")


def _chain(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor] | None:
    """The modules as batched matrix products, if they are chains of linear layers and activations."""
    chains = [_layers(module) for module in modules]
    if any(chain is None for chain in chains):
        return None
    together = zip(*[chain for chain in chains if chain is not None], strict=True)
    steps = [_linear(layers) if isinstance(layers[0], nn.Linear) else layers[0] for layers in together]

    def compute(features: Tensor) -> Tensor:
        for step in steps:
            features = step(features)
        return features

    return compute


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a chain, or None for any other module."""
    if isinstance(module, nn.Sequential):
        parts = [_layers(part) for part in module]
        return (
            None if any(part is None for part in parts) else [one for part in parts if part is not None for one in part]
        )
    if isinstance(module, nn.Linear):
        return [module]
    if isinstance(module, _ACTIVATIONS) and not isinstance(module, nn.Flatten):
        return [module]
    children = list(module.children())
    if len(children) == 1 and type(module).__name__ == "Mlp":  # ours: its forward is its only child's
        return _layers(children[0])
    return None


def _linear(layers: Sequence[Any]) -> Callable[[Tensor], Tensor]:
    weights = torch.stack([layer.weight.detach() for layer in layers]).transpose(1, 2).contiguous()
    if layers[0].bias is None:
        return lambda features: torch.bmm(features, weights)
    biases = torch.stack([layer.bias.detach() for layer in layers])[:, None]
    return lambda features: torch.baddbmm(biases, features, weights)


def _general(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    parameters, buffers = torch.func.stack_module_state(list(modules))
    template = modules[0]

    def one(own: Any, kept: Any, features: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(template, (own, kept), (features,))
        return out

    mapped = torch.vmap(one, in_dims=(0, 0, 0), randomness="different")
    return lambda features: mapped(parameters, buffers, features)


class DeviceStack:
    """A stack whose weights live on a device. Features go there, and outputs come back, through staging buffers."""

    def __init__(self, modules: Sequence[nn.Module], device: str) -> None:
        self._device = torch.device(device)
        self._stack = Stack(modules, self._device)
        self._staging = torch.empty(0, pin_memory=self._device.type == "cuda")

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Tensor:
        if self._device.type == "cpu":
            return self._stack(features)
        if self._staging.numel() < features.numel():
            self._staging = torch.empty(features.numel(), pin_memory=True)
        staged = self._staging[: features.numel()].view(features.shape)
        staged.copy_(features)
        return self._stack(staged.to(self._device, non_blocking=True)).cpu()
