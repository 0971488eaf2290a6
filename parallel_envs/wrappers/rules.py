"""Deadlines, failures and checks: what is to become of a turn that does not go well, and what has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.choices import OnError, words
from parallel_envs.engine import Failure
from parallel_envs.spelling import hint, is_one_of, suggests_keywords
from parallel_envs.wrappers.rows import Mask, spread, take_rows

Agent = Any  # as in answers.py


@dataclass(slots=True)
class Tally:
    """What has become of an agent's turns."""

    turns: int = 0
    late: int = 0
    failed: int = 0
    defaults: int = 0
    late_seconds: float = 0.0
    """By how much its answers were late, in this episode."""


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Rules:
    """Deadlines, failures and checks.

    Threads: any number may use one at once; nothing in it changes.

    Args:
        action_timeout: Seconds that a turn may take. Who has not answered by then gets the default action; a late
            answer is dropped. A policy in the caller cannot be interrupted: it is found to be late afterwards.
        default_action: In the place of an action that is late or missing: a value, or a function of the agent.
        lateness_budget: Seconds that an agent may be late by in all, in an episode. Then it is not asked any more.
        on_error: `"raise"`, or `"default"`: the default action, and a count. Where no action is wanted (`reset`,
            `get_state`, ...) an error is raised in any case.
        action_spaces: For debugging: the action space of each agent, in a dict or as a function of the agent (an
            env's `action_space`). An action outside of it is an error of its policy. Every action is looked at, which
            takes a few microseconds each.
    """

    action_timeout: float | None = None
    default_action: Any = None
    lateness_budget: float | None = None
    on_error: OnError = "raise"
    action_spaces: Mapping[Agent, Space[Any]] | Callable[[Any], Space[Any]] | None = None

    def __post_init__(self) -> None:
        for name in ("action_timeout", "lateness_budget"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0.0 < value < float("inf")):
                raise ValueError(f"{name}={value!r} is not a number of seconds. Give one above 0, or None.")
        if not is_one_of(self.on_error, words(OnError)):
            close = hint(self.on_error, words(OnError))
            raise ValueError(f"on_error={self.on_error!r} is unknown. Choose 'raise' or 'default'.{close}")
        if self.lateness_budget is not None and self.action_timeout is None:
            raise ValueError("lateness_budget is never used up without action_timeout: nobody is late. Give both.")
        if self.default_action is None and (self.action_timeout is not None or self.on_error == "default"):
            raise ValueError(
                "default_action is missing: with action_timeout or on_error='default' an agent may need one. Give an "
                "action, or a function of the agent."
            )
        if not (self.action_spaces is None or isinstance(self.action_spaces, Mapping) or callable(self.action_spaces)):
            raise TypeError(f"action_spaces={self.action_spaces!r} is neither a dict nor a function of the agent.")

    @property
    def are_plain(self) -> bool:
        """Whether an action that has come is good as it is."""
        return self.action_timeout is None and self.action_spaces is None

    def default(self, agent: Agent, wanted: Mask | None) -> Any:
        """The default action, or for a batch one for each row that wants an action."""
        chosen = self.default_action(agent) if callable(self.default_action) else copy.deepcopy(self.default_action)
        if wanted is None:
            return chosen
        rows = np.flatnonzero(wanted)
        return spread([chosen] * len(rows), rows, len(wanted)) if len(rows) else None

    def objection(self, agent: Agent, policy: Any, action: Any, wanted: Mask | None) -> Failure | None:
        """What is wrong with an action, where that is to be looked at."""
        space = self._space_of(agent)
        if space is None:
            return None
        rows = [] if wanted is None else np.flatnonzero(wanted).tolist()
        singles = [action] if wanted is None else [take_rows(action, row) for row in rows]
        for place, single in enumerate(singles):
            if not _is_in(space, single):
                where = f" in row {rows[place]}" if rows else ""
                text = f"{_name(policy)} returned {_shown(single)}{where}, which is outside of its space, {space}"
                return Failure("ValueError", text, text)
        return None

    def _space_of(self, agent: Agent) -> Space[Any] | None:
        spaces = self.action_spaces
        return spaces.get(agent) if isinstance(spaces, Mapping) else None if spaces is None else spaces(agent)


def _is_in(space: Space[Any], action: Any) -> bool:
    try:
        return bool(space.contains(action))
    except Exception:  # noqa: BLE001  # some spaces raise at what they cannot make anything of
        return False


def _name(policy: Any) -> str:
    return str(getattr(policy, "class_path", type(policy).__name__))  # a spec names what it makes


def _shown(action: Any) -> str:
    kind = f" ({action.dtype}, shape {action.shape})" if isinstance(action, np.ndarray) else ""
    return f"{action!r}{kind}"
