"""Names of devices: what they stand for here, and what is said where torch has no such device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallel_envs.devices import described_device, devices_here, find_device

NO_CUDA = "torch finds no CUDA device here"


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    def refuse(*given: Any, device: torch.device, **named: Any) -> Any:
        raise RuntimeError(f"no {device}")

    monkeypatch.setattr(torch, "empty", refuse)


def test_auto_is_the_best_that_is_here(monkeypatch: pytest.MonkeyPatch, no_cuda: None) -> None:
    assert (find_device("auto"), devices_here()) == ("cpu", ["cpu"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert (find_device("auto"), devices_here()) == ("mps", ["mps", "cpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (find_device("auto"), devices_here()) == ("cuda:0", ["cuda:0", "cuda:1", "mps", "cpu"])
    with pytest.raises(ValueError, match=r"'cuda:5' was requested, but there is no device of this number\."):
        find_device("cuda:5")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Fast {device}")
    assert [described_device(name) for name in ("cuda:1", "cpu")] == ["cuda:1 (Fast cuda:1)", "cpu"]


def test_a_name_is_completed_as_tensors_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.device("cuda")` is not equal to the device of a tensor there, which has a number."""
    there = torch.zeros(0, device="meta")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "empty", lambda *given, **named: there)
    assert find_device("cuda") == "meta"
    assert [find_device(name) for name in ("cpu", "cpu:0", torch.device("cpu"))] == ["cpu", "cpu:0", "cpu"]


@pytest.mark.parametrize(
    ("build", "shown", "text"),
    [
        (None, None, rf"{NO_CUDA}: torch .* is built without CUDA\. Install one with CUDA \(https"),
        ("12.8", None, rf"{NO_CUDA}\. `nvidia-smi` must list it\. Install NVIDIA's driver for CUDA 12\.8, or give"),
        ("12.8", "-1", rf"{NO_CUDA}\. `nvidia-smi` must list it, and CUDA_VISIBLE_DEVICES='-1' must name it\."),
    ],
)
def test_a_missing_device_is_refused_with_what_to_do(
    build: Any, shown: Any, text: str, monkeypatch: pytest.MonkeyPatch, no_cuda: None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(ValueError, match=f"^device='cuda' was requested, but {text}.*'auto' or 'cpu'"):
        find_device("cuda")


def test_a_device_that_computes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device='meta' was requested, but torch finds no META device here\. Give"):
        find_device("meta")


@pytest.mark.parametrize(
    ("name", "meant"), [("cudaa", "cuda"), ("gpu", "cuda"), ("cpuu", "cpu"), ("atuo", "auto"), ("", None), (None, None)]
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: Any, meant: str | None, no_cuda: None) -> None:
    ending = "" if meant is None else rf" Did you mean '{meant}'\?"
    text = rf"^--device={name!r} is unknown\. Torch has here: cpu\. Give one of them, or 'auto'\.{ending}$"
    with pytest.raises(ValueError, match=text):
        find_device(name, "--device")
