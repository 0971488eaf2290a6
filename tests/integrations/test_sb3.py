"""stable-baselines3 on our environments gives what it gives on its own `DummyVecEnv`, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from parallel_envs import EnvError, MultiAgentEnvManager, ParallelEnvManager, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, InfoKind, Moment, RewardKind, ScriptedEnv
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from parallel_envs.threads import one_torch_thread

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)

from parallel_envs.integrations import ParallelVecEnv, from_sb3, to_sb3

pytestmark = pytest.mark.filterwarnings(
    "ignore:You are trying to run PPO on the GPU:UserWarning", "ignore:.*Box (low|high)'s precision lowered.*"
)

SETTINGS: list[dict[str, Any]] = [{"num_workers": 2}, {"backend": "thread", "num_workers": 2}, {"backend": "serial"}]


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same content and dtypes."""
    if isinstance(one, dict):
        return isinstance(other, dict) and set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other) and type(one) is type(other)


@pytest.fixture(autouse=True)
def _one_thread_of_torch() -> Iterator[None]:
    """The networks are tiny, and several threads for them on a busy machine wait for one another."""
    with one_torch_thread():
        yield


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """A function that has vec envs closed at the end of the test."""
    made: list[Any] = []

    def keep(venv: Any) -> Any:
        made.append(venv)
        return venv

    yield keep
    while made:
        made.pop().close()


# ---- the same numbers ------------------------------------------------------------------------------------------------

PARTS = {
    "box": spaces.Box(-1, 1, (2,), np.float64),
    "one": spaces.Discrete(5),
    "picture": spaces.Box(0, 255, (2, 3), np.uint8),
}
OBSERVED = {
    "box": PARTS["box"],
    "discrete": PARTS["one"],
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
    "dict": spaces.Dict(PARTS),
    "tuple": spaces.Tuple(tuple(PARTS.values())),
}
ACTIONS = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "discrete": spaces.Discrete(3),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
}


def scripted(observed: str = "box", acted: str = "discrete") -> Callable[[], Any]:
    return partial(
        ScriptedEnv,
        OBSERVED[observed],
        ACTIONS[acted],
        rewards=[kind for kind in RewardKind if kind is not RewardKind.ARRAY],  # DummyVecEnv refuses it
        infos=list(InfoKind),
        endings=("terminated", "truncated", "both"),
    )


def trajectory(venv: Any, num_steps: int = 30) -> list[Any]:
    """All that a `VecEnv` returns, in two episodes that are begun by hand: the first seeded and with options."""
    venv.action_space.seed(5)
    venv.seed(3)
    venv.set_options([{"level": 1}, {}, {"task": 2}])
    seen: list[Any] = []
    for _ in range(2):
        seen += [venv.reset(), list(venv.reset_infos)]
        for _ in range(num_steps):
            actions = [venv.action_space.sample() for _ in range(venv.num_envs)]
            seen += [venv.step(actions), list(venv.reset_infos)]
    return seen


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    ("observed", "acted"), [*((name, "discrete") for name in OBSERVED), *(("box", name) for name in ACTIONS)]
)
def test_all_that_is_returned_equals_that_of_dummy_vec_env(
    observed: str, acted: str, settings: dict[str, Any], opened: Any
) -> None:
    fns = [scripted(observed, acted)] * 3
    expected = trajectory(opened(DummyVecEnv(fns)))
    assert any(info for step in expected if isinstance(step, tuple) and len(step) == 4 for info in step[3])
    assert same(trajectory(opened(to_sb3(fns, **settings))), expected)


def test_a_manager_and_gymnasiums_own_vector_env_give_the_same_but_for_types_of_infos(opened: Any) -> None:
    fns = [partial(gymnasium.make, "CartPole-v1")] * 3
    expected = opened(DummyVecEnv(fns))
    ours = [
        opened(to_sb3(ParallelEnvManager(fns, autoreset_mode="SameStep", backend="serial", copy=False))),
        opened(to_sb3(SyncVectorEnv(fns, autoreset_mode="SameStep", copy=False))),
    ]
    for venv in (expected, *ours):
        venv.seed(1)
    firsts = [venv.reset() for venv in (expected, *ours)]
    kept = [first.copy() for first in firsts]
    for _ in range(40):
        actions = np.ones(3, np.int64)
        steps = [venv.step(actions) for venv in (expected, *ours)]
        assert all(same(step, steps[0]) for step in steps[1:])
    assert all(same(one, other) for one, other in zip(firsts, kept, strict=True))  # SB3 keeps them


PENDULUM, CARTPOLE = partial(gymnasium.make, "Pendulum-v1"), partial(gymnasium.make, "CartPole-v1")

ALGORITHMS: dict[str, tuple[Any, Any, int, dict[str, Any]]] = {
    "ppo": (PPO, CARTPOLE, 128, {"n_steps": 32, "n_epochs": 2, "batch_size": 32}),
    "dqn": (DQN, CARTPOLE, 120, {"learning_starts": 40, "buffer_size": 300}),
    "sac": (SAC, PENDULUM, 40, {"learning_starts": 20, "buffer_size": 300, "batch_size": 16}),
    "her": (
        DQN,
        partial(BitFlippingEnv, n_bits=4, continuous=False),
        120,
        {"learning_starts": 40, "buffer_size": 300, "replay_buffer_class": HerReplayBuffer},
    ),
}


def learned(name: str, kind: type[Any], normalized: bool = False, **manager: Any) -> dict[str, Any]:
    """The weights after some updates on a `VecEnv` of this kind."""
    algorithm, make, steps, settings = ALGORITHMS[name]
    if name == "ppo":  # with SB3's monitors in the workers
        venv = make_vec_env(make, 2, seed=9, vec_env_cls=kind, vec_env_kwargs=manager)
    else:
        venv = kind([make] * 2, **manager)
    with closing(VecNormalize(venv) if normalized else venv) as envs:
        policy = "MultiInputPolicy" if name == "her" else "MlpPolicy"
        model = algorithm(policy, envs, seed=4, device="cpu", **settings).learn(steps)
        return {key: value.numpy().copy() for key, value in model.policy.state_dict().items()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_weights_equal_those_on_dummy_vec_env(name: str) -> None:
    """One worker, where it needs SB3: each that imports it takes seconds."""
    assert same(learned(name, ParallelVecEnv, num_workers=1), learned(name, DummyVecEnv))


def test_weights_are_equal_under_vec_normalize_too() -> None:
    assert same(learned("ppo", ParallelVecEnv, True, backend="thread"), learned("ppo", DummyVecEnv, True))


# ---- SB3's interface -------------------------------------------------------------------------------------------------


class Counter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env with an attribute, a method, and what sb3-contrib asks for."""

    level = 1

    def add(self, amount: int, *, times: int = 1) -> int:
        self.level += amount * times
        return self.level

    def action_masks(self) -> Any:
        return np.array([True, self.level > 1, True])

    def reset_mask(self) -> None:
        raise LookupError("an error of the environment")


def counted() -> Any:
    return Counter(ScriptedEnv(render_mode="rgb_array"))


@pytest.mark.parametrize("kind", ["process", "serial", "sync"])
def test_attributes_and_methods_by_indices(kind: Any, opened: Any) -> None:
    fns: list[Callable[[], Any]] = [counted, lambda: ScriptedEnv(render_mode="rgb_array"), counted]
    sync = kind == "sync"
    venv = opened(
        to_sb3(SyncVectorEnv(fns, autoreset_mode="SameStep") if sync else ParallelVecEnv(fns, backend=kind).vector_env)
    )
    assert venv.env_is_wrapped(Counter) == [True, False, True]
    assert venv.env_is_wrapped(Monitor, indices=[0]) == [False]
    assert venv.env_method("add", 2, indices=[0, -1], times=3) == [7, 7]
    assert venv.env_method("add", 1, indices=np.int64(2)) == [8]
    assert venv.get_attr("level", indices=(2, 0)) == [8, 7]
    assert venv.env_method("add", 1, indices=[]) == []
    assert venv.has_attr("episode_lengths")
    assert not venv.has_attr("level")  # env 1 has none
    venv.set_attr("level", 40, indices=2)
    venv.set_attr("anything", "new")
    assert venv.get_attr("level", 2) == [40]
    assert venv.get_attr("anything") == ["new"] * 3
    (method,) = venv.get_attr("add", indices=2)
    assert method(2) == 42
    with pytest.raises(AttributeError, match="no_such"):
        venv.get_attr("no_such")
    with pytest.raises(LookupError, match="an error of the environment"):
        venv.env_method("reset_mask", indices=0)
    with pytest.raises(IndexError):
        venv.get_attr("level", indices=3)
    assert venv.render_mode == "rgb_array"
    assert venv.metadata["render_fps"] == 30
    venv.reset()
    assert [picture.shape[-1] for picture in venv.get_images()] == [3, 3, 3]
    assert venv.render().ndim == 3
    assert venv.unwrapped is venv


def test_workers_import_neither_sb3_nor_torch_on_our_account(opened: Any) -> None:
    venv = opened(to_sb3("CartPole-v1", num_envs=2, num_workers=1, context="spawn"))
    assert venv.env_is_wrapped(Monitor) == [False, False]
    assert venv.env_method("get_wrapper_attr", "render_mode") == [None, None]
    loaded = set(venv.vector_env.apply(lambda env: sorted(sys.modules))[0])
    assert {"torch", "stable_baselines3", "parallel_envs.integrations.sb3"} & loaded == set()


def test_seeds_and_options_hold_for_one_reset(opened: Any) -> None:
    venv = opened(to_sb3([scripted()] * 2, backend="serial"))
    assert venv.seed(5) == [5, 6]
    first = venv.reset()
    assert not np.array_equal(venv.reset(), first)
    venv.seed(5)
    assert np.array_equal(venv.reset(), first)
    venv.seed(5)
    venv.set_options({"level": 3})
    assert not np.array_equal(venv.reset(), first)
    venv._seeds = [5, 9]  # as SB3 has it, where someone sets them one by one
    assert np.array_equal(venv.reset()[0], first[0])


def test_wrappers_save_load_evaluate_and_videos(tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def monitored() -> Any:
        return to_sb3("CartPole-v1", num_envs=2, backend="serial", env_kwargs={"render_mode": "rgb_array"})

    venv = opened(VecNormalize(VecMonitor(VecFrameStack(monitored(), 2), str(tmp_path / "log"))))
    model = PPO("MlpPolicy", venv, n_steps=32, n_epochs=1, batch_size=32, device="cpu").learn(128)
    assert model.ep_info_buffer
    venv.save(str(tmp_path / "stats"))
    model.save(str(tmp_path / "model"))
    again = opened(VecNormalize.load(str(tmp_path / "stats"), VecMonitor(VecFrameStack(monitored(), 2))))
    again.training = False
    loaded = PPO.load(str(tmp_path / "model"), env=again, device="cpu")
    returns, lengths = evaluate_policy(loaded, again, n_eval_episodes=3, return_episode_rewards=True)
    assert returns == lengths  # of the monitor: CartPole's return is its length
    pytest.importorskip("moviepy")
    monkeypatch.setattr(pytest.importorskip("tqdm").tqdm, "monitor_interval", 0)  # its thread would outlive the test
    with closing(VecVideoRecorder(monitored(), str(tmp_path), lambda step: step == 0, video_length=4)) as recorder:
        recorder.reset()
        for _ in range(6):
            recorder.step(np.zeros(2, np.int64))
    assert list(tmp_path.glob("*.mp4"))


def test_contribs_masks_come_from_workers(opened: Any) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    venv = opened(to_sb3([counted] * 2, num_workers=1))
    model = contrib.MaskablePPO("MlpPolicy", venv, n_steps=16, n_epochs=1, batch_size=16, device="cpu").learn(64)
    chosen = model.rollout_buffer.actions
    assert set(np.unique(chosen)) <= {0, 2}  # action 1 is masked at level 1
    contrib.RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, n_epochs=1, batch_size=16, device="cpu").learn(32)


def test_statistics_of_gymnasium_arrive_where_sb3_looks_for_them(opened: Any) -> None:
    manager = ParallelEnvManager([scripted()] * 2, autoreset_mode="SameStep", backend="serial")
    venv = opened(to_sb3(RecordEpisodeStatistics(manager)))
    venv.seed(0)
    venv.reset()
    ended = [info["episode"] for _ in range(12) for info in venv.step([0, 0])[3] if "terminal_observation" in info]
    assert ended
    assert {float(one["l"]) for one in ended} <= {2.0, 3.0, 5.0}


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_used_says_what_to_write(opened: Any) -> None:
    manager = opened(ParallelEnvManager([scripted()] * 2, backend="serial"))
    with pytest.raises(
        ValueError, match=r"is 'NextStep', and stable-baselines3 needs 'SameStep'.*autoreset_mode='SameStep'"
    ):
        to_sb3(manager)
    with pytest.raises(ValueError, match="is 'Disabled'"):
        to_sb3([scripted()] * 2, backend="serial", autoreset_mode="Disabled")  # and what was made is closed
    with pytest.raises(TypeError, match=r"num_workers was given with ParallelEnvManager, which exists already"):
        to_sb3(manager, num_workers=1)
    agents = opened(MultiAgentEnvManager([partial(ScriptedAgentsEnv, [{"a": Stay(2)}])] * 2, backend="serial"))
    with pytest.raises(TypeError, match="as_vector_env"):
        to_sb3(agents)
    with pytest.raises(ValueError, match="cannot find context for 'forksever': start_method is one of"):
        ParallelVecEnv([scripted()], start_method="forksever")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"num_worker=2 is no argument of ParallelEnvManager\. Did you mean num_workers="
    ):
        to_sb3("CartPole-v1", num_envs=2, num_worker=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="env_fns=3 is not a sequence of callables"):
        to_sb3(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is not a VecEnv"):
        from_sb3(manager)


# ---- faults ----------------------------------------------------------------------------------------------------------


def faulty(fault: Fault, moment: Moment, once: Path | None = None, at: int = 4, **more: Any) -> Callable[[], Any]:
    return partial(FaultyEnv, fault, moment, at=at, once=once, episode_lengths=(6,), **more)


def test_an_error_in_a_worker_is_that_error_and_the_rest_goes_on(opened: Any) -> None:
    venv = opened(to_sb3([ScriptedEnv, faulty(Fault.EXCEPTION, Moment.STEP)]))
    venv.reset()
    for _ in range(3):
        venv.step([0, 0])
    with pytest.raises(EnvError, match="Env 1 raised"):
        venv.step([0, 0])
    assert not venv.waiting
    assert venv.reset().shape == (2, 3)


def test_a_dead_worker_is_named(opened: Any) -> None:
    venv = opened(to_sb3([ScriptedEnv, faulty(Fault.SIGKILL, Moment.STEP)]))
    venv.reset()
    for _ in range(3):
        venv.step([0, 0])
    with pytest.raises(WorkerDied, match="signal 9"):
        venv.step([0, 0])


@pytest.mark.parametrize("fault", [Fault.SIGKILL, Fault.EXCEPTION])
def test_a_lost_episode_is_done_cut_off_and_says_so(fault: Fault, tmp_path: Path, opened: Any) -> None:
    fns = [ScriptedEnv, faulty(fault, Moment.STEP, tmp_path / "once")]
    venv = opened(to_sb3(fns, on_failure="restart"))
    before = venv.reset()
    for _ in range(3):
        before, _, _, infos = venv.step([0, 0])
        assert "worker_restarted" not in infos[1]
    first, rewards, dones, infos = venv.step([0, 0])
    assert (bool(dones[1]), float(rewards[1]), infos[1]["TimeLimit.truncated"]) == (True, 0.0, True)
    assert infos[1]["worker_restarted"]
    assert np.array_equal(infos[1]["terminal_observation"], before[1])
    assert not np.array_equal(first[1], before[1])
    assert "worker_restarted" not in infos[0]
    assert "worker_restarted" not in venv.step([0, 0])[3][1]


def test_training_goes_on_after_a_worker_was_killed(tmp_path: Path) -> None:
    flat = spaces.Box(-1, 1, (3,), np.float32)
    fns = [faulty(Fault.SIGKILL, Moment.STEP, tmp_path / "once", at=20, observation_space=flat)] * 2
    with closing(to_sb3(fns, on_failure="restart")) as venv:
        model = PPO("MlpPolicy", VecMonitor(venv), n_steps=32, n_epochs=1, batch_size=32, device="cpu").learn(128)
        assert venv.vector_env.num_restarts == 1
        assert model.num_timesteps == 128


def test_a_late_step_can_be_waited_for_again_and_dropped_by_a_reset(opened: Any) -> None:
    venv = opened(to_sb3([ScriptedEnv, faulty(Fault.SLEEP, Moment.STEP, at=1, seconds=1.0)], step_timeout=0.3))
    venv.reset()
    with pytest.raises(StepTimeout):
        venv.step([0, 0])
    assert venv.waiting
    observations = venv.vector_env.step_wait(30.0)[0]
    assert observations.shape == (2, 3)
    venv.waiting = False
    venv.step_async([0, 0])
    venv.reset()
    assert not venv.waiting


def test_a_late_reset_is_waited_for_by_the_next_one(opened: Any) -> None:
    """A `VecEnv` has no `reset_wait`."""
    late = [ScriptedEnv, faulty(Fault.SLEEP, Moment.RESET, at=1, seconds=0.6)]
    for wrap in (lambda envs: envs, RecordEpisodeStatistics):
        plain = opened(to_sb3([ScriptedEnv, partial(ScriptedEnv, episode_lengths=(6,))], backend="serial"))
        manager = ParallelEnvManager(late, reset_timeout=0.2, autoreset_mode="SameStep")
        venv = opened(to_sb3(wrap(manager)))
        for one in (venv, plain):
            one.seed(3)
        with pytest.raises(StepTimeout):
            venv.reset()
        manager.reset_timeout = 30.0
        assert same(venv.reset(), plain.reset())
        assert same(venv.step([0, 1])[0], plain.step([0, 1])[0])


def test_close_twice_and_close_before_anything(opened: Any) -> None:
    venv = to_sb3([scripted()] * 2, num_workers=1)
    venv.close()
    venv.close()


# ---- agents as rows --------------------------------------------------------------------------------------------------


def test_agents_as_rows_end_once_and_wait_as_zeros(opened: Any) -> None:
    schedules: Any = [{"a": Stay(2), "b": Stay(5)}]
    agents = MultiAgentEnvManager([partial(ScriptedAgentsEnv, schedules)] * 2, backend="serial")
    venv = opened(to_sb3(agents.as_vector_env(autoreset_mode="SameStep")))
    observations = venv.reset()
    assert (venv.num_envs, len(observations)) == (4, 4)
    rows = [venv.step([venv.action_space.sample() for _ in range(4)]) for _ in range(5)]
    done = np.array([dones for _, _, dones, _ in rows])
    assert done[:, 0].tolist() == done[:, 2].tolist() == [False, True, False, False, True]
    assert done[:, 1].tolist() == [False, False, False, False, True]
    assert [infos[0].get("alive") for _, _, _, infos in rows[2:4]] == [False, False]
    assert not rows[2][0][0].any()
    assert not rows[4][3][0]["TimeLimit.truncated"]
    for _, _, dones, infos in rows:
        assert ["terminal_observation" in info for info in infos] == dones.tolist()
    assert [info["env_id"] for info in rows[4][3]] == [0, 0, 1, 1]
    assert venv.get_attr("possible_agents", indices=[0, 3]) == [["a", "b"], ["a", "b"]]


# ---- the other way ---------------------------------------------------------------------------------------------------


def test_there_and_back_is_the_same(opened: Any) -> None:
    fns = [partial(ScriptedEnv, OBSERVED["dict"], infos=[InfoKind.SCALARS])] * 3
    ours = opened(ParallelEnvManager(fns, autoreset_mode="SameStep", backend="serial"))
    back = opened(from_sb3(to_sb3(fns, backend="serial")))
    assert back.metadata["autoreset_mode"] == ours.metadata["autoreset_mode"]
    assert (back.observation_space, back.single_action_space) == (ours.observation_space, ours.single_action_space)
    assert same(back.reset(seed=3), ours.reset(seed=3))
    for step in range(20):
        actions = np.full(3, step % 3)
        (observations, rewards, *flags, infos), expected = back.step(actions), ours.step(actions)
        assert same((observations, *flags), (expected[0], *expected[2:4]))
        assert np.array_equal(rewards, expected[1].astype(np.float32))
        assert infos.keys() == expected[4].keys()
    with pytest.raises(TypeError, match="environment i has seed"):
        back.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="reset_mask"):
        back.reset(options={"reset_mask": np.ones(3, bool)})


def test_normalized_and_stacked_by_sb3_in_a_gymnasium_loop(opened: Any) -> None:
    def stacked() -> Any:
        return VecNormalize(VecFrameStack(DummyVecEnv([scripted()] * 2), 2))

    envs, venv = opened(from_sb3(stacked())), opened(stacked())
    venv.seed(1)
    assert same(envs.reset(seed=1)[0], venv.reset())
    for _ in range(8):
        observations, _, terminations, truncations, infos = envs.step(np.zeros(2, np.int64))
        expected, _, dones, expected_infos = venv.step(np.zeros(2, np.int64))
        assert same(observations, expected)
        assert np.array_equal(terminations | truncations, dones)
        for row in np.flatnonzero(dones):
            assert same(infos["final_obs"][row], expected_infos[row]["terminal_observation"])
    assert envs.call("episode_lengths") == ((3, 5, 2),) * 2


@pytest.mark.slow
def test_the_example_learns() -> None:
    program = Path(__file__).parents[2] / "examples/sb3_ppo.py"
    command = [sys.executable, str(program), "--total-timesteps", "2000", "--num-envs", "4"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout.splitlines()[-1].split("returns: ")[1])
