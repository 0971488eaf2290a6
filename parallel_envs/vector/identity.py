"""Check that the factories of envs in one process return different objects.

`[lambda: env for _ in range(4)]` makes four factories of one env. If they are called in one process (a worker with
several envs, or any worker of the serial and thread backends), all four envs would be the same object, and a step of
one would be a step of all. Envs that are made in different processes are separate copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_INSIDE = ("env", "aec_env", "_conversion")
"""Attributes in which wrappers of Gymnasium, PettingZoo and this package keep the env that they wrap."""


class OwnedEnvs:
    """Records which object belongs to which env, in one process. Several threads may use one `OwnedEnvs`.

    It keeps a reference to each object, so that no new object can get the same `id`.
    """

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, Any]] = {}
        self._ids: dict[int, list[int]] = {}

    def claim(self, env: int, made: Any) -> None:
        """Note that `env`'s factory returned `made`. Raise ValueError if `made`, or an env inside, belongs to another.

        If `env` had an object before, call `release(env)` first.
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
        """Forget the objects of `env`, which is closed or will be made again."""
        for one in self._ids.pop(env, ()):
            del self._owners[one]


def _layers(env: Any) -> Iterator[Any]:
    """Yield an env and, if the env is a wrapper, the env inside, and so on.

    Other parts of an env are not yielded, since envs may share them (a simulator that serves several, for example). An
    object is a wrapper if its class defines `unwrapped` and its `unwrapped` is not the object itself.
    """
    seen = set[int]()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        env = _inside(env) if _is_wrapper(env) else None


def _inside(wrapper: Any) -> Any:
    """Return the env that a wrapper wraps, or None if it cannot be found.

    Attributes are read by name and never through `__dict__`: once `__dict__` of an object has been read, Python keeps
    its attributes in a slower form, and each later step of the env would be slower.
    """
    for name in _INSIDE:
        try:
            return getattr(wrapper, name)
        except Exception:  # noqa: BLE001  # often AttributeError, but a property may raise anything
            continue
    return None


def _is_wrapper(env: Any) -> bool:
    if not hasattr(type(env), "unwrapped"):
        return False
    try:
        return env.unwrapped is not env
    except Exception:  # noqa: BLE001  # often because the env inside has no `unwrapped`
        return True
