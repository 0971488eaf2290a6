"""Every vector wrapper of Gymnasium works over the manager as it does over Gymnasium's own env."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv

AnyVector = VectorEnv[Any, Any, Any]
Build = Callable[[AnyVector], AnyVector]

BOX = spaces.Box(-1, 1, (3,), np.float64)
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
PARTS = spaces.Dict(near=spaces.Box(-1, 1, (2,)), far=spaces.Box(-1, 1, (3,)))


def doubled(value: Any) -> Any:
    return value * 2


def arrays(envs: AnyVector, target: str) -> AnyVector:
    return wrappers.ArrayConversion(envs, env_xp=np, target_xp=importlib.import_module(target))


# The observation space to wrap, and how; whatever needs a package says which in NEEDS.
BUILDS: dict[str, tuple[spaces.Space[Any], Build]] = {
    "VectorizeTransformObservation": (
        BOX,
        lambda envs: wrappers.VectorizeTransformObservation(
            envs, gym.wrappers.TransformObservation, func=doubled, observation_space=BOX
        ),
    ),
    "VectorizeTransformAction": (
        BOX,
        lambda envs: wrappers.VectorizeTransformAction(
            envs, gym.wrappers.TransformAction, func=doubled, action_space=BOX
        ),
    ),
    "VectorizeTransformReward": (
        BOX,
        lambda envs: wrappers.VectorizeTransformReward(envs, gym.wrappers.TransformReward, func=doubled),
    ),
    "DictInfoToList": (BOX, wrappers.DictInfoToList),
    "TransformObservation": (BOX, lambda envs: wrappers.TransformObservation(envs, doubled)),
    "FilterObservation": (PARTS, lambda envs: wrappers.FilterObservation(envs, ["far"])),
    "FlattenObservation": (PARTS, wrappers.FlattenObservation),
    "GrayscaleObservation": (IMAGE, lambda envs: wrappers.GrayscaleObservation(envs, keep_dim=True)),
    "ResizeObservation": (IMAGE, lambda envs: wrappers.ResizeObservation(envs, (4, 4))),
    "ReshapeObservation": (IMAGE, lambda envs: wrappers.ReshapeObservation(envs, (64, 3))),
    "RescaleObservation": (BOX, lambda envs: wrappers.RescaleObservation(envs, 0.0, 1.0)),
    "DtypeObservation": (IMAGE, lambda envs: wrappers.DtypeObservation(envs, np.float32)),
    "NormalizeObservation": (BOX, wrappers.NormalizeObservation),
    "TransformAction": (BOX, lambda envs: wrappers.TransformAction(envs, doubled)),
    "ClipAction": (BOX, wrappers.ClipAction),
    "RescaleAction": (BOX, lambda envs: wrappers.RescaleAction(envs, -2.0, 2.0)),
    "TransformReward": (BOX, lambda envs: wrappers.TransformReward(envs, doubled)),
    "ClipReward": (BOX, lambda envs: wrappers.ClipReward(envs, -1.0, 1.0)),
    "NormalizeReward": (BOX, wrappers.NormalizeReward),
    "RecordEpisodeStatistics": (BOX, wrappers.RecordEpisodeStatistics),
    "RecordVideo": (BOX, lambda envs: wrappers.RecordVideo(envs, "videos", video_length=2)),
    "HumanRendering": (BOX, wrappers.HumanRendering),
    "ArrayConversion": (BOX, lambda envs: arrays(envs, "torch")),
    "JaxToNumpy": (BOX, lambda envs: wrappers.JaxToNumpy(arrays(envs, "jax.numpy"))),
    "JaxToTorch": (BOX, lambda envs: wrappers.JaxToTorch(arrays(envs, "jax.numpy"))),
    "NumpyToTorch": (BOX, lambda envs: wrappers.NumpyToTorch(envs, device="cpu")),
}
NEEDS: dict[str, tuple[str, ...]] = {
    "ResizeObservation": ("cv2",),
    "RecordVideo": ("moviepy",),
    "HumanRendering": ("cv2", "pygame"),
    "ArrayConversion": ("array_api_compat", "torch"),
    "JaxToNumpy": ("array_api_compat", "jax"),
    "JaxToTorch": ("array_api_compat", "jax", "torch"),
    "NumpyToTorch": ("array_api_compat", "torch"),
}


def test_every_exported_wrapper_is_here() -> None:
    assert set(BUILDS) == set(wrappers.__all__)


def course(envs: AnyVector) -> list[Any]:
    """Results of a reset and some steps, without what depends on the clock."""
    envs.action_space.seed(5)
    results: list[Any] = [envs.reset(seed=5)]
    for _ in range(12):
        results.append(envs.step(envs.action_space.sample()))
        timeless(results[-1][-1])
    return [plain(result) for result in results]


def timeless(infos: Any) -> None:
    for info in infos if isinstance(infos, list) else [infos]:
        if "episode" in info:
            info["episode"].pop("t")


def plain(value: Any) -> Any:
    """Tensors of other frameworks as NumPy arrays, wherever they stand."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return np.asarray(value)


def wrapped_course(build: Build, envs: AnyVector) -> list[Any]:
    with closing(build(envs)) as wrapped:
        assert wrapped.unwrapped is envs
        return course(wrapped)


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")  # the second course records to the same folder
@pytest.mark.filterwarnings("ignore:.*autoreset mode is same-step")  # said of the recording, not of the env
@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_wrapper_changes_what_it_changes_over_gymnasiums_env(
    make_process: Make, name: str, mode: AutoresetMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    space, build = BUILDS[name]
    factories = [partial(ScriptedEnv, space, BOX, infos=[], render_mode="rgb_array")] * 3
    settings: dict[str, Any] = {"autoreset_mode": mode}
    results = []
    for envs in (make_process(factories, num_workers=2, **settings), SyncVectorEnv(factories, **settings)):
        try:
            results.append(wrapped_course(build, envs))
        except (ValueError, BufferError) as refusal:  # other frameworks have no arrays of objects for `final_obs`
            results.append([type(refusal).__name__, "autoreset_mode" in str(refusal)])
    assert_same_batch(results[0], results[1])


def test_wrappers_stack_and_statistics_count_episodes(make: Make) -> None:
    def build(envs: AnyVector) -> AnyVector:
        return wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(wrappers.RescaleObservation(envs, 0.0, 1.0)))

    factories = [partial(ScriptedEnv, BOX)] * 2
    assert_same_batch(wrapped_course(build, make(factories)), wrapped_course(build, SyncVectorEnv(factories)))
    with closing(wrappers.RecordEpisodeStatistics(make([partial(CountingEnv, 3)] * 2))) as envs:
        envs.reset(seed=0)
        for _ in range(8):
            envs.step(np.zeros(2, int))
        assert list(envs.return_queue) == [6.0] * 4
        assert list(envs.length_queue) == [3] * 4
