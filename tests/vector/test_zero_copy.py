"""`copy=False`: arrays that stay right until the step after next, and no longer."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import ActionKeeper, CountingEnv
from tests.vector.task_envs import put_task

ACTIONS = np.zeros(2, int)


def observations(envs: Manager, num_steps: int) -> list[Any]:
    """Observations of a reset and some steps, as they came."""
    first, _ = envs.reset(seed=0)
    return [first, *(envs.step(ACTIONS)[0] for _ in range(num_steps))]


@pytest.mark.parametrize("shared_memory", [None, False])
def test_the_last_two_results_are_right(make: Make, shared_memory: bool | None) -> None:
    envs = make([partial(CountingEnv, 100)] * 2, copy=False, shared_memory=shared_memory)
    kept = observations(envs, 0)
    for number in range(1, 7):
        kept.append(envs.step(ACTIONS)[0])
        assert [array.tolist() for array in kept[-2:]] == [[[0, number - 1]] * 2, [[0, number]] * 2]
    after, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert (kept[-1].tolist(), after.tolist()) == ([[0, 6], [0, 6]], [[1, 0], [0, 6]])


def test_memory_is_used_again_unless_results_are_copies(make_process: Make) -> None:
    kept = observations(make_process([partial(CountingEnv, 100)] * 2, copy=False), 4)
    assert [np.shares_memory(kept[0], kept[number]) for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert np.shares_memory(kept[1], kept[3])
    assert kept[0].tolist() == kept[4].tolist() == [[0, 4]] * 2
    for backend in ("serial", "thread", "process"):
        kept = observations(make_process([partial(CountingEnv, 100)] * 2, backend=backend), 4)
        assert not any(np.shares_memory(one, other) for one in kept for other in kept if one is not other)
        assert [array[0, 1] for array in kept] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("reset", [False, True])
def test_what_was_returned_outlives_a_send(make: Make, reset: bool) -> None:
    envs = make([partial(CountingEnv, 100)] * 2, copy=False)
    before = observations(envs, 3)[-1]
    if reset:
        envs.send_reset([0])
    else:
        envs.send(ACTIONS[:1], [0])
    assert envs.recv()[1].tolist() == [[1, 0] if reset else [0, 4]]
    assert before.tolist() == [[0, 3], [0, 3]]
    after, _ = envs.reset(env_ids=[0])
    assert after[1].tolist() == [0, 3]


def test_rewards_and_flags_keep_as_long_and_outlive_the_manager(make: Make) -> None:
    envs = opened(make, [partial(CountingEnv, 3)] * 2, copy=False)
    before = envs.step(ACTIONS)[:4]
    after = envs.step(ACTIONS)[:4]
    envs.close()
    no = np.array([False, False])
    assert_same_batch(before, (np.array([[0, 1]] * 2), np.array([1.0, 1.0]), no, no))
    assert_same_batch(after, (np.array([[0, 2]] * 2), np.array([2.0, 2.0]), no, no))


WORDS = ["a", "b"]
REFUSED: list[Callable[[Manager], Any]] = [
    lambda envs: envs.reset(options={"x": threading.Lock()}),
    lambda envs: envs.reset(env_ids=[0], options={"x": threading.Lock()}),
    lambda envs: envs.reset(seed=[1]),
    lambda envs: envs.step([threading.Lock(), "b"]),
    lambda envs: envs.step(["a"]),
    lambda envs: envs.send([threading.Lock(), "b"]),
    lambda envs: envs.send_reset(options={"x": threading.Lock()}),
    lambda envs: envs.send_reset(tasks=["t", threading.Lock()]),
]


@pytest.mark.parametrize("copy", [True, False])
def test_a_refused_request_leaves_everything_as_it_was(make_process: Make, copy: bool) -> None:
    spelling = partial(ActionKeeper, spaces.Text(5))
    envs = opened(make_process, [spelling] * 2, num_workers=1, copy=copy, task_setter=put_task)
    for number, refused in enumerate(REFUSED):
        envs.reset()
        before, held = [envs.step(WORDS)[0] for _ in range(5)][-2:]
        steps, episode = envs.stats()[0]["steps"], 2 * number + 1
        with pytest.raises((TypeError, ValueError)):
            refused(envs)
        assert before.tolist() == [[episode, 4]] * 2
        assert held.tolist() == [[episode, 5]] * 2
        assert envs.stats()[0]["steps"] == steps
        latest, _ = envs.reset(env_ids=[0])
        assert latest.tolist() == [[episode + 1, 0], [episode, 5]]
        assert held.tolist() == [[episode, 5]] * 2
        assert envs.step(WORDS)[0].tolist() == [[episode + 1, 1], [episode, 6]]
        envs.reset(env_ids=[1])


class EventfulEnv(gymnasium.Env[Any, Any]):
    """Observes which env, episode and step it is. Raises at action 7, and returns a word for a reward at action 8."""

    def __init__(self, index: int, worded: bool) -> None:
        self.index, self.worded = index, worded
        self.episode = self.elapsed = 0
        box = spaces.Box(-1e9, 1e9, (3,), np.float64)
        self.observation_space = spaces.Dict(place=box, text=spaces.Text(30)) if worded else box
        self.action_space = spaces.Discrete(10)

    def observed(self) -> Any:
        place = np.array([self.index, self.episode, self.elapsed], float)
        return {"place": place, "text": f"{self.episode},{self.elapsed}"} if self.worded else place

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if (options or {}).get("raise") == self.index:
            raise LookupError("in a reset")
        self.episode, self.elapsed = self.episode + 1, 0
        return self.observed(), {"episode_of": self.episode}

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        if action == 7:
            raise LookupError("in a step")
        info = {"t": self.elapsed} | ({"word": "y"} if self.elapsed % 4 == 0 else {})
        reward: Any = "much" if action == 8 else self.elapsed + self.index / 10
        return self.observed(), reward, self.elapsed >= 6 + self.index, action == 9, info


KINDS: list[dict[str, Any]] = [
    {"backend": "serial"},  # the first is what the others must equal
    {"backend": "process", "num_workers": 1, "copy": False},
    {"backend": "process", "num_workers": 2, "copy": False, "context": "fork"},
    {"backend": "thread", "copy": False},
]


class SideBySide:
    """Managers of all `KINDS` that are asked the same, and the observations that the caller holds of each."""

    def __init__(self, managers: list[Manager]) -> None:
        self.managers = managers
        self.num_begun = 0
        self.held: list[list[tuple[int, Any, Any]]] = [[] for _ in managers]
        """For each manager: when a batch was returned, the batch, and a copy of it."""

    def ask(self, request: Callable[[Manager], Any], *, begins: bool = True, keeps: bool = False) -> None:
        """Ask all of them. `begins`: it begins a step or reset; `keeps`: its first result is a batch to be held."""
        outcomes = [self._outcome(envs, request) for envs in self.managers]
        for other in outcomes[1:]:
            assert_same_batch(other, outcomes[0])
        self.num_begun += begins
        for held, (how, results) in zip(self.held, outcomes, strict=True):
            held[:] = [one for one in held if self.num_begun - one[0] < 2]  # the others may be written to by now
            for _, array, as_it_was in held:
                assert_same_batch(array, as_it_was)
            if keeps and how == "returned":
                held.append((self.num_begun, results[0], frozen(results[0])))

    def _outcome(self, envs: Manager, request: Callable[[Manager], Any]) -> tuple[str, Any]:
        try:
            return "returned", request(envs)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return "raised", str(error).split("\n")[0]


def frozen(observations: Any) -> Any:
    if isinstance(observations, dict):
        return {key: frozen(value) for key, value in observations.items()}
    return observations.copy() if isinstance(observations, np.ndarray) else tuple(observations)


def sent_and_received(envs: Manager, actions: Any, ids: list[int]) -> dict[int, Any]:
    """By env what it answered; an env that raised has its error."""
    envs.send(actions, ids)
    answers: dict[int, Any] = {}
    for env in ids:
        try:
            answers[env] = envs.recv_env(env)
        except (LookupError, TypeError) as error:
            answers[env] = str(error)
    return answers


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
def test_random_requests_give_what_copies_give(make_process: Make, seed: int) -> None:
    """Requests of every kind, refused and failing ones among them, in an order drawn at random."""
    draw = random.Random(seed)
    size, mode = draw.choice([2, 3, 5]), draw.choice(list(AutoresetMode))
    fns = [partial(EventfulEnv, index, worded=seed % 2 == 0) for index in range(size)]
    all_of_them = SideBySide([make_process(fns, autoreset_mode=mode, **kind) for kind in KINDS])
    all_of_them.ask(lambda envs: envs.reset(seed=5), keeps=True)
    for _ in range(40):
        ids = sorted(draw.sample(range(size), draw.randint(1, size)))
        drawn = [draw.choice([0, 1, 2, 9]) if draw.random() < 0.96 else draw.choice([7, 8]) for _ in range(size)]
        requests: dict[Callable[[Manager], Any], tuple[int, dict[str, bool]]] = {
            partial(Manager.step, actions=np.array(drawn)): (50, {"keeps": True}),
            partial(Manager.reset, env_ids=ids): (12, {"keeps": True}),
            partial(Manager.reset, options={"raise": ids[0]}): (8, {"keeps": True}),
            partial(sent_and_received, actions=np.array(drawn)[ids], ids=ids): (12, {}),
            partial(Manager.step, actions=np.zeros(size + 1)): (5, {"begins": False}),
            lambda envs: envs.call("observed"): (6, {"begins": False}),
            lambda envs: envs.call("nothing_like_this"): (5, {"begins": False}),
            lambda envs: envs.restart([0]): (2, {"begins": False}),
        }
        (request,) = draw.choices(list(requests), [weight for weight, _ in requests.values()])
        all_of_them.ask(request, **requests[request][1])
