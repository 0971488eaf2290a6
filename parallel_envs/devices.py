"""Devices of torch by name: which one a name stands for, whether torch finds it here, and what to do if it does not.

    find_device("auto")     "cuda:0" if torch finds a CUDA device, else "mps" if there is one, else "cpu"
    find_device("cuda")     "cuda:0", or a ValueError that says what to install or to set

Everything that takes a device checks it here, before anything starts: learners, `strategy="gpu"`, evaluations. No
device is ever replaced by the CPU.
"""

from __future__ import annotations

import os
from typing import Any

from parallel_envs.checks import hint

AUTO, CPU = "auto", "cpu"


def devices_here() -> list[str]:
    """Return the devices that torch finds here, the quickest first. The last one is "cpu"."""
    import torch

    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), CPU]


def find_device(device: Any, word: str = "device") -> str:
    """Return the full name of a device: "cuda:0" for "cuda". Raise ValueError if torch has no such device here.

    `word` names the argument or setting in the error.
    """
    import torch

    here = devices_here()
    if device == AUTO:
        return here[0]
    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError):
        text = f"{word}={device!r} is unknown. Torch has here: {', '.join(here)}. Give one of them, or 'auto'."
        raise ValueError(text + hint("cuda" if device == "gpu" else device, [AUTO, *here, "cuda"])) from None
    if kind.type == CPU:
        return str(kind)
    text, advice, cause = f"torch finds no {kind.type.upper()} device here", "Give", None
    if kind.type in {name.partition(":")[0] for name in here}:
        try:
            return str(torch.empty(0, device=kind).device)
        except Exception as error:  # noqa: BLE001  # each kind of device has its own
            text, cause = f"there is no device of this number. Torch has here: {', '.join(here)}", error
    elif kind.type == "cuda" and torch.version.cuda is None:
        text += f": torch {torch.__version__} is built without CUDA"
        advice = "Install one with CUDA (https://pytorch.org), or give"
    elif kind.type == "cuda":
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if shown is None else f", and CUDA_VISIBLE_DEVICES={shown!r} must name it"
        advice = f"`nvidia-smi` must list it{hidden}. Install NVIDIA's driver for CUDA {torch.version.cuda}, or give"
    raise ValueError(f"{word}={str(device)!r} was requested, but {text}. {advice} 'auto' or 'cpu'.") from cause


def described_device(device: str) -> str:
    """Return a device with the name of its hardware if torch knows it: "cuda:0 (NVIDIA A100-SXM4-40GB)"."""
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device
