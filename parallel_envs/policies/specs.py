"""Policies by their names: texts from which policies are made, in this process or in another.

    load_policy("random", action_space=space)
    load_policy("my_package.agents:Careful", agent="red")
    load_policy("class=my_package.agents:Net,data=runs/7/red,proportion=2", action_space=space)
    load_policy("runs/7", agent="red", ...)        the folder of a training run, or a folder with a policy.json

A policy that cannot be pickled is sent to a worker as its spec, and made there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parallel_envs.checks import hint
from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.files import is_file
from parallel_envs.trust import check_policy

SHORT_NAMES = {
    "random": "parallel_envs.policies:RandomAgent",
    "noop": "parallel_envs.policies:NoopAgent",
}

FOLDER_FILE = "policy.json"
"""The file in a policy's folder with its `class` and `kwargs`. Only some classes may be named there: see `trust.py`."""

TRAINED = "parallel_envs.learners.trained:TrainedAgent"
_OF_LEARNERS = ("run.json", "checkpoint.json", "agent.json")
"""The files that mark folders of learners: of a run, of a checkpoint, of one agent."""

_KNOWN = ("agent", "observation_space", "action_space", "seed")
"""The facts about an agent that a policy may take as arguments."""

_KEYS = ("class", "data", "proportion")


@dataclass(frozen=True)
class PolicySpec:
    """A description from which a policy is made.

    Args:
        class_path: `package.module:Class`. If the class makes policies for all agents, its `agent_policy` returns the
            policy of the agent.
        data_path: The argument for the method `load` of the policy.
        kwargs: Keyword arguments for the class.
        proportion: The number of agents that have this policy, relative to other specs.
        known: Facts about the agent (`agent`, `observation_space`, `action_space`, `seed`). The class gets those that
            it takes as arguments.
    """

    class_path: str
    data_path: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    proportion: float = 1.0
    known: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: Any, trust: Iterable[str] = ()) -> PolicySpec:
        """Return the spec that a text describes, or raise the error in it.

        `trust`: modules whose classes a folder's `policy.json` may name, besides the policies of this package. Raises
        `UntrustedName` for others: a folder may come from a stranger, and making a policy runs its code.
        """
        if isinstance(text, PolicySpec):
            return text
        if not isinstance(text, str) or not text.strip():
            raise TypeError(f"The policy {text!r} is not text. Give a name, package.module:Class or a folder.")
        if text in SHORT_NAMES:
            return cls(SHORT_NAMES[text])
        if is_file(file := Path(text) / FOLDER_FILE):  # folders first: their names may hold `=`
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                path, kwargs = content["class"], content.get("kwargs", {})
                if not isinstance(path, str) or not isinstance(kwargs, dict):
                    raise TypeError(f"class={path!r}, kwargs={kwargs!r}")
            except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise ValueError(f"{file} is not a policy's file ({error!r}). It needs a 'class'.") from error
            check_policy(path, file, trust)
            return cls(path, str(file.parent), kwargs)
        if any(is_file(Path(text) / name) for name in _OF_LEARNERS):
            return cls(TRAINED, text)
        if "=" in text:
            return cls._of_parts(text, trust)
        if ":" in text:
            return cls(text)
        raise ValueError(
            f"The policy {text!r} is unknown. Give one of {', '.join(map(repr, SHORT_NAMES))}, package.module:Class, a "
            f"training run's folder, a folder with a {FOLDER_FILE}, or class=...,data=...,proportion=..."
            f"{hint(text, SHORT_NAMES)}"
        )

    @classmethod
    def _of_parts(cls, text: str, trust: Iterable[str]) -> PolicySpec:
        parts = {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in text.split(","))}
        if unknown := [key for key in parts if key not in _KEYS]:
            known = f"{', '.join(_KEYS)}.{hint(unknown[0], _KEYS)}"
            raise ValueError(f"The policy {text!r} has {unknown[0]!r}, which is none of {known}")
        if "class" not in parts:
            raise ValueError(f"The policy {text!r} has no class. Write class=package.module:Class,...")
        base = cls.parse(parts["class"], trust)
        with contextlib.suppress(ValueError):
            if 0.0 < (proportion := float(parts.get("proportion", 1.0))) < float("inf"):
                return dataclasses.replace(base, data_path=parts.get("data", base.data_path), proportion=proportion)
        raise ValueError(f"proportion={parts['proportion']!r} in the policy {text!r} is not a number above 0.")

    def for_agent(self, agent: Any = None, **known: Any) -> PolicySpec:
        """Return this spec with facts about an agent added."""
        facts = {**self.known, **known, **({} if agent is None else {"agent": agent})}
        return dataclasses.replace(self, known=facts)

    def make(self) -> Any:
        """Return the policy."""
        module, _, name = self.class_path.partition(":")
        try:
            with explained(f"The policy {self.data_path or self.class_path!r}"):
                found = importlib.import_module(module)
        except MissingExtra:
            raise
        except ImportError as error:
            text = f"The module of the policy {self.class_path!r} cannot be imported: {error}."
            raise ImportError(text) from error
        if not hasattr(found, name):
            of_module = f"which the policy {self.class_path!r} names.{hint(name, dir(found))}"
            raise AttributeError(f"The module {module!r} has no {name!r}, {of_module}")
        if not callable(kind := getattr(found, name)):
            raise TypeError(f"{self.class_path} is {kind!r}. Name a class, or a function that makes a policy.")
        try:
            takes = inspect.signature(kind).parameters
        except ValueError:  # it is compiled and does not list them
            takes = MappingProxyType({})
        known = {name: value for name, value in self.known.items() if name in takes and name not in self.kwargs}
        needed = [name for name in _KNOWN if name in takes and takes[name].default is inspect.Parameter.empty]
        if missing := [name for name in needed if name not in known and name not in self.kwargs]:
            raise TypeError(f"{self.class_path} needs to know the agent's {' and '.join(missing)}. Give it.")
        try:
            policy = kind(**known, **self.kwargs)
        except TypeError as error:
            error.add_note(f"{self.class_path} was called with {sorted({*known, *self.kwargs})}.")
            raise
        if self.data_path is not None:
            if not callable(getattr(policy, "load", None)):
                raise TypeError(f"{self.class_path} has no method load, and data={self.data_path!r} was given.")
            policy.load(self.data_path)
        if callable(getattr(policy, "agent_policy", None)):
            policy = policy.agent_policy(self.known.get("agent"))
        if not callable(getattr(policy, "step", None)):
            raise TypeError(f"{self.class_path} made {policy!r}, which has no method step(observation).")
        return policy


def load_policy(spec: str | PolicySpec, agent: Any = None, *, trust: Iterable[str] = (), **known: Any) -> Any:
    """Return the policy that a spec describes, for an agent. `known`: facts about the agent (see `PolicySpec`).

    `trust`: see `PolicySpec.parse`.
    """
    return PolicySpec.parse(spec, trust).for_agent(agent, **known).make()


def located(path: str) -> str:
    """Return a path as an absolute one if something is there. Any other text is returned as it is."""
    return str(Path(path).resolve()) if path and os.path.lexists(path) else path


def with_absolute_paths(text: str) -> str:
    """Return the text of a spec with absolute paths, which can be read from any folder.

    The paths are a folder, or the values of `class=` and `data=`. These values cannot contain a comma, so a text whose
    absolute paths would contain one is returned as it is.
    """
    if text in SHORT_NAMES or not text.strip():
        return text
    if any(is_file(Path(text) / name) for name in (FOLDER_FILE, *_OF_LEARNERS)):
        return located(text)
    if "=" not in text:
        return text
    how = {"class": with_absolute_paths, "data": located}
    parts = [part.partition("=") for part in text.split(",")]
    found = [(key, mark, how.get(key.strip(), str)(value.strip())) for key, mark, value in parts]
    return text if any("," in value for *_, value in found) else ",".join("".join(part) for part in found)
