"""Environments by name: paths of modules and ids of either library; and what environments are made of."""

from __future__ import annotations

import importlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest

from parallel_envs import EnvError, MultiAgentEnvManager, ParallelEnvManager, env_ids, evaluate
from parallel_envs.multiagent.by_name import AGENT, EnvInspector, env_factory, inspect_env
from parallel_envs.tasks import TaskWay
from parallel_envs.testing import ScriptedAgentsEnv, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import scripted, together


def two_agents() -> Any:
    return scripted()()


def short_cartpole(length: int) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=length)


def test_each_form_makes_what_it_says() -> None:
    pytest.importorskip("mpe2")
    for name, kwargs, agents in (
        ("mpe2.simple_spread_v3", {"N": 2}, ["agent_0", "agent_1"]),
        ("pettingzoo.mpe.simple_spread_v3", {"N": 1}, ["agent_0"]),  # which has moved
        ("CartPole-v1", {}, [AGENT]),
        (f"{__name__}:two_agents", {}, two_agents().possible_agents),
        (f"{__name__}:short_cartpole", {"length": 3}, [AGENT]),
    ):
        env = env_factory(name, kwargs)()
        env.close()
        assert list(env.possible_agents) == agents
    assert hasattr(env_factory("mpe2.simple_spread_v3", {}, "sequential")(), "agent_iter")


def advised(text: str) -> MultiAgentEnvManager:
    """What the line makes that an error advises."""
    (line,) = re.findall(r"MultiAgentEnvManager\(\[.*\] \* \w+\)", text)
    (module,) = re.findall(r"env_factory from ([\w.]+\w)", text)
    names = {"MultiAgentEnvManager": MultiAgentEnvManager, "num_envs": 2}
    made = eval(line, {**names, "env_factory": importlib.import_module(module).env_factory})
    assert isinstance(made, MultiAgentEnvManager)
    return made


def test_the_line_that_is_advised_for_a_gymnasium_id_makes_its_environments() -> None:
    with pytest.raises(EnvError, match="id of a Gymnasium environment: give that to ParallelEnvManager") as caught:
        MultiAgentEnvManager("CartPole-v1", num_envs=2, backend="serial")
    with advised(str(caught.value)) as envs:
        assert (envs.num_envs, list(envs.possible_agents)) == (2, [AGENT])
    with pytest.raises(gymnasium.error.NameNotFound, match=r"id of a PettingZoo env.* give it to .*MultiAgentEnvMa"):
        ParallelEnvManager("sisl/pursuit-v5", num_envs=1, backend="serial")


def test_the_line_that_learners_advise_makes_environments_that_they_take() -> None:
    pytest.importorskip("torch")
    learners = importlib.import_module("parallel_envs.learners")
    config = learners.PPOConfig(rollout_length=4, minibatch_size=4, hidden=(4,))
    with pytest.raises(TypeError, match="3 was given as environments") as caught:
        learners.IndependentLearners(3, config)
    with advised(str(caught.value)) as envs, learners.IndependentLearners(envs, config) as made:
        made.train(32)
        assert made.updates == 1


def test_a_gymnasium_env_plays_as_one_agent_as_it_does_alone(make_serial: Make) -> None:
    envs = make_serial([env_factory(f"{__name__}:short_cartpole", {"length": 3})])
    alone = gymnasium.vector.SyncVectorEnv([lambda: short_cartpole(3)])
    observations, _ = envs.reset(seed=4)
    expected, _ = alone.reset(seed=4)
    assert_same_batch(observations[AGENT], expected)
    for step in range(8):
        actions = np.array([step % 2])
        told, own = envs.step({AGENT: actions}), alone.step(actions)
        for ours, theirs in zip(told[:4], own[:4], strict=True):
            assert np.array_equal(ours[AGENT], theirs)
    alone.close()


OURS, MOVED = "tests/together-v0", "pettingzoo.mpe.simple_spread_v3"


has_registry = pytest.mark.skipif(not hasattr(pettingzoo, "register"), reason="this PettingZoo has no registry")


def make_together(length: int = 4) -> ScriptedAgentsEnv:
    return scripted(together(length))()


def mountain_car(**kwargs: Any) -> Any:
    return gymnasium.make("MountainCar-v0", **kwargs).unwrapped


def local_copy() -> Callable[..., Any]:
    """A function that only the caller has: a worker cannot import it."""

    def made_here(length: int = 4) -> ScriptedAgentsEnv:
        return make_together(length)

    return made_here


def register(env_id: str, entry_point: Any, kind: str = "parallel", **settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of one that is replaced
        pettingzoo.register(kind, env_id, entry_point, **settings)


@pytest.fixture
def registry() -> Iterator[Callable[..., None]]:
    entries = [one.entries for key, one in env_ids.registries(load=True).items() if key != "gymnasium"]
    before = [dict(one) for one in entries]
    yield register
    for one, known in zip(entries, before, strict=True):
        one.clear()
        one.update(known)


def steps_of(envs: MultiAgentEnvManager) -> list[Any]:
    seen: list[Any] = [envs.reset(seed=3)]
    actions = {agent: envs.action_space(agent) for agent in envs.possible_agents}
    for space in actions.values():
        space.seed(5)
    return seen + [envs.step({agent: space.sample() for agent, space in actions.items()}) for _ in range(6)]


def test_an_id_of_a_package_that_registers_nothing_or_a_moved_path_means_its_module(make_serial: Make) -> None:
    pytest.importorskip("mpe2")
    by_path = steps_of(make_serial("mpe2.simple_spread_v3", num_envs=2, env_kwargs={"N": 2}))
    for name in ("mpe2/simple_spread-v3", "mpe2/simple_spread", "mpe2/simple_spread_v3", MOVED):
        envs = make_serial(name, num_envs=2, env_kwargs={"N": 2})
        assert envs.possible_agents == ("agent_0", "agent_1")
        assert_same_batch(steps_of(envs), by_path)


@has_registry
def test_an_id_plays_the_same_on_every_backend(make: Make, make_serial: Make, registry: Callable[..., None]) -> None:
    registry(OURS, local_copy(), kwargs={"length": 3})
    seen = steps_of(make(OURS, num_envs=5, num_workers=2))
    assert any(step[2]["a"].any() for step in seen[1:])
    assert_same_batch(seen, steps_of(make_serial([scripted(together(3))] * 5)))


@has_registry
def test_a_registration_that_cannot_travel_says_so(make_process: Make, registry: Callable[..., None]) -> None:
    lock = threading.Lock()

    def made_locked() -> ScriptedAgentsEnv:
        with lock:
            return make_together()

    registry("tests/locked-v0", made_locked)
    registry(OURS, local_copy())
    assert make_process(OURS, num_envs=1).possible_agents == ("a", "b")
    with pytest.raises(EnvError, match=r"'tests/locked-v0' could not be sent .*entry_point -> variable 'lock'"):
        make_process("tests/locked-v0", num_envs=1)


@has_registry
def test_a_module_before_an_id_is_imported_first(make_process: Make) -> None:
    name = "tests.multiagent.registering:tests/registered-v1"
    assert make_process(name, num_envs=1, context="spawn").possible_agents == ("a", "b")


@has_registry
def test_turns_choose_between_the_variants(make_serial: Make, registry: Callable[..., None]) -> None:
    pytest.importorskip("mpe2")
    registry("tests/spread-v0", "mpe2.simple_spread_v3:parallel_env")
    registry("tests/spread-v0", "mpe2.simple_spread_v3:env", "aec")
    registry("tests/only_aec-v0", "mpe2.simple_spread_v3:env", "aec")
    for name in ("tests/spread-v0", "tests/only_aec-v0"):
        for turns, num_present in (("simultaneous", 3), ("sequential", 1)):
            envs = make_serial(name, num_envs=1, turns=turns)
            envs.reset(seed=0)
            assert sum(flags[0] for flags in envs.present.values()) == num_present


def test_without_a_registry_ids_mean_modules(make_serial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PettingZoo before 1.27."""
    pytest.importorskip("mpe2")
    for name in ("parallel_registry", "aec_registry", "make", "spec", "register", "EnvSpec"):
        monkeypatch.delattr(pettingzoo, name, raising=False)
    assert env_ids.registered_kinds("sisl/pursuit-v5") == []
    assert env_ids.zoo_module("sisl/pursuit-v5") == "pettingzoo.sisl.pursuit_v5"
    assert len(make_serial("mpe2/simple_spread-v3", num_envs=1).possible_agents) == 3
    with pytest.raises(EnvError, match=r"Did you mean 'sisl/pursuit-v5'\?"):
        make_serial("sisl/pursuit-v4", num_envs=1)


NEAREST = {
    "sisl/pursiut-v5": "sisl/pursuit-v5",
    "sisl/pursuit-v4": "sisl/pursuit-v5",
    "mpe2/simple_sprad-v3": "mpe2/simple_spread-v3",
    "simple_spread-v3": "mpe2/simple_spread-v3",
    "CartPol-v1": "CartPole-v1",
}


def test_a_wrong_name_is_answered_with_the_nearest_of_either_library_or_the_forms_of_names(make_serial: Make) -> None:
    pytest.importorskip("mpe2")
    for name, meant in NEAREST.items():
        with pytest.raises(EnvError, match=rf"has the id '{name}'\. Did you mean '{meant}'\?"):
            make_serial(name, num_envs=1)
        with pytest.raises(ValueError, match=rf"'{name}' is unknown\. Did you mean '{meant}'\?"):
            env_factory(name)
        with pytest.raises(gymnasium.error.NameNotFound, match=f"Did you mean.*{meant.partition('-v')[0]}"):
            ParallelEnvManager(name, num_envs=1, backend="serial")
    for name in ("CartPol-v1", "no_such_package.env", "words", ""):
        with pytest.raises(ValueError, match="Give the path of a PettingZoo module"):
            env_factory(name)
    for name in ("mpe2.simple_sprad_v3", "mpe2.simple_spread_v2", "mpe3.simple_spread_v3"):
        with pytest.raises(ValueError, match=rf"{name}.* Did you mean 'mpe2.simple_spread_v3'\?$"):
            env_factory(name)


def test_gymnasiums_replaced_environments_are_the_callers_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("CartPole-v1", entry_point=mountain_car)
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1", spec)
    with ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")], context="spawn") as envs:
        assert envs.single_observation_space.shape == (2,)


@has_registry
def test_evaluations_play_what_the_caller_has_registered(registry: Callable[..., None]) -> None:
    registry(OURS, local_copy())
    here, there = (evaluate(OURS, "random", episodes=2, jobs=jobs) for jobs in (0, 2))
    assert [one.returns for one in here.episodes] == [one.returns for one in there.episodes]
    assert set(here.episodes[0].returns) == {"a", "b"}


@has_registry
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_know_what_this_process_has_registered_or_replaced(
    make_process: Make, registry: Callable[..., None], context: str
) -> None:
    registry(OURS, local_copy())
    registry("sisl/pursuit-v5", local_copy())
    settings: dict[str, Any] = {"num_workers": 1, "context": context}
    made = [
        partial(pettingzoo.make, "parallel", OURS),
        env_factory("sisl/pursuit-v5"),
        env_factory(OURS, {"length": 2}),
    ]
    assert make_process(made, **settings).possible_agents == ("a", "b")
    assert make_process("sisl/pursuit-v5", num_envs=1, **settings).possible_agents == ("a", "b")


class LevelEnv(gymnasium.Env[Any, Any]):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.level = int((options or {}).get("task", 0))  # fails for what is no number
        return 0, {}


class GoalEnv(LevelEnv):
    def set_task(self, task: int) -> None:
        self.level = task


class OldEnv(LevelEnv):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]  # as environments once were
        return 0, {}


def test_how_an_env_takes_tasks_and_what_it_is_made_of_is_found() -> None:
    found = inspect_env(gymnasium.wrappers.TimeLimit(GoalEnv(), 5))
    assert (found.way, found.method) == (TaskWay.SET_TASK, "set_task(task: 'int') -> 'None'")
    assert found.owner == f"{__name__}.GoalEnv"
    assert [layer.rpartition(".")[2] for layer in found.layers] == ["TimeLimit", "GoalEnv"]
    for made, way, looks in (
        (LevelEnv(), TaskWay.OPTIONS, True),
        (gymnasium.make("CartPole-v1"), TaskWay.OPTIONS, False),  # does not look at them
        (OldEnv(), None, None),
    ):
        found = inspect_env(made)
        assert (found.way, found.looks, found.method) == (way, looks, None)
    seen = EnvInspector().look(env_factory("parallel_envs.testing.families:GridNaviEnv", {}))
    assert seen.sample is not None
    assert seen.others == ("get_task", "sample_tasks")
    spread = pytest.importorskip("mpe2.simple_spread_v3").parallel_env()
    found = inspect_env(spread)
    spread.close()
    assert not found.is_gymnasium
    assert found.layers[0].endswith("aec_to_parallel_wrapper")
    assert found.layers[-1] == "mpe2.simple_spread.simple_spread.raw_env"
