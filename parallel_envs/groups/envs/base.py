"""Base classes of the envs, which count the steps of an episode, and of their configs, which pydantic checks.

Configs come from YAML as often as from Python, so lists are accepted as tuples, and whole numbers as fractions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import numpy as np
from annotated_types import Ge, Interval, MinLen

from parallel_envs.checks import advice, explain, is_one_of
from parallel_envs.choices import TextMode, words
from parallel_envs.groups.interface import Outcome
from parallel_envs.seeding import SeedTree

Info = dict[str, Any]
Act = tuple[float, bool, Info]
"""`(reward, terminated, info)`."""

# ---- configs --------------------------------------------------------------------------------------------------------

Count = Annotated[int, Ge(1)]
Share = Annotated[float, Interval(ge=0.0, le=1.0)]
Text = Annotated[str, MinLen(1)]
Span = tuple[int, int]
"""The first and the last number of a range."""


class EnvConfig:
    """Base class of configs, which are frozen dataclasses. Their fields are held to their types; numbers are finite."""

    def __post_init__(self) -> None:
        from pydantic import ValidationError  # late: no worker makes a config

        # A data file may be read on another machine, so its path need not exist here.
        given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        kind: Any = type(self)
        try:
            checked = _model_of(kind).model_validate(given)
        except ValidationError as error:
            raise ValueError("\n  ".join(explain(one, str) for one in error.errors())) from None
        self._replace(**{name: getattr(checked, name) for name in given})

    def _replace(self, **values: Any) -> None:
        """Set fields, in `__post_init__`: the dataclass is frozen for all others."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_range(self, name: str, value: float, least: float, most: float) -> None:
        """Raise ValueError for a number outside a range that follows from other fields."""
        if not least <= value <= most:
            raise ValueError(f"{name}={value!r} is out of range. Give a number from {least:g} to {most:g}.")

    def _check_spans(self, *names: str) -> None:
        """Raise ValueError for a range that ends before it begins."""
        for name in names:
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}={(low, high)} ends before it begins. Give the smaller number first.")


@functools.cache
def _model_of(kind: type[Any]) -> Any:
    """Return the pydantic model with the fields of a config class."""
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(kind, include_extras=True)
    of_fields: dict[str, Any] = {one.name: (hints[one.name], ...) for one in fields(kind)}
    return create_model(kind.__name__, __config__=ConfigDict(allow_inf_nan=False), **of_fields)


# ---- envs -----------------------------------------------------------------------------------------------------------


def step_info(success: bool, valid: bool, effective: bool) -> Info:
    """Return the info of a step."""
    return {"success": success, "action_is_valid": valid, "action_is_effective": effective}


def action_number(action: Any) -> int | None:
    """Return an action as an int; None if it is not a whole number."""
    if type(action) is int:  # nearly always, and quickly checked
        return action
    return int(action) if isinstance(action, np.integer) else None


class TextEnv:
    """Base class of the envs. A subclass begins an episode in `_begin` and does an action in `_act`.

    Both leave the state in `_shown`, unless the subclass has a `_text` of its own.
    """

    uses_global_random = False
    action_lookup: Mapping[Any, str] | None = None
    config: Any
    _seed_name: ClassVar[str]
    """Name of the env in the tree of seeds."""
    _render_modes: ClassVar[tuple[str, ...]] = words(TextMode)

    def __init__(self, config: Any, max_steps: int | None = None) -> None:
        self.config, self._is_text = config, config.render_mode == "text"
        self._max_steps = math.inf if max_steps is None else max_steps
        self._steps, self._is_running, self._shown = 0, False, ""

    def reset(self, seed: int, mode: str = "train") -> Any:
        self._begin(SeedTree(seed).child(self._seed_name), mode == "train")
        self._steps, self._is_running = 0, True
        return self._text() if self._is_text else self._picture_state()

    def step(self, action: Any) -> Outcome:
        if not self._is_running:
            raise RuntimeError("The episode is over, or none has begun. Call reset before the next step.")
        self._steps += 1
        reward, terminated, info = self._act(action)
        truncated = not terminated and self._steps >= self._max_steps
        if terminated or truncated:
            self._is_running = False
        return self._text() if self._is_text else self._picture_state(), reward, terminated, truncated, info

    def render(self, mode: str | None = None) -> Any:
        """Return the state as text or as an RGB array; by default in the form of the states."""
        mode = self.config.render_mode if mode is None else mode
        if not is_one_of(mode, self._render_modes):
            raise ValueError(f"mode={mode!r} is unknown. {advice(mode, self._render_modes)}")
        return self._text() if mode == "text" else self._picture()

    def close(self) -> None:
        """Do nothing: most envs hold nothing."""

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        """Begin an episode."""
        raise NotImplementedError

    def _act(self, action: Any) -> Act:
        """Do an action, which may be anything."""
        raise NotImplementedError

    def _text(self) -> str:
        return self._shown

    def _picture(self) -> Any:
        raise NotImplementedError

    def _picture_state(self) -> dict[str, Any]:
        """Return a state that is a picture without text: the manager writes a placeholder into prompts."""
        return {"text": "", "images": [self._picture()]}
