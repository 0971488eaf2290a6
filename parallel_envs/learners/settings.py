"""What a run is to do: a YAML file, checked word by word before anything starts.

env: mpe2.simple_spread_v3           # a PettingZoo module or id, package.module:factory, ./file.py:Class, Gymnasium id
num_envs: 8
total_steps: 200000
seed: 0
algorithm: {name: ppo, learning_rate: 0.0003}
agents:                              # what is different for some of them
  agent_2: {name: dqn}
parallel: {parallel_training: true, use_threads: true}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

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
from parallel_envs.env_files import absolute
from parallel_envs.learners.setting_mistakes import told
from parallel_envs.yaml_files import DEEPEST, settings_in, value_of
from parallel_envs.yaml_files import BadSettings as BadSettings


def number_meant(value: Any) -> Any:
    """The number that a word stands for: to YAML, `1e6` is one. Raises ValueError for flags, which are none."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a flag")  # pydantic takes no TypeError
    return float(value) if isinstance(value, str) and re.fullmatch(_POWER_OF_TEN, value) else value


_POWER_OF_TEN = r"[+-]?[\d.]*\d[eE][+-]?\d+"

PositiveInt = Annotated[int, BeforeValidator(number_meant), Field(gt=0)]
NotNegative = Annotated[int, BeforeValidator(number_meant), Field(ge=0)]
PositiveFloat = Annotated[float, BeforeValidator(number_meant), Field(gt=0)]


def _words(named: Any) -> Any:
    """Agents that are numbers, by the words that they are in a file."""
    return {str(name): own for name, own in named.items()} if isinstance(named, Mapping) else named


def _named(algorithm: dict[str, Any]) -> dict[str, Any]:
    """The block with the name of an algorithm in it: that of the default one where none is said."""
    return {"name": "ppo", **algorithm}


def _simultaneous(turns: Any) -> Any:
    if turns == "sequential":
        raise ValueError(WHY_SIMULTANEOUS)
    return turns


STEP_TIMEOUT, RESET_TIMEOUT, START_TIMEOUT = 300.0, 600.0, 600.0
"""Deadlines, in seconds, of environments that are trained in. Even slow simulators take seconds for a step, so five
minutes are a hang, and all that a night's run loses to one. A reset may load maps, and a start may start servers."""

WHY_SIMULTANEOUS = "learners need all agents' actions at once, so environments that take turns cannot be trained in"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _nothing(value: Any) -> Any:
    """Python's None, which is a text in YAML."""
    return None if value == "None" else value


class ParallelBlock(_Strict):
    """The block `parallel` of the original plan: what may run beside what. `applied` says what it means here."""

    enabled: bool = True
    """False: one process, one thread, one thing after another, and the same numbers."""
    parallel_actions: bool = True
    """The actions of all agents in one go."""
    parallel_training: bool = True
    """Agents learn beside one another: fused where that pays, elsewhere in workers."""
    async_learning: Literal[True, False, "overlap", "free"] = False
    """Collect while learning. True or "overlap": with weights that lag by one update; "free": as fast as it goes."""
    train_interval: Annotated[PositiveInt | None, BeforeValidator(_nothing)] = 4
    """Steps of each environment between two updates, for agents that learn from a replay buffer and do not say it
    themselves. Others learn when their rollouts are full. None: as the algorithm has it."""
    num_workers: Annotated[PositiveInt | None, BeforeValidator(_nothing)] = None
    """How many workers, those of environments and those that learn together. None: no bound, and as many that learn as
    there are agents or cores, whichever is less."""
    use_threads: bool = False
    """Threads in the place of processes."""

    def applied(self) -> dict[str, Any]:
        """The same in the settings' own words."""
        common = {"mode": self._mode, "train_interval": self.train_interval}
        if not self.enabled:
            alone = {"strategy": "sequential", "backend": "serial", "learn_in": "serial", "worker_budget": None}
            return {**common, **alone, "update_mode": self._update_mode("sequential")}
        workers = "thread" if self.use_threads else "process"
        return {
            **common,
            "update_mode": self._update_mode(workers),
            "strategy": "batch" if self.parallel_actions else "sequential",
            "backend": workers,
            "learn_in": workers,
            "worker_budget": self.num_workers,
        }

    def _update_mode(self, otherwise: str) -> str:
        """Fused updates round in another way, so they are also used where nothing may run beside anything else."""
        return f"fused_or_{otherwise}" if self.parallel_training else "sequential"

    @property
    def _mode(self) -> str:
        if isinstance(self.async_learning, str):
            return self.async_learning
        return "overlap" if self.async_learning else "sync"


class EnvSettings(_Strict):
    """The environments of a run, and what follows when they fail."""

    env: Annotated[str, AfterValidator(absolute)]
    """A PettingZoo module (`mpe2.simple_spread_v3`) or id (`sisl/pursuit-v5`), `package.module:factory`,
    `./file.py:Class`, or a Gymnasium id (`CartPole-v1`). The path of a file is made absolute here: it is looked for in
    the working folder, then beside the settings file."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments that the environment is made with."""
    turns: Annotated[Literal["simultaneous"], BeforeValidator(_simultaneous)] = "simultaneous"
    """Learners need all agents' actions at once."""
    num_envs: PositiveInt = 8
    """How many environments are stepped at once."""
    num_workers: PositiveInt | None = None
    """How many workers share them; null: one for each. Updates with `update_mode` "process" or "thread" have at most
    as many."""
    backend: Backend = "process"
    """Where environments run: worker processes, threads, or in the caller, one after another."""
    on_failure: OnFailure = "restart"
    """What to do when an environment raises or hangs, or its worker dies. "restart": the broken part is replaced, its
    episode is cut short, nothing is learnt across the gap, and the run goes on. "raise": the run ends with the error.
    """
    step_timeout: PositiveFloat | None = STEP_TIMEOUT
    """Seconds that a step of all environments may take, with the resets of those whose episode had ended; null: as
    long as it takes. No deadline holds with `backend: serial`, where nothing can be interrupted."""
    reset_timeout: PositiveFloat | None = RESET_TIMEOUT
    """The same for the resets at the beginning, and behind each checkpoint."""
    start_timeout: PositiveFloat | None = START_TIMEOUT
    """The same for the construction of the environments."""
    max_restarts: PositiveInt = 10
    """How often each worker may be restarted within `restart_window` seconds. The next failure ends the run."""
    restart_window: PositiveFloat = 600.0
    """Seconds for which `max_restarts` counts. Those in which a deadline ran out are not counted."""


class TrainSettings(EnvSettings):
    """All that a run depends on."""

    total_steps: PositiveInt
    """Steps of environments, all rows together."""
    seed: NotNegative = 0
    """All that is random in a run follows from it."""
    algorithm: Annotated[dict[str, Any], AfterValidator(_named)] = {"name": "ppo"}
    """`name` (ppo if it is left out), and the fields of that algorithm's config."""
    agents: Annotated[dict[str, dict[str, Any]], BeforeValidator(_words)] = {}
    """By agent, what differs from `algorithm`; with another `name`, all of it."""
    update_mode: UpdateModeName = "fused"
    """How the updates of several agents are run. "fused_or_process" and so on are "fused" for agents of one kind with
    small networks and minibatches, else the other. Runs of any mode but "auto" can be repeated to the bit. "auto"
    measures, so its runs can be repeated up to rounding only. What it has chosen stands in the run's folder
    (`chosen.json`), and a run that is resumed behind that goes on with it."""
    update_timeout: PositiveFloat | None = 600.0
    """Seconds that a worker process has for a round of updates, after which it is replaced; null: as long as it
    takes."""
    on_divergence: OnDivergence = "skip"
    """An agent's update that is not finite is undone, the agent named. "skip": the run goes on; "raise": it ends."""
    strategy: Strategy = "batch"
    """How the actions of several agents are computed; "batch": those of alike networks in one pass."""
    mode: LoopMode = "sync"
    """"sync": collecting and learning take turns; "overlap": one beside the other, one update behind; "free": each as
    fast as it can."""
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
    """For all agents whose algorithm has such a setting and who do not say it themselves."""
    folder: Path | None = None
    """Where the run keeps everything. None: a new folder in `runs`."""
    checkpoint_every: PositiveInt | None = None
    """Steps between checkpoints; None: a tenth of all. Episodes begin anew behind each, in a run that is resumed there
    and in one that is not: so both go on alike."""
    keep_checkpoints: PositiveInt = 3
    """How many of the newest checkpoints stay in the folder."""
    log_every: PositiveInt | None = None
    """Steps between lines of metrics, which are means over these steps; None: a thousandth of all. Updates that are
    further apart have a line each."""
    tensorboard: bool = True
    """Whether metrics are written for TensorBoard, too."""
    parallel: ParallelBlock | None = None
    """Several of these settings in few words: `parallel-envs train --list parallel`."""

    def applied(self) -> TrainSettings:
        """The same with nothing left open: in the place of the block `parallel` stands what it means."""
        meant = self.parallel.applied() if self.parallel else {}
        if self.parallel and not self._replays:
            meant["train_interval"] = None
        meant["checkpoint_every"] = self.checkpoint_every or _share(self.total_steps, 10)
        meant["log_every"] = self.log_every or _share(self.total_steps, 1000)
        twice = sorted(self.model_fields_set & meant.keys() - {"checkpoint_every", "log_every"})
        if twice:
            raise BadSettings(f"`parallel` and `{'`, `'.join(twice)}` say the same thing. Say it in one place.")
        return TrainSettings(**{**self.model_dump(exclude={"parallel"}, exclude_unset=True), **meant})

    @property
    def _replays(self) -> bool:
        """Whether some agent may learn from a replay buffer: one whose algorithm is not known here, too."""
        from parallel_envs.learners.learner import configs_by_name  # brings torch, and few files have the block

        kinds = configs_by_name()
        names = {
            str(block.get("name", self.algorithm.get("name"))) for block in (self.algorithm, *self.agents.values())
        }
        return any(name not in kinds or hasattr(kinds[name], "train_interval") for name in names)

    def described(self) -> dict[str, Any]:
        """Everything, defaults as well, as JSON can say it."""
        return self.model_dump(mode="json", exclude={"parallel"})


def _share(number: int, parts: int) -> int:
    """One of so many equal parts, rounded up."""
    return -(-number // parts)


# ---- reading ------------------------------------------------------------------------------------------------------


def load_settings(
    path: str | Path | None, overrides: Sequence[str] = (), otherwise: Mapping[str, Any] | None = None
) -> TrainSettings:
    """The settings in a YAML file, with some replaced: `seed=3`, `algorithm.learning_rate=0.001`.

    `path`: None where the overrides alone say all.
    `otherwise`: what counts where neither says anything.
    """
    content = dict(otherwise or {})
    if path is not None:
        content |= settings_in(path, BadSettings)
        if isinstance(content.get("env"), str):
            content["env"] = absolute(content["env"], beside=Path(path).parent)
    for number, override in enumerate(overrides):
        _check_undoes_none(override, overrides[:number])
        _replace(content, override)
    return read_settings(content, " with ".join(filter(None, [str(path or ""), " ".join(overrides)])))


def read_settings(content: Mapping[str, Any], where: str = "the settings") -> TrainSettings:
    """Settings from a dict. Raises BadSettings with a line for each mistake."""
    try:
        return TrainSettings.model_validate(content).applied()
    except ValidationError as error:
        lines = "".join(f"\n  {told(mistake, _known_at(mistake['loc']))}" for mistake in error.errors())
        raise BadSettings(f"In {where}:{lines}") from None


def read_parallel(given: Any) -> dict[str, Any]:
    """Return what a block `parallel`, or a dict that holds one under this name, means in the settings' own words."""
    block = given["parallel"] if isinstance(given, Mapping) and given.keys() == {"parallel"} else given
    if not isinstance(block, Mapping):
        raise BadSettings(f"parallel={block!r} is not a block of settings. Give a dict such as {{'enabled': True}}.")
    try:
        return ParallelBlock.model_validate(block).applied()
    except ValidationError as error:
        lines = "".join(f"\n  {told(mistake, ParallelBlock.model_fields)}" for mistake in error.errors())
        raise BadSettings(f"In `parallel`:{lines}") from None


def _known_at(path: Sequence[Any]) -> Collection[str]:
    return (ParallelBlock if path[0] == "parallel" else TrainSettings).model_fields


def _check_undoes_none(override: str, earlier: Sequence[str]) -> None:
    """What is said twice is a mistake, as in a file. Only a part of a whole that was replaced may be named after it."""
    key, *_ = override.partition("=")
    for other in earlier:
        if f"{other.partition('=')[0]}.".startswith(f"{key}."):
            raise BadSettings(
                f"The override {override!r} would undo {other!r}, which stands before it. Give one of them."
            )


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what `seed=3` and `train.num_iters=10` say, by the names before the `=`."""
    said = {}
    for number, override in enumerate(overrides):
        _check_undoes_none(override, overrides[:number])
        path, value = _read_override(override)
        said[".".join(path)] = value
    return said


def _read_override(override: str) -> tuple[list[str], Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise BadSettings(f"The override {override!r} has not the form key=value, as in seed=3.")
    path = key.split(".")
    if len(path) > DEEPEST + 1:
        raise BadSettings(f"The override {override[:80]}... leads into more than {DEEPEST} blocks within one another.")
    return path, value_of(text, f"The value of the override {override!r}", BadSettings)


def _replace(content: dict[str, Any], override: str) -> None:
    (*path, last), value = _read_override(override)
    for step in path:
        content = content.setdefault(step, {})
        if not isinstance(content, dict):
            raise BadSettings(f"The override {override!r} leads into `{step}`, which holds no settings.")
    content[last] = value
