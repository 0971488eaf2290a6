"""Interface of an environment of a group, and the functions that read what such an environment returns.

An environment is a plain object with `reset` and `step`:

    class Guess:
        action_lookup = {0: "low", 1: "high"}

        def __init__(self, config): ...
        def reset(self, seed, mode):
            return "Is the number low or high?"
        def step(self, action):
            return "The end.", 1.0, True, False, {"success": True}

`step` may also return Gym's older four values, `(state, reward, done, info)`: `done` is read as `terminated`. All other
members are optional:

- `action_lookup`: a dict from action values to the names that a language model uses. It is read after each reset. Two
  names must differ in more than case. None or absent: actions are free text, and `step` receives the text.
- `has_meaning(action)`: for free text, returns whether the text is an action. Texts that are not actions are dropped,
  like unknown names. Absent: `step` receives every text and reports invalid ones itself.
- `render(mode="text" | "rgb_array")`, `close()`.
- `metrics()`: the environment's own numbers at the end of an episode, by name.
- `uses_global_random = True`: the environment draws from the global generators of `random` and NumPy. These are then
  saved, seeded and restored around each of its calls, so that it neither disturbs other code nor is disturbed.

A factory may return a `gymnasium.Env` (see `gymnasium_env`), unless its `reset` takes `mode`: such an object is used as
a plain environment as above.

An environment must be reproducible: after a reset with the same seed and mode, the same actions must lead to the same
states, whatever happened before and in whichever process it lives.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

Info = Mapping[str, Any]
"""Info of a step: `success`, `action_is_valid` and `action_is_effective` (all bool), and anything else. Every number in
it becomes a metric. The last `success` of an episode counts, so report it when it is False, too: a tag whose
environments never report it has neither `success` nor `pass@k` among its metrics."""

Outcome = tuple[Any, float, bool, bool, Info]
"""`(state, reward, terminated, truncated, info)`."""

RAW_REWARD = "raw_reward"
"""Key in the info of a turn: the sum of `raw_reward` over its actions, 0.0 where no info has it. As in RAGEN."""
INVALID = "manager_invalid_action"
"""True in the info of a turn without any valid action, and in the history's next item. As in RAGEN."""

_MOST_VALUES = 5
_KINDS_WITHOUT_NUMBERS = frozenset("USMm")
"""NumPy's kinds of text and time, which NumPy would convert to numbers."""


@runtime_checkable
class GroupEnv(Protocol):
    """The two methods that every environment of a group has."""

    def reset(self, seed: int, mode: str) -> Any:
        """Begin an episode; return its first state.

        Args:
            seed: Decides everything that is random in the episode.
            mode: `train` or `val`, for environments that split their tasks.

        Returns:
            Text, or `{"text": str, "images": [uint8 arrays of shape (height, width, 3)]}`, or any observation.
        """

    def step(self, action: Any) -> Outcome | tuple[Any, float, bool, Info]:
        """Do one action: a key of `action_lookup`, or a text if there is no lookup."""


# ---- what a step returned -------------------------------------------------------------------------------------------


def read_outcome(returned: Any, env_name: str) -> Outcome:
    """Return the five values of a step: the reward as a number, both ends as bools. Raise TypeError for anything else.

    A reward that is an `int` stays an `int`. Any other number becomes a `float`.
    """
    if isinstance(returned, Iterable) and not isinstance(returned, tuple | list | str | bytes | Mapping | np.ndarray):
        returned = tuple(itertools.islice(returned, _MOST_VALUES + 1))
    if isinstance(returned, tuple | list) and len(returned) in (4, 5) and isinstance(returned[-1], Mapping):
        state, reward, terminated, *truncated, info = returned
        return state, _read_reward(reward), read_flag(terminated), read_flag(truncated[0] if truncated else False), info
    if not isinstance(returned, tuple | list):
        found = f"a {type(returned).__name__}"
    elif len(returned) not in (4, 5):
        found = f"{len(returned)} values"
    else:
        found = f"{len(returned)} values, of which the last is a {type(returned[-1]).__name__}"
    raise TypeError(
        f"step() of {env_name!r} returned {found}. Return (state, reward, terminated, truncated, info), info being a "
        "dict."
    )


def _read_reward(reward: Any) -> float:
    if type(reward) is int:
        return reward
    if isinstance(reward, float | int):
        return float(reward)
    number = np.asarray(reward)
    if reward is None or number.dtype.kind in _KINDS_WITHOUT_NUMBERS:
        raise TypeError(f"step() returned the reward {reward!r}. Give a number: 0.0, if there is no reward.")
    return float(number.astype(float).reshape(()))


def read_flag(value: Any) -> bool:
    """Return `terminated` or `truncated` as a bool. Text is refused, because bool("False") is True."""
    if isinstance(value, str | bytes):
        raise TypeError(f"step() returned {value!r} for terminated or truncated. Give True or False.")
    return bool(value)


def read_success(value: Any) -> Any:
    """Return `success` of an info. An array of one value becomes a bool, which nobody can write into."""
    if isinstance(value, str | bytes):  # bool("no") is True
        raise TypeError(f"step() returned {value!r} for success in its info. Give True or False.")
    return bool(value) if isinstance(value, np.ndarray) and value.size == 1 else value


def number_or_zero(value: Any) -> float:
    """Return a value of an info as a float, or 0.0 if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def check_images(state: Any) -> None:
    """Raise TypeError if a state has `images` that are not a list of uint8 pictures."""
    match state:
        case {"text": _, "images": images} if images is not None:
            if not (isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)):
                raise TypeError(f"A state has the images {_described(images)}. Give a list of pictures.")
            for image in images:
                if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)):
                    raise TypeError(
                        f"A state has the image {_described(image)}. Give arrays of uint8 of shape (height, width, 3)."
                    )


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return reprlib.repr(value)


# ---- names of actions -----------------------------------------------------------------------------------------------


def actions_by_name(lookup: Any) -> dict[str, Any] | None:
    """Return the action of each name in an `action_lookup`, under the name as written and as `fold_name` returns it.

    None: actions have no names. Raises ValueError if two actions have the same name, since one of them could never be
    chosen.
    """
    if lookup is None:
        return None
    if not isinstance(lookup, Mapping) or not all(isinstance(name, str) for name in lookup.values()):
        raise TypeError(
            f"action_lookup is {lookup!r}. Give a mapping from the actions that step() takes to their names, such as "
            "{0: 'left', 1: 'right'}."
        )
    folded = {fold_name(name): action for action, name in lookup.items()}
    if len(folded) < len(lookup):
        first = next(action for action, name in lookup.items() if folded[fold_name(name)] is not action)
        second = folded[fold_name(lookup[first])]
        raise ValueError(
            f"action_lookup has one name for two actions: {first!r} is {lookup[first]!r}, and {second!r} is "
            f"{lookup[second]!r}. Give each a name of its own; case, and spaces around it, make no difference."
        )
    return {name: action for action, name in lookup.items()} | folded


def fold_name(name: str) -> str:
    """Return a name without surrounding spaces and differences in case."""
    return name.strip().casefold()
