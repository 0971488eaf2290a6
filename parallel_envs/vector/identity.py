"""Two envs of one process must be two objects: what factories return is checked here.

`[lambda: env for _ in range(4)]` makes four factories of one env. Where these are made in one process (a worker with
several envs, or any worker of the serial and thread backends) all four would step the same object, and each would see
what the others did. Envs made in different processes are copies of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_INSIDE = ("env", "aec_env", "_conversion")
"""The names under which wrappers of Gymnasium, PettingZoo and this package hold what they wrap."""


class OwnedEnvs:
    """The env to which each object belongs, within one process. Threads may share it.

    It holds the objects, so that no other object gets the `id` of one that is in use.
    """

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, Any]] = {}
        self._ids: dict[int, list[int]] = {}

    def claim(self, env: int, made: Any) -> None:
        """Note that the factory of `env` returned `made`. Raise ValueError if another env has it, or one it wraps.

        What `env` had before must have been released.
        """
        ids = self._ids[env] = []
        for layer in _layers(made):
            owner, _ = self._owners.setdefault(id(layer), (env, layer))
            if owner != env:
                self.release(env)
                first, second = sorted((env, owner))
                raise ValueError(
                    f"The factories of envs {first} and {second} returned the same object, or wrappers around it: a "
                    f"{type(layer).__qualname__}. A step of one would be a step of the other. Each factory must make "
                    "its own: `lambda: make_env()`, not `lambda: env`."
                )
            ids.append(id(layer))

    def release(self, env: int) -> None:
        """Forget what belongs to `env`: it is closed, or replaced by another."""
        for one in self._ids.pop(env, ()):
            del self._owners[one]


def _layers(env: Any) -> Iterator[Any]:
    """An env and, if it is a wrapper, the env inside, and so on.

    An env may share parts with others, such as a simulator that serves several. Only what a wrapper wraps counts: an
    object is a wrapper if its class defines `unwrapped` and that is not the object itself.
    """
    seen = set[int]()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = _inside(env) if _is_wrapper(env) else None


def _inside(wrapper: Any) -> Any:
    """What a wrapper wraps; None if that cannot be told.

    It asks for attributes by name: a look into `__dict__` would make each later step of the env slower, since Python
    keeps the attributes of objects whose dict nobody has seen in a quicker form.
    """
    for name in _INSIDE:
        try:
            return getattr(wrapper, name)
        except Exception:  # noqa: BLE001  # mostly AttributeError; a property of user code may raise anything
            continue
    return None


def _is_wrapper(env: Any) -> bool:
    if not hasattr(type(env), "unwrapped"):
        return False
    try:
        return env.unwrapped is not env
    except Exception:  # noqa: BLE001  # a property of user code; mostly the env inside has no `unwrapped`
        return True
