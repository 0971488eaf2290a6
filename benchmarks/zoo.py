"""`python -m benchmarks zoo`: joint steps per second of multi-agent environments, beside other libraries.

The environment is the path or id of a PettingZoo module, or `agents:NUMBER`. Environments travel into worker processes
of every library, so this module imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pettingzoo import ParallelEnv

from benchmarks.peers import Peer
from parallel_envs.bench.envs import EnvChoice, UnknownEnv, resolve
from parallel_envs.bench.measure import (
    Pace,
    Quartiles,
    Series,
    Slice,
    Tell,
    paired_ratio,
    rates_of,
    run_in_turns,
    spread,
)
from parallel_envs.bench.runners import Runner, Workload
from parallel_envs.env_ids import zoo_module

if TYPE_CHECKING:
    from parallel_envs.multiagent import MultiAgentEnvManager


_FORMS = (
    "Give the path of a PettingZoo module that has parallel_env (mpe2.simple_spread_v3) or its id "
    "(mpe2/simple_spread-v3), agents:NUMBER, package.module:factory, or ./file.py:Class."
)


class ManyAgents(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Environment of points in a plane, each pushed by the action of its agent. All agents stay to the end.

    It is about as cheap as an environment with moving points can be.
    """

    EPISODE_STEPS = 100

    def __init__(self, num_agents: int) -> None:
        self.metadata: dict[str, Any] = {"name": "many_agents"}
        self.render_mode = None
        self.possible_agents = [f"agent_{number}" for number in range(num_agents)]
        self.agents: list[str] = []
        self._seen_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self._push_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        return self._seen_space

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        return self._push_space

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self._elapsed = list(self.possible_agents), 0
        shape = len(self.agents), 2
        self._points: npt.NDArray[np.float32] = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return self._seen(np.zeros_like(self._points)), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        there = self.agents
        pushes = np.array([actions[agent] for agent in there], np.float32)
        self._points = np.add(self._points, 0.1 * pushes, dtype=np.float32)
        self._elapsed += 1
        over = self._elapsed == self.EPISODE_STEPS
        self.agents = [] if over else there
        rewards = dict(zip(there, (-np.square(self._points).sum(1)).tolist(), strict=True))
        ends = dict.fromkeys(there, False), dict.fromkeys(there, over)
        return self._seen(pushes), rewards, *ends, {agent: {} for agent in there}

    def _seen(self, pushes: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        return dict(zip(self.possible_agents, np.concatenate([self._points, pushes], 1), strict=True))


def resolve_zoo(name: str) -> EnvChoice:
    """Return the environment that `name` stands for, without making one. Only a module name is resolved."""
    if name.startswith("agents:"):
        return EnvChoice(name, functools.partial(ManyAgents, _number(name)))
    return resolve(name) if ":" in name else EnvChoice(name, functools.partial(_parallel_env, zoo_module(name) or name))


def make_zoo_workload(env: EnvChoice, num_envs: int) -> Workload:
    """Return a workload in which one action is a dict with an action for each agent of an environment.

    Raise `UnknownEnv` if such an environment cannot be made.
    """
    try:
        made: Any = env.factory()
    except Exception as error:
        raise UnknownEnv(
            f'Environment "{env.name}" cannot be made: {type(error).__name__}: {error}. {_FORMS}'
        ) from error
    try:
        spaces = gymnasium.spaces.Dict({agent: made.action_space(agent) for agent in made.possible_agents})
    except AttributeError as error:
        raise UnknownEnv(
            f'The agents of "{env.name}" are not known beforehand. No peer supports such an environment. {_FORMS}'
        ) from error
    finally:
        made.close()
    return Workload(factory=env.factory, action_space=spaces, num_envs=num_envs)


def _number(name: str) -> int:
    digits = name.removeprefix("agents:")
    if not digits.isdecimal() or int(digits) == 0:
        raise UnknownEnv(f'"{name}" does not say how many agents. Give a number, as in agents:64.')
    return int(digits)


def _parallel_env(path: str) -> Any:
    return importlib.import_module(path).parallel_env()


_SEED = 0


@dataclass
class OursTogether(Runner):
    """`MultiAgentEnvManager` with its defaults. With `num_workers` None each environment has its own worker.

    The manager resets in the row after the end of an episode. That row does not count as a step.
    """

    name = "parallel_envs"
    module = "parallel_envs"
    pip_name = "parallel-envs"

    num_workers: int | None = None
    _envs: MultiAgentEnvManager | None = field(default=None, init=False)
    _actions: Iterator[Any] = field(default_factory=lambda: iter(()), init=False)

    @property
    def settings(self) -> str:
        return f"{self.num_workers or self.workload.num_envs} workers"

    def load(self) -> None:
        import parallel_envs.multiagent  # noqa: F401

    def open(self) -> None:
        from parallel_envs.multiagent import MultiAgentEnvManager

        self._actions = itertools.cycle(list(self.workload.batched_actions()))
        workers = self.num_workers or self.workload.num_envs
        self._envs = MultiAgentEnvManager(self.workload.factories, num_workers=workers)
        self._envs.reset(seed=_SEED)

    def step(self) -> int:
        assert self._envs is not None, "open() comes first"
        steps = self.workload.num_envs - self._num_resetting(self._envs)
        self._envs.step(next(self._actions))
        return steps

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _num_resetting(self, envs: MultiAgentEnvManager) -> int:
        """Return the number of environments without an alive agent.

        If the first agent is alive everywhere, the number is 0, and the other agents need not be checked.
        """
        first = next(iter(envs.alive.values()))
        if np.count_nonzero(first) == len(first):
            return 0
        return int(np.count_nonzero(~np.any(list(envs.alive.values()), axis=0)))


@dataclass
class OursBeneath(OursTogether):
    """`ParallelEnvManager` that a `MultiAgentEnvManager` is built on: the same work without dicts by agent.

    The difference in processor time of the caller is the cost of batching by agent.
    """

    name = "parallel_envs, agents not told apart"

    _num_ended: int = field(default=0, init=False)

    def open(self) -> None:
        super().open()
        assert self._envs is not None
        envs, arrays, num_envs = self._envs, self._envs._arrays, self.workload.num_envs
        tape = [arrays.join_actions(actions, envs.alive, num_envs) for actions in self.workload.batched_actions()]
        self._actions, self._num_ended = itertools.cycle(tape), 0

    def step(self) -> int:
        assert self._envs is not None, "open() comes first"
        _, _, terminated, truncated, _ = self._envs.envs.step(next(self._actions))
        steps = self.workload.num_envs - self._num_ended
        self._num_ended = int(np.count_nonzero(terminated | truncated))
        return steps


@dataclass
class PlainLoop(Runner):
    """Loop without a library: it steps every environment here in turn, and resets one when it has no agents left."""

    name = "plain loop"
    module = "pettingzoo"
    pip_name = "pettingzoo"

    _envs: list[Any] = field(default_factory=list, init=False)
    _actions: Iterator[list[Any]] = field(default_factory=lambda: iter(()), init=False)

    @property
    def settings(self) -> str:
        return "no workers, nothing batched"

    def load(self) -> None:
        importlib.import_module("pettingzoo")

    def open(self) -> None:
        self._actions = itertools.cycle(list(self.workload.single_actions()))
        self._envs = [make() for make in self.workload.factories]
        for number, env in enumerate(self._envs):
            env.reset(seed=_SEED + number)

    def step(self) -> int:
        steps = 0
        for env, actions in zip(self._envs, next(self._actions), strict=True):
            if env.agents:
                env.step({agent: actions[agent] for agent in env.agents})
                steps += 1
            else:
                env.reset()
        return steps

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()


@dataclass
class ZooPeer(Peer):
    """Runner of another library that resets within the step that ended an episode, so each row is a step."""

    def step(self) -> int:
        self._envs.step(next(self._actions))
        return self.workload.num_envs

    def open(self) -> None:
        self._envs = self.make()
        self._envs.reset()

    @abstractmethod
    def make(self) -> Any:
        """Return the library's vector environment, and set the actions in the form that it takes."""


@dataclass
class SuperSuit(ZooPeer):
    """`pettingzoo_env_to_vec_env_v1` and `concat_vec_envs_v1`, with as many processes as we have workers.

    Agents of one environment are adjacent rows. SuperSuit takes only environments whose agents stay to the end.
    """

    name = "supersuit"
    module = "supersuit"
    pip_name = "supersuit"

    num_workers: int = 2

    @property
    def settings(self) -> str:
        return f"concat_vec_envs_v1, {self.num_workers} workers"

    def load(self) -> None:
        self._library = importlib.import_module("supersuit")

    def make(self) -> Any:
        env: Any = self.workload.factory()
        tape = [
            np.stack([one[agent] for one in actions for agent in env.possible_agents])
            for actions in self.workload.single_actions()
        ]
        self._actions = itertools.cycle(tape)
        rows = self._library.pettingzoo_env_to_vec_env_v1(env)
        return self._library.concat_vec_envs_v1(
            rows, self.workload.num_envs, num_cpus=self.num_workers, base_class="gymnasium"
        )


@dataclass
class AgileRL(ZooPeer):
    """`AsyncPettingZooVecEnv`, which always has one environment per process."""

    name = "agilerl"
    module = "agilerl"
    pip_name = "agilerl"

    num_workers: int = 2

    @property
    def settings(self) -> str:
        return f"AsyncPettingZooVecEnv, {self.workload.num_envs} workers"

    def load(self) -> None:
        self._library = importlib.import_module("agilerl.vector.pz_async_vec_env")

    def make(self) -> Any:
        self._actions = itertools.cycle(list(self.workload.batched_actions()))
        return self._library.AsyncPettingZooVecEnv(self.workload.factories)


ZOO_PEERS: dict[str, type[SuperSuit] | type[AgileRL]] = {peer.name: peer for peer in (SuperSuit, AgileRL)}


OURS_FEW, OURS_EACH = "parallel_envs", "parallel_envs, one env a worker"
"""Names of our two runners: with the requested number of workers, and with a worker for each environment."""
_BENEATH = OursBeneath.name


@dataclass(frozen=True, kw_only=True)
class ZooPlan:
    """Arguments of `python -m benchmarks zoo`.

    parallel_envs is measured with `num_workers` and also with one environment per worker.
    """

    env: EnvChoice
    num_envs: int
    num_workers: int
    pace: Pace
    peers: tuple[str, ...] = tuple(ZOO_PEERS)

    @property
    def settings(self) -> dict[str, object]:
        """The arguments as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "env": self.env.name, "pace": dataclasses.asdict(self.pace)}


@dataclass(frozen=True, kw_only=True)
class ZooRow:
    """Figures of one runner, in joint steps per second: a joint step is a step of one environment by all its agents.

    `ours_to_this` is, for each of our runners, the spread over the rounds of its rate divided by that of this row.
    `parent_share` is the processor time of the calling process (all its threads, no workers) divided by the elapsed
    time: 1 for a plain loop. `batching` is the share that dicts by agent take: the additional processor time of the
    caller per step, compared with the underlying manager, divided by the time of the step. `missing` is what to pip
    install if the library is missing, `error` the reason why the runner stopped.
    """

    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Quartiles | None = None
    parent_share: Quartiles | None = None
    batching: Quartiles | None = None
    ours_to_this: Mapping[str, Quartiles] = field(default_factory=dict)
    missing: str | None = None
    error: str | None = None


def measure_zoo(plan: ZooPlan, tell: Tell = lambda text: None) -> tuple[ZooRow, ...]:
    """Measure and return a row for each runner: parallel_envs, the plain loop, then the requested peers."""
    contestants = zoo_contestants(plan)
    present = {name: each for name, each in contestants.items() if each.missing() is None}
    series = run_in_turns(present, plan.pace, tell)
    ours = {name: rates_of(series[name]) for name in (OURS_FEW, OURS_EACH) if name in series}
    rows = {name: _row(name, each, series.get(name), ours) for name, each in contestants.items()}
    batching = batching_share(series[OURS_EACH].samples, series[_BENEATH].samples)
    rows[OURS_EACH] = dataclasses.replace(rows[OURS_EACH], batching=batching)
    return tuple(rows.values())


def batching_share(by_agent: Sequence[Slice], beneath: Sequence[Slice]) -> Quartiles | None:
    """Return the additional processor time of the caller per step, divided by the time of the step, round by round."""
    shares = [
        (mine.cpu_seconds / mine.steps - other.cpu_seconds / other.steps) * mine.rate
        for mine, other in zip(by_agent, beneath, strict=False)
    ]
    return spread(shares) if shares else None


def zoo_contestants(plan: ZooPlan) -> dict[str, Runner]:
    """Return every requested runner, installed or not.

    If `num_workers` already gives every environment its own worker, parallel_envs is listed once.
    """
    workload = make_zoo_workload(plan.env, plan.num_envs)
    everyone: dict[str, Runner] = {
        OURS_EACH: OursTogether(workload),
        _BENEATH: OursBeneath(workload),
        PlainLoop.name: PlainLoop(workload),
    }
    if plan.num_workers < plan.num_envs:
        everyone = {OURS_FEW: OursTogether(workload, num_workers=plan.num_workers), **everyone}
    return everyone | {name: ZOO_PEERS[name](workload, num_workers=plan.num_workers) for name in plan.peers}


def _row(name: str, contestant: Runner, series: Series[Slice] | None, ours: Mapping[str, tuple[float, ...]]) -> ZooRow:
    if series is None:
        return ZooRow(name=name, missing=contestant.missing())
    rates = rates_of(series)
    ratios = {mine: paired_ratio(ours[mine], rates) for mine in ours if mine != name}
    return ZooRow(
        name=name,
        settings=contestant.settings,
        rates=rates,
        spread=spread(rates) if rates else None,
        parent_share=spread([each.cpu_share for each in series.samples]) if series.samples else None,
        ours_to_this={mine: ratio for mine, ratio in ratios.items() if ratio is not None},
        error=series.error,
    )
