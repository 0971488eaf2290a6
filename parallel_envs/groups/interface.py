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
        if type(reward) is not int:
            if reward is None or np.asarray(reward).dtype.kind in _KINDS_WITHOUT_NUMBERS:
                raise TypeError(f"step() returned the reward {reward!r}. Give a number: 0.0, if there is no reward.")
            reward = float(np.asarray(reward).astype(float).reshape(()))
        return state, reward, read_flag(terminated), read_flag(truncated[0] if truncated else False), info
    found = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"
    raise TypeError(
        f"step() of {env_name!r} returned {found}. Return (state, reward, terminated, truncated, info), info being a "
        "dict."
    )


def read_flag(value: Any, name: str = "terminated or truncated") -> bool:
    """Return a flag as a bool. Text is refused, because bool("False") is True."""
    if isinstance(value, str | bytes):
        raise TypeError(f"step() returned {value!r} for {name}. Give True or False.")
    return bool(value)


def check_images(state: Any) -> None:
    """Raise TypeError if a state has `images` that are not a list of uint8 pictures."""
    match state:
        case {"text": _, "images": images} if images is not None:
            is_list = isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)
            for image in images if is_list else [images]:
                is_picture = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)
                if not is_list or not is_picture:
                    found = f"{image.dtype} of {image.shape}" if isinstance(image, np.ndarray) else reprlib.repr(image)
                    raise TypeError(
                        f"A state has the images {found}. Give a list of arrays of uint8 of shape (height, width, 3)."
                    )


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
