"""What a meta-RL run is to do: a dict or a YAML file, checked word by word before anything starts.

env:
  env_type: meta
  env_name: AntDir-v0                  # families.py lists those known by name; package.module:Class; a Gymnasium id
  max_rollouts_per_task: 2             # inner episodes on one task, which are one rollout
  num_train_tasks: 50                  # null: a new one for each rollout
  num_eval_tasks: 20
  num_parallel_workers: 6
train: {num_rollouts_per_iter: 12, num_iters: 100}
policy: {arch: memory, algorithm: {name: ppo, learning_rate: 0.001}}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from parallel_envs import standard_names
from parallel_envs.choices import Backend, OnDivergence, OnFailure
from parallel_envs.env_files import absolute
from parallel_envs.learners.config import RESET_TIMEOUT, START_TIMEOUT, STEP_TIMEOUT, BadSettings
from parallel_envs.spelling import advice, nearest
from parallel_envs.yaml_files import settings_in


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvBlock(_Strict):
    """The arguments of `Learner.init_env`."""

    env_type: str = "meta"
    """"meta": tasks of one family, several episodes on each."""
    env_name: Annotated[str, AfterValidator(absolute)]
    """A known family (`AntDir-v0`), `package.module:Class`, `./file.py:Class`, or a Gymnasium id."""
    max_rollouts_per_task: PositiveInt
    """Inner episodes on one task, which together are one rollout."""
    num_train_tasks: PositiveInt | None
    """None: each rollout has a task of its own, which is none of those for evaluation."""
    num_eval_tasks: PositiveInt
    num_parallel_workers: PositiveInt = 4
    num_envs: PositiveInt | None = None
    """Environments that train side by side. None: one for each worker."""
    backend: Backend = "process"
    share_tasks: bool = False
    """Evaluate on tasks that are trained on, too. For small families whose published figures are made so."""
    env_kwargs: dict[str, Any] = {}
    """For the family's environments, and for `MultiEpisodeWrapper` (`horizon`, `rescale_actions`, `oracle` ...)."""
    on_failure: OnFailure = "restart"
    """What to do when an environment raises or hangs, or its worker dies. "restart": the broken part is replaced, and
    the rollout is played again from its beginning. "raise": the error ends the training. A single environment
    (`num_envs: 1`) is played in this process: there errors are raised and no deadline holds."""
    step_timeout: PositiveFloat | None = STEP_TIMEOUT
    """Seconds that a step of an environment may take. None: as long as it takes."""
    reset_timeout: PositiveFloat | None = RESET_TIMEOUT
    """The same for a reset."""
    start_timeout: PositiveFloat | None = START_TIMEOUT
    """The same for the construction of the environments."""
    max_restarts: PositiveInt = 10
    """How often each worker may be restarted within `restart_window` seconds. The next failure is raised."""
    restart_window: PositiveFloat = 600.0
    """Seconds in which a deadline ran out are not counted."""
    manager_options: dict[str, Any] = {}
    """Everything else for `ParallelEnvManager`. Where it says what a word above says, it counts."""


class TrainBlock(_Strict):
    """How much is collected and learnt."""

    num_iters: PositiveInt | None = None
    """Times that rollouts are collected and learnt from. None: 100, unless `n_env_steps_total` says when to end."""
    n_env_steps_total: PositiveInt | None = None
    """Steps of environments after which no more is collected."""
    num_init_rollouts_pool: NonNegativeInt = 0
    """Rollouts with random actions, before anything else, for agents that learn from a replay buffer."""
    num_rollouts_per_iter: PositiveInt = 12
    num_updates_per_iter: PositiveInt | None = None
    """For agents that learn from a replay buffer; None: 1. PPO makes one update of each iteration's rollouts."""
    reward_scale: PositiveFloat = 1.0
    """What rewards are multiplied by where they are learnt from; reports are not scaled."""
    last_learning_rate: float = Field(default=1.0, ge=0.0, le=1.0)
    """What is left of the learning rate at the end, as a share; it changes in a straight line over the training."""
    end_is_final: bool = True
    """Nothing counts that would come after a rollout's end: it is the end of all that is played on the task."""
    on_divergence: OnDivergence = "skip"
    """An update that is not finite is undone. "skip": training goes on, with no more updates in that iteration;
    "raise": it ends."""
    exact: bool = False
    """Each row's actions are computed by itself: the same numbers to the bit for any number of workers, and slower."""


class EvalBlock(_Strict):
    """How adaptation is measured."""

    interval: PositiveInt | None = None
    """Iterations between evaluations. None: a tenth of all; there is always one at the end."""
    num_rollouts_per_task: PositiveInt = 1
    deterministic: bool = False
    """Take the likeliest action in the place of one that is drawn."""


class MemoryBlock(_Strict):
    """What remembers, where the architecture does."""

    name: Literal["gru", "fast_weights"] = "gru"
    """A gated recurrent unit, or a matrix to which each step adds (`fast_weights.py`). The one may learn to remember
    anything; the other begins by remembering what was done and got where, and is soon read."""
    num_places: PositiveInt | None = None
    """Rows of the matrix: places to look in, which what is seen is shared out among. None: 32."""
    num_values: PositiveInt | None = None
    """Its columns: numbers that each place holds, sums of what came of being there. None: 32."""


class PolicyBlock(_Strict):
    """What acts and learns."""

    arch: Literal["markov", "memory", "memory_markov"] = "memory"
    memory: MemoryBlock = MemoryBlock()
    algorithm: dict[str, Any] = {"name": "ppo"}
    """`name` (ppo, dqn, sac), and the fields of that algorithm's config."""
    memory_span: PositiveInt | None = None
    """Steps that a GRU's memories last at the beginning: each number that is remembered its own, from 1 to so many
    (Tallec and Ollivier 2018, arXiv 1804.11188). None: as many as a rollout has at most."""
    begin_with: Path | None = None
    """A run or a checkpoint of an agent of the same form, whose network this one begins with."""


class MetaSettings(_Strict):
    """All that a run depends on."""

    env: EnvBlock
    train: TrainBlock = TrainBlock()
    eval: EvalBlock = EvalBlock()
    policy: PolicyBlock = PolicyBlock()
    seed: int = Field(default=0, ge=0)
    folder: Path | None = None
    """The run's own. None: a new one in `runs`."""
    checkpoint_every: PositiveInt | None = None
    """Iterations between checkpoints; None: a tenth of all."""
    keep_checkpoints: PositiveInt = 3
    tensorboard: bool = False

    def described(self) -> dict[str, Any]:
        """Everything, defaults as well, as JSON can say it. Raises BadSettings for what it cannot."""
        try:
            return self.model_dump(mode="json")
        except PydanticSerializationError as error:
            raise BadSettings(
                f"Some of the settings cannot be written down, and a run's folder holds all of them: {error}. Give "
                "`env_kwargs` and `manager_options` plain values, or an `env_name` whose class needs none."
            ) from error


_BLOCKS: dict[str, type[BaseModel]] = {
    "env": EnvBlock,
    "train": TrainBlock,
    "eval": EvalBlock,
    "policy": PolicyBlock,
    "policy.memory": MemoryBlock,
}


def is_meta(content: Mapping[str, Any]) -> bool:
    """Return whether settings are those of a meta-RL run: their `env` is a block, and elsewhere it is a name."""
    return isinstance(content.get("env"), Mapping)


def load_settings(given: Any, overrides: Mapping[str, Any] | None = None) -> MetaSettings:
    """Settings of a dict, of the path of a YAML file, or of settings.

    Args:
        given: One of these.
        overrides: What takes the place of some: `{"seed": 3, "train.num_iters": 10}`.

    Raises:
        BadSettings: a line for each mistake, with the nearest right word.
    """
    if isinstance(given, MetaSettings):
        given = given.described()
    where = "the settings" if isinstance(given, Mapping) else str(given)
    if overrides:
        where = f"{where} with {' '.join(f'{key}={value}' for key, value in overrides.items())}"
    content = dict(given) if isinstance(given, Mapping) else settings_in(given, BadSettings)
    for key, value in (overrides or {}).items():
        content = _replaced(content, key.split("."), value)
    try:
        settings = MetaSettings.model_validate(content)
    except ValidationError as error:
        lines = "".join(f"\n  {_told(mistake)}" for mistake in error.errors())
        raise BadSettings(f"In {where}:{lines}") from None
    check(settings)
    return settings


def check(settings: MetaSettings) -> None:
    """Raise BadSettings for what contradicts itself."""
    env, train = settings.env, settings.train
    if env.env_type != "meta":
        raise BadSettings(f"`env.env_type: {env.env_type}` is unknown. {advice(env.env_type, ['meta'])}")
    if train.num_iters is not None and train.n_env_steps_total is not None:
        raise BadSettings(
            "`train.num_iters` and `train.n_env_steps_total` both say when training ends. Say it in one place."
        )
    if env.num_envs is not None and env.backend != "serial" and env.num_envs < env.num_parallel_workers:
        raise BadSettings(
            f"`env.num_parallel_workers: {env.num_parallel_workers}` is more than `env.num_envs: {env.num_envs}`, so "
            "some workers would hold no environment. Ask for fewer workers or more environments."
        )
    _check_rates(train, settings.policy.algorithm)
    span, memory = settings.policy.memory_span, settings.policy.memory.name
    if span is not None and memory != "gru":
        raise BadSettings(
            f"`policy.memory_span: {span}` is for GRUs, and `policy.memory.name: {memory}` forgets nothing. Leave it "
            "out."
        )
    if settings.policy.algorithm.get("name") == "ppo":
        _check_on_policy(train)


def _check_rates(train: TrainBlock, algorithm: Mapping[str, Any]) -> None:
    last, end = train.last_learning_rate, algorithm.get("learning_rate_end")
    if last != 1.0 and end is not None:
        raise BadSettings(
            f"`train.last_learning_rate: {last}` and `policy.algorithm.learning_rate_end: {end}` both say how the "
            "learning rate falls, and one would multiply the other. Say it in one place."
        )


def _check_on_policy(train: TrainBlock) -> None:
    for field in ("num_init_rollouts_pool", "num_updates_per_iter"):
        if getattr(train, field):
            raise BadSettings(
                f"`train.{field}: {getattr(train, field)}` was given, and PPO learns once from each iteration's own "
                "rollouts. Leave it out, or choose dqn or sac."
            )


def _replaced(content: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The same with another value at the end of a path. What was given stays as it is."""
    first, *rest = path
    if not rest:
        return {**content, first: value}
    inner = content.get(first, {})
    if not isinstance(inner, Mapping):
        raise BadSettings(f"The override `{'.'.join(path)}` leads into `{first}`, which holds no settings.")
    return {**content, first: _replaced(inner, rest, value)}


def _right_word(word: str, known: Collection[str]) -> str:
    """What was meant by a word that is not known where it stands: `known` are those that are.

    A word that another block knows is told by its whole path, as is what a name of another package is called there.
    """
    paths = _paths()
    if standard := standard_names.told(word, known):
        return standard
    if word in paths:
        return f"Did you mean {_listed(paths[word])}?"
    for meaning in standard_names.meanings_elsewhere(word, known):
        if meaning.ours in paths:
            return f"It is called {_listed(paths[meaning.ours])} here.{meaning.note and f' {meaning.note}'}"
    if nearest(word, known) is None and (close := nearest(word, paths)) is not None:
        return f"Did you mean {_listed(paths[close])}?"
    return advice(word, known)


def _paths() -> dict[str, list[str]]:
    """Where each setting is, by the last part of its path; those of algorithms, too."""
    from parallel_envs.learners.agent import configs_by_name  # brings torch, so only where something is wrong

    found: dict[str, list[str]] = {name: [name] for name in MetaSettings.model_fields}
    for block, kind in _BLOCKS.items():
        for name in kind.model_fields:
            found.setdefault(name, []).append(f"{block}.{name}")
    for field in dict.fromkeys(one.name for kind in configs_by_name().values() for one in dataclasses.fields(kind)):
        found.setdefault(field, []).append(f"policy.algorithm.{field}")
    return found


def _listed(paths: Sequence[str]) -> str:
    return " or ".join(f"`{path}`" for path in paths)


def _told(mistake: Mapping[str, Any]) -> str:
    name = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        where, _, word = name.rpartition(".")
        return f"`{name}` is unknown. {_right_word(word, _BLOCKS.get(where, MetaSettings).model_fields)}"
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    return f"`{name}: {mistake['input']!r}`: {mistake['msg']}."
