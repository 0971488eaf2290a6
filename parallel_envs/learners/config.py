"""Settings of a training run: a YAML file, checked completely before anything starts.

    env: mpe2.simple_spread_v3           # or package.module:factory, ./file.py:Class, a Gymnasium id
    num_envs: 8
    total_steps: 200000
    seed: 0
    algorithm: {name: ppo, learning_rate: 0.0003}
    agents:                              # differences of some agents
      agent_2: {name: dqn}
    parallel: {parallel_training: true, use_threads: true}

`load_settings` reads a file into `TrainSettings`; `algorithm_configs` makes each agent's config of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from parallel_envs import checks
from parallel_envs.checks import explain, right_setting
from parallel_envs.choices import (
    Backend,
    LearnIn,
    LoopMode,
    OnDivergence,
    OnFailure,
    ScheduleName,
    Strategy,
    UpdateModeName,
)
from parallel_envs.engine.restart_budget import MAX_RESTARTS, RESTART_WINDOW
from parallel_envs.env_files import absolute
from parallel_envs.settings import DEEPEST, parse_number, settings_in, value_of
from parallel_envs.settings import BadSettings as BadSettings

Agent = Hashable
Kinds = Mapping[str, Any]
"""Config classes of the algorithms (frozen dataclasses) by the algorithms' names."""

# ---- types of values --------------------------------------------------------------------------------------------


def _names_as_text(agents: Any) -> Any:
    """Turn agents' names that are numbers into text, as in a file."""
    return {str(name): own for name, own in agents.items()} if isinstance(agents, Mapping) else agents


PositiveInt = Annotated[int, BeforeValidator(parse_number), Field(gt=0)]
NotNegative = Annotated[int, BeforeValidator(parse_number), Field(ge=0)]
PositiveFloat = Annotated[float, BeforeValidator(parse_number), Field(gt=0)]
# Python's None is a text in YAML
PositiveIntOrNone = Annotated[PositiveInt | None, BeforeValidator(lambda value: None if value == "None" else value)]


# ---- settings ---------------------------------------------------------------------------------------------------

STEP_TIMEOUT, RESET_TIMEOUT, START_TIMEOUT = 300.0, 600.0, 600.0
"""Deadlines, in seconds, of environments in training. Even slow simulators take seconds for a step, so five minutes are
a hang, and a run of a night loses no more than that to one. A reset may load maps, and a start may start servers."""


class Block(BaseModel):
    """Block of settings: refuses unknown ones, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


AnyBlock = TypeVar("AnyBlock", bound=Block)


class ParallelBlock(Block):
    """The block `parallel`: few settings for what runs in parallel. `applied` translates it into the other settings."""

    enabled: bool = True
    """False: one process, one thread, one thing after another, and the same numbers."""
    parallel_actions: bool = True
    """Compute the actions of all agents at once."""
    parallel_training: bool = True
    """Agents learn in parallel: fused where that pays, elsewhere in workers."""
    async_learning: Literal[True, False, "overlap", "free"] = False
    """Collect while learning. True or "overlap": with weights that lag by one update; "free": both at full speed."""
    train_interval: PositiveIntOrNone = 4
    """Steps of each environment between two updates, for agents with a replay buffer that do not set it themselves.
    Other agents learn when their rollouts are full. None: the algorithm's default."""
    num_workers: PositiveIntOrNone = None
    """Number of workers, those of environments and those that learn together. None: no limit, and as many that learn as
    there are agents or cores, whichever is less."""
    use_threads: bool = False
    """Threads instead of processes."""

    def applied(self) -> dict[str, Any]:
        """Return the block in the words of the other settings."""
        modes: dict[Any, str] = {True: "overlap", False: "sync"}
        workers = ("thread" if self.use_threads else "process") if self.enabled else "sequential"
        return {
            "mode": modes.get(self.async_learning, self.async_learning),
            "train_interval": self.train_interval,
            # fused updates round differently, so they are also used where nothing runs in parallel
            "update_mode": f"fused_or_{workers}" if self.parallel_training else "sequential",
            "strategy": "batch" if self.enabled and self.parallel_actions else "sequential",
            "backend": workers if self.enabled else "serial",
            "learn_in": workers if self.enabled else "serial",
            "worker_budget": self.num_workers if self.enabled else None,
        }


class WandbBlock(Block):
    """The block `writers.wandb`: Weights & Biases."""

    project: str | None = None
    """Project of the run. None: the environment variable WANDB_PROJECT, or else `parallel-envs`."""
    entity: str | None = None
    """User or team. None: WANDB_ENTITY, or the default of the account."""
    name: str | None = None
    """Name of the run. None: the name of the run's folder."""
    group: str | None = None
    """Group of runs, such as the seeds of one experiment. None: WANDB_RUN_GROUP, if it is set."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """"offline": the metrics stay in the run's folder until `wandb sync`; "disabled": nothing is written. None:
    WANDB_MODE, or "online"."""


class MlflowBlock(Block):
    """The block `writers.mlflow`: MLflow."""

    tracking_uri: str | None = None
    """Address of a tracking server (`http://...`) or of a local store (`sqlite:///mlflow.db`). None:
    MLFLOW_TRACKING_URI, or MLflow's default."""
    experiment: str | None = None
    """Experiment of the run. None: MLFLOW_EXPERIMENT_NAME, or `parallel-envs`."""
    name: str | None = None
    """Name of the run. None: the name of the run's folder."""
    tags: dict[str, str] = {}
    """Tags of the run."""


class TrackioBlock(Block):
    """The block `writers.trackio`: Trackio."""

    project: str = "parallel-envs"
    """Project of the run."""
    name: str | None = None
    """Name of the run. None: the name of the run's folder."""
    group: str | None = None
    """Group of runs, such as the seeds of one experiment."""
    space_id: str | None = None
    """Space on Hugging Face that gets the metrics (`user/name`). None: TRACKIO_SPACE_ID, or this machine only."""


class WritersBlock(Block):
    """The block `writers`: where metrics are written, besides the run's folder.

    May be given as a list (`[wandb, mlflow]`), or as one name.
    """

    tensorboard: Block | None = None
    """Files for TensorBoard in the run's folder. It has no settings: `tensorboard: {}`."""
    wandb: WandbBlock | None = None
    """Weights & Biases (extra `wandb`)."""
    mlflow: MlflowBlock | None = None
    """MLflow (extra `mlflow`)."""
    trackio: TrackioBlock | None = None
    """Trackio (extra `trackio`)."""
    own: dict[str, dict[str, Any]] = {}
    """Writers of your own: `package.module:Class` or `./file.py:Class`, and its keyword arguments. They may also stand
    beside the other writers, without `own`."""

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, given: Any) -> Any:
        """Return a block with the settings of each writer, from any of the forms that a file may have."""
        blocks: dict[str, Any] = {}
        for one in given if isinstance(given, list | tuple) else [given]:
            if isinstance(one, WritersBlock):
                one = one.model_dump()  # noqa: PLW2901
            if not isinstance(one, str | Mapping | None):
                raise ValueError("give names of writers, such as [wandb, mlflow], or a block for each")
            blocks |= {one: {}} if isinstance(one, str) else one or {}
        if not isinstance(blocks.get("own") or {}, Mapping):
            raise ValueError("`own` holds names of classes, each with its arguments")
        blocks |= blocks.pop("own", None) or {}
        own: dict[str, Any] = {}
        named: dict[str, Any] = {}
        for name, block in blocks.items():
            if block is not False:  # on a command line, `writers.wandb=false` leaves a writer out
                (own if ":" in str(name) else named)[absolute(str(name))] = {} if block in (None, True) else block
        return {**named, "own": own} if own else named

    @model_serializer
    def _as_given(self) -> dict[str, Any]:
        """Return the blocks of the writers that are wanted, and no others."""
        blocks = {name: getattr(self, name) for name in type(self).model_fields if name != "own"}
        return {name: one.model_dump(mode="json") for name, one in blocks.items() if one is not None} | self.own


WRITER_BLOCKS: dict[str, type[Block]] = {"wandb": WandbBlock, "mlflow": MlflowBlock, "trackio": TrackioBlock}


def right_writer(path: str) -> str | None:
    """Return advice for the path of an unknown setting in the block `writers`; None for another path."""
    block, _, word = path.rpartition(".")
    if block == "writers":
        return f"{checks.advice(word, [*WRITER_BLOCKS, 'tensorboard'])} One of your own is package.module:Class."
    name = block.removeprefix("writers.")
    if name != block and name in WRITER_BLOCKS:
        return right_setting(word, WRITER_BLOCKS[name].model_fields, {})
    return "It has no settings." if block == "writers.tensorboard" else None


class EnvsBlock(Block):
    """Settings of a run's environments."""

    env: Annotated[str, AfterValidator(absolute)]
    """A PettingZoo module (`mpe2.simple_spread_v3`) or id (`sisl/pursuit-v5`), `package.module:factory`,
    `./file.py:Class`, or a Gymnasium id (`CartPole-v1`). The path of a file is made absolute: it is searched in the
    working folder, then beside the settings file."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments of the environment."""
    turns: Literal["simultaneous"] = "simultaneous"
    """Learners need all agents' actions at once."""
    num_envs: PositiveInt = 8
    """Number of environments that are stepped at once."""
    num_workers: PositiveInt | None = None
    """Number of workers that share the environments; null: one for each. It also limits the workers of updates with
    `update_mode` "process" or "thread"."""
    backend: Backend = "process"
    """Where environments run: in worker processes, in threads, or in the caller, one after another."""


class FailureSettings(Block):
    """Settings for failures of environments, in all kinds of training: arguments of the managers."""

    on_failure: OnFailure = "restart"
    """Reaction to an environment that raises or hangs, or to the death of its worker. "restart": the broken part is
    replaced, its episode is cut short, nothing is learnt across the gap, and the run goes on. "raise": the run ends
    with the error."""
    step_timeout: PositiveFloat | None = STEP_TIMEOUT
    """Seconds that a step of all environments may take, including resets after episodes that ended; null: no limit.
    Nothing that runs in the caller (`backend: serial`) can be interrupted, so there it has no deadline."""
    reset_timeout: PositiveFloat | None = RESET_TIMEOUT
    """Seconds that the resets at the beginning, and after each checkpoint, may take; null: no limit."""
    start_timeout: PositiveFloat | None = START_TIMEOUT
    """Seconds that the construction of the environments may take; null: no limit."""
    max_restarts: PositiveInt = MAX_RESTARTS
    """Number of restarts of each worker within `restart_window` seconds. The next failure ends the run."""
    restart_window: PositiveFloat = RESTART_WINDOW
    """Seconds for which `max_restarts` counts. Seconds in which a deadline ran out are not counted."""


class EnvSettings(FailureSettings, EnvsBlock):
    """Settings of a run's environments and their failures."""


class TrainSettings(EnvSettings):
    """All settings of a training run."""

    total_steps: PositiveInt
    """Steps of environments, all rows together."""
    seed: NotNegative = 0
    """Source of all random numbers of a run."""
    algorithm: Annotated[dict[str, Any], AfterValidator(lambda block: {"name": "ppo", **block})] = {"name": "ppo"}
    """`name` (ppo if it is left out), and the fields of that algorithm's config."""
    agents: Annotated[dict[str, dict[str, Any]], BeforeValidator(_names_as_text)] = {}
    """For some agents, the differences from `algorithm`; with another `name`, the whole config."""
    update_mode: UpdateModeName = "fused"
    """How the updates of several agents are run. "fused_or_process" and so on are "fused" for agents of one kind with
    small networks and minibatches, else the other. Runs of any mode except "auto" can be repeated to the bit. "auto"
    measures, so its runs can be repeated up to rounding only. Its choice is written into the run's folder
    (`chosen.json`), and a run that is resumed later continues with it."""
    update_timeout: PositiveFloat | None = 600.0
    """Seconds that a worker process has for a round of updates, after which it is replaced; null: no limit."""
    on_divergence: OnDivergence = "skip"
    """An agent's update with numbers that are not finite is undone, and the agent named. "skip": the run goes on;
    "raise": it ends."""
    strategy: Strategy = "batch"
    """How the actions of several agents are computed; "batch": similar networks in one pass."""
    device: str = "cpu"
    """Where networks learn and act: "cpu", "cuda", "cuda:1", "mps", or "auto" (CUDA if torch finds it here, else MPS,
    else the CPU). Environments and experience stay on the CPU. A run may be resumed on another device, and checkpoints
    can be loaded on any."""
    mode: LoopMode = "sync"
    """"sync": collecting and learning take turns; "overlap": both in parallel, one update behind; "free": both at full
    speed."""
    learn_in: LearnIn = "process"
    queue: PositiveInt | None = None
    max_lag: NotNegative = 1
    updates_per_step: PositiveFloat | None = None
    vtrace: bool = False
    schedule: ScheduleName = "round_robin"
    minibatch: tuple[PositiveInt, PositiveInt] | None = None
    worker_budget: PositiveInt | None = None
    """The most workers, those of environments and those that learn together."""
    train_interval: PositiveInt | None = None
    """For all agents whose algorithm has this setting and that do not set it themselves."""
    folder: Path | None = None
    """Folder of the run. None: a new folder in `runs`."""
    checkpoint_every: PositiveInt | None = None
    """Steps between checkpoints; None: a tenth of all. Episodes begin anew after each checkpoint, also in a run that is
    not resumed there: both then continue alike."""
    keep_checkpoints: PositiveInt = 3
    """Number of newest checkpoints that stay in the folder."""
    log_every: PositiveInt | None = None
    """Steps between lines of metrics, which are means over these steps; None: a thousandth of all. Updates that are
    further apart have a line each."""
    tensorboard: bool = True
    """Whether metrics are also written for TensorBoard."""
    writers: WritersBlock = WritersBlock()
    """Where metrics are also written: `wandb`, `mlflow`, `trackio`, `package.module:Class`, as a list or as a block
    with the settings of each (`{wandb: {project: spread}}`; `parallel-envs train --list wandb`)."""
    parallel: ParallelBlock | None = None
    """Several of these settings in few words: `parallel-envs train --list parallel`."""

    def applied(self) -> TrainSettings:
        """Return the settings with all defaults computed, and with `parallel` translated."""
        block = self.parallel.applied() if self.parallel else {}
        if self.parallel:
            from parallel_envs.learners.agent import configs_by_name  # brings torch, and few files have the block

            kinds, common = configs_by_name(), self.algorithm.get("name")
            names = {str(own.get("name", common)) for own in (self.algorithm, *self.agents.values())}
            if not any(name not in kinds or hasattr(kinds[name], "train_interval") for name in names):
                block["train_interval"] = None  # no agent can have a replay buffer
        block["checkpoint_every"] = self.checkpoint_every or -(-self.total_steps // 10)
        block["log_every"] = self.log_every or -(-self.total_steps // 1000)
        twice = sorted(self.model_fields_set & block.keys() - {"checkpoint_every", "log_every"})
        if twice:
            raise BadSettings(f"`parallel` and `{'`, `'.join(twice)}` say the same thing. Say it in one place.")
        return TrainSettings(**{**self.model_dump(exclude={"parallel"}, exclude_unset=True), **block})

    def described(self) -> dict[str, Any]:
        """Return all settings, including defaults, as JSON."""
        return self.model_dump(mode="json", exclude={"parallel"})


# ---- reading ----------------------------------------------------------------------------------------------------


def load_settings(
    path: str | Path | None, overrides: Sequence[str] = (), otherwise: Mapping[str, Any] | None = None
) -> TrainSettings:
    """Read the settings of a YAML file, or of `overrides` alone (`seed=3`). `otherwise` has values for the rest."""
    content = dict(otherwise or {})
    if path is not None:
        content |= settings_in(path, BadSettings)
        if isinstance(content.get("env"), str):
            content["env"] = absolute(content["env"], beside=Path(path).parent)
    content = replaced(content, read_overrides(overrides))
    return read_settings(content, " with ".join(filter(None, [str(path or ""), " ".join(overrides)])))


def replaced(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of settings with other values at some paths: `{"train.num_iters": 3}`."""
    copied = dict(content)
    for path, value in values.items():
        block, (*names, last) = copied, path.split(".")
        for name in names:
            inner = block.get(name, {})
            if name == "writers" and not isinstance(inner, Mapping):  # a list of names gets the form of a block
                with contextlib.suppress(ValidationError):
                    inner = WritersBlock.model_validate(inner).model_dump()
            if not isinstance(inner, Mapping):
                raise BadSettings(f"The override `{path}` leads into `{name}`, which holds no settings.")
            block[name] = block = dict(inner)
        block[last] = value
    return copied


def read_block(kind: type[AnyBlock], content: Any, where: str, right: Callable[[str], str]) -> AnyBlock:
    """Return a block of settings. Raises BadSettings with a line for each mistake. `right`: see `explain`."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        mistakes = [explain(one, right, written=_written) for one in error.errors()]
        raise BadSettings("\n  ".join([f"In {where}:", *mistakes])) from None


def _written(name: str, word: str) -> str:
    """Return how the name of an algorithm is written that stands where its block is wanted."""
    return f"{name}.name={word}" if re.fullmatch(r"(policy\.)?algorithm|agents\.[^.]+", name) else ""


def read_settings(content: Mapping[str, Any], where: str = "the settings") -> TrainSettings:
    """Return the settings in a dict. Raises BadSettings with a line for each mistake."""
    return read_block(TrainSettings, content, where, _right).applied()


def read_parallel(given: Any) -> dict[str, Any]:
    """Translate a block `parallel`, or a dict with one under this name, into the words of the other settings."""
    block = given["parallel"] if isinstance(given, Mapping) and given.keys() == {"parallel"} else given
    if not isinstance(block, Mapping):
        raise BadSettings(f"parallel={block!r} is not a block of settings. Give a dict such as {{'enabled': True}}.")
    return read_block(ParallelBlock, block, "`parallel`", lambda name: _right(f"parallel.{name}")).applied()


def _right(path: str) -> str:
    """Return advice for an unknown setting of a run."""
    if advice := right_writer(path):
        return advice
    block, _, word = path.rpartition(".")
    if block == "parallel":
        return right_setting(word, ParallelBlock.model_fields, {})
    from parallel_envs.learners.agent import configs_by_name  # brings torch, so only for a mistake

    kinds = configs_by_name()
    owners = {"name": sorted(kinds)}
    for algorithm, kind in sorted(kinds.items()):
        for field in _fields(kind):
            owners.setdefault(field, []).append(algorithm)
    places = {field: f"`algorithm.{field}` ({', '.join(own)})" for field, own in owners.items()}
    return right_setting(word, TrainSettings.model_fields, places)


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of `seed=3` and `train.num_iters=10`, by the names before the `=`.

    A setting that is given twice is a mistake (BadSettings), except a part of a block that was replaced before.
    """
    values = {}
    for number, override in enumerate(overrides):
        key, equals, text = override.partition("=")
        for other in overrides[:number]:
            if f"{other.partition('=')[0]}.".startswith(f"{key}."):
                raise BadSettings(
                    f"The override {override!r} would undo {other!r}, which stands before it. Give one of them."
                )
        if not equals or not key:
            raise BadSettings(f"The override {override!r} does not have the form key=value, as in seed=3.")
        if key.count(".") > DEEPEST:
            raise BadSettings(
                f"The override {override[:80]}... leads into more than {DEEPEST} blocks within one another."
            )
        values[key] = value_of(text, f"The value of the override {override!r}", BadSettings)
    return values


# ---- configs of algorithms --------------------------------------------------------------------------------------


def algorithm_configs(settings: TrainSettings, agents: Iterable[Agent], kinds: Kinds) -> dict[Agent, Any]:
    """Return a config for each agent, from `algorithm` and `agents` of the settings."""
    named = {str(agent): agent for agent in agents}
    for name in settings.agents:
        if name not in named:
            raise BadSettings(f"`agents.{name}` is unknown. {checks.advice(name, named)}")
    configs, common = {}, settings.algorithm
    for name, agent in named.items():
        own = settings.agents.get(name, {})
        where = f"agents.{name}" if own else "algorithm"
        if own.get("name", common.get("name")) == common.get("name"):
            own = {**common, **own}  # not for another algorithm, which has other fields
        given = _with_interval(settings, own, kinds)
        configs[agent] = read_config(given, where, kinds, outside=TrainSettings.model_fields)
    if settings.train_interval and not any("train_interval" in _fields(type(one)) for one in configs.values()):
        raise BadSettings(
            f"`train_interval: {settings.train_interval}` (maybe in the block `parallel`), and no agent learns from a "
            "replay buffer: the others make one update for each rollout. Leave it out, or give another "
            "`algorithm.rollout_length`."
        )
    return configs


def completed(settings: TrainSettings, kinds: Kinds) -> TrainSettings:
    """Return the settings with all fields of the algorithms' configs, so that later defaults do not change the run.

    An agent with the common algorithm keeps only its differences: the rest stands in `algorithm`.
    """

    def complete(block: Mapping[str, Any]) -> dict[str, Any]:
        try:
            config = read_config(_with_interval(settings, block, kinds), "algorithm", kinds)
        except BadSettings:  # a block that no agent uses may hold anything, and stays as it is
            return dict(block)
        return described_config(config, block["name"])

    common = complete(settings.algorithm)
    own = {
        agent: block if block.get("name", common.get("name")) == common.get("name") else complete(block)
        for agent, block in settings.agents.items()
    }
    return settings.model_copy(update={"algorithm": common, "agents": own})


def described_config(config: Any, name: str) -> dict[str, Any]:
    """Return all fields of a config as JSON, in the form that `read_config` reads."""
    return {"name": name, **json.loads(json.dumps(dataclasses.asdict(config)))}


def _with_interval(settings: TrainSettings, block: Mapping[str, Any], kinds: Kinds) -> dict[str, Any]:
    """Return an algorithm's block with the run's `train_interval`, if the algorithm has one and the block does not."""
    kind = kinds.get(str(block.get("name")))
    if settings.train_interval and kind and "train_interval" in _fields(kind):
        return {"train_interval": settings.train_interval, **block}
    return dict(block)


def read_config(given: Mapping[str, Any], where: str, kinds: Kinds, outside: Collection[str] = ()) -> Any:
    """Return the config of `name` and the other fields. `outside`: the settings of a run beside `algorithm`."""
    fields = dict(given)
    name = fields.pop("name", None)
    if not checks.is_one_of(name, kinds):
        raise BadSettings(f"`{where}.name: {name}` is unknown. {checks.advice(name, kinds)}")
    kind = kinds[name]
    elsewhere = {one: f"`{one}` of the run, beside `algorithm`" for one in outside}
    for other, one in kinds.items():
        elsewhere |= {field: f"`{field}` of {other}" for field in _fields(one) - elsewhere.keys()}
    for field in fields.keys() - _fields(kind):
        raise BadSettings(f"`{where}.{field}` is unknown. {right_setting(field, _fields(kind), elsewhere)}")
    hints = typing.get_type_hints(kind)
    for field, value in fields.items():
        if hints[field] in (bool, str) or typing.get_origin(hints[field]) is Literal:
            continue
        try:
            fields[field] = [parse_number(one) for one in value] if isinstance(value, list) else parse_number(value)
        except ValueError as error:
            raise BadSettings(f"`{where}.{field}: {value!r}`: {error}.") from None
    try:
        return TypeAdapter(kind).validate_python(fields)
    except ValidationError as error:
        raise BadSettings(" ".join(explain(one, str, where) for one in error.errors())) from None


def _fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}
