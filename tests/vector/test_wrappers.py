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

BOX = spaces.Box(-1, 1, (3,), np.float64)
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
PARTS = spaces.Dict(near=spaces.Box(-1, 1, (2,)), far=spaces.Box(-1, 1, (3,)))
AnyVector = VectorEnv[Any, Any, Any]
Build = Callable[[AnyVector], AnyVector]


def made_of(wrapper: Any, *arguments: Any, **settings: Any) -> Build:
    return lambda envs: wrapper(envs, *arguments, **settings)


def arrays(envs: AnyVector, target: str) -> AnyVector:
    return wrappers.ArrayConversion(envs, env_xp=np, target_xp=importlib.import_module(target))


def doubled(value: Any) -> Any:
    return value * 2


one = gym.wrappers
# The observation space to wrap, how, and the packages that it needs.
BUILDS: dict[str, tuple[spaces.Space[Any], Build, *tuple[str, ...]]] = {
    "VectorizeTransformObservation": (
        BOX,
        made_of(wrappers.VectorizeTransformObservation, one.TransformObservation, func=doubled, observation_space=BOX),
    ),
    "VectorizeTransformAction": (
        BOX,
        made_of(wrappers.VectorizeTransformAction, one.TransformAction, func=doubled, action_space=BOX),
    ),
    "VectorizeTransformReward": (BOX, made_of(wrappers.VectorizeTransformReward, one.TransformReward, func=doubled)),
    "DictInfoToList": (BOX, wrappers.DictInfoToList),
    "TransformObservation": (BOX, made_of(wrappers.TransformObservation, doubled)),
    "FilterObservation": (PARTS, made_of(wrappers.FilterObservation, ["far"])),
    "FlattenObservation": (PARTS, wrappers.FlattenObservation),
    "GrayscaleObservation": (IMAGE, made_of(wrappers.GrayscaleObservation, keep_dim=True), "cv2"),
    "ResizeObservation": (IMAGE, made_of(wrappers.ResizeObservation, (4, 4)), "cv2"),
    "ReshapeObservation": (IMAGE, made_of(wrappers.ReshapeObservation, (64, 3))),
    "RescaleObservation": (BOX, made_of(wrappers.RescaleObservation, 0.0, 1.0)),
    "DtypeObservation": (IMAGE, made_of(wrappers.DtypeObservation, np.float32)),
    "NormalizeObservation": (BOX, wrappers.NormalizeObservation),
    "TransformAction": (BOX, made_of(wrappers.TransformAction, doubled)),
    "ClipAction": (BOX, wrappers.ClipAction),
    "RescaleAction": (BOX, made_of(wrappers.RescaleAction, -2.0, 2.0)),
    "TransformReward": (BOX, made_of(wrappers.TransformReward, doubled)),
    "ClipReward": (BOX, made_of(wrappers.ClipReward, -1.0, 1.0)),
    "NormalizeReward": (BOX, wrappers.NormalizeReward),
    "RecordEpisodeStatistics": (BOX, wrappers.RecordEpisodeStatistics),
    "RecordVideo": (BOX, made_of(wrappers.RecordVideo, "videos", video_length=2), "moviepy"),
    "HumanRendering": (BOX, wrappers.HumanRendering, "cv2", "pygame"),
    "ArrayConversion": (BOX, lambda envs: arrays(envs, "torch"), "array_api_compat", "torch"),
    "JaxToNumpy": (BOX, lambda envs: wrappers.JaxToNumpy(arrays(envs, "jax.numpy")), "array_api_compat", "jax"),
    "JaxToTorch": (
        BOX,
        lambda envs: wrappers.JaxToTorch(arrays(envs, "jax.numpy")),
        "array_api_compat",
        "jax",
        "torch",
    ),
    "NumpyToTorch": (BOX, made_of(wrappers.NumpyToTorch, device="cpu"), "array_api_compat", "torch"),
}


def course(build: Build, envs: AnyVector) -> list[Any]:
    """Results of a reset and some steps of wrapped envs, without what depends on the clock."""
    with closing(build(envs)) as wrapped:
        assert wrapped.unwrapped is envs
        wrapped.action_space.seed(5)
        results: list[Any] = [wrapped.reset(seed=5)]
        for _ in range(12):
            results.append(wrapped.step(wrapped.action_space.sample()))
            infos = results[-1][-1]
            for info in infos if isinstance(infos, list) else [infos]:
                info.get("episode", {}).pop("t", None)
    return [plain(result) for result in results]


def plain(value: Any) -> Any:
    """Tensors of other frameworks as NumPy arrays, wherever they stand."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return np.asarray(value)


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos")  # the second course records to the same folder
@pytest.mark.filterwarnings("ignore:.*autoreset mode is same-step")  # said of the recording, not of the env
@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("name", wrappers.__all__)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_wrapper_changes_what_it_changes_over_gymnasiums_env(
    make_process: Make, name: str, mode: AutoresetMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, build, *needs = BUILDS[name]
    for package in needs:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    factories = [partial(ScriptedEnv, space, BOX, infos=[], render_mode="rgb_array")] * 3
    settings: dict[str, Any] = {"autoreset_mode": mode}
    results = []
    for envs in (make_process(factories, num_workers=2, **settings), SyncVectorEnv(factories, **settings)):
        try:
            results.append(course(build, envs))
        except (ValueError, BufferError) as refusal:  # other frameworks have no arrays of objects for `final_obs`
            results.append([type(refusal).__name__, "autoreset_mode" in str(refusal)])
    assert_same_batch(results[0], results[1])


def test_wrappers_stack_and_statistics_count_episodes(make: Make) -> None:
    def build(envs: AnyVector) -> AnyVector:
        return wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(wrappers.RescaleObservation(envs, 0.0, 1.0)))

    factories = [partial(ScriptedEnv, BOX)] * 2
    assert_same_batch(course(build, make(factories)), course(build, SyncVectorEnv(factories)))
    with closing(wrappers.RecordEpisodeStatistics(make([partial(CountingEnv, 3)] * 2))) as envs:
        envs.reset(seed=0)
        for _ in range(8):
            envs.step(np.zeros(2, int))
        assert list(envs.return_queue) == [6.0] * 4
        assert list(envs.length_queue) == [3] * 4
