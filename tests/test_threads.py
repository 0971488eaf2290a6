"""What each public object does when several threads call it: its docstring says so, and it keeps to it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gc
import importlib
import inspect
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.spaces import Box, Discrete

import parallel_envs
from parallel_envs import (
    ClosedError,
    ConcurrentCall,
    EnvStateManager,
    IndependentLearners,
    MultiAgentEnvManager,
    ParallelEnvManager,
    WrappedMultiAgentPolicy,
    collect,
    evaluate,
)
from parallel_envs.choices import Backend, Strategy
from parallel_envs.engine import supervisor_client
from parallel_envs.groups import register, registry
from parallel_envs.learners import Learner, PPOConfig
from parallel_envs.policies import FunctionPolicy
from parallel_envs.rollouts.replay import PrioritizedReplayBuffer, ReplayBuffer
from parallel_envs.tasks import CurriculumTasks, ScoredTasks
from parallel_envs.testing import assert_same_batch
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from parallel_envs.threads import CallGuard, in_turn, one_thread
from parallel_envs.wrappers import STRATEGIES, PolicyPool
from tests.engine.asking import in_fork
from tests.learners.meta.families import settings
from tests.striking import strikes
from tests.thread_envs import Doubling, Endless, EndlessGlobal, GlobalDraws, more_than_half

LONG = 120.0  # only a call that hangs takes so long


class Running:
    """Calls in threads of their own, and what came of each: a result, or the error that it raised."""

    def __init__(self, *calls: Callable[[], Any]) -> None:
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self._threads = [threading.Thread(target=self._run, args=one, daemon=True) for one in enumerate(calls)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, call: Callable[[], Any]) -> None:
        try:
            self.results[number] = call()
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self.errors[number] = error

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in self._threads), "a call hangs"

    def join(self) -> list[Any]:
        """Wait for all of them. Their results, in order; the first error is raised."""
        self.wait()
        for error in self.errors.values():
            raise error
        return [self.results[number] for number in sorted(self.results)]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    return Running(*calls).join()


class Held(gymnasium.Env[Any, Any]):
    """Counts its steps. A step with action 1 stays inside until it is let go; for backends without processes."""

    observation_space, action_space = Box(0, 1e6, (1,), np.float64), Discrete(2)
    entered, leave = threading.Event(), threading.Event()
    closed_amid_step = False

    def __init__(self) -> None:
        self.count, self.inside = 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.inside = True
        self.count += 1
        if action:
            stay()
        self.inside = False
        return np.array([float(self.count)]), 1.0, False, False, {}

    def close(self) -> None:
        Held.closed_amid_step |= self.inside


def stay(*_: Any) -> None:
    """Say that somebody is inside, and wait until it is let go."""
    Held.entered.set()
    Held.leave.wait(LONG)


@contextlib.contextmanager
def staying(call: Callable[[], Any]) -> Iterator[Running]:
    """Run a call that stays inside, in a thread of its own; it is let go at the end."""
    Held.entered.clear()
    Held.leave.clear()
    Held.closed_amid_step = False
    running = Running(call)
    try:
        assert Held.entered.wait(LONG)
        yield running
    finally:
        Held.leave.set()
        running.wait()


ROOMS: list[str] = ["evaluation", "groups", "learners", "meta", "multiagent", "policies", "rollouts", "seeding"]
ROOMS += ["tasks", "vector", "wrappers"]


def public_objects() -> dict[str, Any]:
    """What a user calls: all names of the package, and the classes of its rooms. Errors and plain values apart."""
    found = {name: getattr(parallel_envs, name) for name in parallel_envs.__all__}
    for room in ROOMS:
        module = importlib.import_module(f"parallel_envs.{room}")
        found |= {name: getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))}
    found |= {kind.__name__: kind for kind in (ReplayBuffer, PrioritizedReplayBuffer)}
    found = {name: thing for name, thing in found.items() if name in parallel_envs.__all__ or not is_value(thing)}
    return {name: one for name, one in found.items() if not (inspect.isclass(one) and issubclass(one, BaseException))}


def is_value(kind: Any) -> bool:
    return (
        issubclass(kind, BaseException | enum.Enum)
        or getattr(kind, "_is_protocol", False)
        or kind.__name__.endswith("Settings")
        or (dataclasses.is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen)
    )


def test_each_docstring_says_what_threads_may_do() -> None:
    for name, thing in public_objects().items():
        assert not inspect.isclass(thing) or vars(thing)["__doc__"] is not None, name  # its own, not an inherited one
        assert (thing.__doc__ or "").count("Threads: ") == 1, f"{name} does not say what threads may do"


class Guarded:
    """An object with a method of each kind."""

    def __init__(self) -> None:
        self._guard = CallGuard("Guarded")
        self.inside, self.most = 0, 0

    @one_thread
    def refusing(self, work: Callable[[], Any] = int) -> Any:
        return self.counted(work)

    @in_turn
    def waiting(self, work: Callable[[], Any] = int) -> Any:
        return self.counted(work)

    def counted(self, work: Callable[[], Any]) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return work()
        finally:
            self.inside -= 1


METHODS = pytest.mark.parametrize("method", ["refusing", "waiting"])


@METHODS
def test_one_thread_at_a_time_is_inside(method: str) -> None:
    guarded, refused = Guarded(), Counter[int]()

    def hammer(number: int) -> None:
        for _ in range(500):
            try:
                getattr(guarded, method)(lambda: sum(range(20)))
            except ConcurrentCall:
                refused[number] += 1

    at_once(*(partial(hammer, number) for number in range(4)))
    assert guarded.most == 1
    assert method == "refusing" or not refused


@METHODS
def test_a_ctrl_c_at_any_moment_leaves_no_thread_inside(method: str) -> None:
    guarded = Guarded()
    for moment in strikes(lambda: getattr(guarded, method)(lambda: guarded.waiting(guarded.refusing))):
        assert at_once(guarded.refusing, guarded.waiting)[1:] == [0], f"struck at moment {moment}"


@METHODS
def test_a_forked_process_is_not_kept_out_by_a_thread_that_stayed_behind(method: str) -> None:
    guarded = Guarded()
    with staying(lambda: guarded.waiting(stay)):
        assert in_fork(getattr(guarded, method)) == 0
    assert guarded.waiting(lambda: in_fork(getattr(guarded, method))) == 0


def test_a_forked_process_makes_managers_while_a_thread_that_stayed_behind_was_making_one() -> None:
    def make() -> None:
        cart_pole("process", 1).close()

    def hold() -> None:
        with supervisor_client._guard.lock:  # as while a worker is being started
            stay()

    make()  # what starts workers is there
    with staying(hold):
        assert in_fork(make) is None


def test_a_forked_process_does_not_wait_for_a_thread_that_steps_groups() -> None:
    with EnvStateManager(groups_config("process")) as manager:
        manager.reset(seed=3)
        stop = threading.Event()

        def play() -> None:
            while not stop.is_set():
                manager.step(inputs(EVERY))

        running = Running(play, play)
        try:
            for _ in range(5):
                assert "ClosedError" in in_fork(lambda: manager.step(inputs(EVERY)))  # the workers are not its own
                assert in_fork(lambda: len(manager.statuses)) == len(EVERY)
        finally:
            stop.set()
            running.join()


@dataclass
class Stage:
    """An object that is busy in another thread, what it is asked meanwhile, and how it goes on."""

    text: str
    busy: Callable[[], Any]
    refused: list[Callable[[], Any]]
    answered: Callable[[], Any]
    afterwards: Callable[[Any], Any]


def cart_pole(backend: Backend, num_envs: int = 2, **options: Any) -> ParallelEnvManager:
    return ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")] * num_envs, backend=backend, **options)


@contextlib.contextmanager
def busy_envs(backend: Backend, folder: Path) -> Iterator[Stage]:
    with ParallelEnvManager([Held] * 2, backend=backend) as envs:
        envs.reset()
        refused: list[Callable[[], Any]] = [envs.reset, envs.reset_async, envs.reset_wait, envs.step_wait, envs.recv]
        refused += [envs.recv_each, envs.ready, envs.get_tasks, envs.call_wait, envs.stats, envs.restart]
        refused += [partial(envs.step, [0, 0]), partial(envs.step_async, [0, 0]), partial(envs.send, [0], [1])]
        refused += [partial(envs.send_reset, [1]), partial(envs.recv_env, 1), partial(envs.set_tasks, [1, 2])]
        refused += [partial(envs.call_async, "count"), partial(envs.get_attr, "count")]
        refused += [partial(envs.set_attr, "count", 5), partial(envs.remotes[1].send, ("step", {"action": 0}))]
        refused += [partial(collect, envs, None, 1, random_actions=True)]

        def afterwards(returned: Any) -> None:
            assert returned[0].tolist() == [[1.0], [1.0]]
            assert envs.step([0, 0])[0].tolist() == [[2.0], [2.0]]

        text = (
            r"of this ParallelEnvManager was called by thread 'MainThread' while thread 'Thread-.*' was inside its `st"
        )
        yield Stage(text, lambda: envs.step([1, 0]), refused, lambda: repr(envs), afterwards)


class HeldAgents(ScriptedAgentsEnv):
    """Its steps stay inside."""

    def step(self, actions: Any) -> Any:
        stay()
        return super().step(actions)


@contextlib.contextmanager
def busy_agents(folder: Path) -> Iterator[Stage]:
    with MultiAgentEnvManager([partial(HeldAgents, [{"a": Stay(50), "b": Stay(50)}])] * 2, backend="serial") as envs:
        envs.reset(seed=1)
        actions = {agent: np.zeros(2, int) for agent in envs.agents_now}
        refused: list[Callable[[], Any]] = [envs.reset, envs.step_wait, envs.recv, envs.stats, envs.single_env(0).reset]
        refused += [partial(envs.step, actions), partial(envs.send, actions), partial(envs.recv_env, 0)]
        refused += [partial(envs.agents, 0), partial(collect, envs.envs, None, 1, random_actions=True)]
        yield Stage("MultiAgentEnvManager", lambda: envs.step(actions), refused, int, lambda _: envs.step(actions))


@contextlib.contextmanager
def busy_learners(folder: Path) -> Iterator[Stage]:
    pytest.importorskip("torch")
    config = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=1, hidden=(4,))
    with (
        MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, backend="serial") as envs,
        IndependentLearners(envs, config, seed=1, update_mode="sequential") as made,
    ):
        refused: list[Callable[[], Any]] = [made.begin, made.act, made.step, made.update, made.states, made.close]
        refused += [lambda: made.train(10), lambda: made.load_states({})]
        refused += [lambda: made.save(folder / "checkpoint"), lambda: made.load(folder / "checkpoint")]
        text = "of this IndependentLearners was called"
        yield Stage(text, lambda: made.train(40, stay), refused, made.returns, lambda _: made.step())


@contextlib.contextmanager
def busy_meta_learner(folder: Path) -> Iterator[Stage]:
    pytest.importorskip("torch")
    with Learner(settings()) as learner:
        learner.collect_rollouts_parallel(4)
        agent: Any = learner.agent
        update = agent.update

        def slow(*args: Any, **kwargs: Any) -> Any:
            stay()
            return update(*args, **kwargs)

        agent.update = slow
        refused: list[Callable[[], Any]] = [learner.update, learner.evaluate, learner.close]
        refused += [lambda: learner.train(folder / "run"), lambda: learner.collect_rollouts(1)]
        refused += [lambda: learner.save(folder / "checkpoint")]
        yield Stage("of this Learner was called", learner.update, refused, int, lambda _: learner.evaluate())


STAGES: dict[str, Callable[[Path], contextlib.AbstractContextManager[Stage]]] = {
    "envs, serial": partial(busy_envs, "serial"),
    "envs of agents": busy_agents,
    "learners": busy_learners,
    "meta learner": busy_meta_learner,
}


@pytest.mark.parametrize("name", STAGES)
def test_a_second_thread_is_refused_whatever_it_asks(name: str, tmp_path: Path) -> None:
    with STAGES[name](tmp_path) as stage:
        with staying(stage.busy) as running:
            for ask in stage.refused:
                with pytest.raises(ConcurrentCall, match=stage.text):
                    ask()
            stage.answered()
        stage.afterwards(running.join()[0])


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_envs_two_threads_that_hammer_get_whole_steps_or_are_refused(backend: Backend) -> None:
    with cart_pole(backend, num_workers=2) as envs, cart_pole("serial") as reference:
        envs.reset(seed=1)
        counts: Counter[str] = Counter()

        def hammer() -> None:
            for _ in range(100):
                try:
                    observations, rewards, *_ = envs.step(np.zeros(2, int))
                    assert (observations.shape, rewards.shape) == ((2, 4), (2,))
                    counts["done"] += 1
                except (ConcurrentCall, AlreadyPendingCallError):
                    counts["refused"] += 1

        at_once(hammer, hammer)
        assert counts["done"] + counts["refused"] == 200
        assert {one["steps"] for one in envs.stats()} != {0}
        envs.reset(seed=2)
        reference.reset(seed=2)
        assert_same_batch(envs.step(np.zeros(2, int)), reference.step(np.zeros(2, int)))


def test_envs_a_step_may_be_begun_by_one_thread_and_ended_by_another() -> None:
    envs = cart_pole("process")
    at_once(lambda: envs.reset(seed=1))
    at_once(lambda: envs.step_async([0, 1]))
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async([0, 1])
    [(observations, *_)] = at_once(envs.step_wait)
    assert observations.shape == (2, 4)
    at_once(lambda: envs.send([0, 1]))
    [(envs_back, *_)] = at_once(lambda: envs.recv(2))
    assert sorted(envs_back.tolist()) == [0, 1]
    at_once(envs.close)


def endless_groups(where: str) -> tuple[Callable[[], Any], ...]:
    manager = EnvStateManager(groups_config(where))
    return lambda: manager.reset(seed=3), lambda: manager.step(inputs(EVERY)), manager.close


def endless_policies(strategy: Strategy) -> tuple[Callable[[], Any], ...]:
    policy = WrappedMultiAgentPolicy({agent: Doubling() for agent in AGENTS}, strategy, workers=2)
    return int, lambda: policy.step(dict.fromkeys(AGENTS, 1.0)), policy.close


CLOSED: list[tuple[Callable[[Any], tuple[Callable[[], Any], ...]], str, int]] = [
    *((endless_groups, where, num_before) for where, num_before in (("caller", 1), ("process", 0), ("both", 5))),
    *((endless_policies, strategy, 2) for strategy in ("thread", "process")),
]


@pytest.mark.parametrize(("made", "where", "num_before"), CLOSED)
def test_close_from_another_thread_ends_the_calls(made: Any, where: str, num_before: int) -> None:
    first, again, close = made(where)
    begun = threading.Semaphore(0)

    def play() -> None:
        first()
        while True:
            begun.release()
            again()

    running = Running(play)
    for _ in range(num_before):
        assert begun.acquire(timeout=LONG)
    close()
    running.wait()
    assert isinstance(running.errors[0], ClosedError), running.errors[0]
    with pytest.raises(ClosedError, match="close"):
        again()


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_envs_close_while_an_environment_of_the_caller_works_does_not_touch_it(backend: Backend) -> None:
    envs = ParallelEnvManager([Held] * 2, backend=backend)
    envs.reset()
    with staying(lambda: envs.step([1, 0])) as running:
        envs.close(timeout=0.1)
    assert not Held.closed_amid_step
    assert all(isinstance(error, ClosedError) for error in running.errors.values())


def test_envs_that_are_not_held_are_closed_by_the_collector_of_any_thread() -> None:
    def drop() -> None:
        envs = cart_pole("process", 1)
        envs.reset()
        vars(envs)["itself"] = envs  # so that only the collector finds it

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at_once(drop, drop, *[lambda: [gc.collect() for _ in range(5)]] * 2)
        at_once(gc.collect)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register("endless", Endless)
    register("endless-global", EndlessGlobal)


def groups_config(where: str) -> dict[str, Any]:
    tags = {"Own": "endless", "Global": "endless-global"}
    block = {"max_actions_per_traj": 100_000, "where": where}
    groups = {"env_groups": 4, "group_size": 1, "env_configs": {"tags": list(tags), "n_groups": [2, 2]}}
    custom = {tag: {"env_type": kind, **block} for tag, kind in tags.items()}
    return {"es_manager": {"max_workers": 2, "train": groups}, "custom_envs": custom}


def inputs(envs: Iterable[int]) -> list[dict[str, Any]]:
    said, actions = {"llm_response": "", "llm_raw_response": ""}, ["Left", "Right", "Right"]
    return [{"env_id": env, **said, "actions": actions[: 1 + env % 3]} for env in envs]


EVERY = range(4)


def play_groups(manager: EnvStateManager, envs: tuple[int, ...]) -> list[Any]:
    return [manager.step(inputs(envs)) for _ in range(30)]


@pytest.mark.parametrize("where", ["caller", "process", "both"])
def test_groups_two_threads_step_disjoint_environments_as_one_would(where: str) -> None:
    told: list[Any] = []
    for is_threaded in (False, True):
        with EnvStateManager(groups_config(where)) as manager:
            manager.reset(seed=3)
            plays = [partial(play_groups, manager, envs) for envs in ((0, 2), (1, 3))]
            lists = at_once(*plays) if is_threaded else [play() for play in plays]
            told.append([lists, list(manager.statuses), manager.get_rollout_states(), manager.metrics()])
    assert told[1][1] == told[0][1]
    for place in (0, 2, 3):
        assert_same_batch(told[1][place], told[0][place])


AGENTS = "abc"


def steps_of(policy: Any, base: int) -> Callable[[], None]:
    def play() -> None:
        for turn in range(60):
            seen = {agent: np.float64(base + turn + place) for place, agent in enumerate(AGENTS)}
            actions = {agent: float(action) for agent, action in policy.step(seen).items()}
            assert actions == {agent: 2 * float(value) for agent, value in seen.items()}

    return play


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_policies_any_thread_may_step_them_and_share_a_budget(strategy: Strategy) -> None:
    if strategy == "gpu":
        pytest.importorskip("torch")

    def play(base: int) -> None:
        policies = {agent: Doubling() for agent in AGENTS}
        with WrappedMultiAgentPolicy(policies, strategy, budget=pool) as own:
            steps_of(own, base)()

    with WrappedMultiAgentPolicy({agent: Doubling() for agent in AGENTS}, strategy, workers=2) as policy:
        at_once(steps_of(policy, 0), steps_of(policy, 1000), steps_of(policy, 2000))
        assert {tally.turns for tally in policy.tallies.values()} == {180}
    if strategy in ("sequential", "thread", "process", "auto"):
        with PolicyPool(2) as pool:
            at_once(*(partial(play, base) for base in (0, 1000, 2000, 3000)))


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_replay_one_thread_may_store_while_others_draw(kind: Any) -> None:
    buffer = kind(Box(-1e9, 1e9, (3,)), Discrete(10), capacity=64, num_rows=2, num_steps=2, discount=1.0)
    over = threading.Event()

    def step(number: int) -> None:
        seen = np.full((2, 3), number, np.float32)
        no = np.zeros(2, bool)
        buffer.add(seen, np.full(2, number % 10), np.full(2, number), no, no, seen + 1, ~no)

    def store() -> None:
        for number in range(1, 500):
            step(number)
        over.set()

    def draw(seed: int) -> None:
        generator = np.random.default_rng(seed)
        while not over.is_set():
            batch = buffer.sample(generator, 32)
            first = batch["observations"][:, 0]
            assert (batch["observations"] == first[:, None]).all()  # no row is half of one step, half of another
            assert (batch["actions"] == first % 10).all()
            steps = batch["next_observations"][:, 0] - first
            assert (batch["rewards"] == np.where(steps == 2, 2 * first + 1, first)).all()
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.update_priorities(batch["indices"], np.ones(32))
            assert len(buffer.state()["arrays"]["rewards"]) <= 64

    step(0)
    at_once(store, partial(draw, 1), partial(draw, 2))
    assert buffer.num_added == 1000


def test_tasks_sources_may_be_changed_by_any_thread() -> None:
    alone = threading.Lock()

    def tasks_at(progress: float) -> list[float]:
        assert alone.acquire(blocking=False), "two threads change the progress at once"
        os.sched_yield()
        alone.release()
        return [progress, progress]

    scored, curriculum = ScoredTasks(range(5)), CurriculumTasks(tasks_at)

    def change(share: float) -> None:
        for number in range(300):
            scored.score(number % 5, number + share)
            curriculum.progress = share
            assert abs(scored.chances.sum() - 1.0) < 1e-9
            curriculum.task_for(0, number)

    at_once(*(partial(change, share) for share in (0.1, 0.2, 0.3)))
    assert (scored.version, curriculum.version) == (900, 900)
    assert curriculum.task_for(0, 0).value == curriculum.progress


def collected(backend: Backend, seed: int) -> Any:
    with cart_pole(backend) as envs:
        rollouts = collect(envs, FunctionPolicy(lambda observation: int(observation[2] > 0)), 6, seed=seed)
    return [(one.id, one.rewards.tolist(), one.chain.tolist()) for one in rollouts]


def evaluated(jobs: int, seed: int) -> Any:
    policies = {"half": more_than_half}
    result = evaluate({"draws": GlobalDraws}, policies, 4, seed=seed, jobs=jobs, action_timeout=None)
    return [dict(episode.returns) for episode in result.episodes]


def made_and_reset(seed: int) -> Any:
    for _ in range(2):
        with parallel_envs.make_parallel_env("CartPole-v1", 2, num_workers=2, seed=seed) as envs:
            observations, _ = envs.reset(seed=seed)
    return np.asarray(observations).tolist()


ALONE: list[Callable[[int], Any]] = [made_and_reset, partial(collected, "process")]
ALONE += [partial(evaluated, 0), partial(evaluated, 1)]


@pytest.mark.parametrize("call", ALONE)
def test_calls_at_once_give_what_they_give_alone(call: Callable[[int], Any]) -> None:
    limits = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    expected = [call(seed) for seed in (1, 2, 3)]
    assert expected[0] != expected[1]
    assert at_once(*(partial(call, seed) for seed in (1, 2, 3))) == expected
    assert {name: os.environ.get(name) for name in limits} == limits
