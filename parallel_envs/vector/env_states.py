"""Save an env between two steps, and go on from there later: in the same env, or in another one.

`save_env` copies the attributes of an env and its wrappers, with their random generators. Simulators that Python cannot
copy (ALE, MuJoCo) are copied by their own functions. Copying is tried first, because methods may be incomplete
(Meta-World's are). Where it fails, an env or wrapper with `get_env_state()` and `set_env_state(state)` saves itself
and everything that it wraps. `ReplayableEnv` has both methods.

Some objects stay outside of the copy, and a reference to the object of the env that loads takes their place: layers,
functions and classes, simulators, and displays.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

AnyEnv = gymnasium.Env[Any, Any]

_HOOKS = ("get_env_state", "set_env_state")
_DISPLAYS = frozenset(("Clock", "Font", "MujocoRenderer", "SysFont"))
"""Names of types of `pygame` and of Gymnasium's MuJoCo renderer that draw and hold no state of an episode."""


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """The part of a state that the worker holds beside the env: pending autoreset, tasks, number of the episode."""

    pending: str
    lost: Any
    task: Any
    next_task: Any
    marks: tuple[int, int]


@dataclass(frozen=True, slots=True)
class EnvState:
    """The state of one environment between two steps, from `envs.get_state()`. It can be pickled and stored.

    Reading a pickled state runs code, as with any pickle: read only your own files.

    Attributes:
        layers: The names of the classes of the environment, the outermost wrapper first.
        way: `"copy"`: all attributes were copied. `"hooks"`: the environment's own `get_env_state` was called.
            `"function"`: the function given as `save` was called.
        observation: The latest observation.
    """

    layers: tuple[str, ...]
    way: Literal["copy", "hooks", "function"]
    observation: Any = field(repr=False)
    content: bytes = field(repr=False)
    episode: EpisodeState = field(repr=False)
    agents: Any = field(default=None, repr=False)
    """Results of the agents whose episode has ended, in an environment with several agents."""


def layers(env: Any) -> list[Any]:
    """Return an env and the envs that it wraps, the outermost first."""
    found: list[Any] = []
    while hasattr(env, "step") and hasattr(env, "__dict__") and not any(env is one for one in found):
        found.append(env)
        env = next((vars(env)[name] for name in ("env", "aec_env") if name in vars(env)), None)
    return found


def layer_names(env: Any) -> tuple[str, ...]:
    return tuple(type(layer).__name__ for layer in layers(env))


def save_env(env: AnyEnv) -> tuple[Literal["copy", "hooks"], bytes]:
    """Return the way in which an env was saved, and its content."""
    found = layers(env)
    try:
        return "copy", _saved(found, None)
    except TypeError:
        for place, layer in enumerate(found):
            if all(callable(getattr(type(layer), hook, None)) for hook in _HOOKS):
                return "hooks", _saved(found[:place], layer)
        raise


def _saved(copied: list[Any], hooked: Any) -> bytes:
    """Return the attributes of some layers, and the state of the layer (or None) that saves all that it wraps."""
    pickler = _StatePickler(copied, hooked)
    hook_state = None if hooked is None else hooked.get_env_state()
    try:
        pickler.dump(([object.__getstate__(layer) for layer in copied], hook_state))  # without methods of its class
    except Exception as error:
        raise TypeError(f"{_uncopied(copied, hooked, hook_state)} cannot be saved ({error}). {_ADVICE}") from error
    outside = {key: copier.save(one) for key, (one, copier) in pickler.outside.items()}
    content = pickle.dumps((len(copied), pickler.file.getvalue(), outside), protocol=pickle.HIGHEST_PROTOCOL)
    return zlib.compress(content, 1)


def load_env(env: AnyEnv, content: bytes) -> None:
    """Give an env the state that `save_env` took from it or from another env with the same layers."""
    count, pickled, outside = pickle.loads(zlib.decompress(content))
    found = layers(env)
    copied, hooked = found[:count], found[count] if count < len(found) else None
    present = _StatePickler(copied, hooked)
    present.dump([object.__getstate__(layer) for layer in copied])  # finds what stays outside, in the same order
    attributes, hook_state = _StateUnpickler(io.BytesIO(pickled), present, copied, hooked, outside).load()
    if hooked is not None:
        hooked.set_env_state(hook_state)  # first: it may refuse
    for key, value in sorted(outside.items(), key=lambda item: item[0][0] != "MjModel"):  # which may refuse
        if key in present.outside:
            one, copier = present.outside[key]
            copier.load(one, value)
    for layer, saved in zip(copied, attributes, strict=True):
        _set_attributes(layer, saved)


def _set_attributes(layer: Any, saved: Any) -> None:
    """Give an object the attributes that `object.__getstate__` has returned, and no others."""
    own, slots = saved if isinstance(saved, tuple) else (saved, None)
    vars(layer).clear()
    vars(layer).update(own or {})
    for name, value in (slots or {}).items():
        setattr(layer, name, value)


_ADVICE = (
    "Give the environment the methods get_env_state() and set_env_state(state), wrap it in ReplayableEnv, or give "
    "functions of your own: get_state(save=...) and set_state(states, load=...)."
)


def _uncopied(copied: list[Any], hooked: Any, hook_state: Any) -> str:
    """Return the name of the first attribute that cannot be pickled."""
    for layer in copied:
        for name, value in vars(layer).items():
            try:
                _StatePickler(copied, hooked).dump(value)
            except Exception:  # noqa: BLE001  # pickling runs code of the user's classes
                return f"{type(layer).__name__}.{name} (a {type(value).__name__})"
    return f"The state that {type(hooked).__name__}.get_env_state() returned ({type(hook_state).__name__})"


# ---- pickling an env in place ---------------------------------------------------------------------------------------


class _StatePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no type information
    """Pickles attributes of an env. Layers, and all that stays outside of the copy, are pickled as references.

    Attributes:
        outside: The objects that stay outside, each with its copier, by the name of their kind and their number among
            those of that kind.
    """

    def __init__(self, copied: list[Any], hooked: Any) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=pickle.HIGHEST_PROTOCOL)
        self._layers = {id(layer): number for number, layer in enumerate([*copied, hooked]) if layer is not None}
        self.outside: dict[tuple[str, int], tuple[Any, _Copier]] = {}
        self._keys: dict[int, tuple[str, int]] = {}
        self._counts: Counter[str] = Counter()

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._layers:
            return "layer", self._layers[id(obj)]
        copier = _copier(obj)
        if copier is None:
            return None
        if id(obj) not in self._keys:
            kind = obj.__qualname__ if copier is _DEFINITION else type(obj).__name__
            self._keys[id(obj)] = key = kind, self._counts[kind]
            self._counts[kind] += 1
            self.outside[key] = obj, copier
        return "outside", self._keys[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is np.ndarray and type(obj.base) is np.ndarray and not obj.dtype.hasobject:
            root = obj.base
            while type(root.base) is np.ndarray:
                root = root.base
            offset = obj.__array_interface__["data"][0] - root.__array_interface__["data"][0]
            if offset >= 0 and (root.flags.c_contiguous or root.flags.f_contiguous):
                return _view, (root, obj.shape, obj.dtype, offset, obj.strides)  # it is to share the copied memory, too
        if hasattr(kind, "__setstate__") and "_ezpickle_args" in getattr(obj, "__dict__", ()):
            # EzPickle would make a new env instead of copying this one
            return copyreg.__newobj__, (kind,), object.__getstate__(obj), None, None, _set_attributes  # type: ignore[attr-defined]
        if kind.__module__.startswith("pygame") and kind.__name__ == "Surface":
            return _reduced_surface(obj)
        return super().reducer_override(obj)


class _StateUnpickler(pickle.Unpickler):
    def __init__(
        self,
        file: io.BytesIO,
        present: _StatePickler,
        copied: list[Any],
        hooked: Any,
        saved: dict[tuple[str, int], Any],
    ) -> None:
        super().__init__(file)
        self._present, self._layers, self._saved = present, [*copied, hooked], saved

    def persistent_load(self, key: Any) -> Any:
        kind, which = key
        if kind == "layer":
            return self._layers[which]
        if which in self._present.outside:
            return self._present.outside[which][0]
        if isinstance(saved := self._saved.get(which), _Definition) and saved.pickled:
            return pickle.loads(saved.pickled)
        if which[0] in (*_DISPLAYS, "Surface"):
            return None  # it is made when the env is rendered
        raise ValueError(f"The environment has no {which[0]} (number {which[1]}) as the saved one had.")


def _view(base: Any, shape: Any, dtype: Any, offset: int, strides: Any) -> Any:
    return np.ndarray(shape, dtype, buffer=base.ravel("K").view(np.uint8), offset=offset, strides=strides)


def _reduced_surface(surface: Any) -> Any:
    import pygame

    form: Any = "RGBA" if surface.get_flags() & pygame.SRCALPHA else "RGB"
    return _surface, (pygame.image.tobytes(surface, form), surface.get_size(), form, surface.get_colorkey())


def _surface(content: bytes, size: Any, form: Any, colorkey: Any) -> Any:
    import pygame

    surface = pygame.image.frombytes(content, size, form)
    if colorkey is not None:
        surface.set_colorkey(colorkey)
    return surface


# ---- simulators that pickle cannot copy -----------------------------------------------------------------------------


def _save_ale(ale: Any) -> Any:
    if ale.getFloat("repeat_action_probability") > 0:
        raise TypeError(
            "ALE does not save the action that sticky actions repeat. Make the environment with "
            "repeat_action_probability=0, or wrap it in parallel_envs.ReplayableEnv."
        )
    return ale.cloneState(include_rng=True)


def _save_mujoco_model(model: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(model)).digest()


def _load_mujoco_model(model: Any, saved: bytes) -> None:
    if _save_mujoco_model(model) != saved:
        raise ValueError(
            "The state belongs to another MuJoCo model (another XML, or other masses, sizes or positions), so the "
            f"environment cannot go on from it. {_ADVICE}"
        )


def _load_mujoco_data(data: Any, saved: bytes) -> None:
    import mujoco  # type: ignore[import-untyped]  # it ships no type information

    source = pickle.loads(saved)
    if hasattr(mujoco, "mj_copyData"):
        mujoco.mj_copyData(data, source.model, source)
        return
    # MuJoCo before 3.4: contacts and constraint forces, whose number changes, are computed anew by every step
    for name in dir(source):
        value, own = getattr(source, name), getattr(data, name)
        if isinstance(value, np.ndarray) and value.shape == own.shape:
            own[...] = value
    data.time = source.time


class _Copier(NamedTuple):
    """Functions that save an object, and that load what was saved into another object of its type."""

    save: Callable[[Any], Any]
    load: Callable[[Any, Any], None]


_COPIERS = {
    ("ale_py", "ALEInterface"): _Copier(_save_ale, lambda ale, state: ale.restoreState(state)),
    ("mujoco", "MjModel"): _Copier(_save_mujoco_model, _load_mujoco_model),
    ("mujoco", "MjData"): _Copier(pickle.dumps, _load_mujoco_data),
}
"""By package and type."""

_DISPLAY = _Copier(lambda _: None, lambda *_: None)


class _Definition(NamedTuple):
    """A function or class as bytes, for an env that does not have it. No bytes: it cannot be pickled."""

    pickled: bytes

    @classmethod
    def of(cls, definition: Any) -> _Definition:
        try:
            return cls(cloudpickle.dumps(definition))
        except Exception:  # noqa: BLE001  # pickling runs code of the user's classes
            return cls(b"")


_DEFINITION = _Copier(_Definition.of, lambda *_: None)


def _copier(obj: Any) -> _Copier | None:
    """Return the copier of an object that stays outside of the copy, or None for one that is copied.

    Functions and classes that a script or notebook defines would be pickled by value: copies, with variables of their
    own, would take the place of those that all envs of the worker share.
    """
    kind = type(obj)
    if kind is FunctionType or isinstance(obj, type):
        return None if _is_importable(obj) else _DEFINITION
    module, name = kind.__module__, kind.__name__
    if name in _DISPLAYS and (module.startswith("pygame") or "mujoco_rendering" in module):
        return _DISPLAY
    if name == "Surface" and module.startswith("pygame"):
        import pygame

        return _DISPLAY if pygame.display.get_init() and obj is pygame.display.get_surface() else None
    return _COPIERS.get((module.partition(".")[0], name))


def _is_importable(definition: Any) -> bool:
    """Return whether a function or class is found by its name in its module, which other processes can import."""
    found = sys.modules.get(definition.__module__ or "")
    if found is None or found.__name__ == "__main__":
        return False
    for name in definition.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is definition


# ---- replay ---------------------------------------------------------------------------------------------------------


_FAILED = ("failed", None)
"""Stands in a history for a step or reset that has not returned."""


class ReplayableEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that saves a deterministic environment by its history since the latest reset with a seed.

    Use it where the attributes of an environment cannot be copied. Loading a state resets the environment with the seed
    and takes all steps again; if the last observation differs from the recorded one, a RuntimeError is raised.

    The history grows until the next reset with a seed. Tasks that are given before a reset and attributes that are set
    from outside are not part of it.

    Threads: one thread at a time, as the environment inside.
    """

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._history: list[tuple[str, Any]] = []
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._history.clear()
        self._history.append(_FAILED)  # until the reset has returned
        given = "reset", (seed, cloudpickle.dumps(options))
        self._last, info = self.env.reset(seed=seed, options=options)
        self._history[-1] = given
        return self._last, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._history.append(_FAILED)
        given = "step", cloudpickle.dumps(action)
        self._last, *rest = self.env.step(action)
        self._history[-1] = given
        return self._last, *rest

    def get_env_state(self) -> Any:
        if not self._history or self._history[0][1][0] is None:
            raise RuntimeError(
                "ReplayableEnv has not been reset with a seed, so its history cannot be taken again. Call "
                "envs.reset(seed=...) first."
            )
        if _FAILED in self._history:
            raise RuntimeError(
                "A step or reset of the environment has raised an error since the latest reset with a seed, so its "
                "history cannot be taken again. Call envs.reset(seed=...) first."
            )
        return list(self._history), self._last

    def set_env_state(self, state: Any) -> None:
        history, last = state
        self._history.clear()
        for kind, given in history:
            if kind == "step":
                self.step(pickle.loads(given))
            else:
                self.reset(seed=given[0], options=pickle.loads(given[1]))
        if pickle.dumps(self._last) != pickle.dumps(last):
            raise RuntimeError("The environment is not deterministic: the replay has led to another observation.")
