"""Settings of a meta-RL run: a dict or a YAML file, checked before anything starts.

env:
  env_type: meta
  env_name: AntDir-v0                  # a known family; package.module:Class; a Gymnasium id
  max_rollouts_per_task: 2             # inner episodes on one task: together they are one rollout
  num_train_tasks: 50                  # null: a new task for each rollout
  num_eval_tasks: 20
  num_parallel_workers: 6
train: {num_rollouts_per_iter: 12, num_iters: 100}
policy: {arch: memory, algorithm: {name: ppo, learning_rate: 0.001}}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_core import PydanticSerializationError

from parallel_envs.checks import right_setting
from parallel_envs.choices import Backend, OnDivergence
from parallel_envs.env_files import absolute
from parallel_envs.learners.config import (
    BadSettings,
    Block,
    FailureSettings,
    WritersBlock,
    read_block,
    replaced,
    right_writer,
)
from parallel_envs.settings import settings_in


class EnvBlock(FailureSettings):
    """Settings of tasks and environments: the arguments of `Learner.init_env`.

    With `on_failure: restart` a rollout is played again from its beginning. A single environment (`num_envs: 1`) runs
    in this process: errors are raised, and there are no deadlines.
    """

    env_type: Literal["meta"] = "meta"
    """"meta": tasks of one family, several episodes on each."""
    env_name: Annotated[str, AfterValidator(absolute)]
    """A known family (`AntDir-v0`), `package.module:Class`, `./file.py:Class`, or a Gymnasium id."""
    max_rollouts_per_task: PositiveInt
    """Inner episodes on one task. Together they are one rollout."""
    num_train_tasks: PositiveInt | None
    """None: each rollout has a new task, which is never an evaluation task."""
    num_eval_tasks: PositiveInt
    num_parallel_workers: PositiveInt = 4
    num_envs: PositiveInt | None = None
    """Parallel environments for training. None: one for each worker."""
    backend: Backend = "process"
    share_tasks: bool = False
    """Let evaluation tasks be training tasks too, as in the published figures of some small families."""
    env_kwargs: dict[str, Any] = Field(default={})
    """Keywords for the environments and for `MultiEpisodeWrapper` (`horizon`, `rescale_actions`, `oracle` ...)."""
    manager_options: dict[str, Any] = Field(default={})
    """Other keywords for `ParallelEnvManager`. They override the settings above."""


class TrainBlock(Block):
    """Settings of collecting and learning."""

    num_iters: PositiveInt | None = None
    """Iterations of collecting and learning. None: 100, unless `n_env_steps_total` says when to end."""
    n_env_steps_total: PositiveInt | None = None
    """Environment steps after which training ends."""
    num_init_rollouts_pool: NonNegativeInt = 0
    """Rollouts with random actions at the beginning, for agents that learn from a replay buffer."""
    num_rollouts_per_iter: PositiveInt = 12
    num_updates_per_iter: PositiveInt | None = None
    """Updates per iteration from a replay buffer. None: 1. PPO makes one update from each iteration's rollouts."""
    reward_scale: PositiveFloat = 1.0
    """Factor for the rewards that are learnt from. Reported returns are not scaled."""
    last_learning_rate: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the learning rate at the end. The learning rate changes linearly over the training."""
    end_is_final: bool = True
    """Treat the end of a rollout as terminal: nothing after it counts."""
    on_divergence: OnDivergence = "skip"
    """Reaction to an update that is not finite, after it was undone. "skip": training goes on, without more updates in
    that iteration. "raise": training ends."""
    exact: bool = False
    """Compute each row's actions separately: slower, but equal to the bit for any number of workers."""


class EvalBlock(Block):
    """Settings of evaluation."""

    interval: PositiveInt | None = None
    """Iterations between evaluations. None: a tenth of all. There is always one at the end."""
    num_rollouts_per_task: PositiveInt = 1
    deterministic: bool = False
    """Take the likeliest action instead of a random one."""


class MemoryBlock(Block):
    """Settings of the memory, for architectures with one."""

    name: Literal["gru", "fast_weights"] = "gru"
    """A gated recurrent unit, or a matrix to which each step adds (`FastWeights`). The GRU may learn to remember
    anything. Fast weights remember actions and outcomes from the beginning, and learning to read them is quick."""
    num_places: PositiveInt | None = None
    """Rows of the fast weights' matrix. None: 32."""
    num_values: PositiveInt | None = None
    """Columns of the fast weights' matrix. None: 32."""


class PolicyBlock(Block):
    """Settings of the agent."""

    arch: Literal["markov", "memory", "memory_markov"] = "memory"
    memory: MemoryBlock = MemoryBlock()
    algorithm: dict[str, Any] = Field(default={"name": "ppo"})
    """`name` (ppo, dqn, sac) and fields of that algorithm's config."""
    memory_span: PositiveInt | None = None
    """Steps that the memory of an untrained GRU lasts: each number of it lasts between 1 and so many steps (Tallec and
    Ollivier 2018, arXiv 1804.11188). None: the most steps of a rollout."""
    begin_with: Path | None = None
    """Run or checkpoint of an agent with the same network, from which to take the initial weights."""


class MetaSettings(Block):
    """All settings of a run."""

    env: EnvBlock
    train: TrainBlock = TrainBlock()
    eval: EvalBlock = EvalBlock()
    policy: PolicyBlock = PolicyBlock()
    seed: int = Field(default=0, ge=0)
    device: str = "cpu"
    """Where the network learns and acts: "cpu", "cuda", "cuda:1", "mps", or "auto" (CUDA if torch finds it here, else
    MPS, else the CPU). A run may be resumed on another device."""
    folder: Path | None = None
    """The run's folder. None: a new one in `runs`."""
    checkpoint_every: PositiveInt | None = None
    """Iterations between checkpoints; None: a tenth of all."""
    keep_checkpoints: PositiveInt = 3
    tensorboard: bool = False
    writers: WritersBlock = WritersBlock()
    """Where metrics are also written: as in the settings of other runs."""

    def described(self) -> dict[str, Any]:
        """Return all settings with defaults, as plain values for JSON. Raises BadSettings for other values."""
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
    """Return whether these are settings of a meta-RL run. There `env` is a block, in other runs it is a name."""
    return isinstance(content.get("env"), Mapping)


def load_settings(given: Any, overrides: Mapping[str, Any] | None = None) -> MetaSettings:
    """Read a dict, a YAML file or settings, with some replaced: `{"seed": 3, "train.num_iters": 10}`.

    Raises BadSettings with a line for each mistake.
    """
    if isinstance(given, MetaSettings):
        given = given.described()
    where = "the settings" if isinstance(given, Mapping) else str(given)
    if overrides:
        where = f"{where} with {' '.join(f'{key}={value}' for key, value in overrides.items())}"
    content = given if isinstance(given, Mapping) else settings_in(given, BadSettings)
    settings = read_block(MetaSettings, replaced(content, overrides or {}), where, _right)
    env, train, policy = settings.env, settings.train, settings.policy
    workers, last, end = env.num_parallel_workers, train.last_learning_rate, policy.algorithm.get("learning_rate_end")
    by_ppo = policy.algorithm.get("name") == "ppo"
    contradictions = {
        "`train.num_iters` and `train.n_env_steps_total` both say when training ends. Give one.": (
            train.num_iters is not None and train.n_env_steps_total is not None
        ),
        f"`env.num_parallel_workers: {workers}` is more than `env.num_envs: {env.num_envs}`, so some workers would "
        "hold no environment. Ask for fewer workers or more environments.": (
            env.num_envs is not None and env.backend != "serial" and env.num_envs < workers
        ),
        f"`train.last_learning_rate: {last}` and `policy.algorithm.learning_rate_end: {end}` both say how the "
        "learning rate falls. Give one.": last != 1.0 and end is not None,
        f"`policy.memory_span: {policy.memory_span}` is for GRUs. Leave it out.": (
            policy.memory_span is not None and policy.memory.name != "gru"
        ),
        "`train.num_init_rollouts_pool` and `train.num_updates_per_iter` are for dqn and sac: PPO learns once from "
        "each iteration's own rollouts. Leave them out.": (
            by_ppo and bool(train.num_init_rollouts_pool or train.num_updates_per_iter)
        ),
    }
    for text, is_so in contradictions.items():
        if is_so:
            raise BadSettings(text)
    return settings


def _right(path: str) -> str:
    """Return advice for an unknown setting. It names the full path of a setting in another block."""
    if advice := right_writer(path):
        return advice
    from parallel_envs.learners.agent import configs_by_name  # late: it imports torch

    paths: dict[str, list[str]] = {name: [f"`{name}`"] for name in MetaSettings.model_fields}
    for block, kind in _BLOCKS.items():
        for name in kind.model_fields:
            paths.setdefault(name, []).append(f"`{block}.{name}`")
    for field in dict.fromkeys(one.name for kind in configs_by_name().values() for one in dataclasses.fields(kind)):
        paths.setdefault(field, []).append(f"`policy.algorithm.{field}`")
    block, _, word = path.rpartition(".")
    known = _BLOCKS.get(block, MetaSettings).model_fields
    return right_setting(word, known, {name: " or ".join(own) for name, own in paths.items() if name not in known})
