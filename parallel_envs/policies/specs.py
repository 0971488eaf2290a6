"""Policies by their names: text that makes a policy, here or in another process.

    load_policy("random", action_space=space)
    load_policy("my_package.agents:Careful", agent="red")
    load_policy("class=my_package.agents:Net,data=runs/7/red,proportion=2", action_space=space)
    load_policy("runs/7", agent="red", ...)        what a training run has left, or a folder with a policy.json

A spec travels in the place of a policy that cannot: a worker makes the policy from it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.files import is_file
from parallel_envs.spelling import hint
from parallel_envs.trust import check_policy

SHORT_NAMES = {
    "random": "parallel_envs.policies:RandomAgent",
    "noop": "parallel_envs.policies:NoopAgent",
}

FOLDER_FILE = "policy.json"
"""In a policy's folder: its `class` and `kwargs`. The class must be one that a file may name: see `trust.py`."""

TRAINED = "parallel_envs.learners.trained:TrainedAgent"
_OF_LEARNERS = ("run.json", "checkpoint.json", "agent.json")
"""One of them is in a folder of learners: a run's, a checkpoint, one agent's."""

_KNOWN = ("agent", "observation_space", "action_space", "seed")
"""What may be known of an agent."""

_KEYS = ("class", "data", "proportion")


@dataclass(frozen=True)
class PolicySpec:
    """How to make a policy.

    Args:
        class_path: `package.module:Class`. A class that makes policies for all agents (`agent_policy`) is asked for
            this agent's.
        data_path: What the made policy's `load` is called with.
        kwargs: Keyword arguments for the class.
        proportion: How many agents are to have this policy, relative to other specs.
        known: What is known of the agent (`agent`, `observation_space`, `action_space`, `seed`): what of it the class
            takes as an argument, it gets.
    """

    class_path: str
    data_path: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    proportion: float = 1.0
    known: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: Any, trust: Iterable[str] = ()) -> PolicySpec:
        """Return the spec that a text stands for. Raises what is wrong with it.

        `trust`: modules whose classes a folder's `policy.json` may name, beside the policies of this package. Raises
        `UntrustedName` for others: a folder may come from a stranger, and to make a policy runs its code.
        """
        if isinstance(text, PolicySpec):
            return text
        if not isinstance(text, str) or not text.strip():
            raise TypeError(
                f"The policy {text!r} is no text. Give a name, package.module:Class, a folder, or class=..."
            )
        if text in SHORT_NAMES:
            return cls(SHORT_NAMES[text])
        if is_file(Path(text) / FOLDER_FILE):  # folders first: their names may hold `=`
            return _of_folder(Path(text), trust)
        if any(is_file(Path(text) / name) for name in _OF_LEARNERS):
            return cls(TRAINED, text)
        if "=" in text:
            return _of_parts(text, trust)
        if ":" not in text:
            raise ValueError(
                f"The policy {text!r} is unknown. Give one of {', '.join(map(repr, SHORT_NAMES))}, "
                f"package.module:Class, a training run's folder, a folder with a {FOLDER_FILE}, or "
                f"class=...,data=...,proportion=...{hint(text, SHORT_NAMES)}"
            )
        return cls(text)

    def for_agent(self, agent: Any = None, **known: Any) -> PolicySpec:
        """The same for an agent of which something is known."""
        told = {**self.known, **known, **({} if agent is None else {"agent": agent})}
        return dataclasses.replace(self, known=told)

    def make(self) -> Any:
        """The policy."""
        kind = self._class()
        if not callable(kind):
            raise TypeError(f"{self.class_path} is {kind!r}. Name a class, or a function that makes a policy.")
        takes = _parameters(kind)
        known = {name: value for name, value in self.known.items() if name in takes and name not in self.kwargs}
        self._check_told(kind, {*known, *self.kwargs})
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

    def _check_told(self, kind: Any, told: Collection[str]) -> None:
        """Raise TypeError if something is not told that everybody knows of an agent, and that the class must have."""
        missing = [name for name in _needed(kind) if name in _KNOWN and name not in told]
        if missing:
            raise TypeError(
                f"{self.class_path} needs to know the agent's {' and '.join(missing)}. Give "
                f"{', '.join(f'{name}=...' for name in missing)}."
            )

    def _class(self) -> Any:
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
            raise AttributeError(
                f"The module {module!r} has no {name!r}, which the policy {self.class_path!r} names."
                f"{hint(name, dir(found))}"
            )
        return getattr(found, name)


def _parameters(kind: Any) -> Collection[str]:
    """What a class takes, by name; nothing, where compiled code does not tell."""
    try:
        return inspect.signature(kind).parameters
    except ValueError:
        return ()


def _needed(kind: Any) -> Collection[str]:
    """What a class must be given, by name."""
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:
        return ()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, one in parameters.items() if one.default is one.empty and one.kind in named]


def load_policy(spec: str | PolicySpec, agent: Any = None, *, trust: Iterable[str] = (), **known: Any) -> Any:
    """The policy that a spec describes, for an agent of which something is known (see `PolicySpec`).

    `trust`: see `PolicySpec.parse`.
    """
    return PolicySpec.parse(spec, trust).for_agent(agent, **known).make()


def located(path: str) -> str:
    """Return a path as an absolute one if something is there. Any other text is returned as it is."""
    return str(Path(path).resolve()) if path and os.path.lexists(path) else path


def with_absolute_paths(text: str) -> str:
    """Return the text of a spec with absolute paths, to be read from any folder: a folder, or `class=` and `data=`.

    A path with a comma cannot stand behind `class=` or `data=`, so a text that would get one is returned as it is.
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


def _of_parts(text: str, trust: Iterable[str]) -> PolicySpec:
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    parts = {key.strip(): value.strip() for key, value in parts.items()}
    if unknown := [key for key in parts if key not in _KEYS]:
        raise ValueError(
            f"The policy {text!r} has {unknown[0]!r}, which is none of {', '.join(_KEYS)}.{hint(unknown[0], _KEYS)}"
        )
    if "class" not in parts:
        raise ValueError(f"The policy {text!r} has no class. Write class=package.module:Class,...")
    base = PolicySpec.parse(parts["class"], trust)
    try:
        proportion = float(parts.get("proportion", 1.0))
    except ValueError:
        proportion = -1.0
    if not 0.0 < proportion < float("inf"):
        raise ValueError(f"proportion={parts['proportion']!r} in the policy {text!r} is not a number above 0.")
    return dataclasses.replace(base, data_path=parts.get("data", base.data_path), proportion=proportion)


def _of_folder(folder: Path, trust: Iterable[str]) -> PolicySpec:
    file = folder / FOLDER_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        path, kwargs = content["class"], content.get("kwargs", {})
        if not isinstance(path, str) or not isinstance(kwargs, dict):
            raise TypeError(f"class={path!r}, kwargs={kwargs!r}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not a policy's file ({error!r}). It needs a 'class'.") from error
    check_policy(path, file, trust)
    return PolicySpec(path, str(folder), kwargs)
