"""Networks of equal shape and separate weights, computed in one pass.

    stack = Stack([policy.module for policy in policies])
    outputs = stack(features)                      # (networks, rows, numbers) in, (networks, rows, outputs) out

A chain of linear layers and activations becomes one batched matrix product a layer. Any other module goes through
`torch.func`, which knows most of torch but costs more for each call.
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
from parallel_envs.wrappers.passes import PartReplaced

_ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Identity)
_VERSION = operator.attrgetter("_version")
_OF_EVERY_MODULE = vars(nn.Module()).keys() - {"training"}
_PLAIN = (int, float, str, bytes, bool, type(None), type, torch.dtype, torch.device)


def signature(module: nn.Module) -> Any:
    """Equal for modules that may be stacked: the same structure and attributes, parameters of the same shapes."""
    layers = tuple((name, type(part), _attributes(part)) for name, part in module.named_modules())
    tensors = (*module.named_parameters(), *module.named_buffers())
    return layers, tuple((name, tuple(one.shape), one.dtype, one.device) for name, one in tensors)


def _attributes(module: nn.Module) -> Any:
    """What a module's `forward` may depend on besides its tensors and parts."""
    own = tuple((name, _plain(value)) for name, value in vars(module).items() if name not in _OF_EVERY_MODULE)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return module.extra_repr(), own, tuple(map(id, hooks))


def _plain(value: Any) -> Any:
    """A value that can be compared; of anything else, which object it is."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return type(value), tuple(_plain(part) for part in value)
    if isinstance(value, dict):
        return tuple((key, _plain(part)) for key, part in value.items())
    return id(value)


class Watch:
    """Whether modules are still what they were: their parts, their tensors, and what these hold.

    A change within a tensor is seen by the version that torch counts for it: optimisers, `load_state_dict` and
    everything else that writes to a parameter in place raise it; what is written to `parameter.data` does not.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        parts = [part for module in modules for part in module.modules()]
        tensors = [kept for part in parts for kept in (part._parameters, part._buffers) if kept]
        self._whole = [kept for kept in tensors if all(one is not None for one in kept.values())]
        self._holed = [kept for kept in tensors if any(one is None for one in kept.values())]  # a bias that is left out
        self._modules = [part._modules for part in parts if part._modules]
        self._parts = _values(self._modules)
        self._seen: list[Tensor] = []
        self._versions: list[int] = []

    def has_changed(self) -> bool:
        """Since it was asked last; true at first. Raises `PartReplaced` where layers are others than they were."""
        if _values(self._modules) != self._parts:
            raise PartReplaced("A part of a network was replaced, so it may compute something else.")
        tensors = _values(self._whole)
        if self._holed:
            tensors += [one for one in _values(self._holed) if one is not None]
        versions = list(map(_VERSION, tensors))
        if versions == self._versions and all(map(operator.is_, tensors, self._seen)):
            return False
        self._seen, self._versions = tensors, versions
        return True


def _values(dicts: Sequence[dict[str, Any]]) -> list[Any]:
    """What all of them hold. It is asked in every turn: for 64 small networks these are some hundred tensors."""
    return list(itertools.chain.from_iterable(map(dict.values, dicts)))


class Stack:
    """Modules of one signature. Weights are copied when the stack is made, and when they have changed (`Watch`)."""

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | None = None) -> None:
        self.modules, self._device = list(modules), device
        self._watch = Watch(self.modules)
        self._compute: Callable[[Tensor], Tensor] = _not_yet

    def __call__(self, features: Tensor) -> Tensor:
        with torch.inference_mode(), one_torch_thread():
            return self._outputs(features)

    def _outputs(self, features: Tensor) -> Tensor:
        if self._watch.has_changed():
            self._compute = self._made()
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
    steps = [_linear(layers) if isinstance(layers[0], nn.Linear) else layers[0].forward for layers in together]

    def compute(features: Tensor) -> Tensor:
        for step in steps:
            features = step(features)
        return features

    return compute


def _layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a chain, or None for any other module."""
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


_OUR_MLP = ("parallel_envs.rollouts.networks", "Mlp")  # its forward is its only child's


def _linear(layers: Sequence[Any]) -> Callable[[Tensor], Tensor]:
    weights = torch.stack([layer.weight.detach() for layer in layers]).transpose(1, 2).contiguous()
    if layers[0].bias is None:
        return lambda features: torch.bmm(features, weights)
    biases = torch.stack([layer.bias.detach() for layer in layers])[:, None]
    return lambda features: torch.baddbmm(biases, features, weights)


def _is_of_torch(part: nn.Module) -> bool:
    return type(part).__module__.startswith("torch.")


def _general(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    parameters, buffers = torch.func.stack_module_state(list(modules))
    template = modules[0]

    def one(own: Any, kept: Any, features: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(template, (own, kept), (features,))
        return out

    mapped = torch.vmap(one, in_dims=(0, 0, 0), randomness="different")

    own_parts = [[part for part in module.modules() if not _is_of_torch(part)] for module in modules]

    def compute(features: Tensor) -> Tensor:
        first, *others = ([_attributes(part) for part in parts] for parts in own_parts)
        if any(other != first for other in others):
            raise ValueError("The attributes of the networks differ by now, so they cannot be computed in one pass.")
        out: Tensor = mapped(parameters, buffers, features)
        return out

    return compute


class Staging:
    """A buffer on the way to a device. It grows to the largest turn and stays; pinned, copies from it do not block."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._buffer = torch.empty(0, pin_memory=pinned)

    def __call__(self, features: Tensor) -> Tensor:
        """The same numbers, in the buffer."""
        if self._buffer.numel() < features.numel():
            self._buffer = torch.empty(features.numel(), pin_memory=self._pinned)
        return self._buffer[: features.numel()].view(features.shape).copy_(features)


class DeviceStack:
    """A stack whose weights live on a device. Features go there, and outputs come back, through staging buffers."""

    def __init__(self, modules: Sequence[nn.Module], device: str) -> None:
        self._device = torch.device(device)
        self._stack = Stack(modules, self._device)
        self._staging = Staging(pinned=self._device.type == "cuda")

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Tensor:
        return self._stack(self._staging(features).to(self._device, non_blocking=True)).cpu()
