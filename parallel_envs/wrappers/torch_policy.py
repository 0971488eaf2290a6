"""`TorchPolicy`: a torch network as an agent's policy, alone or with others in one pass.

    stack = Stack([policy.module for policy in policies])
    outputs = stack(features)                      # (networks, rows, numbers) in, (networks, rows, outputs) out

`Stack` computes networks of equal shape in one pass, each with its own weights. `parted` and `GatheringBuffer` make
features of the observations of one policy or of several. `choose` makes actions of the outputs. These give the same
numbers for one policy and for many at once: each policy samples from its own generator, for the rows that want an
action and in their order.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn

from parallel_envs.checks import suggests_keywords
from parallel_envs.policies import AgentPolicy
from parallel_envs.threads import one_torch_thread
from parallel_envs.wrappers.local import NetworkReplaced
from parallel_envs.wrappers.policy_handle import Mask, as_row
from parallel_envs.wrappers.rules import PolicyInput

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]

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

    def comparable(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value), tuple(map(comparable, value))
        if isinstance(value, dict):
            return tuple((key, comparable(part)) for key, part in value.items())
        return value if isinstance(value, _PLAIN) else id(value)

    own = tuple((name, comparable(value)) for name, value in vars(module).items() if name not in _OF_EVERY_MODULE)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return module.extra_repr(), own, tuple(map(id, hooks))


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
    """Stack of modules with one signature. It copies their weights on first use and after each change.

    A chain of linear layers and activations becomes one batched matrix product a layer. Any other module goes through
    `torch.func`, which supports most of torch but costs more for each call. With a `device`, weights are there:
    features go there through a staging buffer, which grows to the largest turn and stays, and outputs come back. If
    the buffer is pinned, the copy does not block.
    """

    def __init__(self, modules: Sequence[nn.Module], device: str | None = None) -> None:
        self.modules, self._device = list(modules), None if device is None else torch.device(device)
        self._changes = ChangeDetector(self.modules)
        self._compute: Callable[[Tensor], Tensor]  # set by the first call: everything has changed then
        self._is_pinned = self._device is not None and self._device.type == "cuda"
        self._staging = torch.empty(0, pin_memory=self._is_pinned)

    def __call__(self, features: Tensor) -> Tensor:
        with torch.inference_mode(), one_torch_thread():
            if self._changes.has_changed():
                modules = self.modules
                if self._device is not None:
                    modules = [copy.deepcopy(module).to(self._device) for module in modules]
                self._compute = _stack_chains(modules) or _stack_any(modules)
            if self._device is None:
                return self._compute(features)
            if self._staging.numel() < features.numel():
                self._staging = torch.empty(features.numel(), pin_memory=self._is_pinned)
            staged = self._staging[: features.numel()].view(features.shape).copy_(features)
            return self._compute(staged.to(self._device, non_blocking=True)).cpu()


def _stack_chains(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor] | None:
    """Return the modules as batched matrix products. None if they are no chains of linear layers and activations."""
    chains = [_layers(module) for module in modules]
    if any(chain is None for chain in chains):
        return None
    steps: list[Callable[[Tensor], Tensor]] = []
    layers: Sequence[Any]
    for layers in zip(*[chain for chain in chains if chain is not None], strict=True):
        has_bias = getattr(layers[0], "bias", None) is not None
        if not isinstance(layers[0], nn.Linear):
            steps.append(layers[0].forward)
            continue
        weights = torch.stack([layer.weight.detach() for layer in layers]).transpose(1, 2).contiguous()
        biases = torch.stack([layer.bias.detach() for layer in layers])[:, None] if has_bias else None
        steps.append(_linear(weights, biases))

    def compute(features: Tensor) -> Tensor:
        for step in steps:
            features = step(features)
        return features

    return compute


def _linear(weights: Tensor, biases: Tensor | None) -> Callable[[Tensor], Tensor]:
    if biases is None:
        return lambda features: torch.bmm(features, weights)
    return lambda features: torch.baddbmm(biases, features, weights)


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


# ---- observations ---------------------------------------------------------------------------------------------------


def parted(batch: Any) -> tuple[Array, Array | None]:
    """Return a batch of observations as an array (rows, numbers), and its action masks if it has any."""
    mask = None
    if isinstance(batch, dict):
        mask, batch = batch.get("action_mask"), batch["observation"]
    array = np.asarray(batch)
    return array.reshape(len(array), -1), mask


class GatheringBuffer:
    """Gathers the observations of several policies in one array (policies, rows, numbers).

    The buffer grows to the largest turn and stays. A returned array is valid until the next call. It has zeros where a
    policy has fewer rows than another.
    """

    def __init__(self, num_policies: int) -> None:
        self._num_policies = num_policies
        self._buffer = np.zeros(0, np.float32)

    def __call__(self, inputs: Collection[PolicyInput]) -> tuple[Array, Array | None]:
        """Return the observations, and the action masks if there are any, in equal positions."""
        observations = [observation for observation, _ in inputs]
        kinds, in_rows = set(map(type, observations)), {wanted is not None for _, wanted in inputs}
        if kinds == {np.ndarray} and len(in_rows) == 1 and len({one.shape for one in observations}) == 1:
            first = observations[0]  # all arrays have one shape: copy them in one go
            num_rows = len(first) if in_rows.pop() else 1
            array = self._array(num_rows, first.size // max(num_rows, 1))
            if first.ndim:
                np.concatenate(observations, out=array.reshape(-1, *first.shape[1:]))  # same kind: text is no number
            else:
                array[:, 0, 0] = observations
            return array, None
        batches = [as_row(observation) if wanted is None else observation for observation, wanted in inputs]
        features, masks = zip(*map(parted, batches), strict=True)
        array = self._array(max(map(len, features)), features[0].shape[1])
        for own, part in zip(array, features, strict=True):
            if part.shape[1] != array.shape[2] or part.dtype.kind not in "fiub":
                raise ValueError(f"An observation of {part.shape[1]} x {part.dtype} is among some of another size.")
            own[: len(part)], own[len(part) :] = part, 0.0
        if all(mask is None for mask in masks):
            return array, None
        if any(mask is None for mask in masks):
            raise ValueError("Some of the observations have masks and some have none: they cannot share a pass.")
        arrays = [np.asarray(mask) for mask in masks]
        joined = np.ones((*array.shape[:2], arrays[0].shape[-1]), bool)  # ones where a policy has fewer rows
        for own, given in zip(joined, arrays, strict=True):
            own[: len(given)] = given.reshape(len(given), -1)
        return array, joined

    def _array(self, num_rows: int, size: int) -> Array:
        length = self._num_policies * num_rows * size
        if len(self._buffer) < length:
            self._buffer = np.zeros(length, np.float32)
        return self._buffer[:length].reshape(self._num_policies, num_rows, size)


# ---- action sampling ------------------------------------------------------------------------------------------------


def choose(outputs: Array, mask: Array | None, wanted: Sequence[Mask | None], policies: Sequence[Any]) -> list[Any]:
    """Return each policy's action, or its actions for all rows if it has a mask in `wanted`.

    A policy has `action_space`, `deterministic`, `generator` and `log_std`. `outputs` is (policies, rows, numbers).
    Rows that want no action get zeros. A policy without wanted rows gets None.
    """
    rows = _WantedRows(wanted, outputs.shape[1])
    first, space = policies[0], policies[0].action_space
    if not isinstance(space, Discrete):
        if outputs.shape[-1] != np.prod(space.shape):
            raise ValueError(f"The network gives {outputs.shape[-1]} numbers for the actions of {space}.")
        if not first.deterministic:
            widths = np.stack([np.broadcast_to(np.exp(policy.log_std), outputs.shape[2:]) for policy in policies])
            outputs = outputs + widths[:, None] * rows.noise(outputs.shape, policies, normal=True)
        actions = outputs.reshape(*outputs.shape[:2], *space.shape)
        return rows.split(np.clip(actions, space.low, space.high).astype(space.dtype))
    if outputs.shape[-1] != space.n:
        raise ValueError(f"The network gives {outputs.shape[-1]} logits for the actions of {space}.")
    logits = outputs.astype(np.float64)
    if mask is not None:
        legal = mask.reshape(logits.shape).astype(bool)
        legal |= ~legal.any(-1, keepdims=True)  # rows of agents that are not there have masks of zeros
        logits[~legal] = -np.inf
    if first.deterministic:
        return rows.split(logits.argmax(-1) + space.start)
    logits -= logits.max(-1, keepdims=True)
    sums = np.cumsum(np.exp(logits, out=logits), axis=-1, out=logits)
    noise = rows.noise(outputs.shape[:2], policies, normal=False)
    sampled: Array = (sums <= noise[..., None] * sums[..., -1:]).argmin(-1) + space.start  # the first sum above it
    return rows.split(sampled)


class _WantedRows:
    """The rows of each policy that want an action."""

    def __init__(self, wanted: Sequence[Mask | None], num_rows: int) -> None:
        self._given = wanted
        self._is_single = set(map(type, wanted)) == {type(None)}
        self._masks = (
            [] if self._is_single else [np.ones(1, bool) if own is None else np.asarray(own) for own in wanted]
        )
        self._is_full: list[bool] = [self._is_single] * len(wanted)
        if {len(own) for own in self._masks} == {num_rows}:
            full: Any = np.stack(self._masks).all(1)
            self._is_full = [own and given is not None for own, given in zip(full.tolist(), wanted, strict=True)]

    def noise(self, shape: tuple[int, ...], policies: Sequence[Any], *, normal: bool) -> Array:
        """Return random numbers from the policies' generators as an array, with zeros in rows that want no action."""
        if self._is_single and not normal:
            return np.array([policy.generator.random() for policy in policies]).reshape(shape)
        noise = np.zeros(shape)
        for place, policy in enumerate(policies):
            draw: Any = policy.generator.standard_normal if normal else policy.generator.random
            if self._is_full[place]:
                draw(out=noise[place])
            else:
                rows = np.flatnonzero(self._masks[place])
                noise[place, rows] = draw((len(rows), *shape[2:]))
        return noise

    def split(self, actions: Array) -> list[Any]:
        """Return each policy's own part of the actions."""
        if self._is_single:
            return actions[:, 0].tolist() if actions.ndim == 2 else list(actions[:, 0])
        parts: list[Any] = []
        for own, mask, given, is_full in zip(actions, self._masks, self._given, self._is_full, strict=True):
            if given is None:
                parts.append(own[0].item() if own.ndim == 1 else own[0])
            elif is_full or not mask.any():
                parts.append(own if is_full else None)
            else:
                parts.append(own[: len(mask)])
                parts[-1][~mask.astype(bool)] = 0
        return parts


# ---- the policy -----------------------------------------------------------------------------------------------------


class TorchPolicy(AgentPolicy):
    """Samples the action that a network suggests, with random numbers from a generator of its own.

    For Discrete actions the network gives logits, for Box the mean of a normal distribution, whose logarithmic standard
    deviation is `log_std` (a number, or the module's attribute of this name). A network with `initial_state(num_rows)`
    is recurrent: `forward(features, state)` gives outputs and the next state. An observation that is a dict has
    `"observation"`, and `"action_mask"` if actions are masked.

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
        self.module, self.action_space, self.deterministic = module, action_space, deterministic
        self.version = 0
        """Grows with every `load_state_dict`."""
        self.generator = np.random.default_rng(seed)
        self._log_std = log_std
        self._memory: Any = None

    def step(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            batch: Any = {key: np.asarray(part)[None] for key, part in observation.items()}
        else:
            batch = np.asarray(observation)[None]
        action = self.step_batch(batch, np.zeros(1, np.intp))[0]
        return action if action.ndim else action.item()

    def step_batch(self, observations: Any, rows: Rows | None = None) -> Array:
        """Return actions for the rows of a batch. `rows` numbers their episodes, for recurrent networks."""
        features, mask = parted(observations)
        rows = np.arange(len(features)) if rows is None else rows
        with torch.inference_mode(), one_torch_thread():
            tensor = torch.as_tensor(features, dtype=torch.float32)
            outputs = (self._forward_recurrent(tensor, rows) if self.is_recurrent else self.module(tensor)).numpy()
        actions: Array = choose(outputs[None], mask, [np.ones(len(outputs), bool)], [self])[0]
        return actions

    def _forward_recurrent(self, features: Tensor, rows: Rows) -> Tensor:
        self._add_memory(int(rows.max()) + 1)
        before = tuple(part[rows] for part in self._memory)
        out: Tensor
        out, state = self.module(features, before)
        if _shapes(state) != _shapes(before):
            raise ValueError(
                f"{type(self.module).__name__} returned a state of {_shapes(state)} for one of {_shapes(before)}. "
                "Return a tuple of tensors of the same shapes."
            )
        for part, new in zip(self._memory, state, strict=True):
            part[rows] = new
        return out

    @property
    def is_recurrent(self) -> bool:
        return hasattr(self.module, "initial_state")

    def _add_memory(self, num_rows: int) -> None:
        """Add initial states until every row has one."""
        have = 0 if self._memory is None else len(self._memory[0])
        if have < num_rows:
            fresh = self._initial_state(num_rows - have)
            self._memory = tuple(map(torch.cat, zip(self._memory, fresh, strict=True))) if have else fresh

    def _initial_state(self, num_rows: int) -> Any:
        state = self.module.initial_state(num_rows)  # type: ignore[operator]  # an nn.Module's attribute
        if not isinstance(state, tuple | list) or any(len(part) != num_rows for part in state):
            raise ValueError(
                f"initial_state({num_rows}) of {type(self.module).__name__} returned {_shapes(state)}. Return a tuple "
                "of tensors with the rows along the first axis."
            )
        return tuple(state)

    @torch.inference_mode()
    def reset(self, rows: Rows | None = None) -> None:
        if rows is None:
            self._memory = None
        elif self.is_recurrent and self._memory is not None and len(rows):
            self._add_memory(int(np.max(rows)) + 1)
            for part, fresh in zip(self._memory, self._initial_state(len(rows)), strict=True):
                part[rows] = fresh

    def get_state(self) -> dict[str, Any]:
        """Return the states of the generator and of a recurrent network. Weights are not included."""
        memory = None if self._memory is None else [part.numpy().copy() for part in self._memory]
        return {"generator": copy.deepcopy(self.generator.bit_generator.state), "memory": memory}

    def set_state(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]
        memory = state["memory"]
        self._memory = None if memory is None else tuple(torch.tensor(part) for part in memory)

    def load_state_dict(self, weights: Any) -> None:
        """Load new weights into the network. If they do not fit, raise before anything has changed."""
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

    @property
    def log_std(self) -> Array:
        if self._log_std is not None:
            return np.asarray(self._log_std)
        own = getattr(self.module, "log_std", None)
        return np.zeros(()) if own is None else own.detach().numpy()

    @property
    def can_be_stacked(self) -> bool:
        """True if an action depends on one row of a batch only, and only the network computes it."""
        own = type(self)
        return not self.is_recurrent and own.step is TorchPolicy.step and own.step_batch is TorchPolicy.step_batch

    def stack_signature(self) -> Any:
        """Return a value that is equal for policies that may be computed in one pass; None if this one may not."""
        if not self.can_be_stacked:
            return None
        return type(self), signature(self.module), repr(self.action_space), self.deterministic

    # `StackedGroup` in `local.py` calls these three
    new_gathering = staticmethod(GatheringBuffer)
    choose_stacked = staticmethod(choose)

    @staticmethod
    def compute_stacked(stack: Callable[[Tensor], Tensor], features: Array) -> Array:
        """Return the outputs of all policies, each for its own rows."""
        return stack(torch.from_numpy(features)).numpy()


def _shapes(state: Any) -> Any:
    return [tuple(part.shape) for part in state] if isinstance(state, tuple | list) else type(state).__name__
