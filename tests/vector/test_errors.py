"""After an error of one env, or a wrong result, all that the others did is still true, and the manager goes on."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import EnvError
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ActionKeeper, CountingEnv, FailingEnv


def test_an_error_names_its_envs_and_leaves_the_others_alone(make: Make) -> None:
    failing = partial(FailingEnv, at_steps=(2,))
    envs = opened(make, [CountingEnv, failing, failing, CountingEnv], num_workers=2)
    envs.step([0] * 4)
    with pytest.raises(EnvError, match="step 2 failed") as caught:
        envs.step([0] * 4)
    assert caught.value.env_ids == (1, 2)
    assert isinstance(caught.value, ZeroDivisionError)
    assert "small_envs.py" in "".join(traceback.format_exception(caught.value))  # the env's own traceback
    assert envs.reset(seed=0)[0][:, 1].tolist() == [0] * 4
    assert envs.step([0] * 4)[0][:, 1].tolist() == [1] * 4


def test_an_error_in_an_autoreset_is_an_error_of_that_step(make: Make) -> None:
    class FragileEnv(CountingEnv):
        def reset(self, **arguments: Any) -> Any:
            if self.episode == 0:
                self.episode += 1
                raise LookupError("no second episode")
            return super().reset(**arguments)

    envs = opened(make, [partial(FragileEnv, 1), partial(CountingEnv, 9)])
    envs.step([0, 0])
    with pytest.raises(EnvError, match="no second episode"):
        envs.step([0, 0])
    assert envs.reset(seed=0)[0].tolist() == [[2, 0], [1, 0]]


@pytest.mark.parametrize("moment", ["reset", "step"])
def test_infos_of_the_others_stay_right_after_an_error(make: Make, moment: str) -> None:
    """The first infos of an env come along with its neighbour's error; later ones have the same form."""
    envs = make([partial(FailingEnv, **{f"at_{moment}s": (1,)}), CountingEnv], num_workers=1)
    if moment == "step":
        envs.reset(seed=0)
    with pytest.raises(EnvError, match=f"{moment} 1 failed") as caught:
        envs.step([0, 0]) if moment == "step" else envs.reset(seed=0)
    assert {"step": ZeroDivisionError, "reset": LookupError}[moment] in type(caught.value).__mro__
    _, infos = envs.reset(seed=0)
    assert infos["began"].tolist() == [0 if moment == "reset" else 1, 1]
    assert envs.step([0, 0])[4]["elapsed"].tolist() == [1, 1]


class TwoArgumentError(Exception):
    """Cannot be made again by pickle, and holds what cannot be pickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)
        self.held = lambda: None


class NamelessError(Exception):
    """Has a text that cannot be made: trying ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


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


class RaisingEnv(CountingEnv):
    """Raises at action 1."""

    def __init__(self, error: type[BaseException], *arguments: Any) -> None:
        super().__init__(100)
        self.error = partial(error, *arguments)

    def step(self, action: Any) -> Any:
        if action == 1:
            raise self.error()
        return super().step(action)


ODD: list[tuple[tuple[Any, ...], str]] = [
    ((SystemExit, 3), r"SystemExit"),
    ((TwoArgumentError, "one ", "two"), r"TwoArgumentError.*one two"),
    ((NamelessError,), r"^Env 2 raised \S*NamelessError during step 1: .*SystemExit"),
    ((Resisting,), r"^Env 3 raised \S*Resisting during step 1"),
]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_of_any_class_is_an_error_of_its_env_alone(make: Make, num_workers: int) -> None:
    envs = opened(make, [partial(RaisingEnv, *error) for error, _ in ODD], num_workers=num_workers)
    for env, (_, words) in enumerate(ODD):
        with pytest.raises(EnvError, match=words) as caught:
            envs.step([int(env == one) for one in range(4)])
        assert caught.value.env_ids == (env,)
        assert caught.value.__cause__ is not None
    assert envs.step([0] * 4)[0][:, 1].tolist() == [4] * 4


def test_only_the_env_that_raised_is_restarted(make: Make) -> None:
    envs = opened(make, [partial(RaisingEnv, *error) for error, _ in ODD], num_workers=1, on_failure="restart")
    assert envs.step([0, 0, 1, 1])[4]["worker_restarted"].tolist() == [False, False, True, True]
    assert envs.num_restarts == 2


def test_the_cause_of_an_error_is_the_envs_own_where_it_counts_as_false(make: Make) -> None:
    envs = opened(make, [partial(RaisingEnv, Empty)], backend="thread")
    with pytest.raises(EnvError) as caught:
        envs.step([1])
    assert type(caught.value.__cause__) is Empty


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not in this process")


def test_a_request_that_no_env_has_seen_is_an_error_of_the_worker(make_process: Make) -> None:
    envs = opened(make_process, [CountingEnv] * 4, num_workers=2)
    with pytest.raises(LookupError, match=r"^Worker 0 \(envs 0, 1\) raised LookupError during reset") as caught:
        envs.reset(options={"x": Unloadable()}, env_ids=[0, 1, 3])
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (0, 1)
    with pytest.raises(LookupError, match=r"^Env 1 raised LookupError during reset"):
        envs.reset(options={"x": Unloadable()}, env_ids=[1])
    assert envs.step([0] * 4)[1].tolist() == [1.0] * 4


def test_a_result_that_cannot_be_unpickled_here_is_an_error_of_its_env(make_process: Make) -> None:
    envs = opened(make_process, [CountingEnv] * 4, num_workers=2)
    told = r"^What env 1 returned from the apply of 'unloadable' could not be unpickled here: LookupError: not in this"

    def unloadable(env: Any) -> Any:
        return Unloadable()

    with pytest.raises(EnvError, match=told) as caught:
        envs.apply(unloadable, env_ids=[3, 1])
    assert caught.value.env_ids == (1,)
    assert isinstance(caught.value, LookupError)
    assert envs.apply(lambda env: 5) == [5] * 4
    assert envs.step([0] * 4)[1].tolist() == [1.0] * 4


def test_a_worker_that_fails_as_a_whole_is_replaced_as_a_whole(make_process: Make) -> None:
    wordy = partial(ActionKeeper, spaces.Text(5))
    envs = opened(make_process, [wordy] * 4, num_workers=2, on_failure="restart")
    observations, _, _, truncated, infos = envs.step(["a", Unloadable(), "b", "c"])
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [True, True, False, False]
    assert observations.tolist() == [[0, 0], [0, 0], [0, 1], [0, 1]]


class ResultEnv(CountingEnv):
    """Returns, from its second step on, what `change` makes of its results."""

    def __init__(self, change: Any) -> None:
        super().__init__(100)
        self.change = change

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return self.change(*result) if self.elapsed > 1 else result


def observing(wrong: Any) -> Any:
    return lambda observation, *others: (wrong, *others)


def rewarding(wrong: Any) -> Any:
    return lambda observation, reward, *others: (observation, wrong, *others)


SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (1, 2)]
NO_REWARDS: list[Any] = [None, "much", np.zeros(2), {}]
WRONG: list[tuple[Any, str]] = [
    *((observing(np.zeros(shape, np.float32)), r"(?s)of shape .*\(2,\)") for shape in SHAPES),
    (observing(np.zeros(3, int)), r"(?s)\(3,\).*\(2,\)"),
    (lambda observation, reward, terminated, truncated, info: (observation, reward, terminated, info), "unpack"),
    *((rewarding(value), "reward") for value in NO_REWARDS),
    (rewarding([0.0, 1.0]), r"reward \[0\.0, 1\.0\] of type list\. .* are for MultiAgentEnvManager"),
]


@pytest.mark.parametrize("shared_memory", [None, False])
def test_wrong_results_are_errors_of_their_env(make: Make, shared_memory: bool | None) -> None:
    fns = [CountingEnv, *(partial(ResultEnv, change) for change, _ in WRONG)]
    envs = opened(make, fns, num_workers=2, shared_memory=shared_memory)
    envs.step([0] * len(fns))
    for env, (_, words) in enumerate(WRONG, 1):
        envs.send([0], [env])
        with pytest.raises(EnvError, match=words) as caught:
            envs.recv_env(env)
        assert caught.value.env_ids == (env,)
    assert envs.reset(seed=0)[0].tolist() == [[1, 0]] * len(fns)
    assert envs.step([0] * len(fns))[1].tolist() == [1] * len(fns)
    with pytest.raises(EnvError) as caught:
        envs.step([0] * len(fns))
    assert caught.value.env_ids == tuple(range(1, len(fns)))


@pytest.mark.parametrize("shared_memory", [None, False])
def test_observations_and_rewards_have_the_types_of_the_batch(make: Make, shared_memory: bool | None) -> None:
    rewards = [np.float16(0.5), np.array(0.5), np.array([[0.5]]), True, 1, np.int8(1)]
    fns = [partial(ResultEnv, rewarding(reward)) for reward in rewards]
    fns.append(partial(ResultEnv, observing(np.zeros(2, np.float32))))
    envs = opened(make, fns, num_workers=1, shared_memory=shared_memory)
    envs.step([0] * 7)
    observations, rewarded, *_ = envs.step([0] * 7)
    assert (observations.dtype, observations[-1].tolist()) == (np.dtype(np.int64), [0, 0])
    assert rewarded.tolist() == [*(np.asarray(reward).item() for reward in rewards), 2.0]
