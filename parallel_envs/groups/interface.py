"""What an environment of a group is: a plain object with `reset` and `step`.

    class Guess:
        action_lookup = {0: "low", 1: "high"}

        def __init__(self, config): ...
        def reset(self, seed, mode):
            return "Is the number low or high?"
        def step(self, action):
            return "The end.", 1.0, True, False, {"success": True}

`step` may also return Gym's older four, `(state, reward, done, info)`: `done` is taken for `terminated`. All else is
optional, and looked for where it is needed:

- `action_lookup`: the actions by value, each with the name a language model gives it; it is looked at after each
  reset. No two names may differ in case alone. None or absent: actions are free text, and are given to `step` as they
  are.
- `has_meaning(action)`: of free text, whether it is an action at all. What is none is dropped, as unknown names are.
  Absent: `step` is given everything, and says itself what is not valid.
- `render(mode="text" | "rgb_array")`, `close()`.
- `metrics()`: numbers of the environment's own at the end of an episode, by name.
- `uses_global_random = True`: it draws from the global generators of `random` and NumPy. They are then saved, seeded
  and restored around each of its calls, so that it neither disturbs nor is disturbed.

A `gymnasium.Env` may be returned as it is (`gymnasium_env` says what becomes of it); one whose `reset` takes `mode` is
taken for a plain object as above.

Reset with the same seed and mode and given the same actions, an environment must go through the same states: neither
what happened before nor in which process it lives may have a say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

Info = Mapping[str, Any]
"""What a step tells besides: `success`, `action_is_valid` and `action_is_effective` (all bool), and what you like. Of
every number in it there is a metric. `success` is what was said of it last, so tell it when it is False, too: a tag
whose environments do not tell it has neither `success` nor `pass@k` among its metrics."""

Outcome = tuple[Any, float, bool, bool, Info]
"""`(state, reward, terminated, truncated, info)`."""


@runtime_checkable
class GroupEnv(Protocol):
    """The two methods that every environment of a group has."""

    def reset(self, seed: int, mode: str) -> Any:
        """Begin an episode; return its first state.

        Args:
            seed: Decides all that is random about the episode.
            mode: `train` or `val`, for environments whose tasks are split.

        Returns:
            Text, or `{"text": str, "images": [uint8 arrays of shape (height, width, 3)]}`, or any observation.
        """

    def step(self, action: Any) -> Outcome | tuple[Any, float, bool, Info]:
        """Do one action: a key of `action_lookup`, or text where there is none."""
