"""What is misspelt, or of a kind of its own: the argument is named, the nearest word too, and what would help."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.engine import PoolSettings, unpicklable_part
from parallel_envs.errors import EnvError
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


def made(settings: dict[str, Any]) -> ParallelEnvManager:
    return ParallelEnvManager([CountingEnv] * 2, **{"backend": "serial", **settings})


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [
        ("backend", "proces", "process"),
        ("context", "forksrv", "forkserver"),
        ("on_failure", "restrat", "restart"),
        ("autoreset_mode", "next_step", "NextStep"),
        ("observation_mode", "diferent", "different"),
    ],
)
def test_the_word_that_was_meant(name: str, word: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}='{word}' is unknown\. Choose .*\. Did you mean '{meant}'\?"):
        made({name: word})


def test_a_pools_own_settings() -> None:
    with pytest.raises(ValueError, match=r"backend='thred' is unknown\. .* Did you mean 'thread'\?"):
        PoolSettings(backend="thred")  # type: ignore[arg-type]  # what this is about
    with pytest.raises(ValueError, match=r"context='frok' is not a start method\. .* Did you mean 'fork'\?"):
        PoolSettings(context="frok")  # type: ignore[arg-type]  # what this is about


SETTINGS = [
    *("backend", "context", "on_failure", "autoreset_mode", "observation_mode", "cpu_affinity", "num_envs"),
    *("step_timeout", "reset_timeout", "start_timeout", "restart_window", "max_restarts", "threads_per_worker"),
    *("num_workers", "copy", "shared_memory", "env_kwargs", "task_source", "task_setter"),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_an_array_is_no_setting(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        made({name: np.ones(3) / 2})


# ---- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "advice"),
    [
        ("mpe2.simple_spread_v3", "a module of PettingZoo's kind: that is for parallel_envs.multiagent.MultiAgentEnv"),
        ("no_such.simple_spread_v3", "a module of PettingZoo's kind"),
        ("MiniGrid-Nowhere-v0", "write 'minigrid:MiniGrid-Nowhere-v0'"),
        ("Nowhere-v0", "write 'package:Nowhere-v0'"),
    ],
)
def test_where_an_id_may_be(env_id: str, advice: str) -> None:
    with pytest.raises(gym.error.NameNotFound, match=advice):
        ParallelEnvManager(env_id, num_envs=2)


class Two(CountingEnv):
    """Two agents, as level-based foraging has them."""

    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, [0.0, 1.0], *others


def test_an_environment_of_several_agents_is_told_where_to_go() -> None:
    envs = ParallelEnvManager([Two], backend="serial")
    envs.reset(seed=1)
    with pytest.raises(EnvError, match=r"reward \[0\.0, 1\.0\] of type list\. .* are for MultiAgentEnvManager"):
        envs.step(envs.action_space.sample())
    envs.close()


# ---- what cannot travel ----------------------------------------------------------------------------------------------


class Locked(CountingEnv):
    """Its metadata cannot be pickled. A worker imports it by its name, so that it is made all the same."""

    metadata = {"render_modes": [], "lock": threading.Lock()}  # noqa: RUF012  # Gymnasium's own form


def test_metadata_that_cannot_come_back_are_named_and_where_to_put_them_too(make_process: Make) -> None:
    advice = r"metadata\['lock'\] \(a _thread\.lock\) cannot be pickled.*Leave it out of metadata .*__init__"
    with pytest.raises(EnvError, match=advice):
        make_process([Locked])


def test_metadata_that_need_not_travel_stay_as_they_are() -> None:
    envs = ParallelEnvManager([Locked], backend="serial")
    assert envs.metadata["lock"] is Locked.metadata["lock"]
    envs.close()


def local_kind() -> type[CountingEnv]:
    class Base(CountingEnv):
        metadata: dict[str, Any] = {"lock": threading.Lock()}  # noqa: RUF012  # Gymnasium's own form

    class Local(Base):
        """As a class of the user's script it travels by value, its bases too."""

    return Local


def test_metadata_that_cannot_go_there_are_named_in_the_class_that_has_them(make_process: Make) -> None:
    where = r"env_fns\[0\] -> base class 'Base'\.metadata\['lock'\] \(a _thread\.lock\) cannot be pickled"
    with pytest.raises(TypeError, match=rf"{where}.* Leave it out of metadata .*backend='thread'"):
        make_process([local_kind()])


def test_other_parts_of_a_class_are_made_elsewhere(make_process: Make) -> None:
    class Holding(CountingEnv):
        padlock = threading.Lock()

    assert unpicklable_part(Holding, "it") == "it.padlock (a _thread.lock)"
    with pytest.raises(
        TypeError, match=r"env_fns\[0\]\.padlock .*Make it inside the function .* in the environment's __init"
    ):
        make_process([Holding])
