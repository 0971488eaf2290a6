"""The configuration: a dict, a YAML file or `GroupsSettings`, checked word by word before anything starts.

seed: {train: 10000, val: 123}
es_manager:
  use_multiprocessing: true          # false: everything in the caller
  max_workers: 8
  sequential_env_types: [webshop]    # always in the caller
  format_penalty: -0.1               # added to an entry's penalty by each turn with an action that means nothing
  train: {env_groups: 8, group_size: 16, env_configs: {tags: [Small, Shop], n_groups: [6, 2]}}
  val: {env_groups: 512, group_size: 1, env_configs: {tags: [Small], n_groups: [512]}}
custom_envs:
  Small: {env_type: sokoban, max_actions_per_traj: 10, env_config: {dim_x: 6, dim_y: 6, num_boxes: 1}}
  Shop: {env_type: webshop, env_instruction: "You are shopping.", env_config: null}

Blocks of other names at the top belong to other parts of a larger file, and are left alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PydanticUserError,
    Tag,
    TypeAdapter,
    ValidationError,
)

from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.registry import EnvType, env_type_named, known_env_types
from parallel_envs.spelling import advice, nearest
from parallel_envs.yaml_files import settings_in

Mode = Literal["train", "val"]
Where = Literal["auto", "process", "caller"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvConfigs(_Strict):
    """Which environments: the groups of each tag, in this order."""

    tags: list[str]
    n_groups: list[PositiveInt]


class ModeBlock(_Strict):
    """The groups of a mode. The numbers of `n_groups` add up to `env_groups`."""

    env_groups: PositiveInt
    group_size: PositiveInt
    """Environments in a group. They begin alike: with the same seed."""
    env_configs: EnvConfigs


class ManagerBlock(_Strict):
    """The block `es_manager`."""

    use_multiprocessing: bool = True
    """Environments live in worker processes. False: in the caller."""
    max_workers: PositiveInt | None = None
    """At most so many worker processes. None: as many as there are cores, but at most 8."""
    sequential_env_types: list[str] = []
    """Types of environments that live in the caller in any case."""
    format_penalty: FiniteFloat = -0.1
    """Added to an entry's penalty by each turn that had no action, or one without a meaning. Punishing is negative."""
    step_timeout: PositiveFloat | None = 30.0
    """Seconds that an environment in a worker may take for the actions of a turn. None: any."""
    reset_timeout: PositiveFloat | None = 120.0
    """Seconds that it may take to begin an episode."""
    start_timeout: PositiveFloat | None = 600.0
    """Seconds that it may take to be made: to load its data, for instance."""
    context: Literal["forkserver", "spawn", "fork"] | None = None
    """How worker processes are started. None: as is quickest and safe."""
    on_failure: Literal["entry", "raise"] = "entry"
    """What a broken environment is: an entry with a `failure`, or an exception when all others have been dealt with."""
    train: ModeBlock | None = None
    val: ModeBlock | None = None


class TagBlock(_Strict):
    """A block of `custom_envs`: a kind of environment, and how it is used."""

    env_type: str
    max_actions_per_traj: PositiveInt = 10
    """Actions in an episode: who has used them up is truncated."""
    env_instruction: str = ""
    """What a prompt should say first. Passed on in `EnvStateManager.envs`."""
    max_tokens: PositiveInt | None = None
    """How long an answer may be. Passed on likewise."""
    env_config: dict[str, Any] | None = None
    """What the environment is made with."""
    where: Where = "auto"
    """`process`, `caller`, or `auto`: in the caller where its type is known to be light, else in processes."""
    parallel_friendly: bool = False
    """Its environments spend their time waiting (for a server, a disk) and may be stepped at once by threads, within
    their worker processes."""
    max_workers: PositiveInt | None = None
    """With `parallel_friendly`, at most so many threads in a worker. None: one for each environment."""


class SeedBlock(_Strict):
    """Where seeds begin, by mode."""

    train: NonNegativeInt | None = None
    val: NonNegativeInt | None = None


_FORMS = ("one seed", "seeds by mode")
Seed = Annotated[
    Annotated[NonNegativeInt, Tag(_FORMS[0])] | Annotated[SeedBlock, Tag(_FORMS[1])],
    Discriminator(lambda said: _FORMS[isinstance(said, Mapping | SeedBlock)]),
]


class GroupsSettings(_Strict):
    """The whole of it."""

    es_manager: ManagerBlock
    custom_envs: dict[str, TagBlock]
    seed: Seed = Field(default_factory=SeedBlock)
    """train: without it, runs differ. val: without it, 123."""

    def block(self, mode: str) -> ModeBlock:
        """The groups of a mode."""
        if mode not in ("train", "val"):
            raise BadSettings(f"mode={mode!r} is unknown. Say 'train' or 'val'.")
        block: ModeBlock | None = getattr(self.es_manager, mode)
        if block is None:
            raise BadSettings(
                f"`es_manager.{mode}` is missing, and mode={mode!r} was asked for. Say which groups it has."
            )
        return block

    def root_seed(self, mode: str) -> int | None:
        """Where a mode's seeds begin. None: nothing was said."""
        said: int | None = self.seed if isinstance(self.seed, int) else getattr(self.seed, mode)
        return 123 if said is None and mode == "val" else said


# ---- reading ------------------------------------------------------------------------------------------------------


def read_settings(given: Any) -> GroupsSettings:
    """Settings from a mapping, from the path of a YAML file, or as they are. Raises `BadSettings`."""
    if isinstance(given, GroupsSettings):
        settings = given
    elif isinstance(given, Mapping):
        settings = _checked(_plain(given), "the configuration")
    elif isinstance(given, str | Path):
        settings = _checked(settings_in(Path(given), BadSettings), str(given))
    else:
        raise BadSettings(
            f"The configuration is a {type(given).__name__}. Give a dict, the path of a YAML file, or GroupsSettings."
        )
    _check_sense(settings)
    return settings


def _plain(value: Any) -> Any:
    """Dicts and lists in the place of whatever mappings and sequences a configuration library has."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | tuple):
        return [_plain(one) for one in value]
    return value


def _checked(content: dict[str, Any], where: str) -> GroupsSettings:
    ours = {key: value for key, value in content.items() if key in GroupsSettings.model_fields}
    for key in content.keys() - ours.keys():
        if (close := nearest(key, GroupsSettings.model_fields)) is not None:
            raise BadSettings(f"In {where}:\n  `{key}` is unknown. Did you mean `{close}`?")
    try:
        return GroupsSettings.model_validate(ours)
    except ValidationError as error:
        lines = "".join(f"\n  {_told(mistake)}" for mistake in error.errors())
        raise BadSettings(f"In {where}:{lines}") from None


def _told(mistake: Mapping[str, Any]) -> str:
    path = [part for part in mistake["loc"] if part not in _FORMS]
    name = ".".join(map(str, path))
    if mistake["type"] == "extra_forbidden":
        return f"`{name}` is unknown. {advice(str(path[-1]), _fields_beside(path))}"
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    if mistake["type"] == "literal_error":
        known = re.findall("'(.*?)'", mistake["ctx"]["expected"])
        return f"`{name}: {mistake['input']!r}` is unknown. {advice(str(mistake['input']), known)}"
    return f"`{name}: {mistake['input']!r}`: {_sentence(mistake['msg'])}"


def _sentence(message: str) -> str:
    said = re.sub("^Value error, | or instance of [A-Za-z]+", "", message)
    return said if said.endswith((".", "?")) else f"{said}."


def _fields_beside(path: Sequence[Any]) -> list[str]:
    """The names that could stand where the last one of `path` does."""
    match path:
        case ("es_manager", _):
            kind: type[BaseModel] = ManagerBlock
        case ("es_manager", _, _):
            kind = ModeBlock
        case ("es_manager", _, "env_configs", _):
            kind = EnvConfigs
        case ("custom_envs", _, _):
            kind = TagBlock
        case _:
            kind = SeedBlock
    return list(kind.model_fields)


def _check_sense(settings: GroupsSettings) -> None:
    """What single words cannot show."""
    for mode in ("train", "val"):
        if (block := getattr(settings.es_manager, mode)) is not None:
            _check_groups(block, f"es_manager.{mode}", settings.custom_envs)
    for name in settings.es_manager.sequential_env_types:
        if name not in known_env_types():
            raise BadSettings(
                f"`es_manager.sequential_env_types` has {name!r}, which is no env_type. "
                f"{advice(name, known_env_types())}"
            )


def _check_groups(block: ModeBlock, where: str, tags: Mapping[str, TagBlock]) -> None:
    named = block.env_configs
    if len(named.tags) != len(named.n_groups):
        raise BadSettings(
            f"`{where}.env_configs` has {len(named.tags)} tags and {len(named.n_groups)} n_groups. Give one number of "
            "groups for each tag."
        )
    if sum(named.n_groups) != block.env_groups:
        raise BadSettings(
            f"`{where}.env_configs.n_groups` add up to {sum(named.n_groups)}, and `env_groups` is {block.env_groups}. "
            "Make them agree."
        )
    for tag in named.tags:
        if tag not in tags:
            raise BadSettings(
                f"The tag {tag!r} of `{where}.env_configs.tags` is not in `custom_envs`. {advice(tag, tags)}"
            )


def read_env_config(tag: str, block: TagBlock) -> tuple[EnvType, Any]:
    """The type of a tag's environments, and the config that its factory is to be given."""
    where = f"custom_envs.{tag}"
    try:
        kind = env_type_named(block.env_type)
    except BadSettings as error:
        raise BadSettings(f"In `{where}`: {error}") from None
    given = block.env_config or {}
    if kind.config is None:
        return kind, given
    known = {field.name for field in dataclasses.fields(kind.config) if field.init}
    for name in given:
        if name not in known:
            raise BadSettings(f"`{where}.env_config.{name}` is unknown. {advice(name, known)}")
    return kind, _made(kind.config, given, f"{where}.env_config")


def _made(kind: type, given: Mapping[str, Any], where: str) -> Any:
    try:
        return _validator(kind)(given)
    except ValidationError as error:
        lines = "".join(f"\n  {_of_config(mistake, where)}" for mistake in error.errors())
        raise BadSettings(f"In `{where}`:{lines}") from None
    except (ValueError, TypeError) as error:  # the config's own check of itself
        raise BadSettings(f"In `{where}`: {error}") from None


def _validator(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """Makes a config, with its fields checked against their types where these can be."""
    try:
        return TypeAdapter(kind).validate_python
    except (PydanticUserError, NameError):  # it has a field of a type of the user's own
        return lambda given: kind(**given)


def _of_config(mistake: Mapping[str, Any], where: str) -> str:
    name = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    said = _sentence(mistake["msg"])
    return f"`{name}: {mistake['input']!r}`: {said}" if name else said
