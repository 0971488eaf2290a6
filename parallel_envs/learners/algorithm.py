"""Algorithm, its config, and the plan and report of an update.

An update has two halves. `draw` makes every random choice with the agent's own generator: which rows go into which
minibatch, and which noise is used. The rest is a pure function of that `Plan` and the agent's numbers. The result is
therefore the same in the caller, in a thread, in a worker process, or fused with other agents.

    plan = algorithm.draw(experience, generator)          # NumPy: can be sent to the process that holds the network
    report = update_one(parameters, plan)                 # one agent; updates/fused.py does the same for many at once:
        seen = algorithm.see(module, arrays)              # outputs of the network before the update
        data = algorithm.prepare(seen, arrays)            # advantages and the like
        for each step of the plan (`take_steps`):
            loss, metrics = algorithm.loss(module, batch) # rows of data, weights, noise
            ... a clipped step of Adam, unless algorithm.should_stop(metrics) ...
            algorithm.after_step(matrix, active)          # move target networks
        algorithm.after_update(module, arrays)            # running statistics

`see` and `loss` are written for one agent. They must not call `.item()` or branch on data, so that `torch.vmap` can run
them for many agents at once. `prepare` also takes the stacked arrays of many agents.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from parallel_envs.checks import choice, is_number, is_share, is_whole
from parallel_envs.choices import Activation
from parallel_envs.engine import Failure
from parallel_envs.errors import ParallelEnvsError
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.distributions import Head
from parallel_envs.learners.networks import ObservationEncoder, check_mask
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix, clip_rows, step_rows
from parallel_envs.settings import documents_fields
from parallel_envs.threads import one_torch_thread

Array = npt.NDArray[Any]
Agent = Any
Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]
Evaluate = Callable[[int], tuple[Tensor, Metrics, Tensor]]
"""Function from the number of a step to losses, metrics and gradients, with a row for each agent."""

# ---- configs ----------------------------------------------------------------------------------------------------

Number = Annotated[float, is_number, "is not a number. Give a finite one."]
Positive = Annotated[float, lambda number: number > 0, "is not above 0. Give a number above 0."]
NotNegative = Annotated[float, lambda number: number >= 0, "is below 0. Give 0 or more."]
Share = Annotated[float, is_share, "is not from 0 to 1."]
Count = Annotated[int, lambda number: is_whole(number) and number > 0, "is not a whole number above 0."]
Whole = Annotated[int, lambda number: is_whole(number) and number >= 0, "is not a whole number from 0 up."]
_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(
    functools.partial(typing.get_type_hints, include_extras=True)
)


def field_error(config: Any, name: str, text: str) -> ValueError:
    """Return the error for a field of a config: its name, its value, and the text."""
    return ValueError(f"{type(config).__name__}.{name}={getattr(config, name)!r} {text}")


def check_fields(config: Any) -> None:
    """Raise ValueError unless the fields of a dataclass have values of their types: flags, words, numbers as above."""
    for name, kind in _type_hints(type(config)).items():
        value, parts = getattr(config, name), typing.get_args(kind)
        if kind is bool and not isinstance(value, bool | np.bool_):
            raise field_error(config, name, "is not a flag. Give True or False.")
        if typing.get_origin(kind) is typing.Literal and not (isinstance(value, str) and value in parts):
            choice(f"{type(config).__name__}.{name}", value, parts)
        rule = next((one for one in (kind, *parts) if hasattr(one, "__metadata__")), None)  # also of `Count | None`
        if rule is not None and not (value is None and getattr(type(config), name) is None):
            for is_right, text in (Number.__metadata__, rule.__metadata__):  # type: ignore[attr-defined]  # Annotated
                if not all(map(is_right, value if typing.get_origin(kind) is tuple else (value,))):
                    raise field_error(config, name, text)


def check_layers(config: Any) -> None:
    """Raise ValueError unless `hidden` has at least one layer."""
    if not config.hidden:
        raise field_error(config, "hidden", "has no layer, and this network needs one. Give a size.")


@documents_fields
@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Settings that all algorithms have. A field's type says which numbers it takes (`Positive`, `Count`, ...)."""

    learning_rate: Positive = 3e-4
    """Learning rate of Adam."""
    learning_rate_end: NotNegative | None = None
    """Final learning rate, reached linearly over `learning_rate_updates` of the agent's updates. None: the learning
    rate stays constant."""
    learning_rate_updates: Count | None = None
    """Number of updates over which the learning rate falls."""
    learning_rate_steady: Whole = 0
    """Number of updates before the learning rate begins to fall."""
    adam_epsilon: Positive = 1e-5
    """Added to Adam's denominator."""
    max_grad_norm: Positive = 0.5
    """Gradients longer than this, over all of the agent's parameters, are shortened to it."""
    discount: Share = 0.99
    """Discount factor: the weight of the next step's reward."""
    hidden: tuple[Count, ...] = (64, 64)
    """Sizes of the hidden layers."""
    activation: Activation = "tanh"
    """Activation between hidden layers."""

    def __post_init__(self) -> None:
        hidden: Any = self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Iterable):
            raise field_error(self, "hidden", "is not a list. Give a list of sizes, as (64, 64).")
        object.__setattr__(self, "hidden", tuple(hidden))
        check_fields(self)
        if (self.learning_rate_end is None) is not (self.learning_rate_updates is None):
            raise ValueError(
                f"{type(self).__name__} has learning_rate_end={self.learning_rate_end} and learning_rate_updates="
                f"{self.learning_rate_updates}. Give both, or neither."
            )
        if self.learning_rate_steady and self.learning_rate_end is None:
            text = "needs learning_rate_end and learning_rate_updates: without them the learning rate never falls."
            raise field_error(self, "learning_rate_steady", text)

    def learning_rate_after(self, updates: int) -> float:
        """Return Adam's learning rate for the next update, after `updates` updates."""
        if self.learning_rate_end is None or self.learning_rate_updates is None:
            return self.learning_rate
        share = min(max(updates - self.learning_rate_steady, 0) / self.learning_rate_updates, 1.0)
        return self.learning_rate + share * (self.learning_rate_end - self.learning_rate)


# ---- one update -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """All inputs of an update, as arrays: the experience, and every random choice."""

    arrays: dict[str, Array]
    """The experience, in the form that `prepare` takes."""
    picks: Array
    """`[steps, batch]`: the rows of the prepared data that make each minibatch."""
    weights: Array
    """`[steps, batch, ...]` float32: the weight of each row; 0 where a minibatch has no row."""
    noise: dict[str, Array] = field(default_factory=dict)
    """`[steps, ...]`: random numbers that go into the loss."""
    learning_rate: float | None = None
    """Learning rate of Adam in this update; None: the config's."""

    @property
    def lived(self) -> npt.NDArray[np.bool_]:
        """`[steps]`: the steps whose minibatches hold any row with weight."""
        return np.asarray(self.weights.reshape(len(self.weights), -1).any(1))


def plan_tensors(plan: Plan, device: torch.device | None = None) -> Batch:
    """Return a plan's picks, weights and noise as tensors."""
    arrays = {"picks": plan.picks, "weights": plan.weights, **plan.noise}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def minibatch(data: Batch, plan: Mapping[str, Tensor], step: int) -> Batch:
    """Return the rows of a step, with their weights and noise. `picks` may be of several agents, a row for each."""
    picks = plan["picks"][step]
    rows = picks.flatten()  # `index_select` takes half the time of an index with two axes
    batch = {name: one.index_select(0, rows).view(*picks.shape, *one.shape[1:]) for name, one in data.items()}
    return batch | {name: tensor[step] for name, tensor in plan.items() if name != "picks"}


def mean_over(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of values; 0 where all weights are 0."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-8)


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """Result of an agent's update."""

    metrics: dict[str, float]
    """Means over the steps that were taken, and `steps`, their number."""
    diverged: str | None = None
    """The reason why nothing was learnt, if a number was not finite. The agent's numbers are as before the update."""
    failure: Failure | None = field(default=None, repr=False)
    """The exception of the update, if it raised one. The agent's numbers are as before the update."""
    taught: npt.NDArray[Any] | None = field(default=None, repr=False)
    """Absolute errors of the sampled steps, if the replay buffer is prioritized."""
    carry: npt.NDArray[Any] | None = field(default=None, repr=False)
    """The memory of a recurrent agent after the update."""
    times: tuple[float, float] | None = field(default=None, repr=False, compare=False)
    """Start and end of the update, also if a worker made it, for `trace.record`."""

    @property
    def learnt(self) -> bool:
        """True if the update was kept."""
        return self.diverged is None and self.failure is None

    @classmethod
    def of_nothing(cls, *, diverged: str | None = None, failure: Failure | None = None) -> Self:
        """Return the report of an update without a step, or with all steps undone."""
        return cls({"steps": 0.0}, diverged, failure)


class Diverged(ParallelEnvsError, ArithmeticError):
    """Losses or gradients of some agents were not finite. `agents` names these agents; the others have learnt."""

    def __init__(self, text: str, agents: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.agents = tuple(agents)

    @classmethod
    def of(cls, why: Mapping[Any, str]) -> Self:
        """Return the error for some agents and the reason of each."""
        lines = [f"Agent {agent!r} has not learnt: {reason}." for agent, reason in why.items()]
        lines.append(
            "Its numbers are as they were before. Look for rewards or observations that are not finite or very large, "
            "or give a lower learning_rate."
        )
        return cls(" ".join(lines), tuple(why))


class NothingLearnt(Diverged):
    """At the end of a run: every update of some agents was undone. `agents` names these agents."""


# ---- the interface ----------------------------------------------------------------------------------------------


class Algorithm(ABC):
    """Algorithm of one agent: its config, its observation space and its action space.

    Raises TypeError, naming the agent, for spaces that the algorithm does not support.
    """

    name: ClassVar[str]
    on_policy: ClassVar[bool]
    traceable: bool = True
    """Whether `loss` is short enough for the fused mode to record it once as a list of operations."""
    stackable: bool
    """Whether many agents may learn in one pass. False for convolutional networks: stacked convolutions are slower than
    one after another. They also round differently, and with so many activations some then fall on the other side of 0.
    """
    head: Any
    """The `Head`, which turns outputs of the network into actions."""

    def __init__(
        self, config: AlgorithmConfig, observation_space: Space[Any], action_space: Space[Any], agent: Agent = None
    ) -> None:
        self.config, self.agent = config, agent
        self.observation_space, self.action_space = observation_space, action_space
        self.stackable = getattr(config, "network", "mlp") != "cnn"
        try:
            self.encoder = ObservationEncoder(observation_space)
            self.head = self.make_head(action_space)
            check_mask(observation_space, action_space)
            if not self.stackable and not self.encoder.is_image:
                raise TypeError(f"network='cnn' needs pictures, and {observation_space} does not have three axes.")
        except TypeError as error:
            raise TypeError(f"Agent {agent!r} cannot learn with {self.name}: {error}") from None

    @abstractmethod
    def make_head(self, action_space: Space[Any]) -> Head:
        """Return the head for an action space. Raises TypeError for spaces that the algorithm does not support."""

    @abstractmethod
    def make_module(self, generator: torch.Generator) -> nn.Module:
        """Return the network, initialised from this generator alone.

        Its submodule `actor` computes the actions. Parameters of target networks need no gradient.
        """

    @abstractmethod
    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        """Make every random choice of an update. `updates`: the number of updates so far.

        Raises ValueError, naming the agent, if the experience does not fit the config.
        """

    def see(self, module: nn.Module, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the network's outputs before the update, for `prepare`."""
        return ()

    def prepare(self, seen: tuple[Tensor, ...], arrays: Mapping[str, Tensor]) -> Batch:
        """Return the data that minibatches are taken from, rows first (behind the axis of agents, if there is one)."""
        return dict(arrays)

    @abstractmethod
    def loss(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of a minibatch and metrics, all of them tensors without axes."""

    def should_stop(self, metrics: Metrics) -> Tensor | None:
        """Return whether the update ends before the step from this minibatch, for one agent or (stacked) for many."""
        return None

    def after_step(self, matrix: ParameterMatrix, active: Tensor) -> None:  # noqa: B027  # most have no targets
        """Called after the active rows of `matrix` took a step."""

    def after_update(self, module: nn.Module, arrays: Mapping[str, Tensor]) -> None:  # noqa: B027  # nor statistics
        """Called at the end of an update."""

    def taught(self, module: nn.Module, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """Return the absolute error of each row of a replayed batch, for priorities. None: without priorities."""
        return None

    def explore(self, module: nn.Module, num_steps: int) -> None:  # noqa: B027  # most explore by sampling
        """Called before the agent acts with these weights, after `num_steps` steps of its own."""

    @functools.cached_property
    def signature(self) -> Any:
        """A key that is equal for algorithms whose losses are the same function, so that agents can be fused."""
        rates: dict[str, Any] = {"learning_rate_end": None, "learning_rate_updates": None, "learning_rate_steady": 0}
        same = dataclasses.replace(self.config, **rates, learning_rate=1.0, max_grad_norm=1.0)
        return self.name, same, repr(self.observation_space), repr(self.action_space)


@documents_fields
@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Settings of algorithms with a replay buffer. Steps are counted over all of the agent's environments."""

    max_grad_norm: Positive = 10.0
    """Gradients longer than this are shortened to it."""
    activation: Activation = "relu"
    """Activation between hidden layers."""
    buffer_size: Count = 50_000
    """Steps that the replay buffer holds."""
    learning_starts: Whole = 1_000
    """Steps before the first update."""
    train_interval: Count = 4
    """Steps of each environment between two updates."""
    gradient_steps: Count = 1
    """Steps of Adam in an update."""
    batch_size: Count = 64
    """Steps of a minibatch."""
    target_rate: Share = 0.005
    """How far the target network moves towards the network each time (above 0; 1: all the way)."""
    target_interval: Count = 1
    """Steps of Adam between two moves of the target network."""
    num_steps: Count = 1
    """n of n-step returns: the rewards of so many steps are summed before the value of the next observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.target_rate:
            raise field_error(self, "target_rate", "is not above 0. Give a number above 0.")
        if self.batch_size > self.buffer_size:
            text = f"is larger than buffer_size={self.buffer_size}. Give a larger buffer or a smaller batch."
            raise field_error(self, "batch_size", text)


class ReplayAlgorithm(Algorithm):
    """Algorithm of one agent that learns from a `ReplayBuffer`, with target networks."""

    on_policy: ClassVar[bool] = False
    config: Any

    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        config = self.config
        shape = config.gradient_steps, config.batch_size
        drawn = experience.sample(generator, shape[0] * shape[1])
        arrays = {name: drawn[name] for name in ("rewards", "discounts")}
        arrays["actions"] = self.head.numbers(drawn["actions"])
        if getattr(config, "prioritized", 0.0):
            arrays["indices"] = drawn["indices"]  # for the buffer, which gets each row's error after the update
        for name, observations in (("", drawn["observations"]), ("next_", drawn["next_observations"])):
            arrays[f"{name}features"], mask = self.encoder.numbers(observations)
            if mask is not None:
                arrays[f"{name}mask"] = mask
        arrays["next_features"][arrays["discounts"] == 0] = 0  # unused, but may be NaN: 0 times NaN is NaN
        weights = np.asarray(drawn["weights"], np.float32).reshape(shape)
        noise = self.noise(generator, weights, updates)
        return Plan(arrays, np.arange(shape[0] * shape[1]).reshape(shape), weights, noise)

    def noise(self, generator: np.random.Generator, weights: Array, updates: int) -> dict[str, Array]:
        """Return random numbers that go into the loss, for minibatches with these weights."""
        return {}

    def after_step(self, matrix: ParameterMatrix, active: Tensor) -> None:
        """Move the targets of the active rows towards the first trained parameters."""
        due = active & (matrix.steps % self.config.target_interval == 0)
        sources = matrix.weights[:, : matrix.targets.shape[1]]
        if due.all():
            matrix.targets.lerp_(sources, self.config.target_rate)
            return
        for row in torch.nonzero(due).flatten().tolist():
            matrix.targets[row].lerp_(sources[row], self.config.target_rate)


# ---- an update of one agent, and its parts, which updates of many agents share ------------------------------------


def update_one(parameters: AgentParameters, plan: Plan) -> UpdateReport:
    """Update one agent. If this raises, the agent's numbers are unchanged."""
    algorithm, module = parameters.algorithm, parameters.module
    with one_torch_thread(), undo_on_error([parameters], parameters.matrix) as before:
        device = parameters.matrix.weights.device
        arrays, drawn = tensors_of(plan, device), plan_tensors(plan, device)
        with torch.no_grad():
            data = algorithm.prepare(algorithm.see(module, arrays), arrays)
        carry = data.pop(CARRY, None)
        gradient = torch.zeros_like(parameters.matrix.weights)
        parameters.layout.bind_gradients(module, gradient)

        def evaluate(step: int) -> tuple[Tensor, Metrics, Tensor]:
            gradient.zero_()
            loss, metrics = algorithm.loss(module, minibatch(data, drawn, step))
            torch.autograd.backward(loss)
            return loss.detach()[None], {name: value[None] for name, value in metrics.items()}, gradient

        (report,) = take_steps([algorithm], [plan], parameters.matrix, before, evaluate)
        return finish_update(parameters, report, arrays, carry)


def tensors_of(plan: Plan, device: torch.device | None = None) -> Batch:
    """Return the plan's experience as tensors that share the plan's memory, or as copies on a device."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in plan.arrays.items()}


@contextlib.contextmanager
def undo_on_error(all_parameters: Sequence[AgentParameters], matrix: ParameterMatrix) -> Iterator[ParameterMatrix]:
    """Restore these parameters, the rows of `matrix`, if the block raises. Yield a copy of `matrix`."""
    before = matrix.clone()
    statistics = [(own, own.clone()) for parameters in all_parameters for own in parameters.statistics.values()]
    try:
        yield before
    except BaseException:
        matrix.copy_from(before)
        with torch.no_grad():
            for own, was in statistics:
                own.copy_(was)
        raise


def take_steps(
    algorithms: Sequence[Algorithm],
    plans: Sequence[Plan],
    matrix: ParameterMatrix,
    before: ParameterMatrix,
    evaluate: Evaluate,
) -> list[UpdateReport]:
    """Take the steps of an update, with one plan for each agent (row). `before` is a copy of `matrix` as it is now.

    An agent whose loss or gradient is not finite takes no further steps and gets its numbers back from `before`; so
    does an agent whose numbers are not finite at the end. So an update happens completely or not at all. Other rows are
    not affected.
    """
    configs, leader = [one.config for one in algorithms], algorithms[0]
    lived = np.stack([plan.lived for plan in plans], 1)  # [step, agent]: is there anything to learn from?
    rates = [
        config.learning_rate if plan.learning_rate is None else plan.learning_rate
        for config, plan in zip(configs, plans, strict=True)
    ]
    device = matrix.weights.device
    limits = torch.tensor([config.max_grad_norm for config in configs], device=device)
    going, lost = np.ones(len(configs), np.bool_), np.full(len(configs), -1)
    names: list[str] = []
    sums: Any = 0.0
    counts = torch.zeros(len(configs), device=device)
    for step in range(len(lived)):
        wanted = lived[step] & going
        if not wanted.any():
            continue
        losses, metrics, gradient = evaluate(step)
        with torch.no_grad():
            norms = torch.linalg.vector_norm(gradient, dim=1)
            all_finite = (losses + norms).isfinite()
            stop, finite = leader.should_stop(metrics), all_finite.cpu().numpy()
            active = wanted & (finite if stop is None else (all_finite & ~stop).cpu().numpy())
            lost[wanted & ~finite] = step
            going &= active | ~lived[step]
            clip_rows(gradient, norms, limits)
            step_rows(matrix, gradient, active.tolist(), rates, configs[0].adam_epsilon)
            taken = torch.from_numpy(active).to(device)
            leader.after_step(matrix, taken)
            described = {"loss": losses, "gradient_norm": norms, **metrics}
            names = list(described)
            sums = sums + torch.where(taken, torch.stack(list(described.values())), 0.0)
            counts += taken

    # Adam makes non-finite numbers from finite ones only with a learning rate of this size (a step moves a number by a
    # few times the rate), with gradients whose squares overflow, or with an epsilon that is 0 in 32 bits. The check
    # itself takes a quarter of the time of a short update.
    if any(
        rate > 1e30 or config.max_grad_norm > 1e15 or config.adam_epsilon < 1e-30
        for config, rate in zip(configs, rates, strict=True)
    ):
        lost[(lost < 0) & ~matrix.finite().cpu().numpy()] = len(lived)
    for row in np.flatnonzero(lost >= 0).tolist():
        matrix.row(row).copy_from(before.row(row))

    reports: list[UpdateReport] = []
    means = (sums / counts.clamp(min=1)).T.tolist() if names else [[]] * len(configs)
    for step, mean, count in zip(lost.tolist(), means, counts.tolist(), strict=True):
        if step < 0:
            reports.append(UpdateReport({**dict(zip(names, mean, strict=True)), "steps": count}))
            continue
        reason = f"its loss or its gradient was not finite in step {step + 1} of the update"
        if step == len(lived):
            reason = "its weights, or what Adam remembers of them, were not finite after the update"
        reports.append(UpdateReport.of_nothing(diverged=reason))
    return reports


def finish_update(
    parameters: AgentParameters, report: UpdateReport, arrays: Batch, carry: Tensor | None
) -> UpdateReport:
    """Update running statistics if the agent has learnt, and add priorities and recurrent memory to the report."""
    if report.learnt:
        parameters.algorithm.after_update(parameters.module, arrays)
    taught = parameters.algorithm.taught(parameters.module, arrays)
    if taught is not None:
        taught = taught.nan_to_num(0.0, 0.0, 0.0)  # steps that are not finite teach nothing
    described: dict[str, Any] = {
        name: one.cpu().numpy().copy() for name, one in (("carry", carry), ("taught", taught)) if one is not None
    }
    return dataclasses.replace(report, **described) if described else report
