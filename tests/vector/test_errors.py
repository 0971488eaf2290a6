"""After an error of one env everything that the others did is still true, and the manager goes on."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import EnvError
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv, FailingEnv


def test_an_error_of_one_env_leaves_its_neighbours_in_the_slice_alone(make: Make) -> None:
    factories = [CountingEnv, partial(FailingEnv, at_steps=(2,)), CountingEnv, CountingEnv]
    envs = make(factories, num_workers=2)
    envs.reset(seed=0)
    envs.step(np.zeros(4, int))
    with pytest.raises(EnvError, match="step 2 failed") as caught:
        envs.step(np.zeros(4, int))
    assert caught.value.env_ids == (1,)
    assert isinstance(caught.value, ZeroDivisionError)
    observations, _ = envs.reset(seed=0)
    assert_same_batch(observations[:, 1], np.zeros(4, int))
    assert envs.step(np.zeros(4, int))[0][:, 1].tolist() == [1, 1, 1, 1]


def test_an_error_names_all_envs_that_raised(make: Make) -> None:
    failing = partial(FailingEnv, at_steps=(1,))
    envs = make([failing, CountingEnv, failing], num_workers=2)
    envs.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        envs.step(np.zeros(3, int))
    assert caught.value.env_ids == (0, 2)


def test_an_error_in_reset_is_an_error_of_that_reset(make: Make) -> None:
    envs = make([CountingEnv, partial(FailingEnv, at_resets=(2,))], num_workers=1)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="reset 2 failed") as caught:
        envs.reset(seed=0)
    assert isinstance(caught.value, LookupError)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


def test_an_error_in_an_autoreset_is_an_error_of_that_step(make: Make) -> None:
    class FragileEnv(CountingEnv):
        def reset(self, **arguments: Any) -> Any:
            if self.episode == 0:
                self.episode += 1
                raise LookupError("no second episode")
            return super().reset(**arguments)

    envs = make([partial(FragileEnv, 1), partial(CountingEnv, 9)])
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(EnvError, match="no second episode"):
        envs.step(np.zeros(2, int))
    observations, _ = envs.reset(seed=0)
    assert observations.tolist() == [[2, 0], [1, 0]]


def test_an_error_carries_the_traceback_of_the_env(make: Make) -> None:
    envs = make([partial(FailingEnv, at_steps=(1,))])
    envs.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        envs.step(np.zeros(1, int))
    assert "small_envs.py" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("moment", ["reset", "step"])
def test_infos_of_the_others_stay_right_after_an_error(make: Make, moment: str) -> None:
    """The first infos of an env come along with its neighbour's error; later ones have the same form."""
    failing = partial(FailingEnv, **{f"at_{moment}s": (1,)})
    envs = make([failing, CountingEnv], num_workers=1)
    if moment == "step":
        envs.reset(seed=0)
    with pytest.raises(EnvError):
        envs.step(np.zeros(2, int)) if moment == "step" else envs.reset(seed=0)
    _, infos = envs.reset(seed=0)
    assert infos["began"].tolist() == [0 if moment == "reset" else 1, 1]
    assert envs.step(np.zeros(2, int))[4]["elapsed"].tolist() == [1, 1]


class TwoWaysEnv(CountingEnv):
    """Observes its step in two ways, of which one travels by shared memory and the other by pipe."""

    def __init__(self) -> None:
        super().__init__(length=100)
        self.observation_space = spaces.Dict(number=spaces.Discrete(100), text=spaces.Text(4))

    def observed(self) -> Any:
        return {"number": self.elapsed, "text": str(self.elapsed)}


class FailingTwoWaysEnv(TwoWaysEnv):
    """A `TwoWaysEnv` whose second step fails."""

    def step(self, action: Any) -> Any:
        if self.elapsed == 1:
            raise ValueError("no second step")
        return super().step(action)


def test_both_ways_of_an_observation_stay_together_after_an_error(make: Make) -> None:
    envs = make([FailingTwoWaysEnv, TwoWaysEnv], num_workers=1)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(EnvError, match="no second step"):
        envs.step(np.zeros(2, int))
    observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert observations["number"].tolist() == [0, 2]
    assert observations["text"] == ("0", "2")


def test_an_error_in_recv_loses_no_result_of_the_others(make: Make) -> None:
    envs = make([partial(FailingEnv, at_steps=(1,)), CountingEnv], num_workers=2)
    envs.reset(seed=0)
    envs.send(np.zeros(2, int))
    with pytest.raises(EnvError) as caught:
        envs.recv(min_envs=2)
    assert caught.value.env_ids == (0,)
    env_ids, observations, *_ = envs.recv()
    assert (env_ids.tolist(), observations.tolist()) == ([1], [[0, 1]])


def test_system_exit_in_an_env_ends_no_worker(make: Make) -> None:
    class LeavingEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            raise SystemExit(3)

    envs = make([LeavingEnv, CountingEnv], num_workers=1)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="SystemExit"):
        envs.step(np.zeros(2, int))
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0]]


class TwoArgumentError(Exception):
    """An error that pickle cannot make again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_an_error_of_any_class_comes_up_as_text(make: Make) -> None:
    class OddEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            error = TwoArgumentError("one ", "two")
            error.held = lambda: None  # type: ignore[attr-defined]
            raise error

    envs = make([OddEnv])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"TwoArgumentError.*one two"):
        envs.step(np.zeros(1, int))
    envs.reset(seed=0)


class NamelessError(Exception):
    """An error whose text cannot be made: trying ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


class NamelessEnv(CountingEnv):
    """Raises a `NamelessError` at action 1."""

    def __init__(self) -> None:
        super().__init__(100)

    def step(self, action: Any) -> Any:
        if action == 1:
            raise NamelessError
        return super().step(action)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_whose_text_cannot_be_made_is_its_envs(make: Make, num_workers: int) -> None:
    envs = make([NamelessEnv] * 4, num_workers=num_workers)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"^Env 2 raised \S*NamelessError during step 1: .*SystemExit") as caught:
        envs.step(np.array([0, 0, 1, 0]))
    assert caught.value.env_ids == (2,)
    assert envs.step(np.zeros(4, int))[0][:, 1].tolist() == [2, 2, 1, 2]


def test_only_the_env_whose_error_has_no_text_is_restarted(make: Make) -> None:
    envs = make([NamelessEnv] * 4, num_workers=1, on_failure="restart")
    envs.reset(seed=0)
    infos = envs.step(np.array([0, 0, 1, 0]))[4]
    assert infos["worker_restarted"].tolist() == [False, False, True, False]


class Resisting(Exception):
    """Has no attribute that can be read without code of its own."""

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise ValueError("no args")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


class Empty(Exception):
    """Counts as false."""

    def __len__(self) -> int:
        return 0


class ResistingEnv(CountingEnv):
    """Raises this error at action 1."""

    def __init__(self, error: type[Exception] = Resisting) -> None:
        super().__init__(100)
        self.error = error

    def step(self, action: Any) -> Any:
        if action == 1:
            raise self.error
        return super().step(action)


def test_an_error_whose_attributes_raise_is_its_envs(make: Make) -> None:
    envs = make([ResistingEnv] * 2, num_workers=1)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"^Env 1 raised \S*Resisting during step 1") as caught:
        envs.step(np.array([0, 1]))
    assert caught.value.__cause__ is not None


def test_only_the_env_whose_errors_attributes_raise_is_restarted(make: Make) -> None:
    envs = make([ResistingEnv] * 2, num_workers=1, on_failure="restart")
    envs.reset(seed=0)
    infos = envs.step(np.array([0, 1]))[4]
    assert infos["worker_restarted"].tolist() == [False, True]
    assert envs.num_restarts == 1


def test_the_cause_of_an_error_is_the_envs_own_where_it_counts_as_false(make: Make) -> None:
    envs = make([partial(ResistingEnv, Empty)], backend="thread")
    envs.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        envs.step(np.ones(1, int))
    assert type(caught.value.__cause__) is Empty


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not in this process")


def test_a_request_that_no_env_has_seen_is_the_fault_of_none(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 4, num_workers=2)
    envs.reset(seed=0)
    with pytest.raises(LookupError, match=r"^Worker 0 \(envs 0, 1\) raised LookupError during reset") as caught:
        envs.reset(options={"x": Unloadable()}, env_ids=[0, 1, 3])
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (0, 1)
    with pytest.raises(LookupError, match=r"^Env 1 raised LookupError during reset"):
        envs.reset(options={"x": Unloadable()}, env_ids=[1])
    assert envs.step(np.zeros(4, int))[1].tolist() == [1.0] * 4


def test_a_result_that_cannot_be_unpickled_here_is_told_of_its_env(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 4, num_workers=2)
    envs.reset(seed=0)
    told = r"^What env 1 returned from the apply of 'unloadable' could not be unpickled here: LookupError: not in this"

    def unloadable(env: Any) -> Any:
        return Unloadable()

    with pytest.raises(EnvError, match=told) as caught:
        envs.apply(unloadable, env_ids=[3, 1])
    assert caught.value.env_ids == (1,)
    assert isinstance(caught.value, LookupError)
    assert envs.apply(lambda env: 5) == [5] * 4
    assert envs.step(np.zeros(4, int))[1].tolist() == [1.0] * 4


class WordyEnv(CountingEnv):
    def __init__(self) -> None:
        super().__init__(100)
        self.action_space = spaces.Text(5)


def test_a_worker_that_fails_as_a_whole_is_replaced_as_a_whole(make_process: Make) -> None:
    envs = make_process([WordyEnv] * 4, num_workers=2, on_failure="restart")
    envs.reset(seed=0)
    observations, _, _, truncated, infos = envs.step(["a", Unloadable(), "b", "c"])
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [True, True, False, False]
    assert observations.tolist() == [[0, 0], [0, 0], [0, 1], [0, 1]]
