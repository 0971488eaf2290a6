"""Turn any result into plain JSON values that can be compared on another machine."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-4
"""Floats of another machine may differ by this much, relative to the size of their array: sin, exp and matrix products
round differently on other CPUs. On the machine that recorded the values every bit is compared."""


LONG = 3000
"""Cases whose JSON is longer than this are recorded as a summary of each step."""


@cache
def machine() -> dict[str, str]:
    """Return what decides how floats are rounded: the CPU and the versions of the libraries that compute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor()
    return {"cpu": cpu, **{name: version(name) for name in ("numpy", "torch", "gymnasium", "pettingzoo")}}


def fingerprint(value: Any) -> Any:
    """Return `value` as short JSON. Where that would be long, each item of the outermost list becomes a summary."""
    told = _told(value)
    if len(json.dumps(told)) <= LONG or not isinstance(told, list):
        return told
    return [_summary(item) for item in told]


def _summary(told: Any) -> dict[str, Any]:
    """Return digests of what an item says, once without and once with its floats, and sums over all of its floats."""
    sums: list[list[float]] = []

    def without_floats(part: Any) -> Any:
        if isinstance(part, dict):
            if "sums" in part:
                sums.append(part["sums"])
                return part["array"]
            return {name: without_floats(item) for name, item in part.items()}
        return [without_floats(item) for item in part] if isinstance(part, list) else part

    rest = json.dumps(without_floats(told)).encode()
    found: dict[str, Any] = {"rest": _digest(rest), "bits": _digest(json.dumps(told).encode())}
    if sums:
        weights = 1 + np.sin(np.arange(len(sums)))[:, None] / 2
        found["sums"] = _short((np.asarray(sums) * weights).mean(axis=0))
    return found


def _told(value: Any) -> Any:
    """Return `value` as JSON: arrays become a summary of their content, all else keeps its form."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _of_array(np.asarray(value))
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "bases": [one.__name__ for one in type(value).__mro__[1:-1]]}
    if isinstance(value, Mapping):
        return {"dict": [[_told(key), _told(item)] for key, item in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        shown = (one.name for one in fields(value) if not one.name.startswith("_"))
        return {type(value).__name__: {name: _told(getattr(value, name)) for name in shown}}
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return _of_array(np.asarray(value))
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": _digest(value)}
    return {"type": type(value).__name__, "text": str(value)}


def _of_array(array: np.ndarray[Any, Any]) -> Any:
    """Return type, shape and content: the digest of its bytes, and for floats three sums that bear rounding."""
    if array.dtype == object:
        return {"object": list(array.shape), "items": [_told(item) for item in array.ravel().tolist()]}
    found: dict[str, Any] = {"array": f"{array.dtype}{list(array.shape)}", "bits": _digest(np.ascontiguousarray(array))}
    if array.dtype.kind == "f" and array.size:
        flat = array.astype(np.float64).ravel()
        number = np.arange(1, flat.size + 1)
        whole = np.nan_to_num(flat, nan=0.5, posinf=2.0, neginf=-2.0)
        found["sums"] = _short([whole.mean(), (whole * np.sin(number)).mean(), np.abs(whole).mean()])
    return found


def _short(numbers: Any) -> list[float]:
    return [float(f"{number:.9g}") for number in numbers]


def _digest(content: Any) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def differences(recorded: Any, computed: Any, *, exact: bool, path: str = "") -> list[str]:
    """Return where two fingerprints differ, in a line each. Not `exact`: bits of floats are not compared."""
    if isinstance(recorded, dict) and isinstance(computed, dict):
        names = list(dict.fromkeys([*recorded, *computed]))
        if "sums" in recorded and "sums" in computed and not exact:
            names.remove("bits")
        return [
            line
            for name in names
            for line in differences(recorded.get(name), computed.get(name), exact=exact, path=f"{path}/{name}")
        ]
    if isinstance(recorded, list) and isinstance(computed, list) and len(recorded) == len(computed):
        if path.endswith("/sums"):
            size = max(recorded[2], computed[2], 1e-3)
            pairs = zip(recorded, computed, strict=True)
            near = all(math.isclose(old, new, rel_tol=0, abs_tol=TOLERANCE * size) for old, new in pairs)
            return [] if near or (exact and recorded == computed) else [f"{path}: {recorded} became {computed}"]
        return [
            line
            for number, (old, new) in enumerate(zip(recorded, computed, strict=True))
            for line in differences(old, new, exact=exact, path=f"{path}[{number}]")
        ]
    return [] if recorded == computed else [f"{path}: {recorded!r} became {computed!r}"]
