"""The configuration of groups: its blocks, their fields, and the defaults. `config_reader` reads it.

seed: {train: 10000, val: 123}
es_manager:
  use_multiprocessing: true          # false: everything in the caller
  max_workers: 8
  sequential_env_types: [webshop]    # always in the caller
  format_penalty: -0.1               # added to an entry's penalty by each turn with an invalid action
  train: {env_groups: 8, group_size: 16, env_configs: {tags: [Small, Shop], n_groups: [6, 2]}}
  val: {env_groups: 512, group_size: 1, env_configs: {tags: [Small], n_groups: [512]}}
custom_envs:
  Small: {env_type: sokoban, max_actions_per_traj: 10, env_config: {dim_x: 6, dim_y: 6, num_boxes: 1}}
  Shop: {env_type: webshop, env_instruction: "You are shopping.", env_config: null}

Without `n_groups` the `env_groups` are split evenly among the tags. A configuration whose `es_manager` names no groups,
and that has no `custom_envs`, gets default ones: 8 groups of 16 rooms of Sokoban to train in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StrictBool,
    Tag,
    TypeAdapter,
)
from pydantic_core import PydanticKnownError, SchemaValidator, core_schema

from parallel_envs.choices import GroupFailure, GroupMode, StartMethod, Where, words
from parallel_envs.groups.failures import BadSettings

# ---- bools and numbers ----------------------------------------------------------------------------------------------
# Bools are not accepted as numbers, nor "yes" and "8" as bools and whole numbers. 1.0 is a whole number. A fraction may
# be a text, because YAML reads `1e-3` as one.


def _refuse_bool_and_text(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise PydanticKnownError("int_type")
    return value


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


Flag = StrictBool
Count = Annotated[PositiveInt, BeforeValidator(_refuse_bool_and_text)]
CountFromZero = Annotated[NonNegativeInt, BeforeValidator(_refuse_bool_and_text)]
Number = Annotated[FiniteFloat, BeforeValidator(_refuse_bool)]
Seconds = Annotated[PositiveFloat, BeforeValidator(_refuse_bool)]


def dataclass_reader(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that makes a dataclass from a mapping and checks its fields like those of the blocks."""
    return SchemaValidator(_with_checks(TypeAdapter(kind).core_schema)).validate_python


_LEFT_ALONE = {"default", "metadata", "serialization", "keys_schema"}
"""Parts of a schema that describe no value, and keys, which JSON has as texts only."""


def _with_checks(schema: Any) -> Any:
    """Return a pydantic schema, and all schemas within it, with the checks of bools and numbers."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_with_checks, schema))
    if not isinstance(schema, dict):
        return schema
    inner = {name: part if name in _LEFT_ALONE else _with_checks(part) for name, part in schema.items()}
    match schema.get("type"):
        case "bool":
            return {**inner, "strict": True}
        case "int":
            return core_schema.no_info_before_validator_function(_refuse_bool_and_text, inner)
        case "float":
            return core_schema.no_info_before_validator_function(_refuse_bool, inner)
    return inner


# ---- blocks ---------------------------------------------------------------------------------------------------------


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvConfigs(_Block):
    """The tags of a mode, in order, and the number of groups of each."""

    tags: list[str]
    n_groups: list[Count] | None = None
    """The groups of each tag. None: the `env_groups` are split evenly."""


class ModeBlock(_Block):
    """The groups of a mode. The numbers of `n_groups` add up to `env_groups`."""

    env_groups: Count
    group_size: Count
    """Environments in a group. They begin with the same seed."""
    env_configs: EnvConfigs

    @property
    def groups_of_tags(self) -> list[int]:
        """Return the number of groups of each tag. Without `n_groups` it is an even split, rounded down."""
        named = self.env_configs
        return [self.env_groups // len(named.tags)] * len(named.tags) if named.n_groups is None else named.n_groups


class ManagerBlock(_Block):
    """The block `es_manager`."""

    use_multiprocessing: Flag = True
    """Environments live in worker processes. False: in the caller."""
    max_workers: Count | None = None
    """The most worker processes. None: as many as there are cores, but at most 8."""
    sequential_env_types: list[str] = []
    """Types of environments that live in the caller in any case."""
    format_penalty: Number = -0.1
    """Added to an entry's penalty by each turn without an action, or with an invalid one. Negative to punish."""
    step_timeout: Seconds | None = 300.0
    """Seconds that an environment in a worker may take for the actions of a turn. None: no limit."""
    reset_timeout: Seconds | None = 600.0
    """Seconds that it may take to begin an episode."""
    start_timeout: Seconds | None = 600.0
    """Seconds that its construction may take: to load its data, for instance."""
    context: StartMethod | None = None
    """The start method of worker processes. None: the quickest safe one."""
    on_failure: GroupFailure = "entry"
    """Result of a broken environment: an entry with a `failure`, or an exception after all others have been played."""
    train: ModeBlock | None = None
    val: ModeBlock | None = None


class TagBlock(_Block):
    """A block of `custom_envs`: a type of environment, and how it is used."""

    env_type: str
    max_actions_per_traj: Count = 10
    """Actions in an episode: an episode that has used them up is truncated."""
    env_instruction: str = ""
    """Beginning of a prompt. Passed on in `EnvStateManager.envs`."""
    max_tokens: Count | None = None
    """The longest answer. Passed on likewise."""
    env_config: dict[str, Any] | None = None
    """The config of the environment."""
    where: Where = "auto"
    """`process`; `caller`; `both`, if no other environments need processes: the caller is one of the `max_workers`, and
    steps its share while it would wait for the others (without deadlines: it cannot be interrupted); or `auto`: the
    best place for its type, a process if nothing is known of it."""
    parallel_friendly: Flag = False
    """Its environments spend their time waiting (for a server, a disk) and may be stepped at once by threads, within
    their worker processes."""
    max_workers: Count | None = None
    """With `parallel_friendly`, the most threads in a worker. None: one for each environment."""


class SeedBlock(_Block):
    """The seed of each mode."""

    train: CountFromZero | None = None
    val: CountFromZero | None = None


SEED_FORMS = ("one seed", "seeds by mode")
"""Names of the two forms of `seed` in the locations of pydantic's errors."""

Seed = Annotated[
    Annotated[CountFromZero, Tag(SEED_FORMS[0])] | Annotated[SeedBlock, Tag(SEED_FORMS[1])],
    Discriminator(lambda said: SEED_FORMS[isinstance(said, Mapping | SeedBlock)]),
]


class GroupsSettings(_Block):
    """The whole configuration."""

    es_manager: ManagerBlock
    custom_envs: dict[str, TagBlock]
    seed: Seed = Field(default_factory=SeedBlock)
    """Default for `train`: a random seed. Default for `val`: 123."""

    def block(self, mode: str) -> ModeBlock:
        """Return the groups of a mode."""
        if mode not in words(GroupMode):
            raise BadSettings(f"mode={mode!r} is unknown. Say 'train' or 'val'.")
        block: ModeBlock | None = getattr(self.es_manager, mode)
        if block is None:
            raise BadSettings(
                f"`es_manager.{mode}` is missing, and mode={mode!r} was asked for. Say which groups it has."
            )
        return block

    def root_seed(self, mode: str) -> int | None:
        """Return the seed of a mode, or None for a random one."""
        seed: int | None = self.seed if isinstance(self.seed, int) else getattr(self.seed, mode)
        return 123 if seed is None and mode == "val" else seed


# ---- defaults -------------------------------------------------------------------------------------------------------

_DEFAULT_TAG = "CoordSokoban"
DEFAULT_CUSTOM_ENVS: Mapping[str, Any] = {
    _DEFAULT_TAG: {
        "env_type": "sokoban",
        "max_actions_per_traj": 10,
        "env_instruction": "You are solving the Sokoban puzzle. You are the player and push all boxes onto targets.",
        "max_tokens": 100,
        "env_config": {"observation_format": "grid_coord", "dim_room": [6, 6], "num_boxes": 1, "max_steps": 100},
    }
}
DEFAULT_MODES: Mapping[str, Any] = {
    "train": {"env_groups": 8, "group_size": 16, "env_configs": {"tags": [_DEFAULT_TAG], "n_groups": [8]}},
    "val": {"env_groups": 32, "group_size": 16, "env_configs": {"tags": [_DEFAULT_TAG], "n_groups": [32]}},
}


def with_default_groups(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the default groups, if it has no groups in `es_manager` and no `custom_envs`.

    If it has one of the two, it is returned as it is, since the other one's defaults would not fit it.
    """
    block = content.get("es_manager")
    if "custom_envs" in content or not isinstance(block, Mapping) or DEFAULT_MODES.keys() & block.keys():
        return dict(content)
    return copy.deepcopy({**content, "custom_envs": DEFAULT_CUSTOM_ENVS, "es_manager": {**block, **DEFAULT_MODES}})
