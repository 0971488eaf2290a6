"""Reading of a configuration: a dict, a YAML file or `GroupsSettings`, every field checked before anything starts.

Names at the top other than `seed`, `es_manager` and `custom_envs` belong to other parts of a larger file and are
ignored, unless they are fields of these blocks in the wrong place. All of `custom_envs` is checked, whichever mode is
used. But a tag that neither mode names may have an `env_type` that is neither known nor similar to a known one, and
fields that its environment does not have: a file for many experiments may have types that another script registers, and
fields of other versions of an environment.

A YAML file may have Hydra's form: the list `defaults`, and interpolations. So RAGEN's `base.yaml` beside its
`envs.yaml` can be given as it is. Hydra and OmegaConf are not needed.

A file with a list `defaults` is merged over the files in the list, in Hydra's order: the later entry wins, and the file
itself comes at the place of `_self_`, or last. Blocks are merged name by name; other values are replaced. Only files in
the folder of the first one are read. An entry without such a file is ignored, because other parts of a training
configuration come from elsewhere (RAGEN's `ppo_trainer` from verl): errors name it if something is missing. The entry
`group: option` names the file `group/option.yaml`.

An interpolation `${a.b}` stands for the value of that name; a leading dot means a name in the same block. Any other
interpolation in the blocks that are read (a resolver such as `${oc.env:HOME}`, an unknown name, a circle) raises
`BadSettings`, and so does `???`, Hydra's mark of a missing value. `\\${` is a plain `${`.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PydanticUserError, ValidationError

from parallel_envs.engine.pool import user_stacklevel
from parallel_envs.groups.config import (
    SEED_FORMS,
    EnvConfigs,
    GroupsSettings,
    ManagerBlock,
    ModeBlock,
    SeedBlock,
    TagBlock,
    dataclass_reader,
    with_default_groups,
)
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.registry import EnvType, env_type_named, known_env_types
from parallel_envs.spelling import advice, nearest
from parallel_envs.yaml_files import settings_in

_log = logging.getLogger(__name__)
__all__ = ["GroupsSettings", "read_env_config", "read_settings"]

_INTERPOLATION = re.compile(r"(?<!\\)\$\{([^{}]*)\}")
_NAME = re.compile(r"\.*[\w-]+(?:\.[\w-]+)*")
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_MOST_STEPS = 50
"""The longest chain of interpolations."""


def read_settings(given: Any) -> GroupsSettings:
    """Return settings from a mapping, from the path of a YAML file, or as they are. Raises `BadSettings`."""
    if isinstance(given, GroupsSettings):
        settings = given
    elif isinstance(given, Mapping):
        settings = _validated(given, "the configuration")
    elif isinstance(given, str | Path):
        missing: list[str] = []
        content = _merged_file(Path(given), Path(given).parent, (), missing)
        settings = _validated(content, str(given), missing)
    else:
        raise BadSettings(
            f"The configuration is a {type(given).__name__}. Give a dict, the path of a YAML file, or GroupsSettings."
        )
    _check_consistency(settings)
    return settings


def _validated(content: Mapping[str, Any], source: str, missing_files: Sequence[str] = ()) -> GroupsSettings:
    """Return the settings in a configuration. `missing_files`: files in its `defaults` that are not there.

    Only our own blocks are read: elsewhere OmegaConf's values may raise when they are read.
    """
    for key in content.keys() - GroupsSettings.model_fields.keys():
        close = nearest(key, GroupsSettings.model_fields)
        if close in content:  # RAGEN has a `ctx_manager` beside `es_manager`
            close = nearest(key, GroupsSettings.model_fields, cutoff=0.9)
        if close is not None:
            raise BadSettings(f"In {source}:\n  `{key}` is unknown. Did you mean `{close}`?")
        if (right := _place_of_top_key(key, content)) is not None:
            raise BadSettings(f"In {source}:\n  `{key}` does not stand at the top. Write it as `{right}`.")
        if "_" in str(key) and (close := nearest(key, ManagerBlock.model_fields, cutoff=0.85)) is not None:
            raise BadSettings(f"In {source}:\n  `{key}` is unknown. Did you mean `es_manager.{close}`?")
    try:
        ours = {key: _read_block(content, key) for key in ("es_manager", "seed") if key in content}
        if "custom_envs" in content:
            ours["custom_envs"] = _read_tags(content, ours.get("es_manager"))
        return GroupsSettings.model_validate(with_default_groups(ours))
    except ValidationError as error:
        lines = "".join(f"\n  {_mistake_in_blocks(mistake)}" for mistake in error.errors())
        text = f"In {source}:{lines}"
    except BadSettings as error:
        text = f"In {source}:\n  {error}"
    files = ", ".join(f"{name}.yaml" for name in missing_files)
    raise BadSettings(text + (f"\n  Its `defaults` name files that are not beside it: {files}." if files else ""))


def _place_of_top_key(key: str, content: Mapping[str, Any]) -> str | None:
    """Return the right place of a key at the top that belongs to one of our blocks and to nothing else.

    `tags` and `mode` are not among these keys: other parts of a larger file use these names, too.
    """
    try:
        value = content[key]
    except Exception:  # noqa: BLE001  # OmegaConf's, in a block that is not ours
        return None
    if key in ("train", "val"):
        is_ours = isinstance(value, Mapping) and bool(ModeBlock.model_fields.keys() & value.keys())
        return f"es_manager.{key}" if is_ours else None
    if key in ModeBlock.model_fields:
        return f"es_manager.train.{key}"
    if isinstance(value, Mapping):
        return None
    if key == "n_groups":
        return "es_manager.train.env_configs.n_groups"
    if key in ManagerBlock.model_fields:
        return f"es_manager.{key}"
    return f"custom_envs.TAG.{key}" if key in TagBlock.model_fields else None


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
    named: set[str] = set()
    try:
        for mode in ("train", "val"):
            if (block := manager.get(mode)) is not None:
                named.update(block["env_configs"]["tags"])
    except (AttributeError, KeyError, TypeError):  # the modes are wrong, which is reported later
        return _read_block(content, "custom_envs")
    if not isinstance(content["custom_envs"], Mapping):
        return _read_block(content, "custom_envs")
    blocks = {}
    for tag in content["custom_envs"]:
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


# ---- consistency of the fields --------------------------------------------------------------------------------------


def _check_consistency(settings: GroupsSettings) -> None:
    """Raise BadSettings for fields that do not fit together, and for unknown types and configs of environments."""
    manager, tags = settings.es_manager, settings.custom_envs
    if not tags:
        raise BadSettings("`custom_envs` is empty. Give it a block for each tag: `Small: {env_type: sokoban}`.")
    modes = {mode: block for mode in ("train", "val") if (block := getattr(manager, mode)) is not None}
    for mode, block in modes.items():
        _check_groups(block, f"es_manager.{mode}", tags)
    for name in manager.sequential_env_types:
        if name not in known_env_types():
            raise BadSettings(
                f"`es_manager.sequential_env_types` has {name!r}, which is no env_type. "
                f"{advice(name, known_env_types())}"
            )
    named = {tag for block in modes.values() for tag in block.env_configs.tags}
    for tag, of_tag in tags.items():  # unused ones, too: a mistake is reported when it is written
        is_foreign = of_tag.env_type not in known_env_types() and nearest(of_tag.env_type, known_env_types()) is None
        if tag in named or not (is_foreign or _unknown_fields(of_tag)):
            read_env_config(tag, of_tag)
    if (penalty := manager.format_penalty) > 0:
        warnings.warn(
            f"es_manager.format_penalty={penalty} is positive. It is added, so turns without a valid action are "
            f"rewarded. Give {-penalty} to punish them.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def _check_groups(block: ModeBlock, where: str, tags: Mapping[str, TagBlock]) -> None:
    named = block.env_configs
    if named.n_groups is None and (not named.tags or block.env_groups % len(named.tags)):
        raise BadSettings(
            f"`{where}` has {block.env_groups} env_groups and {len(named.tags)} tags, which do not split evenly. Give "
            "`env_configs.n_groups`, a number of groups for each tag."
        )
    if named.n_groups is not None and len(named.tags) != len(named.n_groups):
        raise BadSettings(
            f"`{where}.env_configs` has {len(named.tags)} tags and {len(named.n_groups)} n_groups. Give one number of "
            "groups for each tag."
        )
    if sum(block.groups_of_tags) != block.env_groups:
        raise BadSettings(
            f"`{where}.env_configs.n_groups` add up to {sum(block.groups_of_tags)}, and `env_groups` is "
            f"{block.env_groups}. Make them agree."
        )
    for tag in named.tags:
        if tag not in tags:
            raise BadSettings(
                f"The tag {tag!r} of `{where}.env_configs.tags` is not in `custom_envs`. {advice(tag, tags)}"
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
        known = _fields_of(env_type.config)
        meant = advice(name, known) if known else f"{env_type.name!r} takes nothing. Leave it out."
        raise BadSettings(f"`{where}.env_config.{name}` is unknown. {meant}")
    try:
        try:
            read = dataclass_reader(env_type.config)
        except (PydanticUserError, NameError):  # it has a field of a type of the user's own
            return env_type, env_type.config(**given)
        return env_type, read(given)
    except ValidationError as error:
        lines = "".join(f"\n  {_mistake_in_config(mistake)}" for mistake in error.errors())
        raise BadSettings(f"In `{where}.env_config`:{lines}") from None
    except (ValueError, TypeError) as error:  # the config's own check of itself
        raise BadSettings(f"In `{where}.env_config`: {error}") from None


def _unknown_fields(block: TagBlock) -> list[str]:
    """Return the names in a tag's `env_config` that its environments do not take."""
    if block.env_type not in known_env_types() or (config := env_type_named(block.env_type).config) is None:
        return []
    return [name for name in block.env_config or {} if name not in _fields_of(config)]


def _fields_of(config: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config) if field.init}


# ---- mistakes that pydantic found -----------------------------------------------------------------------------------


def _mistake_in_blocks(mistake: Mapping[str, Any]) -> str:
    """Return a sentence about a mistake in the blocks: where, what, and what it may have meant."""
    path = [part for part in mistake["loc"] if part not in SEED_FORMS]
    name = ".".join(map(str, path))
    if mistake["type"] == "extra_forbidden":
        key, mode = str(path[-1]), "val" if "val" in path[1:2] else "train"
        if key == "mode":
            return f"`{name}` is unknown. It is an argument: EnvStateManager(config, mode='val')."
        places: list[tuple[type[BaseModel], str]] = [
            (ManagerBlock, "es_manager."),
            (ModeBlock, f"es_manager.{mode}."),
            (EnvConfigs, f"es_manager.{mode}.env_configs."),
            (TagBlock, "custom_envs.TAG."),
            (GroupsSettings, ""),
        ]
        if right := [f"`{place}{key}`" for block, place in places if key in block.model_fields]:
            return f"`{name}` is unknown. It stands elsewhere: write it as {' or '.join(right)}."
        for_env = ""
        if path[0] == "custom_envs":
            config = f"{'.'.join(map(str, path[:-1]))}.env_config"
            for_env = f" What the environment is made with stands in `{config}`."
        return f"`{name}` is unknown. {advice(key, list(_block_at(path).model_fields))}{for_env}"
    return _common_mistake(name, mistake) or f"`{name}: {mistake['input']!r}`: {_sentence(mistake['msg'])}"


def _block_at(path: Sequence[Any]) -> type[BaseModel]:
    """Return the block that holds the last name of a path."""
    match path:
        case ("es_manager", _):
            return ManagerBlock
        case ("es_manager", _, _):
            return ModeBlock
        case ("es_manager", _, "env_configs", _):
            return EnvConfigs
        case ("custom_envs", _, _):
            return TagBlock
    return SeedBlock


def _mistake_in_config(mistake: Mapping[str, Any]) -> str:
    """Return a sentence about a mistake in the config of an environment."""
    name = ".".join(map(str, mistake["loc"]))
    if common := _common_mistake(name, mistake):
        return common
    text = _sentence(mistake["msg"])
    if mistake["type"] == "dict_type" and isinstance(mistake["input"], list):
        text += f" Did you mean `{dict(enumerate(mistake['input']))}`?"
    return f"`{name}: {mistake['input']!r}`: {text}" if name else text


def _common_mistake(name: str, mistake: Mapping[str, Any]) -> str | None:
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    if mistake["type"] == "literal_error":
        known = re.findall("'(.*?)'", mistake["ctx"]["expected"])
        return f"`{name}: {mistake['input']!r}` is unknown. {advice(str(mistake['input']), known)}"
    return None


def _sentence(message: str) -> str:
    text = re.sub("^Value error, | or instance of [A-Za-z]+", "", message)
    return text if text.endswith((".", "?")) else f"{text}."


# ---- files in Hydra's form ------------------------------------------------------------------------------------------


def _merged_file(path: Path, root: Path, above: tuple[Path, ...], missing: list[str]) -> Any:
    """Return the content of a file merged over its `defaults`. Add the names of files that are not there to `missing`.

    `above`: the files whose `defaults` led here. `root`: the folder of the first one.
    """
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
    where = ".".join(map(str, path))
    if value == "???":
        raise BadSettings(f"`{where}: ???`: the value is still to be given. Give one.")
    if "${" not in value:
        return value
    if whole := _INTERPOLATION.fullmatch(value):
        return _interpolated(content, whole[1], path, value, steps)
    text = _INTERPOLATION.sub(lambda found: str(_interpolated(content, found[1], path, value, steps)), value)
    if re.search(r"(?<!\\)\$\{", text):
        raise _unresolved(where, value, "is more than the name of another value")
    return text.replace("\\${", "${")


def _interpolated(content: Mapping[str, Any], name: str, path: tuple[Any, ...], text: str, steps: int) -> Any:
    """Return the value of the name in an interpolation at `path`, which is part of `text`."""
    where, name = ".".join(map(str, path)), name.strip()
    if not _NAME.fullmatch(name):
        raise _unresolved(where, text, "is more than the name of another value")
    dots = len(name) - len(name.lstrip("."))
    target = [*(path[: len(path) - dots] if dots else ()), *name.lstrip(".").split(".")]
    found: Any = content
    for part in target:
        if isinstance(found, list) and str(part).isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, Mapping) and part in found:
            found = found[part]
        else:
            raise _unresolved(where, text, f"names `{'.'.join(map(str, target))}`, which is not there")
    if steps == _MOST_STEPS:
        raise _unresolved(where, text, "leads in a circle")
    return _resolved(content, found, tuple(target), steps + 1)


def _unresolved(where: str, text: str, what: str) -> BadSettings:
    return BadSettings(
        f"`{where}: {text}`: the interpolation {what}. Write the value itself, or resolve the configuration with "
        "OmegaConf and give the result; a plain `${` is written `\\${`."
    )
