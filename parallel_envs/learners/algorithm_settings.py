"""The algorithms' own configs, made of what stands in a settings file."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from parallel_envs import standard_names
from parallel_envs.learners.settings import BadSettings, TrainSettings, number_meant
from parallel_envs.spelling import advice, hint, nearest

Agent = Hashable


def algorithm_configs(settings: TrainSettings, agents: Iterable[Agent], kinds: Mapping[str, Any]) -> dict[Agent, Any]:
    """A config for each agent.

    Args:
        settings: `algorithm` for all, `agents` for some.
        agents: All there are.
        kinds: The config classes (frozen dataclasses), by the algorithms' names.
    """
    named = {str(agent): agent for agent in agents}
    for name in settings.agents:
        if name not in named:
            raise BadSettings(f"`agents.{name}` is unknown. {advice(name, named)}")
    configs = {agent: _config_of(settings, name, kinds) for name, agent in named.items()}
    _check_heeded(settings, configs)
    return configs


def completed(settings: TrainSettings, kinds: Mapping[str, Any]) -> TrainSettings:
    """The same settings, with all fields of the algorithms' configs in them, those that nobody has said too.

    A run's folder holds these, so that a default that is another one later does not change what the folder describes.
    An agent that learns by the common algorithm keeps what differs alone: the rest stands in `algorithm`.
    """
    common = _completed(settings, settings.algorithm, kinds)
    own = {
        agent: said if said.get("name", common.get("name")) == common.get("name") else _completed(settings, said, kinds)
        for agent, said in settings.agents.items()
    }
    return settings.model_copy(update={"algorithm": common, "agents": own})


def _completed(settings: TrainSettings, said: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """One block of an algorithm. A block that no agent reads may hold anything, and stays as it is."""
    try:
        config = read_config(_with_interval(settings, said, kinds), "algorithm", kinds)
    except BadSettings:
        return dict(said)
    return described_config(config, said["name"])


def described_config(config: Any, name: str) -> dict[str, Any]:
    """All fields of a config, as `read_config` reads them from a file."""
    values = dataclasses.asdict(config)
    return {"name": name, **{field: _plain(value) for field, value in values.items()}}


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _config_of(settings: TrainSettings, agent: str, kinds: Mapping[str, Any]) -> Any:
    own, common = settings.agents.get(agent, {}), settings.algorithm
    where = f"agents.{agent}" if own else "algorithm"
    if own.get("name", common.get("name")) == common.get("name"):
        own = {**common, **own}  # another algorithm has other fields: there is nothing to take over
    return read_config(_with_interval(settings, own, kinds), where, kinds, outside=TrainSettings.model_fields)


def _with_interval(settings: TrainSettings, said: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of an algorithm, and the `train_interval` of all where it has one and says none."""
    kind = kinds.get(str(said.get("name")))
    common = {"train_interval": settings.train_interval} if settings.train_interval and kind else {}
    return {**{name: value for name, value in common.items() if name in _fields(kind)}, **said}


def _check_heeded(settings: TrainSettings, configs: Mapping[Agent, Any]) -> None:
    """Raise BadSettings for what nobody would look at."""
    if settings.train_interval and not any("train_interval" in _fields(type(one)) for one in configs.values()):
        raise BadSettings(
            f"`train_interval: {settings.train_interval}` (maybe in the block `parallel`), and no agent learns from a "
            "replay buffer: the others make one update for each rollout. Leave it out, or give another "
            "`algorithm.rollout_length`."
        )


def read_config(given: Mapping[str, Any], where: str, kinds: Mapping[str, Any], outside: Collection[str] = ()) -> Any:
    """The config that `name` and the other fields make. Raises BadSettings, naming the nearest right word.

    `outside`: settings that stand beside `algorithm`, where these are from a run's.
    """
    known = f"Known are {', '.join(f'`{name}`' for name in sorted(kinds))}."
    if "name" not in given:
        raise BadSettings(f"`{where}.name` is missing. {known}")
    name, fields = given["name"], {key: value for key, value in given.items() if key != "name"}
    if not isinstance(name, str) or name not in kinds:
        meant = f" Did you mean `{close}`?" if (close := nearest(name, kinds)) else ""
        raise BadSettings(f"`{where}.name: {name}` is unknown.{meant} {known}")
    _check_names(kinds[name], fields, where, kinds, outside)
    try:
        return TypeAdapter(kinds[name]).validate_python(_numbers_meant(kinds[name], fields, where))
    except ValidationError as error:
        raise BadSettings(" ".join(_told(one, where) for one in error.errors())) from None


def _told(mistake: Mapping[str, Any], where: str) -> str:
    if not mistake["loc"]:  # the config itself has something to say, in sentences
        return f"`{where}`: {mistake['msg'].removeprefix('Value error, ')}"
    return f"`{'.'.join([where, *map(str, mistake['loc'])])}: {mistake['input']!r}`: {mistake['msg']}.{_meant(mistake)}"


def _meant(mistake: Mapping[str, Any]) -> str:
    """The word that was meant; how a list looks: a number alone is meant to be the only one in it."""
    if mistake["type"] == "literal_error":
        return hint(mistake["input"], re.findall(r"'(\w+)'", mistake["ctx"]["expected"]))
    if mistake["type"] != "tuple_type":
        return ""
    given = mistake["input"]
    is_number = isinstance(given, int) or (isinstance(given, str) and given.isdecimal())
    return f" Give a list, as [{given}]." if is_number else " Give a list, such as [64, 64]."


def _check_names(
    kind: Any,
    given: Mapping[str, Any],
    where: str,
    kinds: Mapping[str, Any] | None = None,
    outside: Collection[str] = (),
) -> None:
    """`kinds`: others, whose settings may have been meant; `outside`: the settings beside this one."""
    known = typing.get_type_hints(kind)
    for name, value in given.items():
        if name not in _fields(kind):
            raise BadSettings(f"`{where}.{name}` is unknown. {_right_word(name, kind, kinds or {}, outside)}")
        if isinstance(value, Mapping) and dataclasses.is_dataclass(known[name]):
            _check_names(known[name], value, f"{where}.{name}")


def _right_word(name: str, kind: Any, kinds: Mapping[str, Any], outside: Collection[str]) -> str:
    """What was meant by an unknown setting: of the run, of this algorithm by another name, or of another algorithm."""
    if standard := "" if name in outside else standard_names.told(name, _fields(kind)):
        return standard
    for ours in (name, *(one.ours for one in standard_names.meanings_elsewhere(name, ()))):
        if ours in outside:
            return f"It is a setting of the run: write it as `{ours}`, beside `algorithm`."
        if others := [other for other, one in kinds.items() if ours in _fields(one)]:
            return f"It is a setting of {' and '.join(others)}: leave it out."
    reason = standard_names.ABSENT.get(name.lower())
    return f"{reason}: leave it out." if reason else advice(name, _fields(kind))


def _fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _numbers_meant(kind: Any, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same with numbers in the place of words that stand for them. BadSettings for flags in their place."""
    hints, meant = typing.get_type_hints(kind), dict(given)
    worded = {name for name, one in hints.items() if one in (bool, str) or typing.get_origin(one) is Literal}
    for name in [name for name in given if name not in worded]:
        try:
            value = given[name]
            meant[name] = [number_meant(one) for one in value] if isinstance(value, list) else number_meant(value)
        except ValueError as error:
            raise BadSettings(f"`{where}.{name}: {given[name]!r}`: {error}.") from None
    return meant
