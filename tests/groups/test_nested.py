"""A manager that is asked for something while it is asked: by a signal handler, or by an environment in the caller."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parallel_envs.errors import ParallelEnvsError
from parallel_envs.groups import BadTurn, EnvStateManager, register
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import TAGS, Walk, WalkConfig, configured, inputs

Look = Callable[[EnvStateManager], Any]
LOOKS: list[Any] = [
    pytest.param(lambda manager: manager.render(env_ids=[1]), id="render"),
    pytest.param(lambda manager: manager.metrics(), id="metrics"),
    pytest.param(lambda manager: (manager.render(env_ids=[2]), manager.metrics()), id="both"),
]


class Slow(Walk):
    """Takes long enough for a look meanwhile."""

    def step(self, action: int) -> Any:
        threading.Event().wait(0.02)
        return super().step(action)


class Nosy(Walk):
    """Looks at the others while it is stepped."""

    look: Callable[[], Any] = staticmethod(lambda: None)

    def step(self, action: int) -> Any:
        Nosy.look()
        return super().step(action)


@pytest.fixture
def turn() -> list[dict[str, Any]]:
    return inputs({env: ["left"] for env in range(3)})


@pytest.fixture(autouse=True)
def _nobody_looks() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)
    Nosy.look = staticmethod(lambda: None)


def config_of(kind: type[Walk], where: str) -> dict[str, Any]:
    register("kind", kind, WalkConfig)
    config = configured({"Walk": 1, "Talk": 2}, 1, max_workers=1)
    config["custom_envs"] = {"Walk": {**TAGS["Walk"], "env_type": "kind", "where": where}, "Talk": TAGS["Walk"]}
    return config


def unseen(config: dict[str, Any], turn: list[dict[str, Any]]) -> list[Any]:
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        return [*(manager.step(turn) for _ in range(3)), manager.get_rollout_states()]


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_from_an_environment_in_the_caller_disturbs_no_turn(look: Look, turn: list[dict[str, Any]]) -> None:
    config = config_of(Nosy, "caller")
    expected = unseen(config, turn)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        Nosy.look = staticmethod(lambda: look(manager))
        assert_same_batch([*(manager.step(turn) for _ in range(3)), manager.get_rollout_states()], expected)


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_from_a_signal_handler_disturbs_no_turn(look: Look, turn: list[dict[str, Any]]) -> None:
    """It is answered, or refused where it would come between a request and its answers."""
    config, looks = config_of(Slow, "process"), list[Any]()
    expected = unseen(config, turn)
    with EnvStateManager(config) as manager:

        def note(number: int, frame: object) -> None:
            try:
                looks.append(look(manager))
            except ParallelEnvsError as error:
                looks.append(str(error))

        manager.reset(seed=1)
        signal.signal(signal.SIGALRM, note)
        told = []
        for seconds in (0.0001, 0.005, 0.015):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            told.append(manager.step(turn))
        assert_same_batch([*told, manager.get_rollout_states()], expected)
    assert looks
    assert all("by a signal handler" in one for one in looks if isinstance(one, str))


def test_a_handler_that_lets_its_refusal_through_ends_the_turn_and_nobody_has_played(
    turn: list[dict[str, Any]],
) -> None:
    config = config_of(Slow, "process")
    expected = unseen(config, turn)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        signal.signal(signal.SIGALRM, lambda number, frame: manager.metrics())
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(ParallelEnvsError, match="Let the handler take a note, and ask when"):
            manager.step(turn)
        assert_same_batch([*(manager.step(turn) for _ in range(3)), manager.get_rollout_states()], expected)


def test_a_reset_from_within_a_turn_is_told_and_its_episodes_go_on(turn: list[dict[str, Any]]) -> None:
    config = config_of(Nosy, "caller")
    with EnvStateManager(config) as manager:
        manager.reset(seed=2)
        Nosy.look = staticmethod(lambda: manager.reset(seed=1))
        with pytest.raises(BadTurn, match=r"reset\(\) was called in the midst of step\(\)"):
            manager.step(turn)
        Nosy.look = staticmethod(lambda: None)
        found = [*(manager.step(turn) for _ in range(3)), manager.get_rollout_states()]
    assert_same_batch(found, unseen(config, turn))
