"""What each public object does when several threads call it: its docstring says so, and it keeps to it."""

from __future__ import annotations

import copy
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
from parallel_envs.policies import EachAgent, FunctionPolicy
from parallel_envs.rollouts.priorities import PrioritizedReplayBuffer
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.tasks import CurriculumTasks, CycleTasks, ScoredTasks
from parallel_envs.testing import assert_same_batch
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from parallel_envs.threads import CallGuard, in_turn, one_thread
from parallel_envs.wrappers import STRATEGIES, PerAgentSequentialWrapper, PerAgentThreadWrapper, PolicyPool
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

    def join(self) -> list[Any]:
        """Wait for all of them. Their results, in order; the first error is raised."""
        self.wait()
        for error in self.errors.values():
            raise error
        return [self.results[number] for number in sorted(self.results)]

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in self._threads), "a call hangs"


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    return Running(*calls).join()


# ---- the rules ---------------------------------------------------------------------------------------------------

ROOMS = [
    "evaluation",
    "groups",
    "learners",
    "meta",
    "multiagent",
    "policies",
    "rollouts",
    "seeding",
    "tasks",
    "vector",
    "wrappers",
]


def public_objects() -> dict[str, Any]:
    """What a user calls: all names of the package, and the classes of its rooms. Errors and plain values apart."""
    found = {name: getattr(parallel_envs, name) for name in parallel_envs.__all__}
    for room in ROOMS:
        module = importlib.import_module(f"parallel_envs.{room}")
        found |= {name: getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))}
    found |= {kind.__name__: kind for kind in (ReplayBuffer, PrioritizedReplayBuffer)}
    return {name: thing for name, thing in found.items() if name in parallel_envs.__all__ or not is_value(thing)}


def is_value(kind: Any) -> bool:
    return (
        issubclass(kind, BaseException | enum.Enum)
        or getattr(kind, "_is_protocol", False)
        or kind.__name__.endswith("Settings")
        or (dataclasses.is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen)
    )


OBJECTS = {
    name: thing
    for name, thing in public_objects().items()
    if not (inspect.isclass(thing) and issubclass(thing, BaseException))
}


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_its_docstring_says_what_threads_may_do(name: str) -> None:
    thing = OBJECTS[name]
    assert not inspect.isclass(thing) or vars(thing)["__doc__"] is not None  # its own, not one that is inherited
    own = thing.__doc__
    assert own is not None
    assert own.count("Threads: ") == 1, f"{name} is public: say in its docstring what several threads may do"


# ---- the guard itself --------------------------------------------------------------------------------------------


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


def test_a_refusal_names_both_calls_and_both_threads() -> None:
    guarded, entered, leave = Guarded(), threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        leave.wait(LONG)

    running = Running(lambda: guarded.waiting(stay))
    assert entered.wait(LONG)
    text = r"`refusing` of this Guarded was called by thread 'MainThread' while thread 'Thread-.*' was inside its `wait"
    with pytest.raises(ConcurrentCall, match=text):
        guarded.refusing()
    leave.set()
    running.join()
    assert guarded.refusing() == 0


@pytest.mark.parametrize("method", ["refusing", "waiting"])
def test_one_thread_at_a_time_is_inside(method: str) -> None:
    guarded = Guarded()
    refused = Counter[int]()

    def hammer(number: int) -> None:
        for _ in range(3000):
            try:
                getattr(guarded, method)(lambda: sum(range(20)))
            except ConcurrentCall:
                refused[number] += 1

    at_once(*(partial(hammer, number) for number in range(4)))
    assert guarded.most == 1
    assert method == "refusing" or not refused


@pytest.mark.parametrize("method", ["refusing", "waiting"])
def test_a_ctrl_c_at_any_moment_leaves_nobody_inside(method: str) -> None:
    guarded = Guarded()
    for moment in strikes(lambda: getattr(guarded, method)(lambda: guarded.waiting(guarded.refusing))):
        assert at_once(guarded.refusing, guarded.waiting)[1:] == [0], f"struck at moment {moment}"


def in_child(what: Callable[[], Any]) -> int:
    """Do something in a forked process. Its exit status: 0 if it returned, 1 if it raised, 14 if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks with threads
        pid = os.fork()
    if not pid:
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        status = 1
        try:
            what()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("method", ["refusing", "waiting"])
def test_a_forked_process_is_not_kept_out_by_a_thread_that_stayed_behind(method: str) -> None:
    guarded, entered, leave = Guarded(), threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        leave.wait(LONG)

    running = Running(lambda: guarded.waiting(stay))
    assert entered.wait(LONG)
    assert in_child(getattr(guarded, method)) == 0
    leave.set()
    running.join()
    guarded.waiting(lambda: in_child(getattr(guarded, method)))


def test_copies_have_guards_of_their_own() -> None:
    guarded = Guarded()
    other = guarded.waiting(lambda: copy.deepcopy(guarded))
    assert at_once(other.refusing) == [0]


# ---- EnvStateManager ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register("endless", Endless)
    register("endless-global", EndlessGlobal)


def groups_config(where: str) -> dict[str, Any]:
    tags = {"Own": "endless", "Global": "endless-global"}
    block = {"max_actions_per_traj": 100_000, "where": where}
    groups = {"env_groups": 4, "group_size": 1, "env_configs": {"tags": list(tags), "n_groups": [2, 2]}}
    return {
        "es_manager": {"max_workers": 2, "train": groups},
        "custom_envs": {tag: {"env_type": kind, **block} for tag, kind in tags.items()},
    }


def inputs(envs: Iterable[int]) -> list[dict[str, Any]]:
    actions = ["Left", "Right", "Right"]
    return [
        {"env_id": env, "llm_response": "", "llm_raw_response": "", "actions": actions[: 1 + env % 3]} for env in envs
    ]


EVERY = range(4)


@pytest.mark.parametrize("where", ["caller", "process", "both"])
def test_groups_two_threads_step_disjoint_environments_as_one_would(where: str) -> None:
    def play(manager: EnvStateManager, envs: tuple[int, ...], entries: list[Any]) -> None:
        entries.extend(manager.step(inputs(envs)) for _ in range(60))

    told: dict[str, Any] = {}
    for how in ("serial", "threads"):
        with EnvStateManager(groups_config(where)) as manager:
            manager.reset(seed=3)
            lists: list[list[Any]] = [[], []]
            plays = [partial(play, manager, envs, own) for envs, own in zip([(0, 2), (1, 3)], lists, strict=True)]
            if how == "threads":
                at_once(*plays)
            else:
                plays[0]()
                plays[1]()
            told[how] = lists, manager.statuses, manager.get_rollout_states(), manager.metrics()
    assert_same_batch(told["threads"][0], told["serial"][0])
    assert told["threads"][1] == told["serial"][1]
    assert_same_batch(told["threads"][2:], told["serial"][2:])


@pytest.mark.parametrize("where", ["caller", "process"])
def test_groups_everything_may_be_asked_meanwhile(where: str) -> None:
    with EnvStateManager(groups_config(where)) as manager:
        manager.reset(seed=3)

        def play() -> None:
            for _ in range(40):
                manager.step(inputs(EVERY))

        def look() -> int:
            for _ in range(10):
                assert {len(status.rewards) for status in manager.statuses} <= set(range(41))
                manager.metrics(), manager.stats(), manager.render(), manager.get_rollout_states(), repr(manager)
            return 1

        def copied() -> Any:
            with copy.deepcopy(manager) as other:
                before = [len(status.rewards) for status in other.statuses]
                other.step(inputs(EVERY))
                return len(set(before)), [
                    len(status.rewards) - one for status, one in zip(other.statuses, before, strict=True)
                ]

        *_, (kinds, played) = at_once(play, look, copied)
        assert kinds == 1  # each call is whole, so a copy is never in the midst of a turn
        assert played == [1, 1, 1, 1]
        assert [len(status.rewards) for status in manager.statuses] == [40] * 4


@pytest.mark.parametrize("where", ["caller", "process", "both"])
def test_groups_close_from_another_thread_ends_the_calls(where: str) -> None:
    for turns_before in (0, 1, 5):
        manager, begun = EnvStateManager(groups_config(where)), threading.Semaphore(0)

        def play(manager: EnvStateManager = manager, begun: threading.Semaphore = begun) -> None:
            manager.reset(seed=3)
            while True:
                begun.release()
                manager.step(inputs(EVERY))

        running = Running(play)
        for _ in range(turns_before):
            assert begun.acquire(timeout=LONG)
        manager.close()
        running.wait()
        assert isinstance(running.errors[0], ClosedError), running.errors[0]
        with pytest.raises(ClosedError, match="has been closed"):
            manager.step(inputs(EVERY))


def test_groups_a_forked_process_does_not_wait_for_a_thread_that_stayed_behind() -> None:
    with EnvStateManager(groups_config("process")) as manager:
        manager.reset(seed=3)
        stop = threading.Event()

        def play() -> None:
            while not stop.is_set():
                manager.step(inputs(EVERY))

        running = Running(play, play)
        try:
            for _ in range(5):
                assert in_child(lambda: manager.step(inputs(EVERY))) == 1  # ClosedError: the workers are not its own
                assert in_child(lambda: manager.statuses) == 0
        finally:
            stop.set()
            running.join()


# ---- ParallelEnvManager ------------------------------------------------------------------------------------------


class Held(gymnasium.Env[Any, Any]):
    """Counts its steps. A step with action 1 stays inside until it is let go; for backends without processes."""

    observation_space = Box(0, 1e6, (1,), np.float64)
    action_space = Discrete(2)
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
            Held.entered.set()
            Held.leave.wait(LONG)
        self.inside = False
        return np.array([float(self.count)]), 1.0, False, False, {}

    def close(self) -> None:
        Held.closed_amid_step |= self.inside


@pytest.fixture
def held() -> Iterator[None]:
    Held.entered.clear()
    Held.leave.clear()
    Held.closed_amid_step = False
    yield
    Held.leave.set()


ASKED: dict[str, Callable[[ParallelEnvManager], Any]] = {
    "reset": lambda envs: envs.reset(),
    "reset_async": lambda envs: envs.reset_async(),
    "reset_wait": lambda envs: envs.reset_wait(),
    "step": lambda envs: envs.step([0, 0]),
    "step_async": lambda envs: envs.step_async([0, 0]),
    "step_wait": lambda envs: envs.step_wait(),
    "send": lambda envs: envs.send([0], [1]),
    "send_reset": lambda envs: envs.send_reset([1]),
    "recv": lambda envs: envs.recv(),
    "recv_each": lambda envs: envs.recv_each(),
    "recv_env": lambda envs: envs.recv_env(1),
    "ready": lambda envs: envs.ready(),
    "set_tasks": lambda envs: envs.set_tasks([1, 2]),
    "get_tasks": lambda envs: envs.get_tasks(),
    "call_async": lambda envs: envs.call_async("count"),
    "call_wait": lambda envs: envs.call_wait(),
    "call": lambda envs: envs.get_attr("count"),
    "set_attr": lambda envs: envs.set_attr("count", 5),
    "stats": lambda envs: envs.stats(),
    "restart": lambda envs: envs.restart(),
    "remote": lambda envs: envs.remotes[1].send(("step", {"action": 0})),
    "collect": lambda envs: collect(envs, None, 1, random_actions=True),
}


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_envs_a_second_thread_is_refused_whatever_it_asks(backend: Backend) -> None:
    envs = ParallelEnvManager([Held] * 2, backend=backend)
    envs.reset()
    running = Running(lambda: envs.step([1, 0]))
    assert Held.entered.wait(LONG)
    for ask in ASKED.values():
        with pytest.raises(ConcurrentCall, match="of this ParallelEnvManager was called by thread 'MainThread'"):
            ask(envs)
    repr(envs)
    Held.leave.set()
    [(observations, *_)] = running.join()
    assert observations.tolist() == [[1.0], [1.0]]
    assert envs.step([0, 0])[0].tolist() == [[2.0], [2.0]]
    envs.close()


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_envs_two_threads_that_hammer_get_whole_steps_or_are_refused(backend: Backend) -> None:
    envs = ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")] * 2, num_workers=2, backend=backend)
    envs.reset(seed=1)
    counts: Counter[str] = Counter()

    def hammer() -> None:
        for _ in range(300):
            try:
                observations, rewards, *_ = envs.step(np.zeros(2, int))
                assert observations.shape == (2, 4)
                assert rewards.shape == (2,)
                counts["done"] += 1
            except (ConcurrentCall, AlreadyPendingCallError):
                counts["refused"] += 1

    at_once(hammer, hammer)
    assert counts["done"] + counts["refused"] == 600
    assert {one["steps"] + 0 for one in envs.stats()} != {0}
    envs.reset(seed=2)
    again = envs.step(np.zeros(2, int))
    envs.close()
    reference = ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")] * 2, backend="serial")
    reference.reset(seed=2)
    assert_same_batch(again, reference.step(np.zeros(2, int)))
    reference.close()


def test_envs_a_step_may_be_begun_by_one_thread_and_ended_by_another() -> None:
    envs = ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")] * 2)
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


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_envs_close_while_an_environment_of_the_caller_works_does_not_touch_it(backend: Backend) -> None:
    envs = ParallelEnvManager([Held] * 2, backend=backend)
    envs.reset()
    running = Running(lambda: envs.step([1, 0]))
    assert Held.entered.wait(LONG)
    envs.close(timeout=0.1)
    Held.leave.set()
    running.wait()
    assert not Held.closed_amid_step
    assert all(isinstance(error, ClosedError) for error in running.errors.values())


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_envs_close_from_another_thread_ends_the_steps(backend: Backend) -> None:
    for steps_before in (1, 30):
        envs = ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")] * 2, backend=backend)
        begun = threading.Semaphore(0)

        def play(envs: ParallelEnvManager = envs, begun: threading.Semaphore = begun) -> None:
            envs.reset(seed=0)
            while True:
                begun.release()
                envs.step([0, 1])

        running = Running(play)
        for _ in range(steps_before):
            assert begun.acquire(timeout=LONG)
        envs.close()
        running.wait()
        assert isinstance(running.errors[0], ClosedError), running.errors[0]


def test_envs_one_that_nobody_holds_is_closed_by_the_collector_of_any_thread() -> None:
    def drop() -> None:
        envs = ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")])
        envs.reset()
        vars(envs)["itself"] = envs  # so that only the collector finds it

    def collect_garbage() -> None:
        for _ in range(5):
            gc.collect()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at_once(drop, drop, collect_garbage, collect_garbage)
        at_once(collect_garbage)


# ---- MultiAgentEnvManager ----------------------------------------------------------------------------------------


class HeldAgents(ScriptedAgentsEnv):
    """Its steps stay inside while `stays` is set."""

    stays = False

    def step(self, actions: Any) -> Any:
        if HeldAgents.stays:
            Held.entered.set()
            Held.leave.wait(LONG)
        return super().step(actions)


def held_agents() -> HeldAgents:
    return HeldAgents([{"a": Stay(50), "b": Stay(50)}])


@pytest.mark.usefixtures("held")
def test_agents_a_second_thread_is_refused_by_the_manager_and_its_views(monkeypatch: pytest.MonkeyPatch) -> None:
    with MultiAgentEnvManager([held_agents] * 2, backend="serial") as envs:
        envs.reset(seed=1)
        actions = {agent: envs.action_space(agent).sample() for agent in envs.agents_now}
        views = envs.single_env(0)
        monkeypatch.setattr(HeldAgents, "stays", True)
        running = Running(lambda: envs.step(actions))
        assert Held.entered.wait(LONG)
        asked: list[Callable[[], Any]] = [
            envs.reset,
            lambda: envs.step(actions),
            envs.step_wait,
            lambda: envs.send(actions),
            envs.recv,
            lambda: envs.recv_env(0),
            envs.stats,
            lambda: envs.agents(0),
            views.reset,
            lambda: collect(envs.envs, None, 1, random_actions=True),
        ]
        for ask in asked:
            with pytest.raises(ConcurrentCall, match="MultiAgentEnvManager"):
                ask()
        HeldAgents.stays = False
        Held.leave.set()
        running.join()
        envs.step({agent: envs.action_space(agent).sample() for agent in envs.agents_now})


# ---- policies ----------------------------------------------------------------------------------------------------


AGENTS = "abc"


def steps_of(policy: Any, base: int) -> Callable[[], None]:
    def play() -> None:
        for turn in range(60):
            seen = {agent: np.float64(base + turn + place) for place, agent in enumerate(AGENTS)}
            actions = policy.step(seen)
            assert {agent: float(action) for agent, action in actions.items()} == {
                agent: 2 * float(value) for agent, value in seen.items()
            }

    return play


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_policies_any_thread_may_step_them(strategy: Strategy) -> None:
    if strategy == "gpu":
        pytest.importorskip("torch")
    with WrappedMultiAgentPolicy({agent: Doubling() for agent in AGENTS}, strategy, workers=2) as policy:
        at_once(steps_of(policy, 0), steps_of(policy, 1000), steps_of(policy, 2000))
        assert {tally.turns for tally in policy.tallies.values()} == {180}


@pytest.mark.parametrize("strategy", ["sequential", "thread", "process", "auto"])
def test_policies_wrappers_that_share_a_budget_may_be_used_by_different_threads(strategy: Strategy) -> None:
    with PolicyPool(2) as pool:

        def play(base: int) -> None:
            for _ in range(2):
                policies = {agent: Doubling() for agent in AGENTS}
                with WrappedMultiAgentPolicy(policies, strategy, budget=pool) as policy:
                    steps_of(policy, base)()

        at_once(*(partial(play, base) for base in (0, 1000, 2000)))


@pytest.mark.parametrize("kind", [PerAgentSequentialWrapper, PerAgentThreadWrapper])
def test_policies_each_agent_may_have_a_thread(kind: Any) -> None:
    with kind({agent: Doubling() for agent in AGENTS}) as wrapper:

        def play(agent: str) -> None:
            one = wrapper.agent_policy(agent)
            for turn in range(200):
                assert one.step(turn) == 2 * turn

        at_once(*(partial(play, agent) for agent in AGENTS))
        assert {tally.turns for tally in wrapper.tallies.values()} == {200}


@pytest.mark.parametrize("strategy", ["sequential", "thread", "process"])
def test_policies_close_from_another_thread(strategy: Strategy) -> None:
    policy = WrappedMultiAgentPolicy({agent: Doubling() for agent in AGENTS}, strategy, workers=2)
    begun = threading.Event()

    def play() -> None:
        while True:
            policy.step(dict.fromkeys(AGENTS, 1.0))
            begun.set()

    running = Running(play)
    assert begun.wait(LONG)
    policy.close()
    running.wait()
    assert isinstance(running.errors[0], ClosedError), running.errors[0]


def test_policies_each_agent_is_made_once() -> None:
    for _ in range(50):
        policy = EachAgent(lambda agent: object())
        assert len(set(map(id, at_once(*[lambda policy=policy: policy.agent_policy("a")] * 4)))) == 1


# ---- learners ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("held")
def test_learners_a_second_thread_is_refused_while_they_train(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=1, hidden=(4,))
    with (
        MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, backend="serial") as envs,
        IndependentLearners(envs, config, seed=1, update_mode="sequential") as learners,
    ):

        def stay(learners: IndependentLearners) -> None:
            Held.entered.set()
            Held.leave.wait(LONG)

        running = Running(lambda: learners.train(40, stay))
        assert Held.entered.wait(LONG)
        asked: list[Callable[[], Any]] = [
            learners.begin,
            learners.act,
            learners.step,
            learners.update,
            lambda: learners.train(10),
            learners.states,
            lambda: learners.load_states({}),
            lambda: learners.save(tmp_path / "checkpoint"),
            lambda: learners.load(tmp_path / "checkpoint"),
            learners.close,
        ]
        for ask in asked:
            with pytest.raises(ConcurrentCall, match="of this IndependentLearners was called"):
                ask()
        learners.returns()
        Held.leave.set()
        running.join()
        learners.step()


@pytest.mark.usefixtures("held")
def test_meta_learner_a_second_thread_is_refused_while_it_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Learner(settings()) as learner:
        learner.collect_rollouts_parallel(4)
        real = learner.agent.update

        def stay(*args: Any, **kwargs: Any) -> Any:
            Held.entered.set()
            Held.leave.wait(LONG)
            return real(*args, **kwargs)

        monkeypatch.setattr(learner.agent, "update", stay)
        running = Running(learner.update)
        assert Held.entered.wait(LONG)
        asked: list[Callable[[], Any]] = [
            learner.update,
            lambda: learner.train(tmp_path / "run"),
            learner.evaluate,
            lambda: learner.collect_rollouts(1),
            lambda: learner.save(tmp_path / "checkpoint"),
            learner.close,
        ]
        for ask in asked:
            with pytest.raises(ConcurrentCall, match="of this Learner was called"):
                ask()
        Held.leave.set()
        running.join()


# ---- collecting, storing, tasks ----------------------------------------------------------------------------------


def cart_pole(backend: Backend) -> ParallelEnvManager:
    return ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")] * 2, backend=backend)


def left_or_right(observation: Any) -> int:
    return int(observation[2] > 0)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_collect_calls_with_managers_of_their_own_are_independent(backend: Backend) -> None:
    policy = FunctionPolicy(left_or_right)

    def played(seed: int) -> Any:
        envs = cart_pole(backend)
        try:
            return [(one.id, one.rewards.tolist(), one.chain.tolist()) for one in collect(envs, policy, 6, seed=seed)]
        finally:
            envs.close()

    expected = [played(seed) for seed in (1, 2, 3)]
    assert at_once(*(partial(played, seed) for seed in (1, 2, 3))) == expected


@pytest.mark.usefixtures("held")
def test_collect_a_second_call_with_the_same_manager_is_refused() -> None:
    envs = cart_pole("serial")

    def stays(observation: Any) -> int:
        Held.entered.set()
        Held.leave.wait(LONG)
        return 0

    running = Running(lambda: collect(envs, stays, 3))
    assert Held.entered.wait(LONG)
    with pytest.raises(ConcurrentCall, match="was inside its `collect`"):
        collect(envs, left_or_right, 3)
    with pytest.raises(ConcurrentCall, match="was inside its `collect`"):
        envs.step([0, 0])
    Held.leave.set()
    assert len(running.join()[0]) == 3
    envs.close()


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_replay_one_thread_may_store_while_others_draw(kind: Any) -> None:
    buffer = kind(Box(-1e9, 1e9, (3,)), Discrete(10), capacity=64, num_rows=2, num_steps=2, discount=1.0)

    def step(number: int) -> None:
        seen = np.full((2, 3), number, np.float32)
        no = np.zeros(2, bool)
        buffer.add(seen, np.full(2, number % 10), np.full(2, number), no, no, seen + 1, ~no)

    step(0)
    over = threading.Event()

    def store() -> None:
        for number in range(1, 1500):
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

    at_once(store, partial(draw, 1), partial(draw, 2))
    assert buffer.num_added == 3000


def test_tasks_sources_answer_and_change_whichever_thread_asks() -> None:
    cycle = CycleTasks(range(5), seed=1)
    cycle.bind(3)
    expected = [cycle.task_for(env, episode) for env in range(3) for episode in range(300)]

    def ask() -> Any:
        return [cycle.task_for(env, episode) for env in range(3) for episode in range(300)]

    assert at_once(ask, ask, ask) == [expected] * 3

    scored = ScoredTasks(range(5))
    curriculum = CurriculumTasks(lambda progress: [progress, progress])

    def change(share: float) -> None:
        for number in range(2000):
            scored.score(number % 5, number + share)
            curriculum.progress = share
            assert abs(scored.chances.sum() - 1.0) < 1e-9
            curriculum.task_for(0, number)

    at_once(*(partial(change, share) for share in (0.1, 0.2, 0.3)))
    assert (scored.version, curriculum.version) == (6000, 6000)
    assert copy.deepcopy(scored).chances.tolist() == scored.chances.tolist()


# ---- evaluation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [0, 1])
def test_evaluate_calls_at_once_give_what_they_give_alone(jobs: int) -> None:
    threads_before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}

    def found(seed: int) -> Any:
        result = evaluate(
            {"draws": GlobalDraws}, {"half": more_than_half}, 4, seed=seed, jobs=jobs, action_timeout=None
        )
        return [dict(episode.returns) for episode in result.episodes]

    expected = [found(seed) for seed in (1, 2, 3)]
    assert expected[0] != expected[1]
    assert at_once(*(partial(found, seed) for seed in (1, 2, 3))) == expected
    assert {name: os.environ.get(name) for name in threads_before} == threads_before


# ---- values, and functions that make things ----------------------------------------------------------------------


def test_seeds_are_the_same_whoever_asks() -> None:
    tree = parallel_envs.SeedTree(3)
    expected = tree.child("a").seeds(50), parallel_envs.env_seeds(3, 50)
    assert at_once(*[lambda: (tree.child("a").seeds(50), parallel_envs.env_seeds(3, 50))] * 4) == [expected] * 4


def test_making_managers_in_several_threads_at_once() -> None:
    def made(number: int) -> Any:
        for _ in range(3):
            envs = parallel_envs.make_parallel_env("CartPole-v1", 2, num_workers=2, seed=number)
            try:
                observations, _ = envs.reset(seed=number)
            finally:
                envs.close()
        return np.asarray(observations).tolist()

    expected = [made(number) for number in range(4)]
    assert at_once(*(partial(made, number) for number in range(4))) == expected


def test_a_forked_process_makes_managers_while_a_thread_that_stayed_behind_was_making_one() -> None:
    def make() -> None:
        ParallelEnvManager([partial(gymnasium.make, "CartPole-v1")]).close()

    make()  # what starts workers is there
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with supervisor_client._guard.lock:  # as while a worker is being started
            entered.set()
            leave.wait(LONG)

    running = Running(hold)
    assert entered.wait(LONG)
    try:
        assert in_child(make) == 0
    finally:
        leave.set()
        running.join()
