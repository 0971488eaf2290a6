"""The configuration of groups: its blocks, their fields, the defaults, and `read_settings`, which reads it.

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

Other names at the top belong to other parts of a larger file and are ignored, unless they are fields of these blocks in
the wrong place. All of `custom_envs` is checked, whichever mode is used. But a tag that neither mode names may have an
`env_type` that is neither known nor similar to a known one, and fields that its environment does not have: a file for
many experiments may have types that another script registers, and fields of other versions of an environment.

A YAML file may have Hydra's form: a list `defaults`, and interpolations. So RAGEN's `base.yaml` beside its `envs.yaml`
can be given as it is, without Hydra. Files in `defaults` are merged in Hydra's order: the later one wins, and the file
itself comes at the place of `_self_`, or last. Blocks are merged name by name; other values are replaced. Only files in
the folder of the first one are read; others are ignored, because they may concern other parts of a training (RAGEN's
`ppo_trainer` from verl): errors name them if something is missing. The entry `group: option` names `group/option.yaml`.

An interpolation `${a.b}` stands for the value of that name; a leading dot means a name in the same block. Any other one
in the blocks that are read (a resolver such as `${oc.env:HOME}`, an unknown name, a circle) raises `BadSettings`, and
so does `???`, Hydra's mark of a missing value. `\\${` is a plain `${`.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from parallel_envs.checks import advice, explain, nearest, right_setting
from parallel_envs.choices import GroupFailure, GroupMode, StartMethod, Where, words
from parallel_envs.engine.pool import user_stacklevel
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.registry import EnvType, env_type_named, known_env_types
from parallel_envs.settings import parse_number, settings_in, type_text

_log = logging.getLogger(__name__)

# ---- blocks ---------------------------------------------------------------------------------------------------------


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _parse_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        if not type_text(cls.model_fields[str(info.field_name)].annotation).startswith(("int", "float")):
            return value
        if isinstance(number := parse_number(value), str):  # pydantic would read other texts, too
            raise ValueError("a number is wanted, not a text")
        return number


class EnvConfigs(_Block):
    """The tags of a mode, in order, and the number of groups of each."""

    tags: list[str]
    n_groups: list[PositiveInt] | None = None
    """The groups of each tag. None: the `env_groups` are split evenly."""


class ModeBlock(_Block):
    """The groups of a mode. The numbers of `n_groups` add up to `env_groups`."""

    env_groups: PositiveInt
    group_size: PositiveInt
    """Environments in a group. They begin with the same seed."""
    env_configs: EnvConfigs

    @property
    def groups_of_tags(self) -> list[int]:
        """Return the number of groups of each tag. Without `n_groups` it is an even split, rounded down."""
        named = self.env_configs
        return named.n_groups or [self.env_groups // max(len(named.tags), 1)] * len(named.tags)


class ManagerBlock(_Block):
    """The block `es_manager`."""

    use_multiprocessing: bool = True
    """Environments live in worker processes. False: in the caller."""
    max_workers: PositiveInt | None = None
    """The most worker processes. None: as many as there are cores, but at most 8."""
    sequential_env_types: list[str] = []
    """Types of environments that live in the caller in any case."""
    format_penalty: FiniteFloat = -0.1
    """Added to an entry's penalty by each turn without an action, or with an invalid one. Negative to punish."""
    step_timeout: PositiveFloat | None = 300.0
    """Seconds that an environment in a worker may take for the actions of a turn. None: no limit."""
    reset_timeout: PositiveFloat | None = 600.0
    """Seconds that it may take to begin an episode."""
    start_timeout: PositiveFloat | None = 600.0
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
    max_actions_per_traj: PositiveInt = 10
    """Actions in an episode: an episode that has used them up is truncated."""
    env_instruction: str = ""
    """Beginning of a prompt. Passed on in `EnvStateManager.envs`."""
    max_tokens: PositiveInt | None = None
    """The longest answer. Passed on likewise."""
    env_config: Mapping[str, Any] | None = None
    """The config of the environment."""
    where: Where = "auto"
    """`process`; `caller`; `both`, if no other environments need processes: the caller is one of the `max_workers`, and
    steps its share while it would wait for the others (without deadlines: it cannot be interrupted); or `auto`: the
    best place for its type, a process if nothing is known of it."""
    parallel_friendly: bool = False
    """Its environments spend their time waiting (for a server, a disk) and may be stepped at once by threads, within
    their worker processes."""
    max_workers: PositiveInt | None = None
    """With `parallel_friendly`, the most threads in a worker. None: one for each environment."""


class SeedBlock(_Block):
    """The seed of each mode."""

    train: NonNegativeInt | None = None
    val: NonNegativeInt | None = None


Seed = Annotated[
    SeedBlock, BeforeValidator(lambda said: {"train": said, "val": said} if isinstance(said, int | str) else said)
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
        seed: int | None = getattr(self.seed, mode)
        return 123 if seed is None and mode == "val" else seed


# ---- reading --------------------------------------------------------------------------------------------------------


def read_settings(given: Any) -> GroupsSettings:
    """Return settings from a mapping, from the path of a YAML file, or as they are. Raises `BadSettings`."""
    if isinstance(given, GroupsSettings):
        settings = given
    elif isinstance(given, Mapping):
        settings = _validated(given, "the configuration", ())
    elif isinstance(given, str | Path):
        missing: list[str] = []
        settings = _validated(_merged_file(Path(given), Path(given).parent, (), missing), str(given), missing)
    else:
        raise BadSettings(
            f"The configuration is a {type(given).__name__}. Give a dict, the path of a YAML file, or GroupsSettings."
        )
    _check_consistency(settings)
    return settings


_PLACES: dict[str | None, str] = {
    name: f"{place}{name}"
    for block, place in (
        (TagBlock, "custom_envs.TAG."),
        (EnvConfigs, "es_manager.train.env_configs."),
        (ModeBlock, "es_manager.train."),
        (ManagerBlock, "es_manager."),
        (GroupsSettings, ""),
    )
    for name in block.model_fields
}
"""Where each field stands."""
_DEFAULT_ENVS: Mapping[str, Any] = {
    "CoordSokoban": {
        "env_type": "sokoban",
        "max_actions_per_traj": 10,
        "env_instruction": "You are solving the Sokoban puzzle. You are the player and push all boxes onto targets.",
        "max_tokens": 100,
        "env_config": {"observation_format": "grid_coord", "dim_room": [6, 6], "num_boxes": 1, "max_steps": 100},
    }
}
_DEFAULT_GROUPS = {
    mode: {"env_groups": number, "group_size": 16, "env_configs": {"tags": ["CoordSokoban"], "n_groups": [number]}}
    for mode, number in (("train", 8), ("val", 32))
}
_OF_OTHERS = ("train", "val", "tags", "context", "where")
"""Fields that other parts of a larger file may have at the top, too."""


def _validated(content: Mapping[str, Any], source: str, missing_files: Sequence[str]) -> GroupsSettings:
    """Return the settings in a configuration. `missing_files`: files in its `defaults` that are not there.

    Only our own blocks are read: elsewhere OmegaConf's values may raise when they are read.
    """
    try:
        for key in content.keys() - GroupsSettings.model_fields.keys():
            if (close := nearest(key, GroupsSettings.model_fields, cutoff=0.85)) is not None:
                raise BadSettings(f"`{key}` is unknown. Did you mean `{close}`?")
            meant = nearest(key, ManagerBlock.model_fields, cutoff=0.85) if "_" in str(key) else None
            if (right := _PLACES.get(key, _PLACES.get(meant))) is not None and key not in _OF_OTHERS:
                raise BadSettings(f"`{key}` does not stand at the top. Write it as `{right}`.")
        ours = {key: _read_block(content, key) for key in ("es_manager", "seed") if key in content}
        if "custom_envs" in content:
            ours["custom_envs"] = _read_tags(content, ours.get("es_manager"))
        manager = ours.get("es_manager")
        if "custom_envs" not in content and isinstance(manager, Mapping) and not {"train", "val"} & manager.keys():
            ours |= {"custom_envs": _DEFAULT_ENVS, "es_manager": {**manager, **_DEFAULT_GROUPS}}
        return GroupsSettings.model_validate(ours)
    except ValidationError as error:
        text = "\n  ".join([f"In {source}:", *(explain(one, _right, written=_written) for one in error.errors())])
    except BadSettings as error:
        text = f"In {source}:\n  {error}"
    files = ", ".join(f"{name}.yaml" for name in missing_files)
    raise BadSettings(text + (f"\n  Its `defaults` name files that are not beside it: {files}." if files else ""))


def _written(path: str, word: str) -> str:
    """Return how the name of an environment, or a tag, is written that stands where a block is wanted."""
    if re.fullmatch(r"custom_envs\.[^.]+", path):
        return f"{path}: {{env_type: {word}}}"
    return f"{path}: {{tags: [{word}]}}" if path.endswith(".env_configs") else ""


def _right(path: str) -> str:
    """Return advice for an unknown setting of a block."""
    block, _, word = path.rpartition(".")
    blocks: tuple[type[BaseModel], ...] = (ManagerBlock, ModeBlock, EnvConfigs)
    if (first := block.partition(".")[0]) != "es_manager":
        blocks = (SeedBlock,) if first == "seed" else (TagBlock,)
    known = blocks[min(block.count("."), len(blocks) - 1)].model_fields
    places = {str(name): f"`{place}`" for name, place in _PLACES.items() if name not in known}
    is_of_env = first == "custom_envs" and word not in places
    within = f" What the environment is made with stands in `{block}.env_config`." if is_of_env else ""
    return right_setting(word, known, places) + within


def _read_block(content: Mapping[str, Any], *path: str) -> Any:
    """Return the value at a path of names as plain dicts and lists, with its interpolations resolved."""
    value: Any = content
    try:
        for part in path:
            value = value[part]
        value = _plain(value)
    except Exception as error:  # OmegaConf's: an interpolation of an unknown name, a missing value
        raise BadSettings(f"`{'.'.join(path)}` cannot be read: {type(error).__name__}: {error}") from error
    return _resolved(content, value, path) if isinstance(content, dict) else value  # OmegaConf resolves its own


def _plain(value: Any) -> Any:
    """Return the mappings and sequences of a configuration library as dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | tuple):
        return [_plain(one) for one in value]
    return value


def _read_tags(content: Mapping[str, Any], manager: Any) -> Any:
    """Return the block `custom_envs` without tags that no mode names and that cannot be read or have unknown fields."""
    try:
        modes = [block for mode in ("train", "val") if (block := manager.get(mode)) is not None]
        named = {tag for block in modes for tag in block["env_configs"]["tags"]}
        tags = dict.fromkeys(content["custom_envs"].keys())
    except (AttributeError, KeyError, TypeError):  # a block is wrong, which is reported later
        return _read_block(content, "custom_envs")
    blocks = {}
    for tag in tags:
        try:
            block = _read_block(content, "custom_envs", tag)
        except BadSettings as error:
            if tag in named:
                raise
            _log.debug("custom_envs.%s is left out, as neither train nor val names it: %s", tag, error)
            continue
        if tag in named or not isinstance(block, dict) or block.keys() <= TagBlock.model_fields.keys():
            blocks[tag] = block
    return blocks


def _check_consistency(settings: GroupsSettings) -> None:
    """Raise BadSettings for fields that do not fit together, and for unknown types and configs of environments."""
    manager, tags = settings.es_manager, settings.custom_envs
    if not tags:
        raise BadSettings("`custom_envs` is empty. Give it a block for each tag: `Small: {env_type: sokoban}`.")
    named = set[str]()
    for mode in ("train", "val"):
        block: ModeBlock | None = getattr(manager, mode)
        if block is None:
            continue
        where, own, counts = f"es_manager.{mode}", block.env_configs.tags, block.env_configs.n_groups
        groups = block.groups_of_tags
        if not own or len(groups) != len(own) or sum(groups) != block.env_groups:
            raise BadSettings(
                f"`{where}` has env_groups={block.env_groups}, tags={own} and n_groups={counts}. Give `n_groups` a "
                "number of groups for each tag, which add up to `env_groups`; without `n_groups` the tags have equally "
                "many."
            )
        for tag in own:
            if tag not in tags:
                raise BadSettings(
                    f"The tag {tag!r} of `{where}.env_configs.tags` is not in `custom_envs`. {advice(tag, tags)}"
                )
        named.update(own)
    known = known_env_types()
    for name in manager.sequential_env_types:
        if name not in known:
            raise BadSettings(
                f"`es_manager.sequential_env_types` has {name!r}, which is no env_type. {advice(name, known)}"
            )
    for tag, of_tag in tags.items():  # unused ones, too: a mistake is reported when it is written
        is_foreign = of_tag.env_type not in known and nearest(of_tag.env_type, known) is None
        if tag in named or not (is_foreign or _unknown_fields(of_tag)):
            read_env_config(tag, of_tag)
    if (penalty := manager.format_penalty) > 0:
        warnings.warn(
            f"es_manager.format_penalty={penalty} is positive. It is added, so turns without a valid action are "
            f"rewarded. Give {-penalty} to punish them.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


# ---- configs of environments ----------------------------------------------------------------------------------------


def read_env_config(tag: str, block: TagBlock) -> tuple[EnvType, Any]:
    """Return the type of a tag's environments, and the config for its factory, with checked fields."""
    where = f"custom_envs.{tag}"
    try:
        env_type = env_type_named(block.env_type)
    except BadSettings as error:
        raise BadSettings(f"In `{where}`: {error}") from None
    given = block.env_config or {}
    if env_type.config is None:
        return env_type, given
    for name in _unknown_fields(block):
        known = [field.name for field in dataclasses.fields(env_type.config) if field.init]
        meant = advice(name, known) if known else f"{env_type.name!r} takes nothing. Leave it out."
        raise BadSettings(f"`{where}.env_config.{name}` is unknown. {meant}")
    try:
        try:
            return env_type, TypeAdapter(env_type.config).validate_python(given)
        except (PydanticUserError, NameError):  # it has a field of a type of the user's own
            return env_type, env_type.config(**given)
    except ValidationError as error:
        mistakes = [explain(one, str, f"{where}.env_config") for one in error.errors()]
        raise BadSettings("\n  ".join(mistakes)) from None
    except (ValueError, TypeError) as error:  # the config's own check of itself
        raise BadSettings(f"`{where}.env_config`: {error}") from None


def _unknown_fields(block: TagBlock) -> list[str]:
    """Return the names in a tag's `env_config` that its environments do not take."""
    if block.env_type not in known_env_types() or (config := env_type_named(block.env_type).config) is None:
        return []
    known = {field.name for field in dataclasses.fields(config) if field.init}
    return [name for name in block.env_config or {} if name not in known]


# ---- files in Hydra's form ------------------------------------------------------------------------------------------

_INTERPOLATION = re.compile(r"(?<!\\)\$\{([^{}]*)\}")
_NAME = re.compile(r"\.*[\w-]+(?:\.[\w-]+)*")
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_MOST_STEPS = 50
"""The longest chain of interpolations."""


def _merged_file(path: Path, root: Path, above: tuple[Path, ...], missing: list[str]) -> Any:
    """Return the content of a file merged over its `defaults`. Names of files that are not there go to `missing`."""
    if path in above:
        circle = " -> ".join(str(one) for one in (*above, path))
        raise BadSettings(f"The files name one another in their `defaults`: {circle}. Take one entry out.")
    own = settings_in(path, BadSettings)
    if not isinstance(entries := own.get("defaults"), list):
        return own
    content: dict[str, Any] = {}
    del own["defaults"]
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            content = _merged(content, own)
            continue
        for name, block in _files_of(entry):
            file = (root if name.startswith("/") else path.parent) / f"{name.strip('/')}.yaml"
            if not file.is_file():
                missing.append(name)
                continue
            below = _merged_file(file, root, (*above, path), missing)
            found = _PACKAGE.search(file.read_text(encoding="utf-8"))  # the file's own line has the last word
            package = found[1] if found else block
            for part in reversed([] if package in ("", "_global_") else package.split(".")):
                below = {part: below}
            content = _merged(content, below)
    return content


def _files_of(entry: Any) -> Iterator[tuple[str, str]]:
    """Yield the files that an entry of `defaults` names, without `.yaml`, each with the block for its content."""
    pairs = entry.items() if isinstance(entry, Mapping) else [(entry, None)]
    for left, options in pairs:
        if not isinstance(left, str) or left.startswith("override "):
            continue
        name, _, package = left.removeprefix("optional ").partition("@")
        if not isinstance(entry, Mapping):
            yield name.removesuffix(".yaml"), package
            continue
        package = package or name.strip("/").replace("/", ".")
        for option in options if isinstance(options, list) else [options]:
            if isinstance(option, str):
                yield f"{name}/{option.removesuffix('.yaml')}", package


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            both[name] = _merged(below[name], value)
    return both


def _resolved(content: Mapping[str, Any], value: Any, path: tuple[Any, ...], steps: int = 0) -> Any:
    """Return the value at a path in `content` with its interpolations resolved. `steps`: how many have led there."""
    if isinstance(value, Mapping):
        return {name: _resolved(content, one, (*path, name), steps) for name, one in value.items()}
    if isinstance(value, list):
        return [_resolved(content, one, (*path, place), steps) for place, one in enumerate(value)]
    if not isinstance(value, str):
        return value

    def mistake(what: str) -> BadSettings:
        return BadSettings(
            f"`{'.'.join(map(str, path))}: {value}`: the interpolation {what}. Write the value itself, or resolve the "
            "configuration with OmegaConf and give the result; a plain `${` is written `\\${`."
        )

    def found(name: str) -> Any:
        """Return the value of the name in an interpolation."""
        if not _NAME.fullmatch(name):
            raise mistake("is more than the name of another value")
        dots = len(name) - len(name.lstrip("."))
        target = [*(path[: len(path) - dots] if dots else ()), *name.lstrip(".").split(".")]
        one: Any = content
        for part in target:
            if isinstance(one, list) and str(part).isdecimal() and int(part) < len(one):
                one = one[int(part)]
            elif isinstance(one, Mapping) and part in one:
                one = one[part]
            else:
                raise mistake(f"names `{'.'.join(map(str, target))}`, which is not there")
        if steps == _MOST_STEPS:
            raise mistake("leads in a circle")
        return _resolved(content, one, tuple(target), steps + 1)

    if value == "???":
        raise BadSettings(f"`{'.'.join(map(str, path))}: ???`: the value is still to be given. Give one.")
    if whole := _INTERPOLATION.fullmatch(value):
        return found(whole[1].strip())
    text = _INTERPOLATION.sub(lambda one: str(found(one[1].strip())), value)
    if re.search(r"(?<!\\)\$\{", text):
        raise mistake("is more than the name of another value")
    return text.replace("\\${", "${")
