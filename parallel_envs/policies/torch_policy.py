"""Torch networks that act: one policy, or several in one pass, in the caller's memory or on a device.

    NetworkActor     calls a network for some rows: holds their recurrent memory, random generator, state and weights
    TorchPolicy      a `NetworkActor` for a network whose outputs are logits, or means
    PolicyStack      several actors of one signature, computed in one pass over their stacked weights
    DeviceCopy       a copy of one network on a device, made again when the network has changed

Actions are the same numbers for one policy and for many at once: each policy samples from its own generator, for the
rows that want an action and in their order.
"""

from __future__ import annotations

import copy
import itertools
import operator
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from parallel_envs.checks import suggests_keywords
from parallel_envs.policies.base import AgentPolicy
from parallel_envs.threads import one_torch_thread

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
RowNumbers = npt.NDArray[np.intp]

_FIRST_ROW = np.zeros(1, np.intp)
_CHAINED = (nn.Linear, nn.Tanh, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.Identity)
_OUR_MLP = ("parallel_envs.rollouts.networks", "Mlp")  # its forward only calls its one child
_VERSION = operator.attrgetter("_version")
_OF_EVERY_MODULE = vars(nn.Module()).keys() - {"training"}
_PLAIN = (int, float, str, bytes, bool, type(None), type, torch.dtype, torch.device)


# ---- one policy -----------------------------------------------------------------------------------------------------


class NetworkActor(AgentPolicy):
    """Policy with a network and a random generator of its own. A recurrent network has a memory for each row.

    A network with `initial_state(num_rows)` is recurrent: `forward(features, state)` gives outputs and the next state.
    Tensors are kept where the network is, or on the device that `act_on` was told. A subclass says what the network
    sees (`encode`) and what its outputs mean (`noise`, `choose`). A subclass with a `step_batch` of its own
    must call `compute` in it, else `act_on` has no effect.
    """

    generator: np.random.Generator
    deterministic: bool
    version = 0
    """Grows with every `load_state_dict`."""
    _memory: tuple[Tensor, ...] | None = None
    _copy: DeviceCopy | None = None
    _asked: Any = None
    _is_recurrent = False

    def __init__(self, module: nn.Module, seed: int, deterministic: bool) -> None:
        self.module: Any = module
        self.generator, self.deterministic = np.random.default_rng(seed), deterministic

    @abstractmethod
    def encode(self, observations: Any) -> tuple[Array, Array | None]:
        """Return a batch of observations as numbers (rows, numbers), and its action masks if it has any."""

    @abstractmethod
    def noise(self, num_rows: int) -> Array:
        """Sample all random numbers for `num_rows` actions, as an array (rows, numbers)."""

    @abstractmethod
    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        """Return actions for outputs with any leading axes: sampled with `noise`, or the likeliest if that is None."""

    draws_one_number = False
    """True if a row needs one number of `generator.random`."""

    def step(self, observation: Any) -> Any:
        action = self.step_batch(_as_batch(observation), _FIRST_ROW)[0]
        return action if action.ndim else action.item()

    def step_batch(self, observations: Any, rows: RowNumbers | None = None) -> Array:
        """Return actions for a batch. `rows`: for each observation, the row whose memory a recurrent network uses."""
        features, mask = self.encode(observations)
        outputs = self.compute(features, rows)
        return self.choose(outputs, mask, None if self.deterministic else self.noise(len(outputs)))

    def compute(self, features: Array, rows: RowNumbers | None = None) -> Array:
        """Return the network's outputs for some rows, and keep their memory if it is recurrent.

        On a device, features go there in one transfer and outputs come back in one. The numbers of rows are a second
        one for a recurrent network, unless all rows that it remembers are in their order.
        """
        with torch.inference_mode(), one_torch_thread():
            module = self.module if self._copy is None else self._copy.of(self.module)
            device = device_of(module)
            tensor = to_device(torch.as_tensor(features), device)
            if not self.is_recurrent:
                out: Tensor = module(tensor)
                return out.cpu().numpy()
            rows = np.arange(len(features)) if rows is None else rows
            memory = self._memory_of(int(rows.max()) + 1, module, device)
            unseen = np.flatnonzero(~np.isfinite(features).all(-1))
            is_whole = len(rows) == len(memory[0]) and not len(unseen) and bool((rows == np.arange(len(rows))).all())
            places = slice(None) if is_whole else to_device(torch.as_tensor(rows), device)
            before = tuple(part[places] for part in memory)
            out, after = module(tensor, before)
            if _shapes(after) != _shapes(before):
                raise ValueError(
                    f"{type(module).__name__} returned a state of {_shapes(after)} for one of {_shapes(before)}. "
                    "Return a tuple of tensors of the same shapes."
                )
            for part, new, old in zip(memory, after, before, strict=True):
                part[places] = new
                if len(unseen):  # features that are not finite leave the memory unchanged
                    part[rows[unseen]] = old[unseen]
            return out.cpu().numpy()

    # ---- memory and state -------------------------------------------------------------------------------------------

    @property
    def is_recurrent(self) -> bool:
        if self._asked is not self.module:  # a network that has no such method takes microseconds to say so
            self._asked, self._is_recurrent = self.module, hasattr(self.module, "initial_state")
        return self._is_recurrent

    def _memory_of(self, num_rows: int, module: Any, device: torch.device) -> tuple[Tensor, ...]:
        """Return the memory on a device, extended by initial states to at least `num_rows` rows."""
        have = 0 if self._memory is None else len(self._memory[0])
        if have < num_rows:
            fresh = _initial_state(module, num_rows - have)
            if self._memory is not None:
                pairs = zip(self._memory, fresh, strict=True)
                fresh = tuple(torch.cat([old, new.to(old.device)]) for old, new in pairs)
            self._memory = fresh
        assert self._memory is not None
        if self._memory and self._memory[0].device != device:
            self._memory = tuple(part.to(device) for part in self._memory)
        return self._memory

    @torch.inference_mode()
    def reset(self, rows: RowNumbers | None = None) -> None:
        if rows is None:
            self._memory = None
        elif self._memory is not None and len(rows):
            memory = self._memory_of(int(np.max(rows)) + 1, self.module, self._memory[0].device)
            for part, fresh in zip(memory, _initial_state(self.module, len(rows)), strict=True):
                part[rows] = fresh.to(part.device)

    def get_state(self) -> dict[str, Any]:
        """Return the states of the generator and of a recurrent network. Weights are not included."""
        memory = None if self._memory is None else [part.cpu().numpy().copy() for part in self._memory]
        return {"generator": copy.deepcopy(self.generator.bit_generator.state), "memory": memory}

    def set_state(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        memory = state["memory"]
        self._memory = None if memory is None else tuple(torch.tensor(part) for part in memory)

    def load_state_dict(self, weights: Any) -> None:
        """Copy new weights into the network. If they do not fit, raise before anything has changed."""
        self.check_weights(weights)
        self.module.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
        self.version += 1

    def check_weights(self, weights: Any) -> None:
        """Raise ValueError if these are not weights of such a network."""
        own = self.module.state_dict()
        odd = own.keys() ^ weights.keys()
        odd |= {name for name in own.keys() - odd if tuple(own[name].shape) != np.shape(weights[name])}
        if odd:
            text = f"The weights do not fit the network: {sorted(odd)} are missing, unknown or of another shape."
            raise ValueError(text)

    # ---- with others, and elsewhere ---------------------------------------------------------------------------------

    def act_on(self, device: torch.device | str | None) -> None:
        """Compute on a device from now on, by a copy of the network that follows its changes. None: stay."""
        self._copy = None if device is None else DeviceCopy(device)

    @property
    def uses_device(self) -> bool:
        """True if the network has been computed on the device that `act_on` was told."""
        return self._copy is not None and self._copy.is_used

    @property
    def has_own_step(self) -> bool:
        """True if a subclass overrides `step` or `step_batch`, so that actions may not come from the network alone."""
        own = type(self)
        return own.step is not NetworkActor.step or own.step_batch is not NetworkActor.step_batch

    @property
    def can_be_stacked(self) -> bool:
        """True if an action depends on one row of a batch only, and only the network computes it."""
        return not self.is_recurrent and not self.has_own_step

    def stack_signature(self) -> Any:
        """Return a value that is equal for policies that may be computed in one pass; None if this one may not."""
        return (type(self), signature(self.module), self.deterministic) if self.can_be_stacked else None


class TorchPolicy(NetworkActor):
    """Samples the action that a network suggests, with random numbers from a generator of its own.

    For Discrete actions the network gives logits, for Box the mean of a normal distribution, whose logarithmic standard
    deviation is `log_std` (a number, or the module's attribute of this name). A network with `initial_state(num_rows)`
    is recurrent: `forward(features, state)` gives outputs and the next state. An observation that is a dict has
    `"observation"`, and `"action_mask"` if actions are masked. The network is computed where it is: on a device if you
    have moved it there.

    Args:
        module: The network.
        action_space: Discrete or Box.
        seed: Seed of the generator.
        deterministic: Take the best action, or the mean, without sampling.
        log_std: For Box. None: the module's own, else 0.
    """

    @suggests_keywords
    def __init__(
        self,
        module: nn.Module,
        action_space: Space[Any],
        *,
        seed: int = 0,
        deterministic: bool = False,
        log_std: float | None = None,
    ) -> None:
        if not isinstance(action_space, Discrete | Box):
            raise TypeError(f"{action_space} was given: a TorchPolicy acts in Discrete and Box spaces only.")
        super().__init__(module, seed, deterministic)
        self.action_space: Any = action_space
        self._log_std = log_std
        self._held_log_std: tuple[int, int, Array] | None = None
        self.draws_one_number = isinstance(action_space, Discrete)
        self._size = int(np.prod(action_space.shape or ()))

    @property
    def log_std(self) -> Array:
        own = self._log_std if self._log_std is not None else getattr(self.module, "log_std", None)
        if not isinstance(own, Tensor):
            return np.asarray(0.0 if own is None else own)
        if own.device == _CPU:
            return own.detach().numpy()
        if self._held_log_std is None or self._held_log_std[:2] != (id(own), own._version):  # once for each change
            self._held_log_std = id(own), own._version, own.detach().cpu().numpy()
        return self._held_log_std[2]

    def encode(self, observations: Any) -> tuple[Array, Array | None]:
        mask = None
        if isinstance(observations, dict):
            mask, observations = observations.get("action_mask"), observations["observation"]
        array = np.asarray(observations)  # casting of the same kind refuses text
        return array.reshape(len(array), -1).astype(np.float32, casting="same_kind", copy=False), mask

    def noise(self, num_rows: int) -> Array:
        if self.draws_one_number:
            return self.generator.random((num_rows, 1))
        scaled: Array = np.exp(self.log_std) * self.generator.standard_normal((num_rows, self._size))
        return scaled

    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        space, size = self.action_space, outputs.shape[-1]
        if self.draws_one_number:
            if size != space.n:
                raise ValueError(f"The network gives {size} logits for the actions of {space}.")
            chosen: Array = choose_by_logits(outputs, mask, noise) + space.start
            return chosen
        if size != self._size:
            raise ValueError(f"The network gives {size} numbers for the actions of {space}.")
        actions = (outputs if noise is None else outputs + noise).reshape(*outputs.shape[:-1], *space.shape)
        clipped: Array = np.clip(actions, space.low, space.high).astype(space.dtype)
        return clipped

    def stack_signature(self) -> Any:
        own = super().stack_signature()
        return None if own is None else (*own, repr(self.action_space))


def choose_by_logits(logits: Array, mask: Array | None, noise: Array | None) -> Array:
    """Return the number of an action for each row of logits: the most likely one, or a sample.

    `noise` is uniform from 0 to 1, with an axis of length 1 in the place of the logits.
    """
    logits = logits.astype(np.float64)
    if mask is not None:
        legal = np.asarray(mask).reshape(logits.shape).astype(bool)
        legal |= ~legal.any(-1, keepdims=True)  # rows of agents that are not there have masks of zeros
        logits[~legal] = -np.inf
    chosen: Array
    if noise is None:
        chosen = logits.argmax(-1)
    else:
        logits -= logits.max(-1, keepdims=True)
        sums = np.cumsum(np.exp(logits, out=logits), axis=-1, out=logits)
        chosen = (sums <= noise * sums[..., -1:]).argmin(-1)  # the first sum above the drawn value
    return chosen


def _initial_state(module: Any, num_rows: int) -> tuple[Tensor, ...]:
    """Return the state of rows whose episodes begin, on the device of the module."""
    state = module.initial_state(num_rows)
    if not isinstance(state, tuple | list) or any(len(part) != num_rows for part in state):
        raise ValueError(
            f"initial_state({num_rows}) of {type(module).__name__} returned {_shapes(state)}. Return a tuple of "
            "tensors with the rows along the first axis."
        )
    return tuple(part.to(device_of(module)) for part in state)


def _shapes(state: Any) -> Any:
    return [tuple(part.shape) for part in state] if isinstance(state, tuple | list) else type(state).__name__


# ---- devices and changes --------------------------------------------------------------------------------------------

_CPU = torch.device("cpu")


def forward_from_cpu(module: Any, features: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
    """Call a network with CPU tensors, on the device where it is. Return its outputs and next state on the CPU.

    `state`: a tree of tensors for a recurrent network, () for any other. For callers that hold the memory themselves,
    as collectors do.
    """
    device = device_of(module)
    if device.type == "cpu":
        return module(features, state) if state else (module(features), state)
    if not state:
        return module(to_device(features, device)).cpu(), state
    out, after = module(to_device(features, device), tree_map(lambda part: to_device(part, device), state))
    return out.cpu(), tree_map(Tensor.cpu, after)


def mark_changed(module: nn.Module) -> None:
    """Have stacks and copies on devices notice that the values of a module's parameters have changed.

    They cannot notice it by themselves if other tensors share the parameters' memory and were written to.
    """
    torch.autograd.graph.increment_version(list(module.parameters()))


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first tensor."""
    return _device_in(module) or _CPU


def _device_in(module: nn.Module) -> torch.device | None:  # `next(module.parameters())` takes ten times as long
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None:
            return tensor.device
    for part in module._modules.values():
        if part is not None and (device := _device_in(part)) is not None:
            return device
    return None


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor moved to a device. Copies to CUDA come from pinned memory and do not block."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class DeviceCopy:
    """Copy of a network on a device. A network that is there already is not copied."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.is_used = False
        self._network: nn.Module | None = None
        self._changes: ChangeDetector

    def of(self, network: nn.Module) -> nn.Module:
        """Return the copy, made anew if the network has changed since the last call."""
        self.is_used = True
        if device_of(network) == self.device:
            return network
        if network is not self._network or self._changes.is_replaced():
            self._network, self._changes = network, ChangeDetector([network])
        if self._changes.has_changed():
            self._copy = copy.deepcopy(network).to(self.device)
        return self._copy


class ChangeDetector:
    """Detects changes of modules: of their parts and plain attributes, of their tensors, and of the values in these.

    Changes of values are found by the version that torch counts for each tensor: optimisers, `load_state_dict` and
    everything else that writes to a parameter in place increase it. Writing to `parameter.data` does not.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        parts = [part for module in modules for part in module.modules()]
        tensors = [kept for part in parts for kept in (part._parameters, part._buffers) if kept]
        self._kept, self._has_none = (
            tensors,
            any(one is None for one in _values(tensors)),
        )  # None: an absent tensor, such as no bias
        self._modules = [part._modules for part in parts if part._modules]
        self._parts = _values(self._modules)
        # the forward of all others has no attributes that may change
        self._with_attributes = [part for part in parts if type(part) not in (*_CHAINED, nn.Sequential)]
        self._attributes = list(map(_attributes, self._with_attributes))
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []

    def is_replaced(self) -> bool:
        """Return True if a submodule or a plain attribute was exchanged: a module may compute something else then."""
        if _values(self._modules) != self._parts:
            return True
        return bool(self._with_attributes) and list(map(_attributes, self._with_attributes)) != self._attributes

    def has_changed(self) -> bool:
        """Return True if a tensor has changed since the last call. True at the first call."""
        tensors = _values(self._kept)
        if self._has_none:
            tensors = [one for one in tensors if one is not None]
        versions = list(map(_VERSION, tensors))
        if versions == self._versions and all(map(operator.is_, tensors, self._tensors)):
            return False
        self._tensors, self._versions = tensors, versions
        return True


def _values(dicts: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the values of all dicts. Every turn calls this, over some hundred tensors for 64 small networks."""
    return list(itertools.chain.from_iterable(map(dict.values, dicts)))


def signature(module: nn.Module) -> Any:
    """Return a value that is equal for modules that may be stacked.

    Such modules have the same structure and attributes, and parameters of the same shapes.
    """
    layers = tuple((name, type(part), part.extra_repr(), _attributes(part)) for name, part in module.named_modules())
    tensors = (*module.named_parameters(), *module.named_buffers())
    return layers, tuple((name, tuple(one.shape), one.dtype, one.device) for name, one in tensors)


def _attributes(module: nn.Module) -> Any:
    """Return everything that a module's `forward` may depend on, apart from its tensors and parts."""

    def comparable(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value), tuple(map(comparable, value))
        if isinstance(value, dict):
            return tuple((key, comparable(part)) for key, part in value.items())
        return value if isinstance(value, _PLAIN) else id(value)

    own = tuple((name, comparable(value)) for name, value in vars(module).items() if name not in _OF_EVERY_MODULE)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return own, tuple(map(id, hooks))


# ---- several policies -----------------------------------------------------------------------------------------------


class Stack:
    """Stack of modules with one signature, on a device (None: where they are).

    It copies their weights on first use and after each change. A chain of linear layers and activations becomes one
    batched matrix product a layer. Any other module goes through `torch.func`, which supports most of torch but costs
    more for each call.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device | str | None = None) -> None:
        self.modules = list(modules)
        self._device = device_of(modules[0]) if device is None else torch.device(device)
        self._changes = ChangeDetector(self.modules)
        self._compute: Callable[[Tensor], Tensor]  # set by the first call: everything has changed then

    def is_outdated(self) -> bool:
        """Return True if a module has changed other than in its weights."""
        return self._changes.is_replaced()

    def __call__(self, features: Tensor) -> Tensor:
        """Return the outputs (networks, rows, outputs) for features (networks, rows, numbers)."""
        with torch.inference_mode(), one_torch_thread():
            if self._changes.has_changed():
                modules = self.modules
                if device_of(modules[0]) != self._device:
                    modules = [copy.deepcopy(module).to(self._device) for module in modules]
                self._compute = _stack_chains(modules) or _stack_any(modules)
            if self._device.type == "cpu":
                return self._compute(features)
            return self._compute(to_device(features, self._device)).cpu()


def _stack_chains(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor] | None:
    """Return the modules as batched matrix products. None if they are no chains of linear layers and activations."""
    chains = [_layers(module) for module in modules]
    if any(chain is None for chain in chains):
        return None
    steps: list[Callable[[Tensor], Tensor]] = []
    layers: tuple[Any, ...]
    for layers in zip(*[chain for chain in chains if chain is not None], strict=True):
        if not isinstance(layers[0], nn.Linear):
            steps.append(layers[0].forward)
            continue
        weights = torch.stack([layer.weight.detach() for layer in layers]).transpose(1, 2).contiguous()
        if getattr(layers[0], "bias", None) is None:
            steps.append(partial(torch.bmm, mat2=weights))
        else:
            biases = torch.stack([layer.bias.detach() for layer in layers])[:, None]
            steps.append(partial(torch.baddbmm, biases, batch2=weights))

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
    if kind in _CHAINED:
        return [module]
    if kind is nn.Sequential or (kind.__module__, kind.__name__) == _OUR_MLP:
        parts = [_layers(part) for part in module.children()]
        chain = [one for part in parts if part is not None for one in part]
        return None if any(part is None for part in parts) else chain
    return None


def _stack_any(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return the modules as one function made by `torch.vmap`."""
    parameters, buffers = torch.func.stack_module_state(list(modules))
    template = modules[0]

    def one(own: Any, kept: Any, features: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(template, (own, kept), (features,))
        return out

    mapped = torch.vmap(one, in_dims=(0, 0, 0), randomness="different")
    return lambda features: mapped(parameters, buffers, features)


class PolicyStack:
    """Policies of one `stack_signature`, computed in one pass over their stacked weights."""

    def __init__(self, policies: Sequence[NetworkActor], device: torch.device | str | None = None) -> None:
        self._policies = list(policies)
        self._made_of = [(policy.module, policy.deterministic) for policy in policies]
        self._stack = Stack([policy.module for policy in policies], device)

    def is_outdated(self) -> bool:
        """Return True if a policy may not be in this stack any more."""
        made_of = [(policy.module, policy.deterministic) for policy in self._policies]
        return made_of != self._made_of or self._stack.is_outdated()

    def compute(self, inputs: Collection[tuple[Any, Mask | None]]) -> tuple[Array, Array | None]:
        """Return the outputs (policies, rows, outputs) for each policy's observations, and their action masks.

        An input is an observation and None, or a batch and the mask of the rows that want an action. Nothing is
        sampled here: if this raises, the policies can still be called one by one.
        """
        features, mask = self._gather(inputs)
        return self._stack(torch.from_numpy(features)).numpy(), mask

    def _gather(self, inputs: Collection[tuple[Any, Mask | None]]) -> tuple[Array, Array | None]:
        """Return all observations as one array, with zeros where a policy has fewer rows than another."""
        first, num_policies = self._policies[0], len(self._policies)
        observations, in_rows = [seen for seen, _ in inputs], {wanted is not None for _, wanted in inputs}
        are_arrays = set(map(type, observations)) == {np.ndarray} and len(in_rows) == 1
        if are_arrays and len(shapes := {own.shape for own in observations}) == 1:  # encode them in one go
            (shape,) = shapes
            num_rows, *rest = shape if in_rows.pop() else (1, *shape)
            joined = np.concatenate(observations) if shape else np.array(observations)
            features, _ = first.encode(joined.reshape(num_policies * num_rows, *rest))
            return features.reshape(num_policies, num_rows, -1), None
        batches = [_as_batch(seen) if wanted is None else seen for seen, wanted in inputs]
        parts = [policy.encode(batch) for policy, batch in zip(self._policies, batches, strict=True)]
        masks = [np.asarray(mask) for _, mask in parts if mask is not None]
        if masks and len(masks) < num_policies:
            raise ValueError("Some of the observations have masks and some have none: they cannot share a pass.")
        return _padded([features for features, _ in parts], 0.0), _padded(masks, True) if masks else None

    def choose(self, outputs: Array, mask: Array | None, wanted: Sequence[Mask | None]) -> list[Any]:
        """Return one action for each policy; where `wanted` has a mask, a batch of actions.

        Rows that want no action get zeros. A policy without wanted rows gets None.
        """
        policies, first, num_rows = self._policies, self._policies[0], outputs.shape[1]
        is_single = is_whole = set(map(type, wanted)) == {type(None)}
        rows: list[RowNumbers] = []
        if not is_single:
            masks: Any = [np.ones(1, bool) if own is None else own for own in wanted]
            is_long = {0 if own is None else len(own) for own in wanted} == {num_rows}
            is_whole = is_long and bool(np.concatenate(masks).all())
            rows = [] if is_whole else [np.flatnonzero(own) for own in masks]
        noise: Array | None = None
        if not first.deterministic:
            if is_single and first.draws_one_number:
                noise = np.array([policy.generator.random() for policy in policies])[:, None, None]
            elif is_whole:
                noise = np.stack([policy.noise(num_rows) for policy in policies])
            else:
                drawn = [policy.noise(len(own)) for policy, own in zip(policies, rows, strict=True)]
                noise = np.zeros((*outputs.shape[:2], drawn[0].shape[-1]))
                for place, own, numbers in zip(noise, rows, drawn, strict=True):
                    place[own] = numbers
        actions = first.choose(outputs, mask, noise)
        if is_single:
            return actions[:, 0].tolist() if actions.ndim == 2 else list(actions[:, 0])
        if is_whole:
            return list(actions)
        results: list[Any] = []
        for own, needed, given in zip(actions, rows, wanted, strict=True):
            if given is None:  # a single observation
                results.append(own[0] if own.ndim > 1 else own[0].item())
            elif len(needed):
                part = np.zeros_like(own[: len(given)])
                part[needed] = own[needed]
                results.append(part)
            else:
                results.append(None)
        return results


def _as_batch(observation: Any) -> Any:
    """Return an observation as a batch of one row."""
    if isinstance(observation, dict):
        return {key: np.asarray(part)[None] for key, part in observation.items()}
    return np.asarray(observation)[None]


def _padded(parts: Sequence[Array], filling: Any) -> Array:
    """Return arrays (rows, numbers) as one, with `filling` in the place of missing rows."""
    if len({part.shape for part in parts}) == 1:
        return np.stack(parts)
    flat = [part.reshape(len(part), -1) for part in parts]
    if len({(part.shape[1], part.dtype) for part in flat}) > 1:
        raise ValueError(f"Observations of {sorted({part.shape[1] for part in flat})} numbers cannot share a pass.")
    padded = np.full((len(parts), max(map(len, parts)), flat[0].shape[1]), filling, flat[0].dtype)
    for own, part in zip(padded, flat, strict=True):
        own[: len(part)] = part
    return padded
