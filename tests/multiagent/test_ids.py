"""PettingZoo environments named by an id: registered with PettingZoo, by a package or by the caller, or meant by it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import pettingzoo
import pytest

from parallel_envs import EnvError, MultiAgentEnvManager, ParallelEnvManager, env_ids, evaluate
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.testing import ScriptedAgentsEnv, assert_same_batch
from tests.multiagent.scripts import scripted, together

Make = Callable[..., MultiAgentEnvManager]

OURS = "tests/together-v0"
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
    """`register`; what a test registers is gone after it."""
    entries = [one.entries for key, one in env_ids.registries(load=True).items() if key != "gymnasium"]
    before = [dict(one) for one in entries]
    yield register
    for one, known in zip(entries, before, strict=True):
        one.clear()
        one.update(known)


def steps_of(envs: MultiAgentEnvManager, count: int = 6) -> list[Any]:
    seen: list[Any] = [envs.reset(seed=3)]
    actions = {agent: envs.action_space(agent) for agent in envs.possible_agents}
    for space in actions.values():
        space.seed(5)
    return seen + [envs.step({agent: space.sample() for agent, space in actions.items()}) for _ in range(count)]


@pytest.mark.parametrize("name", ["mpe2/simple_spread-v3", "mpe2/simple_spread", "mpe2/simple_spread_v3"])
def test_an_id_of_a_package_that_registers_nothing_means_its_module(make: Make, name: str) -> None:
    pytest.importorskip("mpe2")
    by_id, by_path = (make(one, num_envs=2, env_kwargs={"N": 2}) for one in (name, "mpe2.simple_spread_v3"))
    assert by_id.possible_agents == ("agent_0", "agent_1")
    assert_same_batch(steps_of(by_id), steps_of(by_path))


@has_registry
@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_an_id_plays_the_same_on_every_backend(
    make: Make, make_serial: Make, registry: Callable[..., None], num_workers: int
) -> None:
    registry(OURS, local_copy(), kwargs={"length": 3})
    envs = make(OURS, num_envs=5, num_workers=num_workers)
    seen = steps_of(envs)
    assert any(step[2]["a"].any() for step in seen[1:])
    assert_same_batch(seen, steps_of(make_serial([scripted(together(3))] * 5)))


@has_registry
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_know_what_this_process_has_registered(
    make_process: Make, registry: Callable[..., None], context: str
) -> None:
    registry(OURS, local_copy())
    by_id = make_process(OURS, num_envs=2, num_workers=1, context=context, env_kwargs={"length": 2})
    assert by_id.get_attr("possible_agents") == (["a", "b"],) * 2
    by_hand = make_process([partial(pettingzoo.make, "parallel", OURS)] * 2, num_workers=1, context=context)
    assert by_hand.possible_agents == ("a", "b")


@has_registry
def test_an_id_that_the_caller_has_replaced_is_the_callers_in_workers(
    make_process: Make, registry: Callable[..., None]
) -> None:
    registry("sisl/pursuit-v5", local_copy())
    for given in ({"env_fns": "sisl/pursuit-v5", "num_envs": 1}, {"env_fns": [env_factory("sisl/pursuit-v5")]}):
        assert make_process(**given, context="spawn").possible_agents == ("a", "b")


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
    assert make_process([env_factory(name)], context="spawn").possible_agents == ("a", "b")


@has_registry
def test_turns_choose_between_the_variants(make_serial: Make, registry: Callable[..., None]) -> None:
    pytest.importorskip("mpe2")
    registry("tests/spread-v0", "mpe2.simple_spread_v3:parallel_env")
    registry("tests/spread-v0", "mpe2.simple_spread_v3:env", "aec")
    registry("tests/only_aec-v0", "mpe2.simple_spread_v3:env", "aec")
    for name in ("tests/spread-v0", "tests/only_aec-v0"):
        at_once, in_turn = (make_serial(name, num_envs=1, turns=turns) for turns in ("simultaneous", "sequential"))
        assert sum(flags[0] for flags in _present(at_once)) == 3
        assert sum(flags[0] for flags in _present(in_turn)) == 1


def _present(envs: MultiAgentEnvManager) -> list[Any]:
    envs.reset(seed=0)
    return list(envs.present.values())


def test_modules_that_have_moved_are_found(make_serial: Make) -> None:
    pytest.importorskip("mpe2")
    name = "pettingzoo.mpe.simple_spread_v3"
    assert len(make_serial(name, num_envs=1).possible_agents) == 3
    assert len(make_serial([env_factory(name)]).possible_agents) == 3


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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("sisl/pursiut-v5", "sisl/pursuit-v5"),
        ("sisl/pursuit-v4", "sisl/pursuit-v5"),
        ("mpe2/simple_sprad-v3", "mpe2/simple_spread-v3"),
        ("simple_spread-v3", "mpe2/simple_spread-v3"),
        ("CartPol-v1", "CartPole-v1"),
        ("CartPol-v0", "CartPole-v0"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest_of_either_library(make_serial: Make, name: str, meant: str) -> None:
    pytest.importorskip("mpe2")
    with pytest.raises(EnvError, match=rf"has the id '{name}'\. Did you mean '{meant}'\?"):
        make_serial(name, num_envs=1)
    with pytest.raises(ValueError, match=rf"'{name}' is unknown\. Did you mean '{meant}'\?"):
        env_factory(name)
    with pytest.raises(gymnasium.error.NameNotFound, match=f"Did you mean.*{meant.partition('-v')[0]}"):
        ParallelEnvManager(name, num_envs=1, backend="serial")


def test_an_id_of_the_other_kind_says_which_manager_takes_it(make_serial: Make) -> None:
    with pytest.raises(
        gymnasium.error.NameNotFound, match=r"id of a PettingZoo env.* give it to .*MultiAgentEnvManager"
    ):
        ParallelEnvManager("sisl/pursuit-v5", num_envs=1, backend="serial")
    with pytest.raises(EnvError, match="is the id of a Gymnasium environment: give that to ParallelEnvManager"):
        make_serial("CartPole-v1", num_envs=1)


def test_gymnasiums_replaced_environments_are_the_callers_in_workers() -> None:
    before = gymnasium.registry["CartPole-v1"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        gymnasium.register("CartPole-v1", entry_point=mountain_car)
    try:
        with ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")], context="spawn") as envs:
            assert envs.single_observation_space.shape == (2,)
    finally:
        gymnasium.registry["CartPole-v1"] = before


@has_registry
def test_evaluations_play_what_the_caller_has_registered(registry: Callable[..., None]) -> None:
    registry(OURS, local_copy())
    here, there = (evaluate(OURS, "random", episodes=2, jobs=jobs) for jobs in (0, 2))
    assert [one.returns for one in here.episodes] == [one.returns for one in there.episodes]
    assert set(here.episodes[0].returns) == {"a", "b"}


@has_registry
def test_learners_advise_the_name_that_was_given() -> None:
    pytest.importorskip("torch")
    from parallel_envs.learners import IndependentLearners, PPOConfig  # late: torch

    with pytest.raises(TypeError, match=r"MultiAgentEnvManager\(\[env_factory\('sisl/pursuit-v5'\)\] \* 8\)"):
        IndependentLearners("sisl/pursuit-v5", PPOConfig())  # type: ignore[arg-type]  # that is the mistake
