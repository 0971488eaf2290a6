"""What a result may depend on besides the settings: versions, machine."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from importlib import metadata
from typing import Any

_PACKAGES = (
    "numpy",
    "gymnasium",
    "pettingzoo",
    "torch",
    "safetensors",
    "cpprb",
    "mpe2",
    "lbforaging",
    "mujoco",
    "ale-py",
)


def surroundings() -> dict[str, Any]:
    """As JSON can say it."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {"parallel-envs": sys.modules["parallel_envs"].__version__, **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
